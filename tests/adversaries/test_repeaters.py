"""The malicious data set: reductions against the literal algorithms, epsilon against quadrature."""

import math

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.special import ndtr
from scipy.stats import binom, ks_2samp

from hiddenstate.accounting import linear, pld
from hiddenstate.adversaries.repeaters import AnalogRepeaters, Repeaters, _run, best_threshold
from hiddenstate.dpsgd.linear import log_likelihood_ratio
from hiddenstate.streams import stream

RUNS = 20_000

# (noise multiplier at which the standard epsilon is 8, sampling rate, steps, threshold),
# exact epsilon at delta 1e-5: computed by an independent program.
ORACLE = [
    ((0.36332, 0.01, 3, 2.11), 7.844),
    ((0.46453, 0.01, 100, 2.15), 6.656),
    ((0.58627, 0.01, 1000, 2.51), 5.160),
    ((0.51941, 0.1, 3, 2.86), 6.639),
    ((0.93593, 0.1, 100, 1.92), 5.537),
    ((2.05079, 0.1, 1000, 1.58), 5.965),
]


@pytest.mark.parametrize("present", [False, True])
@pytest.mark.parametrize("steps", [1, 2, 12])
def test_bit_reduction(steps, present):
    """Two-sample Kolmogorov-Smirnov at 1e-6, 20,000 runs each: detects a shift of 0.06 sd."""
    attack = Repeaters(0.5, 0.3, steps, threshold=0.6)
    name = ("test_repeaters", "bits", steps, int(present))
    model = attack.run(present, RUNS, stream(0, *name, "literal"))
    # All but the last coordinate are 30 sigma and noise, up or down.
    np.testing.assert_allclose(np.abs(model[:, :-1]), 15.0, atol=6 * 0.5)
    bits = np.sum(model[:, :-1] > 0, axis=1)
    last = log_likelihood_ratio(model[:, -1], 0.5, 0.3)
    literal = attack.loss(bits) + last
    reduced = attack.scores(present, RUNS, stream(0, *name, "reduced"))
    assert ks_2samp(literal, reduced).pvalue > 1e-6
    # Each step's bit has the stated rate, and knows nothing of the last coordinate's.
    rate = attack.bit_rates[present]
    error = 5 * math.sqrt(rate * (1 - rate) / RUNS)
    assert np.all(np.abs(np.mean(model[:, :-1] > 0, axis=0) - rate) < error)


def test_bits_are_the_steps_in_which_the_canary_was():
    attack = Repeaters(0.01, 0.4, 30, threshold=0.5)
    model = attack.run(True, 500, stream(0, "test_repeaters", "noiseless"))
    rate = np.mean(model[:, :-1] > 0)
    assert abs(rate - 0.4) < 5 * math.sqrt(0.24 / (500 * 29))
    assert np.all(attack.run(False, 500, stream(0, "test_repeaters", "absent"))[:, :-1] < 0)


@pytest.mark.parametrize("present", [False, True])
def test_analog_reduction(present):
    """As above; a small gain, so that the noise of later steps is seen as well."""
    attack = AnalogRepeaters(0.5, 0.3, 12, gain=3.0)
    name = ("test_repeaters", "analog", int(present))
    model = attack.run(present, RUNS, stream(0, *name, "literal"))
    noise = attack.noise_multipliers
    assert noise[-1] == 0.5
    literal = sum(log_likelihood_ratio(model[:, i], sigma, 0.3) for i, sigma in enumerate(noise))
    reduced = attack.scores(present, RUNS, stream(0, *name, "reduced"))
    assert ks_2samp(literal, reduced).pvalue > 1e-6
    variance = noise**2 + present * 0.3 * 0.7
    # The kurtosis of these mixtures is below 3: five standard errors of the variance.
    assert np.all(np.abs(model.var(axis=0) / variance - 1) < 5 * math.sqrt(2 / RUNS))
    correlation = np.corrcoef(model.T) - np.eye(12)
    assert np.max(np.abs(correlation)) < 6 / math.sqrt(RUNS)


def test_gain_makes_the_analog_attack_all_iterates():
    noise = AnalogRepeaters(0.5, 0.3, 1000).noise_multipliers
    np.testing.assert_allclose(noise, 0.5, rtol=1e-7)


@pytest.mark.parametrize(("setting", "expected"), ORACLE)
def test_epsilon_oracle(setting, expected):
    sigma, rate, steps, threshold = setting
    attack = Repeaters(sigma, rate, steps, threshold)
    # The oracle's threshold is printed to two decimals, which near the best one costs little.
    assert attack.epsilon(1e-5) == pytest.approx(expected, abs=6e-3)


@pytest.mark.parametrize("threshold", [0.5, 2.1, 9.0])
def test_one_step_is_a_sampled_gaussian_whatever_the_threshold(threshold):
    """There is no bit before it, whose losses were not numbers: epsilon was 0."""
    one = linear.last_iterate(0.363, 0.01, 1)
    attack = Repeaters(0.363, 0.01, 1, threshold)
    for epsilon in (0.0, 2.0, 6.0):
        both = [float(one.delta(epsilon, null=null)) for null in ("out", "in")]
        assert attack.delta(epsilon) == pytest.approx(max(both), rel=1e-12)
    assert attack.epsilon(1e-5) == pytest.approx(pld.epsilon(0.363, 0.01, 1, 1e-5), abs=1e-6)


