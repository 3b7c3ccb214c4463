"""Ranges of the numbers of a mechanism."""

from hiddenstate.errors import InputError, expect

MOST_STEPS = 2**53
"""Larger whole numbers are no doubles."""


def check_mechanism(noise_multiplier: float, sampling_rate: float, steps: float) -> None:
    """Raise InputError unless the three are a mechanism, with a noise whose powers are numbers."""
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
    """Make doubles of a frozen dataclass's numbers: single precision would go through all sums."""
    for name in names:
        if (value := getattr(owner, name)) is not None:
            object.__setattr__(owner, name, float(value))


def check_steps(steps: float, most: int) -> None:
    """Raise InputError for more steps than so many."""
    expect(steps <= most, "steps", steps, f"at most {most:,}")


def check_delta(delta: float) -> None:
    """Raise InputError unless delta is a probability that a guarantee can be stated at."""
    check_number("delta", delta, 0 < delta < 1, "in (0, 1)")


def check_number(name: str, value: float, fine: bool, expected: str) -> None:
    """Raise InputError unless a number is fine; ``expected`` says of which ones that is."""
    if not fine:
        raise InputError(f"{name}: got {value}; expected a number {expected}")
