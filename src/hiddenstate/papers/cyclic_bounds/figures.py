"""Figures of cyclic_bounds."""

from collections.abc import Iterable
from typing import Any

import pandas as pd

from hiddenstate import plotting
from hiddenstate.estimates import select
from hiddenstate.family import figure

_CONSTANTS: dict[str, dict[str, Any]] = {
    "unclipped": {"label": "$L$ where clipping turns no gradient", "color": plotting.OBSERVED},
    "reconstructed": {
        "label": "$L$ of equation 12 (our reconstruction)",
        "color": plotting.PUBLISHED,
    },
    "clipped": {"label": "$L$ for any clipped loss", "color": plotting.VALID},
}
"""Lipschitz constants of the step."""


def _colors(levels: Iterable[float]) -> dict[float, str]:
    """One colour per level of a parameter."""
    return {x: plotting.SERIES[i % len(plotting.SERIES)] for i, x in enumerate(sorted(levels))}


_COMPOSITION: dict[str, Any] = {
    "color": "black",
    "ls": "--",
    "lw": 1.3,
    "label": "composition, all iterates",
}
_CASES = {"unclipped": "clipping turns no gradient", "clipped": "any clipped loss (corrected)"}
"""Panels by what clipping may do."""


def _plot(
    ax: Any, rows: pd.DataFrame, method: str, lipschitz: str | None = None, **style: Any
) -> None:
    """One bound's line with one Lipschitz constant, dashed as upper bounds are."""
    line = select(rows, method=method, lipschitz=lipschitz).sort_values("x")
    ax.plot(line["x"], line["value"], **{"ls": "--", "lw": 1.3} | style)


def _plot_by_convexity(ax: Any, rows: pd.DataFrame, method: str, lipschitz: str) -> None:
    """A bound's line for each weak convexity, and composition."""
    colors = _colors(rows["weak_convexity"].unique())
    _plot(ax, select(rows, weak_convexity=min(colors)), "composition", **_COMPOSITION)
    for m, color in colors.items():
        part = select(rows, weak_convexity=m)
        _plot(ax, part, method, lipschitz, color=color, label=f"{method}, $m$ = {m:g}")


def _finished(drawn: Any, axes: list[Any], ylabel: str, columns: int) -> Any:
    axes[0].set_ylabel(ylabel)
    plotting.legend_below(drawn, axes[0], columns)
    return drawn


@figure(
    "Epsilon against passes",
    "Theorem 4.5 (our reconstruction) for weak convexities m against plain composition of "
    "the visits, which needs no assumption. Left: losses whose gradients clipping does not "
    "turn. Right: any clipped loss, with the corrected Lipschitz constant.",
)
def passes(estimates: pd.DataFrame) -> Any:
    """Epsilon against passes for several weak convexities, without and with clipping's cost."""
    rows = select(estimates, part="sweeps", sweep="passes", quantity="epsilon")
    drawn, axes = plotting.panels(2, sharey=True)
    for ax, (lipschitz, title) in zip(axes, _CASES.items(), strict=True):
        _plot_by_convexity(ax, rows, "Theorem 4.5", lipschitz)
        ax.set(xscale="log", yscale="log", xlabel="passes over the data", title=title)
    return _finished(drawn, axes, "$\\varepsilon$ (upper bound)", columns=3)


@figure(
    "Epsilon against batch size, noise and step size",
    "Theorem 4.5 (our reconstruction) and composition. Smaller steps, larger noise and "
    "larger batches lower the bound. Right: three Lipschitz constants at the least m above "
    "0; the paper's (equation 12, our reconstruction) is valid where clipping turns no "
    "gradient.",
)
def parameters(estimates: pd.DataFrame) -> Any:
    """Epsilon against batch size, noise and step size."""
    drawn, axes = plotting.panels(3, sharey=True)
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
            _plot(ax, rows, "composition", **_COMPOSITION)
            for name, style in _CONSTANTS.items():
                _plot(ax, rows, "Theorem 4.5", name, **style)
            ax.set_title(f"Theorem 4.5, three constants, $m$ = {least:g}")
            ax.legend(loc="upper left")
        else:
            _plot_by_convexity(ax, rows, "Theorem 4.5", "unclipped")
            ax.set_title("Theorem 4.5, clipping turns no gradient")
        ax.set(xscale="log", yscale="log", xlabel=label)
    axes[0].legend(loc="upper right")
    axes[0].set_ylabel("$\\varepsilon$ (upper bound)")
    return drawn


