"""The default bound against exact small cases, and its theorem against scores made to break it."""

from dataclasses import replace

import numpy as np
import pytest
from scipy import integrate, optimize, stats

from hiddenstate.accounting import tradeoff
from hiddenstate.accounting.tradeoff import TradeoffCurve
from hiddenstate.auditing import ApproxDP, Averaged, GaussianDP, Tabulated, averaged, lower_bound
from hiddenstate.errors import InputError
from hiddenstate.streams import stream

COARSE = GaussianDP(limit=10, step=0.02)
QUICK = Averaged(simulations=2_000)
"""For what does not depend on how finely the level is calibrated."""


def separation_probability(mu, n):
    """Probability that all of n in-scores exceed all of n out-scores, N(mu, 1) and N(0, 1)."""
    norm = stats.norm
    return integrate.quad(
        lambda x: n * norm.pdf(x) * norm.cdf(x) ** (n - 1) * norm.sf(x - mu) ** n, -9, 9 + mu
    )[0]


@pytest.mark.whole
@pytest.mark.parametrize("n", [4, 20, 100])
def test_separated_scores_prove_what_makes_separation_improbable(n):
    """The statistic is largest if and only if the worlds separate, so the bound is a root."""
    value = lower_bound(np.arange(n) + n, np.arange(n), GaussianDP(), QUICK).value
    # The simulated level is 3.1 standard errors of sqrt(0.05 * 0.95 / 2000) below 5 %, give or
    # take 5 of them.
    low, high = (
        optimize.brentq(lambda mu, p=p: separation_probability(mu, n) - p, 0, 12)
        for p in (0.016, 0.06)
    )
    assert low - 0.001 <= value <= high


def rounded(rng, audits, n):
    """Gaussian scores rounded to few values: many ties."""
    return np.round(rng.normal(size=(audits, n)) + 1), np.round(rng.normal(size=(audits, n)))


def decisions(rng, audits, n):
    """Yes or no, with error rates on the Gaussian curve: the largest variance there is."""
    fpr = 0.1
    tpr = 1 - tradeoff.gaussian(1.0, fpr)
    return (rng.random((audits, n)) < tpr) * 1.0, (rng.random((audits, n)) < fpr) * 1.0


def shuffled(rng, audits, n):
    """A score that is not monotone in the likelihood ratio."""
    return -np.abs(rng.normal(size=(audits, n))), -np.abs(rng.normal(size=(audits, n)) - 1)


def two_tests(rng, audits, n):
    """Three values: the Gaussian curve's polygon through two points, one at each end."""
    points = [0.0, 0.02, 0.6, 1.0]
    tpr = [0.0, *(1 - tradeoff.gaussian(1.0, points[1:3])), 1.0]
    values = np.array([2.0, 1.0, 0.0])
    return (
        rng.choice(values, (audits, n), p=np.diff(tpr)),
        rng.choice(values, (audits, n), p=np.diff(points)),
    )


@pytest.mark.parametrize("scores", [rounded, decisions, shuffled, two_tests])
@pytest.mark.parametrize("n", [50, 300])
def test_no_score_with_errors_above_the_curve_breaks_the_bound(scores, n, exceeding):
    """All are at most 1-Gaussian-DP. False-positive rate 1e-6; detects an exceedance of 13 %."""
    ins, outs = scores(stream(3, "averaged", scores.__name__, n), 500, n)
    exceeded = exceeding(replace(QUICK, coins=n), ins, outs, GaussianDP(), 1.0)
    assert exceeded <= stats.binom.ppf(1 - 1e-6, len(ins), 0.05)


def test_exceedance_at_the_curve_itself_is_the_level(exceeding):
    """No more and not much less: false-positive rate 1e-6 either way, for exceedances in 3-6 %."""
    audits = 4_000
    rng = stream(5, "averaged", "exact")
    ins, outs = rng.normal(size=(audits, 60)) + 1.5, rng.normal(size=(audits, 60))
    exceeded = exceeding(Averaged(), ins, outs, GaussianDP(), 1.5)
    low, high = stats.binom.ppf([1e-6, 1 - 1e-6], audits, [0.04, 0.05])
    assert low <= exceeded <= high


