"""Batches in an order that is drawn: what all noisy sums show of a record at least.

A record is in one batch of each epoch, and every batch is as likely: always the same one where the
order is drawn once, another one in each epoch where it is drawn again. Sums of gradients are in
units of the clipping norm, less what the other records add. So each epoch shows normal numbers of
deviation ``noise_multiplier``, one a batch, of mean 0 except at the record's batch: ``present``
there, and ``absent`` after the record was exchanged. If the gradients of the others are opposite to
the record's, a swapped record (whose gradient turns round) has 2 and 0, and one that is zeroed out
2 and 1. Of an order that is drawn once means over the epochs are sufficient: one epoch of less
noise. Epochs whose order is drawn again are independent.
"""

import math

import numpy as np
from numpy.typing import NDArray
from scipy.special import bdtrc, log_ndtr

from hiddenstate.accounting.arguments import check_delta, check_mechanism, doubles
from hiddenstate.errors import check_count

Floats = NDArray[np.float64]

SWAPPED = (2.0, 0.0)
"""Present and absent, where the other records' gradients are opposite."""
ZEROED = (2.0, 1.0)
SILENT = (1.0, -1.0)
"""A swapped record, where the other records' gradients sum to nothing."""

COUNTS = 200
"""Numbers of epochs that are tried at most."""

_DOWN, _SURE = 1 - 1e-9, 1 - 1e-13
"""Room for rounding: of a lower bound, and of a probability that is compared with another one or
with delta, which it may exceed by little."""


def independent(noise_multiplier: float, epochs: int, *, redrawn: bool) -> tuple[int, float]:
    """How many independent epochs show as much, and the deviation of their sums.

    Of an order that is drawn once, one: of the means over the epochs.
    """
    if redrawn:
        return epochs, noise_multiplier
    return 1, noise_multiplier / math.sqrt(epochs)


@doubles
def lower_epsilon(
    noise_multiplier: float,
    batches: int,
    epochs: int,
    delta: float,
    pair: tuple[float, float] = SWAPPED,
    *,
    redrawn: bool = False,
) -> float:
    """Epsilon at ``delta`` is at least this, by the largest sum of each epoch; rounded down.

    pair: means of the record's batch, before and after the exchange. redrawn: whether the order is
    drawn in each epoch; then the adversary counts the epochs whose largest sum exceeds a threshold.
    Sources: the largest sum as the adversary's statistic is of Chua et al. 2024 (How Private are
    DP-SGD Implementations?), who have one epoch, by what others write of it; the pair of swapped
    records and the epochs are ours.
    """
    check_count("batches", batches)
    check_count("epochs", epochs)
    check_mechanism(noise_multiplier, 1.0, epochs)
    check_delta(delta)
    noise_multiplier, delta = float(noise_multiplier), float(delta)
    present, absent = pair
    shown, sigma = independent(noise_multiplier, epochs, redrawn=redrawn)
    # Any number of epochs gives a valid bound.
    counts = np.unique(np.linspace(1, shown, min(shown, COUNTS), dtype=int))

    def below(threshold: float, shift: float) -> float:
        """Log-probability that no mean of an epoch exceeds the threshold."""
        one = float(log_ndtr((threshold - shift) / sigma))
        return one + (batches - 1) * float(log_ndtr(threshold / sigma))

    def epsilon(threshold: float) -> float:
        """Larger epsilon by "in so many epochs some mean exceeds it" and "in so many none does".

        The numbers of such epochs are binomial.
        """
        there, gone = below(threshold, present), below(threshold, absent)
        some = [bdtrc(counts - 1, shown, -math.expm1(log)) for log in (there, gone)]
        none = [bdtrc(counts - 1, shown, math.exp(log)) for log in (there, gone)]
        return max(_epsilon(some[0], some[1], delta), _epsilon(none[1], none[0], delta))

    # Any threshold is a valid bound; the best of a grid is refined.
    width = sigma * (math.sqrt(2 * math.log(batches)) + 10) + abs(present)
    grid = np.linspace(-10 * sigma, width, 2_001)
    found = 0.0
    for _ in range(8):
        values = [epsilon(threshold) for threshold in grid.tolist()]
        best = int(np.argmax(values))
        found = max(found, values[best])
        grid = np.linspace(grid[max(0, best - 1)], grid[min(len(grid) - 1, best + 1)], 9)
    return max(0.0, found * _DOWN)


def _epsilon(present: Floats, absent: Floats, delta: float) -> float:
    """The largest epsilon that events of these probabilities show."""
    present = present * _SURE
    telling = (present > delta) & (absent > 1e-290)  # what is less has too few digits
    return float(np.log((present[telling] - delta) / absent[telling]).max(initial=0.0))
