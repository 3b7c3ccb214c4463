"""Seconds of one core that the cells of worst_case_init take."""

from hiddenstate.papers.worst_case_init.cells import (
    TESTED,
    AuditParameters,
    ExpectedParameters,
    IdealParameters,
    StartParameters,
)
from hiddenstate.papers.worst_case_init.grid import Stage
from hiddenstate.pipeline import runnable
from hiddenstate.pipeline.costs import BACK, gradient_seconds, step_seconds


def cost(audit: AuditParameters) -> float:
    """Seconds of one core that the models of a cell take."""
    each = len(audit.worlds) * len(audit.start.repeats)
    if audit.start.trains == "last layer":
        return each * audit.models * audit.steps * step_seconds("last layer", audit.records)
    trained = audit.models * audit.steps * step_seconds(audit.start.model, audit.records)
    # A test set is about a third of the private records, and has no kernel of its own.
    tested = min(audit.models, TESTED) * audit.private / 3 * 4 * gradient_seconds(audit.start.model)
    return each * (trained + tested)


def expected_cost(p: ExpectedParameters) -> float:
    """Seconds of one core that an expected audit takes."""
    audit, passes = p.audit, 2 if p.pass_back is None else 4  # with and without the canary
    pair = 2 * audit.steps * step_seconds(audit.start.model, audit.records)
    records = min(p.pass_back or audit.records, audit.records)
    back = BACK * passes * audit.steps * records * gradient_seconds(audit.start.model)
    return p.pairs * (pair + back)


def start_cost(start: StartParameters) -> float:
    """Seconds of one core that initial parameters take."""
    stages = [s for s in start.backbone + start.stages if isinstance(s, Stage)]
    gradient = gradient_seconds(start.model)
    # Beside three times the kernel's time each mini-batch takes some milliseconds.
    seen = (s.epochs * _records(s) * (3 * gradient + 3e-3 / s.batch_size) for s in stages)
    return len(start.repeats) * sum(seen)


def ideal_cost(p: IdealParameters) -> float:
    """Seconds of one core that simulated audits take."""
    return 0.05 + 8e-7 * p.audits * p.models


def _records(stage: Stage) -> int:
    """Records of an epoch; files of the user's own are taken to have as many as CIFAR-10."""
    name = stage.dataset.removeprefix("raw:")
    _, records = runnable.DATA.get(name, runnable.DATA["cifar10"])
    return records // 2 if stage.half else records
