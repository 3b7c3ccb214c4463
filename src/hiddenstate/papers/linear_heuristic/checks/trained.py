"""Audits of trained models (Figures 2 and 4), and the trained columns of Table 1."""

import math
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd

from hiddenstate.auditing.methods import PUBLISHED
from hiddenstate.papers.linear_heuristic import stated
from hiddenstate.papers.linear_heuristic.checks.shared import HALF
from hiddenstate.papers.linear_heuristic.estimates import trained
from hiddenstate.pipeline.estimates import select
from hiddenstate.pipeline.evidence import Estimate, Share, Stated, Within
from hiddenstate.pipeline.family import Found, Lacking, check, needed

UNLIKE = 2.0
"""Points of accuracy by which models are no longer similar: a reading of ours."""
LESS = 3.0
"""Points by which the accuracy is less that a printed one is told from: what single models can."""

TESTED_ON = {"mnist", "cifar10", "cifar100"}
"""Data sets whose test images are as many as the paper's, 10,000."""


def _audits(estimates: pd.DataFrame, *figures: str, **values: Any) -> pd.DataFrame:
    """Audits of trained models; none may be missing.

    An audit is a single one, so its deviation ``sd`` is that of ideal audits of as many models,
    of which ``least`` and ``most`` are the 5 and 95 % quantiles.
    """
    rows = trained(estimates, *figures, **values)
    found = needed(rows.get(PUBLISHED, pd.Series(dtype=float)))
    # Between the 5 and 95 % quantiles of a normal law lie 2 x 1.645 deviations.
    return rows.assign(found=found, sd=(rows["most"] - rows["least"]) / (2 * 1.645))


def _share(rows: pd.DataFrame, of: str = "ideal") -> Estimate:
    """Joint finding of audits, as a share of what linear losses or the heuristic would give."""
    total = float(needed(rows)[of].sum())
    if total <= 0:
        raise Lacking
    return Estimate(float(rows["found"].sum()) / total, math.hypot(*rows["sd"]) / total)


IDEAL = "Shares are of what as many models with linear losses give the same estimator."


@check
def figure2_loose(estimates: pd.DataFrame) -> Found:
    """Figure 2: estimates far below the heuristic."""
    rows = _audits(estimates, "figure2")
    for rate, part in rows.groupby("sampling_rate"):
        yield Within(
            f"share found, sampling rate {rate:g}", _share(part), high=HALF, reason="much lower"
        )
    return (
        f"{(rows['found'] < rows['heuristic']).sum()} of {len(rows)} estimates are below the "
        f"heuristic, whatever the models. {IDEAL}"
    )


@check
def figure4_tighter(estimates: pd.DataFrame) -> Found:
    """Figures 2 and 4: a mislabelled record is found more easily than a gradient."""
    rows = _audits(estimates, "figure2", "figure4")
    record = needed(select(rows, attack="natural"))
    # At the sampling rate of Figure 4, or the nearest, and at the numbers of steps of both.
    gradients = needed(select(rows, attack="dirac"))
    away = (gradients["sampling_rate"] - record["sampling_rate"].iloc[0]).abs()
    gradient = gradients[away == away.min()]
    both = sorted(set(record["steps"]) & set(gradient["steps"]))
    ours, theirs = (_share(select(part, steps=both)) for part in (record, gradient))
    yield Within("share found, mislabelled record less gradient", ours - theirs, low=0.0)
    return (
        f"At {', '.join(f'{n:g}' for n in both)} steps, which both have: mislabelled record "
        f"{ours.value:.2f}, gradient {theirs.value:.2f}. {IDEAL}"
    )


@check
def figure4_blank(estimates: pd.DataFrame) -> Found:
    """Figure 4: more is found among blank records."""
    rows = _audits(estimates, "figure4")
    blank, natural = (_share(select(rows, attack=attack)) for attack in ("blank", "natural"))
    yield Within("share found, blank less natural", blank - natural, low=0.0)
    return (
        f"Blank {blank.value:.2f}, natural {natural.value:.2f}, {len(rows) // 2} audits each. "
        + IDEAL
    )


