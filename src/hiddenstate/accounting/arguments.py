"""Ranges of the numbers of a mechanism."""

from collections.abc import Callable
from functools import wraps
from inspect import signature
from typing import Any, ParamSpec, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hiddenstate.errors import InputError, check_double, expect

MOST_STEPS = 2**53
"""Larger whole numbers are no doubles."""

P = ParamSpec("P")
R = TypeVar("R")


def double(value: Any) -> Any:
    """A double of a number in another precision, which would go through all sums; else itself."""
    return float(value) if isinstance(value, np.floating) else value


def doubles(function: Callable[P, R]) -> Callable[P, R]:
    """The function of numbers in any precision; integers that are no doubles are named."""

    @wraps(function)
    def called(*args: P.args, **options: P.kwargs) -> R:
        if any(isinstance(value, int) for value in (*args, *options.values())):
            for name, value in signature(function).bind(*args, **options).arguments.items():
                check_double(name, value)
        return function(*map(double, args), **{k: double(v) for k, v in options.items()})

    return called


def doubles_of(name: str, values: ArrayLike) -> NDArray[np.float64]:
    """An array of doubles; InputError for integers that are none."""
    try:
        return np.asarray(values, dtype=float)
    except OverflowError:
        for value in np.ravel(np.asarray(values, dtype=object)):
            check_double(name, value)
        raise


def check_mechanism(noise_multiplier: float, sampling_rate: float, steps: float) -> None:
    """Raise InputError unless the three are a mechanism, with a noise whose powers are numbers."""
    noise_multiplier = double(noise_multiplier)
    fine = 1e-50 <= noise_multiplier <= 1e50
    check_number("noise_multiplier", noise_multiplier, fine, "from 1e-50 to 1e50")
    check_number("sampling_rate", sampling_rate, 0 < sampling_rate <= 1, "in (0, 1]")
    check_number(
        "steps",
        steps,
        1 <= steps < MOST_STEPS and steps == int(steps),
        f"that is an integer of at least 1 and less than {MOST_STEPS:,}",
    )


def in_doubles(owner: object, *names: str) -> None:
    """Make doubles of a frozen dataclass's numbers."""
    for name in names:
        if (value := getattr(owner, name)) is not None:
            check_double(name, value)
            object.__setattr__(owner, name, float(value))


def check_steps(steps: float, most: int) -> None:
    """Raise InputError for more steps than so many."""
    expect(steps <= most, "steps", steps, f"at most {most:,}")


def check_delta(delta: float) -> None:
    """Raise InputError unless delta is a probability that a guarantee can be stated at."""
    check_number("delta", delta, 0 < delta < 1, "in (0, 1)")


def check_number(name: str, value: float, fine: bool, expected: str) -> None:
    """Raise InputError unless a number is fine; ``expected`` says of which ones that is."""
    check_double(name, value)
    if not fine:
        raise InputError(f"{name}: got {value}; expected a number {expected}")
