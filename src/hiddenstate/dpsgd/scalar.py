"""DP-SGD with one parameter on a data set of identical ordinary records, exactly and fast.

When all ordinary records are equal they have the same clipped gradient, so the sum over a Poisson
sample of ``records`` of them is Binomial(records, sampling rate) times that gradient: the law of
the literal algorithm, at a cost that does not depend on the number of records.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hiddenstate.errors import expect
from hiddenstate.streams import stream

Array = NDArray[np.float64]

BLOCK = 250
"""Runs that share one random stream; the atom of reproducibility, not a tuning knob."""


@dataclass(frozen=True)
class Draws:
    """All randomness of some runs; every array has shape (steps, runs).

    ordinary: how many ordinary records each step samples. canary: whether it samples the canary.
    noise: standard normal.
    """

    ordinary: Array
    canary: Array
    noise: Array


def draw(
    runs: range,
    *,
    seed: int,
    name: tuple[str | int, ...],
    steps: int,
    sampling_rate: float,
    records: int,
    canary: bool,
) -> Draws:
    """Randomness of the given runs: that of run i is the same whatever other runs are asked for.

    Raises InputError for runs that are no neighbours in ascending order.
    """
    neighbours = runs.step == 1 and 0 <= runs.start < runs.stop
    expect(neighbours, "runs", runs, "neighbouring runs in order, such as range(0, 250)")
    parts = []
    # Whole blocks are drawn and cut, for a run's numbers depend on its place in its block.
    for block in range(runs.start // BLOCK, -(-runs.stop // BLOCK)):
        sampling = stream(seed, *name, "sampling", block)
        shape = (steps, BLOCK)
        ordinary = sampling.binomial(records, sampling_rate, shape).astype(float)
        if canary:
            sampled = (sampling.random(shape) < sampling_rate).astype(float)
        else:
            sampled = np.zeros(shape)
        noise = stream(seed, *name, "noise", block).standard_normal(shape)
        first = block * BLOCK
        kept = slice(max(runs.start - first, 0), min(runs.stop - first, BLOCK))
        parts.append(Draws(ordinary[:, kept], sampled[:, kept], noise[:, kept]))
    return Draws(
        *(
            np.concatenate([getattr(p, field) for p in parts], axis=1)
            for field in Draws.__match_args__
        )
    )


def last_iterate(
    gradient: Callable[[float, Array], Array],
    draws: Draws,
    *,
    noise_multiplier: float,
    clipping_norm: float = 1.0,
    learning_rate: float = 1.0,
) -> Array:
    """Last iterate of DP-SGD from the initial parameter 0, shape (runs,).

    ``gradient(x, theta)`` is the loss gradient of a record x at each run's parameter; ordinary
    records are 0 and the canary is 1.
    """
    clip = clipping_norm
    theta = np.zeros(draws.noise.shape[1])
    for ordinary, canary, noise in zip(draws.ordinary, draws.canary, draws.noise, strict=True):
        total = ordinary * np.clip(gradient(0.0, theta), -clip, clip)
        total += canary * np.clip(gradient(1.0, theta), -clip, clip)
        total += noise_multiplier * clip * noise
        theta = theta - learning_rate * total
    return theta
