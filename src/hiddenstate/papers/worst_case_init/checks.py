"""What the claims of worst_case_init measure, from its estimates.

An audit of which a single repeat is there has no standard deviation, and is left out.
"""

from collections.abc import Iterable, Iterator
from itertools import chain

import numpy as np
import pandas as pd

from hiddenstate.estimates import largest, plus_minus, select, summarise
from hiddenstate.family import Check, Measurement, check, furthest
from hiddenstate.papers.worst_case_init.stated import STATED
from hiddenstate.papers.worst_case_init.summaries import (
    AUDIT,
    EPOCHS,
    groups,
    ideal,
    lacking,
    planned,
    summary,
)
from hiddenstate.verification import LEVEL


def _published(
    estimates: pd.DataFrame, figure: str, method: str = "as published", *, top: bool = False
) -> pd.DataFrame:
    """Audits of a figure with at least two repeats; ``top`` keeps each task's largest epsilon."""
    found = summary(estimates, figure, method=method)
    found = found[found["sd"].notna()]
    return largest(found, "epsilon", ["task"]) if top else found


def _pm(row: pd.Series) -> str:
    """Words such as "7.21 ± 0.52 (3 of 5 repeats)"."""
    return plus_minus(row["mean"], row["sd"]) + _from(row)


def _from(*rows: pd.Series) -> str:
    """How many of the repeats of these audits there are, in brackets, if some are missing."""
    words = lacking(pd.DataFrame(rows))
    return words and f" ({words})"


def _all(
    parts: Iterable[tuple[str, bool]], tolerance: str, deviations: Iterable[float] = ()
) -> Measurement | None:
    """A claim that has several parts, in words and whether each holds; None without any."""
    found = list(parts)
    if not found:
        return None
    words = "; ".join(words for words, _ in found)
    return Measurement(words, tolerance, all(holds for _, holds in found), furthest(deviations))


def _above(one: pd.Series, other: pd.Series) -> bool:
    """Whether the ranges of one standard deviation are disjoint, the first above the other."""
    return bool(one["mean"] - one["sd"] > other["mean"] + other["sd"])


def _cases(
    estimates: pd.DataFrame, figure: str
) -> Iterator[tuple[str, float, pd.Series, pd.Series]]:
    """(task, epsilon, average case, worst case) of the audits that have both.

    Of several numbers of records it is the largest that has: with few a perfect audit needs no
    worst case.
    """
    found = _published(estimates, figure)
    for (task, epsilon), part in found.groupby(["task", "epsilon"], sort=False):
        pairs = {n: cases.set_index("case") for n, cases in part.groupby("records")}
        both = [n for n, cases in pairs.items() if {"average", "worst"} <= set(cases.index)]
        if both:
            cases = pairs[max(both)]
            yield task, epsilon, cases.loc["average"], cases.loc["worst"]


@check
def ordering(estimates: pd.DataFrame) -> Measurement | None:
    """Worst case above average case, the ranges of one standard deviation disjoint."""
    parts = (
        (
            f"{task}, n = {worst['records']:,.0f}, epsilon {epsilon:g}: {_pm(average)} average, "
            f"{_pm(worst)} worst",
            _above(worst, average),
        )
        for task, epsilon, average, worst in _cases(estimates, "figure1")
        if epsilon >= 4
    )
    return _all(parts, "mean ± sd over the repeats disjoint")


@check
def last_layer_gap(estimates: pd.DataFrame) -> Measurement | None:
    """At the largest epsilon initial parameters matter less for a last layer than for a model."""
    gaps, found = {}, {}
    for figure in ("figure1", "figure5"):
        cases = list(_cases(estimates, figure))
        if not cases:
            return None
        top = max(epsilon for _, epsilon, _, _ in cases)
        pairs = [(average, worst) for _, epsilon, average, worst in cases if epsilon == top]
        gaps[figure] = min(worst["mean"] - average["mean"] for average, worst in pairs)
        found[figure] = f"{gaps[figure]:.2f}{_from(*chain(*pairs))}"
    return Measurement(
        f"worst minus average case: {found['figure5']} for the last layer, "
        f"{found['figure1']} or more for all layers",
        "a smaller difference of means",
        bool(gaps["figure5"] < gaps["figure1"]),
    )


def _by_epochs(found: pd.DataFrame) -> Iterator[tuple[str, pd.DataFrame]]:
    """Audits that differ in their epochs alone, at least two, in words and by epochs."""
    for at, part in groups(found, *EPOCHS):
        if len(part) > 1:
            words = f"{at['task']}, n = {at['records']:,.0f}, epsilon {at['epsilon']:g}"
            norm = "" if at["clipping_norm"] == 1 else f", C = {at['clipping_norm']:g}"
            yield words + norm, part.sort_values("epochs")


