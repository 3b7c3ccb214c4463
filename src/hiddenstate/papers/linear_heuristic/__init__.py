"""The Last Iterate Advantage: empirical auditing and principled heuristic analysis of DP-SGD.

The heuristic pretends that losses are linear. Here: the heuristic against its baselines (Figure 1),
the regularisers that beat it (sections 4.1 to 4.3, Figure 5), audits by gradient canaries among
zero gradients (Figure 3) and by a malicious data set (Figure 6), and the accounting columns of
Table 1. All of it runs at the paper's own counts and, where the text states them, parameters,
because every simulation has an exact reduction: see ``dpsgd.linear.projections`` and
``adversaries.repeaters`` for the proofs. What needs trained models runs at the scale's own:
gradient canaries among natural records (Figure 2), mislabelled records (Figure 4), and the
accuracies and empirical epsilons of Table 1.

Readings of what the paper leaves open, all of them ours:

* Figure 1a: noise multiplier 5/sqrt(T); its axis reads T = 1/q = 25/sigma^2. Figure 1b holds the
  standard epsilon at 10, the end of its axis; Figures 3 and 6 at 8, as in the training set-up.
* Figure 5: the grid of steps and sampling rates.
* Figures 3 and 6: the estimator of Nasr et al. 2023 takes the best of all thresholds, with
  Clopper-Pearson intervals of 95 % (2.5 % a tail), and reports the epsilon of the least noise that
  fits. "As published" does the same; it chooses on the scores it judges and is no bound. Beside it
  stands one that is: the best of all thresholds within a band that holds for all of them.
* Which trade-off functions the noise is matched to decides what an estimate means. Figure 6 reads
  all iterates out of the last one, so those of composition are right. In Figure 3 the last iterate
  is a sum and those of the heuristic are right; composition's would extrapolate along the wrong
  curve, and at sampling rate 0.01 would exceed the truth: the table shows by how much.
* Figure 6: constants and signs of the repeaters, see ``adversaries.repeaters``. Algorithm 3 keeps
  one bit a step; its threshold is chosen beforehand, for the largest exact epsilon at a delta that
  the runs can resolve. The analog variant is ours.
* Figures 2 and 4, Table 1: the text gives one gradient canary, "all but a single index", and one
  mislabelled record an audit: both are drawn once for a data set. The gradient is sampled like a
  record; its score is its coordinate of the last iterate, less that of the initial parameters,
  which are drawn for each model. The record's is its loss. It is a training image with a wrong
  label, in its own stead. Blank records are zero as the model sees them, all with the label that
  the canary's image truly has: once that one is learnt their gradients vanish. The sampling rate
  of Figure 4 is the training set-up's; the canary of Table 1 is the mislabelled record.
* What so few models show is less than what there is: beside each estimate stands what the same
  estimator finds of as many models whose losses are linear.
* Expected audits of trained models are ours: linearised along single trajectories, by an
  experimenter who knows the noise. One adversary knows start and batches, and one, like the
  paper's, knows neither. They bound and judge nothing.
* Table 1: the paper gives no steps and no noise multipliers. The first row's are recalled from De
  et al. 2022; the others are the ones at which both columns come out as printed.
"""

from hiddenstate.papers.linear_heuristic import (
    bounds,
    cells,
    checks,
    costs,
    estimates,
    expected_cells,
    figures,
    ideal,
    limits,
    simulations,
    tables,
)
from hiddenstate.papers.linear_heuristic.grid import (
    AuditCurves,
    AuditRepeats,
    AuditRuns,
    HistoryCurves,
    HistoryRuns,
)
from hiddenstate.pipeline.family import Bounds, Expect, Family, Simulate, Train, late, takes

FAMILY = Family(
    title="The Last Iterate Advantage: Empirical Auditing and Principled Heuristic Analysis of "
    "Differentially Private SGD",
    reference="arXiv 2410.06186",
    grid=expected_cells.ExpectingGrid,
    works=(
        *(
            Simulate(cells.audited(a, AuditRuns), simulations.simulate(a), cost=getattr(costs, a))
            for a in simulations.ATTACKS
        ),
        Simulate(
            cells.keeps_history(HistoryRuns), simulations.simulate_history, cost=costs.history_runs
        ),
        Bounds(cells.figure1("a"), bounds.figure1a, cost=costs.figure1a),
        Bounds(cells.figure1("b"), bounds.figure1b, cost=costs.figure1b),
        Bounds(cells.figure1("c"), bounds.figure1c, cost=costs.figure1c),
        Bounds(cells.quadratic, bounds.quadratic_regulariser, cost=costs.quadratic),
        Bounds(cells.schedules, bounds.schedules, cost=costs.schedules),
        Bounds(cells.optimisers, bounds.optimisers, cost=costs.optimisers),
        Bounds(cells.figure5, bounds.figure5, cost=costs.figure5),
        Bounds(cells.keeps_history(HistoryCurves), bounds.history_regulariser, cost=costs.history),
        Bounds(cells.audited("audits", AuditCurves), bounds.audits, cost=costs.curves),
        Bounds(
            cells.audited("repeated", AuditRepeats),
            ideal.repeated,
            cost=costs.repeated,
        ),
        Bounds(cells.table1, bounds.table1, cost=takes(5)),
        Train(
            cells.trained,
            late("papers.linear_heuristic.training.train"),
            size=lambda cell: (cell.parameters.models, 1),
            cost=costs.training,
            data=lambda cell: [cell.parameters.dataset],
        ),
        Expect(
            expected_cells.expected,
            late("papers.linear_heuristic.expected.expect"),
            size=lambda cell: (cell.parameters.starts * len(cell.parameters.trainings), 1),
            groups=lambda cell: 1,
            cost=lambda cell: expected_cells.cost(cell.parameters),
            data=lambda cell: sorted({t.dataset for t in cell.parameters.trainings}),
        ),
        Bounds(cells.trained_curves, bounds.trained, cost=costs.trained_curves),
    ),
    estimate=estimates.estimate,
    modules=(figures, tables, *checks.TOPICS),
    limits=limits.limits,
)
