"""The optimiser's last iterate: its weights by literal descent, its epsilon by closed forms."""

import itertools
import math
from functools import partial

import deltas
import mpmath
import numpy as np
import pytest

from hiddenstate.accounting import quadratic, weighted
from hiddenstate.accounting.linear import last_iterate_epsilon
from hiddenstate.accounting.mixture import GaussianMixture
from hiddenstate.accounting.weighted import SCHEDULES, epsilon, optimiser_weights
from hiddenstate.errors import InputError
from hiddenstate.streams import stream

DELTA = 1e-6


def last_theta(gradients, rates, momentum, decay):
    theta = velocity = 0.0
    for gradient, rate in zip(gradients, rates, strict=True):
        velocity = momentum * velocity + gradient + decay * theta
        theta -= rate * velocity
    return theta


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(("momentum", "decay"), [(0.0, 0.0), (0.9, 0.0), (0.0, 0.3), (0.5, 0.2)])
def test_weights_are_those_of_literal_descent(schedule, momentum, decay):
    steps, rate = 12, 0.1
    done = np.arange(steps) / steps
    rates = (
        rate
        * {
            "constant": np.ones(steps),
            "linear": 1 - done,
            "cosine": np.cos(np.pi * done / 2) ** 2,
            "step": np.repeat([1, 0.1, 0.01], 4),
        }[schedule]
    )
    expected = np.array([-last_theta(row, rates, momentum, decay) for row in np.eye(steps)])
    weights = optimiser_weights(
        steps, schedule=schedule, momentum=momentum, weight_decay=decay, learning_rate=rate
    )
    np.testing.assert_allclose(weights, expected / expected.max(), atol=1e-12)


@pytest.mark.parametrize("null", ["out", "in", "either"])
def test_constant_weights_are_the_closed_form(null):
    exact = last_iterate_epsilon(0.7, 0.01, 1000, DELTA, null=null)
    bounds = epsilon(0.7, 0.01, np.ones(1000), DELTA, null=null)
    assert bounds.lower <= exact <= bounds.upper
    assert bounds.upper - bounds.lower < 1e-5


@pytest.mark.parametrize("null", ["out", "in"])
def test_few_weights_by_enumeration(null):
    weights, q, sigma = np.array([0.13, 0.31, 0.77, 1.0, 0.5, 0.2]), 0.2, 0.9
    sums = {}
    for bits in itertools.product([0, 1], repeat=6):
        key = round(float(weights @ bits), 9)
        sums[key] = sums.get(key, 0) + q ** sum(bits) * (1 - q) ** (6 - sum(bits))
    shifts = np.array(sorted(sums))
    pair = GaussianMixture(
        shifts, np.log([sums[k] for k in sorted(sums)]), sigma * float(np.linalg.norm(weights))
    )
    bounds = epsilon(sigma, q, weights, DELTA, null=null, width=1e-3)
    assert bounds.lower <= pair.epsilon(DELTA, null=null) <= bounds.upper
    assert bounds.upper - bounds.lower <= 1e-3


def test_geometric_weights_are_the_quadratic_regulariser():
    weights = optimiser_weights(10, weight_decay=0.3, learning_rate=1.0)
    bounds = epsilon(1.0, 0.1, weights, DELTA, width=1e-3)
    exact = quadratic.last_iterate(1.0, 0.1, 10, 0.3).epsilon(DELTA)
    assert bounds.lower <= exact <= bounds.upper


# Brackets of an independent program, of relative width 1e-3.
INDEPENDENT = [
    ({"momentum": 0.9}, 2.2355, 2.2381),
    ({"weight_decay": 0.01, "learning_rate": 1.0}, 1.0659, 1.0669),
]


@pytest.mark.parametrize(("optimiser", "low", "high"), INDEPENDENT)
def test_independent_brackets_overlap(optimiser, low, high):
    bounds = epsilon(0.7, 0.01, optimiser_weights(1000, **optimiser), DELTA)
    assert bounds.lower <= high
    assert low <= bounds.upper
    assert bounds.upper - bounds.lower <= 0.01 * bounds.upper


def test_a_group_is_as_many_steps_of_the_same_weight():
    bounds = epsilon(1.0, 0.05, np.ones(20), DELTA, group=3)
    pair_steps = last_iterate_epsilon(1.0 / math.sqrt(3), 0.05, 60, DELTA)
    assert bounds.lower <= pair_steps <= bounds.upper