def test_more_of_the_level_for_the_ends_is_as_valid_and_proves_more_of_an_epsilon(exceeding):
    """At the curve itself, and on 500 scores of mu 1: medians of 1.59 and 1.50 were measured."""
    rng = stream(5, "averaged", "ends")
    ends = Averaged(area=0.1, simulations=2_000)
    n, epsilon = 60, 1.0
    truthful = 1 / (1 + np.exp(-epsilon))
    ins, outs = (rng.random((2, 2_000, n)) < truthful) * 1.0
    tossed = replace(ends, coins=3)
    exceeded = exceeding(tossed, ins, 1 - outs, ApproxDP(0.0), epsilon)
    assert exceeded <= stats.binom.ppf(1 - 1e-6, len(ins), 0.05)
    ins, outs = rng.normal(size=(200, 500)) + 1, rng.normal(size=(200, 500))
    medians = []
    for rule in (ends, replace(ends, area=0.5)):
        calibration = rule.calibration(ins, outs, ApproxDP(1e-5), 0.05)
        middle = np.quantile(calibration.observed(ins, outs), 0.5, method="inverted_cdf")
        medians.append(calibration.bounds(np.array([middle]))[0][0])
    assert medians[0] > medians[1] + 0.03


@pytest.mark.parametrize("n", [20, 50, pytest.param(300, marks=pytest.mark.slow)])
def test_the_level_of_the_critical_value_itself_is_below_the_nominal_one(n):
    """Simulated again 50,000 times: standard error 0.1 points, six of them below the tolerance."""
    rule, level = Averaged(), 0.05
    index, audits = 500, 50_000
    rng = stream(6, "averaged", "level", n)
    ins, outs = rng.normal(size=(audits, n)) + 0.5, rng.normal(size=(audits, n))
    share = rule.contradicts(ins, outs, GaussianDP(), level, index).mean()
    assert 0.037 < share < level + 0.001


@pytest.mark.parametrize(
    ("mu", "n", "median"),
    [(1, 100, 0.737), (3, 100, 2.605), (1, 1000, 0.909), (2, 1000, 1.899), (3, 1000, 2.87)],
)
def test_the_median_bound(mu, n, median):
    """Medians measured at 2,000 audits; a rule that gives 4 % less fails, 1 % at 1,000 scores."""
    rng = stream(4, "averaged", "median", mu, n)
    ins, outs = rng.normal(size=(1000, n)) + mu, rng.normal(size=(1000, n))
    calibration = Averaged().calibration(ins, outs, GaussianDP(), 0.05)
    values, _ = calibration.bounds(np.array([np.median(calibration.observed(ins, outs))]))
    # Standard error of the median: 1.25 deviations, 0.16 and 0.27 at n = 100, over sqrt(1000).
    assert values[0] >= median - 3 * 1.25 * (0.16 if mu == 1 else 0.27) * (100 / n / 1000) ** 0.5


def respond(rng, epsilon, audits, n):
    """Randomised response: two scores, tied within and between the worlds."""
    truthful = 1 / (1 + np.exp(-epsilon))
    return (rng.random((audits, n)) < truthful) * 1.0, (rng.random((audits, n)) > truthful) * 1.0


@pytest.mark.parametrize(("epsilon", "median"), [(1.0, 0.887), (2.0, 1.853), (4.0, 3.676)])
def test_ties_broken_at_random_cost_little(epsilon, median, exceeding):
    """1,000 scores in each world; counted against the audit they gave 0.14, 1.22 and 3.06.

    Medians measured at 2,000 audits. A median of 400 has a standard error of 0.4 to 0.5 % here, so
    a rule that gives 3 % less fails.
    """
    rng = stream(8, "averaged", "response", int(epsilon))
    ins, outs = respond(rng, epsilon, 400, 1000)
    hypotheses = ApproxDP(1e-5)
    calibration = Averaged().calibration(ins, outs, hypotheses, 0.05)
    values, _ = calibration.bounds(np.array([np.median(calibration.observed(ins, outs, 11))]))
    assert values[0] >= 0.985 * median
    assert exceeding(Averaged(coins=11), ins, outs, hypotheses, epsilon) <= stats.binom.ppf(
        1 - 1e-6, 400, 0.05
    )


def test_a_leak_in_few_runs_is_seen_by_the_ends():
    """5 % of the in-scores are far out: the area alone says nothing, the bound says epsilon > 1."""
    rng = stream(4, "averaged", "leak")
    ins, outs = rng.normal(size=1000), rng.normal(size=1000)
    ins[:50] += 50
    seen = lower_bound(ins, outs, ApproxDP(1e-5), QUICK).value
    # 50 in-scores above all 1,000 out-scores: FPR < 0.5 %, FNR < 96.5 % allow about log(7).
    assert 1.5 < seen < np.log(10)
    # The other end of the curve is seen as well.
    mirrored = lower_bound(-outs, -ins, ApproxDP(1e-5), QUICK).value
    assert mirrored == pytest.approx(seen, abs=0.3)


