"""Simulated runs of linear_heuristic: scores of every attack."""

from collections.abc import Callable
from functools import partial

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from hiddenstate.accounting import history
from hiddenstate.adversaries.repeaters import AnalogRepeaters, Repeaters, best_threshold
from hiddenstate.dpsgd import linear
from hiddenstate.papers.linear_heuristic.cells import NAME
from hiddenstate.papers.linear_heuristic.grid import AuditRuns, HistoryRuns, Mechanism
from hiddenstate.pipeline.cells import Cell
from hiddenstate.streams import stream

Draw = Callable[[bool, int, np.random.Generator], NDArray[np.float64]]
"""Scores, shape (runs,), from whether the canary is present, runs, and a random stream."""


def _bits(p: AuditRuns, mechanism: Mechanism) -> tuple[Draw, dict[str, float]]:
    threshold = best_threshold(*mechanism, p.threshold_delta)
    return Repeaters(*mechanism, threshold).scores, {"threshold": threshold}


ATTACKS: dict[str, Callable[[AuditRuns, Mechanism], tuple[Draw, dict[str, float]]]] = {
    "gradient": lambda p, mechanism: (partial(linear.projections, *mechanism), {}),
    "bits": _bits,
    "analog": lambda p, mechanism: (AnalogRepeaters(*mechanism).scores, {}),
}
"""By attack: how a mechanism's scores are drawn, and what else is told of it."""


def simulate(attack: str) -> Callable[[Cell[AuditRuns], int], pd.DataFrame]:
    """Scores of all runs of an attack, for every number of steps."""

    def run(cell: Cell[AuditRuns], seed: int) -> pd.DataFrame:
        parts = []
        for sigma, rate, steps in cell.parameters.mechanisms():
            draw, more = ATTACKS[attack](cell.parameters, (sigma, rate, steps))
            scores = _scores(cell, seed, steps, draw)
            parts.append(scores.assign(steps=steps, noise_multiplier=sigma, **more))
        return pd.concat(parts, ignore_index=True)

    return run


def simulate_history(cell: Cell[HistoryRuns], seed: int) -> pd.DataFrame:
    """Scores of all runs of section 4.3, for every growth."""
    p = cell.parameters
    parts = []
    for growth in p.growths:
        noise = history.noise_multipliers(p.noise_multiplier, p.steps, growth)
        draw = partial(linear.log_likelihood_ratios, noise, p.sampling_rate)
        scores = _scores(cell, seed, growth, draw)
        parts.append(scores.assign(growth=growth, noise_multiplier=p.noise_multiplier))
    return pd.concat(parts, ignore_index=True)


def _scores(
    cell: Cell[AuditRuns] | Cell[HistoryRuns], seed: int, x: float, draw: Draw
) -> pd.DataFrame:
    """Scores of one mechanism, whose stream is named by ``x``, in both worlds."""
    runs = cell.parameters.runs
    shared = {"repeat": np.int8(0), "run": np.arange(runs, dtype=np.int32)}
    return pd.concat(
        pd.DataFrame({"world": world, **shared, "score": draw(world == "in", runs, random)})
        for world in ("in", "out")
        for random in [stream(seed, NAME, cell.name, f"{x:g}", world)]
    )
