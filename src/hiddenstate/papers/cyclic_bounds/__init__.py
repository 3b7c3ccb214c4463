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
from hiddenstate.pipeline.cells import Cell
from hiddenstate.pipeline.family import Bounds, Family, Simulate


def audit_cost(cell: Cell[cells.Audit]) -> float:
    """Seconds of one core, of the steps of all runs."""
    (data,) = cell.parameters.data
    # Beside a gradient of each coordinate; on the line most steps are drawn as one.
    step = 1.7e-7 * data.dimension if isinstance(data, cells.Logistic) else 3e-8
    batches = data.base.records / data.base.batch_size * sum(cell.parameters.passes)
    return 0.3 + 2 * cell.parameters.runs * batches * step


def counterexample_cost(cell: Cell[cells.Counterexample]) -> float:
    """Seconds of one core, of the steps of all runs."""
    p = cell.parameters
    return 0.1 + 8e-8 * 2 * p.runs * (p.expansions or p.steps) * p.passes


def formulas_cost(cell: Cell[cells.Formulas]) -> float:
    """Seconds of one core, of which quadrature takes most where passes are many."""
    p = cell.parameters
    sweeps = sum(len(values) for _, values in p.sweeps) * len(p.weak_convexities)
    tight = sum(p.tightness.passes) * p.tightness.steps_per_pass * len(p.tightness.growths)
    exact = sum(
        data.base.run(passes=n).steps * limits.nodes(data, n) ** 2
        for data in p.audit.data
        for n in p.audit.passes
    )
    return 4 + 0.02 * sweeps + 2e-6 * tight + 3e-8 * exact


FAMILY = Family(
    title="Privacy of the last iterate in cyclically-sampled DP-SGD on nonconvex composite losses",
    reference="arXiv 2407.05237, version 1",
    grid=cells.CyclicBoundsGrid,
    works=(
        Simulate(cells.audits, simulations.simulate_audit, cost=audit_cost),
        Simulate(
            cells.counterexamples, simulations.simulate_counterexample, cost=counterexample_cost
        ),
        Bounds(cells.formulas, bounds.formulas, cost=formulas_cost),
    ),
    estimate=estimates.estimate,
    modules=(figures, tables, checks),
    limits=limits.limits,
)
