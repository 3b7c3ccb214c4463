"""Figures of linear_heuristic."""

import math
from itertools import product
from typing import Any

import numpy as np
import pandas as pd

from hiddenstate import plotting
from hiddenstate.accounting.linear import last_iterate_delta
from hiddenstate.auditing.methods import PUBLISHED
from hiddenstate.papers.linear_heuristic import stated
from hiddenstate.papers.linear_heuristic.estimates import curve, expected, named, trained
from hiddenstate.pipeline.estimates import select
from hiddenstate.pipeline.family import figure

_BASELINES: dict[str, dict[str, Any]] = {
    "heuristic": {
        "label": "linear heuristic (last iterate)", "color": plotting.OBSERVED, "lw": 1.5
    },
    "standard": {
        "label": "standard epsilon (all iterates)", "color": "black", "ls": "--", "lw": 1.5
    },
    "full batch": {"label": "full batch", "color": plotting.VALID, "ls": "-.", "lw": 1.5},
}  # fmt: skip
_ESTIMATORS: dict[str, dict[str, Any]] = {
    PUBLISHED: {
        "label": "estimate as published: no bound", "color": plotting.PUBLISHED, "marker": "s",
        "ms": 4.5,
    },
    "lower bound": {
        "label": "lower bound (95 %), by another rule", "color": plotting.VALID, "marker": "^",
        "ms": 4.5,
    },
}  # fmt: skip
_EXPECTED: dict[str, Any] = {
    "color": plotting.OTHER, "marker": "D", "ms": 4.5, "ls": "none", "capsize": 2,
}  # fmt: skip
_REFERENCE: dict[str, Any] = {"color": plotting.UPPER, "lw": 0.9, "ls": ":"}


def _epsilon_at(rows: pd.DataFrame, words: str = "") -> str:
    """The label of an axis of epsilons, with the delta of the rows."""
    delta = plotting.power(rows["delta"].dropna().iloc[0])
    return f"$\\varepsilon$ {words}($\\delta$ = {delta})"


def _mechanism(rows: pd.DataFrame, *, steps: bool = True) -> str:
    """The mechanism of a cell, as a title."""
    first = rows.dropna(subset=["noise_multiplier", "sampling_rate"]).iloc[0]
    words = f"sampling rate {first['sampling_rate']:g}, noise multiplier "
    words += f"{first['noise_multiplier']:g}"
    return f"{first['steps']:g} steps,\n{words}" if steps else words


@figure(
    "Figure 1: heuristic and baselines",
    "Epsilon of the linear heuristic, of composition (the standard epsilon), and of "
    "full-batch gradient descent with the same expected step and noise. Dotted: the "
    "heuristic of a single step, which a regulariser that forgets attains at any number of "
    "steps (section 4.1). The axis of panel c ends at 14, which the standard epsilon may exceed. "
    "The noise of panels a and b is our interpretation of the axes. "
    "The paper shows a drawing without printed values.",
    message="At fixed noise, more steps first lower what the last iterate of linear losses leaks",
    shows="exact laws; no model is trained",
)
def figure1(estimates: pd.DataFrame) -> Any:
    drawn, axes = plotting.panels(3)
    for letter, ax in zip("abc", axes, strict=True):
        for method, style in _BASELINES.items():
            plotting.curve(ax, curve(estimates, f"figure1{letter}", method), **style)
        ax.set(xscale="log", xlabel="steps T")
    axes[0].set_title("(a) steps T, sampling rate 1/T,\nnoise multiplier 5/$\\sqrt{T}$")
    for ax in axes:
        ax.set_ylabel(_epsilon_at(select(estimates, cell="figure1c")))
    axes[0].set_yscale("log")
    axes[1].set_ylim(0, None)
    constant = curve(estimates, "figure1b", "standard").mean()
    axes[1].set_title(f"(b) steps T, sampling rate 1/T,\nstandard $\\varepsilon$ = {constant:.3g}")
    fixed = select(estimates, cell="figure1c", method="heuristic", quantity="epsilon").iloc[0]
    axes[2].set_title(
        f"(c) steps T, sampling rate {fixed['sampling_rate']:g},\n"
        f"noise multiplier {fixed['noise_multiplier']:g}"
    )
    first = curve(estimates, "figure1c", "heuristic", "single_step").iloc[0]
    axes[2].axhline(first, label="heuristic of one step", **_REFERENCE)
    axes[2].set_ylim(0, 14)
    return plotting.legend_below(drawn, axes[2], columns=4)


