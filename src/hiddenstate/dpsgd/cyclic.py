"""Cyclic DP-SGD for many runs at once: clipping, noise on the displacement, proximal step.

Algorithm 1 of Kong and Ribero (arXiv:2407.05237) in NumPy. A data set is a function
``gradients(batch, points)``: the gradients of the records of one batch of the pass, batch index 0
to ``steps_per_pass`` - 1, at points of shape (runs, d), as an array of shape (runs, records, d).
It may return one record where all records of the batch are the same. Unlike the rest of the
package, the step divides by the batch size and the noise is not scaled by the step size, as in
the paper; neighbouring data sets swap one record, so both have the same size.
"""

import math
from collections.abc import Callable, Collection

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hiddenstate.accounting.cyclic import CyclicDPSGD
from hiddenstate.errors import expect
from hiddenstate.streams import stream

Points = NDArray[np.float64]
Gradients = Callable[[int, Points], Points]
Prox = Callable[[Points], Points]

BLOCK = 4096
"""Runs that share a random stream; part of what decides the numbers."""


def clip(gradients: Points, clipping_norm: float) -> Points:
    """Each gradient (last axis) scaled down to a norm of at most ``clipping_norm``."""
    norms, unit = _norms(gradients), np.ones(gradients.shape[:-1])
    if (huge := np.isinf(norms)).any():
        # Their squares overflow: these gradients are taken in units of their largest entry.
        unit[huge] = np.abs(gradients[huge]).max(axis=-1)
        gradients = gradients / unit[..., None]
        norms = _norms(gradients)
    # The larger of both norms divides, so that a gradient of 0 needs no case of its own.
    return gradients * (clipping_norm / np.maximum(norms, clipping_norm / unit))[..., None]


def _norms(gradients: Points) -> Points:
    with np.errstate(over="ignore"):
        return np.sqrt(np.einsum("...d,...d->...", gradients, gradients))


def displaced(run: CyclicDPSGD, gradients: Gradients, batch: int, points: Points) -> Points:
    """Points after a step's mean clipped gradient, before noise and proximal step (exact)."""
    return points - run.step_size * clip(gradients(batch, points), run.clipping_norm).mean(axis=1)


def last_iterates(
    run: CyclicDPSGD,
    gradients: Gradients,
    start: ArrayLike,
    runs: int,
    *,
    seed: int,
    name: tuple[str | int, ...],
    prox: Prox | None = None,
    idle: Collection[int] = (),
) -> Points:
    """Last iterates of independent runs from one starting point, shape (runs, d).

    start: shape (d,). prox: the proximal step of lambda h, such as ``project_ball``; none by
    default. idle: batches whose losses are all constant; the noises of neighbouring idle steps are
    drawn as one, which changes no distribution and saves time. The runs depend on ``seed``,
    ``name`` and their index alone: more runs leave the first ones as they were.
    """
    expect(runs >= 1, "runs", runs, "a whole number >= 1")
    start = np.asarray(start, dtype=float)
    expect(not idle or prox is None, "idle", idle, "none where there is a proximal step")
    expect(start.ndim == 1, "start", start.shape, "a point, shape (d,)")
    blocks = []
    for block in range(-(-runs // BLOCK)):
        noise = stream(seed, *name, block)
        # Always a whole block: more runs leave the numbers of the first ones as they were.
        points = np.tile(start, (BLOCK, 1))
        steps = 0
        for t in range(run.steps):
            batch, steps = t % run.steps_per_pass, steps + 1
            if batch not in idle:
                points = displaced(run, gradients, batch, points)
            # The next step is idle: this step's noise waits, to be drawn as one with it.
            if t + 1 < run.steps and (t + 1) % run.steps_per_pass in idle:
                continue
            std = run.noise_std * math.sqrt(steps)
            points, steps = points + std * noise.standard_normal(points.shape), 0
            if prox is not None:
                points = prox(points)
        blocks.append(points)
    return np.concatenate(blocks)[:runs]


def project_ball(points: Points, diameter: float) -> Points:
    """Proximal step of the indicator of the centred ball of this diameter: projection onto it."""
    return clip(points, diameter / 2)
