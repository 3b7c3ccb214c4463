"""Exact laws: one insertion and hidden steps (section 6), distances from Gaussian (appendix E).

Perfect audits, and the accountant's own numbers.
"""

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pandas as pd

from hiddenstate.auditing.methods import PUBLISHED
from hiddenstate.papers.gradient_crafting import stated
from hiddenstate.papers.gradient_crafting.adversaries import CRAFTED
from hiddenstate.papers.gradient_crafting.cells import SETTING
from hiddenstate.papers.gradient_crafting.checks.shared import (
    MODELS,
    NEAR,
    TIGHT,
    as_stated,
    pooled,
    stated_mean,
)
from hiddenstate.pipeline.estimates import largest, select
from hiddenstate.pipeline.evidence import Estimate, Share, Stated, Within
from hiddenstate.pipeline.family import Found, Lacking, check, needed

INSERTIONS = 250


def _last(estimates: pd.DataFrame, method: str, threshold: str = "midpoint") -> pd.DataFrame:
    """Exact laws of section 6 at the last step, if of 25 steps, with their share of epsilon."""
    rows = needed(select(estimates, part="single", quantity="epsilon", kind="exact"))
    rows = select(rows, method=method, threshold=threshold, steps=25)
    rows = needed(rows[rows["x"] == rows["steps"]])
    return rows.assign(share=rows["value"] / rows["epsilon"])


def _large(found: pd.DataFrame) -> int:
    """The largest batch size; small ones alone tell nothing of large ones."""
    size = int(found["batch_size"].max())
    if size < 128:
        raise Lacking
    return size


def _shares(found: pd.DataFrame, size: int) -> pd.Series:
    """Shares of epsilon with batches of this size, by epsilon."""
    return needed(select(found, batch_size=size).set_index("epsilon")["share"])


@check
def landscape_only(estimates: pd.DataFrame) -> Found:
    """Insertions in some steps are tight in Section 6 with large batches, not on the network."""
    found = _last(estimates, "Gaussian-DP reading")
    size = _large(found)
    yield Within(
        f"least epsilon over the nominal one, adversarial landscape, B = {size}",
        _shares(found, size).min(),
        low=TIGHT,
        reason="matches: nine tenths at least",
    )
    yield Within(
        "least epsilon over the nominal one, adversarial landscape, B = 1",
        _shares(found, 1).min(),
        high=TIGHT,
        reason="a large batch is needed",
    )
    rows = select(estimates, part="housing", quantity="mu", start="fresh", adversary=CRAFTED)
    rows = needed(rows[(rows["every"] > 1) & (rows["epsilon"] >= 4)])
    for every, part in largest(rows, "models", SETTING).groupby("every"):
        errors = (part["high"] - part["value"]) / part["mu"]
        ratio = pooled(part["value"] / part["mu"], errors, 1)
        what = f"mu over the accountant's, housing network, k = {every:g}"
        yield Within(what, ratio, high=TIGHT, reason="does not match")
    return "Gaussian-DP reading, last step; audits at epsilon 4 and above."


@check
def implication2(estimates: pd.DataFrame) -> Found:
    """With the largest batches the landscape's epsilon is the nominal one, by Gaussian DP."""
    found = _last(estimates, "Gaussian-DP reading")
    size = _large(found)
    large = needed(found[found["batch_size"] * found["mu"] >= 2])["share"]
    yield Within(
        f"least epsilon over the nominal one, B = {size}",
        _shares(found, size).min(),
        low=0.999,
        reason="tight, in the limit of large B / sigma",
    )
    return f"At least {large.min():.4f} wherever B / sigma is 2 or more ({len(large)} settings)."


@check
def implication3(estimates: pd.DataFrame) -> Found:
    """With batches of one record some amplification is left where sigma is large."""
    ratios = _shares(_last(estimates, "Gaussian-DP reading"), 1)
    yield Within(
        "least epsilon over the nominal one, B = 1",
        ratios.min(),
        high=TIGHT,
        reason="amplification: less than nine tenths",
    )
    return f"B = 1: {', '.join(f'{ratio:.2f} at epsilon {e:g}' for e, ratio in ratios.items())}."


@check
def monotone(estimates: pd.DataFrame) -> Found:
    """The ratio ascends in the batch size and in epsilon, and is 1 where both are large."""
    found = _last(estimates, "Gaussian-DP reading")
    found = found[found["batch_size"] > 0]
    square = found.pivot(index="epsilon", columns="batch_size", values="share").to_numpy()
    if min(square.shape) < 2:
        raise Lacking
    least = min(np.diff(square, axis=0).min(), np.diff(square, axis=1).min())
    yield Within(
        "least change of the ratio to the next batch size or epsilon",
        least,
        low=-1e-9,
        reason="ascends, except for rounding",
    )
    yield Within(
        "ratio at the largest batch size and epsilon", square[-1, -1], low=0.999, reason="tight"
    )
    return f"{square.size} pairs of batch size and epsilon."


