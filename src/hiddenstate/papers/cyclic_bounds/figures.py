"""Figures of cyclic_bounds, drawn from its estimates."""

from typing import Any

import pandas as pd

from hiddenstate.papers.cyclic_bounds.cells import CONSTANTS, pick, swept

_CONSTANT_LABELS = {
    "unclipped": "$L$ where clipping turns no gradient",
    "reconstructed": "$L$ of equation 12 (our reconstruction)",
    "clipped": "$L$ for any clipped loss",
}


def _constant_colors() -> dict[str, Any]:
    from hiddenstate import plotting

    colors = (plotting.OBSERVED, plotting.PUBLISHED, plotting.VALID)
    return dict(zip(CONSTANTS, colors, strict=True))


def _shades(values) -> dict[float, Any]:
    """One colour per value, from light to dark."""
    import seaborn as sns

    values = sorted(values)
    return dict(zip(values, sns.color_palette("flare", len(values)), strict=True))


_CASES = {"unclipped": "clipping turns no gradient", "clipped": "any clipped loss (corrected)"}
"""Panels by what clipping may do."""

_UPPER = {"ls": "--", "lw": 1.3}
_COMPOSITION = {"color": "black", "ls": "--", "lw": 1.3, "label": "composition, all iterates"}


def _plot_by_convexity(ax, rows: pd.DataFrame, method: str, lipschitz: str) -> None:
    """A bound's line for each weak convexity, and composition."""
    line = pick(rows, "composition")
    line = line[line["weak_convexity"] == line["weak_convexity"].min()]
    ax.plot(line["x"], line["value"], **_COMPOSITION)
    colors = _shades(rows["weak_convexity"].unique())
    for m, part in pick(rows, method, lipschitz).groupby("weak_convexity"):
        ax.plot(part["x"], part["value"], color=colors[m], label=f"{method}, $m$ = {m:g}", **_UPPER)


def draw_passes(estimates: pd.DataFrame):
    """Epsilon against passes for several weak convexities, without and with clipping's cost."""
    from hiddenstate import plotting

    rows = swept(estimates, "passes", "epsilon")
    figure, axes = plotting.panels(2, sharey=True)
    for ax, (lipschitz, title) in zip(axes, _CASES.items(), strict=True):
        _plot_by_convexity(ax, rows, "Theorem 4.5", lipschitz)
        ax.set(xscale="log", yscale="log", xlabel="passes over the data", title=title)
    axes[0].set_ylabel("$\\varepsilon$ (upper bound)")
    plotting.legend_below(figure, axes[0], columns=3)
    return figure


def draw_parameters(estimates: pd.DataFrame):
    """Epsilon against batch size, noise and step size."""
    from hiddenstate import plotting

    figure, axes = plotting.panels(3, sharey=True)
    labels = {
        "batch_size": "batch size (records fixed)",
        "noise_std": "noise standard deviation",
        "step_size": "step size (noise fixed)",
    }
    for ax, (sweep, label) in zip(axes, labels.items(), strict=True):
        rows = swept(estimates, sweep, "epsilon")
        if sweep == "step_size":
            least = rows.loc[rows["weak_convexity"] > 0, "weak_convexity"].min()
            rows = rows[rows["weak_convexity"] == least]
            line = pick(rows, "composition")
            ax.plot(line["x"], line["value"], **_COMPOSITION)
            for name, color in _constant_colors().items():
                line = pick(rows, "Theorem 4.5", name)
                style = _UPPER | {"color": color, "label": _CONSTANT_LABELS[name]}
                ax.plot(line["x"], line["value"], **style)
            ax.set_title(f"Theorem 4.5, three constants, $m$ = {least:g}")
            ax.legend(loc="upper left")
        else:
            _plot_by_convexity(ax, rows, "Theorem 4.5", "unclipped")
            ax.set_title("Theorem 4.5, clipping turns no gradient")
        ax.set(xscale="log", yscale="log", xlabel=label)
    axes[0].legend(loc="upper right")
    axes[0].set_ylabel("$\\varepsilon$ (upper bound)")
    return figure


