"""Data sets on which an audit of cyclic DP-SGD sees the swapped record in the last iterate.

``tightest_slopes`` are those of the steps on which the bound by visits is exact. In the data sets
one gradient of the swapped record is as large as clipping allows, and opposite in
the two data sets. Clipping cannot turn a gradient, so the bounds hold with the small Lipschitz
constant (``cyclic_operator.unclipped``).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hiddenstate.accounting import cyclic_operator, shifts
from hiddenstate.accounting.cyclic import CyclicDPSGD
from hiddenstate.dpsgd.cyclic import Gradients, Prox, project_ball
from hiddenstate.errors import expect
from hiddenstate.streams import stream

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class SwappedRecord:
    """A mechanism, the two data sets, and the score of a last iterate.

    score: maps points, shape (runs, d), to (runs,); larger speaks for "in". idle: batches of the
    pass, counted from 0, whose losses are all constant.
    """

    run: CyclicDPSGD
    gradients: dict[str, Gradients]
    start: Array
    score: Callable[[Array], Array]
    prox: Prox | None = None
    idle: frozenset[int] = frozenset()


def tightest_slopes(run: CyclicDPSGD) -> Array:
    """Slopes of affine steps on the line on which ``cyclic.sharp`` is exact, shape (T,).

    The step that maps x to slope x is the limit, as the batch and the clipping norm grow together,
    of clipped steps on quadratic losses whose curvature is within the run's; the slopes lie between
    1 - step M and L = ``cyclic_operator.unclipped``. Every step grows by L but the visits. A visit
    scales what earlier ones left by the a at which the old and the new part of the signal stand to
    each other as the old and the new noise do (the case of equality of Cauchy-Schwarz): first by
    theta(ell) L^(1 - ell) / theta(n), with n steps to the next visit or the end, and by that
    always if all of them are allowed. Before the first visit there is only noise to be shrunk.
    Slopes out of range are the nearest allowed.

    So the exact divergence, ``exact.scalar_affine``, equals the bound if the record is in the first
    batch (or step M >= 1, which forgets what was before) and 1 - step M is at most the visits'
    slopes; otherwise it is a lower bound on the worst case. Proof: docs/cyclic-bounds.md. Raises an
    input error if step (M - m) > 2, where no positive slope is the largest.
    """
    step, m, smoothness = run.curvature
    expect(
        step * (smoothness - m) <= 2, "step_size", step, "at most 2 / (smoothness - weak_convexity)"
    )
    growth, least = cyclic_operator.unclipped(*run.curvature), 1 - step * smoothness
    slopes = np.full(run.steps, growth)
    before, shrinking = run.position - 1, max(least, 0.0)
    slopes[: run.position] = shrinking if before else 1.0  # the start is one point
    # Signal and noise variance at the end of a stretch, over the growth since its visit and that
    # growth squared; at a visit they are scaled by the growth and the visit's slope.
    signal, variance = 0.0, float(np.sum(shrinking ** np.arange(0.0, 2 * before, 2)))
    log_growth = 0.0
    for visit in range(run.visits):
        last = visit == run.visits - 1
        steps = run.hidden_steps if last else run.steps_per_pass
        theta = float(shifts.visible_fraction(growth, steps))
        first = before + visit * run.steps_per_pass
        if visit:
            best = signal / (variance * theta) * math.exp(-log_growth)
            slopes[first] = min(max(best, least), growth)
        log_scale = log_growth + math.log(slopes[first]) if slopes[first] > 0 else -math.inf
        # The larger of old and new is kept as it is, so that nothing overflows.
        old, new = math.exp(min(log_scale, 0.0)), math.exp(-max(log_scale, 0.0))
        signal, variance = old * signal + new, old**2 * variance + new**2 / theta
        log_growth = max(log_scale, 0.0) + (steps - 1) * math.log(growth)
    return slopes


def line(run: CyclicDPSGD, slope: float) -> SwappedRecord:
    """Quadratic losses on the line, f(x) = slope x^2 / 2, one record a batch, clipped.

    slope: from -m (concave) to M (convex). The swapped record is linear: it moves the iterate up
    by step size times clipping norm in world "in", and down as far in "out".
    """

    def world(sign: float) -> Gradients:
        def gradients(batch: int, points: Array) -> Array:
            if batch == run.position - 1:
                return np.full((len(points), 1, 1), -sign * run.clipping_norm)
            return slope * points[:, None, :]

        return gradients

    return SwappedRecord(
        run, {"in": world(1.0), "out": world(-1.0)}, np.zeros(1), lambda points: points[:, 0]
    )


def logistic(run: CyclicDPSGD, dimension: int, diameter: float) -> SwappedRecord:
    """Logistic regression on random directions, projected onto a ball; the canary's label flips.

    Every record has norm 1, the swapped one norm 2, so its smoothness, the largest, is 1; labels
    follow a fixed direction. Raises an InputError if ``run.smoothness`` says otherwise.
    """
    expect(run.smoothness == 1, "smoothness", run.smoothness, "1, that of the records")
    rng = stream(0, "swapped_record", "logistic", run.steps_per_pass, run.batch_size, dimension)
    records = rng.standard_normal((run.steps_per_pass, run.batch_size, dimension))
    records /= np.linalg.norm(records, axis=-1, keepdims=True)
    canary = 2 * records[run.position - 1, 0]
    # The label is folded into the record: f(x) = log(1 + exp(-a.x)).
    records *= np.where(records @ np.ones(dimension) > 0, 1, -1)[..., None]

    def world(sign: float) -> Gradients:
        data = records.copy()
        data[run.position - 1, 0] = sign * canary

        def gradients(batch: int, points: Array) -> Array:
            slopes = -1 / (1 + np.exp(points @ data[batch].T))
            return slopes[..., None] * data[batch]

        return gradients

    return SwappedRecord(
        run,
        {"in": world(1.0), "out": world(-1.0)},
        np.zeros(dimension),
        lambda points: points @ canary,
        prox=lambda points: project_ball(points, diameter),
    )