@pytest.mark.whole
def test_a_mechanisms_own_curve_is_used_in_its_direction(exceeding):
    """Revealing with probability p: its curve has slope 1 - p, which no symmetric one has."""
    p = np.linspace(0.01, 0.5, 50)
    ramps = [TradeoffCurve(np.array([0.0, 1.0]), np.array([1 - x, 0.0])) for x in p]
    own = Tabulated("p", p, ramps)
    rng = stream(4, "averaged", "own")
    ins, outs = rng.normal(size=(300, 200)), rng.normal(size=(300, 200))
    ins[rng.random(ins.shape) < 0.2] = 9.0
    exceeded = exceeding(QUICK, ins, outs, own, 0.2)
    assert exceeded <= stats.binom.ppf(1 - 1e-6, len(ins), 0.05)
    values, _ = QUICK.bounds(ins, outs, own, 0.05)
    assert np.median(values) > 0.1
    # The same scores with the worlds exchanged are the other direction's.
    other = Tabulated("p", p, [c.inverse() for c in ramps], null="in")
    assert np.array_equal(QUICK.bounds(ins, outs, other, 0.05)[0], values)


def test_the_bound_reads_ranks_alone_and_grows_with_the_signal():
    rng = stream(4, "averaged", "ranks")
    ins, outs = rng.normal(size=(10, 80)) + 1, rng.normal(size=(10, 80))
    hypotheses = COARSE
    values, thresholds = QUICK.bounds(ins, outs, hypotheses, 0.05)
    warped, _ = QUICK.bounds(np.exp(ins[:, ::-1]), np.exp(outs), hypotheses, 0.05)
    stronger, _ = QUICK.bounds(ins + 0.3, outs, hypotheses, 0.05)
    assert np.array_equal(values, warped)
    assert np.all(stronger >= values)
    assert np.isnan(thresholds).all()


@pytest.mark.parametrize("mus", [[1.0], [1.0, 1.5], np.arange(0.5, 2.01, 0.1)], ids=len)
def test_a_short_table_can_be_rejected_to_its_end(mus, gaussian_curve, exceeding):
    hypotheses = Tabulated("mu", mus, [gaussian_curve(mu) for mu in mus])
    assert lower_bound(np.arange(100) + 100, np.arange(100), hypotheses, QUICK).value == mus[-1]
    rng = stream(4, "averaged", "table")
    ins, outs = rng.normal(size=(300, 100)) + 1, rng.normal(size=(300, 100))
    # The claim mu = 1 is true: contradicted at the level, and never by scores without signal.
    contradicted = exceeding(QUICK, ins, outs, hypotheses, 1.0 - 1e-9)
    assert contradicted <= stats.binom.ppf(1 - 1e-6, len(ins), 0.05)
    assert lower_bound(np.arange(100), np.arange(100), hypotheses, QUICK).value == 0


def test_one_claim_is_contradicted_when_the_bound_reaches_it():
    rng = stream(4, "averaged", "claim")
    ins, outs = rng.normal(size=(40, 80)) + 1, rng.normal(size=(40, 80))
    values, _ = QUICK.bounds(ins, outs, COARSE, 0.05)
    index = 35
    found = QUICK.contradicts(ins, outs, COARSE, 0.05, index)
    assert np.array_equal(found, values >= COARSE.grid[index])
    assert 0 < found.sum() < 40


