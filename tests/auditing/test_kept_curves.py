"""Trade-off curves in tables."""

import numpy as np
import pandas as pd
import pytest

from hiddenstate.accounting import linear, pld
from hiddenstate.auditing.kept_curves import curve_rows, read_curve

CURVES = {
    "composed": (pld, (1.0, 0.1, 30), "out"),
    "other null": (pld, (1.0, 0.1, 30), "in"),
    "last iterate": (linear, (0.7, 0.01, 300), "out"),
}


def made(name):
    accountant, mechanism, null = CURVES[name]
    return accountant.tradeoff_curve(*mechanism, null=null, lines=101)


@pytest.mark.parametrize("name", CURVES)
def test_a_kept_curve_is_a_lower_bound_and_near(name):
    curve = made(name)
    kept = read_curve(curve_rows(curve))
    at = np.sort(np.concatenate((curve.fpr, kept.fpr, np.linspace(0, 1, 4001))))
    assert np.all(kept(at) <= curve(at) + 1e-15)
    along = np.linspace(-1, 1, 4001)
    assert np.max(curve.total(along) - kept.total(along)) < 2e-7


def test_a_kept_curve_has_numbers_of_single_precision():
    kept = curve_rows(made("composed"))
    pd.testing.assert_frame_equal(kept, kept.astype(np.float32).astype(float))
    assert kept["fpr"].iloc[-1] == 1 and kept["fnr"].iloc[-1] == 0
