"""What the claims of linear_heuristic measure, from its estimates."""

import math
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd

from hiddenstate.accounting import linear
from hiddenstate.auditing.methods import PUBLISHED
from hiddenstate.papers.linear_heuristic import stated
from hiddenstate.papers.linear_heuristic.estimates import curve, named, trained
from hiddenstate.pipeline.estimates import select
from hiddenstate.pipeline.evidence import (
    Estimate,
    Evidence,
    Exact,
    Share,
    Stated,
    Within,
    average,
    mean,
)
from hiddenstate.pipeline.family import Check, Lacking, check, needed

CLOSE = 0.1
"""Relative distance at which two epsilons of a figure whose axis ends at 8 are close: a tenth."""

FEW = 100
"""Steps below which a number of steps is "very small" on an axis from 1 to 1,000; ours."""

SAME = 1e-3
"""Relative accuracy to which noise is calibrated and compositions are computed, with room."""

THREE_PERCENT = 0.035
"""The excess that is printed as 3 %, at most."""

UNLIKE = 2.0
"""Points of accuracy by which models are no longer similar: a reading of ours."""

HALF = 0.5
"""Of a quantity, or of settings: "most" are more, and "much lower" is less."""


@check
def below_standard(estimates: pd.DataFrame) -> Evidence:
    """The heuristic never exceeds the standard epsilon."""
    over = pd.concat(
        curve(estimates, cell, "heuristic") / curve(estimates, cell, "standard") - 1
        for cell in named(estimates, "figure1") + named(estimates, "audits")
    )
    return Evidence(
        [
            Within(
                "largest excess of the heuristic over the standard epsilon",
                Exact(float(needed(over).max())),
                high=SAME,
                reason="accuracy of the calibrated noise",
            )
        ],
        f"{len(over)} settings of Figures 1, 3 and 6.",
    )


@check
def not_monotone(estimates: pd.DataFrame) -> Evidence:
    """The heuristic falls below that of a single step as steps grow, and rises again."""
    rows = select(estimates, cell="figure1c", method="heuristic").set_index("quantity")
    value, last = rows["value"], curve(estimates, "figure1c", "heuristic")
    below = (
        "never below one step"
        if pd.isna(value["first_below"])
        else f"below one step from {value['first_below']:.0f} to {value['last_below']:.0f} steps"
    )
    falls, rises = value["single_step"] - value["least"], last.iloc[-1] - value["least"]
    return Evidence(
        [
            Within("epsilon at one step less the least", Exact(float(falls)), low=1e-6),
            Within("epsilon at the most steps less the least", Exact(float(rises)), low=1e-6),
        ],
        f"{value['single_step']:.4f} at 1 step, {value['least']:.4f} at {rows['x']['least']:.0f}, "
        f"{last.iloc[-1]:.3f} at {last.index[-1]:.0f}; {below}.",
    )


@check
def constant_signal(estimates: pd.DataFrame) -> Evidence:
    """Figure 1a: the heuristic levels off where the standard epsilon diverges."""
    heuristic, standard = (
        curve(estimates, "figure1a", method).to_numpy() for method in ("heuristic", "standard")
    )
    needed(pd.Series(heuristic[2:]))
    half = len(heuristic) // 2
    return Evidence(
        [
            Within(
                "heuristic at the most steps over that at the middle of the axis",
                Exact(heuristic[-1] / heuristic[half]),
                1.0,
                1 + CLOSE,
                "level",
            ),
            Within(
                "standard epsilon, the same",
                Exact(standard[-1] / standard[half]),
                low=10.0,
                reason="another power of ten on the axis",
            ),
        ],
        f"Heuristic {heuristic[0]:.4f} to {heuristic[-1]:.4f}; standard {standard[0]:.3f} to "
        f"{standard[-1]:.1f}.",
    )


