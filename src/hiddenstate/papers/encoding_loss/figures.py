"""Figures of encoding_loss."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pandas as pd

from hiddenstate import plotting
from hiddenstate.papers.encoding_loss.cells import ENCODINGS
from hiddenstate.pipeline.estimates import select
from hiddenstate.pipeline.family import figure


def _panel_title(part: pd.DataFrame) -> str:
    first = part.iloc[0]
    return f"sampling rate {first['sampling_rate']:g}, {first['steps']:g} steps"


def _settings(estimates: pd.DataFrame, quantity: str) -> Iterator[tuple[str, pd.DataFrame]]:
    """Panel title and rows of each setting of Figure 2."""
    rows = select(estimates, quantity=quantity)
    rows = rows[rows["cell"].str.contains("_eps")]
    for _, part in rows.groupby(["sampling_rate", "steps"], sort=False):
        yield _panel_title(part), part


_CURVE_LINES: dict[tuple[str, str], tuple[str, dict[str, Any]]] = {
    ("all iterates", "either"): ("all iterates, symmetric", {"color": "black", "ls": "--"}),
    ("all iterates", "out"): ("all iterates, this direction", {"color": "black", "ls": ":"}),
    ("linear loss", "out"): ("last iterate, linear loss", {"color": plotting.OTHER, "ls": "--"}),
}


def _draw_curves(
    estimates: pd.DataFrame, null: str, lines: Mapping[tuple[str, str], tuple[str, dict[str, Any]]]
) -> Any:
    mechanisms = list(select(estimates, quantity="fnr").groupby("cell", sort=False))
    drawn, axes = plotting.panels(len(mechanisms), 2, height=2.6, sharex="col", sharey="row")
    styles = {
        "published": ("last iterate, published encoding", plotting.PUBLISHED),
        "sound": ("last iterate, sound encoding", plotting.OBSERVED),
    }
    for i, (_, part) in enumerate(mechanisms):
        above, below = axes[i], axes[len(mechanisms) + i]
        plotting.diagonal(above)
        every = select(part, method="all iterates", null="either").set_index("x")["value"]
        for ax, less in ((above, 0 * every), (below, every)):
            for (method, direction), (label, style) in lines.items():
                # A linear loss is too far from the symmetric curve for the lower axis.
                if method == "linear loss" and ax is below:
                    continue
                line = _less(select(part, method=method, null=direction), less)
                plotting.line(ax, line, lw=1.2, label=label, zorder=3, **style)
            for encoding, (label, color) in styles.items():
                line = select(part, encoding=encoding, null=null, method="observed")
                if line.empty:
                    continue
                line = _less(line, less)
                ax.fill_between(line["x"], line["low"], line["high"], color=color, alpha=0.3, lw=0)
                plotting.line(ax, line, ls="-", color=color, lw=1.6, label=label)
        first = part.iloc[0]
        above.set_title(
            f"{_panel_title(part)}\nnoise multiplier {first['noise_multiplier']:g}, "
            f"$\\varepsilon$ = {first['epsilon']:.3g}"
        )
        above.set(xlabel="", xlim=(0, 1), ylim=(0, 1))
        below.set(xlabel="false-positive rate")
    axes[0].set_ylabel("false-negative rate")
    # Of the lines; bands are wide at small rates and may leave the axes.
    below = [y for ax in axes[len(mechanisms) :] for one in ax.lines for y in one.get_ydata()]
    limits = min(-0.03, 1.05 * min(below)), max(0.1, 1.05 * max(below))
    axes[len(mechanisms)].set(ylabel="minus the symmetric curve", ylim=limits)
    return plotting.legend_below(drawn, axes[0], columns=3)


def _less(line: pd.DataFrame, other: pd.Series) -> pd.DataFrame:
    """A curve and its band less another curve, at the same false-positive rates."""
    rates = np.interp(line["x"], other.index, other)
    columns = ["value", "low", "high"]
    return line.assign(**{name: line[name] - rates for name in columns})


@figure(
    "Figure 1: trade-off curves",
    "Above: trade-off curve of the last iterate with the published and with a sound encoding, "
    "mean of the repeats and two standard deviations. Beside it stand the curve of all iterates "
    "and, above alone, that of the last iterate under a linear loss. Below: each curve minus "
    "the symmetric curve of all iterates. The paper draws the symmetric curve, which covers both "
    "directions; the dotted curve is for this direction alone. The text states one mechanism "
    "(noise multiplier 0.5, sampling rate 0.01, 1,024 steps); the others are our choice. The paper "
    "shows a drawing without printed values.",
    message="Under the encoding loss the last iterate leaks what all iterates leak",
)
def figure1(estimates: pd.DataFrame) -> Any:
    return _draw_curves(estimates, "out", _CURVE_LINES)


@figure(
    "Figure 1 with the data sets swapped",
    "As Figure 1, for the published encoding, with the data set that has the canary as the null "
    "hypothesis; the loss keeps the inverse ratio. The runs are others than those of Figure 1. "
    "The paper states this in words.",
    message="The last iterate leaks as much when the two data sets are swapped",
)
def figure1_swapped(estimates: pd.DataFrame) -> Any:
    lines = {
        ("all iterates", "either"): _CURVE_LINES["all iterates", "either"],
        ("all iterates", "in"): _CURVE_LINES["all iterates", "out"],
    }
    return _draw_curves(estimates, "in", lines)


_EPSILON_SERIES = {
    # encoding, method: label, colour, marker
    "published, algorithm 2": ("Algorithm 2, published encoding", plotting.PUBLISHED, "s"),
    "sound, algorithm 2": ("Algorithm 2, sound encoding", plotting.OBSERVED, "o"),
    "sound, closest curve": ("closest curve, sound encoding", plotting.OTHER, "D"),
    "sound, lower bound": ("lower bound at 95 %, sound encoding", plotting.VALID, "^"),
}


@figure(
    "Figure 2: empirical epsilon",
    "Empirical against theoretical epsilon, mean and two standard deviations over repeats. "
    "Triangles: lower bounds that hold with 95 % confidence. Squares, dots and diamonds: "
    "estimates, which choose on the scores they judge and may land above the truth. Open circles: "
    "the paper states that its estimates match the theory exactly. An infinity sign, if any: in "
    "some repeat none of the searched epsilons fits.",
    message="An audit of the last iterate alone finds nearly all of the accountant's epsilon",
)
def figure2(estimates: pd.DataFrame) -> Any:
    settings = list(_settings(estimates, "epsilon"))
    drawn, axes = plotting.panels(len(settings), height=3.2, sharey=True)
    for ax, (title, part) in zip(axes, settings, strict=True):
        epsilons = np.sort(part["epsilon"].unique())
        ticks = np.arange(len(epsilons))
        ax.hlines(
            epsilons, ticks - 0.45, ticks + 0.45, color="black", ls="--", lw=1.2, label="accountant"
        )
        ax.plot(ticks - 0.42, epsilons, label="stated by the paper", zorder=5, **plotting.STATED)
        rows = part.assign(x=part["epsilon"], series=part["encoding"] + ", " + part["method"])
        rows = rows[rows["series"].isin(list(_EPSILON_SERIES))]
        beyond = np.isinf(rows["value"]).groupby([rows["series"], rows["x"]]).transform("any")
        plotting.repeats(ax, rows[~beyond], _EPSILON_SERIES, deviations=2)
        for (name, epsilon), _ in rows[beyond].groupby(["series", "x"]):
            # 0.54: the width over which ``plotting.repeats`` spreads the series.
            shift = 0.54 * (list(_EPSILON_SERIES).index(name) / (len(_EPSILON_SERIES) - 1) - 0.5)
            place = (list(epsilons).index(epsilon) + shift, 0.93)
            where = {"xycoords": ("data", "axes fraction"), "ha": "center"}
            ax.annotate("$\\infty$", place, color=_EPSILON_SERIES[name][1], **where)
        ax.set(title=title, xticks=ticks, xticklabels=[f"{e:g}" for e in epsilons])
        ax.set(xlabel="theoretical $\\varepsilon$", xlim=(-0.6, len(epsilons) - 0.4))
        ax.set_yscale("log", base=2)
        ax.set_ylim(epsilons[0] / 2.5, epsilons[-1] * 2.5)
        ax.set_yticks(epsilons, [f"{e:g}" for e in epsilons])
        ax.minorticks_off()
    axes[0].set_ylabel("empirical $\\varepsilon$")
    return plotting.legend_below(drawn, axes[0], columns=3)


@figure(
    "Where the published encoding breaks",
    "Above: correlation of the decoded score with the log-likelihood ratio of all iterates. "
    "Below: upper bound on the probability that a run decodes some step wrongly. Open: below "
    "1e-12, drawn there. With the published spacing (the power of ten above 3 sigma) steps "
    "collide where half of it is little above the noise. At small sampling rates spacing and "
    "decimals both lose signal; dotted lines show the sound encoding with one of them.",
    message="The published encoding loses some signal at some epsilons; a sound one keeps it",
)
def encodings(estimates: pd.DataFrame) -> Any:
    rows = {
        "correlation": ("correlation with the ratio\nthat all iterates show", {}),
        "collision_probability": (
            "probability that a run\ndecodes wrongly (bound)",
            {"yscale": "log", "ylim": (3e-13, 3)},
        ),
    }
    columns = len(list(_settings(estimates, "correlation")))
    drawn, axes = plotting.panels(columns, len(rows), height=2.5, sharex=True, sharey="row")
    for row, (quantity, (label, options)) in enumerate(rows.items()):
        for column, (title, part) in enumerate(_settings(estimates, quantity)):
            ax = axes[row * columns + column]
            for encoding, color, marker in (
                ("published", plotting.PUBLISHED, "s"),
                ("sound", plotting.OBSERVED, "o"),
                ("spacing alone", plotting.OTHER, "v"),
                ("decimals alone", plotting.VALID, "^"),
            ):
                line = select(part, encoding=encoding).sort_values("epsilon")
                floor = 1e-12 if options else -1
                places, low = np.arange(len(line)), line["value"].to_numpy() < floor
                shown = np.maximum(line["value"].to_numpy(), floor)
                own = {"color": color, "marker": marker}
                ax.plot(places[low], shown[low], zorder=4, mfc="white", ls="none", **own)
                words, ls = f"sound, with the published {encoding}", ":"
                if encoding in ENCODINGS:
                    words, ls = f"{encoding} encoding", "-"
                ax.plot(places, shown, label=words, ls=ls, **own)
            ax.set(**options)
            ax.set_xticks(np.arange(len(line)), [f"{e:g}" for e in line["epsilon"]])
            if row == 0:
                ax.set_title(title)
            else:
                ax.set_xlabel("theoretical $\\varepsilon$")
        axes[row * columns].set_ylabel(label)
    below = {"color": "0.3", "marker": "s", "mfc": "white", "ls": "none"}
    axes[0].plot([], [], label="below 1e-12", **below)
    return plotting.legend_below(drawn, axes[0], columns=2)


@figure(
    "Algorithm 2 by cut-off",
    "Empirical over theoretical epsilon, mean and two standard deviations over repeats. The "
    "horizontal axis is the smallest share of errors at which Algorithm 2 compares. The "
    "paper prints none (left). The small numerals at the bottom count the repeats without any "
    "epsilon that fits. The cut-offs are ours; other figures use 1 %.",
    message="As printed, Algorithm 2 finds no epsilon in most repeats; a cut-off decides the rest",
)
def cutoffs(estimates: pd.DataFrame) -> Any:
    rows = select(estimates, quantity="epsilon by cut-off")
    settings = list(rows.groupby(["encoding", "sampling_rate", "steps"], sort=False))
    columns = 2 if len(settings) % 2 == 0 else 1
    drawn, axes = plotting.panels(
        columns, len(settings) // columns, height=2.7, sharex=True, sharey=True
    )
    cuts = sorted(rows["x"].unique())
    colors = plotting.colors(rows["epsilon"])
    for ax, ((encoding, rate, steps), part) in zip(axes, settings, strict=True):
        ax.axhline(1, color="black", ls="--", lw=1.2, label="accountant")
        for i, (epsilon, own) in enumerate(part.groupby("epsilon")):
            shift = 0.13 * (i - (part["epsilon"].nunique() - 1) / 2)
            for x, line in own.groupby("x"):
                values = line["value"][np.isfinite(line["value"])] / epsilon
                place, missing = cuts.index(x) + shift, len(line) - len(values)
                if len(values):
                    ax.errorbar(
                        place, values.mean(), 2 * values.std() if len(values) > 1 else 0,
                        color=colors[epsilon], marker="o", ms=3.5, capsize=1.5, lw=1,
                    )  # fmt: skip
                if missing:
                    style = {"color": colors[epsilon], "ha": "center", "fontsize": 6}
                    ax.text(place, 0.1 + 0.16 * i, f"{missing}", **style)
            ax.plot([], [], color=colors[epsilon], marker="o", ms=3.5, ls="none",
                    label=f"$\\varepsilon$ = {epsilon:g}")  # fmt: skip
        ax.set_xticks(range(len(cuts)), [f"{cut:.1%}".replace(".0", "") if cut else "none"
                                         for cut in cuts])  # fmt: skip
        ax.set_ylim(bottom=0)
        ax.set_title(f"{encoding} encoding\nsampling rate {rate:g}, {steps:g} steps")
    axes[0].plot(
        [], [], color="0.3", marker="$3$", ls="none", label="repeats in which no epsilon fits"
    )
    for ax in axes[-columns:]:
        ax.set_xlabel("smallest share of errors that is compared")
    for ax in axes[::columns]:
        ax.set_ylabel("empirical / theoretical $\\varepsilon$")
    return plotting.legend_below(drawn, axes[0], columns=3)