@figure(
    "The limit of convex losses",
    "Left: Theorem 4.5 as the weak convexity vanishes. It tends to the convex bound where "
    "clipping turns no gradient; for any clipped loss a gap stays. Right: the bound for "
    "the first of the records in one pass with batch size 1 tends to privacy "
    "amplification by iteration. Equations 12, 21 and 22: our reconstruction.",
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
        ax.axhline(select(rows, method="composition")["value"].iloc[0], **_COMPOSITION)
        for name, style in _CONSTANTS.items():
            _plot(ax, rows[rows["x"] > 0], method, name, **style)
        floor = select(rows, x=0, method=limit)["value"].iloc[0]
        ax.axhline(floor, color=plotting.UPPER, ls=":")
        ax.set(xscale="log", yscale="log", xlabel="weak convexity $m$", title=title)
    return _finished(drawn, axes, "$\\rho$ (upper bound)", columns=2)


@figure(
    "Rho by the position of the swapped record",
    "The bound for a record's own visits: the later its last visit, the fewer steps hide "
    "it. Dotted: Theorem 4.5 (our reconstruction), for all positions at once. Left: losses "
    "whose gradients clipping does not turn. Right: any clipped loss.",
)
def position(estimates: pd.DataFrame) -> Any:
    """Rho by the position of the swapped record in the pass."""
    rows = select(estimates, part="sweeps", sweep="position", quantity="rho")
    drawn, axes = plotting.panels(2, height=3.2, sharey=True)
    colors = _colors(rows["weak_convexity"].unique())
    for ax, (lipschitz, title) in zip(axes, _CASES.items(), strict=True):
        _plot_by_convexity(ax, rows, "sharp", lipschitz)
        for m in (min(colors), max(colors)):
            style: dict[str, Any] = {
                "color": colors[m],
                "ls": ":",
                "label": f"Theorem 4.5, $m$ = {m:g}",
            }
            _plot(ax, select(rows, weak_convexity=m), "Theorem 4.5", lipschitz, **style)
        ax.set(yscale="log", xlabel="position of the swapped record", title=title)
    return _finished(drawn, axes, "$\\rho$ (upper bound)", columns=3)


@figure(
    "Rho by the diameter of the domain",
    "Theorem 4.4 (our reconstruction) restarts the analysis before the last step; the "
    "best restart (derived) is at most that, and at most the bound that does not use the "
    "domain. Clipping turns no gradient.",
)
def diameter(estimates: pd.DataFrame) -> Any:
    """Rho by the diameter of the domain: Theorem 4.4, the best restart, and neither."""
    rows = select(estimates, part="sweeps", sweep="diameter", quantity="rho")
    shown = [rows["weak_convexity"].min(), rows["weak_convexity"].max()]
    drawn, axes = plotting.panels(len(shown), sharey=True)
    for ax, m in zip(axes, shown, strict=True):
        part = select(rows, weak_convexity=m)
        _plot(ax, part, "composition", **_COMPOSITION)
        for method, color, label in (
            ("Theorem 4.4", plotting.PUBLISHED, "Theorem 4.4 (our reconstruction)"),
            ("sharp", plotting.OTHER, "sharp, no use of the domain"),
            ("best restart", plotting.VALID, "best restart"),
        ):
            _plot(ax, part, method, "unclipped", color=color, label=label)
        ax.set(xscale="log", yscale="log", xlabel="diameter of the domain", title=f"$m$ = {m:g}")
    return _finished(drawn, axes, "$\\rho$ (upper bound)", columns=2)


@figure(
    "Exact divergence over the bounds",
    "Exact divergence of affine losses with the largest growth L a step, over each bound, "
    "for the first record of the pass. The bound by visits is attained in one pass, and "
    "for L = 1 always; with several passes and L > 1 the exact divergence saturates.",
)
def tightness(estimates: pd.DataFrame) -> Any:
    """Exact divergence of affine losses over the bounds."""
    rows = select(estimates, quantity="tightness")
    colors = _colors(rows["growth"].unique())
    drawn, axes = plotting.panels(3, sharey=True)
    for ax, method in zip(axes, ("sharp", "Theorem 4.5", "composition"), strict=True):
        name = {"sharp": "the bound by visits (sharp)"}.get(method, method)
        for growth, color in colors.items():
            style: dict[str, Any] = {
                "color": color,
                "marker": "o",
                "ms": 3,
                "label": f"$L$ = {1 + growth:g}",
            }
            _plot(ax, select(rows, growth=growth), method, ls="-", lw=None, **style)
        ax.set(xscale="log", yscale="log", xlabel="passes over the data", title=f"over {name}")
    return _finished(drawn, axes, "exact / bound", columns=len(colors))


@figure(
    "Visible fraction and Lipschitz constants",
    "Left: the fraction of a squared shift that s noisy steps cannot hide. Right: "
    "Lipschitz constants of the step; beyond M = 3 m a clipped step in two dimensions or "
    "more expands more than the losses' weak convexity alone.",
)
def constants(estimates: pd.DataFrame) -> Any:
    """The visible fraction of a shift, and what clipping costs the Lipschitz constant."""
    drawn, axes = plotting.panels(2)
    fractions = select(estimates, quantity="visible_fraction")
    colors = _colors(fractions["growth"].unique())
    for growth, color in colors.items():
        style: dict[str, Any] = {
            "color": color,
            "label": f"$L$ = {1 + growth:g}",
            "ls": "-",
            "lw": None,
        }
        _plot(axes[0], select(fractions, growth=growth), "theta", **style)
        if growth > 0:
            axes[0].axhline(1 - (1 + growth) ** -2, color=color, ls=":", lw=0.8)
    axes[0].set(xscale="log", yscale="log", xlabel="steps $s$")
    axes[0].set(ylabel="visible fraction $\\theta_L(s)$", title="dotted: limit $1 - L^{-2}$")
    axes[0].set_ylim(5e-5, 50)
    axes[0].legend(loc="upper right")
    expansions = select(estimates, quantity="expansion")
    for name, style in _CONSTANTS.items():
        _plot(axes[1], expansions, name, ls="-", lw=None, **style)
    trivial: dict[str, Any] = {
        "color": plotting.UPPER,
        "ls": ":",
        "lw": None,
        "label": "triangle inequality",
    }
    _plot(axes[1], expansions, "trivial", **trivial)
    axes[1].axvline(3, color=plotting.UPPER, lw=0.4, zorder=0)
    axes[1].set(xscale="log", yscale="log", xlabel="smoothness / weak convexity, $M/m$")
    axes[1].set_ylabel("$(L - 1)\\,/\\,(\\lambda m)$")
    axes[1].set_title("step size $\\lambda m$ = 0.01")
    axes[1].set_ylim(0.8, 1000)
    axes[1].legend(loc="upper left")
    return drawn


def _ticks(ax: Any, values: pd.Series) -> None:
    """Ticks at these values alone."""
    ticks = sorted(values.unique())
    ax.set_xticks(ticks, [f"{x:g}" for x in ticks])
    ax.minorticks_off()


_DIVERGENCES: dict[str, dict[str, Any]] = {
    "composition": {"color": "black", "label": "composition"},
    "corrected bound": {
        "color": plotting.VALID, "label": "bound with $L$ for any clipped loss"
    },
    "affine limit": {
        "color": "black", "ls": "none", "marker": "x",
        "label": "affine limit of these losses (exact)",
    },
    "convex bound": {
        "color": plotting.PUBLISHED, "label": "bound with $L$ = 1, as for convex losses"
    },
    "certified": {
        "color": plotting.OBSERVED, "ls": "none", "marker": "^", "ms": 6,
        "label": "certified by simulation (confidence $1 - 10^{-6}$)",
    },
}  # fmt: skip


@figure(
    "Convex losses whose clipped steps expand",
    "Divergences certified by simulation of clipped, convex, smooth losses in the plane "
    "(Clopper-Pearson on an event fixed in advance, confidence 1 - 1e-6 each), above the "
    "bound that takes convex steps as nonexpansive and below the corrected one.",
)
def counterexample(estimates: pd.DataFrame) -> Any:
    """What simulation certifies, beside the bound it violates and the corrected one."""
    drawn, axes = plotting.panels(2, height=3.6)
    labels = {"kl": "Kullback-Leibler divergence", "d2": "$D_2$"}
    for ax, (quantity, label) in zip(axes, labels.items(), strict=True):
        rows = select(estimates, quantity=quantity)
        for method, style in _DIVERGENCES.items():
            _plot(ax, rows, method, **style)
        ax.set(xscale="log", yscale="log", xlabel="steps of the single pass")
        ax.set_ylabel(f"{label}, nats")
        _ticks(ax, rows["x"])
    plotting.legend_below(drawn, axes[0], columns=2)
    return drawn


_AUDIT: dict[str, dict[str, Any]] = {
    "composition": _COMPOSITION,
    "Theorem 4.5": {"color": plotting.PUBLISHED, "label": "Theorem 4.5 (our reconstruction)"},
    "sharp": {"color": plotting.OTHER, "label": "sharp, this position"},
    "exact": {"color": plotting.UPPER, "ls": "-", "label": "exact (quadrature)"},
    "lower bound": {
        "color": plotting.VALID, "ls": "none", "marker": "^", "label": "audit, 95 % confidence"
    },
}  # fmt: skip


@figure(
    "Audit of cyclic DP-SGD",
    "Lower bounds on epsilon from simulated last iterates (uniform band over all "
    "thresholds, 95 % confidence each), the exact value on the line, and the upper "
    "bounds. The swapped record is the first of the pass.",
)
def audit(estimates: pd.DataFrame) -> Any:
    """Audited epsilon under the exact one and the bounds, by passes."""
    rows = select(estimates, quantity="audit")
    panels = list(rows.groupby("instance"))
    drawn, axes = plotting.panels(len(panels), height=3.1, sharey=True)
    for ax, (instance, part) in zip(axes, panels, strict=True):
        for method, style in _AUDIT.items():
            _plot(ax, part, method, ms=6, **style)
        ax.set(xscale="log", yscale="log", xlabel="passes over the data", title=instance)
        _ticks(ax, part["x"])
    return _finished(drawn, axes, "$\\varepsilon$", columns=3)