@check
def full_batch(estimates: pd.DataFrame) -> Evidence:
    """Full batch is usually, but not always, below the heuristic."""
    below = pd.concat(
        curve(estimates, cell, "full batch") <= curve(estimates, cell, "heuristic") + 1e-9
        for cell in named(estimates, "figure1")
    )
    # Where sampling the canary at all is rarer than delta, the heuristic is nothing.
    rare = (0.1, 0.01, 1, 0.02)
    exception = float(linear.full_batch_epsilon(*rare) - linear.last_iterate_epsilon(*rare))
    return Evidence(
        [
            Within(
                "share of Figure 1's settings where it is below",
                Exact(float(needed(below).mean())),
                low=HALF,
                reason="usually",
            ),
            Within(
                "excess over the heuristic at one setting",
                Exact(exception),
                1e-6,
                reason="not always",
            ),
        ],
        f"Below in {below.sum()} of {len(below)} settings of Figure 1; above by {exception:.4f} at "
        "noise multiplier 0.1, sampling rate 0.01, 1 step, delta 0.02, outside of Figure 1.",
    )


@check
def full_batch_same(estimates: pd.DataFrame) -> Evidence:
    """Appendix B: for full batches the last iterate leaks as much as all iterates."""
    last, every = (
        curve(estimates, "figure1a", method)
        for method in ("full batch", "full batch, all iterates")
    )
    ratio = needed(every) / last
    return Evidence(
        [
            Within(
                f"all iterates over last iterate, {what}",
                Exact(float(value)),
                1 - SAME,
                1 + 10 * SAME,
                "composition is rounded up, by at most 1 %",
            )
            for what, value in (("least", ratio.min()), ("largest", ratio.max()))
        ],
        f"Epsilons of composed Gaussian mechanisms, up to {ratio.index[-1]:g} of them, over that "
        "of the last iterate under linear losses.",
    )


@check
def quadratic_values(estimates: pd.DataFrame) -> Evidence:
    """The three epsilons of section 4.2, to their printed digits."""
    there = select(estimates, cell="quadratic", **stated.QUADRATIC_SETTING)
    line = curve(there, "quadratic", "quadratic regulariser")
    ours = needed(line.reindex(list(stated.QUADRATIC)))
    items: list[Stated | Within] = [
        Stated(
            f"epsilon at curvature {c:g}",
            Exact(float(ours[c])),
            Exact(stated.QUADRATIC[c]),
            0.0005,
            stated.QUADRATIC[1 - c],
            digits=3,
        )
        for c in (0.0, 1.0)
    ]
    least = stated.QUADRATIC[0.5]
    return Evidence(
        [
            *items,
            Within(
                "epsilon at curvature 0.5",
                Exact(float(ours[0.5])),
                least,
                least + 0.001,
                "not below 2.274, to its last digit",
                stated=f"{least:g}",
            ),
        ],
        ", ".join(f"{value:.6f} at curvature {c:g}" for c, value in ours.items()) + ".",
    )


@check
def quadratic_exceeds(estimates: pd.DataFrame) -> Evidence:
    """A curvature between the linear cases leaks more than both."""
    line = curve(estimates, "quadratic", "quadratic regulariser")
    needed(line.iloc[1:-1])
    ends = line.iloc[[0, -1]].max()
    return Evidence(
        [
            Within(
                "largest epsilon less the larger of curvatures 0 and 1",
                Exact(float(line.max() - ends)),
                low=1e-6,
            )
        ],
        f"Largest epsilon {line.max():.4f} at curvature {line.idxmax():g}, against {ends:.4f}.",
    )


@check
def extremes_tight(estimates: pd.DataFrame) -> Evidence:
    """Section 4.2: the heuristic's largest over fewer steps is at one step or at all of them."""
    share = needed(select(estimates, quantity="share of the largest"))["value"]
    return Evidence(
        [
            Within(
                "least share of the largest epsilon that curvature 0 or 1 attains",
                Exact(float(share.min())),
                low=1 - 1e-6,
            )
        ],
        f"{len(share)} settings of Figure 5, of which the heuristic is maximised over the steps.",
    )


@check
def worst_schedule(estimates: pd.DataFrame) -> Evidence:
    """A schedule of curvatures leaks more than any constant one, and than the heuristic."""
    lines = {
        method: curve(estimates, "schedules", method)
        for method in ("schedule", "constant curvature", "heuristic")
    }
    # A schedule of two steps has one curvature that matters.
    ours, *others = (needed(line[line.index > 2]) for line in lines.values())
    return Evidence(
        [
            Within(
                f"epsilon over that of {name}, {steps:g} steps",
                Exact(float(ours[steps] / other[steps])),
                low=1 + 1e-6,
            )
            for name, other in zip(
                ("the worst constant curvature", "the heuristic"), others, strict=True
            )
            for steps in ours.index
        ],
        f"Above the heuristic by up to {(ours / others[1]).max() - 1:.1%}; what a search found, "
        "not the worst there is.",
    )


