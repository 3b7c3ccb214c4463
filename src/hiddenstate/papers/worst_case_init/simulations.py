"""Simulated audits of worst_case_init: what a mechanism that leaks all it may would show."""

import numpy as np
import pandas as pd

from hiddenstate.accounting import gaussian
from hiddenstate.auditing.methods import PUBLISHED
from hiddenstate.papers.worst_case_init.cells import NAME, IdealParameters
from hiddenstate.papers.worst_case_init.methods import bounds
from hiddenstate.pipeline.cells import Cell
from hiddenstate.streams import stream

SIMULATED = (PUBLISHED, "two-sided")
"""Methods whose perfect audits are simulated: what publishes is what needs a ceiling."""


def simulate(cell: Cell[IdealParameters], seed: int) -> pd.DataFrame:
    """Simulate audits of a last iterate that leaks all that the accountant allows.

    Scores of the full-batch mechanism that releases everything are Gaussian, mu apart; so these are
    simulated. Columns: method, value (an epsilon) and above (the share of all scores that are at or
    above the threshold that gives it; empty if every threshold gives 0), one row per audit and
    method.
    """
    p = cell.parameters
    mu = gaussian.mu(p.epsilon, p.delta)
    rng = stream(seed, NAME, cell.name)
    shape = (p.audits, p.models)
    in_scores, out_scores = rng.normal(mu, 1, shape), rng.normal(0, 1, shape)
    pooled = np.concatenate((in_scores, out_scores), axis=1)
    frames = []
    for method in SIMULATED:
        mus, thresholds = bounds(method, in_scores, out_scores)
        # Where the best bound is 0 every threshold gives it.
        above = np.where(mus > 0, (pooled >= thresholds[:, None]).mean(axis=1), np.nan)
        columns = {"method": method, "value": gaussian.epsilon_below(mus, p.delta), "above": above}
        frames.append(pd.DataFrame(columns))
    return pd.concat(frames, ignore_index=True)
