"""Trade-off curves in tables."""

import numpy as np
import pandas as pd
import pytest

from hiddenstate.accounting import linear, pld
from hiddenstate.auditing.kept_curves import curve_rows, read_curve

CURVES = {
    "composed": pld.tradeoff_curve(1.0, 0.1, 30, null="out", lines=101),
    "other null": pld.tradeoff_curve(1.0, 0.1, 30, null="in", lines=101),
    "last iterate": linear.tradeoff_curve(0.7, 0.01, 300, null="out", lines=101),
}


@pytest.mark.parametrize("name", CURVES)
def test_a_kept_curve_is_a_lower_bound_and_near(name):
    curve = CURVES[name]
    kept = read_curve(curve_rows(curve))
    at = np.sort(np.concatenate((curve.fpr, kept.fpr, np.linspace(0, 1, 4001))))
    assert np.all(kept(at) <= curve(at) + 1e-15)
    along = np.linspace(-1, 1, 4001)
    assert np.max(curve.total(along) - kept.total(along)) < 2e-7


def test_a_kept_curve_has_numbers_of_single_precision():
    kept = curve_rows(CURVES["composed"])
    pd.testing.assert_frame_equal(kept, kept.astype(np.float32).astype(float))
    assert kept["fpr"].iloc[-1] == 1 and kept["fnr"].iloc[-1] == 0
