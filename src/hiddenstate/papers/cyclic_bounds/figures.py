"""Figures of cyclic_bounds."""

from typing import Any

import pandas as pd

from hiddenstate import plotting
from hiddenstate.pipeline.estimates import select
from hiddenstate.pipeline.family import figure

_Style = dict[str, Any]
_COMPOSITION: _Style = {"color": "black", "label": "composition, all iterates"}
_WIDE: _Style = {"lw": 5, "ls": "-", "alpha": 0.4}
"""A line that another all but covers."""
_CONSTANTS: dict[str, _Style] = {
    "unclipped": {
        "label": "$L$ where clipping keeps directions", "color": plotting.SERIES[4], **_WIDE
    },
    "reconstructed": {
        "label": "$L$ of equation 12 (our reconstruction)", "color": plotting.SERIES[5]
    },
    "clipped": {"label": "$L$ for any clipped loss", "color": plotting.SERIES[9]},
}  # fmt: skip
"""Lipschitz constants of the step."""
_CASES = {"unclipped": "clipping keeps directions", "clipped": "any clipped loss (corrected)"}
"""Panels by what clipping may do."""
_RDP: _Style = {"ls": ":", "lw": 1}
"""How an epsilon by Rényi divergences is drawn beside that of Gaussian differential privacy."""
_CIRCLE: _Style = {"color": "0.3", "ls": "none", "marker": "o", "mfc": "none", "ms": 5}
_TWO = "Dashed: as Gaussian differential privacy; dotted: as Rényi divergences."


def _plot(ax: Any, rows: pd.DataFrame, method: str, lipschitz: str | None, style: _Style) -> None:
    """One bound's line with one Lipschitz constant, if that matters; epsilons by both ways."""
    rows = select(rows, method=method, lipschitz=lipschitz)
    for way, line in rows.fillna({"conversion": ""}).groupby("conversion"):
        plotting.line(ax, line, **style | (_RDP | {"label": None} if way == "rdp" else {}))


def _plot_by(ax: Any, rows: pd.DataFrame, method: str, lipschitz: str) -> None:
    """A bound's line for each weak convexity, and composition."""
    least = select(rows, weak_convexity=rows["weak_convexity"].min())
    _plot(ax, least, "composition", None, _COMPOSITION)
    name = "bound for this position" if method == "sharp" else method
    for m, color in plotting.colors(rows["weak_convexity"]).items():
        style = {"color": color, "label": f"{name}, $m$ = {m:g}"} | (_WIDE if m == 0 else {})
        _plot(ax, select(rows, weak_convexity=m), method, lipschitz, style)


def _finished(drawn: Any, axes: list[Any], columns: int, *ylabels: str, twins: bool = False) -> Any:
    """The figure with the labels of its first panels and one legend below.

    twins: whether epsilons by Rényi divergences are drawn, which the legend then names.
    """
    if twins:
        axes[0].plot([], [], color="0.3", label="the same by Rényi divergences", **_RDP)
    for ax, label in zip(axes, ylabels, strict=False):
        ax.set_ylabel(label)
    return plotting.legend_below(drawn, axes[0], columns)


_RHO, _EPSILON = "$\\rho$ (upper bound)", "$\\varepsilon$ (upper bound)"


@figure(
    "Epsilon against passes",
    "Theorem 4.5 (our reconstruction) for several weak convexities m, beside composition, "
    "which holds for every loss. Left: epsilon where clipping changes no gradient's "
    f"direction. {_TWO} Right: rho over that of composition; circles are for any clipped "
    "loss, with the corrected Lipschitz constant. Theorem 4.5 charges one extra visit, so "
    "for a single pass it is above composition.",
    message="With every pass the last iterate's bound falls further below composition",
    shows="exact formulas",
)
def passes(estimates: pd.DataFrame) -> Any:
    rows = select(estimates, part="sweeps", sweep="passes")
    drawn, axes = plotting.panels(2)
    _plot_by(axes[0], select(rows, quantity="epsilon"), "Theorem 4.5", "unclipped")
    rho = select(rows, quantity="rho")
    for m, color in plotting.colors(rho["weak_convexity"]).items():
        line = select(rho, weak_convexity=m)
        whole = select(line, method="composition").set_index("x")["value"]
        ratio = line.assign(value=line["value"] / line["x"].map(whole))
        style = {"color": color} | (_WIDE if m == 0 else {})
        _plot(axes[1], ratio, "Theorem 4.5", "unclipped", style)
        _plot(axes[1], ratio, "Theorem 4.5", "clipped", _CIRCLE | {"color": color})
    axes[1].axhline(1, color="black", ls="--", lw=1.3)
    axes[0].plot([], [], label="right: any clipped loss", **_CIRCLE)
    for ax in axes:
        ax.set(xscale="log", yscale="log", xlabel="passes over the data")
    return _finished(drawn, axes, 3, _EPSILON, "$\\rho$ over that of composition", twins=True)


