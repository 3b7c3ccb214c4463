"""Audits of the housing network."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
from scipy.special import ndtr, ndtri

from hiddenstate import plotting
from hiddenstate.papers.gradient_crafting import summaries
from hiddenstate.papers.gradient_crafting.adversaries import CRAFTED
from hiddenstate.papers.gradient_crafting.cells import SETTING
from hiddenstate.papers.gradient_crafting.figures.shared import (
    by_adversary,
    compare_epsilons,
    counted,
    has,
    ideal_audits,
    look,
    ordered,
)
from hiddenstate.papers.gradient_crafting.grid import GradientCraftingGrid, Sweep
from hiddenstate.pipeline.estimates import largest, select
from hiddenstate.pipeline.family import figure, needed


def _has_housing(holds: Callable[[Sweep], bool]) -> Any:
    """True if a grid has a sweep of the housing network for which that holds."""

    def when(grid: GradientCraftingGrid) -> bool:
        return grid.housing is not None and any(map(holds, grid.housing.sweeps))

    return when


def _audits(estimates: pd.DataFrame) -> pd.DataFrame:
    """Audits of the housing network: those that are judged of each setting."""
    return summaries.drawn(select(estimates, part="housing", quantity="epsilon"))


_STARTS = {
    "fresh": "fresh start", "shared": "shared start", "reshuffled": "shared start, reshuffled"
}  # fmt: skip


@figure(
    "Canary in every step (housing)",
    "Empirical against theoretical epsilon of the 68-parameter network on California housing, "
    "with an insertion in every step. One point is one repeat of the published estimate. The open "
    "triangle beside it is the valid lower bound of another rule, which may be above the "
    "estimate. Fresh start: initial parameters drawn for each model. Shared start: one draw for "
    "all models of a repeat. Reshuffled: an interpretation in which batches are drawn again in "
    "each epoch. The text does not say which start the paper has. Grey: what the estimate finds "
    "in simulated audits that leak all that the accountant allows, with as many models as the "
    "panel's largest audit. The scores are raw; another figure subtracts the drift that the "
    "adversary can simulate.",
    message="The simulated coordinate shows nearly all of epsilon, a model's own random one little",
    of="housing",
    when=_has_housing(lambda sweep: sweep.every == 1),
)
def housing(estimates: pd.DataFrame) -> Any:
    audits = needed(select(_audits(estimates), every=1))
    starts = [start for start in _STARTS if (audits["start"] == start).any()]
    drawn, axes = plotting.panels(1, len(starts), height=2.6, sharey=True)
    drawn.set_figwidth(2 * plotting.WIDTH)
    for ax, start in zip(axes, starts, strict=True):
        part = select(audits, start=start)
        ideal = ideal_audits(estimates, 1, part["models"].max())
        compare_epsilons(ax, part, ideal, by_adversary(part))
        ax.set(title=f"{_STARTS[start]}, {counted(part)}", ylabel="empirical $\\varepsilon$")
    for ax in axes[:-1]:
        ax.set_xlabel("")
    return plotting.legend_below(drawn, axes, 2)


@figure(
    "Canary in every k-th step (housing)",
    "As for k = 1, with the same number of insertions, which alone are accounted. In a coordinate "
    "that nothing else moves, exactly mu / sqrt(k) is left (dotted). At a large epsilon the "
    "simulated coordinate shows less than that: its drift differs between models, and the "
    "adversary knows it. The titles give the numbers of repeats and models; the sources have 5,000 "
    "models in total at k = 1 and state none here.",
    message="Between insertions the hidden steps' noise leaves at most mu / sqrt(k)",
    of="housing",
    when=_has_housing(lambda sweep: sweep.every > 1 and sweep.start == "fresh"),
)
def housing_every(estimates: pd.DataFrame) -> Any:
    audits = needed(select(_audits(estimates), start="fresh").query("every > 1"))
    periods = sorted(int(every) for every in audits["every"].unique())
    drawn, axes = plotting.panels(len(periods), height=3.6, sharey=True)
    for ax, every in zip(axes, periods, strict=True):
        part = select(audits, every=every)
        ideal = ideal_audits(estimates, every, part["models"].max())
        compare_epsilons(ax, part, ideal, by_adversary(part))
        ax.set_title(f"k = {every}, {part['insertions'].iloc[0]:g} insertions\n{counted(part)}")
    axes[0].set_ylabel("empirical $\\varepsilon$")
    return plotting.legend_below(drawn, axes, len(axes))


@figure(
    "What the adversary can simulate, taken off (housing)",
    "Ours. The share of mu / sqrt(k), which an unused coordinate leaks, that audits show. Here mu "
    "is the difference of the mean scores over their standard deviation, with one standard error. "
    "Open: the published score. Filled: the same models after the adversary, who knows start and "
    "batches, subtracts the end of a training without noise and canary. At a large "
    "epsilon and with a fresh start this closes more of a coordinate's gap than of the loss's. "
    "A share above 1 is sampling error.",
    message="What a coordinate misses is mostly drift that the adversary can predict",
    of="housing",
    when=_has_housing(lambda sweep: getattr(sweep, "centred", None) is not None),
)
def centred(estimates: pd.DataFrame) -> Any:
    rows = needed(select(estimates, part="centred", quantity="mu"))
    settings = list(rows.groupby(["every", "start"], sort=True))
    drawn, axes = plotting.panels(len(settings), height=3.6, sharey=True)
    if len(settings) == 1:
        drawn.set_size_inches(1.6 * plotting.WIDTH, 4)
    words = ordered(rows)
    epsilons = sorted(rows["epsilon"].unique())
    for ax, ((every, start), part) in zip(axes, settings, strict=True):
        for word in words:
            for i, epsilon in enumerate(epsilons):
                own = select(part, adversary=word, epsilon=epsilon)
                place = words.index(word) + 0.3 * (i - (len(epsilons) - 1) / 2)
                both = {}
                for reading, line in own.groupby("reading"):
                    filled = reading != "as published"
                    mean = (line["value"] / line["idle_mu"]).mean()
                    error = ((line["high"] - line["value"]) / line["idle_mu"]).mean()
                    both[filled] = mean
                    ax.errorbar(
                        place + 0.08 * filled, mean, error / len(line) ** 0.5, capsize=2,
                        color=look(word)["color"], mfc=look(word)["color"] if filled else "white",
                        marker="os^Dv"[i % 5], ms=5.5,
                    )  # fmt: skip
                if len(both) == 2:
                    ends = [place, place + 0.08], [both[False], both[True]]
                    ax.plot(*ends, color="0.7", lw=0.8, zorder=0)
        ax.axhline(1, color="black", ls="--", lw=1.2)
        ax.axhline(0, color="0.6", lw=0.8)
        ax.set_xticks(range(len(words)), [word.replace(" ", "\n") for word in words])
        ax.set_xlim(-0.5, len(words) - 0.5)
        models = part["models"].max()
        ax.set_title(f"k = {every:g}, {start} start\n2 x {models:,.0f} models")
    for i, epsilon in enumerate(epsilons):
        style = {"color": "0.3", "ls": "none", "marker": "os^Dv"[i % 5], "ms": 5.5}
        axes[0].plot(
            [], [], mfc="w", label=f"published score, $\\varepsilon$ = {epsilon:g}", **style
        )
        axes[0].plot([], [], label=f"known end point off, $\\varepsilon$ = {epsilon:g}", **style)
    axes[0].plot([], [], color="black", ls="--", lw=1.2, label="unused coordinate")
    axes[0].set_ylabel("estimated $\\mu$ / ($\\mu$ / $\\sqrt{k}$)")
    return plotting.legend_below(drawn, axes[:1], 3)


@figure(
    "Gradient norm of the baseline's canary",
    "Norm of the mislabelled record's gradient before each step: median and middle 80 % of "
    "the models, beside the clipping norm (dashed). A record uses its share of the "
    "sensitivity only where its norm reaches the clipping norm. A crafted gradient uses it "
    "in every insertion.",
    message="A mislabelled record's gradient starts near the clipping norm and grows",
    when=has("housing", "norms"),
    shows="models trained here, none cached",
)
def norms(estimates: pd.DataFrame) -> Any:
    lines = list(select(estimates, part="norms", quantity="norm").groupby("every"))
    drawn, axes = plotting.panels(len(lines), sharey=True)
    for ax, (every, line) in zip(axes, lines, strict=True):
        first = line.iloc[0]
        ax.fill_between(line["x"], line["low"], line["high"], color=plotting.OBSERVED, alpha=0.25)
        ax.plot(line["x"], line["value"], color=plotting.OBSERVED, label="median, middle 80 %")
        ax.axhline(first["clipping_norm"], color="black", ls="--", lw=1.2, label="clipping norm")
        ax.set(xlabel="step")
        ax.set_title(
            f"k = {every:g}, $\\varepsilon$ = {first['epsilon']:g}, {first['models']:g} models"
        )
    axes[0].set(ylabel="gradient norm of the record")
    axes[0].set_ylim(bottom=0)
    axes[0].legend()
    return drawn


@figure(
    "Observed trade-off curves (housing)",
    "Trade-off curve of one audit by the simulated coordinate (first repeat), by epsilon. "
    "Dotted: the Gaussian curve of mu / sqrt(k), which an unused coordinate has exactly. The "
    "accountant allows that of mu, which is the one at k = 1. At a large epsilon and rarer "
    "insertions less is seen, for the drift differs between models.",
    message="Observed trade-off curves are nearly Gaussian, of at most mu / sqrt(k) for k steps an "
    "insertion",
    of="housing",
    when=_has_housing(lambda sweep: sweep.start == "fresh" and CRAFTED in sweep.adversaries),
)
def curves(estimates: pd.DataFrame) -> Any:
    rows = select(estimates, part="housing", quantity="fnr", start="fresh")
    rows = largest(needed(select(rows, adversary=CRAFTED)), "models", SETTING)
    periods = sorted(rows["every"].unique())
    every_epsilon = sorted(rows["epsilon"].unique())
    # More than three lie on each other.
    shown = {every_epsilon[i] for i in (0, len(every_epsilon) // 2, -1)}
    colors = plotting.colors(shown)
    drawn, axes = plotting.panels(len(periods), sharey=True)
    for ax, every in zip(axes, periods, strict=True):
        plotting.diagonal(ax)
        part = select(rows, every=every)
        for epsilon, line in part[part["epsilon"].isin(shown)].groupby("epsilon"):
            color, mu = colors[epsilon], line["mu"].iloc[0]
            ax.plot(line["x"], line["value"], color=color, label=f"$\\varepsilon$ = {epsilon:g}")
            x = np.linspace(0, 1, 400)
            ax.plot(x, ndtr(ndtri(1 - x) - mu / every**0.5), color="black", ls=":", lw=1.2)
        ax.set(xlabel="false-positive rate", xlim=(0, 1), ylim=(0, 1))
        ax.set_title(f"k = {every:g}\n2 x {part['models'].max():,.0f} models")
    axes[0].plot([], [], color="black", ls=":", lw=1.2, label="Gaussian, $\\mu / \\sqrt{k}$")
    axes[0].set_ylabel("false-negative rate")
    return plotting.legend_below(drawn, axes, 7)