def _panels(estimates: pd.DataFrame, method: str) -> dict[str, pd.DataFrame]:
    """Ratios of Figure 5 by panel, those of a single step, which are 1, left out."""
    rows = needed(select(estimates, quantity="ratio", method=method).query("steps > 1"))
    return {f"one step {x:g}": part for x, part in rows.groupby("x", sort=False)}


def _violation(method: str) -> Check:
    """The largest ratio of Figure 5 is at most 3 % above one."""

    @check
    def measure(estimates: pd.DataFrame) -> Evidence:
        items, shown = [], []
        for words, part in _panels(estimates, method).items():
            worst = part.loc[part["value"].idxmax()]
            where = f"{worst['steps']:g} steps, sampling rate {worst['sampling_rate']:g}"
            excess = Exact(float(worst["value"] - 1))
            items.append(
                Within(
                    f"largest excess, {words}, at {where}",
                    excess,
                    high=THREE_PERCENT,
                    reason="printed as 3 %",
                    stated="3 %",
                )
            )
            over = int((part["value"] > 1 + THREE_PERCENT).sum())
            shown.append(f"{over} of {len(part)} settings above 3.5 % ({words})")
        return Evidence(items, "; ".join(shown) + ".")

    return measure


figure5_violation = _violation("rounded up")
figure5_exact = _violation("enumerated")


@check
def figure5_majority(estimates: pd.DataFrame) -> Evidence:
    """In most settings of Figure 5 the linear loss leaks more."""
    return Evidence(
        [
            Within(
                f"share of settings where the linear loss leaks more, {words}",
                Exact(float((part["value"] < 1).mean())),
                low=HALF,
                reason="the majority",
            )
            for words, part in _panels(estimates, "rounded up").items()
        ],
        "Settings of more than one step, with the upper bound on the quadratic loss that the paper "
        "draws.",
    )


@check
def rounding(estimates: pd.DataFrame) -> Evidence:
    """Section 4.2: rounding the sums up raises epsilon by a factor of at most 1.05."""
    where = ["cell", "sampling_rate", "steps"]
    ratios = [
        select(estimates, quantity="ratio", **which).set_index(where)["value"]
        for which in ({"method": "rounded up"}, {"method": "enumerated", "kind": "exact"})
    ]
    factor = needed((ratios[0] / ratios[1]).dropna())
    cell, rate, steps = factor.idxmax()
    return Evidence(
        [
            Within(
                f"largest factor, {cell}, {steps:g} steps, sampling rate {rate:g}",
                Exact(float(factor.max())),
                high=1.05,
                stated="1.05",
            )
        ],
        f"Above 1.05 in {(factor > 1.05).sum()} of {len(factor)} settings whose sums can be "
        "enumerated.",
    )


