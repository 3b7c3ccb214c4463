"""``hiddenstate epsilon --sampler cyclic``: what a fixed order of the batches may promise."""

import argparse
import json
from dataclasses import asdict

from hiddenstate.errors import InputError
from hiddenstate.rounding import shown

_OWN = ("records", "batch_size", "weak_convexity", "smoothness", "diameter")
_SHARED = ("smoothness", "diameter")
"""Of these, what the bounds of sampled batches take too."""

_OTHERS = {"schedule": "constant", "momentum": 0.0, "weight_decay": 0.0, "width": None}
"""Options of ``epsilon`` that a fixed order has no use for, and what they are by default."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The sampler, and what a cyclic one needs in place of the sampling rate."""
    parser.add_argument(
        "--sampler",
        choices=("poisson", "cyclic"),
        default="poisson",
        help="poisson (the default), or cyclic: batches in a fixed order, one record swapped",
    )
    for name, kind, what in (
        ("--records", int, "records in the data set"),
        ("--batch-size", int, "records in a batch; divides the records"),
        ("--weak-convexity", float, "of every loss, 0 (the default) if convex"),
        (
            *("--smoothness", float),
            "largest curvature of every loss, 0 (the default) if linear; if sampled, of a batch's "
            "sum of convex losses whose gradients are never clipped",
        ),
        ("--diameter", float, "of the domain that iterates are projected on (none)"),
    ):
        only = "" if name == "--diameter" else "cyclic: "
        parser.add_argument(name, type=kind, metavar="NUMBER", help=only + what)


def run(options: argparse.Namespace) -> bool:
    """Print the epsilons if batches come in a fixed order; False if they are sampled."""
    if not chosen(options):
        return False
    _print(options)
    return True


def chosen(options: argparse.Namespace) -> bool:
    """Whether batches come in a fixed order.

    Raises an input error for options of the other sampler, and for missing ones.
    """
    given = [name for name in _OWN if getattr(options, name) is not None]
    if options.sampler == "poisson":
        given = [name for name in given if name not in _SHARED]
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
    for name in ("records", "batch_size"):
        if name not in given:
            raise InputError(f"{_option(name)}: got none; expected a number for --sampler cyclic")
    return True


def _print(options: argparse.Namespace) -> None:
    # Imported here because most commands never account.
    from hiddenstate.accounting import cyclic_guarantees

    settings = {
        name: getattr(options, name)
        for name in ("records", "batch_size", "steps", "noise_multiplier")
    } | {
        "step_size": options.learning_rate,
        "weak_convexity": options.weak_convexity or 0.0,
        "smoothness": options.smoothness or 0.0,
    }
    mechanism = cyclic_guarantees.schedule(**settings)
    found = cyclic_guarantees.guarantees(mechanism, options.delta, diameter=options.diameter)
    if options.json:
        shared = {"sampler": "cyclic", "delta": options.delta, "diameter": options.diameter}
        epsilon = {guarantee.name: asdict(guarantee) for guarantee in found}
        print(json.dumps(shared | settings | {"epsilon": epsilon}, indent=2))
        return
    print(
        f"epsilon at delta {options.delta:g}, noise multiplier {options.noise_multiplier:g}, "
        f"{options.steps} steps through {options.records} records in fixed batches of "
        f"{options.batch_size} (swap a record)\n"
        f"learning rate {settings['step_size']:g}, weak convexity "
        f"{settings['weak_convexity']:g}, smoothness {settings['smoothness']:g}"
    )
    for guarantee in found:
        value = shown(guarantee.epsilon, "upper", 9)
        print(f"{guarantee.name:<18}{value:>12}  {guarantee.domain}")
    print(
        "Each is an upper bound for every record where its domain holds, and none elsewhere: only\n"
        "composition may be promised unless the curvature of every loss is known. 'paper' is\n"
        "Theorem 4.5 of arXiv 2407.05237, our reconstruction."
    )


def _option(name: str) -> str:
    return "--" + name.replace("_", "-")
