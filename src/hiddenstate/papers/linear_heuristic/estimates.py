"""Estimates of linear_heuristic: the accountant's rows, and what the audits find."""

from collections.abc import Mapping

import numpy as np
import pandas as pd

from hiddenstate.accounting.tradeoff import TradeoffCurve
from hiddenstate.auditing.audit import lower_bound
from hiddenstate.auditing.families import ApproxDP, Tabulated
from hiddenstate.auditing.rules import AsPublished, UniformBand
from hiddenstate.papers.linear_heuristic.cells import ATTACKS, LinearHeuristicGrid

CONFIDENCE = 0.95
TAIL = 0.975
"""Each tail of a two-sided 95 % interval, as published."""


def estimate(
    grid: LinearHeuristicGrid,
    scores: Mapping[str, pd.DataFrame],
    bounds: Mapping[str, pd.DataFrame],
) -> pd.DataFrame:
    """The accountant's rows, and what the audits find of every attack."""
    parts = [frame[frame["quantity"] != "fnr"] for frame in bounds.values()]
    audits = grid.audits
    for rate in audits.sampling_rates:
        families = _families(bounds[f"audits_q{rate:g}"], audits.delta)
        for attack in ATTACKS:
            name = f"{attack}_q{rate:g}"
            for steps, runs in scores[name].groupby("steps"):
                rows = _audit(
                    runs, families[steps], "heuristic" if attack == "gradient" else "standard"
                )
                parts.append(rows.assign(cell=name, x=steps, steps=steps, sampling_rate=rate))
    (families,) = _families(bounds["history"], grid.history.delta).values()
    for growth, runs in scores["history"].groupby("growth"):
        parts.append(_audit(runs, families, "standard").assign(cell="history", x=growth))
    return pd.concat(parts, ignore_index=True)


def _families(bounds: pd.DataFrame, delta: float) -> dict[int, dict]:
    """By number of steps: what an audit can be matched to, by name."""
    families: dict[int, dict] = {}
    rows = bounds[bounds["quantity"] == "fnr"]
    for (steps, name), part in rows.groupby(["steps", "method"]):
        curves = {
            epsilon: TradeoffCurve(curve["x"].to_numpy(), curve["value"].to_numpy())
            for epsilon, curve in part.groupby("epsilon")
        }
        families.setdefault(steps, {"direct": ApproxDP(delta)})[name] = Tabulated(
            "epsilon", list(curves), list(curves.values())
        )
    return families


def _audit(runs: pd.DataFrame, families: Mapping, matched: str) -> pd.DataFrame:
    """Epsilon by every estimator, from the scores of one mechanism."""
    worlds = {world: part["score"].to_numpy() for world, part in runs.groupby("world")}
    both = (worlds["in"], worlds["out"])

    def published(family) -> float:
        return lower_bound(*both, family, AsPublished(), confidence=TAIL).value

    def valid(family) -> float:
        return lower_bound(*both, family, UniformBand(), confidence=CONFIDENCE).value

    rows = [
        ("as published", "estimate", published(families[matched]), np.nan),
        ("lower bound", "lower", valid(families[matched]), CONFIDENCE),
        ("lower bound, direct", "lower", valid(families["direct"]), CONFIDENCE),
    ]
    if matched == "heuristic":
        # What composition's curves would make of a sum: no statement on the last iterate.
        rows.append(("as published, standard", "estimate", published(families["standard"]), np.nan))
    frame = pd.DataFrame(rows, columns=["method", "kind", "value", "confidence"])
    first = runs.iloc[0]
    return frame.assign(
        quantity="epsilon",
        noise_multiplier=first["noise_multiplier"],
        threshold=first.get("threshold", np.nan),
    )


def pick(estimates: pd.DataFrame, cell: str, method: str, quantity: str = "epsilon"):
    """Rows of one curve, by x."""
    rows = estimates[(estimates["cell"] == cell) & (estimates["method"] == method)]
    return rows[rows["quantity"] == quantity].sort_values("x")


def named(estimates: pd.DataFrame, start: str) -> list[str]:
    """Cells whose names start like that."""
    return [name for name in estimates["cell"].unique() if name.startswith(start)]
