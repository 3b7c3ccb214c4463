"""The binomial distribution in log space, keeping its digits at any number of trials."""

import math
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import gammaln, xlog1py

Floats = NDArray[np.float64]

MOST_STEPS = 10_000_000
"""Steps whose binomial distribution takes less than a gigabyte."""


@lru_cache(maxsize=8)
def log_binomial(trials: int, rate: float) -> Floats:
    """Log of the Binomial(trials, rate) mass at 0..trials, to 1e-12 wherever it matters.

    Loader's saddle-point form: differences of log-gamma functions would lose the digits of
    log(trials!), which is above a million at 100,000 trials.
    """
    mass = log_mass(np.arange(trials + 1.0), float(trials), rate)
    mass.flags.writeable = False  # it is cached
    return mass


def log_mass(k: Floats, trials: ArrayLike, rate: ArrayLike) -> Floats:
    """Log of the Binomial(trials, rate) mass at k; minus infinity beyond the trials. Broadcasts."""
    trials, rate = np.asarray(trials, dtype=float), np.asarray(rate, dtype=float)
    with np.errstate(divide="ignore", invalid="ignore"):
        rest = trials - k
        above = k - trials * rate
        mass = -_deviance(above, trials * rate) - _deviance(-above, trials * (1 - rate))
        inner = _stirling_error(trials) - _stirling_error(k) - _stirling_error(rest)
        inner -= 0.5 * np.log(2 * np.pi * k * rest / trials)
    # At both ends the deviances alone are the mass: (1 - q)^n and q^n.
    mass += np.where((k > 0) & (rest > 0), inner, 0.0)
    mass = np.where(rate == 1, np.where(rest == 0, 0.0, -math.inf), mass)
    mass = np.where((rate == 0) | (trials == 0), np.where(k == 0, 0.0, -math.inf), mass)
    return np.where(rest >= 0, mass, -math.inf)


def _deviance(above: Floats, mean: float) -> Floats:
    """x log(x/mean) - x + mean for x = mean + above, keeping the digits where x is near mean."""
    u = np.maximum(above / mean, -1.0)
    return mean * (xlog1py(1 + u, u) - u)


def _stirling_error(n: ArrayLike) -> Floats:
    """log(n!) - log(sqrt(2 pi n) (n/e)^n) for n >= 1, to 1e-15."""
    n = np.asarray(n, dtype=float)
    inverse = 1 / n**2
    series = (1 / 12 - inverse * (1 / 360 - inverse * (1 / 1260 - inverse / 1680))) / n
    return np.where(n < 16, _STIRLING_ERRORS[np.clip(n, 0, 15).astype(int)], series)


def _first_stirling_errors() -> Floats:
    n = np.arange(1.0, 16.0)
    errors = gammaln(n + 1) - (n + 0.5) * np.log(n) + n - 0.5 * np.log(2 * np.pi)
    return np.concatenate(([math.inf], errors))


_STIRLING_ERRORS = _first_stirling_errors()
"""At 0 to 15, where the series would not do."""
