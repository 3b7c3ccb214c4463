"""The grid of gradient_crafting: its section of a scale file."""

from collections.abc import Iterator
from itertools import product
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from hiddenstate.papers.gradient_crafting.adversaries import THREE, Adversary, Rank
from hiddenstate.pipeline.cells import (
    Count,
    Delta,
    Epsilon,
    FamilyGrid,
    Grid,
    Name,
    Positive,
    Several,
    Text,
)
from hiddenstate.rounding import short

Start = Literal["fresh", "shared", "reshuffled"]
"""What is drawn for each model, and what once for all models of a repeat: the readings."""


class Sweep(Grid):
    """Audits of a network: every combination of epsilon and repeat."""

    epsilons: Several[Epsilon] = Field(min_length=1, description="theoretical epsilons, in nats")
    every: Count = Field(default=1, description="k: every k-th step has an insertion")
    start: Start = Field(
        default="fresh",
        description="initial parameters: of each model, of each repeat, or of each repeat with "
        "batches that are reshuffled in each epoch and drop the last, smaller one",
    )
    models: int = Field(ge=20, le=1_000_000, description="models per data set in each audit")
    repeats: int = Field(ge=1, le=1000, description="independent repeats, one cell each")
    adversaries: tuple[Adversary, ...] = Field(
        default=THREE,
        min_length=1,
        max_length=20,
        description="who audits the same models without the canary",
    )
    rank: Rank = Field(
        default="absolute", description="by which a simulated training ranks coordinates"
    )

    def audit_name(self, network: str, epsilon: float) -> str:
        """Name of one of its audits of a network, all repeats together."""
        return audit_name(network, self.every, self.start, epsilon, self.models)


class Centred(Grid):
    """Score less the drift that the adversary can simulate, a training without noise and canary."""

    epsilons: Several[Epsilon] = Field(min_length=1, description="of the sweep's, in nats")
    models: int = Field(ge=20, le=1_000_000, description="the first models of each data set")
    repeats: int = Field(default=1, ge=1, le=1000, description="the first repeats")


class HousingSweep(Sweep):
    """Audits of the housing network, and a second reading of some of their models."""

    centred: Centred | None = Field(
        default=None, description="audits that are read with the simulated end point taken off too"
    )

    @model_validator(mode="after")
    def _centred_are_some_of_them(self) -> Self:
        if self.centred is None:
            return self
        others = sorted(set(self.centred.epsilons) - set(self.epsilons))
        if others:
            raise ValueError(
                f"centred.epsilons: got {short(others[0])}; expected some of the sweep's epsilons"
            )
        for name in ("models", "repeats"):
            asked, there = getattr(self.centred, name), getattr(self, name)
            if asked > there:
                raise ValueError(f"centred.{name}: got {asked}; expected at most {there}")
        return self


class Housing(Grid):
    """The 68-parameter network on California housing."""

    insertions: Count = Field(default=250, description="canary gradients of a training")
    batch_size: Annotated[int, Field(ge=1, le=20_640)] = Field(
        default=400, description="records of a step"
    )
    learning_rate: Positive = Field(default=0.1, description="step size on a batch's mean")
    clipping_norm: Positive = Field(default=1.0, description="gradients' largest norm")
    hidden_units: Count = Field(default=6, description="units of the hidden layer")
    sweeps: Several[HousingSweep] = Field(min_length=1, description="the audits")

    @model_validator(mode="after")
    def _audits_differ(self) -> Self:
        _expect_different(
            (i, sweep.audit_name(HOUSING, epsilon))
            for i, sweep in enumerate(self.sweeps)
            for epsilon in sweep.epsilons
        )
        return self


class NetworkSweep(Sweep):
    """Audits of a network: every combination of epsilon, clipping norm and repeat."""

    clipping_norms: Several[Positive] = Field(
        default=[1.0], min_length=1, description="gradients' largest norms"
    )


