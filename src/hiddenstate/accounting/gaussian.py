"""Gaussian differential privacy as epsilon at a delta, and back.

Source: Dong, Roth and Su 2022 (arXiv 1905.02383), corollary 1.
"""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hiddenstate.accounting import linear
from hiddenstate.accounting.arguments import check_delta
from hiddenstate.errors import InputError


def epsilon(mu: ArrayLike, delta: float) -> NDArray[np.float64]:
    """Exact epsilon at ``delta`` of mu-Gaussian differential privacy, any shape; 0 at mu <= 0.

    Raises InputError for a mu that is no number.
    """
    # Audits of few models share few values.
    values, places = np.unique(np.asarray(mu, dtype=float), return_inverse=True)
    if np.isnan(values).any():
        raise InputError("mu: got nan; expected numbers")
    found = np.zeros_like(values)
    found[values > 0] = linear.last_iterate_epsilon(1 / values[values > 0], 1.0, 1, delta)
    return found[places].reshape(np.shape(mu))


def bracket(mu: float, delta: float, *, share: float = 1e-9) -> tuple[float, float]:
    """The same as bounds that are a ``share`` of it above and below, or what rounding asks for."""
    check_delta(delta)
    mu = float(mu)
    if mu <= 0:
        return 0.0, 0.0
    return linear.last_iterate(1 / mu, 1.0, 1).bracket(delta, share=share)


def epsilon_below(mu: ArrayLike, delta: float) -> NDArray[np.float64]:
    """The same as a lower bound, rounded down by 1e-9 or by what rounding asks for."""
    values, places = np.unique(np.asarray(mu, dtype=float), return_inverse=True)
    found = np.maximum(0, epsilon(values, delta) - 1e-9)
    # Elsewhere its rounding is below that.
    for far in np.flatnonzero((values > 10) | ((values > 0) & (delta > 0.9))):
        found[far] = min(found[far], bracket(float(values[far]), delta, share=1e-12)[0])
    return found[places].reshape(np.shape(mu))


def mu(epsilon: float, delta: float) -> float:
    """The mu whose epsilon at ``delta`` is as given."""
    return 1 / float(linear.last_iterate_noise_multiplier(epsilon, delta, 1.0, 1))
