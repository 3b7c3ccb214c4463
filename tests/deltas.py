"""Deltas in closed form, to the precision of mpmath where they are called."""

import mpmath


def gaussian(mu, epsilon):
    """Of mu-Gaussian differential privacy."""
    m, e = mpmath.mpf(mu), mpmath.mpf(epsilon)
    return mpmath.ncdf(m / 2 - e / m) - mpmath.exp(e) * mpmath.ncdf(-m / 2 - e / m)


def one_step(sigma, rate, epsilon, null):
    """Of one subsampled Gaussian step, at an epsilon of either sign."""
    sign = 1 if null == "out" else -1
    s, q, e = (mpmath.mpf(value) for value in (sigma, rate, epsilon))
    odds = (mpmath.exp(sign * e) - (1 - q)) / q
    if odds <= 0:
        return max(0, -mpmath.expm1(e)) if null == "out" else 0
    y = s**2 * mpmath.log(odds) + 0.5
    absent, present = mpmath.ncdf(-sign * y / s), mpmath.ncdf(sign * (1 - y) / s)
    alternative, given = ((1 - q) * absent + q * present, absent)[::sign]
    return alternative - mpmath.exp(e) * given