@check
def pretraining(estimates: pd.DataFrame) -> Measurement | None:
    """The mean norm of clipped gradients falls with every epoch."""
    norms = largest(summary(estimates, "figure2", "gradient_norm", "mean"), "epsilon", ["task"])
    parts = []
    for levels, line in _by_epochs(norms):
        words = ", ".join(f"{mean:.2f}" for mean in line["mean"])
        every = [row for _, row in line.iterrows()]
        falls = bool(np.all(np.diff(line["mean"]) < 0))
        parts.append((f"{levels}: {words}{_from(*every)}", falls))
    return _all(parts, "falls with every epoch")


@check
def pretraining_epsilon(estimates: pd.DataFrame) -> Measurement | None:
    """Epsilon is higher after the last epoch than before the first."""
    parts = []
    for levels, line in _by_epochs(_published(estimates, "figure2", top=True)):
        first, last = line.iloc[0], line.iloc[-1]
        parts.append((f"{levels}: {_pm(first)} to {_pm(last)}", _above(last, first)))
    return _all(parts, "first and last ± sd disjoint")


@check
def records(estimates: pd.DataFrame) -> Measurement | None:
    """At the largest epsilon the mean falls from each number of records to the next."""
    parts = []
    for task, part in _published(estimates, "figure3", top=True).groupby("task", sort=False):
        line = part.sort_values("records")
        values = ", ".join(f"{_pm(row)} at n = {row['records']:,.0f}" for _, row in line.iterrows())
        if len(line) >= 2:
            parts.append((f"{task}: {values}", bool(np.all(np.diff(line["mean"]) < 0))))
    return _all(parts, "means fall as n grows, at the largest epsilon")


@check
def clipping(estimates: pd.DataFrame) -> Measurement | None:
    """At the largest epsilon and C = 10 epsilon and accuracy are below those at C = 1."""
    parts = []
    for (task, top, n), part in _published(estimates, "figure4", top=True).groupby(
        ["task", "epsilon", "records"], sort=False
    ):
        line = part.set_index("clipping_norm")
        if not {1.0, 10.0} <= set(line.index):
            continue
        one, ten = line.loc[1.0], line.loc[10.0]
        audited = {"task": task, "epsilon": top, "records": n}
        right = summary(estimates, "figure4", "accuracy", "mean", **audited)
        right = right.set_index("clipping_norm")["mean"]
        words = (
            f"{task}, n = {n:,.0f}, epsilon {top:g}: "
            f"{_pm(one)} and {100 * right[1.0]:.1f} % at C = 1, "
            f"{_pm(ten)} and {100 * right[10.0]:.1f} % at C = 10"
        )
        holds = ten["mean"] + ten["sd"] < one["mean"] and right[10.0] < right[1.0]
        parts.append((words, bool(holds)))
    return _all(parts, "mean + sd at C = 10 below the mean at C = 1, and less accurate")


@check
def last_layer(estimates: pd.DataFrame) -> Measurement | None:
    """At the largest epsilon the worst case finds what a perfect audit would publish."""
    found = select(_published(estimates, "figure5"), case="worst")
    return _perfect(estimates, select(found, epsilon=found["epsilon"].max()))


@check
def few_records(estimates: pd.DataFrame) -> Measurement | None:
    """With at most 100 records either case finds what a perfect audit would publish."""
    found = _published(estimates, "figure1", top=True)
    return _perfect(estimates, found[found["records"] <= 100])


def _perfect(estimates: pd.DataFrame, found: pd.DataFrame) -> Measurement | None:
    """Whether audits publish what perfect ones do."""
    parts, within, off = [], [], []
    for _, row in found.iterrows():
        best = ideal(estimates, models=row["models"], epsilon=row["epsilon"]).iloc[0]
        # The mean of as many perfect audits would lie within three of its standard errors.
        most = 3 * best["deviation"] / np.sqrt(row["n"])
        words = (
            f"{row['task']}, {row['case']} case: {_pm(row)} of epsilon {row['epsilon']:g}; "
            f"a perfect audit publishes {best['value']:.2f}"
        )
        parts.append((words, bool(abs(row["mean"] - best["value"]) <= most)))
        within.append(f"{most:.2f}")
        off.append(3 * (row["mean"] - best["value"]) / most)
    return _all(
        parts,
        f"within {', '.join(within)}: three standard errors of the mean of as many perfect audits",
        off,
    )


@check
def last_layer_factors(estimates: pd.DataFrame) -> Measurement | None:
    """At the largest epsilon neither clipping norm nor number of records moves the mean much."""
    found = _published(estimates, "figure7")
    if len(found) < 2:
        return None
    found = select(found, epsilon=found["epsilon"].max())
    words = [
        f"C = {row['clipping_norm']:g}, n = {row['records']:,.0f}: {_pm(row)}"
        for _, row in found.iterrows()
    ]
    spread = found["mean"].max() - found["mean"].min()
    most = 2 * found["sd"].max()
    return Measurement(
        "; ".join(words), f"means within {most:.2f}, two of the largest sd", bool(spread <= most)
    )


