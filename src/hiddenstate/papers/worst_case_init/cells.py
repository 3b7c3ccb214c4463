"""The cells that the grid of worst_case_init asks for."""

from hashlib import sha256
from itertools import chain
from pathlib import Path
from typing import Any

from pydantic import SerializerFunctionWrapHandler, model_serializer

from hiddenstate.papers.worst_case_init.grid import (
    CANARIES,
    Extended,
    Stage,
    Sweep,
    Task,
    Trains,
    Weights,
    WorstCaseInitGrid,
    Xavier,
    figures,
)
from hiddenstate.pipeline.cells import Cell, Grid, part
from hiddenstate.rounding import short
from hiddenstate.streams import World

NAME = "worst_case_init"


class StartParameters(Extended):
    """Parameters of a start; without stages it is a Xavier draw."""

    later = ("xavier", "one_start")

    dataset: str
    model: str
    trains: Trains
    backbone: tuple[Stage | Weights, ...]
    stages: tuple[Stage | Weights, ...]
    repeats: tuple[int, ...]
    xavier: Xavier = "uniform"
    one_start: bool = False

    def repeat_of(self, repeat: int) -> int:
        """Repeat whose initial parameters a repeat has."""
        return 0 if self.one_start else repeat

    @property
    def epochs(self) -> int:
        """Epochs of the last stage; 0 in the average case."""
        return self.stages[-1].epochs if self.stages else 0


class CanaryFile(Grid):
    """A canary of the user's own, and what the file held."""

    file: str
    sha256: str


class AuditParameters(Grid):
    """Parameters of an audit's scores; this cell runs ``start.repeats`` of ``planned`` repeats.

    The random streams are named by ``name`` and the repeat, however repeats are spread over cells.
    """

    task: str
    start: StartParameters
    canary: str | CanaryFile
    label: int
    private: int
    records: int
    steps: int
    learning_rate: float
    clipping_norm: float
    epsilon: float
    delta: float
    models: int
    planned: int

    @property
    def name(self) -> str:
        """The audit's name, all its repeats together."""
        return f"{point_of(self)}_{self.planned}x{self.models}"

    @property
    def worlds(self) -> tuple[World, ...]:
        """Data sets trained on; a single model serves its accuracy alone, without the canary."""
        return ("in", "out") if self.models > 1 else ("out",)


