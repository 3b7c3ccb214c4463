"""Accuracies of single models, by steps and learning rate or over Table 1."""

from itertools import pairwise

import numpy as np
import pandas as pd

from hiddenstate.papers.worst_case_init.checks.shared import audits_of, with_all_records
from hiddenstate.papers.worst_case_init.stated import STATED, stated
from hiddenstate.papers.worst_case_init.summaries import either
from hiddenstate.pipeline.estimates import select
from hiddenstate.pipeline.evidence import Estimate, Open, Stated, Within, mean
from hiddenstate.pipeline.family import Found, Lacking, check, needed

TESTED = 10_000
"""Images of the test sets of MNIST and of CIFAR-10."""
COMPARABLE = 0.05
"""Difference of accuracies that are comparable; a limit of ours."""


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
def accuracy_steps(estimates: pd.DataFrame) -> Found:
    """With learning rates of 2 and 4 accuracies are comparable, rise, and end as printed."""
    rows = select(_by_steps(estimates), learning_rate=[2.0, 4.0])
    if set(rows["learning_rate"]) < {2.0, 4.0}:
        raise Lacking
    for (task, rate), line in rows.groupby(["task", "learning_rate"]):
        for before, after in pairwise(line.itertuples()):
            yield Within(
                f"accuracy with {after.steps:g} less that with {before.steps:g} steps, {task}, "
                f"learning rate {rate:g}",
                after.accuracy - before.accuracy,
                low=0,
                reason="increase",
            )
    pairs = rows.pivot(index=["task", "steps"], columns="learning_rate", values="accuracy")
    for (task, steps), pair in pairs.dropna().iterrows():
        yield Within(
            f"accuracy with learning rate 2 less that with 4, {task}, {steps:g} steps",
            pair[2.0] - pair[4.0],
            -COMPARABLE,
            COMPARABLE,
            "comparable",
        )
    audited = float(stated("figure1", "cifar10", "accuracy", epsilon=10.0)["value"].iloc[0])
    there = rows.set_index(["task", "steps", "learning_rate"])["accuracy"]
    for row in select(STATED, figure="figure6", quantity="accuracy").itertuples():
        what = f"accuracy after {row.steps:,.0f} steps, learning rate {row.learning_rate:g}"
        found = there.get((row.task, row.steps, row.learning_rate))
        if found is None:
            yield Open(what)
            continue
        # The paper's is of one model, too.
        number = Estimate(row.value, found.error)
        yield Stated(what, found, number, 0.0005, audited, digits=3)
    return "One model each, with the error of its test images."


@check
def learning_rate_10(estimates: pd.DataFrame) -> Found:
    """With the most steps a learning rate of 10 gives less accurate models than 4."""
    rows = _by_steps(estimates)
    for task, part in rows.groupby("task"):
        last = part[part["steps"] == part["steps"].max()].set_index("learning_rate")["accuracy"]
        if {4.0, 10.0} <= set(last.index):
            what = f"accuracy with learning rate 10 less that with 4, {task}"
            yield Within(what, last[10.0] - last[4.0], high=0, reason="poor")
    return "One model each, with the error of its test images."


@check
def table1_mnist(estimates: pd.DataFrame) -> Found:
    """Accuracies of models of all records in the average case; rivals are the worst case's."""
    found, printed = _models(estimates, "average")
    rival = stated("figure1", "mnist", "accuracy", case="worst")
    yield from _accuracies(found, printed, rival, "average case")
    return _listed(found, printed)


