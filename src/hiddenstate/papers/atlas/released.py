"""Linear losses whose every k-th iterate is released: epsilon against k, and audits of it."""

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from hiddenstate.accounting import composition, linear
from hiddenstate.auditing import ApproxDP, lower_bound
from hiddenstate.papers.atlas.cells import Released
from hiddenstate.pipeline.cells import Cell
from hiddenstate.streams import stream

POINTS = 12
"""Periods of the curve, all of them divisors of the steps."""

CONFIDENCE = 0.95


def periods(steps: int, points: int = POINTS) -> list[int]:
    """Divisors of the steps, at most so many, spread evenly on a logarithmic scale."""
    divisors = np.array([k for k in range(1, steps + 1) if steps % k == 0])
    wanted = np.geomspace(1, steps, points)
    return sorted({int(divisors[np.argmin(np.abs(np.log(divisors / one)))]) for one in wanted})


def scores(
    noise_multiplier: float,
    sampling_rate: float,
    steps: int,
    every: int,
    present: bool,
    runs: int,
    rng: np.random.Generator,
) -> NDArray[np.float64]:
    """Log-likelihood ratio of what is released of each run, shape (runs,): the best score there is.

    What is seen between two releases is the sum of their steps.
    """
    pair = linear.last_iterate(noise_multiplier, sampling_rate, every)
    found = np.zeros(runs)
    for _ in range(steps // every):
        seen = pair.noise_std * rng.standard_normal(runs)
        if present:
            seen += rng.binomial(every, sampling_rate, runs)
        found += pair.loss(seen)
    return found


def released(cell: Cell[Released], seed: int) -> pd.DataFrame:
    """Both ends of epsilon by period, and audits of three periods.

    Columns: x (the period k), method, kind, value, confidence and runs.
    """
    p = cell.parameters
    mechanism = (p.noise_multiplier, p.sampling_rate, p.steps)
    every = periods(p.steps)
    rows = []
    for k in every:
        bracket = composition.fine_bracket(*mechanism, p.delta, k)
        rows += [
            (k, "linear losses", "upper", bracket.upper),
            (k, "linear losses", "lower", bracket.lower),
        ]
    frame = pd.DataFrame(rows, columns=["x", "method", "kind", "value"])
    audits = []
    for k in (every[0], every[len(every) // 2], every[-1]):
        inside, outside = (
            scores(*mechanism, k, present, p.runs, stream(seed, "atlas", cell.name, f"k{k}", world))
            for world, present in (("in", True), ("out", False))
        )
        value = lower_bound(inside, outside, ApproxDP(p.delta), confidence=CONFIDENCE).value
        audits.append((k, "audit", "lower", value, CONFIDENCE, p.runs))
    columns = ["x", "method", "kind", "value", "confidence", "runs"]
    return pd.concat([frame, pd.DataFrame(audits, columns=columns)], ignore_index=True)
