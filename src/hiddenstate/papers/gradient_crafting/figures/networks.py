"""Audits of larger networks: ConvNet and ResNet."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd

from hiddenstate import plotting
from hiddenstate.papers.gradient_crafting.cells import NETWORK_SETTING
from hiddenstate.papers.gradient_crafting.figures.shared import (
    by_adversary,
    compare_dots,
    compare_epsilons,
    counted,
    ideal_audits,
    look,
)
from hiddenstate.papers.gradient_crafting.grid import GradientCraftingGrid, NetworkSweep
from hiddenstate.pipeline.estimates import largest, select
from hiddenstate.pipeline.family import figure, needed


def _has_network(holds: Callable[[NetworkSweep], bool]) -> Any:
    """True if a grid has a sweep of a larger network, fresh start, for which that holds."""

    def when(grid: GradientCraftingGrid) -> bool:
        sweeps = (sweep for network in grid.networks.values() for sweep in network.sweeps)
        return any(sweep.start == "fresh" and holds(sweep) for sweep in sweeps)

    return when


def _network_audits(estimates: pd.DataFrame, quantity: str) -> pd.DataFrame:
    """The same of the larger networks, initial parameters drawn for each model."""
    rows = needed(select(estimates, part="network", quantity=quantity, start="fresh"))
    return largest(rows, "models", NETWORK_SETTING)


_STAND_INS = (
    "The paper has a ConvNet and a ResNet on CIFAR-10 (batch 128, 250 insertions), whose layers "
    "its text does not list. Panels of scikit-learn's digits have small networks of ours and small "
    "batches, so that genuine gradients have about the same share of a coordinate."
)


_TITLES = {
    "digits_cnn": "small ConvNet on digits", "digits_resnet": "small ResNet on digits",
    "cifar_cnn": "ConvNet on CIFAR-10", "resnet18": "ResNet-18 on CIFAR-10",
}  # fmt: skip


def _network(one: pd.Series) -> str:
    """A network and its data, as a title."""
    return _TITLES.get(one["model"], f"{one['model']} on {one['dataset']}")


def _network_panels(estimates: pd.DataFrame, periods: Callable[[float], bool]) -> Any:
    """Empirical against theoretical epsilon: a panel for each network and insertion period."""
    rows = _network_audits(estimates, "epsilon")
    rows = needed(rows[rows["every"].map(periods)])
    settings = list(rows.groupby(["network", "every"], sort=False))
    drawn, axes = plotting.panels(len(settings), height=3.8, sharey=True)
    alone = len(settings) == 1 and rows["epsilon"].nunique() == 1
    if alone:
        drawn.set_size_inches(2 * plotting.WIDTH, 3)
    for ax, ((_, every), part) in zip(axes, settings, strict=True):
        norms = np.sort(part["clipping_norm"].unique())
        least = select(part, clipping_norm=norms[0])
        series = by_adversary(least)
        series += [
            (f"{label}, C = {norm:g}", color, "dXP"[i % 3], rows)
            for i, norm in enumerate(norms[1:])
            for label, color, _, rows in by_adversary(select(part, clipping_norm=norm))
        ]
        compare = compare_dots if alone else compare_epsilons
        compare(ax, least, ideal_audits(estimates, every, part["models"].max()), series)
        one = part.iloc[0]
        ax.set_title(
            f"{_network(one)}, k = {every:g}"
            f"{', ε = ' + format(one['epsilon'], 'g') if alone else ''}\nC = {norms[0]:g}, "
            f"{one['insertions']:g} insertions, batches of {one['batch_size']:g}\n{counted(least)}"
        )
    if not alone:
        axes[0].set_ylabel("empirical $\\varepsilon$")
    return plotting.legend_below(drawn, axes, 2)


@figure(
    "Canary in every step (ConvNet and ResNet)",
    "Empirical against theoretical epsilon for an insertion in every step, with initial "
    "parameters drawn for each model. Filled: the published estimate, which picks its "
    "threshold on the same scores. Open triangles: the valid lower bound of another rule, "
    "which may be above the estimate, and above the accountant in 5 % of audits. Grey: what "
    "the estimate finds in simulated audits that leak all that the accountant allows. "
    f"{_STAND_INS}",
    message="A simulated coordinate shows most of a large epsilon in other networks too",
    of="digits",
    when=_has_network(lambda sweep: sweep.every == 1),
)
def networks(estimates: pd.DataFrame) -> Any:
    return _network_panels(estimates, lambda every: every == 1)


@figure(
    "Canary in every k-th step (ConvNet and ResNet)",
    "As for k = 1. The accountant counts the insertions alone, and in a coordinate that "
    f"nothing else moves exactly mu / sqrt(k) is left (dotted). {_STAND_INS}",
    message="With rarer insertions hidden steps take more of epsilon",
    of="digits",
    when=_has_network(lambda sweep: sweep.every > 1),
)
def networks_every(estimates: pd.DataFrame) -> Any:
    return _network_panels(estimates, lambda every: every > 1)


@figure(
    "What does knowing the start or the batches give?",
    "Share of the insertions' mu that audits of many models show on average, at the largest "
    "epsilon, for an insertion in every k-th step. Colours are adversaries. Filled: start and "
    "batches are drawn for each model and unknown. Open: the start is known, or the same in all "
    "models. Knowing the batches alone gives nothing that can be seen. Dotted: a coordinate that "
    "noise and canary alone move, which is what an adversary sees who knows both. Expected audits "
    "bound nothing; the table has their errors, and real audits beside them.",
    message="A start that the adversary does not know hides part of what canaries show",
    when=lambda grid: grid.expected is not None and bool(grid.housing or grid.networks),
)
def expected(estimates: pd.DataFrame) -> Any:
    rows = needed(select(estimates, part="expected", clipping_norm=1))
    rows = rows[(rows["epsilon"] == rows["epsilon"].max()) & (rows["knows"] != "batches")]
    audits = select(estimates, part="network").groupby("network")
    titles = {network: _network(part.iloc[0]) for network, part in audits}
    drawn, axes = plotting.panels(rows["network"].nunique(), height=3.4, sharey=True)
    for ax, (network, part) in zip(axes, rows.groupby("network", sort=False), strict=True):
        law = pd.Series({k: k**-0.5 for k in sorted(part["every"].unique())})
        plotting.curve(ax, law, color="black", ls=":", lw=1.2, label="noise and canary alone")
        for (adversary, knows), line in part.groupby(["adversary", "knows"], sort=False):
            style = look(adversary) | {"ms": 5} | ({"mfc": "w"} if knows == "start" else {})
            words = ", start known" if knows == "start" else ""
            points = line.set_index("every")["value"].sort_index()
            plotting.curve(ax, points, **style, lw=0.8, label=adversary + words)
        ax.set(xscale="log", yscale="log", xlabel="k", title=titles.get(network, network))
        ax.set_xticks(law.index, [f"{k:g}" for k in law.index], minor=False)
    axes[0].set_ylabel("share of $\\mu$")
    return plotting.legend_below(drawn, axes[0], 2)


@figure(
    "Does the audit depend on the clipping norm? (ConvNet and ResNet)",
    "Share of the insertions' mu that the last iterate shows, by the clipping norm C, for "
    "an insertion in every step. Mu is estimated as the difference of the mean scores over "
    "their standard deviation, with one standard error; a share above 1 is sampling error. "
    "Noise and crafted gradient both grow with C. The record of the loss is clipped less at "
    f"a larger C. {_STAND_INS}",
    message="The loss shows more at a larger clipping norm; a crafted gradient shows all at each",
    of="digits",
    when=_has_network(lambda sweep: sweep.every == 1 and len(sweep.clipping_norms) > 1),
)
def clipping(estimates: pd.DataFrame) -> Any:
    rows = select(_network_audits(estimates, "mu"), every=1)
    rows = needed(rows[rows.groupby("network")["clipping_norm"].transform("nunique") > 1])
    settings = list(rows.groupby("network", sort=False))
    drawn, axes = plotting.panels(len(settings), height=3.4, sharey=True)
    for ax, (_, part) in zip(axes, settings, strict=True):
        norms = list(np.sort(part["clipping_norm"].unique()))
        lines = list(part.groupby(["adversary", "epsilon"], sort=False))
        for i, ((adversary, epsilon), line) in enumerate(lines):
            if line["clipping_norm"].nunique() < 2:
                continue
            mu = line["mu"].to_numpy()
            places = np.array([norms.index(norm) for norm in line["clipping_norm"]], float)
            ax.errorbar(
                places + 0.06 * (i - len(lines) / 2), line["value"] / mu,
                (line["high"] - line["value"]) / mu, **look(adversary), ms=5, ls="none", capsize=2,
                label=f"{adversary}, $\\varepsilon$ = {epsilon:g}",
            )  # fmt: skip
        ax.axhline(1, color="black", ls="--", lw=1.2, label="accountant (above it: sampling error)")
        ax.axhline(0, color="0.6", lw=0.8)
        ax.set_xticks(range(len(norms)), [f"{norm:g}" for norm in norms])
        one = part.iloc[0]
        ax.set(xlabel="clipping norm C", xlim=(-0.5, len(norms) - 0.5))
        ax.set_title(f"{_network(one)}\n{counted(part)}")
    axes[0].set_ylabel("estimated $\\mu$ / accountant's $\\mu$")
    return plotting.legend_below(drawn, axes, 2)
