"""What the claims of linear_heuristic measure, from its estimates."""

from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd

from hiddenstate.accounting import linear
from hiddenstate.estimates import select
from hiddenstate.family import Check, Measurement, check, needed
from hiddenstate.papers.linear_heuristic import stated
from hiddenstate.papers.linear_heuristic.estimates import CONFIDENCE, curve, named, trained


@check
def below_standard(estimates: pd.DataFrame) -> Measurement:
    """The heuristic never exceeds the standard epsilon."""
    over = pd.concat(
        curve(estimates, cell, "heuristic") - curve(estimates, cell, "standard")
        for cell in named(estimates, "figure1") + named(estimates, "audits")
    )
    return Measurement(
        f"heuristic minus standard at most {over.max():.2e} in {len(over)} settings",
        "0; the standard epsilon is rounded up, calibrated ones to a relative 1e-4",
        bool(over.max() <= 1e-3),
    )


@check
def not_monotone(estimates: pd.DataFrame) -> Measurement:
    """The heuristic falls below that of a single step as steps grow, and rises again."""
    rows = select(estimates, cell="figure1c", method="heuristic").set_index("quantity")
    value, last = rows["value"], curve(estimates, "figure1c", "heuristic")
    below = (
        "never below one step"
        if pd.isna(value["first_below"])
        else f"below one step from {value['first_below']:.0f} to {value['last_below']:.0f} steps"
    )
    return Measurement(
        f"{value['single_step']:.4f} at 1 step, {value['least']:.4f} at "
        f"{rows['x']['least']:.0f}, {last.iloc[-1]:.3f} at {last.index[-1]:.0f}; {below}",
        "a fall and a rise, exact to 1e-9",
        bool(value["least"] < value["single_step"] < last.iloc[-1]),
    )


