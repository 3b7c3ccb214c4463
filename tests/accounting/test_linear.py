"""The last iterate under a linear loss against mpmath, dp-accounting and closed forms."""

import functools
import math

import deltas
import mixtures
import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import ndtr
from scipy.stats import binom

from hiddenstate.accounting import linear, mixture, pld
from hiddenstate.accounting.linear import (
    full_batch_epsilon,
    last_iterate,
    last_iterate_delta,
    last_iterate_epsilon,
    last_iterate_noise_multiplier,
    tradeoff_curve,
)
from hiddenstate.errors import InputError
from hiddenstate.streams import stream

# (steps, sampling rate, noise multiplier, delta), epsilon of null "out", of null "in": computed
# by an independent program and confirmed with 50 digits; printed to ten.
EPSILONS = [
    ((1, 0.1, 1.0, 1e-6), 2.1816941092, 0.1020159657),
    ((2, 0.1, 1.0, 1e-6), 2.1990562445, 0.1946445245),
    ((3, 0.1, 1.0, 1e-6), 2.2224107092, 0.2794215527),
    ((1, 0.01, 0.5, 1e-6), 4.2854231372, 0.0100034812),
    ((10, 0.01, 0.5, 1e-6), 1.1119853436, 0.0897438213),
    ((21, 0.01, 0.5, 1e-6), 1.0119071402, 0.1691928039),
    ((100, 0.01, 0.5, 1e-6), 1.3246642320, 0.5545853158),
    ((1000, 0.01, 0.5, 1e-6), 3.4014365785, 2.4853042737),
    ((10000, 0.01, 0.5, 1e-6), 11.6054639606, 10.2071711234),
    ((1000, 0.001, 5 / math.sqrt(1000), 1e-6), 1.3324524864, 0.5531168791),
    ((2468, 0.08192, 3.0, 1e-5), 6.3464930567, 6.1373646708),
    ((1000, 0.01, 1.1, 1e-5), 1.1433275634, 1.0170893117),
    ((10000, 0.01, 1.1, 1e-5), 4.0005279485, 3.8266603404),
    ((1000, 0.08, 2.1, 1e-5), 5.6141711360, 5.2206030646),
    ((2000, 0.08, 2.1, 1e-5), 8.4150588978, 7.9516034935),
    ((100, 1.0, 10.0, 1e-5), 4.3771780957, 4.3771780957),
    ((100000, 0.001, 1.0, 1e-5), 1.2069882114, 1.1911687788),
]

# (steps, sampling rate, noise multiplier, epsilon), delta of null "out", of null "in".
DELTAS = [
    ((3, 0.1, 1.0, 1.0), 3.189756440159e-04, 0.0),
    ((3, 0.1, 1.0, 0.2), 2.205040208966e-02, 1.586113310711e-03),
    ((100, 0.01, 0.5, 0.5), 2.236132250907e-03, 1.163444005891e-05),
    ((1000, 0.01, 0.5, 2.0), 9.036288960913e-04, 6.939573250023e-05),
    ((2468, 0.08192, 3.0, 5.0), 4.269190924335e-04, 2.973669569093e-04),
    ((3, 0.1, 1.0, 0.0), 6.716997397542e-02, 6.716997397542e-02),
]


SWEPT = ((0.3, 30), (1e-4, 0.5), (1e-10, 1e-2))
"""Noise multipliers, sampling rates and deltas."""


@pytest.mark.parametrize(("setting", "out", "in_"), EPSILONS)
def test_epsilon_oracle(setting, out, in_):
    steps, rate, sigma, delta = setting
    assert last_iterate_epsilon(sigma, rate, steps, delta, null="out") == pytest.approx(
        out, abs=1.01e-10
    )
    assert last_iterate_epsilon(sigma, rate, steps, delta, null="in") == pytest.approx(
        in_, abs=1.01e-10
    )
    assert last_iterate_epsilon(sigma, rate, steps, delta) == pytest.approx(out, abs=1.01e-10)


