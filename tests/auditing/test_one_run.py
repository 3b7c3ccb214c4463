"""One-run audits against exact worst cases, exact enumeration and exactly known mechanisms."""

from itertools import product

import mpmath
import numpy as np
import pytest
from scipy import sparse
from scipy.optimize import linprog
from scipy.special import ndtr
from scipy.stats import binom

from hiddenstate.accounting import pld, tradeoff
from hiddenstate.auditing import ApproxDP, GaussianDP, Tabulated, one_run
from hiddenstate.auditing.one_run import (
    Guesses,
    guess,
    guess_beyond,
    one_run_bound,
    one_run_p_value,
)
from hiddenstate.errors import InputError
from hiddenstate.streams import stream


def worst_tail(m, r, v, ratios, deltas):
    """Largest Pr(W >= v) of any mechanism with these hockey-stick divergences, by linear program.

    Averaging a mechanism over permutations and flips of its canaries keeps its privacy and the law
    of W, so the law q(0..r) of W is all there is: an output with k right guesses has probability
    proportional to q(k) / C(r, k), and the divergence between neighbouring coins is a sum over k.
    """
    aux = 2 * r * len(ratios)
    cost = np.zeros(r + 1 + aux)
    cost[v : r + 1] = -1
    rows, bound, position = [], [], r + 1
    for ratio, delta in zip(ratios, deltas, strict=True):
        total = np.zeros(len(cost))
        for k in range(1, r + 1):
            for sign in (0, 1):
                row = np.zeros(len(cost))
                right, wrong = (1, -ratio) if sign == 0 else (-ratio, 1)
                row[k], row[k - 1], row[position] = right * k, wrong * (r - k + 1), -1
                rows.append(row)
                bound.append(0.0)
                total[position] = 1
                position += 1
        rows.append(total)
        bound.append(m * delta)
    equal = np.zeros((1, len(cost)))
    equal[0, : r + 1] = 1
    found = linprog(cost, sparse.csr_array(np.array(rows)), bound, equal, [1.0], method="highs")
    assert found.status == 0
    return -found.fun


@pytest.mark.parametrize("epsilon", [0.0, 0.7, 2.0])
@pytest.mark.parametrize("delta", [0.0, 1e-3, 0.02])
def test_the_epsilon_delta_tail_is_the_exact_worst_case(epsilon, delta):
    for m, r in ((1, 1), (4, 4), (12, 5), (9, 9)):
        for v in range(1, r + 1):
            exact = worst_tail(m, r, v, [np.exp(epsilon)], [delta])
            found = one_run._approx_tail(Guesses(m, r, v), epsilon, delta)
            assert found == pytest.approx(exact, abs=2e-7), (m, r, v)


def published_tail(m, r, v, epsilon, delta):
    """Theorem 5.2 of Steinke, Nasr and Jagielski 2023 in 40 digits, summed term by term."""
    with mpmath.workdps(40):
        p = 1 / (1 + mpmath.exp(-mpmath.mpf(epsilon)))
        pmf = [mpmath.binomial(r, k) * p**k * (1 - p) ** (r - k) for k in range(r + 1)]
        tail = mpmath.fsum(pmf[v:])
        steepest = max(mpmath.fsum(pmf[v - i : v]) / i for i in range(1, v + 1))
        return tail, tail + 2 * m * mpmath.mpf(delta) * steepest


@pytest.mark.parametrize("m, r", [(30, 30), (100, 40), (400, 60)])
@pytest.mark.parametrize("epsilon", [0.1, 1.0, 4.0])
def test_the_tail_is_never_looser_than_the_published_one(m, r, epsilon):
    for v in range(1, r + 1, 3):
        for delta in (0.0, 1e-6, 1e-4):
            binomial, published = published_tail(m, r, v, epsilon, delta)
            found = one_run._approx_tail(Guesses(m, r, v), epsilon, delta)
            assert float(binomial) * (1 - 1e-9) <= found
            if binomial < 0.5:  # Where a p-value can be of use.
                assert found <= min(1, float(published)) * (1 + 1e-8)


