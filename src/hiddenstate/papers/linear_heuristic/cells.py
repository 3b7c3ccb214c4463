"""The cells that the grid of linear_heuristic asks for."""

from collections.abc import Callable
from typing import Any, Literal, TypeVar

from hiddenstate.accounting import pld
from hiddenstate.papers.linear_heuristic.grid import (
    Figure1,
    Figure5,
    LinearHeuristicGrid,
    Optimisers,
    Quadratic,
    Recipe,
    Row,
    Schedules,
    Trained,
)
from hiddenstate.pipeline.cells import Cell, Grid, by_name, part
from hiddenstate.rounding import short

NAME = "linear_heuristic"


class PrintedRow(Row):
    """A row with its data set."""

    delta: float
    records: int


class RecalledRow(PrintedRow):
    """A row whose training run is recalled."""

    recalled_noise_multiplier: float
    recalled_steps: int
    recalled_records: int


G = TypeVar("G", bound=Grid)
Cells = Callable[[LinearHeuristicGrid], list[Cell[G]]]


def figure1(panel: str) -> Cells[Figure1]:
    """The cell of a panel."""
    return lambda grid: [Cell(f"figure1{panel}", grid.figure1)]


def _section(name: str) -> Cells[Any]:
    """The one cell of a section of the grid."""
    return lambda grid: [Cell(name, getattr(grid, name))]


quadratic: Cells[Quadratic] = _section("quadratic")
schedules: Cells[Schedules] = _section("schedules")
optimisers: Cells[Optimisers] = _section("optimisers")


def figure5(grid: LinearHeuristicGrid) -> list[Cell[Figure5]]:
    """One cell per panel, with its epsilon alone."""
    five = grid.figure5
    return [Cell(f"figure5_eps{e:g}", part(Figure5, five, epsilons=[e])) for e in five.epsilons]


def keeps_history(kind: type[G]) -> Cells[G]:
    """The cell of section 4.3."""
    return lambda grid: [Cell("history", part(kind, grid.history))]


def audited(name: str, kind: type[G]) -> Cells[G]:
    """One cell per sampling rate of the audits, holding all numbers of steps."""
    return lambda grid: [
        Cell(f"{name}_q{rate:g}", part(kind, grid.audits, sampling_rates=[rate]))
        for rate in grid.audits.sampling_rates
    ]


def table1(grid: LinearHeuristicGrid) -> list[Cell[PrintedRow]]:
    """One cell per row; of the first the training run is recalled."""
    return [
        Cell(
            f"table1_batch{row.batch}",
            part(PrintedRow if i else RecalledRow, grid.table1, row),
        )
        for i, row in enumerate(grid.table1.rows)
    ]


Attack = Literal["dirac", "natural", "blank"]
"""A gradient canary among natural records; a mislabelled record among natural or blank ones."""


class TrainedMechanism(Grid):
    """Parameters of the noise and of accountants; either noise or epsilon is given."""

    sampling_rate: float
    steps: int
    noise_multiplier: float | None = None
    epsilon: float | None = None
    delta: float

    @property
    def name(self) -> str:
        """Name as a part of cells' names."""
        noise = (
            f"eps{short(self.epsilon)}"
            if self.epsilon is not None
            else f"sigma{short(self.noise_multiplier or 0)}"
        )
        return f"q{self.sampling_rate:.6g}_T{self.steps}_{noise}"

    def noise(self) -> float:
        """The noise multiplier, calibrated where epsilon is given."""
        if self.noise_multiplier is not None:
            return self.noise_multiplier
        assert self.epsilon is not None
        return pld.noise_multiplier(self.epsilon, self.delta, self.sampling_rate, self.steps)


class TrainedAudit(TrainedMechanism):
    """Parameters that decide the scores of an audit of trained models."""

    attack: Attack
    dataset: str
    model: str
    records: int
    clipping_norm: float
    views: int
    models: int
    learning_rate: float

    @property
    def stream(self) -> str:
        """Name of the random streams, whatever is trained."""
        return f"{self.attack}_{self.name}"


class TrainedCurves(TrainedMechanism):
    """Parameters of the curves its scores are matched to, and of those that linear losses give."""

    models: int
    ideal_audits: int
    resolution: float


def trained_audits(grid: LinearHeuristicGrid) -> dict[str, list[TrainedAudit]]:
    """The audits of trained models that each figure and table shows."""
    t = grid.training

    def audit(p: Trained, attack: Attack, **own: float) -> TrainedAudit:
        return part(TrainedAudit, t, p, attack=attack, models=p.models or t.models, **own)

    def audits(p: Recipe, attack: Attack) -> list[TrainedAudit]:
        return [audit(p, attack, steps=n) for n in p.steps]

    return {
        "figure2": [audit for p in t.figure2 for audit in audits(p, "dirac")],
        "figure4": audits(t.figure4, "blank") + audits(t.figure4, "natural"),
        "table1": [audit(row, "natural", sampling_rate=row.batch / t.records) for row in t.table1],
    }


def trained(grid: LinearHeuristicGrid) -> list[Cell[TrainedAudit]]:
    """A cell for each audit of trained models."""
    every = (p for audits in trained_audits(grid).values() for p in audits)
    return [Cell(name, p) for name, p in by_name((trained_name(p), p) for p in every).items()]


def trained_name(audit: TrainedAudit) -> str:
    """Name of an audit's cell: audits of several models can be cached."""
    return f"{audit.model}_{audit.stream}"


def trained_curves(grid: LinearHeuristicGrid) -> list[Cell[TrainedCurves]]:
    """A cell for each mechanism that is trained."""
    every = by_name(
        (p.name, part(TrainedCurves, grid.training, p))
        for audits in trained_audits(grid).values()
        for p in audits
    )
    return [Cell(f"trained_{name}", p) for name, p in every.items()]
