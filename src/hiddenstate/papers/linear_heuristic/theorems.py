"""Theorems and displayed formulas of linear_heuristic, by integrals of densities.

Nothing here calls the accountants for what it compares them with: densities are summed and
integrated on a grid, at the mechanism of section 4.2 and at two more.
"""

from functools import lru_cache
from itertools import permutations, product

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from hiddenstate.accounting import history, linear, quadratic

Floats = NDArray[np.float64]
SETTINGS = ((1.0, 0.1, 3), (0.7, 0.3, 10), (2.0, 0.05, 40))
"""Noise multipliers, sampling rates and numbers of steps."""
EPSILONS = (0.1, 1.0, 2.0)
POINTS = 200_001
"""Of the grid, over the means and twelve standard deviations on either side."""


def _shifts(rate: float, steps: int) -> tuple[Floats, Floats]:
    """Numbers of times that the canary is sampled, and their probabilities."""
    from scipy import stats

    k = np.arange(steps + 1.0)
    return k, stats.binom.pmf(k, steps, rate)


def _densities(
    shifts: Floats, weights: Floats, sd: float, top: float
) -> tuple[Floats, Floats, Floats]:
    """A grid, and on it the densities with the canary and without."""
    from scipy import stats

    y = np.linspace(-12 * sd, top + 12 * sd, POINTS)
    inside = sum(w * stats.norm.pdf(y, s, sd) for s, w in zip(shifts, weights, strict=True))
    return y, np.asarray(inside), stats.norm.pdf(y, 0, sd)


@lru_cache(maxsize=8)
def _iterate(
    sigma: float, rate: float, steps: int, norm: float = 1.0
) -> tuple[Floats, Floats, Floats]:
    """The densities of the last iterate, for canary gradients of this share of the norm."""
    k, mass = _shifts(rate, steps)
    return _densities(norm * k, mass, sigma * steps**0.5, steps)


def _hockey_stick(y: Floats, one: Floats, other: Floats, epsilon: float) -> float:
    return float(np.trapezoid(np.maximum(one - np.exp(epsilon) * other, 0), y))


def rows() -> pd.DataFrame:
    """One number for each sentence: columns quantity ("theorem"), method, value, kind."""
    from scipy import optimize, stats

    found: dict[str, list[float]] = {}

    def note(name: str, value: float) -> None:
        found.setdefault(name, []).append(float(value))

    for (sigma, rate, steps), epsilon in product(SETTINGS, EPSILONS):
        sd, (k, mass) = sigma * steps**0.5, _shifts(rate, steps)
        y, p, q = _iterate(sigma, rate, steps)
        both = [_hockey_stick(y, *pair, epsilon) for pair in ((p, q), (q, p))]
        said = float(linear.last_iterate_delta(sigma, rate, steps, epsilon))
        note("tightness", max(both) / said)
        for norm in (0.25, 0.5, 0.9):
            _, *shorter = _iterate(sigma, rate, steps, norm)
            less = max(_hockey_stick(y, a, b, epsilon) for a, b in permutations(shorter))
            note("shorter gradients", less / said)
        inverted = float(linear.last_iterate_epsilon(sigma, rate, steps, max(both)))
        note("inversion", inverted - epsilon)

        def loss(at: float, k: Floats = k, mass: Floats = mass, sd: float = sd) -> float:
            return float(np.log(np.sum(mass * np.exp(-(k**2 - 2 * k * at) / (2 * sd**2)))))

        losses = [loss(at) for at in np.linspace(-5 * sd, 5 * sd, 200)]
        note("monotone loss", min(np.diff(losses)))
        threshold = optimize.brentq(lambda at, e=epsilon: loss(at) - e, -60 * sd, 60 * sd)
        tails = np.sum(mass * stats.norm.sf(threshold, k, sd)), stats.norm.sf(threshold, 0, sd)
        note("first expression", (tails[0] - np.exp(epsilon) * tails[1]) / both[0])
        if both[1] > 0:
            threshold = optimize.brentq(lambda at, e=epsilon: loss(at) + e, -60 * sd, 60 * sd)
            below = stats.norm.cdf(threshold, 0, sd)
            other = np.sum(mass * stats.norm.cdf(threshold, k, sd))
            note("second expression", (below - np.exp(epsilon) * other) / both[1])
    for sigma, _, steps in SETTINGS:
        mu = steps**0.5 / sigma
        for epsilon in EPSILONS:
            # Gaussian DP at mu, by corollary 1 of Dong, Roth and Su, and as Theorem 1 for q = 1.
            gdp = stats.norm.cdf(mu / 2 - epsilon / mu) - np.exp(epsilon) * stats.norm.cdf(
                -mu / 2 - epsilon / mu
            )
            note("full batch", float(linear.last_iterate_delta(sigma, 1.0, steps, epsilon)) / gdp)
        single = quadratic.last_iterate(sigma, 0.1, steps, 1.0)
        for epsilon in EPSILONS:
            y, p, q = _densities(np.array([0.0, 1.0]), np.array([0.9, 0.1]), sigma, 1)
            note("single iteration", float(single.delta(epsilon)) / _hockey_stick(y, p, q, epsilon))
            y, p, q = _iterate(sigma, 0.1, steps)
            pair = quadratic.last_iterate(sigma, 0.1, steps, 0.0)
            note("linear losses", float(pair.delta(epsilon)) / _hockey_stick(y, p, q, epsilon))
    # Two full-batch iterates together, by an integral over the plane, and their sum alone.
    grid = np.linspace(-9, 10, 1501)
    one, none = (stats.norm.pdf(grid, shift, 1) for shift in (1, 0))
    for epsilon in EPSILONS:
        excess = np.maximum(np.outer(one, one) - np.exp(epsilon) * np.outer(none, none), 0)
        pair = np.trapezoid(np.trapezoid(excess, grid), grid)
        y, p, q = _densities(np.array([2.0]), np.array([1.0]), 2**0.5, 2)
        note("isotropic", pair / _hockey_stick(y, p, q, epsilon))
    for steps in (3, 8, 12):
        sums = [sum(one) for one in product(*((0, 0.5**i) for i in range(steps)))]
        note("support", len(set(sums)) / 2**steps)
    for growth in (2.0, 100.0):
        direct = [sum(growth ** (-2 * j) for j in range(i)) for i in range(1, 9)]
        noise = history.noise_multipliers(1.5, 8, growth) / 1.5
        note("variance", np.abs(noise**2 / direct - 1).max())
    note("limit", np.abs(history.noise_multipliers(1.5, 8, 1e6) / 1.5 - 1).max())
    return pd.DataFrame(
        [
            {"quantity": "theorem", "method": name, "kind": "exact", "x": i, "value": value}
            for name, values in found.items()
            for i, value in enumerate(values)
        ]
    )