def test_the_worst_mechanism_attains_the_tail_and_is_private():
    """Enumerated over all outputs: the divergence of neighbours is delta, the tail Theorem 1."""
    m, v, epsilon, delta = 7, 5, 0.8, 0.01
    p = binom.pmf(np.arange(m + 1), m, 1 / (1 + np.exp(-epsilon)))
    weight = m * delta / (v * p[v])
    q = p * (1 - weight * p[v:].sum()) + np.where(np.arange(m + 1) >= v, weight * p, 0)
    assert q.sum() == pytest.approx(1)
    law = {y: q[sum(y)] / binom_count(m, sum(y)) for y in product((0, 1), repeat=m)}
    divergence = 0.0
    for y, probability in law.items():
        turned = (1 - y[0], *y[1:])
        divergence += max(0, probability - np.exp(epsilon) * law[turned])
    assert divergence == pytest.approx(delta, rel=1e-9)
    found = one_run._approx_tail(Guesses(m, m, v), epsilon, delta)
    assert q[v:].sum() == pytest.approx(found, rel=1e-6)


def test_the_published_tail_is_below_a_private_mechanisms_where_no_audit_is_decided():
    """At least one of 4 guesses is right: total variation of neighbours 0.02, epsilon 0."""
    m, v, delta = 4, 1, 0.02
    reached = one_run._approx_tail(Guesses(m, m, v), 0.0, delta)
    law = np.append(1 - reached, binom.pmf(np.arange(1, m + 1), m, 0.5) / (15 / 16) * reached)
    each = {y: law[sum(y)] / binom_count(m, sum(y)) for y in product((0, 1), repeat=m)}
    distance = sum(max(0, p - each[(1 - y[0], *y[1:])]) for y, p in each.items())
    assert distance == pytest.approx(delta, rel=1e-6)
    _, published = published_tail(m, m, v, 0.0, delta)
    assert float(published) == pytest.approx(0.9475)
    assert reached == pytest.approx(0.95625)


def binom_count(n, k):
    return float(mpmath.binomial(n, k))


def gaussian_deltas(mu, epsilons):
    return ndtr(mu / 2 - epsilons / mu) - np.exp(epsilons) * ndtr(-mu / 2 - epsilons / mu)


