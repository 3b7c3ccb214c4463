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
        "label": "$L$ where clipping turns no gradient", "color": plotting.OBSERVED, **_WIDE
    },
    "reconstructed": {
        "label": "$L$ of equation 12 (our reconstruction)", "color": plotting.PUBLISHED
    },
    "clipped": {"label": "$L$ for any clipped loss", "color": plotting.VALID},
}  # fmt: skip
"""Lipschitz constants of the step."""
_CASES = {"unclipped": "clipping turns no gradient", "clipped": "any clipped loss (corrected)"}
"""Panels by what clipping may do."""
_RDP: _Style = {"ls": ":", "lw": 1}
"""How an epsilon by Rényi divergences is drawn beside that of Gaussian differential privacy."""
_TWO = "Dashed: as Gaussian differential privacy; dotted: as Rényi divergences."


def _plot(ax: Any, rows: pd.DataFrame, method: str, lipschitz: str | None, style: _Style) -> None:
    """One bound's line with one Lipschitz constant, if that matters; epsilons by both ways."""
    rows = select(rows, method=method, lipschitz=lipschitz)
    for way, line in rows.fillna({"conversion": ""}).groupby("conversion"):
        plotting.line(ax, line, **style | (_RDP | {"label": None} if way == "rdp" else {}))


def _plot_by(ax: Any, rows: pd.DataFrame, level: str, method: str, lipschitz: str) -> None:
    """A bound's line for each level of a parameter, and composition."""
    _plot(ax, select(rows, **{level: rows[level].min()}), "composition", None, _COMPOSITION)
    for m, color in plotting.colors(rows[level]).items():
        style = {"color": color, "label": f"{method}, $m$ = {m:g}"} | (_WIDE if m == 0 else {})
        _plot(ax, select(rows, **{level: m}), method, lipschitz, style)


def _finished(drawn: Any, axes: list[Any], columns: int, *ylabels: str) -> Any:
    """The figure with the labels of its first panels and one legend below."""
    for ax, label in zip(axes, ylabels, strict=False):
        ax.set_ylabel(label)
    plotting.legend_below(drawn, axes[0], columns)
    return drawn


_RHO, _EPSILON = "$\\rho$ (upper bound)", "$\\varepsilon$ (upper bound)"


@figure(
    "Epsilon against passes",
    "Theorem 4.5 (our reconstruction) for weak convexities m against composition of the visits, "
    f"which needs no assumption. Left: where clipping turns no gradient. {_TWO} Right: rho over "
    "composition's; circles: any clipped loss, with the corrected Lipschitz constant. Theorem 4.5 "
    "covers every position of the record by one visit that nothing hides, besides the passes: so "
    "at one pass it is above composition.",
)
def passes(estimates: pd.DataFrame) -> Any:
    """Epsilon against passes for several weak convexities, and what clipping costs."""
    rows = select(estimates, part="sweeps", sweep="passes")
    drawn, axes = plotting.panels(2)
    _plot_by(
        axes[0], select(rows, quantity="epsilon"), "weak_convexity", "Theorem 4.5", "unclipped"
    )
    rho = select(rows, quantity="rho")
    for m, color in plotting.colors(rho["weak_convexity"]).items():
        line = select(rho, weak_convexity=m)
        whole = select(line, method="composition").set_index("x")["value"]
        ratio = line.assign(value=line["value"] / line["x"].map(whole))
        style = {"color": color} | (_WIDE if m == 0 else {})
        _plot(axes[1], ratio, "Theorem 4.5", "unclipped", style)
        marked = {"color": color, "ls": "none", "marker": "o", "mfc": "none", "ms": 5}
        _plot(axes[1], ratio, "Theorem 4.5", "clipped", marked)
    axes[1].axhline(1, color="black", ls="--", lw=1.3)
    for ax in axes:
        ax.set(xscale="log", yscale="log", xlabel="passes over the data")
    return _finished(drawn, axes, 3, _EPSILON, "$\\rho$ over that of composition")


@figure(
    "Epsilon against batch size, noise and step size",
    "Theorem 4.5 (our reconstruction) and composition. Smaller steps, larger noise and larger "
    "batches lower the bound. Right: three Lipschitz constants at the least m above 0; the paper's "
    "(equation 12, our reconstruction) is valid where clipping turns no gradient, and all but "
    f"equal to the constant derived for that case. {_TWO}",
)
def parameters(estimates: pd.DataFrame) -> Any:
    """Epsilon against batch size, noise and step size."""
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
            _plot_by(ax, rows, "weak_convexity", "Theorem 4.5", "unclipped")
            ax.set_title("Theorem 4.5, clipping turns no gradient")
        ax.set(xscale="log", yscale="log", xlabel=label)
    axes[2].legend(loc="upper left")
    return _finished(drawn, axes, 5, _EPSILON)


