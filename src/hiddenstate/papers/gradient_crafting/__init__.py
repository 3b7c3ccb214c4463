"""Tighter privacy auditing of DP-SGD in the hidden state threat model.

An adversary who sees the last iterate alone crafts the canary's gradients before training, and puts
them where the iterate shows them best. If the canary is used in every step, hiding the other
iterates does not amplify its privacy.

The paper's figures print no numbers, and what could be read of its text leaves much open. What
follows is our reconstruction:

* The network of 68 parameters is 8-6-2 with ReLU; a house is worth more than the median or not.
* Initial parameters are drawn for each model and known to the adversary ("fresh", the main
  reading), or once for all models of a repeat ("shared"), also with batches that are drawn in each
  epoch and drop the last, smaller one ("reshuffled").
* A random coordinate is drawn for each model, or one for the whole audit (a second reading). This
  decides how far below the simulated coordinate it is, more than the start does: coordinates of
  each model's own have drifts of their own, whatever the start.
* The published score takes off nothing but the start. The adversary knows more: where a training
  without noise and canary ends. With that taken off ("centred", ours) all of mu is there in the
  simulated coordinate and most of it in a random one.
* The simulation has neither noise nor canary; coordinates rank by the sum of absolute steps.
* Insertions are in the steps k, 2k, ..., and they alone are accounted, by exact Gaussian DP.
* Section 6: the landscape -B C |theta - h|, whose gradient is a threshold function of theta. At the
  midpoint threshold its last iterate keeps little more than one bit, and "tight" holds for the
  paper's reading (one point of the trade-off curve read as Gaussian DP) and not for (epsilon,
  delta). With the threshold at h* = epsilon / mu + mu / 2 the exact (epsilon, delta) is tight.

The published estimate takes the best threshold on the scores it judges, each error rate at its own
one-sided bound of 97.5 %: not valid. A valid bound stands beside every one of them.
"""

from hiddenstate.papers.gradient_crafting import (
    cells,
    checks,
    costs,
    estimates,
    figures,
    limits,
    one_run,
    simulations,
    tables,
)
from hiddenstate.papers.gradient_crafting.grid import GradientCraftingGrid
from hiddenstate.pipeline.family import Bounds, Expect, Family, Simulate, Train, late

FAMILY = Family(
    title="Tighter Privacy Auditing of DP-SGD in the Hidden State Threat Model",
    reference="arXiv 2405.14457",
    grid=GradientCraftingGrid,
    works=(
        Train(
            cells.trained,
            late("papers.gradient_crafting.networks.train"),
            size=lambda cell: (cell.parameters.models, 1),
            cost=lambda cell: costs.cost(cell.parameters),
            data=lambda cell: cells.data_of(cell.parameters),
            adversaries=lambda cell: len(cell.parameters.adversaries),
            groups=lambda cell: 1 + len(cell.parameters.adversaries),
            beside=cells.beside,
        ),
        Expect(
            cells.expected,
            late("papers.gradient_crafting.expected.expect"),
            size=cells.expected_trainings,
            cost=costs.expected_cost,
            data=lambda cell: cells.data_of(cell.parameters.audits[0]),
            groups=lambda cell: 1,
        ),
        Simulate(cells.simulated, simulations.simulate, cost=costs.simulated_cost),
        Bounds(
            cells.centred,
            late("papers.gradient_crafting.training.simulated_ends"),
            cost=costs.ends_cost,
        ),
        Bounds(
            cells.followed,
            late("papers.gradient_crafting.training.follow"),
            cost=costs.followed_cost,
        ),
        Bounds(cells.landscapes, simulations.landscape, cost=costs.landscape_cost),
        Bounds(cells.distances, simulations.distances, cost=costs.distances_cost),
        Bounds(cells.ideal, simulations.ideal, cost=costs.ideal_cost),
        Bounds(cells.one_run, one_run.idle, cost=costs.idle_cost),
        Bounds(
            cells.one_run_housing,
            late("papers.gradient_crafting.training.one_run"),
            cost=costs.one_run_cost,
        ),
        Bounds(
            cells.one_run_networks,
            late("papers.gradient_crafting.networks.one_run"),
            cost=costs.one_run_cost,
        ),
        Bounds(cells.one_run_validity, simulations.one_run_validity, cost=costs.validity_cost),
    ),
    estimate=estimates.estimate,
    modules=(*figures.TOPICS, tables, *checks.TOPICS),
    limits=limits.limits,
)
