"""A regulariser that makes the last iterate hold the whole history: exact accounting.

Section 4.3 of *The Last Iterate Advantage* (arXiv 2410.06186). The regulariser's gradient step
clears the first coordinate and moves every other on by one, multiplied by ``growth`` v > 1; the
canary's gradient is the first unit vector, all others are zero. Unrolled, coordinate i of the
last iterate is, over v^(i-1), A_{T-i+1} + sum_{j<i} v^-j xi_{T-i+1+j, j+1}: whether the canary was
sampled i steps ago, and noise. The noises of different coordinates are disjoint and the A_t
independent, so the last iterate is T independent one-step mechanisms, and its privacy loss their
composition (equations 7 and 8).
"""

import math
from functools import reduce

import numpy as np
from numpy.typing import NDArray
from scipy.special import xlog1py

from hiddenstate.accounting import arguments, gaussian, pld
from hiddenstate.accounting.binomial import MOST_STEPS
from hiddenstate.errors import InputError, expect
from hiddenstate.rounding import counted


@arguments.doubles
def noise_multipliers(noise_multiplier: float, steps: int, growth: float) -> NDArray[np.float64]:
    """Noise on each coordinate of the last iterate over v^(i-1), exact, shape (steps,).

    sigma^2 (1 - v^-2i) / (1 - v^-2): sigma for the last step, up to sigma / sqrt(1 - v^-2).
    """
    arguments.check_mechanism(noise_multiplier, 1.0, steps)
    arguments.check_steps(steps, MOST_STEPS)
    if not growth > 1:
        raise InputError(f"growth: got {growth}; expected a number above 1")
    i = np.arange(1, steps + 1)
    log = 2 * np.log(growth)
    return noise_multiplier * np.sqrt(np.expm1(-i * log) / np.expm1(-log))


@arguments.doubles
def epsilon(
    noise_multiplier: float, sampling_rate: float, steps: int, growth: float, delta: float
) -> float:
    """Upper bound on epsilon of the last iterate, above it by about 1e-3 at most.

    dp-accounting's, with losses spaced by the mechanism: connecting the dots at spacing h adds at
    most T h^2 / 6 to the variance of the T steps' loss, hence about z T h^2 / (12 s) to epsilon, s
    being its deviation and z = sqrt(2 log(1 / delta)). Its rounding comes off delta, and deltas
    that are not far above it (``pld.least_delta``) are refused by an InputError.
    """
    arguments.check_mechanism(noise_multiplier, sampling_rate, steps)
    arguments.check_delta(delta)
    expect(noise_multiplier >= 1e-3, "noise_multiplier", noise_multiplier, "at least 0.001")
    least = pld.least_delta(steps)
    expect(delta >= least, "delta", delta, f"at least {least:.2g} for {counted(steps, 'step')}")
    if -math.expm1(float(xlog1py(steps, -sampling_rate))) <= delta - least / 100:
        return 0.0  # so rarely is the record sampled at all
    # Noise a millionth too small is an upper bound, and makes most coordinates equal.
    noise = noise_multipliers(noise_multiplier, steps, growth)
    noise = np.exp(np.floor(np.log(noise) * 1e6) / 1e6)
    values, counts = np.unique(noise, return_counts=True)
    # In every step it would be a Gaussian mechanism.
    if noise[0] > 1 and gaussian.epsilon(float(np.linalg.norm(1 / noise)), delta) == 0:
        return 0.0
    single = math.sqrt(min(math.expm1(min(1 / float(values[-1]), 7.0) ** 2), 1e4))
    deviation = sampling_rate * single * math.sqrt(steps)
    z = math.sqrt(2 * math.log(1 / delta))
    # This makes z T h^2 / (12 s) at most half of 1e-3.
    interval = min(pld.INTERVAL, math.sqrt(6 * 1e-3 * deviation / (steps * z)))
    parts = [(float(value), sampling_rate, int(n)) for value, n in zip(values, counts, strict=True)]
    fine = max(pld.points(*part, interval) for part in parts) <= pld.MOST_POINTS
    words = f"more, so that privacy losses spaced by {interval:.3g} are few enough"
    expect(fine, "noise_multiplier", noise_multiplier, words)
    each = [pld.privacy_loss(*part, interval=interval) for part in parts]
    total = reduce(lambda one, other: one.compose(other), each)
    return pld.epsilon_of(total, delta - least / 100)
