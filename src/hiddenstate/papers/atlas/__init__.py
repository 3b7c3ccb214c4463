"""Every bound of the package on common settings: how much does hiding the iterates buy?

No paper: what they say together. For each setting: what composition proves of all
iterates, what holds of the last one under assumptions, losses whose last iterate is known exactly,
simulated audits, and the nearest audits that were trained. ``hiddenstate atlas`` computes the same
rows for a user's own setting.

The bounds are ``hiddenstate.atlas``'s, of which this family shows common settings. Readings, all of
them ours:

* Trained audits are of the settings that they were trained at. The one of each kind whose
  accountant's epsilon is nearest is shown, of each audit the first repeat, and restated at the
  setting's delta, which Gaussian differential privacy allows.
* The average-case audit is of random initial parameters: of worst_case_init without pre-training,
  or the loss-based baseline of gradient_crafting.
"""

from hiddenstate.papers.atlas import (
    bounds,
    cells,
    checks,
    estimates,
    figures,
    limits,
    released,
    tables,
)
from hiddenstate.pipeline.cells import Cell
from hiddenstate.pipeline.family import Bounds, Family


def released_cost(cell: Cell[cells.Released]) -> float:
    """Seconds of one core, of the composed periods and of the steps that runs draw."""
    p = cell.parameters
    return 3 + 2.5e-7 * 2 * p.runs * p.steps


FAMILY = Family(
    title="Every bound on common settings",
    reference="the papers together",
    grid=cells.AtlasGrid,
    works=(
        Bounds(cells.bounded, bounds.bound, cost=lambda cell: 2.0 * len(cell.parameters.settings)),
        Bounds(cells.released, released.released, cost=released_cost),
    ),
    estimate=estimates.estimate,
    modules=(figures, tables, checks),
    limits=limits.limits,
)
