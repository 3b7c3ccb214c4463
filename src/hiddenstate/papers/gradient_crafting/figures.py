"""Figures of gradient_crafting."""

from collections.abc import Callable, Iterable
from itertools import product
from typing import Any

import numpy as np
import pandas as pd
from scipy.special import ndtr, ndtri

from hiddenstate import plotting
from hiddenstate.auditing.methods import PUBLISHED
from hiddenstate.papers.gradient_crafting import summaries
from hiddenstate.papers.gradient_crafting.adversaries import ADVERSARIES, CRAFTED, RANDOM, kind
from hiddenstate.papers.gradient_crafting.cells import NETWORK_SETTING, SETTING
from hiddenstate.papers.gradient_crafting.grid import GradientCraftingGrid, NetworkSweep, Sweep
from hiddenstate.papers.gradient_crafting.summaries import FLIPPED, KNOWN, PLANNED
from hiddenstate.pipeline.estimates import largest, select
from hiddenstate.pipeline.family import figure


def _has(*parts: str) -> Any:
    """Whether a grid has these parts."""
    return lambda grid: all(getattr(grid, part) is not None for part in parts)


def _has_housing(holds: Callable[[Sweep], bool]) -> Any:
    """Whether a grid has a sweep of the housing network for which that holds."""

    def when(grid: GradientCraftingGrid) -> bool:
        return grid.housing is not None and any(map(holds, grid.housing.sweeps))

    return when


def _has_network(holds: Callable[[NetworkSweep], bool]) -> Any:
    """Whether a grid has a sweep of a larger network, fresh start, for which that holds."""

    def when(grid: GradientCraftingGrid) -> bool:
        sweeps = (sweep for network in grid.networks.values() for sweep in network.sweeps)
        return any(sweep.start == "fresh" and holds(sweep) for sweep in sweeps)

    return when


def _audits(estimates: pd.DataFrame) -> pd.DataFrame:
    """Audits of the housing network: those that are judged of each setting."""
    return summaries.drawn(select(estimates, part="housing", quantity="epsilon"))


def _network_audits(estimates: pd.DataFrame, quantity: str) -> pd.DataFrame:
    """The same of the larger networks, initial parameters drawn for each model."""
    rows = select(estimates, part="network", quantity=quantity, start="fresh")
    return largest(rows, "models", NETWORK_SETTING)


def _counts(part: pd.DataFrame) -> str:
    """How many repeats and models per world a panel shows."""
    repeats = part.groupby(["epsilon", "adversary"])["repeat"].nunique()
    models = part["models"]

    def span(values: Iterable[float]) -> str:
        least, most = min(values), max(values)
        return f"{least:,.0f}" if least == most else f"{least:,.0f} to {most:,.0f}"

    word = "repeat" if repeats.max() == 1 else "repeats"
    return f"{span(repeats)} {word}, {span(models)} models per world"


Series = list[tuple[str, str, str, pd.DataFrame]]
"""Label, colour, marker and epsilons of what stands side by side in a panel."""


