"""Seconds of one core that the cells of linear_heuristic take, as fitted to measured ones."""

from hiddenstate.papers.linear_heuristic.cells import TrainedAudit, TrainedCurves
from hiddenstate.papers.linear_heuristic.grid import (
    AuditCurves,
    AuditRepeats,
    AuditRuns,
    Figure1,
    Figure5,
    HistoryCurves,
    HistoryRuns,
    Optimisers,
    Quadratic,
    Schedules,
)
from hiddenstate.pipeline.cells import Cell
from hiddenstate.pipeline.costs import step_seconds

_SCORE, _STEP = 2e-7, 2.5e-8
"""Of a run's score, and of each step that is drawn for it."""
_LONG = 20_000
"""Steps of which composition takes twice the time that few steps take."""


def training(cell: Cell[TrainedAudit]) -> float:
    """Models of both data sets."""
    p = cell.parameters
    records = p.records * p.sampling_rate * p.views
    return 2 * p.models * p.steps * step_seconds(p.model, records)


def gradient(cell: Cell[AuditRuns]) -> float:
    """Calibrated noise, and a score of each run."""
    p = cell.parameters
    return 1 + len(p.steps) * (0.25 + 2 * p.runs * _SCORE)


def bits(cell: Cell[AuditRuns]) -> float:
    """As ``gradient``, and a threshold for each number of steps."""
    return gradient(cell) + sum(0.3 + 2e-5 * steps for steps in cell.parameters.steps)


def analog(cell: Cell[AuditRuns]) -> float:
    """As ``gradient``, and every step of each run."""
    return gradient(cell) + 2 * cell.parameters.runs * sum(cell.parameters.steps) * _STEP


def history_runs(cell: Cell[HistoryRuns]) -> float:
    """Every step of each run, for each growth."""
    p = cell.parameters
    return 0.3 + 2 * p.runs * len(p.growths) * (p.steps * _STEP + _SCORE)


def history(cell: Cell[HistoryCurves]) -> float:
    """A composition of each growth, and curves."""
    p = cell.parameters
    return (0.5 + 0.5 * len(p.growths) + 0.018 / p.resolution) * (1 + p.steps / _LONG)


def figure1a(cell: Cell[Figure1]) -> float:
    """Composed full batches take longer by their steps."""
    steps = cell.parameters.constant.steps
    return 0.025 * len(steps) + 1.5e-4 * sum(steps)


def figure1b(cell: Cell[Figure1]) -> float:
    """A calibration each."""
    steps = cell.parameters.calibrated.steps
    return sum(0.27 + 5e-6 * n for n in steps)


def figure1c(cell: Cell[Figure1]) -> float:
    """Compositions, and the heuristic of every number of steps."""
    p = cell.parameters
    return sum(0.08 + 5e-6 * n for n in p.fixed.steps) + 5e-5 * p.every_step_up_to


def quadratic(cell: Cell[Quadratic]) -> float:
    """The theorems, and a law of up to 2^12 shifts each."""
    p = cell.parameters
    return 1.5 + p.points * (0.003 + 1e-6 * 2 ** min(p.steps, 12))


def schedules(cell: Cell[Schedules]) -> float:
    """A search of as many evaluations as there are steps, each of 2^steps shifts."""
    steps = cell.parameters.steps
    return sum(n * (0.37 + 0.0057 * 2**n) for n in steps)


def optimisers(cell: Cell[Optimisers]) -> float:
    """Brackets of each optimiser, and a matrix of the steps."""
    p = cell.parameters
    each = (min(n, 30) / 30 * 0.3 + 5e-5 * n for n in p.steps)
    return (5 + len(p.schedules)) * sum(each)


def figure5(cell: Cell[Figure5]) -> float:
    """A law of up to 2^12 shifts for each setting."""
    p = cell.parameters
    each = sum(0.012 + 3e-6 * 2 ** min(n, 12) for n in p.steps) + 2.4e-5 * max(p.steps)
    return len(p.sampling_rates) * each


def curves(cell: Cell[AuditCurves]) -> float:
    """Two families of curves for each number of steps."""
    p = cell.parameters
    return sum((1.5 + 0.02 / p.resolution) * (1 + n / _LONG) for n in p.steps)


def repeated(cell: Cell[AuditRepeats]) -> float:
    """Curves of the heuristic, and estimates of independent audits, whose scores are sorted."""
    p = cell.parameters
    return len(p.steps) * (0.5 + 0.01 / p.resolution + p.repeats * (0.01 + 1.4e-6 * 2 * p.runs))


def trained_curves(cell: Cell[TrainedCurves]) -> float:
    """As ``curves``, and as many simulated audits."""
    p = cell.parameters
    audits = 3e-7 * 2 * p.ideal_audits * p.models
    return (0.6 + 0.02 / p.resolution) * (1 + p.steps / _LONG) + audits
