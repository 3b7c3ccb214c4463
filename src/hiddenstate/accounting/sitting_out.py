"""Upper bounds for shuffled batches of which some records sit out, all iterates released.

Each epoch draws an order of the records anew. Its first records fill the batches; at least one
record fills none and sits out. Seen from the epoch in which the record sits out, the record takes
the place of another in a random batch, and that one sits out unseen. So only one batch changes, by
at most 2 clipping norms:

- adding or removing the record is at most the pair of balls and bins of half the noise multiplier;
- for a swap the Rényi divergence of an epoch of b batches is bounded by a mean A of b independent
  ratios e^(2 x / sigma - 2 / sigma^2), x standard normal: at a whole order a the moment
  E_Q[(P / Q)^a] is at most E[A^a] E[A'^(1 - a)], where A' is the sum of b - a of them over b, and
  at any order at most what Hölder's inequality gives, which is better where batches are few.

docs/accounting.md has the proofs.
"""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln

from hiddenstate.accounting import balls_and_bins, gaussian
from hiddenstate.accounting.arguments import check_delta, check_mechanism, doubles
from hiddenstate.accounting.composition import Floats
from hiddenstate.errors import check_count

LEVELS = (2, 4, 8, 32)
"""Orders up to each share a mean of ratios."""

LARGEST = 600.0
"""Logarithm of the largest moment of a ratio that is used."""


@doubles
def added_or_removed(noise_multiplier: float, batches: int, epochs: int, delta: float) -> float:
    """Epsilon at ``delta`` is at most this if a record is added or removed; rounded up.

    The number of batches stays. Opposite gradients of all other records attain it, except for the
    epochs in which the record sits out.
    """
    return balls_and_bins.bracket(noise_multiplier / 2, batches, epochs, delta).upper


@doubles
def swapped(noise_multiplier: float, batches: int, epochs: int, delta: float) -> float:
    """Epsilon at ``delta`` is at most this if a record is swapped; rounded up.

    >>> print(round(swapped(1.1, 234, 60, 1e-5), 1))
    21.4
    """
    check_count("batches", batches)
    check_mechanism(noise_multiplier, 1.0, epochs)
    check_delta(delta)
    sigma = float(noise_multiplier) / 2
    best = gaussian.bracket(math.sqrt(epochs) / sigma, delta)[1]
    if not balls_and_bins.covered(sigma, epochs, delta):
        return best
    moments = _log_moments(sigma, batches)
    best = min(best, _hoelder(sigma, batches, epochs, delta, moments))
    least = 2
    for level in LEVELS:
        orders = np.arange(least, min(level, len(moments) - 1) + 1)
        least = level + 1
        if not len(orders) or level >= batches:
            break
        # A mean of fewer ratios has larger negative moments.
        given = (sigma, batches - level, epochs, delta)
        below = balls_and_bins.log_negative_moments(*given, orders - 1)
        # The sum of b - a ratios over b is their mean times (b - a) / b.
        fewer = (orders - 1) * np.log(batches / (batches - orders))
        best = min(best, _converted(epochs * (moments[orders] + below + fewer), orders, delta))
    return max(best, 0.0)


def _hoelder(sigma: float, batches: int, epochs: int, delta: float, moments: Floats) -> float:
    """The bound by E[S^a T^(1 - a)] <= E[S^n]^(1 / p) E[T^-m]^(1 - 1 / p), n being a p."""
    negative = np.arange(1, LEVELS[-1] + 1)
    below = balls_and_bins.log_negative_moments(sigma, batches, epochs, delta, negative)
    n, m = np.meshgrid(np.arange(2, len(moments)), negative)
    # With this p both powers are of one order a: n / p = a and m (1 - 1 / p) = a - 1.
    p = (n + m) / (m + 1)
    logs = moments[n] / p + below[m - 1] * (1 - 1 / p)
    return _converted(epochs * logs, n / p, delta)


def _converted(logs: Floats, orders: NDArray[Any], delta: float) -> float:
    """Least epsilon that moments E_Q[(P / Q)^order] with these logarithms show."""
    some = orders > 1
    orders, logs = orders[some], logs[some]
    found = (logs - np.log(delta * orders)) / (orders - 1) + np.log1p(-1 / orders)
    return float(found.min(initial=math.inf))


def _log_moments(sigma: float, batches: int) -> Floats:
    """Logarithms of the moments 0, 1, ... of a mean of so many ratios, as far as they are used."""
    order = np.arange(LEVELS[-1] + 1)
    single = order * (order - 1) / (2 * sigma**2)
    order = order[single <= LARGEST]
    one = np.exp(single[order] - gammaln(order + 1))
    # The power of a series, all of whose terms here are positive.
    power = np.ones(1)
    for k in order[1 : batches + 1].tolist():
        i = np.arange(1, k + 1)
        # Miller's recurrence, the first coefficient being 1.
        power = np.append(power, ((batches + 1) * i - k) @ (one[i] * power[k - i]) / k)
    kept = power[np.isfinite(power)]
    order = order[: len(kept)]
    return np.log(kept) + gammaln(order + 1) - order * math.log(batches)
