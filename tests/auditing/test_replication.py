"""Printed epsilons of published audits, by the law of their estimator."""

import functools
from functools import partial

import numpy as np
import pytest
from scipy import stats

from hiddenstate.accounting import gaussian
from hiddenstate.auditing import AsPublished, GaussianDP, replication
from hiddenstate.auditing.law import law as law_of_a_rule
from hiddenstate.auditing.replication import AUDITS, Foretold, Law, Replicated, foretold, published
from hiddenstate.pipeline.evidence import Estimate, Evidence, Outcome

PRINTED = {1.0: (0.08, 0.00), 2.0: (0.54, 0.06), 4.0: (1.89, 0.61), 10.0: (6.48, 3.41)}
"""Means of five audits of 100 models in the worst and in the average case, by epsilon."""


@functools.cache
def law(epsilon, models=100):
    return Law(models, 1e-5, gaussian.mu(epsilon, 1e-5))


def audits(rng, separation, n, models=100):
    """Scores, and then the published estimate; at one separation, or at one for each audit."""
    scores = (
        rng.normal(np.reshape(separation, (-1, 1)), 1, (n, models)),
        rng.normal(0, 1, (n, models)),
    )
    return gaussian.epsilon_below(AsPublished().bounds(*scores, GaussianDP(), 0.05)[0], 1e-5)


def most(runs):
    """The most of as many runs that a chance of 5 % makes wrong, but for 0.44 % of all studies."""
    return stats.binom.isf(0.0044, runs, 0.05)


@pytest.mark.parametrize(
    ("models", "separation"), [(2, 1.0), (7, 0.0), (20, 3.0), (100, 1.5), (500, 4.2)]
)
def test_the_law_is_of_the_published_rule(models, separation):
    """Audits of the same draws by the rule itself, which knows nothing of their order."""
    apart, out = np.random.default_rng(3).normal(0, 1, (2, AUDITS, models))
    rule = AsPublished().bounds(apart + separation, out, GaussianDP(), 0.05)[0]
    assert np.array_equal(published(models, separation, 0.05, seed=3), rule)


def test_no_row_depends_on_what_was_judged_before():
    """Tables are kept by all that they depend on."""
    names = ("_several", "_quantiles", "_again", "_deviations")
    kept = [getattr(replication, name) for name in names]
    plain = {
        "what": "x", "law": law(4.0), "values": (1.0, 1.4, 0.9, 1.2), "number": 1.3,
        "rounding": 0.005,
    }  # fmt: skip
    changed = [
        {}, {"law": law(4.0, 90)}, {"values": (1.0, 1.4, 0.9)}, {"values": (2.0, 2.4, 1.9, 2.2)},
        {"number": 1.9}, {"rival": 2.0}, {"statistic": "maximum"}, {"of": 4},
    ]  # fmt: skip
    judge = [
        partial(Replicated(**plain | change).judge, confidence)
        for change in changed
        for confidence in (0.95, 0.9)
    ]
    found = [one() for one in judge]
    for one, row in zip(judge, found, strict=True):
        for table in kept:
            table.cache_clear()
        assert one() == row
    assert len({(row.low, row.high) for row in found}) == 2 * (len(changed) - 2)


@pytest.mark.whole
@pytest.mark.parametrize("runs", [30, pytest.param(100, marks=pytest.mark.slow)])
@pytest.mark.parametrize("repeats", [1, 5])
def test_perfect_replications_of_a_figure_are_contradicted_in_one_of_twenty_at_most(repeats, runs):
    """Both sides are drawn from one law, at separations that give the printed means."""
    rng, wrong = np.random.default_rng(1), 0
    for _ in range(runs):
        items = []
        for epsilon, means in PRINTED.items():
            for mean, rival in zip(means, reversed(means), strict=True):
                one = law(epsilon)
                at = one.separations[one.nearest(mean)]
                drawn = audits(rng, at, 5 + repeats)
                number, ours = round(float(drawn[:5].mean()), 2), tuple(drawn[5:])
                told = rival if epsilon >= 4 else None
                items.append(
                    Replicated(
                        what="x", values=ours, law=one, number=number, rounding=0.005, rival=told
                    )
                )
        wrong += Evidence(items).outcome == Outcome.CONTRADICTS
    assert wrong <= most(runs)


def test_another_separation_is_contradicted_and_equal_zeros_prove_nothing():
    rng = np.random.default_rng(2)
    far = Replicated(
        what="x", values=tuple(audits(rng, 0.2, 5)), law=law(10.0), number=6.48, rounding=0.005
    )
    assert Evidence([far]).outcome == Outcome.CONTRADICTS
    zeros = Replicated(what="x", values=(0.0,) * 5, law=law(1.0), number=0.06, rounding=0.005)
    assert Evidence([zeros]).outcome != Outcome.CONTRADICTS and not zeros.exact