@pytest.mark.parametrize("mu", [0.5, 1.0, 2.0])
def test_the_recursion_is_valid_for_the_worst_gaussian_mechanism(mu):
    """Never below the largest tail of all mechanisms whose every neighbour pair is mu-GDP."""
    epsilons = np.linspace(0, 4 * mu, 33)
    ratios, deltas = np.exp(epsilons), gaussian_deltas(mu, epsilons)
    family = GaussianDP()
    for m, r in ((1, 1), (6, 6), (12, 5), (11, 11)):
        for v in range((r + 1) // 2, r + 1, 2 if r > 6 else 1):
            # The program keeps 33 of the constraints, so its tail is slightly too large.
            worst = worst_tail(m, r, v, ratios, deltas)
            found = one_run_p_value(Guesses(m, r, v), family, mu)
            assert worst - 0.001 <= found <= 1.35 * worst, (m, r, v)
            if m == r == 1:
                assert found == pytest.approx(ndtr(mu / 2), abs=1e-5)


@pytest.mark.parametrize("mu", [0.3, 1.0, 3.0])
@pytest.mark.parametrize("m", [5, 40, 300])
def test_the_recursion_bounds_independent_gaussian_coordinates(mu, m):
    """All guessed by sign: W is binomial with probability Phi(mu / 2), exactly."""
    for v in np.unique(np.linspace(1, m, 25).astype(int)):
        exact = binom.sf(v - 1, m, ndtr(mu / 2))
        found = one_run_p_value(Guesses(m, m, int(v)), GaussianDP(), mu)
        assert found >= exact * (1 - 1e-9)


@pytest.mark.parametrize("m", [3, 8])
def test_abstaining_from_independent_gaussian_coordinates_by_enumeration(m):
    """The r largest |y| are guessed: its law by enumeration of coins over a grid of noise."""
    mu, r = 1.2, 2
    rng = stream(3, "test", "one-run", m)
    noise = rng.normal(size=(4000, m))
    tail = np.zeros(r + 1)
    for coins in product((-1, 1), repeat=m):
        y = np.array(coins) * mu / 2 + noise
        chosen = np.argsort(-np.abs(y), axis=1)[:, :r]
        right = np.take_along_axis(np.sign(y) == np.array(coins), chosen, axis=1).sum(axis=1)
        tail += np.bincount(right, minlength=r + 1) / len(noise) / 2**m
    for v in range(1, r + 1):
        found = one_run_p_value(Guesses(m, r, v), GaussianDP(), mu)
        assert found >= tail[v:].sum() - 3 * 0.5 / np.sqrt(len(noise))


@pytest.mark.parametrize("epsilon", [0.5, 2.0])
def test_randomised_response_by_enumeration(epsilon):
    """Every outcome of m flips enumerated; Theorem 1 equals its tail, Theorem 2 is no smaller."""
    m, p = 6, 1 / (1 + np.exp(-epsilon))
    tail = np.zeros(m + 1)
    for flips in product((0, 1), repeat=m):
        right = sum(flips)
        tail[: right + 1] += p**right * (1 - p) ** (m - right)
    table = Tabulated("epsilon", [epsilon], [_curve(lambda x: lines_at(epsilon, x))])
    for v in range(1, m + 1):
        assert one_run._approx_tail(Guesses(m, m, v), epsilon, 0.0) == pytest.approx(tail[v])
        assert one_run_p_value(Guesses(m, m, v), table, epsilon) >= tail[v] - 1e-9


def lines_at(epsilon, x):
    return np.maximum(0, np.maximum(1 - np.exp(epsilon) * x, np.exp(-epsilon) * (1 - x)))


def _curve(function):
    # Knots of the pure-DP curves tested here are among these rates.
    knots = [1 / (1 + np.exp(e)) for e in (0.5, 2.0)]
    fpr = np.unique(np.concatenate((np.linspace(0, 1, 41), knots)))
    fnr = function(fpr)
    fnr[-1] = 0.0
    return tradeoff.TradeoffCurve(fpr, fnr)


def test_a_table_of_gaussian_curves_agrees_with_the_gaussian_family(gaussian_curve):
    values = np.linspace(0.1, 3, 30)
    table = Tabulated("mu", values, [gaussian_curve(mu) for mu in values])
    for guesses in (Guesses(100, 100, 75), Guesses(1000, 200, 150)):
        exact = one_run_bound(guesses, GaussianDP()).value
        found = one_run_bound(guesses, table).value
        assert exact - 0.11 < found <= exact + 0.01
        assert one_run_p_value(guesses, table, 1.0) == pytest.approx(
            one_run_p_value(guesses, GaussianDP(), 1.0), rel=0.05
        )


def test_directions_are_averaged_exactly():
    """Supporting lines of the result are the averages of those of the curve and its inverse."""
    curve = pld.tradeoff_curve(0.8, 0.3, 3, null="out", lines=201, interval=1e-2)
    both, inverse = one_run._both_directions(curve), curve.inverse()

    def support(polygon, slope):
        # A curve that starts below 1 has the vertical side above it as well.
        return min((polygon.fnr + slope * polygon.fpr).min(), 1.0)

    for slope in np.exp(np.linspace(-4, 4, 33)):
        average = (support(curve, slope) + support(inverse, slope)) / 2
        assert support(both, slope) == pytest.approx(average, abs=1e-12)
    rates = np.linspace(0, 1, 101)
    assert both.inverse()(rates) == pytest.approx(both(rates), abs=1e-9)
    assert np.abs(curve(rates) - inverse(rates)).max() > 0.05


def guessed(mechanism, made, audits):
    """How many guesses were right in simulated audits, and how often."""
    correct = []
    for audit in range(audits):
        found = guess(*mechanism(stream(11, "test", "one-run", audit)), made)
        correct.append(found.correct)
    return np.unique(correct, return_counts=True)


def linear(m, mu, vectors=None):
    """Each canary moves the last iterate of a linear loss by its vector, plus Gaussian noise."""

    def run(rng):
        coins = rng.random(m) < 0.5
        if vectors is None:
            return mu * coins + rng.normal(size=m), coins
        iterate = mu * coins @ vectors + rng.normal(size=vectors.shape[1])
        return vectors @ (iterate - mu * vectors.sum(axis=0) / 2), coins

    return run


def correlated(m, dimension, seed=0):
    vectors = stream(seed, "test", "vectors").normal(size=(m, dimension))
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


@pytest.mark.parametrize(
    "m, made, mu, vectors",
    [
        (200, 200, 1.0, None),
        (200, 40, 1.0, None),
        (200, 200, 1.0, correlated(200, 50)),
        (100, 100, 2.0, np.ones((100, 1))),
        (100, 20, 0.5, correlated(100, 2)),
    ],
    ids=["independent", "abstaining", "correlated", "one direction", "a plane"],
)
def test_exceedance_on_linear_mechanisms(m, made, mu, vectors):
    """At most 5 % plus three standard errors of 400 audits, on mechanisms of exactly mu."""
    audits = 400
    counts, often = guessed(linear(m, mu, vectors), made, audits)
    p_values = [one_run_p_value(Guesses(m, made, int(c)), GaussianDP(), mu) for c in counts]
    # A bound above the truth is a refuted truth.
    share = often[np.array(p_values) <= 0.05].sum() / audits
    assert share <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / audits)


