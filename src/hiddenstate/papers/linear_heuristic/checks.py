"""What the claims of linear_heuristic measure, from its estimates."""

import math
from itertools import pairwise

import numpy as np
import pandas as pd

from hiddenstate.accounting import linear
from hiddenstate.papers import Measurement
from hiddenstate.papers.linear_heuristic.estimates import CONFIDENCE, named, pick
from hiddenstate.papers.linear_heuristic.figures import STATED_QUADRATIC


def check_below_standard(estimates: pd.DataFrame) -> Measurement:
    """The heuristic never exceeds the standard epsilon."""
    worst = -math.inf
    count = 0
    for cell in named(estimates, "figure1") + named(estimates, "audits"):
        below = pick(estimates, cell, "heuristic").set_index("x")["value"]
        above = pick(estimates, cell, "standard").set_index("x")["value"]
        worst = max(worst, float((below - above).max()))
        count += len(below)
    return Measurement(
        f"heuristic minus standard at most {worst:.2e} in {count} settings",
        "0; the standard epsilon is rounded up, calibrated ones to a relative 1e-4",
        worst <= 1e-3,
    )


def check_not_monotone(estimates: pd.DataFrame) -> Measurement:
    """The heuristic falls below that of a single step as steps grow, and rises again."""
    value = {
        quantity: pick(estimates, "figure1c", "heuristic", quantity).iloc[0]
        for quantity in ("single_step", "least", "first_below", "last_below")
    }
    single, least = value["single_step"], value["least"]
    last = pick(estimates, "figure1c", "heuristic").iloc[-1]
    return Measurement(
        f"{single['value']:.4f} at 1 step, {least['value']:.4f} at {least['x']:.0f}, "
        f"{last['value']:.3f} at {last['x']:.0f}; below one step from "
        f"{value['first_below']['value']:.0f} to {value['last_below']['value']:.0f} steps",
        "a fall and a rise, exact to 1e-9",
        bool(least["value"] < single["value"] < last["value"]),
    )


