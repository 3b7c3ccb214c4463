"""Whether cached scores have the distribution that training anew gives."""

import math

import pandas as pd

from hiddenstate.errors import InputError

LEVEL = 1e-3
"""False-positive rate of the verdict on a cell, its worlds together."""


def can_disagree(cached: int, anew: int) -> bool:
    """Whether so many scores per world can ever reject: two disjoint samples are the extreme."""
    return 2 / math.comb(cached + anew, anew) < LEVEL / 2


def compare(cached: pd.DataFrame, anew: pd.DataFrame) -> pd.DataFrame:
    """One row per world: two-sample Kolmogorov-Smirnov test of its scores, exact at small sizes.

    Columns: world, cached and anew (numbers of scores), distance, p_value, agree. Each world is
    tested at half of ``LEVEL``. Raises InputError where so few scores could never disagree.
    """
    from scipy import stats

    rows = []
    for world in ("in", "out"):
        one, other = (frame.loc[frame["world"] == world, "score"] for frame in (cached, anew))
        if not can_disagree(len(one), len(other)):
            raise InputError(
                f"models: got {len(other)} new and {len(one)} cached scores in world {world!r}; "
                f"expected enough that a test at level {LEVEL / 2:g} can reject"
            )
        test = stats.ks_2samp(one, other)
        rows.append(
            {
                "world": world,
                "cached": len(one),
                "anew": len(other),
                "distance": test.statistic,
                "p_value": test.pvalue,
                "agree": test.pvalue >= LEVEL / 2,
            }
        )
    return pd.DataFrame(rows)
