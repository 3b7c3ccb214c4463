"""Exact Rényi divergences between the last iterates of small instances of cyclic DP-SGD.

These are the truth that the bounds of ``accounting.cyclic`` are held against: a closed form for
affine steps in any dimension, and quadrature on the line with clipping and projection active.
"""

from collections.abc import Sequence

import numpy as np
from numpy.polynomial.legendre import leggauss
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtr, xlogy

from hiddenstate.accounting.cyclic import CyclicDPSGD
from hiddenstate.accounting.cyclic_operator import expect
from hiddenstate.dpsgd.cyclic import Gradients, displaced

Array = NDArray[np.float64]


def affine_gaussian(maps: ArrayLike, shifts: ArrayLike, noise_std: float) -> float:
    """Exact rho = D_alpha / alpha of the last iterate when every step is affine, for all alpha.

    maps: linear part of each step, shape (T, d, d), the same in both worlds. shifts: difference of
    the two worlds' steps, shape (T, d). noise_std: standard deviation of each step's noise. Both
    last iterates are Gaussian with one covariance S, so rho = |S^(-1/2) (difference of means)|^2/2.
    """
    maps, shifts = np.asarray(maps, dtype=float), np.asarray(shifts, dtype=float)
    expect(maps.ndim == 3, "maps", maps.shape, "an array of shape (steps, d, d)")
    expect(shifts.shape == maps.shape[:2], "shifts", shifts.shape, f"shape {maps.shape[:2]}")
    dimension = maps.shape[1]
    difference, covariance = np.zeros(dimension), np.zeros((dimension, dimension))
    for matrix, shift in zip(maps, shifts, strict=True):
        difference = matrix @ difference + shift
        covariance = matrix @ covariance @ matrix.T + np.eye(dimension)
    return float(difference @ np.linalg.solve(covariance, difference)) / (2 * noise_std**2)


def scalar_affine(slopes: ArrayLike, run: CyclicDPSGD) -> float:
    """Exact rho of the last iterate on the line when step t maps x to slope_t x + constant.

    slopes: shape (T,). The worlds differ by the full displacement at each visit, in one direction.
    """
    slopes = np.asarray(slopes, dtype=float)
    expect(slopes.shape == (run.steps,), "slopes", slopes.shape, f"shape ({run.steps},)")
    # Growth of what enters at step t until the end: the product of the later slopes.
    growth = np.append(np.cumprod(slopes[:0:-1])[::-1], 1.0)
    shift = run.displacement * growth[run.position - 1 :: run.steps_per_pass].sum()
    return float(shift**2 / (2 * run.noise_std**2 * (growth**2).sum()))


def on_the_line(
    run: CyclicDPSGD,
    present: Gradients,
    absent: Gradients,
    order: float,
    *,
    start: float = 0.0,
    diameter: float | None = None,
    nodes: int = 10,
) -> float:
    """Rényi divergence of ``order``, in nats, of one-dimensional last iterates (by quadrature).

    present, absent: the data sets of the two worlds (see ``dpsgd.cyclic``), with points and
    gradients of dimension one. diameter: iterates are projected onto a centred interval of this
    length. The divergence is that of the present world from the absent one. The relative error is
    below 1e-9 where the drifts vary no faster than the noise (Gauss-Legendre panels one noise
    standard deviation wide, split where a gradient crosses the clipping norm); ``nodes`` a panel
    can be raised to check.
    """
    expect(1 < order < np.inf, "order", order, "a number > 1")
    end = np.inf if diameter is None else diameter / 2
    expect(abs(start) <= end, "start", start, f"a point within the domain, |start| <= {end:g}")
    points = np.array([start])
    masses = np.ones((1, 2))
    for t in range(run.steps):
        batch = t % run.steps_per_pass
        # Where each point of the two worlds goes; then the density of the noisy sum.
        centres = [
            displaced(run, data, batch, points[:, None])[:, 0] for data in (present, absent)
        ]
        low, high = np.min(centres), np.max(centres)
        low, high = (max(low - _REACH * run.noise_std, -end), min(high + _REACH * run.noise_std, end))
        edges = np.linspace(low, high, max(2, int(np.ceil((high - low) / run.noise_std)) + 1))
        if t + 1 < run.steps:
            following = (t + 1) % run.steps_per_pass
            edges = _split(run, (present, absent), following, edges)
        new, widths = _panels(edges, nodes)
        density = _density(new, centres, masses, run.noise_std)
        # Panels where neither world has any mass worth counting are dropped.
        kept = (density > _NEGLIGIBLE * density.max(axis=0)).any(axis=1)
        new_points, new_masses = [new[kept]], [density[kept] * widths[kept, None]]
        if diameter is not None:
            for side in (-1.0, 1.0):
                beyond = [
                    ndtr((side * c - end) / run.noise_std) @ masses[:, world]
                    for world, c in enumerate(centres)
                ]
                new_points.append(np.array([side * end]))
                new_masses.append(np.array([beyond]))
        points, masses = np.concatenate(new_points), np.concatenate(new_masses)
    p, q = masses.T
    inside = (p > 0) & (q > 0)
    # Masses share their quadrature weights, which cancel: sum of p^alpha q^(1 - alpha).
    logs = xlogy(order, p[inside]) - xlogy(order - 1, q[inside])
    return float(np.logaddexp.reduce(logs)) / (order - 1)


_REACH = 12.0
"""Noise standard deviations covered on either side at each step."""

_NEGLIGIBLE = 1e-80
"""Density, relative to the largest, below which a node is dropped in both worlds."""


def _density(at: Array, centres: Sequence[Array], masses: Array, noise_std: float) -> Array:
    """Density at the points ``at`` of both worlds' Gaussian mixtures, shape (points, 2)."""

    def kernel(centre: Array) -> Array:
        return np.exp(-0.5 * ((at[:, None] - centre) / noise_std) ** 2)

    present, absent = centres
    shared = kernel(present)
    if np.array_equal(present, absent):
        density = shared @ masses
    else:
        density = np.stack((shared @ masses[:, 0], kernel(absent) @ masses[:, 1]), axis=1)
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
        for _ in range(50):
            middle = (low + high) / 2
            same = (excess(data, middle)[np.arange(len(middle)), record] > 0) == was
            low, high = np.where(same, middle, low), np.where(same, high, middle)
        found.append((low + high) / 2)
    return np.unique(np.concatenate(found))
