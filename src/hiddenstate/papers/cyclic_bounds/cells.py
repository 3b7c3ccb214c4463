"""The grid of cyclic_bounds, and the simulations of its audits."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, ClassVar, Self

from pydantic import Field, model_validator

from hiddenstate.accounting import cyclic, cyclic_operator
from hiddenstate.accounting.cyclic import CyclicDPSGD
from hiddenstate.adversaries import swapped_record
from hiddenstate.adversaries.expanding_clip import ExpandingClip
from hiddenstate.adversaries.swapped_record import SwappedRecord
from hiddenstate.errors import InputError, expect
from hiddenstate.pipeline.cells import (
    Cell,
    Count,
    FamilyGrid,
    Grid,
    NotNegative,
    Positive,
    Several,
    Steps,
)

CONSTANTS: dict[str, Callable[[float, float, float], float]] = {
    "unclipped": cyclic_operator.unclipped,
    # Departure cyclic_bounds.reconstruction: the displayed formulas are lost.
    "reconstructed": cyclic_operator.reconstructed,
    "clipped": cyclic_operator.clipped,
}
"""Lipschitz constants of the step, by the name of their function."""

SINGLE_PASS = {"batch_size": 1, "passes": 1}
"""The setting of privacy amplification by iteration."""


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

    def run(self, **changes: Any) -> CyclicDPSGD:
        """The mechanism with some values changed; the batch size must divide the records."""
        p = self.model_validate(self.model_dump() | changes)
        if p.records % p.batch_size:
            raise InputError(
                f"batch_size: got {p.batch_size}; expected a divisor of {p.records} records"
            )
        per_pass = p.records // p.batch_size
        shared = p.model_dump(exclude={"records", "passes"})
        return CyclicDPSGD(steps=p.passes * per_pass, steps_per_pass=per_pass, **shared)


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


class Line(Grid):
    """Quadratic losses on the line, as curved as the mechanism allows."""

    base: Base = Field(description="mechanism; concave losses by its weak convexity, else convex")

    @property
    def slope(self) -> float:
        """Curvature of the losses."""
        return -self.base.weak_convexity or self.base.smoothness

    @property
    def name(self) -> str:
        return f"line{self.slope:g}"

    @property
    def title(self) -> str:
        shape = "concave" if self.slope < 0 else "convex"
        return f"{shape} quadratic losses, curvature {self.slope:g}"

    def instance(self, passes: int) -> SwappedRecord:
        return swapped_record.line(self.base.run(passes=passes), self.slope)


class Logistic(Grid):
    """Logistic regression, projected onto a ball."""

    base: Base = Field(description="mechanism")
    dimension: int = Field(ge=1, le=10_000, description="dimension")
    diameter: Positive = Field(description="diameter of the domain, a ball")
    name: ClassVar[str] = "logistic"

    @property
    def title(self) -> str:
        return f"logistic regression, dimension {self.dimension}, on a ball"

    def instance(self, passes: int) -> SwappedRecord:
        run = self.base.run(passes=passes)
        return swapped_record.logistic(run, self.dimension, self.diameter)


class Audit(Grid):
    """Data sets that are simulated, attacked and bounded."""

    data: Several[Line | Logistic] = Field(
        min_length=1, description="data sets, of lines and logistic regressions"
    )
    passes: Several[Steps] = Field(min_length=1, description="passes over the data")
    runs: int = Field(ge=100, le=100_000_000, description="runs per data set")


class Counterexample(Grid):
    """Convex losses whose clipped steps expand, in units of noise and smoothness."""

    steps: Steps = Field(description="steps of a pass")
    passes: Steps = Field(default=1, description="passes over the data")
    expansions: Steps | None = Field(
        default=None, description="expanding steps of a pass; null: all"
    )
    batch_size: Count = Field(default=1, description="records in a batch")
    step_size: float = Field(gt=0, le=1, description="step size times smoothness")
    displacement: Positive = Field(description="displacement of the swapped record")
    margin: NotNegative = Field(description="fraction by which gradients exceed the clipping norm")
    runs: int = Field(ge=100, le=100_000_000, description="runs per data set")

    @model_validator(mode="after")
    def _has_an_instance(self) -> Self:
        # Made for the error of losses that do not exist.
        _ = self.instance
        # The convex bound of one pass is of single records.
        if self.passes == 1:
            expect(self.batch_size == 1, "batch_size", self.batch_size, "1, in a single pass")
        return self

    @property
    def instance(self) -> ExpandingClip:
        return ExpandingClip(**self.model_dump(exclude={"runs"}))


def _run_of(data: Line | Logistic, passes: int) -> CyclicDPSGD:
    if isinstance(data, Line):
        return data.instance(passes).run
    # Its records may be more than memory holds, and are not needed here.
    run, size = data.base.run(passes=passes), data.base.records * data.dimension
    expect(run.smoothness == 1, "smoothness", run.smoothness, "1, that of the records")
    expect(size <= 10**8, "records", data.base.records, "at most 1e8 over the dimension")
    return run


class Formulas(Grid):
    """Deterministic computations: sweeps of the bounds, and exact divergences."""

    delta: float = Field(
        ge=1e-12, lt=1, description="probability, at which every epsilon is stated"
    )
    base: Base = Field(description="mechanism that the sweeps start from")
    weak_convexities: Several[NotNegative] = Field(
        min_length=1, description="weak convexities of the lines"
    )
    sweeps: Sweeps
    tightness: Tightness
    audit: Audit

    @model_validator(mode="after")
    def _every_mechanism_exists(self) -> Self:
        for key, run in self._runs():
            try:
                made = run()
                for constant in CONSTANTS.values():
                    constant(*made.curvature)
                if made.weak_convexity == 0:
                    cyclic.equation_22(made)
            except InputError as error:
                section, _, varied = key.partition(" ")
                wrong = str(error).partition(":")[0]
                of_its_own = wrong in Base.model_fields and varied in ("", wrong)
                where = section if of_its_own else f"{key.replace(' ', '.')}: "
                raise ValueError(f"{where}{'.' * of_its_own}{error}") from error
        return self

    def _runs(self) -> Iterator[tuple[str, Callable[[], CyclicDPSGD]]]:
        """How each mechanism is made, by the section and the key of it, if one, that ask for it."""
        yield "base", self.base.run
        for i, data in enumerate(self.audit.data):
            for passes in self.audit.passes:
                yield f"audit.data.{i}.base", partial(_run_of, data, passes)
        lines = [{"weak_convexity": curvature} for curvature in self.weak_convexities]
        for i, line in enumerate(lines):
            yield f"weak_convexities {i}", partial(self.base.run, **line)
            yield f"weak_convexities {i}", partial(self.base.run, **line, **SINGLE_PASS)
        for key, values in self.sweeps:
            for x in values:
                for line in [{}] if key == "weak_convexity" else lines:
                    varied = {} if key == "diameter" else {key: x}
                    yield f"sweeps {key}", partial(self.base.run, **line, **varied)


class CyclicBoundsGrid(Formulas, FamilyGrid):
    """The cells: the formulas, audits and the counterexample."""

    counterexamples: Several[Counterexample] = Field(
        min_length=1, description="losses, in one pass or several"
    )


def formulas(grid: CyclicBoundsGrid) -> list[Cell[Formulas]]:
    """All closed formulas together."""
    return [Cell("formulas", Formulas(**{k: getattr(grid, k) for k in Formulas.model_fields}))]


def audits(grid: CyclicBoundsGrid) -> list[Cell[Audit]]:
    """One cell per audited data set."""
    audit = grid.audit
    return [Cell(data.name, audit.model_copy(update={"data": [data]})) for data in audit.data]


def counterexamples(grid: CyclicBoundsGrid) -> list[Cell[Counterexample]]:
    """One cell per set of losses."""
    return [
        Cell(f"counterexample_T{p.steps}" + (f"_E{p.passes}" if p.passes > 1 else ""), p)
        for p in grid.counterexamples
    ]
