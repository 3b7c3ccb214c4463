"""Audits of the housing network.

Audits of five repeats have the errors of their scatter. A single audit's mu has the error of normal
scores; its published epsilon has none.
"""

import math
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pandas as pd

from hiddenstate.auditing.methods import PUBLISHED
from hiddenstate.papers.gradient_crafting.adversaries import CRAFTED, LOSS, ONE_RANDOM, RANDOM
from hiddenstate.papers.gradient_crafting.cells import SETTING
from hiddenstate.papers.gradient_crafting.checks.shared import (
    MODELS,
    NEAR,
    TIGHT,
    as_stated,
    expected,
    pooled,
    stated_mean,
)
from hiddenstate.papers.gradient_crafting.grid import HOUSING
from hiddenstate.papers.gradient_crafting.stated import IDLE
from hiddenstate.papers.gradient_crafting.summaries import drawn
from hiddenstate.pipeline.estimates import largest, plus_minus, select
from hiddenstate.pipeline.evidence import Estimate, Stated, Test, Within, below, mean
from hiddenstate.pipeline.family import Found, Lacking, check, check_any, needed
from hiddenstate.pipeline.verification import comparison_power

FIFTH = 1 / math.sqrt(5)
"""Share of mu that an insertion in every fifth step leaves."""


def _housing(estimates: pd.DataFrame, quantity: str, *, every: int = 1) -> pd.DataFrame:
    """Audits of the housing network that are judged of their setting; at most one row each."""
    method = {"method": PUBLISHED} if quantity == "epsilon" else {}
    setting = {"part": "housing", "every": every, "start": "fresh"}
    rows = select(estimates, quantity=quantity, **setting, **method)
    return drawn(needed(rows))


def _of(rows: pd.DataFrame, adversary: str, epsilon: float) -> pd.Series:
    return needed(select(rows, adversary=adversary, epsilon=epsilon)["value"])


def _audible(rows: pd.DataFrame) -> list[float]:
    """The epsilons from 4 on: below, an audit of so many models tells little from nothing."""
    found = sorted(epsilon for epsilon in rows["epsilon"].unique() if epsilon >= 4)
    if not found:
        raise Lacking
    return found


def _ratio(rows: pd.DataFrame) -> Estimate:
    """Mean share of the accountant's mu, with the error that so many models leave at least."""
    shares = rows["value"] / rows["mu"]
    known = float(((rows["high"] - rows["value"]) / rows["mu"]).mean())
    return mean(shares.tolist(), known, least=-1.0, most=1.0)


@check
def implication1(estimates: pd.DataFrame) -> Found:
    """The simulated coordinate of the housing network shows nearly all of the accountant's mu."""
    rows = select(_housing(estimates, "mu"), adversary=CRAFTED)
    published = select(_housing(estimates, "epsilon"), adversary=CRAFTED)
    words = []
    for epsilon in _audible(rows):
        ratio = _ratio(select(rows, epsilon=epsilon))
        what = f"mu over the accountant's, epsilon {epsilon:g}"
        yield Within(what, ratio, low=TIGHT, reason="tight: nine tenths at least")
        found = _of(published, CRAFTED, epsilon)
        words.append(f"{plus_minus(found.mean(), found.std())} of {epsilon:g}")
    return f"As published, epsilon {', '.join(words)} is found."


@check
def outperforms(estimates: pd.DataFrame) -> Found:
    """On the housing network the simulated coordinate shows more than the loss."""
    rows = _housing(estimates, "epsilon")
    shown = []
    for epsilon in _audible(rows):
        best, less = (_of(rows, name, epsilon) for name in (CRAFTED, LOSS))
        gap = mean(best.tolist()) - mean(less.tolist())
        what = f"published epsilon, simulated coordinate less the loss, epsilon {epsilon:g}"
        yield Within(what, gap, low=0, reason="outperforms")
        shown.append(f"{best.mean():.2f} and {less.mean():.2f} of {epsilon:g}")
    return f"Found by the simulated coordinate and by the loss: {'; '.join(shown)}."


@check_any
def simulated_dimension(estimates: pd.DataFrame) -> Found:
    """With one start and one random coordinate for all models the simulated one shows more."""
    words = []
    for epsilon, ratio in _over_simulated(estimates):
        what = f"mu of one random over that of the simulated coordinate, epsilon {epsilon:g}"
        yield Within(what, ratio, high=1, reason="the simulated one is better")
        words.append(f"{ratio.value:.2f} at epsilon {epsilon:g}")
    each = [
        f"{ratio.value:.2f} at epsilon {epsilon:g}"
        for epsilon, ratio in _over_simulated(estimates, RANDOM, "nothing")
    ]
    return f"Ratio, {', '.join(words)}. Drawn for each model, {', '.join(each)}."


def _over_simulated(
    estimates: pd.DataFrame, adversary: str = ONE_RANDOM, knows: str = "start"
) -> Iterator[tuple[float, Estimate]]:
    """mu of an adversary over that of the simulated coordinate, by epsilon."""
    rows = expected(estimates, network=HOUSING, every=1, knows=knows)
    for epsilon in _audible(rows):
        one, best = (
            needed(select(rows, adversary=name, epsilon=epsilon))["share"].iloc[0]
            for name in (adversary, CRAFTED)
        )
        error = math.hypot(one.error, one.value / best.value * best.error) / best.value
        yield epsilon, Estimate(one.value / best.value, error, one.freedom)


