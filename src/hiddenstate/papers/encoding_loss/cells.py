"""The grid of encoding_loss, and the work of its cells."""

from typing import Any, Literal, Self

from pydantic import Field, model_validator

from hiddenstate.pipeline.cells import (
    Cell,
    Delta,
    Epsilon,
    FamilyGrid,
    Grid,
    NoiseMultiplier,
    SamplingRate,
    Several,
    Steps,
    by_name,
)

Encoding = Literal["published", "sound", "spacing alone", "decimals alone", "swapped", "as printed"]

ENCODINGS: tuple[Encoding, ...] = ("published", "sound")

PARTS: tuple[Encoding, ...] = ("spacing alone", "decimals alone")
"""The sound encoding with one of the published one's choices, by which its loss is split."""

SWAPPED: Encoding = "swapped"
"""The published encoding where the data set with the canary is the null hypothesis."""

PRINTED: Encoding = "as printed"
"""The published encoding with the sign that Algorithm 1 prints."""

FEW = 1000
"""Runs of each data set and repeat that are enough for a correlation, and two repeats."""


class Setting(Grid):
    """Sampling rate and number of samplings of a record."""

    sampling_rate: SamplingRate = Field(description="probability that a step samples a record")
    steps: Steps = Field(description="steps of DP-SGD")

    @property
    def name(self) -> str:
        return f"q{self.sampling_rate:g}_T{self.steps}"


class Mechanism(Setting):
    """A setting with its noise."""

    noise_multiplier: NoiseMultiplier = Field(
        description="noise standard deviation over the clipping norm"
    )

    @property
    def name(self) -> str:
        return f"{super().name}_sigma{self.noise_multiplier:g}"


class EncodingLossGrid(FamilyGrid):
    """The cells: Figure 1's mechanisms, and Figure 2's settings times its epsilons."""

    # Departure encoding_loss.delta: the text states none.
    delta: Delta = Field(description="probability, at which every epsilon is stated")
    # Departure encoding_loss.mechanisms: the text names one of the three.
    curves: Several[Mechanism] = Field(min_length=1, description="mechanisms of Figure 1")
    settings: Several[Setting] = Field(min_length=1, description="settings of Figure 2")
    epsilons: Several[Epsilon] = Field(min_length=1, description="epsilons of Figure 2, in nats")
    epsilon_step: float = Field(
        default=0.1,
        ge=0.001,
        le=1,
        description="spacing of the epsilons Algorithm 2 searches, in nats",
    )
    epsilon_range: tuple[Epsilon, Epsilon] = Field(
        default=(0.5, 20.0), description="first and last epsilon Algorithm 2 searches, in nats"
    )
    records: int = Field(
        default=10_000_000_000,
        ge=100_000_000,
        le=10**15,
        description="ordinary records of the published encoding",
    )
    runs: int = Field(ge=10, le=10_000_000, description="runs of DP-SGD per data set and repeat")
    repeats: int = Field(ge=2, le=1000, description="independent repeats of the audit")
    figure2_repeats: int | None = Field(
        default=None, ge=2, le=1000, description="of Figure 2's published encoding, if others"
    )
    swapped_repeats: int | None = Field(
        default=None, ge=2, le=1000, description="of Figure 1 with the data sets swapped, if others"
    )

    @model_validator(mode="after")
    def _the_range_holds_what_is_searched(self) -> Self:
        first, last = self.epsilon_range
        if last - first < self.epsilon_step:
            raise ValueError(
                f"epsilon_range: got {first:g} to {last:g}; expected a last epsilon at least "
                f"epsilon_step = {self.epsilon_step:g} above the first"
            )
        for epsilon in self.epsilons:
            if not first <= epsilon <= last:
                raise ValueError(
                    f"epsilons: got {epsilon:g}; expected one within epsilon_range, {first:g} to "
                    f"{last:g}, or no estimate can reach it"
                )
        return self


class Target(Setting):
    """A setting with the epsilon that its noise is calibrated to."""

    epsilon: float
    delta: float

    @property
    def name(self) -> str:
        return f"{super().name}_eps{self.epsilon:g}"

    @property
    def setting(self) -> Setting:
        """Sampling rate and number of samplings of a record."""
        return Setting(sampling_rate=self.sampling_rate, steps=self.steps)


class Simulated(Grid):
    """Parameters that decide the scores of a cell."""

    mechanism: Mechanism | Target
    records: int
    runs: int
    repeats: int
    encoding: Encoding


class Accounted(Grid):
    """Parameters of trade-off curves of all iterates: a mechanism, or a setting with epsilons."""

    mechanism: Mechanism | Setting
    epsilons: tuple[float, ...]
    delta: float


def simulated(grid: EncodingLossGrid) -> list[Cell[Simulated]]:
    """Every mechanism with both encodings, and those of Figure 1 swapped and as printed."""
    targets = [
        Target(**setting.model_dump(), epsilon=epsilon, delta=grid.delta)
        for setting in grid.settings
        for epsilon in grid.epsilons
    ]
    every: list[Mechanism | Target] = [*grid.curves, *targets]
    common = grid.model_dump(include={"records", "runs", "repeats"})
    few = {"runs": min(FEW, grid.runs), "repeats": 2}
    found = []
    # Those of one mechanism beside each other, for they share its noise multiplier.
    for name, mechanism in by_name((m.name, m) for m in every).items():
        given = common | {"mechanism": mechanism}
        sizes: dict[Encoding, dict[str, Any]] = dict.fromkeys(ENCODINGS, given)
        if isinstance(mechanism, Mechanism):
            swapped = given | {"repeats": grid.swapped_repeats or grid.repeats}
            sizes |= {SWAPPED: swapped, PRINTED: given | few}
        else:
            more = given | {"repeats": grid.figure2_repeats or grid.repeats}
            sizes |= {"published": more, **dict.fromkeys(PARTS, given | few)}
        found += [
            Cell(f"{name}_{encoding.replace(' ', '_')}", Simulated(encoding=encoding, **size))
            for encoding, size in sizes.items()
        ]
    return found


def accounted(grid: EncodingLossGrid) -> list[Cell[Accounted]]:
    """One cell per mechanism of Figure 1, one table of epsilons per setting of Figure 2."""
    first, last = grid.epsilon_range
    count = round((last - first) / grid.epsilon_step) + 1
    epsilons = tuple(round(first + i * grid.epsilon_step, 6) for i in range(count))
    asked: list[tuple[Mechanism | Setting, tuple[float, ...]]] = [
        *((mechanism, ()) for mechanism in grid.curves),
        *((setting, epsilons) for setting in grid.settings),
    ]
    return [
        Cell(m.name, Accounted(mechanism=m, epsilons=searched, delta=grid.delta))
        for m, searched in asked
    ]
