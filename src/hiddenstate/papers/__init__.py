"""The papers, one module each, and the words they share.

A family's module defines ``FAMILY``, and that is all the command line and the workflow know of
it: which cells its grid has, how a cell becomes scores, how scores become estimates, and how
estimates become figures, tables and measured claims. A new module in this folder is a new family.
"""

import importlib
import pkgutil
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from pydantic import BaseModel, ConfigDict, Field

from hiddenstate.errors import InputError


class Grid(BaseModel):
    """A part of a scale file: closed, typed, every number with its unit and bounds."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class FamilyGrid(Grid):
    """A family's whole section."""

    shows: str = Field(description="what the figures say of the scale and data they show")


@dataclass(frozen=True)
class Cell:
    """One point of a family's grid: a name, and everything that decides its numbers."""

    name: str
    parameters: dict[str, Any]
    start: "Cell | None" = None
    """The cell whose initial parameters this one trains from."""


@dataclass(frozen=True)
class Workplace:
    """Where and how models are trained; on a CPU it decides no number.

    ``start`` holds the initial parameters that the cell trains from. ``purpose`` names random
    streams of their own, so that a cell can be trained once more, independently.
    """

    start: pd.DataFrame | None = None
    checkpoint: Path | None = None
    device: str = "cpu"
    workers: int = 1
    memory: float = 2**31
    progress: bool = False
    purpose: str = ""


@dataclass(frozen=True)
class Figure:
    """A figure or table: what it shows (one paragraph), and how it is drawn from estimates.

    ``draw`` of a figure takes the estimates and returns a matplotlib Figure; of a table it
    returns a data frame with the column heads a reader sees.
    """

    title: str
    caption: str
    draw: Callable[[pd.DataFrame], Any]


@dataclass(frozen=True)
class Measurement:
    """What a claim's check found: the measured value in words, the tolerance, and the verdict."""

    measured: str
    tolerance: str
    holds: bool


@dataclass(frozen=True)
class Family:
    """A paper as the workflow sees it.

    ``score(cell, seed)`` returns a score frame (see ``hiddenstate.scores``); ``bound(cell)``
    returns what the accountant says, as a frame; ``estimate(grid, scores, bounds)`` takes both,
    keyed by cell name, and returns the tidy estimates; a check takes the estimates, and returns
    None if they lack the cells that it needs.

    Scores of ``train_cells`` take models, hours and perhaps an accelerator: ``train(cell, seed,
    workplace)`` returns them, from parameters that ``initialise(cell.start, seed, workplace)``
    made. Their files may be cached; ``data(cell)`` names the data sets they need, and
    ``cost(cell)`` compares what they cost. ``shown(grid)`` names the figures and tables that a grid
    has the cells for.
    """

    title: str
    reference: str
    grid: type[FamilyGrid]
    estimate: Callable[[Any, Mapping[str, pd.DataFrame], Mapping[str, pd.DataFrame]], pd.DataFrame]
    figures: Mapping[str, Figure]
    tables: Mapping[str, Figure]
    checks: Mapping[str, Callable[[pd.DataFrame], Measurement | None]]
    score_cells: Callable[[Any], list[Cell]] = lambda grid: []
    score: Callable[[Cell, int], pd.DataFrame] | None = None
    bound_cells: Callable[[Any], list[Cell]] = lambda grid: []
    bound: Callable[[Cell], pd.DataFrame] | None = None
    train_cells: Callable[[Any], list[Cell]] = lambda grid: []
    train: Callable[[Cell, int, Workplace], pd.DataFrame] | None = None
    initialise: Callable[[Cell, int, Workplace], pd.DataFrame] | None = None
    data: Callable[[Cell], list[str]] = lambda cell: []
    cost: Callable[[Cell], float] = lambda cell: 0
    shown: Callable[[Any], Collection[str]] | None = None

    def cells(self, grid: Any) -> dict[str, list[Cell]]:
        """All cells by kind: initial parameters, trained models' scores, other scores, bounds."""
        trained = self.train_cells(grid)
        starts = {cell.start.name: cell.start for cell in trained if cell.start}
        return {
            "start": list(starts.values()),
            "train": trained,
            "scores": self.score_cells(grid),
            "bounds": self.bound_cells(grid),
        }

    def shows(self, grid: Any, name: str) -> bool:
        """Whether a figure or table is drawn at this grid."""
        return self.shown is None or name in self.shown(grid)


def names() -> list[str]:
    """Names of the families, in alphabetical order."""
    return sorted(module.name for module in pkgutil.iter_modules(__path__))


def load(name: str) -> Family:
    """The family of that name."""
    if name not in names():
        raise InputError(f"unknown family {name!r}; expected one of {', '.join(names())}")
    return importlib.import_module(f"{__name__}.{name}").FAMILY


def find(cells: list[Cell], name: str, where: str) -> Cell:
    """The cell of that name, or an error that lists what there is."""
    for cell in cells:
        if cell.name == name:
            return cell
    shown = ", ".join(cell.name for cell in cells[:4]) + (", …" if len(cells) > 4 else "")
    raise InputError(f"{where}: no cell {name!r}; expected one of {len(cells)}: {shown}")