def _distances(estimates: pd.DataFrame, column: str) -> Iterator[tuple[float, pd.Series]]:
    """Distances from the nearest Gaussian curve by steps, for each level of a parameter."""
    rows = select(estimates, part="hidden", quantity="distance", method="nearest Gaussian")
    rows = needed(rows[rows[column].notna()])
    for level, line in rows.groupby(column):
        yield float(level), line.set_index("x")["value"].sort_index()


@check
def gaussian(estimates: pd.DataFrame) -> Found:
    """The landscape's curve comes nearer to a Gaussian one with more hidden steps."""
    words = []
    for beta, line in _distances(estimates, "beta"):
        after = line[line.index >= 2]
        if beta < 0.5 or len(after) < 2:
            continue
        first, last = after.index[0], after.index[-1]
        what = f"change of the distance from step {first:g} to {last:g}, B / sigma = {beta:g}"
        change = after.iloc[-1] - after.iloc[0]
        yield Within(what, change, high=0, reason="comes nearer")
        words.append(f"{after.iloc[0]:.4f} to {after.iloc[-1]:.4f}")
    return f"Distances from the nearest Gaussian curve: {', '.join(words)}."


@check
def heat_map(estimates: pd.DataFrame) -> Found:
    """The Gaussian-DP reading of section 6, every number of the reference."""
    found = _last(as_stated(estimates), "Gaussian-DP reading")
    return _table("ratios", stated.RATIOS, found.set_index(["epsilon", "batch_size"])["share"])


Numbers = Mapping[Any, Mapping[int, float]]


def _off(numbers: Numbers, found: pd.Series) -> list[float]:
    """Distances of what was found from the reference's numbers."""
    pairs = ((a, b) for a, line in numbers.items() for b in line if (a, b) in found)
    return [abs(found[a, b] - numbers[a][b]) for a, b in pairs]


def _table(what: str, numbers: Numbers, found: pd.Series) -> Found:
    gaps = _off(numbers, found)
    if not gaps:
        raise Lacking
    gap = max(gaps)
    yield Within(f"largest difference of {what}", gap, high=6e-4, reason="three decimals, rounded")
    return f"{len(gaps)} {what}."


@check
def evolution(estimates: pd.DataFrame) -> Found:
    """The Gaussian-DP reading over the steps at epsilon 4, every number of the reference."""
    rows = needed(select(as_stated(estimates), part="single", quantity="epsilon", kind="exact"))
    rows = select(rows, method="Gaussian-DP reading", threshold="midpoint", epsilon=4.0)
    return _table("values", stated.EVOLUTION, rows.set_index(["batch_size", "x"])["value"])


@check
def simulated(estimates: pd.DataFrame) -> Found:
    """Audits of the simulated process find what the reference's did."""
    rows = as_stated(estimates)
    rows = select(rows, part="single", quantity="epsilon", method=PUBLISHED, models=MODELS)
    for (epsilon, size), part in needed(rows).groupby(["epsilon", "batch_size"]):
        known = stated.AUDITED.get(epsilon, {}).get(int(size))
        if known is None:
            continue
        average, sd = known
        yield Stated(
            f"mean published epsilon of {epsilon:g}, B = {size:g}",
            Estimate(float(part["value"].mean()), sd / math.sqrt(len(part))),
            Estimate(average, sd / math.sqrt(stated.LANDSCAPE_AUDITS)),
            NEAR,
            stated.RATIOS[epsilon][int(size)] * epsilon,
            digits=3,
        )
    return "Alternative tested against: the exact value, from which the mean is biased."


@check
def exact(estimates: pd.DataFrame) -> Found:
    """The same landscape's exact epsilon is 23 to 29 % of the nominal one."""
    found = _last(as_stated(estimates), "exact")
    large = _large(found)
    found = needed(select(found, batch_size=large, epsilon=[*stated.EXACT]))
    for what, share in (("least", found["share"].min()), ("largest", found["share"].max())):
        yield Within(f"{what} share", share, 0.225, 0.295, reason="23 to 29 %, rounded")
    yield Within(
        "largest difference from the reference",
        (found["value"] - found["epsilon"].map(stated.EXACT)).abs().max(),
        high=0.005,
        reason="its digits, two at epsilon 12",
    )
    return f"B = {large}, {len(found)} epsilons."


