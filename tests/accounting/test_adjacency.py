"""Groups, swaps and batches of a fixed size against dp-accounting and simulated steps."""

import math

import dp_accounting
import numpy as np
import pytest
from dp_accounting import dp_event
from dp_accounting.pld import privacy_loss_distribution
from dp_accounting.rdp import RdpAccountant
from mixtures import mixture
from scipy import integrate, stats

from hiddenstate.accounting import bounds, composition, gaussian, swapped, weighted
from hiddenstate.accounting.bounds import HEURISTIC, STANDARD
from hiddenstate.accounting.setting import Setting
from hiddenstate.errors import InputError
from hiddenstate.sampling import Cyclic, FixedSize, FullBatch, Poisson

SETTINGS = [
    (1.0, 0.1, 30, 1e-3),
    (0.7, 0.02, 40, 1e-3),
    (3.0, 0.3, 30, 1e-3),
    (1.5, 0.5, 7, 1e-2),
    (0.5, 0.01, 60, 1e-3),
]
REPLACE = dp_accounting.NeighboringRelation.REPLACE_ONE
RUNS = 200_000
QUICK = [(2, 1), (5, 2)]
"""Groups and settings whose losses dp-accounting finds in seconds: small and large rates."""


def row(name, delta=1e-5, **numbers):
    asked = [one for one in bounds.BOUNDS if one.name == name]
    (found,) = bounds.found(Setting(**numbers), delta, asked)
    return found


def delta_of(losses, epsilon):
    """Delta at epsilon by simulated privacy losses, and its deviation."""
    each = np.maximum(0.0, -np.expm1(epsilon - losses))
    return each.mean(), each.std() / math.sqrt(len(each)) + 1e-12


def losses(rng, ratio, centre, weights, sigma, steps):
    """Sums of the losses of steps, whose mean is drawn from ``centre`` with the weights."""
    total, edges = np.zeros(RUNS), np.cumsum(weights)[:-1]
    for _ in range(steps):
        drawn = rng.random(RUNS)
        y = sigma * rng.standard_normal(RUNS) + centre[0]
        for edge, apart in zip(edges, np.diff(centre), strict=True):
            y += apart * (drawn >= edge)
        total += ratio(y)
    return total


def log_ratio(sigma, one, other):
    """Log-likelihood ratio of two mixtures, each of means, multiples of one, and weights."""

    def log_density(y, means, weights):
        """Over that of noise: of the exponential of the unit mean's exponent, a polynomial."""
        if len(means) == 1:
            return 0.0
        assert np.array_equal(means, means[1] * np.arange(len(means)))
        *lower, highest = weights * np.exp(-0.5 * np.square(means) / sigma**2)
        unit, total = np.exp(means[1] / sigma**2 * y), highest
        for factor in reversed(lower):
            total = total * unit
            total += factor
        return np.log(total)

    return lambda y: log_density(y, *one) - log_density(y, *other)


def check(bracket, losses, delta):
    """The bracket is of the simulated delta, and one that is 5 % off is not."""
    low, error = delta_of(losses, bracket.lower)
    assert low >= delta - 5 * error
    high, error = delta_of(losses, bracket.upper)
    assert high <= delta + 5 * error
    wrong, error = delta_of(losses, 0.95 * bracket.lower)
    assert wrong > delta + 2 * error


@pytest.mark.whole
@pytest.mark.parametrize("mechanism", SETTINGS)
def test_swapped_records_of_poisson_batches(mechanism):
    sigma, rate, steps, delta = mechanism
    found = swapped.bracket(*mechanism)
    assert found.upper - found.lower <= 2e-3 * max(1, found.upper)
    pair = ([0.0, 1.0], [1 - rate, rate]), ([0.0, -1.0], [1 - rate, rate])
    rng = np.random.default_rng(0)
    check(found, losses(rng, log_ratio(sigma, *pair), *pair[0], sigma, steps), delta)
    peer = [
        privacy_loss_distribution.from_gaussian_mechanism(
            sigma, sampling_prob=rate, neighboring_relation=REPLACE, pessimistic_estimate=up,
            value_discretization_interval=1e-3, use_connect_dots=up,
        ).self_compose(steps).get_epsilon_for_delta(delta)
        for up in (False, True)
    ]  # fmt: skip
    assert peer[0] <= found.upper
    assert found.lower <= peer[1]


