"""Whether cached scores have the distribution that training anew gives."""

import pandas as pd
from scipy import stats

LEVEL = 1e-3
"""False-positive rate of the verdict on a cell, its worlds together."""


def compare(cached: pd.DataFrame, anew: pd.DataFrame) -> pd.DataFrame:
    """One row a world: two-sample Kolmogorov-Smirnov test of its scores, exact at small sizes.

    Columns: world, cached and anew (numbers of scores), distance, p_value, agree. Each world is
    tested at half of ``LEVEL``.
    """
    rows = []
    for world in ("in", "out"):
        one, other = (frame.loc[frame["world"] == world, "score"] for frame in (cached, anew))
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
