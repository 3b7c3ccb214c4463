"""Accuracies of single models, by steps and learning rate or over Table 1."""

from itertools import pairwise

import numpy as np
import pandas as pd

from hiddenstate.papers.worst_case_init.checks.shared import audits_of, with_all_records
from hiddenstate.papers.worst_case_init.stated import STATED, stated
from hiddenstate.papers.worst_case_init.summaries import either
from hiddenstate.pipeline.estimates import select
from hiddenstate.pipeline.evidence import Estimate, Evidence, Stated, Within, mean
from hiddenstate.pipeline.family import Lacking, check, needed

TESTED = 10_000
"""Images of the test sets of MNIST and of CIFAR-10."""


def _by_steps(estimates: pd.DataFrame) -> pd.DataFrame:
    """Figure 6: the accuracy of a model of each task, learning rate and number of steps.

    Of one model it has the error of its test images.
    """
    found = [
        {**at[["task", "learning_rate", "steps"]], "accuracy": float(values.mean())}
        for at, values in audits_of(estimates, "figure6", "accuracy")
    ]
    rows = needed(pd.DataFrame(found)).sort_values("steps")
    accuracies = [
        Estimate(one, float(np.sqrt(one * (1 - one) / TESTED))) for one in rows["accuracy"]
    ]
    return rows.assign(accuracy=accuracies)


@check
def accuracy_steps(estimates: pd.DataFrame) -> Evidence:
    """With learning rates of 2 and 4 accuracy rises from each number of steps to the next."""
    rows = select(_by_steps(estimates), learning_rate=[2.0, 4.0])
    items = [
        Within(
            f"accuracy with {after.steps:g} less that with {before.steps:g} steps, {task}, "
            f"learning rate {rate:g}",
            after.accuracy - before.accuracy,
            low=0,
            reason="increase",
        )
        for (task, rate), line in rows.groupby(["task", "learning_rate"])
        for before, after in pairwise(line.itertuples())
    ]
    if not items:
        raise Lacking
    return Evidence(items, "One model each, with the error of its test images.")


@check
def learning_rate_10(estimates: pd.DataFrame) -> Evidence:
    """With the most steps a learning rate of 10 gives less accurate models than 4."""
    rows = _by_steps(estimates)
    items = []
    for task, part in rows.groupby("task"):
        last = part[part["steps"] == part["steps"].max()].set_index("learning_rate")["accuracy"]
        if {4.0, 10.0} <= set(last.index):
            what = f"accuracy with learning rate 10 less that with 4, {task}"
            items.append(Within(what, last[10.0] - last[4.0], high=0, reason="poor"))
    if not items:
        raise Lacking
    return Evidence(items, "One model each, with the error of its test images.")


@check
def figure6_accuracy(estimates: pd.DataFrame) -> Evidence:
    """CIFAR-10's accuracies after 1,000 steps; the rival is that of the audited models."""
    rows = _by_steps(estimates).set_index(["task", "steps", "learning_rate"])["accuracy"]
    audited = float(stated("figure1", "cifar10", "accuracy", epsilon=10.0)["value"].iloc[0])
    items = []
    for row in select(STATED, figure="figure6", quantity="accuracy").itertuples():
        if (row.task, row.steps, row.learning_rate) not in rows.index:
            raise Lacking
        found = rows[row.task, row.steps, row.learning_rate]
        # The paper's is of one model, too.
        printed = Estimate(row.value, found.error)
        what = f"accuracy after {row.steps:,.0f} steps, learning rate {row.learning_rate:g}"
        items.append(Stated(what, found, printed, 0.0005, audited, digits=3))
    return Evidence(items, "One model each, with the error of its test images on both sides.")


@check
def table1_mnist(estimates: pd.DataFrame) -> Evidence:
    """Accuracies of models of all records in the average case, over Table 1's four epsilons."""
    models = _single_models(estimates, "average")
    rival = stated("figure1", "mnist", "accuracy", case="worst")
    return _accuracies(*models, rival, "average case")


@check
def accuracy_worst_mnist(estimates: pd.DataFrame) -> Evidence:
    """Accuracies of models of all records in the worst case, at the four epsilons."""
    models = _single_models(estimates, "worst")
    rival = stated("figure1", "mnist", "accuracy", case="average")
    return _accuracies(*models, rival, "worst case")


@check
def accuracy_clipping(estimates: pd.DataFrame) -> Evidence:
    """Accuracies of models of all records at a clipping norm of 10; the rival is that at 1."""
    models = _single_models(estimates, "worst", clipping_norm=10.0)
    rival = stated("figure1", "mnist", "accuracy", case="worst")
    return _accuracies(*models, rival, "worst case, C = 10")


def _accuracies(
    found: dict[float, float], printed: pd.Series, rival: pd.DataFrame, what: str
) -> Evidence:
    """The mean over the four epsilons, with the error by which single models scatter about it."""
    off = mean([found[e] - printed[e] for e in printed.index])
    both = Estimate(100 * (printed.mean() + off.value), 100 * off.error, off.freedom)
    listed = ", ".join(
        f"{100 * found[e]:.1f} (paper: {100 * printed[e]:.1f})" for e in printed.index
    )
    return Evidence(
        [
            Stated(
                f"mean accuracy in %, {what}",
                both,
                Estimate(100 * printed.mean(), 0.0),
                rounding=0.05,
                rival=100 * rival["value"].mean(),
            )
        ],
        f"At epsilon 1, 2, 4 and 10: {listed} %.",
    )


@check
def accuracy_95(estimates: pd.DataFrame) -> Evidence:
    """The least accurate of the models of all records, in the average case."""
    found, printed = _single_models(estimates, "average")
    off = mean([found[e] - printed[e] for e in printed.index])
    # One model has the deviation by which the four scatter about the printed values.
    sd = off.error * np.sqrt(len(printed))
    least = min(found, key=lambda epsilon: found[epsilon])
    accuracy = Estimate(100 * found[least], 100 * sd, off.freedom)
    what = f"accuracy in %, average case, epsilon {least:g}"
    return Evidence(
        [Within(what, accuracy, low=95, reason="95 % for all")],
        f"The least accurate of {len(found)} models, one at each epsilon.",
    )


def _single_models(
    estimates: pd.DataFrame, case: str, clipping_norm: float = 1.0
) -> tuple[dict[float, float], pd.Series]:
    """Accuracies of models of all records of MNIST by epsilon, ours and the printed ones."""
    single, figure = ("table1", "figure1")
    if clipping_norm != 1:
        single, figure = ("figure4_accuracies", "figure4")
    levels = {"task": "mnist", "case": case, "clipping_norm": clipping_norm}
    models = audits_of(estimates, either(estimates, single, figure), "accuracy", **levels)
    found = {at["epsilon"]: float(values.mean()) for at, values in with_all_records(models)}
    printed = stated(figure, "mnist", "accuracy", case=case).set_index("epsilon")["value"]
    if set(printed.index) - set(found):
        raise Lacking
    return found, printed