@pytest.mark.whole
@pytest.mark.parametrize("mechanism", SETTINGS)
def test_swapped_records_of_fixed_size_batches(mechanism):
    """The pair that is attained is the lower end; the upper one is above any order of directions.

    dp-accounting's Rényi accountant, at half the noise as its unit is a swap's, is above both.
    """
    sigma, rate, steps, delta = mechanism
    found = swapped.bracket(*mechanism, fixed_size=True)
    assert found.lower <= found.upper <= 1.15 * found.lower + 0.02
    mixed, none = ([0.0, 2.0], [1 - rate, rate]), ([0.0], [1.0])
    rng, most = np.random.default_rng(1), -math.inf
    into, back = log_ratio(sigma, mixed, none), log_ratio(sigma, none, mixed)
    half = steps // 2
    ways = (into, *mixed), (back, *none)
    # Losses of the steps of either half, in either direction.
    first, last = ([losses(rng, *way, sigma, n) for way in ways] for n in (half, steps - half))
    for drawn in (first[0] + last[0], first[1] + last[1], first[0] + last[1]):
        value, error = delta_of(drawn, found.upper)
        assert value <= delta + 5 * error
        value, error = delta_of(drawn, found.lower)
        most = max(most, value + 5 * error)
    assert most >= delta
    event = dp_event.SelfComposedDpEvent(
        dp_event.SampledWithoutReplacementDpEvent(
            10_000, round(10_000 * rate), dp_event.GaussianDpEvent(sigma / 2)
        ),
        steps,
    )
    accountant = RdpAccountant(neighboring_relation=REPLACE).compose(event)
    assert found.upper <= accountant.get_epsilon(delta)


def test_one_step_of_fixed_size_batches_is_its_closed_form():
    for sigma, rate, delta in ((1.0, 0.1, 1e-3), (0.6, 0.01, 1e-4), (4.0, 0.5, 1e-2)):
        found = swapped.bracket(sigma, rate, 1, delta, fixed_size=True)
        exact = composition.bracket(sigma / 2, rate, 1, delta).upper
        assert found.lower <= exact <= found.upper * (1 + 1e-9)
        assert found.upper - found.lower < 2e-3


@pytest.mark.parametrize("mechanism", [(0.7, 0.02, 2), (2.0, 0.5, 4)])
def test_the_search_at_once_gives_the_numbers_of_dp_accounting_s(mechanism):
    sigma, rate, group = mechanism
    given = sigma, np.arange(group + 1.0), stats.binom.pmf(np.arange(group + 1), group, rate)
    options = {"value_discretization_interval": 0.2}
    ours = mixture(*given, **options)
    its = privacy_loss_distribution.from_mixture_gaussian_mechanism(*given, **options)
    for name in ("_pmf_remove", "_pmf_add"):
        one, other = (getattr(found, name).to_dense_pmf() for found in (ours, its))
        assert one._lower_loss == other._lower_loss
        np.testing.assert_array_equal(one._probs, other._probs)
        assert one._infinity_mass == other._infinity_mass


