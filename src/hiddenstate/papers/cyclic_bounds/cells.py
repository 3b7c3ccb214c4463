"""The grid of cyclic_bounds, and the simulations of its audits."""

from collections.abc import Callable, Iterator
from typing import Annotated, Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from pydantic import Field

from hiddenstate.accounting.cyclic import CyclicDPSGD
from hiddenstate.adversaries import swapped_record
from hiddenstate.adversaries.expanding_clip import WORLDS, ExpandingClip
from hiddenstate.adversaries.swapped_record import SwappedRecord
from hiddenstate.dpsgd.cyclic import Gradients, Prox, last_iterates
from hiddenstate.errors import InputError
from hiddenstate.family import Cell, Count, FamilyGrid, Grid, NotNegative, Positive, Several, Steps

Slope = Annotated[float, Field(ge=-1e9, le=1e9)]


class Base(Grid):
    """A mechanism around which one parameter at a time is varied."""

    records: Count = Field(description="records in the data set")
    batch_size: Count = Field(description="records in a batch; divides the records")
    passes: Steps = Field(default=1, description="passes over the data")
    step_size: Positive = Field(description="step size")
    clipping_norm: Positive = Field(description="clipping norm of a record's gradient")
    noise_std: Positive = Field(description="noise standard deviation of the displacement")
    weak_convexity: NotNegative = Field(default=0.0, description="weak convexity; 0: convex")
    smoothness: NotNegative = Field(description="smoothness (upper curvature) of the losses")
    position: Count = Field(default=1, description="step of the pass that visits the record")

    def run(self) -> CyclicDPSGD:
        """The mechanism; an error names a batch size that does not divide the records."""
        if self.records % self.batch_size:
            raise InputError(
                f"batch_size: got {self.batch_size}; expected a divisor of {self.records} records"
            )
        shared = self.model_dump(exclude={"records", "passes"})
        per_pass = self.records // self.batch_size
        return CyclicDPSGD(steps=self.passes * per_pass, steps_per_pass=per_pass, **shared)


class Sweeps(Grid):
    """Values of the parameters that are varied, one at a time."""

    passes: Several[Steps] = Field(min_length=2, description="passes over the data")
    batch_size: Several[Count] = Field(
        min_length=2, description="batch sizes that divide the records"
    )
    noise_std: Several[Positive] = Field(min_length=2, description="noise standard deviations")
    step_size: Several[Positive] = Field(min_length=2, description="step sizes")
    weak_convexity: Several[NotNegative] = Field(
        min_length=2, description="weak convexities, ascending"
    )
    position: Several[Count] = Field(min_length=2, description="positions of the swapped record")
    diameter: Several[Positive] = Field(min_length=2, description="diameters of the domain")


class Tightness(Grid):
    """Affine losses whose exact divergence the bounds are held against."""

    steps_per_pass: Steps = Field(description="steps in a pass")
    growths: Several[NotNegative] = Field(
        min_length=1, description="step size times weak convexity"
    )
    passes: Several[Steps] = Field(min_length=2, description="passes over the data")


class Audit(Grid):
    """Data sets that are simulated, attacked and bounded."""

    line: Base = Field(description="mechanism of the quadratic losses on the line")
    slopes: Several[Slope] = Field(description="curvatures of those losses; negative: concave")
    logistic: Base = Field(description="mechanism of the logistic regression")
    dimension: int = Field(ge=1, le=10_000, description="dimension of the logistic regression")
    diameter: Positive = Field(description="diameter of its domain, a ball")
    passes: Several[Steps] = Field(min_length=1, description="passes over the data")
    runs: int = Field(ge=100, le=100_000_000, description="runs a world")


class Counterexample(Grid):
    """Convex losses whose clipped steps expand, in units of noise and smoothness."""

    steps: Several[Steps] = Field(min_length=1, description="steps of the single pass")
    step_size: float = Field(gt=0, le=1, description="step size times smoothness")
    displacement: Positive = Field(description="displacement of the swapped record")
    margin: NotNegative = Field(description="fraction by which gradients exceed the clipping norm")
    runs: int = Field(ge=100, le=100_000_000, description="runs a world")

    @property
    def instance(self) -> ExpandingClip:
        """The losses of a cell, which has one number of steps."""
        (steps,) = self.steps
        return ExpandingClip(steps, self.step_size, self.displacement, self.margin)


class Formulas(Grid):
    """The closed formulas: sweeps of the bounds, and exact divergences."""

    delta: float = Field(ge=1e-12, lt=1, description="probability, at which every epsilon is stated")
    base: Base = Field(description="mechanism that the sweeps start from")
    weak_convexities: Several[NotNegative] = Field(
        min_length=1, description="weak convexities of the lines"
    )
    sweeps: Sweeps
    tightness: Tightness


