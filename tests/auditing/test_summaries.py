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


def test_the_separation_of_normal_scores_is_their_distance_and_strays_by_its_error():
    """Of 20 and 60 scores, 1.5 deviations apart; the mean of 3,000 audits has an error of 0.005."""
    rng = stream(2, "separation")
    into, out = rng.normal(size=(3000, 20)) * 2 + 3, rng.normal(size=(3000, 60)) * 2
    found = np.array([summaries.separation(*audit) for audit in zip(into, out, strict=True)])
    error = found[:, 1].mean()
    assert error == pytest.approx(float(summaries.separation_error(1.5, 30)), rel=0.03)
    # A deviation of few scores is too small, by 1.3 % with 57 degrees of freedom (Hedges 1981).
    assert found[:, 0].mean() == pytest.approx(1.52, abs=0.02)
    assert found[:, 0].std() == pytest.approx(error, rel=0.06)


def test_the_separation_is_the_difference_of_means_over_the_pooled_deviation():
    value, error = summaries.separation([1.0, 3.0], [-1.0, 1.0])
    assert value == pytest.approx(np.sqrt(2))
    assert error == pytest.approx(np.sqrt(2 / 2 * (1 + 2 / 8)))


@pytest.mark.parametrize("summary", [summaries.separation, summaries.auc, summaries.tpr])
def test_scores_of_several_audits_are_refused(summary):
    one, three = np.arange(6.0), np.arange(6.0).reshape(3, 2)
    more = (0.1,) if summary is summaries.tpr else ()
    for name, given in (("in_scores", (three, one)), ("out_scores", (one, three))):
        with pytest.raises(InputError, match=rf"^{name}: got shape \(3, 2\)"):
            summary(*given, *more)


@pytest.mark.filterwarnings("error")
def test_scores_that_do_not_vary_are_infinitely_apart_or_have_no_separation():
    assert summaries.separation([1.0, 1.0], [0.0, 0.0]) == (np.inf, np.inf)
    assert summaries.separation([0.0, 0.0], [1.0, 1.0]) == (-np.inf, np.inf)
    assert np.isnan(summaries.separation([1.0, 1.0], [1.0, 1.0])).all()


@pytest.mark.filterwarnings("error")
def test_equal_scores_are_equal_where_their_sum_is_rounded():
    tenths, more, thirds = [0.1] * 3, [0.1] * 10, [0.3] * 10
    assert np.isnan(summaries.separation(tenths, more)).all()
    assert summaries.separation(more, thirds) == (-np.inf, np.inf)
    # One that varies in its last bit has a deviation.
    assert np.isfinite(summaries.separation([0.1, 0.1, np.nextafter(0.1, 1)], thirds)[0])


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("power", [-1060, -700, 0, 700, 1012])
def test_the_separation_has_no_unit(power):
    rng = stream(3, "separation")
    into, out = np.round(rng.normal(size=(2, 30)) * 256) + np.array([[256], [0]])
    expected = (into.mean() - out.mean()) / np.sqrt((into.var(ddof=1) + out.var(ddof=1)) / 2)
    value, error = summaries.separation(np.ldexp(into, power), np.ldexp(out, power))
    assert value == expected
    assert error == float(summaries.separation_error(expected, 30))


@pytest.mark.filterwarnings("error")
def test_scores_far_apart_that_hardly_vary_are_far_apart():
    # The deviation is 1e-200, whose square is no number.
    assert summaries.separation([1.0, 1.0], [0.0, 2e-200])[0] == pytest.approx(1e200)
    assert summaries.separation([1e300] * 2, [0.0, 2e-200]) == (np.inf, np.inf)
    assert summaries.separation([1e308, 1.7e308], [-1e308, -1.7e308])[0] == pytest.approx(5.45482)
