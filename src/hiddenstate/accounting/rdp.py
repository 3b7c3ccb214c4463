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
from scipy.special import logsumexp

from hiddenstate.accounting import arguments
from hiddenstate.errors import InputError, expect

Floats = NDArray[np.float64]
_NO_BOUND = "more noise, as no order of Rényi differential privacy bounds epsilon here"

ORDERS: tuple[float, ...] = (
    *(1 + i / 10 for i in range(1, 100)), *range(11, 64), 128, 256, 512, 1024
)  # fmt: skip
"""The usual orders, which published epsilons were computed with."""


@arguments.doubles
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
    expect(math.isfinite(value), "noise_multiplier", noise_multiplier, _NO_BOUND)
    return max(value, 0.0)


@arguments.doubles
def fixed_size_epsilon(
    noise_multiplier: float, records: int, batch_size: int, steps: int, delta: float
) -> float:
    """Upper bound on epsilon of batches drawn without replacement, one record swapped.

    Source: Wang, Balle and Kasiviswanathan 2019, Theorem 9, as dp-accounting computes it.
    """
    expect(1 <= batch_size <= records, "batch_size", batch_size, f"from 1 to {records} records")
    arguments.check_mechanism(noise_multiplier, batch_size / records, steps)
    arguments.check_delta(delta)
    # Imported here because it takes a second and most commands never account.
    from dp_accounting import NeighboringRelation, dp_event
    from dp_accounting.rdp import RdpAccountant

    # Its noise multiplier is over the sensitivity to a swap, twice the clipping norm.
    step = dp_event.SampledWithoutReplacementDpEvent(
        records, batch_size, dp_event.GaussianDpEvent(min(noise_multiplier, MOST_NOISE) / 2)
    )
    accountant = RdpAccountant(ORDERS, neighboring_relation=NeighboringRelation.REPLACE_ONE)
    accountant.compose(dp_event.SelfComposedDpEvent(step, steps))
    found = float(accountant.get_epsilon(delta))
    expect(math.isfinite(found), "noise_multiplier", noise_multiplier, _NO_BOUND)
    # Up by the rounding error of a step's divergence.
    return found * (1 + 1e-9) + 1e-13 * steps


MOST_NOISE = 1e6
"""More counts as so much for a batch of a fixed size: dp-accounting would take a log of 0."""

MOST_ORDER = 1e9
"""Largest order: beyond, doubles no longer tell apart the outputs that matter."""

LITTLE_NOISE = 0.02
"""With less, each output that matters is of one of the two Gaussians, but for 1e-30 of them."""

NEGLIGIBLE = 60.0
"""Outputs that weigh so many nats less than the largest are left out."""


@arguments.doubles
def divergence(noise_multiplier: float, sampling_rate: float, order: float) -> float:
    """Rényi divergence of one step at an order from 1 to 1e9, to a relative 1e-9 and 1e-13."""
    arguments.check_mechanism(noise_multiplier, sampling_rate, 1)
    expect(1 < order <= MOST_ORDER, "order", order, f"a number above 1, at most {MOST_ORDER:g}")
    sigma, q, order = float(noise_multiplier), float(sampling_rate), float(order)
    variance, above = sigma * sigma, order - 1
    if variance == 0:
        return math.inf
    if q == 1:
        return order / (2 * variance)
    if sigma < LITTLE_NOISE:
        growth = above * (math.log(q) + order / (2 * variance))
        if growth > 700:
            return (math.log(q) + growth) / above
        apart = q * math.expm1(growth) + (1 - q) * math.expm1(above * math.log1p(-q))
        return math.log1p(apart) / above
    # With u = P/Q - 1, whose mean is 0, it is the mean of (1 + u)^a - 1 - a u, which is nowhere
    # negative: no digits are lost near order 1. It is analytic up to pi sigma from the line and
    # falls like a normal density, so the trapezoidal rule converges exponentially.
    z, spacing = _outputs(sigma, q, order)
    mean = float(logsumexp(_log_excess(z, sigma, q, order) - z * z / 2))
    mean += math.log(spacing / math.sqrt(2 * math.pi))
    apart = mean + math.log(above)
    return math.exp(mean) if apart < -40 else float(np.logaddexp(0, apart)) / above


def _log_ratio(z: Floats, sigma: float, q: float) -> tuple[Floats, Floats]:
    """Logarithms of the likelihood ratio at z deviations, without sampling and with it."""
    loss = (z - 0.5 / sigma) / sigma
    near = np.log1p(q * np.expm1(np.minimum(loss, 1)))
    return loss, np.where(loss < 1, near, np.logaddexp(math.log1p(-q), math.log(q) + loss))


def _log_excess(z: Floats, sigma: float, q: float, order: float) -> Floats:
    """Logarithm of ((1 + u)^a - 1 - a u) / (a - 1)."""
    _, log = _log_ratio(z, sigma, q)
    above = order - 1
    small = order * np.abs(log) < 0.1
    x, grown = np.where(small, log, 0.0), np.where(small, 0.0, above * log)
    found = np.expm1(np.minimum(grown, 700)) / above + np.expm1(-log)
    terms = [(above ** (k + 1) + (-1) ** k) / math.factorial(k + 2) * x**k for k in range(10)]
    with np.errstate(divide="ignore"):
        # A square may be below the least double.
        logs = np.where(small, 2 * np.log(np.abs(x)), 0.0)
        logs += np.log(np.where(small, sum(terms), found))
    return log + np.where(grown > 700, grown - math.log(above), logs)


def _outputs(sigma: float, q: float, order: float) -> tuple[Floats, float]:
    """Evenly spaced outputs, in deviations, that matter to ``_log_excess``, and their spacing.

    Cells are halved, and left out by an upper bound: with L and l the two log-ratios the excess is
    at most max(1, a / 2) u^2 e^(max(a - 2, 0) max(l, 0)), and |u| at most q e^max(L, 0); a convex
    function, here up to factors, is below its chord.
    """
    start, end = -40.0, max(order, 2.0) / sigma + 40
    room = NEGLIGIBLE + 8 * float(np.finfo(float).eps) * end**2  # what squares are rounded by
    cells = 128
    width, first = (end - start) / cells, np.arange(cells)
    while True:
        edges: Floats = np.add(start, np.multiply(width, np.stack((first, first + 1))))
        loss, log = _log_ratio(edges, sigma, q)
        bound = 2 * np.maximum(loss, 0) + max(order - 2, 0) * np.maximum(log, 0)
        slope = (bound[1] - bound[0]) / width
        top = np.clip(slope, *edges)
        bound = bound[0] + slope * (top - edges[0]) - top**2 / 2
        bound += math.log(max(1, order / 2)) + 2 * math.log(q)
        best = np.max(_log_excess(edges, sigma, q, order) - edges**2 / 2)
        first = first[bound >= best - room]
        if width <= 1:
            break
        first, width = np.add.outer(2 * first, (0, 1)).ravel(), width / 2
    parts = math.ceil(width / min(0.25, sigma / 2))
    spacing = width / parts
    return start + spacing * np.add.outer(parts * first, np.arange(parts)).ravel(), spacing
