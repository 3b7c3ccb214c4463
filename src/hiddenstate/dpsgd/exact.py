"""Exact Rényi divergences between the last iterates of small instances of cyclic DP-SGD.

These are the truth that the bounds of ``accounting.cyclic`` are held against: a closed form for
affine steps in any dimension, and quadrature on the line with clipping and projection active.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.polynomial.legendre import leggauss
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtr, xlogy

from hiddenstate.accounting.cyclic import CyclicDPSGD
from hiddenstate.dpsgd.cyclic import Gradients, displaced
from hiddenstate.errors import expect

Array = NDArray[np.float64]

MOST = 700.0
"""Largest epsilon, whose exponential is a double."""


def affine_gaussian(maps: ArrayLike, shifts: ArrayLike, noise_std: float) -> float:
    """Exact rho = D_alpha / alpha of the last iterate when every step is affine, for all alpha.

    maps: linear part of each step, shape (T, d, d), the same in both data sets. shifts: difference
    of the two data sets' steps, shape (T, d). noise_std: standard deviation of each step's noise.
    Both last iterates are Gaussian with one covariance S, so rho = |S^(-1/2) (difference of
    means)|^2/2. S is held as a triangular root, which keeps the digits of directions that hardly
    grow. Raises InputError where rho is no double.
    """
    # Imported here because it takes a while and most commands never come this far.
    from scipy.linalg import solve_triangular

    expect(1e-150 < noise_std < 1e150, "noise_std", noise_std, "a number whose square is a double")
    maps, shifts = np.asarray(maps, dtype=float), np.asarray(shifts, dtype=float)
    expect(maps.ndim == 3, "maps", maps.shape, "an array of shape (steps, d, d)")
    expect(shifts.shape == maps.shape[:2], "shifts", shifts.shape, f"shape {maps.shape[:2]}")
    dimension = maps.shape[1]
    difference, root = np.zeros(dimension), np.zeros((dimension, dimension))
    with np.errstate(over="ignore", invalid="ignore"):  # what overflows is refused below
        for matrix, shift in zip(maps, shifts, strict=True):
            difference = matrix @ difference + shift
            # S <- A S A^T + I with S = root^T root, by orthogonal triangularisation.
            stacked = np.concatenate((root @ matrix.T, np.eye(dimension)))
            root = np.asarray(np.linalg.qr(stacked, mode="r"))
        whitened = solve_triangular(root, difference, trans="T", check_finite=False)
        rho = float(whitened @ whitened) / (2 * noise_std**2)
    expect(math.isfinite(rho), "rho", rho, "a double; maps, shifts or noise are too extreme")
    return rho


def scalar_affine(slopes: ArrayLike, run: CyclicDPSGD) -> float:
    """Exact rho of the last iterate on the line when step t maps x to slope_t x + constant.

    slopes: shape (T,). The data sets differ by the full displacement at each visit, in one
    direction.
    """
    slopes = np.asarray(slopes, dtype=float)
    expect(slopes.shape == (run.steps,), "slopes", slopes.shape, f"shape ({run.steps},)")
    expect(bool(np.isfinite(slopes).all()), "slopes", slopes, "finite numbers")
    # Difference of the means over the iterate's standard deviation, and the logarithm of a step's
    # noise over it: these stay finite however much the slopes expand, and contract thereafter.
    difference, log_noise = 0.0, math.inf
    for t, slope in enumerate(slopes):
        visited = t % run.steps_per_pass == run.position - 1
        shift = run.displacement / run.noise_std if visited else 0.0
        if log_noise == math.inf or slope == 0:
            difference, log_noise = shift, 0.0
            continue
        # Parts of the new deviation: of the old one, and of noise, the larger first.
        apart = log_noise - math.log(abs(slope))
        ratio = math.exp(-abs(apart))
        large, small = 1 / math.hypot(1, ratio), ratio / math.hypot(1, ratio)
        kept, noise = (large, small) if apart < 0 else (small, large)
        difference = math.copysign(kept, slope) * difference + shift * noise
        log_noise = min(apart, 0.0) + math.log(large)
    return difference**2 / 2


@dataclass(frozen=True, eq=False)
class LineDistributions:
    """Both data sets' distributions of a one-dimensional last iterate.

    points, present, absent: masses at shared points, shape (n,). A mass is density times quadrature
    weight, or an atom at an end of the domain. centres, weights: the last step's noise is added to
    these points, with these masses, one array per data set. noise_std: of that noise. end: half the
    domain's diameter, infinity without one.
    """

    points: Array
    present: Array
    absent: Array
    centres: tuple[Array, Array]
    weights: tuple[Array, Array]
    noise_std: float
    end: float

    def renyi(self, order: float) -> float:
        """Rényi divergence of ``order``, in nats, of runs with the record from those without.

        Raises InputError for an order at which points decide whose densities are no doubles, or
        which lie beyond those that are held: their likelihoods count more the higher the order.
        """
        expect(1 < order < np.inf, "order", order, "a number > 1")
        seen = self.present > 0
        with np.errstate(all="ignore"):  # what is no number is refused below
            # The quadrature weights cancel: what is summed is mass times a power of the likelihood.
            logs = xlogy(order, self.present[seen]) - xlogy(order - 1, self.absent[seen])
            total = float(np.logaddexp.reduce(logs))
        nodes = np.abs(self.points) < self.end
        at, terms = self.points[seen & nodes], logs[nodes[seen]]
        outermost = (at.argmin(), at.argmax()) if len(at) else ()
        # A node beside an end of the domain has no more beyond it.
        open_ = [i for i in outermost if abs(at[i]) < self.end - self.noise_std]
        held = all(terms[i] < total - _DECIDED for i in open_)
        expect(held and math.isfinite(total), "order", order, "a lower one, for these densities")
        return total / (order - 1)

    def delta(self, epsilon: float) -> float:
        """Delta at ``epsilon``, the larger of the two directions (exact to about 1e-10).

        The most powerful test's set, where the log-likelihood ratio exceeds epsilon, is a union of
        intervals. Their ends are found as roots and their masses by the normal distribution
        function, so that no quadrature runs across the ends, where the integrand has a kink.
        Intervals that begin and end between two neighbouring nodes are overlooked, which can only
        lower the result.
        """
        expect(epsilon <= MOST, "epsilon", epsilon, f"at most {MOST:g}")
        return max(self._exceeding(epsilon, 0, 1), self._exceeding(epsilon, 1, 0))

    def epsilon(self, delta: float) -> float:
        """Epsilon at ``delta``, the larger of the two directions (to about 1e-9)."""
        from scipy.optimize import brentq

        expect(0 < delta < 1, "delta", delta, "a number between 0 and 1")
        if self.delta(0.0) <= delta:
            return 0.0
        high = 1.0
        while high < MOST and self.delta(high) > delta:
            high = min(2 * high, MOST)
        expect(self.delta(high) <= delta, "delta", delta, f"one whose epsilon is at most {MOST:g}")
        return float(brentq(lambda epsilon: self.delta(epsilon) - delta, 0.0, high, xtol=1e-9))

    def swapped(self) -> "LineDistributions":
        """The distributions with the data sets exchanged."""
        return LineDistributions(
            self.points,
            self.absent,
            self.present,
            self.centres[::-1],
            self.weights[::-1],
            self.noise_std,
            self.end,
        )

    def _exceeding(self, epsilon: float, world: int, other: int) -> float:
        """Supremum over sets of one data set's mass less e^epsilon times the other's."""
        from scipy.optimize import brentq

        factor = math.exp(epsilon)
        at_ends = np.abs(self.points) >= self.end
        masses = (self.present[at_ends], self.absent[at_ends])
        total = float(np.maximum(masses[world] - factor * masses[other], 0).sum())
        sign = 1 if world == 0 else -1
        nodes, losses = self._losses
        inside = sign * losses > epsilon
        ends = [-self.end]
        for k in np.flatnonzero(inside[1:] != inside[:-1]):
            ends.append(
                brentq(
                    lambda x: sign * self._loss(np.array([x]))[0] - epsilon, nodes[k], nodes[k + 1]
                )
            )
        ends.append(self.end)
        # Every other interval is one in which the loss exceeds epsilon.
        for first in range(0 if inside[0] else 1, len(ends) - 1, 2):
            interval = ends[first], ends[first + 1]
            mass = self._mass(world, *interval) - factor * self._mass(other, *interval)
            total += max(0.0, mass)
        return total

    @cached_property
    def _losses(self) -> tuple[Array, Array]:
        """Nodes within the domain, and the log-likelihood ratio there."""
        nodes = self.points[np.abs(self.points) < self.end]
        return nodes, self._loss(nodes)

    def _loss(self, at: Array) -> Array:
        """Log-likelihood ratio of the two densities within the domain."""
        logs = []
        for centres, weights in zip(self.centres, self.weights, strict=True):
            terms = -0.5 * ((at[:, None] - centres) / self.noise_std) ** 2
            with np.errstate(divide="ignore"):  # a mass may be 0
                terms += np.log(weights)
            most = terms.max(axis=1)
            terms -= most[:, None]
            # What is far below the largest adds nothing, and its exponential takes longest.
            np.maximum(terms, -700.0, out=terms)
            logs.append(most + np.log(np.exp(terms, out=terms).sum(axis=1)))
        return logs[0] - logs[1]

    def _mass(self, world: int, low: float, high: float) -> float:
        """Mass of an interval within the domain, before the ends take what lies beyond."""
        x = (np.array([[low], [high]]) - self.centres[world]) / self.noise_std
        # On the side where both values are small, which keeps the digits of their difference.
        x = np.where(x[0] > 0, -x[::-1], x)
        return float((ndtr(x[1]) - ndtr(x[0])) @ self.weights[world])


def on_the_line(
    run: CyclicDPSGD,
    present: Gradients,
    absent: Gradients,
    *,
    start: float = 0.0,
    diameter: float | None = None,
    nodes: int = 10,
) -> LineDistributions:
    """Distributions of the last iterate in dimension one, by quadrature (exact to about 1e-10).

    present, absent: the two data sets (see ``dpsgd.cyclic``). diameter: iterates are
    projected onto the centred interval of this length. Between steps the density is held at
    Gauss-Legendre nodes in panels one noise standard deviation wide, split where a gradient
    crosses the clipping norm, and the mass at the interval's ends as atoms. The stated error
    holds where drifts vary no faster than the noise; raise ``nodes`` (a panel) to check.
    """
    expect(diameter is None or 0 < diameter < np.inf, "diameter", diameter, "None or a number > 0")
    end = np.inf if diameter is None else diameter / 2
    expect(abs(start) <= end, "start", start, f"a point within the domain, |start| <= {end:g}")
    points, masses, reach = np.array([start]), np.ones((1, 2)), _REACH * run.noise_std
    for t in range(run.steps):
        # After the last step ``weights`` are the masses before it.
        batch, weights = t % run.steps_per_pass, masses
        centres = [displaced(run, data, batch, points[:, None])[:, 0] for data in (present, absent)]
        low, high = max(np.min(centres) - reach, -end), min(np.max(centres) + reach, end)
        edges = np.linspace(low, high, max(2, int(np.ceil((high - low) / run.noise_std)) + 1))
        if t + 1 < run.steps:
            # No panel may span a kink of the next step, where a gradient meets the clipping norm.
            edges = _split(run, (present, absent), (t + 1) % run.steps_per_pass, edges)
        nodes_at, widths = _panels(edges, nodes)
        density = _density(nodes_at, centres, masses, run.noise_std)
        kept = (density > _NEGLIGIBLE * density.max(axis=0)).any(axis=1)
        new_points, new_masses = [nodes_at[kept]], [density[kept] * widths[kept, None]]
        if diameter is not None:
            # The projection moves to an end what the noise carries beyond it.
            for side in (-1.0, 1.0):
                beyond = [
                    ndtr((side * centre - end) / run.noise_std) @ masses[:, world]
                    for world, centre in enumerate(centres)
                ]
                new_points.append(np.array([side * end]))
                new_masses.append(np.array([beyond]))
        points, masses = np.concatenate(new_points), np.concatenate(new_masses)
    present_centres, absent_centres = centres
    return LineDistributions(
        points,
        masses[:, 0],
        masses[:, 1],
        (present_centres, absent_centres),
        (weights[:, 0], weights[:, 1]),
        run.noise_std,
        end,
    )


# The normal mass beyond is 4e-33.
_REACH = 12.0
"""Noise standard deviations covered on either side at each step."""

# exp(-38.7^2 / 2) is below half of the least double, 4.9e-324.
_UNSEEN = 38.7
"""Standard deviations beyond which a normal density rounds to zero."""

_BLOCK = 64
"""Points that share a search for the masses near them."""

_DECIDED = 23.0
"""Logarithm of what a divergence's sum is over its terms at the outermost points, at least."""

