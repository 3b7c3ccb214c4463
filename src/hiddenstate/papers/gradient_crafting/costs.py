"""Seconds of one core that the cells of gradient_crafting take."""

from hiddenstate.papers.gradient_crafting.adversaries import kind
from hiddenstate.papers.gradient_crafting.cells import (
    Distances,
    ExpectedAudits,
    Followed,
    HousingAudit,
    IdealAudits,
    Landscape,
    NetworkAudit,
    OneRunAudits,
    OneRunHousing,
    OneRunLarger,
    OneRunValidity,
    SimulatedEnds,
    SimulatedLandscape,
)
from hiddenstate.papers.gradient_crafting.grid import OneRunNetwork
from hiddenstate.pipeline.cells import Cell
from hiddenstate.pipeline.costs import step_seconds


def expected_cost(cell: Cell[ExpectedAudits]) -> float:
    """Seconds of one core that the trainings of a cell take."""
    p = cell.parameters
    # Without the canary, without noise, and with either of two canaries.
    trainings = 4 * len(p.epsilons) * p.starts * p.orders
    return trainings * sum(map(_training_cost, p.audits))


_HOUSING_RECORD = 2.1e-8
"""Seconds of one core that a record of a step takes the housing network with 6 hidden units."""


def followed_cost(cell: Cell[Followed]) -> float:
    """Seconds of one core that following the canary's gradients takes."""
    p = cell.parameters
    return 1e-4 * p.runs * p.audit.every * p.audit.insertions


def cost(audit: HousingAudit | NetworkAudit) -> float:
    """Seconds of one core that the models of a cell take, simulated ones included."""
    simulated = sum(kind(word).simulates for word in audit.adversaries)
    trainings = audit.models * (1 + len(audit.adversaries) + 2 * simulated)
    return trainings * _training_cost(audit)


def _training_cost(audit: HousingAudit | NetworkAudit) -> float:
    return audit.every * audit.insertions * _step_cost(audit)


def _step_cost(audit: HousingAudit | NetworkAudit | OneRunNetwork) -> float:
    if isinstance(audit, HousingAudit):
        return audit.batch_size * _HOUSING_RECORD
    return step_seconds(audit.model, audit.batch_size)


def one_run_cost(cell: Cell[OneRunHousing] | Cell[OneRunLarger]) -> float:
    """Seconds of one core that the models of a cell with many canaries take."""
    p, network = cell.parameters, cell.parameters.network
    models = p.audits * (p.null_draws + len(p.canaries) + 2)
    return 2 + models * network.insertions * _step_cost(network)


def ends_cost(cell: Cell[SimulatedEnds]) -> float:
    """Seconds of one core that an audit's noiseless end points take."""
    p = cell.parameters
    return cost(p.audit.model_copy(update={"models": p.models}))


def landscape_cost(cell: Cell[Landscape]) -> float:
    """Seconds of one core that the laws of a single insertion take."""
    p = cell.parameters
    return 0.32 * len(p.batch_sizes) * (p.steps / 25) ** 1.4


def simulated_cost(cell: Cell[SimulatedLandscape]) -> float:
    """Seconds of one core that the steps of simulated runs take."""
    p = cell.parameters
    return 0.1 + 2.5e-8 * 2 * p.runs * p.repeats * p.steps


def distances_cost(cell: Cell[Distances]) -> float:
    """Seconds of one core that exact trade-off curves take."""
    return sum(0.1 + 3e-6 * steps for steps in cell.parameters.steps)


def ideal_cost(cell: Cell[IdealAudits]) -> float:
    """Seconds of one core that simulated audits take."""
    p = cell.parameters
    return len(p.epsilons) * p.audits * (3e-4 + 2.1e-7 * 2 * p.models)


def idle_cost(cell: Cell[OneRunAudits]) -> float:
    """Seconds of one core that the bounds of simulated models take."""
    p = cell.parameters
    return 0.3 + 1e-5 * p.audits * p.canaries


def validity_cost(cell: Cell[OneRunValidity]) -> float:
    """Seconds of one core that the bounds of simulated mechanisms take."""
    p = cell.parameters
    return sum(1 + 5e-7 * p.audits * canaries for canaries in p.canaries)