def _epsilons(ax: Any, part: pd.DataFrame, ideal: pd.DataFrame, series: Series) -> None:
    """Empirical against theoretical epsilon of one setting, the series side by side.

    Every repeat is a point, and its valid bound a triangle to the right of it.
    """
    epsilons = [float(e) for e in np.sort(part["epsilon"].unique())]
    idle = part.groupby("epsilon")["idle_epsilon"].first()
    style = {"color": "black", "lw": 1.2, "zorder": 1}
    places = np.arange(len(epsilons))
    span = places - 0.45, places + 0.45
    ax.hlines(epsilons, *span, ls="--", label="accountant", **style)
    if (idle < idle.index * 0.999).any():
        ax.hlines(idle.loc[epsilons], *span, ls=":", label="unused coordinate, exact", **style)
    band = ideal[ideal["epsilon"].isin(epsilons)].set_index("epsilon").reindex(epsilons)
    if band["low"].notna().any():
        ax.bar(
            places, band["high"] - band["low"], 0.9, band["low"], color=plotting.UPPER, alpha=0.35,
            lw=0, label="unused coordinate, published estimate", zorder=0,
        )  # fmt: skip
    step = 0.8 / len(series)
    for i, (label, color, marker, rows) in enumerate(series):
        first = step * (i + 0.25) - 0.4
        for method, shift, own in (
            (PUBLISHED, 0.0, {"marker": marker, "label": label}),
            ("valid", 0.45 * step, {"marker": "^", "mfc": "w"}),
        ):
            points = select(rows, method=method)
            at = [epsilons.index(e) + first + shift for e in points["epsilon"]]
            ax.plot(at, points["value"], color=color, ls="none", ms=4, mew=0.8, alpha=0.8, **own)
    ax.plot([], [], color="0.3", ls="none", marker="^", ms=4, mfc="w", label="valid lower bounds")
    ax.set(xlabel="theoretical $\\varepsilon$", xlim=(-0.6, len(epsilons) - 0.4))
    ax.set_xticks(places, [f"{e:g}" for e in epsilons])
    ax.set_yscale("symlog", linthresh=0.5, linscale=0.4)
    most = max(epsilons[-1], *(rows["value"].max() for *_, rows in series)) * 1.4
    ticks = [t for t in (0, 0.25, 0.5, 1, 2, 4, 8, 16, 32) if t <= most]
    ax.set_yticks(ticks, [f"{t:g}" for t in ticks])
    ax.set_ylim(-0.06, most)
    ax.minorticks_off()


def _adversaries(part: pd.DataFrame) -> Series:
    """The epsilons of each adversary of a panel."""
    read = select(part, method=[PUBLISHED, "valid"])
    return [
        (kind(word).label, kind(word).color, kind(word).marker, select(read, adversary=word))
        for word in _drawn(part)
    ]


def _drawn(part: pd.DataFrame) -> list[str]:
    """The adversaries of a panel, in the order of their registry; InputError for an unknown one."""
    words = list(part["adversary"].unique())
    return sorted(words, key=lambda word: list(ADVERSARIES).index(word) if kind(word) else 0)


def _ideal(estimates: pd.DataFrame, every: int, models: float) -> pd.DataFrame:
    found = select(estimates, part="ideal", quantity="epsilon", method=PUBLISHED)
    return select(found, every=every, models=models) if len(found) else found


def _legend(drawn: Any, axes: Iterable[Any], columns: int) -> None:
    """One legend below all panels, each label once."""
    entries: dict[str, Any] = {}
    for ax in axes:
        handles, labels = ax.get_legend_handles_labels()
        entries |= {label: entries.get(label, h) for h, label in zip(handles, labels, strict=True)}
    drawn.legend(entries.values(), entries, loc="outside lower center", ncols=columns)


_STARTS = {
    "fresh": "fresh start", "shared": "shared start", "reshuffled": "shared start, reshuffled"
}  # fmt: skip


@figure(
    "Canary in every step (housing)",
    "Empirical against theoretical epsilon of the 68-parameter network on California housing, k = "
    "1: the published estimate (best threshold on the same scores, not valid), a point for each "
    "repeat, and the package's valid bound (open triangles beside them). Fresh start: initial "
    "parameters drawn for each model; shared start: one draw for all models of a repeat; "
    "reshuffled: a third reading, in which batches are drawn in each epoch too, without the last, "
    "smaller one. A random "
    "coordinate of each model is below half of the simulated one with either start; one random "
    "coordinate for all models depends on which it is, a different one at each epsilon and repeat. "
    "The score takes off nothing of what the adversary can simulate; the next figure does. "
    "Which start the paper has is not in its text. Grey: what the estimate finds in "
    "simulated audits that leak all the accountant allows.",
    when=_has_housing(lambda sweep: sweep.every == 1),
)
def housing(estimates: pd.DataFrame) -> Any:
    """Empirical against theoretical epsilon with an insertion in every step."""
    audits = select(_audits(estimates), every=1)
    starts = [start for start in _STARTS if (audits["start"] == start).any()]
    drawn, axes = plotting.panels(len(starts), height=3.6, sharey=True)
    for ax, start in zip(axes, starts, strict=True):
        part = select(audits, start=start)
        ideal = _ideal(estimates, 1, part["models"].max())
        _epsilons(ax, part, ideal, _adversaries(part))
        ax.set_title(f"{_STARTS[start]}\n{_counts(part)}")
    axes[0].set_ylabel("empirical $\\varepsilon$")
    _legend(drawn, axes, len(axes))
    return drawn


