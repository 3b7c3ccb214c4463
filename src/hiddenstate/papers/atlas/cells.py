"""The settings of the atlas, and the cells that it asks for."""

from hashlib import sha256
from pathlib import Path
from typing import Annotated, Self

from pydantic import Field, model_validator

import hiddenstate
from hiddenstate.family import (
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
    short,
)

NAME = "atlas"

Runs = Annotated[int, Field(ge=100, le=100_000)]


class Poisson(Grid):
    """DP-SGD whose steps sample each record independently; a record is added or removed."""

    noise_multiplier: NoiseMultiplier = Field(
        description="noise standard deviation over the clipping norm"
    )
    sampling_rate: SamplingRate = Field(description="probability that a step samples a record")
    steps: Steps = Field(description="steps of DP-SGD")
    learning_rate: Positive = Field(
        default=1.0, description="step size on the sum of clipped gradients, clipping norm 1"
    )
    smoothness: NotNegative | None = Field(
        default=None,
        description="of convex losses that clipping never changes, any batch's sum; null: any loss",
    )
    diameter: Positive | None = Field(
        default=None, description="of the domain that iterates are projected on; null: none"
    )

    @property
    def name(self) -> str:
        """Its name, as a part of files'."""
        known = "".join(
            f"_{letter}{short(value)}"
            for letter, value in (("M", self.smoothness), ("D", self.diameter))
            if value is not None
        )
        rate = "" if self.learning_rate == 1 else f"_lr{short(self.learning_rate)}"
        mechanism = f"q{short(self.sampling_rate)}_T{self.steps}"
        return f"{mechanism}_sigma{short(self.noise_multiplier)}{rate}{known}"

    @property
    def words(self) -> str:
        """Its numbers, as a reader sees them."""
        return (
            f"noise multiplier {self.noise_multiplier:g}, sampling rate {self.sampling_rate:g}, "
            f"{self.steps:,} steps (add or remove a record)"
            + ("" if self.smoothness is None else f", convex, smoothness {self.smoothness:g}")
            + (
                ""
                if self.diameter is None
                else f", domain of diameter {self.diameter / self.learning_rate:g} steps"
            )
        )


class Cyclic(Grid):
    """DP-SGD with batches in a fixed order; one record is swapped."""

    noise_multiplier: NoiseMultiplier = Field(
        description="noise standard deviation over the clipping norm"
    )
    records: Count = Field(description="records in the data set")
    batch_size: Count = Field(description="records in a batch; divides the records")
    steps: Steps = Field(description="steps of DP-SGD")
    learning_rate: Positive = Field(default=0.1, description="step size on a batch's mean")
    weak_convexity: NotNegative = Field(default=0.0, description="of every loss; 0: convex")
    smoothness: NotNegative = Field(default=0.0, description="largest curvature of every loss")
    diameter: Positive | None = Field(
        default=None, description="of the domain that iterates are projected on; null: none"
    )

    @property
    def name(self) -> str:
        """Its name, as a part of files'."""
        curved = f"m{short(self.weak_convexity)}_M{short(self.smoothness)}"
        domain = "" if self.diameter is None else f"_D{short(self.diameter)}"
        return (
            f"cyclic_n{self.records}_b{self.batch_size}_T{self.steps}"
            f"_sigma{short(self.noise_multiplier)}_lr{short(self.learning_rate)}_{curved}{domain}"
        )

    @property
    def words(self) -> str:
        """Its numbers, as a reader sees them."""
        return (
            f"noise multiplier {self.noise_multiplier:g}, {self.steps:,} steps through "
            f"{self.records:,} records in fixed batches of {self.batch_size:,} (swap a record), "
            f"learning rate {self.learning_rate:g}, weak convexity {self.weak_convexity:g}, "
            f"smoothness {self.smoothness:g}"
            + ("" if self.diameter is None else f", domain of diameter {self.diameter:g}")
        )


Setting = Poisson | Cyclic


class Titled(Grid):
    """A setting of the figure."""

    title: Text = Field(description="what the figure calls it")
    setting: Setting = Field(description="sampled batches, or batches in a fixed order")


class AtlasGrid(FamilyGrid):
    """The settings, each of them once."""

    delta: Delta = Field(description="probability at which every epsilon is stated")
    settings: Several[Titled] = Field(min_length=1, description="a panel each")
    runs: Runs = Field(
        description="runs per world of a simulated audit, fewer where steps are many"
    )
    trained: bool = Field(default=True, description="whether to show the nearest cached audits")

    @model_validator(mode="after")
    def _settings_differ(self) -> Self:
        names = [one.setting.name for one in self.settings]
        for i, name in enumerate(names):
            if name in names[:i]:
                raise ValueError(f"settings.{i}: got {name} once more; expected each setting once")
        return self


class Bounded(Grid):
    """What decides the bounds of settings."""

    settings: tuple[Setting, ...]
    delta: Delta
    runs: Runs


class CachedFile(Grid):
    """A cached file of scores, and what it held."""

    name: str
    sha256: str


class Trained(Grid):
    """What decides the bounds of audits that were trained."""

    files: tuple[CachedFile, ...]


def bounded(grid: AtlasGrid) -> list[Cell[Bounded]]:
    """One cell for all settings, of which each takes seconds."""
    settings = tuple(one.setting for one in grid.settings)
    return [Cell("settings", Bounded(settings=settings, delta=grid.delta, runs=grid.runs))]


def trained(grid: AtlasGrid) -> list[Cell[Trained]]:
    """One cell for all cached files that the atlas reads, of which there may be none."""
    if not grid.trained:
        return []
    files = [
        CachedFile(name=f"{path.parent.name}/{path.name}", sha256=_digest(path))
        for path in cached_files(cache())
    ]
    return [Cell("trained", Trained(files=tuple(files)))]


def cache() -> Path | None:
    """``results/cached`` of the working directory, or of the tree that this package runs from."""
    for root in (Path(), Path(hiddenstate.__file__).parents[2]):
        if (root / "results/cached").is_dir():
            return root / "results/cached"
    return None


FILES = (
    "gradient_crafting/housing_k*_fresh_*_repeat0.parquet",
    "worst_case_init/*_pre[05]_*_C1_*_repeat0.parquet",
)
"""Files of trained audits: of each audit the first repeat alone, so that none is picked by what it
found, and those of the papers' main settings."""


def cached_files(folder: Path | None) -> list[Path]:
    """The files of trained audits in a folder such as ``results/cached``, in a fixed order."""
    return [] if folder is None else [p for pattern in FILES for p in sorted(folder.glob(pattern))]


def _digest(path: Path) -> str:
    return sha256(path.read_bytes()).hexdigest()
