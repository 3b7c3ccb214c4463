"""DP-SGD on losses whose gradients are constant: what the loop of steps reduces to.

Learning rate and clipping norm are one and the canary's gradient is -e (a unit vector), so that a
sampled canary moves the model up along e. Arrays hold many runs at once.
"""

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray


def projections(
    noise_multiplier: float,
    sampling_rate: float,
    steps: int,
    present: bool,
    runs: int,
    random: np.random.Generator,
) -> NDArray[np.float64]:
    """Last iterates along the canary's direction e if all other gradients are zero, shape (runs,).

    m_T = sum_t (A_t e - xi_t), with A_t = 1 where the canary was sampled and xi_t the noise. So
    <m_T, e> = Binomial(T, q) + sigma sqrt(T) N(0, 1), and N(0, sigma^2 T) without the canary; the
    other coordinates are noise alone, independent of it, and tell nothing. One binomial and one
    normal number a run are therefore distributed exactly as the T-step loop.
    """
    sampled = random.binomial(steps, sampling_rate, runs) if present else 0
    return sampled + noise_multiplier * math.sqrt(steps) * random.standard_normal(runs)


def log_likelihood_ratios(
    noise_multipliers: NDArray[np.float64],
    sampling_rate: float,
    present: bool,
    runs: int,
    random: np.random.Generator,
) -> NDArray[np.float64]:
    """Log-likelihood ratios of runs that reveal A_t + sigma_t N(0, 1) for every step t.

    noise_multipliers: sigma_t, shape (T,). Returns shape (runs,). The numbers of different steps
    are independent, so the ratio is the sum of log(1 - q + q exp((2 x - 1) / (2 sigma_t^2))).
    """
    total = np.zeros(runs)
    for sigma in noise_multipliers:
        x = random.standard_normal(runs)
        x *= sigma
        if present:
            x += random.random(runs) < sampling_rate
        total += log_likelihood_ratio(x, sigma, sampling_rate)
    return total


def log_likelihood_ratio(
    x: ArrayLike, noise_multiplier: float, sampling_rate: float
) -> NDArray[np.float64]:
    """Exact log-likelihood ratio of Bernoulli(q) + N(0, sigma^2) to N(0, sigma^2) at x, any shape.

    That of one step: canary sampled at the rate, against canary absent.
    """
    exponent = np.asarray((np.asarray(x) - 0.5) / noise_multiplier**2)
    if exponent.min(initial=0) > -700 and exponent.max(initial=0) < 700:
        # Its exponential is a number. In place: memory is half of what this takes.
        ratio = np.exp(exponent, out=exponent)
        ratio *= sampling_rate
        ratio += 1 - sampling_rate
        # ``[()]`` makes a number of an array without dimensions.
        return np.log(ratio, out=ratio)[()]
    with np.errstate(divide="ignore"):  # log(1 - q) is -inf in the full batch
        never = np.log1p(-sampling_rate)
    return np.logaddexp(never, math.log(sampling_rate) + exponent)