@figure(
    "Epsilon against batch size, noise and step size",
    "Theorem 4.5 (our reconstruction) and composition. Left and middle: weak convexities m, "
    "where clipping changes no gradient's direction. Right: three Lipschitz constants of "
    "the step at the smallest m above 0. The paper's constant (equation 12, our "
    "reconstruction) is valid where clipping changes no direction and nearly equals the one "
    f"derived for that case. {_TWO}",
    message="Smaller steps, more noise and larger batches lower the bound",
    shows="exact formulas",
)
def parameters(estimates: pd.DataFrame) -> Any:
    drawn, axes = plotting.panels(3, sharey=True, height=3.4)
    labels = {
        "batch_size": "batch size (records fixed)",
        "noise_std": "noise standard deviation",
        "step_size": "step size (noise fixed)",
    }
    for ax, (sweep, label) in zip(axes, labels.items(), strict=True):
        rows = select(estimates, part="sweeps", sweep=sweep, quantity="epsilon")
        if sweep == "step_size":
            least = rows.loc[rows["weak_convexity"] > 0, "weak_convexity"].min()
            rows = select(rows, weak_convexity=least)
            _plot(ax, rows, "composition", None, _COMPOSITION)
            for name, style in _CONSTANTS.items():
                _plot(ax, rows, "Theorem 4.5", name, style)
            ax.set_title(f"Theorem 4.5, three constants, $m$ = {least:g}")
        else:
            _plot_by(ax, rows, "Theorem 4.5", "unclipped")
            ax.set_title("Theorem 4.5, clipping keeps directions")
        ax.set(xscale="log", yscale="log", xlabel=label)
    axes[2].legend(loc="upper left", fontsize="x-small")
    return _finished(drawn, axes, 3, _EPSILON, twins=True)


@figure(
    "The limit of convex losses",
    "Left: Theorem 4.5 as the weak convexity m vanishes. It tends to the convex bound where "
    "clipping changes no gradient's direction; for any clipped loss a gap stays. Right: the "
    "bound for the first record of one pass with batch size 1, beside privacy amplification "
    "by iteration (PABI). Equations 12, 21 and 22 are our reconstruction.",
    message="For clipped losses the corrected bound does not tend to the convex one",
    shows="exact formulas",
)
def convex_limit(estimates: pd.DataFrame) -> Any:
    drawn, axes = plotting.panels(2, height=3.2)
    panels = (
        ("weak_convexity", "Theorem 4.5", "equation 22", "Theorem 4.5"),
        ("single pass", "sharp", "PABI", "one pass, first record"),
    )
    for ax, (sweep, method, limit, title) in zip(axes, panels, strict=True):
        rows = select(estimates, part="sweeps", sweep=sweep, quantity="rho")
        positive = rows[rows["x"] > 0]
        _plot(ax, positive, "composition", None, _COMPOSITION)
        for name, style in _CONSTANTS.items():
            _plot(ax, positive, method, name, style)
        floor = select(rows, x=0, method=limit)["value"].iloc[0]
        ax.axhline(floor, color=plotting.UPPER, ls=":", label="convex bound: eq. 22, PABI")
        ax.set(xscale="log", yscale="log", xlabel="weak convexity $m$", title=title)
    return _finished(drawn, axes, 2, _RHO, _RHO)


@figure(
    "Rho by the position of the swapped record",
    "Rho by the position of the swapped record in its pass. Dashed: the bound for a "
    "record's own visits. Dotted: Theorem 4.5 (our reconstruction), for all positions at "
    "once. Left: losses whose gradients keep their direction under clipping. Right: any "
    "clipped loss.",
    message="The later in the pass a record comes, the fewer steps hide it",
    shows="exact formulas",
)
def position(estimates: pd.DataFrame) -> Any:
    rows = select(estimates, part="sweeps", sweep="position", quantity="rho")
    drawn, axes = plotting.panels(2, height=3.2, sharey=True)
    colors = plotting.colors(rows["weak_convexity"])
    for ax, (lipschitz, title) in zip(axes, _CASES.items(), strict=True):
        _plot_by(ax, rows, "sharp", lipschitz)
        for m in (min(colors), max(colors)):
            style = {"color": colors[m], "ls": ":", "label": f"Theorem 4.5, $m$ = {m:g}"}
            _plot(ax, select(rows, weak_convexity=m), "Theorem 4.5", lipschitz, style)
        ax.set(yscale="log", xlabel="position of the swapped record", title=title)
    return _finished(drawn, axes, 3, _RHO)