@pytest.mark.whole
@pytest.mark.parametrize(
    ("group", "mechanism"),
    [
        pytest.param(group, mechanism, marks=() if (group, i) in QUICK else pytest.mark.slow)
        for group in (2, 5)
        for i, mechanism in enumerate(SETTINGS)
    ],
)
def test_groups_of_poisson_batches(group, mechanism):
    sigma, rate, steps, delta = mechanism
    numbers = {"sampling": Poisson(rate), "noise_multiplier": sigma, "steps": steps}
    value = row(STANDARD, delta, **numbers, group=group).value
    found = composition.Bracket(value.lower, value.epsilon)
    counts = np.arange(group + 1.0)
    weights = stats.binom.pmf(counts, group, rate)
    peer = mixture(sigma, counts, weights, value_discretization_interval=1e-3)
    assert found.lower <= peer.self_compose(steps).get_epsilon_for_delta(delta)
    rng, mixed, none = np.random.default_rng(2), (counts, weights), ([0.0], [1.0])
    one = losses(rng, log_ratio(sigma, mixed, none), *mixed, sigma, steps)
    other = losses(rng, log_ratio(sigma, none, mixed), *none, sigma, steps)
    ends = [delta_of(drawn, found.upper) for drawn in (one, other)]
    assert all(at <= delta + 5 * error for at, error in ends)
    assert (
        max(at + 5 * error for at, error in (delta_of(d, found.lower) for d in (one, other)))
        >= delta
    )
    last = row(HEURISTIC, delta, **numbers, group=group)
    exact = weighted.epsilon(sigma, rate, np.ones(steps), delta, group=group)
    assert exact.lower <= last.epsilon * (1 + 1e-9)
    assert last.epsilon <= exact.upper * (1 + 1e-9)
    if steps % 10 == 0:
        some = row(HEURISTIC, delta, **numbers, group=group, release_every=10)
        assert last.epsilon <= some.epsilon <= value.epsilon


def test_the_last_iterate_of_linear_losses_and_a_swap_by_integration():
    sigma, rate, steps, delta = 2.0, 0.2, 12, 1e-3
    numbers = {"sampling": Poisson(rate), "noise_multiplier": sigma, "steps": steps}
    epsilon = row(HEURISTIC, delta, **numbers, adjacency="swap").epsilon
    counts = np.arange(steps + 1)
    weights = stats.binom.pmf(counts, steps, rate)
    noise = sigma * math.sqrt(steps)

    def density(y, sign):
        return float(weights @ stats.norm.pdf(y, sign * counts, noise))

    def gap(y):
        return max(0.0, density(y, 1) - math.exp(epsilon) * density(y, -1))

    exact = integrate.quad(gap, -80, 80, limit=500, points=[0, 10, 20])[0]
    assert exact == pytest.approx(delta, rel=1e-3)
    assert epsilon < row(STANDARD, delta, **numbers, adjacency="swap").epsilon


def test_the_last_iterate_and_a_swap_at_large_epsilons():
    """Rare counts of the one world, near those of the other, are what epsilon hangs on."""
    for sigma, rate, steps, delta in ((0.73, 0.68, 167, 9e-3), (0.5, 0.5, 100, 1e-3)):
        numbers = {"sampling": Poisson(rate), "noise_multiplier": sigma, "steps": steps}
        last = row(HEURISTIC, delta, **numbers, adjacency="swap").epsilon
        assert last <= row(STANDARD, delta, **numbers, adjacency="swap").epsilon
    numbers = {"sampling": Poisson(0.5), "noise_multiplier": 0.2, "steps": 3000}
    refused = row(HEURISTIC, 1e-3, **numbers, adjacency="swap").assumption
    assert "delta: got 0.001; expected a larger one" in refused


