"""Figures of worst_case_init, drawn from its estimates."""

import math
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pandas as pd

from hiddenstate import plotting
from hiddenstate.auditing import Averaged
from hiddenstate.auditing.methods import PUBLISHED
from hiddenstate.papers.worst_case_init.grid import shows
from hiddenstate.papers.worst_case_init.stated import RECORDS, stated
from hiddenstate.papers.worst_case_init.summaries import (
    EPOCHS,
    groups,
    ideal,
    lacking,
    planned,
    summary,
    title,
)
from hiddenstate.pipeline.estimates import select
from hiddenstate.pipeline.family import Figure, figure

_READING = (
    "Squares: the published estimate, mean and standard deviation over the repeats. It takes the "
    "best threshold on the same scores and is no valid bound. Triangles: a valid bound at 95 % "
    f"confidence ({Averaged.name} errors), likewise. Dashed: the theoretical epsilon. Grey: the "
    "central 90 % of audits of this size when the full epsilon leaks. Open circles, if any: the "
    "paper's values for the same data, model and number of records."
)
_EXPECTED = (
    "Panels of expected audits, if any, show the mean that five audits publish. It is computed "
    "from one training and a pass back for each start (squares; bars: nine of ten such means, if "
    "these are known). Open diamonds: the same with two-sided intervals. Scores are taken as "
    "normal. Expected audits bound nothing."
)
_WIDTH = 0.6
"""Of all series at one epsilon, which are one apart."""
_COLOURS = [plotting.SERIES[i] for i in (0, 1, 2, 4, 5)]
_PUBLISHED: dict[str, Any] = {"fmt": "s", "ms": 4.5, "capsize": 2.5, "lw": 1.2}
_VALID: dict[str, Any] = {"marker": "^", "ms": 4.5, "ls": "none", "alpha": 0.5}
_THEORETICAL: dict[str, Any] = {"color": "0.5", "ls": "--", "lw": 1.2}
_CIRCLES: dict[str, Any] = plotting.STATED | {"zorder": 5, "label": "_stated by the paper"}
"""Stated values; for its underscore the label is in no panel's own legend."""


def _by_epsilon(
    ax: Any, estimates: pd.DataFrame, audits: pd.DataFrame, factor: str, label: Callable[..., str],
    colours: dict[Any, str],
) -> None:  # fmt: skip
    """Empirical against theoretical epsilon, a series per level of a factor; the stated ones."""
    name, task = audits[["figure", "task"]].iloc[0]
    epsilons = sorted(audits["epsilon"].unique())
    places = pd.Series(range(len(epsilons)), index=epsilons, dtype=float)
    best = ideal(estimates, models=audits["models"].max(), epsilon=epsilons)
    for row in best.itertuples():
        around = places[row.epsilon] + np.array([-0.42, 0.42])
        ax.fill_between(around, row.low, row.high, color="0.9", lw=0, zorder=0)
    for epsilon, place in places.items():
        ax.plot([place - 0.42, place + 0.42], [epsilon] * 2, **_THEORETICAL)
    levels = sorted(audits[factor].unique())
    rows = select(estimates, figure=name, quantity="epsilon", task=task, **{factor: levels})
    rows = rows[rows["records"].isin(set(audits["records"]))]
    rows = rows.assign(x=rows["epsilon"], series=rows[factor].astype(str) + ", " + rows["method"])
    series = {
        f"{level}, {method}": (label(level) if method == PUBLISHED else "", colour, marker)
        for level, colour in ((level, colours[level]) for level in levels)
        for method, marker in ((PUBLISHED, "s"), ("valid", "^"))
    }
    plotting.repeats(ax, rows, series, deviations=1, width=_WIDTH)
    for j, level in enumerate(levels):
        # As ``plotting.repeats`` places them: two series a level, over the whole width.
        shift = _WIDTH * (2 * j / (len(series) - 1) - 0.5)
        values = _alike(stated(name, task, "mean", **{factor: level, "epsilon": epsilons}), audits)
        ax.plot(places[values["epsilon"]] + shift, values["value"], **_CIRCLES)
    if len(epsilons) == 1:
        # One place a level, named on the axis, in place of a legend.
        middle = _WIDTH / (len(series) - 1)
        shifts = [middle * (2 * j + 0.5) - _WIDTH / 2 for j in range(len(levels))]
        ax.set_xticks(shifts, [label(level) for level in levels])
        ax.set(xlabel=f"at theoretical $\\varepsilon$ = {epsilons[0]:g}")
    else:
        ax.set_xticks(places, [f"{epsilon:g}" for epsilon in epsilons])
        ax.set(xlabel="theoretical $\\varepsilon$")
    ax.set_xlim(-0.55, len(epsilons) - 0.45)
    ax.set_ylim(bottom=-0.03 * ax.get_ylim()[1])
    if len(epsilons) > 1:
        # Framed, for its markers look like those of the panel.
        ax.legend(loc="best", frameon=True, edgecolor="0.85", framealpha=1)


