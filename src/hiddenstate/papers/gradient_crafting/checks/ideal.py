"""Checks of perfect audits and of the accountant's own numbers."""

import math

import pandas as pd

from hiddenstate.auditing.methods import PUBLISHED
from hiddenstate.papers.gradient_crafting.checks.shared import MODELS, as_stated, stated_mean
from hiddenstate.papers.gradient_crafting.stated import GAUSSIAN_MU, IDLE, NOISE_MULTIPLIERS
from hiddenstate.pipeline.estimates import select
from hiddenstate.pipeline.evidence import Estimate, Exact, Share, Stated, Within
from hiddenstate.pipeline.family import Found, Lacking, check, needed

INSERTIONS = 250


@check
def calibration(estimates: pd.DataFrame) -> Found:
    """mu and noise multiplier of every epsilon, against the reference."""
    rows = needed(select(as_stated(estimates), part="ideal", quantity="epsilon"))
    known = needed(rows[rows["epsilon"].isin(GAUSSIAN_MU)].groupby("epsilon")["mu"].first())
    gaps = [abs(found - GAUSSIAN_MU[e]) for e, found in known.items()]
    gaps += [
        abs(math.sqrt(INSERTIONS) / found - NOISE_MULTIPLIERS[e]) for e, found in known.items()
    ]
    yield Within(
        "largest difference from the reference",
        Exact(float(max(gaps))),
        high=6e-4,
        reason="its printed digits",
    )
    return f"{len(known)} epsilons."


@check
def idle_table(estimates: pd.DataFrame) -> Found:
    """The mu / sqrt(k) table: exact values, and means of the published estimate."""
    rows = as_stated(estimates)
    rows = select(rows, part="ideal", quantity="epsilon", method=PUBLISHED, models=MODELS)
    gaps, means = [], []
    for _, line in needed(rows).iterrows():
        known = IDLE.get(int(line["every"]), {}).get(line["epsilon"])
        if known is None:
            continue
        gaps.append(abs(line["idle_epsilon"] - known[0]))
        error = (line["high"] - line["low"]) / 2 / math.sqrt(line["audits"])
        what = f"mean published epsilon, k = {line['every']:g}, epsilon {line['epsilon']:g}"
        found = Estimate(line["value"], error)
        means.append(Stated(what, found, stated_mean(known), 5e-4, known[0], digits=3))
    if not gaps:
        raise Lacking
    largest = Exact(float(max(gaps)))
    yield Within("largest difference of exact values", largest, high=1e-4, reason="four decimals")
    yield from means
    return "Alternative tested against: the exact value, from which the mean is biased."


@check
def best_threshold(estimates: pd.DataFrame) -> Found:
    """The best threshold on the same scores exceeds the truth too often; a fixed one does not."""
    rows = needed(select(estimates, part="ideal", quantity="share above"))
    rows = select(rows, every=1, models=MODELS)

    def share(method: str) -> Share:
        own = needed(select(rows, method=method))
        return Share(round((own["value"] * own["audits"]).sum()), int(own["audits"].sum()))

    best, fixed = share(PUBLISHED), share("fixed threshold")
    yield Within("share above the truth, best threshold", best, low=0.05, reason="nominal 5 %")
    yield Within("share above the truth, fixed threshold", fixed, high=0.05, reason="5 %")
    return f"{best.trials} audits of ideal scores each."
