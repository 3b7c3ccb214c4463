"""Trust in lower bounds: false claims, tightness, and the bugs that they find.

No paper, but what all of them stand on. Three studies:

* *calibration*: every estimator of ``hiddenstate.auditing`` on simulated audits of mechanisms
  whose privacy is known exactly, for several numbers of scores per data set. How often does it
  claim more than the truth, and how much does it claim?
* *detection*: bugs of DP-SGD (``estimators.bugs``), each run with and without
  its canary. How many models does the default bound need to contradict the accountant?
* *sequential*: audits that stop as soon as they refute a claim. How many models do they save?

The cells of the calibration write bounds, not scores: a hundred million scores would teach nothing
that the bounds do not say.
"""

from hiddenstate.papers.estimators import (
    cells,
    checks,
    estimates,
    figures,
    limits,
    simulations,
    tables,
)
from hiddenstate.pipeline.cells import Cell
from hiddenstate.pipeline.family import Bounds, Family, Simulate


def calibration_cost(cell: Cell[cells.Calibrated]) -> float:
    """Seconds of one core, of the bounds' own simulations and of all audits."""
    p = cell.parameters
    return sum(p.scores) * (2e-4 + 1.87e-6 * p.audits)


def detection_cost(cell: Cell[cells.Detected]) -> float:
    """Seconds of one core, of the models of all bugs."""
    return 5.2e-5 * cell.parameters.models


def sequential_cost(cell: Cell[cells.Sequential]) -> float:
    """Seconds of one core, of the null law of the last look above all."""
    return 1 + 1e-3 * cell.parameters.looks[-1]


FAMILY = Family(
    title="How far the lower bounds can be trusted",
    reference="calibration of hiddenstate.auditing",
    grid=cells.EstimatorsGrid,
    works=(
        Simulate(cells.detected, simulations.detect, cost=detection_cost),
        Bounds(cells.calibrated, simulations.calibrate, cost=calibration_cost),
        Bounds(cells.sequenced, simulations.stop, cost=sequential_cost),
    ),
    estimate=estimates.estimate,
    modules=(figures, tables, checks),
    limits=limits.limits,
)
