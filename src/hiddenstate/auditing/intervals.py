"""Upper bounds on an error rate from error counts, one count at a time or all at once.

A confidence bound holds in all but ``level`` of the audits whatever the rate is. A credible bound
holds with posterior probability ``1 - level``, which promises nothing about how often it fails.
"""

from collections.abc import Callable
from functools import lru_cache
from math import isqrt

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import betainccinv, betaincinv

from hiddenstate.errors import InputError
from hiddenstate.streams import stream

LEAST = float(np.finfo(float).tiny)
"""The least p-value: none is 0, for what a number cannot hold is rounded up."""

SIMULATIONS = 10_000
"""Simulated audits behind a calibrated level."""

MEMORY = 10**7
"""Numbers drawn at most for a band: the more ranks it has, the fewer simulations."""

LEAST_SIMULATED = 1e-5
"""Level of a band below which no simulations are afforded."""

BLOCK = 500
"""Simulations of a band drawn at once, which bounds the memory."""

CERTAINTY = 0.999
"""Probability, over the simulations, that a level calibrated by them is the nominal one or less."""


def safe_share(rank: ArrayLike, simulations: int) -> NDArray[np.float64]:
    """Upper bound, certain to ``CERTAINTY``, on the share of a law beyond an order statistic.

    Beyond the ``rank``-th largest of so many draws lies a Beta(rank, simulations + 1 - rank)
    share of it, or less if the law has atoms. 1 for the rank below the smallest.
    """
    rank = np.asarray(rank, dtype=float)
    share = betaincinv(
        np.minimum(rank, simulations), np.maximum(simulations + 1 - rank, 1), CERTAINTY
    )
    return np.where(rank > simulations, 1.0, share)


def allowed_rank(level: float, simulations: int) -> int:
    """Largest rank with a safe share of at most ``level``; InputError if there is none."""
    ranks = np.arange(1, int(level * simulations) + 1)
    allowed = int(np.searchsorted(safe_share(ranks, simulations), level, side="right"))
    if allowed == 0:
        # The largest of m simulations has the safe share 1 - (1 - CERTAINTY)^(1 / m).
        needed = int(np.ceil(np.log(1 - CERTAINTY) / np.log1p(-level)))
        most = -np.expm1(np.log(1 - CERTAINTY) / simulations)
        raise InputError(
            f"confidence: {1 - level:.16g} needs {needed:,} simulated audits, where there are "
            f"{simulations:,}; expected at most {np.floor((1 - most) * 1e4) / 1e4:g}"
        )
    return allowed


def clopper_pearson_upper(count: ArrayLike, n: int, level: float) -> NDArray[np.float64]:
    """Exact one-sided upper confidence bound on a rate with ``count`` errors in ``n`` runs.

    Source: Clopper and Pearson 1934.
    """
    count = np.asarray(count, dtype=float)
    # The complement keeps the digits of tiny levels.
    bound = betainccinv(np.minimum(count, n - 1) + 1, np.maximum(n - count, 1), level)
    # Of levels below 1e-100 some have none.
    return np.where((count >= n) | np.isnan(bound), 1.0, bound)


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
    that it fails with probability ``level`` at most, certain to ``CERTAINTY``. A test with k errors
    errs less than one that errs up to the first kept rank above k, so that rank's bound is the
    count's. Near the ends, where an audit finds its evidence, this is far tighter than
    ``dkw_upper``.

    Source: the equal-precision band of Aldor-Noiman et al. 2013, one side of it.
    """
    # The r-th rank's own deviation is at most sqrt(r): what happens between is lost in the noise.
    ranks = symmetric_ranks(n, lambda rank: isqrt(rank) // 2)
    gamma = _band_gamma(ranks, n, level)
    bound = betainccinv(ranks, n + 1 - ranks, gamma)  # which keeps the digits of a tiny gamma
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
    sums = rng.standard_gamma(gaps.astype(float), (size, len(gaps)))
    np.cumsum(sums, axis=1, out=sums)
    order = sums[:, :-1]
    order /= sums[:, -1:]
    return order


def _band_gamma(ranks: NDArray[np.int64], n: int, level: float) -> float:
    """Pointwise level whose band over all these ranks fails with probability ``level`` at most."""
    if level < LEAST_SIMULATED:
        return level / len(ranks)  # by Bonferroni's inequality
    # A small level takes more, whatever they cost.
    simulations = max(min(SIMULATIONS, MEMORY // len(ranks)), int(10 / level))
    rng = stream(0, "auditing", "band", n)
    # With f failures the share that fails is at most the safe share of rank f + 1.
    allowed = allowed_rank(level, simulations) - 1
    # What is not above the bound at the level itself is above none, so few numbers are kept.
    lowest = betaincinv(ranks, n + 1 - ranks, 1 - level)
    found = []
    for start in range(0, simulations, BLOCK):
        drawn = uniform_order_statistics(ranks, n, min(BLOCK, simulations - start), rng)
        row, rank = np.nonzero(drawn > lowest)
        found.append((start + row, rank, drawn[row, rank]))
    simulation, rank, uniforms = (np.concatenate(part) for part in zip(*found, strict=True))
    # The level itself fails too often, a Bonferroni share of it too rarely.
    high, low = np.log(level), np.log(level / len(ranks))
    while high - low > 1e-3:
        middle = (high + low) / 2
        bound = betaincinv(ranks, n + 1 - ranks, -np.expm1(middle))
        failed = len(np.unique(simulation[uniforms > bound[rank]]))
        low, high = (middle, high) if failed <= allowed else (low, middle)
    return float(np.exp(low))
