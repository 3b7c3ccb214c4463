from functools import partial

import deltas
import mpmath
import numpy as np
import pytest
from scipy.integrate import quad
from scipy.optimize import brentq
from scipy.special import ndtr

from hiddenstate.accounting import composition, pld, tradeoff
from hiddenstate.errors import InputError
from hiddenstate.streams import stream

RATES = np.array([1e-4, 1e-2, 0.1, 0.3, 0.5, 0.7, 0.9, 0.99])


def gaussian_epsilon(mu, delta):
    def excess(epsilon):
        return ndtr(mu / 2 - epsilon / mu) - np.exp(epsilon) * ndtr(-mu / 2 - epsilon / mu) - delta

    return brentq(excess, 0, 100, xtol=1e-12)


@pytest.mark.parametrize(("sigma", "steps"), [(1.0, 1), (4.0, 16), (3.0, 100)])
def test_without_subsampling_it_is_the_gaussian_mechanism(sigma, steps):
    mu = np.sqrt(steps) / sigma
    exact = gaussian_epsilon(mu, 1e-5)
    assert 0 <= pld.epsilon(sigma, 1.0, steps, 1e-5) - exact < 2e-3
    for null, curve in pld.tradeoff_curves(sigma, 1.0, steps).items():
        gap = tradeoff.gaussian(mu, RATES) - curve(RATES)
        assert np.all(gap > -1e-9), null
        assert np.all(gap < 1e-4), null


def log_ratio(x, q, sigma):
    return np.log1p(q * np.expm1((x - 0.5) / sigma**2))


def integrated_delta(epsilon, q, sigma, steps, null):
    """Delta of one or two steps by integrating the densities themselves.

    With two steps the inner integral over the second observation is in closed form: its best set
    is a half-line, whose end solves loss = remainder.
    """
    sign = 1 if null == "out" else -1

    def one(remainder):
        # sup_S P(S) - e^remainder Q(S) for one step; the loss ascends in x from log(1 - q).
        e = sign * remainder
        if e <= np.log1p(-q):
            return max(0.0, -np.expm1(remainder)) if null == "out" else 0.0
        x = 0.5 + sigma**2 * np.log1p(np.expm1(e) / q)
        above = ndtr(-x / sigma)
        upper = (1 - q) * above + q * ndtr((1 - x) / sigma)
        if null == "out":
            return upper - np.exp(remainder) * above
        return ndtr(x / sigma) - np.exp(remainder) * (1 - upper)

    if steps == 1:
        return one(epsilon)

    def density(x):
        base = np.exp(-((x / sigma) ** 2) / 2) / (sigma * np.sqrt(2 * np.pi))
        return base * np.exp(log_ratio(x, q, sigma)) if null == "out" else base

    def integrand(x):
        return density(x) * one(epsilon - sign * log_ratio(x, q, sigma))

    return quad(integrand, -12 * sigma, 12 * sigma + 1, limit=400, epsabs=1e-13)[0]


@pytest.mark.whole
@pytest.mark.parametrize("null", ["out", "in"])
@pytest.mark.parametrize("steps", [1, 2])
@pytest.mark.parametrize(("q", "sigma"), [(0.1, 0.8), (0.01, 0.6), (0.5, 1.5)])
def test_subsampled_composition_agrees_with_numerical_integration(q, sigma, steps, null):
    loss = pld.privacy_loss(sigma, q, steps, null=null)
    epsilons = [-0.02, 0.0, 0.01, 0.1, 0.5, 1.0, 2.0]
    bounds = np.asarray(loss.get_delta_for_epsilon(epsilons))
    exact = np.array([integrated_delta(e, q, sigma, steps, null) for e in epsilons])
    assert np.all(bounds >= exact - 1e-10)
    # The interval of 1e-3 rounds a delta up by a few millionths at most.
    np.testing.assert_allclose(bounds, exact, atol=5e-6)


