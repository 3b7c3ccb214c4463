import numpy as np
import pytest
from scipy import stats

from hiddenstate.auditing import summaries
from hiddenstate.errors import InputError
from hiddenstate.streams import stream


def test_auc_is_the_mann_whitney_share():
    rng = stream(1, "auc")
    ins, outs = rng.integers(0, 9, 40) + 2, rng.integers(0, 9, 30)
    found = summaries.auc(ins, outs)
    assert found.value == pytest.approx(stats.mannwhitneyu(ins, outs).statistic / 1200)
    assert 0 <= found.low < found.value < found.high <= 1
    assert summaries.auc([1.0, 2.0], [0.0, 0.5]).high == 1


def test_the_intervals_hold_at_the_confidence_stated():
    """Intervals at 80 %: misses in 1,000 audits, false-positive rate 1e-6."""
    audits, n, mu, fpr = 1_000, 60, 1.5, 0.2
    rng = stream(2, "intervals")
    area, power = stats.norm.cdf(mu / np.sqrt(2)), stats.norm.sf(stats.norm.isf(fpr) - mu)
    missed = np.zeros(2)
    for _ in range(audits):
        scores = rng.normal(size=n) + mu, rng.normal(size=n)
        for k, (found, truth) in enumerate(
            (
                (summaries.auc(*scores, confidence=0.8), area),
                (summaries.tpr(*scores, fpr, confidence=0.8), power),
            )
        ):
            missed[k] += not found.low <= truth <= found.high
    assert np.all(missed <= stats.binom.ppf(1 - 1e-6, audits, 0.2))


def test_the_interval_of_a_rate_narrows_around_it():
    rng = stream(3, "tpr")
    scores = rng.normal(size=20_000) + 2, rng.normal(size=20_000)
    found = summaries.tpr(*scores, 0.05)
    truth = stats.norm.sf(stats.norm.isf(0.05) - 2)
    assert found.low < truth < found.high
    assert found.high - found.low < 0.06
    assert found.value == pytest.approx(truth, abs=0.02)
    # Too few out-scores to know any threshold's rate say nothing of the lower end.
    assert summaries.tpr([5.0, 6.0], [0.0, 1.0], 0.01).low == 0


@pytest.mark.parametrize("fpr", [0.0, 1.0, -1, np.nan, "a"])
def test_a_rate_that_is_none_is_refused(fpr):
    with pytest.raises(InputError, match="fpr: got"):
        summaries.tpr([1.0, 2.0], [0.0, 1.0], fpr)
