"""Estimates of worst_case_init: what each audit found, and what a perfect one would have."""

from collections.abc import Mapping

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from hiddenstate.accounting import linear
from hiddenstate.auditing import AsPublished, Averaged, GaussianDP
from hiddenstate.papers import Cell
from hiddenstate.papers.worst_case_init import cells
from hiddenstate.papers.worst_case_init.cells import NAME, WorstCaseInitGrid
from hiddenstate.streams import stream

LEVEL = 0.05
METHODS = {
    "as published": (AsPublished(), LEVEL),
    "two-sided": (AsPublished(), LEVEL / 2),
    "valid": (Averaged(), LEVEL),
}
"""Rules and their levels. "95 % confidence (Clopper-Pearson)" may mean one-sided or two-sided
intervals; the former is the main reading."""
SIMULATED = {name: METHODS[name] for name in ("as published", "two-sided")}
"""Methods whose perfect audits are simulated: what publishes is what needs a ceiling."""


def epsilon_of(mu: ArrayLike, delta: float) -> NDArray[np.float64]:
    """Epsilon at ``delta`` of mu-Gaussian differential privacy, rounded down by 1e-9.

    Source: Theorem 1 of the paper (Dong, Roth and Su 2022, corollary 1).
    """
    # Audits of few models share few values.
    values, places = np.unique(np.asarray(mu, dtype=float), return_inverse=True)
    found = np.zeros_like(values)
    found[values > 0] = linear.full_batch_epsilon(1 / values[values > 0], 1.0, 1, delta)
    return np.maximum(0, found - 1e-9)[places].reshape(np.shape(mu))


def mu_of(epsilon: float, delta: float) -> float:
    """The mu whose epsilon at ``delta`` is as given."""
    return 1 / float(linear.last_iterate_noise_multiplier(epsilon, delta, 1.0, 1))


def bound_cells(grid: WorstCaseInitGrid) -> list[Cell]:
    """Ideal audits: each theoretical epsilon with each number of models."""
    asked = {
        (cell.parameters["epsilon"], cell.parameters["models"])
        for cell in cells.train_cells(grid)
        if cell.parameters["models"] > 1
    }
    return [
        Cell(
            f"ideal_eps{cells.short(epsilon)}_models{models}",
            {
                "epsilon": epsilon,
                "models": models,
                "delta": grid.delta,
                "audits": grid.ideal_audits,
            },
        )
        for epsilon, models in sorted(asked)
    ]


def bound(cell: Cell) -> pd.DataFrame:
    """What audits find where the last iterate leaks all that the accountant allows.

    Scores of the full-batch mechanism that releases everything are Gaussian, mu apart; so these are
    simulated. Columns: method, value (an epsilon), one row an audit and method.
    """
    p = cell.parameters
    mu = mu_of(p["epsilon"], p["delta"])
    rng = stream(0, NAME, cell.name)
    shape = (p["audits"], p["models"])
    in_scores, out_scores = rng.normal(mu, 1, shape), rng.normal(0, 1, shape)
    found = {method: _epsilons(method, in_scores, out_scores, p["delta"]) for method in SIMULATED}
    return pd.DataFrame(found).melt(var_name="method", value_name="value")


def _epsilons(method: str, in_scores: NDArray, out_scores: NDArray, delta: float) -> NDArray:
    """A method's bound on mu for each audit, as an epsilon."""
    rule, level = METHODS[method]
    mus, _ = rule.bounds(in_scores, out_scores, GaussianDP(), level)
    return epsilon_of(mus, delta)


def estimate(
    grid: WorstCaseInitGrid,
    scores: Mapping[str, pd.DataFrame],
    bounds: Mapping[str, pd.DataFrame],
) -> pd.DataFrame:
    """Epsilons, accuracy and gradient norm of every audit, for each figure that shows it.

    Quantities: epsilon (of each method and repeat), accuracy (mean over the models), gradient_norm,
    separation (of the worlds' scores, with the mu that the accountant allows as ``most``), and
    ideal_epsilon (of each method: mean over simulated audits, with the range of 90 %).
    """
    audits = {cell.name: _audits(cell, scores[cell.name]) for cell in cells.train_cells(grid)}
    rows = []
    for figure, sweeps in cells.figures(grid).items():
        for sweep in sweeps:
            for cell in cells.cells_of(grid, sweep):
                shared = {"figure": figure, "task": sweep.task} | _described(cell)
                rows += [shared | row for row in audits[cell.name]]
    for cell in bound_cells(grid):
        shared = {"cell": cell.name, "quantity": "ideal_epsilon"} | cell.parameters
        for method, part in bounds[cell.name].groupby("method", sort=False):
            low, high = part["value"].quantile([0.05, 0.95])
            row = {"method": method, "value": part["value"].mean(), "low": low, "high": high}
            rows.append(shared | row | {"kind": "estimate", "deviation": part["value"].std()})
    return pd.DataFrame(rows)


def _described(cell: Cell) -> dict:
    """The factors that figures and claims tell cells apart by."""
    p = cell.parameters
    factors = ("records", "private", "clipping_norm", "steps", "learning_rate", "epsilon", "delta")
    stages = p["start"]["stages"]
    return {
        "cell": cell.name,
        **{factor: p[factor] for factor in (*factors, "models")},
        "epochs": stages[-1]["epochs"] if stages else 0,
        "case": "worst" if stages else "average",
    }


def _audits(cell: Cell, scores: pd.DataFrame) -> list[dict]:
    """What the repeats of an audit say, one row a repeat and quantity."""
    rows = []

    def record(quantity: str, method: str, values, **more) -> None:
        shared = {"quantity": quantity, "method": method, "kind": "estimate"} | more
        rows.extend(
            shared | {"repeat": repeat, "value": value} for repeat, value in enumerate(values)
        )

    by_repeat = scores.groupby("repeat")
    for name in ("accuracy", "gradient_norm"):
        record(name, "mean", by_repeat[name].mean())
    if cell.parameters["models"] == 1:
        return rows
    ordered = scores.sort_values(["repeat", "run"])
    shape = (cell.parameters["repeats"], cell.parameters["models"])
    worlds = [
        ordered.loc[ordered["world"] == world, "score"].to_numpy().reshape(shape)
        for world in ("in", "out")
    ]
    epsilon, delta = cell.parameters["epsilon"], cell.parameters["delta"]
    for method, (rule, level) in METHODS.items():
        valid = {"kind": "lower", "confidence": 1 - level} if rule.valid else {}
        record("epsilon", method, _epsilons(method, *worlds, delta), **valid)
    record("separation", "mean", _separations(*worlds), most=mu_of(epsilon, delta))
    return rows


def _separations(in_scores: NDArray, out_scores: NDArray) -> NDArray:
    """Difference of the worlds' means over their standard deviation, for each audit.

    Of a mechanism that is mu-Gaussian differentially private and releases scores with Gaussian
    noise it is about mu at most. Other scores may exceed mu: it tells tight from loose, no more.
    """
    variance = (in_scores.var(axis=1, ddof=1) + out_scores.var(axis=1, ddof=1)) / 2
    return (in_scores.mean(axis=1) - out_scores.mean(axis=1)) / np.sqrt(variance)
