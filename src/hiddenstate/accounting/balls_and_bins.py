"""Certified bracket for balls-and-bins batches: each record is in one random batch of each epoch.

Without the record the noisy sums of an epoch of b batches are, less what the others add, standard
normal x_1, ..., x_b times the noise. With it the likelihood ratio of the epoch is the mean of
Z_t = e^(x_t / sigma - 1 / (2 sigma^2)), independent and of mean 1, where its gradient has the
clipping norm; any smaller gradient, chosen by what was seen before, is less by a factor of
conditional mean 1 (Jensen), so this pair dominates, and linear losses attain it (Chua et al. 2025).
Both directions of delta are means of convex functions of the ratio without the record. So:

- upper: each Z_t, and each sum of some of them, moves to the two ends of its cell of a grid such
  that its mean stays, which only spreads the ratio. Nothing else is rounded. Beyond the grid, what
  is above its end counts as an infinite loss.
- lower: an adversary who is told the nearest point of the grid in place of each knows less.

Epochs are independent: ``composition`` adds their losses up.
"""

import math
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_ndtr, logsumexp, ndtr, ndtri

from hiddenstate.accounting import batched, composition, gaussian
from hiddenstate.accounting.arguments import doubles
from hiddenstate.accounting.composition import Bracket, Floats

LEAST_NOISE = 0.05
"""With less noise likelihood ratios are beyond the largest double; Gaussian bounds are left."""

MOST_NOISE = 1e12
"""With more, ratios differ by little more than doubles do, and the same bounds are left."""

LEAST_DELTA = 1e-30
"""With less an epoch probabilities are below the least double, and the same bounds are left."""

BULK, GEOMETRIC = 700, 300
"""Points of a grid: around where most of the ratio lies, and evenly in its logarithm."""

REACH = 8.5
"""Deviations below the mean at which a grid begins."""


@doubles
def bracket(noise_multiplier: float, batches: int, epochs: int, delta: float) -> Bracket:
    """Certified bracket on epsilon at ``delta``, all iterates released (add or remove a record).

    batches: of an epoch, in one of which the record is, each as likely and drawn anew.

    >>> lower, upper = bracket(1.0, 100, 10, 1e-5)
    >>> print(round(lower, 2), round(upper, 2))
    1.7 1.7
    """
    # A record that comes or goes shifts its batch's sum by 1 or not at all.
    lower = lower_epsilon(noise_multiplier, batches, epochs, delta, (1.0, 0.0), redrawn=True)
    sigma, batches, epochs = float(noise_multiplier), int(batches), int(epochs)
    every = Bracket(*gaussian.bracket(math.sqrt(epochs) / sigma, delta))
    if batches == 1:
        return every
    known = every.upper
    if not covered(sigma, epochs, delta):
        return Bracket(min(lower, known), known)
    law, beyond = _spread(sigma, batches, _top(sigma, epochs, delta))
    guess = lower or _guess(sigma, batches, epochs, delta)
    upper = _upper(law.points / batches, law.masses[0], beyond, epochs, delta, guess)
    upper = min(known, upper * (1 + 1e-9))
    if lower > upper * (1 + 1e-9) + 1e-12:
        raise ArithmeticError(f"a lower bound of {lower} above the upper one, {upper}")
    return Bracket(min(lower, upper), upper)


@doubles
def lower_epsilon(
    noise_multiplier: float,
    batches: int,
    epochs: int,
    delta: float,
    pair: tuple[float, float] = batched.SWAPPED,
    *,
    redrawn: bool = False,
    sitting_out: float = 0.0,
) -> float:
    """Epsilon at ``delta`` is at least this, by the likelihood ratio of each epoch; rounded down.

    As ``batched.lower_epsilon``, which is better where one sum stands out by itself; the larger is
    taken. sitting_out: probability that the record is in no batch of an epoch. The ratio is that of
    the record against none, the best statistic of all pairs but ``ZEROED``.
    """
    found = 0.0
    if not sitting_out:
        found = batched.lower_epsilon(
            noise_multiplier, batches, epochs, delta, pair, redrawn=redrawn
        )
    shown, noise = batched.independent(noise_multiplier, epochs, redrawn=redrawn)
    present, absent = pair
    sigma = noise / abs(present)
    if not covered(sigma, shown, delta) or batches == 1:
        return found
    # Means of x in deviations, with the record and with what took its place.
    means = (1 / sigma, absent / noise) if absent else (1 / sigma,)
    masses = _merged(sigma, int(batches), _top(sigma, shown, delta), means).masses
    there, gone = (
        (1 - sitting_out) * masses[world] + sitting_out * masses[0]
        for world in (1, 2 if absent else 0)
    )
    guess = max(found, _guess(sigma, batches, shown, delta))
    best = composition.lower_epsilon(there, gone, shown, delta, guess)
    return max(found, best * (1 - 1e-9))


