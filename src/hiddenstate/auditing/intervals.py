"""Upper bounds on an error rate from error counts, one count at a time or all at once.

A confidence bound holds in all but ``level`` of the audits whatever the rate is. A credible bound
holds with posterior probability ``1 - level``, which promises nothing about how often it fails.
"""

from collections.abc import Callable
from functools import lru_cache
from math import isqrt

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import betaincinv

from hiddenstate.streams import stream

SIMULATIONS = 3_999
"""Simulated audits behind a calibrated level; with 1 added, a round number."""


def clopper_pearson_upper(count: ArrayLike, n: int, level: float) -> NDArray[np.float64]:
    """Exact one-sided upper confidence bound on a rate with ``count`` errors in ``n`` runs.

    Source: Clopper and Pearson 1934.
    """
    count = np.asarray(count, dtype=float)
    bound = betaincinv(np.minimum(count, n - 1) + 1, np.maximum(n - count, 1), 1 - level)
    return np.where(count >= n, 1.0, bound)


def jeffreys_upper(count: ArrayLike, n: int, level: float) -> NDArray[np.float64]:
    """Upper credible bound (estimate) from the posterior under Jeffreys' prior Beta(1/2, 1/2)."""
    count = np.asarray(count, dtype=float)
    bound = betaincinv(count + 0.5, n - count + 0.5, 1 - level)
    return np.where(count >= n, 1.0, bound)


def dkw_upper(n: int, level: float) -> NDArray[np.float64]:
    """Upper confidence bounds on all rates at once, shape (n + 1,), indexed by the count.

    Source: Massart 1990 (the one-sided Dvoretzky-Kiefer-Wolfowitz inequality, level <= 1/2).
    """
    return np.minimum(1.0, np.arange(n + 1) / n + np.sqrt(np.log(1 / level) / (2 * n)))


@lru_cache(maxsize=64)
def band_upper(n: int, level: float) -> NDArray[np.float64]:
    """Upper confidence bounds on all rates at once, shape (n + 1,), equally tight at every count.

    The rate of scores above the r-th largest of n is the r-th smallest of n uniform variables, so
    it is below the (1 - gamma) quantile of Beta(r, n + 1 - r) but for probability gamma. The band
    asks that of ranks half a standard deviation apart together, with gamma set by simulation so
    that it fails with probability ``level`` (counting the simulation's own randomness: Barnard
    1963). A test with k errors errs less than one that errs up to the first kept rank above k, so
    that rank's bound is the count's. Near the ends, where an audit finds its evidence, this is far
    tighter than ``dkw_upper``.

    Source: the equal-precision band of Aldor-Noiman et al. 2013, one side of it.
    """
    # The r-th rank's own deviation is at most sqrt(r): what happens between is lost in the noise.
    ranks = symmetric_ranks(n, lambda rank: isqrt(rank) // 2)
    gamma = _band_gamma(ranks, n, level)
    bound = betaincinv(ranks, n + 1 - ranks, 1 - gamma)
    upper = np.append(bound, 1.0)[np.searchsorted(ranks, np.arange(n + 1), side="right")]
    upper.flags.writeable = False
    return upper


def symmetric_ranks(n: int, gap: Callable[[int], int]) -> NDArray[np.int64]:
    """Ranks in 1..n, ascending: after rank r the next is ``gap(r)`` further, at least 1.

    From either end to the middle, so n + 1 - r is kept whenever r is.
    """
    ranks, rank = [], 1
    while rank <= (n + 1) // 2:
        ranks.append(rank)
        rank += max(1, gap(rank))
    low = np.array(ranks)
    return np.unique(np.concatenate((low, n + 1 - low)))


def uniform_order_statistics(
    ranks: NDArray[np.int64], n: int, size: int, rng: np.random.Generator
) -> NDArray[np.float64]:
    """Exact draws of the order statistics ``ranks`` of n uniform variables, (size, len(ranks)).

    Spacings of uniform order statistics are exponentials over their sum, so skipping ranks only
    sums exponentials: the cost depends on the ranks kept, not on n.
    """
    gaps = np.diff(ranks, prepend=0, append=n + 1)
    spacings = rng.standard_gamma(np.broadcast_to(gaps, (size, len(gaps))).astype(float))
    sums = np.cumsum(spacings, axis=1)
    return sums[:, :-1] / sums[:, -1:]


def _band_gamma(ranks: NDArray[np.int64], n: int, level: float) -> float:
    """Pointwise level whose band over all these ranks fails with probability ``level``."""
    uniforms = uniform_order_statistics(ranks, n, SIMULATIONS, stream(0, "auditing", "band", n))
    allowed = int(level * (SIMULATIONS + 1)) - 1
    # The level itself fails too often, a Bonferroni share of it too rarely.
    high, low = np.log(level), np.log(level / len(ranks))
    while high - low > 1e-3:
        middle = (high + low) / 2
        bound = betaincinv(ranks, n + 1 - ranks, -np.expm1(middle))
        failed = int((uniforms > bound).any(axis=1).sum())
        low, high = (middle, high) if failed <= allowed else (low, middle)
    return float(np.exp(low))