@figure(
    "Canary in every k-th step (housing)",
    "As for k = 1, always with as many insertions, which alone are accounted. In a coordinate that "
    "nothing else moves the noise of the steps between accumulates, and exactly mu / sqrt(k) is "
    "left (dotted). What the simulated coordinate lacks of that, 15 % of mu at k = 5 and 22 % at "
    "k = 25 (epsilon 24), is a drift that differs between models and that the adversary knows. The "
    "numbers of repeats and models are above each panel; the sources have 5,000 models in total at "
    "k = 1 and state none here.",
    when=_has_housing(lambda sweep: sweep.every > 1 and sweep.start == "fresh"),
)
def housing_every(estimates: pd.DataFrame) -> Any:
    """Empirical against theoretical epsilon with fewer insertions than steps."""
    audits = select(_audits(estimates), start="fresh")
    periods = sorted(int(every) for every in audits["every"].unique() if every > 1)
    drawn, axes = plotting.panels(len(periods), height=3.6, sharey=True)
    for ax, every in zip(axes, periods, strict=True):
        part = select(audits, every=every)
        ideal = _ideal(estimates, every, part["models"].max())
        _epsilons(ax, part, ideal, _adversaries(part))
        ax.set_title(f"k = {every}, {part['insertions'].iloc[0]:g} insertions\n{_counts(part)}")
    axes[0].set_ylabel("empirical $\\varepsilon$")
    _legend(drawn, axes, len(axes))
    return drawn


@figure(
    "What the adversary can simulate, taken off (housing)",
    "Not in the paper. What audits show of mu / sqrt(k), all that an unused coordinate leaks: mu "
    "estimated by the difference of the scores' means over their deviation, with one standard "
    "error. Open: the published score. Filled: the same models, less what the adversary, who knows "
    "the start and the batches, reads at the end of a training without noise and canary. A known "
    "drift that differs between models is spread in the published score alone: it is all that the "
    "simulated coordinate lacks, and most of what a random coordinate of each model and the loss "
    "lack. The first models of a cached audit, whose starts and batches are known.",
    when=_has_housing(lambda sweep: getattr(sweep, "centred", None) is not None),
)
def centred(estimates: pd.DataFrame) -> Any:
    """Estimated mu over that of an unused coordinate, with and without what is known taken off."""
    rows = select(estimates, part="centred", quantity="mu")
    settings = list(rows.groupby(["every", "start"], sort=True))
    drawn, axes = plotting.panels(len(settings), height=3.6, sharey=True)
    if len(settings) == 1:
        drawn.set_size_inches(1.6 * plotting.WIDTH, 4)
    words = _drawn(rows)
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
                        color=kind(word).color, mfc=kind(word).color if filled else "white",
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
        ax.set_title(f"k = {every:g}, {start} start\n{models:,.0f} models per world")
    for i, epsilon in enumerate(epsilons):
        style = {"color": "0.3", "ls": "none", "marker": "os^Dv"[i % 5], "ms": 5.5}
        axes[0].plot(
            [], [], mfc="w", label=f"published score, $\\varepsilon$ = {epsilon:g}", **style
        )
        axes[0].plot([], [], label=f"known end point off, $\\varepsilon$ = {epsilon:g}", **style)
    axes[0].plot([], [], color="black", ls="--", lw=1.2, label="unused coordinate")
    axes[0].set_ylabel("estimated $\\mu$ / ($\\mu$ / $\\sqrt{k}$)")
    _legend(drawn, axes[:1], 3)
    return drawn


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
        series = _adversaries(least)
        others = select(part, adversary=RANDOM, method=[PUBLISHED, "valid"])
        series += [
            (f"random coordinate, C = {norm:g}", plotting.PUBLISHED, "dXP"[i % 3], rows)
            for i, norm in enumerate(norms[1:])
            if len(rows := select(others, clipping_norm=norm))
        ]
        _epsilons(ax, least, _ideal(estimates, every, part["models"].max()), series)
        one = part.iloc[0]
        ax.set_title(
            f"{one['model']} on {one['dataset']}, k = {every:g}\nC = {norms[0]:g}, "
            f"{one['insertions']:g} insertions, batches of {one['batch_size']:g}\n{_counts(least)}"
        )
    axes[0].set_ylabel("empirical $\\varepsilon$")
    _legend(drawn, axes, 2)
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
        ax.set_title(f"{one['model']} on {one['dataset']}\n{_counts(part)}")
    axes[0].set_ylabel("estimated $\\mu$ / accountant's $\\mu$")
    _legend(drawn, axes, 2)
    return drawn