@pytest.mark.parametrize(("setting", "out", "in_"), DELTAS)
def test_delta_oracle(setting, out, in_):
    steps, rate, sigma, epsilon = setting
    for null, expected in (("out", out), ("in", in_), ("either", max(out, in_))):
        delta = last_iterate_delta(sigma, rate, steps, epsilon, null=null)
        assert delta == pytest.approx(expected, rel=1e-11, abs=0)


def multiprecision_delta(steps, rate, sigma, epsilon, null):
    """Delta by the formulas of appendix A, in 60 digits, from the definition of each term."""
    mp = mpmath.mp.clone()
    mp.dps = 60
    rate, sigma, epsilon = mp.mpf(rate), mp.mpf(sigma), mp.mpf(epsilon)
    s = sigma * mp.sqrt(steps)
    guess = last_iterate(float(sigma), float(rate), steps)
    target = epsilon if null == "out" else -epsilon
    start = float(guess.threshold(float(target)))
    # Terms of no weight to any digit are left out, judged in double precision.
    k = np.arange(steps + 1)
    size = binom.logpmf(k, steps, float(rate)) + np.maximum(
        0, (2 * k * start - k**2) / (2 * float(s) ** 2)
    )
    matter = np.flatnonzero(size > np.max(size) - 200)
    weights, weight = [], mp.binomial(steps, int(matter[0])) * rate ** int(matter[0])
    weight *= (1 - rate) ** (steps - int(matter[0])) if rate < 1 else 1
    for i in range(matter[0], matter[-1] + 1):
        weights.append((i, weight))
        if rate < 1:
            weight *= mp.mpf(steps - i) / (i + 1) * rate / (1 - rate)

    def ratio(y):
        return mp.log(mp.fsum(w * mp.exp((2 * i * y - i**2) / (2 * s**2)) for i, w in weights))

    y = mp.findroot(lambda y: ratio(y) - target, (start, start + 1e-9 * float(s)))
    if null == "out":
        tail = mp.fsum(w * mp.ncdf((i - y) / s) for i, w in weights)
        return tail - mp.exp(epsilon) * mp.ncdf(-y / s)
    tail = mp.fsum(w * mp.ncdf((y - i) / s) for i, w in weights)
    return mp.ncdf(y / s) - mp.exp(epsilon) * tail


PRECISE = [
    (1, 1e-5, 1.0, 1e-7),
    (7, 1e-5, 0.3, 1e-8),
    (50, 0.3, 0.2, 1e-9),
    (200, 0.02, 8.0, 1e-6),
    (2000, 0.005, 0.7, 1e-12),
]
VERY_PRECISE = [
    (10_000, 0.01, 0.5, 1e-6),
    (100_000, 1e-5, 0.5, 1e-6),
    (100_000, 1e-5, 0.05, 1e-9),
    (100_000, 0.01, 2.0, 1e-6),
    (100_000, 0.5, 100.0, 1e-6),
]


@pytest.mark.parametrize("null", ["out", "in"])
@pytest.mark.parametrize(
    "setting", PRECISE + [pytest.param(s, marks=pytest.mark.slow) for s in VERY_PRECISE]
)
def test_nine_digits(setting, null):
    steps, rate, sigma, delta = setting
    epsilon = last_iterate_epsilon(sigma, rate, steps, delta, null=null)
    assert epsilon > 0
    exact = multiprecision_delta(steps, rate, sigma, epsilon, null)
    assert float(abs(exact / delta - 1)) < 1e-9
    given = last_iterate_delta(sigma, rate, steps, epsilon, null=null)
    assert float(abs(given / exact - 1)) < 1e-9
    # Epsilon's own digits: the delta of an epsilon one part in 1e9 away lies on the other side.
    for factor, side in ((1 - 1e-9, 1), (1 + 1e-9, -1)):
        near = multiprecision_delta(steps, rate, sigma, mpmath.mpf(epsilon) * factor, null)
        assert side * (near - delta) > 0


