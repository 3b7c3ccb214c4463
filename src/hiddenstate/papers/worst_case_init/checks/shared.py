"""What the checks of several topics share."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd

from hiddenstate.auditing.methods import PUBLISHED
from hiddenstate.auditing.summaries import separation_error
from hiddenstate.papers.worst_case_init.stated import PUBLIC_CODE, RECORDS
from hiddenstate.papers.worst_case_init.summaries import AUDIT, lacking
from hiddenstate.pipeline.estimates import plus_minus, select
from hiddenstate.pipeline.evidence import Estimate

SIGNIFICANT = 7.01 - 4.96
"""The least difference in epsilon at 10 that the paper calls significant: CIFAR-10's by records."""


def audits_of(
    estimates: pd.DataFrame, figure: str, quantity: str = "epsilon", **levels: Any
) -> list[tuple[pd.Series, pd.Series]]:
    """Every audit of a figure: what tells it apart, and a value for each of its repeats."""
    method = {"method": PUBLISHED} if quantity == "epsilon" else {}
    rows = select(estimates, figure=figure, quantity=quantity, **method, **levels)
    return [
        (part[AUDIT].iloc[0], part.set_index("repeat")["value"])
        for _, part in rows.groupby("cell", sort=False)
    ]


def mean_separation(values: pd.Series, models: float) -> Estimate:
    """Mean separation of the worlds' scores, with the error that so many models leave."""
    errors = separation_error(values, models)
    error = np.sqrt((errors**2).mean() / len(values))
    return Estimate(float(values.mean()), float(error))


def in_words(at: pd.Series, values: pd.Series) -> str:
    """Words such as "7.21 ± 0.52 (3 of 5 repeats)"."""
    few = lacking(pd.DataFrame([{"n": len(values), "planned": at["planned"]}]))
    return plus_minus(values.mean(), values.std()) + (few and f" ({few})")


def with_all_records(
    audits: list[tuple[pd.Series, pd.Series]],
) -> list[tuple[pd.Series, pd.Series]]:
    """Audits with all the records that the paper's have."""

    def whole(at: pd.Series) -> bool:
        task = at["task"].removesuffix(PUBLIC_CODE)
        return bool(at["records"] == RECORDS.get(task, at["records"]))

    return [(at, values) for at, values in audits if whole(at)]


def gaps(estimates: pd.DataFrame, figure: str, epsilon: float) -> Iterator[tuple[str, Estimate]]:
    """(task, separation in the worst less that in the average case), with all records."""
    found = with_all_records(audits_of(estimates, figure, "separation", epsilon=epsilon))
    for task in dict.fromkeys(at["task"] for at, _ in found):
        cases = {
            at["case"]: mean_separation(values, at["models"])
            for at, values in found
            if at["task"] == task
        }
        if {"worst", "average"} <= set(cases):
            yield task, cases["worst"] - cases["average"]
