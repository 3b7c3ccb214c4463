"""The grid of gradient_crafting, and the cells that it asks for."""

from collections.abc import Iterator
from itertools import product
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import Field, model_validator

from hiddenstate.papers.gradient_crafting.adversaries import LOSS, Adversary, Rank, kind
from hiddenstate.papers.gradient_crafting.adversaries import THREE as THREE
from hiddenstate.pipeline.costs import step_seconds
from hiddenstate.pipeline.family import (
    Cell,
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

NAME = "gradient_crafting"

SETTING = ["every", "start", "epsilon"]
NETWORK_SETTING = ["network", "clipping_norm", *SETTING]
"""What audits of one setting have in common, except for models and repeat."""

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
    models: int = Field(ge=20, le=1_000_000, description="models per world in each audit")
    repeats: int = Field(ge=1, le=1000, description="independent repeats, one cell each")
    adversaries: tuple[Adversary, ...] = Field(
        default=THREE,
        min_length=1,
        max_length=20,
        description="who audits the same models of world 'out'",
    )
    rank: Rank = Field(
        default="absolute", description="by which a simulated training ranks coordinates"
    )


class Centred(Grid):
    """What the adversary can simulate, a training without noise and canary, taken off its score."""

    epsilons: Several[Epsilon] = Field(min_length=1, description="of the sweep's, in nats")
    models: int = Field(ge=20, le=1_000_000, description="the first models of each world")
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
            (i, audit_name(HOUSING, sweep, epsilon))
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
            (i, audit_name(network_name(self.model, norm), sweep, epsilon))
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
    runs: int = Field(ge=20, le=10_000_000, description="simulated runs per world and repeat")
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
        min_length=1, description="models per world"
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


class Audit(Grid):
    """What decides the scores of one audit of any network, one repeat."""

    epsilon: float
    delta: float
    every: int
    start: Start
    insertions: int
    batch_size: int
    learning_rate: float
    clipping_norm: float
    adversaries: tuple[Adversary, ...]
    rank: Rank
    models: int
    repeat: int

    @property
    def insertion(self) -> dict[str, Any]:
        """The arguments of ``crafted_gradients.Insertions``."""
        names = ("epsilon", "delta", "every", "insertions", "batch_size", "learning_rate")
        drawn = {"reshuffled": self.start == "reshuffled"}
        return self.model_dump(include={*names, "clipping_norm"}) | drawn


class HousingAudit(Audit):
    """Of the housing network."""

    hidden_units: int

    @property
    def name(self) -> str:
        """The audit's name, all its repeats together, by which random streams are named."""
        return audit_name(HOUSING, self, self.epsilon)


class SimulatedEnds(Grid):
    """What decides the noiseless end points of an audit's first models."""

    audit: HousingAudit
    models: int


class NetworkAudit(Audit):
    """Of a network of the torch engine."""

    network: str
    dataset: str
    model: str

    @property
    def name(self) -> str:
        """The audit's name, all its repeats together, by which random streams are named."""
        return audit_name(network_name(self.network, self.clipping_norm), self, self.epsilon)


HOUSING = "housing"
A = TypeVar("A", HousingAudit, NetworkAudit)


def network_name(network: str, clipping_norm: float) -> str:
    """A network of the torch engine, as the names of its audits begin."""
    return f"{network}_C{short(clipping_norm)}"


def audit_name(network: str, audit: Sweep | Audit, epsilon: float) -> str:
    """Name of an audit, all its repeats together."""
    return f"{network}_k{audit.every}_{audit.start}_eps{short(epsilon)}_{audit.models}"


def trained(grid: GradientCraftingGrid) -> list[Cell[Any]]:
    """Every audit, one cell per repeat."""
    return [*housing_audits(grid), *network_audits(grid)]


def housing_audits(grid: GradientCraftingGrid) -> list[Cell[HousingAudit]]:
    """Those of the housing network."""
    return _audits(HousingAudit, grid, grid.housing) if grid.housing else []


def centred(grid: GradientCraftingGrid) -> list[Cell[SimulatedEnds]]:
    """Audits of the housing network of which simulated end points are taken off, one a repeat."""
    asked: dict[tuple[str, float, int], int] = {}
    for sweep in grid.housing.sweeps if grid.housing else ():
        part = sweep.centred
        for epsilon in part.epsilons if part else ():
            for repeat in range(part.repeats if part else 0):
                name = audit_name(HOUSING, sweep, epsilon)
                asked[name, epsilon, repeat] = part.models if part else 0
    return [
        Cell(f"ends_{cell.name}", SimulatedEnds(audit=cell.parameters, models=models))
        for cell in housing_audits(grid)
        if (models := asked.get((cell.parameters.name, cell.parameters.epsilon,
                                 cell.parameters.repeat), 0))
    ]  # fmt: skip


def network_audits(grid: GradientCraftingGrid) -> list[Cell[NetworkAudit]]:
    """Those of the networks of the torch engine."""
    audits = (_audits(NetworkAudit, grid, n, network=name) for name, n in grid.networks.items())
    return [cell for cells in audits for cell in cells]


def _audits(
    kind: type[A], grid: GradientCraftingGrid, trained: Housing | Network, **more: str
) -> list[Cell[A]]:
    """Those of one network, one cell per repeat."""
    common = trained.model_dump(exclude={"sweeps"}) | {"delta": grid.delta} | more
    cells = []
    for sweep in trained.sweeps:
        own = sweep.model_dump(exclude={"epsilons", "repeats", "centred", "clipping_norms"})
        norms = getattr(sweep, "clipping_norms", [common.get("clipping_norm")])
        for repeat, norm, epsilon in product(range(sweep.repeats), norms, sweep.epsilons):
            point = {"repeat": repeat, "clipping_norm": norm, "epsilon": epsilon}
            p = kind(**common | own | point)
            cells.append(Cell(f"{p.name}_repeat{repeat}", p))
    return cells


def data_of(audit: HousingAudit | NetworkAudit) -> list[str]:
    """Data sets that training reads, besides the package's own housing."""
    return [audit.dataset] if isinstance(audit, NetworkAudit) else []


class Followed(Grid):
    """What decides the gradient norms of the baseline canary."""

    audit: HousingAudit
    runs: int


class Landscape(Grid):
    """What decides the laws of the single insertion at one epsilon, for every batch size."""

    epsilon: float
    delta: float
    batch_sizes: tuple[int, ...]
    steps: int


class SimulatedLandscape(Grid):
    """What decides simulated audits of the single insertion."""

    epsilon: float
    delta: float
    batch_size: int
    steps: int
    runs: int
    repeats: int


class Distances(Grid):
    """What decides the distances from Gaussian curves of one drift, or of one sampling rate."""

    mu: float
    beta: float | None
    sampling_rate: float | None
    steps: tuple[int, ...]


class IdealAudits(Grid):
    """What decides simulated audits of an unused coordinate."""

    epsilons: tuple[float, ...]
    delta: float
    every: int
    models: int
    audits: int


class OneRunAudits(Grid):
    """What decides audits with many canaries in one simulated model of unused coordinates."""

    epsilon: float
    delta: float
    canaries: int
    audits: int


class OneRunTrainings(Grid):
    """What decides audits with many canaries in one trained model."""

    epsilon: float
    delta: float
    canaries: tuple[int, ...]
    audits: int
    null_draws: int


class OneRunHousing(OneRunTrainings):
    """Of the housing network."""

    network: HousingAudit


class OneRunLarger(OneRunTrainings):
    """Of a network of the torch engine."""

    network: OneRunNetwork


class OneRunValidity(Grid):
    """What decides how often bounds from one model exceed the truth, where they attain it."""

    epsilon: float
    delta: float
    canaries: tuple[int, ...]
    audits: int


def followed(grid: GradientCraftingGrid) -> list[Cell[Followed]]:
    """One cell for each insertion period."""
    if grid.housing is None or grid.norms is None:
        return []
    norms = grid.norms
    audits = [_plain(grid, grid.housing, norms.epsilon, every=every) for every in norms.every]
    return [
        Cell(
            f"norms_k{audit.every}_eps{short(audit.epsilon)}",
            Followed(audit=audit, runs=norms.runs),
        )
        for audit in audits
    ]


def _plain(
    grid: GradientCraftingGrid, housing: Housing, epsilon: float, *, every: int = 1
) -> HousingAudit:
    """The network's own parameters, for work of another kind than audits."""
    return HousingAudit(
        epsilon=epsilon,
        delta=grid.delta,
        every=every,
        start="fresh",
        adversaries=(LOSS,),
        rank="absolute",
        models=1,
        repeat=0,
        **housing.model_dump(exclude={"sweeps"}),
    )


def landscapes(grid: GradientCraftingGrid) -> list[Cell[Landscape]]:
    """One cell for each epsilon."""
    if grid.single is None:
        return []
    common = Landscape(
        epsilon=0,
        delta=grid.delta,
        batch_sizes=tuple(grid.single.batch_sizes),
        steps=grid.single.steps,
    )
    return [
        Cell(f"landscape_eps{short(e)}", common.model_copy(update={"epsilon": e}))
        for e in grid.single.epsilons
    ]


def simulated(grid: GradientCraftingGrid) -> list[Cell[SimulatedLandscape]]:
    """One cell for each pair of epsilon and batch size that is audited."""
    if grid.single is None:
        return []
    common = grid.single.model_dump(include={"steps", "runs", "repeats"})
    return [
        Cell(
            f"landscape_eps{short(epsilon)}_B{size}",
            SimulatedLandscape(epsilon=epsilon, delta=grid.delta, batch_size=size, **common),
        )
        for epsilon, size in grid.single.audited
    ]


def distances(grid: GradientCraftingGrid) -> list[Cell[Distances]]:
    """One cell for each drift and each sampling rate."""
    if grid.hidden is None:
        return []
    p = grid.hidden
    steps, sampled = tuple(p.steps), tuple(p.sampled_steps)
    landscape = {
        f"beta{short(beta)}": Distances(mu=p.mu, beta=beta, sampling_rate=None, steps=steps)
        for beta in p.betas
    }
    linear = {
        f"q{short(rate)}": Distances(mu=p.mu, beta=None, sampling_rate=rate, steps=sampled)
        for rate in p.sampling_rates
    }
    return [Cell(f"hidden_{name}", of) for name, of in (landscape | linear).items()]


def ideal(grid: GradientCraftingGrid) -> list[Cell[IdealAudits]]:
    """One cell for each insertion period and number of models, with all epsilons.

    Those of the larger networks' audits are among them.
    """
    if grid.ideal is None:
        return []
    asked: dict[tuple[int, int], dict[float, None]] = {}
    for p in (cell.parameters for cell in network_audits(grid)):
        asked.setdefault((p.every, p.models), {})[p.epsilon] = None
    for every, models in product(grid.ideal.every, grid.ideal.models):
        asked.setdefault((every, models), {}).update(dict.fromkeys(grid.ideal.epsilons))
    return [
        Cell(
            f"ideal_k{every}_{models}",
            IdealAudits(
                epsilons=tuple(epsilons),
                delta=grid.delta,
                every=every,
                models=models,
                audits=grid.ideal.audits,
            ),
        )
        for (every, models), epsilons in asked.items()
    ]


def one_run(grid: GradientCraftingGrid) -> list[Cell[OneRunAudits]]:
    """One cell for each epsilon and number of unused canaries."""
    if grid.one_run is None:
        return []
    part = grid.one_run
    return [
        Cell(
            f"onerun_idle_m{m}_eps{short(epsilon)}",
            OneRunAudits(epsilon=epsilon, delta=grid.delta, canaries=m, audits=part.audits),
        )
        for epsilon, m in product(part.epsilons, part.idle)
    ]


def one_run_housing(grid: GradientCraftingGrid) -> list[Cell[OneRunHousing]]:
    """One cell for each epsilon, with all numbers of canaries in the housing network."""
    if grid.one_run is None or grid.housing is None or not grid.one_run.housing:
        return []
    part = grid.one_run
    return [
        Cell(
            f"onerun_housing_eps{short(epsilon)}",
            OneRunHousing(
                epsilon=epsilon,
                delta=grid.delta,
                canaries=tuple(part.housing),
                audits=part.housing_audits,
                null_draws=part.null_draws,
                network=_plain(grid, grid.housing, epsilon),
            ),
        )
        for epsilon in part.epsilons
    ]


def one_run_networks(grid: GradientCraftingGrid) -> list[Cell[OneRunLarger]]:
    """One cell for each epsilon and larger network, with all its numbers of canaries."""
    if grid.one_run is None:
        return []
    return [
        Cell(
            f"onerun_{name}_eps{short(epsilon)}",
            OneRunLarger(
                epsilon=epsilon,
                delta=grid.delta,
                canaries=tuple(network.canaries),
                audits=network.audits,
                null_draws=network.null_draws,
                network=network,
            ),
        )
        for (name, network), epsilon in product(
            grid.one_run.networks.items(), grid.one_run.epsilons
        )
    ]


def one_run_validity(grid: GradientCraftingGrid) -> list[Cell[OneRunValidity]]:
    """One cell for each epsilon, with the numbers of unused canaries up to 1,000."""
    if grid.one_run is None:
        return []
    few = tuple(m for m in grid.one_run.idle if m <= 1000)
    return [
        Cell(
            f"onerun_validity_eps{short(epsilon)}",
            OneRunValidity(
                epsilon=epsilon,
                delta=grid.delta,
                canaries=few,
                audits=grid.one_run.validity_audits,
            ),
        )
        for epsilon in (grid.one_run.epsilons if few else ())
    ]


_HOUSING_RECORD = 2.1e-8
"""Seconds of one core that a record of a step takes the housing network with 6 hidden units."""


def cost(audit: HousingAudit | NetworkAudit) -> float:
    """Seconds of one core that the models of a cell take, simulated ones included."""
    simulated = sum(kind(word).simulates for word in audit.adversaries)
    trainings = audit.models * (1 + len(audit.adversaries) + 2 * simulated)
    if isinstance(audit, NetworkAudit):
        step = step_seconds(audit.model, audit.batch_size)
    else:
        step = audit.batch_size * _HOUSING_RECORD
    return trainings * audit.every * audit.insertions * step


def one_run_cost(cell: Cell[OneRunHousing] | Cell[OneRunLarger]) -> float:
    """Seconds of one core that the models of a cell with many canaries take."""
    p, network = cell.parameters, cell.parameters.network
    if isinstance(network, HousingAudit):
        step = network.batch_size * _HOUSING_RECORD
    else:
        step = step_seconds(network.model, network.batch_size)
    return 2 + p.audits * (p.null_draws + len(p.canaries) + 2) * network.insertions * step


def ends_cost(cell: Cell[SimulatedEnds]) -> float:
    """Seconds of one core that an audit's noiseless end points take."""
    p = cell.parameters
    return cost(p.audit.model_copy(update={"models": p.models}))
