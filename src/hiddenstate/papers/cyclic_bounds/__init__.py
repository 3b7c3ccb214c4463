"""Privacy of the last iterate in cyclically-sampled DP-SGD on nonconvex composite losses.

The paper bounds the Rényi divergence of the last iterate; nothing is trained. *Bound* cells
evaluate the bounds along one parameter each, and exact divergences where there are any. *Simulate*
cells draw: data sets on which an audit sees the swapped record, and the convex losses on which
the paper's contraction step fails.

What the reader must know of the source:

* What is judged is version 1. Version 3 (February 2025) restricts the convex limit to the case
  that no clipping is performed; the counterexample here shows that it must.
* The displayed formulas of the paper are lost to us. Where form or constants were inferred from
  its prose, captions and tables say "our reconstruction"; everything else is proved from scratch.
* Its Lipschitz constant of the clipped step (equation 12) is valid where clipping cannot turn a
  gradient: clipping inactive, dimension one, generalised linear losses. Elsewhere the constant
  ``cyclic_operator.clipped`` is needed, and it does not tend to 1 for convex losses.
* Data sets are neighbours if one record is swapped, here and nowhere else in the package.
"""

from hiddenstate.papers.cyclic_bounds import (
    bounds,
    cells,
    checks,
    estimates,
    figures,
    limits,
    simulations,
    tables,
)
from hiddenstate.pipeline.family import Bounds, Family, Simulate, takes

FAMILY = Family(
    title="Privacy of the last iterate in cyclically-sampled DP-SGD on nonconvex composite losses",
    reference="arXiv 2407.05237, version 1",
    grid=cells.CyclicBoundsGrid,
    works=(
        Simulate(cells.audits, simulations.simulate_audit, cost=takes(3)),
        Simulate(cells.counterexamples, simulations.simulate_counterexample, cost=takes(1.7)),
        Bounds(cells.formulas, bounds.formulas, cost=takes(14)),
    ),
    estimate=estimates.estimate,
    modules=(figures, tables, checks),
    limits=limits.limits,
)
