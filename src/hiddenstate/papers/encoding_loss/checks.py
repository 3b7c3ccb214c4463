"""What the claims of encoding_loss measure, from its estimates."""

import math

import pandas as pd

from hiddenstate.estimates import select, summarise
from hiddenstate.family import Check, Measurement, check, furthest


def _gap_check(encoding: str, null: str) -> Check:
    """The curves are as near to the prediction as independent repeats are to each other."""

    @check
    def measure(estimates: pd.DataFrame) -> Measurement:
        gaps = select(estimates, quantity="levy_distance", null=null, encoding=encoding)
        worst, allowed, holds = -math.inf, 0.0, True
        for _, part in gaps.groupby("cell"):
            values = part.groupby("method")["value"]
            gap = values.get_group("all iterates").mean()
            repeats = values.get_group("between repeats")
            tolerance = repeats.mean() + 2 * repeats.std(ddof=1)
            holds &= bool(gap <= tolerance)
            if gap - tolerance >= worst - allowed:
                worst, allowed = gap, tolerance
        return Measurement(
            f"Lévy distance {worst:.4f} (mean over repeats, worst mechanism)",
            f"{allowed:.4f}, the distance between repeats plus 2 standard deviations",
            holds,
        )

    return measure


def _exceeds_check(method: str, what: str) -> Check:
    """A gap is positive beyond twice its standard deviation over repeats, in some mechanism."""

    @check
    def measure(estimates: pd.DataFrame) -> Measurement:
        gaps = select(estimates, quantity="levy_distance", method=method, encoding="published")
        summary = summarise(gaps, "cell")
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
    def measure(estimates: pd.DataFrame) -> Measurement:
        rows = select(estimates, quantity="epsilon", method=method, encoding=encoding)
        summary = summarise(rows, ["cell", "epsilon"])
        inside = (summary["mean"] - summary["epsilon"]).abs() <= 2 * summary["sd"]
        shown = ", ".join(f"{m:.2f}" for m in summary["mean"])
        return Measurement(
            f"{int(inside.sum())} of {len(summary)} settings; means {shown}",
            "2 standard deviations over repeats, in every setting",
            bool(inside.all()),
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
