from functools import cache

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import norm

from hiddenstate.adversaries import encoding_loss as adversary
from hiddenstate.dpsgd import scalar
from hiddenstate.dpsgd.linear import log_likelihood_ratio

# (sampling rate, steps, noise multiplier) of the paper's eight settings, epsilon 1, 2, 4, 10.
SETTINGS = [
    (0.1, 100, 3.942),
    (0.1, 100, 2.248),
    (0.1, 100, 1.386),
    (0.1, 100, 0.837),
    (0.01, 1024, 1.428),
    (0.01, 1024, 0.964),
    (0.01, 1024, 0.737),
    (0.01, 1024, 0.549),
]


@pytest.mark.parametrize("value", [-9.0, -0.3, 0.5, 1.0, 7.5])
@pytest.mark.parametrize(("sigma", "q"), [(0.45, 1e-4), (4.0, 0.1), (1.0, 1.0), (0.02, 0.1)])
def test_the_log_likelihood_ratio_is_that_of_the_densities(value, sigma, q):
    with mpmath.workdps(40):
        ratio = mpmath.npdf(value, 1, sigma) / mpmath.npdf(value, 0, sigma)
        expected = float(mpmath.log(q * ratio + 1 - mpmath.mpf(q)))
    assert log_likelihood_ratio(value, sigma, q) == pytest.approx(expected, rel=1e-9, abs=1e-14)


@pytest.mark.parametrize(
    ("sigma", "spacing"), [(3.942, 100), (2.248, 10), (0.549, 10), (0.3, 1), (40, 1000)]
)
def test_the_published_spacing_is_the_power_of_ten_above_three_sigma(sigma, spacing):
    assert adversary.published(sigma, 0.1, 10**10).spacing == spacing


@given(
    sums=st.integers(-(10**6), 10**6),
    residual=st.floats(-0.49, 0.49),
    sigma=st.floats(0.4, 5),
    q=st.floats(0.005, 0.5),
)
def test_a_step_adds_the_rounded_ratio_and_removes_the_residual(sums, residual, sigma, q):
    loss = adversary.sound(sigma, q)
    v = residual * loss.spacing
    theta = np.array([sums * loss.spacing + v])
    after = theta + loss.increment(theta)
    # What rounding of theta, before and after, leaves of v and of the multiple.
    blur = 8 * np.spacing(abs(theta[0]) + abs(after[0]) + 1)
    encoded = after[0] / loss.spacing
    assert encoded == pytest.approx(np.rint(encoded), abs=blur)
    ratio = log_likelihood_ratio(v, sigma, q)
    assert (encoded - sums) / 1e4 == pytest.approx(ratio, abs=0.51e-4 + 1e3 * blur)


def test_the_gradient_is_minus_the_spread_increment_and_the_first_step_shows_the_record():
    loss = adversary.published(1.0, 0.1, 10**10)
    theta = np.array([0.0, 31.2])
    np.testing.assert_allclose(loss.gradient(1.0, theta)[0], -1.0)
    np.testing.assert_allclose(loss.gradient(0.0, theta)[0], 0.0)
    expected = -loss.increment(theta[1:]) / 1e9 - 1.0
    np.testing.assert_allclose(loss.gradient(1.0, theta)[1:], expected)


@cache
def drawn(q, steps, records, runs, world):
    """Random numbers of one world, which do not depend on the noise multiplier."""
    return scalar.draw(
        range(runs),
        seed=5,
        name=("test_encoding_loss", world),
        steps=steps,
        sampling_rate=q,
        records=records,
        canary=world == "in",
    )


def simulate(loss, q, steps, sigma, runs, world):
    draws = drawn(q, steps, loss.records, runs, world)
    theta = scalar.last_iterate(loss.gradient, draws, noise_multiplier=sigma)
    shown = draws.canary - sigma * draws.noise
    return loss.score(theta), log_likelihood_ratio(shown, sigma, q).sum(axis=0)


def correlation(loss, q, steps, sigma, runs=2500):
    pairs = [simulate(loss, q, steps, sigma, runs, world) for world in ("in", "out")]
    score, truth = (np.concatenate(column) for column in zip(*pairs, strict=True))
    return np.corrcoef(score, truth)[0, 1]


@pytest.mark.whole
@pytest.mark.parametrize(("q", "steps", "sigma"), SETTINGS)
def test_the_sound_encoding_keeps_the_signal_in_all_eight_settings(q, steps, sigma):
    loss = adversary.sound(sigma, q)
    assert correlation(loss, q, steps, sigma) > 0.9998
    assert loss.collision_probability(steps) < 1e-3


@pytest.mark.whole
@pytest.mark.parametrize(
    ("setting", "expected"),
    list(zip(SETTINGS, [0.994, 0.728, 0.982, 0.9999, 0.910, 0.981, 0.994, 0.999], strict=True)),
)
def test_the_published_encoding_loses_it_where_it_was_found_to(setting, expected):
    # Measured before with 5,000 runs a world; Fisher's z of a correlation r over 5,000 pairs has a
    # standard error of (1 - r^2) / 70, here at most 0.0067: six of them, plus the printed digits.
    q, steps, sigma = setting
    loss = adversary.published(sigma, q, 10**10)
    tolerance = 6 * (1 - expected**2) / 50 + 1e-3
    assert correlation(loss, q, steps, sigma) == pytest.approx(expected, abs=tolerance)


def test_the_collision_bound_covers_what_is_seen_and_is_not_idle():
    # Spacing 10 at sigma 1.7: half of it is 2.9 sigma away.
    q, steps, sigma = 0.1, 20, 1.7
    loss = adversary.published(sigma, q, 10**10)
    draws = scalar.draw(
        range(20_000), seed=5, name=("c",), steps=steps, sampling_rate=q, records=10, canary=True
    )
    residual = draws.canary - sigma * draws.noise
    seen = np.mean(np.any(np.abs(residual) > loss.spacing / 2, axis=0))
    bound = loss.collision_probability(steps)
    assert seen <= bound
    assert bound < 1.3 * seen
    # Without the remainder of the sampling it is this closed form.
    once = 0.9 * 2 * norm.sf(5 / 1.7) + 0.1 * (norm.sf(4 / 1.7) + norm.sf(6 / 1.7))
    assert bound == pytest.approx(steps * once, rel=1e-3)


def test_no_ordinary_gradient_is_ever_clipped():
    for q, _, sigma in SETTINGS:
        for loss in (adversary.published(sigma, q, 10**10), adversary.sound(sigma, q)):
            theta = np.linspace(-loss.spacing / 2, loss.spacing / 2, 1001) + 17 * loss.spacing
            assert np.max(np.abs(loss.gradient(0.0, theta))) < 1e-3


@pytest.mark.filterwarnings("error")
def test_single_numbers_are_decoded_as_doubles():
    loss = adversary.sound(0.1, 0.5)
    theta = np.array([0.3, 1.0, 2.0, -0.7], np.float32)
    for of in (loss.ratio, loss.increment, loss.score):
        assert of(theta).dtype == np.float64
        assert (of(theta) == of(theta.astype(float))).all()
        with pytest.raises(TypeError, match="complex"):
            of(theta * 1j)
    assert loss.ratio(theta).max() > 88