@check
def live(estimates: pd.DataFrame) -> Measurement | None:
    """An audit trained beside the cached ones has scores like theirs."""
    rows = select(estimates, figure="live", quantity="agreement")
    parts = []
    for _, row in rows.iterrows():
        same = {name: row[name] for name in (*AUDIT, "repeat") if name != "planned"}
        published = select(estimates, quantity="epsilon", method="as published", **same)
        here = published["planned"] == row["planned"]
        words = (
            f"{row['task']}, n = {row['records']:,.0f}, epsilon {row['epsilon']:g}, "
            f"{row['case']} case: p = {row['value']:.2g}; published "
            f"{published.loc[here, 'value'].iloc[0]:.2f} here, "
            f"{published.loc[~here, 'value'].iloc[0]:.2f} there"
        )
        parts.append((words, bool(row["value"] >= LEVEL)))
    return _all(
        parts,
        f"p at least {LEVEL:g} in Kolmogorov-Smirnov tests of the two worlds (Bonferroni); other "
        "noise, same records and initial parameters",
    )


@check
def valid(estimates: pd.DataFrame) -> Measurement | None:
    """No more of the valid bounds exceed the theoretical epsilon than 95 % confidence allows."""
    from scipy import stats

    rows = select(estimates, quantity="epsilon", kind="lower").drop_duplicates(["cell", "repeat"])
    if len(rows) == 0:
        return None
    above = int((rows["value"] > rows["epsilon"]).sum())
    audits = [audit for _, audit in summarise(rows, ["cell", "planned"]).iterrows()]
    most = int(stats.binom.isf(1e-3, len(rows), 0.05))
    return Measurement(
        f"{above} of {len(rows)} bounds above the theoretical epsilon" + _from(*audits),
        f"at most {most} (5 % of them, with a false alarm in 0.1 % of such runs)",
        above <= most,
        float((above - 0.05 * len(rows)) / np.sqrt(0.05 * 0.95 * len(rows))),
    )


def _stated_check(figure: str, task: str, method: str = "as published") -> Check:
    """Every mean that the paper states lies within one standard deviation of ours."""

    @check
    def measure(estimates: pd.DataFrame) -> Measurement | None:
        values = select(STATED, figure=figure, task=task, quantity="mean")
        values = values.drop(columns=["figure", "quantity"]).dropna(axis=1, how="all")
        factors = [name for name in values if name != "value"]
        both = _published(estimates, figure, method).merge(values, on=factors)
        parts = (
            (_one(row, factors), bool(abs(row["mean"] - row["value"]) <= row["sd"]))
            for _, row in both.iterrows()
        )
        off = (both["mean"] - both["value"]) / (both["sd"] / np.sqrt(both["n"]))
        return _all(parts, "within our sd over the repeats", off)

    return measure


@check
def stated_table1_mnist(estimates: pd.DataFrame) -> Measurement | None:
    """Accuracies of models of all records within a percentage point of the stated ones."""
    figure = "table1" if len(planned(estimates, "table1")) else "figure1"
    found = summary(estimates, figure, "accuracy", "mean", task="mnist")
    values = select(STATED, task="mnist", quantity="accuracy")
    both = found.merge(values, on=["task", "case", "epsilon", "records"])
    parts = (
        (
            f"epsilon {row['epsilon']:g}, {row['case']} case: {100 * row['mean']:.1f} % "
            f"(paper: {100 * row['value']:.1f} %)",
            bool(abs(row["mean"] - row["value"]) <= 0.01),
        )
        for _, row in both.iterrows()
    )
    return _all(parts, "within a percentage point")


def _one(row: pd.Series, factors: list[str]) -> str:
    varies = [name for name in factors if name not in ("task", "epsilon")]
    levels = {name: row[name] if name == "case" else f"{row[name]:g}" for name in varies}
    where = ", ".join(f"{name} {level}" for name, level in levels.items())
    return f"epsilon {row['epsilon']:g}, {where}: {_pm(row)} (paper: {row['value']:.2f})"


stated_figure1_mnist = _stated_check("figure1", "mnist")
stated_figure1_cifar10 = _stated_check("figure1", "cifar10")
stated_figure2 = _stated_check("figure2", "mnist")
stated_figure3_mnist = _stated_check("figure3", "mnist")
stated_figure3_two_sided = _stated_check("figure3", "mnist", "two-sided")
stated_figure3_cifar10 = _stated_check("figure3", "cifar10")
stated_figure5 = _stated_check("figure5", "cifar10_last_layer")