@figure(
    "Section 4.2: a quadratic regulariser",
    "Epsilon of the last iterate of a linear loss with a quadratic regulariser. Curvature 0 "
    "is the linear loss and curvature 1 a single step. Open circles: the paper's values (it "
    "gives 2.274 as one that does not hold) at its own parameters: 3 steps, sampling rate "
    "0.1, noise multiplier 1, delta 1e-6.",
    message="A convex regulariser makes the last iterate leak more than linear losses do",
    shows="exact laws; no model is trained",
)
def quadratic(estimates: pd.DataFrame) -> Any:
    drawn, (ax,) = plotting.panels(1, height=3.2)
    line = curve(estimates, "quadratic", "quadratic regulariser")
    plotting.curve(ax, line, color=plotting.OBSERVED, label="exact")
    if len(select(estimates, cell="quadratic", **stated.QUADRATIC_SETTING)):
        plotting.curve(
            ax, pd.Series(stated.QUADRATIC), label="stated by the paper", **plotting.STATED
        )
    ends = line.iloc[[0, -1]].max()
    ax.axhline(ends, label="larger of the two linear cases", **_REFERENCE)
    rows = select(estimates, cell="quadratic")
    ax.set(xlabel="curvature of the regulariser", title=_mechanism(rows), ymargin=0.1)
    ax.set_ylabel(_epsilon_at(rows, "of the last iterate "))
    return plotting.legend_below(drawn, ax, columns=1)


@figure(
    "Figure 5: quadratic against linear",
    "Epsilon of the linear loss with a quadratic regulariser of curvature 1/2, over the "
    "largest epsilon of the linear loss at up to as many steps. Red: above 1. The noise "
    "gives a single step the epsilon in the title (the paper's: 1 and 2, at delta 1e-6). "
    "Top: exact sums (an upper bound beyond 12 steps). Bottom: the paper's rounding, an "
    "upper bound. The grid is ours, since the paper does not state its own. Of the paper's "
    "numbers its text alone states one, an excess of 3 % before which a sign is lost.",
    message="A quadratic regulariser exceeds the linear heuristic by a few percent at most",
    shows="exact laws; no model is trained",
)
def figure5(estimates: pd.DataFrame) -> Any:
    from matplotlib.colors import SymLogNorm

    ratios = select(estimates, quantity="ratio", method=["enumerated", "rounded up"])
    columns = ratios["cell"].nunique()
    drawn, axes = plotting.panels(columns, 2, height=3.2, sharex=True, sharey=True)
    # As far above one as below, and no cell beyond the end.
    most = (ratios["value"] - 1).abs().max()
    norm = SymLogNorm(0.01, vmin=-most, vmax=most)
    # "enumerated" comes before "rounded up", and within a row the cells are in their order.
    panels = ratios.groupby(["method", ratios["cell"].map(list(ratios["cell"].unique()).index)])
    for ax, ((method, _), rows) in zip(axes, panels, strict=True):
        table = rows.pivot(index="sampling_rate", columns="steps", values="value")[::-1]
        table.columns = table.columns.astype(int)
        colours = {"cmap": "RdBu_r", "norm": norm, "rasterized": True}
        plotting.heat_map(ax, table - 1, "", xticklabels=2, yticklabels=2, **colours)
        row, column = np.unravel_index(np.argmax(table.to_numpy()), table.shape)
        ax.plot(column + 0.5, row + 0.5, "k*", ms=7)
        # The number that is printed is of the rounded bound.
        shown, printed = "the paper's rounding", f"; the paper: {stated.EXCEEDS} above 1"
        if method == "enumerated":
            shown, printed = "exact sums", ""
        first = rows.iloc[0]
        mechanism = first["noise_multiplier"], first["sampling_rate"], 1
        delta = plotting.power(float(f"{last_iterate_delta(*mechanism, first['x']):.2g}"))
        ax.set_title(
            f"one step: $\\varepsilon$ = {first['x']:g} ($\\delta$ = {delta})\n{shown}, largest "
            f"{table.to_numpy().max():.4f}\n(star{printed})",
            fontsize="small",
        )
        ax.set(xlabel="", ylabel="")
    for ax in axes[columns:]:
        ax.set_xlabel("steps (uneven)")
    for ax in axes[::columns]:
        ax.set_ylabel("sampling rate (uneven)")
    label = "ratio minus 1; red: above the linear heuristic"
    drawn.colorbar(axes[0].collections[0], ax=axes, shrink=0.6, label=label)
    return drawn


