"""The grid of linear_heuristic: its section of a scale file."""

from collections.abc import Iterator
from typing import Annotated

import numpy as np
from pydantic import Field

from hiddenstate.accounting import pld, weighted
from hiddenstate.accounting import quadratic as quadratic_loss
from hiddenstate.pipeline.cells import (
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
)

Rate = Field(ge=1e-6, le=1, description="probability that a step samples a record")
Delta = Field(
    ge=1e-12, lt=1, description="probability at which every epsilon of the part is stated"
)
Noise = Field(ge=1e-3, le=1000, description="noise standard deviation over the clipping norm")
Steps = Field(ge=1, le=100_000, description="steps of DP-SGD")
Runs = Field(ge=10, le=100_000_000, description="simulated runs of DP-SGD per data set")
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
    # Departure linear_heuristic.figure5_grid: the text states neither rates nor steps.
    epsilons: Several[Epsilon] = Field(min_length=1, description="epsilon of one step, one a panel")
    steps: Several[StepNumber] = Field(min_length=1, description="numbers of steps")
    sampling_rates: Several[SamplingRate] = Field(min_length=1, description="sampling rates")


class HistoryCell(Setting):
    """Base of both kinds of cell of section 4.3."""

    growths: Several[Growth] = Field(min_length=1, description="factors v > 1 of the regulariser")


class HistoryRuns(HistoryCell):
    """Parameters that decide its scores."""

    runs: int = Runs


class HistoryCurves(HistoryCell):
    """Parameters that decide its epsilons, and the curves its audits are matched to."""

    resolution: float = Resolution


class History(HistoryRuns, HistoryCurves):
    """Section 4.3: the regulariser that keeps the history."""


Mechanism = tuple[float, float, int]
"""Noise multiplier, sampling rate and steps."""


class AuditCell(Grid):
    """Base of both kinds of cell of an audit; a cell has one sampling rate."""

    delta: float = Delta
    # Departure linear_heuristic.standard_epsilon: the text states none.
    epsilon: Epsilon = Field(default=8.0, description="standard epsilon, in nats")
    sampling_rates: Several[SamplingRate] = Field(min_length=1, description="one panel each")
    steps: Several[StepNumber] = Field(min_length=1, description="numbers of steps")

    def mechanisms(self) -> Iterator[Mechanism]:
        """Every number of steps at the noise of the standard epsilon."""
        for rate in self.sampling_rates:
            for steps in self.steps:
                yield pld.noise_multiplier(self.epsilon, self.delta, rate, steps), rate, steps


class AuditRuns(AuditCell):
    """Parameters that decide the scores."""

    runs: int = Runs
    threshold_delta: float = Field(
        default=0.01,
        ge=1e-6,
        lt=1,
        description="one-bit repeaters take the threshold with the largest epsilon at this delta, "
        "which, unlike ``delta``, the runs can resolve",
    )


class AuditCurves(AuditCell):
    """Parameters that decide the curves that the audits are matched to."""

    resolution: float = Resolution


class AuditRepeats(AuditCurves):
    """Parameters that decide how far an audit scatters."""

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


class Trained(Grid):
    """How the models of an audit are trained, and how many."""

    learning_rate: Positive = Field(description="step size on the mean of an expected batch")
    models: Annotated[int, Field(ge=20, le=1_000_000)] | None = Field(
        default=None, description="models per data set in each audit, where not all have as many"
    )


class Recipe(Trained):
    """Recipe for the models of one curve, for several numbers of steps."""

    sampling_rate: SamplingRate = Field(description="probability that a step samples a record")
    steps: Several[StepNumber] = Field(min_length=1, description="numbers of steps, an audit each")


class FixedNoise(Recipe):
    """All at one noise multiplier."""

    noise_multiplier: NoiseMultiplier = Field(description="noise deviation over clipping norm")


class FixedEpsilon(Recipe):
    """Each at the noise multiplier of one standard epsilon."""

    epsilon: Epsilon = Field(default=8.0, description="standard epsilon, in nats")


class TrainedRow(Trained):
    """A row of Table 1 that is trained."""

    batch: Count = Field(description="expected batch size")
    noise_multiplier: NoiseMultiplier = Field(description="noise deviation over clipping norm")
    steps: int = Field(ge=1, le=100_000, description="steps of DP-SGD")


class Training(Grid):
    """Figures 2 and 4, and the trained columns of Table 1."""

    delta: float = Delta
    dataset: Text = Field(
        # Departure linear_heuristic.trained_substitute: the text has a WideResNet on CIFAR-10.
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
    models: int = Field(ge=20, le=1_000_000, description="models per data set in each audit")
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
