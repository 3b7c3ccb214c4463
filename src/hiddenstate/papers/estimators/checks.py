"""Measurements behind the claims of estimators, from its estimates."""

import math
from collections.abc import Callable

import pandas as pd

from hiddenstate.auditing import AsPublished, Averaged
from hiddenstate.papers.estimators.cells import LEVEL
from hiddenstate.pipeline.estimates import select
from hiddenstate.pipeline.evidence import CONFIDENCE, Estimate, Interval, Share, Within, rarely
from hiddenstate.pipeline.family import Found, check, needed

TOO_OFTEN = 0.09
"""Share of audits with too much claimed that a study must not overlook, where 5 % may be."""

# Of normal values a median's standard error is that of their mean times this.
SQUARE_ROOT_OF_HALF_PI = math.sqrt(math.pi / 2)


def _validity(estimates: pd.DataFrame, choose: Callable[[pd.DataFrame], pd.Series]) -> Found:
    """No chosen point claims too much in more audits than its level allows.

    Bounds use their whole level where they can, so the share itself may be 5 %: it is tested.
    """
    rows = select(estimates, quantity="exceedance")
    rows = needed(rows[choose(rows)])
    for row in rows.itertuples():
        yield rarely(
            f"{row.cell}, {row.x:,.0f} scores, {row.method}",
            round(row.value * row.audits),
            int(row.audits),
            LEVEL,
            TOO_OFTEN,
            len(rows),
        )
    worst = rows.loc[rows["value"].idxmax()]
    return (
        f"{len(rows)} points; the truth is exceeded in at most {worst['value']:.1%} of audits "
        f"({worst['cell']}, {worst['x']:,.0f} scores, {worst['method']})."
    )


def _valid(rows: pd.DataFrame) -> pd.Series:
    return rows["valid"].astype(bool)


default_holds = check(_validity, choose=lambda rows: rows["method"] == Averaged.name)
valid_hold = check(_validity, choose=lambda rows: _valid(rows) & (rows["method"] != Averaged.name))
null = check(_validity, choose=lambda rows: _valid(rows) & (rows["cell"] == "gaussian_mu0"))


@check
def as_published(estimates: pd.DataFrame) -> Found:
    """The published recipe exceeds the truth more often than its level."""
    rows = select(estimates, quantity="exceedance", method=AsPublished.name)
    rows = rows.set_index(["cell", "x"])
    wanted = {
        ("gaussian_mu0", 100): LEVEL,
        ("gaussian_mu1", 100): LEVEL,
        ("gaussian_mu1", 1000): 0.15,
    }
    found = needed(rows["value"].reindex(wanted))
    audits = rows["audits"].reindex(wanted).astype(int)
    for (cell, n), least in wanted.items():
        yield Within(
            f"audits that claim too much, {cell}, {n:,} scores",
            Share(round(found[cell, n] * audits[cell, n]), int(audits[cell, n])),
            low=least,
        )
    return ", ".join(f"{value:.1%}" for value in found) + "."


@check
def default_is_tight(estimates: pd.DataFrame) -> Found:
    """The default bound is as tight as was aimed at."""
    rows = select(estimates, quantity="median", method=Averaged.name)
    rows = rows.set_index(["cell", "x"])
    goals = {("gaussian_mu1", 100): 0.70, ("gaussian_mu3", 100): 2.2}
    found = needed(rows["value"].reindex(goals))
    for (cell, n), goal in goals.items():
        row = rows.loc[(cell, n)]
        # Between the 10 and 90 % quantiles of a normal distribution lie 2.563 deviations.
        sd = (row["high"] - row["low"]) / 2.563
        error = SQUARE_ROOT_OF_HALF_PI * sd / math.sqrt(row["audits"])
        median = Estimate(float(row["value"]), float(error))
        yield Within(f"median bound, {cell}, {n} scores", median, low=goal)
    return "Medians " + ", ".join(f"{value:.2f}" for value in found) + "."


@check
def bugs(estimates: pd.DataFrame) -> Found:
    """At least ten bugs are found in most audits, and the control is not."""
    rows = needed(select(estimates, quantity="power"))
    wrong = rows[rows["cell"] != "none"]
    n = wrong["cell"].nunique()
    # The count and the control share the level.
    level = (1 - CONFIDENCE) / 2
    most, least = 0, 0
    for _, ladder in wrong.groupby("cell"):
        limits = [
            # One level for all bugs at all numbers of models.
            Share(round(row.value * row.audits), int(row.audits)).interval(
                1 - level / n / len(ladder)
            )
            for row in ladder.itertuples()
        ]
        least += max(low for low, _ in limits) > 0.5
        most += max(high for _, high in limits) > 0.5
    found = int((wrong.groupby("cell")["value"].max() > 0.5).sum())
    control = needed(select(rows, cell="none"))
    quiet = control.loc[control["audits"].idxmax()]
    yield Within(
        f"bugs, of {n}, that most audits find at some number of models",
        Interval(found, least, most, 1 - level),
        low=10,
    )
    yield rarely(
        f"the right mechanism accused, {quiet['x']:,.0f} models",
        round(quiet["value"] * quiet["audits"]),
        int(quiet["audits"]),
        LEVEL,
        0.15,
        2,
    )
    return (
        f"{found} of {n} found in more than half of the audits of up to "
        f"{wrong['x'].max():,.0f} models per data set."
    )
