"""Gaussian differential privacy against the integral that defines its epsilon."""

import math
from functools import partial

import deltas
import mpmath
import numpy as np
import pytest

from hiddenstate.accounting import (
    balls_and_bins,
    bounds,
    gaussian,
    linear,
    ordered,
    pld,
    weighted,
)
from hiddenstate.accounting.setting import Setting
from hiddenstate.errors import InputError
from hiddenstate.sampling import BallsAndBins, Cyclic, Poisson


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


@pytest.mark.parametrize(
    ("mu", "delta"),
    [(114.55923148823423, 0.9999999659204143), (1e4, 4.8e-13), (1e6, 1e-5), (19.0, 1 - 3e-14)],
)
def test_epsilon_of_a_large_mu_is_rounded_down(mu, delta):
    """They were up to 138 above the truth, as 1e-9 is less than its rounding."""
    with mpmath.workdps(60):
        epsilon = mpmath.mpf(float(gaussian.epsilon_below(mu, delta)))
        exact = partial(deltas.gaussian, mu)
        assert epsilon == 0 or exact(epsilon) >= delta
        if delta < 0.5:
            assert exact(epsilon * (1 + 2e-12)) <= delta
    (alone,) = gaussian.epsilon_below([mu], delta)
    assert alone == epsilon


def run(sampling, noise, steps, **options):
    return Setting(sampling=sampling, noise_multiplier=noise, steps=steps, **options)


# What knows its epsilon exactly, of one step at a noise multiplier.
KNOWN = {
    "weighted": lambda noise, delta: weighted.epsilon(noise, 1.0, [1.0], delta),
    "ordered": lambda noise, delta: ordered.epsilon(
        run(Cyclic(5), 2 * noise, 1, records=5, batch_size=5.0), delta
    ),
    "balls and bins": lambda noise, delta: balls_and_bins.bracket(noise, 1, 1, delta),
    "every step": lambda noise, delta: (0, bounds._every_step(run(Poisson(0.5), noise, 1), delta)),
    "known batches": lambda noise, delta: (
        0,
        bounds._known_batches(run(BallsAndBins(2), noise, 2), delta),
    ),
}


@pytest.mark.parametrize("name", KNOWN)
@pytest.mark.parametrize(
    ("mu", "delta"),
    [
        (1.048505842514332e-06, 4.182933082513141e-07),
        (4.38014624795567e-05, 1.7473230003883808e-05),
        (0.1, 0.03987761167674492 * (1 - 1e-12)),
    ],
)
def test_exact_epsilons_near_the_total_variation_are_on_their_sides(name, mu, delta):
    """Ends were a share of epsilon away, which is less than rounding there."""
    noise = 1 / mu
    with mpmath.workdps(60):
        exact = partial(deltas.gaussian, 1 / mpmath.mpf(noise))
        lower, upper = KNOWN[name](noise, delta)
        assert lower == 0 or exact(lower) >= delta
        assert exact(upper) <= delta


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
    for wrong in (math.nan, [1.0, math.nan], 1e160, [0.5, math.inf]):
        with pytest.raises(InputError, match=r"mu: got (nan|1e\+160|inf); expected a number of at"):
            gaussian.epsilon(wrong, 1e-5)
    assert gaussian.epsilon(1e-160, 1e-5) == 0
    low, high = gaussian.bracket(1e-160, 1e-60)
    assert low == 0 <= high < 1e-48


@pytest.mark.parametrize("mu", [1e-40, 2.5e-20, 1e-12, 3e-7, 0.01, 1.0, 30.0, 1e4])
@pytest.mark.parametrize("share", [1e-200, 1e-3, 0.5, 1 - 1e-9, 1 - 1e-13])
def test_all_inversions_keep_their_digits(mu, share):
    """Mu was 18,800 times too large at epsilon 1e-30, and epsilon 0 at mu 1e-14."""
    with mpmath.workdps(120):
        exact = partial(deltas.gaussian, mpmath.mpf(mu))
        delta = float(exact(0) * mpmath.mpf(share))
        if not 0 < delta < 1:
            pytest.skip("no double")
        epsilon = float(gaussian.epsilon(mu, delta))
        low, high = gaussian.bracket(mu, delta)
        assert low == 0 or exact(low) >= delta
        assert exact(high) <= delta
        assert low <= epsilon <= high * (1 + 1e-15)
        # No wider than what rounding of delta asks for, near the total variation.
        assert high - low <= 3e-9 * high or exact(high) >= delta * (1 - 3e-12)
        if epsilon:
            given = linear.last_iterate_delta(1 / mu, 1.0, 1, epsilon)
            # A unit in the last place of epsilon is mu as many of delta.
            assert given / exact(epsilon) == pytest.approx(1, rel=1e-9 + 1e-12 * mu)
            back = deltas.gaussian(gaussian.mu(epsilon, delta), epsilon)
            assert back / delta == pytest.approx(1, rel=1e-8)


@pytest.mark.parametrize("mu", [1e-30, 1e-3, 1.0, 20.0])
@pytest.mark.parametrize("epsilon", [-1e3, -1.0, -1e-30, 1e-30])
def test_delta_at_negative_epsilon(mu, epsilon):
    with mpmath.workdps(120):
        exact = deltas.gaussian(mpmath.mpf(mu), mpmath.mpf(epsilon))
        found = linear.last_iterate_delta(1 / mu, 1.0, 1, epsilon)
        assert found / exact == pytest.approx(1, rel=1e-12)


def test_the_largest_mu_is_answered():
    low, high = gaussian.bracket(1e50, 1e-5)
    assert low <= 5e99 <= high <= 5.00001e99
    assert gaussian.epsilon(1e50, 1e-5) == pytest.approx(5e99)
    assert 0 < gaussian.epsilon_below(1e50, 1e-5) <= 5e99
    with pytest.raises(
        InputError, match=r"^epsilon: got 1e\+300; expected a number below, such that the"
    ):
        gaussian.mu(1e300, 1e-5)
    with pytest.raises(
        InputError, match=r"^epsilon: got 1e-300; expected a number above, such that the"
    ):
        gaussian.mu(1e-300, 1e-200)