def draw_convex_limit(estimates: pd.DataFrame):
    """Bounds as the weak convexity vanishes, beside the convex bound and PABI."""
    from hiddenstate import plotting

    figure, axes = plotting.panels(2, height=3.2)
    panels = (
        ("weak_convexity", "Theorem 4.5", "equation 22", "Theorem 4.5; dotted: convex, eq. 22"),
        ("single pass", "sharp", "PABI", "one pass, first record; dotted: PABI"),
    )
    for ax, (sweep, method, limit, title) in zip(axes, panels, strict=True):
        rows = swept(estimates, sweep, "rho")
        ax.axhline(pick(rows, "composition")["value"].iloc[0], **_COMPOSITION)
        positive = rows[rows["x"] > 0]
        for name, color in _constant_colors().items():
            line = pick(positive, method, name)
            label = _CONSTANT_LABELS[name]
            ax.plot(line["x"], line["value"], color=color, label=label, **_UPPER)
        floor = pick(rows[rows["x"] == 0], limit)["value"].iloc[0]
        ax.axhline(floor, color="0.4", ls=":")
        ax.set(xscale="log", yscale="log", xlabel="weak convexity $m$", title=title)
    axes[0].set_ylabel("$\\rho$ (upper bound)")
    plotting.legend_below(figure, axes[0], columns=2)
    return figure


def draw_position(estimates: pd.DataFrame):
    """Rho by the position of the swapped record in the pass."""
    from hiddenstate import plotting

    rows = swept(estimates, "position", "rho")
    figure, axes = plotting.panels(2, height=3.2, sharey=True)
    colors = _shades(rows["weak_convexity"].unique())
    for ax, (lipschitz, title) in zip(axes, _CASES.items(), strict=True):
        _plot_by_convexity(ax, rows, "sharp", lipschitz)
        worst = pick(rows, "Theorem 4.5", lipschitz)
        for m in (min(colors), max(colors)):
            line = worst[worst["weak_convexity"] == m]
            label = f"Theorem 4.5, $m$ = {m:g}"
            ax.plot(line["x"], line["value"], color=colors[m], ls=":", label=label)
        ax.set(yscale="log", xlabel="position of the swapped record", title=title)
    axes[0].set_ylabel("$\\rho$ (upper bound)")
    plotting.legend_below(figure, axes[0], columns=3)
    return figure


def draw_diameter(estimates: pd.DataFrame):
    """Rho by the diameter of the domain: Theorem 4.4, the best restart, and neither."""
    from hiddenstate import plotting

    rows = swept(estimates, "diameter", "rho")
    shown = [m for m in (rows["weak_convexity"].min(), rows["weak_convexity"].max())]
    figure, axes = plotting.panels(len(shown), sharey=True)
    for ax, m in zip(axes, shown, strict=True):
        part = rows[rows["weak_convexity"] == m]
        line = pick(part, "composition")
        ax.plot(line["x"], line["value"], **_COMPOSITION)
        for method, color, label in (
            ("Theorem 4.4", plotting.PUBLISHED, "Theorem 4.4 (our reconstruction)"),
            ("sharp", plotting.OTHER, "sharp, no use of the domain"),
            ("best restart", plotting.VALID, "best restart"),
        ):
            line = pick(part, method, "unclipped")
            ax.plot(line["x"], line["value"], color=color, label=label, **_UPPER)
        ax.set(xscale="log", yscale="log", xlabel="diameter of the domain", title=f"$m$ = {m:g}")
    axes[0].set_ylabel("$\\rho$ (upper bound)")
    plotting.legend_below(figure, axes[0], columns=2)
    return figure


def draw_tightness(estimates: pd.DataFrame):
    """Exact divergence of affine losses over the bounds."""
    from hiddenstate import plotting

    rows = estimates[estimates["quantity"] == "tightness"]
    colors = _shades(rows["growth"].unique())
    figure, axes = plotting.panels(3, sharey=True)
    for ax, method in zip(axes, ("sharp", "Theorem 4.5", "composition"), strict=True):
        name = {"sharp": "the bound by visits (sharp)"}.get(method, method)
        for growth, line in rows[rows["method"] == method].groupby("growth"):
            label = f"$L$ = {1 + growth:g}"
            ax.plot(line["x"], line["value"], color=colors[growth], marker="o", ms=3, label=label)
        ax.set(xscale="log", yscale="log", xlabel="passes over the data", title=f"over {name}")
    axes[0].set_ylabel("exact / bound")
    plotting.legend_below(figure, axes[0], columns=len(colors))
    return figure


