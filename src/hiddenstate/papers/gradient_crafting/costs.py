"""Seconds of one core that the cells of gradient_crafting take."""

from hiddenstate.papers.gradient_crafting.adversaries import kind
from hiddenstate.papers.gradient_crafting.cells import (
    ExpectedAudits,
    HousingAudit,
    NetworkAudit,
    OneRunHousing,
    OneRunLarger,
    SimulatedEnds,
)
from hiddenstate.pipeline.cells import Cell
from hiddenstate.pipeline.costs import step_seconds


def expected_cost(cell: Cell[ExpectedAudits]) -> float:
    """Seconds of one core that the trainings of a cell take."""
    p = cell.parameters
    models = p.starts * p.orders // 2  # without an adversary, of whose two one is trained
    return sum(cost(audit.model_copy(update={"models": models})) for audit in p.audits)


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
