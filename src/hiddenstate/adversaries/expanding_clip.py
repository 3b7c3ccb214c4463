"""Convex losses in the plane whose clipped gradient steps push two runs apart.

Clipping a gradient just above the clipping norm projects its differences onto a line. A smooth
convex loss whose gradient differences point between that line and the difference d of two runs
then moves the runs apart by the factor L = ``cyclic_operator.clipped`` a step, though a gradient
step without clipping would never move them apart. The losses here are

    f_t(x) = (M/2) (w_t . (x - c_t))^2 + (1 + margin) C u_t . x,

with the directions w_t and u_t turned so that every step expands the difference that the steps
before it made, and c_t where noiseless runs would be. The first record of the first batch is the
one that is swapped: its gradient is constant, of norm C, along or against the first axis; the
batch's other losses are constant. Nothing is random but the noise; every record is fixed in
advance.

With several passes each pass is a visit, the expanding steps, idle ones (constant losses), and
contracting ones, f(x) = kappa |x|^2 / 2, that undo the growth: so the noise of a pass does not
drown the signal of the next. The gradients' sides alternate so that noiseless runs end a pass
where they began.

As batch and clipping norm grow together at a fixed margin the steps become affine, and the last
iterate's divergence tends to at least ``affine_rho`` (docs/cyclic-bounds.md); with clipping as it
is, simulation certifies a lower bound. ``certified_expansion`` proves that one step expands.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hiddenstate.accounting import cyclic_operator
from hiddenstate.accounting.cyclic import CyclicDPSGD
from hiddenstate.adversaries.swapped_record import SwappedRecord
from hiddenstate.dpsgd import exact
from hiddenstate.dpsgd.cyclic import Gradients
from hiddenstate.errors import check_count, expect

Array = NDArray[np.float64]
Point = tuple[Fraction, ...]

WORLDS = ("in", "out")


@dataclass(frozen=True)
class ExpandingClip:
    """The losses for a number of steps, in units of the noise and of the smoothness (both 1).

    steps: steps in a pass. step_size: step size times smoothness, at most 1. displacement: distance
    that the swapped record moves a step, in noise standard deviations: 2 / noise multiplier.
    margin: how far gradients exceed the clipping norm where they were planned, as its fraction;
    large enough that noise seldom brings them below it. passes: over the data. expansions: steps of
    a pass that expand; by default all after the visit. With several passes a multiple of four, so
    that noiseless runs return, and few enough that contracting steps fit in. batch_size: records a
    batch, which sets the clipping norm, displacement * batch_size / (2 step_size).
    """

    steps: int
    step_size: float
    displacement: float
    margin: float
    passes: int = 1
    expansions: int | None = None
    batch_size: int = 1

    def __post_init__(self) -> None:
        for name in ("steps", "passes", "batch_size"):
            check_count(name, getattr(self, name))
        finite = 0 <= self.displacement < math.inf
        expect(finite, "displacement", self.displacement, "a number >= 0")
        expect(0 < self.step_size <= 1, "step_size", self.step_size, "a number in (0, 1]")
        expect(0 <= self.margin < math.inf, "margin", self.margin, "a number >= 0")
        expect(
            0 <= self._expansions < self.steps,
            "expansions",
            self.expansions,
            f"at most steps - 1 = {self.steps - 1}",
        )
        if self.passes > 1:
            expect(self._expansions % 4 == 0, "expansions", self.expansions, "a multiple of four")
            needed = 1 + self._expansions + self._contractions[0]
            expect(self.steps >= needed, "steps", self.steps, f"at least {needed}, to contract")

    @property
    def run(self) -> CyclicDPSGD:
        """The mechanism: the swapped record first in every pass."""
        return CyclicDPSGD(
            steps=self.steps * self.passes,
            steps_per_pass=self.steps,
            batch_size=self.batch_size,
            step_size=self.step_size,
            clipping_norm=self.displacement / (2 * self.step_size) * self.batch_size,
            noise_std=1.0,
            smoothness=1.0,
        )

    @property
    def lipschitz(self) -> float:
        """Lipschitz constant of the clipped steps (valid), which these losses attain."""
        return cyclic_operator.clipped(*self.run.curvature)

    @property
    def idle(self) -> frozenset[int]:
        """Batches, counted from 0, of constant losses alone."""
        busy = 1 + self._expansions
        return frozenset(range(busy, self.steps - self._contractions[0]))

    @property
    def _expansions(self) -> int:
        return self.steps - 1 if self.expansions is None else self.expansions

    @cached_property
    def _directions(self) -> tuple[Array, Array, float]:
        """Curvature and gradient directions w_t and u_t of the expanding steps, and their growth.

        The growth is the factor of the difference in the affine limit.
        """
        step = self.step_size
        # Cosine between w and the difference d at which the step expands most (clipped's proof).
        angle = math.acos(1 / math.sqrt(4 - step))
        difference, growth = np.array([1.0, 0.0]), 1.0
        curvature, gradient = np.empty((2, self._expansions, 2))
        for t in range(self._expansions):
            # Alternating sides keeps the difference from turning round and round: after two steps
            # it points where it did.
            w = _rotation(angle if t % 2 == 0 else -angle) @ difference
            change = (w @ difference) * w
            along = difference - step * change / 2
            projected = change / 2 - np.linalg.norm(change) / 2 * along / np.linalg.norm(along)
            curvature[t] = w
            # With several passes every direction is taken as often as its opposite.
            side = 1 if t % 4 < 2 or self.passes == 1 else -1
            turn = side * _rotation(math.pi / 2)
            gradient[t] = turn @ projected / np.linalg.norm(projected)
            # Clipping scales a gradient of norm (1 + margin) C, and thus its change, down to C.
            difference = difference - step / (1 + self.margin) * projected
            length = float(np.linalg.norm(difference))
            difference, growth = difference / length, growth * length
        return curvature, gradient, growth

    @cached_property
    def _contractions(self) -> tuple[int, float]:
        """Number of contracting steps at the end of a pass, and the factor of each."""
        growth = self._directions[2]
        if self.passes == 1 or growth == 1:
            return 0, 1.0
        # One step contracts by any factor, and log1p(-1) below has no value.
        if self.step_size == 1:
            return 1, 1 / growth
        steps = math.ceil(math.log(growth) / -math.log1p(-self.step_size))
        return steps, growth ** (-1 / steps)

    @cached_property
    def _centres(self) -> Array:
        """Positions of a noiseless run without the swapped record, before each step and after."""
        moves = np.zeros((self.steps, 2))
        # A clipped step moves by step size times C: displacement / 2 times the batch size.
        moves[1 : 1 + self._expansions] = -self.displacement / 2 * self.batch_size
        moves[1 : 1 + self._expansions] *= self._directions[1]
        return np.concatenate((np.zeros((1, 2)), np.cumsum(moves, axis=0)))

    def gradients(self, world: str) -> Gradients:
        """The data set of one world: "in" moves first along the first axis, "out" against it.

        Of the batches that the swapped record is not in, all losses are the same.
        """
        curvature, gradient, _ = self._directions
        norm = self.run.clipping_norm
        # Shape (1, records, 2): the same at all points.
        first = np.zeros((1, self.batch_size, 2))
        first[0, 0, 0] = -norm if world == "in" else norm
        contracting, factor = self._contractions

        def gradients(batch: int, points: Array) -> Array:
            if batch == 0:
                return first
            if batch >= self.steps - contracting:
                return (1 - factor) / self.step_size * points[:, None, :]
            if batch > self._expansions:
                return np.zeros((len(points), 1, 2))
            w, u = curvature[batch - 1], gradient[batch - 1]
            slope = (points - self._centres[batch]) @ w
            return (slope[:, None] * w + (1 + self.margin) * norm * u)[:, None, :]

        return gradients

    def worlds(self) -> SwappedRecord:
        """The mechanism, both data sets and the score, as a simulation takes them."""
        gradients = {world: self.gradients(world) for world in WORLDS}
        return SwappedRecord(self.run, gradients, np.zeros(2), self.score, idle=self.idle)

    @cached_property
    def _affine(self) -> tuple[Array, Array]:
        """Linear parts of a pass's steps and differences of the worlds' steps, in the limit."""
        curvature, gradient, _ = self._directions
        projections = np.eye(2) - gradient[:, :, None] * gradient[:, None, :]
        hessians = curvature[:, :, None] * curvature[:, None, :]
        maps = np.tile(np.eye(2), (self.steps, 1, 1))
        maps[1 : 1 + self._expansions] -= (
            self.step_size / (1 + self.margin) * projections @ hessians
        )
        contracting, factor = self._contractions
        maps[self.steps - contracting :] *= factor
        shifts = np.zeros((self.steps, 2))
        shifts[0, 0] = self.displacement
        return maps, shifts

    def affine_rho(self) -> float:
        """Exact rho of the last iterate in the affine limit at this margin."""
        maps, shifts = self._affine
        repeated = np.tile(maps, (self.passes, 1, 1)), np.tile(shifts, (self.passes, 1))
        return exact.affine_gaussian(*repeated, self.run.noise_std)

    def score(self, points: Array) -> Array:
        """Score of last iterates, shape (runs,): positive is called "in".

        The log-likelihood ratio of the affine limit, so the threshold 0 is fixed in advance.
        """
        difference, covariance = np.zeros(2), np.zeros((2, 2))
        for _ in range(self.passes):
            for matrix, shift in zip(*self._affine, strict=True):
                difference = matrix @ difference + shift
                covariance = matrix @ covariance @ matrix.T + np.eye(2)
        return (points - self._centres[-1]) @ np.linalg.solve(covariance, difference)


@dataclass(frozen=True)
class ExpandedPair:
    """A clipped gradient step on a convex loss in the plane, and two points; all rational.

    The loss is (w . x)^2 / 2 + height x_2, with |w| = 1, so its smoothness is 1. The clipping norm
    is 1, the first point the origin.
    """

    w: Point = (Fraction(5, 13), Fraction(12, 13))
    height: Fraction = Fraction(10001, 10000)
    step_size: Fraction = Fraction(1, 2)
    other: Point = (Fraction(-1, 10**6), Fraction(1, 10**6))

    def certified_expansion(self) -> tuple[float, float]:
        """Interval that holds the factor by which the step moves the two points apart (proved).

        A lower end above 1 proves that the step of a convex loss is not nonexpansive once clipped.
        Raises an input error unless |w| = 1.
        """
        expect(sum(x * x for x in self.w) == 1, "w", self.w, "a unit vector")

        def gradient(point: Point, interval: Any) -> list[Any]:
            slope = self.w[0] * point[0] + self.w[1] * point[1]
            both = slope * self.w[0], slope * self.w[1] + self.height
            return [_exactly(value, interval) for value in both]

        origin = (Fraction(0), Fraction(0))
        return _expansion((origin, self.other), gradient, Fraction(1), self.step_size)


@dataclass(frozen=True)
class SoftmaxPair:
    """A clipped gradient step of multinomial logistic regression, and two points; all rational.

    One record with the feature 1 and the label 0, so the logits are the parameters, the loss is
    log sum_i e^(z_i) - z_0, and its smoothness 1/2. The losses of several outputs are no
    l(<a, x>), and clipping turns their gradients.
    """

    logits: Point = (
        Fraction(-1759499, 10**6),
        Fraction(189515, 10**6),
        Fraction(1569984, 10**6),
    )
    clipping_norm: Fraction = Fraction(6, 5)
    step_size: Fraction = Fraction(2)
    difference: Point = (
        Fraction(-795290, 10**12),
        Fraction(237533, 10**12),
        Fraction(557757, 10**12),
    )

    def certified_expansion(self) -> tuple[float, float]:
        """Interval that holds the factor by which the step moves the two points apart (proved)."""

        def gradient(point: Point, interval: Any) -> list[Any]:
            weights = [interval.exp(_exactly(z, interval)) for z in point]
            first, *others = (w / sum(weights) for w in weights)
            return [first - 1, *others]

        other = tuple(z + d for z, d in zip(self.logits, self.difference, strict=True))
        return _expansion((self.logits, other), gradient, self.clipping_norm, self.step_size)


def _expansion(
    points: tuple[Point, Point],
    gradient: Callable[[Point, Any], list[Any]],
    clipping_norm: Fraction,
    step_size: Fraction,
) -> tuple[float, float]:
    """The factor in interval arithmetic with 40 digits, rounded outwards."""
    # Imported here because few commands prove anything.
    from mpmath.ctx_iv import MPIntervalContext

    interval = MPIntervalContext()
    interval.dps = 40
    moved = []
    for point in points:
        found = gradient(point, interval)
        norm = interval.sqrt(sum(g**2 for g in found))
        # Intervals that do not overlap prove that clipping is active.
        if not norm.a > _exactly(clipping_norm, interval).b:
            raise ArithmeticError("a gradient is not certainly above the clipping norm")
        step = _exactly(step_size * clipping_norm, interval)
        pairs = zip(point, found, strict=True)
        moved.append([_exactly(x, interval) - step * g / norm for x, g in pairs])
    apart = interval.sqrt(sum((a - b) ** 2 for a, b in zip(*moved, strict=True)))
    before = Fraction(sum((a - b) ** 2 for a, b in zip(*points, strict=True)))
    factor = apart / interval.sqrt(_exactly(before, interval))
    low, high = float(factor.a), float(factor.b)  # rounded, so one further
    return math.nextafter(low, -math.inf), math.nextafter(high, math.inf)


def _exactly(value: Fraction, interval: Any) -> Any:
    return interval.mpf(value.numerator) / value.denominator


def _rotation(angle: float) -> Array:
    return np.array([[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]])
