import tracemalloc

import numpy as np
import pytest
from scipy import stats

from hiddenstate.auditing import intervals
from hiddenstate.errors import InputError


@pytest.mark.parametrize("level", [0.05, 0.001])
@pytest.mark.parametrize("n", [2, 50, 1000])
def test_clopper_pearson_is_scipys(n, level):
    for count in {0, 1, n // 2, n - 1, n}:
        oracle = stats.binomtest(count, n, alternative="less").proportion_ci(1 - level, "exact")
        assert intervals.clopper_pearson_upper(count, n, level) == pytest.approx(oracle.high)


def test_jeffreys_is_the_posterior_quantile():
    draws = np.random.default_rng(1).beta(3.5, 17.5, 400_000)
    # Standard error of the empirical quantile: 4e-4; false-positive rate about 1e-6.
    oracle = np.quantile(draws, 0.95)
    assert intervals.jeffreys_upper(3, 20, 0.05) == pytest.approx(oracle, abs=2e-3)
    assert intervals.jeffreys_upper(20, 20, 0.05) == 1


@pytest.mark.parametrize("n", [2, 10, 1000])
@pytest.mark.parametrize("kind", [intervals.band_upper, intervals.dkw_upper])
def test_bands_hold_for_all_rates_at_once(kind, n):
    """False-positive rate 1e-6; detects a band that fails in 8 % of the cases instead of 5 %."""
    level, size = 0.05, 10_000
    uniforms = np.sort(np.random.default_rng(n).random((size, n)), axis=1)
    # The worst threshold with count r - 1 lies just short of the r-th smallest.
    failed = np.any(uniforms > kind(n, level)[:n], axis=1).sum()
    # The band's own simulation moves its true level by sqrt(0.05 * 0.95 / 4000) = 0.0034.
    assert failed <= stats.binom.ppf(1 - 1e-6, size, level + 5 * 0.0034)
    if kind is intervals.band_upper and n >= 10:
        assert failed >= stats.binom.ppf(1e-6, size, 0.5 * level)


def test_the_band_sees_small_rates_where_dkw_does_not():
    assert intervals.band_upper(1000, 0.025)[0] < 0.25 * intervals.dkw_upper(1000, 0.025)[0]
    for kind in (intervals.band_upper, intervals.dkw_upper):
        bound = kind(1000, 0.025)
        assert np.all(np.diff(bound) >= 0)
        assert bound[-1] == 1


def test_thinned_order_statistics_have_the_law_of_the_sorted_sample():
    """Kolmogorov-Smirnov at 1e-6 on each kept rank: marginals are Beta(r, n + 1 - r)."""
    ranks = np.array([1, 4, 30, 50])
    draws = intervals.uniform_order_statistics(ranks, 50, 5_000, np.random.default_rng(3))
    for rank, column in zip(ranks, draws.T, strict=True):
        assert stats.kstest(column, stats.beta(rank, 51 - rank).cdf).pvalue > 1e-6
    sample = np.sort(np.random.default_rng(4).random((5_000, 50)), axis=1)[:, ranks - 1]
    # Joint law: the correlation of neighbours, standard error below 0.015.
    assert np.corrcoef(draws.T) == pytest.approx(np.corrcoef(sample.T), abs=0.08)


def test_kept_ranks_are_symmetric_and_hold_both_ends():
    for n in (2, 3, 17, 1000):
        ranks = intervals.symmetric_ranks(n, lambda rank: rank // 8)
        assert np.array_equal(np.sort(n + 1 - ranks), ranks)
        assert ranks[0] == 1
        assert ranks[-1] == n


def test_a_band_of_many_ranks_is_drawn_in_parts():
    """All draws at once would be 80 MB."""
    tracemalloc.start()
    try:
        intervals.band_upper.__wrapped__(200_000, 0.021)
        assert tracemalloc.get_traced_memory()[1] < 40e6
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("level", [9e-6, 1e-12, 1e-18])
@pytest.mark.parametrize("n", [10, 30, 1000])
def test_bands_of_tiny_levels_hold_by_the_union_bound_without_a_simulation(n, level):
    upper = intervals.band_upper.__wrapped__(n, level)
    assert (np.diff(upper) >= 0).all() and upper[-1] == 1 and upper[0] < 1
    # At the kept ranks, where the count is one less, the bound is that of the rank.
    ranks = 1 + np.flatnonzero(np.diff(upper))
    failing = stats.beta.sf(upper[ranks - 1], ranks, n + 1 - ranks).sum()
    assert 0.8 * level < failing < 1.01 * level
    assert upper[0] >= intervals.band_upper(n, 0.01)[0]


def test_a_rate_whose_bound_has_no_digits_is_bounded_by_1():
    """The inverse of the incomplete beta function is NaN at some of these."""
    counts = np.arange(11)
    for level in (1e-109, 1e-200, 1e-300):
        upper = intervals.clopper_pearson_upper(counts, 10, level)
        assert (upper > 1 - 1e-5).all() and (upper <= 1).all()


def test_a_confidence_that_takes_too_many_simulations_is_named_with_all_its_digits():
    for confidence in (0.9999, 0.999999999999):
        with pytest.raises(InputError, match=f"confidence: {confidence!r} needs .* at most 0.9993"):
            intervals.allowed_rank(1 - confidence, 10_000)
