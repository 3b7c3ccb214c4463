"""The cells that the grid of gradient_crafting asks for."""

from itertools import product
from typing import Any, TypeVar

from hiddenstate.accounting import gaussian
from hiddenstate.papers.gradient_crafting.adversaries import LOSS, Adversary, Rank
from hiddenstate.papers.gradient_crafting.grid import (
    HOUSING,
    GradientCraftingGrid,
    Housing,
    Network,
    OneRunNetwork,
    Start,
    audit_name,
    network_name,
)
from hiddenstate.pipeline.cells import Cell, Grid, part, swept
from hiddenstate.rounding import short

NAME = "gradient_crafting"

SETTING = ["every", "start", "epsilon"]
NETWORK_SETTING = ["network", "clipping_norm", *SETTING]
"""What audits of one setting have in common, except for models and repeat."""


class Audit(Grid):
    """Parameters that decide the scores of one audit of any network, one repeat."""

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

    @property
    def noise_deviation(self) -> float:
        """Standard deviation of the noise in a coordinate of the last iterate, all steps."""
        mu = gaussian.mu(self.epsilon, self.delta)
        shift = self.learning_rate / self.batch_size * self.clipping_norm * self.insertions
        # Without other movement the insertions shift a coordinate by mu / sqrt(k) of it.
        return shift / (mu / self.every**0.5)


class HousingAudit(Audit):
    """Audit of the housing network."""

    hidden_units: int

    @property
    def name(self) -> str:
        """The audit's name, all its repeats together, by which random streams are named."""
        return audit_name(HOUSING, self.every, self.start, self.epsilon, self.models)


class SimulatedEnds(Grid):
    """Parameters that decide the noiseless end points of an audit's first models."""

    audit: HousingAudit
    models: int


class NetworkAudit(Audit):
    """Audit of a network of the torch engine."""

    network: str
    dataset: str
    model: str

    @property
    def name(self) -> str:
        network = network_name(self.network, self.clipping_norm)
        return audit_name(network, self.every, self.start, self.epsilon, self.models)


A = TypeVar("A", HousingAudit, NetworkAudit)


def trained(grid: GradientCraftingGrid) -> list[Cell[Any]]:
    """Every audit, one cell per repeat."""
    return [*housing_audits(grid), *network_audits(grid)]


def housing_audits(grid: GradientCraftingGrid) -> list[Cell[HousingAudit]]:
    """Audits of the housing network."""
    return _audits(HousingAudit, grid, grid.housing) if grid.housing else []


def beside(grid: GradientCraftingGrid) -> list[Cell[HousingAudit]]:
    """Audits of fewer models than the largest of their setting, with which they are compared."""
    settings: dict[HousingAudit, list[Cell[HousingAudit]]] = {}
    for cell in housing_audits(grid):
        if cell.parameters.start == "fresh":
            settings.setdefault(setting_of(cell.parameters), []).append(cell)
    return [
        cell
        for group in settings.values()
        for cell in group
        if cell.parameters.models < max(other.parameters.models for other in group)
    ]


def setting_of(audit: HousingAudit) -> HousingAudit:
    """Common part of audits that are compared, whatever their models and adversaries."""
    return audit.model_copy(update={"models": 0, "repeat": 0, "adversaries": ()})


def centred(grid: GradientCraftingGrid) -> list[Cell[SimulatedEnds]]:
    """Audits of the housing network of which simulated end points are taken off, one a repeat."""
    asked: dict[tuple[str, float, int], int] = {}
    for sweep in grid.housing.sweeps if grid.housing else ():
        if p := sweep.centred:
            for epsilon, repeat in product(p.epsilons, range(p.repeats)):
                asked[sweep.audit_name(HOUSING, epsilon), epsilon, repeat] = p.models
    return [
        Cell(f"ends_{cell.name}", SimulatedEnds(audit=cell.parameters, models=models))
        for cell in housing_audits(grid)
        if (models := asked.get((cell.parameters.name, cell.parameters.epsilon,
                                 cell.parameters.repeat), 0))
    ]  # fmt: skip


def network_audits(grid: GradientCraftingGrid) -> list[Cell[NetworkAudit]]:
    """Audits of the networks of the torch engine."""
    audits = (_audits(NetworkAudit, grid, n, network=name) for name, n in grid.networks.items())
    return [cell for cells in audits for cell in cells]


