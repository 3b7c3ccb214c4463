"""Epsilon and mu of a bound rho on a divergence, all of them rounded up.

A bound rho says that the Rényi divergence of every order alpha > 1 is at most alpha rho, in nats,
and, where it is the price of a shift that is spent on noise (``accounting.cyclic``), that the
mechanism is sqrt(2 rho)-Gaussian differentially private. ``epsilon`` takes the first, and
``gaussian_epsilon`` the second, which is never larger.
"""

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import log_ndtr

from hiddenstate.accounting import roots
from hiddenstate.accounting.arguments import doubles
from hiddenstate.accounting.mixture import mills_rise
from hiddenstate.errors import expect


@doubles
def epsilon(rho: float, delta: float) -> float:
    """Upper bound on epsilon at ``delta`` by Rényi divergences, D_alpha <= alpha rho for all alpha.

    ``gaussian_epsilon`` is never larger, for every bound of ``accounting.cyclic``.

    dp-accounting converts the guarantee of one order; the order is chosen by a search, and every
    order gives a valid epsilon.
    """
    # Imported here because it takes seconds and most commands never account.
    from dp_accounting.rdp import rdp_privacy_accountant
    from scipy.optimize import minimize_scalar

    expect(0 <= rho < math.inf, "rho", rho, "a number >= 0")
    expect(0 < delta < 1, "delta", delta, "a number between 0 and 1")
    if rho == 0:
        return 0.0

    def converted(log_order: float) -> float:
        order = 1 + math.exp(log_order)
        return float(rdp_privacy_accountant.compute_epsilon([order], [order * rho], delta)[0])

    # The best order is near the optimum of rho alpha + ln(1/delta) / (alpha - 1). dp-accounting
    # converts no order below 1.01.
    centre = 0.5 * math.log(-math.log(delta) / rho)
    low = max(centre - 3, math.log(0.0101))
    high = max(centre + 1, low + 1)
    found = minimize_scalar(
        converted, bounds=(low, high), method="bounded", options={"xatol": 1e-7}
    )
    return max(0.0, float(found.fun))


@doubles
def gaussian_mu(rho: float) -> float:
    """Mu of the Gaussian differential privacy that a bound ``rho`` means: sqrt(2 rho), rounded up.

    Every rho of ``accounting.cyclic`` is the price of a spending of the shift on the steps' noise,
    and the same spending proves mu = sqrt(2 rho) by shifted interpolation (Bok, Su and Altschuler
    2024; proof with proximal steps, any L and restarts: docs/cyclic-bounds.md).
    """
    expect(0 <= rho < math.inf, "rho", rho, "a number >= 0")
    return math.sqrt(2 * rho) * (1 + 4 * float(np.finfo(float).eps))


@doubles
def gaussian_epsilon(rho: float, delta: float) -> float:
    """Upper bound on epsilon at ``delta`` by Gaussian differential privacy, mu = sqrt(2 rho).

    The root of delta = Phi(mu/2 - epsilon/mu) - e^epsilon Phi(-mu/2 - epsilon/mu), rounded up by
    less than 1e-8 max(epsilon, mu) if mu > 1e-5, and 1e-7 of it if mu > 1e-6; a mu below 1e-10
    counts as 1e-10. Source: Dong, Roth and Su 2022 (arXiv 1905.02383, Corollary 2.13).
    """
    expect(0 < delta < 1, "delta", delta, "a number between 0 and 1")
    if rho == 0:
        return 0.0
    mu = max(gaussian_mu(rho), 1e-10)
    eps = float(np.finfo(float).eps)
    most = math.sqrt(-2 * math.log(delta)) + 2
    # Above the rounding error of the logarithm below.
    target = math.log(delta) - 1e-10 - 64 * eps * most / mu

    def excess(distance: float) -> float:
        return float(_log_delta(mu, distance)) - target

    if excess(-mu / 2) <= 0:
        return 0.0
    # Phi(-distance) alone is above the delta, and below the target at the larger end.
    most += math.sqrt(max(0.0, -2 * target) + 1)
    # Of the two ends the one where delta is below the target, which rounds epsilon up.
    _, distance = roots.between(excess, -mu / 2, most, absolute=1e-12)
    return mu * (mu / 2 + distance) * (1 + 8 * eps)


def averaged_epsilon(rhos: ArrayLike, shares: ArrayLike, delta: float) -> float:
    """Upper bound on epsilon where each rho holds for its share of a random draw, rounded up.

    rhos, shares: shape (n,), shares at least 0 and 1 in all. Delta is at most the mean of theirs,
    as the divergence that defines it is jointly convex: of an order of the batches that is drawn
    once, whatever the data, the mean over the record's positions. At most 1e-8 epsilon above the
    root of the mean.
    """
    rhos, shares = np.asarray(rhos, dtype=float), np.asarray(shares, dtype=float)
    right = rhos.shape == shares.shape and rhos.ndim == 1 and bool(np.all(shares >= 0))
    total = float(shares.sum()) if right else 0.0
    expect(right and abs(total - 1) < 1e-9, "shares", total, "as many as rhos, 1 in all")
    worst = gaussian_epsilon(float(rhos.max()), delta)
    # Where mu is tiny, rounding of a delta is more than the share that is added below.
    lost = 64 * float(np.finfo(float).eps) * (math.sqrt(-2 * math.log(delta)) + 2)
    mus = np.maximum([gaussian_mu(float(rho)) for rho in rhos], 1e-10)
    weights = shares * np.maximum(1.0, 1 + lost / mus - 1e-9)

    def excess(epsilon: float) -> float:
        deltas = np.exp(_log_delta(mus, epsilon / mus - mus / 2))
        return float(weights @ deltas) / delta * (1 + 1e-9) - 1

    if worst == 0 or excess(0.0) <= 0:
        return 0.0
    # The mean is at most the worst but for rounding.
    if excess(worst) >= 0:
        return worst
    return roots.between(excess, 0.0, worst, relative=1e-10)[1]


def _log_delta(mu: ArrayLike, distance: ArrayLike) -> NDArray[np.float64]:
    """Logarithm of the delta of mu-Gaussian privacy at epsilon = mu (mu/2 + distance) >= 0."""
    # With R = Phi / phi it is that of Phi(high) (1 - R(low) / R(high)).
    high = -np.asarray(distance)
    ratio = mills_rise(high - mu, mu)
    with np.errstate(divide="ignore"):
        found: NDArray[np.float64] = log_ndtr(high) + np.log(-np.expm1(-ratio))
    return found
