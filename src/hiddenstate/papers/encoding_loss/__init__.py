"""It's Our Loss: no privacy amplification for hidden-state DP-SGD with non-convex loss.

A loss writes the log-likelihood ratio of every step into the parameter, so the last iterate is
as distinguishable as all iterates together. Cells are at a given noise multiplier (Figure 1) or at
a given epsilon (Figure 2), each run with the paper's encoding and with a sound one.

Readings of what the paper leaves open, all of them ours:

* delta is 1e-5. The text names one of Figure 1's three mechanisms (noise multiplier 0.5, sampling
  rate 0.01, 1,024 steps); the other two span the range of Figure 2.
* Algorithm 2 as printed compares the curves at every threshold. A threshold without a single false
  positive contradicts every epsilon, and one with few contradicts most ("every threshold"). The
  main reading ("algorithm 2") keeps thresholds with at least 1 % of errors of both kinds.
* Even so it takes the largest of thousands of noisy comparisons, which pushes it up. The
  "closest curve" estimate, the epsilon whose curve is nearest in Lévy distance, has no such push.
  Neither is a bound. The lower bound is: the default rule of ``hiddenstate.auditing`` at 95 % on
  the scores of all repeats at once, which are independent runs of one mechanism, with the curves
  of this direction.
"""

from hiddenstate.papers.encoding_loss import (
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


def simulation_cost(cell: Cell[cells.Simulated]) -> float:
    """Seconds of one core, of the steps of all runs."""
    p = cell.parameters
    return 0.3 + 1.5e-7 * 2 * p.runs * p.repeats * p.mechanism.steps


def account_cost(cell: Cell[cells.Accounted]) -> float:
    """Seconds of one core, of the curves of each epsilon that is searched."""
    return 0.2 + 0.115 * len(cell.parameters.epsilons)


FAMILY = Family(
    title="It's Our Loss: No Privacy Amplification for Hidden State DP-SGD With Non-Convex Loss",
    reference="arXiv 2407.06496",
    grid=cells.EncodingLossGrid,
    works=(
        Simulate(cells.simulated, simulations.simulate, cost=simulation_cost),
        Bounds(cells.accounted, simulations.account, cost=account_cost),
    ),
    estimate=estimates.estimate,
    modules=(figures, tables, checks),
    limits=limits.limits,
)