@check
def constant_signal(estimates: pd.DataFrame) -> Measurement:
    """Figure 1a: the heuristic levels off where the standard epsilon diverges."""
    heuristic, standard = (
        curve(estimates, "figure1a", method).to_numpy() for method in ("heuristic", "standard")
    )
    needed(pd.Series(heuristic[2:]))
    last = heuristic[-1] / heuristic[len(heuristic) // 2] - 1
    return Measurement(
        f"heuristic {heuristic[0]:.4f} to {heuristic[-1]:.4f}, within {last:.1%} of that over the "
        f"second half of the axis; standard {standard[0]:.3f} to {standard[-1]:.1f}",
        "heuristic rises by less than 10 % over the second half, standard by more than tenfold",
        bool(0 <= last < 0.1 and standard[-1] > 10 * standard[len(standard) // 2]),
    )


@check
def full_batch(estimates: pd.DataFrame) -> Measurement:
    """Full batch is usually, but not always, below the heuristic."""
    below = pd.concat(
        curve(estimates, cell, "full batch") <= curve(estimates, cell, "heuristic") + 1e-9
        for cell in named(estimates, "figure1")
    )
    # Where sampling the canary at all is rarer than delta, the heuristic is nothing.
    rare = (0.1, 0.01, 1, 0.02)
    exception = linear.full_batch_epsilon(*rare) - linear.last_iterate_epsilon(*rare)
    return Measurement(
        f"below in {below.sum()} of {len(below)} settings of Figure 1; above by {exception:.4f} at "
        "noise multiplier 0.1, sampling rate 0.01, 1 step, delta 0.02",
        "below in most settings, and above in one",
        bool(below.mean() > 0.5 and exception > 0),
    )


@check
def quadratic_values(estimates: pd.DataFrame) -> Measurement:
    """The three epsilons of section 4.2, to their printed digits."""
    there = select(estimates, cell="quadratic", **stated.QUADRATIC_SETTING)
    line = curve(there, "quadratic", "quadratic regulariser")
    ours = needed(line.reindex(list(stated.QUADRATIC)))
    over = ours - pd.Series(stated.QUADRATIC)
    return Measurement(
        ", ".join(f"{value:.6f} at curvature {c:g}" for c, value in ours.items()),
        "the printed digit, rounded either way",
        # 2.274 says that no smaller epsilon holds, so it is rounded down; the others are rounded.
        bool(((over >= -0.0005) & (over < 0.001)).all()),
    )


@check
def quadratic_exceeds(estimates: pd.DataFrame) -> Measurement:
    """A curvature between the linear cases leaks more than both."""
    line = curve(estimates, "quadratic", "quadratic regulariser")
    needed(line.iloc[1:-1])
    ends = line.iloc[[0, -1]].max()
    return Measurement(
        f"largest epsilon {line.max():.4f} at curvature {line.idxmax():g}, against {ends:.4f}",
        "larger, exact to 1e-9",
        bool(line.max() > ends),
    )


@check
def worst_schedule(estimates: pd.DataFrame) -> Measurement:
    """A schedule of curvatures leaks more than any constant one, and than the heuristic."""
    lines = {
        method: curve(estimates, "schedules", method)
        for method in ("schedule", "constant curvature", "heuristic")
    }
    # A schedule of two steps has one curvature that matters.
    ours, constant, heuristic = (needed(line[line.index > 2]) for line in lines.values())
    shown = ", ".join(
        f"{ours[t]:.4f} against {constant[t]:.4f} and {heuristic[t]:.4f} at {t:g} steps"
        for t in ours.index
    )
    return Measurement(
        f"{shown}; above the heuristic by up to {(ours / heuristic).max() - 1:.1%}",
        "larger than both at every number of steps above 2; what was found, not the worst there is",
        bool(((ours > constant) & (ours > heuristic)).all()),
    )


def _violation(method: str) -> Check:
    """The largest ratio of Figure 5 is at most about 3 % above one."""

    @check
    def measure(estimates: pd.DataFrame) -> Measurement:
        rows = select(estimates, quantity="ratio", method=method)
        worst = rows.loc[rows.groupby("cell")["value"].idxmax()]
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

    return measure


figure5_enumerated = _violation("enumerated")
figure5_rounded = _violation("rounded up")


@check
def figure5_majority(estimates: pd.DataFrame) -> Measurement:
    """In most settings of Figure 5 the linear loss leaks more."""
    rows = needed(select(estimates, quantity="ratio", method="enumerated").query("steps > 1"))
    share = (rows["value"] < 1).groupby(rows["cell"]).mean()
    shown = ", ".join(f"{value:.0%} in {cell}" for cell, value in share.items())
    return Measurement(
        f"{shown} (settings of more than one step)", "more than half", bool((share > 0.5).all())
    )


@check
def history(estimates: pd.DataFrame) -> Measurement:
    """Section 4.3: epsilon rises to the standard one with the factor."""
    line = curve(estimates, "history", "history regulariser")
    standard = curve(estimates, "history", "standard").iloc[0]
    heuristic = curve(estimates, "history", "heuristic").iloc[0]
    last = needed(line.iloc[1:]).iloc[-1]
    above = line.index[line > heuristic]
    where = f"above the heuristic {heuristic:.4f} from factor {above.min():g}"
    return Measurement(
        f"{last:.4f} at factor {line.index[-1]:g}, against {standard:.4f} standard; "
        + (where if len(above) else f"nowhere above the heuristic {heuristic:.4f}"),
        "rising, and within 0.1 % of the standard epsilon at the largest factor",
        bool(all(a < b for a, b in pairwise(line)) and abs(last / standard - 1) < 1e-3),
    )


def audited(estimates: pd.DataFrame, attack: str, method: str) -> pd.DataFrame:
    """One row per audit: its value, the heuristic's and the standard epsilon."""
    parts = []
    for cell in named(estimates, f"{attack}_q"):
        rows = select(estimates, quantity="epsilon", cell=cell, method=method).set_index("x")
        baselines = {
            name: curve(estimates, cell.replace(attack, "audits"), name)
            for name in ("heuristic", "standard")
        }
        parts.append(rows[["value", "sampling_rate"]].assign(**baselines))
    return pd.concat(parts).rename_axis("steps").reset_index()


@check
def figure3_close(estimates: pd.DataFrame) -> Measurement:
    """Figure 3: estimates close to the heuristic except at few steps."""
    rows = audited(estimates, "gradient", "as published")
    ratio = rows["value"] / rows["heuristic"]
    many, few = needed(ratio[rows["steps"] >= 100]), ratio[rows["steps"] < 100]
    below = f", {few.min():.2f} to {few.max():.2f} below" if len(few) else ""
    return Measurement(
        f"estimate over heuristic {many.min():.2f} to {many.max():.2f} from 100 steps on{below}",
        "0.88 to 1.03 from 100 steps on (the spread over seeds)",
        bool(many.between(0.88, 1.03).all()),
    )


@check
def figure3_below(estimates: pd.DataFrame) -> Measurement:
    """Figure 3: no more valid lower bounds exceed the heuristic than their confidence allows."""
    from scipy.stats import binom

    rows = audited(estimates, "gradient", "lower bound")
    share = rows["value"] / rows["heuristic"]
    above, most = int((share > 1).sum()), int(binom.isf(0.01, len(rows), 1 - CONFIDENCE))
    return Measurement(
        f"{above} of {len(rows)} above the heuristic, the largest {share.max():.3f} of it",
        f"at most {most} ({1 - CONFIDENCE:.0%} of them, with a false alarm in 1 % of such runs)",
        above <= most,
    )


def _audits(estimates: pd.DataFrame, *figures: str, **values: Any) -> pd.DataFrame:
    """Audits of trained models, with the share of what ideal ones find; none may be missing."""
    rows = trained(estimates, *figures, **values)
    found = needed(rows.get("as published", pd.Series(dtype=float)))
    return rows.assign(share=found / rows["ideal"])


@check
def figure2_loose(estimates: pd.DataFrame) -> Measurement:
    """Figure 2: estimates far below the heuristic, and below what linear losses would give."""
    rows = _audits(estimates, "figure2")
    last = rows.loc[rows.groupby("sampling_rate")["steps"].idxmax()]
    shown = "; ".join(
        f"{r['as published']:.2f} at sampling rate {r['sampling_rate']:g} and {r['steps']:g} "
        f"steps, where the heuristic is {r['heuristic']:.2f} and linear losses would give "
        f"{r['least']:.2f} to {r['most']:.2f}"
        for _, r in last.iterrows()
    )
    return Measurement(
        shown,
        "at the most steps of each panel, below nine tenths of the heuristic and below the range "
        "of 90 % that as many models with linear losses give",
        bool(
            (last["as published"] < last["least"]).all()
            and (last["as published"] < 0.9 * last["heuristic"]).all()
        ),
    )


@check
def figure4_tighter(estimates: pd.DataFrame) -> Measurement:
    """Figures 2 and 4: a mislabelled record is found more easily than a gradient."""
    rows = _audits(estimates, "figure2", "figure4")
    near = rows[rows["steps"] >= 100]
    record = needed(select(near, attack="natural"))
    # At the sampling rate of Figure 4, or the nearest.
    rates = needed(select(near, attack="dirac")["sampling_rate"])
    nearest = rates.loc[(rates - record["sampling_rate"].iloc[0]).abs().idxmin()]
    gradient = select(near, attack="dirac", sampling_rate=nearest)
    ours, theirs = record["share"].mean(), gradient["share"].mean()
    return Measurement(
        f"mislabelled record {ours:.2f}, gradient {theirs:.2f} of what as many models with linear "
        f"losses give (means over {len(record)} and {len(gradient)} audits of 100 steps or more)",
        "larger for the mislabelled record, both among natural records",
        bool(ours > theirs),
    )


@check
def figure4_blank(estimates: pd.DataFrame) -> Measurement:
    """Figure 4: more is found among blank records."""
    rows = _audits(estimates, "figure4")
    shares = rows.groupby("attack")["share"].mean()
    return Measurement(
        f"blank {shares['blank']:.2f}, natural {shares['natural']:.2f} of what as many models with "
        f"linear losses give (means over {len(rows) // 2} audits each)",
        "larger among blank records by a tenth",
        bool(shares["blank"] > shares["natural"] + 0.1),
    )


@check
def trained_below(estimates: pd.DataFrame) -> Measurement:
    """Figures 2 and 4, Table 1: no lower bound exceeds the heuristic."""
    rows = _audits(estimates, "figure2", "figure4", "table1")
    over = (rows["lower bound"] / rows["heuristic"]).max()
    return Measurement(
        f"largest lower bound over heuristic {over:.3f} in {len(rows)} audits",
        f"1; each audit is wrong with probability at most {1 - CONFIDENCE:.0%}",
        bool(over <= 1),
    )


@check
def table1_similar(estimates: pd.DataFrame) -> Measurement:
    """Table 1: with similar heuristic epsilons, batch sizes give similar models and estimates."""
    rows = _audits(estimates, "table1")
    needed(rows.iloc[1:])
    shown = "; ".join(
        f"batch {r['batch']:g}: accuracy {r['accuracy']:.1%}, empirical {r['as published']:.2f}, "
        f"standard {r['standard']:.1f}"
        for _, r in rows.iterrows()
    )
    return Measurement(
        shown,
        "accuracies within 2 points of each other, empirical epsilons within 1",
        bool(np.ptp(rows["accuracy"]) <= 0.02 and np.ptp(rows["as published"]) <= 1),
    )


def _matches_standard(attack: str) -> Check:
    """Figure 6: estimates reach the standard epsilon, and no lower bound exceeds it."""

    @check
    def measure(estimates: pd.DataFrame) -> Measurement:
        published = needed(audited(estimates, attack, "as published").query("steps >= 10"))
        bound = audited(estimates, attack, "lower bound")
        reached = published["value"] / published["standard"]
        over = (bound["value"] / bound["standard"]).max()
        return Measurement(
            f"estimate over standard epsilon {reached.min():.2f} to {reached.max():.2f} from 10 "
            f"steps on; lower bound over it at most {over:.3f}",
            "at least 0.93, from 10 steps on (the estimator errs upwards); lower bound at most 1",
            bool(reached.min() >= 0.93 and over <= 1),
        )

    return measure


def _exceeds_heuristic(attack: str) -> Check:
    """Figure 6: the attack exceeds the heuristic."""

    @check
    def measure(estimates: pd.DataFrame) -> Measurement:
        rows = needed(audited(estimates, attack, "lower bound").query("steps >= 10"))
        above = rows["value"] > rows["heuristic"]
        shown = ", ".join(
            f"{part.sum()} of {len(part)} at sampling rate {q:g}"
            for q, part in above.groupby(rows["sampling_rate"])
        )
        return Measurement(
            f"lower bound above the heuristic in {shown}, from 10 steps on",
            "in every audit from 10 steps on",
            bool(above.all()),
        )

    return measure


figure6_bits = _matches_standard("bits")
figure6_analog = _matches_standard("analog")
figure6_bits_exceed = _exceeds_heuristic("bits")
figure6_analog_exceed = _exceeds_heuristic("analog")


def _first_row(column: str) -> Check:
    """The first row of Table 1 at the recalled parameters."""

    @check
    def measure(estimates: pd.DataFrame) -> Measurement:
        row = select(estimates, origin="recalled", method=column).iloc[0]
        ours, printed = row["value"], row[f"printed_{column}"]
        return Measurement(
            f"{ours:.4f} against {printed:g} printed",
            "0.01, one unit of the last printed digit",
            bool(abs(ours - printed) < 0.01),
        )

    return measure


table1_heuristic = _first_row("heuristic")
table1_standard = _first_row("standard")


@check
def table1_rows(estimates: pd.DataFrame) -> Measurement:
    """Both columns of every row are possible at one training length."""
    rows = select(estimates, origin="reconstructed")
    gaps = [
        (part["value"] - part[f"printed_{column}"]).abs().max()
        for column in ("heuristic", "standard")
        for part in [select(rows, method=column)]
    ]
    epochs = (rows["steps"] * rows["batch"] / rows["records"]).groupby(rows["batch"], sort=False)
    shown = ", ".join(f"batch {batch:g}: {n:.0f} epochs" for batch, n in epochs.first().items())
    return Measurement(
        f"both columns within {max(gaps):.3f} at {shown}",
        "0.05, and a training length between 1 and 1,000 epochs",
        max(gaps) < 0.05,
    )
