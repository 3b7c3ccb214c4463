"""Audits with many canaries in one model."""

from itertools import product
from typing import Any

import pandas as pd

from hiddenstate import plotting
from hiddenstate.papers.gradient_crafting.estimates import UNUSED
from hiddenstate.papers.gradient_crafting.figures.shared import has
from hiddenstate.papers.gradient_crafting.summaries import FLIPPED, KNOWN, PLANNED
from hiddenstate.pipeline.estimates import select
from hiddenstate.pipeline.family import figure

_RULES = {
    KNOWN: ("whole mechanism, null law known", plotting.VALID),
    FLIPPED: ("whole mechanism, null law unknown", plotting.OBSERVED),
    PLANNED: ("each canary alone", plotting.PUBLISHED),
}
"""Of the bounds from one model those that are drawn."""


@figure(
    "How many trainings does a gradient canary need? One",
    "Ours. Lower bound (95 %) from one model: median and middle 80 % over independent audits. "
    "Each of m coordinates has a canary or not by its own coin. Green and blue assume that the "
    "joint mechanism is Gaussian DP, which is true for DP-SGD. Orange assumes it for each canary "
    "alone; grey is the best that any valid bound can then do. Left: simulated unused "
    "coordinates. Right: trained networks, in their least moved coordinates; the law without "
    "canaries is simulated from the network's own start and batches and taken as normal. Open "
    "markers: all guesses are right in half of the audits, so this number can show no more. "
    "Horizontal, if any: the valid bound from as many models with and without one canary as the "
    "legend says, on the housing network.",
    message="One training with many canaries shows nearly all of epsilon, if its law is known",
    when=has("one_run"),
    shows="simulated coordinates; the networks named below; lines from audits of housing",
)
def one_run(estimates: pd.DataFrame) -> Any:
    rows = select(estimates, part="one run")
    rows = rows.assign(trained=rows["method"] != UNUSED)
    columns = sorted(rows["trained"].unique())
    epsilons = sorted(rows["epsilon"].unique())
    drawn, axes = plotting.panels(len(columns), len(epsilons), height=3.2, sharey="row")
    for ax, (epsilon, trained) in zip(axes, product(epsilons, columns), strict=True):
        part = select(rows, epsilon=epsilon, trained=trained)
        ax.axhline(epsilon, color="black", ls="--", lw=1.2, label="accountant")
        for models, style in ((100, ":"), (1000, "-.")):
            few = select(estimates, part="few", quantity="epsilon", method="valid")
            few = select(few, epsilon=epsilon, models=models) if len(few) else few
            if len(few):
                label = f"one canary, 2 x {models:,} models"
                ax.axhline(few["value"].mean(), color="0.3", ls=style, lw=1.2, label=label)
        (_one_run_networks if trained else _one_run_lines)(ax, part)
        ax.set_ylim(-0.03 * epsilon, 1.1 * epsilon)
        what = "trained networks" if trained else f"unused coordinates, {_audits(part)}"
        ax.set_title(f"$\\varepsilon$ = {epsilon:g}, {what}")
    for ax, trained in zip(axes[-len(columns) :], columns, strict=True):
        ax.set_xlabel("canaries m in one model", labelpad=28 if trained else 4)
    for ax in axes[:: len(columns)]:
        ax.set_ylabel("valid lower bound on $\\varepsilon$")
    open_marker: dict[str, Any] = {"color": "0.3", "ls": "none", "mfc": "w", "ms": 4.5}
    axes[0].plot([], [], marker="o", label="all guesses right in half of the audits", **open_marker)
    return plotting.legend_below(drawn, axes, 2)


_NETWORKS = {"mnist_linear": "MNIST, linear", "mnist_cnn": "MNIST, CNN"}


def _audits(part: pd.DataFrame) -> str:
    return f"{part['audits'].max():g} audits"


def _words(network: str, part: pd.DataFrame) -> str:
    return f"{_NETWORKS.get(network, network)}\n{_audits(select(part, method=network))}"


def _one_run_lines(ax: Any, part: pd.DataFrame) -> None:
    """Bounds of unused coordinates and their ceiling, by the number of canaries."""
    ceiling = select(part, quantity="ceiling").sort_values("canaries")
    label = "each canary alone: ceiling"
    ax.plot(ceiling["canaries"], ceiling["value"], color=plotting.UPPER, lw=2, label=label)
    for shift, (rule, (words, color)) in zip((1.0, 0.93, 1.07), _RULES.items(), strict=True):
        line = select(part, rule=rule, quantity="epsilon").sort_values("canaries")
        at = line["canaries"] * shift
        _medians(ax, at, line, select(part, rule=rule), color, marker="o", lw=1.1, label=words)
    numbers = sorted(part["canaries"].unique())
    ax.set_xscale("log")
    ax.set_xticks(numbers, [f"{m:,.0f}" for m in numbers], fontsize="small")
    ax.minorticks_off()


def _one_run_networks(ax: Any, part: pd.DataFrame) -> None:
    """Bounds of trained networks, each network and number of canaries at a place of its own."""
    places = {
        (network, m): place
        for place, (network, m) in enumerate(
            (network, m)
            for network, own in part.groupby("method", sort=False)
            for m in sorted(own["canaries"].unique())
        )
    }
    for shift, (rule, (words, color)) in zip((-0.22, 0.0, 0.22), _RULES.items(), strict=True):
        line = select(part, rule=rule, quantity="epsilon")
        keys = zip(line["method"], line["canaries"], strict=True)
        at = pd.Series([places[key] + shift for key in keys], line.index, float)
        style = {"marker": "s", "ls": "none", "label": words}
        _medians(ax, at, line, select(part, rule=rule), color, **style)
    ax.set_xticks(list(places.values()), [f"{m:,.0f}" for _, m in places], fontsize="small")
    networks = pd.Series(places).groupby(level=0, sort=False).mean()
    below = ax.secondary_xaxis("bottom")
    below.set_xticks(networks, [_words(name, part) for name in networks.index], fontsize="small")
    below.tick_params(length=0, pad=17)
    below.spines["bottom"].set_visible(False)
    ax.set_xlim(-0.5, len(places) - 0.5)


def _medians(
    ax: Any, at: pd.Series, line: pd.DataFrame, rule: pd.DataFrame, color: str, **style: Any
) -> None:
    """Medians with the middle 80 %, open where that median is the most so many guesses can show."""
    plotting.intervals(ax, at, line, color=color, ms=4.5, capsize=2, **style)
    keys = ["cell", "canaries"]
    right = select(rule, quantity="share all right").set_index(keys)["value"]
    most = [right.get(tuple(row), 0.0) >= 0.5 for row in line[keys].itertuples(index=False)]
    ax.plot(
        at[most], line["value"][most], color=color, marker=style["marker"], ms=4.5, mfc="w",
        ls="none", zorder=5,
    )  # fmt: skip
