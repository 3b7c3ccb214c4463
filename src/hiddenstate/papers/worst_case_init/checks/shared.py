"""Parts that the checks of several topics share."""

from collections.abc import Iterator
from functools import cache
from typing import Any, TypeVar

import pandas as pd

from hiddenstate.accounting import gaussian
from hiddenstate.auditing.methods import PUBLISHED
from hiddenstate.auditing.replication import Law
from hiddenstate.auditing.summaries import separation_error
from hiddenstate.papers.worst_case_init.stated import PUBLIC_CODE, RECORDS
from hiddenstate.papers.worst_case_init.summaries import AUDIT, lacking, separations
from hiddenstate.pipeline.estimates import plus_minus, select
from hiddenstate.pipeline.evidence import Estimate, mean

SIGNIFICANT = 7.01 - 4.96
"""The least difference in epsilon at 10 that the paper calls significant: CIFAR-10's by records."""


def audits_of(
    estimates: pd.DataFrame, figure: str, quantity: str = "epsilon", **levels: Any
) -> list[tuple[pd.Series, pd.Series]]:
    """Every audit of a figure: what tells it apart, and a value for each of its repeats."""
    method = {"method": PUBLISHED} if quantity == "epsilon" else {}
    rows = select(estimates, figure=figure, quantity=quantity, **method, **levels)
    repeats, values = rows["repeat"].to_numpy(), rows["value"].to_numpy()
    audits, found = rows[AUDIT], []
    # By the places of its rows: a frame for each cell takes twice as long.
    for places in rows.groupby("cell", sort=False).indices.values():
        index = pd.Index(repeats[places], name="repeat")
        found.append((audits.iloc[places[0]], pd.Series(values[places], index, name="value")))
    return found


def law_of(at: pd.Series) -> Law:
    """The law of what such an audit publishes."""
    return law(int(at["models"]), float(at["epsilon"]), float(at["delta"]))


@cache
def law(models: int, epsilon: float, delta: float) -> Law:
    """The law of what audits of so many models publish."""
    return Law(models, delta, gaussian.mu(epsilon, delta))


_LATEST: list[tuple[pd.DataFrame, pd.DataFrame]] = []


def _separations(estimates: pd.DataFrame) -> pd.DataFrame:
    """``separations``, kept for the next check of the same estimates."""
    if not (_LATEST and _LATEST[0][0] is estimates):
        _LATEST[:] = [(estimates, separations(estimates))]
    return _LATEST[0][1]


def foretold(estimates: pd.DataFrame, **levels: Any) -> list[tuple[pd.Series, Estimate]]:
    """Every expected audit: what tells it apart, and its mean separation over its starts.

    Of the first and the last epochs of pre-training, and clipping norm 1, unless levels say so.
    """
    # Departure worst_case_init.expected: the paper's numbers are of trained audits.
    every = _separations(estimates)
    if "epochs" not in levels:
        last = every.groupby("task")["epochs"].transform("max")
        every = every[(every["epochs"] == 0) | (every["epochs"] == last)]
    rows = select(every, **{"clipping_norm": 1.0} | levels)
    return [
        (at, Estimate(at["mean"], at["error"], at["freedom"], -at["most"], at["most"]))
        for _, at in rows.iterrows()
    ]


def published(at: pd.Series, values: pd.Series) -> Estimate:
    """Mean published epsilon, with the error that so many models leave at least."""
    return law_of(at).mean(values.tolist())


def mean_separation(at: pd.Series, values: pd.Series) -> Estimate:
    """Mean separation of the scores, with the error that so many models leave at least.

    No mechanism separates normal scores by more than its own mu.
    """
    most = law_of(at).most
    known = float(separation_error(min(values.mean(), most), at["models"]))
    return mean(values.tolist(), known, least=-most, most=most)


def in_words(at: pd.Series, values: pd.Series) -> str:
    """Words such as "7.21 ± 0.52 (3 of 5 repeats)"."""
    few = lacking(pd.DataFrame([{"n": len(values), "planned": at["planned"]}]))
    return plus_minus(values.mean(), values.std()) + (few and f" ({few})")


Found = TypeVar("Found")


def with_all_records(audits: list[tuple[pd.Series, Found]]) -> list[tuple[pd.Series, Found]]:
    """Audits with all the records that the paper's have."""

    def whole(at: pd.Series) -> bool:
        task = at["task"].removesuffix(PUBLIC_CODE)
        return bool(at["records"] == RECORDS.get(task, at["records"]))

    return [(at, values) for at, values in audits if whole(at)]


def starts(*points: pd.Series) -> str:
    """Words for the starts of expected audits, such as "2 starts"."""
    least = int(min(at["n"] for at in points))
    return f"{least} start{'s' if least > 1 else ''}"


def gaps(estimates: pd.DataFrame, figure: str, epsilon: float) -> Iterator[tuple[str, Estimate]]:
    """(task, separation in the worst less that in the average case), with all records.

    By expected audits where a task of the figure has both cases, or else by its audits.
    """
    found = audits_of(estimates, figure, "separation", epsilon=epsilon)
    audited = [(at, mean_separation(at, values)) for at, values in found]
    for task in dict.fromkeys(select(estimates, figure=figure)["task"]):
        for every in (foretold(estimates, task=task, epsilon=epsilon), audited):
            cases = {at["case"]: one for at, one in with_all_records(every) if at["task"] == task}
            if {"worst", "average"} <= set(cases):
                yield task, cases["worst"] - cases["average"]
                break