@pytest.mark.whole
@pytest.mark.parametrize("runs", [60, pytest.param(200, marks=pytest.mark.slow)])
def test_the_interval_holds_what_another_five_audits_publish(runs):
    rng = np.random.default_rng(3)
    for separation in (0.0, 0.6, 1.7):
        inside = []
        for _ in range(runs):
            item = Replicated(
                what="x",
                values=tuple(audits(rng, separation, 5)),
                law=law(10.0),
                number=1.0,
                rounding=0.0,
            )
            row = item.judge(0.95)
            inside.append(row.low <= audits(rng, separation, 5).mean() <= row.high)
        assert runs - sum(inside) <= most(runs)


def test_repeats_that_scatter_more_than_their_models_leave_decide_nothing():
    wild = Replicated(
        what="x", values=(0.0, 9.0, 0.0, 9.0, 0.0), law=law(10.0), number=0.0, rounding=0.005
    )
    assert wild.judge(0.95).outcome == Outcome.UNDECIDED


def test_the_error_of_a_mean_is_at_least_what_the_models_leave():
    rng = np.random.default_rng(4)
    found = audits(rng, 1.0, 2000)
    one = law(10.0)
    assert one.mean([float(found.mean())]).error == pytest.approx(found.std(), rel=0.15)
    assert one.mean([3.0] * 5).error == pytest.approx(one.mean([3.0]).error / 5**0.5)


@pytest.mark.parametrize("level", [0.05, 0.025])
def test_what_is_expected_of_a_separation_is_what_audits_publish_on_average(level):
    one = Law(100, 1e-5, gaussian.mu(10.0, 1e-5), level)
    rule = law_of_a_rule(AsPublished(), 0.83, models=100, delta=1e-5, level=level, audits=4000)
    told = one.expected(Estimate(0.83, 0.05))
    errors = np.hypot(rule.mean_error, 0.9 / AUDITS**0.5)
    assert told.value == pytest.approx(rule.mean, abs=4 * errors + 0.01)
    ends = [one.expected(Estimate(0.83 + off, 0.05)).value for off in (-0.05, 0.05)]
    assert told.error == pytest.approx((ends[1] - ends[0]) / 2)
    _, low, high = foretold(one, Estimate(0.83, 1e-9), 0.0, 0.9, "mean", 1)
    assert low == pytest.approx(np.quantile(rule_audits(level), 0.05), abs=0.2)
    assert high == pytest.approx(np.quantile(rule_audits(level), 0.95), abs=0.2)


def rule_audits(level):
    rng = np.random.default_rng(8)
    scores = rng.normal(0.83, 1, (4000, 100)), rng.normal(0, 1, (4000, 100))
    return gaussian.epsilon_below(AsPublished().bounds(*scores, GaussianDP(), level)[0], 1e-5)


@pytest.mark.whole
@pytest.mark.parametrize("runs", [30, pytest.param(200, marks=pytest.mark.slow)])
@pytest.mark.parametrize("freedom", [4, np.inf])
def test_numbers_that_are_foretold_are_contradicted_in_one_of_twenty_at_most(freedom, runs):
    """The separation has an error, and the paper's five audits have starts of their own."""
    rng, wrong, scatter = np.random.default_rng(4), 0, 0.08
    for _ in range(runs):
        items = []
        for epsilon in (4.0, 10.0):
            one = law(epsilon)
            truth = 0.6 * one.most
            number = audits(rng, truth + scatter * rng.normal(size=5), 5).mean()
            error = scatter / 2
            # Student's pivot: an error that is itself estimated.
            seen = error * (rng.chisquare(freedom) / freedom) ** 0.5 if freedom < 99 else error
            found = Estimate(truth + error * rng.normal(), seen, freedom)
            items.append(
                Foretold(
                    what="x",
                    separation=found,
                    scatter=2 * seen,
                    law=one,
                    number=round(float(number), 2),
                    rounding=0.005,
                )
            )
        wrong += Evidence(items).outcome == Outcome.CONTRADICTS
    assert wrong <= most(runs)


def test_what_is_foretold_decides_where_it_is_known_and_excludes_a_rival():
    one = law(10.0)
    number = one.expected(Estimate(1.7, 0.01)).value
    printed = partial(Foretold, what="x", law=one, number=number, rounding=0.005)

    def outcome(separation, scatter=0.05):
        item = printed(separation=separation, scatter=scatter, rival=3.41)
        return Evidence([item]).outcome

    assert outcome(Estimate(1.7, 0.05)) == Outcome.AGREES
    # A separation that is off by little more than its error and five audits' contradicts.
    assert outcome(Estimate(1.0, 0.05)) == Outcome.CONTRADICTS
    assert outcome(Estimate(1.7, np.nan, 0), scatter=np.nan) == Outcome.UNDECIDED
    assert outcome(Estimate(1.7, 0.4)) == Outcome.UNDECIDED
    # The largest of five is above their mean.
    largest = printed(separation=Estimate(1.7, 0.01), scatter=0.0, statistic="maximum")
    assert Evidence([largest]).rows[0].measured > number + 0.5
