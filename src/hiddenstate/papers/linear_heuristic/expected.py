"""Expected audits of sampled trainings, along trajectories and over them, which bound nothing."""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from hiddenstate.accounting import linear
from hiddenstate.adversaries.initialisation import average_case_deviations
from hiddenstate.dpsgd.adjoint import Trajectory, hidden, trajectory
from hiddenstate.papers.linear_heuristic import training
from hiddenstate.papers.linear_heuristic.cells import NAME, trained_name
from hiddenstate.papers.linear_heuristic.expected_cells import ExpectedAudits, Training
from hiddenstate.pipeline.cells import Cell, Workplace


def expect(cell: Cell[ExpectedAudits], seed: int, workplace: Workplace) -> pd.DataFrame:
    """Expected audits of each training, a row for each start.

    Columns: audit (name of the real one), start, epsilon, shift (of the mean score), deviation,
    batch deviation, start deviation (of the score by noise, batches and starts), negative (part of
    the weights' absolute sum that is below 0), hidden (epsilon for an adversary who knows neither
    start nor batches, over all starts), without (the same without this start), heuristic and
    standard (epsilons of the mechanism), noise_multiplier.
    """
    p = cell.parameters
    parts = [_rows(t, p.starts, seed, workplace.device) for t in p.trainings]
    return pd.concat(parts, ignore_index=True)


def _rows(p: Training, starts: int, seed: int, device: str) -> pd.DataFrame:
    """Expected audits from these starts; ArithmeticError for any above that of all iterates."""
    ensemble, audit, rate = training.audited(p, seed), trained_name(p), p.sampling_rate
    standard = ensemble.mechanism.epsilon(p.delta, records=p.records)
    noise = ensemble.mechanism.noise_multiplier
    deviations = average_case_deviations(ensemble.model)
    names = [(NAME, "expected", audit, start) for start in range(starts)]
    found = [
        trajectory(ensemble, start=deviations, seed=seed, name=name, device=device)
        for name in names
    ]

    def epsilon(these: Sequence[Trajectory]) -> float:
        return hidden(these).epsilon(rate, p.delta)

    table = pd.DataFrame({
        "audit": audit,
        "start": range(starts),
        "epsilon": [one.epsilon(rate, p.delta) for one in found],
        "shift": [rate * one.weights.sum() for one in found],
        "deviation": [one.deviation for one in found],
        "batch deviation": [one.batches for one in found],
        "start deviation": [one.start for one in found],
        "negative": [
            # 1e-300: a canary whose gradient never counts has no weight at all.
            -one.weights.clip(max=0).sum() / max(abs(one.weights).sum(), 1e-300) for one in found
        ],
        "hidden": epsilon(found),
        "without": [epsilon([*found[:i], *found[i + 1 :]]) for i in range(starts)],
        "heuristic": float(linear.last_iterate_epsilon(noise, rate, p.steps, p.delta)),
        "standard": standard,
        "noise_multiplier": noise,
    })  # fmt: skip
    most = float(np.max(table[["epsilon", "hidden", "without"]]))
    if most > standard:
        raise ArithmeticError(f"{audit}: got {most}; expected at most {standard}")
    return table
