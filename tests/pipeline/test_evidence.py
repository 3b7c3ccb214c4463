"""The rule of evidence: what agrees, what contradicts, and what stays undecided."""

import math

import numpy as np
import pytest
from scipy import stats

from hiddenstate.pipeline.evidence import (
    Estimate,
    Evidence,
    Exact,
    Interval,
    Open,
    Outcome,
    Share,
    Stated,
    Test,
    Within,
    average,
    below,
    mean,
    mean_of,
    rarely,
)


def outcome(*items, **options):
    return Evidence(items, **options).outcome


def test_an_exact_number_agrees_inside_contradicts_outside_and_is_undecided_across_an_end():
    assert outcome(Within("x", Exact(1.0), high=1.05)) == Outcome.AGREES
    assert outcome(Within("x", Exact(1.0524), high=1.05)) == Outcome.CONTRADICTS
    assert outcome(Within("x", Exact(1.05, accuracy=1e-3), high=1.05)) == Outcome.UNDECIDED
    assert outcome(Within("x", Exact(math.nan), high=1.05)) == Outcome.UNDECIDED


def test_an_estimate_is_judged_by_its_interval_not_by_its_mean():
    inside = mean([1.0, 1.02, 0.98, 1.01, 0.99])
    assert outcome(Within("x", inside, 0.9, 1.1)) == Outcome.AGREES
    assert outcome(Within("x", inside, 1.2, 1.4)) == Outcome.CONTRADICTS
    assert outcome(Within("x", inside, 1.0, 1.1)) == Outcome.UNDECIDED
    # One repeat says nothing, however far inside it lies.
    assert outcome(Within("x", mean([1.0]), 0.0, 2.0)) == Outcome.UNDECIDED


def test_all_items_must_agree_unless_any_of_them_is_enough():
    good, bad = Within("a", Exact(0.0), high=1.0), Within("b", Exact(2.0), high=1.0)
    open_ = Within("c", Estimate(1.0, 1.0), high=1.0)
    assert outcome(good, bad) == Outcome.CONTRADICTS
    assert outcome(good, open_) == Outcome.UNDECIDED
    assert outcome(good, bad, any_of=True) == Outcome.AGREES
    assert outcome(bad, open_, any_of=True) == Outcome.UNDECIDED
    assert outcome(bad, bad, any_of=True) == Outcome.CONTRADICTS


def test_the_intervals_of_one_claim_hold_together_and_exact_numbers_cost_nothing():
    one = Estimate(1.0, 0.1)
    alone = Evidence([Within("a", one)]).rows[0]
    three = Evidence([Within("a", one)] * 3).rows[0]
    beside = Evidence([Within("a", one), Within("b", Exact(1.0))]).rows[0]
    assert alone.high - 1 == pytest.approx(stats.norm.ppf(0.975) * 0.1)
    assert three.high - 1 == pytest.approx(stats.norm.ppf(1 - 0.05 / 6) * 0.1)
    assert beside.high == alone.high


def test_limits_computed_elsewhere_hold_at_their_own_confidence_alone():
    certified = Interval(1.2, 1.1, 1.3, 1 - 1e-6)
    assert outcome(*[Within("x", certified, low=1.0)] * 100) == Outcome.AGREES
    assert outcome(*[Within("x", Interval(1.2, 1.1, 1.3, 0.95), low=1.0)] * 2) == Outcome.UNDECIDED


def test_a_share_has_clopper_and_pearsons_limits():
    low, high = Share(7, 160).interval(0.95)
    assert low == pytest.approx(stats.beta.ppf(0.025, 7, 154))
    assert high == pytest.approx(stats.beta.ppf(0.975, 8, 153))
    assert outcome(Within("x", Share(0, 200), high=0.05)) == Outcome.AGREES
    assert outcome(Within("x", Share(2, 14), high=0.05)) == Outcome.UNDECIDED
    assert outcome(Within("x", Share(40, 200), high=0.05)) == Outcome.CONTRADICTS