@pytest.mark.parametrize("null", ["out", "in"])
def test_the_curve_of_many_steps_is_that_of_simulated_likelihood_ratios(null):
    # 40,000 runs a world: a rate differs from its expectation by more than 5.5 standard errors
    # (at most 0.0138) with probability under 1e-6 over all points and both directions; errors of
    # the curve of 0.025 are found with power above 0.99.
    q, sigma, steps, runs = 0.1, 1.0, 50, 40_000
    draws = stream(3, "test_pld", null)
    noise = sigma * draws.standard_normal((2, runs, steps))
    noise[1] += draws.random((runs, steps)) < q
    out, inside = np.sort(log_ratio(noise, q, sigma).sum(axis=-1))
    curve = pld.tradeoff_curve(sigma, q, steps, null=null)
    if null == "out":
        thresholds = np.quantile(out, 1 - RATES)
        observed = np.searchsorted(inside, thresholds) / runs
    else:
        thresholds = np.quantile(inside, RATES)
        observed = 1 - np.searchsorted(out, thresholds) / runs
    assert np.all(np.abs(observed - curve(RATES)) < 2 * 5.5 * 0.5 / np.sqrt(runs))


def test_the_two_directions_are_mirror_images_and_the_symmetric_curve_is_below_both():
    curves = pld.tradeoff_curves(1.386, 0.1, 100)
    rates = np.concatenate(([0.0], np.logspace(-9, -2, 200), np.linspace(0.01, 1, 400)))
    np.testing.assert_allclose(curves["in"].inverse()(rates), curves["out"](rates), atol=1e-8)
    alone = pld.tradeoff_curve(1.386, 0.1, 100, null="in")
    np.testing.assert_array_equal(alone(rates), curves["in"](rates))
    assert np.all(curves["either"](RATES) <= curves["out"](RATES) + 1e-5)
    assert np.all(curves["either"](RATES) <= curves["in"](RATES) + 1e-5)
    # They differ: the symmetric curve is below this direction at large false-positive rates.
    assert curves["out"](0.5) - curves["either"](0.5) > 0.005


@pytest.mark.parametrize(
    ("sigma", "q", "steps"), [(1.428, 0.01, 1024), (0.5, 0.01, 1024), (8, 0.1, 100)]
)
def test_finer_lines_and_intervals_barely_move_the_curves(sigma, q, steps):
    coarse = pld.tradeoff_curves(sigma, q, steps)
    fine = pld.tradeoff_curves(sigma, q, steps, lines=4001, interval=2e-4)
    diagonal = np.linspace(-1, 1, 2001)
    for null, curve in coarse.items():
        gap = fine[null].total(diagonal) - curve.total(diagonal)
        # The fine lines need not include the coarse ones, which costs a few millionths.
        assert np.all(gap > -1e-5), null
        assert np.all(gap < 2 * 2e-4), null


@pytest.mark.whole
@pytest.mark.parametrize(("q", "steps"), [(0.1, 100), (0.01, 1024), (1.0, 10)])
def test_calibration_is_private_enough_and_no_more_than_needed(q, steps):
    targets = [0.5, 1.0, 2.0, 4.0, 10.0]
    sigmas = pld.noise_multipliers(targets, 1e-5, q, steps)
    reached = np.array([pld.epsilon(sigma, q, steps, 1e-5) for sigma in sigmas])
    assert np.all(reached <= targets)
    assert np.all(reached >= np.array(targets) * (1 - 1e-4))
    np.testing.assert_allclose(pld.noise_multiplier(2.0, 1e-5, q, steps), sigmas[2], rtol=1e-4)


@pytest.mark.whole
def test_known_noise_multipliers():
    # From an independent run of dp-accounting at interval 1e-4, rounded.
    sigmas = pld.noise_multipliers([1, 2, 4, 10], 1e-5, 0.1, 100)
    np.testing.assert_allclose(sigmas, [3.942, 2.248, 1.386, 0.837], atol=6e-4)
    sigmas = pld.noise_multipliers([1, 2, 4, 10], 1e-5, 0.01, 1024)
    np.testing.assert_allclose(sigmas, [1.428, 0.964, 0.737, 0.549], atol=1.1e-3)


def test_epsilon_falls_with_noise_and_grows_with_sampling_and_steps():
    base = pld.epsilon(1.0, 0.1, 50, 1e-5)
    assert pld.epsilon(1.1, 0.1, 50, 1e-5) < base
    assert pld.epsilon(1.0, 0.12, 50, 1e-5) > base
    assert pld.epsilon(1.0, 0.1, 60, 1e-5) > base
    assert pld.epsilon(1.0, 0.1, 50, 1e-4) < base


