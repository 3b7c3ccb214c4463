"""Expected audits of sampled trainings: an epsilon for each trajectory, which bounds nothing."""

from typing import Any

import pandas as pd

from hiddenstate.accounting import linear
from hiddenstate.dpsgd.adjoint import trajectory
from hiddenstate.papers.linear_heuristic import training
from hiddenstate.papers.linear_heuristic.cells import NAME, trained_name
from hiddenstate.papers.linear_heuristic.expected_cells import ExpectedAudits, Training
from hiddenstate.pipeline.cells import Cell, Workplace


def expect(cell: Cell[ExpectedAudits], seed: int, workplace: Workplace) -> pd.DataFrame:
    """Expected audits of each training, a row for each start.

    Columns: audit (name of the real one), start, epsilon, shift (of the mean score), deviation (of
    the score by noise), negative (part of the weights' absolute sum that is below 0), heuristic
    and standard (epsilons of the mechanism), noise_multiplier.
    """
    p = cell.parameters
    each = ((t, start) for t in p.trainings for start in range(p.starts))
    return pd.DataFrame(_row(t, start, seed, workplace.device) for t, start in each)


def _row(p: Training, start: int, seed: int, device: str) -> dict[str, Any]:
    """Expected audit from one start; ArithmeticError for an epsilon above that of all iterates."""
    ensemble, audit, rate = training.audited(p, seed), trained_name(p), p.sampling_rate
    standard = ensemble.mechanism.epsilon(p.delta, records=p.records)
    noise = ensemble.mechanism.noise_multiplier
    found = trajectory(ensemble, seed=seed, name=(NAME, "expected", audit, start), device=device)
    weights, epsilon = found.weights, found.epsilon(rate, p.delta)
    if epsilon > standard:
        raise ArithmeticError(f"{audit}: got {epsilon}; expected at most {standard}")
    return {
        "audit": audit,
        "start": start,
        "epsilon": epsilon,
        "shift": rate * weights.sum(),
        "deviation": found.deviation,
        "negative": -weights.clip(max=0).sum() / max(abs(weights).sum(), 1e-300),
        "heuristic": float(linear.last_iterate_epsilon(noise, rate, p.steps, p.delta)),
        "standard": standard,
        "noise_multiplier": noise,
    }
