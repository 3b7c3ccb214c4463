"""The grid of linear_heuristic, and the simulations of its audits."""

from collections.abc import Callable, Iterator
from typing import Annotated, Any, Literal, TypeVar

import numpy as np
from pydantic import Field

from hiddenstate.accounting import pld, weighted
from hiddenstate.accounting import quadratic as quadratic_loss
from hiddenstate.pipeline.costs import step_seconds
from hiddenstate.pipeline.family import (
    Cell,
    Count,
    Epsilon,
    FamilyGrid,
    Grid,
    Name,
    NoiseMultiplier,
    Positive,
    SamplingRate,
    Several,
    Text,
    by_name,
)
from hiddenstate.rounding import short

NAME = "linear_heuristic"

Rate = Field(ge=1e-6, le=1, description="probability that a step samples a record")
Delta = Field(
    ge=1e-12, lt=1, description="probability at which every epsilon of the part is stated"
)
Noise = Field(ge=1e-3, le=1000, description="noise standard deviation over the clipping norm")
Steps = Field(ge=1, le=100_000, description="steps of DP-SGD")
Runs = Field(ge=10, le=100_000_000, description="simulated runs of DP-SGD per world")
Resolution = Field(
    default=0.0125,
    ge=1e-3,
    le=0.5,
    description="spacing of the epsilons an audit can report, over the epsilon audited",
)


StepNumber = Annotated[int, Field(ge=1, le=100_000)]
Growth = Annotated[float, Field(gt=1, le=1e6)]


class Curve(Grid):
    """Numbers of steps, spread evenly on a logarithmic axis."""

    most_steps: int = Field(ge=1, le=100_000, description="largest number of steps")
    points: int = Field(ge=2, le=1000, description="points before rounding to integers")

    @property
    def steps(self) -> list[int]:
        """Distinct integers from 1 to ``most_steps``."""
        return sorted({round(t) for t in np.geomspace(1, self.most_steps, self.points)})


class Figure1(Grid):
    """The heuristic against its baselines."""

    delta: float = Delta
    constant: Curve = Field(description="panel a: q T and sigma^2 T constant")
    calibrated: Curve = Field(description="panel b: standard epsilon constant")
    epsilon: Epsilon = Field(default=10.0, description="standard epsilon of panel b, in nats")
    fixed: Curve = Field(description="panel c: q and sigma constant")
    sampling_rate: float = Rate
    noise_multiplier: float = Noise
    every_step_up_to: int = Field(
        ge=1, le=10_000, description="section 4.1 looks at each number of steps up to this one"
    )


class Setting(Grid):
    """One mechanism, and the delta at which its epsilons are stated."""

    delta: float = Delta
    noise_multiplier: float = Noise
    sampling_rate: float = Rate
    steps: int = Steps


class Quadratic(Setting):
    """Section 4.2: one setting, all curvatures."""

    points: int = Field(ge=2, le=1001, description="curvatures from 0 to 1, evenly spaced")


class Schedules(Grid):
    """Section 4.2 with a curvature that changes from step to step; ours."""

    delta: float = Delta
    noise_multiplier: float = Noise
    sampling_rate: float = Rate
    steps: Several[Annotated[int, Field(ge=1, le=quadratic_loss.MOST_STEPS)]] = Field(
        min_length=1, description="numbers of steps; a search each, which takes minutes beyond 6"
    )
    points: int = Field(ge=2, le=1001, description="constant curvatures from 0 to 1")


class Optimisers(Grid):
    """The heuristic for optimisers in use; ours."""

    delta: float = Delta
    noise_multiplier: float = Noise
    sampling_rate: float = Rate
    steps: Several[StepNumber] = Field(min_length=1, description="numbers of steps")
    schedules: Several[weighted.Schedule] = Field(description="learning rates, but constant ones")
    momentum: float = Field(gt=0, lt=1, description="of SGD")
    decay: float = Field(gt=0, lt=1, description="weight decay times learning rate")
    early_noise: float = Field(gt=0, le=100, description="of the first half's steps over the rest")
    band: int = Field(ge=1, le=1000, description="steps over which noise is correlated")


class Figure5(Grid):
    """Curvature 1/2 over a grid of settings, noise set by the epsilon of a single step."""

    delta: float = Delta
    epsilons: Several[Epsilon] = Field(min_length=1, description="epsilon of one step, one a panel")
    steps: Several[StepNumber] = Field(min_length=1, description="numbers of steps")
    sampling_rates: Several[SamplingRate] = Field(min_length=1, description="sampling rates")


class HistoryCell(Setting):
    """What both kinds of cell of section 4.3 share."""

    growths: Several[Growth] = Field(min_length=1, description="factors v > 1 of the regulariser")


class HistoryRuns(HistoryCell):
    """What decides its scores."""

    runs: int = Runs


class HistoryCurves(HistoryCell):
    """What decides its epsilons, and the curves its audits are matched to."""

    resolution: float = Resolution


