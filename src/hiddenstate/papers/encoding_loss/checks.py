"""Measurements behind the claims of encoding_loss, from its estimates."""

from collections.abc import Iterator

import numpy as np
import pandas as pd

from hiddenstate.pipeline.estimates import select
from hiddenstate.pipeline.evidence import (
    CONFIDENCE,
    Exact,
    Interval,
    Outcome,
    Share,
    Stated,
    Within,
    average,
    mean,
)
from hiddenstate.pipeline.family import Found, Lacking, check, check_any, needed

LINE = 0.01
"""Lévy distance of two curves that a figure draws as one line: its width, a hundredth of an axis.
It is also about what a curve of 5,000 runs a world strays from the curve that it is drawn from."""

PAIR = 0.01
"""Least share of pairs of runs, one of either world, that makes one adversary better than
another."""

NAMED = {"sampling_rate": 0.01, "steps": 1024, "noise_multiplier": 0.5}
"""The one mechanism of Figure 1 that the text names, with "a large amplification expected"."""

FEW_RUNS = 0.02
"""Least deviation of the difference of two shares of pairs, of a thousand runs of either world."""
RARELY = 0.05
"""Of the runs: an encoding that fails in more of them does not work "with high probability"."""

RESOLUTION = 1e-4
"""A rate of 5,000 runs a world is known no better than to half a run."""
STEP = 0.1
"""Spacing of the epsilons that Algorithm 2 searches: it tells none apart that are closer."""


def _by_cell(rows: pd.DataFrame) -> Iterator[tuple[str, pd.DataFrame]]:
    """Name in words and rows of each mechanism."""
    for _, part in needed(rows).groupby("cell", sort=False):
        q, steps = part[["sampling_rate", "steps"]].iloc[0]
        noise = part["noise_multiplier"].iloc[0]
        yield f"sampling rate {q:g}, {steps:g} steps, noise multiplier {noise:.4g}", part


def _near(estimates: pd.DataFrame, null: str) -> Found:
    """The observed curve is the predicted one, as near as a figure of its runs shows."""
    rows = select(estimates, quantity="levy_distance", encoding="published", null=null)
    for words, part in _by_cell(rows):
        last, every = (
            needed(select(part, method=method)["value"]).to_numpy()
            for method in ("all iterates", "all iterates, observed")
        )
        if len(last) != len(every):
            raise Lacking
        excess = mean((last - every).tolist(), RESOLUTION, least=-1, most=1)
        yield Within(f"further off by, {words}", excess, high=LINE, reason="one line")
    return (
        "Lévy distance of the observed curve of the last iterate from the predicted one of all "
        "iterates, less that of the curve which all iterates of the same runs give, mean over "
        "repeats."
    )


curve = check(_near, null="out")
swapped = check(_near, null="in")


def _gap_items(rows: pd.DataFrame, least: float, reason: str) -> Iterator[Within]:
    for words, part in _by_cell(rows):
        gap = mean(part["value"].tolist(), RESOLUTION, least=-1, most=1)
        yield Within(f"gap at rate {part['x'].iloc[0]:g}, {words}", gap, least, reason=reason)


@check
def no_amplification(estimates: pd.DataFrame) -> Found:
    """Figure 1: the observed curve lies below that of a linear loss."""
    rows = select(estimates, quantity="fnr_gap", method="below linear loss", **NAMED)
    yield from _gap_items(select(rows, encoding="published"), LINE, "two lines")
    return (
        "Least false-negative rate of the last iterate under a linear loss less the observed one, "
        "at the false-positive rate where exact curves say that most is to be seen."
    )


@check_any
def above_symmetric(estimates: pd.DataFrame) -> Found:
    """Section 5.1: at large rates the observed curve lies above the symmetric prediction."""
    rows = select(estimates, quantity="fnr_gap", method="above symmetric", encoding="published")
    yield from _gap_items(rows, 0.0, "larger")
    return (
        "Observed false-negative rate less that of the symmetric prediction, at the false-positive "
        "rate, of those larger than it, where exact curves say that most is to be seen."
    )


def _pairs(rows: pd.DataFrame, known: float) -> Found:
    """The last iterate orders as many pairs of runs rightly as all iterates of the same runs do."""
    for words, part in _by_cell(rows):
        told = part.pivot(index="repeat", columns="method", values="value")
        off = (told["last iterate"] - told["all iterates"]).tolist()
        lost = mean(off, known, least=-1, most=1)
        what = f"share of pairs ordered rightly, last less all iterates, {words}"
        yield Within(what, lost, -PAIR, PAIR, "one pair in a hundred")
    shares = ", ".join(f"{x:.2f}" for x in rows.groupby(["cell", "method"])["value"].mean())
    return f"Shares of pairs ordered rightly, all iterates and last: {shares}."


def _equivalent(estimates: pd.DataFrame, encoding: str) -> Found:
    rows = select(estimates, quantity="auc", encoding=encoding)
    # Two adversaries that agree in every repeat may differ in one pair of a million.
    yield from _pairs(rows[rows["cell"].str.contains("_eps")], 1e-6)
    return (
        "How much oftener a run with the canary scores above one without it, by the last iterate "
        "than by all iterates of the same runs, mean over repeats."
    )


equivalent = check(_equivalent, encoding="published")
leaks_as_much = check_any(_equivalent, encoding="published")
equivalent_sound = check(_equivalent, encoding="sound")


@check
def algorithm_1(estimates: pd.DataFrame) -> Found:
    """Algorithm 1 as printed, with a thousand runs a world."""
    return _pairs(select(estimates, quantity="auc", encoding="as printed"), FEW_RUNS)