class Network(Grid):
    """A network of the torch engine, and its audits."""

    dataset: Text = Field(
        description="digits, mnist, cifar10, cifar100, raw:<one of these>, folder:<path> "
        "(images, resized to 32 x 32 in colour) or features:<file>"
    )
    model: Name = Field(description="a name in hiddenstate.models.MODELS")
    insertions: Count = Field(default=250, description="canaries of a training")
    batch_size: Count = Field(default=128, description="records of a step")
    learning_rate: Positive = Field(default=0.01, description="step size on a batch's mean")
    sweeps: Several[NetworkSweep] = Field(min_length=1, description="the audits")

    @model_validator(mode="after")
    def _audits_differ(self) -> Self:
        _expect_different(
            (i, sweep.audit_name(network_name(self.model, norm), epsilon))
            for i, sweep in enumerate(self.sweeps)
            for epsilon, norm in product(sweep.epsilons, sweep.clipping_norms)
        )
        return self


def _expect_different(names: Iterator[tuple[int, str]]) -> None:
    """Raise ValueError for a sweep that has an audit of another one."""
    seen: set[str] = set()
    for i, name in names:
        if name in seen:
            raise ValueError(
                f"sweeps.{i}: got the audit {name} once more; expected each epsilon, clipping "
                "norm, every, start and number of models once"
            )
        seen.add(name)


class ExpectedPoints(Grid):
    """Expected audits of a coordinate: their points, and how many trainings each takes."""

    epsilons: Several[Epsilon] = Field(min_length=1, description="theoretical epsilons, in nats")
    every: Several[Count] = Field(default=[1], min_length=1, description="insertion periods")
    clipping_norms: Several[Positive] = Field(
        default=[], description="gradients' largest norms beside 1, of the larger networks"
    )
    starts: int = Field(ge=2, le=1000, description="initial parameters")
    orders: int = Field(ge=2, le=1000, description="draws of the batches, each for every start")
    housing_starts: int | None = Field(
        default=None, ge=2, le=1000, description="initial parameters of the housing network"
    )
    housing_orders: int | None = Field(
        default=None, ge=2, le=1000, description="draws of its batches, each for every start"
    )


class Norms(Grid):
    """Trainings in which the baseline canary's gradient norm is followed."""

    epsilon: Epsilon = Field(default=4.0, description="theoretical epsilon, in nats")
    every: Several[Count] = Field(default=[1, 5], min_length=1, description="insertion periods")
    runs: int = Field(ge=1, le=1000, description="models that are followed")


class Single(Grid):
    """Section 6: one insertion in the first step, then hidden steps."""

    epsilons: Several[Epsilon] = Field(min_length=1, description="of the one insertion, in nats")
    batch_sizes: Several[Count] = Field(min_length=1, description="records of a hidden step")
    steps: int = Field(default=25, ge=2, le=200, description="steps, the first one included")
    audited: Several[tuple[Epsilon, Count]] = Field(
        default=[], description="pairs of epsilon and batch size that are simulated as well"
    )
    runs: int = Field(ge=20, le=10_000_000, description="simulated runs per data set and repeat")
    repeats: int = Field(ge=2, le=1000, description="independent repeats of a simulated audit")


class Hidden(Grid):
    """Appendix E: how far trade-off curves are from Gaussian ones."""

    mu: Annotated[float, Field(gt=0, le=10)] = Field(description="Gaussian DP of the insertions")
    betas: Several[Annotated[float, Field(ge=0, le=100)]] = Field(
        description="drifts of the landscape, in deviations of a step's noise; 0 is flat"
    )
    sampling_rates: Several[Annotated[float, Field(gt=0, le=1)]] = Field(
        description="of a linear loss, whose canary is inserted when it is sampled"
    )
    steps: Several[Count] = Field(min_length=1, description="numbers of steps of the landscape")
    sampled_steps: Several[Count] = Field(
        min_length=1, description="numbers of steps of the linear loss"
    )


class Ideal(Grid):
    """Simulated audits of a coordinate that nothing but noise and canary moves."""

    epsilons: Several[Epsilon] = Field(min_length=1, description="theoretical epsilons, in nats")
    every: Several[Count] = Field(min_length=1, description="insertion periods")
    models: Several[Annotated[int, Field(ge=20, le=100_000)]] = Field(
        min_length=1, description="models per data set"
    )
    audits: int = Field(ge=20, le=100_000, description="simulated audits of each")