def test_finding_nothing_agrees_only_where_something_would_have_been_found():
    assert outcome(Test("x", 0.4, 0.9, "a shift of one")) == Outcome.AGREES
    assert outcome(Test("x", 0.4, 0.3, "a shift of one")) == Outcome.UNDECIDED
    assert outcome(Test("x", 0.0005, 0.3, "a shift of one")) == Outcome.CONTRADICTS
    # A rerun would not say so with 95 %.
    assert outcome(Test("x", 0.01, 0.3, "a shift of one")) == Outcome.UNDECIDED


def test_what_may_happen_rarely_is_tested_with_its_power():
    def said(successes, trials):
        return outcome(rarely("above", successes, trials, rate=0.05, alternative=0.15))

    # Of 200, 5 % are 10; the level of 5 % is reached at 16, which 15 % nearly always exceed.
    assert stats.binom.sf(15, 200, 0.05) < 0.05 < stats.binom.sf(14, 200, 0.05)
    assert said(8, 200) == Outcome.AGREES
    assert said(23, 200) == Outcome.CONTRADICTS
    # Another 200 of the same share would be on the other side too often.
    assert said(10, 200) == said(15, 200) == said(16, 200) == Outcome.UNDECIDED
    assert said(0, 20) == Outcome.UNDECIDED
    assert said(20, 20) == Outcome.CONTRADICTS
    found = rarely("above", 10, 200, rate=0.05, alternative=0.15)
    assert found.power == pytest.approx(stats.binom.sf(15, 200, 0.15))


def test_a_printed_number_needs_its_rival_excluded():
    number = mean_of(6.48, 0.1, 5)
    close = mean([6.3, 6.5, 6.6, 6.4, 6.5])
    assert outcome(Stated("x", close, number, rival=3.41)) == Outcome.AGREES
    assert outcome(Stated("x", mean([3.4, 3.5, 3.3, 3.4, 3.5]), number, rival=3.41)) == (
        Outcome.CONTRADICTS
    )
    assert outcome(Stated("x", mean([6.5]), number, rival=3.41)) == Outcome.UNDECIDED
    assert outcome(Stated("x", mean([4.0, 9.0, 6.0]), number, rival=3.41)) == Outcome.UNDECIDED
    # Without a rival a number may be contradicted, and confirms nothing alone.
    assert outcome(Stated("x", close, number)) == Outcome.UNDECIDED
    assert outcome(Stated("x", close, number), Stated("y", close, number, rival=3.41)) == (
        Outcome.AGREES
    )


def test_a_printed_number_is_a_region_as_wide_as_its_rounding():
    assert outcome(Stated("x", Exact(2.2224), Exact(2.222), 0.0005, rival=2.23)) == Outcome.AGREES
    assert outcome(Stated("x", Exact(2.2236), Exact(2.222), 0.0005, rival=2.23)) == (
        Outcome.CONTRADICTS
    )


def audits(rng, truths, papers, rivals, repeats, sd):
    """Outcomes of replications of several printed means, each of as many repeats as the paper."""
    found = [mean(rng.normal(truth, sd, repeats)) for truth in truths]
    stated = [mean_of(value, sd, repeats) for value in papers]
    return outcome(*map(lambda f, s, r: Stated("x", f, s, 0.005, r), found, stated, rivals))


@pytest.mark.whole
@pytest.mark.parametrize("values", [1, 2, 8])
def test_a_perfect_replication_is_contradicted_in_at_most_one_of_twenty(values):
    """The truth is the same for both; the paper's means scatter as ours do."""
    rng = np.random.default_rng(7)
    runs, sd, repeats = 2000, 0.4, 5
    truths, rivals = np.linspace(1, 6.5, values), [None] * values
    wrong = 0
    for _ in range(runs):
        papers = rng.normal(truths, sd / math.sqrt(repeats))
        wrong += audits(rng, truths, papers, rivals, repeats, sd) == Outcome.CONTRADICTS
    # 5 % by the level, and four standard errors of 2,000 runs.
    assert wrong / runs < 0.05 + 4 * math.sqrt(0.05 * 0.95 / runs)