def _audits(
    kind: type[A], grid: GradientCraftingGrid, trained: Housing | Network, **more: str
) -> list[Cell[A]]:
    """Audits of one network, one cell per repeat."""
    cells = []
    for sweep in trained.sweeps:
        norms = getattr(sweep, "clipping_norms", [getattr(trained, "clipping_norm", None)])
        for repeat, norm, epsilon in product(range(sweep.repeats), norms, sweep.epsilons):
            point = {"repeat": repeat, "clipping_norm": norm, "epsilon": epsilon}
            p = part(kind, grid, trained, sweep, **more, **point)
            cells.append(Cell(f"{p.name}_repeat{repeat}", p))
    return cells


def data_of(audit: HousingAudit | NetworkAudit) -> list[str]:
    """Data sets that training reads, besides the package's own housing."""
    return [audit.dataset] if isinstance(audit, NetworkAudit) else []


class ExpectedAudits(Grid):
    """Parameters that decide the trainings behind expected audits of one network."""

    network: str
    audits: tuple[HousingAudit | NetworkAudit, ...]
    epsilons: tuple[float, ...]
    starts: int
    orders: int


def expected(grid: GradientCraftingGrid) -> list[Cell[ExpectedAudits]]:
    """A cell for each network: every insertion period, and every clipping norm at k = 1."""
    p = grid.expected
    if p is None:
        return []
    points = [(every, 1.0) for every in p.every] + [(1, norm) for norm in p.clipping_norms]
    audits: dict[str, list[HousingAudit | NetworkAudit]] = {}
    for every, norm in points:
        at = _ALONE | {"epsilon": p.epsilons[0], "every": every}
        for name, network in grid.networks.items():
            own = at | {"network": name, "clipping_norm": norm}
            audits.setdefault(name, []).append(part(NetworkAudit, grid, network, **own))
        if grid.housing and norm == 1:
            audits.setdefault(HOUSING, []).append(part(HousingAudit, grid, grid.housing, **at))
    counts = {HOUSING: (p.housing_starts or p.starts, p.housing_orders or p.orders)}
    found = []
    for name, these in audits.items():
        starts, orders = counts.get(name, (p.starts, p.orders))
        shared = {"network": name, "audits": tuple(these), "starts": starts, "orders": orders}
        found.append(Cell(f"expected_{name}", part(ExpectedAudits, p, **shared)))
    return found


def expected_trainings(cell: Cell[ExpectedAudits]) -> tuple[int, int]:
    """Trainings of a cell, and one repeat."""
    p = cell.parameters
    return p.starts * p.orders * len(p.audits) * len(p.epsilons), 1


_ALONE: dict[str, Any] = {
    "start": "fresh", "adversaries": (LOSS,), "rank": "absolute", "models": 1, "repeat": 0,
}  # fmt: skip
"""Of an audit that stands for its network, for work of another kind than audits."""


class Followed(Grid):
    """Parameters that decide the gradient norms of the baseline canary."""

    audit: HousingAudit
    runs: int


class Landscape(Grid):
    """Parameters of the laws of the single insertion at one epsilon, for every batch size."""

    epsilon: float
    delta: float
    batch_sizes: tuple[int, ...]
    steps: int


class SimulatedLandscape(Grid):
    """Parameters that decide simulated audits of the single insertion."""

    epsilon: float
    delta: float
    batch_size: int
    steps: int
    runs: int
    repeats: int


class Distances(Grid):
    """Parameters of distances from Gaussian curves, for one drift or one sampling rate."""

    mu: float
    beta: float | None = None
    sampling_rate: float | None = None
    steps: tuple[int, ...]


class IdealAudits(Grid):
    """Parameters that decide simulated audits of an unused coordinate."""

    epsilons: tuple[float, ...]
    delta: float
    every: int
    models: int
    audits: int


class OneRunAudits(Grid):
    """Parameters of audits with many canaries in one simulated model of unused coordinates."""

    epsilon: float
    delta: float
    canaries: int
    audits: int


class OneRunTrainings(Grid):
    """Parameters that decide audits with many canaries in one trained model."""

    epsilon: float
    delta: float
    canaries: tuple[int, ...]
    audits: int
    null_draws: int


class OneRunHousing(OneRunTrainings):
    """One-run audit of the housing network."""

    network: HousingAudit