class CyclicBoundsGrid(Formulas, FamilyGrid):
    """The cells: sweeps of the bounds, exact divergences, audits and the counterexample."""

    audit: Audit
    counterexample: Counterexample


class Line(Grid):
    """Quadratic losses on the line."""

    base: Base
    slope: float

    @property
    def title(self) -> str:
        """What figures call it."""
        shape = "concave" if self.slope < 0 else "convex"
        return f"{shape} quadratic losses, curvature {self.slope:g}"

    def instance(self, passes: int) -> SwappedRecord:
        """The data sets and the mechanism."""
        own = {"weak_convexity": max(-self.slope, 0.0), "smoothness": max(self.slope, 0.0)}
        base = self.base.model_copy(update={"passes": passes, **own})
        return swapped_record.line(base.run(), self.slope)


class Logistic(Grid):
    """Logistic regression, projected onto a ball."""

    base: Base
    dimension: int
    diameter: float

    @property
    def title(self) -> str:
        """What figures call it."""
        return f"logistic regression, dimension {self.dimension}, on a ball"

    def instance(self, passes: int) -> SwappedRecord:
        """The data sets and the mechanism."""
        run = self.base.model_copy(update={"passes": passes}).run()
        return swapped_record.logistic(run, self.dimension, self.diameter)


class Audited(Grid):
    """A data set with all numbers of passes."""

    data: Line | Logistic
    passes: list[int]


class AuditRuns(Audited):
    """What decides the scores of an audit."""

    runs: int


class AuditBounds(Audited):
    """What decides the bounds on an audited data set."""

    delta: float


def audit_runs(grid: CyclicBoundsGrid) -> list[Cell[AuditRuns]]:
    """One cell per audited data set."""
    shared = grid.audit.model_dump(include={"passes", "runs"})
    return [Cell(name, AuditRuns(data=data, **shared)) for name, data in _audited(grid.audit)]


def audit_bounds(grid: CyclicBoundsGrid) -> list[Cell[AuditBounds]]:
    """One cell per audited data set."""
    shared: dict[str, Any] = {"passes": grid.audit.passes, "delta": grid.delta}
    return [Cell(name, AuditBounds(data=data, **shared)) for name, data in _audited(grid.audit)]


def _audited(audit: Audit) -> Iterator[tuple[str, Line | Logistic]]:
    """The audited data sets by name; how many passes they have is said elsewhere."""
    line, logistic = (
        base.model_copy(update={"passes": 1}) for base in (audit.line, audit.logistic)
    )
    for slope in audit.slopes:
        yield f"line{slope:g}", Line(base=line, slope=slope)
    shape = audit.model_dump(include={"dimension", "diameter"})
    yield "logistic", Logistic(base=logistic, **shape)


def counterexamples(grid: CyclicBoundsGrid) -> list[Cell[Counterexample]]:
    """One cell per length of the pass."""
    failing = grid.counterexample
    return [
        Cell(f"counterexample_T{steps}", failing.model_copy(update={"steps": [steps]}))
        for steps in failing.steps
    ]


def formulas(grid: CyclicBoundsGrid) -> list[Cell[Formulas]]:
    """All closed formulas together."""
    return [Cell("formulas", Formulas(**{k: getattr(grid, k) for k in Formulas.model_fields}))]


def simulate_audit(cell: Cell[AuditRuns], seed: int) -> pd.DataFrame:
    """Scores of the last iterates on an audited data set, by number of passes."""
    p = cell.parameters
    parts = []
    for passes in p.passes:
        at = p.data.instance(passes)
        gradients = at.gradients.__getitem__
        parts.append(_scores(cell, seed, passes, at, gradients, at.start, at.prox))
    return pd.concat(parts, ignore_index=True)


def simulate_counterexample(cell: Cell[Counterexample], seed: int) -> pd.DataFrame:
    """Scores of the last iterates on the losses whose clipped steps expand."""
    instance = cell.parameters.instance
    return _scores(cell, seed, 1, instance, instance.gradients, np.zeros(2), None)


def _scores(
    cell: Cell[AuditRuns] | Cell[Counterexample],
    seed: int,
    passes: int,
    instance: SwappedRecord | ExpandingClip,
    gradients: Callable[[str], Gradients],
    start: NDArray[np.float64],
    prox: Prox | None,
) -> pd.DataFrame:
    """Scores of the last iterates of a mechanism in both worlds."""
    runs = cell.parameters.runs
    parts = []
    for world in WORLDS:
        name = ("cyclic_bounds", cell.name, "passes", passes, world)
        points = last_iterates(
            instance.run, gradients(world), start, runs, seed=seed, name=name, prox=prox
        )
        frame = pd.DataFrame({"run": np.arange(runs), "score": instance.score(points)})
        parts.append(frame.assign(world=world, repeat=0, passes=passes))
    return pd.concat(parts, ignore_index=True)
