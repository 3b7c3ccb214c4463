"""To Shuffle or not to Shuffle: Auditing DP-SGD with Shuffling.

Trainings that shuffle their records report the epsilon of Poisson sampling. Here: what an adversary
finds of shuffled batches who sees all iterates, beside that claim and what is proven; and what is
left of it where the last iterate alone is released.

Of the paper's text the abstracts alone are available, so all of what follows is ours:

* The order is drawn in each epoch, or once. An epoch has equal batches and nothing is left over.
* The noise is that for which Poisson's accountant says the claimed epsilon, with the probability of
  a batch as the sampling rate and as many steps.
* Records are swapped or zeroed out, as shuffled batches compare data sets of one size. The others'
  gradients are opposite to the record's, the worst that we know: its batch then stands out by twice
  the clipping norm, and by none (swapped) or once (zeroed out) in the other world. Where the
  others' gradients sum to nothing a swapped record shows once the clipping norm with either sign:
  so does a crafted gradient in a coordinate that nothing else moves, as the networks have it.
* Simulated losses are linear. The adversary of all iterates scores by the likelihood ratio of all
  noisy sums, the adversary of the last one by its displacement. Bounds hold with 95 % confidence.
"""

from hiddenstate.papers.shuffling import (
    cells,
    checks,
    estimates,
    figures,
    limits,
    simulations,
    tables,
)
from hiddenstate.pipeline.cells import Cell
from hiddenstate.pipeline.costs import step_seconds
from hiddenstate.pipeline.family import Bounds, Family, Simulate, Train, late


def simulation_cost(cell: Cell[cells.Simulated]) -> float:
    """Seconds of one core, of the noise's calibration and of the sums."""
    p = cell.parameters
    epochs = p.epochs if p.order == "each epoch" else 1
    return 0.3 + 5e-8 * 2 * p.repeats * p.runs * epochs * p.batches


def account_cost(cell: Cell[cells.Simulated]) -> float:
    """Seconds of one core, of the noise's calibration."""
    return 0.5 + 5e-6 * cell.parameters.batches * cell.parameters.epochs


def training_cost(cell: Cell[cells.Trained]) -> float:
    """Seconds of one core, with a simulated training of each model."""
    p = cell.parameters
    return 4 * p.models * p.batches * p.epochs * step_seconds(p.model, p.batch_size)


FAMILY = Family(
    title="To Shuffle or not to Shuffle: Auditing DP-SGD with Shuffling",
    reference="arXiv 2411.10614",
    grid=cells.ShufflingGrid,
    works=(
        Simulate(cells.simulated, simulations.simulate, cost=simulation_cost),
        Bounds(cells.simulated, simulations.account, cost=account_cost),
        Train(
            cells.trained,
            late("papers.shuffling.training.train"),
            size=lambda cell: (cell.parameters.models, 1),
            cost=training_cost,
            data=lambda cell: [cell.parameters.dataset],
            adversaries=lambda cell: 2,
        ),
    ),
    estimate=estimates.estimate,
    modules=(figures, tables, checks),
    limits=limits.limits,
)
