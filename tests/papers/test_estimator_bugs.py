"""The zoo against closed forms. Statistical tests: false-positive rate 1e-6, fixed seeds."""

import numpy as np
import pytest
from scipy import stats

from hiddenstate.papers.estimators import bugs
from hiddenstate.streams import stream

RUNS = 20_000


def both_worlds(bug, runs=RUNS):
    return [
        bugs.scores(bug, canary=canary, runs=runs, rng=stream(1, "bugs", bug, str(canary)))
        for canary in (True, False)
    ]


def test_the_control_is_exactly_gaussian():
    """Kolmogorov-Smirnov against N(+-mu / 2, 1): detects a shift of 0.04 deviations."""
    setup = bugs.FULL
    ins, outs = both_worlds("none")
    deviation = setup.noise_multiplier * setup.clipping_norm * np.sqrt(setup.steps)
    # The ordinary records pull the other way at every step.
    center = -setup.records * setup.clipping_norm * setup.steps
    for scores, canary in ((ins, 1), (outs, 0)):
        mean = center + canary * setup.clipping_norm * setup.steps
        assert stats.kstest((scores - mean) / deviation, "norm").pvalue > 1e-6
    assert setup.clipping_norm * setup.steps / deviation == pytest.approx(1.0)


@pytest.mark.parametrize("bug", [k for k, v in bugs.BUGS.items() if v.leak and np.isfinite(v.leak)])
def test_the_stated_leak_is_the_distance_of_the_worlds(bug):
    ins, outs = both_worlds(bug)
    pooled = np.sqrt((ins.var(ddof=1) + outs.var(ddof=1)) / 2)
    distance = (ins.mean() - outs.mean()) / pooled
    stated = bugs.BUGS[bug].leak
    if bug == "missed_layer":
        # Measured along (1, 1); the leak is along another direction.
        stated = (1 + bugs.CANARY / np.sqrt(2)) / np.sqrt(2)
    # Standard error of a standardised difference, 5 of them.
    error = np.sqrt(2 / RUNS * (1 + stated**2 / 8))
    assert distance == pytest.approx(stated, abs=5 * error)


def test_subsampled_canaries_take_part_as_often_as_they_should():
    """Mean participations of the canary, 5 standard errors."""
    for bug, rate in (("sampling_rate", 0.4), ("realised_batch", 0.1), ("fixed_batches", 0.1)):
        setup = bugs.BUGS[bug].setup
        plan = bugs._participation(bug, setup, True, RUNS, stream(2, bug))
        error = np.sqrt(rate * (1 - rate) * setup.steps / RUNS)
        assert plan.canary.sum(axis=0).mean() == pytest.approx(rate * setup.steps, abs=5 * error)
    # In the first epoch each record comes exactly once.
    assert np.all(plan.canary[:10].sum(axis=0) == 1)


def test_a_constant_seed_gives_the_same_model_in_every_run():
    ins, outs = both_worlds("constant_seed", runs=3)
    assert np.ptp(ins) == 0
    assert ins[0] > outs[0]


def test_reused_noise_does_not_average_out():
    setup = bugs.FULL
    _, outs = both_worlds("same_noise")
    deviation = setup.noise_multiplier * setup.clipping_norm * setup.steps
    assert outs.std() == pytest.approx(deviation, rel=5 / np.sqrt(2 * RUNS))


def test_there_are_at_least_ten_bugs_beside_the_control():
    assert len(bugs.BUGS) - 1 >= 10
