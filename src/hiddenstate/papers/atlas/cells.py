"""The settings of the atlas, and the cells that it asks for."""

from typing import Annotated, Self

from pydantic import Field, model_validator

from hiddenstate.accounting.setting import Setting
from hiddenstate.atlas.lower import setting_name
from hiddenstate.pipeline.cells import (
    Cell,
    Count,
    Delta,
    FamilyGrid,
    Grid,
    NoiseMultiplier,
    NotNegative,
    Positive,
    SamplingRate,
    Several,
    Steps,
    Text,
)
from hiddenstate.sampling import Cyclic, Poisson

Runs = Annotated[int, Field(ge=100, le=100_000)]


class Sampled(Grid):
    """DP-SGD whose steps sample each record independently; a record is added or removed."""

    noise_multiplier: NoiseMultiplier = Field(
        description="noise standard deviation over the clipping norm"
    )
    sampling_rate: SamplingRate = Field(description="probability that a step samples a record")
    steps: Steps = Field(description="steps of DP-SGD")

    @property
    def known(self) -> Setting:
        numbers = self.model_dump(exclude={"sampling_rate"})
        return Setting(sampling=Poisson(self.sampling_rate), **numbers)


class Ordered(Grid):
    """DP-SGD with batches in a fixed order; one record is swapped."""

    noise_multiplier: NoiseMultiplier = Field(
        description="noise standard deviation over the clipping norm"
    )
    records: Count = Field(description="records in the data set")
    batch_size: Count = Field(description="records in a batch")
    steps: Steps = Field(description="steps of DP-SGD")
    learning_rate: Positive = Field(default=0.1, description="step size on a batch's mean")
    weak_convexity: NotNegative = Field(default=0.0, description="of every loss; 0: convex")
    smoothness: NotNegative = Field(default=0.0, description="largest curvature of every loss")
    diameter: Positive | None = Field(
        default=None, description="of the domain that iterates are projected on; null: none"
    )

    @property
    def known(self) -> Setting:
        return Setting(sampling=Cyclic(self.batch_size), **self.model_dump(exclude={"batch_size"}))


class Titled(Grid):
    """A setting of the figure."""

    title: Text = Field(description="what the figure calls it")
    setting: Sampled | Ordered = Field(description="sampled batches, or batches in a fixed order")


class AtlasGrid(FamilyGrid):
    """The settings, each of them once."""

    delta: Delta = Field(description="probability at which every epsilon is stated")
    settings: Several[Titled] = Field(min_length=1, description="a panel each")
    runs: Runs = Field(
        description="runs per data set of a simulated audit, fewer where steps are many"
    )
    released: list[Sampled] = Field(
        default=[],
        max_length=20,
        description="settings of the figure of released checkpoints, a panel each",
    )
    trained: bool = Field(default=True, description="whether to show the nearest trained audits")

    @model_validator(mode="after")
    def _settings_differ(self) -> Self:
        names = [setting_name(one.setting.known) for one in self.settings]
        titles = [one.title for one in self.settings]
        for words, found in (("setting", names), ("title", titles)):
            for i, name in enumerate(found):
                if name in found[:i]:
                    raise ValueError(
                        f"settings.{i}: got {name} once more; expected each {words} once"
                    )
        return self


class Bounded(Grid):
    """Parameters that decide the bounds of settings."""

    settings: tuple[Sampled | Ordered, ...]
    delta: Delta
    runs: Runs


class Released(Grid):
    """Parameters that decide the epsilons of released checkpoints."""

    noise_multiplier: NoiseMultiplier
    sampling_rate: SamplingRate
    steps: Steps
    delta: Delta
    runs: Runs


def released(grid: AtlasGrid) -> list[Cell[Released]]:
    """A cell for each setting; its epsilons take seconds."""
    return [
        Cell(
            f"released_{setting_name(one.known)}",
            Released(**one.model_dump(), delta=grid.delta, runs=grid.runs),
        )
        for one in grid.released
    ]


def bounded(grid: AtlasGrid) -> list[Cell[Bounded]]:
    """One cell for all settings, of which each takes seconds."""
    settings = tuple(one.setting for one in grid.settings)
    return [Cell("settings", Bounded(settings=settings, delta=grid.delta, runs=grid.runs))]
