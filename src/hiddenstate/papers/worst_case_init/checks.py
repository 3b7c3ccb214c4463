"""What the claims of worst_case_init measure, from its estimates."""

import numpy as np
import pandas as pd
from scipy import stats

from hiddenstate.papers import Measurement
from hiddenstate.papers.worst_case_init.figures import audits, ideal
from hiddenstate.papers.worst_case_init.stated import STATED

PUBLISHED = ("epsilon", "as published")


def check_ordering(estimates: pd.DataFrame) -> Measurement | None:
    """Worst case above average case, the ranges of one standard deviation disjoint."""
    words, holds = [], True
    for task, epsilon, average, worst in _cases(estimates, "figure1"):
        if epsilon < 4:
            continue
        holds &= bool(worst["mean"] - worst["sd"] > average["mean"] + average["sd"])
        words.append(f"{task}, epsilon {epsilon:g}: {_pm(average)} average, {_pm(worst)} worst")
    if not words:
        return None
    return Measurement("; ".join(words), "mean ± sd over the repeats disjoint", holds)


def check_last_layer_gap(estimates: pd.DataFrame) -> Measurement | None:
    """At the largest epsilon initial parameters matter less for a last layer than for a model."""
    gaps = {}
    for figure in ("figure1", "figure5"):
        cases = list(_cases(estimates, figure))
        if not cases:
            return None
        top = max(epsilon for _, epsilon, _, _ in cases)
        found = [worst["mean"] - average["mean"] for _, e, average, worst in cases if e == top]
        gaps[figure] = min(found)
    return Measurement(
        f"worst minus average case: {gaps['figure5']:.2f} for the last layer, "
        f"{gaps['figure1']:.2f} or more for all layers",
        "a smaller difference of means",
        bool(gaps["figure5"] < gaps["figure1"]),
    )


def _cases(estimates: pd.DataFrame, figure: str):
    """(task, epsilon, average case, worst case) of the audits that have both."""
    found = audits(estimates, figure, *PUBLISHED)
    for (task, epsilon), part in found.groupby(["task", "epsilon"], sort=False):
        cases = part.set_index("case")
        if {"average", "worst"} <= set(cases.index):
            yield task, epsilon, cases.loc["average"], cases.loc["worst"]


def _pm(row) -> str:
    return f"{row['mean']:.2f} ± {row['sd']:.2f}"


def check_pretraining(estimates: pd.DataFrame) -> Measurement | None:
    """The gradient norm falls with every epoch; epsilon is higher after the last than before."""
    found = audits(estimates, "figure2", *PUBLISHED).sort_values("epochs")
    if len(found) < 2:
        return None
    norms = audits(estimates, "figure2", "gradient_norm", "mean").sort_values("epochs")["mean"]
    first, last = found.iloc[0], found.iloc[-1]
    falls = bool(np.all(np.diff(norms) < 0))
    rises = bool(last["mean"] - last["sd"] > first["mean"] + first["sd"])
    return Measurement(
        f"norm {norms.iloc[0]:.2f} to {norms.iloc[-1]:.2f}, "
        f"{'falling throughout' if falls else 'not always falling'}; "
        f"epsilon {_pm(first)} to {_pm(last)}",
        "norm falls with every epoch; first and last epsilon ± sd disjoint",
        falls and rises,
    )


def check_records(estimates: pd.DataFrame) -> Measurement | None:
    """At the largest epsilon the mean falls from each number of records to the next."""
    found = audits(estimates, "figure3", *PUBLISHED)
    words, holds = [], True
    for task, part in found.groupby("task", sort=False):
        line = part[part["epsilon"] == part["epsilon"].max()].sort_values("records")
        if len(line) < 2:
            continue
        holds &= bool(np.all(np.diff(line["mean"]) < 0))
        values = ", ".join(f"{_pm(row)} at n = {row['records']:,.0f}" for _, row in line.iterrows())
        words.append(f"{task}: {values}")
    if not words:
        return None
    return Measurement("; ".join(words), "means fall as n grows, at the largest epsilon", holds)


