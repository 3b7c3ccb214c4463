"""``hiddenstate epsilon --sampler cyclic``: what an order of the batches may promise."""

import argparse
import json

from hiddenstate.errors import InputError
from hiddenstate.rounding import shown

_OWN = ("records", "batch_size")
"""Options that sampled batches have no use for."""

CURVATURES = ("--weak-convexity", "--strong-convexity", "--smoothness")

_OTHERS = {"schedule": "constant", "momentum": 0.0, "weight_decay": 0.0, "width": None}
"""Options of ``epsilon`` that a fixed order has no use for, and what they are by default."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The sampler, and what a cyclic one needs in place of the sampling rate."""
    parser.add_argument(
        "--sampler",
        choices=("poisson", "cyclic", "shuffled"),
        default="poisson",
        help="poisson (the default); cyclic: batches in a fixed order, one record swapped; "
        "shuffled: the same in an order that is drawn once",
    )
    for name, kind, what in (
        ("--records", int, "cyclic, shuffled: records in the data set"),
        ("--batch-size", int, "cyclic, shuffled: records in a batch; divides the records"),
        ("--weak-convexity", float, "of every loss, 0 (the default) if convex"),
        ("--strong-convexity", float, "of every loss, whose gradients are never clipped (0)"),
        ("--smoothness", float, "largest curvature of every loss, 0 (the default) if linear"),
        ("--holder", float, "exponent of Hölder gradients, whose constant is the smoothness (1)"),
        ("--diameter", float, "of the domain that iterates are projected on (none)"),
    ):
        what += "; if sampled, of all records' sum" * (name in CURVATURES)
        parser.add_argument(name, type=kind, metavar="NUMBER", help=what)
    parser.add_argument(
        "--convex", action="store_true", help="every loss is convex: --weak-convexity 0"
    )


def run(options: argparse.Namespace) -> bool:
    """Print the epsilons if batches come in a fixed order; False if they are sampled."""
    if not chosen(options):
        return False
    _print(options)
    return True


def chosen(options: argparse.Namespace) -> bool:
    """Whether batches come in a fixed order, or in one that is shuffled once.

    Raises an input error for options of the other sampler, and for missing ones.
    """
    if options.convex and options.weak_convexity:
        raise InputError(f"--convex: got --weak-convexity {options.weak_convexity:g}; expected 0")
    given = [name for name in _OWN if getattr(options, name) is not None]
    if options.sampler == "poisson":
        if given:
            raise InputError(f"{_option(given[0])}: expected only with --sampler cyclic")
        if options.sampling_rate is None:
            raise InputError("--sampling-rate: got none; expected a probability")
        return False
    if options.sampling_rate is not None:
        raise InputError("--sampling-rate: expected only with --sampler poisson")
    for name, default in _OTHERS.items():
        if getattr(options, name, default) != default:
            raise InputError(f"{_option(name)}: expected only with --sampler poisson")
    for name in _OWN:
        if name not in given:
            raise InputError(
                f"{_option(name)}: got none; expected a number for --sampler {options.sampler}"
            )
    return True


def assumed(options: argparse.Namespace) -> dict[str, float]:
    """What is assumed of the losses, as far as it is given."""
    names = ("weak_convexity", "strong_convexity", "smoothness", "holder", "diameter")
    values = {name: getattr(options, name) for name in names}
    return {name: value for name, value in values.items() if value is not None}


def _print(options: argparse.Namespace) -> None:
    # Imported here because most commands never account.
    from hiddenstate.accounting import cyclic_guarantees

    losses = {"weak_convexity": 0.0, "smoothness": 0.0} | assumed(options)
    curvature = {name: losses.pop(name) for name in ("weak_convexity", "smoothness")}
    settings = {
        name: getattr(options, name)
        for name in ("records", "batch_size", "steps", "noise_multiplier")
    } | {"step_size": options.learning_rate, **curvature}
    run = cyclic_guarantees.schedule(**settings)
    shuffled = options.sampler == "shuffled"
    found = cyclic_guarantees.guarantees(run, options.delta, shuffled=shuffled, **losses)
    if options.json:
        shared = {"sampler": options.sampler, "delta": options.delta, "diameter": None} | losses
        epsilon = {
            one.bound.key: {
                **{"name": one.bound.name, "epsilon": one.epsilon},
                **{"domain": one.assumption, "source": one.bound.source, "mu": one.mu},
            }
            for one in found
        }
        print(json.dumps(shared | settings | {"epsilon": epsilon}, indent=2))
        return
    fixed, once = ("", ", shuffled once") if shuffled else ("fixed ", "")
    print(
        f"epsilon at delta {options.delta:g}, noise multiplier {options.noise_multiplier:g}, "
        f"{options.steps} steps through {options.records} records in {fixed}batches of "
        f"{options.batch_size}{once} (swap a record)\n"
        f"learning rate {options.learning_rate:g}, weak convexity "
        f"{curvature['weak_convexity']:g}, smoothness {curvature['smoothness']:g}"
        + "".join(f", {name.replace('_', ' ')} {value:g}" for name, value in losses.items())
    )
    for one in found:
        print(f"{one.bound.key:<18}{shown(one.epsilon, 'upper', 9):>12}  {one.assumption}")
    print(
        "Each is an upper bound for every record where its domain holds, and none elsewhere: only\n"
        "composition may be promised unless the curvature of every loss is known. 'paper' is\n"
        "Theorem 4.5 of arXiv 2407.05237, our reconstruction."
    )
    if shuffled:
        print("Delta is the mean over the orders of the batches, which must be drawn uniformly.")


def _option(name: str) -> str:
    return "--" + name.replace("_", "-")