@pytest.mark.parametrize(
    ("sigma", "q"), [(1.0, 0.1), (0.5, 0.01), (4.0, 0.1), (0.2, 0.5), (1.0, 1)]
)
@pytest.mark.parametrize("null", ["out", "in"])
def test_one_step_is_that_of_dp_accounting(sigma, q, null):
    """Its own closed form, over all losses that it would discretise."""
    from dp_accounting.pld import privacy_loss_mechanism as mechanism

    adjacency = mechanism.AdjacencyType
    loss = mechanism.GaussianPrivacyLoss(
        sigma,
        sampling_prob=q,
        adjacency_type=adjacency.REMOVE if null == "out" else adjacency.ADD,
    )
    bounds = loss.connect_dots_bounds()
    epsilons = np.linspace(bounds.epsilon_lower, bounds.epsilon_upper, 501)
    found = pld._single_step(sigma, q, epsilons, null)
    np.testing.assert_allclose(found, loss.get_delta_for_epsilon(epsilons), rtol=0, atol=1e-14)


@pytest.mark.parametrize("null", ["out", "in"])
@pytest.mark.parametrize("q", [1e-50, 1e-3, 0.5, 1 - 1e-3, 1 - 1e-8, 1 - 1e-12, 1.0])
@pytest.mark.parametrize("sigma", [0.01, 0.02, 0.1, 0.3, 1.0, 1e3])
def test_one_step_is_the_closed_form_at_any_rate_and_noise(sigma, q, null):
    """At rate 1 null "in" leaked nothing beyond epsilon 36.7, and powers overflowed beyond 709."""
    centre = (0.5 / sigma**2 + np.linspace(-6, 6, 25) / sigma) if q == 1 or null == "out" else []
    epsilons = np.sort(np.concatenate((np.linspace(-40, 40, 33), centre)))
    found = pld._single_step(sigma, q, epsilons, null)
    with mpmath.workdps(80):
        expected = [float(deltas.one_step(sigma, q, float(e), null)) for e in epsilons]
    np.testing.assert_allclose(found, expected, rtol=0, atol=2e-14)


@pytest.mark.parametrize(
    ("sigma", "steps", "interval"), [(0.1, 1, 1e-2), (0.14, 2, 1e-2), (0.05, 3, 0.1)]
)
@pytest.mark.parametrize("null", ["out", "in"])
def test_every_record_in_every_step_leaks_alike_in_both_directions(sigma, steps, interval, null):
    """With null "in" they were 37.4, 74.9 and 112.3: far too small."""
    delta = 1e-5
    with mpmath.workdps(30):
        exact = partial(deltas.gaussian, mpmath.sqrt(steps) / mpmath.mpf(sigma))
        bound = pld.privacy_loss(sigma, 1.0, steps, null=null, interval=interval)
        found = bound.get_epsilon_for_delta(delta)
        assert exact(found) <= delta <= exact(found - 1.1)
    if sigma == 0.1:
        rates = np.array([1e-20, 1e-16, 1e-12])
        curve = pld.tradeoff_curve(sigma, 1.0, steps, null=null, interval=interval)
        assert np.all(curve(rates) <= tradeoff.gaussian(np.sqrt(steps) / sigma, rates) + 1e-12)


@pytest.mark.parametrize(
    ("sigma", "q", "steps"), [(0.02, 0.5, 1), (0.0295, 0.5, 1), (0.03, 0.9, 2), (0.03, 0.01, 1)]
)
def test_losses_beyond_the_range_of_exponentials_are_accounted(sigma, q, steps):
    """Some were no number or infinite, and dp-accounting refused the deltas of another."""
    bounds = composition.bracket(sigma, q, steps, 1e-5)
    found = pld.epsilon(sigma, q, steps, 1e-5, interval=1e-2)
    assert bounds.lower <= found <= bounds.upper + 1


def test_calibration_to_an_epsilon_beyond_the_range_of_exponentials():
    sigma = pld.noise_multiplier(720.0, 1e-5, 0.5, 1)
    bounds = composition.bracket(sigma, 0.5, 1, 1e-5)
    assert 0.99 * 720 <= bounds.lower <= bounds.upper <= 720


@pytest.mark.parametrize("null", ["out", "in"])
@pytest.mark.parametrize(("sigma", "q", "steps"), [(1, 0.1, 100), (0.3, 0.5, 20), (10, 0.001, 500)])
def test_deltas_are_those_of_dp_accounting(sigma, q, steps, null):
    losses = pld.privacy_loss(sigma, q, steps, null=null)
    # Up to where none is left but the infinite one, and some between the grid's losses.
    epsilons = np.linspace(0, 1.5 * losses.get_epsilon_for_delta(1e-12) + 0.01, 777)
    expected = losses.get_delta_for_epsilon(epsilons)
    np.testing.assert_allclose(pld._deltas(losses, epsilons), expected, rtol=1e-9, atol=1e-16)


