"""Whether cached scores have the distribution that training again gives."""

import math
from functools import cache

import numpy as np
import pandas as pd

from hiddenstate.errors import InputError

LEVEL = 1e-3
"""False-positive rate of the verdict on a cell, all its comparisons together."""


def can_disagree(cached: int, new: int, adversaries: int = 1) -> bool:
    """Whether so many scores per world can ever reject: two disjoint samples are the extreme."""
    return 2 / math.comb(cached + new, new) < LEVEL / (2 * adversaries)


@cache
def comparison_power(scores: int, shift: float, level: float, worlds: int = 2) -> float:
    """Probability that comparing this many worlds finds a shift of all, by simulation.

    The least of the Kolmogorov-Smirnov tests' p-values, times their number, is below the level.
    Each world has ``scores`` normal scores, shifted by so many of their deviations, and as many to
    compare with. Standard error: at most 0.03.
    """
    from scipy import stats

    rng, found = np.random.default_rng(0), 0
    for _ in range(300):
        one, other = rng.normal(shift, 1, (worlds, scores)), rng.normal(0, 1, (worlds, scores))
        tests = [stats.ks_2samp(a, b, method="asymp") for a, b in zip(one, other, strict=True)]
        found += worlds * min(test.pvalue for test in tests) < level
    return found / 300


def compare(cached: pd.DataFrame, new: pd.DataFrame) -> pd.DataFrame:
    """Two-sample Kolmogorov-Smirnov tests, exact at small sizes; one row for each.

    The scores of each world are compared, where frames have a column ``adversary`` those of each
    adversary by itself: pooled, one who deviates would be lost among others. Columns: adversary (if
    there), world, cached and new (numbers of scores), distance, p_value (times the number of
    comparisons, Bonferroni: it holds however the scores depend on each other), agree (p_value at
    least ``LEVEL``). Raises InputError where so few scores could never disagree, and where the
    adversaries differ.
    """
    from scipy import stats

    by = [*(["adversary"] if "adversary" in cached else []), "world"]
    pairs = [dict(list(frame.groupby(by)["score"])) for frame in (cached, new)]
    if pairs[0].keys() != pairs[1].keys():
        raise InputError(
            f"{' and '.join(by)}: got new scores of {sorted(pairs[1])}; expected those of "
            f"{sorted(pairs[0])}, as cached"
        )
    rows = []
    for key, one in pairs[0].items():
        other = pairs[1][key]
        if not can_disagree(len(one), len(other), len(pairs[0]) // 2):
            raise InputError(
                f"models: got {len(other)} new and {len(one)} cached scores in world {key[-1]!r}; "
                f"expected enough that a test at level {LEVEL / len(pairs[0]):g} can reject"
            )
        test = stats.ks_2samp(one, other)
        p_value = min(1.0, test.pvalue * len(pairs[0]))
        rows.append(
            dict(zip(by, key, strict=True))
            | {"cached": len(one), "new": len(other), "distance": test.statistic}
            | {"p_value": p_value, "agree": p_value >= LEVEL}
        )
    return pd.DataFrame(rows)