@check
def clipping_accuracy(estimates: pd.DataFrame) -> Found:
    """In the worst case models of all records are less accurate at a clipping norm of 10 than at 1.

    The accuracies of both are printed, four each; the rival of each is that of the other norm.
    """
    notes = []
    sides = {norm: _models(estimates, "worst", norm) for norm in (10.0, 1.0)}
    for (norm, (found, printed)), other in zip(sides.items(), (1.0, 10.0), strict=True):
        rival = sides[other][1].rename("value").reset_index()
        yield from _accuracies(found, printed, rival, f"worst case, C = {norm:g}")
        notes.append(f"C = {norm:g}: {_listed(found, printed)}")
    for e in sides[1.0][1].index:
        small, large = (_one(*sides[norm], e) for norm in (1.0, 10.0))
        what = f"accuracy in % at C = 1 less that at 10, epsilon {e:g}"
        yield Within(what, small - large, low=0, reason="poor")
    return " ".join(notes)


@check
def accuracy_95(estimates: pd.DataFrame) -> Found:
    """Accuracies of models of all records in the average case, each at least 95 %."""
    found, printed = _models(estimates, "average")
    for e in printed.index:
        yield Within(f"accuracy in %, average case, epsilon {e:g}", _one(found, printed, e), low=95)
    return _listed(found, printed)


@check
def accuracy_95_starts(estimates: pd.DataFrame) -> Found:
    """Accuracies of models of all records at epsilon 10, each at least 95 % in both cases."""
    notes = []
    for case in ("average", "worst"):
        found, printed = _models(estimates, case)
        one = _one(found, printed, 10.0)
        yield Within(f"accuracy in %, {case} case, epsilon 10", one, low=95)
        notes.append(f"{case} {one.value:.1f} %")
    return f"At epsilon 10: {', '.join(notes)}."


Models = dict[float, pd.Series]
"""Accuracies in % of single models, by epsilon."""


def _accuracies(found: Models, printed: pd.Series, rival: pd.DataFrame, what: str) -> list[Stated]:
    """Each printed accuracy, which is taken to scatter as one of our models does."""
    rivals = rival.set_index("epsilon")["value"]
    items = []
    for e, value in printed.items():
        ours = _one(found, printed, e)
        # Departure worst_case_init.single_models: whether it is of one or a mean is not stated.
        error = ours.error * len(found[e]) ** 0.5
        theirs = Estimate(100 * value, error, ours.freedom)
        shown = f"accuracy in %, {what}, epsilon {e:g}"
        items.append(Stated(shown, ours, theirs, 0.05, 100 * rivals[e], digits=1))
    return items


def _one(found: Models, printed: pd.Series, epsilon: float) -> Estimate:
    """Mean accuracy in % at an epsilon, with the scatter of its models.

    Of a single model at each epsilon it is the scatter of all about the printed values, half of
    which is the paper's.
    """
    values = found[epsilon]
    if len(values) > 1:
        return mean(values.tolist(), least=0, most=100)
    off = [float(found[e].mean() - 100 * value) for e, value in printed.items()]
    sd = float(np.std(off, ddof=1)) / 2**0.5
    return Estimate(float(values.mean()), sd, len(off) - 1, 0, 100)


def _listed(found: Models, printed: pd.Series) -> str:
    shown = ", ".join(
        f"{found[e].mean():.1f} (paper: {100 * value:.1f})" for e, value in printed.items()
    )
    models = min(len(values) for values in found.values())
    each = "one model each" if models == 1 else f"{models} models each at least"
    return f"At epsilon 1, 2, 4 and 10, {each}: {shown} %."


def _models(
    estimates: pd.DataFrame, case: str, clipping_norm: float = 1.0
) -> tuple[Models, pd.Series]:
    """Accuracies of models of all records of MNIST by epsilon, ours and the printed ones."""
    single, figure = ("table1", "figure1")
    if clipping_norm != 1:
        single, figure = ("figure4_accuracies", "figure4")
    levels = {"task": "mnist", "case": case, "clipping_norm": clipping_norm}
    models = audits_of(estimates, either(estimates, single, figure), "accuracy", **levels)
    found = {at["epsilon"]: 100 * values for at, values in with_all_records(models)}
    printed = stated(figure, "mnist", "accuracy", case=case).set_index("epsilon")["value"]
    if set(printed.index) - set(found):
        raise Lacking
    return found, printed
