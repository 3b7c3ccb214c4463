"""Estimates of the atlas: every bound on every setting, and the nearest trained audits."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from hiddenstate.accounting import gaussian
from hiddenstate.estimates import select
from hiddenstate.papers.atlas.cells import AtlasGrid, Cyclic, Setting, bounded, trained

CONFIDENCE = 0.95
"""Of the trained audits' bounds."""


def estimate(
    grid: AtlasGrid, scores: Mapping[str, pd.DataFrame], bounds: Mapping[str, pd.DataFrame]
) -> pd.DataFrame:
    """A row for each bound of each setting; ``method`` is its name, ``cell`` the setting.

    Beside the shared columns: title, group, truth, runs, assumption, and of trained audits allowed,
    the epsilon that their own accountant proves.
    """
    (cell,) = bounded(grid)
    audits = pd.concat([pd.DataFrame(), *(bounds[cached.name] for cached in trained(grid))])
    parts = []
    for one in grid.settings:
        name = one.setting.name
        rows = select(bounds[cell.name], setting=name).drop(columns="setting")
        near = nearest(audits, proven(rows), grid.delta)
        rows = with_trained(rows, near, one.setting, grid.delta)
        parts.append(rows.assign(cell=name, title=one.title, words=one.setting.words))
    found = pd.concat(parts, ignore_index=True).rename(columns={"name": "method"})
    return found.assign(quantity="epsilon", delta=grid.delta)


def proven(rows: pd.DataFrame) -> float:
    """The least epsilon that is proven for any loss."""
    return float(select(rows, group="proven")["value"].min())


def nearest(audits: pd.DataFrame, epsilon: float, delta: float) -> pd.DataFrame:
    """Of each kind of trained audit the one whose accountant's epsilon is nearest, as a ratio."""
    if audits.empty:
        return audits
    allowed = gaussian.epsilon(audits["mu"], delta)
    away = np.abs(np.log(allowed / max(epsilon, 1e-3)))
    # By insertion period, 5 before 25; of equally near ones the largest.
    ordered = audits.assign(away=np.round(away, 9), length=audits["audit"].str.len()).sort_values(
        ["length", "audit", "away", "models"], ascending=[True, True, True, False], kind="stable"
    )
    return ordered.drop_duplicates("audit").drop(columns=["away", "length"])


def with_trained(
    rows: pd.DataFrame, audits: pd.DataFrame, setting: Setting, delta: float
) -> pd.DataFrame:
    """The rows of a setting, and those of trained audits, which say how they differ from it."""
    epsilon = proven(rows)
    found = [_trained(audit, setting, epsilon, delta) for audit in audits.itertuples()]
    if not found:
        return rows.assign(allowed=math.nan)
    return pd.concat([rows, pd.DataFrame(found)], ignore_index=True)


def _trained(audit: Any, setting: Setting, epsilon: float, delta: float) -> dict[str, Any]:
    allowed = float(gaussian.epsilon(audit.mu, delta))
    same = not isinstance(setting, Cyclic) and (
        setting.sampling_rate == 1
        and setting.steps == audit.steps
        and math.isclose(setting.noise_multiplier, audit.noise_multiplier, rel_tol=1e-3)
    )
    words = (
        f"this setting: {audit.setting}; its accountant proves {allowed:.3f}"
        if same
        else f"another setting: {audit.setting}, noise multiplier {audit.noise_multiplier:.4g}; "
        f"its accountant proves {allowed:.3f} in place of {epsilon:.3f}"
    )
    return {"group": "trained", "name": audit.audit, "kind": "lower", "assumption": words} | {
        "value": float(gaussian.epsilon_below(audit.mu_bound, delta)),
        "allowed": allowed,
        "confidence": CONFIDENCE,
        "runs": float(audit.models),
    }
