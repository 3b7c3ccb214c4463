"""Audits of larger networks: ConvNet and ResNet."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd

from hiddenstate import plotting
from hiddenstate.auditing.methods import PUBLISHED
from hiddenstate.papers.gradient_crafting.adversaries import RANDOM, kind
from hiddenstate.papers.gradient_crafting.cells import NETWORK_SETTING
from hiddenstate.papers.gradient_crafting.figures.shared import (
    by_adversary,
    compare_epsilons,
    counted,
    ideal_audits,
    legend_below,
)
from hiddenstate.papers.gradient_crafting.grid import GradientCraftingGrid, NetworkSweep
from hiddenstate.pipeline.estimates import largest, select
from hiddenstate.pipeline.family import figure


def _has_network(holds: Callable[[NetworkSweep], bool]) -> Any:
    """Whether a grid has a sweep of a larger network, fresh start, for which that holds."""

    def when(grid: GradientCraftingGrid) -> bool:
        sweeps = (sweep for network in grid.networks.values() for sweep in network.sweeps)
        return any(sweep.start == "fresh" and holds(sweep) for sweep in sweeps)

    return when


def _network_audits(estimates: pd.DataFrame, quantity: str) -> pd.DataFrame:
    """The same of the larger networks, initial parameters drawn for each model."""
    rows = select(estimates, part="network", quantity=quantity, start="fresh")
    return largest(rows, "models", NETWORK_SETTING)


_STAND_INS = (
    "The paper has a ConvNet and a ResNet on CIFAR-10 (batch 128, 250 insertions), whose layers "
    "its text does not list; networks on scikit-learn's digits are ours, small stand-ins with "
    "small batches, so that genuine gradients have about the same share of a coordinate. What a "
    "panel shows is above it."
)


def _network_panels(estimates: pd.DataFrame, periods: Callable[[float], bool]) -> Any:
    """Empirical against theoretical epsilon: a panel for each network and insertion period."""
    rows = _network_audits(estimates, "epsilon")
    rows = rows[rows["every"].map(periods)]
    settings = list(rows.groupby(["network", "every"], sort=False))
    drawn, axes = plotting.panels(len(settings), height=3.8, sharey=True)
    if len(settings) == 1:
        drawn.set_size_inches(1.6 * plotting.WIDTH, 4.2)
    for ax, ((_, every), part) in zip(axes, settings, strict=True):
        norms = np.sort(part["clipping_norm"].unique())
        least = select(part, clipping_norm=norms[0])
        series = by_adversary(least)
        others = select(part, adversary=RANDOM, method=[PUBLISHED, "valid"])
        series += [
            (f"random coordinate, C = {norm:g}", plotting.PUBLISHED, "dXP"[i % 3], rows)
            for i, norm in enumerate(norms[1:])
            if len(rows := select(others, clipping_norm=norm))
        ]
        compare_epsilons(ax, least, ideal_audits(estimates, every, part["models"].max()), series)
        one = part.iloc[0]
        ax.set_title(
            f"{one['model']} on {one['dataset']}, k = {every:g}\nC = {norms[0]:g}, "
            f"{one['insertions']:g} insertions, batches of {one['batch_size']:g}\n{counted(least)}"
        )
    axes[0].set_ylabel("empirical $\\varepsilon$")
    legend_below(drawn, axes, 2)
    return drawn


@figure(
    "Canary in every step (ConvNet and ResNet)",
    "Empirical against theoretical epsilon, k = 1, initial parameters drawn for each model: the "
    "published estimate (best threshold on the same scores, not valid), and the package's valid "
    f"bound (open triangles beside it). {_STAND_INS} Grey: what the estimate finds in simulated "
    "audits that leak all the accountant allows, with as many models.",
    when=_has_network(lambda sweep: sweep.every == 1),
)
def networks(estimates: pd.DataFrame) -> Any:
    """Empirical against theoretical epsilon of the larger networks, canary in every step."""
    return _network_panels(estimates, lambda every: every == 1)


@figure(
    "Canary in every k-th step (ConvNet and ResNet)",
    "As for k = 1; the accountant counts the insertions alone, and in a coordinate that nothing "
    f"else moves exactly mu / sqrt(k) is left (dotted). {_STAND_INS}",
    when=_has_network(lambda sweep: sweep.every > 1),
)
def networks_every(estimates: pd.DataFrame) -> Any:
    """Empirical against theoretical epsilon of the larger networks, fewer insertions than steps."""
    return _network_panels(estimates, lambda every: every > 1)


@figure(
    "Does the audit depend on the clipping norm? (ConvNet and ResNet)",
    "What the last iterate shows of the insertions' mu, by the clipping norm C, k = 1: mu "
    "estimated by the difference of the scores' means over their deviation, with one standard "
    "error, over the accountant's. Noise and canary both grow with C, so that a coordinate that "
    "little else moves shows the same at every C. The loss shows more with a larger C, which clips "
    f"the record's gradient less. {_STAND_INS}",
    when=_has_network(lambda sweep: sweep.every == 1 and len(sweep.clipping_norms) > 1),
)
def clipping(estimates: pd.DataFrame) -> Any:
    """Estimated over theoretical mu, by clipping norm."""
    rows = select(_network_audits(estimates, "mu"), every=1)
    rows = rows[rows.groupby("network")["clipping_norm"].transform("nunique") > 1]
    settings = list(rows.groupby("network", sort=False))
    drawn, axes = plotting.panels(len(settings), height=3.4, sharey=True)
    for ax, (_, part) in zip(axes, settings, strict=True):
        norms = list(np.sort(part["clipping_norm"].unique()))
        lines = list(part.groupby(["adversary", "epsilon"], sort=False))
        for i, ((adversary, epsilon), line) in enumerate(lines):
            if line["clipping_norm"].nunique() < 2:
                continue
            color, marker = kind(adversary).color, kind(adversary).marker
            mu = line["mu"].to_numpy()
            places = np.array([norms.index(norm) for norm in line["clipping_norm"]], float)
            ax.errorbar(
                places + 0.06 * (i - len(lines) / 2), line["value"] / mu,
                (line["high"] - line["value"]) / mu, color=color, marker=marker, ms=5, ls="none",
                capsize=2, label=f"{adversary}, $\\varepsilon$ = {epsilon:g}",
            )  # fmt: skip
        ax.axhline(1, color="black", ls="--", lw=1.2, label="accountant")
        ax.axhline(0, color="0.6", lw=0.8)
        ax.set_xticks(range(len(norms)), [f"{norm:g}" for norm in norms])
        one = part.iloc[0]
        ax.set(xlabel="clipping norm C", xlim=(-0.5, len(norms) - 0.5))
        ax.set_title(f"{one['model']} on {one['dataset']}\n{counted(part)}")
    axes[0].set_ylabel("estimated $\\mu$ / accountant's $\\mu$")
    legend_below(drawn, axes, 2)
    return drawn
