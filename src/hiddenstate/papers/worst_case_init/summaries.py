"""Summaries of the audits over their repeats, of which figures, tables and checks are made."""

import math
from typing import Any

import numpy as np
import pandas as pd

from hiddenstate.auditing.methods import PUBLISHED
from hiddenstate.pipeline.estimates import select, summarise

AUDIT = [
    *("task", "case", "epochs", "records", "clipping_norm", "steps", "learning_rate"),
    *("epsilon", "delta", "models", "planned"),
]
"""What tells audits apart; ``planned`` is the number of repeats that each should have."""
MECHANISM = [name for name in AUDIT if name != "planned"]
"""What tells apart what is audited, however many repeats there are."""


def summary(
    estimates: pd.DataFrame, figure: str, quantity: str, method: str, **levels: object
) -> pd.DataFrame:
    """Mean, sd, maximum and number n over the repeats of each audit that a figure shows."""
    rows = select(estimates, figure=figure, quantity=quantity, method=method, **levels)
    return summarise(rows, AUDIT)


def ideal(estimates: pd.DataFrame, **levels: object) -> pd.DataFrame:
    """Published results of audits where everything leaks, by epsilon and number of models."""
    rows = select(estimates, quantity="ideal_epsilon", method=PUBLISHED, **levels)
    return rows.sort_values("epsilon")


def planned(estimates: pd.DataFrame, figure: str, **levels: object) -> pd.DataFrame:
    """Every audit of a figure, with the number n of its repeats that are there."""
    audits = select(estimates, figure=figure, quantity="repeats", **levels)
    return audits.rename(columns={"value": "n"})


def either(estimates: pd.DataFrame, single: str, figure: str, **levels: object) -> str:
    """The sweeps of single models where there are any of these levels, else the figure's audits."""
    return single if len(planned(estimates, single, **levels)) else figure


def groups(audits: pd.DataFrame, *varied: str) -> list[tuple[dict[str, Any], pd.DataFrame]]:
    """Audits that differ in what is varied alone, each group with the levels that it shares."""
    by = [name for name in MECHANISM if name not in varied]
    return [(dict(zip(by, key, strict=True)), part) for key, part in audits.groupby(by, sort=False)]


def separations(estimates: pd.DataFrame) -> pd.DataFrame:
    """Expected audits with normal scores: the mean separation of each point over its starts.

    Columns beside ``AUDIT``: mean (half-way between the ends that the scores' deviation leaves), n
    (starts), most, norm, cosine, scatter (standard deviation between starts), error (of the mean)
    with its freedom. The scatter is relative to the mean and the same at all points of a task with
    as many records; the pairs' own error is in it. Half the way between the ends counts as one
    more standard error. One pair tells one end alone; less noise brings the ends nearer, so the
    other is then as far as where there is more noise, or else is not known, nor is the error.
    """
    rows = select(estimates, quantity="expected separation")
    if rows.empty:
        return pd.DataFrame(columns=[*AUDIT, "mean", "n", "scatter", "error", "freedom", "most"])
    found = rows.groupby(AUDIT, sort=False, dropna=False).agg(
        mean=("value", "mean"), n=("value", "size"), most=("most", "first"),
        norm=("norm", "mean"), cosine=("cosine", "mean"), cell=("cell", "first"),
        gap=("high", lambda high: (high / rows.loc[high.index, "value"]).mean() - 1),
    ).reset_index()  # fmt: skip
    told = {key: _scatter(part) for key, part in rows.groupby(["task", "records"])}
    keys = list(zip(found["task"], found["records"], strict=True))
    found = found.sort_values("epsilon", kind="stable")
    alike = [name for name in MECHANISM if name != "epsilon"]
    found["gap"] = found.groupby(alike)["gap"].ffill()
    found = found.sort_index()
    half = found["mean"] * found.pop("gap") / 2
    found["mean"] = np.minimum(found["mean"] + half.fillna(0), found["most"])
    found["scatter"] = found["mean"] * [told[key][0] for key in keys]
    found["error"] = np.hypot(found["scatter"] / np.sqrt(found["n"]), half)
    return found.assign(freedom=[told[key][1] for key in keys])


def _scatter(rows: pd.DataFrame) -> tuple[float, float]:
    """Relative standard deviation between starts, and its degrees of freedom.

    A start moves all its epsilons together, so its mean over them and the rest are told apart
    (analysis of variance; freedom by Satterthwaite). Not known where no point has two starts.
    """
    point = rows.groupby(AUDIT, dropna=False)["value"]
    rows = rows.assign(
        off=rows["value"] / point.transform("mean") - 1, starts=point.transform("size")
    )
    rows = rows[rows["starts"] > 1]
    same = ["epochs", "clipping_norm"]
    means = rows.groupby([*same, "repeat"])["off"].agg(["mean", "size"])
    between = len(means) - len(means.groupby(level=same))
    if between < 1:
        return math.nan, 0.0
    within = len(rows) - rows.groupby(AUDIT, dropna=False).ngroups - between
    epsilons = float(means["size"].mean())
    ours = float((means["size"] * means["mean"] ** 2).sum()) / between / epsilons
    if within < 1:
        return math.sqrt(ours), float(between)
    rest = float((rows["off"] ** 2).sum() - (means["size"] * means["mean"] ** 2).sum()) / within
    # A mean over epsilons has its own share of the rest in it already.
    rest *= 1 - 1 / epsilons
    freedom = (ours + rest) ** 2 / (ours**2 / between + rest**2 / within)
    return math.sqrt(ours + rest), freedom


EPOCHS = ("epochs", "case", "learning_rate")
"""What the audits of Figure 2 differ in: the worst case, with epochs, has a rate of its own."""


def lacking(audits: pd.DataFrame) -> str:
    """Words such as "3 of 5 repeats" for audits with n and planned; "" if all are there."""
    there, planned = int(audits["n"].sum()), int(audits["planned"].sum())
    return f"{there} of {planned} repeats" if there < planned else ""


def title(task: str) -> str:
    """A task's name as readers see it."""
    return task.replace("_code", " by the public code").replace("_", " ")
