"""The sequential test: simulated audits against binomial quantiles, false-positive rate 1e-6."""

import numpy as np
import pytest
from scipy import stats

from hiddenstate.auditing import ApproxDP, GaussianDP, SequentialAudit, sequential
from hiddenstate.errors import InputError
from hiddenstate.streams import stream

LOOKS = [8, 15, 30, 60]
AUDITS = 400
GAUSSIAN = SequentialAudit(GaussianDP(), 1.0, LOOKS)
RESPONSE = SequentialAudit(ApproxDP(0.0), 1.0, LOOKS)


def gaussian(rng, mu):
    return rng.normal(size=LOOKS[-1]) + mu, rng.normal(size=LOOKS[-1])


def rounded(rng, mu):
    return tuple(np.round(scores) for scores in gaussian(rng, mu))


def response(rng, epsilon):
    truthful = 1 / (1 + np.exp(-epsilon))
    return (rng.random(LOOKS[-1]) < truthful) * 1.0, (rng.random(LOOKS[-1]) >= truthful) * 1.0


def refuted(audit, draw, truth, audits=AUDITS):
    rng = stream(2, "sequential", draw.__name__, int(10 * truth))
    return sum(audit.judge(*draw(rng, truth)).decision == "refuted" for _ in range(audits))


@pytest.mark.parametrize(
    ("audit", "draw"), [(GAUSSIAN, gaussian), (GAUSSIAN, rounded), (RESPONSE, response)]
)
def test_a_true_claim_is_refuted_at_most_at_the_level_over_all_looks(audit, draw, monkeypatch):
    """Detects a false alarm in 13 % of the audits."""
    # The warning of scores that point the other way refutes nothing, and takes most of the time.
    monkeypatch.setattr(sequential, "other_way", lambda *_: None)
    assert refuted(audit, draw, 1.0) <= stats.binom.ppf(1 - 1e-6, AUDITS, 0.05)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("audit", "draw"), [(GAUSSIAN, gaussian), (GAUSSIAN, rounded), (RESPONSE, response)]
)
def test_a_true_claim_is_refuted_at_most_at_the_level_in_many_audits(audit, draw):
    """Detects a false alarm in 7.5 % of the audits."""
    assert refuted(audit, draw, 1.0, 4_000) <= stats.binom.ppf(1 - 1e-6, 4_000, 0.05)


def test_the_level_is_used_and_looking_at_it_each_time_would_break_it():
    """Exact at the claim's own curve, where every look at the level of one is wrong too often."""
    audits = 4_000
    found = (GAUSSIAN.refuted_at(GaussianDP(), 1.0, audits=audits) >= 0).sum()
    low, high = stats.binom.ppf([1e-6, 1 - 1e-6], audits, [0.045, 0.05])
    assert low <= found <= high
    standings = GAUSSIAN._simulated(GaussianDP(), GAUSSIAN.index, "naive", 2 * audits, 3)
    paths = np.concatenate(list(GAUSSIAN._statistics(standings, GAUSSIAN.sizes)))
    each = np.quantile(paths[:audits], 0.95, axis=0)
    assert (paths[audits:] > each).any(axis=1).sum() > high


def test_stopping_early_saves_models():
    """The leak is twice the claim's: found nearly always, after half the models or fewer."""
    at = GAUSSIAN.refuted_at(GaussianDP(), 2.0, audits=1_000)
    assert (at >= 0).mean() > 0.95
    assert np.array(LOOKS)[at].mean() < LOOKS[-1] / 2


def test_the_answer_depends_on_the_planned_looks_alone():
    ins, outs = rounded(stream(5, "sequential"), 2.5)
    answers = [GAUSSIAN.judge(ins[:n], outs[:n]) for n in range(LOOKS[-1] + 1)]
    assert answers[0].decision == "continue"
    assert (answers[0].looks, answers[0].p_value) == (0, 1.0)
    for n, answer in enumerate(answers):
        planned = [look for look in LOOKS if look <= n]
        assert answer == (answers[planned[-1]] if planned else answers[0])
    first = next(a for a in answers if a.decision == "refuted")
    assert all(a == first for a in answers[first.models[0] :])
    assert first.p_value <= 0.05
    assert all(a.p_value > 0.05 for a in answers[: first.models[0]])


def test_no_signal_is_consistent_and_unequal_worlds_are_planned_as_pairs():
    audit = SequentialAudit(GaussianDP(), 1.0, [(8, 16), (20, 40)], simulations=2_000)
    rng = stream(6, "sequential")
    x = rng.normal(size=60)
    assert audit.judge(x[:20], x[20:]).decision == "consistent"
    assert audit.judge(x[:19], x[20:]).models == (8, 16)
    assert audit.judge(x[:20] + 9, x[20:]).decision == "refuted"


def test_what_is_no_plan_is_refused():
    for looks in ([], [1], [20, 10], [10, 10], [2.5], ["a"], [(4, 8), (5, 6)]):
        with pytest.raises(InputError, match="looks: got"):
            SequentialAudit(GaussianDP(), 1.0, looks)
    with pytest.raises(InputError, match="mu: got 25; expected"):
        SequentialAudit(GaussianDP(), 25.0, [10])
    with pytest.raises(InputError, match="confidence: got 95"):
        SequentialAudit(GaussianDP(), 1.0, [10], confidence=95)
    with pytest.raises(InputError, match="in_scores: 1 of 1 score not finite"):
        GAUSSIAN.judge([np.nan], [])
