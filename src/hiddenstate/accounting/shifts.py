"""Shifts between two runs that noisy Lipschitz steps hide, and the best way to spend them.

Shift reduction spends a part of the shift on the noise of each step; a Lipschitz constant L says by
what factor the rest grows, or shrinks for L < 1. Proofs: docs/cyclic-bounds.md.
"""

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hiddenstate.errors import expect

LEAST, LARGEST = 1e-140, 1e140
"""Shifts in noise standard deviations between which a square keeps all its digits."""


def visible_fraction(lipschitz: float, steps: ArrayLike) -> NDArray[np.float64]:
    """Fraction theta_L(s) of a squared shift that s noisy steps cannot hide (exact, broadcast).

    theta_L(s) = (1 - L^-2) / (1 - L^-2s); theta_1(s) = 1/s; theta_L(0) = 0. It is 1 at s = 1,
    falls with s to 1 - L^-2 and rises with L. Accurate to a few units in the last place for every
    L >= 1 and any number of steps. Source: the paper's equation 6 (derived).
    """
    _check_lipschitz(lipschitz)
    steps = np.asarray(steps, dtype=float)
    expect(bool(np.all(steps >= 0)), "steps", float(steps.min(initial=0.0)), "numbers >= 0")
    rate = 2 * math.log1p(lipschitz - 1)
    positive = np.maximum(steps, 1)
    theta = np.expm1(-rate) / np.expm1(-rate * positive) if rate > 0 else 1 / positive
    return np.where(steps > 0, theta, 0.0)


def contracted_fraction(factor: float, steps: int) -> float:
    """Fraction of a squared shift that so many steps of contraction c <= 1 cannot hide.

    The least sum of squares that spends a shift of 1 over noisy steps, each of which first takes
    what is left to c times it: c^2 theta_c(n) = (1 - c^2) c^(2n) / (1 - c^(2n)), and 1/n at c = 1.
    """
    expect(0 < factor <= 1, "factor", factor, "a number in (0, 1]")
    log = 2 * math.log(factor)
    return math.expm1(log) / math.expm1(log * steps) * math.exp(log * steps) if log else 1 / steps


def minimal_steps(lipschitz: float, excess: float) -> int:
    """Fewest steps s from which theta_L(s) <= excess * (1 - L^-2), for excess xi > 1 and L > 1.

    Source: the paper's Lemma C.1: s >= ln(xi / (xi - 1)) / (2 ln L).
    """
    expect(1 < lipschitz < math.inf, "lipschitz", lipschitz, "a number > 1")
    expect(1 < excess < math.inf, "excess", excess, "a number > 1")
    return math.ceil(math.log1p(1 / (excess - 1)) / (2 * math.log1p(lipschitz - 1)))


class Stretches:
    """The best spending over stretches of steps that each begin with an injected shift.

    Between pools the shift is spent to the end. A pool of n steps with all its shift at its first
    step, c, pays c^2 theta_L(n) in all, c theta_L(n) L^(1-i) at its step i. The optimum's payments
    never fall by more than a factor L a step, so pools merge where they would. For L < 1 a shift
    is counted at the last step of its pool, as L^(n-1) c, to keep within floating point.
    """

    def __init__(self, lipschitz: float) -> None:
        self.lipschitz = lipschitz
        self.log = math.log(lipschitz)
        # The pools from the last to the first: shift, steps, price of it and all that follow.
        self.pools: list[tuple[float, int, float]] = []

    def prepend(self, shift: float, steps: int) -> None:
        """Put a stretch of at least one step before all others."""
        pool, behind = self._merged(shift, steps)
        del self.pools[behind:]
        self.pools.append((*pool, self._price(*pool) + self._paid(behind)))

    def spent(self, shift: float, steps: int) -> float:
        """Price of all stretches with one more before them, of any number of steps."""
        if shift == 0:
            return self._paid(len(self.pools))
        pool, behind = self._merged(shift, steps)
        return self._price(*pool) + self._paid(behind)

    def _merged(self, shift: float, steps: int) -> tuple[tuple[float, int], int]:
        """A stretch with the pools it merges with, and how many remain behind it."""
        behind = len(self.pools)
        if self.lipschitz < 1:
            # Rounded up where it would underflow.
            shift = max(shift * self._power(steps - 1), LEAST)
        while behind:
            later, length, _ = self.pools[behind - 1]
            # Payment of the last step over that of the next: at least L, or equal pools merge too.
            if steps and self._last(shift, steps) < self.lipschitz * self._first(later, length):
                break
            if self.lipschitz < 1:
                shift = shift * self._power(length) + later
            else:
                shift += later * self._power(-steps)
            steps += length
            behind -= 1
        return (shift, steps), behind

    def _power(self, exponent: int) -> float:
        return math.exp(exponent * self.log)

    def _price(self, shift: float, steps: int) -> float:
        return squared(shift) * self._rate(steps)

    def _rate(self, steps: int) -> float:
        """theta_L(n) for shifts at the first step; theta_L(n) L^(2-2n) for those at the last."""
        return visible(max(self.lipschitz, 1 / self.lipschitz), steps)

    def _first(self, shift: float, steps: int) -> float:
        rate = shift * self._rate(steps)
        return rate * self._power(steps - 1) if self.lipschitz < 1 else rate

    def _last(self, shift: float, steps: int) -> float:
        rate = shift * self._rate(steps)
        return rate if self.lipschitz < 1 else rate * self._power(1 - steps)

    def _paid(self, pools: int) -> float:
        return self.pools[pools - 1][2] if pools else 0.0


def visible(lipschitz: float, steps: int) -> float:
    """``visible_fraction`` of one number of steps, without NumPy's microseconds."""
    if steps == 0:
        return 0.0
    rate = 2 * math.log1p(lipschitz - 1)
    return math.expm1(-rate) / math.expm1(-rate * steps) if rate > 0 else 1 / steps


def squared(shift: float) -> float:
    """Square of a shift, infinite where it overflows; a power would raise."""
    return shift * shift


def _check_lipschitz(lipschitz: float) -> None:
    expect(1 <= lipschitz < math.inf, "lipschitz", lipschitz, "a number >= 1")