class OneRunNetwork(Grid):
    """A network of the torch engine, and how many canaries are in one training of it."""

    dataset: Text = Field(description="as of a network")
    model: Name = Field(description="a name in hiddenstate.models.MODELS")
    canaries: Several[Annotated[int, Field(ge=2, le=1_000_000)]] = Field(
        min_length=1, description="canaries in one training, in its least moved coordinates"
    )
    insertions: Count = Field(default=50, description="steps, each with every canary that is in")
    batch_size: Count = Field(default=64, description="records of a step")
    learning_rate: Positive = Field(default=0.01, description="step size on a batch's mean")
    clipping_norm: Positive = Field(default=1.0, description="gradients' largest norm")
    audits: int = Field(ge=2, le=10_000, description="trainings, an audit each")
    null_draws: int = Field(
        default=100, ge=100, le=100_000, description="as of the housing network"
    )

    @property
    def insertion(self) -> dict[str, Any]:
        """The arguments of ``crafted_gradients.Insertions`` except for epsilon and delta."""
        names = {"insertions", "batch_size", "learning_rate", "clipping_norm"}
        return self.model_dump(include=names)


class OneRun(Grid):
    """Audits with many canaries in one model."""

    epsilons: Several[Epsilon] = Field(min_length=1, description="theoretical epsilons, in nats")
    housing: Several[Annotated[int, Field(ge=2, le=68)]] = Field(
        description="canaries in one housing network, in its least moved coordinates"
    )
    idle: Several[Annotated[int, Field(ge=2, le=1_000_000)]] = Field(
        description="canaries in one simulated model of unused coordinates"
    )
    audits: int = Field(ge=2, le=10_000, description="simulated models, an audit each")
    housing_audits: int = Field(
        default=40, ge=2, le=10_000, description="housing networks, an audit each"
    )
    null_draws: int = Field(
        default=200,
        ge=100,
        le=100_000,
        description="trainings of each model without a canary, by which its null law is simulated",
    )
    networks: dict[Name, OneRunNetwork] = Field(
        default={}, max_length=20, description="audits of larger networks, by a name of their own"
    )
    validity_audits: int = Field(
        default=2000,
        ge=100,
        le=100_000,
        description="simulated audits of each mechanism that attains a bound's level",
    )


class GradientCraftingGrid(FamilyGrid):
    """The cells of each part; a part that is not there is not shown."""

    delta: Delta = Field(description="probability at which every epsilon is stated")
    housing: Housing | None = Field(default=None, description="audits of the small network")
    networks: dict[Name, Network] = Field(
        default={}, max_length=20, description="audits of larger networks, by a name of their own"
    )
    expected: ExpectedPoints | None = Field(
        default=None, description="what moves a coordinate beside noise and canary"
    )
    norms: Norms | None = Field(default=None, description="norms of the baseline canary")
    single: Single | None = Field(default=None, description="the single insertion of section 6")
    hidden: Hidden | None = Field(default=None, description="distances from Gaussian curves")
    ideal: Ideal | None = Field(default=None, description="what perfect audits find")
    one_run: OneRun | None = Field(default=None, description="many canaries in one model")

    @model_validator(mode="after")
    def _networks_need_parameters(self) -> Self:
        for name in ("norms", "one_run"):
            part = getattr(self, name)
            asks = part is not None and not (isinstance(part, OneRun) and not part.housing)
            if asks and self.housing is None:
                raise ValueError(f"{name}: got it without housing, whose network it trains")
        return self


HOUSING = "housing"


def network_name(network: str, clipping_norm: float) -> str:
    """A network of the torch engine, as the names of its audits begin."""
    return f"{network}_C{short(clipping_norm)}"


def audit_name(network: str, every: int, start: Start, epsilon: float, models: int) -> str:
    """Name of an audit, all its repeats together."""
    return f"{network}_k{every}_{start}_eps{short(epsilon)}_{models}"
