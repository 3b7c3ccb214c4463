"""Summaries of the audits over their repeats, of which figures, tables and checks are made."""

from typing import Any

import pandas as pd

from hiddenstate.auditing.methods import PUBLISHED
from hiddenstate.pipeline.estimates import select, summarise

AUDIT = [
    *("task", "case", "epochs", "records", "clipping_norm", "steps", "learning_rate"),
    *("epsilon", "delta", "models", "planned"),
]
"""What tells audits apart; ``planned`` is the number of repeats that each should have."""


def summary(
    estimates: pd.DataFrame,
    figure: str,
    quantity: str = "epsilon",
    method: str = PUBLISHED,
    **levels: object,
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
    by = [name for name in AUDIT if name not in varied]
    return [(dict(zip(by, key, strict=True)), part) for key, part in audits.groupby(by, sort=False)]


EPOCHS = ("epochs", "case", "learning_rate")
"""What the audits of Figure 2 differ in: the worst case, with epochs, has a rate of its own."""


def lacking(audits: pd.DataFrame) -> str:
    """Words such as "3 of 5 repeats" for audits with n and planned; "" if all are there."""
    there, planned = int(audits["n"].sum()), int(audits["planned"].sum())
    return f"{there} of {planned} repeats" if there < planned else ""


def title(task: str) -> str:
    """A task's name as readers see it."""
    return task.replace("_", " ")