def draw_constants(estimates: pd.DataFrame):
    """The visible fraction of a shift, and what clipping costs the Lipschitz constant."""
    from hiddenstate import plotting

    figure, axes = plotting.panels(2)
    fractions = estimates[estimates["quantity"] == "visible_fraction"]
    colors = _shades(fractions["growth"].unique())
    for growth, line in fractions.groupby("growth"):
        color = colors[growth]
        axes[0].plot(line["x"], line["value"], color=color, label=f"$L$ = {1 + growth:g}")
        if growth > 0:
            axes[0].axhline(1 - (1 + growth) ** -2, color=color, ls=":", lw=0.8)
    axes[0].set(xscale="log", yscale="log", xlabel="steps $s$")
    axes[0].set(ylabel="visible fraction $\\theta_L(s)$", title="dotted: limit $1 - L^{-2}$")
    axes[0].set_ylim(5e-5, 50)
    axes[0].legend(loc="upper right")
    expansions = estimates[estimates["quantity"] == "expansion"]
    styles = {name: {"color": color} for name, color in _constant_colors().items()}
    styles["trivial"] = {"color": "0.6", "ls": ":"}
    labels = _CONSTANT_LABELS | {"trivial": "triangle inequality"}
    for name, style in styles.items():
        line = expansions[expansions["method"] == name]
        axes[1].plot(line["x"], line["value"], label=labels[name], **style)
    axes[1].axvline(3, color="0.8", lw=0.8, zorder=0)
    axes[1].set(xscale="log", yscale="log", xlabel="smoothness / weak convexity, $M/m$")
    axes[1].set_ylabel("$(L - 1)\\,/\\,(\\lambda m)$")
    axes[1].set_title("step size $\\lambda m$ = 0.01")
    axes[1].set_ylim(0.8, 1000)
    axes[1].legend(loc="upper left")
    return figure


def draw_counterexample(estimates: pd.DataFrame):
    """What simulation certifies, beside the bound it violates and the corrected one."""
    from hiddenstate import plotting

    figure, axes = plotting.panels(2, height=3.6)
    styles = {
        "composition": {"color": "black", "ls": "--", "label": "composition"},
        "corrected bound": {
            "color": plotting.VALID,
            "ls": "--",
            "label": "bound with $L$ for any clipped loss",
        },
        "affine limit": {
            "color": "0.3",
            "ls": "none",
            "marker": "x",
            "label": "affine limit of these losses (exact)",
        },
        "convex bound": {
            "color": plotting.PUBLISHED,
            "ls": "--",
            "label": "bound with $L$ = 1, as for convex losses",
        },
    }
    for ax, (quantity, label) in zip(
        axes, (("kl", "Kullback-Leibler divergence"), ("d2", "$D_2$")), strict=True
    ):
        rows = estimates[estimates["quantity"] == quantity]
        for method, style in styles.items():
            line = rows[rows["method"] == method].sort_values("x")
            ax.plot(line["x"], line["value"], lw=1.3, **style)
        line = rows[rows["method"] == "certified"].sort_values("x")
        ax.plot(
            line["x"],
            line["value"],
            color=plotting.OBSERVED,
            marker="^",
            ls="none",
            ms=6,
            label="certified by simulation (confidence $1 - 10^{-6}$)",
        )
        ax.set(
            xscale="log", yscale="log", xlabel="steps of the single pass", ylabel=f"{label}, nats"
        )
        ax.set_xticks(line["x"], [f"{x:g}" for x in line["x"]])
        ax.minorticks_off()
    plotting.legend_below(figure, axes[0], columns=2)
    return figure


_AUDIT_STYLES = {
    "composition": {"color": "black", "ls": "--", "label": "composition, all iterates"},
    "Theorem 4.5": {"role": "PUBLISHED", "ls": "--", "label": "Theorem 4.5 (our reconstruction)"},
    "sharp": {"role": "OTHER", "ls": "--", "label": "sharp, this position"},
    "exact": {"color": "0.5", "ls": "-", "label": "exact (quadrature)"},
    "lower bound": {
        "role": "VALID",
        "ls": "none",
        "marker": "^",
        "label": "audit, 95 % confidence",
    },
}


def draw_audit(estimates: pd.DataFrame):
    """Audited epsilon under the exact one and the bounds, by passes."""
    from hiddenstate import plotting

    rows = estimates[estimates["quantity"] == "audit"]
    panels = list(rows.groupby("instance"))
    figure, axes = plotting.panels(len(panels), height=3.1, sharey=True)
    for ax, (instance, part) in zip(axes, panels, strict=True):
        for method, style in _AUDIT_STYLES.items():
            line = part[part["method"] == method].sort_values("x")
            style = dict(style)
            if "role" in style:
                style["color"] = getattr(plotting, style.pop("role"))
            ax.plot(line["x"], line["value"], lw=1.3, ms=6, **style)
        ax.set(xscale="log", yscale="log", xlabel="passes over the data", title=instance)
        passes = sorted(part["x"].unique())
        ax.set_xticks(passes, [f"{x:g}" for x in passes])
        ax.minorticks_off()
    axes[0].set_ylabel("$\\varepsilon$")
    plotting.legend_below(figure, axes[0], columns=3)
    return figure
