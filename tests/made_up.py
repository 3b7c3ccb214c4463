"""Helpers of made-up estimates: exactly as their truth says, or drawn from it."""

from contextlib import contextmanager

import numpy as np

_rng = None


@contextmanager
def drawn(rng):
    """Within it the helpers below draw, so that the same functions make other replications."""
    global _rng
    _rng = rng
    try:
        yield
    finally:
        _rng = None


def repeats(mean, sd, n=5):
    """``n`` values with exactly this mean and this standard deviation, or normal draws."""
    if _rng is not None:
        return _rng.normal(mean, sd, n)
    if n == 1:
        return np.array([float(mean)])
    spread = np.linspace(-1, 1, n)
    return mean + sd * spread / spread.std(ddof=1)


def once(mean, sd):
    """One value with this standard error: the mean, or a normal draw."""
    return float(repeats(mean, sd, 1)[0])


def count(share, n):
    """How many of ``n`` trials succeed: the nearest number, or a binomial draw."""
    return round(share * n) if _rng is None else int(_rng.binomial(n, share))


def counts(shares, n):
    """How many of ``n`` trials fall to each share, or a multinomial draw."""
    return np.round(np.multiply(shares, n)) if _rng is None else _rng.multinomial(n, shares)


def agreement(shift, n, calm):
    """p-value of comparing ``n`` normal scores with as many that are shifted by their deviations.

    Without drawing it is ``calm`` where nothing is shifted, and next to nothing elsewhere.
    """
    from scipy import stats

    if _rng is None:
        return calm if shift == 0 else 1e-4
    return float(
        stats.ks_2samp(_rng.normal(shift, 1, n), _rng.normal(0, 1, n), method="asymp").pvalue
    )
