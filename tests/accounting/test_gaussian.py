"""Gaussian differential privacy against the integral that defines its epsilon."""

import math

import mpmath
import numpy as np
import pytest

from hiddenstate.accounting import gaussian, pld
from hiddenstate.errors import InputError


def hockey_stick(mu: float, epsilon: float):
    """Delta of N(mu, 1) against N(0, 1): the integral of (p - e^epsilon q)+, to 25 digits."""
    with mpmath.workdps(30):
        mu, epsilon = mpmath.mpf(mu), mpmath.mpf(epsilon)
        start = epsilon / mu + mu / 2
        return mpmath.quad(
            lambda x: mpmath.npdf(x - mu) - mpmath.exp(epsilon) * mpmath.npdf(x),
            [start + gap for gap in (0, 1, 2, 4, 8, 16, 32)],
        )


@pytest.mark.parametrize("delta", [1e-5, 1e-3])
@pytest.mark.parametrize("mu", [0.01, 0.2, 1.0, 2.5, 6.0])
def test_epsilon_of_mu_is_rounded_down_from_the_integral(mu, delta):
    epsilon = float(gaussian.epsilon_below(mu, delta))
    assert hockey_stick(mu, epsilon) >= delta
    assert hockey_stick(mu, epsilon + 2e-9) <= delta
    # dp-accounting's is an upper bound.
    assert 0 <= pld.epsilon(1 / mu, 1.0, 1, delta) - epsilon < 2e-3
    assert gaussian.mu(epsilon, delta) == pytest.approx(mu, rel=1e-6)


def test_no_leak_is_epsilon_zero():
    assert gaussian.epsilon_below(0.0, 1e-5) == 0
    # Total variation 2 Phi(mu / 2) - 1 = 0.4 mu is below delta.
    assert gaussian.epsilon_below(2e-5, 1e-5) == 0
    assert gaussian.epsilon_below(3e-5, 1e-5) >= 0


def test_any_shape_and_no_number():
    mus = np.array([[0.5, -1.0], [2.0, 0.5]])
    found = gaussian.epsilon(mus, 1e-5)
    assert found.shape == (2, 2)
    assert found[0, 1] == 0 and found[0, 0] == found[1, 1] == gaussian.epsilon(0.5, 1e-5)
    # It was 0, as for any mu of at most 0.
    for wrong in (math.nan, [1.0, math.nan]):
        with pytest.raises(InputError, match="mu: got nan; expected numbers"):
            gaussian.epsilon(wrong, 1e-5)