_HELD: dict[str, dict[str, Any]] = {
    "case": {"clipping_norm": 1.0},
    "epochs": {"clipping_norm": 1.0, "epsilon": 10.0},
    "records": {"clipping_norm": 1.0, "case": "worst"},
    "clipping_norm": {"case": "worst"},
}
"""What expected audits have in common, by the factor of a figure."""


def _expected(estimates: pd.DataFrame, tasks: Iterable[str], factor: str) -> list[pd.DataFrame]:
    """Expected audits for a figure by a factor, of each task that has several levels of it.

    They have as many records as the paper's, unless these are the factor. A task that is not the
    paper's has a part for each number of records with several epsilons.
    """
    rows = select(estimates, quantity="expected epsilon", task=set(tasks))
    rows = select(rows, **_HELD[factor]) if len(rows) else rows
    last = rows.groupby("task")["epochs"].transform("max")
    if factor != "epochs":
        rows = rows[(rows["epochs"] == last) | (rows["epochs"] == 0)]
    by = ["task"]
    if factor != "records":
        by, own = ["task", "records"], rows["task"].map(RECORDS)
        several = rows.groupby(by)["epsilon"].transform("nunique") > 1
        rows = rows[(rows["records"] == own) | (own.isna() & several)]
    parts = [part for _, part in rows.groupby(by, sort=False)]
    return [part for part in parts if part[factor].nunique() > (2 if factor == "epochs" else 1)]


def _expected_by(
    ax: Any, rows: pd.DataFrame, name: str, x: str, factor: str, colours: dict[Any, str],
    label: Callable[..., str] | None = None,
) -> None:  # fmt: skip
    """Expected audits by epsilon or epochs x, a series per level of a factor; the stated ones."""
    task = rows["task"].iloc[0]
    places = pd.Series({at: float(i) for i, at in enumerate(sorted(rows[x].unique()))})
    for at, place in places.items():
        epsilon = at if x == "epsilon" else rows["epsilon"].iloc[0]
        ax.plot([place - 0.42, place + 0.42], [epsilon] * 2, **_THEORETICAL)
    series = sorted(rows[factor].unique())
    width = _WIDTH / len(series)
    for j, level in enumerate(series):
        held, colour = {factor: level}, colours[level]
        part = select(rows, **held).sort_values(x)
        shift = (j - (len(series) - 1) / 2) * width
        one, two = (select(part, method=method) for method in (PUBLISHED, "two-sided"))
        # Ends that are not known draw no bar.
        ends = np.abs([one["value"] - one["low"], one["high"] - one["value"]])
        own = {"color": colour, "label": label(level) if label else None}
        ax.errorbar(places[one[x]] + shift, one["value"], np.nan_to_num(ends), **_PUBLISHED | own)
        ax.plot(
            places[two[x]] + shift + width / 4, two["value"], "D", ms=3.5, color=colour, mfc="w"
        )
        values = _alike(stated(name, task, "mean", **held, **{x: list(places.index)}), part)
        ax.plot(places[values[x]] + shift, values["value"], **_CIRCLES)
    ax.set_xticks(places, [f"{at:g}" for at in places.index])
    names = {"epochs": "epochs of pre-training", "epsilon": "theoretical $\\varepsilon$"}
    ax.set(xlim=(-0.55, len(places) - 0.45), xlabel=names[x])
    ax.set_ylim(bottom=-0.03 * ax.get_ylim()[1])
    few, most = int(rows["starts"].min()), int(rows["starts"].max())
    starts = f"{few} to {most} starts" if few < most else f"{few} start{'s' if few > 1 else ''}"
    records = "" if factor == "records" else f", n = {rows['records'].iloc[0]:,.0f}"
    ax.set_title(f"{title(task)}{records}, expected audits\n{starts} a point")
    if label:
        ax.legend(loc="upper left", frameon=True, edgecolor="0.85", framealpha=1)


