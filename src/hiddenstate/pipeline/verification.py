"""Test that cached scores have the distribution that training again gives."""

import math
from functools import cache
from typing import Any

import numpy as np
import pandas as pd

from hiddenstate.errors import InputError

LEVEL = 1e-3
"""False-positive rate of the verdict on a cell, all its comparisons together."""


def can_disagree(cached: int, new: int, comparisons: int = 2) -> bool:
    """True if so many scores can ever reject: two disjoint samples are the extreme."""
    return 2 / math.comb(cached + new, new) < LEVEL / comparisons


@cache
def comparison_power(scores: int, shift: float, level: float, worlds: int = 2) -> float:
    """Probability that comparing this many data sets finds a shift of all, by simulation.

    The least of the Kolmogorov-Smirnov tests' p-values, times their number, is below the level.
    Each data set has ``scores`` normal scores, shifted by so many of their deviations, and as many
    to compare with. Standard error: at most 0.03.
    """
    from scipy import stats

    rng, found = np.random.default_rng(0), 0
    for _ in range(300):
        one, other = rng.normal(shift, 1, (worlds, scores)), rng.normal(0, 1, (worlds, scores))
        tests = [stats.ks_2samp(a, b, method="asymp") for a, b in zip(one, other, strict=True)]
        found += worlds * min(test.pvalue for test in tests) < level
    return found / 300


SAME = 1e-6
"""Most that a number computed again may differ, as a share of the largest of its column."""
FEW = 1e-3
"""Share of a column's numbers that may differ more: another processor rounds some the other way."""


def equal(cached: pd.DataFrame, new: pd.DataFrame) -> dict[str, float | int | bool]:
    """Compare a result that was computed again: rows, the largest differing share, and agreement.

    Columns and rows have to be the same, in the same order. Words have to be equal, numbers within
    ``SAME``; of each column a share of at most ``FEW`` may differ.
    """
    found: dict[str, float | int | bool] = {"rows": len(cached), "differing": 1.0, "agree": False}
    if list(cached) != list(new) or len(cached) != len(new):
        return found
    shares = [0.0]
    for name in cached:
        one, other = cached[name].to_numpy(), new[name].to_numpy()
        if one.dtype.kind in "fiu" and other.dtype.kind in "fiu":
            one, other = one.astype(float), other.astype(float)
            finite = np.abs(one[np.isfinite(one)])
            room = SAME * float(finite.max(initial=0.0))
            differs = ~np.isclose(one, other, rtol=0.0, atol=room, equal_nan=True)
        else:
            differs = (one != other) & ~(pd.isna(one) & pd.isna(other))
        shares.append(float(np.mean(differs)) if len(differs) else 0.0)
    return found | {"differing": max(shares), "agree": max(shares) <= FEW}


def _by(cached: pd.DataFrame) -> list[str]:
    """Columns that tell the scores apart which are compared."""
    return [*(["adversary"] if "adversary" in cached else []), "world"]


def refuse_few(cached: pd.DataFrame, models: int) -> None:
    """InputError where so many new models per data set and repeat are too few to ``compare``."""
    groups = cached.groupby(_by(cached))
    for key, one in groups:
        _refuse_few(key, len(one), models * one["repeat"].nunique(), len(groups))


def _refuse_few(key: tuple[Any, ...], cached: int, new: int, comparisons: int) -> None:
    if not can_disagree(cached, new, comparisons):
        raise InputError(
            f"models: got {new} new and {cached} cached scores of one data set "
            f"({', '.join(map(str, key))}); expected enough that a test at level "
            f"{LEVEL / comparisons:g} can reject"
        )


def compare(cached: pd.DataFrame, new: pd.DataFrame) -> pd.DataFrame:
    """Two-sample Kolmogorov-Smirnov tests, exact at small sizes; one row for each.

    The scores of each data set are compared, where frames have a column ``adversary`` those of each
    adversary by itself: pooled, one who deviates would be lost among others. Columns: adversary (if
    there), world, cached and new (numbers of scores), distance, p_value (times the number of
    comparisons, Bonferroni: it holds however the scores depend on each other), agree (p_value at
    least ``LEVEL``). Raises InputError where so few scores could never disagree, and where the
    adversaries differ.
    """
    from scipy import stats

    by = _by(cached)
    pairs = [dict(list(frame.groupby(by)["score"])) for frame in (cached, new)]
    if pairs[0].keys() != pairs[1].keys():
        raise InputError(
            f"{' and '.join(by)}: got new scores of {sorted(pairs[1])}; expected those of "
            f"{sorted(pairs[0])}, as cached"
        )
    rows = []
    for key, one in pairs[0].items():
        other = pairs[1][key]
        _refuse_few(key, len(one), len(other), len(pairs[0]))
        test = stats.ks_2samp(one, other)
        p_value = min(1.0, test.pvalue * len(pairs[0]))
        rows.append(
            dict(zip(by, key, strict=True))
            | {"cached": len(one), "new": len(other), "distance": test.statistic}
            | {"p_value": p_value, "agree": p_value >= LEVEL}
        )
    return pd.DataFrame(rows)