@check
def best_landscape(estimates: pd.DataFrame) -> Found:
    """With the threshold at h* the exact epsilon is the nominal one for large batches."""
    found = _last(as_stated(estimates), "exact", "h*")
    large = _large(found)
    ratios = _shares(found, large)
    yield Within(f"least ratio, B = {large}", ratios.min(), low=0.999, reason="equal")
    shares = found.set_index(["epsilon", "batch_size"])["share"]
    if gaps := _off(stated.EXACT_AT_BEST, shares):
        what = "largest difference from the reference"
        yield Within(what, max(gaps), high=6e-4, reason="three decimals, rounded")
    return f"{len(ratios)} epsilons."


@check
def plateau(estimates: pd.DataFrame) -> Found:
    """A plateau above 0 where B / sigma is at least 0.5; a flat landscape goes on to fall."""
    rows = needed(select(estimates, part="single", quantity="epsilon", kind="exact"))
    rows = select(rows, method="Gaussian-DP reading", threshold="midpoint", steps=25)
    values = rows.set_index(["epsilon", "batch_size", "x"])["value"]
    mus = rows.groupby("epsilon")["mu"].first()
    plateaus, falls, left = [], [], []
    for (epsilon, size), _ in rows.groupby(["epsilon", "batch_size"]):
        ratio = values[epsilon, size, 25] / values[epsilon, size, 15]
        if size == 0:
            falls.append(ratio)
        elif size * mus[epsilon] >= 0.5:
            plateaus.append(ratio)
            left.append(values[epsilon, size, 25] / epsilon)
    if not (plateaus and falls):
        raise Lacking
    yield Within(
        "least of step 25 over step 15",
        min(plateaus),
        low=0.99,
        reason="converges: changes by less than 1 %",
    )
    yield Within(
        "largest on a flat landscape",
        max(falls),
        high=0.9,
        reason="goes on to fall: by more than a tenth",
    )
    yield Within(
        "least share of epsilon that is left",
        min(left),
        low=0.1,
        reason="above 0: a tenth at least",
    )
    return "All three limits are ours."


@check
def sampled_gaussian(estimates: pd.DataFrame) -> Found:
    """The curve of a linear loss with a sampled canary comes near to a Gaussian one."""
    for rate, line in _distances(estimates, "sampling_rate"):
        if rate < 1 and line.index[-1] >= 100:
            # A canary that is hardly ever sampled leaks nothing, which is Gaussian too: the
            # distance rises before it falls.
            ratio = line.iloc[-1] / line.max()
            what = f"last distance over the largest, sampling rate {rate:g}"
            yield Within(what, ratio, high=0.1, reason="falls to a tenth, a limit of ours")
    return "The curves are computed, not estimated. The limit of a tenth is ours."


@check
def calibration(estimates: pd.DataFrame) -> Found:
    """mu and noise multiplier of every epsilon, against the reference."""
    rows = needed(select(as_stated(estimates), part="ideal", quantity="epsilon"))
    known = needed(rows[rows["epsilon"].isin(stated.GAUSSIAN_MU)].groupby("epsilon")["mu"].first())
    gaps = [abs(found - stated.GAUSSIAN_MU[e]) for e, found in known.items()]
    gaps += [
        abs(math.sqrt(INSERTIONS) / found - stated.NOISE_MULTIPLIERS[e])
        for e, found in known.items()
    ]
    yield Within(
        "largest difference from the reference", max(gaps), high=6e-4, reason="its printed digits"
    )
    return f"{len(known)} epsilons."


@check
def idle_table(estimates: pd.DataFrame) -> Found:
    """The mu / sqrt(k) table: exact values, and means of the published estimate."""
    rows = as_stated(estimates)
    rows = select(rows, part="ideal", quantity="epsilon", method=PUBLISHED, models=MODELS)
    gaps, means = [], []
    for _, line in needed(rows).iterrows():
        known = stated.IDLE.get(int(line["every"]), {}).get(line["epsilon"])
        if known is None:
            continue
        gaps.append(abs(line["idle_epsilon"] - known[0]))
        error = (line["high"] - line["low"]) / 2 / math.sqrt(line["audits"])
        what = f"mean published epsilon, k = {line['every']:g}, epsilon {line['epsilon']:g}"
        found = Estimate(line["value"], error)
        means.append(Stated(what, found, stated_mean(known), 5e-4, known[0], digits=3))
    if not gaps:
        raise Lacking
    largest = max(gaps)
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
