"""The values that dp-accounting 0.6.0 publishes in its tests, of mechanisms that we account for.

World "out" as the null hypothesis is its adjacency of removal, "in" that of addition.
"""

import mpmath
import numpy as np
import pytest

from hiddenstate.accounting import composition, gaussian, linear, mixture, pld, rdp

# Of one step: noise multiplier, sampling rate, null hypothesis, epsilon, delta, and the digits that
# delta is printed with.
STEPS = [
    (1.0, 1.0, "in", 1.0, 0.12693674, 8),
    (1 / 3, 1.0, "in", 1.0, 0.78760074, 8),
    (1.0, 1.0, "in", 2.0, 0.02092364, 8),
    (1.0, 0.8, "in", 1.0, 0.0231362104090899, 15),
    (1 / 3, 0.7, "in", 1.0, 0.1195051215523554, 15),
    (1 / 3, 0.4, "in", 1.0, 0.0, 15),
    (1.0, 0.3, "in", 2.0, 0.0, 15),
    (1.0, 0.2, "in", 2.0, 0.0, 15),
    (1.0, 1.0, "out", 1.0, 0.12693674, 8),
    (1 / 3, 1.0, "out", 1.0, 0.78760074, 8),
    (1.0, 1.0, "out", 2.0, 0.02092364, 8),
    (1.0, 0.8, "out", 1.0, 0.0816951786585355, 15),
    (1 / 3, 0.7, "out", 1.0, 0.5356298793262404, 15),
    (1 / 3, 0.4, "out", 1.0, 0.2888308005139968, 15),
    (1.0, 0.3, "out", 2.0, 0.0003341102928869332, 15),
    (1.0, 0.2, "out", -0.25, 0.2211992169285951, 15),
    # Noise that a guarantee asks for, to three digits of the noise.
    (0.344, 1.0, "in", 16.0, 1.016e-05, 7),
    (0.75, 0.7, "in", 1.0, 0.01080649, 8),
    (1.0, 0.1, "out", 2.0, 2.355e-06, 8),
    (1.0, 0.75, "out", 2.0, 0.00877201, 8),
    (0.3, 0.3, "out", 16.0, 3.294e-05, 8),
    (0.2, 0.2, "out", 16.0, 0.02302382, 8),
    # A record that is replaced moves a step by twice its gradient.
    (0.5, 1.0, "out", 0.0, 0.68268949, 8),
    (0.5, 1.0, "out", 1.0, 0.50986166, 8),
    (0.5, 1.0, "out", 2.0, 0.331897999, 9),
]
SWEPT = {
    ("in", 0.2): {
        -0.3: 0.27768558, -0.2: 0.21052945, -0.1: 0.14204776, 0.0: 0.076584985,
        0.1: 0.02337934, 0.2: 0.00020196, 0.3: 0.0,
    },
    ("out", 0.2): {
        -0.3: 0.25918178, -0.2: 0.1814346, -0.1: 0.11631708, 0.0: 0.076584985, 0.1: 0.051816131,
        0.2: 0.035738492, 0.5: 0.012494629, 1.0: 0.00229682,
    },
    ("out", 1.0): {
        -2.0: 0.86749642, -1.0: 0.67881797, 0.0: 0.38292492, 1.0: 0.12693674, 2.0: 0.020923636,
    },
}  # fmt: skip
# Mixtures of Gaussians with deviation 1: shifts, weights, null hypothesis, delta at epsilon 1.
MIXTURES = [
    ([0.0, 1.0, 2.0], [0.2, 0.6, 0.2], "in", 0.036691263832032806),
    ([1.0, 2.0], [0.2, 0.8], "in", 0.3894964356580768),
    ([0.0, 1.0, 2.0], [0.2, 0.6, 0.2], "out", 0.15768284088654105),
    ([1.0, 2.0], [0.2, 0.8], "out", 0.433276675545065),
]


