"""Estimates of linear_heuristic: the accountant's rows, and what the audits find."""

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pandas as pd

from hiddenstate.accounting import linear
from hiddenstate.auditing import ApproxDP, AsPublished, Tabulated, lower_bound, worlds
from hiddenstate.auditing.kept_curves import read_curve
from hiddenstate.auditing.methods import CONFIDENCE, PUBLISHED, REPEATABLE
from hiddenstate.auditing.rules import LowerBoundRule
from hiddenstate.papers.linear_heuristic import cells, expected_cells
from hiddenstate.papers.linear_heuristic.cells import TrainedAudit
from hiddenstate.papers.linear_heuristic.expected_cells import ExpectingGrid
from hiddenstate.papers.linear_heuristic.grid import (
    AuditCurves,
    AuditRuns,
    HistoryCurves,
    HistoryRuns,
    Setting,
)
from hiddenstate.papers.linear_heuristic.ideal import ONE_SIDED, audited, tabulated
from hiddenstate.papers.linear_heuristic.simulations import ATTACKS
from hiddenstate.pipeline.estimates import select
from hiddenstate.pipeline.family import Made

Matched = Mapping[str, ApproxDP | Tabulated]
"""What an audit can be matched to, by name."""


def estimate(grid: ExpectingGrid, scores: Made, bounds: Made) -> pd.DataFrame:
    """The accountant's rows, and what the audits find of every attack."""
    setting = {
        "quadratic": grid.quadratic.model_dump(exclude={"points"}),
        "schedules": grid.schedules.model_dump(exclude={"points", "steps"}),
        "history": grid.history.model_dump(include=set(Setting.model_fields)),
    }
    parts = [
        rows[rows["quantity"] != "fnr"].assign(cell=cell.name, **setting.get(cell.name, {}))
        for cell, rows in bounds.every()
    ]
    matched = {
        rate: _matched(table, cell.parameters.delta)
        for cell, table in bounds.of(cells.audited("audits", AuditCurves))
        for rate in cell.parameters.sampling_rates
    }
    for attack in ATTACKS:
        curves = "heuristic" if attack == "gradient" else "standard"
        for cell, drawn in scores.of(cells.audited(attack, AuditRuns)):
            (rate,) = cell.parameters.sampling_rates
            for steps, runs in drawn.groupby("steps"):
                rows = _audit(runs, matched[rate][steps], curves)
                parts.append(rows.assign(cell=cell.name, x=steps, steps=steps, sampling_rate=rate))
    ((_, table),) = bounds.of(cells.keeps_history(HistoryCurves))
    (composition,) = _matched(table, grid.history.delta).values()
    ((kept, drawn),) = scores.of(cells.keeps_history(HistoryRuns))
    for growth, runs in drawn.groupby("growth"):
        parts.append(_audit(runs, composition, "standard").assign(cell=kept.name, x=growth))
    models = {cell.parameters: runs for cell, runs in scores.of(cells.trained)}
    accounted = {cell.name: table for cell, table in bounds.of(cells.trained_curves)}
    for figure, audits in cells.trained_audits(grid).items():
        for audit in audits:
            rows = _trained(audit, models.get(audit), accounted[f"trained_{audit.name}"])
            parts.append(rows.assign(figure=figure))
    real = {cells.trained_name(audit): runs for audit, runs in models.items()}
    parts.append(pd.DataFrame(_expected(grid, scores, real, accounted)))
    return pd.concat(parts, ignore_index=True)


