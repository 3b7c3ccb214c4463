from fractions import Fraction

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm

from hiddenstate.auditing import (
    GaussianDP,
    SequentialAudit,
    empirical_curve,
    guess,
    known_null_bound,
    lower_bound,
    worlds,
)
from hiddenstate.auditing.curve import check, check_one
from hiddenstate.errors import InputError
from hiddenstate.streams import stream

tied = st.lists(st.integers(-3, 3), min_size=2, max_size=12)


@given(tied, tied)
@settings(max_examples=200, deadline=None)
def test_counts_are_those_of_the_test_at_each_threshold(in_scores, out_scores):
    curve = empirical_curve(in_scores, out_scores)
    ins, outs = np.array(in_scores), np.array(out_scores)
    assert np.array_equal(curve.false_positives, [(outs >= t).sum() for t in curve.threshold])
    assert np.array_equal(curve.false_negatives, [(ins < t).sum() for t in curve.threshold])
    assert set(curve.threshold) == {*in_scores, *out_scores, np.inf}


@given(tied, tied)
@settings(max_examples=100, deadline=None)
def test_swapped_is_the_curve_of_exchanged_worlds_and_negated_scores(in_scores, out_scores):
    swapped = empirical_curve(in_scores, out_scores).swapped()
    direct = empirical_curve(-np.array(out_scores), -np.array(in_scores))
    assert {*zip(swapped.fpr, swapped.fnr, strict=True)} == {
        *zip(direct.fpr, direct.fnr, strict=True)
    }


def test_leading_axes_are_independent_audits():
    rng = np.random.default_rng(0)
    ins, outs = rng.integers(0, 9, (3, 2, 7)), rng.integers(0, 9, (3, 2, 5))
    many = empirical_curve(ins, outs)
    for index in np.ndindex(3, 2):
        one = empirical_curve(ins[index], outs[index])
        for name in ("threshold", "false_positives", "false_negatives"):
            assert np.array_equal(getattr(many, name)[index], getattr(one, name))


@pytest.mark.parametrize(
    ("scores", "words"),
    [
        (
            [1.0, np.nan, 2.0],
            "in_scores: 1 of 3 scores not finite, the first is nan at index 1",
        ),
        ([np.inf, 1.0], "the first is inf at index 0"),
        ([], r"in_scores: got 0 scores; expected at least 2"),
        ([1.0], r"in_scores: got 1 score; expected at least 2"),
        (3.0, r"in_scores: got 1 score"),
        ([10**400, 1], r"in_scores: expected numbers, got"),
        (["a", "b"], "in_scores: expected numbers"),
        (["1", "2"], "in_scores: expected numbers"),
        (np.array(["1", 2], dtype=object), "in_scores: expected numbers"),
        (np.array([1j, 2]), "in_scores: expected numbers"),
        (np.array([np.complex64(1), 2], dtype=object), "in_scores: expected numbers"),
        (np.array([np.datetime64("2020"), 2], dtype=object), "in_scores: expected numbers"),
        (np.array(["2020-01-01", "2020-01-02"], dtype="M8[D]"), "in_scores: expected numbers"),
        (np.ma.array([1.0, 2.0, 3.0], mask=[0, 1, 0]), "in_scores: 1 of 3 scores masked"),
    ],
)
def test_unusable_scores_are_refused_in_words(scores, words):
    with pytest.raises(InputError, match=words):
        empirical_curve(scores, [0.0, 1.0])
    with pytest.raises(InputError, match=words.replace("in_scores", "out_scores")):
        empirical_curve([0.0, 1.0], scores)


@given(tied, tied)
@settings(max_examples=100, deadline=None)
def test_the_observed_curve_is_the_best_test_that_errs_so_often_at_most(in_scores, out_scores):
    curve = empirical_curve(in_scores, out_scores)
    drawn = curve.tradeoff()
    best = [curve.fnr[curve.fpr <= rate + 1e-12].min() for rate in drawn.fpr]
    assert np.array_equal(drawn.fnr, best)
    assert len(drawn.fpr) == len(out_scores) + 1


def test_worlds_are_split_in_their_order():
    rows = pd.DataFrame({"world": ["out", "in", "out", "in"], "score": [1, 2, 3, 4], "s": 0})
    into, out = worlds(rows)
    assert into.tolist() == [2.0, 4.0] and out.tolist() == [1.0, 3.0]
    assert into.dtype == float and worlds(rows, "s")[0].tolist() == [0.0, 0.0]


@pytest.mark.parametrize("narrow", [np.float32, np.float16])
def test_one_number_in_two_precisions_is_refused(narrow):
    """50 scores 0.1 in float32 against 50 in float64 gave mu >= 3.451."""
    for into, out in (
        (np.full(50, 0.1, narrow), np.full(50, 0.1)),
        (np.full(50, 0.1), [narrow(0.1)] * 50),
        ([0.1] * 25 + [narrow(0.1)] * 25, np.full(50, 0.1)),
        (stream(0, "mixed").normal(size=50).astype(narrow), stream(0, "mixed").normal(size=50)),
    ):
        with pytest.raises(InputError, match=f"one number in float64 and in {narrow.__name__}"):
            lower_bound(into, out, GaussianDP())
        with pytest.raises(InputError, match="one number in float64"):
            SequentialAudit(GaussianDP(), 1.0, [50]).judge(into, out)
        coins = np.repeat([True, False], 50)
        with pytest.raises(InputError, match="one number in float64"):
            guess(np.concatenate((np.asarray(into, float), np.asarray(out, float))), coins, 50)


def test_scores_of_one_type_are_taken():
    rng = stream(1, "mixed")
    for n in (50, 5_000):
        for kind in (np.float64, np.float32, np.float16):
            into, out = (rng.normal(size=n).astype(kind) for _ in range(2))
            check(into, out)
            # Saturated scores, whole numbers and decisions stand beside any.
            check(np.minimum(into, 0.5), np.maximum(out, -1))
        check(1 - 1e-9 * rng.random(n), np.ones(n))
        check(rng.integers(2, size=n), rng.normal(size=n).round(3))
        check(rng.integers(9, size=n) / 1024, rng.normal(size=n))


def test_decisions_and_exact_numbers_are_scores():
    for scores in ([True, False], np.array([True, 0], object), [Fraction(1), Fraction(0)]):
        assert check_one(scores, [0, 1])[0].tolist() == [1.0, 0.0]


def judged(into, out):
    return SequentialAudit(GaussianDP(), 1.0, [9], simulations=200, confidence=0.6).judge(into, out)


@pytest.mark.parametrize(
    ("audit", "sides"),
    [
        (lambda into, _: known_null_bound(into, norm.sf, GaussianDP()), 1),
        (judged, 2),
        (lambda into, out: lower_bound(into, out, GaussianDP()), 2),
    ],
)
def test_every_audit_refuses_scores_in_the_same_words(audit, sides):
    fine = np.arange(6.0)
    for wrong, words in (
        (fine.reshape(3, 2), r"got shape \(3, 2\); expected one audit, shape \(n,\)"),
        (fine * 1j, "expected numbers, got array"),
        (np.ma.array(fine, mask=fine > 4), "1 of 6 scores masked"),
        (np.append(fine, np.nan), "1 of 7 scores not finite"),
    ):
        for place, name in enumerate(("in_scores", "out_scores")[:sides]):
            given = [fine, fine]
            given[place] = wrong
            with pytest.raises(InputError, match=f"^{name}: {words}"):
                audit(*given)
