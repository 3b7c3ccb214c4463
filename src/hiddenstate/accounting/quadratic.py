"""A linear loss with a quadratic regulariser: the last iterate can leak more than the heuristic.

Section 4.2 of *The Last Iterate Advantage* (arXiv 2410.06186): a linear loss and the regulariser
r(m) = curvature x m^2 / 2 in one dimension, learning rate one, clipping norm one. With the canary
the last iterate is P = sum_i (1 - curvature)^(i-1) Bernoulli(q) + N(0, b^2) up to sign, without it
Q = N(0, b^2), b^2 = sigma^2 sum_i (1 - curvature)^(2(i-1)). Curvature 0 is the linear loss,
curvature 1 a single step (section 4.1).
"""

import math

import numpy as np
from numpy.typing import NDArray
from scipy.special import xlog1py

from hiddenstate.accounting import arguments, binomial, linear
from hiddenstate.accounting.mixture import GaussianMixture
from hiddenstate.errors import InputError

FLOOR = 0.0005
"""Smallest shift of the paper's rounding."""

RATIO = 1.05
"""Shifts are rounded up to integer powers of this number."""

MOST_STEPS = 12
"""Steps whose 2^T sums are enumerated; earlier steps weigh less and are bounded together."""


def last_iterate(
    noise_multiplier: float,
    sampling_rate: float,
    steps: int,
    curvature: float,
    *,
    round_down: bool = False,
) -> GaussianMixture:
    """The pair of section 4.2: exact up to 12 steps or if linear, else an upper bound on the leak.

    The bound replaces the sum of the earliest steps, whenever it is not zero, by the largest
    value it can take. More shift is easier to tell from none (Lemma 4.5 of Choquette-Choo et al.
    2024), so epsilon and delta round up; with curvature 1/2 the shift grows by at most 2^-11.
    ``round_down`` leaves the sum of the earliest steps out, by which they round down.
    """
    arguments.check_mechanism(noise_multiplier, sampling_rate, steps)
    if not 0 <= curvature <= 1:
        raise InputError(f"curvature: got {curvature}; expected a number in [0, 1]")
    if curvature == 0:
        return linear.last_iterate(noise_multiplier, sampling_rate, steps)
    arguments.check_steps(steps, binomial.MOST_STEPS)
    sizes = (1 - curvature) ** np.arange(steps)
    noise_std = noise_multiplier * math.sqrt(np.sum(sizes**2))
    shifts, log_weights = np.zeros(1), np.zeros(1)
    for size in sizes[:MOST_STEPS]:
        shifts, log_weights = _add(shifts, log_weights, size, xlog1py(1, -sampling_rate))
    if steps > MOST_STEPS and not round_down:
        none = xlog1py(steps - MOST_STEPS, -sampling_rate)
        shifts, log_weights = _add(shifts, log_weights, np.sum(sizes[MOST_STEPS:]), none)
    return GaussianMixture(shifts, log_weights, noise_std)


def worst_schedule(
    noise_multiplier: float, sampling_rate: float, steps: int, delta: float
) -> tuple[float, NDArray[np.float64]]:
    """Most that a *schedule* of curvatures was found to leak: epsilon, and its gradients' weights.

    A quadratic regulariser may change from step to step. Step t's gradient then has the weight
    prod_{s>t} (1 - curvature_s), any sequence that ascends to 1; the weights come back in the order
    of the steps, shape (steps,). Nelder and Mead's search from the linear loss, from curvatures of
    1/2 and of a single step finds a local maximum: epsilon is exact for its weights, and a lower
    bound on the worst. Up to 12 steps.
    """
    from scipy.optimize import minimize

    arguments.check_mechanism(noise_multiplier, sampling_rate, steps)
    arguments.check_delta(delta)
    if steps > MOST_STEPS:
        raise InputError(f"steps: got {steps}; expected at most {MOST_STEPS}, which are enumerated")

    def weights_of(kept: NDArray[np.float64]) -> NDArray[np.float64]:
        kept = np.clip(kept, 0, 1)
        return np.concatenate((np.cumprod(kept[::-1])[::-1], [1.0]))

    def leak(kept: NDArray[np.float64]) -> float:
        weights = weights_of(kept)
        shifts, log_weights = np.zeros(1), np.zeros(1)
        for weight in weights:
            shifts, log_weights = _add(shifts, log_weights, weight, xlog1py(1, -sampling_rate))
        noise_std = noise_multiplier * float(np.linalg.norm(weights))
        return GaussianMixture(shifts, log_weights, noise_std).epsilon(delta)

    best = np.ones(steps - 1)
    if steps == 1:
        return leak(best), weights_of(best)
    for start in (1.0, 0.5, 0.0):
        first = np.full(steps - 1, 0.9 * start + 0.05)
        found = minimize(
            lambda kept: -leak(kept),
            first,
            method="Nelder-Mead",
            bounds=[(0, 1)] * (steps - 1),
            options={"maxfev": 150 * steps, "xatol": 1e-4, "fatol": 1e-7},
        ).x
        best = max(best, found, key=leak)
    return leak(best), weights_of(best)


def round_up(pair: GaussianMixture, *, nearest: bool = False) -> GaussianMixture:
    """The paper's upper bound on a pair: shifts up to 0.0005, then up to a power of 1.05.

    Zero shifts go to 0.0005 too, which is how the text reads. Section 4.2. ``nearest`` rounds to
    the nearest power instead, which bounds nothing.
    """
    power = np.log(np.maximum(pair.shifts, FLOOR)) / math.log(RATIO)
    # Rounding must not lift a shift that is a power already to the next one.
    power = np.round(power) if nearest else np.ceil(power - 1e-9)
    power += 0 if nearest else RATIO**power < pair.shifts
    return GaussianMixture(*_merge(RATIO**power, pair.log_weights), pair.noise_std)


def _add(
    shifts: NDArray[np.float64], log_weights: NDArray[np.float64], size: float, log_none: float
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Add ``size`` to the sum, except with probability exp(log_none)."""
    if size == 0 or log_none == 0:
        return shifts, log_weights
    log_some = math.log(-math.expm1(log_none))
    return _merge(
        np.concatenate((shifts, shifts + size)),
        np.concatenate((log_weights + log_none, log_weights + log_some)),
    )


def _merge(
    shifts: NDArray[np.float64], log_weights: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Distinct shifts in ascending order, with the weights of equal ones added up."""
    keep = log_weights > -math.inf
    order = np.argsort(shifts[keep], kind="stable")
    shifts, log_weights = shifts[keep][order], log_weights[keep][order]
    # Near ones stay apart: merging them would round a bound down, or one from below up.
    first = np.flatnonzero(np.diff(shifts, prepend=-1.0) > 0)
    return shifts[first], np.logaddexp.reduceat(log_weights, first)