def test_groups_and_swaps_of_full_batches_and_orders_are_gaussian():
    numbers = {"noise_multiplier": 5.0, "steps": 16}
    for more, mu in (
        ({"sampling": FullBatch(), "group": 3}, 3 * 4 / 5),
        ({"sampling": FullBatch(), "adjacency": "swap"}, 2 * 4 / 5),
        ({"sampling": Cyclic(5), "records": 20, "group": 3}, 3 * 2 * 2 / 5),
        ({"sampling": Cyclic(5, shuffled_once=True), "records": 20, "group": 3}, 3 * 2 * 2 / 5),
        ({"sampling": FixedSize(20), "records": 20}, 2 * 4 / 5),
    ):
        found = row(STANDARD, **numbers, **more)
        assert found.epsilon == pytest.approx(float(gaussian.epsilon(mu, 1e-5)), rel=1e-6)
    # Of an order the last iterate adds up four visits against the noise of 16 steps.
    for shuffled in (False, True):
        order = {"sampling": Cyclic(5, shuffled_once=shuffled), "records": 20, "group": 3}
        found = row(HEURISTIC, **numbers, **order)
        mu = 3 * 2 * 4 / (5.0 * 4)
        assert found.epsilon == pytest.approx(float(gaussian.epsilon(mu, 1e-5)), rel=1e-6)


@pytest.mark.whole
def test_renyi_rows_of_groups_and_fixed_sizes_are_above_the_standard_epsilon():
    renyi = "standard epsilon, by Rényi DP"
    for numbers in (
        {"sampling": Poisson(0.05), "group": 3},
        {"sampling": FullBatch(), "group": 3},
        {"sampling": FullBatch(), "adjacency": "swap", "group": 2},
        {"sampling": FixedSize(50), "records": 1000},
    ):
        given = {"noise_multiplier": 4.0, "steps": 100, **numbers}
        found, standard = (row(name, **given).value for name in (renyi, STANDARD))
        assert standard.lower <= found.epsilon < 3 * standard.epsilon
    given = {"noise_multiplier": 4.0, "steps": 100, "sampling": Poisson(0.05)}
    assert "Poisson batches" in row(renyi, **given, adjacency="swap").assumption


def test_a_swap_in_full_batches_is_half_the_noise():
    numbers = {"sampling": FullBatch(), "steps": 30, "group": 2, "momentum": 0.9}
    for name in (STANDARD, HEURISTIC):
        swap = row(name, **numbers, noise_multiplier=8.0, adjacency="swap").epsilon
        assert swap == row(name, **numbers, noise_multiplier=4.0).epsilon


@pytest.mark.parametrize("shuffled", [False, True])
def test_last_iterate_rows_of_a_group_have_its_multiple_of_mu(shuffled):
    """Group privacy of Gaussian DP; never below the linear loss that each covers (the guard)."""
    numbers = {
        "sampling": Cyclic(5, shuffled_once=shuffled), "records": 60, "steps": 60,
        "noise_multiplier": 4.0, "learning_rate": 0.1, "smoothness": 0.5, "weak_convexity": 0.0,
    }  # fmt: skip
    alone, group = (bounds.found(Setting(**numbers, group=size), 1e-5) for size in (1, 3))
    for one, three in zip(alone, group, strict=True):
        if one.mu is not None:
            assert three.mu == pytest.approx(3 * one.mu)
            assert three.epsilon == pytest.approx(float(gaussian.epsilon(3 * one.mu, 1e-5)))
        elif three.value is not None:
            assert three.epsilon >= one.epsilon * (1 - 1e-9)


@pytest.mark.parametrize(
    ("numbers", "message"),
    [
        ({"sampling": Poisson(0.1), "group": 0}, "group: got 0"),
        ({"sampling": Cyclic(5), "records": 20, "group": 6}, "group: got 6; expected at most 5"),
        ({"sampling": Cyclic(5), "records": 20, "adjacency": "add-remove"}, "expected swap"),
        ({"sampling": FixedSize(5), "records": 20, "adjacency": "add-remove"}, "expected swap"),
        ({"sampling": FixedSize(5)}, "records: got None"),
        ({"sampling": FixedSize(50), "records": 20}, "batch_size: got 50"),
        ({"sampling": Poisson(0.1), "adjacency": "zero"}, "add-remove or swap"),
    ],
)
def test_what_does_not_fit_is_named(numbers, message):
    with pytest.raises(InputError, match=message):
        Setting(noise_multiplier=1.0, steps=10, **numbers)