def test_shuffling_one_visit_an_epoch():
    # Constant weights: the canary adds exactly one an epoch, whatever the order.
    bounds = epsilon(1.0, 0.1, np.ones(50), DELTA, sampling="shuffled")
    exact = last_iterate_epsilon(1.0 * math.sqrt(50) / 5, 1.0, 1, DELTA)
    assert bounds.lower <= exact <= bounds.upper
    # Uneven weights, one epoch: one of the weights.
    weights = np.array([0.25, 0.5, 1.0, 0.75])
    pair = GaussianMixture(
        np.sort(weights), np.log(np.full(4, 0.25)), float(np.linalg.norm(weights))
    )
    bounds = epsilon(1.0, 0.25, weights, DELTA, sampling="shuffled")
    assert bounds.lower <= pair.epsilon(DELTA) <= bounds.upper
    with pytest.raises(InputError, match=r"^sampling_rate: got 0\.3"):
        epsilon(1.0, 0.3, weights, DELTA, sampling="shuffled")


def test_delta_by_simulation():
    """400,000 draws of the likelihood-free test {Y >= y}: fails by chance once in 3e6.

    Its P - e^epsilon Q is at most the delta of that epsilon; at the best y they are equal, so the
    bracket at delta holds epsilon. Detects an error of 5 % in epsilon.
    """
    weights = optimiser_weights(60, schedule="cosine", momentum=0.5)
    sigma, q, runs, delta = 0.4, 0.1, 400_000, 0.02
    random = stream(0, "test_weighted")
    noise = sigma * np.linalg.norm(weights)
    out = noise * random.standard_normal(runs)
    present = (random.random((runs, 60)) < q) @ weights + noise * random.standard_normal(runs)
    bounds = epsilon(sigma, q, weights, delta, null="out")
    levels = np.linspace(0.5, 4, 30) * noise

    def best(e):
        return max(np.mean(present >= y) - math.exp(e) * np.mean(out >= y) for y in levels)

    error = 5 * math.sqrt(delta / runs) + 0.0005
    assert best(bounds.upper * 0.99) > delta - error - 0.002
    assert best(bounds.upper * 1.05) < delta + error
    assert best(bounds.lower * 0.8) > delta


def test_correlated_noise():
    random = stream(0, "test_weighted", "matrix")
    weights = np.ones(6)
    c = np.tril(random.random((6, 6))) + np.eye(6)
    expected = 1.5 * np.linalg.norm(weights @ np.linalg.inv(c))
    assert weighted.correlated_noise_std(1.5, weights, c) == pytest.approx(expected, rel=1e-12)
    assert weighted.correlated_noise_std(1.5, weights, np.eye(6)) == pytest.approx(1.5 * 6**0.5)
    plain = epsilon(1.5, 0.1, weights, DELTA)
    assert epsilon(1.5, 0.1, weights, DELTA, noise_std=1.5 * 6**0.5) == plain
    assert epsilon(1.5, 0.1, weights, DELTA, noise_weights=2 * weights).upper < plain.lower
    with pytest.raises(InputError, match=r"^matrix: got shape"):
        weighted.correlated_noise_std(1.5, weights, np.ones((6, 6)))


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda: optimiser_weights(10, schedule="warm"), "schedule"),
        (lambda: optimiser_weights(10, momentum=1.0), "momentum"),
        (lambda: optimiser_weights(10, weight_decay=20.0), "weight_decay"),
        (
            lambda: optimiser_weights(50, momentum=0.9, weight_decay=0.5, learning_rate=0.9),
            "weight_decay",
        ),
        (lambda: optimiser_weights(0), "steps"),
        (lambda: epsilon(1.0, 0.1, np.zeros(3), DELTA), "weights"),
        (lambda: epsilon(1.0, 0.1, -np.ones(3), DELTA), "weights"),
        (lambda: epsilon(1.0, 0.1, np.ones(3), DELTA, group=0), "group"),
        (lambda: epsilon(1.0, 0.1, np.ones(3), DELTA, width=-1.0), "width"),
        (lambda: epsilon(1.0, 0.1, np.ones(3), DELTA, noise_std=0.0), "noise_std"),
        (lambda: epsilon(1.0, 0.1, np.ones(3), DELTA, sampling="cyclic"), "sampling"),
    ],
)
def test_bad_input_is_named(call, name):
    with pytest.raises(InputError, match=f"^{name}: "):
        call()