@figure(
    "Gradient norm of the baseline's canary",
    "Norm of the mislabelled record's gradient before each step, median and middle 80 % over "
    "models with a record each, against the clipping norm. A record uses its share of the "
    "sensitivity only where its norm reaches the clipping norm; a crafted gradient uses it in "
    "every insertion.",
    when=_has("housing", "norms"),
    shows="models trained here, none cached",
)
def norms(estimates: pd.DataFrame) -> Any:
    """Norm of the loss-based canary's gradient over training."""
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


_EXACT = "exact laws; no model is trained"
_MIDPOINT = {"part": "single", "quantity": "epsilon", "threshold": "midpoint", "kind": "exact"}
_READINGS = ("Gaussian-DP reading", "exact")


@figure(
    "One insertion, then hidden steps: evolution",
    "Section 6: epsilon of the last of t iterates after a crafted gradient in the first step "
    "alone, for the landscape that repels from the midpoint, by batch size B. Left: the paper's "
    "reading, one point of the trade-off curve as Gaussian DP. It stays at a constant, and for "
    "large B at the upper bound; on a flat landscape it falls as that of mu / sqrt(t). Right: the "
    "exact epsilon of the same iterates at the same delta. The midpoint landscape's last iterate "
    "keeps little more than one bit: after 25 steps 23 to 29 % of the nominal epsilon is left for "
    "large B, and it goes on falling to that of one bit, 16 to 23 %. Batch sizes whose lines are "
    "within 1 % of epsilon everywhere share one.",
    when=_has("single"),
    shows=_EXACT,
)
def evolution(estimates: pd.DataFrame) -> Any:
    """Both readings of epsilon over the hidden steps."""
    laws = select(estimates, **_MIDPOINT)
    there = np.sort(laws["epsilon"].unique())
    epsilons = [e for e in (1.0, 4.0) if e in there] or [there[0]]
    alike = _alike(select(laws, epsilon=epsilons))
    colors = plotting.colors(alike)
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
                ax.plot(line["x"], line["value"], label=label, color=colors[size], lw=1.4)
            ax.set_title(f"{method}, $\\varepsilon$ = {epsilon:g}")
            ax.set_ylim(0, epsilon * 1.08)
        axes[2 * row].set_ylabel("$\\varepsilon$ of iterate t")
    for ax in axes[-2:]:
        ax.set_xlabel("step t")
    plotting.legend_below(drawn, axes[0], columns=4)
    return drawn


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
    "Section 6 after the last step: empirical over theoretical epsilon. Left: the paper's reading "
    "at the midpoint threshold, tight where B / sigma is large. Middle: exact (epsilon, delta) of "
    "the same landscape, 23 to 29 % of the nominal epsilon for large batches after 25 steps (one "
    "bit: 16 to 23 %): the reading takes "
    "one point of the curve for a Gaussian curve. Right: exact with the landscape's threshold at "
    "h* = epsilon / mu + mu / 2, which makes the statement right, with error rates that no number "
    "of trainings can show.",
    when=_has("single"),
    shows=_EXACT,
)
def ratio(estimates: pd.DataFrame) -> Any:
    """Ratios to the theoretical epsilon, by batch size and epsilon."""
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
        ax.imshow(table, vmin=0, vmax=1, cmap="viridis", aspect="auto", origin="lower")
        for (i, j), value in np.ndenumerate(table.to_numpy()):
            color = "black" if value > 0.6 else "white"
            ax.text(j, i, f"{value:.2f}", ha="center", va="center", fontsize=6, color=color)
        ax.set_xticks(range(table.shape[1]), [f"{size:g}" for size in table.columns])
        ax.set_yticks(range(table.shape[0]), [f"{epsilon:g}" for epsilon in table.index])
        ax.set(title=title, xlabel="batch size B")
        ax.grid(False)
    axes[0].set_ylabel("theoretical $\\varepsilon$")
    return drawn