@pytest.mark.parametrize("null", ["out", "in"])
@pytest.mark.parametrize("setting", [(1, 0.1, 1.0), (3, 0.1, 1.0), (100, 0.01, 0.5)])
def test_delta_against_mixture_privacy_loss(setting, null):
    """dp-accounting's own hockey-stick divergence of the same pair of mixtures.

    Its search for the threshold needs a wide list of epsilons: asked for a narrow one it
    returns far too small a delta.
    """
    from dp_accounting.pld import privacy_loss_mechanism

    steps, rate, sigma = setting
    adjacency = privacy_loss_mechanism.AdjacencyType
    oracle = privacy_loss_mechanism.MixtureGaussianPrivacyLoss(
        sigma * math.sqrt(steps),
        np.arange(steps + 1.0),
        binom.pmf(np.arange(steps + 1), steps, rate),
        adjacency_type=adjacency.REMOVE if null == "out" else adjacency.ADD,
    )
    top = last_iterate_epsilon(sigma, rate, steps, 1e-6, null=null)
    epsilons = np.array([top / 7, top / 2, 0.9 * top, top])
    wide = np.concatenate(([1e-6], epsilons, [top + 200]))
    expected = oracle.get_delta_for_epsilon(wide)[1:-1]
    ours = last_iterate_delta(sigma, rate, steps, epsilons, null=null)
    np.testing.assert_allclose(ours, expected, rtol=1e-7)


@pytest.mark.whole
@pytest.mark.parametrize(
    "setting",
    [(1, 0.1, 1.0), (3, 0.1, 1.0), pytest.param((100, 0.01, 0.5), marks=pytest.mark.slow)],
)
def test_epsilon_against_mixture_privacy_loss_distribution(setting):
    """The pessimistic oracle lies above the exact value, and by less than its discretisation."""
    steps, rate, sigma = setting
    oracle = mixtures.mixture(
        sigma * math.sqrt(steps),
        np.arange(steps + 1.0),
        binom.pmf(np.arange(steps + 1), steps, rate),
        value_discretization_interval=1e-3,
    )
    above = oracle.get_epsilon_for_delta(1e-6) - last_iterate_epsilon(sigma, rate, steps, 1e-6)
    assert -1e-9 < above < 1e-3


def test_one_step_is_the_subsampled_gaussian():
    for rate, sigma in [(0.1, 1.0), (0.01, 0.5), (0.5, 3.0)]:
        exact = last_iterate_epsilon(sigma, rate, 1, 1e-5)
        assert exact <= pld.epsilon(sigma, rate, 1, 1e-5) <= exact + 2e-3


@pytest.mark.parametrize("steps", [1, 10, 1000])
def test_full_batch_is_gaussian_differential_privacy(steps):
    rate, sigma, delta = 0.02, 0.7, 1e-6
    mu = math.sqrt(steps) * rate / sigma
    epsilon = full_batch_epsilon(sigma, rate, steps, delta)
    closed_form = ndtr(mu / 2 - epsilon / mu) - math.exp(epsilon) * ndtr(-mu / 2 - epsilon / mu)
    assert closed_form == pytest.approx(delta, rel=1e-9)


def test_full_batch_oracle():
    settings = [
        ((1, 1.0, 5.0, 1e-6), 0.8341175486),
        ((1000, 0.01, 0.5, 1e-6), 2.9216005904),
        ((2468, 0.08192, 3.0, 1e-5), 6.2559757784),
        ((10000, 0.01, 0.5, 1e-6), 10.9971512142),
    ]
    for (steps, rate, sigma, delta), expected in settings:
        assert full_batch_epsilon(sigma, rate, steps, delta) == pytest.approx(expected, abs=1e-10)


