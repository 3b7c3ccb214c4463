"""The papers, one package each.

A package in this folder is a family. Its ``FAMILY`` is all that the command line and the workflow
know of it. The modules of a family have the same names everywhere and mean the same: ``cells`` (the
grid and the work of its cells), ``estimates``, ``figures``, ``tables``, ``checks`` (the measured
claims) and ``stated`` (numbers that the paper prints).
"""

import importlib
import pkgutil

from hiddenstate.errors import InputError
from hiddenstate.family import Family


def names() -> list[str]:
    """Names of the families, in alphabetical order; imports none of them."""
    return sorted(module.name for module in pkgutil.iter_modules(__path__))


def load(name: str) -> Family:
    """The family of that name; imports no other."""
    if name not in names():
        raise InputError(f"unknown family {name!r}; expected one of {', '.join(names())}")
    family: Family = importlib.import_module(f"{__name__}.{name}").FAMILY
    return family
