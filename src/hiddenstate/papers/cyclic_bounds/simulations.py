"""Simulations of cyclic_bounds: scores of the last iterates on audited data sets."""

import numpy as np
import pandas as pd

from hiddenstate.adversaries.swapped_record import SwappedRecord
from hiddenstate.dpsgd.cyclic import last_iterates
from hiddenstate.papers.cyclic_bounds.cells import Audit, Counterexample
from hiddenstate.pipeline.cells import Cell


def simulate_audit(cell: Cell[Audit], seed: int) -> pd.DataFrame:
    """Scores of the last iterates on an audited data set, by number of passes."""
    (data,) = cell.parameters.data
    parts = [_scores(cell, seed, n, data.instance(n)) for n in cell.parameters.passes]
    return pd.concat(parts, ignore_index=True)


def simulate_counterexample(cell: Cell[Counterexample], seed: int) -> pd.DataFrame:
    """Scores of the last iterates on the losses whose clipped steps expand."""
    p = cell.parameters
    return _scores(cell, seed, p.passes, p.instance.worlds())


def _scores(
    cell: Cell[Audit] | Cell[Counterexample], seed: int, passes: int, at: SwappedRecord
) -> pd.DataFrame:
    """Scores of the last iterates of a mechanism in both worlds."""
    runs = cell.parameters.runs
    parts = []
    for world, gradients in at.gradients.items():
        name = ("cyclic_bounds", cell.name, "passes", passes, world)
        points = last_iterates(
            at.run, gradients, at.start, runs, seed=seed, name=name, prox=at.prox, idle=at.idle
        )
        frame = pd.DataFrame({"run": np.arange(runs), "score": at.score(points)})
        parts.append(frame.assign(world=world, repeat=0, passes=passes))
    return pd.concat(parts, ignore_index=True)
