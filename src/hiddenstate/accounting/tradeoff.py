"""Trade-off functions: the smallest false-negative rate at each false-positive rate.

The null hypothesis is one world, the alternative the other. ``null="out"`` tests "the canary is
absent" against "it is present"; ``null="in"`` the reverse; ``null="either"`` is the symmetric
function below both, which is what an accountant's delta(epsilon) alone determines.
"""

import math
from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtr, ndtri

from hiddenstate.errors import expect

NULLS = ("out", "in", "either")

Direction = Literal["out", "in"]
Null = Literal["out", "in", "either"]


def check_null(null: Null, words: Collection[str] = NULLS) -> None:
    """InputError unless ``null`` is one of the words: any other would be taken for one of them."""
    expect(null in words, "null", null, "one of " + ", ".join(map(repr, words)))


@dataclass(frozen=True, eq=False)
class TradeoffCurve:
    """A convex piecewise-linear trade-off function through the points (fpr, fnr).

    fpr: shape (n,), ascending from 0 to 1. fnr: shape (n,), descending to 0.
    """

    fpr: NDArray[np.float64]
    fnr: NDArray[np.float64]

    def __post_init__(self) -> None:
        if not (self.fpr[0] == 0 and self.fpr[-1] == 1 and self.fnr[-1] == 0):
            raise ValueError(
                "a trade-off curve runs from false-positive rate 0 to the point (1, 0)"
            )
        if np.any(np.diff(self.fpr) < 0) or np.any(np.diff(self.fnr) > 0):
            raise ValueError("a trade-off curve descends")

    def __call__(self, fpr: ArrayLike) -> NDArray[np.float64]:
        """Smallest false-negative rate at each false-positive rate (exact on the polygon)."""
        return np.interp(np.asarray(fpr, dtype=float), self.fpr, self.fnr)

    def inverse(self) -> "TradeoffCurve":
        """The curve with null and alternative swapped."""
        fpr, fnr = self.fnr[::-1], self.fpr[::-1]
        if fpr[0] > 0:
            fpr, fnr = np.concatenate(([0.0], fpr)), np.concatenate((fnr[:1], fnr))
        if fpr[-1] < 1:
            fpr, fnr = np.concatenate((fpr, [1.0])), np.concatenate((fnr, [0.0]))
        return TradeoffCurve(fpr, fnr)

    def total(self, difference: ArrayLike) -> NDArray[np.float64]:
        """FPR + FNR where FPR - FNR is ``difference``, in [-1, 1]: the view along the diagonal.

        Unlike the FNR at an FPR it is well-behaved where the curve is steep: it changes by no more
        than the difference does. Half the largest gap between two curves' totals is their Lévy
        distance, the shift of both error rates that takes one beyond the other.
        """
        # The vertical side above a curve that starts below FNR 1 belongs to it.
        fpr, fnr = np.concatenate(([0.0], self.fpr)), np.concatenate(([1.0], self.fnr))
        return np.interp(np.asarray(difference, dtype=float), fpr - fnr, fpr + fnr)


def from_deltas(epsilons: ArrayLike, deltas: ArrayLike) -> TradeoffCurve:
    """Lower bound on the trade-off function that the guarantees (epsilon, delta) imply.

    epsilons: shape (n,), ascending, of either sign. deltas: shape (n,), upper bounds on
    sup_S [P_alternative(S) - e^epsilon P_null(S)].

    Each guarantee is a supporting line, FNR >= 1 - delta - e^epsilon FPR; the curve is their upper
    envelope, so leaving guarantees out can only lower it (Dong, Roth and Su 2022, Proposition 6).
    """
    return _envelope(epsilons, 1 - np.asarray(deltas, dtype=float))


