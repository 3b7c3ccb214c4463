"""The options that describe a training with DP-SGD, which the commands of the library share."""

import argparse
from typing import TYPE_CHECKING

from hiddenstate.errors import InputError
from hiddenstate.sampling import SAMPLERS, Cyclic, FullBatch, Ordered, Poisson, Reshuffled

if TYPE_CHECKING:
    from hiddenstate.accounting.setting import Setting

_ORDERED = ("records", "batch_size")
"""Options of batches in an order."""

_CURVATURES = ("weak_convexity", "strong_convexity", "smoothness")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Noise, steps, delta, how batches are drawn, and what is assumed of the losses."""
    for names, kind, what in (
        (("--noise-multiplier", "--sigma"), float, "noise standard deviation over clipping norm"),
        (("--sampling-rate", "--q"), float, "poisson: probability that a step samples a record"),
        (("--steps",), int, "steps of DP-SGD"),
        (("--delta",), float, "probability at which epsilon is stated"),
    ):
        needed = names[0] != "--sampling-rate"
        parser.add_argument(*names, type=kind, required=needed, metavar="NUMBER", help=what)
    parser.add_argument(
        "--sampler",
        choices=SAMPLERS,
        default="poisson",
        help="poisson (the default); full: every record in every step; cyclic: batches in a fixed "
        "order, one record swapped; shuffled: the same in an order that is drawn once; reshuffled: "
        "in each epoch",
    )
    for name, kind, what in (
        ("records", int, "batches in an order: records in the data set"),
        ("batch_size", int, "batches in an order: records in a batch; divides the records"),
        ("weak_convexity", float, "of every loss, 0 (the default) if convex"),
        ("strong_convexity", float, "of every loss, whose gradients are never clipped (0)"),
        ("smoothness", float, "largest curvature of every loss, 0 if linear (not known)"),
        ("holder", float, "exponent of Hölder gradients, whose constant is the smoothness (1)"),
        ("diameter", float, "of the domain that iterates are projected on (none)"),
        (
            "learning_rate",
            float,
            "batches in an order: step size on their mean (0.1); else on the sum of gradients (1)",
        ),
    ):
        what += "; if sampled, of all records' sum" * (name in _CURVATURES)
        parser.add_argument(option(name), type=kind, metavar="NUMBER", help=what)
    parser.add_argument(
        "--convex", action="store_true", help="every loss is convex: --weak-convexity 0"
    )


def read(options: argparse.Namespace) -> "Setting":
    """The setting that the options describe; an input error for what does not belong together."""
    # Imported here because most commands never account.
    from hiddenstate.accounting.arguments import check_delta, check_mechanism
    from hiddenstate.accounting.setting import Setting

    if options.convex and options.weak_convexity:
        raise InputError(f"--convex: got --weak-convexity {options.weak_convexity:g}; expected 0")
    if options.smoothness is None:
        for name in ("weak_convexity", "strong_convexity", "holder"):
            if getattr(options, name):
                raise InputError(f"{option(name)}: expected only with --smoothness")
    check_mechanism(options.noise_multiplier, options.sampling_rate or 1.0, options.steps)
    check_delta(options.delta)
    names = ("records", *_CURVATURES, "holder", "diameter", "learning_rate")
    given = {name: getattr(options, name) for name in names}
    sampling = _sampling(options)
    if isinstance(sampling, Ordered) and options.learning_rate is None:
        given["learning_rate"] = 0.1
    return Setting(
        sampling=sampling,
        noise_multiplier=options.noise_multiplier,
        steps=options.steps,
        **{name: value for name, value in given.items() if value is not None},
    )


def _sampling(options: argparse.Namespace) -> FullBatch | Poisson | Ordered:
    given = [name for name in _ORDERED if getattr(options, name) is not None]
    if options.sampler in ("poisson", "full"):
        if given:
            raise InputError(f"{option(given[0])}: expected only with --sampler cyclic")
        if options.sampler == "full":
            if options.sampling_rate is not None:
                raise InputError("--sampling-rate: expected only with --sampler poisson")
            return FullBatch()
        if options.sampling_rate is None:
            raise InputError("--sampling-rate: got none; expected a probability")
        return Poisson(options.sampling_rate)
    if options.sampling_rate is not None:
        raise InputError("--sampling-rate: expected only with --sampler poisson")
    for name in _ORDERED:
        if name not in given:
            raise InputError(
                f"{option(name)}: got none; expected a number for --sampler {options.sampler}"
            )
    if options.sampler == "reshuffled":
        return Reshuffled(options.batch_size)
    return Cyclic(options.batch_size, shuffled_once=options.sampler == "shuffled")


def option(name: str) -> str:
    """An option's name as it is written."""
    return "--" + name.replace("_", "-")
