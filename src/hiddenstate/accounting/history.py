"""A regulariser that makes the last iterate hold the whole history: exact accounting.

Section 4.3 of *The Last Iterate Advantage* (arXiv 2410.06186). The regulariser's gradient step
clears the first coordinate and moves every other on by one, multiplied by ``growth`` v > 1; the
canary's gradient is the first unit vector, all others are zero. Unrolled, coordinate i of the
last iterate is, over v^(i-1), A_{T-i+1} + sum_{j<i} v^-j xi_{T-i+1+j, j+1}: whether the canary was
sampled i steps ago, and noise. The noises of different coordinates are disjoint and the A_t
independent, so the last iterate is T independent one-step mechanisms, and its privacy loss their
composition (equations 7 and 8).
"""

import numpy as np
from numpy.typing import NDArray

from hiddenstate.accounting import pld
from hiddenstate.errors import InputError


def noise_multipliers(noise_multiplier: float, steps: int, growth: float) -> NDArray[np.float64]:
    """Noise on each coordinate of the last iterate over v^(i-1), exact, shape (steps,).

    sigma^2 (1 - v^-2i) / (1 - v^-2): sigma for the last step, up to sigma / sqrt(1 - v^-2).
    """
    if not growth > 1:
        raise InputError(f"growth: got {growth}; expected a number above 1")
    i = np.arange(1, steps + 1)
    log = 2 * np.log(growth)
    return noise_multiplier * np.sqrt(np.expm1(-i * log) / np.expm1(-log))


def epsilon(
    noise_multiplier: float, sampling_rate: float, steps: int, growth: float, delta: float
) -> float:
    """Upper bound on epsilon of the last iterate, tight to the accountant's discretisation."""
    # Noise a millionth too small is an upper bound, and makes most coordinates equal.
    noise = noise_multipliers(noise_multiplier, steps, growth)
    noise = np.exp(np.floor(np.log(noise) * 1e6) / 1e6)
    values, counts = np.unique(noise, return_counts=True)
    total = pld.privacy_loss(values[0], sampling_rate, int(counts[0]))
    for value, count in zip(values[1:], counts[1:], strict=True):
        total = total.compose(pld.privacy_loss(value, sampling_rate, int(count)))
    return float(total.get_epsilon_for_delta(delta))