def test_full_batch_may_exceed_the_last_iterate():
    assert last_iterate_epsilon(0.1, 0.01, 1, 0.02) == 0
    assert full_batch_epsilon(0.1, 0.01, 1, 0.02) == pytest.approx(0.050878, abs=1e-6)


def test_not_monotone_in_steps():
    steps = np.arange(1, 401)
    epsilon = last_iterate_epsilon(0.5, 0.01, steps, 1e-6)
    assert steps[np.argmin(epsilon)] == 21
    assert np.min(epsilon) == pytest.approx(1.011907140, abs=1e-9)
    around = last_iterate_epsilon(0.5, 0.01, [1, 1595, 1596], 1e-6)
    assert around[1] < around[0] < around[2]


@pytest.mark.parametrize("setting", [(100, 0.01, 0.5), (1000, 0.08, 2.1), (50, 0.5, 2.0)])
def test_below_composition(setting):
    steps, rate, sigma = setting
    assert last_iterate_epsilon(sigma, rate, steps, 1e-5) < pld.epsilon(sigma, rate, steps, 1e-5)


@settings(max_examples=40, deadline=None)
@given(
    steps=st.integers(1, 300),
    rate=st.floats(1e-4, 1.0),
    sigma=st.floats(0.02, 100.0),
    log_delta=st.floats(-60, -1),
    null=st.sampled_from(["out", "in", "either"]),
)
def test_epsilon_inverts_delta(steps, rate, sigma, log_delta, null):
    delta = math.exp(log_delta)
    epsilon = last_iterate_epsilon(sigma, rate, steps, delta, null=null)
    back = last_iterate_delta(sigma, rate, steps, epsilon, null=null)
    if epsilon == 0:
        assert back <= delta * (1 + 1e-9)
    else:
        assert back == pytest.approx(delta, rel=1e-8)


@settings(max_examples=20, deadline=None)
@given(
    steps=st.integers(1, 300),
    rate=st.floats(1e-3, 1.0),
    epsilon=st.floats(0.05, 20.0),
    log_delta=st.floats(-20, -8),
)
def test_noise_multiplier_inverts_epsilon(steps, rate, epsilon, log_delta):
    sigma = last_iterate_noise_multiplier(epsilon, math.exp(log_delta), rate, steps)
    again = last_iterate_epsilon(sigma, rate, steps, math.exp(log_delta))
    assert again == pytest.approx(epsilon, rel=1e-8)


def test_no_noise_needed():
    with pytest.raises(InputError, match="no noise is needed"):
        last_iterate_noise_multiplier(1.0, 1e-3, 1e-5, 10)


def test_a_sweep_equals_its_points():
    """Against ``GaussianMixture``, which solves by other means; both ends of every range."""
    random = np.random.default_rng(0)
    sigma, rate, level = (np.exp(random.uniform(*np.log(r), 12)) for r in SWEPT)
    steps = np.exp(random.uniform(0, np.log(2000), 12)).astype(int)
    rate[0], level[1], sigma[2] = 1.0, 0.9, 0.05
    for null in ("out", "in", "either"):
        found = linear.last_iterate_epsilon(sigma, rate, steps, level, null=null)
        pairs = map(linear.last_iterate, sigma, rate, steps)
        exact = [p.epsilon(d, null=null) for p, d in zip(pairs, level, strict=True)]
        np.testing.assert_allclose(found, exact, rtol=1e-12, atol=1e-13)


