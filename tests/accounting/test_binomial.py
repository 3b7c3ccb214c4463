import math

import numpy as np
import pytest

from hiddenstate.accounting import binomial


def test_log_binomial():
    for trials, rate in [(1, 0.3), (2, 1e-5), (40, 0.5), (100_000, 1e-5), (100_000, 0.3)]:
        mass = binomial.log_binomial(trials, rate)
        assert mass.shape == (trials + 1,)
        assert math.fsum(np.exp(mass)) == pytest.approx(1, abs=1e-11)
        # The ratio of neighbours is explicit, and checks every term far into the tails.
        k = np.arange(trials)
        ratio = np.log((trials - k) / (k + 1)) + math.log(rate) - math.log1p(-rate)
        scale = np.maximum(1, np.abs(mass[1:]))
        assert np.max(np.abs(np.diff(mass) - ratio) / scale) < 1e-10
