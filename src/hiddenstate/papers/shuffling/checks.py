"""Measurements behind the claims of shuffling, from its estimates."""

import math
from collections.abc import Iterator
from itertools import pairwise

import pandas as pd

from hiddenstate.papers.shuffling.simulations import ALL, LAST
from hiddenstate.pipeline.estimates import select
from hiddenstate.pipeline.evidence import Estimate, Interval, Within, rarely
from hiddenstate.pipeline.family import Found, Lacking, check, needed

AS_MUCH = 0.25
"""Share of what linear losses show by which a network may differ and show as much."""

MANY = 100
"""Batches of an epoch from which on the last iterate is expected to show less than the claim."""


@check
def overestimated(estimates: pd.DataFrame) -> Found:
    """An audit finds more than the claimed epsilon."""
    rows = needed(select(estimates, part="simulated", epochs=1, record="swapped"))
    rows = rows[rows["claim"] == rows["claim"].min()]
    rows = rows[rows["batches"] == rows["batches"].max()]
    audit = needed(select(rows, method=ALL)).iloc[0]
    ratio = audit["value"] / audit["claim"]
    most = needed(select(rows, method="composition"))["value"].item() / audit["claim"]
    yield Within(
        f"found over claimed {audit['claim']:g}, {audit['batches']:g} batches, swapped record",
        Interval(ratio, ratio, most, audit["confidence"]),
        low=1,
        reason="more than claimed",
    )
    return "The least claim with the most batches: a valid bound, and at most what is proven."


def _by_batches(estimates: pd.DataFrame, method: str) -> Iterator[tuple[str, float, pd.Series]]:
    """Words, claim, and values by batches of one epoch."""
    rows = needed(select(estimates, part="simulated", epochs=1, method=method))
    for (record, claim), part in rows.groupby(["record", "claim"]):
        values = part.set_index("batches")["value"].sort_index()
        yield f"{record} record, claimed {claim:g}", float(claim), values


@check
def not_uniform(estimates: pd.DataFrame) -> Found:
    """The factor between what is shown and claimed differs between settings and adversaries."""
    shown = {
        method: {
            (words, n): value / claim
            for words, claim, values in _by_batches(estimates, method)
            for n, value in values.items()
        }
        for method in ("largest sum", "linear losses")
    }
    every, last = shown["largest sum"], shown["linear losses"]
    # Where nothing is shown there is no factor.
    every = {setting: factor for setting, factor in every.items() if factor > 0}
    most = max(every, key=lambda setting: every[setting], default=None)
    if most is None or not last[most]:
        raise Lacking
    yield Within(
        "largest over smallest factor of all settings, all iterates",
        max(every.values()) / min(every.values()),
        low=1.5,
        reason="not uniform",
    )
    yield Within(
        f"factor of all iterates over that of the last one, {most[1]} batches, {most[0]}",
        every[most] / last[most],
        low=1.5,
        reason="not uniform",
    )
    return "Factors of what is shown at least, computed, over the claim."


@check
def grows(estimates: pd.DataFrame) -> Found:
    """What all iterates show at least grows with the number of batches."""
    for words, _, values in _by_batches(estimates, "largest sum"):
        for fewer, more in pairwise(values[values > 0].index):
            ratio = values[more] / values[fewer]
            yield Within(f"{more} over {fewer} batches, {words}", ratio, low=1)
    return "The largest sum's bound, computed."


@check
def exceeded(estimates: pd.DataFrame) -> Found:
    """At the least claim all iterates show more than is claimed."""
    least = min(claim for _, claim, _ in _by_batches(estimates, "largest sum"))
    for words, claim, values in _by_batches(estimates, "largest sum"):
        for n, value in values.items() if claim == least else ():
            yield Within(f"{n} batches, {words}: over the claim", value / claim, low=1)
    return "The largest sum's bound, computed."


@check
def last_iterate(estimates: pd.DataFrame) -> Found:
    """With many batches the last iterate of linear losses shows less than is claimed."""
    for words, claim, values in _by_batches(estimates, "linear losses"):
        for n, value in values[values.index >= MANY].items():
            yield Within(f"{n} batches, {words}: of the claim", value / claim, high=1)
    return f"One epoch of {MANY} batches or more, computed."


@check
def valid(estimates: pd.DataFrame) -> Found:
    """Few lower bounds are above what they must not exceed."""
    keys = ["claim", "batches", "epochs", "order", "record"]
    audits = needed(select(estimates, method=[ALL, LAST]))
    truths = select(estimates, method=["composition", "linear losses"])
    truths = truths.drop_duplicates([*keys, "method"])
    limit = truths.assign(method=truths["method"].map({"composition": ALL, "linear losses": LAST}))
    both = audits.merge(
        limit[[*keys, "method", "value"]], on=[*keys, "method"], suffixes=("", "_most")
    )
    # The last iterate of networks is not that of linear losses.
    both = both[(both["part"] != "trained") | (both["method"] == ALL)]
    above = int((both["value"] > both["value_most"]).sum())
    yield rarely("bounds above the truth", above, len(both), 0.05, 0.12)
    return "Of all iterates above composition, of the last one above its exact epsilon."


@check
def networks(estimates: pd.DataFrame) -> Found:
    """Networks show an adversary of all iterates as much as linear losses do."""
    trained = needed(select(estimates, part="trained", method=ALL))
    for row in trained.itertuples():
        alike = select(estimates, part="ideal", method=ALL, claim=row.claim, order=row.order)
        ideal = needed(alike)["value"]
        if not ideal.mean():
            raise Lacking
        n = len(ideal)
        # One audit beside the mean of n simulated ones: both scatter.
        less = Estimate(
            row.value / ideal.mean(), ideal.std() / ideal.mean() * math.sqrt(1 + 1 / n), n - 1
        )
        yield Within(
            f"found over that of linear losses, claimed {row.claim:g}, order {row.order}",
            less,
            low=1 - AS_MUCH,
            high=1 + AS_MUCH,
            reason="as much",
        )
    return "One audit each, beside simulated ones of as many models."
