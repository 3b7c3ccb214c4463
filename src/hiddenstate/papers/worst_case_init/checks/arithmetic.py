"""Printed numbers beside each other, and beside what perfect audits publish; nothing is trained."""

import math

import numpy as np
import pandas as pd

from hiddenstate.auditing.replication import AUDITS, Law
from hiddenstate.papers.worst_case_init.checks.shared import law
from hiddenstate.papers.worst_case_init.stated import (
    EPSILONS,
    LAST_LAYER,
    MODELS,
    PRIOR,
    STATED,
    stated,
)
from hiddenstate.papers.worst_case_init.summaries import ideal
from hiddenstate.pipeline.estimates import select
from hiddenstate.pipeline.evidence import CONFIDENCE, Estimate, Share, Within
from hiddenstate.pipeline.family import Found, check, needed

MANY = 20_000
"""Draws of five perfect audits: enough to tell none from the level of one printed number."""


def _law(estimates: pd.DataFrame, task: str, epsilon: float) -> Law:
    """The law of the paper's audits, at the delta of ours."""
    return law(MODELS[task], epsilon, float(needed(ideal(estimates))["delta"].iloc[0]))


@check
def factor_of_three(estimates: pd.DataFrame) -> Found:
    """The means at epsilon 10 are about three times what prior work found at 8."""
    for task, theirs in PRIOR.items():
        ours = stated("figure1", task, "mean", case="worst", epsilon=10.0)["value"].iloc[0]
        what = f"{ours:g} at epsilon 10 over {theirs:g} at epsilon 8, {task}"
        yield Within(what, ours / theirs, 2.5, 3.5, "3, rounded", stated="3")
    return "Printed numbers alone."


@check
def maxima_within(estimates: pd.DataFrame) -> Found:
    """The last layer's maxima exceed epsilon by no more than the printed deviations."""
    largest, deviations = (
        stated("figure5", LAST_LAYER, quantity).set_index("epsilon")["value"]
        for quantity in ("maximum", "deviation")
    )
    for e, sd in deviations.items():
        yield Within(
            f"excess {largest[e] - e:.2f} at epsilon {e:g} over the deviation {sd:.2f}",
            (largest[e] - e) / sd,
            high=1,
            reason="within",
        )
    return "Printed numbers alone."


@check
def last_layer_twice(estimates: pd.DataFrame) -> Found:
    """The introduction and section 5.3 print the same two numbers of a last layer at epsilon 10."""
    for case in ("worst", "average"):
        first, second = (
            stated(place, LAST_LAYER, "mean", case=case, epsilon=10.0)["value"].iloc[0]
            for place in ("introduction", "figure5")
        )
        what = f"section 5.3 less the introduction, {case} case"
        yield Within(what, second - first, -0.005, 0.005, "the same", f"{first:g}, {second:g}")
    return "Printed numbers alone."


@check
def outside_deviations(estimates: pd.DataFrame) -> Found:
    """At epsilon 4 and 10 worst-case means are above the average case's, by more than deviations.

    The deviations are those of audits with so many models that publish the printed means.
    """
    notes = []
    for task in PRIOR:
        for epsilon in EPSILONS[2:]:
            law = _law(estimates, task, epsilon)
            worst, average = (
                stated("figure1", task, "mean", case=case, epsilon=epsilon)["value"].iloc[0]
                for case in ("worst", "average")
            )
            sds = [law.audits[law.nearest(one)].std(ddof=1) for one in (worst, average)]
            # What the simulated audits leave of the deviation, as of normal numbers.
            error = max(sds) / math.sqrt(2 * AUDITS)
            rest = Estimate(worst - average - max(sds), error)
            what = (
                f"{worst:g} less {average:g} and the larger deviation, {task}, epsilon {epsilon:g}"
            )
            yield Within(what, rest, low=0, reason="outside")
            notes.append(f"{sds[0]:.2f} and {sds[1]:.2f} ({task}, epsilon {epsilon:g})")
    return f"Deviations of audits that publish these means: {'; '.join(notes)}."


@check
def plausible(estimates: pd.DataFrame) -> Found:
    """No printed epsilon of the worst case is more than perfect audits of as many models reach."""
    rows = select(STATED, quantity=["mean", "maximum"], case="worst", figure=["figure1", "figure5"])
    rows = pd.concat([rows, select(STATED, figure="figure3", quantity="mean", records=[100, 1000])])
    level = (1 - CONFIDENCE) / len(rows)
    notes = []
    for row in rows.itertuples():
        made = _law(estimates, row.task, row.epsilon).perfect(5, row.quantity, MANY)
        # What rounds to the printed number reaches it.
        reach = Share(int((made >= row.value - 0.005).sum()), MANY)
        what = f"perfect audits that reach the {row.quantity} {row.value:g}, {row.task}"
        yield Within(f"{what}, epsilon {row.epsilon:g}", reach, low=level, reason="possible")
        if row.task == LAST_LAYER:
            notes.append(f"{np.mean(made):.2f} for {row.value:g}")
    return f"Of a last layer five perfect audits publish {', '.join(notes)} on average."