class OneRunLarger(OneRunTrainings):
    """One-run audit of a network of the torch engine."""

    network: OneRunNetwork


class OneRunValidity(Grid):
    """Parameters of simulations that count how often bounds from one model exceed the truth."""

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
    return part(
        HousingAudit,
        grid,
        housing,
        **_ALONE,
        epsilon=epsilon,
        every=every,
    )


def landscapes(grid: GradientCraftingGrid) -> list[Cell[Landscape]]:
    """One cell for each epsilon."""
    p = grid.single
    return swept("landscape_eps{epsilon}", Landscape, grid, p, epsilon=p.epsilons) if p else []


def simulated(grid: GradientCraftingGrid) -> list[Cell[SimulatedLandscape]]:
    """One cell for each pair of epsilon and batch size that is audited."""
    p = grid.single
    if p is None:
        return []
    return [
        Cell(
            f"landscape_eps{short(epsilon)}_B{size}",
            part(SimulatedLandscape, grid, p, epsilon=epsilon, batch_size=size),
        )
        for epsilon, size in p.audited
    ]


def distances(grid: GradientCraftingGrid) -> list[Cell[Distances]]:
    """One cell for each drift and each sampling rate."""
    p = grid.hidden
    if p is None:
        return []
    linear = p.model_copy(update={"steps": p.sampled_steps})
    return [
        *swept("hidden_beta{beta}", Distances, p, beta=p.betas),
        *swept("hidden_q{sampling_rate}", Distances, linear, sampling_rate=p.sampling_rates),
    ]


def ideal(grid: GradientCraftingGrid) -> list[Cell[IdealAudits]]:
    """One cell for each insertion period and number of models, with all epsilons.

    Those of the larger networks' audits are among them.
    """
    p = grid.ideal
    if p is None:
        return []
    asked: dict[tuple[int, int], dict[float, None]] = {}
    for audit in (cell.parameters for cell in network_audits(grid)):
        asked.setdefault((audit.every, audit.models), {})[audit.epsilon] = None
    for every, models in product(p.every, p.models):
        asked.setdefault((every, models), {}).update(dict.fromkeys(p.epsilons))
    return [
        Cell(
            f"ideal_k{every}_{models}",
            part(IdealAudits, grid, p, epsilons=tuple(epsilons), every=every, models=models),
        )
        for (every, models), epsilons in asked.items()
    ]


def one_run(grid: GradientCraftingGrid) -> list[Cell[OneRunAudits]]:
    """One cell for each epsilon and number of unused canaries."""
    p = grid.one_run
    if p is None:
        return []
    name = "onerun_idle_m{canaries}_eps{epsilon}"
    return swept(name, OneRunAudits, grid, p, epsilon=p.epsilons, canaries=p.idle)


def one_run_housing(grid: GradientCraftingGrid) -> list[Cell[OneRunHousing]]:
    """One cell for each epsilon, with all numbers of canaries in the housing network."""
    p, housing = grid.one_run, grid.housing
    if p is None or housing is None or not p.housing:
        return []
    asked = {"canaries": p.housing, "audits": p.housing_audits}
    cells = []
    for epsilon in p.epsilons:
        network = _plain(grid, housing, epsilon)
        parameters = part(OneRunHousing, grid, p, epsilon=epsilon, network=network, **asked)
        cells.append(Cell(f"onerun_housing_eps{short(epsilon)}", parameters))
    return cells


def one_run_networks(grid: GradientCraftingGrid) -> list[Cell[OneRunLarger]]:
    """One cell for each epsilon and larger network, with all its numbers of canaries."""
    p = grid.one_run
    if p is None:
        return []
    cells: list[Cell[OneRunLarger]] = []
    for name, one in p.networks.items():
        asked = {"epsilon": p.epsilons, "network": [one]}
        cells += swept(f"onerun_{name}_eps{{epsilon}}", OneRunLarger, grid, one, **asked)
    return cells


def one_run_validity(grid: GradientCraftingGrid) -> list[Cell[OneRunValidity]]:
    """One cell for each epsilon, with the numbers of unused canaries up to 1,000."""
    p = grid.one_run
    few = [m for m in p.idle if m <= 1000] if p else []
    if p is None or not few:
        return []
    asked = {"epsilon": p.epsilons, "canaries": [few], "audits": [p.validity_audits]}
    return swept("onerun_validity_eps{epsilon}", OneRunValidity, grid, **asked)