def test_abstaining_proves_more():
    """Medians at mu = 1 with 1,000 coordinates: guessing everywhere proves far less."""

    def median(made):
        counts, often = guessed(linear(1000, 1.0), made, 25)
        middle = int(np.median(np.repeat(counts, often)))
        return one_run_bound(Guesses(1000, made, middle), GaussianDP()).value

    assert 0.25 < median(1000) < 0.4 < median(40) <= 1.0


def test_exceedance_of_the_worst_mechanism_is_the_level():
    """Attained mechanism of Theorem 1: the p-value is exact, so a smaller one would fail."""
    m, v, epsilon, delta = 40, 34, 1.0, 8e-3
    p = binom.pmf(np.arange(m + 1), m, 1 / (1 + np.exp(-epsilon)))
    weight = m * delta / (v * p[v])
    q = p * (1 - weight * p[v:].sum()) + np.where(np.arange(m + 1) >= v, weight * p, 0)
    level = one_run._approx_tail(Guesses(m, m, v), epsilon, delta)
    assert q[v:].sum() == pytest.approx(level, rel=1e-6)
    assert binom.sf(v - 1, m, 1 / (1 + np.exp(-epsilon))) < 0.9 * level


def test_a_number_of_guesses_read_off_the_model():
    """Pure and approximate DP by Theorem 3; no statement for other families."""
    rng = stream(5, "test", "beyond")
    coins = rng.random(500) < 0.5
    scores = coins + rng.normal(size=500)
    found = guess_beyond(scores, coins, -1.0, 2.0)
    assert not found.fixed and 0 < found.made < 500
    fixed = Guesses(500, found.made, found.correct)
    p_free = one_run_p_value(found, ApproxDP(1e-6), 1.0)
    assert p_free > one_run_p_value(fixed, ApproxDP(1e-6), 1.0)
    tail = binom.sf(found.correct - 1, found.made, 1 / (1 + np.exp(-1.0)))
    assert p_free == pytest.approx(tail + 500e-6, rel=1e-6)
    with pytest.raises(InputError, match="fixed in advance to bound mu"):
        one_run_bound(found, GaussianDP())


def test_bound_and_p_value_agree():
    for family in (ApproxDP(1e-5), GaussianDP()):
        bound = one_run_bound(Guesses(300, 100, 80), family)
        assert bound.valid and bound.direction == "lower" and bound.value > 0.4
        assert one_run_p_value(Guesses(300, 100, 80), family, bound.value) <= 0.05
        assert one_run_p_value(Guesses(300, 100, 80), family, bound.value + 0.001) > 0.05 - 1e-5
    assert one_run_bound(Guesses(300, 100, 50), GaussianDP()).value == 0.0
    assert one_run_bound(Guesses(300, 0, 0), ApproxDP(1e-5)).value == 0.0


def test_a_noise_multiplier_is_bounded_from_above():
    sigmas = [4.0, 2.0, 1.0, 0.5]
    curves = [pld.tradeoff_curve(s, 1.0, 1, null="out", lines=201, interval=1e-2) for s in sigmas]
    bound = one_run_bound(Guesses(1000, 1000, 700), Tabulated("noise multiplier", sigmas, curves))
    assert bound.direction == "upper" and bound.value == 4.0
    assert one_run_bound(
        Guesses(1000, 1000, 500), Tabulated("noise multiplier", sigmas, curves)
    ).value == float("inf")


