"""Changes of sign against SciPy's root finder."""

import math

import numpy as np
import pytest
from scipy import optimize, special

from hiddenstate.accounting import roots

FUNCTIONS = {
    "line": lambda x, r: x - r,
    "falling": lambda x, r: math.exp(-x) - math.exp(-r),
    "cube": lambda x, r: (x - r) ** 3,
    "flat": lambda x, r: math.atan(1e4 * (x - r)),
    "steep": lambda x, r: math.expm1(min(40 * (x - r), 600)),
    "tail": lambda x, r: float(special.log_ndtr(-x) - special.log_ndtr(-r)),
    "jump": lambda x, r: -1.0 if x < r else 2.0,
    "endless": lambda x, r: -math.inf if x > r + 0.1 else r - x,
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_both_ends_are_near_the_root_and_on_its_sides(name):
    draw = np.random.default_rng(0)
    calls = []
    for _ in range(200):
        root = float(draw.uniform(-3, 3))
        low, high = root - float(10 ** draw.uniform(-3, 1)), root + float(10 ** draw.uniform(-3, 1))

        def function(x, root=root):
            calls.append(x)
            return FUNCTIONS[name](x, root)

        ends = roots.between(function, low, high, absolute=1e-12)
        assert 0 <= ends[1] - ends[0] <= 1e-12 + 1e-15 * max(map(abs, ends))
        for end, start in zip(ends, (low, high), strict=True):
            assert (function(end) > 0) == (function(start) > 0)
        if name not in ("jump", "endless", "cube"):  # which SciPy does not end with
            expected = optimize.brentq(lambda x, r=root: FUNCTIONS[name](x, r), low, high)
            assert ends[0] - 1e-9 <= expected <= ends[1] + 1e-9
    most = {"jump": 60, "cube": 80}.get(name, 35)
    assert len(calls) / 200 < most


def test_ends_of_one_sign_are_refused():
    for function in (lambda x: x + 1, lambda x: -x - 1, lambda x: math.nan):
        with pytest.raises(ValueError, match="no change of sign"):
            roots.between(function, 0.0, 1.0)
    low, high = roots.between(lambda x: 2 - x * x, 1.0, 2.0)
    assert low**2 <= 2 <= high**2
    assert high - low <= 2e-15
