"""What the claims of encoding_loss measure, from its estimates."""

import math

import numpy as np
import pandas as pd

from hiddenstate.estimates import select, summarise
from hiddenstate.family import Check, Measurement, check, furthest, needed


def _gap_check(encoding: str, null: str) -> Check:
    """The curves are as near to the prediction as independent repeats are to each other."""

    @check
    def measure(estimates: pd.DataFrame) -> Measurement | None:
        gaps = select(estimates, quantity="levy_distance", null=null, encoding=encoding)
        if gaps.empty:
            return None
        worst, allowed, holds = -math.inf, 0.0, True
        for _, part in gaps.groupby("cell"):
            gap = select(part, method="all iterates")["value"].mean()
            repeats = select(part, method="between repeats")["value"]
            tolerance = repeats.mean() + 2 * repeats.std(ddof=1)
            if pd.isna(tolerance):
                return None
            holds &= bool(gap <= tolerance)
            if gap - tolerance >= worst - allowed:
                worst, allowed = gap, tolerance
        return Measurement(
            f"Lévy distance {worst:.4f} (mean over repeats, worst mechanism)",
            f"{allowed:.4f}, the distance between repeats plus 2 standard deviations",
            holds,
        )

    return measure


def _scatter(summary: pd.DataFrame) -> bool:
    """If there are repeats enough to tell how far they scatter."""
    return len(summary) > 0 and bool(summary["sd"].notna().all())


def _exceeds_check(method: str, what: str) -> Check:
    """A gap is positive beyond twice its standard deviation over repeats, in some mechanism."""

    @check
    def measure(estimates: pd.DataFrame) -> Measurement | None:
        gaps = select(estimates, quantity="levy_distance", method=method, encoding="published")
        summary = summarise(gaps, "cell")
        if not _scatter(summary):
            return None
        largest = summary.loc[summary["mean"].idxmax()]
        return Measurement(
            f"{what} by up to {largest['mean']:.3f} ({largest['cell']})",
            f"more than {2 * largest['sd']:.3f}, twice the standard deviation over repeats",
            bool(largest["mean"] > 2 * largest["sd"]),
        )

    return measure


def _epsilon_check(encoding: str, method: str) -> Check:
    """Theoretical epsilon is within two standard deviations of the mean, in every setting."""

    @check
    def measure(estimates: pd.DataFrame) -> Measurement | None:
        rows = needed(select(estimates, quantity="epsilon", method=method, encoding=encoding))
        # Where no epsilon that is searched fits the estimate is infinite, and the setting fails.
        beyond = rows.loc[~np.isfinite(rows["value"]), "cell"].value_counts(sort=False)
        summary = summarise(rows[~rows["cell"].isin(beyond.index)], ["cell", "epsilon"])
        if not _scatter(summary) and beyond.empty:
            return None
        inside = (summary["mean"] - summary["epsilon"]).abs() <= 2 * summary["sd"]
        shown = "".join(
            f"; {cell}: no epsilon searched fits in {n} of {(rows['cell'] == cell).sum()} repeats"
            for cell, n in beyond.items()
        )
        means = ", ".join(f"{m:.2f}" for m in summary["mean"]) or "none"
        return Measurement(
            f"{int(inside.sum())} of {len(summary) + len(beyond)} settings; means {means}{shown}",
            "2 standard deviations over repeats, in every setting",
            bool(inside.all() and beyond.empty),
            furthest(
                (summary["mean"] - summary["epsilon"]) / (summary["sd"] / summary["n"] ** 0.5)
            ),
        )

    return measure


curve_matches_published = _gap_check("published", "out")
curve_matches_sound = _gap_check("sound", "out")
swapped_matches_sound = _gap_check("sound", "in")
deviates_from_linear = _exceeds_check("below linear loss", "below the linear-loss curve")
above_symmetric = _exceeds_check("above symmetric", "above the symmetric curve")
epsilon_published = _epsilon_check("published", "algorithm 2")
epsilon_sound = _epsilon_check("sound", "algorithm 2")
epsilon_closest = _epsilon_check("sound", "closest curve")
