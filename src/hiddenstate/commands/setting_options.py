"""The setting that options describe, for every command about a training with DP-SGD."""

import argparse
import math
from typing import TYPE_CHECKING

from hiddenstate.commands.options import LEARNING_RATE
from hiddenstate.errors import InputError
from hiddenstate.sampling import (
    BallsAndBins,
    Cyclic,
    FixedSize,
    FullBatch,
    Ordered,
    Poisson,
    Reshuffled,
)

if TYPE_CHECKING:
    from hiddenstate.accounting.bounds import Found
    from hiddenstate.accounting.setting import Setting

_CURVATURES = ("weak_convexity", "strong_convexity", "smoothness")

_RELEASE = ("release_every", "average_last", "ema_decay")

MOST_RECORDS = 10**15
"""Of a data set; counts of so many are doubles."""


def read(options: argparse.Namespace) -> "Setting":
    """The setting that the options describe; an input error for what does not belong together."""
    # Imported here because most commands never account.
    from hiddenstate.accounting.arguments import check_delta
    from hiddenstate.accounting.setting import ADJACENCY, OPTIMISER, Setting

    if options.convex:
        if options.weak_convexity:
            raise InputError(
                f"--convex: got --weak-convexity {options.weak_convexity:g}; expected 0"
            )
        options.weak_convexity = 0.0
    if options.smoothness is None:
        for name in ("weak_convexity", "strong_convexity", "holder"):
            if getattr(options, name) is not None and not options.convex:
                raise InputError(f"{option(name)}: expected only with --smoothness")
    check_delta(options.delta)
    sampling, steps = _sampling(options), _steps(options)
    names = ("records", *_CURVATURES, "holder", "diameter", *OPTIMISER, *_RELEASE, *ADJACENCY)
    given = {name: getattr(options, name) for name in names}
    if isinstance(sampling, FullBatch | Poisson | BallsAndBins):
        given["batch_size"] = _batch_size(options)
    rate = LEARNING_RATE if options.learning_rate is None else options.learning_rate
    return Setting(
        sampling=sampling,
        noise_multiplier=options.noise_multiplier,
        steps=steps,
        learning_rate=rate,
        **{name: value for name, value in given.items() if value is not None},
    )


def _sampling(
    options: argparse.Namespace,
) -> FullBatch | Poisson | FixedSize | BallsAndBins | Ordered:
    records, size, rate = options.records, options.batch_size, options.sampling_rate
    if records is not None and not 1 <= records <= MOST_RECORDS:
        raise InputError(f"--records: got {records}; expected 1 to {MOST_RECORDS:,}")
    if size is not None and not 1e-30 <= size < math.inf:
        raise InputError(f"--batch-size: got {size:g}; expected a number of 1e-30 or more")
    if options.drop_last and options.sampler != "reshuffled":
        raise InputError(f"--drop-last: got --sampler {options.sampler}; expected reshuffled")
    if options.sampler != "poisson" and rate is not None:
        raise InputError(
            "--sampling-rate: only --sampler poisson has one; give --records and --batch-size"
        )
    if options.sampler == "poisson":
        if rate is not None and records is not None and size is not None:
            raise InputError(
                "--sampling-rate: --records and --batch-size state it already; leave one out"
            )
        if rate is None and (records is None or size is None):
            raise InputError(
                "--sampling-rate: missing; give a probability, or --records and --batch-size"
            )
        return Poisson(_ratio(size, records) if rate is None else _rate(rate))
    if options.sampler == "full":
        if records is not None and size not in (None, records):
            raise InputError(f"--batch-size: got {size:g}; expected {records:,}, the records")
        return FullBatch()
    for name in ("records", "batch_size"):
        if getattr(options, name) is None:
            raise InputError(f"{option(name)}: missing; --sampler {options.sampler} needs a number")
    if options.sampler == "balls-and-bins":
        # 1e-9: a quotient that rounding puts just above a whole number is that number.
        return BallsAndBins(math.ceil(1 / _ratio(size, records) - 1e-9))
    if size != int(size):
        raise InputError(f"--batch-size: got {size:g}; expected a whole number")
    if options.sampler == "fixed-size":
        return FixedSize(int(size))
    if options.sampler == "reshuffled":
        return Reshuffled(int(size), drop_last=options.drop_last)
    return Cyclic(int(size), shuffled_once=options.sampler == "shuffled")


def _rate(rate: float) -> float:
    if not 0 < rate <= 1:
        raise InputError(f"--sampling-rate: got {rate:g}; expected a probability in (0, 1]")
    return rate


def _ratio(size: float, records: int) -> float:
    if not 0 < size <= records:
        raise InputError(f"--batch-size: got {size:g}; expected at most {records:,}, the records")
    return size / records


def _batch_size(options: argparse.Namespace) -> float | None:
    """Batch size, on average if sampled; None where it is not known."""
    size: float | None = options.batch_size
    if size is None and options.records is not None:
        rate = 1.0 if options.sampler == "full" else options.sampling_rate
        return None if rate is None else float(options.records * rate)
    return size


def _steps(options: argparse.Namespace) -> int:
    """The steps, or those of so many epochs: each is as many as the records have batches."""
    if (options.steps is None) == (options.epochs is None):
        got = "missing" if options.steps is None else "given beside --epochs"
        raise InputError(f"--steps: {got}; give one of --steps and --epochs")
    if options.steps is not None:
        return int(options.steps)
    epochs = options.epochs
    if not 0 < epochs < math.inf:
        raise InputError(f"--epochs: got {epochs:g}; expected a number above 0")
    if options.sampler == "full":
        each = 1.0
    elif options.sampling_rate is not None:
        each = 1 / _rate(options.sampling_rate)
    else:
        each = options.records / options.batch_size
    from hiddenstate.accounting.arguments import MOST_STEPS  # with numpy, which a parser spares

    if not epochs * each < MOST_STEPS:
        raise InputError(
            f"--epochs: got {epochs:g}; expected less than {MOST_STEPS:,} steps, of which an epoch "
            f"has {each:.6g}"
        )
    if options.sampler == "full":
        return math.ceil(epochs)
    whole = max(1, math.floor(each)) if options.drop_last else math.ceil(each - 1e-9)
    return math.ceil(epochs * whole - 1e-9)


def unused(options: argparse.Namespace, setting: "Setting", answers: "list[Found]") -> list[str]:
    """Options that were given and that none of these values depends on."""
    # Imported here because most commands never account.
    from hiddenstate.accounting import bounds

    ignored = [option(name) for name in bounds.unused(setting, answers)]
    curved = setting.smoothness is not None
    if options.convex and not curved:
        ignored.append("--convex")
    if options.learning_rate is not None and not (
        curved or setting.diameter is not None or setting.weight_decay
    ):
        ignored.append("--learning-rate")
    return ignored


def option(name: str) -> str:
    """An option's name as it is written."""
    return "--" + name.replace("_", "-")
