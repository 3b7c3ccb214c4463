"""Nearly tight black-box auditing of differentially private machine learning.

DP-SGD's guarantee holds for any initial parameters, so an auditor may choose bad ones: after
pre-training, ordinary records have small gradients, and the canary stands out.

What the text leaves open, and what is done here:

* The first half of the training data is public (pre-training), the second private. An audit with n
  records has n - 1 private ones, drawn for each repeat, and the canary in the world "in".
* Pixels are standardised by each channel's mean and deviation over the public half. The blank
  canary is zero after that, a uniform grey, and has label 9.
* The step per record is the same for every n, as in the text, and in both worlds.
* Repeats have initial parameters of their own: a Xavier draw, and the pre-training from it.
* Average case means 0 epochs of pre-training.
* The accuracies of Figure 6 are of models trained without the canary.
* The text gives no schedule for pre-training a last layer; ours is in the scale files.

The estimates are the published ones: the best threshold on the same scores, each error rate at
its own one-sided 95 % bound, which is not valid. A valid bound stands beside every one of them. A
"two-sided" estimate, the same with two-sided intervals, is a reading made after the results were
seen.
"""

from dataclasses import replace

from hiddenstate.papers.worst_case_init import (
    cells,
    checks,
    costs,
    estimates,
    figures,
    limits,
    simulations,
    tables,
)
from hiddenstate.papers.worst_case_init.grid import WorstCaseInitGrid
from hiddenstate.pipeline.family import Bounds, Expect, Family, Start, Train, late

_START = Start(
    cells.start_of,
    late("papers.worst_case_init.starts.initialise"),
    cost=lambda cell: costs.start_cost(cell.parameters),
    data=lambda cell: cells.data_of(cell.parameters),
)

FAMILY = Family(
    title="Nearly tight black-box auditing of differentially private machine learning",
    reference="arXiv 2405.14106",
    grid=WorstCaseInitGrid,
    works=(
        Train(
            cells.trained,
            late("papers.worst_case_init.training.train"),
            size=lambda cell: (cell.parameters.models, len(cell.parameters.start.repeats)),
            cost=lambda cell: costs.cost(cell.parameters),
            data=lambda cell: cells.data_of(cell.parameters.start),
            groups=lambda cell: len(cell.parameters.worlds),
            beside=cells.beside,
            start=_START,
        ),
        Expect(
            cells.expected,
            late("papers.worst_case_init.training.expect"),
            size=lambda cell: (cell.parameters.pairs, 1),
            cost=lambda cell: costs.expected_cost(cell.parameters),
            data=lambda cell: cells.data_of(cell.parameters.audit.start),
            start=replace(_START, of=cells.start_of_expected),
        ),
        Bounds(
            cells.ideal, simulations.simulate, cost=lambda cell: costs.ideal_cost(cell.parameters)
        ),
    ),
    estimate=estimates.estimate,
    modules=(figures, tables, *checks.TOPICS),
    limits=limits.limits,
)
