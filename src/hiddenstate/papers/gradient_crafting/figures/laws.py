"""Exact laws: one insertion and hidden steps (section 6), distances from Gaussian (appendix E)."""

from typing import Any

import numpy as np
import pandas as pd

from hiddenstate import plotting
from hiddenstate.papers.gradient_crafting.figures.shared import has
from hiddenstate.pipeline.estimates import select
from hiddenstate.pipeline.family import figure

_EXACT = "exact laws; no model is trained"
_MIDPOINT = {"part": "single", "quantity": "epsilon", "threshold": "midpoint", "kind": "exact"}
_READINGS = ("Gaussian-DP reading", "exact")


@figure(
    "One insertion, then hidden steps: evolution",
    "Section 6: epsilon of the last of t iterates after one crafted gradient in the first step, "
    "by batch size B. The landscape repels from the midpoint. Left: the paper's interpretation, "
    "one point of the trade-off curve as Gaussian DP; for large B it stays constant. Right: the "
    "exact epsilon of the same iterates at the same delta. For large B each hidden step takes a "
    "part of it, down to what one bit of the first step has. Batch sizes whose lines differ by "
    "less than 1 % share one.",
    message="One point read as Gaussian DP overstates what hidden steps leave",
    when=has("single"),
    shows=_EXACT,
)
def evolution(estimates: pd.DataFrame) -> Any:
    laws = select(estimates, **_MIDPOINT)
    there = np.sort(laws["epsilon"].unique())
    epsilons = [e for e in (1.0, 4.0) if e in there] or [there[0]]
    alike = _alike(select(laws, epsilon=epsilons))
    looks = plotting.looks(alike)
    drawn, axes = plotting.panels(2, len(epsilons), height=2.8, sharex=True, sharey="row")
    for row, epsilon in enumerate(epsilons):
        for ax, method in zip(axes[2 * row : 2 * row + 2], _READINGS, strict=True):
            lines = select(laws, epsilon=epsilon, method=method)
            ax.axhline(epsilon, color="black", ls="--", lw=1.2, label="accountant")
            flat = select(lines, batch_size=0)
            ax.plot(flat["x"], flat["value"], color="0.5", ls=":", label="flat landscape")
            for size, largest_size in alike.items():
                line = select(lines, batch_size=size)
                label = f"B = {size:g}"
                label += f" to {largest_size:g}" if largest_size > size else ""
                own = {"label": label, "lw": 1.4, "ms": 3.5, "markevery": 4}
                ax.plot(line["x"], line["value"], **own, **looks[size])
            ax.set_title(f"{method}, $\\varepsilon$ = {epsilon:g}")
            ax.set_ylim(0, epsilon * 1.08)
        axes[2 * row].set_ylabel("$\\varepsilon$ of iterate t")
    for ax in axes[-2:]:
        ax.set_xlabel("step t")
    return plotting.legend_below(drawn, axes[0], columns=4)


def _alike(laws: pd.DataFrame) -> dict[float, float]:
    """First and last batch size of those in a row whose lines are one to the eye."""
    lines = laws.assign(share=laws["value"] / laws["epsilon"]).pivot(
        index=["epsilon", "method", "x"], columns="batch_size", values="share"
    )
    found: dict[float, float] = {}
    for size in (size for size in lines if size):
        first = max(found, default=size)
        same = (lines[size] - lines[first]).abs().max() < 0.01
        found[first if same else size] = size
    return found