def test_a_replication_agrees_at_the_stated_value_and_contradicts_at_its_rival():
    """Five repeats of either side with the paper's own deviation of 0.4, 6.48 against 3.41."""
    rng = np.random.default_rng(8)
    runs = 400
    for truth, expected, least in ((6.48, Outcome.AGREES, 0.5), (3.41, Outcome.CONTRADICTS, 0.8)):
        hits = sum(
            audits(rng, [truth], [rng.normal(6.48, 0.4 / math.sqrt(5))], [3.41], 5, 0.4) == expected
            for _ in range(runs)
        )
        assert hits / runs > least - 3 * math.sqrt(least * (1 - least) / runs)
    few = sum(audits(rng, [6.48], [6.48], [3.41], 2, 1.0) == Outcome.UNDECIDED for _ in range(runs))
    assert few / runs > 0.8


def test_differences_have_welchs_degrees_of_freedom():
    one, other = np.array([1.0, 2.0, 4.0, 3.0]), np.array([0.5, 0.1, 0.9])
    found = (mean(one) - mean(other)).interval(0.95)
    expected = stats.ttest_ind(one, other, equal_var=False).confidence_interval(0.95)
    assert found == pytest.approx((expected.low, expected.high))


def test_the_average_of_estimates_has_the_error_of_independent_ones():
    one, other = mean([1.0, 2.0, 4.0, 3.0]), mean([0.5, 0.1, 0.9])
    both, apart = average([one, other]), one - other
    assert both.value == pytest.approx((one.value + other.value) / 2)
    # Half of a sum is known as well as half of a difference.
    assert both.error == pytest.approx(apart.error / 2)
    assert both.freedom == pytest.approx(apart.freedom)
    assert average([one, Estimate(1.0, 0.0)]).error == pytest.approx(one.error / 2)
    assert math.isnan(average([one, mean([1.0])]).error)


def test_an_outcome_is_exact_only_if_no_statistics_decide_it():
    exact, noisy = Within("a", Exact(2.0), high=1.0), Within("b", Estimate(5.0, 0.1), high=1.0)
    assert Evidence([exact]).exact
    assert Evidence([exact, noisy]).exact  # the exact item alone contradicts
    assert not Evidence([noisy]).exact
    agrees = Within("c", Estimate(0.0, 0.1), high=1.0)
    assert not Evidence([Within("d", Exact(0.0), high=1.0), agrees]).exact


def test_equal_repeats_have_an_unknown_error_and_are_not_exact():
    """Five audits that publish 0 are no proof that the sixth does."""
    zeros = mean([0.0] * 5)
    printed = Stated("x", zeros, Exact(0.06), rounding=0.005)
    assert not printed.exact and not Within("x", zeros, high=0.05).exact
    assert outcome(printed) == outcome(Within("x", zeros, high=0.05)) == Outcome.UNDECIDED
    # What the number of models leaves is known.
    assert mean([0.0] * 5, 0.5).interval(0.95)[1] == pytest.approx(
        stats.norm.ppf(0.975) * 0.5 / math.sqrt(5)
    )
    # Less scatter than known is chance; more is more.
    assert mean([0.0, 0.01], 0.5).error == mean([0.0], 0.5).error / math.sqrt(2)
    assert mean([0.0, 4.0, 8.0], 0.5).error > 2


@pytest.mark.whole
def test_all_of_it_is_tested_at_its_level_and_with_its_power():
    rng = np.random.default_rng(8)

    def made(value, error=0.1, freedom=math.inf):
        return below("x", Estimate(value, error, freedom), 1.0, 0.7, "less", tests=2)

    for truth, share in ((1.0, 0.025), (0.7, made(1.0).power)):
        found = [made(x).judge(0.975).outcome for x in rng.normal(truth, 0.1, 4000)]
        assert found.count(Outcome.CONTRADICTS) / 4000 == pytest.approx(share, abs=0.02)
    # Two such tests together agree, as a rerun of the truth does in 19 of 20.
    assert Evidence([made(1.0), made(0.95)]).outcome == Outcome.AGREES
    assert Evidence([made(1.0), made(0.5)]).outcome == Outcome.CONTRADICTS
    # Without power, and without an error that is known, nothing is decided.
    assert Evidence([made(1.0, 0.3)]).outcome == Outcome.UNDECIDED
    assert Evidence([made(1.0, math.nan)]).outcome == Outcome.UNDECIDED
    # As scipy has it of few repeats.
    values = rng.normal(0.9, 0.1, 5)
    item = below("x", mean(values.tolist()), 1.0, 0.7, "less")
    assert item.p_value == pytest.approx(stats.ttest_1samp(values, 1.0, alternative="less").pvalue)


