"""Simulated adversaries of shuffled batches, and values that are known without a run."""

import math

import numpy as np
import pandas as pd

from hiddenstate.accounting import batched, gaussian
from hiddenstate.adversaries.shuffled_sums import Shuffled
from hiddenstate.papers.shuffling.cells import NAME, RECORDS, Simulated
from hiddenstate.pipeline.cells import Cell
from hiddenstate.streams import stream

ALL, LAST = "all iterates", "last iterate"
"""What the adversary sees."""


def simulate(cell: Cell[Simulated], seed: int) -> pd.DataFrame:
    """Scores of all runs, in long form with their adversary."""
    p = cell.parameters
    # Departure shuffling.simulated: the text audits trained models.
    pair, redrawn = RECORDS[p.record], p.order == "each epoch"
    shown = Shuffled(p.noise_multiplier, p.batches, p.epochs, pair, redrawn)
    parts = []
    for repeat in range(p.repeats):
        for world in ("in", "out"):
            rng = stream(seed, NAME, cell.name, world, repeat)
            drawn = shown.drawn(world == "in", p.runs, rng)
            for adversary, score in zip((ALL, LAST), drawn, strict=True):
                columns = {"run": np.arange(p.runs), "score": score, "adversary": adversary}
                parts.append(pd.DataFrame(columns).assign(world=world, repeat=repeat))
    return pd.concat(parts, ignore_index=True)


def account(cell: Cell[Simulated], seed: int) -> pd.DataFrame:
    """Epsilons: proven, shown at least by the largest sum, and of the last iterate exactly.

    Columns: method, kind, value, and the noise multiplier. The last iterate is that of linear
    losses. Composition: of a record's batches, wherever they are.
    """
    p = cell.parameters
    sigma, pair = p.noise_multiplier, RECORDS[p.record]
    shift = pair[0] - pair[1]
    # The last iterate sums all steps: the record is in one of each epoch, the noise in all.
    last = shift * p.epochs / (sigma * math.sqrt(p.batches * p.epochs))
    redrawn = p.order == "each epoch"
    largest = batched.lower_epsilon(sigma, p.batches, p.epochs, p.delta, pair, redrawn=redrawn)
    proven = gaussian.epsilon(shift * math.sqrt(p.epochs) / sigma, p.delta)
    rows = [
        ("composition", "upper", float(proven)),
        ("largest sum", "lower", largest),
        ("linear losses", "exact", float(gaussian.epsilon(last, p.delta))),
    ]
    return pd.DataFrame(rows, columns=["method", "kind", "value"]).assign(noise_multiplier=sigma)
