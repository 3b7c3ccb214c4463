import numpy as np
import pytest
from scipy import stats

from hiddenstate.auditing import ApproxDP, Averaged, GaussianDP, known_null_bound
from hiddenstate.errors import InputError
from hiddenstate.streams import stream


def test_the_level_is_kept_and_used():
    """False-positive rate 1e-6 each way, for exceedances of 3 to 6.5 %."""
    audits, n, mu = 4_000, 50, 1.0
    ins = stream(1, "known null").normal(size=(audits, n)) + mu
    calibration = Averaged().sized((n, 0), GaussianDP(), 0.05)
    found = calibration.observed_known(stats.norm.sf(ins)) > calibration.critical(1000)
    low, high = stats.binom.ppf([1e-6, 1 - 1e-6], audits, [0.04, 0.05])
    assert low <= found.sum() <= high


def test_atoms_count_against_the_audit():
    """Randomised response at epsilon 1, whose probabilities are known."""
    audits, n = 2_000, 50
    truthful = 1 / (1 + np.exp(-1))
    ins = (stream(2, "known null").random((audits, n)) < truthful) * 1.0
    calibration = Averaged().sized((n, 0), ApproxDP(0.0), 0.05)
    shares = np.where(ins == 1, 1 - truthful, 1.0)
    found = calibration.observed_known(shares) > calibration.critical(1000)
    assert found.sum() <= stats.binom.ppf(1 - 1e-6, audits, 0.05)


def test_a_known_law_is_worth_more_than_as_many_out_models():
    """Medians at mu 3 and 100 scores: 2.8 from the in-scores alone, 2.6 with out-scores."""
    ins = stream(3, "known null").normal(size=(400, 100)) + 3
    calibration = Averaged().sized((100, 0), GaussianDP(), 0.05)
    statistic = np.median(calibration.observed_known(stats.norm.sf(ins)))
    assert calibration.bounds(np.array([statistic]))[0][0] > 2.7


def test_one_audit_says_what_it_is():
    scores = stream(4, "known null").normal(size=100) + 2
    bound = known_null_bound(scores, stats.norm.sf, GaussianDP())
    assert bound.method == "averaged, known null law"
    assert (bound.valid, bound.direction) == (True, "lower")
    assert 1.2 < bound.value < 2.2


def test_what_is_no_upper_tail_is_refused():
    for law, words in (
        (stats.norm.cdf, "grows with the score"),
        (lambda x: x, "expected a probability"),
        (lambda x: 0.5, "expected a probability"),
        (lambda x: np.full(len(x), np.nan), "expected a probability"),
        (lambda x: stats.norm.sf(x) + 0j, "expected a probability"),
        (lambda x: ["0.5"] * len(x), "expected a probability"),
        (lambda x: np.ma.array(stats.norm.sf(x), mask=x > 0), "expected a probability"),
    ):
        with pytest.raises(InputError, match=words):
            known_null_bound([-1.0, 0.0, 2.0], law, GaussianDP())


@pytest.mark.parametrize("confidence", [0.8, 0.95])
def test_a_bound_is_calibrated_at_its_confidence(confidence):
    scores = stream(5, "known null").normal(size=60) + 2
    calibration = Averaged().sized((60, 0), GaussianDP(), 1 - confidence)
    (expected,), _ = calibration.bounds(calibration.observed_known(stats.norm.sf(scores)[None]))
    bound = known_null_bound(scores, stats.norm.sf, GaussianDP(), confidence=confidence)
    assert bound.value == expected


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("law", [stats.bernoulli(0.5), stats.poisson(1), stats.binom(10, 0.5)])
def test_laws_with_atoms_that_leak_nothing_point_no_other_way(law):
    rng = stream(0, "atoms", law.dist.name)
    for _ in range(50):
        scores = law.rvs(100, random_state=rng).astype(float)
        known_null_bound(scores, lambda y: law.sf(np.ceil(y) - 1), GaussianDP())
    with pytest.raises(UserWarning, match="point the other way"):
        known_null_bound(np.zeros(100), lambda y: stats.poisson(3).sf(np.ceil(y) - 1), GaussianDP())