def _envelope(epsilons: ArrayLike, rooms: ArrayLike) -> TradeoffCurve:
    """The same of ``rooms``, 1 - delta: a line that is steep in the mirror has 1 to all digits."""
    # Where losses hardly differ, rounding must not make them descend.
    losses = np.maximum.accumulate(np.asarray(epsilons, dtype=float))
    # Lines steeper than e^600, or flatter than e^-600, say nothing at rates above 1e-260.
    within = np.abs(losses) <= 600
    if not np.any(within):
        return TradeoffCurve(np.array([0.0, 1.0]), np.zeros(2))
    losses = losses[within]
    heights = np.clip(np.asarray(rooms, dtype=float)[within], 0, 1)
    slopes = np.exp(losses)

    # Python's own numbers, which its loops read several times faster.
    room, slope, loss = heights.tolist(), slopes.tolist(), losses.tolist()

    def crossing(i: int, j: int) -> float:
        # The difference of the slopes keeps its digits as e^a expm1(b - a), and is e^b where that
        # overflows.
        gap = loss[j] - loss[i]
        if gap == 0:  # of parallel lines one is the higher everywhere
            return math.inf if room[j] > room[i] else -math.inf
        steeper = slope[i] * math.expm1(gap) if gap < 700 else slope[j]
        return (room[j] - room[i]) / steeper

    # The steeper a line, the smaller the rates at which it is the highest. A line that meets its
    # flatter neighbour left of where it meets the steeper one is nowhere the highest.
    highest: list[int] = []
    rates: list[float] = []
    for line in range(len(losses)):
        while highest:
            rate = crossing(highest[-1], line)
            if not rates or rate < rates[-1]:
                rates.append(rate)
                break
            highest.pop()
            rates.pop()
        highest.append(line)
    fpr = np.array(rates[::-1])
    kept = np.array(highest[::-1])
    fnr = heights[kept[:-1]] - slopes[kept[:-1]] * fpr
    # The curve starts on the axis FPR = 0 at the highest line and ends where all are below zero,
    # which rounding may show at a vertex first.
    start = float(np.max(heights))
    end = min(1.0, float(np.max(heights / slopes)), *fpr[(fpr > 0) & (fnr <= 0)])
    inside = (fpr > 0) & (fpr < end) & (fnr > 0)
    fpr = np.concatenate(([0.0], fpr[inside], [end, 1.0]))
    fnr = np.concatenate(([start], fnr[inside], [0.0, 0.0]))
    return TradeoffCurve(fpr, np.minimum.accumulate(fnr))


def from_both_deltas(epsilons: ArrayLike, deltas: ArrayLike, opposite: ArrayLike) -> TradeoffCurve:
    """Lower bound on the trade-off function that guarantees in both directions imply.

    epsilons: shape (n,), ascending from 0. deltas: shape (n,), as of ``from_deltas``. opposite:
    shape (n,), the same with null and alternative swapped. A guarantee of the other direction
    reflects its supporting line in the diagonal, which is one of this direction: for every set,
    P(S) - e^-epsilon Q(S) = 1 - e^-epsilon (1 - (Q(S^c) - e^epsilon P(S^c))).
    """
    losses = np.asarray(epsilons, dtype=float)
    mirrored = -losses[:0:-1]
    reflected = np.exp(mirrored) * (1 - np.asarray(opposite, dtype=float)[:0:-1])
    rooms = reflected, 1 - np.asarray(deltas, dtype=float)
    return _envelope(np.concatenate((mirrored, losses)), np.concatenate(rooms))


def symmetric(epsilons: ArrayLike, deltas: ArrayLike) -> TradeoffCurve:
    """Lower bound on the trade-off functions of both null hypotheses at once.

    epsilons: shape (n,), ascending from 0. deltas: shape (n,), bounds in both directions.
    """
    return from_both_deltas(epsilons, deltas, deltas)


def gaussian(mu: ArrayLike, fpr: ArrayLike) -> NDArray[np.float64]:
    """Exact trade-off function of mu-Gaussian differential privacy, broadcast over both arguments.

    G_mu(FPR) = Phi(Phi^-1(1 - FPR) - mu). Source: Dong, Roth and Su 2022, equation 6.
    """
    return np.asarray(ndtr(-ndtri(fpr) - np.asarray(mu, dtype=float)))[()]