class History(HistoryRuns, HistoryCurves):
    """Section 4.3: the regulariser that keeps the history."""


Mechanism = tuple[float, float, int]
"""Noise multiplier, sampling rate and steps."""


class AuditCell(Grid):
    """What both kinds of cell of an audit share; a cell has one sampling rate."""

    delta: float = Delta
    epsilon: Epsilon = Field(default=8.0, description="standard epsilon, in nats")
    sampling_rates: Several[SamplingRate] = Field(min_length=1, description="one panel each")
    steps: Several[StepNumber] = Field(min_length=1, description="numbers of steps")

    def mechanisms(self) -> Iterator[Mechanism]:
        """Every number of steps at the noise of the standard epsilon."""
        for rate in self.sampling_rates:
            for steps in self.steps:
                yield pld.noise_multiplier(self.epsilon, self.delta, rate, steps), rate, steps


class AuditRuns(AuditCell):
    """What decides the scores."""

    runs: int = Runs
    threshold_delta: float = Field(
        default=0.01,
        ge=1e-6,
        lt=1,
        description="one-bit repeaters take the threshold with the largest epsilon at this delta, "
        "which, unlike ``delta``, the runs can resolve",
    )


class AuditCurves(AuditCell):
    """What decides the curves that the audits are matched to."""

    resolution: float = Resolution


class AuditRepeats(AuditCurves):
    """What decides how far an audit scatters."""

    runs: int = Runs
    repeats: int = Field(
        default=20,
        ge=2,
        le=1000,
        description="independent audits of the gradient canary, for the error of one",
    )


class Audits(AuditRuns, AuditRepeats):
    """Figures 3 and 6."""


class Row(Grid):
    """A row of Table 1 as printed."""

    batch: Count = Field(description="expected batch size")
    heuristic: Epsilon = Field(description="printed heuristic epsilon")
    standard: Epsilon = Field(description="printed standard epsilon")
    accuracy: Text = Field(description="printed test accuracy; not reproduced by this family")


class Table1(Grid):
    """Table 1 and the training run its first row is said to follow."""

    delta: float = Delta
    records: Count = Field(description="training records")
    rows: Several[Row] = Field(min_length=1, description="rows as printed")
    recalled_noise_multiplier: NoiseMultiplier = Field(description="of De et al. 2022, from memory")
    recalled_steps: int = Field(ge=1, le=100_000, description="of De et al. 2022, from memory")
    recalled_records: Count = Field(
        default=45_000, description="training records if a tenth is kept for validation"
    )


class Recipe(Grid):
    """How the models of one curve are trained, for several numbers of steps."""

    sampling_rate: SamplingRate = Field(description="probability that a step samples a record")
    steps: Several[StepNumber] = Field(min_length=1, description="numbers of steps, an audit each")
    learning_rate: Positive = Field(description="step size on the mean of an expected batch")


class FixedNoise(Recipe):
    """All at one noise multiplier."""

    noise_multiplier: NoiseMultiplier = Field(description="noise deviation over clipping norm")


class FixedEpsilon(Recipe):
    """Each at the noise multiplier of one standard epsilon."""

    epsilon: Epsilon = Field(default=8.0, description="standard epsilon, in nats")


class TrainedRow(Grid):
    """A row of Table 1 that is trained."""

    batch: Count = Field(description="expected batch size")
    noise_multiplier: NoiseMultiplier = Field(description="noise deviation over clipping norm")
    steps: int = Field(ge=1, le=100_000, description="steps of DP-SGD")
    learning_rate: Positive = Field(description="step size on the mean of an expected batch")


class Training(Grid):
    """Figures 2 and 4, and the trained columns of Table 1."""

    delta: float = Delta
    dataset: Text = Field(
        description="digits, mnist, cifar10, cifar100 or folder:<path> (images, resized to 32 x 32 "
        "in colour)"
    )
    model: Name = Field(description="a name in hiddenstate.models.MODELS")
    records: int = Field(ge=2, le=100_000_000, description="training records, the canary included")
    clipping_norm: Positive = Field(default=1.0, description="gradients' largest norm")
    views: int = Field(
        default=1,
        ge=1,
        le=1000,
        description="augmentation multiplicity: random views of an image, of which a record's "
        "gradient is the mean; 1 takes images as they are",
    )
    models: int = Field(ge=20, le=1_000_000, description="models per world in each audit")
    ideal_audits: int = Field(
        ge=20, le=100_000, description="simulated audits of as many models with linear losses"
    )
    resolution: float = Resolution
    figure2: Several[FixedNoise] = Field(min_length=1, description="gradient canary; panels")
    figure4: FixedEpsilon = Field(description="mislabelled canary")
    table1: Several[TrainedRow] = Field(min_length=1, description="rows of Table 1")