def test_no_interval_of_a_printed_number_leaves_what_is_possible():
    found = Estimate(95.9, 1.0, 3, least=0, most=100)
    free = Estimate(95.9, 1.0, 3)
    printed, wide = (Stated("x", one, Exact(96.1), rival=97.5).judge(0.99) for one in (found, free))
    assert wide.high > 100 and (printed.low, printed.high) == (wide.low, 100)
    # What is said does not change by it, nor how often a rerun says the same.
    assert (printed.outcome, printed.turns) == (wide.outcome, wide.turns)
    low = Stated("x", Estimate(1.0, 1.0, 3, least=0, most=100), Exact(2.0)).judge(0.99)
    assert low.low == 0 and low.high < 100


def test_no_interval_leaves_what_is_possible():
    share = Estimate(0.98, 0.05, least=0.0, most=1.0)
    assert share.interval(0.95)[1] == 1
    difference = share - Estimate(0.02, 0.05, least=0.0, most=1.0)
    assert (difference.least, difference.most) == (-1, 1) and difference.interval(0.95)[1] == 1
    # All of it beyond: as much as is possible, unless it is no chance any more.
    assert Estimate(1.15, 0.05, least=0.0, most=1.0).interval(0.95) == (1, 1)
    assert Estimate(1.3, 0.05, least=0.0, most=1.0).interval(0.95) == (0, 1)
    assert outcome(Within("x", Estimate(1.3, 0.05, most=1.0), low=0.9)) == Outcome.UNDECIDED


def test_a_rerun_would_decide_a_decided_claim_again_in_19_of_20():
    rng = np.random.default_rng(3)
    edge = stats.norm.ppf(0.975) + stats.norm.ppf(0.95)
    for value in (edge + 0.01, edge - 0.01):
        decided = outcome(Within("x", Estimate(value, 1.0), low=0)) == Outcome.AGREES
        again = rng.normal(value, 1.0, 4000) - stats.norm.ppf(0.975) > 0
        assert decided == (value > edge)
        assert again.mean() == pytest.approx(0.95, abs=0.015)


@pytest.mark.whole
def test_turns_are_the_share_of_reruns_with_another_outcome():
    rng = np.random.default_rng(4)

    def frequency(item, redrawn):
        first = item.judge(0.95)
        other = [redrawn(x).judge(0.95).outcome != first.outcome for x in rng.normal(0, 1, 2000)]
        assert first.turns == pytest.approx(np.mean(other), abs=0.03)

    for value, low, high in ((2.5, 0, math.inf), (0.2, -3, 3), (5.0, -1, 1), (1.0, 0, 9)):
        frequency(
            Within("x", Estimate(value, 1.0), low, high),
            lambda x, v=value, a=low, b=high: Within("x", Estimate(v + x, 1.0), a, b),
        )
    for value, rival in ((0.3, 5.0), (4.0, 5.0), (1.0, None), (6.0, None)):
        frequency(
            Stated("x", Estimate(value, 1.0), Estimate(0.0, 1.0), 0.1, rival),
            lambda x, v=value, r=rival: Stated(
                "x", Estimate(v + x, 1.0), Estimate(0.0, 1.0), 0.1, r
            ),
        )
    share = Within("x", Share(9, 10), low=0.5)
    again = [
        Within("x", Share(int(k), 10), low=0.5).judge(0.95).outcome
        for k in rng.binomial(10, 9.5 / 11, 2000)
    ]
    assert share.judge(0.95).turns == pytest.approx(
        np.mean([one != share.judge(0.95).outcome for one in again]), abs=0.03
    )


def test_a_part_that_was_not_measured_leaves_a_claim_open():
    good = Within("a", Exact(0.0), high=1.0)
    assert outcome(good, Open("the other data set")) == Outcome.UNDECIDED
    assert outcome(Within("b", Exact(2.0), high=1.0), Open("x")) == Outcome.CONTRADICTS
    assert outcome(good, Open("x"), any_of=True) == Outcome.AGREES


def test_evidence_of_nothing_is_refused():
    with pytest.raises(ValueError, match="needed"):
        Evidence([])
