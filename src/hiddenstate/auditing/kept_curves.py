"""Trade-off curves in tables, in single precision: half as large, and still lower bounds."""

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from hiddenstate.accounting.tradeoff import TradeoffCurve

ALL_LINES, FEW_LINES = 1001, 301
"""Supporting lines of a curve that is kept alone, and of each of many.

The fewer lower a curve by less than 2e-4, from ten steps on.
"""


def curve_rows(curve: TradeoffCurve) -> pd.DataFrame:
    """The curve's points, columns ``fpr`` and ``fnr``, both rounded down.

    A trade-off function descends, so a point to the left of the curve or under it lies below it.
    """
    return pd.DataFrame({"fpr": _down(curve.fpr), "fnr": _down(curve.fnr)})


def read_curve(table: pd.DataFrame, fpr: str = "fpr", fnr: str = "fnr") -> TradeoffCurve:
    """The curve through the points of these columns."""
    return TradeoffCurve(table[fpr].to_numpy(dtype=float), table[fnr].to_numpy(dtype=float))


def _down(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """The largest numbers of single precision that are no larger."""
    single = values.astype(np.float32)
    lower = np.nextafter(single, np.float32(-np.inf))
    return np.where(single > values, lower, single).astype(float)
