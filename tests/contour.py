"""A truth of another kind for the standard epsilon: delta as a contour integral.

With M(z) the moment generating function of one step's privacy loss under the first world, entire
in z, delta(epsilon) = 1/(2 pi i) int M(z)^T e^(-z epsilon) / (z (z + 1)) dz along any vertical line
right of 0; here through the saddle point. No grid of losses and no Fourier transform of masses:
M is a trapezoidal sum over the output, and so is the integral, both of which converge faster than
any power of their spacing.
"""

import math

import numpy as np
from scipy.optimize import minimize_scalar

SMOOTH = 0.05
"""Deviation of normal noise that is added to the loss, over the saddle point's scale: it cuts the
integral off, and moves delta by about SMOOTH^2 / 2. It is a hundredth of epsilon at most, so that
it does not lift the bulk of the losses, near 0, above epsilon."""

MOST = 20_000_000
"""Terms of a sum, which take a second or so."""


def delta(*arguments):
    """Delta at a noise multiplier, sampling rate, steps, epsilon > 0 and null, to a relative 5e-3.

    null is "out" or "in". A sixth argument: records that come and go together. None where the sums
    would have more than ``MOST`` terms.
    """
    try:
        return _delta(*arguments)
    except OverflowError:
        return None


def _delta(sigma, q, steps, epsilon, null, group=1):
    numbers = np.arange(group + 1.0)[:, None]
    choices = np.array([[math.comb(group, k)] for k in range(group + 1)], dtype=float)
    log_weights = np.log(choices) + numbers * math.log(q) + (group - numbers) * math.log1p(-q)

    def log_moment(z, spacing, most):
        """Log of M at each z, shape (n,): M(z) = E_Q[e^(power l)]."""
        power = z + 1 if null == "out" else -z
        end = (group * max(most + 1, 1) if null == "out" else 0) + 10 * sigma
        y = np.arange(-10 * sigma, end, spacing)
        if len(y) * len(z) > MOST:
            raise OverflowError
        ratios = log_weights + numbers * (y - numbers / 2) / sigma**2
        loss = np.logaddexp.reduce(ratios, axis=0)
        weight = -(y**2) / (2 * sigma**2) + math.log(spacing / (sigma * math.sqrt(2 * math.pi)))
        size = power.real.max() * loss + weight
        loss, weight = loss[size > size.max() - 45], weight[size > size.max() - 45]
        found = np.empty(len(power), dtype=complex)
        for i in range(0, len(power), 64):
            exponents = power[i : i + 64, None] * loss + weight
            peak = exponents.real.max(axis=1, keepdims=True)
            found[i : i + 64] = np.log(np.exp(exponents - peak).sum(axis=1)) + peak[:, 0]
        return found

    def height(log_c):
        c = math.exp(log_c)
        fine = min(sigma / 8, sigma**2 / 2)
        moment = log_moment(np.array([complex(c)]), fine, c)[0].real
        return steps * moment - c * epsilon - math.log(c) - math.log1p(c)

    found = minimize_scalar(
        height,
        bounds=(-12, math.log(300 / epsilon + 50)),
        method="bounded",
        options={"xatol": 1e-3},
    )
    c, peak = math.exp(found.x), float(found.fun)
    # Curvature of the logarithm along the real line: the tilted deviation of the loss.
    step = 1e-2
    curvature = (height(found.x + step) - 2 * peak + height(found.x - step)) / (step * c) ** 2
    spread = math.sqrt(max(curvature, 1e-12))
    width = min(SMOOTH / c, epsilon / 100)
    last = 5 / width
    # Where the periodic continuation of e^(c epsilon) delta(epsilon) has nothing else.
    period = 12 * spread + (10 + abs(peak)) / c
    if last * period > MOST / 10:
        return None
    t = np.arange(0, last, 2 * math.pi / period)
    turn = 2 * math.pi / (group * last / sigma**2 + 9 / sigma)
    spacing = min(sigma / 8, sigma**2 / 2 / group, turn)
    z = c + 1j * t
    logs = steps * log_moment(z, spacing, c) - z * epsilon - np.log(z) - np.log1p(z)
    values = np.exp(logs + (z - c) ** 2 * width**2 / 2 - peak).real
    values[0] /= 2
    return float(values.sum()) * 2 / period * math.exp(peak)
