"""Convex losses in the plane whose clipped gradient steps push two runs apart.

Clipping a gradient just above the clipping norm projects its differences onto a line. A smooth
convex loss whose gradient differences point between that line and the difference d of two runs
then moves the runs apart by the factor L = ``cyclic_operator.clipped`` a step, though a gradient
step without clipping would never move them apart. The losses here are

    f_t(x) = (M/2) (w_t . (x - c_t))^2 + (1 + margin) C u_t . x,

visited once each, in order, with the directions w_t and u_t turned so that every step expands the
difference that the steps before it made, and c_t where noiseless runs would be. The first record
is the one that is swapped: its gradient is constant, of norm C, along or against the first axis.
Nothing is random but the noise; every record is fixed in advance.

In the limit of a margin of zero and a large clipping norm the steps are affine, and the last
iterate's divergence is ``affine_rho``; with clipping as it is, simulation certifies a lower bound.
"""

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from hiddenstate.accounting import cyclic_operator
from hiddenstate.accounting.cyclic import CyclicDPSGD
from hiddenstate.dpsgd import exact
from hiddenstate.dpsgd.cyclic import Gradients

Array = NDArray[np.float64]

WORLDS = ("in", "out")


@dataclass(frozen=True)
class ExpandingClip:
    """The losses for a number of steps, in units of the noise and of the smoothness (both 1).

    steps: steps T of the single pass. step_size: step size times smoothness, at most 1.
    displacement: distance that the swapped record moves a step, in noise standard deviations.
    margin: how far gradients exceed the clipping norm where they were planned, as its fraction;
    large enough that noise seldom brings them below it.
    """

    steps: int
    step_size: float
    displacement: float
    margin: float

    @property
    def run(self) -> CyclicDPSGD:
        """The mechanism: one record a batch, one pass, the swapped record first."""
        return CyclicDPSGD(
            steps=self.steps,
            steps_per_pass=self.steps,
            batch_size=1,
            step_size=self.step_size,
            clipping_norm=self.displacement / (2 * self.step_size),
            noise_std=1.0,
            smoothness=1.0,
        )

    @property
    def lipschitz(self) -> float:
        """Lipschitz constant of the clipped steps (valid), which these losses attain."""
        return cyclic_operator.clipped(*self.run.curvature)

    @cached_property
    def _directions(self) -> tuple[Array, Array]:
        """Curvature directions w_t and gradient directions u_t of the steps after the first."""
        step = self.step_size
        # Cosine between w and the difference d at which the step expands most (clipped's proof).
        angle = math.acos(1 / math.sqrt(4 - step))
        difference = np.array([1.0, 0.0])
        curvature, gradient = np.empty((2, self.steps - 1, 2))
        for t in range(self.steps - 1):
            # Alternating sides keeps the difference from turning round and round.
            w = _rotation(angle if t % 2 == 0 else -angle) @ difference
            change = (w @ difference) * w
            along = difference - step * change / 2
            projected = change / 2 - np.linalg.norm(change) / 2 * along / np.linalg.norm(along)
            curvature[t] = w
            gradient[t] = _rotation(math.pi / 2) @ projected / np.linalg.norm(projected)
            difference = difference - step * projected
            difference /= np.linalg.norm(difference)
        return curvature, gradient

    @cached_property
    def _centres(self) -> Array:
        """Where a noiseless run, without the swapped record, stands before each step and after."""
        _, gradient = self._directions
        moves = -self.displacement / 2 * gradient
        return np.concatenate((np.zeros((2, 2)), np.cumsum(moves, axis=0)))

    def gradients(self, world: str) -> Gradients:
        """The data set of one world: "in" moves first along the first axis, "out" against it."""
        curvature, gradient = self._directions
        norm = self.run.clipping_norm
        first = np.array([[[-norm if world == "in" else norm, 0.0]]])

        def gradients(batch: int, points: Array) -> Array:
            if batch == 0:
                return np.broadcast_to(first, (len(points), 1, 2))
            w, u = curvature[batch - 1], gradient[batch - 1]
            slope = (points - self._centres[batch]) @ w
            return (slope[:, None] * w + (1 + self.margin) * norm * u)[:, None, :]

        return gradients

    @cached_property
    def _affine(self) -> tuple[Array, Array]:
        """Linear parts of the steps and differences of the worlds' steps, in the affine limit."""
        curvature, gradient = self._directions
        projections = np.eye(2) - gradient[:, :, None] * gradient[:, None, :]
        hessians = curvature[:, :, None] * curvature[:, None, :]
        maps = np.concatenate(
            (np.eye(2)[None], np.eye(2) - self.step_size * projections @ hessians)
        )
        shifts = np.zeros((self.steps, 2))
        shifts[0, 0] = self.displacement
        return maps, shifts

    def affine_rho(self) -> float:
        """Exact rho of the last iterate in the affine limit."""
        return exact.affine_gaussian(*self._affine, self.run.noise_std)

    def score(self, points: Array) -> Array:
        """Score of last iterates, shape (runs,): positive is called "in".

        The log-likelihood ratio of the affine limit, so the threshold 0 is fixed in advance.
        """
        maps, shifts = self._affine
        difference, covariance = np.zeros(2), np.zeros((2, 2))
        for matrix, shift in zip(maps, shifts, strict=True):
            difference = matrix @ difference + shift
            covariance = matrix @ covariance @ matrix.T + np.eye(2)
        return (points - self._centres[-1]) @ np.linalg.solve(covariance, difference)


def _rotation(angle: float) -> Array:
    return np.array([[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]])
