"""Nearly tight black-box auditing of differentially private machine learning.

DP-SGD's guarantee holds for any initial parameters, so an auditor may choose bad ones: after
pre-training, ordinary records have small gradients, and the target record stands out.

What the text leaves open, and what is done here:

* The first half of the training data is public (pre-training), the second private. An audit with n
  records has n - 1 private ones, drawn for each repeat, and the target in the world "in".
* Pixels are standardised by each channel's mean and deviation over the public half. The blank
  target is zero after that, a uniform grey, and has label 9.
* The step per record is the same for every n, as in the text, and in both worlds.
* Repeats have initial parameters of their own: a Xavier draw, and the pre-training from it.
* Average case means 0 epochs of pre-training.
* The text gives no schedule for pre-training a last layer; ours is in the scale files.

The estimates are the published ones: the best threshold on the same scores, each error rate at
its own one-sided 95 % bound, which is not valid. A valid bound stands beside every one of them. A
"two-sided" estimate, the same with two-sided intervals, is a reading made after the results were
seen.
"""

from hiddenstate.papers import Family, Figure
from hiddenstate.papers.worst_case_init import cells, checks, estimates, figures

_READING = (
    "Squares: the published estimate, mean and standard deviation over the repeats; it takes the "
    "best threshold on the same scores and is no valid bound. Triangles: a valid bound at 95 % "
    "confidence (averaged errors), mean over the repeats. Dashed: the theoretical epsilon. Grey: "
    "what 90 % of audits publish, with as many models, if everything leaks. Open circles: stated "
    "by the paper for the same data and model."
)


def shown(grid: cells.WorstCaseInitGrid) -> set[str]:
    """Figures and tables that the grid has the cells for."""
    found = set(cells.figures(grid))
    if "figure1" in found:
        found |= {"table1", "accuracy"}
    return found | {"audits"}


FAMILY = Family(
    title="Nearly tight black-box auditing of differentially private machine learning",
    reference="arXiv 2405.14106",
    grid=cells.WorstCaseInitGrid,
    train_cells=cells.train_cells,
    train=cells.train,
    initialise=cells.initialise,
    data=cells.data_of,
    cost=cells.cost,
    bound_cells=estimates.bound_cells,
    bound=estimates.bound,
    estimate=estimates.estimate,
    shown=shown,
    figures={
        "figure1": Figure(
            "Figure 1: average-case and worst-case initial parameters",
            f"Audits of models trained from random and from pre-trained parameters. {_READING}",
            figures.draw_figure1,
        ),
        "figure2": Figure(
            "Figure 2: pre-training, gradient norms and leakage",
            "The more epochs of pre-training, the smaller the private records' clipped gradients "
            f"in the first step, and the more the target record stands out. {_READING}",
            figures.draw_figure2,
        ),
        "figure3": Figure(
            "Figure 3: number of records",
            f"Worst-case initial parameters, n records with the target. {_READING}",
            figures.draw_figure3,
        ),
        "figure4": Figure(
            "Figure 4: clipping norm",
            f"Worst-case initial parameters, clipping norm C. {_READING}",
            figures.draw_figure4,
        ),
        "figure5": Figure(
            "Figure 5: last layer only",
            "DP-SGD trains the last layer on the features of a frozen backbone; the target is "
            f"ClipBKD's. {_READING}",
            figures.draw_figure5,
        ),
        "figure6": Figure(
            "Figure 6: convergence",
            "Test accuracy by steps and learning rate; the noise is calibrated anew for each "
            "number of steps, so that all points have the same epsilon. Open circles: stated by "
            "the paper for the same data and model.",
            figures.draw_figure6,
        ),
        "figure7": Figure(
            "Figure 7: last layer, clipping norm and number of records",
            f"As Figure 5, worst case. {_READING}",
            figures.draw_figure7,
        ),
    },
    tables={
        "table1": Figure(
            "Table 1: accuracy in the average case",
            "Test accuracy in percent, mean over models and repeats.",
            figures.tabulate_table1,
        ),
        "accuracy": Figure(
            "Accuracy in the worst case",
            "Test accuracy in percent, mean over models and repeats.",
            figures.tabulate_accuracy,
        ),
        "audits": Figure(
            "Every audit",
            "Empirical epsilon as published (mean ± standard deviation and maximum over the "
            "repeats), what a perfect audit publishes on average, the same recipe with two-sided "
            "intervals (a reading made afterwards), and the valid 95 % bound. Separation: distance "
            "of the two worlds' mean scores in standard deviations, and what it is at most if "
            "everything leaks.",
            figures.tabulate_audits,
        ),
    },
    checks={
        "ordering": checks.check_ordering,
        "last_layer_gap": checks.check_last_layer_gap,
        "pretraining": checks.check_pretraining,
        "records": checks.check_records,
        "clipping": checks.check_clipping,
        "last_layer": checks.check_last_layer,
        "last_layer_factors": checks.check_last_layer_factors,
        "valid": checks.check_valid,
        "stated_figure1_mnist": checks.stated_check("figure1", "mnist"),
        "stated_figure1_cifar10": checks.stated_check("figure1", "cifar10"),
        "stated_figure2": checks.stated_check("figure2", "mnist"),
        "stated_figure3_mnist": checks.stated_check("figure3", "mnist"),
        "stated_figure3_two_sided": checks.stated_check("figure3", "mnist", "two-sided"),
        "stated_figure3_cifar10": checks.stated_check("figure3", "cifar10"),
        "stated_figure5": checks.stated_check("figure5", "cifar10_last_layer"),
    },
)