@figure(
    "Section 4.2 taken further: the worst schedule of regularisers",
    "Ours. Left: epsilon of the last iterate of a linear loss with a quadratic regulariser "
    "whose curvature may change from step to step. The worst schedule that a local search "
    "found stands beside the worst constant curvature and the linear loss. Right: the "
    "weights of the steps' gradients in the worst schedules.",
    message="Curvature that changes from step to step exceeds the heuristic by a little more",
    shows="exact laws; no model is trained",
)
def schedules(estimates: pd.DataFrame) -> Any:
    drawn, (left, right) = plotting.panels(2, height=3.4)
    styles: dict[str, dict[str, Any]] = {
        "schedule": {"label": "worst schedule found", "color": plotting.OTHER, "marker": "o"},
        "constant curvature": {"label": "worst constant curvature", "color": plotting.PUBLISHED},
        "heuristic": _BASELINES["heuristic"],
    }
    for method, style in styles.items():
        plotting.curve(left, curve(estimates, "schedules", method), **{"marker": "."} | style)
    rows = select(estimates, cell="schedules")
    left.set(xlabel="steps T", ylabel=_epsilon_at(rows, "of the last iterate "))
    left.set_title(_mechanism(rows, steps=False))
    weights = select(estimates, cell="schedules", quantity="weight").astype({"x": int})
    table = weights.astype({"steps": int}).pivot(index="steps", columns="x", values="value")
    shades = {"cmap": "Blues", "vmin": 0, "vmax": 1, "annot": True, "fmt": ".2f"}
    plotting.heat_map(right, table, "", **shades)
    right.set(xlabel="step", ylabel="steps T")
    right.set_title("weight of each step's gradient,\nworst schedule")
    return plotting.legend_below(drawn, left, columns=3)


_OPTIMISERS = {
    "learning-rate schedules": ".* schedule",
    "momentum and weight decay": "(momentum|weight decay) .*",
    "other noise": "(first half with|noise correlated over) .*",
}
"""Panels, each with the optimisers of such names beside the constant learning rate."""


@figure(
    "What the optimiser does to the heuristic",
    "Ours. Epsilon of the last iterate under linear losses, upper ends of brackets 1 % wide, for "
    "optimisers in use. Blue: plain steps of a constant size. Dashed: the standard epsilon of "
    "plain steps, which learning rates, momentum and weight decay do not change. Noise that "
    "differs between steps, or is correlated, has another standard epsilon.",
    message="Over many steps, schedules and weight decay lower what linear losses leak",
    shows="exact laws; no model is trained",
)
def optimisers(estimates: pd.DataFrame) -> Any:
    drawn, axes = plotting.panels(len(_OPTIMISERS), height=3.4, sharey=True)
    rows = select(estimates, cell="optimisers")
    looks = zip(plotting.SERIES[1:7] + plotting.SERIES[9:], plotting.MARKERS, strict=False)
    names = rows["method"].drop_duplicates()
    for ax, (title, shown) in zip(axes, _OPTIMISERS.items(), strict=True):
        plotting.curve(ax, curve(estimates, "optimisers", "standard"), **_BASELINES["standard"])
        plain = {"color": plotting.OBSERVED, "marker": ".", "label": "constant learning rate"}
        plotting.curve(ax, curve(estimates, "optimisers", "constant"), **plain)
        for method in names[names.str.fullmatch(shown)]:
            line = curve(estimates, "optimisers", method)
            color, marker = next(looks)
            plotting.curve(ax, line, label=method, color=color, marker=marker, ms=3.5)
        ax.set(xscale="log", yscale="log", xlabel="steps T", title=title)
    axes[0].set_ylabel(_epsilon_at(rows, "of the last iterate "))
    return plotting.legend_below(drawn, axes, 3)


