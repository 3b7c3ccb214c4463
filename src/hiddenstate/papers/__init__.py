"""The papers, one package each.

A package in this folder is a family. Its ``FAMILY`` is all that the command line and the workflow
know of it. The modules of a family have the same names everywhere and mean the same: ``grid`` (its
section of a scale file; a small one stands in ``cells``), ``cells`` (what that asks for),
``estimates``, ``figures``, ``tables``, ``checks`` (the measured claims) and ``stated`` (numbers
that the paper prints). Figures and checks of many topics are packages, with a module a topic.
"""

import importlib
import pkgutil
import traceback
from typing import TYPE_CHECKING

from hiddenstate.errors import InputError

if TYPE_CHECKING:
    from hiddenstate.pipeline.family import Family


def names() -> list[str]:
    """Names of the families, in alphabetical order; imports none of them."""
    return sorted(module.name for module in pkgutil.iter_modules(__path__))


def load(name: str) -> "Family":
    """The family of that name; imports no other."""
    if name not in names():
        raise InputError(f"unknown family {name!r}; expected one of {', '.join(names())}")
    try:
        family: Family = importlib.import_module(f"{__name__}.{name}").FAMILY
    except Exception as error:  # whatever a package that is half written raises
        places = traceback.extract_tb(error.__traceback__)
        raise InputError(
            f"the package {__name__}.{name} cannot be loaded: {error!r} (line {places[-1].lineno} "
            f"of {places[-1].filename}); expected one that defines FAMILY"
        ) from error
    return family
