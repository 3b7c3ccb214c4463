"""Estimates of estimators: how often each one claims too much, and the power against bugs."""

import math
from itertools import product
from typing import Any

import numpy as np
import pandas as pd

from hiddenstate.auditing import Averaged, GaussianDP, worlds
from hiddenstate.auditing.intervals import clopper_pearson_upper
from hiddenstate.auditing.methods import REPEATABLE
from hiddenstate.papers.estimators import bugs
from hiddenstate.papers.estimators.cells import (
    LEVEL,
    Composed,
    EstimatorsGrid,
    Setting,
    calibrated,
    detected,
    sequenced,
)
from hiddenstate.pipeline.estimates import select
from hiddenstate.pipeline.family import Made


def estimate(grid: EstimatorsGrid, scores: Made, bounds: Made) -> pd.DataFrame:
    """Exceedance and median of every estimator; power against every bug; models saved."""
    cells = [table.assign(cell=cell.name) for cell, table in bounds.of(calibrated)]
    found = pd.concat(cells, ignore_index=True).assign(kind="estimate")
    shares = [_share(c, n) for c, n in zip(found["exceeding"], found["audits"], strict=True)]
    exceedance = found.assign(quantity="exceedance", **pd.DataFrame(shares))
    ((_, zoo),) = scores.of(detected)
    power = pd.DataFrame(_power(grid, zoo))
    sequential = pd.concat(_sequential(t, cell.name) for cell, t in bounds.of(sequenced))
    parts = [exceedance, found.assign(quantity="median"), power, sequential]
    return pd.concat(parts, ignore_index=True).drop(columns="exceeding")


def _sequential(stopped: pd.DataFrame, cell: str) -> pd.DataFrame:
    """Models used, with 95 % normal intervals, and share of audits that refute."""
    rows = stopped.drop(columns=["refuted", "models", "error"]).assign(cell=cell, kind="estimate")
    room = 1.96 * stopped["error"]
    used = {"value": stopped["models"], "low": stopped["models"] - room, "confidence": 0.95}
    models = rows.assign(quantity="models used", high=stopped["models"] + room, **used)
    shares = [_share(c, n) for c, n in zip(stopped["refuted"], stopped["audits"], strict=True)]
    refuted = rows.assign(quantity="refuted", **pd.DataFrame(shares))
    return pd.concat([models, refuted], ignore_index=True)


def _share(count: int, n: int) -> dict[str, float]:
    """A share with its two-sided 95 % Clopper-Pearson interval."""
    return {
        "audits": n,
        "value": count / n,
        "low": 1 - float(clopper_pearson_upper(n - count, n, 0.025)),
        "high": float(clopper_pearson_upper(count, n, 0.025)),
        "confidence": 0.95,
    }


def _power(grid: EstimatorsGrid, zoo: pd.DataFrame) -> list[dict[str, Any]]:
    """Share of audits of n models per data set that contradict the claim, disjoint models each."""
    rows: dict[str, list[dict[str, Any]]] = {name: [] for name in bugs.BUGS}
    row: dict[str, Any]
    audited, claims = {}, {}
    for name, bug in bugs.BUGS.items():
        audited[name] = worlds(select(zoo, bug=name))
        claims[name] = _claim(bug.setup)
    # All claims at one number of models: they share what the bound simulates for it.
    for n, (name, bug) in product(grid.ladder, bugs.BUGS.items()):
        into, out = audited[name]
        hypotheses, truth, _ = claims[name]
        audits = min(len(into) // n, 200)
        if audits == 0:
            continue
        claim = int(np.argmin(np.abs(hypotheses.grid - truth)))
        ins, outs = (world[: audits * n].reshape(audits, n) for world in (into, out))
        found = REPEATABLE.contradicts(ins, outs, hypotheses, LEVEL, claim)
        row = {"quantity": "power", "cell": name, "method": Averaged.name, "kind": "estimate"}
        row |= {"x": n, "valid": True, "bug": bug.title, "truth": bug.leak}
        rows[name].append(row | _share(int(found.sum()), audits))
    return [row for ladder in rows.values() for row in ladder]


def _claim(setup: bugs.Setup) -> Setting:
    if setup.sampling_rate == 1:
        return Setting(GaussianDP(), math.sqrt(setup.steps) / setup.noise_multiplier, 0.0)
    mechanism = {name: getattr(setup, name) for name in Composed.model_fields if name != "null"}
    return Composed(**mechanism).setting


def required(power: pd.DataFrame) -> float:
    """Smallest number of models from which on the power is at least 0.9; infinite if none."""
    below = power.loc[power["value"] < 0.9, "x"]
    above = power.loc[power["x"] > (below.max() if len(below) else 0), "x"]
    return float(above.min()) if len(above) else math.inf
