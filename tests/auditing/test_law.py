"""The law of a rule's result, against a loop of single audits and against what must hold."""

import numpy as np
import pytest

from hiddenstate.accounting import gaussian
from hiddenstate.auditing import AsPublished, GaussianDP, Split, lower_bound
from hiddenstate.auditing.law import law
from hiddenstate.errors import InputError

COMMON = {"models": 60, "delta": 1e-5}


def test_the_law_is_that_of_audits_one_by_one():
    found = law(AsPublished(), 1.2, audits=1500, **COMMON)
    rng, each = np.random.default_rng(1), []
    for _ in range(400):
        scores = rng.normal(1.2, 1, 60), rng.normal(0, 1, 60)
        each.append(lower_bound(*scores, GaussianDP(), rule=AsPublished()).value)
    each = gaussian.epsilon_below(np.array(each), 1e-5)
    error = each.std() / 20
    assert found.mean == pytest.approx(each.mean(), abs=4 * np.hypot(error, found.mean_error))
    assert found.deviation == pytest.approx(each.std(), rel=0.2)
    largest = each.reshape(-1, 5).max(axis=1)
    assert found.largest == pytest.approx(largest.mean(), abs=4 * largest.std() / np.sqrt(80))


def test_more_separation_and_more_repeats_show_more():
    laws = [law(AsPublished(), s, audits=400, **COMMON) for s in (0.0, 0.5, 1.5)]
    means = [found.mean for found in laws]
    assert means == sorted(means)
    assert laws[0].zeros > laws[1].zeros >= laws[2].zeros
    assert all(found.largest > found.mean for found in laws)
    ten = law(AsPublished(), 0.5, audits=400, repeats=10, **COMMON)
    assert ten.largest > laws[1].largest


def test_a_valid_rule_is_rarely_above_the_truth_and_the_published_one_often():
    truth = float(gaussian.epsilon(1.5, 1e-5))
    found = law(AsPublished(), 1.5, audits=400, models=100, delta=1e-5)
    assert found.mean > truth - 1.5
    assert law(Split(), 1.5, audits=400, models=100, delta=1e-5).mean < truth


@pytest.mark.parametrize(
    ("separation", "parts", "message"),
    [(float("nan"), {}, "separation: got nan"), (1.0, {"audits": 0}, "audits: got 0")],
)
def test_bad_input_is_named(separation, parts, message):
    with pytest.raises(InputError, match=message):
        law(AsPublished(), separation, **{**COMMON, **parts})