def log_negative_moments(
    noise_multiplier: float, batches: int, epochs: int, delta: float, orders: NDArray[np.int64]
) -> Floats:
    """Logarithms of E[A^-order], A being the mean of so many ratios; rounded up, shape (orders,).

    The grid's law has A spread, and counts less than A above its end. Where all ratios are below
    the grid's first point, A^-order is at most the mean of theirs.
    """
    sigma = float(noise_multiplier)
    law, _ = _spread(sigma, int(batches), _top(sigma, epochs, delta))
    some = (law.points > 0) & (law.masses[0] > 0)
    logs, masses = np.log(law.points[some] / batches), np.log(law.masses[0][some])
    found = logsumexp(masses - np.outer(orders, logs), axis=1)
    # E[Z^-k] = e^(k (k + 1) / (2 sigma^2)), if all other ratios are below the grid too.
    none = orders * (orders + 1) / (2 * sigma**2) + (batches - 1) * float(log_ndtr(-REACH))
    return np.logaddexp(found, none) + 1e-9


def covered(sigma: float, epochs: int, delta: float) -> bool:
    """True if a grid's doubles tell the likelihood ratios and their probabilities."""
    return LEAST_NOISE <= sigma <= MOST_NOISE and delta / epochs >= LEAST_DELTA


def _top(sigma: float, epochs: int, delta: float) -> float:
    """Where a grid ends: the same for many deltas, which share what is computed."""
    # Eight decades of delta share a grid, beyond which lies at most 1e-7 of delta / epochs.
    decades = 8 * math.floor(math.log10(delta / epochs) / 8)
    return 1 / sigma - float(ndtri(10.0 ** (decades - 7)))


@lru_cache(maxsize=8)
def _merged(sigma: float, batches: int, top: float, means: tuple[float, ...]) -> "_Law":
    return _sum(_Leaf(sigma, top, means).merged(), batches)


@lru_cache(maxsize=8)
def _spread(sigma: float, batches: int, top: float) -> tuple["_Law", float]:
    law, beyond = _Leaf(sigma, top, ()).spread()
    return _sum(law, batches), beyond


def _guess(sigma: float, batches: int, epochs: int, delta: float) -> float:
    """Epsilon by the central limit of the epochs."""
    variance = min(math.expm1(min(1 / sigma**2, 50.0)) / batches, 1 / sigma**2) * epochs
    return variance / 2 + math.sqrt(2 * variance * math.log(1 / delta))


class _Law(NamedTuple):
    """A sum of some terms: its points, and its probabilities in each world, shape (worlds, points).

    The first world is without the record; in the others it is in one of the terms, each as likely.
    """

    points: Floats
    masses: Floats
    terms: int

    def quartiles(self) -> Floats:
        return np.interp([0.25, 0.5, 0.75], np.cumsum(self.masses[0]), self.points)


class _Leaf:
    """The ratio of one batch: e^(x / sigma - 1 / (2 sigma^2)), x up to ``top`` standard normal.

    means: of x in the worlds with the record.
    """

    def __init__(self, sigma: float, top: float, means: tuple[float, ...]) -> None:
        self.sigma, self.means = sigma, means
        # 0.6745 is the upper quartile of the standard normal law.
        ends = np.array([-REACH, -0.6745, 0.0, 0.6745, top]) / sigma - 1 / (2 * sigma**2)
        first, low, middle, high, last = np.exp(ends).tolist()
        self.grid = _grid(first, last, middle, high - low)

    def _numbers(self, ratios: Floats) -> Floats:
        with np.errstate(divide="ignore"):
            return self.sigma * np.log(ratios) + 1 / (2 * self.sigma)

    def merged(self) -> _Law:
        """The nearest point of the grid."""
        middles = self._numbers((self.grid[1:] + self.grid[:-1]) / 2)
        edges = np.concatenate(([-np.inf], middles, [np.inf]))
        return _Law(
            self.grid, np.stack([composition.cells(edges - mean) for mean in (0, *self.means)]), 1
        )

    def spread(self) -> tuple[_Law, float]:
        """The ratio moved to both ends of its cell; the mean of what is above the grid's end."""
        edges = self._numbers(self.grid)
        absent, present = (composition.cells(edges - mean) for mean in (0, 1 / self.sigma))
        # The mass with the record is the ratio's mean over the cell, which this share keeps.
        up = np.clip((present - self.grid[:-1] * absent) / np.diff(self.grid), 0.0, absent)
        found = np.append(absent - up, float(ndtr(-edges[-1])))
        found[1:] += up
        # E[max(Z - end, 0)], which counts as mass at an infinite loss.
        beyond = float(ndtr(1 / self.sigma - edges[-1])) - self.grid[-1] * float(ndtr(-edges[-1]))
        return _Law(self.grid, found[None], 1), max(beyond, 0.0)


