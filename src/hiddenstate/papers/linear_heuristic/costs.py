"""Seconds of one core that the trainings of linear_heuristic take."""

from hiddenstate.papers.linear_heuristic.cells import TrainedAudit
from hiddenstate.pipeline.costs import step_seconds


def cost(audit: TrainedAudit) -> float:
    """Seconds of one core that the models of a cell take."""
    records = audit.records * audit.sampling_rate * audit.views
    return 2 * audit.models * audit.steps * step_seconds(audit.model, records)
