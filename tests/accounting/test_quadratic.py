"""The quadratic regulariser against brute force, the printed numbers and the literal algorithm."""

import itertools
import math

import numpy as np
import pytest
from literal import last_iterates
from scipy.stats import kstest

from hiddenstate.accounting import linear, quadratic
from hiddenstate.accounting.mixture import GaussianMixture
from hiddenstate.errors import InputError
from hiddenstate.streams import stream

DELTA = 1e-6


@pytest.mark.parametrize(
    ("curvature", "expected"),
    [
        (0.0, 2.2224107092),
        (0.25, 2.241216483),
        (0.5, 2.2748748853),
        (0.58, 2.2780780245),
        (0.75, 2.263559203),
        (1.0, 2.1816941092),
    ],
)
def test_section_4_2(curvature, expected):
    pair = quadratic.last_iterate(1.0, 0.1, 3, curvature)
    assert pair.epsilon(DELTA) == pytest.approx(expected, abs=5e-10)


def test_curvature_between_the_ends_is_worst():
    leak = [quadratic.last_iterate(1.0, 0.1, 3, c / 100).epsilon(DELTA) for c in range(101)]
    assert np.argmax(leak) == 58


@pytest.mark.parametrize("curvature", [0.3, 0.5, 0.9])
@pytest.mark.parametrize("steps", [1, 2, 6])
def test_sums_by_enumeration(curvature, steps):
    pair = quadratic.last_iterate(2.0, 0.2, steps, curvature)
    sizes = (1 - curvature) ** np.arange(steps)
    expected = {}
    for bits in itertools.product([0, 1], repeat=steps):
        key = round(float(sizes @ bits), 9)
        expected[key] = expected.get(key, 0) + 0.2 ** sum(bits) * 0.8 ** (steps - sum(bits))
    np.testing.assert_allclose(pair.shifts, sorted(expected), atol=1e-8)
    np.testing.assert_allclose(np.exp(pair.log_weights), [expected[k] for k in sorted(expected)])
    assert pair.noise_std == pytest.approx(2 * math.sqrt(np.sum(sizes**2)))


def test_ends_of_the_curvature():
    one_step = linear.last_iterate(1.3, 0.05, 1)
    for steps in (1, 7, 40):
        linear_loss = quadratic.last_iterate(1.3, 0.05, steps, 0.0)
        expected = linear.last_iterate_epsilon(1.3, 0.05, steps, DELTA)
        assert linear_loss.epsilon(DELTA) == pytest.approx(expected, rel=1e-14)
        single = quadratic.last_iterate(1.3, 0.05, steps, 1.0)
        assert single.epsilon(DELTA) == pytest.approx(one_step.epsilon(DELTA), rel=1e-12)


def test_full_batch():
    pair = quadratic.last_iterate(1.0, 1.0, 5, 0.5)
    np.testing.assert_allclose(pair.shifts, [1.9375])
    assert pair.noise_std == pytest.approx(math.sqrt((1 - 4.0**-5) / 0.75))


def test_many_steps_round_up_by_little(monkeypatch):
    bound = quadratic.last_iterate(1.0, 0.1, 15, 0.5).epsilon(DELTA)
    monkeypatch.setattr(quadratic, "MOST_STEPS", 15)
    exact = quadratic.last_iterate(1.0, 0.1, 15, 0.5).epsilon(DELTA)
    assert exact < bound < exact * (1 + 5e-4)


def test_rounding_is_an_upper_bound_within_its_ratio():
    pair = quadratic.last_iterate(1.0, 0.1, 8, 0.5)
    rounded = quadratic.round_up(pair)
    assert rounded.shifts[0] == pytest.approx(0.0005, rel=0.05)
    powers = np.log(rounded.shifts) / math.log(1.05)
    np.testing.assert_allclose(powers, np.round(powers), atol=1e-9)
    assert np.sum(np.exp(rounded.log_weights)) == pytest.approx(1)
    # Every tail of the rounded sum is at least as heavy, by one ratio at most above the floor.
    for shift in pair.shifts[1:]:
        tail = np.sum(np.exp(pair.log_weights[pair.shifts >= shift]))
        above = np.sum(np.exp(rounded.log_weights[rounded.shifts >= shift]))
        beyond = np.sum(np.exp(rounded.log_weights[rounded.shifts > 1.05 * shift * (1 + 1e-9)]))
        assert above >= tail * (1 - 1e-12)
        assert beyond <= tail * (1 + 1e-12)
    assert pair.epsilon(DELTA) < rounded.epsilon(DELTA) < 1.06 * pair.epsilon(DELTA)


def test_shifts_that_are_powers_stay_and_larger_ones_go_up():
    powers = 1.05 ** np.arange(-40.0, 40)
    for factor in (1, 1 + 1e-15, 1 + 1e-12, 1 + 1e-10):
        pair = GaussianMixture(factor * powers, np.full(80, -math.log(80)), 1.0)
        assert np.all(quadratic.round_up(pair).shifts >= pair.shifts)
        assert np.array_equal(quadratic.round_up(pair).shifts, powers) == (factor == 1)


