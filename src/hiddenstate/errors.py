"""The one error a user can cause."""

from numbers import Integral
from typing import Any


class InputError(ValueError):
    """Bad input: the message names the file or argument, the value and what was expected.

    The command line prints the message alone; anything else that is raised is a bug of ours and
    keeps its traceback.
    """


def expect(holds: bool, name: str, value: object, expectation: str) -> None:
    """InputError that names argument, value and expectation unless ``holds``."""
    if not holds:
        raise InputError(f"{name}: got {value!r}; expected {expectation}")


def check_double(name: str, value: object) -> None:
    """InputError for an integer that no double holds; its digits are too many to print."""
    if isinstance(value, int) and abs(value) >= 2**1023:
        raise InputError(f"{name}: got an integer of over 300 digits; expected less than 2^1023")


def is_whole(value: Any) -> bool:
    """True of integers, in whatever type; True and False are none."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def check_count(name: str, value: Any) -> None:
    """InputError unless the value is an integer of at least 1."""
    check_double(name, value)
    expect(is_whole(value) and int(value) >= 1, name, value, "an integer of at least 1")
