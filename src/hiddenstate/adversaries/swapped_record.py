"""Data sets on which an audit of cyclic DP-SGD sees the swapped record in the last iterate.

In all of them one gradient of the swapped record is as large as clipping allows, and opposite in
the two worlds, and clipping can turn no gradient, so the bounds hold with the small Lipschitz
constant (``cyclic_operator.unclipped``).
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hiddenstate.accounting.cyclic import CyclicDPSGD
from hiddenstate.dpsgd.cyclic import Gradients, Prox, project_ball
from hiddenstate.streams import stream

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class SwappedRecord:
    """A mechanism, the two worlds' data sets, and the score of a last iterate.

    score: maps points, shape (runs, d), to (runs,); larger speaks for "in".
    """

    run: CyclicDPSGD
    gradients: dict[str, Gradients]
    start: Array
    score: Callable[[Array], Array]
    prox: Prox | None = None


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
    follow a fixed direction. Raises a ValueError if ``run.smoothness`` says otherwise.
    """
    if run.smoothness != 1:
        raise ValueError(f"the records have smoothness 1, the run says {run.smoothness}")
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
