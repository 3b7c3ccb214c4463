"""Audits of models that were trained: lower bounds at whatever settings they were trained at.

The table ships with the package: of every cached audit of the papers' main settings the first
repeat, so that none is picked by what it found, with its family's own lower bound on mu.
``papers.atlas.trained`` makes it. All of these audits are of a canary that is in every step, or in
every k-th and accounted in those alone, so their accountant is Gaussian differential privacy and
each can be stated at any delta. Of each kind of audit the one is shown whose accountant's epsilon
is nearest to a setting's.
"""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from hiddenstate.accounting import gaussian
from hiddenstate.accounting.setting import Setting

CONFIDENCE = 0.95
"""Of the bounds."""

COLUMNS = ("audit", "cell", "mu", "mu_bound", "noise_multiplier", "steps", "models", "setting")

TABLE = Path(__file__).with_name("trained.csv")


def table() -> pd.DataFrame:
    """A row for each audit.

    Columns: ``audit``, its kind; ``cell``; ``mu`` that its accountant proves and the lower bound
    ``mu_bound``; ``noise_multiplier``; ``steps``; ``models`` per world; ``setting`` in words.
    """
    return pd.read_csv(TABLE)


def nearest(audits: pd.DataFrame, epsilon: float, delta: float) -> pd.DataFrame:
    """The audit of each kind whose accountant's epsilon is nearest, as a ratio."""
    allowed = gaussian.epsilon(audits["mu"], delta)
    away = np.abs(np.log(allowed / max(epsilon, 1e-3)))
    # By insertion period, 5 before 25; of equally near ones the largest.
    ordered = audits.assign(away=np.round(away, 9), length=audits["audit"].str.len()).sort_values(
        ["length", "audit", "away", "models"], ascending=[True, True, True, False], kind="stable"
    )
    return ordered.drop_duplicates("audit").drop(columns=["away", "length"])


def with_trained(
    rows: pd.DataFrame, setting: Setting, epsilon: float, delta: float
) -> pd.DataFrame:
    """The rows of a setting, of which composition proves epsilon, and those of trained audits.

    Their column ``allowed`` is the epsilon that their own accountant proves; those of another
    setting are a group of their own and say how they differ.
    """
    near = nearest(table(), epsilon, delta)
    found = [_row(audit, setting, epsilon, delta) for audit in near.itertuples()]
    return pd.concat([rows.assign(allowed=math.nan), pd.DataFrame(found)], ignore_index=True)


def _row(audit: Any, setting: Setting, epsilon: float, delta: float) -> dict[str, Any]:
    allowed = float(gaussian.epsilon(audit.mu, delta))
    same = (
        setting.sampled
        and not setting.changed
        and setting.rate == 1
        and setting.steps == audit.steps
        and math.isclose(setting.noise_multiplier, audit.noise_multiplier, rel_tol=1e-3)
    )
    words = (
        f"this setting: {audit.setting}; trained at epsilon {allowed:.3f}"
        if same
        else f"another setting: {audit.setting}, noise multiplier {audit.noise_multiplier:.4g}; "
        f"trained at epsilon {allowed:.3f}, yours is {epsilon:.3f}"
    )
    group = "trained here" if same else "trained"
    return {"group": group, "name": audit.audit, "kind": "lower", "assumption": words} | {
        "value": float(gaussian.epsilon_below(audit.mu_bound, delta)),
        "allowed": allowed,
        "confidence": CONFIDENCE,
        "runs": float(audit.models),
    }