def check_clipping(estimates: pd.DataFrame) -> Measurement | None:
    """At the largest epsilon and C = 10 epsilon and accuracy are below those at C = 1."""
    found = audits(estimates, "figure4", *PUBLISHED)
    accuracy = audits(estimates, "figure4", "accuracy", "mean")
    words, holds = [], True
    for task, part in found.groupby("task", sort=False):
        top = part["epsilon"].max()
        line = part[part["epsilon"] == top].set_index("clipping_norm")
        if not {1.0, 10.0} <= set(line.index):
            continue
        right = accuracy[(accuracy["task"] == task) & (accuracy["epsilon"] == top)]
        right = right.set_index("clipping_norm")["mean"]
        looser = line.loc[10.0, "mean"] + line.loc[10.0, "sd"] < line.loc[1.0, "mean"]
        holds &= bool(looser and right[10.0] < right[1.0])
        words.append(
            f"{task}, epsilon {top:g}: {_pm(line.loc[1.0])} and {100 * right[1.0]:.1f} % at C = 1, "
            f"{_pm(line.loc[10.0])} and {100 * right[10.0]:.1f} % at C = 10"
        )
    if not words:
        return None
    return Measurement(
        "; ".join(words), "mean + sd at C = 10 below the mean at C = 1, and less accurate", holds
    )


def check_last_layer(estimates: pd.DataFrame) -> Measurement | None:
    """At the largest epsilon the worst case finds what a perfect audit would publish."""
    found = audits(estimates, "figure5", *PUBLISHED)
    found = found[(found["case"] == "worst") & (found["epsilon"] == found["epsilon"].max())]
    if len(found) == 0:
        return None
    words, within, holds = [], [], True
    for _, row in found.iterrows():
        best = ideal(estimates, row["models"]).set_index("epsilon").loc[row["epsilon"]]
        # The mean of as many perfect audits would lie within three of its standard errors.
        most = 3 * best["deviation"] / np.sqrt(row["n"])
        holds &= bool(abs(row["mean"] - best["value"]) <= most)
        words.append(
            f"{row['task']}: {_pm(row)} of epsilon {row['epsilon']:g}; a perfect audit publishes "
            f"{best['value']:.2f}"
        )
        within.append(f"{most:.2f}")
    return Measurement(
        "; ".join(words),
        f"within {', '.join(within)}: three standard errors of the mean of as many perfect audits",
        holds,
    )


def check_last_layer_factors(estimates: pd.DataFrame) -> Measurement | None:
    """At the largest epsilon neither clipping norm nor number of records moves the mean much."""
    found = audits(estimates, "figure7", *PUBLISHED)
    if len(found) < 2:
        return None
    found = found[found["epsilon"] == found["epsilon"].max()]
    words = [
        f"C = {row['clipping_norm']:g}, n = {row['records']:,.0f}: {_pm(row)}"
        for _, row in found.iterrows()
    ]
    spread = found["mean"].max() - found["mean"].min()
    most = 2 * found["sd"].max()
    return Measurement(
        "; ".join(words), f"means within {most:.2f}, two of the largest sd", bool(spread <= most)
    )


def stated_check(figure: str, task: str, method: str = "as published"):
    """Every mean that the paper states lies within one standard deviation of ours."""

    def check(estimates: pd.DataFrame) -> Measurement | None:
        values = STATED[
            (STATED["figure"] == figure) & (STATED["task"] == task) & (STATED["quantity"] == "mean")
        ].dropna(axis=1, how="all")
        factors = [name for name in values if name not in ("figure", "quantity", "value")]
        both = audits(estimates, figure, "epsilon", method).merge(
            values.drop(columns=["figure", "quantity"]), on=factors
        )
        if len(both) == 0:
            return None
        inside = (both["mean"] - both["value"]).abs() <= both["sd"]
        words = [_one(row, factors) for _, row in both.iterrows()]
        return Measurement("; ".join(words), "within our sd over the repeats", bool(inside.all()))

    return check


def _one(row: pd.Series, factors: list[str]) -> str:
    varies = [name for name in factors if name not in ("task", "epsilon")]
    levels = {name: row[name] if name == "case" else f"{row[name]:g}" for name in varies}
    where = ", ".join(f"{name} {level}" for name, level in levels.items())
    return f"epsilon {row['epsilon']:g}, {where}: {_pm(row)} (paper: {row['value']:.2f})"


def check_valid(estimates: pd.DataFrame) -> Measurement | None:
    """No more of the valid bounds exceed the theoretical epsilon than 95 % confidence allows."""
    rows = estimates[(estimates["quantity"] == "epsilon") & (estimates["kind"] == "lower")]
    rows = rows.drop_duplicates(["cell", "repeat"])
    if len(rows) == 0:
        return None
    above = int((rows["value"] > rows["epsilon"]).sum())
    most = int(stats.binom.isf(1e-3, len(rows), 0.05))
    return Measurement(
        f"{above} of {len(rows)} bounds above the theoretical epsilon",
        f"at most {most} (5 % of them, with a false alarm in 0.1 % of such runs)",
        above <= most,
    )