@check
def trained_below(estimates: pd.DataFrame) -> Found:
    """Figures 2 and 4, Table 1: the heuristic is above what audits of trained models find."""
    rows = _audits(estimates, "figure2", "figure4", "table1")
    below = Share(int((rows["found"] <= rows["heuristic"]).sum()), len(rows))
    most = (rows["found"] / rows["heuristic"]).max()
    yield Within("audits that find less", below, low=0.75, reason="consistently")
    return f"{below.successes} of {below.trials}; the largest is {most:.2f} of the heuristic."


@check
def predictive(estimates: pd.DataFrame) -> Found:
    """Figures 2 and 4, Table 1: audits find more where the heuristic is larger."""
    rows = _audits(estimates, "figure2", "figure4", "table1")
    needed(rows.iloc[3:])
    if rows[["found", "heuristic"]].nunique().min() < 2:
        raise Lacking
    found = rows["found"].corr(rows["heuristic"], method="spearman")
    # The error of a rank correlation of normal values (Fieller, Hartley and Pearson 1957).
    error = (1 - found**2) * math.sqrt(1.06 / (len(rows) - 3))
    yield Within("rank correlation", Estimate(found, error, least=-1, most=1), low=0)
    near = (rows["found"] >= HALF * rows["heuristic"]) & (rows["found"] <= rows["heuristic"] / HALF)
    return (
        f"Rank correlation of {len(rows)} audits with the heuristic: {found:.2f}. {near.sum()} of "
        "them are within a factor of two of it."
    )


@check
def table1_similar(estimates: pd.DataFrame) -> Found:
    """Table 1: with similar heuristic epsilons, batch sizes give similar models and estimates."""
    rows = _audits(estimates, "table1")
    needed(rows.iloc[1:])
    found = [Estimate(r.found, r.sd) for r in rows.itertuples()]
    printed = np.mean([value for _, value in stated.TRAINED.values()])
    right = [Estimate(r["accuracy"], r["accuracy error"]) for _, r in rows.iterrows()]
    most, least = (f(right, key=lambda one: one.value) for f in (max, min))
    what = "largest difference of accuracies"
    yield Within(what, most - least, high=UNLIKE / 100, reason="2 points")
    for (i, one), (j, other) in pairwise(enumerate(found)):
        what = f"empirical epsilon, batch {rows['batch'].iloc[i]:g} less {rows['batch'].iloc[j]:g}"
        half = float(printed / 2)
        yield Within(what, one - other, -half, half, "half of the 1.7 that is printed")
    shown = "; ".join(
        f"batch {r.batch:g}: accuracy {r.accuracy:.1%}, empirical {r.found:.2f}"
        for r in rows.itertuples()
    )
    return shown + "."


@check
def table1_accuracy(estimates: pd.DataFrame) -> Found:
    """Table 1: the three printed accuracies, one by one."""
    tested = select(estimates, figure="table1", quantity="accuracy")
    if not set(tested.get("dataset", ())) <= TESTED_ON:
        raise Lacking
    found = _audits(estimates, "table1").set_index("batch")["accuracy"]
    found = needed(found.reindex(list(stated.TRAINED)))
    printed = pd.Series({n: float(one.removesuffix("%")) for n, (one, _) in stated.TRAINED.items()})
    for batch, value in printed.items():
        # In points, of models that were tested on 10,000 images each, theirs as ours.
        error = math.sqrt(value * (100 - value) / 10_000)
        ours = Estimate(float(100 * found[batch]), error, least=0, most=100)
        what = f"accuracy in %, batch {batch:g}"
        yield Stated(what, ours, Estimate(value, error), 0.05, value - LESS, 1)
    return "Ours are means over models. Both sides have the error of 10,000 test images."


@check
def table1_empirical(estimates: pd.DataFrame) -> Found:
    """Table 1: the printed empirical epsilons, which are not the heuristic ones."""
    rows = _audits(estimates, "table1").set_index("batch")
    rows = needed(rows.reindex(list(stated.TRAINED)))
    needed(rows["found"])
    for batch, (_, printed) in stated.TRAINED.items():
        yield Stated(
            f"empirical epsilon, batch {batch}",
            Estimate(float(rows["found"][batch]), float(rows["sd"][batch])),
            Estimate(printed, float(rows["sd"][batch])),
            0.05,
            float(rows["heuristic"][batch]),
            digits=1,
        )
    return "One audit of each row on either side; its deviation is that of ideal audits."
