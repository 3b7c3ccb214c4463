"""The grid of gradient_crafting, and the cells that it asks for."""

from collections.abc import Iterator
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from hiddenstate.family import Cell, Count, Delta, Epsilon, FamilyGrid, Grid, Positive

NAME = "gradient_crafting"

Adversary = Literal[
    "loss-based", "random coordinate", "one random coordinate", "simulated coordinate"
]
"""Who chooses the canary; the third draws one coordinate for the whole audit."""

THREE: tuple[Adversary, ...] = ("loss-based", "random coordinate", "simulated coordinate")
"""Those of the paper."""

Start = Literal["fresh", "shared"]
Rank = Literal["absolute", "squared", "net"]


class Sweep(Grid):
    """Audits of the housing network: every combination of epsilon and repeat."""

    epsilons: list[Epsilon] = Field(min_length=1, description="theoretical epsilons, in nats")
    every: Count = Field(default=1, description="k: every k-th step has an insertion")
    start: Start = Field(
        default="fresh", description="initial parameters: of each model, or of each repeat"
    )
    models: int = Field(ge=20, le=1_000_000, description="models per world in each audit")
    repeats: int = Field(ge=1, le=1000, description="independent repeats, a cell each")
    adversaries: tuple[Adversary, ...] = Field(
        default=THREE, min_length=1, description="who audits the same models of world 'out'"
    )
    rank: Rank = Field(
        default="absolute", description="by which a simulated training ranks coordinates"
    )


class Housing(Grid):
    """The 68-parameter network on California housing."""

    insertions: Count = Field(default=250, description="canary gradients of a training")
    batch_size: Annotated[int, Field(ge=1, le=20_640)] = Field(
        default=400, description="records of a step"
    )
    learning_rate: Positive = Field(default=0.1, description="step size on a batch's mean")
    clipping_norm: Positive = Field(default=1.0, description="gradients' largest norm")
    hidden_units: Count = Field(default=6, description="units of the hidden layer")
    sweeps: list[Sweep] = Field(min_length=1, description="the audits")

    @model_validator(mode="after")
    def _audits_differ(self) -> Self:
        seen: set[str] = set()
        for i, sweep in enumerate(self.sweeps):
            for epsilon in sweep.epsilons:
                name = audit_name(sweep, epsilon)
                if name in seen:
                    raise ValueError(
                        f"sweeps.{i}: got the audit {name} once more; expected each epsilon, "
                        "every, start and number of models once"
                    )
                seen.add(name)
        return self


class GradientCraftingGrid(FamilyGrid):
    """The cells of each part; a part that is not there is not shown."""

    delta: Delta = Field(description="probability at which every epsilon is stated")
    housing: Housing | None = Field(default=None, description="audits of the small network")


class HousingAudit(Grid):
    """What decides the scores of one audit of the housing network, one repeat."""

    epsilon: float
    delta: float
    every: int
    start: Start
    insertions: int
    batch_size: int
    learning_rate: float
    clipping_norm: float
    hidden_units: int
    adversaries: tuple[Adversary, ...]
    rank: Rank
    models: int
    repeat: int

    @property
    def name(self) -> str:
        """The audit's name, all its repeats together, by which random streams are named."""
        return audit_name(self, self.epsilon)


def audit_name(audit: "Sweep | HousingAudit", epsilon: float) -> str:
    """Name of an audit, all its repeats together."""
    return f"housing_k{audit.every}_{audit.start}_eps{short(epsilon)}_{audit.models}"


def short(value: float) -> str:
    """A number as a part of names: no two are written alike."""
    return f"{value:g}" if float(f"{value:g}") == value else repr(value)


def trained(grid: GradientCraftingGrid) -> list[Cell[HousingAudit]]:
    """Every audit of the housing network, a cell for each repeat."""
    return [Cell(f"{p.name}_repeat{p.repeat}", p) for p in _audits(grid)]


def _audits(grid: GradientCraftingGrid) -> Iterator[HousingAudit]:
    if grid.housing is None:
        return
    common = grid.housing.model_dump(exclude={"sweeps"})
    for sweep in grid.housing.sweeps:
        shared = sweep.model_dump(exclude={"epsilons", "repeats"})
        for repeat in range(sweep.repeats):
            for epsilon in sweep.epsilons:
                yield HousingAudit(
                    epsilon=epsilon, delta=grid.delta, repeat=repeat, **common, **shared
                )


_RECORD = 6.2e-8
"""Seconds of one core that a record of a step takes with 8 features and 6 hidden units."""


def cost(audit: HousingAudit) -> float:
    """Seconds of one core that the models of a cell take, simulated ones included."""
    simulated = 2 * ("simulated coordinate" in audit.adversaries)
    trainings = audit.models * (1 + len(audit.adversaries) + simulated)
    return trainings * audit.every * audit.insertions * audit.batch_size * _RECORD