@pytest.mark.whole
def test_scattered_points_equal_their_pairs_and_few_are_slow(monkeypatch):
    """Where every few terms of a sum are left out, least and most, and epsilon is small or large.

    A stride of two at a mean of 10 samples, for which it is too long, moves epsilon by 1e-9 to
    3e-6 of it in one of 60 points.
    """
    random = np.random.default_rng(1)
    count = 240
    steps = np.exp(random.uniform(0, np.log(1e5), count)).astype(int)
    mean = np.exp(random.uniform(np.log(1), np.log(60), count))
    mean[count // 2 :] = np.exp(random.uniform(0, np.log(3e4), count // 2))
    rate = np.minimum(mean / steps, 0.6)
    sigma = np.exp(random.uniform(np.log(0.4), np.log(30), count))
    level = np.exp(random.uniform(np.log(1e-10), np.log(1e-2), count))
    slow = []
    with monkeypatch.context() as patch:
        patch.setattr(
            mixture.GaussianMixture,
            "bracket",
            lambda self, delta, share, null: slow.append(1) or (math.nan, math.nan),
        )
        linear.last_iterate_epsilon(sigma, rate, steps, level)
    assert len(slow) < 0.05 * count
    found = linear.last_iterate_epsilon(sigma, rate, steps, level)
    pairs = map(linear.last_iterate, sigma, rate, steps)
    exact = [p.epsilon(d) for p, d in zip(pairs, level, strict=True)]
    np.testing.assert_allclose(found, exact, rtol=1e-10, atol=1e-13)


def test_a_sweep_is_fast():
    """No point of an ordinary sweep is left to the slow method."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delattr(mixture.GaussianMixture, "epsilon")
        found = linear.last_iterate_epsilon(np.linspace(0.5, 5, 500), 0.01, 1000, 1e-6)
    assert np.all(np.diff(found) < 0)


def test_arguments_broadcast():
    table = last_iterate_epsilon([[0.5], [1.0]], 0.01, [1, 10, 100], 1e-6)
    assert table.shape == (2, 3)
    assert table[1, 2] == last_iterate_epsilon(1.0, 0.01, 100, 1e-6)
    assert isinstance(last_iterate_epsilon(1.0, 0.01, 100, 1e-6), float)


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ((0.0, 0.1, 10, 1e-5), "noise_multiplier"),
        ((math.inf, 0.1, 10, 1e-5), "noise_multiplier"),
        ((1.0, 0.0, 10, 1e-5), "sampling_rate"),
        ((1.0, 1.5, 10, 1e-5), "sampling_rate"),
        ((1.0, 0.1, 0, 1e-5), "steps"),
        ((1.0, 0.1, 2.5, 1e-5), "steps"),
        ((1.0, 0.1, math.inf, 1e-5), "steps"),
        ((1.0, 0.1, 10, 0.0), "delta"),
        ((1.0, 0.1, 10, 1.0), "delta"),
        ((math.nan, 0.1, 10, 1e-5), "noise_multiplier"),
    ],
)
def test_bad_input_is_named(arguments, name):
    with pytest.raises(InputError, match=f"^{name}: got"):
        last_iterate_epsilon(*arguments)


def exact_rates(pair, null):
    y = np.linspace(-5.9, 5.9, 777) * pair.noise_std
    fpr, fnr = pair.fpr(y), pair.fnr(y)
    return (fpr, fnr) if null == "out" else (fnr, fpr)


SETTINGS = [(0.3, 0.01, 5000), (1.0, 0.1, 100), (0.5, 0.01, 1000), (5.0, 0.5, 10), (1.0, 1.0, 1)]


@pytest.mark.parametrize("null", ["out", "in"])
@pytest.mark.parametrize("setting", SETTINGS)
def test_tradeoff_curve_is_a_tight_lower_bound(setting, null):
    curve = tradeoff_curve(*setting, null=null)
    fpr, fnr = exact_rates(last_iterate(*setting), null)
    below = fnr - curve(fpr)
    assert np.min(below) > -1e-12
    # The lines are spread over larger losses where there is less noise.
    assert np.max(below) < (2e-5 if setting[0] < 0.5 else 1e-5)
    assert np.min(fpr) < 3e-9  # the claim reaches small rates


@pytest.mark.parametrize("setting", SETTINGS)
def test_symmetric_tradeoff_curve_is_below_both(setting):
    curve = tradeoff_curve(*setting, null="either")
    for null in ("out", "in"):
        fpr, fnr = exact_rates(last_iterate(*setting), null)
        assert np.min(fnr - curve(fpr)) > -1e-12
    grid = np.geomspace(1e-6, 0.5, 50)
    np.testing.assert_allclose(curve(curve(grid)), grid, atol=1e-5)
    # Tight: the largest epsilon it implies is that of the accountant.
    epsilon = last_iterate_epsilon(*setting, 1e-4)
    implied = np.max(1 - 1e-4 - curve.fnr - math.exp(epsilon) * curve.fpr)
    assert abs(implied) < 1e-6


@pytest.mark.parametrize("setting", SETTINGS)
def test_rates_by_simulation(setting):
    """Counts of 200,000 draws: each of 6 z-tests fails by chance once in 3e6.

    Detects an error of 0.006 in any rate.
    """
    from hiddenstate.streams import stream

    _, rate, steps = setting
    pair = last_iterate(*setting)
    random = stream(0, "test_linear", str(setting))
    n = 200_000
    noise = pair.noise_std * random.standard_normal((2, n))
    present = random.binomial(steps, rate, n) + noise[0]
    for y in np.array([-0.5, 0.5, 1.5]) * pair.noise_std:
        for count, p in (
            (np.sum(noise[1] >= y), pair.fpr(y)),
            (np.sum(present < y), pair.fnr(y)),
        ):
            assert abs(count / n - p) < 5 * math.sqrt(p * (1 - p) / n) + 1 / n


@pytest.mark.parametrize("null", ["out", "in", "either"])
def test_many_noise_multipliers_are_interpolated_to_the_stated_error(null, monkeypatch):
    """Against point by point, where the heuristic is large, tiny and 0; with few solutions."""
    sigma = np.geomspace(0.4, 40, 400)
    rate, steps = np.array([1e-3, 0.05, 1.0])[:, None], np.array([1, 40, 700])[:, None, None]
    solved = []
    exact = linear._Sweep._one_by_one

    def counted(self, null):
        solved.append(len(self.level))
        return exact(self, null)

    monkeypatch.setattr(linear._Sweep, "_one_by_one", counted)
    found = linear.last_iterate_epsilon(sigma, rate, steps, 1e-4, null=null)
    assert sum(solved) < found.size
    monkeypatch.undo()
    chosen = [tuple(i) for i in stream(0, null).integers(found.shape, size=(80, 3))]
    for t, q, s in chosen:
        one = linear.last_iterate_epsilon(sigma[s], rate[q, 0], steps[t, 0, 0], 1e-4, null=null)
        assert found[t, q, s] == pytest.approx(one, rel=1e-9, abs=1e-12)
    assert (found == 0).any()
    assert found.max() > 3 or null == "in"


@pytest.mark.parametrize(
    ("noise_multiplier", "sampling_rate", "steps", "delta"),
    [
        ([0.3, 0.5], 0.08, 344, 1e-6),
        (1.0, 0.1, 1000, [1e-10, 1e-3]),
        ([0.5, 3.4], 0.01, 2000, 1e-5),
        (np.geomspace(0.3, 5, 9), 0.05, 500, 1e-5),
        (0.8, 0.05, 500, np.geomspace(1e-12, 0.5, 9)),
    ],
)
def test_many_at_once_are_one_by_one(noise_multiplier, sampling_rate, steps, delta):
    """Also of one rate and number of steps, where other numbers of samples matter to each."""
    found = linear.last_iterate_epsilon(noise_multiplier, sampling_rate, steps, delta)
    alone = [
        float(linear.last_iterate_epsilon(*point))
        for point in np.broadcast(noise_multiplier, sampling_rate, steps, delta)
    ]
    np.testing.assert_allclose(found, alone, rtol=1e-9)


def test_sparse_sums_are_those_of_an_independent_program():
    """By mpmath at 40 digits."""
    found = linear.last_iterate_epsilon([0.3, 0.5], 0.08, 344, 1e-6)
    assert found[0] == pytest.approx(54.7939657097, rel=1e-10)


@pytest.mark.parametrize("null", ["out", "in", "either"])
@pytest.mark.parametrize("rate", [0.01, 1.0])
def test_delta_at_infinite_epsilon_is_none_or_all(rate, null):
    both = linear.last_iterate_delta(1.0, rate, 100, [np.inf, -np.inf], null=null)
    assert both.tolist() == [0, 1]
    pair = linear.last_iterate(1.0, rate, 100)
    found = pair.delta([np.inf, 1.0, -np.inf], null=null)
    assert found.tolist() == [0, pair.delta(1.0, null=null), 1]
    for delta in (pair.delta, functools.partial(linear.last_iterate_delta, 1.0, rate, 100)):
        with pytest.raises(InputError, match=r"^epsilon: got nan; expected a number$"):
            delta(np.nan, null=null)


@pytest.mark.parametrize("null", ["out", "in"])
@pytest.mark.parametrize(("noise", "rate"), [(0.08, 0.3), (1.0, 0.3), (3e3, 0.01), (1e7, 0.5)])
@pytest.mark.parametrize("gap", [1e-3, 1e-7, 1e-11, 1e-14])
def test_near_plateaus_and_the_total_variation_epsilon_is_rounded_up(noise, rate, gap, null):
    """It was off by 2e-3 of itself at rate 0.3 and noise 0.08."""
    with mpmath.workdps(80):
        exact = functools.partial(deltas.one_step, noise, rate, null=null)
        for most in (rate, float(exact(0))):
            delta = most * (1 - gap)
            found = mpmath.mpf(float(last_iterate_epsilon(noise, rate, 1, delta, null=null)))
            assert exact(found * (1 + mpmath.mpf("1e-9"))) <= delta
            # No more than rounding of delta asks for.
            if found:
                assert exact(found * (1 - mpmath.mpf("1e-9"))) >= delta * (1 - 4e-12) - 2e-15


@pytest.mark.parametrize(("rate", "steps"), [(1.0, 1), (0.1, 1), (0.1, 10)])
@pytest.mark.parametrize("noise", [1e7, 1e10, 1e20, 1e50])
def test_noise_leaves_at_least_what_a_negative_epsilon_asks_for(noise, rate, steps):
    """It was 0, or 0.005 too much."""
    for epsilon in (-1.0, -1e-3):
        for null in ("out", "in", "either"):
            found = last_iterate_delta(noise, rate, steps, epsilon, null=null)
            # Total variation is below 1e-7 times the mean number of samples.
            assert 0 <= found + math.expm1(epsilon) + 3e-15 < 1e-6


@pytest.mark.parametrize("null", ["out", "in"])
@pytest.mark.parametrize("noise", [0.05, 1.0, 1e4, 3e6])
def test_delta_keeps_its_digits_at_epsilons_of_either_sign(noise, null):
    rate = 0.02
    least = math.log1p(-rate)
    for epsilon in (-5.0, least * (1 + 1e-9), least * (1 - 1e-9), -1e-8, 1e-16, 1e-9, -least, 0.5):
        with mpmath.workdps(80):
            exact = float(deltas.one_step(noise, rate, epsilon, null))
        found = last_iterate_delta(noise, rate, 1, epsilon, null=null)
        assert found == pytest.approx(exact, rel=1e-9, abs=1e-17)


@pytest.mark.parametrize(
    ("epsilon", "word"), [(1e300, "below"), (1e-300, "above"), (1e110, "below")]
)
def test_a_target_that_no_noise_meets_is_refused(epsilon, word):
    with pytest.raises(InputError, match=r"^epsilon: got 1e") as refusal:
        last_iterate_noise_multiplier(epsilon, 1e-200, 1.0, 10)
    words = f"expected a number {word}, such that the noise multiplier is from 1e-50 to 1e50"
    assert words in str(refusal.value)