_NEGLIGIBLE = 1e-80
"""Density, relative to the largest, below which a node is dropped in both data sets."""


def _density(at: Array, centres: Sequence[Array], masses: Array, noise_std: float) -> Array:
    """Density at ascending points of both data sets' Gaussian mixtures, shape (points, 2)."""
    density = np.empty((len(at), 2))
    # What both share is computed once.
    shared = np.array_equal(centres[0], centres[1])
    worlds = [slice(0, 2)] if shared else [slice(0, 1), slice(1, 2)]
    for first in range(0, len(at), _BLOCK):
        some = slice(first, first + _BLOCK)
        for world, centre in zip(worlds, centres, strict=False):  # one if shared
            below, above = at[some][0] - _UNSEEN * noise_std, at[some][-1] + _UNSEEN * noise_std
            near = (below < centre) & (centre < above)
            # In place: memory, not the exponential, is what these matrices wait for.
            values = (at[some, None] - centre[near]) / noise_std
            values *= values
            values *= -0.5
            density[some, world] = np.exp(values, out=values) @ masses[near, world]
    return density / (noise_std * np.sqrt(2 * np.pi))


def _panels(edges: Array, nodes: int) -> tuple[Array, Array]:
    """Gauss-Legendre nodes and weights of every panel between neighbouring edges, flattened."""
    x, w = leggauss(nodes)
    half = np.diff(edges)[:, None] / 2
    return (edges[:-1, None] + half * (1 + x)).ravel(), (half * w).ravel()


def _split(
    run: CyclicDPSGD, worlds: Sequence[Gradients], batch: int, edges: Array, fineness: int = 8
) -> Array:
    """Edges and, between them, the points where a gradient of the batch meets the clipping norm."""
    grid = np.linspace(edges[0], edges[-1], fineness * (len(edges) - 1) + 1)

    def excess(data: Gradients, at: Array) -> Array:
        return np.abs(data(batch, at[:, None])[..., 0]) - run.clipping_norm

    found = [edges]
    for data in worlds:
        above = excess(data, grid) > 0
        cell, record = np.nonzero(above[1:] != above[:-1])
        if not len(cell):
            continue
        low, high, was = grid[cell].copy(), grid[cell + 1].copy(), above[cell, record]
        # Fifty halvings leave 1e-15 of a cell, about the rounding of doubles.
        for _ in range(50):
            middle = (low + high) / 2
            same = (excess(data, middle)[np.arange(len(middle)), record] > 0) == was
            low, high = np.where(same, middle, low), np.where(same, high, middle)
        found.append((low + high) / 2)
    return np.unique(np.concatenate(found))
