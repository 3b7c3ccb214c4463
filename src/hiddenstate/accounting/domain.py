"""Shift reduction on a bounded domain, for any bound on how far a step takes two iterates apart.

Two iterates are never further apart than the diameter. If a step takes a distance R to at most
h(R), h not decreasing, its noise may hide a part a <= h(R) of it and leave R' = h(R) - a; when
nothing is left, mu^2 = sum a^2 / sigma^2 is what telling the runs apart is bounded by. Whatever
distances are left in between, the bound holds (proof: docs/cyclic-bounds.md, section 6); so the
best of a few is taken. Gradients that are Hölder continuous have h(R) = R + step size * H R^p:
after Chien and Li 2024 (arXiv 2410.01068), who bound Rényi divergences so.
"""

from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

UP = 1 + 1e-9
"""Factor above the rounding error of the difference of two distances."""

Growth = Callable[[NDArray[np.float64]], NDArray[np.float64]]

BENDS = (0.5, 0.75, 1.0, 1.5, 2.0, 3.0)
"""Powers of the steps that remain which the distances left are tried in proportion to."""

MOST = 100_000
"""Last steps that are tried at most."""


def spendings(
    growth: Growth, diameter: float, steps: int
) -> Iterator[tuple[int, NDArray[np.float64]]]:
    """Shift that each of the last K steps hides, shape (K,), rounded up, for several K.

    growth: h, elementwise, with h(R) >= R.
    """
    for last in np.unique(np.geomspace(1, min(steps, MOST), 60).astype(int)).tolist():
        remaining = 1 - np.arange(last + 1) / last
        for bend in BENDS:
            left = diameter * remaining**bend
            yield last, (growth(left[:-1]) - left[1:]) * UP


def holder(constant: float, exponent: float) -> Growth:
    """h(R) = R + constant R^exponent: step size times the Hölder constant of the gradients."""
    return lambda distance: distance + constant * distance**exponent