@pytest.mark.whole
@pytest.mark.parametrize(
    ("sigma", "q", "steps", "delta"),
    [
        (1, 0.01, 1000, 2e-14),
        (1, 0.01, 1000, 1e-13),
        (1, 0.01, 1000, 1e-12),
        pytest.param(1, 0.001, 10_000, 1e-12, marks=pytest.mark.slow),
    ],
)
def test_an_upper_bound_is_none_below_the_truth_at_tiny_deltas(sigma, q, steps, delta):
    """dp-accounting's Fourier transforms err by 1e-13: its bounds were below the certified ones."""
    mechanism = (sigma, q, steps, delta)
    bounds = composition.bracket(*mechanism, width=2e-3)
    assert bounds.lower <= pld.epsilon(*mechanism) <= bounds.upper + 0.01 * bounds.upper
    calibrated = pld.noise_multiplier(2.0, delta, q, steps)
    assert composition.bracket(calibrated, q, steps, delta, width=2e-3).lower <= 2.0
    with pytest.raises(InputError, match=f"^delta: got {delta}; expected at least"):
        pld.epsilon(*mechanism, interval=1e-3)


@pytest.mark.whole
@pytest.mark.parametrize(
    ("target", "delta", "q", "steps", "width"),
    [
        pytest.param(5e-4, 1e-6, 0.01, 1000, None, marks=pytest.mark.slow),
        pytest.param(3e-4, 1e-6, 1e-4, 100_000, None, marks=pytest.mark.slow),
        (1e-4, 1e-6, 0.01, 1000, None),
        (1e-4, 1e-5, 1.0, 100, None),
        (1e-3, 1e-6, 0.01, 1000, 1e-2),
    ],
)
def test_calibration_to_an_epsilon_below_the_width_is_no_less_than_half_of_it(
    target, delta, q, steps, width
):
    """Two were a thousand times too noisy, and three raised what is no InputError."""
    sigma = pld.noise_multiplier(target, delta, q, steps, width=width)
    bounds = composition.bracket(sigma, q, steps, delta, width=target / 10)
    assert bounds.lower <= target
    assert bounds.upper >= target / 2


@pytest.mark.whole
def test_an_epsilon_too_small_for_any_bracket_is_refused_by_its_name():
    """It was told of a width that nobody had given."""
    with pytest.raises(InputError, match=r"^epsilon: got 1e-06 at delta 1e-06, .*1,000 steps; exp"):
        pld.noise_multiplier(1e-6, 1e-6, 1e-3, 1000)


def test_an_epsilon_that_a_fixed_interval_does_not_resolve_is_refused():
    with pytest.raises(InputError, match=r"^epsilon: got \[0.0001\]; expected epsilons that"):
        pld.noise_multiplier(1e-4, 1e-6, 0.01, 1000, interval=1e-3)


def test_deltas_beyond_the_range_of_exponentials_are_numbers():
    loss = pld.privacy_loss(0.05, 0.1, 20, null="out", interval=0.05)
    deltas = pld._deltas(loss, np.linspace(0, 3_000, 400))
    assert np.isfinite(deltas).all() and (deltas >= 0).all() and (np.diff(deltas) <= 1e-12).all()


def test_calibration_is_to_the_direction_that_leaks_more(monkeypatch):
    """It searches in one direction and looks at the other in the end."""
    as_it_is = pld._fixed

    def more(sigma, directions=("out", "in"), **mechanism):
        factors = [1.2 if null == "in" else 1 for null in directions]
        return max(factors) * as_it_is(sigma, directions=["out"], **mechanism)

    monkeypatch.setattr(pld, "_fixed", more)
    mechanism = {"rate": 0.05, "steps": 30, "delta": 1e-5, "interval": 1e-3}
    found = pld.noise_multipliers([2.0], 1e-5, 0.05, 30, interval=1e-3)[0]
    assert more(found, **mechanism) == pytest.approx(2, rel=1e-3)
    assert more(found, ["out"], **mechanism) == pytest.approx(2 / 1.2, rel=1e-3)
