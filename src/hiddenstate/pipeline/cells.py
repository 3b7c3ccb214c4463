"""What an experiment is: its name, its parameters, and where it is run.

Works import this of the pipeline, and neither costs, checks nor figures, which are thus no part of
the digest of their code.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Generic, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, model_validator

from hiddenstate.errors import InputError
from hiddenstate.pipeline import runnable
from hiddenstate.rounding import short

if TYPE_CHECKING:
    import pandas as pd

    from hiddenstate.pipeline.parts import Parts

NAME = r"[A-Za-z0-9][A-Za-z0-9_.+-]{0,150}"
"""Pattern of every name that becomes a part of file names and commands."""

Name = Annotated[str, Field(pattern=f"^{NAME}$")]


# Numbers of scale files. The upper bounds are far above any use and keep a slip, such as a missing
# point, from asking for more memory or time than there is.
Delta = Annotated[float, Field(ge=1e-12, lt=1)]
Epsilon = Annotated[float, Field(ge=1e-3, le=1000)]
SamplingRate = Annotated[float, Field(ge=1e-6, le=1)]
NoiseMultiplier = Annotated[float, Field(gt=0.1, le=1000)]
Positive = Annotated[float, Field(ge=1e-9, le=1e9)]
NotNegative = Annotated[float, Field(ge=0, le=1e9)]
Steps = Annotated[int, Field(ge=1, le=1_000_000)]
Count = Annotated[int, Field(ge=1, le=100_000_000)]

# Texts and lists are bounded for the same reason.
Text = Annotated[str, Field(min_length=1, max_length=1000)]
V = TypeVar("V")
Several = Annotated[list[V], Field(max_length=1000)]


class Grid(BaseModel):
    """A part of a scale file, or a cell's parameters: closed, typed, finite, frozen."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class FamilyGrid(Grid):
    """A family's whole section of a scale file."""

    shows: Text = Field(description="what the figures say of the scale and data they show")

    @model_validator(mode="after")
    def _can_run(self) -> Self:
        for problem in runnable.problems(self.model_dump()):
            raise ValueError(problem)
        return self


P = TypeVar("P", bound=Grid)


@dataclass(frozen=True)
class Cell(Generic[P]):
    """One experiment of a family: its name and its complete set of parameters."""

    name: str
    parameters: P

    def __post_init__(self) -> None:
        if not re.fullmatch(NAME, self.name):
            raise InputError(
                f"cell {self.name!r}: expected letters, digits and _ . + - alone, "
                "at most 151 of them"
            )


def by_name(named: Iterable[tuple[str, P]]) -> dict[str, P]:
    """Parameters by their names; InputError where others have a name that is taken."""
    found: dict[str, P] = {}
    for name, parameters in named:
        if (other := found.setdefault(name, parameters)) != parameters:
            one, two = other.model_dump(), parameters.model_dump()
            differ = ", ".join(
                f"{k} {one.get(k)} and {v}" for k, v in two.items() if one.get(k) != v
            )
            raise InputError(f"two cells are named {name}: got {differ}; expected one of them")
    return found


def part(kind: type[P], *sections: Grid, **more: Any) -> P:
    """Parameters of a kind: those that it shares with sections of the grid, and more.

    What is in several of them is the last one's.
    """
    shared: dict[str, Any] = {}
    for section in sections:
        shared |= section.model_dump(include=set(kind.model_fields))
    return kind.model_validate(shared | more)


def swept(name: str, kind: type[P], *sections: Grid, **lists: Any) -> list[Cell[P]]:
    """A cell for each combination of what is listed, in whose name these values are filled in."""
    points = [dict(zip(lists, values, strict=True)) for values in product(*lists.values())]
    return [
        Cell(
            name.format(**{k: short(v) if isinstance(v, float) else v for k, v in point.items()}),
            part(kind, *sections, **point),
        )
        for point in points
    ]


@dataclass(frozen=True)
class Workplace:
    """Place and manner of training; on a CPU it decides no number.

    ``start`` holds the initial parameters that the cell trains from, if it has any. ``memory`` is
    in bytes; None for what ``dpsgd.ensemble.scores`` takes of itself. ``models``, if
    given, is how many are trained per world and repeat in place of the cell's own number.
    ``purpose`` names random streams of their own, so that a cell can be trained once more,
    independently. A ``checkpoint`` that is ``Parts`` trains some of the models, whose scores alone
    are returned.
    """

    start: pd.DataFrame | None = None
    checkpoint: Path | Parts | None = None
    device: str = "cpu"
    workers: int = 1
    memory: float | None = None
    progress: bool = False
    purpose: str = ""
    models: int | None = None

    def options(self, models: int, *name: str, repeat: int | None = None) -> dict[str, Any]:
        """Arguments of ``dpsgd.ensemble.scores`` for this place and a cell's streams.

        models: the cell's own number. name: of its random streams. repeat: of several audits in one
        cell, which is the last part of the name and has a folder of the checkpoint.
        """
        part = "" if repeat is None else f"repeat{repeat}"
        # An empty purpose is no part of the name, or cached scores would be of other streams.
        purpose = (self.purpose,) if self.purpose else ()
        return {
            "models": self.models or models,
            "name": (*name, *purpose, *(() if repeat is None else (repeat,))),
            "device": self.device,
            "workers": self.workers,
            "memory": self.memory,
            "checkpoint": None if self.checkpoint is None else self.checkpoint / part,
            "progress": self.progress,
        }