@figure(
    "Appendix E: how far from Gaussian",
    "Lévy distance of the exact trade-off curve of the last iterate from the nearest Gaussian "
    "one, by the number of steps, at the same mean shift. Left: the single insertion of section "
    "6, by the landscape's drift beta = B / sigma: the curve moves away from Gaussian as steps "
    "are hidden, and stays away. Right: a linear loss whose canary is sampled at a rate q in each "
    "step, where the distance vanishes with more steps; dotted: the Berry-Esseen upper "
    "bound on this distance. The noise keeps the mean shift: 0.01 deviations of a single "
    "step at q = 0.01. Without subsampling (q = 1) and on a flat "
    "landscape the curve is Gaussian: the distance that is drawn there is rounding. Distances "
    "below 1e-6 are drawn at 1e-6.",
    when=_has("hidden"),
    shows=_EXACT,
)
def hidden(estimates: pd.DataFrame) -> Any:
    """Distances of exact trade-off curves from Gaussian ones."""
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
            bound = select(part, method="Berry-Esseen").sort_values("x")
            if (bound["value"] > 0).any():
                ax.plot(bound["x"], bound["value"], ls=":", color=color, lw=1.2)
        if (select(rows, method="Berry-Esseen")[column] > 0).any():
            ax.plot([], [], ls=":", color="0.3", lw=1.2, label="Berry-Esseen bound")
        ax.set(xscale="log", yscale="log", xlabel="steps", ylim=(7e-7, 1.5))
        ax.legend(fontsize="x-small")
    axes[0].set(title="one insertion, then hidden steps", ylabel="Lévy distance from Gaussian")
    axes[1].set_title("linear loss, canary sampled")
    return drawn


@figure(
    "Observed trade-off curves (housing)",
    "Trade-off curve of one audit by the simulated coordinate (first repeat), against the "
    "Gaussian curve of mu (dashed) and of mu / sqrt(k) (dotted), which an unused coordinate has "
    "exactly.",
    when=_has_housing(lambda sweep: sweep.start == "fresh" and CRAFTED in sweep.adversaries),
)
def curves(estimates: pd.DataFrame) -> Any:
    """Observed trade-off curves of the simulated coordinate."""
    rows = select(estimates, part="housing", quantity="fnr", start="fresh")
    rows = largest(select(rows, adversary=CRAFTED), "models", SETTING)
    periods = sorted(rows["every"].unique())
    colors = plotting.colors(rows["epsilon"])
    drawn, axes = plotting.panels(len(periods), sharey=True)
    for ax, every in zip(axes, periods, strict=True):
        plotting.diagonal(ax)
        part = select(rows, every=every)
        for epsilon, line in part.groupby("epsilon"):
            color, mu = colors[epsilon], line["mu"].iloc[0]
            ax.plot(line["x"], line["value"], color=color, label=f"$\\varepsilon$ = {epsilon:g}")
            x = np.linspace(0, 1, 400)
            laws = {"--": mu} | ({":": mu / every**0.5} if every > 1 else {})
            for style, most in laws.items():
                ax.plot(x, ndtr(ndtri(1 - x) - most), color=color, ls=style, lw=0.9)
        ax.set(xlabel="false-positive rate", xlim=(0, 1), ylim=(0, 1))
        ax.set_title(f"k = {every:g}\n{part['models'].max():,.0f} models per world")
    for label, style in (("Gaussian, mu", "--"), ("Gaussian, mu / sqrt(k)", ":")):
        axes[0].plot([], [], color="0.3", ls=style, lw=0.9, label=label)
    axes[0].set_ylabel("false-negative rate")
    _legend(drawn, axes, 7)
    return drawn