@figure(
    "The limit of convex losses",
    "Left: Theorem 4.5 as the weak convexity vanishes. It tends to the convex bound where clipping "
    "turns no gradient, by construction; for any clipped loss a gap stays. Right: the bound for "
    "the first of the records in one pass with batch size 1 tends to privacy amplification by "
    "iteration. Equations 12, 21 and 22: our reconstruction.",
)
def convex_limit(estimates: pd.DataFrame) -> Any:
    """Bounds as the weak convexity vanishes, beside the convex bound and PABI."""
    drawn, axes = plotting.panels(2, height=3.2)
    panels = (
        ("weak_convexity", "Theorem 4.5", "equation 22", "Theorem 4.5; dotted: convex, eq. 22"),
        ("single pass", "sharp", "PABI", "one pass, first record; dotted: PABI"),
    )
    for ax, (sweep, method, limit, title) in zip(axes, panels, strict=True):
        rows = select(estimates, part="sweeps", sweep=sweep, quantity="rho")
        positive = rows[rows["x"] > 0]
        _plot(ax, positive, "composition", None, _COMPOSITION)
        for name, style in _CONSTANTS.items():
            _plot(ax, positive, method, name, style)
        floor = select(rows, x=0, method=limit)["value"].iloc[0]
        ax.axhline(floor, color=plotting.UPPER, ls=":")
        ax.set(xscale="log", yscale="log", xlabel="weak convexity $m$", title=title)
    return _finished(drawn, axes, 2, _RHO)


@figure(
    "Rho by the position of the swapped record",
    "The bound for a record's own visits: the later its last visit, the fewer steps hide it. "
    "Dotted: Theorem 4.5 (our reconstruction), for all positions at once. Left: losses whose "
    "gradients clipping does not turn. Right: any clipped loss.",
)
def position(estimates: pd.DataFrame) -> Any:
    """Rho by the position of the swapped record in the pass."""
    rows = select(estimates, part="sweeps", sweep="position", quantity="rho")
    drawn, axes = plotting.panels(2, height=3.2, sharey=True)
    colors = plotting.colors(rows["weak_convexity"])
    for ax, (lipschitz, title) in zip(axes, _CASES.items(), strict=True):
        _plot_by(ax, rows, "weak_convexity", "sharp", lipschitz)
        for m in (min(colors), max(colors)):
            style = {"color": colors[m], "ls": ":", "label": f"Theorem 4.5, $m$ = {m:g}"}
            _plot(ax, select(rows, weak_convexity=m), "Theorem 4.5", lipschitz, style)
        ax.set(yscale="log", xlabel="position of the swapped record", title=title)
    return _finished(drawn, axes, 3, _RHO)


@figure(
    "Rho by the diameter of the domain",
    "Theorem 4.4 (our reconstruction) restarts the analysis before the last step. The best restart "
    "(derived), best over all start times, is at most that, and at most the bound that does not "
    "use the domain. Clipping turns no gradient.",
)
def diameter(estimates: pd.DataFrame) -> Any:
    """Rho by the diameter of the domain: Theorem 4.4, the best restart, and neither."""
    rows = select(estimates, part="sweeps", sweep="diameter", quantity="rho")
    shown = [rows["weak_convexity"].min(), rows["weak_convexity"].max()]
    drawn, axes = plotting.panels(len(shown), sharey=True)
    for ax, m in zip(axes, shown, strict=True):
        part = select(rows, weak_convexity=m)
        _plot(ax, part, "composition", None, _COMPOSITION)
        for method, color, label in (
            ("Theorem 4.4", plotting.PUBLISHED, "Theorem 4.4 (our reconstruction)"),
            ("sharp", plotting.OTHER, "sharp, no use of the domain"),
            ("best restart", plotting.VALID, "best restart"),
        ):
            _plot(ax, part, method, "unclipped", {"color": color, "label": label})
        ax.set(xscale="log", yscale="log", xlabel="diameter of the domain", title=f"$m$ = {m:g}")
    return _finished(drawn, axes, 2, _RHO)


@figure(
    "Exact divergence over the bounds",
    "Exact divergence of affine steps that grow by at most L, over each bound, for the first "
    "record of the pass. Circles: with the tightest slopes at the visits (smoothness 1 / step "
    "size) the bound by visits is attained for every L and every number of visits. Lines: with "
    "the slope L in every step, constant slopes, it is attained in one pass and for L = 1.",
)
def tightness(estimates: pd.DataFrame) -> Any:
    """Exact divergence of affine losses over the bounds."""
    rows = select(estimates, quantity="tightness")
    drawn, axes = plotting.panels(3, sharey=True)
    for ax, method in zip(axes, ("sharp", "Theorem 4.5", "composition"), strict=True):
        for growth, color in plotting.colors(rows["growth"]).items():
            part = select(rows, growth=growth, method=method)
            label = f"$L$ = {1 + growth:g}"
            plotting.line(ax, select(part, slopes="constant"), color=color, ls="-", label=label)
            marked = {"color": color, "ls": "none", "marker": "o", "mfc": "none", "ms": 5}
            plotting.line(ax, select(part, slopes="tightest"), **marked)
        name = {"sharp": "the bound by visits (sharp)"}.get(method, method)
        ax.set(xscale="log", yscale="log", xlabel="passes over the data", title=f"over {name}")
    return _finished(drawn, axes, 4, "exact / bound")