@check
def product_form(estimates: pd.DataFrame) -> Found:
    """Section 4.1: the likelihood ratio of all iterates is the product of the steps' own."""
    gaps = needed(select(estimates, quantity="theorem", method="product form")["value"])
    what = "largest distance of the sum of logarithms from the joint likelihood ratio"
    yield Within(what, gaps.max(), high=1e-9, reason="equal except for rounding")
    return f"{len(gaps)} mechanisms; the joint density is summed over all sets of sampled steps."


@check
def small_gradients(estimates: pd.DataFrame) -> Found:
    """Section 4.2: no ordinary record's gradient of the published encoding is clipped."""
    rows = select(estimates, quantity="theorem", method="largest gradient")
    for words, part in _by_cell(rows):
        for value in part["value"]:
            yield Within(f"largest gradient over the clipping norm, {words}", value, high=1)
    return "At any parameter: a residual is at most half the spacing."


@check
def not_corrupted(estimates: pd.DataFrame) -> Found:
    """Section 4.2: noise does not corrupt the published encoding."""
    rows = select(estimates, quantity="collision_probability", encoding="published")
    for words, part in _by_cell(rows[rows["cell"].str.contains("_eps")]):
        most, steps = part[["value", "steps"]].iloc[0]
        # Steps fail independently, so the union bound T p is 1 - (1 - p)^T at least.
        least = -np.expm1(steps * np.log1p(-most / steps))
        wrong = Exact((least + most) / 2, (most - least) / 2)
        yield Within(f"runs that decode wrongly, {words}", wrong, high=RARELY)
    return "Share of runs in which the noise of some step carries the sum to another digit."


@check
def algorithm_2(estimates: pd.DataFrame) -> Found:
    """Algorithm 2 as printed returns an epsilon."""
    rows = select(estimates, quantity="epsilon", method="every threshold", encoding="published")
    found = Share(int(np.isfinite(needed(rows)["value"]).sum()), len(rows))
    yield Within("audits that it returns an epsilon for", found, low=0.5, reason="most audits")
    return (
        f"It returns one in {found.successes} of {found.trials} audits, with "
        "curves compared at every threshold, those without a false positive included."
    )


def _matches(rows: pd.DataFrame) -> Iterator[Stated | Within]:
    """Every setting's mean against its theoretical epsilon; the rival is the nearest other one."""
    others = np.sort(rows["epsilon"].unique())
    for words, part in _by_cell(rows):
        epsilon = float(part["epsilon"].iloc[0])
        what = f"empirical epsilon, {words}"
        if beyond := int((~np.isfinite(part["value"])).sum()):
            none_fits = Share(beyond, len(part))
            yield Within(f"repeats without an {what}", none_fits, high=0.0)
            continue
        rivals = others[others != epsilon]
        rival = float(rivals[np.abs(np.log(rivals / epsilon)).argmin()]) if len(rivals) else None
        # The grid of epsilons is the least that they scatter by; of one nothing else is known.
        found = mean(part["value"].tolist(), STEP / 12**0.5 if len(part) > 1 else 0.0)
        yield Stated(what, found, Exact(epsilon), STEP / 2, rival, digits=1)


def _epsilon(estimates: pd.DataFrame, encoding: str, method: str) -> Found:
    """The mean estimate is the theoretical epsilon in every setting, and no other of the figure."""
    rows = needed(select(estimates, quantity="epsilon", method=method, encoding=encoding))
    yield from _matches(rows)
    none = int((~np.isfinite(rows["value"])).sum())
    return (
        f"Mean of the repeats ({len(rows)} audits in {rows['cell'].nunique()} settings) "
        "against the theoretical epsilon."
        + (f" In {none} of {len(rows)} audits no epsilon that is searched fits." if none else "")
    )


epsilon = check(_epsilon, encoding="published", method="algorithm 2")
epsilon_sound = check(_epsilon, encoding="sound", method="algorithm 2")
epsilon_closest = check(_epsilon, encoding="sound", method="closest curve")


@check
def cut_offs(estimates: pd.DataFrame) -> Found:
    """At no cut-off does Algorithm 2 match in every setting."""
    rows = select(estimates, quantity="epsilon by cut-off", encoding="published")
    cuts = dict(list(needed(rows).groupby("x")))
    words = []
    for cut, part in cuts.items():
        matches = list(_matches(part))
        # One level for all settings at all cut-offs.
        confidence = 1 - (1 - CONFIDENCE) / len(cuts) / len(matches)
        found = [one.judge(confidence).outcome for one in matches]
        low, high = found.count(Outcome.CONTRADICTS), len(found) - found.count(Outcome.AGREES)
        name = f"algorithm 2, {100 * cut:g} %" if cut else "algorithm 2, as printed"
        off = Interval(low, low, high, 1 - (1 - CONFIDENCE) / len(cuts))
        yield Within(f"settings that do not match, {name}", off, low=1)
        none = int((~np.isfinite(part["value"])).sum())
        words.append(f"{name}: none fits in {none} of {len(part)}")
    return f"By the least share of errors of either kind. {'; '.join(words)}."


@check
def slightly_above(estimates: pd.DataFrame) -> Found:
    """Section 5.2: the empirical epsilon is above the theoretical one, on average over settings."""
    rows = select(estimates, quantity="epsilon", method="algorithm 2", encoding="published")
    found = needed(rows[np.isfinite(rows["value"])])
    excess = [
        mean((part["value"] / part["epsilon"] - 1).tolist())
        for _, part in found.groupby("cell", sort=False)
    ]
    shown = ", ".join(f"{one.value:+.0%}" for one in excess)
    yield Within("excess over the theoretical epsilon, mean of settings", average(excess), low=0.0)
    return f"Excess by setting: {shown}."
