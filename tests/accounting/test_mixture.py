import math

import numpy as np
import pytest

from hiddenstate.accounting.linear import last_iterate
from hiddenstate.accounting.mixture import GaussianMixture


def test_mixture_refuses_what_breaks_its_order():
    zero = np.zeros(1)
    with pytest.raises(ValueError, match="same distribution"):
        GaussianMixture(zero, zero, 1.0)
    with pytest.raises(ValueError, match="non-negative"):
        GaussianMixture(np.array([-1.0, 1.0]), np.log([0.5, 0.5]), 1.0)
    with pytest.raises(ValueError, match="noise_std"):
        GaussianMixture(np.array([1.0]), zero, 0.0)


def test_threshold_inverts_loss():
    pair = last_iterate(0.4, 0.02, 500)
    y = np.linspace(-60, 120, 50)
    np.testing.assert_allclose(pair.threshold(pair.loss(y)), y, atol=1e-6)
    assert pair.least_loss == pytest.approx(500 * math.log(0.98))
    assert pair.threshold(pair.least_loss) == -math.inf


def test_delta_at_both_ends_of_the_line():
    pair = last_iterate(1.0, 0.1, 3)
    # The loss is never below 3 log 0.9, so the whole line is the best set there.
    assert pair.delta(-5.0, null="out") == pytest.approx(1 - math.exp(-5))
    assert pair.delta(5.0, null="in") == 0
    assert pair.delta(0.0, null="out") == pytest.approx(pair.delta(0.0, null="in"), rel=1e-12)


@pytest.mark.parametrize("rate", [1e-6, 0.1, 1 - 1e-6])
@pytest.mark.parametrize("sigma", [0.3, 1.0, 50.0])
def test_the_threshold_of_one_step_is_where_the_loss_is_epsilon(rate, sigma):
    """It has a closed form; the losses reach from just above the least one to many hundreds."""
    pair = last_iterate(sigma, rate, 1)
    above = np.geomspace(1e-9, 600, 60)
    found = pair.loss(pair.threshold(pair.least_loss + above)) - pair.least_loss
    np.testing.assert_allclose(found, above, rtol=1e-9, atol=1e-14 * abs(pair.least_loss))
    assert np.isneginf(pair.threshold(np.array([pair.least_loss, -700.0]))).all()
