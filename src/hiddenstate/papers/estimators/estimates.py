"""Estimates of estimators: how often each one claims too much, and the power against mistakes."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from hiddenstate.auditing import Averaged, GaussianDP
from hiddenstate.auditing.hypotheses import Hypotheses as Curves
from hiddenstate.auditing.intervals import clopper_pearson_upper
from hiddenstate.dpsgd import mistakes
from hiddenstate.estimates import select
from hiddenstate.papers.estimators.cells import (
    LEVEL,
    STEP,
    Composed,
    EstimatorsGrid,
    calibrated,
)


def estimate(
    grid: EstimatorsGrid, scores: Mapping[str, pd.DataFrame], bounds: Mapping[str, pd.DataFrame]
) -> pd.DataFrame:
    """Exceedance and tightness of every estimator; power against every mistake."""
    rows = []
    for cell in calibrated(grid):
        groups = bounds[cell.name].groupby(["scores", "method", "valid"], sort=False)
        for (n, method, valid), part in groups:
            shared = {
                "cell": cell.name,
                "method": method,
                "valid": valid,
                "parameter": part["parameter"].iloc[0],
                "truth": part["truth"].iloc[0],
                "x": n,
                "kind": "estimate",
            }
            rows.append({**shared, "quantity": "exceedance"} | _share(part["exceeds"]))
            for quantity in ("value", "tightness"):
                low, middle, high = part[quantity].quantile([0.1, 0.5, 0.9])
                rows.append(
                    {**shared, "quantity": f"median_{quantity}", "value": middle}
                    | {"low": low, "high": high}
                )
    return pd.DataFrame(rows + _power(grid, scores))


def _share(found: pd.Series | NDArray[np.bool_]) -> dict[str, float]:
    """A share with its two-sided 95 % Clopper-Pearson interval."""
    n, count = len(found), int(np.sum(found))
    return {
        "audits": n,
        "value": count / n,
        "low": 1 - float(clopper_pearson_upper(n - count, n, 0.025)),
        "high": float(clopper_pearson_upper(count, n, 0.025)),
        "confidence": 0.95,
    }


def _power(grid: EstimatorsGrid, scores: Mapping[str, pd.DataFrame]) -> list[dict[str, Any]]:
    """Share of audits of n models per world that contradict the claim, disjoint models each."""
    zoo = scores["mistakes"]
    rows = []
    for name, mistake in mistakes.MISTAKES.items():
        runs = select(zoo, mistake=name)
        worlds = {w: part["score"].to_numpy() for w, part in runs.groupby("world")}
        curves, claim = _claim(mistake.setup)
        for n in grid.ladder:
            audits = min(len(worlds["in"]) // n, 200)
            if audits == 0:
                continue
            in_scores, out_scores = (
                worlds[w][: audits * n].reshape(audits, n) for w in ("in", "out")
            )
            found = Averaged().contradicts(in_scores, out_scores, curves, LEVEL, claim)
            rows.append(
                {
                    "quantity": "power",
                    "cell": name,
                    "method": Averaged.name,
                    "kind": "estimate",
                    "x": n,
                    "valid": True,
                    "mistake": mistake.title,
                    "truth": mistake.leak,
                }
                | _share(found)
            )
    return rows


def _claim(setup: mistakes.Setup) -> tuple[Curves, int]:
    """What the accountant says of a setup: curves, and the index of the claim among them."""
    if setup.sampling_rate == 1:
        curves: Curves = GaussianDP(limit=10, step=STEP)
        truth = math.sqrt(setup.steps) / setup.noise_multiplier
    else:
        curves = Composed(**vars(setup)).curves
        truth = setup.noise_multiplier
    return curves, int(np.argmin(np.abs(curves.grid - truth)))


def required(power: pd.DataFrame, share: float = 0.9) -> float:
    """Smallest number of models from which on the power is at least ``share``; infinite if none."""
    below = power.loc[power["value"] < share, "x"]
    above = power.loc[power["x"] > (below.max() if len(below) else 0), "x"]
    return float(above.min()) if len(above) else math.inf