def check_constant_signal(estimates: pd.DataFrame) -> Measurement:
    """Figure 1a: the heuristic levels off where the standard epsilon diverges."""
    heuristic = pick(estimates, "figure1a", "heuristic")["value"].to_numpy()
    standard = pick(estimates, "figure1a", "standard")["value"].to_numpy()
    last = heuristic[-1] / heuristic[len(heuristic) // 2] - 1
    return Measurement(
        f"heuristic {heuristic[0]:.4f} to {heuristic[-1]:.4f}, within {last:.1%} of that over the "
        f"second half of the axis; standard {standard[0]:.3f} to {standard[-1]:.1f}",
        "heuristic rises by less than 10 % over the second half, standard by more than tenfold",
        bool(0 <= last < 0.1 and standard[-1] > 10 * standard[len(standard) // 2]),
    )


def check_full_batch(estimates: pd.DataFrame) -> Measurement:
    """Full batch is usually, but not always, below the heuristic."""
    share = []
    for cell in named(estimates, "figure1"):
        full = pick(estimates, cell, "full batch")["value"].to_numpy()
        share.append(full <= pick(estimates, cell, "heuristic")["value"].to_numpy() + 1e-9)
    share = np.concatenate(share)
    # Where sampling the canary at all is rarer than delta, the heuristic is nothing.
    rare = (0.1, 0.01, 1, 0.02)
    exception = linear.full_batch_epsilon(*rare) - linear.last_iterate_epsilon(*rare)
    return Measurement(
        f"below in {share.sum()} of {len(share)} settings of Figure 1; above by {exception:.4f} at "
        "noise multiplier 0.1, sampling rate 0.01, 1 step, delta 0.02",
        "below in most settings, and above in one",
        bool(share.mean() > 0.5 and exception > 0),
    )


def check_quadratic_values(estimates: pd.DataFrame) -> Measurement:
    """The three epsilons of section 4.2, to their printed digits."""
    rows = pick(estimates, "quadratic", "quadratic regulariser").set_index("x")["value"]
    ours = {c: rows[c] for c in STATED_QUADRATIC}
    # 2.274 says that no smaller epsilon holds, so it is rounded down; the others are rounded.
    holds = all(-0.0005 <= ours[c] - stated < 0.001 for c, stated in STATED_QUADRATIC.items())
    return Measurement(
        ", ".join(f"{value:.6f} at curvature {c:g}" for c, value in ours.items()),
        "the printed digit, rounded either way",
        holds,
    )


def check_quadratic_exceeds(estimates: pd.DataFrame) -> Measurement:
    """A curvature between the linear cases leaks more than both."""
    rows = pick(estimates, "quadratic", "quadratic regulariser")
    best, ends = rows.loc[rows["value"].idxmax()], rows.iloc[[0, -1]]["value"].max()
    return Measurement(
        f"largest epsilon {best['value']:.4f} at curvature {best['x']:g}, against {ends:.4f}",
        "larger, exact to 1e-9",
        bool(best["value"] > ends),
    )


def _ratios(estimates: pd.DataFrame, method: str) -> pd.DataFrame:
    rows = estimates[(estimates["quantity"] == "ratio") & (estimates["method"] == method)]
    return rows.loc[rows.groupby("cell")["value"].idxmax()]


def violation_check(method: str):
    """The largest ratio of Figure 5 is at most about 3 % above one."""

    def check(estimates: pd.DataFrame) -> Measurement:
        worst = _ratios(estimates, method)
        shown = [
            f"{r.value - 1:.2%} (one step {r.x:g}, {r.steps:g} steps, sampling rate "
            f"{r.sampling_rate:g})"
            for r in worst.itertuples()
        ]
        return Measurement(
            "largest excess " + "; ".join(shown),
            "3.5 %, what rounds to the printed figure",
            bool(worst["value"].max() < 1.035),
        )

    return check


def check_figure5_majority(estimates: pd.DataFrame) -> Measurement:
    """In most settings of Figure 5 the linear loss leaks more."""
    rows = estimates[(estimates["quantity"] == "ratio") & (estimates["method"] == "enumerated")]
    many = rows[rows["steps"] > 1]
    share = (many["value"] < 1).groupby(many["cell"]).mean()
    shown = ", ".join(f"{value:.0%} in {cell}" for cell, value in share.items())
    return Measurement(
        f"{shown} (settings of more than one step)", "more than half", bool((share > 0.5).all())
    )


def check_history(estimates: pd.DataFrame) -> Measurement:
    """Section 4.3: epsilon rises to the standard one with the factor."""
    rows = pick(estimates, "history", "history regulariser")
    standard = pick(estimates, "history", "standard")["value"].iloc[0]
    heuristic = pick(estimates, "history", "heuristic")["value"].iloc[0]
    rises = all(a < b for a, b in pairwise(rows["value"]))
    last = rows.iloc[-1]
    above = rows[rows["value"] > heuristic]["x"].min()
    return Measurement(
        f"{last['value']:.4f} at factor {last['x']:g}, against {standard:.4f} standard; above the "
        f"heuristic {heuristic:.4f} from factor {above:g}",
        "rising, and within 0.1 % of the standard epsilon at the largest factor",
        bool(rises and abs(last["value"] / standard - 1) < 1e-3),
    )


def _audited(estimates: pd.DataFrame, attack: str, method: str) -> pd.DataFrame:
    """One row an audit: its value, the heuristic's and the standard epsilon."""
    parts = []
    for cell in named(estimates, f"{attack}_q"):
        rows = pick(estimates, cell, method).set_index("x")
        baselines = cell.replace(attack, "audits")
        parts.append(
            rows[["value", "sampling_rate"]].assign(
                heuristic=pick(estimates, baselines, "heuristic").set_index("x")["value"],
                standard=pick(estimates, baselines, "standard").set_index("x")["value"],
            )
        )
    return pd.concat(parts).rename_axis("steps").reset_index()


def check_figure3_close(estimates: pd.DataFrame) -> Measurement:
    """Figure 3: estimates close to the heuristic except at few steps."""
    rows = _audited(estimates, "gradient", "as published")
    ratio = rows["value"] / rows["heuristic"]
    many = rows["steps"] >= 100
    return Measurement(
        f"estimate over heuristic {ratio[many].min():.2f} to {ratio[many].max():.2f} from 100 "
        f"steps on, {ratio[~many].min():.2f} to {ratio[~many].max():.2f} below",
        "0.88 to 1.03 from 100 steps on (the spread over seeds)",
        bool(ratio[many].between(0.88, 1.03).all()),
    )


def check_figure3_below(estimates: pd.DataFrame) -> Measurement:
    """Figure 3: no valid lower bound exceeds the heuristic."""
    rows = _audited(estimates, "gradient", "lower bound")
    over = (rows["value"] / rows["heuristic"]).max()
    return Measurement(
        f"largest lower bound over heuristic {over:.3f} in {len(rows)} audits",
        f"1; each audit is wrong with probability at most {1 - CONFIDENCE:.0%}",
        bool(over <= 1),
    )


def matches_standard(attack: str):
    """Figure 6: estimates reach the standard epsilon, and no lower bound exceeds it."""

    def check(estimates: pd.DataFrame) -> Measurement:
        published = _audited(estimates, attack, "as published")
        bound = _audited(estimates, attack, "lower bound")
        reached = (published["value"] / published["standard"])[published["steps"] >= 10]
        over = (bound["value"] / bound["standard"]).max()
        return Measurement(
            f"estimate over standard epsilon {reached.min():.2f} to {reached.max():.2f} from 10 "
            f"steps on; lower bound over it at most {over:.3f}",
            "at least 0.93, from 10 steps on (the estimator errs upwards); lower bound at most 1",
            bool(reached.min() >= 0.93 and over <= 1),
        )

    return check


def exceeds_heuristic(attack: str):
    """Figure 6: the attack exceeds the heuristic."""

    def check(estimates: pd.DataFrame) -> Measurement:
        rows = _audited(estimates, attack, "lower bound")
        many = rows[rows["steps"] >= 10]
        above = many["value"] > many["heuristic"]
        by_rate = above.groupby(many["sampling_rate"]).agg(["sum", "count"])
        shown = ", ".join(
            f"{int(r['sum'])} of {int(r['count'])} at sampling rate {q:g}"
            for q, r in by_rate.iterrows()
        )
        return Measurement(
            f"lower bound above the heuristic in {shown}, from 10 steps on",
            "in every audit from 10 steps on",
            bool(above.all()),
        )

    return check


def table1_check(column: str):
    """The first row of Table 1 at the recalled parameters."""

    def check(estimates: pd.DataFrame) -> Measurement:
        rows = estimates[(estimates["origin"] == "recalled") & (estimates["method"] == column)]
        ours, printed = rows["value"].iloc[0], rows[f"printed_{column}"].iloc[0]
        return Measurement(
            f"{ours:.4f} against {printed:g} printed",
            "0.01, one unit of the last printed digit",
            bool(abs(ours - printed) < 0.01),
        )

    return check


def check_table1_rows(estimates: pd.DataFrame) -> Measurement:
    """Both columns of every row are possible at one training length."""
    rows = estimates[(estimates["origin"] == "reconstructed") & estimates["batch"].notna()]
    shown, worst = [], 0.0
    for _, part in rows.groupby("batch", sort=False):
        ours, first = part.set_index("method")["value"], part.iloc[0]
        worst = max(worst, abs(ours["heuristic"] - first["printed_heuristic"]))
        worst = max(worst, abs(ours["standard"] - first["printed_standard"]))
        epochs = first["steps"] * first["batch"] / first["records"]
        shown.append(f"batch {first['batch']:g}: {epochs:.0f} epochs")
    return Measurement(
        f"both columns within {worst:.3f} at " + ", ".join(shown),
        "0.05, and a training length between 1 and 1,000 epochs",
        worst < 0.05,
    )
