"""Audits with many canaries in one model."""

import math
from collections.abc import Iterator

import pandas as pd

from hiddenstate.papers.gradient_crafting.estimates import UNUSED
from hiddenstate.papers.gradient_crafting.grid import HOUSING
from hiddenstate.papers.gradient_crafting.summaries import ALONE, KNOWN, WHOLE
from hiddenstate.pipeline.estimates import select
from hiddenstate.pipeline.evidence import Estimate, Within, mean, mean_of, rarely
from hiddenstate.pipeline.family import Found, Lacking, check, needed


@check
def one_run_valid(estimates: pd.DataFrame) -> Found:
    """Where the level is attained, bounds from one model exceed the truth in at most 5 %."""
    rows = needed(select(estimates, part="one run validity", quantity="share above"))
    # "imitation" is private in each canary alone, where the stronger hypothesis fails.
    rows = needed(rows[rows["method"] != "imitation"])
    for mechanism, part in select(rows, kind="exact").groupby("method"):
        yield Within(
            f"largest probability to exceed the truth, {mechanism}",
            part["value"].max(),
            high=0.05,
            reason="5 %",
        )
    drawn = select(rows, kind="estimate")
    above, total = round((drawn["value"] * drawn["audits"]).sum()), int(drawn["audits"].sum())
    yield rarely("bounds above the truth, normal scores", above, total, 0.05, 0.06)
    return "Mechanisms that attain the hypothesis, or nearly."


def _one_run(estimates: pd.DataFrame, **levels: str) -> Iterator[tuple[float, pd.Series, Estimate]]:
    """Epsilon, what one model with the most canaries shows, the bound of 2 x 100 models."""
    rows = select(estimates, part="one run", method=UNUSED, **levels)
    few = needed(select(estimates, part="few", quantity="epsilon", method="valid", models=100))
    for epsilon, part in needed(rows).groupby("epsilon"):
        target = select(few, epsilon=epsilon)["value"]
        if len(target):
            yield float(epsilon), part.loc[part["canaries"].idxmax()], mean(target.tolist())


@check
def one_run(estimates: pd.DataFrame) -> Found:
    """Under Gaussian DP of the whole mechanism one model shows as much as 100 per data set."""
    levels = {"quantity": "epsilon", "hypothesis": WHOLE, "rule": KNOWN}
    for epsilon, best, target in _one_run(estimates, **levels):
        # The median of so many audits, from the middle 80 % of them as if they were normal.
        sd = (best["high"] - best["low"]) / 2.56
        found = Estimate(best["value"], 1.25 * sd / math.sqrt(best["audits"]))
        what = f"{best['canaries']:,.0f} canaries' bound less 100 models', epsilon {epsilon:g}"
        yield Within(what, found - target, low=0, reason="as much")
    return "Simulated unused coordinates, known null law."


@check
def one_run_networks(estimates: pd.DataFrame) -> Found:
    """One training of a larger network shows as much as 2 x 100 models of the small one."""
    rows = select(estimates, part="one run", quantity="mean epsilon", rule=KNOWN)
    rows = rows[~rows["method"].isin([UNUSED, HOUSING]) & (rows["canaries"] >= 1000)]
    few = needed(select(estimates, part="few", quantity="epsilon", method="valid", models=100))
    words = []
    for (network, epsilon), part in needed(rows).groupby(["method", "epsilon"], sort=False):
        target = select(few, epsilon=epsilon)["value"]
        if target.empty:
            continue
        best = part.loc[part["canaries"].idxmax()]
        # Audits are independent trainings, with a start each.
        found = mean_of(best["value"], best["high"] - best["value"], int(best["audits"]))
        what = f"{network}, {best['canaries']:,.0f} canaries, less 100 models', epsilon {epsilon:g}"
        yield Within(what, found - mean(target.tolist()), low=0, reason="as much")
        words.append(f"{network} {found.value:.2f} of {epsilon:g} ({best['audits']:.0f} audits)")
    return f"Mean bounds: {', '.join(words)}; null law simulated."


@check
def one_run_alone(estimates: pd.DataFrame) -> Found:
    """Under Gaussian DP of each canary alone no bound can show as much at epsilon 24."""
    found = {e: rest for e, *rest in _one_run(estimates, quantity="ceiling", hypothesis=ALONE)}
    if 24.0 not in found:
        raise Lacking
    ceiling, target = found[24.0]
    yield Within(
        f"{ceiling['canaries']:,.0f} canaries' ceiling less 100 models' bound, epsilon 24",
        Estimate(ceiling["value"], 0.0) - target,
        high=0,
        reason="less",
    )
    return "The ceiling is what no valid bound's median exceeds."
