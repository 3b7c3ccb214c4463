"""The one error a user can cause."""

from numbers import Integral
from typing import Any


class InputError(ValueError):
    """Bad input: the message names the file or argument, the value and what was expected.

    The command line prints the message alone; anything else that is raised is a bug of ours and
    keeps its traceback.
    """


def check_count(name: str, value: Any) -> None:
    """InputError unless the value is an integer of at least 1."""
    if not isinstance(value, Integral) or value < 1:
        raise InputError(f"{name}: got {value}; expected an integer of at least 1")