def _expected(
    grid: ExpectingGrid,
    scores: Made,
    real: Mapping[str, pd.DataFrame],
    accounted: Mapping[str, pd.DataFrame],
) -> Iterator[dict[str, Any]]:
    """Expected audits: the mean epsilon over the starts, and the one for a hidden start.

    Each has its standard error, and ``noise``, ``batches`` and ``start`` are shares of the variance
    of the scores. Where there are real audits beside them also: ``observed``, their published
    estimate, and the range ``least`` to ``most`` of 90 % of simulated ones at the epsilon for a
    hidden start; the difference of the mean scores, ``shift`` and ``observed shift``, with errors;
    and ``spread``, the deviation of the scores over the observed one.
    """
    for cell, table in scores.of(expected_cells.expected):
        for audit in cell.parameters.trainings:
            name = cells.trained_name(audit)
            rows = table[table["audit"] == name]
            mean, n = rows.mean(numeric_only=True), len(rows)
            error = rows[["epsilon", "shift"]].std() / math.sqrt(n)
            parts = rows[["deviation", "batch deviation", "start deviation"]].pow(2).mean()
            known = ["heuristic", "standard", "noise_multiplier", "negative"]
            row = mean[known].to_dict() | {
                "quantity": "epsilon", "method": "expected", "kind": "expected", "cell": name,
                "figure": "expected", "shown": cell.parameters.figure, "attack": audit.attack,
                "network": f"{audit.dataset}, {audit.model}, n = {audit.records:,}",
                "x": audit.steps, "steps": audit.steps, "sampling_rate": audit.sampling_rate,
                "batch": round(audit.sampling_rate * audit.records), "delta": audit.delta,
                "value": mean["epsilon"], "error": error["epsilon"], "starts": n,
                "hidden": mean["hidden"],
                "hidden error": rows["without"].std(ddof=0) * math.sqrt(n - 1),  # jackknife
                "shift": mean["shift"], "shift error": error["shift"],
                **dict(zip(("noise", "batches", "start"), parts / parts.sum(), strict=True)),
            }  # fmt: skip
            if name in real:
                curves = _matched(accounted[f"trained_{audit.name}"], audit.delta)[audit.steps]
                law = mean["hidden"], math.sqrt(parts.sum())
                row |= _beside(audit, *law, real[name], curves["heuristic"], grid)
            yield row


def _beside(
    audit: expected_cells.Training,
    epsilon: float,
    deviation: float,
    runs: pd.DataFrame,
    curves: ApproxDP | Tabulated,
    grid: ExpectingGrid,
) -> dict[str, float]:
    """A real audit beside the expected one of this epsilon, and deviation of the scores."""
    inside, outside = worlds(runs)
    n, audits = len(inside), grid.training.ideal_audits
    mechanism = audit.sampling_rate, audit.steps
    noise = float(linear.last_iterate_noise_multiplier(epsilon, audit.delta, *mechanism))
    name = cells.trained_name(audit)
    law = audited((noise, *mechanism), curves, audits, n, 0, "law", name)
    least, most = np.quantile(law, [0.05, 0.95])
    observed = lower_bound(inside, outside, curves, AsPublished(), confidence=ONE_SIDED)
    return {
        "least": least,
        "most": most,
        "observed": observed.value,
        "observed shift": inside.mean() - outside.mean(),
        "observed shift error": math.sqrt((inside.var(ddof=1) + outside.var(ddof=1)) / n),
        "spread": deviation / math.sqrt((inside.var(ddof=1) + outside.var(ddof=1)) / 2),
    }


def _trained(audit: TrainedAudit, runs: pd.DataFrame | None, bounds: pd.DataFrame) -> pd.DataFrame:
    """Results of audits of trained models, their accuracy, and the accountants' epsilons.

    Without the models' scores (None) the accountants' alone.

    Nothing proves that the last iterate leaks as one of the heuristic's trade-off functions: a
    bound matched to them says at which noise linear losses leak as much, and contradicts the
    heuristic where it is above it.
    """
    parts = [bounds[bounds["quantity"] == "epsilon"]]
    if runs is not None:
        accuracy = {"quantity": "accuracy", "method": "mean", "kind": "estimate"}
        accuracy |= {"value": runs["accuracy"].mean(), "error": runs["accuracy"].sem()}
        accuracy["dataset"] = audit.dataset
        parts += [
            _audit(runs, _matched(bounds, audit.delta)[audit.steps], "heuristic"),
            pd.DataFrame([accuracy]),
        ]
    return pd.concat(parts).assign(
        cell=cells.trained_name(audit),
        attack=audit.attack,
        x=audit.steps,
        steps=audit.steps,
        sampling_rate=audit.sampling_rate,
        noise_multiplier=bounds["noise_multiplier"].iloc[0],
        batch=round(audit.sampling_rate * audit.records),
    )