def _periodic(estimates: pd.DataFrame, every: int, **region: Any) -> Found:
    """Share of mu that the simulated coordinate shows at this insertion period, by epsilon."""
    rows = select(_housing(estimates, "mu", every=every), adversary=CRAFTED)
    words = []
    for epsilon in _audible(rows):
        ratio = _ratio(select(rows, epsilon=epsilon))
        yield Within(f"mu over the accountant's, k = {every}, epsilon {epsilon:g}", ratio, **region)
        words.append(f"{ratio.value:.2f} at epsilon {epsilon:g}")
    return f"Share of mu: {', '.join(words)}."


seldom_inserted = check_any(
    _periodic, every=25, high=TIGHT, reason="not tight: less than nine tenths"
)
five_is_tight = check(_periodic, every=5, low=TIGHT, reason="tight: nine tenths at least")


@check
def less_frequent(estimates: pd.DataFrame) -> Found:
    """With fewer insertions among the steps the crafted gradient shows less of the same mu."""
    rows = expected(estimates, network=HOUSING, adversary=CRAFTED, knows="nothing")
    words = []
    for epsilon in _audible(rows):
        found = select(rows, epsilon=epsilon).set_index("every")["share"]
        periods = sorted(found.index)
        for few, many in pairwise(periods):
            yield Within(
                f"share of mu at k = {few:g} less that at k = {many:g}, epsilon {epsilon:g}",
                found[few] - found[many],
                low=0,
                reason="decreases",
            )
        listed = ", ".join(f"{found[k].value:.2f} at k = {k:g}" for k in periods)
        words.append(f"epsilon {epsilon:g}: {listed}")
    return f"Share of the accountant's mu, {'; '.join(words)}."


@check
def mu(estimates: pd.DataFrame) -> Found:
    """mu of the simulated coordinate is that of the insertions."""
    rows = select(_housing(estimates, "mu"), adversary=CRAFTED)
    rows = needed(rows[rows["models"] >= MODELS])
    shares = {epsilon: _ratio(part) for epsilon, part in rows.groupby("epsilon")}
    for epsilon, share in shares.items():
        yield below(
            f"mu over the accountant's, epsilon {epsilon:g}: {share.value:.3f} for 1",
            share,
            1.0,
            FIFTH,
            "what an insertion in every fifth step would show",
            tests=len(shares),
        )
    # All of mu is the most that is possible, so it is tested: no interval lies inside one point.
    return "Tests of all of mu against less."


@check
def reference(estimates: pd.DataFrame) -> Found:
    """The published estimate on the housing network is what an unused coordinate gives."""
    rows = select(_housing(as_stated(estimates), "epsilon"), adversary=CRAFTED)
    rows = needed(rows[rows["models"] >= MODELS])
    for epsilon, part in rows.groupby("epsilon"):
        if epsilon in IDLE[1]:
            yield Stated(
                f"published epsilon of {epsilon:g}",
                mean(part["value"].tolist()),
                stated_mean(IDLE[1][epsilon]),
                rounding=NEAR,
                rival=IDLE[5][epsilon][1],
            )
    return "Alternative tested against: an unused coordinate with an insertion in every fifth step."


@check
def shared_start(estimates: pd.DataFrame) -> Found:
    """With one draw of initial parameters one random coordinate is no longer far below."""
    for epsilon, ratio in _over_simulated(estimates):
        yield Within(
            f"mu of one random over that of the simulated coordinate, epsilon {epsilon:g}",
            ratio,
            low=0.5,
            reason="not far below: half, a limit of ours",
        )
    return "Expected audits, mean over the coordinates."


@check
def norm(estimates: pd.DataFrame) -> Found:
    """The baseline's record reaches the clipping norm in most steps."""
    rows = needed(select(estimates, part="norms", quantity="share clipped"))
    for every, part in rows.groupby("every"):
        yield Within(
            f"share of steps at the clipping norm, k = {every:g}",
            mean(part["value"].tolist(), least=0.0, most=1.0),
            low=0.5,
            reason="most",
        )
    return f"{rows['models'].min():.0f} trainings."


@check
def idle_law(estimates: pd.DataFrame) -> Found:
    """With an insertion in every k-th step the crafted gradient shows at most mu / sqrt(k)."""
    rows = select(estimates, part="housing", quantity="mu", start="fresh", adversary=CRAFTED)
    rows = needed(rows[(rows["every"] > 1) & (rows["epsilon"] >= 4)])
    for every, part in largest(rows, "models", SETTING).groupby("every"):
        errors = (part["high"] - part["value"]) / part["idle_mu"]
        ratio = pooled(part["value"] / part["idle_mu"], errors)
        what = f"mu over mu / sqrt(k), k = {every:g}"
        yield Within(what, ratio, high=1, reason="at most the law")
    return "Pooled over epsilon 4 and above, one repeat each."


@check
def agreement(estimates: pd.DataFrame) -> Found:
    """Scores of a small audit, trained here, are distributed as those of the large one."""
    rows = needed(select(estimates, part="housing", quantity="p_value"))
    least = min(1.0, rows["value"].min() * len(rows))
    models = int(rows["models"].min())
    power = comparison_power(models, shift=0.5, level=0.05, worlds=len(rows))
    yield Test(
        f"least of {len(rows)} p-values, times their number",
        least,
        power,
        "a shift of half a standard deviation of all",
    )
    return f"{models} new models per data set and adversary."