def test_guesses_count_what_is_right():
    scores = [5.0, 1.0, 4.0, 2.0, 3.0]
    coins = [True, False, True, True, False]
    assert guess(scores, coins, 2) == Guesses(5, 2, 2)
    assert guess(scores, coins, 3) == Guesses(5, 3, 3)
    assert guess(scores, coins, 4) == Guesses(5, 4, 3)
    assert guess_beyond(scores, coins, 2.0, 5.0) == Guesses(5, 3, 2, fixed=False)


def test_the_order_of_tied_canaries_tells_nothing():
    """Sorted by coin and all tied: about half of the guesses are right, not all."""
    coins = np.arange(400) >= 200
    assert 150 < guess(np.zeros(400), coins, 400).correct < 250


@pytest.mark.parametrize(
    "call, expected",
    [
        (lambda: Guesses(0, 0, 0), "canaries: got 0"),
        (lambda: Guesses(5, 6, 0), "made: got 6; expected 0 to 5"),
        (lambda: Guesses(5, 4, 5), "correct: got 5; expected 0 to 4"),
        (lambda: Guesses(5, 4.0, 3), "made: got 4.0; expected a whole number"),
        (lambda: guess([1.0, np.nan], [0, 1], 1), "scores: .* is nan at index 1"),
        (lambda: guess(["1", "2"], [0, 1], 1), "scores: expected numbers, got"),
        (lambda: guess([10**400, 2], [0, 1], 1), "scores: expected numbers, got"),
        (lambda: guess(np.ma.masked_equal([1.0, 2.0], 2), [0, 1], 1), "1 of 2 scores masked"),
        (lambda: guess([1.0, 2.0], np.ma.masked_equal([0, 1], 1), 1), "included: some are masked"),
        (lambda: guess(np.array([1, 2], "M8[s]"), [0, 1], 1), "scores: expected numbers, got"),
        (lambda: guess([[1.0]], [[1]], 1), "scores: got shape"),
        (lambda: guess([1.0, 2.0], [0, 2], 1), "included: got"),
        (lambda: guess([1.0, 2.0], [0], 1), "included: got shape"),
        (lambda: guess([1.0, 2.0], [0, 1], 3), "made: got 3; expected 1 to 2"),
        (lambda: guess([1.0, 2.0], [0, 1], True), "made: got True"),
        (lambda: guess(np.arange(99.0), np.ones(99), 3), "expected independent fair coins"),
        (lambda: guess_beyond([1.0, 2.0], [0, 1], 2.0, 2.0), "expected low < high"),
        (lambda: one_run_p_value(Guesses(9, 9, 9), GaussianDP(), 21.0), "mu: got 21; expected"),
        (lambda: one_run_p_value(Guesses(9, 9, 9), GaussianDP(), np.nan), "mu: got nan; expected"),
        (lambda: one_run_p_value(Guesses(9, 9, 9), _Lopsided(), 1.0), "depends on the direction"),
    ],
)
def test_unusable_input_is_refused(call, expected):
    with pytest.raises(InputError, match=expected):
        call()


class _Lopsided(GaussianDP):
    def fnr(self, index, fpr):
        return super().fnr(index, fpr) ** 2