@pytest.mark.whole
@pytest.mark.parametrize("epsilon", [0.0, 1.0, 3.0])
def test_delta_by_quadrature(epsilon):
    sigma, rate, steps, threshold = 0.8, 0.2, 4, 0.9
    attack = Repeaters(sigma, rate, steps, threshold)
    out = ndtr(-threshold / sigma)
    in_ = 0.8 * out + 0.2 * ndtr((1 - threshold) / sigma)
    assert attack.bit_rates == pytest.approx((out, in_))

    # Probabilities of three bits; SciPy's own densities take a hundred times as long.
    with_canary, without = (binom.pmf(range(4), 3, rate).tolist() for rate in (in_, out))

    def normal(z):
        return math.exp(-((z / sigma) ** 2) / 2) / (sigma * math.sqrt(2 * math.pi))

    def excess(x, k, sign):
        p = with_canary[k] * (0.8 * normal(x) + 0.2 * normal(x - 1))
        q = without[k] * normal(x)
        p, q = (p, q) if sign > 0 else (q, p)
        return max(p - math.exp(epsilon) * q, 0)

    deltas = [
        sum(
            quad(excess, a, a + 1, args=(k, sign), epsabs=1e-12, limit=200)[0]
            for k in range(4)
            for a in range(-7, 8)
        )
        for sign in (1, -1)
    ]
    assert attack.delta(epsilon) == pytest.approx(max(deltas), abs=1e-9)


@pytest.mark.whole
def test_best_threshold():
    sigma, rate, steps = 0.51941, 0.1, 3
    threshold = best_threshold(sigma, rate, steps, 1e-5)
    best = Repeaters(sigma, rate, steps, threshold).epsilon(1e-5)
    others = [
        Repeaters(sigma, rate, steps, threshold + shift * sigma).epsilon(1e-5)
        for shift in (-0.5, -0.1, -0.02, 0.02, 0.1, 0.5)
    ]
    assert best >= max(others)
    assert best == pytest.approx(7.2024, abs=1e-3)


def test_one_bit_stays_below_the_composed_mechanism():
    for (sigma, rate, steps, threshold), _ in ORACLE:
        leak = Repeaters(sigma, rate, steps, threshold).epsilon(1e-5)
        assert leak <= pld.epsilon(sigma, rate, steps, 1e-5)


def test_one_bit_exceeds_the_heuristic_at_small_rates():
    for (sigma, rate, steps, threshold), _ in ORACLE[:3]:
        leak = Repeaters(sigma, rate, steps, threshold).epsilon(1e-5)
        assert leak > linear.last_iterate_epsilon(sigma, rate, steps, 1e-5) + 1


@pytest.mark.whole
@pytest.mark.parametrize(
    "setting", [(0.93593, 0.1, 100), pytest.param((2.05079, 0.1, 1000), marks=pytest.mark.slow)]
)
def test_one_bit_falls_below_the_heuristic_at_large_rates(setting):
    threshold = best_threshold(*setting, 1e-5)
    leak = Repeaters(*setting, threshold).epsilon(1e-5)
    assert leak < linear.last_iterate_epsilon(*setting, 1e-5) - 0.3


def test_clipped_repeaters_are_refused():
    attack = AnalogRepeaters(1.0, 0.5, 3)
    with pytest.raises(ArithmeticError, match="clipped in step 1"):
        _run(attack, lambda model, i: 2.0 * (i == 1) + model * 0, 1, False, 2, stream(0))


def test_thresholds_far_out_and_random_settings_have_an_epsilon():
    """A delta of 0 has no logarithm, and a rate of 0 no binomial distribution in SciPy."""
    draw = stream(0, "tests", "repeaters").uniform
    for _ in range(8):
        mechanism = (10 ** draw(-1.5, 1), 10 ** draw(-4, -0.01), int(10 ** draw(0, 1.7)))
        delta = 10 ** draw(-12, -2)
        attack = Repeaters(*mechanism, draw(-2, 8))
        found = attack.epsilon(delta)
        if found > 1e-6:
            assert attack.delta(found * (1 - 1e-6)) >= delta * (1 - 1e-9)
        assert attack.delta(found * (1 + 1e-6) + 1e-8) <= delta * (1 + 1e-9)
    assert 0 <= Repeaters(0.02, 0.01, 10, 1.1).epsilon(1e-6) < math.inf


@pytest.mark.whole
@pytest.mark.parametrize("steps", [2, pytest.param(10, marks=pytest.mark.slow)])
def test_the_best_threshold_is_found_among_thresholds_far_out(steps):
    assert 0 < best_threshold(0.02, 0.01, steps, 1e-6) < 1.2