# (epsilon of one step, steps, sampling rate), exact ratio to the largest linear epsilon, rounded.
RATIOS = [
    ((1.0, 2, 0.1), 1.011956, 1.038102),
    ((2.0, 3, 0.1), 1.023821, 1.062600),
    ((1.0, 4, 0.07), 1.032575, 1.064038),
    ((2.0, 4, 0.09), 1.038924, None),
]


@pytest.mark.parametrize(("setting", "exact", "rounded"), RATIOS)
def test_figure_5_ratios(setting, exact, rounded):
    single, steps, rate = setting
    sigma = linear.last_iterate_noise_multiplier(single, DELTA, rate, 1)
    pair = quadratic.last_iterate(sigma, rate, steps, 0.5)
    largest = np.max(linear.last_iterate_epsilon(sigma, rate, np.arange(1, steps + 1), DELTA))
    assert pair.epsilon(DELTA) / largest == pytest.approx(exact, abs=2e-6)
    if rounded is not None:
        assert quadratic.round_up(pair).epsilon(DELTA) / largest == pytest.approx(rounded, abs=2e-6)


@pytest.mark.parametrize(
    ("single", "rate", "sigma"),
    [(1.0, 0.001, 0.506709), (1.0, 0.5, 2.827671), (2.0, 0.01, 0.645003), (2.0, 0.5, 1.691066)],
)
def test_figure_5_noise_multipliers(single, rate, sigma):
    assert linear.last_iterate_noise_multiplier(single, DELTA, rate, 1) == pytest.approx(
        sigma, abs=1e-6
    )


@pytest.mark.parametrize("curvature", [0.0, 0.5, 1.0])
def test_literal_algorithm(curvature):
    """Kolmogorov-Smirnov at 1e-6 in each of 6 tests, 20,000 runs: detects a shift of 0.04 sd."""
    sigma, rate, steps, runs = 0.6, 0.3, 5, 20_000
    pair = quadratic.last_iterate(sigma, rate, steps, curvature)
    for present in (False, True):
        models = last_iterates(
            -np.ones(1) * present,
            np.zeros((1, 1)),
            sigma,
            rate,
            steps,
            runs,
            stream(0, "test_quadratic", str(curvature), int(present)),
            regulariser=lambda model: curvature * model,
        )
        cdf = pair.fnr if present else lambda y: 1 - pair.fpr(y)
        assert kstest(models[:, 0], cdf).pvalue > 1e-6


def test_bad_curvature():
    with pytest.raises(InputError, match=r"^curvature: got 1.5"):
        quadratic.last_iterate(1.0, 0.1, 3, 1.5)


@pytest.mark.whole
@pytest.mark.parametrize(
    ("steps", "epsilon"), [(3, 2.2922), pytest.param(6, 2.4497, marks=pytest.mark.slow)]
)
def test_worst_schedule(steps, epsilon):
    found, weights = quadratic.worst_schedule(1.0, 0.1, steps, DELTA)
    assert epsilon - 1e-4 < found < epsilon + 2e-3
    # It exceeds the best constant curvature, and its weights give it by enumeration.
    constant = max(
        quadratic.last_iterate(1.0, 0.1, steps, c / 20).epsilon(DELTA) for c in range(21)
    )
    assert found > constant
    assert weights[-1] == 1
    assert np.all(np.diff(weights) >= 0)


def test_worst_schedule_refuses_what_it_cannot_enumerate():
    with pytest.raises(InputError, match=r"^steps: got 13"):
        quadratic.worst_schedule(1.0, 0.1, 13, DELTA)


@pytest.mark.parametrize("curvature", [0.1, 0.4, 0.9])
def test_many_steps_are_rounded_to_either_side(monkeypatch, curvature):
    exact = quadratic.last_iterate(1.0, 0.1, 9, curvature).epsilon(DELTA)
    monkeypatch.setattr(quadratic, "MOST_STEPS", 5)
    up = quadratic.last_iterate(1.0, 0.1, 9, curvature).epsilon(DELTA)
    down = quadratic.last_iterate(1.0, 0.1, 9, curvature, round_down=True).epsilon(DELTA)
    assert down < exact < up
    if curvature == 0.9:
        assert up - down < 1e-3


def test_any_noise_and_number_of_steps():
    for noise in (1e-50, 1e50):
        pair = quadratic.last_iterate(noise, 0.1, 3, 0.5)
        assert pair.noise_std == pytest.approx(noise * math.sqrt(1.3125), rel=1e-14)
    with pytest.raises(InputError, match=r"^steps: got 1000000000000; expected at most"):
        quadratic.last_iterate(1.0, 0.1, 10**12, 0.5)


@pytest.mark.parametrize("round_down", [False, True])
def test_near_shifts_stay_apart(round_down):
    """Merged ones rounded an upper bound down: a gradient of 1e-13 shows if noise is as small."""
    size = 2.0**-43
    pair = quadratic.last_iterate(size, 0.1, 2, 1 - size, round_down=round_down)
    assert pair.shifts.tolist() == [0, size, 1, 1 + size]
    # Without the shift the canary shows in 10 % of runs.
    assert pair.delta(0.0) > 0.11