@pytest.mark.parametrize("hypotheses", [GaussianDP(), GaussianDP(limit=1.0, step=0.01)])
@pytest.mark.parametrize("counts", [(30, 24, 24), (30, 30, 16), (68, 68, 64), (300, 240, 231)])
def test_hypotheses_judged_side_by_side_are_those_judged_one_by_one(hypotheses, counts):
    guesses = Guesses(*counts)
    some = range(0, len(hypotheses.grid), len(hypotheses.grid) // 100)
    refuted = [one_run._refuted(guesses, hypotheses, index, 0.05) for index in some]
    found = one_run._last_refuted(guesses, hypotheses, 0.05)
    assert refuted == [index <= found for index in some]
    if 0 <= found < len(hypotheses.grid) - 1:
        assert one_run._refuted(guesses, hypotheses, found, 0.05)
        assert not one_run._refuted(guesses, hypotheses, found + 1, 0.05)


def test_ties_are_broken_by_coins_that_are_drawn_and_told():
    coins = stream(0, "one-run ties").random(60) < 0.5
    found = [guess(np.zeros(60), coins, 30) for _ in range(5)]
    assert len({one.coins for one in found}) == 5
    assert guess(np.zeros(60), coins, 30, coins=found[0].coins) == found[0]
    # The order of the canaries is no matter: sorted by their coins they are guessed no better.
    right = [guess(np.zeros(60), np.sort(coins), 60).correct for _ in range(400)]
    assert abs(np.mean(right) - 60 * (coins.mean() ** 2 + (1 - coins.mean()) ** 2)) < 1.5


def test_ties_may_count_against_the_audit():
    scores = np.array([0.0, 1.0, 1.0, 1.0, 1.0, 2.0])
    coins = np.array([False, True, False, True, False, True])
    found = guess(scores, coins, 4, coins="against")
    assert (found.correct, found.coins) == (2, None)
    worst = min(guess(scores, coins, 4, coins=seed).correct for seed in range(200))
    assert found.correct == worst
    with pytest.raises(InputError, match="coins: got -1; expected a whole number"):
        guess(scores, coins, 4, coins=-1)


@pytest.mark.parametrize(
    ("made", "correct", "epsilon", "delta"),
    [(2000, 2000, 0.1, 0.1), (2000, 1971, 0.1, 0.1), (3000, 2900, 0.5, 0.02)],
)
def test_p_values_of_tails_beyond_numbers_are_those_of_the_theorem(made, correct, epsilon, delta):
    with mpmath.workdps(40):
        p = 1 / (1 + mpmath.exp(-mpmath.mpf(epsilon)))
        law = [mpmath.binomial(made, k) * p**k * (1 - p) ** (made - k) for k in range(made + 1)]
        tail = mpmath.fsum(law[correct:])
        exact = made * delta * tail * (1 - tail) / (correct * law[correct]) + tail
        assert tail < 1e-308
        found = one_run_p_value(Guesses(made, made, correct), ApproxDP(delta), epsilon)
        assert exact <= found <= exact * (1 + 1e-4)


def test_nothing_is_proven_where_the_mechanism_may_release_all_coins():
    assert one_run_bound(Guesses(100_000, 2000, 2000), ApproxDP(1e-3)).value == 0
    assert one_run_p_value(Guesses(3000, 3000, 3000), ApproxDP(0.0), 0.1) > 0


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("delta", [0.0, 1e-5])
@pytest.mark.parametrize("epsilon", [30.0, 36.0, 37.0, 100.0, 500.0, 700.0])
@pytest.mark.parametrize("counts", [(1, 1, 1), (100, 100, 99), (100, 80, 1), (10**6, 10**6, 10**5)])
def test_claims_at_which_every_guess_may_be_right_are_refuted_by_none(epsilon, delta, counts):
    """At epsilon 36.8 and more the probability of a right guess rounds to 1."""
    hypotheses = ApproxDP(delta, limit=epsilon)
    for fixed in (True, False):
        assert one_run_p_value(Guesses(*counts, fixed), hypotheses, epsilon) > 1 - 1e-6


def test_wrong_guesses_refute_a_large_epsilon_by_the_digits_that_are_left():
    guesses = Guesses(10**6, 10**6, 10**6 - 2)
    found = [one_run_p_value(guesses, ApproxDP(0.0, limit=40), e) for e in (13.0, 14.0, 36.0)]
    with mpmath.workdps(40):
        for epsilon, p_value in zip((13.0, 14.0, 36.0), found, strict=True):
            q = 1 / (1 + mpmath.exp(epsilon))
            exact = sum(mpmath.binomial(10**6, k) * q**k * (1 - q) ** (10**6 - k) for k in range(3))
            assert min(exact, 1) <= p_value <= exact * (1 + 2e-9)


def test_p_values_of_gaussian_claims_keep_their_digits_below_the_rounding_of_1():
    """At mu 0 the guesses are coins."""
    for made, right in ((100, 100), (60, 58), (300, 290)):
        exact = binom.sf(right - 1, made, 0.5)
        found = one_run_p_value(Guesses(made, made, right), GaussianDP(), 0.0)
        assert exact * (1 - 1e-6) <= found <= exact * 1.05
    assert one_run_p_value(Guesses(3000, 3000, 3000), GaussianDP(), 0.1) > 0