@figure(
    "One insertion, then hidden steps: by batch size and epsilon",
    "Section 6 after the last step: empirical over theoretical epsilon. Left: the paper's "
    "interpretation, which takes one point of the curve for a Gaussian curve. Middle: exact "
    "(epsilon, delta) of the same landscape, of which hidden steps take a part whatever the batch "
    "size. Right: exact, with the landscape's threshold at h* = epsilon / mu + mu / 2. That makes "
    "the statement right, at error rates that no number of trainings can show.",
    message="Exactly judged, the midpoint attack loses part of epsilon at every batch size",
    when=has("single"),
    shows=_EXACT,
)
def ratio(estimates: pd.DataFrame) -> Any:
    laws = select(estimates, part="single", quantity="epsilon", kind="exact")
    last = laws[(laws["x"] == laws["steps"]) & (laws["batch_size"] > 0)]
    shown = (
        ("midpoint", "Gaussian-DP reading", "Gaussian-DP reading, midpoint"),
        ("midpoint", "exact", "exact, midpoint"),
        ("h*", "exact", "exact, threshold h*"),
    )
    drawn, axes = plotting.panels(3, height=3.2, sharey=True)
    for ax, (threshold, method, title) in zip(axes, shown, strict=True):
        part = select(last, threshold=threshold, method=method)
        part = part.assign(ratio=part["value"] / part["epsilon"])
        table = part.pivot(index="epsilon", columns="batch_size", values="ratio")
        table = table[::-1].rename(columns="{:g}".format, index="{:g}".format)
        label = "empirical / theoretical $\\varepsilon$" if ax is axes[-1] else ""
        shades = {"cmap": "viridis", "vmin": 0, "vmax": 1, "annot": True, "fmt": ".2f"}
        plotting.heat_map(ax, table, label, annot_kws={"size": 6.5}, **shades)
        ax.set(title=title, xlabel="batch size B", ylabel="")
    axes[0].set_ylabel("theoretical $\\varepsilon$")
    return drawn


@figure(
    "Appendix E: how far from Gaussian",
    "Lévy distance of the last iterate's exact trade-off curve from the nearest Gaussian curve, "
    "by the number of steps, at one mean shift. Left: the single insertion of section 6, by the "
    "landscape's drift beta = B / sigma. Right: a linear loss whose canary is sampled at rate q "
    "in each step; dotted, the Berry-Esseen upper bound. The noise keeps the mean shift of "
    "all steps together at the one in the title, in deviations. Open: below 1e-6, drawn there; "
    "without subsampling and on a flat landscape only rounding is left.",
    message="Sampled linear losses tend to a Gaussian curve; one insertion moves away from it",
    when=has("hidden"),
    shows=_EXACT,
)
def hidden(estimates: pd.DataFrame) -> Any:
    rows = select(estimates, part="hidden", quantity="distance")
    drawn, axes = plotting.panels(2, height=3.2, sharey=True)
    for ax, (column, name) in zip(
        axes, (("beta", "$\\beta$"), ("sampling_rate", "q")), strict=True
    ):
        colors = plotting.colors(rows[column].dropna())
        for level, part in rows.groupby(column):
            color = colors[level]
            line = select(part, method="nearest Gaussian").sort_values("x")
            ax.plot(
                line["x"], line["value"].clip(lower=1e-6), "o-", ms=3, color=color,
                label=f"{name} = {level:g}",
            )  # fmt: skip
            low = line[line["value"] < 1e-6]
            ax.plot(low["x"], 0 * low["x"] + 1e-6, "o", ms=3.5, color=color, mfc="white", zorder=4)
            bound = select(part, method="Berry-Esseen").sort_values("x")
            if (bound["value"] > 0).any():
                ax.plot(bound["x"], bound["value"], ls=":", color=color, lw=1.2)
        if (select(rows, method="Berry-Esseen")[column] > 0).any():
            ax.plot([], [], ls=":", color="0.3", lw=1.2, label="Berry-Esseen bound")
        ax.plot([], [], "o", ms=3.5, color="0.3", mfc="white", label="below 1e-6")
        ax.set(xscale="log", yscale="log", xlabel="steps", ylim=(5e-7, 1.5))
    places = {"lower right": (0.99, 0.1), "lower left": (0.01, 0.1)}
    for ax, (place, at) in zip(axes, places.items(), strict=True):
        ax.legend(fontsize="x-small", ncols=2, loc=place, bbox_to_anchor=at)
    axes[0].set(title="one insertion, then hidden steps", ylabel="Lévy distance from Gaussian")
    axes[1].set_title(f"linear loss, canary sampled, mean shift {rows['mu'].iloc[0]:g}")
    return drawn