def _grid(first: float, last: float, middle: float, spread: float) -> Floats:
    """Points from 0 on: even in their logarithm, and denser around the middle."""
    low, high = np.arcsinh((np.array([0.0, last]) - middle) / spread).tolist()
    bulk = middle + spread * np.sinh(np.linspace(low, high, BULK))
    points = np.concatenate((bulk[(bulk > first) & (bulk < last)], [0.0, last]))
    return np.unique(np.concatenate((points, np.geomspace(first, last, GEOMETRIC)[:-1])))


def _sum(leaf: _Law, terms: int) -> _Law:
    """The sum of so many independent terms."""
    found, power = None, leaf
    while True:
        if terms & 1:
            found = power if found is None else _added(found, power)
        terms >>= 1
        if not terms:
            assert found is not None
            return found
        power = _added(power, power)


def _added(one: _Law, other: _Law) -> _Law:
    """The sum of two laws on a grid of its own: spread if they are of the first world alone."""
    sides = [one.quartiles(), other.quartiles()]
    middle = float(sides[0][1] + sides[1][1])
    spread = math.hypot(*(float(side[2] - side[0]) for side in sides))
    last = float(one.points[-1] + other.points[-1])
    # The first point of every grid is 0.
    grid = _grid(float(min(one.points[1], other.points[1])), last, middle, spread)
    sums = np.minimum(np.add.outer(one.points, other.points), last).ravel()
    terms, size = one.terms + other.terms, len(grid)
    absent = np.multiply.outer(one.masses[0], other.masses[0]).ravel()
    if len(one.masses) == 1:
        cell = np.minimum(np.searchsorted(grid, sums, side="right") - 1, size - 2)
        up = absent * ((sums - grid[cell]) / (grid[cell + 1] - grid[cell]))
        found = _binned(cell, absent - up, size) + _binned(cell + 1, up, size)
        return _Law(grid, found[None], terms)
    cell = np.searchsorted((grid[1:] + grid[:-1]) / 2, sums)
    worlds = [_binned(cell, absent, size)]
    for mine, others in zip(one.masses[1:], other.masses[1:], strict=True):
        with_record = (one.terms / terms) * np.multiply.outer(mine, other.masses[0])
        with_record += (other.terms / terms) * np.multiply.outer(one.masses[0], others)
        worlds.append(_binned(cell, with_record.ravel(), size))
    return _Law(grid, np.stack(worlds), terms)


def _binned(places: NDArray[np.int64], masses: Floats, size: int) -> Floats:
    return np.bincount(places, masses, size).astype(float)


def _upper(
    ratios: Floats, absent: Floats, beyond: float, epochs: int, delta: float, guess: float
) -> float:
    """Epsilon of ratios with these probabilities without the record, composed (rounded up)."""
    some = (ratios > 0) & (absent > 0)
    # A ratio of 0 is an infinite loss of null "in", as what is beyond the grid is of "out".
    none = float(absent[ratios == 0].sum())
    losses, masses = np.log(ratios[some]), absent[some]
    present = masses * ratios[some]
    mean = float(present @ losses)
    spread = math.sqrt(float(present @ (losses - mean) ** 2))
    h = max(spread / FINE, float(np.ptp(losses)) / (1 << 18), 1e-12)
    place = (losses - losses[0]) / h
    low = np.floor(place).astype(int)
    within = np.clip(place - low, 0.0, 1.0) * h
    # Moved to the ends of a cell of losses such that both probabilities stay.
    up = np.minimum(np.expm1(within) / math.expm1(h), 1.0)
    found = 0.0
    for against in (False, True):
        # The upper end's loss is h - within larger, so the share of P is e^(h - within) times Q's.
        share = up if against else np.minimum(up * np.exp(h - within), 1.0)
        mass = masses if against else present
        size = int(low[-1]) + 2
        binned = _binned(low, mass * (1 - share), size) + _binned(low + 1, mass * share, size)
        first = float(losses[0])
        if against:
            binned, first = binned[::-1], -(first + h * (size - 1))
        pair = composition.Losses(binned, first, h, none if against else beyond)
        work = composition.Work(composition.MOST_WORK)
        try:
            found = max(found, composition.search(pair, epochs, delta, guess, 1e-6, work))
        except composition.Exhausted:
            # No bound is found in time, and ``bracket`` falls back on the Gaussian one.
            return math.inf
    return found


FINE = 40
"""Cells of an epoch's losses in their standard deviation."""