@check
def history(estimates: pd.DataFrame) -> Evidence:
    """Section 4.3: epsilon rises to the standard one with the factor."""
    line = curve(estimates, "history", "history regulariser")
    standard = curve(estimates, "history", "standard").iloc[0]
    heuristic = curve(estimates, "history", "heuristic").iloc[0]
    last = needed(line.iloc[1:]).iloc[-1]
    above = line.index[line > heuristic]
    where = f"above the heuristic {heuristic:.4f} from factor {above.min():g}"
    return Evidence(
        [
            Within(
                "epsilon at the largest factor over the standard one",
                Exact(float(last / standard)),
                1 - 10 * SAME,
                1 + SAME,
                "tight to within 1 %",
            ),
            Within(
                "least rise from one factor to the next",
                Exact(float(min(b - a for a, b in pairwise(line)))),
                low=0.0,
            ),
        ],
        f"{last:.4f} at factor {line.index[-1]:g}, against {standard:.4f} standard; "
        + (where if len(above) else f"nowhere above the heuristic {heuristic:.4f}")
        + ".",
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
    return needed(pd.concat(parts).rename_axis("steps").reset_index())


def _at(row: Any) -> str:
    return f"sampling rate {row.sampling_rate:g}, {row.steps:g} steps"


def _shares(estimates: pd.DataFrame) -> pd.DataFrame:
    """Figure 3's estimates over the heuristic: the mean of independent audits, as ``share``."""
    rows = []
    for cell in named(estimates, "repeated_q"):
        heuristic = curve(estimates, cell, "heuristic")
        found = select(estimates, cell=cell, method=PUBLISHED)
        rows += [
            {"steps": steps, "sampling_rate": part["sampling_rate"].iloc[0]}
            | {"share": mean(part["value"] / heuristic[steps])}
            for steps, part in found.groupby("x")
        ]
    return needed(pd.DataFrame(rows))


@check
def figure3_close(estimates: pd.DataFrame) -> Evidence:
    """Figure 3: estimates close to the heuristic except at few steps."""
    rows = _shares(estimates)
    many = needed(rows[rows["steps"] >= FEW])
    reading = audited(estimates, "gradient", f"{PUBLISHED}, standard")
    other = (reading["value"] / reading["heuristic"])[reading["steps"] >= FEW]
    return Evidence(
        [
            Within(
                f"estimate over heuristic, {_at(row)}", row.share, 1 - CLOSE, 1 + CLOSE, "a tenth"
            )
            for row in many.itertuples()
        ],
        f"Means of independent audits, from {FEW} steps on. With composition's curves in place of "
        f"the heuristic's one audit gives {other.min():.2f} to {other.max():.2f}.",
    )


@check
def figure3_few_steps(estimates: pd.DataFrame) -> Evidence:
    """Figure 3: at few steps less is found, at both sampling rates."""
    rows = _shares(estimates)
    items = []
    for rate, part in rows.groupby("sampling_rate"):
        few, many = (
            average(list(needed(part[where])["share"]))
            for where in (part["steps"] < FEW, part["steps"] >= FEW)
        )
        shown = (
            f"estimate over heuristic, fewer than {FEW} steps less others, sampling rate {rate:g}"
        )
        items.append(Within(shown, few - many, high=0.0, reason="looser"))
    return Evidence(
        items, "Means of independent audits and of the numbers of steps on either side."
    )


@check
def figure3_below(estimates: pd.DataFrame) -> Evidence:
    """Figure 3: no estimate exceeds the heuristic."""
    rows = _shares(estimates)
    over = [
        f"{row.share.value:.3f} ({_at(row)})" for row in rows.itertuples() if row.share.value > 1
    ]
    return Evidence(
        [
            Within(f"estimate over heuristic, {_at(row)}", row.share, high=1.0)
            for row in rows.itertuples()
        ],
        f"Means of independent audits; {len(over)} of {len(rows)} are above"
        + (": " + ", ".join(over) if over else "")
        + ".",
    )


def _audits(estimates: pd.DataFrame, *figures: str, **values: Any) -> pd.DataFrame:
    """Audits of trained models; none may be missing.

    An audit is a single one, so its deviation ``sd`` is that of ideal audits of as many models,
    of which ``least`` and ``most`` are the 5 and 95 % quantiles.
    """
    rows = trained(estimates, *figures, **values)
    found = needed(rows.get(PUBLISHED, pd.Series(dtype=float)))
    return rows.assign(found=found, sd=(rows["most"] - rows["least"]) / (2 * 1.645))


def _share(rows: pd.DataFrame, of: str = "ideal") -> Estimate:
    """What audits found together, as a share of what linear losses or the heuristic would give."""
    total = float(needed(rows)[of].sum())
    if total <= 0:
        raise Lacking
    return Estimate(float(rows["found"].sum()) / total, math.hypot(*rows["sd"]) / total)


IDEAL = "Shares are of what as many models with linear losses give the same estimator."


@check
def figure2_loose(estimates: pd.DataFrame) -> Evidence:
    """Figure 2: estimates far below the heuristic."""
    rows = _audits(estimates, "figure2")
    return Evidence(
        [
            Within(
                f"share found, sampling rate {rate:g}", _share(part), high=HALF, reason="much lower"
            )
            for rate, part in rows.groupby("sampling_rate")
        ],
        f"{(rows['found'] < rows['heuristic']).sum()} of {len(rows)} estimates are below the "
        f"heuristic, whatever the models. {IDEAL}",
    )


@check
def figure4_tighter(estimates: pd.DataFrame) -> Evidence:
    """Figures 2 and 4: a mislabelled record is found more easily than a gradient."""
    rows = _audits(estimates, "figure2", "figure4")
    record = needed(select(rows, attack="natural"))
    # At the sampling rate of Figure 4, or the nearest, and at the numbers of steps of both.
    gradients = needed(select(rows, attack="dirac"))
    away = (gradients["sampling_rate"] - record["sampling_rate"].iloc[0]).abs()
    gradient = gradients[away == away.min()]
    both = sorted(set(record["steps"]) & set(gradient["steps"]))
    ours, theirs = (_share(select(part, steps=both)) for part in (record, gradient))
    return Evidence(
        [Within("share found, mislabelled record less gradient", ours - theirs, low=0.0)],
        f"At {', '.join(f'{n:g}' for n in both)} steps, which both have: mislabelled record "
        f"{ours.value:.2f}, gradient {theirs.value:.2f}. {IDEAL}",
    )


@check
def figure4_blank(estimates: pd.DataFrame) -> Evidence:
    """Figure 4: more is found among blank records."""
    rows = _audits(estimates, "figure4")
    blank, natural = (_share(select(rows, attack=attack)) for attack in ("blank", "natural"))
    return Evidence(
        [Within("share found, blank less natural", blank - natural, low=0.0)],
        f"Blank {blank.value:.2f}, natural {natural.value:.2f}, {len(rows) // 2} audits each. "
        + IDEAL,
    )


@check
def trained_below(estimates: pd.DataFrame) -> Evidence:
    """Figures 2 and 4, Table 1: the heuristic is above what audits of trained models find."""
    rows = _audits(estimates, "figure2", "figure4", "table1")
    below = Share(int((rows["found"] <= rows["heuristic"]).sum()), len(rows))
    most = (rows["found"] / rows["heuristic"]).max()
    return Evidence(
        [Within("audits that find less", below, low=0.75, reason="consistently")],
        f"{below.successes} of {below.trials}; the largest is {most:.2f} of the heuristic.",
    )


@check
def table1_similar(estimates: pd.DataFrame) -> Evidence:
    """Table 1: with similar heuristic epsilons, batch sizes give similar models and estimates."""
    rows = _audits(estimates, "table1")
    needed(rows.iloc[1:])
    found = [Estimate(r.found, r.sd) for r in rows.itertuples()]
    printed = np.mean([value for _, value in stated.TRAINED.values()])
    items = [
        Within(
            "largest difference of accuracies",
            Exact(float(np.ptp(rows["accuracy"]))),
            high=UNLIKE / 100,
            reason="2 points",
        )
    ]
    for (i, one), (j, other) in pairwise(enumerate(found)):
        what = f"empirical epsilon, batch {rows['batch'].iloc[i]:g} less {rows['batch'].iloc[j]:g}"
        half = float(printed / 2)
        items.append(Within(what, one - other, -half, half, "half of the 1.7 that is printed"))
    shown = "; ".join(
        f"batch {r.batch:g}: accuracy {r.accuracy:.1%}, empirical {r.found:.2f}"
        for r in rows.itertuples()
    )
    return Evidence(items, shown + ".")


@check
def table1_accuracy(estimates: pd.DataFrame) -> Evidence:
    """Table 1: the mean of the three printed accuracies."""
    found = _audits(estimates, "table1").set_index("batch")["accuracy"]
    found = needed(found.reindex(list(stated.TRAINED)))
    printed = pd.Series({n: float(one.removesuffix("%")) for n, (one, _) in stated.TRAINED.items()})
    # In points, of models that were tested on 10,000 images each.
    error = math.sqrt((printed * (100 - printed) / 10_000).sum()) / len(printed)
    ours, theirs = (Estimate(float(one.mean()), error) for one in (100 * found, printed))
    shown = ", ".join(f"{100 * value:.1f} (paper: {printed[n]:.1f})" for n, value in found.items())
    return Evidence(
        [Stated("mean accuracy in %", ours, theirs, 0.05, theirs.value - UNLIKE, 1)],
        f"With batches of 4,096, 512 and 256: {shown} %.",
    )


@check
def table1_empirical(estimates: pd.DataFrame) -> Evidence:
    """Table 1: the printed empirical epsilons, which are not the heuristic ones."""
    rows = _audits(estimates, "table1").set_index("batch")
    rows = needed(rows.reindex(list(stated.TRAINED)))
    needed(rows["found"])
    return Evidence(
        [
            Stated(
                f"empirical epsilon, batch {batch}",
                Estimate(float(rows["found"][batch]), float(rows["sd"][batch])),
                Exact(printed),
                0.05,
                float(rows["heuristic"][batch]),
                digits=1,
            )
            for batch, (_, printed) in stated.TRAINED.items()
        ],
        "One audit of each row; its deviation is that of ideal audits.",
    )


def _exact_share(estimates: pd.DataFrame, method: str, of: str) -> list[tuple[str, float]]:
    """A computed epsilon over the heuristic or the standard one, of Figure 6's mechanisms."""
    found = []
    for cell in named(estimates, "audits_q"):
        ratio = curve(estimates, cell, method) / curve(estimates, cell, of)
        words = f"sampling rate {cell.removeprefix('audits_q')}"
        found += [(f"{words}, {n:g} steps", float(r)) for n, r in ratio[ratio.index >= 10].items()]
    needed(pd.Series([value for _, value in found], dtype=float))
    return found


def _matches_standard(method: str, simulated: str) -> Check:
    """Figure 6: what the last iterate tells is the standard epsilon."""

    @check
    def measure(estimates: pd.DataFrame) -> Evidence:
        exact = _exact_share(estimates, method, "standard")
        audits = audited(estimates, simulated, PUBLISHED).query("steps >= 10")
        share = audits["value"] / audits["standard"]
        return Evidence(
            [
                Within(
                    f"epsilon over the standard one, {at}", Exact(v), 1 - CLOSE, 1 + SAME, "a tenth"
                )
                for at, v in exact
            ],
            "Epsilons of the last iterate without simulation; the audits of 100,000 runs estimate "
            f"{share.min():.2f} to {share.max():.2f} of the standard epsilon.",
        )

    return measure


def _exceeds_heuristic(method: str) -> Check:
    """Figure 6: the last iterate leaks more than the heuristic says."""

    @check
    def measure(estimates: pd.DataFrame) -> Evidence:
        exact = _exact_share(estimates, method, "heuristic")
        above = sum(value > 1 for _, value in exact)
        return Evidence(
            [Within(f"epsilon over the heuristic, {at}", Exact(v), low=1.0) for at, v in exact],
            f"Above the heuristic in {above} of {len(exact)} mechanisms of 10 steps and more, "
            "without simulation.",
        )

    return measure


figure6_bits = _matches_standard("one bit a step", "bits")
figure6_analog = _matches_standard("kept values", "analog")
figure6_bits_exceed = _exceeds_heuristic("one bit a step")
figure6_analog_exceed = _exceeds_heuristic("kept values")


def _first_row(
    estimates: pd.DataFrame, name: str, below: float, above: float, reason: str, note: str
) -> Evidence:
    """An epsilon of Table 1's first row, at the recalled parameters, by its printed digits."""
    row = needed(select(estimates, origin="recalled", method=name)).iloc[0]
    printed = float(row[f"printed_{name}"])
    found = Exact(float(row["value"]))
    region = (printed - below, printed + above)
    return Evidence(
        [Within(f"{name} epsilon", found, *region, reason=reason, stated=f"{printed:g}")],
        f"{row['value']:.4f} at the recalled noise multiplier and steps{note}.",
    )


@check
def table1_heuristic(estimates: pd.DataFrame) -> Evidence:
    """The heuristic epsilon of Table 1's first row, at the recalled parameters."""
    reason = "its digits, rounded or cut off"
    return _first_row(estimates, "heuristic", 0.005, 0.01, reason, "")


@check
def table1_standard(estimates: pd.DataFrame) -> Evidence:
    """The standard epsilon of Table 1's first row, at the recalled parameters."""
    renyi = needed(select(estimates, origin="recalled, fewer records", method="RDP")["value"])
    note = f"; by Rényi differential privacy and with 45,000 records {renyi.iloc[0]:.3f}"
    return _first_row(estimates, "standard", 0.5, 0.5, "its digit", note)
