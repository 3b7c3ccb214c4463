"""Privacy of the last iterate in cyclically-sampled DP-SGD on nonconvex composite losses.

The paper bounds the Rényi divergence of the last iterate; nothing is trained. *Bound* cells
evaluate the bounds along one parameter each, and exact divergences where there are any. *Score*
cells simulate: data sets on which an audit sees the swapped record, and the convex losses on which
the paper's contraction step fails.

What the reader must know of the source:

* The displayed formulas of the paper are lost to us. Where form or constants were inferred from
  its prose, captions and tables say "our reconstruction"; everything else is proved from scratch.
* Its Lipschitz constant of the clipped step (equation 12) is valid where clipping cannot turn a
  gradient: clipping inactive, dimension one, generalised linear losses. Elsewhere the constant
  ``cyclic_operator.clipped`` is needed, and it does not tend to 1 for convex losses.
* Data sets are neighbours if one record is swapped, here and nowhere else in the package.
"""

from hiddenstate.papers import Family, Figure
from hiddenstate.papers.cyclic_bounds import cells, checks, figures, tables

FAMILY = Family(
    title="Privacy of the last iterate in cyclically-sampled DP-SGD on nonconvex composite losses",
    reference="arXiv 2407.05237",
    grid=cells.CyclicBoundsGrid,
    score_cells=cells.score_cells,
    score=cells.score,
    bound_cells=cells.bound_cells,
    bound=cells.bound,
    estimate=cells.estimate,
    figures={
        "passes": Figure(
            "Epsilon against passes",
            "Theorem 4.5 (our reconstruction) for weak convexities m against plain composition of "
            "the visits, which needs no assumption. Left: losses whose gradients clipping does not "
            "turn. Right: any clipped loss, with the corrected Lipschitz constant.",
            figures.draw_passes,
        ),
        "parameters": Figure(
            "Epsilon against batch size, noise and step size",
            "Theorem 4.5 (our reconstruction) and composition. Smaller steps, larger noise and "
            "larger batches lower the bound. Right: three Lipschitz constants at the least m above "
            "0; the paper's (equation 12, our reconstruction) is valid where clipping turns no "
            "gradient.",
            figures.draw_parameters,
        ),
        "convex_limit": Figure(
            "The limit of convex losses",
            "Left: Theorem 4.5 as the weak convexity vanishes. It tends to the convex bound where "
            "clipping turns no gradient; for any clipped loss a gap stays. Right: the bound for "
            "the first of the records in one pass with batch size 1 tends to privacy "
            "amplification by iteration. Equations 12, 21 and 22: our reconstruction.",
            figures.draw_convex_limit,
        ),
        "position": Figure(
            "Rho by the position of the swapped record",
            "The bound for a record's own visits: the later its last visit, the fewer steps hide "
            "it. Dotted: Theorem 4.5 (our reconstruction), for all positions at once. Left: losses "
            "whose gradients clipping does not turn. Right: any clipped loss.",
            figures.draw_position,
        ),
        "diameter": Figure(
            "Rho by the diameter of the domain",
            "Theorem 4.4 (our reconstruction) restarts the analysis before the last step; the "
            "best restart (derived) is at most that, and at most the bound that does not use the "
            "domain. Clipping turns no gradient.",
            figures.draw_diameter,
        ),
        "tightness": Figure(
            "Exact divergence over the bounds",
            "Exact divergence of affine losses with the largest growth L a step, over each bound, "
            "for the first record of the pass. The bound by visits is attained in one pass, and "
            "for L = 1 always; with several passes and L > 1 the exact divergence saturates.",
            figures.draw_tightness,
        ),
        "constants": Figure(
            "Visible fraction and Lipschitz constants",
            "Left: the fraction of a squared shift that s noisy steps cannot hide. Right: "
            "Lipschitz constants of the step; beyond M = 3 m a clipped step in two dimensions or "
            "more expands more than the losses' weak convexity alone.",
            figures.draw_constants,
        ),
        "counterexample": Figure(
            "Convex losses whose clipped steps expand",
            "Divergences certified by simulation of clipped, convex, smooth losses in the plane "
            "(Clopper-Pearson on an event fixed in advance, confidence 1 - 1e-6 each), above the "
            "bound that takes convex steps as nonexpansive and below the corrected one.",
            figures.draw_counterexample,
        ),
        "audit": Figure(
            "Audit of cyclic DP-SGD",
            "Lower bounds on epsilon from simulated last iterates (uniform band over all "
            "thresholds, 95 % confidence each), the exact value on the line, and the upper "
            "bounds. The swapped record is the first of the pass.",
            figures.draw_audit,
        ),
    },
    tables={
        "table1_2": Figure(
            "Table 1.2 as numbers",
            "Rho of the methods that the paper's Table 1.2 compares (its formulas: our "
            "reconstruction), with the corrected bound and composition.",
            tables.tabulate_table1_2,
        ),
        "theorems": Figure(
            "Every bound",
            "Rho and epsilon of every theorem and corollary with each Lipschitz constant. Those "
            "with the constants 'unclipped' and 'reconstructed', equation 22, PABI and Corollary "
            "C.2 hold where clipping turns no gradient.",
            tables.tabulate_theorems,
        ),
        "counterexample": Figure(
            "Certified divergences",
            "Nats; confidence 1 - 1e-6 each.",
            tables.tabulate_counterexample,
        ),
        "audit": Figure(
            "Audits",
            "Epsilon: audited lower bound (95 % confidence), exact value, and upper bounds.",
            tables.tabulate_audit,
        ),
    },
    checks={
        "convex_limit": checks.convex_limit_check("reconstructed"),
        "convex_limit_clipped": checks.convex_limit_check("clipped"),
        "pabi": checks.check_pabi,
        "linear_in_passes": checks.check_linear_in_passes,
        "parameters": checks.check_parameters,
        "theorem_4_3": checks.check_theorem_4_3,
        "composition_dominates": checks.check_composition_dominates,
        "quadratic_programme": checks.check_quadratic_programme,
        "nonexpansive": checks.check_nonexpansive,
        "corrected": checks.check_corrected,
        "tightness": checks.check_tightness,
        "audit": checks.check_audit,
    },
)
