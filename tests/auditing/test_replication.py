"""Printed epsilons of published audits, by the law of their estimator."""

import numpy as np
import pytest

from hiddenstate.accounting import gaussian
from hiddenstate.auditing import AsPublished, GaussianDP
from hiddenstate.auditing.replication import Law, Replicated
from hiddenstate.pipeline.evidence import Evidence, Outcome

PRINTED = {1.0: (0.08, 0.00), 2.0: (0.54, 0.06), 4.0: (1.89, 0.61), 10.0: (6.48, 3.41)}
"""Means of five audits of 100 models in the worst and in the average case, by epsilon."""


def law(epsilon, models=100):
    return Law(models, 1e-5, gaussian.mu(epsilon, 1e-5))


def audits(rng, separation, n, models=100):
    """Scores, and then the published estimate."""
    scores = rng.normal(separation, 1, (n, models)), rng.normal(0, 1, (n, models))
    return gaussian.epsilon_below(AsPublished().bounds(*scores, GaussianDP(), 0.05)[0], 1e-5)


@pytest.mark.parametrize("repeats", [1, 5])
def test_perfect_replications_of_a_figure_are_contradicted_in_one_of_twenty_at_most(repeats):
    """Both sides are drawn from one law, at separations that give the printed means."""
    rng, runs, wrong = np.random.default_rng(1), 100, 0
    for _ in range(runs):
        items = []
        for epsilon, means in PRINTED.items():
            for mean, rival in zip(means, reversed(means), strict=True):
                one = law(epsilon)
                at = one.separations[one.nearest(mean)]
                number = round(float(audits(rng, at, 5).mean()), 2)
                ours = tuple(audits(rng, at, repeats))
                told = rival if epsilon >= 4 else None
                items.append(Replicated("x", ours, one, number, 0.005, told))
        wrong += Evidence(items).outcome == Outcome.CONTRADICTS
    # 5 % and three standard errors of as many runs.
    assert wrong <= 5 + 3 * (100 * 0.05 * 0.95) ** 0.5


def test_another_separation_is_contradicted_and_equal_zeros_prove_nothing():
    rng = np.random.default_rng(2)
    far = Replicated("x", tuple(audits(rng, 0.2, 5)), law(10.0), 6.48, 0.005)
    assert Evidence([far]).outcome == Outcome.CONTRADICTS
    zeros = Replicated("x", (0.0,) * 5, law(1.0), 0.06, 0.005)
    assert Evidence([zeros]).outcome != Outcome.CONTRADICTS and not zeros.exact


def test_the_interval_holds_what_another_five_audits_publish():
    rng = np.random.default_rng(3)
    for separation in (0.0, 0.6, 1.7):
        inside = []
        for _ in range(200):
            item = Replicated("x", tuple(audits(rng, separation, 5)), law(10.0), 1.0, 0.0)
            row = item.judge(0.95)
            inside.append(row.low <= audits(rng, separation, 5).mean() <= row.high)
        assert np.mean(inside) >= 0.95 - 3 * (0.05 * 0.95 / 200) ** 0.5


def test_repeats_that_scatter_more_than_their_models_leave_decide_nothing():
    wild = Replicated("x", (0.0, 9.0, 0.0, 9.0, 0.0), law(10.0), 0.0, 0.005)
    assert wild.judge(0.95).outcome == Outcome.UNDECIDED


def test_the_error_of_a_mean_is_at_least_what_the_models_leave():
    rng = np.random.default_rng(4)
    found = audits(rng, 1.0, 2000)
    one = law(10.0)
    assert one.mean([float(found.mean())]).error == pytest.approx(found.std(), rel=0.15)
    assert one.mean([3.0] * 5).error == pytest.approx(one.mean([3.0]).error / 5**0.5)