@figure(
    "Visible fraction and Lipschitz constants",
    "Left: the fraction of a squared shift that s noisy steps cannot hide. Right: Lipschitz "
    "constants of the step; beyond M = 3 m a clipped step in two dimensions or more expands more "
    "than the losses' weak convexity alone.",
)
def constants(estimates: pd.DataFrame) -> Any:
    """The visible fraction of a shift, and what clipping costs the Lipschitz constant."""
    drawn, axes = plotting.panels(2, height=3.4)
    fractions = select(estimates, quantity="visible_fraction")
    for growth, color in plotting.colors(fractions["growth"]).items():
        label = f"$L$ = {1 + growth:g}"
        line = select(fractions, growth=growth)
        plotting.line(axes[0], line, color=color, ls="-", label=label)
        if growth > 0:
            axes[0].axhline(1 - (1 + growth) ** -2, color=color, ls=":", lw=0.8)
    axes[0].set(xscale="log", yscale="log", xlabel="steps $s$")
    axes[0].set(ylabel="visible fraction $\\theta_L(s)$", title="dotted: limit $1 - L^{-2}$")
    expansions = select(estimates, quantity="expansion")
    for name, style in _CONSTANTS.items():
        plotting.line(axes[1], select(expansions, method=name), **style)
    trivial = {"color": plotting.UPPER, "ls": ":", "label": "triangle inequality"}
    plotting.line(axes[1], select(expansions, method="trivial"), **trivial)
    axes[1].axvline(3, color=plotting.UPPER, lw=0.4, zorder=0)
    axes[1].set(xscale="log", yscale="log", xlabel="smoothness / weak convexity, $M/m$")
    axes[1].set(ylabel="$(L - 1)\\,/\\,(\\lambda m)$", title="step size $\\lambda m$ = 0.01")
    for ax, place in zip(axes, ("lower left", "upper left"), strict=True):
        ax.legend(loc=place)
    return drawn


def _ticks(ax: Any, values: pd.Series) -> None:
    """Ticks at these values alone."""
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
        "label": "certified by simulation, KL divergence",
    },
}  # fmt: skip


@figure(
    "Convex losses whose clipped steps expand",
    "Divergences of clipped, convex, smooth losses in the plane, over the bound for convex losses: "
    "privacy amplification by iteration in a single pass, equation 22 (our reconstruction) in "
    "several. Triangles: certified by simulation (Clopper-Pearson on an event fixed in "
    "advance; failure probability 1e-6 for all together). Above 1 the convex bound is violated; "
    "the bound with the corrected constant lies above them all. The affine limit, exact, is that "
    "of ever larger batches.",
)
def counterexample(estimates: pd.DataFrame) -> Any:
    """What simulation certifies, over the bound it violates, beside the corrected one."""
    rows = select(estimates, quantity="kl")
    drawn, axes = plotting.panels(2, height=3.4)
    several = rows["passes"] > 1
    for ax, part, label in (
        (axes[0], rows[~several], "steps of the single pass"),
        (axes[1], rows[several].assign(x=rows["passes"]), "passes over the data"),
    ):
        convex = select(part, method="convex bound").set_index("x")["value"]
        ratios = part.assign(value=part["value"] / part["x"].map(convex))
        for method, style in _DIVERGENCES.items():
            plotting.line(ax, select(ratios, method=method), **style)
        ax.axhline(1, color=plotting.PUBLISHED, ls="--", lw=1.3, label="bound for convex losses")
        ax.set(xscale="log", xlabel=label, ylim=(0, None))
        _ticks(ax, part["x"])
    return _finished(drawn, axes, 2, "divergence / convex bound")


_AUDIT: dict[str, _Style] = {
    "composition": _COMPOSITION,
    "Theorem 4.5": {"color": plotting.PUBLISHED, "label": "Theorem 4.5 (our reconstruction)"},
    "sharp": {"color": plotting.OTHER, "label": "sharp, this position"},
    "exact": {"color": plotting.UPPER, "ls": "-", "label": "exact (quadrature)"},
    "lower bound": {
        "color": plotting.VALID, "ls": "none", "marker": "^", "ms": 6,
        "label": "audit, 95 % confidence",
    },
}  # fmt: skip


@figure(
    "Audit of cyclic DP-SGD",
    "Lower bounds on epsilon from simulated last iterates (95 % confidence each), the exact "
    "value on the line, and the upper bounds. The swapped record is "
    f"the first of the pass. {_TWO}",
)
def audit(estimates: pd.DataFrame) -> Any:
    """Audited epsilon under the exact one and the bounds, by passes."""
    rows = select(estimates, quantity="audit")
    panels = list(rows.groupby("instance"))
    drawn, axes = plotting.panels(len(panels), height=3.1, sharey=True)
    for ax, (instance, part) in zip(axes, panels, strict=True):
        for method, style in _AUDIT.items():
            _plot(ax, part, method, None, style)
        ax.set(xscale="log", yscale="log", xlabel="passes over the data", title=instance)
        _ticks(ax, part["x"])
    return _finished(drawn, axes, 3, "$\\varepsilon$")