class LinearHeuristicGrid(FamilyGrid):
    """One section a figure."""

    figure1: Figure1
    quadratic: Quadratic
    schedules: Schedules
    optimisers: Optimisers
    figure5: Figure5
    history: History
    audits: Audits
    table1: Table1
    training: Training


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


def _part(kind: type[G], section: Grid, **more: Any) -> G:
    """What a kind of cell takes of a section of the grid."""
    return kind.model_validate(section.model_dump(include=set(kind.model_fields)) | more)


def figure1(panel: str) -> Cells[Figure1]:
    """The cell of a panel."""
    return lambda grid: [Cell(f"figure1{panel}", grid.figure1)]


def quadratic(grid: LinearHeuristicGrid) -> list[Cell[Quadratic]]:
    """The cell of section 4.2."""
    return [Cell("quadratic", grid.quadratic)]


def schedules(grid: LinearHeuristicGrid) -> list[Cell[Schedules]]:
    """The cell of the worst schedules."""
    return [Cell("schedules", grid.schedules)]


def optimisers(grid: LinearHeuristicGrid) -> list[Cell[Optimisers]]:
    """The cell of the optimisers."""
    return [Cell("optimisers", grid.optimisers)]


def figure5(grid: LinearHeuristicGrid) -> list[Cell[Figure5]]:
    """One cell per panel, with its epsilon alone."""
    five = grid.figure5
    return [Cell(f"figure5_eps{e:g}", _part(Figure5, five, epsilons=[e])) for e in five.epsilons]


def keeps_history(kind: type[G]) -> Cells[G]:
    """The cell of section 4.3."""
    return lambda grid: [Cell("history", _part(kind, grid.history))]


def audited(name: str, kind: type[G]) -> Cells[G]:
    """One cell per sampling rate of the audits, holding all numbers of steps."""
    return lambda grid: [
        Cell(f"{name}_q{rate:g}", _part(kind, grid.audits, sampling_rates=[rate]))
        for rate in grid.audits.sampling_rates
    ]


def table1(grid: LinearHeuristicGrid) -> list[Cell[PrintedRow]]:
    """One cell per row; of the first the training run is recalled."""
    return [
        Cell(
            f"table1_batch{row.batch}",
            _part(PrintedRow if i else RecalledRow, grid.table1, **row.model_dump()),
        )
        for i, row in enumerate(grid.table1.rows)
    ]


Attack = Literal["dirac", "natural", "blank"]
"""A gradient canary among natural records; a mislabelled record among natural or blank ones."""


class TrainedMechanism(Grid):
    """What decides the noise and what accountants say; either noise or epsilon is given."""

    sampling_rate: float
    steps: int
    noise_multiplier: float | None
    epsilon: float | None
    delta: float

    @property
    def name(self) -> str:
        """As a part of cells' names."""
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
    """What decides the scores of an audit of trained models."""

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
        """By which random streams are named, whatever is trained."""
        return f"{self.attack}_{self.name}"


class TrainedCurves(TrainedMechanism):
    """What decides the curves that its scores are matched to, and what linear losses would give."""

    models: int
    ideal_audits: int
    resolution: float


def trained_audits(grid: LinearHeuristicGrid) -> dict[str, list[TrainedAudit]]:
    """The audits of trained models that each figure and table shows."""
    t = grid.training
    shared = t.model_dump(include=set(TrainedAudit.model_fields))

    def audit(
        attack: Attack, rate: float, steps: int, learning_rate: float, **noise: float
    ) -> TrainedAudit:
        return TrainedAudit.model_validate(
            {"noise_multiplier": None, "epsilon": None}
            | shared
            | noise
            | {"attack": attack, "sampling_rate": rate, "steps": steps}
            | {"learning_rate": learning_rate}
        )

    four = t.figure4
    return {
        "figure2": [
            audit("dirac", p.sampling_rate, n, p.learning_rate, noise_multiplier=p.noise_multiplier)
            for p in t.figure2
            for n in p.steps
        ],
        "figure4": [
            audit(attack, four.sampling_rate, n, four.learning_rate, epsilon=four.epsilon)
            for attack in ("blank", "natural")
            for n in four.steps
        ],
        "table1": [
            audit(
                "natural",
                row.batch / t.records,
                row.steps,
                row.learning_rate,
                noise_multiplier=row.noise_multiplier,
            )
            for row in t.table1
        ],
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
    t = grid.training.model_dump(include=set(TrainedCurves.model_fields))
    own = set(TrainedMechanism.model_fields)
    every = by_name(
        (p.name, TrainedCurves.model_validate(t | p.model_dump(include=own)))
        for audits in trained_audits(grid).values()
        for p in audits
    )
    return [Cell(f"trained_{name}", p) for name, p in every.items()]


def cost(audit: TrainedAudit) -> float:
    """Seconds of one core that the models of a cell take."""
    records = audit.records * audit.sampling_rate * audit.views
    return 2 * audit.models * audit.steps * step_seconds(audit.model, records)