def _matched(bounds: pd.DataFrame, delta: float) -> dict[int, Matched]:
    """Curves that audits can be matched to, by number of steps."""
    matched: dict[int, dict[str, ApproxDP | Tabulated]] = {}
    for (steps, name), part in select(bounds, quantity="fnr").groupby(["steps", "method"]):
        curves = part.groupby("epsilon")
        table = tabulated((name, e, read_curve(curve, "x", "value")) for e, curve in curves)
        matched.setdefault(steps, {"direct": ApproxDP(delta)})[name] = table
    return {**matched}


def _audit(runs: pd.DataFrame, matched: Matched, curves: str) -> pd.DataFrame:
    """Epsilon by every estimator, from the scores of one mechanism."""
    inside, outside = worlds(runs)
    estimators: list[tuple[str, str, str, LowerBoundRule, float]] = [
        # Departure linear_heuristic.estimator_curves: the cited audit has composed curves.
        (PUBLISHED, "estimate", curves, AsPublished(), ONE_SIDED),
        ("lower bound", "lower", curves, REPEATABLE, CONFIDENCE),
        ("lower bound, direct", "lower", "direct", REPEATABLE, CONFIDENCE),
    ]
    if curves == "heuristic":
        # What composition's curves would make of a sum: no statement on the last iterate.
        estimators.append(
            (f"{PUBLISHED}, standard", "estimate", "standard", AsPublished(), ONE_SIDED)
        )
    first = runs.iloc[0]
    return pd.DataFrame(
        {
            "method": method,
            "kind": kind,
            "value": lower_bound(inside, outside, matched[to], rule, confidence=confidence).value,
            "confidence": confidence if kind == "lower" else np.nan,
        }
        for method, kind, to, rule, confidence in estimators
    ).assign(
        quantity="epsilon",
        noise_multiplier=first["noise_multiplier"],
        threshold=first.get("threshold", np.nan),
    )


def curve(estimates: pd.DataFrame, cell: str, method: str, quantity: str = "epsilon") -> pd.Series:
    """Values of one curve by x, ascending."""
    rows = select(estimates, cell=cell, method=method, quantity=quantity)
    return rows.set_index("x")["value"].sort_index()


def trained(estimates: pd.DataFrame, *figures: str, **values: Any) -> pd.DataFrame:
    """Audits of trained models that the figures show, one row each, a column for each method.

    Beside the epsilons of the methods: attack, sampling_rate, noise_multiplier, steps, batch, the
    range "least" to "most" of ideal audits, and accuracy with its standard error.
    """
    rows = select(estimates, figure=list(figures), **values)
    index = ["figure", "attack", "sampling_rate", "noise_multiplier", "steps", "batch"]
    # Which audit a row is of: one number in place of six is aligned much faster.
    rows = rows.set_index(rows.groupby(index, sort=False, dropna=False).ngroup().to_numpy())
    wide = {
        name: part[column]
        for method, part in select(rows, quantity="epsilon").groupby("method")
        for name, column in (
            [("ideal", "value"), ("least", "low"), ("most", "high")]
            if method == "ideal"
            else [(method, "value")]
        )
    }
    accuracy = select(rows, quantity="accuracy")
    wide |= {"accuracy": accuracy["value"], "accuracy error": accuracy.get("error", math.nan)}
    audits = select(rows, method="heuristic")[index]
    return audits.assign(**wide).reset_index(drop=True)


def expected(estimates: pd.DataFrame, *figures: str) -> pd.DataFrame:
    """Expected audits that the figures show, one row each; ``own``: beside real ones."""
    rows = select(estimates, figure="expected")
    # A scale without any has no column of theirs.
    rows = rows.reindex(columns=list(dict.fromkeys([*rows, "shown", "network"])))
    rows = select(rows.astype({"network": str}), shown=list(figures))
    return rows.assign(own=rows["cell"].isin(select(estimates, figure=list(figures))["cell"]))


def named(estimates: pd.DataFrame, start: str) -> list[str]:
    """Cells whose names start like that."""
    return [name for name in estimates["cell"].unique() if name.startswith(start)]