@figure(
    "Section 4.3: a regulariser that keeps the history",
    "Epsilon of the last iterate against the regulariser's factor minus one: accounted as a "
    "composition of unequal noises, and audited by simulation. The audits' hypotheses are "
    "compositions with equal noises. At small factors that curve is the wrong one, and audits find "
    "less than there is. An estimate picks its threshold on the runs it judges, and may land above "
    "the standard epsilon.",
    message="A regulariser that keeps the history leaks up to the standard epsilon",
    of="the paper's own parameters",
)
def history(estimates: pd.DataFrame) -> Any:
    drawn, (ax,) = plotting.panels(1, height=4.0)
    line = curve(estimates, "history", "history regulariser")
    grown = line.set_axis(line.index - 1)
    plotting.curve(ax, grown, color=plotting.OTHER, label="this regulariser, exact")
    for method in ("heuristic", "standard"):
        ax.axhline(curve(estimates, "history", method).iloc[0], **_BASELINES[method])
    for method, style in _ESTIMATORS.items():
        line = curve(estimates, "history", method)
        plotting.curve(ax, line.set_axis(line.index - 1), ls="none", **style)
    rows = select(estimates, cell="history")
    ax.set(xscale="log", xlabel="factor of the regulariser, less one", title=_mechanism(rows))
    ax.set(ylabel=_epsilon_at(rows), ylim=(0, None))
    return plotting.legend_below(drawn, ax, columns=1)


def _against_steps(ax: Any, rows: pd.DataFrame) -> None:
    """The baselines against steps, and audits of trained models with ideal ones' range, if any."""
    rows = rows.set_index("steps").sort_index()
    if "ideal" in rows:
        band = {"color": plotting.OBSERVED, "alpha": 0.15, "lw": 0}
        band["label"] = "90 % of estimates if losses were linear"
        ax.fill_between(rows.index, rows["least"], rows["most"], **band)
    for method in ("heuristic", "standard"):
        plotting.curve(ax, rows[method], **{"marker": "."} | _BASELINES[method])
    for method, style in _ESTIMATORS.items():
        if method in rows:
            plotting.curve(ax, rows[method], **style | {"ls": "none", "ms": 6})
    ax.set(xscale="log", xlabel="steps")
    # Room for marks at 0.
    ax.set_ylim(-0.03 * ax.get_ylim()[1], None)


def _expected_audits(ax: Any, rows: pd.DataFrame) -> None:
    """Expected audits against steps."""
    rows = rows.set_index("steps").sort_index()
    for known, (value, error), style in (
        ("known", ("value", "error"), {}),
        ("hidden", ("hidden", "hidden error"), {"mfc": "none"}),
    ):
        label = f"expected audit, start and batches {known}: no bound"
        ax.errorbar(rows.index, rows[value], rows[error], label=label, **_EXPECTED | style)


def _trained_figure(estimates: pd.DataFrame, figure: str, keys: list[str], words: str) -> Any:
    """Real audits with their expected ones, a panel for each of the keys; then other networks."""
    rows, told = trained(estimates, figure), expected(estimates, figure)
    panels: list[tuple[pd.DataFrame | None, pd.DataFrame]] = [
        (part, select(told, own=True, **dict(zip(keys, key, strict=True))))
        for key, part in rows.groupby(keys, sort=False)
    ]
    columns = len(panels)
    others = select(told, own=False).groupby(["network", *keys], sort=False)
    panels += [(None, part) for _, part in others]
    lines = math.ceil(len(panels) / columns)
    full = len(panels) == lines * columns
    drawn, axes = plotting.panels(columns, lines, height=4.0, sharex="col" if full else False)
    for ax, (part, one) in zip(axes, panels, strict=False):
        shown = one if part is None else part
        _against_steps(ax, shown)
        if len(one):
            _expected_audits(ax, one)
        title = words.format(**shown.iloc[0])
        ax.set_title("\n".join([*one["network"].head(1), title]))
        ax.set_ylabel(_epsilon_at(select(estimates, figure=figure)))
    for ax in axes[len(panels) :]:
        ax.remove()
    return plotting.legend_below(drawn, axes[0], columns=min(2, len(axes)))


_KNOWN = (
    "Diamonds: expected audits, computed along single trainings by the experimenter, with the "
    "standard error over starts. They bound nothing. Full ones are of an adversary who knows start "
    "and batches, open ones of one who does not, like that of the real audits. "
    "Where noise moves a network far, first order says nothing, and they fall to 0."
)