_RULES = {
    KNOWN: ("whole mechanism, null law known", plotting.VALID),
    FLIPPED: ("whole mechanism, null law unknown", plotting.OBSERVED),
    PLANNED: ("each canary alone", plotting.PUBLISHED),
}
"""Of the bounds from one model those that are drawn."""


@figure(
    "How many trainings does a gradient canary need? One",
    "Not in the paper. Lower bound (95 %) from ONE model in which each of m coordinates has a "
    "canary or not by its own coin (median and middle 80 % over independent audits). Green and "
    "blue assume that the whole mechanism is Gaussian DP, which DP-SGD with a canary in each of "
    "m coordinates is; orange that each canary alone is, under which no valid bound has a median "
    "above the grey line. Left: simulated unused coordinates, whose scores are exactly normal. "
    "Right: trained networks, in their least moved coordinates; of each the null law is simulated "
    "from its own start and batches, and taken as normal. Shares of guesses and coins turned over "
    "are planned from the accountant's epsilon; where a marker is open all guesses are right in "
    "half of the audits, and so many can show no more. Horizontal: the valid bound from 100 and "
    "from 1,000 models per world with one canary, mean over repeats on the housing network, where "
    "the scale has as many.",
    when=_has("one_run"),
)
def one_run(estimates: pd.DataFrame) -> Any:
    """Valid lower bounds from one model, by the number of canaries."""
    rows = select(estimates, part="one run")
    rows = rows.assign(trained=rows["method"] != "unused coordinates")
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
                label = f"one canary, {models:,} models per world"
                ax.axhline(few["value"].mean(), color="0.3", ls=style, lw=1.2, label=label)
        (_one_run_networks if trained else _one_run_lines)(ax, part)
        ax.set_ylim(-0.03 * epsilon, 1.1 * epsilon)
        audits = part.groupby("method", sort=False)["audits"].max()
        told = ", ".join(f"{count:g}" for count in audits)
        what = "trained networks" if trained else "unused coordinates"
        ax.set_title(f"$\\varepsilon$ = {epsilon:g}, {what}, {told} audits")
    for ax, trained in zip(axes[-len(columns) :], columns, strict=True):
        ax.set_xlabel("canaries m in one model", labelpad=16 if trained else 4)
    for ax in axes[:: len(columns)]:
        ax.set_ylabel("valid lower bound on $\\varepsilon$")
    open_marker: dict[str, Any] = {"color": "0.3", "ls": "none", "mfc": "w", "ms": 4.5}
    axes[0].plot([], [], marker="o", label="all guesses right in half of the audits", **open_marker)
    _legend(drawn, axes, 2)
    return drawn


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
    below.set_xticks(networks, networks.index, fontsize="small")
    below.tick_params(length=0, pad=17)
    below.spines["bottom"].set_visible(False)
    ax.set_xlim(-0.5, len(places) - 0.5)


def _medians(
    ax: Any, at: pd.Series, line: pd.DataFrame, rule: pd.DataFrame, color: str, **style: Any
) -> None:
    """Medians with the middle 80 %, open where that median is the most so many guesses can show."""
    below, above = line["value"] - line["low"], line["high"] - line["value"]
    ax.errorbar(at, line["value"], (below, above), color=color, ms=4.5, capsize=2, **style)
    keys = ["cell", "canaries"]
    right = select(rule, quantity="share all right").set_index(keys)["value"]
    most = [right.get(tuple(row), 0.0) >= 0.5 for row in line[keys].itertuples(index=False)]
    ax.plot(
        at[most], line["value"][most], color=color, marker=style["marker"], ms=4.5, mfc="w",
        ls="none", zorder=5,
    )  # fmt: skip
