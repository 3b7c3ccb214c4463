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


@pytest.mark.parametrize(("trials", "rate", "sure"), [(0, 0.3, 0), (0, 1, 0), (3, 0, 0), (3, 1, 3)])
def test_what_is_certain_has_all_the_mass(trials, rate, sure):
    """No trials, or none that can come out otherwise."""
    mass = binomial.log_mass(np.arange(trials + 1.0), float(trials), rate)
    np.testing.assert_array_equal(mass, np.where(np.arange(trials + 1) == sure, 0.0, -math.inf))