@figure(
    "Rho by the diameter of the domain",
    "Rho by the diameter of the domain that iterates are projected on. Theorem 4.4 (our "
    "reconstruction) restarts the analysis before the last step. The best restart, which we "
    "derived, is never above it. Clipping changes no gradient's direction.",
    message="On a small domain the bound is far below composition",
    shows="exact formulas",
)
def diameter(estimates: pd.DataFrame) -> Any:
    rows = select(estimates, part="sweeps", sweep="diameter", quantity="rho")
    shown = [rows["weak_convexity"].min(), rows["weak_convexity"].max()]
    drawn, axes = plotting.panels(len(shown), sharey=True)
    for ax, m in zip(axes, shown, strict=True):
        part = select(rows, weak_convexity=m)
        _plot(ax, part, "composition", None, _COMPOSITION)
        for method, color, label in (
            ("Theorem 4.4", plotting.PUBLISHED, "Theorem 4.4 (our reconstruction)"),
            ("sharp", plotting.OTHER, "bound without a domain"),
            ("best restart", plotting.VALID, "best restart"),
        ):
            _plot(ax, part, method, "unclipped", {"color": color, "label": label})
        ax.set(xscale="log", yscale="log", xlabel="diameter of the domain")
        ax.set_title(f"weak convexity $m$ = {m:g}")
    return _finished(drawn, axes, 2, _RHO)


@figure(
    "Exact divergence over the bounds",
    "Exact divergence of affine steps that grow by at most L, over each bound, for the "
    "first record of the pass. Open marks: the tightest slopes at the visits, which attain the "
    "bound by visits for every L. Lines: the slope L in every step, which attains it for "
    "one pass and for L = 1.",
    message="The bound by visits is attained; Theorem 4.5 is loose for few passes",
    shows="exact formulas",
)
def tightness(estimates: pd.DataFrame) -> Any:
    rows = select(estimates, quantity="tightness")
    drawn, axes = plotting.panels(3, sharey=True)
    for ax, method in zip(axes, ("sharp", "Theorem 4.5", "composition"), strict=True):
        for growth, look in plotting.looks(rows["growth"]).items():
            part = select(rows, growth=growth, method=method)
            own = {"ls": "-", "ms": 3, "label": f"$L$ = {1 + growth:g}"}
            plotting.line(ax, select(part, slopes="constant"), **own, **look)
            plotting.line(ax, select(part, slopes="tightest"), ls="none", mfc="none", ms=6, **look)
        name = {"sharp": "the bound by visits"}.get(method, method)
        ax.set(xscale="log", yscale="log", xlabel="passes over the data", title=f"over {name}")
    axes[0].plot([], [], color="0.3", label="slope $L$ in every step")
    axes[0].plot([], [], label="tightest slopes", **_CIRCLE)
    return _finished(drawn, axes, 4, "exact / bound")


@figure(
    "Visible fraction and Lipschitz constants",
    "Left: the fraction of a squared shift that s noisy steps cannot hide; dotted, its "
    "limit. Right: how much a step can expand, by smoothness M over weak convexity m. Right "
    "of the vertical line at M = 3 m, a clipped step in two dimensions or more expands more "
    "than the weak convexity alone explains.",
    message="A clipped step expands more than its loss once M exceeds 3 m",
    shows="exact formulas",
)
def constants(estimates: pd.DataFrame) -> Any:
    drawn, axes = plotting.panels(2, height=3.4)
    fractions = select(estimates, quantity="visible_fraction")
    for growth, color in plotting.colors(fractions["growth"]).items():
        label = f"$L$ = {1 + growth:g}"
        line = select(fractions, growth=growth)
        plotting.line(axes[0], line, color=color, ls="-", label=label)
        if growth > 0:
            axes[0].axhline(1 - (1 + growth) ** -2, color=color, ls=":", lw=0.8)
    axes[0].plot([], [], color="0.3", ls=":", lw=0.8, label="limit $1 - L^{-2}$")
    axes[0].set(xscale="log", yscale="log", xlabel="steps $s$")
    axes[0].set(ylabel="visible fraction $\\theta_L(s)$", title="what $s$ steps leave of a shift")
    expansions = select(estimates, quantity="expansion")
    for name, style in _CONSTANTS.items():
        plotting.line(axes[1], select(expansions, method=name), **style)
    trivial = {"color": plotting.UPPER, "ls": ":", "label": "triangle inequality"}
    plotting.line(axes[1], select(expansions, method="trivial"), **trivial)
    axes[1].axvline(3, color="0.3", lw=0.8, ls="-.", zorder=0, label="$M = 3m$")
    axes[1].set(xscale="log", yscale="log", xlabel="smoothness / weak convexity, $M/m$")
    axes[1].set(ylabel="$(L - 1)\\,/\\,(\\lambda m)$", title="step size $\\lambda m$ = 0.01")
    axes[0].legend(loc="lower left")
    return plotting.legend_below(drawn, axes[1], 3)