@pytest.mark.parametrize(
    "options", [{"schedule": "cosine"}, {"momentum": 0.9}, {"weight_decay": 0.3}, {}]
)
@pytest.mark.parametrize("group", [1, 3])
def test_with_every_record_in_every_step_it_is_gaussian(options, group):
    weights = optimiser_weights(1000, **options)
    bounds = epsilon(10.0, 1.0, weights, 1e-5, group=group)
    mu = group * weights.sum() / (10.0 * np.linalg.norm(weights))
    delta = partial(deltas.gaussian, mu)
    with mpmath.workdps(40):
        assert delta(bounds.upper) < 1e-5 < delta(bounds.lower)
    assert bounds.upper - bounds.lower < 3e-9 * bounds.upper


@pytest.mark.parametrize("null", ["out", "in"])
@pytest.mark.parametrize("share", [0.001, 0.6, 1 - 1e-5, 1 - 1e-10])
@pytest.mark.parametrize(("sigma", "q"), [(23.34, 0.5), (2e6, 0.01), (2e8, 0.5), (83.0, 1 - 1e-9)])
def test_both_ends_are_on_their_sides_near_the_total_variation(sigma, q, share, null):
    """Of one step, whose sums are on the grid: losses are rounded by more than 1e-9 of them."""
    exact = partial(deltas.one_step, sigma, q, null=null)
    with mpmath.workdps(80):
        delta = float(exact(0) * share)
        lower, upper = epsilon(sigma, q, [1.0], delta, null=null)
        assert lower == 0 or exact(lower) >= delta
        assert exact(upper) <= delta


def test_the_default_width_is_a_thousandth_where_that_is_cheap():
    bounds = epsilon(0.7, 0.01, optimiser_weights(250, schedule="linear"), DELTA)
    assert bounds.upper - bounds.lower <= max(1e-4, 1e-3 * bounds.lower)


def test_sums_that_take_too_long_are_refused_with_what_is_to_be_had(monkeypatch):
    weights = optimiser_weights(200, schedule="cosine")
    monkeypatch.setattr(weighted, "MOST_WORK", 1 << 24)
    with pytest.raises(InputError, match=r"^width: got 1e-09") as refusal:
        epsilon(0.7, 0.1, weights, DELTA, width=1e-9)
    width = float(str(refusal.value).split("at least ")[1].split(",")[0])
    bounds = epsilon(0.7, 0.1, weights, DELTA, width=width)
    assert bounds.upper - bounds.lower <= width


def test_a_sum_that_rounding_takes_beyond_the_grid_is_no_error():
    weights = optimiser_weights(300, schedule="cosine")
    full = epsilon(10.0, 1.0, weights, 1e-5)
    near = epsilon(10.0, 1 - 1e-3, weights, 1e-5, width=1.0)
    assert near.lower <= full.upper and 0.9 * full.lower <= near.upper


@pytest.mark.parametrize("delta", [1e-5, 1e-14, 1e-16, 1e-30, 1e-200])
def test_any_delta_is_that_of_the_sums_one_by_one(delta):
    """What is left out is counted by itself, not as one less the sum of the rest."""
    weights, rate = np.array([1.0, 0.7, 0.4]), 0.01
    drawn = np.array(list(itertools.product((0, 1), repeat=3)))
    shifts, chances = drawn @ weights, np.prod(np.where(drawn, rate, 1 - rate), axis=1)
    order = np.argsort(shifts)
    exact = GaussianMixture(shifts[order], np.log(chances[order]), 1.3)
    low = max(exact.bracket(delta, share=1e-9, null=null)[0] for null in ("out", "in"))
    found = epsilon(1.3, rate, weights, delta, noise_std=1.3)
    assert found.lower <= low * (1 + 1e-8) and low <= found.upper * (1 + 1e-8)
    assert found.upper - found.lower <= 1e-2 * found.upper


def test_a_delta_below_what_products_hold_is_refused_by_name():
    with pytest.raises(InputError, match="delta: got 1e-290; expected at least 1e-280"):
        epsilon(1.3, 0.01, np.ones(3), 1e-290)
