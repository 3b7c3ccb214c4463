"""DP-SGD whose intermediate iterates are released, by Rényi differential privacy.

Looser than privacy loss distributions at every setting, but what most published epsilons were
computed with, so they can be recognised. Source: Mironov, Talwar and Zhang 2019 (arXiv 1908.10530),
with the conversion to (epsilon, delta) of Canonne, Kamath and Steinke 2020 (Proposition 12).

With P = (1 - q) N(0, sigma^2) + q N(1, sigma^2) and Q = N(0, sigma^2), one step's divergence of
order a is log E_Q[(P/Q)^a] / (a - 1): the larger of both directions (Theorem 5 of the source), and
additive in the steps.
"""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln, logsumexp

from hiddenstate.accounting import arguments
from hiddenstate.errors import InputError, expect

ORDERS: tuple[float, ...] = (
    *(1 + i / 10 for i in range(1, 100)), *range(11, 64), 128, 256, 512, 1024
)  # fmt: skip
"""The usual orders, which published epsilons were computed with."""


def epsilon(
    noise_multiplier: float,
    sampling_rate: float,
    steps: int,
    delta: float,
    *,
    orders: Sequence[float] | None = None,
) -> float:
    """Upper bound on epsilon at ``delta`` from Rényi divergences (add/remove), rounded up.

    orders: Rényi orders above 1, ``ORDERS`` by default. Raises InputError on a value out of range
    and where no order bounds epsilon.
    """
    arguments.check_mechanism(noise_multiplier, sampling_rate, steps)
    arguments.check_delta(delta)
    if orders is not None and not (len(orders) and all(order > 1 for order in orders)):
        raise InputError(f"orders: got {list(orders)}; expected numbers above 1")
    a = np.array(ORDERS if orders is None else orders, dtype=float)
    with np.errstate(over="ignore"):
        each = np.array([divergence(noise_multiplier, sampling_rate, o) for o in a])
        # Up by the error of a divergence.
        total = steps * (each * (1 + 1e-9) + 1e-13)
    value = float(np.min(total + np.log1p(-1 / a) - np.log(delta * a) / (a - 1)))
    if not math.isfinite(value):
        raise InputError(
            f"noise_multiplier: got {noise_multiplier}; expected more noise, as no order of "
            "Rényi differential privacy bounds epsilon here"
        )
    return max(value, 0.0)


def fixed_size_epsilon(
    noise_multiplier: float, records: int, batch_size: int, steps: int, delta: float
) -> float:
    """Upper bound on epsilon of batches drawn without replacement, one record swapped.

    Source: Wang, Balle and Kasiviswanathan 2019, Theorem 9, as dp-accounting computes it.
    """
    # Imported here because it takes a second and most commands never account.
    from dp_accounting import NeighboringRelation, dp_event
    from dp_accounting.rdp import RdpAccountant

    # Its noise multiplier is over the sensitivity to a swap, twice the clipping norm.
    step = dp_event.SampledWithoutReplacementDpEvent(
        records, batch_size, dp_event.GaussianDpEvent(noise_multiplier / 2)
    )
    accountant = RdpAccountant(ORDERS, neighboring_relation=NeighboringRelation.REPLACE_ONE)
    accountant.compose(dp_event.SelfComposedDpEvent(step, steps))
    found = float(accountant.get_epsilon(delta))
    expect(math.isfinite(found), "noise_multiplier", noise_multiplier, "more noise, or no such row")
    return found * (1 + 1e-9)


def divergence(noise_multiplier: float, sampling_rate: float, order: float) -> float:
    """Rényi divergence of one step at an order above 1, to a relative 1e-9 and 1e-13."""
    arguments.check_mechanism(noise_multiplier, sampling_rate, 1)
    if not 1 < order < math.inf:
        raise InputError(f"order: got {order}; expected a number above 1")
    sigma, q = float(noise_multiplier), float(sampling_rate)
    variance = sigma**2
    if variance == 0:
        return math.inf
    if q == 1:
        return order / (2 * variance)
    terms: NDArray[np.float64]
    if order == int(order):
        # The binomial theorem: E_Q[e^(k (2 y - 1) / (2 sigma^2))] = e^((k^2 - k) / (2 sigma^2)).
        k = np.arange(order + 1)
        binomial = gammaln(order + 1) - gammaln(k + 1) - gammaln(order - k + 1)
        weight = k * math.log(q) + (order - k) * math.log1p(-q)
        terms = binomial + weight + (k**2 - k) / (2 * variance)
        scale = 0.0
    else:
        # The integrand is entire and decays like a normal density about at most ``order``, so the
        # trapezoidal rule converges faster than any power of its spacing.
        spacing = min(sigma / 8, 0.5 * variance) if sigma < 1 else sigma / 8
        y = np.arange(-12 * sigma, order + 12 * sigma + spacing, spacing)
        ratio = np.logaddexp(math.log1p(-q), math.log(q) + (y - 0.5) / variance)
        terms = order * ratio - y**2 / (2 * variance)
        scale = math.log(spacing / (sigma * math.sqrt(2 * math.pi)))
    return max(float(logsumexp(terms)) + scale, 0.0) / (order - 1)