def _alike(values: pd.DataFrame, audits: pd.DataFrame) -> pd.DataFrame:
    """Stated values of as many records as the audits have that are there."""
    return values[values["records"].isin(set(audits["records"]))]


def _explain(drawn: Any, expected: bool = False) -> Any:
    """The figure with one legend for what all panels share."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    small = {"color": "0.35", "ls": "", "ms": 3.5}
    lines: list[tuple[str, dict[str, Any]]] = [
        ("theoretical (upper bound)", _THEORETICAL),
        ("real audits, as published: mean ± sd", {"marker": "s", "ms": 4.5, "color": "0.35"}),
        ("valid 95 % bound: mean ± sd", _VALID | {"color": "0.35"}),
        ("90 % of perfect audits", {}),
    ]
    if expected:
        lines.append(("expected: mean of five, with 90 % of such means", small | {"marker": "s"}))
        lines.append(("expected, two-sided intervals", small | {"marker": "D", "mfc": "w"}))
    every = (line for ax in drawn.axes for line in ax.lines)
    if any(one.get_label() == _CIRCLES["label"] and len(one.get_xdata()) for one in every):
        lines.append(("stated by the paper", plotting.STATED))
    handles = [Line2D([], [], **own) if own else Patch(color="0.9") for _, own in lines]
    columns = 3 if drawn.get_figwidth() > 6 else 2
    return plotting.shared_legend(drawn, handles, [label for label, _ in lines], columns)


def _title(ax: Any, audits: pd.DataFrame, *words: str) -> None:
    """Task, records and words, and how many of the repeats there are if some are missing."""
    records = [f"n = {n:,.0f}" for n in audits["records"].unique()]
    first = ", ".join([title(audits["task"].iloc[0]), *(records if len(records) == 1 else [])])
    ax.set_title("\n".join(filter(None, (", ".join((first, *words)), lacking(audits)))))


_DIFFER = {"clipping_norm": "C = {:g}", "steps": "{:g} steps", "models": "2 x {:g} models"}
"""How titles name a level of what panels differ in, besides task, records and epsilon."""


def _own(levels: dict[str, Any], every: pd.DataFrame) -> list[str]:
    """Parameters that one panel shows and others do not."""
    return [
        words.format(levels[name])
        for name, words in _DIFFER.items()
        if name in levels and every[name].nunique() > 1
    ]


def _laid_out(panels: int) -> tuple[Any, list[Any]]:
    """A figure of at most three panels a row, and their axes, with the name of the y axis."""
    rows = math.ceil(panels / 3)
    columns = math.ceil(panels / rows)
    drawn, axes = plotting.panels(columns, rows, height=4.1)
    if panels == 1:
        drawn.set_size_inches(5.2, 4.2)
    for ax in axes[panels:]:
        ax.remove()
    for ax in axes[:panels:columns]:
        ax.set_ylabel("empirical $\\varepsilon$")
    return drawn, axes[:panels]


def _panels(
    heading: str, message: str, caption: str, name: str, factor: str, label: Callable[..., str],
    of: str = "MNIST",
) -> Figure:  # fmt: skip
    """A figure of a panel per task and number of records, a series per level of a factor."""

    words = f"{caption} {_READING}" + (f" {_EXPECTED}" if factor in _HELD else "")

    @figure(heading, words, when=shows(name), message=message, of=of)
    def draw(estimates: pd.DataFrame) -> Any:
        every = planned(estimates, name)
        by = ["task"] if factor == "records" else ["task", "records"]
        parts = [part for _, part in every.groupby(by, sort=False)]
        told = _expected(estimates, every["task"], factor)
        drawn, axes = _laid_out(len(told) + len(parts))
        colours = plotting.colors(pd.concat([every, *told])[factor], _COLOURS)
        for ax, points in zip(axes, told, strict=False):
            _expected_by(ax, points, name, "epsilon", factor, colours, label)
        for ax, audits in zip(axes[len(told) :], parts, strict=True):
            _by_epsilon(ax, estimates, audits, factor, label, colours)
            _title(ax, audits, f"2 x {int(audits['models'].max())} models")
        return _explain(drawn, len(told) > 0)

    return draw


figure1 = _panels(
    "Figure 1: average-case and worst-case initial parameters",
    "Worst-case initial parameters leak more with many records, and not with few",
    "Audits of models trained from random and from pre-trained parameters.",
    *("figure1", "case", "{} case".format),
)


@figure(
    "Figure 2: pre-training, gradient norms and leakage",
    "The more epochs of pre-training, the smaller the private records' clipped gradients "
    "in the first step. Orange: these norms, of the audits' records (diamonds) and of more, where "
    f"the scale has them (crosses). {_READING} {_EXPECTED}",
    when=shows("figure2"),
    message="Pre-training shrinks all gradients; with few records it does not raise leakage",
    of="MNIST",
)
def figure2(estimates: pd.DataFrame) -> Any:
    every = planned(estimates, "figure2")
    parts, told = groups(every, *EPOCHS), _expected(estimates, every["task"], "epochs")
    drawn, axes = _laid_out(len(told) + len(parts))
    for ax, (levels, audits) in zip(axes[len(told) :], parts, strict=True):
        _by_epochs(ax, estimates, levels)
        where = f"theoretical $\\varepsilon$ = {levels['epsilon']:g}"
        _title(ax, audits, where, *_own(levels, every))
    for ax, points in zip(axes, told, strict=False):
        colours = dict.fromkeys(points["epsilon"], plotting.OBSERVED)
        _expected_by(ax, points, "figure2", "epochs", "epsilon", colours)
    return _explain(drawn, len(told) > 0)


def _by_epochs(ax: Any, estimates: pd.DataFrame, levels: dict[str, Any]) -> None:
    """Empirical epsilon and gradient norm by epochs; the stated ones."""
    found, valid, norms = (
        summary(estimates, "figure2", *what, **levels).sort_values("epochs")
        for what in (("epsilon", PUBLISHED), ("epsilon", "valid"), ("gradient_norm", "mean"))
    )
    epsilon = levels["epsilon"]
    best = ideal(estimates, models=levels["models"], epsilon=epsilon).iloc[0]
    ax.axhspan(best["low"], best["high"], color="0.9", lw=0, zorder=0)
    ax.axhline(epsilon, **_THEORETICAL)
    epochs = found["epochs"]
    ax.errorbar(epochs, found["mean"], found["sd"].fillna(0), color=plotting.OBSERVED, **_PUBLISHED)
    ax.plot(epochs, found["mean"], color=plotting.OBSERVED, lw=1)
    own = {"color": plotting.OBSERVED, "capsize": 2.5, "lw": 1.2, **_VALID}
    ax.errorbar(valid["epochs"] + 0.12, valid["mean"], valid["sd"].fillna(0), **own)
    right: Any = ax.twinx()
    right.grid(False)
    shared = {"capsize": 2.5, "lw": 1.2, "color": plotting.PUBLISHED}
    same = {name: levels[name] for name in ("task", "epsilon", "clipping_norm")}
    more = summary(estimates, "figure2_norms", "gradient_norm", "mean", **same)
    for records, line in more.groupby("records"):
        line = line.sort_values("epochs")
        right.errorbar(
            line["epochs"], line["mean"], line["sd"].fillna(0), fmt="x--", ms=6, **shared,
            label=f"norms, n = {records:,.0f}",
        )  # fmt: skip
    right.errorbar(
        norms["epochs"], norms["mean"], norms["sd"].fillna(0), fmt="D:", ms=4, **shared,
        label="norms, these audits" if len(norms) else None,
    )  # fmt: skip
    if len(norms) or len(more):
        right.legend(loc="lower left", frameon=True, edgecolor="0.85", framealpha=1)
    for axis, quantity in ((ax, "mean"), (right, "gradient_norm")):
        values = stated("figure2", quantity=quantity, **same)
        there = [*found["records"], *(more["records"] if axis is right else [])]
        values = values[values["records"].isin(there)]
        own = {"mec": plotting.PUBLISHED} if axis is right else {}
        axis.plot(values["epochs"], values["value"], **_CIRCLES | own)
    ax.set(xlabel="epochs of pre-training", ylim=(0, 1.08 * epsilon))
    ax.set_ylabel("empirical $\\varepsilon$ (squares, triangles)", color=plotting.OBSERVED)
    right.set_ylim(0, 1.08 * max([1.0, *norms["mean"]]))
    right.set_ylabel("mean norm of clipped gradients (orange)", color=plotting.PUBLISHED)


figure3 = _panels(
    "Figure 3: number of records",
    "Audits find less with many records than with few",
    "Worst-case initial parameters, n records with the canary.",
    *("figure3", "records", "n = {:,.0f}".format),
)
figure4 = _panels(
    "Figure 4: clipping norm",
    "A large clipping norm hides more, the more records there are",
    "Worst-case initial parameters, clipping norm C.",
    *("figure4", "clipping_norm", "C = {:g}".format),
)
figure5 = _panels(
    "Figure 5: last layer only",
    "If DP-SGD trains the last layer alone, audits find most of a large epsilon",
    "DP-SGD trains the last layer on the features of a frozen backbone; the canary is ClipBKD's.",
    *("figure5", "case", "{} case".format, "last layers"),
)


@figure(
    "Figure 6: convergence",
    "Test accuracy by steps and learning rate; the noise is calibrated again for each "
    "number of steps, so that all points have the same epsilon. The paper's value for the same "
    "data and model is an open circle where it is stated.",
    when=shows("figure6"),
    message="At equal epsilon, more steps give more accuracy",
    of="MNIST",
)
def figure6(estimates: pd.DataFrame) -> Any:
    every = planned(estimates, "figure6")
    parts, looks = groups(every, "steps", "learning_rate"), plotting.looks(every["learning_rate"])
    drawn, axes = plotting.panels(len(parts), height=3.7)
    if len(parts) == 1:
        drawn.set_size_inches(4.6, 3.8)
    known = [
        stated("figure6", at["task"], "accuracy", epsilon=at["epsilon"], case=at["case"])
        for at, _ in parts
    ]
    for ax, (levels, audits), values in zip(axes, parts, known, strict=True):
        rows = summary(estimates, "figure6", "accuracy", "mean", **levels).sort_values("steps")
        # All rates in each panel, for all share one legend.
        for rate, look in looks.items():
            line = select(rows, learning_rate=rate)
            points = line.set_index("steps")["mean"] * 100
            plotting.curve(ax, points, ms=4, lw=1.2, label=f"learning rate {rate:g}", **look)
        if any(map(len, known)):
            label = {"label": "stated by the paper", "zorder": 5}
            ax.plot(values["steps"], 100 * values["value"], **label, **plotting.STATED)
        # An axis without any point has no logarithms.
        ax.set_xscale("log" if len(rows) or len(values) else "linear")
        ax.set(xlabel="steps", ylabel="test accuracy in %")
        where = f"{levels['case']} case, theoretical $\\varepsilon$ = {levels['epsilon']:g}"
        _title(ax, audits, where, *_own(levels, every))
    return plotting.legend_below(drawn, axes[0], columns=2)


@figure(
    "Figure 7: last layer, clipping norm and number of records",
    f"As Figure 5, worst case. {_READING}",
    when=shows("figure7"),
    message="A large clipping norm hides most of the canary; the number of records does not",
    of="last layers",
)
def figure7(estimates: pd.DataFrame) -> Any:
    audits = planned(estimates, "figure7")
    drawn, axes = plotting.panels(2, height=4.4, sharey=True)
    for ax, factor, fixed, label in (
        (axes[0], "clipping_norm", "records", "C = {:g}"),
        (axes[1], "records", "clipping_norm", "n = {:,.0f}"),
    ):
        # What varies here, at the other factor's most common level.
        other = audits[fixed].mode().iloc[0]
        level = {fixed: other}
        held = pd.concat([select(estimates, figure="figure7", **level), ideal(estimates)])
        shown = select(audits, **level)
        colours = plotting.colors(shown[factor], _COLOURS)
        _by_epsilon(ax, held, shown, factor, label.format, colours)
        words = [f"C = {other:g}"] if fixed == "clipping_norm" else []
        _title(ax, shown, *words, f"2 x {int(shown['models'].max())} models")
    axes[0].set_ylabel("empirical $\\varepsilon$")
    return _explain(drawn)
