"""Shift reduction for steps that differ: learning rates that vary, and weight decay.

Two runs start together, or at most a domain's diameter apart before any step. Step t takes a
distance R to at most c_t R, a visit of the record adds at most s_t to it, and its noise of
deviation n_t hides a part a_t of it at the price (a_t / n_t)^2 of mu^2 (Theorem 1 of
docs/cyclic-bounds.md holds step by step, with a constant, a shift and a noise of the step's own).

Let Q_t be the product of all c_u after step t: what of a distance after step t is left at the end.
With x_t = a_t Q_t and the shifts' running sum S_t = d Q_0 + sum s_u Q_u the programme is: least
sum of x_t^2 / (n_t Q_t)^2 such that the running sum of x_t is at most S_t and ends at S_T. On the
clock that advances by (n_t Q_t)^2 a step that is the shortest string below S: the lower convex hull
of the points (clock, S), whose price is the sum of rise^2 / run over its pieces.
"""

import math

import numpy as np
from numpy.typing import NDArray

from hiddenstate.accounting.cyclic import CyclicDPSGD
from hiddenstate.accounting.setting import Setting

Floats = NDArray[np.float64]

UP = 1 + 1e-9
"""Factor above the rounding error of sums over the steps."""

MOST = 300.0
"""Largest logarithm of Q that keeps all digits of its square."""

BEGINNINGS = 40
"""Steps before which the programme may begin with the domain's diameter, beside the start."""


def least(factors: Floats, noises: Floats, shifts: Floats, diameter: float | None = None) -> float:
    """Least mu^2 that shift reduction proves of such steps (rounded up); inf where it proves none.

    factors, noises, shifts: c_t, n_t and s_t, shape (steps,). diameter: of a domain that every step
    projects on, None if there is none.
    """
    logs = _left(factors)
    steps = len(factors)
    beginnings = np.array([0])
    if diameter is not None:
        last = np.geomspace(1, steps, BEGINNINGS).astype(int)
        beginnings = np.unique(np.concatenate((beginnings, steps - last)))
    found = math.inf
    for first in beginnings.tolist():
        part = logs[first:]
        # What is left of a distance before the first of these steps.
        start = float(part[0] + math.log(factors[first])) if factors[first] > 0 else -math.inf
        if max(part.max(), start) > MOST:
            continue
        kept = np.exp(part)
        apart = [0.0] if first == 0 else []
        if diameter is not None:
            apart.append(diameter * math.exp(start))
        for distance in apart:
            found = min(found, _hull(distance, (noises[first:] * kept) ** 2, shifts[first:] * kept))
    return found * UP


def by_last_steps(
    factors: Floats, noises: Floats, shifts: Floats, diameter: float | None
) -> Floats:
    """Least sum of (a_t / n_t)^2 with which the last K steps alone hide what is before them.

    Shape (steps,), for K from 1 on (rounded up). What is before them is the shifts of the earlier
    steps, at most the domain's diameter; the last K steps' own shifts are not counted.
    """
    logs = _left(factors)
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        before = logs + np.log(factors)
        # In the unit of what is left at the end.
        apart = np.concatenate(([0.0], np.cumsum(shifts * np.exp(logs))[:-1]))
        if diameter is not None:
            apart = np.minimum(apart, diameter * np.exp(before))
        price = apart[::-1] ** 2 / np.cumsum(((noises * np.exp(logs)) ** 2)[::-1])
    largest = np.maximum.accumulate(np.maximum(before, logs)[::-1])
    price[largest > MOST] = math.inf
    return price * UP


def _left(factors: Floats) -> Floats:
    """Logarithm of Q_t, shape (steps,)."""
    with np.errstate(divide="ignore"):
        logs = np.log(factors)
    return np.append(np.cumsum(logs[:0:-1])[::-1], 0.0)


def _hull(distance: float, clock: Floats, shifts: Floats) -> float:
    """Price of the shortest string below the running sum of the shifts.

    Its pieces are pooled, each a rise and a run, as differences of running sums would lose digits.
    """
    starts = np.concatenate(([0], np.flatnonzero(shifts[1:] > 0) + 1))
    rises, runs = np.add.reduceat(shifts, starts), np.add.reduceat(clock, starts)
    rises[0] += distance
    pools: list[tuple[float, float]] = []
    for rise, run in zip(rises.tolist(), runs.tolist(), strict=True):
        # Steps whose noise is nothing at the end have no run.
        while pools and pools[-1][0] * run >= rise * pools[-1][1]:
            before, longer = pools.pop()
            rise, run = rise + before, run + longer
        pools.append((rise, run))
    return math.fsum(rise**2 / run if rise else 0.0 for rise, run in pools)


def visits(run: CyclicDPSGD) -> Floats:
    """1 for each step that visits the record, 0 for others, shape (steps,)."""
    found = np.zeros(run.steps)
    found[run.position - 1 :: run.steps_per_pass] = 1
    return found


def rho(setting: Setting, run: CyclicDPSGD, factors: Floats, *, clipping: bool = False) -> float:
    """Upper bound on rho of an order's record at its position, at most that of composition.

    factors: of the steps. clipping: whether every step enlarges any distance by at most twice the
    step times the clipping norm instead (``cyclic.clipped_domain``), beside its factor.
    """
    steps = setting.rates / setting.learning_rate
    shifts = run.displacement * visits(run) * steps
    if clipping:
        shifts = run.displacement * run.batch_size * steps
    found = least(factors, run.noise_std * steps, shifts, setting.diameter)
    return found / 2