def _ticks(ax: Any, values: pd.Series) -> None:
    ticks = sorted(values.unique())
    ax.set_xticks(ticks, [f"{x:g}" for x in ticks])
    ax.set_xticks([], minor=True)


_DIVERGENCES: dict[str, _Style] = {
    "corrected bound": {"color": plotting.VALID, "label": "bound with $L$ for any clipped loss"},
    "affine limit": {
        "color": "black", "ls": "none", "marker": "x",
        "label": "affine limit of these losses (exact)",
    },
    "certified": {
        "color": plotting.OBSERVED, "ls": "none", "marker": "^", "ms": 6,
        "label": "lower bound by simulation, KL divergence",
    },
}  # fmt: skip


@figure(
    "Convex losses whose clipped steps expand",
    "Divergence of clipped, convex, smooth losses in the plane, over the bound for convex "
    "losses; above 1 the bound is violated. Left: a single pass, against privacy "
    "amplification by iteration. Right: several passes, against equation 22 (our "
    "reconstruction). Triangles: lower bounds by simulation (Clopper-Pearson on an event "
    "fixed in advance, failure probability 1e-6 for all together). Crosses: the exact limit "
    "of ever larger batches. Green: the bound with the corrected constant, above them all.",
    message="Clipped convex losses leak more than the bound for convex losses allows",
    of="audits",
)
def counterexample(estimates: pd.DataFrame) -> Any:
    rows = select(estimates, quantity="kl")
    one, several = rows[rows["passes"] == 1], rows[rows["passes"] > 1]
    every = (
        ("one pass", "steps of the single pass", "x", one),
        ("several passes", "passes over the data", "passes", several),
    )
    shown = [panel for panel in every if len(panel[-1])]
    drawn, axes = plotting.panels(len(shown), height=3.4)
    for ax, (title, label, along, part) in zip(axes, shown, strict=True):
        part = part.assign(x=part[along])
        convex = select(part, method="convex bound").set_index("x")["value"]
        ratios = part.assign(value=part["value"] / part["x"].map(convex))
        for method, style in _DIVERGENCES.items():
            plotting.line(ax, select(ratios, method=method), **style)
        ax.axhline(1, color=plotting.PUBLISHED, ls="--", lw=1.3, label="bound for convex losses")
        ax.set(xscale="log", xlabel=label, ylim=(0, None), title=title)
        _ticks(ax, part["x"])
    return _finished(drawn, axes, 2, *["divergence / convex bound"] * 2)


_AUDIT: dict[str, _Style] = {
    "composition": _COMPOSITION,
    "Theorem 4.5": {"color": plotting.PUBLISHED, "label": "Theorem 4.5 (our reconstruction)"},
    "sharp": {"color": plotting.OTHER, "label": "bound for this position"},
    "exact": {"color": plotting.UPPER, "ls": "-", "label": "exact (quadrature)"},
    "lower bound": {
        "color": plotting.VALID, "ls": "none", "marker": "^", "ms": 6,
        "label": "audit, lower bound (95 %)",
    },
}  # fmt: skip


@figure(
    "Audit of cyclic DP-SGD",
    "Epsilon of simulated last iterates by passes over the data. Triangles: lower bounds at "
    "95 % confidence each. Grey: the exact value. The swapped record is the first of the "
    f"pass. {_TWO}",
    message="Exact values and audits of the last iterate stay below the bounds",
)
def audit(estimates: pd.DataFrame) -> Any:
    rows = select(estimates, quantity="audit")
    panels = list(rows.groupby("instance"))
    drawn, axes = plotting.panels(len(panels), height=3.1, sharey=True)
    for ax, (instance, part) in zip(axes, panels, strict=True):
        for method, style in _AUDIT.items():
            _plot(ax, part, method, None, style)
        ax.set(xscale="log", yscale="log", xlabel="passes over the data", title=instance)
        _ticks(ax, part["x"])
    return _finished(drawn, axes, 3, "$\\varepsilon$", twins=True)