def test_every_row_is_answered_or_refused_by_name():
    numbers = {"noise_multiplier": 1.0, "steps": 10, "batch_size": 10.0}
    for more, words in (
        ({"sampling": Poisson(0.1), "adjacency": "swap", "group": 2}, "--group"),
        ({"sampling": Poisson(0.1), "group": 2, "smoothness": 1.0, "diameter": 1.0}, "--group"),
        ({"sampling": FixedSize(10), "records": 100}, "fixed-size"),
    ):
        refused = [
            one for one in bounds.found(Setting(**numbers | more), 1e-5) if one.value is None
        ]
        assert refused
        assert any(words in one.assumption for one in refused)


def test_fixed_size_batches_are_drawn_without_replacement():
    drawn = FixedSize(7).batches(20, 300, np.random.default_rng(0))
    assert all(len(set(batch.tolist())) == 7 for batch in drawn)
    counts = np.bincount(np.concatenate(drawn), minlength=20)
    assert np.abs(counts - 300 * 7 / 20).max() < 45


@pytest.mark.whole
@pytest.mark.parametrize("fixed_size", [False, True])
def test_little_noise_overflows_nothing(fixed_size):
    for mechanism in ((0.048, 0.0065, 4041, 4e-9), (0.02, 0.5, 40, 1e-9), (30.0, 1e-6, 9, 1e-12)):
        found = swapped.bracket(*mechanism, fixed_size=fixed_size)
        assert 0 <= found.lower <= found.upper <= 1.001 * found.lower + 1e-6


@pytest.mark.whole
@pytest.mark.parametrize(
    ("kind", "count"),
    [
        *(("one record", 10), ("swap", 10), ("group", 4)),
        *(
            pytest.param(kind, 100, marks=pytest.mark.slow)
            for kind in ("one record", "swap", "group")
        ),
    ],
)
def test_random_brackets_meet_dp_accounting_s(kind, count):
    """Ours cannot lie outside of its pessimistic and optimistic ends; it errs by 1e-12 of delta.

    Groups take it seconds each, so that theirs have more noise, and its losses are coarser.
    """
    draw = np.random.default_rng(0)
    for _ in range(count):
        least = 0.1 if kind == "group" else -0.3
        sigma, rate = float(10 ** draw.uniform(least, 0.8)), float(10 ** draw.uniform(-2.5, -0.1))
        steps, delta = int(10 ** draw.uniform(0, 2.5)), float(10 ** draw.uniform(-7, -1))
        group = int(draw.integers(2, 5)) if kind == "group" else 1
        if kind == "swap":
            found = swapped.bracket(sigma, rate, steps, delta)
        else:
            same = (sigma / math.sqrt(group), rate, group * steps, delta, group)
            found = composition.fine_bracket(*same)
        ends = []
        for up in (False, True):
            options = {
                "pessimistic_estimate": up,
                "use_connect_dots": up,
                "value_discretization_interval": 1e-2 if kind == "group" else 1e-3,
            }
            if kind == "group":
                counts = np.arange(group + 1.0)
                weights = stats.binom.pmf(counts, group, rate)
                single = mixture(sigma, counts, weights / weights.sum(), **options)
            else:
                relation = dp_accounting.NeighboringRelation
                single = privacy_loss_distribution.from_gaussian_mechanism(
                    sigma,
                    sampling_prob=rate,
                    neighboring_relation=REPLACE if kind == "swap" else relation.ADD_OR_REMOVE_ONE,
                    **options,
                )
            ends.append(single.self_compose(steps).get_epsilon_for_delta(delta))
        assert ends[0] - 1e-9 <= found.upper, (sigma, rate, steps, delta, group)
        assert found.lower <= ends[1] * (1 + 1e-6) + 1e-9, (sigma, rate, steps, delta, group)
        assert found.upper - found.lower <= 0.011 * found.upper + 1e-3
