"""Simulated audits of linear losses, apart from what else is accounted: they take minutes."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from hiddenstate.accounting import linear
from hiddenstate.accounting.tradeoff import TradeoffCurve
from hiddenstate.auditing import AsPublished, Tabulated
from hiddenstate.auditing.hypotheses import Hypotheses
from hiddenstate.auditing.methods import PUBLISHED
from hiddenstate.dpsgd import linear as linear_losses
from hiddenstate.papers.linear_heuristic import cells
from hiddenstate.papers.linear_heuristic.grid import AuditRepeats
from hiddenstate.pipeline.cells import Cell
from hiddenstate.streams import stream

Curves = Iterator[tuple[str, float, TradeoffCurve]]
"""Trade-off functions, from little leak to much: whose, its epsilon, and the curve."""


ONE_SIDED = 0.975
"""Confidence of either end of a two-sided 95 % interval, as published."""


def repeated(cell: Cell[AuditRepeats], seed: int) -> pd.DataFrame:
    """Published estimates of independent audits of a gradient among zero gradients."""
    p = cell.parameters
    parts = []
    for mechanism in p.mechanisms():
        sigma, rate, steps = mechanism
        curves = tabulated(heuristic_curves(*mechanism, p.delta, p.resolution))
        found = audited(mechanism, curves, p.repeats, p.runs, seed, cell.name, f"{steps}")
        heuristic = float(linear.last_iterate_epsilon(*mechanism, p.delta))
        shared = {"steps": steps, "noise_multiplier": sigma, "sampling_rate": rate}
        parts += [
            epsilon_rows(PUBLISHED, "estimate", [steps] * p.repeats, found, **shared),
            epsilon_rows("heuristic", "exact", [steps], [heuristic], **shared),
        ]
    return pd.concat(parts)


def tabulated(curves: Iterable[tuple[str, float, TradeoffCurve]]) -> Tabulated:
    """The hypotheses that these curves are, by their epsilons."""
    _, epsilons, functions = zip(*curves, strict=True)
    return Tabulated("epsilon", np.array(epsilons), functions)


def audited(
    mechanism: tuple[float, float, int],
    hypotheses: Hypotheses,
    audits: int,
    runs: int,
    seed: int,
    *name: str,
) -> NDArray[np.float64]:
    """Published estimates of independent audits of linear losses."""
    inside, outside = (
        linear_losses.projections(
            *mechanism, world == "in", audits * runs, stream(seed, cells.NAME, *name, world)
        ).reshape(audits, runs)
        for world in ("in", "out")
    )
    return AsPublished().bounds(inside, outside, hypotheses, 1 - ONE_SIDED)[0]


def heuristic_curves(
    sigma: float, rate: float, steps: int, delta: float, resolution: float
) -> Curves:
    """Trade-off functions of the heuristic, at the epsilons that an audit can report."""

    def leak(noise: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.asarray(linear.last_iterate_epsilon(noise, rate, steps, delta))

    audited = float(leak(np.array(sigma)))
    noises = reported_noises(sigma * np.geomspace(0.9, 300, 400), leak, audited, resolution)
    for noise, epsilon in zip(noises, leak(noises), strict=True):
        curve = linear.tradeoff_curve(noise, rate, steps, null="out", lines=501)
        yield "heuristic", float(epsilon), curve


def reported_noises(
    coarse: NDArray[np.float64],
    leak: Callable[[NDArray[np.float64]], NDArray[np.float64]],
    audited: float,
    resolution: float,
) -> NDArray[np.float64]:
    """Noise multipliers of the epsilons that an audit can report: up to a tenth above ``audited``.

    Epsilon is smooth in the noise on logarithmic axes; each curve states its own epsilon, so the
    interpolation between the ``coarse`` ones need not be exact.
    """
    targets = audited * np.arange(resolution, 1.1 + resolution / 2, resolution)
    epsilons = leak(coarse)
    coarse, epsilons = coarse[epsilons > 0], epsilons[epsilons > 0]
    targets = targets[targets > epsilons[-1]]
    # np.interp asks for ascending points, and epsilon falls as the noise rises.
    return np.exp(np.interp(-np.log(targets), -np.log(epsilons), np.log(coarse)))


def epsilon_rows(
    method: str, kind: str, x: ArrayLike, value: ArrayLike, **more: Any
) -> pd.DataFrame:
    """Rows of a bounds table: epsilons of a method along x."""
    frame = pd.DataFrame({"x": np.asarray(x, dtype=float), "value": value, **more})
    return frame.assign(quantity="epsilon", method=method, kind=kind)