class ExpectedParameters(Grid):
    """Parameters of an expected audit: one repeat of an audit, whatever its number of models."""

    audit: AuditParameters
    pairs: int
    pass_back: int | None

    @model_serializer(mode="wrap")
    def _without_models(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        dumped = dump(self)
        for key in ("models", "planned"):
            dumped["audit"].pop(key)
        return dumped

    @property
    def name(self) -> str:
        """The audit's name without its numbers of repeats and models, and the repeat."""
        return f"expected_{point_of(self.audit)}_repeat{self.audit.start.repeats[0]}"


class IdealParameters(Grid):
    """Parameters of the audits of a mechanism that leaks all it may."""

    epsilon: float
    models: int
    delta: float
    audits: int


def point_of(audit: AuditParameters) -> str:
    """The name of an audit's training, whatever its numbers of repeats and models."""
    return (
        f"{audit.task}_pre{audit.start.epochs}_n{audit.records}_C{short(audit.clipping_norm)}"
        f"_T{audit.steps}_lr{short(audit.learning_rate)}_eps{short(audit.epsilon)}"
    )


def expected(grid: WorstCaseInitGrid) -> list[Cell[ExpectedParameters]]:
    """Expected audits, a cell for each repeat; the first sweep that has one decides its pairs."""
    found: dict[str, ExpectedParameters] = {}
    for sweep in grid.expected:
        for audit in audits(grid, sweep):
            for repeat in audit.start.repeats:
                start = audit.start.model_copy(update={"repeats": (repeat,)})
                cell = ExpectedParameters(
                    audit=audit.model_copy(update={"start": start}),
                    pairs=sweep.pairs,
                    pass_back=sweep.pass_back,
                )
                found.setdefault(cell.name, cell)
    return [Cell(name, cell) for name, cell in found.items()]


def shown(grid: WorstCaseInitGrid) -> dict[str, list[AuditParameters]]:
    """The audits of each figure, each with the most repeats that any figure asks for."""
    every = {
        name: [audit for sweep in sweeps for audit in audits(grid, sweep)]
        for name, sweeps in figures(grid).items()
    }
    most: dict[str, AuditParameters] = {}
    for audit in chain.from_iterable(every.values()):
        other = most.setdefault(audit.name, audit)
        if len(audit.start.repeats) > len(other.start.repeats):
            most[audit.name] = audit
    return {name: [most[audit.name] for audit in audits] for name, audits in every.items()}


def audits(grid: WorstCaseInitGrid, sweep: Sweep) -> list[AuditParameters]:
    """The audits of a sweep: one for each combination, with all its repeats or the first."""
    task = grid.tasks[sweep.task]
    planned, repeats = grid.repeats_of(sweep)
    return [
        part(
            AuditParameters,
            grid,
            task,
            task=sweep.task,
            start=_start(task, point.epochs, repeats),
            canary=_identity(task.canary),
            records=point.records,
            steps=point.steps,
            learning_rate=point.learning_rate,
            clipping_norm=point.clipping_norm,
            epsilon=point.epsilon,
            models=sweep.models or task.models,
            planned=planned,
        )
        for point in sweep.points(task)
    ]


def _identity(canary: str) -> str | CanaryFile:
    """Identity of a canary: its name, or a file's content."""
    if canary in CANARIES:
        return canary
    return CanaryFile(file=canary, sha256=sha256(Path(canary).read_bytes()).hexdigest())


def _start(task: Task, epochs: int, repeats: int) -> StartParameters:
    """Initial parameters: Xavier's without epochs, pre-trained with some."""
    *before, last = task.pretraining
    stages = (*before, last.model_copy(update={"epochs": epochs}))
    whole = task.trains == "all layers"
    return part(
        StartParameters,
        task,
        backbone=() if whole else stages[:-1],
        stages=(stages if whole else stages[-1:]) if epochs else (),
        repeats=tuple(range(repeats)),
        # Without pre-training each repeat has its own draw.
        one_start=task.one_start and epochs > 0,
    )


def cells_of(grid: WorstCaseInitGrid, audit: AuditParameters) -> list[Cell[AuditParameters]]:
    """The cells that train an audit: one, or one for each repeat."""
    if not grid.tasks[audit.task].one_repeat_per_cell:
        return [Cell(audit.name, audit)]
    starts = [audit.start.model_copy(update={"repeats": (i,)}) for i in audit.start.repeats]
    return [
        Cell(f"{audit.name}_repeat{start.repeats[0]}", audit.model_copy(update={"start": start}))
        for start in starts
    ]


def trained(grid: WorstCaseInitGrid) -> list[Cell[AuditParameters]]:
    """The cells of every audit once, though several figures may show it."""
    every = {audit.name: audit for audit in chain.from_iterable(shown(grid).values())}
    return [cell for audit in every.values() for cell in cells_of(grid, audit)]


def beside(grid: WorstCaseInitGrid) -> list[Cell[AuditParameters]]:
    """The cells of the live audits."""
    return [cell for audit in shown(grid).get("live", []) for cell in cells_of(grid, audit)]


def start_of(cell: Cell[AuditParameters]) -> Cell[StartParameters]:
    """The initial parameters of a cell's repeats, which cells of other audits share."""
    return _start_of(cell.parameters)


def start_of_expected(cell: Cell[ExpectedParameters]) -> Cell[StartParameters]:
    """The initial parameters of an expected audit, which the audit itself has."""
    return _start_of(cell.parameters.audit)


def _start_of(p: AuditParameters) -> Cell[StartParameters]:
    repeats = tuple(sorted({p.start.repeat_of(repeat) for repeat in p.start.repeats}))
    which = f"repeat{repeats[0]}" if len(repeats) == 1 else f"{len(repeats)}x"
    start = p.start.model_copy(update={"repeats": repeats})
    return Cell(f"{p.task}_pre{p.start.epochs}_{which}", start)


def data_of(start: StartParameters) -> list[str]:
    """Data sets that pre-training and training read."""
    stages = start.backbone + start.stages
    return sorted({start.dataset, *(s.dataset for s in stages if isinstance(s, Stage))})


def ideal(grid: WorstCaseInitGrid) -> list[Cell[IdealParameters]]:
    """Ideal audits: each theoretical epsilon with each number of models."""
    every = (cell.parameters for cell in trained(grid))
    asked = {(audit.epsilon, audit.models) for audit in every if audit.models > 1}
    return [
        Cell(
            f"ideal_eps{short(epsilon)}_models{models}",
            part(IdealParameters, grid, epsilon=epsilon, models=models, audits=grid.ideal_audits),
        )
        for epsilon, models in sorted(asked)
    ]


TESTED = 10
"""Models of each data set and repeat whose test accuracy is measured."""