@figure(
    "Figure 2: gradient canary among natural records",
    "Epsilon of the last iterate against the number of steps, at one noise multiplier a "
    "panel. The canary is a gradient in one coordinate, sampled like a record; the other "
    "records are natural. Squares: the published estimate, which picks its threshold on the "
    "models it judges. Triangles: a valid lower bound of another rule, which may be above "
    "the estimate. Shaded: 90 % of the estimates if losses were linear, with as many "
    "models. " + _KNOWN + " The paper shows a drawing without printed values.",
    message="Audits of trained networks find less than the linear heuristic",
    of="trained models",
)
def figure2(estimates: pd.DataFrame) -> Any:
    words = "sampling rate {sampling_rate:g}, noise multiplier {noise_multiplier:g}"
    return _trained_figure(estimates, "figure2", ["sampling_rate", "noise_multiplier"], words)


@figure(
    "Figure 4: mislabelled record",
    "As Figure 2, for a mislabelled record whose loss is the score. Left: among blank "
    "records, which all have the label that the canary's image truly has. Right: among "
    "natural records. The noise keeps the standard epsilon constant, and the sampling rate "
    "is ours. " + _KNOWN + " The paper shows a drawing without printed values.",
    message="A mislabelled record shows less than the linear heuristic",
    of="trained models",
)
def figure4(estimates: pd.DataFrame) -> Any:
    words = "{attack} records, sampling rate {sampling_rate:g}"
    return _trained_figure(estimates, "figure4", ["attack"], words)


@figure(
    "Figure 3: gradient canary among zero gradients",
    "Empirical epsilon of the last iterate against the number of steps, where all other "
    "gradients are zero; the noise keeps the standard epsilon constant. Squares: the "
    "published estimate, which picks its threshold on the runs it judges. Triangles: a "
    "lower bound that holds with 95 % confidence, so one in twenty may be above the exact value. "
    "The paper shows a drawing without printed values.",
    message="Audits of linear losses find the heuristic, below the standard epsilon",
    of="the paper's own parameters",
)
def figure3(estimates: pd.DataFrame) -> Any:
    return _simulated_audits(estimates, {"gradient": ""}, height=3.4)


@figure(
    "Figure 6: malicious data set",
    "As Figure 3, with records that write the history into the last iterate. Audits are "
    "judged by the trade-off functions of composition, so they estimate the noise and from "
    "it the standard epsilon. One bit a step is our interpretation of Algorithm 3. Dotted: "
    "its exact epsilon at the threshold that leaks most. The analog variant is ours; its "
    "estimate picks a threshold on the same runs and may land above the standard epsilon. "
    "The paper shows a drawing without printed values.",
    message="A malicious data set makes the last iterate leak up to the standard epsilon",
    of="the paper's own parameters",
)
def figure6(estimates: pd.DataFrame) -> Any:
    attacks = {"bits": "one bit a step (Algorithm 3), ", "analog": "analog (ours), "}
    return _simulated_audits(estimates, attacks, height=2.9)


def _simulated_audits(estimates: pd.DataFrame, attacks: dict[str, str], height: float) -> Any:
    """Audits of linear losses: a row for each attack, with its words, a panel a sampling rate."""
    rates = [name.removeprefix("audits_") for name in named(estimates, "audits_q")]
    drawn, axes = plotting.panels(
        len(rates), len(attacks), height=height, sharex="col", sharey=True
    )
    exact = {"color": plotting.OTHER, "lw": 1.2, "ls": ":"}
    exact["label"] = "one bit a step, largest exact $\\varepsilon$"
    for ax, (attack, rate) in zip(axes, product(attacks, rates), strict=True):
        for method in ("heuristic", "standard"):
            plotting.curve(ax, curve(estimates, f"audits_{rate}", method), **_BASELINES[method])
        if attack == "bits":
            plotting.curve(ax, curve(estimates, f"audits_{rate}", "one bit a step"), **exact)
        for method, style in _ESTIMATORS.items():
            plotting.curve(ax, curve(estimates, f"{attack}_{rate}", method), lw=0.8, **style)
        ax.set(xscale="log", title=f"{attacks[attack]}sampling rate {rate.removeprefix('q')}")
    for ax in axes[-len(rates) :]:
        ax.set(xlabel="steps", ylim=(0, None))
    for ax in axes[:: len(rates)]:
        ax.set_ylabel(_epsilon_at(select(estimates, cell=f"audits_{rates[0]}")))
    return plotting.legend_below(drawn, axes[0], columns=min(2, len(axes)))
