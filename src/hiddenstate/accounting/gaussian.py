"""Gaussian differential privacy as epsilon at a delta, and back.

Source: Dong, Roth and Su 2022 (arXiv 1905.02383, Corollary 2.13).
"""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hiddenstate.accounting import linear
from hiddenstate.accounting.arguments import check_delta, check_number, doubles, doubles_of

LEAST, MOST = 1e-50, 1e50
"""Between them are the mu whose powers are numbers. At a smaller one epsilon counts as 0."""


def _noise(mu: ArrayLike) -> NDArray[np.float64]:
    """Noise multiplier of one step; the inverse of the largest mu rounds to less than is taken."""
    return np.maximum(1 / np.asarray(mu, dtype=float), 1e-50)


def _check(mu: float) -> None:
    check_number("mu", mu, mu <= MOST, f"of at most {MOST:g}")


def epsilon(mu: ArrayLike, delta: float) -> NDArray[np.float64]:
    """Exact epsilon at ``delta`` of mu-Gaussian differential privacy, any shape; 0 at mu <= 0.

    Raises InputError for a mu that is no number, or above 1e50.
    """
    # Audits of few models share few values.
    values, places = np.unique(doubles_of("mu", mu), return_inverse=True)
    for value in values[~(values <= MOST)][:1]:
        _check(value)
    found, told = np.zeros_like(values), values > LEAST
    found[told] = linear.last_iterate_epsilon(_noise(values[told]), 1.0, 1, delta)
    return found[places].reshape(np.shape(mu))


@doubles
def bracket(mu: float, delta: float, *, share: float = 1e-9) -> tuple[float, float]:
    """The same as bounds that are a ``share`` of it above and below, or what rounding asks for."""
    check_delta(delta)
    _check(mu)
    if mu <= 0:
        return 0.0, 0.0
    noise = float(_noise(max(float(mu), LEAST)))
    low, high = linear.last_iterate(noise, 1.0, 1).bracket(delta, share=share)
    return (low if mu >= LEAST else 0.0), high


def epsilon_below(mu: ArrayLike, delta: float) -> NDArray[np.float64]:
    """The same as a lower bound, rounded down by 1e-9 or by what rounding asks for."""
    values, places = np.unique(doubles_of("mu", mu), return_inverse=True)
    found = np.maximum(0, epsilon(values, delta) - 1e-9)
    # Elsewhere its rounding is below that.
    for far in np.flatnonzero((values > 10) | ((values > 0) & (delta > 0.9))):
        found[far] = min(found[far], bracket(float(values[far]), delta, share=1e-12)[0])
    return found[places].reshape(np.shape(mu))


@doubles
def mu(epsilon: float, delta: float) -> float:
    """The mu whose epsilon at ``delta`` is as given."""
    return 1 / float(linear.last_iterate_noise_multiplier(epsilon, delta, 1.0, 1))