@pytest.mark.parametrize(("sigma", "rate", "null", "epsilon", "delta", "digits"), STEPS)
def test_delta_of_one_step(sigma, rate, null, epsilon, delta, digits):
    found = float(linear.last_iterate(sigma, rate, 1).delta(epsilon, null=null))
    assert found == pytest.approx(delta, rel=1e-9, abs=0.51 * 10.0**-digits)


@pytest.mark.parametrize(("null", "rate"), SWEPT)
def test_deltas_of_one_step_over_epsilon(null, rate):
    epsilons, deltas = zip(*SWEPT[null, rate].items(), strict=True)
    found = linear.last_iterate(1.0, rate, 1).delta(np.array(epsilons), null=null)
    np.testing.assert_allclose(found, deltas, rtol=0, atol=6e-9)


@pytest.mark.parametrize(("shifts", "weights", "null", "delta"), MIXTURES)
def test_delta_of_a_mixture(shifts, weights, null, delta):
    pair = mixture.GaussianMixture(np.array(shifts), np.log(weights), 1.0)
    assert float(pair.delta(1.0, null=null)) == pytest.approx(delta, rel=1e-12)


@pytest.mark.parametrize(
    ("epsilon", "delta", "rate", "steps", "noise"),
    [
        (1.0, 0.78760074, 1.0, 1, 1 / 3),
        (1.0, 0.78760074, 1.0, 25, 10 / 6),
        (1.0, 1e-5, 0.01, 1, 0.67379294682),
        (1.0, 1e-5, 0.001, 25, 3.20956502598 / 6),
    ],
)
def test_least_noise(epsilon, delta, rate, steps, noise):
    found = pld.noise_multiplier(epsilon, delta, rate, steps)
    # Never too little, and theirs is certified to enough digits.
    assert noise * (1 - 1e-6) <= found <= noise * (1 + 2e-3)
    bounds = composition.bracket(noise, rate, steps, delta, width=1e-3)
    assert bounds.lower - 1e-3 <= epsilon <= bounds.upper + 1e-3


def test_three_sampled_steps():
    bounds = composition.bracket(0.5, 0.2, 3, 0.15594, width=1e-5)
    # Theirs to 1e-3.
    assert bounds.lower - 1e-3 <= 1 <= bounds.upper + 1e-3


def test_three_gaussian_steps():
    assert gaussian.epsilon(1.0, 0.126936) == pytest.approx(1.0, abs=1e-5)
    assert composition.bracket(3**0.5, 1.0, 3, 0.126936).upper == pytest.approx(1.0, abs=1e-5)


def test_renyi_divergences_of_sampled_steps():
    published = {2.5: 1.08548710e-03, 5: 2.18075656e-03, 50: 2.38460375e-02, 100: 1.67416308e02}
    for order, value in published.items():
        assert 50 * rdp.divergence(2.5, 0.01, order) == pytest.approx(value, rel=1e-4)

    def moment(y):
        ratio = mpmath.mpf(99) / 100 + mpmath.exp((y - 0.5) / 6.25) / 100
        return ratio**1.5 * mpmath.npdf(y, 0, 2.5)

    # At order 1.5 theirs is 3 % loose: 6.70579741e-04, where the integral has 6.5007e-4.
    with mpmath.workdps(30):
        exact = 2 * mpmath.log(mpmath.quad(moment, [-40, -5, 0, 5, 40]))
    assert 50 * rdp.divergence(2.5, 0.01, 1.5) == pytest.approx(float(50 * exact), rel=1e-8)
    assert float(50 * exact) == pytest.approx(6.5007e-4, rel=1e-5)


def test_epsilon_by_renyi_divergences():
    """Noise at which orders from 1 to 100 give epsilon 1 at delta 1e-6."""
    orders = np.arange(1001, 100_000, 7) / 1000
    found = rdp.epsilon(4.530877117, 1.0, 1, 1e-6, orders=orders)
    assert 1 - 1e-7 <= found < 1 + 1e-5
