"""Numbers in print are on the safe side of what is proven."""

import math
from decimal import Decimal

import pytest

from hiddenstate.rounding import shown


@pytest.mark.parametrize("value", [1.23456789, 9.99999, 0.000123456789, 1234.56789, 0.0, 10.0])
def test_shown_numbers_are_rounded_to_the_safe_side(value):
    up, down = Decimal(shown(value, "upper")), Decimal(shown(value, "lower"))
    assert down <= Decimal(value) <= up
    assert up - down <= Decimal(value) * Decimal("1e-3")
    up, down = (Decimal(shown(value, kind, decimals=3)) for kind in ("upper", "lower"))
    assert down <= Decimal(value) <= up
    assert up - down <= Decimal("1e-3")


def test_what_is_a_short_decimal_stays_it():
    for kind in ("upper", "lower", "exact"):
        assert shown(0.602, kind, decimals=3) == "0.602"
        assert shown(0.1, kind, 2) == "0.1"


def test_an_estimate_is_rounded_to_the_nearest_and_nothing_is_two_dashes():
    assert shown(0.0504, "exact", 2) == "0.05"
    assert shown(0.0504, "upper", 2) == "0.051"
    assert shown(math.nan, "upper") == shown(None) == "--"


def test_numbers_without_end_and_huge_ones_are_shown():
    for kind in ("lower", "upper", "exact"):
        assert shown(math.inf, kind, decimals=3) == shown(math.inf, kind) == "inf"
        assert shown(-0.0, kind, decimals=3) == "0.000"
        assert float(shown(1e300, kind, decimals=3)) == 1e300