def test_coins_break_ties_the_same_way_each_time():
    n = 50
    tied = np.repeat([1.0, 2.0], n // 2), np.repeat([0.0, 1.0], n // 2)
    broken = np.repeat([1.1, 2.0], n // 2), np.repeat([0.0, 1.0], n // 2)
    tossed = replace(QUICK, coins=7)
    bounds = [lower_bound(*scores, COARSE, tossed).value for scores in (tied, broken)]
    assert 0 < bounds[0] < bounds[1]
    assert lower_bound(*tied, COARSE, tossed).value == bounds[0]
    assert lower_bound(*(np.exp(s) for s in tied), COARSE, tossed).value == bounds[0]
    assert lower_bound(*tied, COARSE, replace(QUICK, coins=8)).value != bounds[0]


@pytest.mark.whole
@pytest.mark.parametrize("n", [45, 60, 69])
def test_equal_scores_prove_nothing_at_numbers_where_one_set_of_coins_did(n):
    """Coins that the ranks named gave mu >= 0.06, 0.12 and 0.04, always."""
    found = [lower_bound(np.ones(n), np.ones(n), GaussianDP()).value for _ in range(40)]
    # At 5 % more than 7 of 40 have probability 0.0013.
    assert np.count_nonzero(found) <= 7


def test_ties_may_count_against_the_audit():
    ins, outs = np.repeat([1.0, 2.0], 25), np.repeat([0.0, 1.0], 25)
    below = lower_bound(ins - 1e-9, outs, COARSE, QUICK).value
    assert lower_bound(ins, outs, COARSE, replace(QUICK, coins="against")).value == below > 0


def test_p_values_are_at_most_the_level_exactly_when_the_claim_is_contradicted():
    rng = stream(4, "averaged", "p")
    ins, outs = rng.normal(size=(200, 40)) + 1, rng.normal(size=(200, 40))
    index = 600
    p = Averaged().p_values(ins, outs, GaussianDP(), 0.05, index)
    found = Averaged().contradicts(ins, outs, GaussianDP(), 0.05, index)
    assert np.array_equal(p <= 0.05, found)
    assert 0 < found.sum() < 200


def test_p_values_of_a_true_claim_are_stochastically_no_smaller_than_uniform():
    """Detects a share off by 1.5 points at the level; false-positive rate 1e-6 each."""
    audits = 4_000
    rng = stream(4, "averaged", "uniform")
    ins, outs = rng.normal(size=(audits, 30)) + 1, rng.normal(size=(audits, 30))
    p = Averaged().p_values(ins, outs, GaussianDP(), 0.05, 1000)
    for level in (0.01, 0.05, 0.2, 0.5):
        assert (p <= level).sum() <= stats.binom.ppf(1 - 1e-6, audits, level)
    assert (p <= 0.5).sum() >= stats.binom.ppf(1e-6, audits, 0.48)


def test_unusable_settings_are_refused():
    with pytest.raises(InputError, match="area: got 1; expected a share inside"):
        Averaged(area=1)
    with pytest.raises(
        InputError, match=r"0.999999 needs 6,907,752 simulated audits, .* expected at most 0.9993"
    ):
        lower_bound([1.0, 2.0], [0.0, 1.0], GaussianDP(), confidence=1 - 1e-6)


@pytest.mark.parametrize("sizes", [(7, 7), (90, 60), (1_000, 300)])
def test_the_functionals_count_pairs_in_order(sizes):
    """All of them, of the highest out-scores and of the lowest in-scores; ties are not in order."""
    out_world, in_world = (averaged.OrderStatistics.of(n) for n in sizes)
    rng = stream(1, "pairs")
    out, into = (
        np.sort(rng.integers(0, 300, (4, len(world.ranks))), axis=1).astype(float)
        for world in (out_world, in_world)
    )
    weights = out_world.weights[:, None] * in_world.weights
    pairs = np.where(into[:, None, :] < out[:, :, None], weights, 0)
    highest = [pairs[:, : end + 1].sum(axis=(1, 2)) for end in out_world.ends]
    lowest = [pairs[:, :, -1 - end :].sum(axis=(1, 2)) for end in in_world.ends]
    expected = np.stack([pairs.sum(axis=(1, 2)), *highest, *lowest], axis=1)
    assert np.array_equal(averaged.counts(out_world, in_world, out, into), expected)


def test_shifted_normal_quantiles_decide_as_gaussian_curves_do():
    """Gaussian curves are compared by quantiles, which is fast; any other as they are."""

    class Curves:
        grid, step, trivial, parameter = COARSE.grid, COARSE.step, 0.0, "mu"
        fnr, violated = COARSE.fnr, COARSE.violated

    rng = stream(2, "quantiles")
    for n, mu in ((5, 3.0), (60, 1.0), (1_000, 0.5)):
        into, out = rng.normal(mu, size=(2, n)) - [[0], [mu]]
        bounds = [lower_bound(into, out, h, QUICK).value for h in (COARSE, Curves())]
        assert bounds[0] == bounds[1] > 0


def test_hypotheses_made_from_gaussian_ones_are_judged_by_their_own_curves():
    class Wide(GaussianDP):
        """Each value stands for twice its mu."""

        def fnr(self, index, fpr):
            return super().fnr(2 * index, fpr)

    rng = stream(9, "averaged", "made from")
    into, out = rng.normal(size=40) + 2, rng.normal(size=40)
    found = lower_bound(into, out, Wide(step=0.1)).value
    assert 0 < found <= lower_bound(into, out, GaussianDP(step=0.1)).value / 2
