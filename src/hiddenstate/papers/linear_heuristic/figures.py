"""Figures and tables of linear_heuristic, from its estimates."""

import numpy as np
import pandas as pd

from hiddenstate.papers.linear_heuristic.cells import ATTACKS
from hiddenstate.papers.linear_heuristic.estimates import named, pick

STATED_QUADRATIC = {0.0: 2.222, 0.5: 2.274, 1.0: 2.182}
"""Curvature and epsilon, section 4.2."""


def _baseline(method: str) -> dict:
    """Style of an epsilon that audits are compared with."""
    from hiddenstate import plotting

    label, color, line = {
        "heuristic": ("heuristic (last iterate, linear loss)", plotting.OBSERVED, "-"),
        "standard": ("standard (all iterates)", "black", "--"),
        "full batch": ("full batch", plotting.VALID, "-."),
    }[method]
    return {"label": label, "color": color, "ls": line, "lw": 1.5}


_AUDIT_SERIES = (
    # method, label, colour role, marker
    ("as published", "estimate as published", "PUBLISHED", "s"),
    ("lower bound", "lower bound at 95 %", "VALID", "^"),
)


def _baseline_lines(ax, estimates: pd.DataFrame, cell: str, methods=("standard", "full batch")):
    for method in ("heuristic", *methods):
        rows = pick(estimates, cell, method)
        ax.plot(rows["x"], rows["value"], **_baseline(method))


def draw_figure1(estimates: pd.DataFrame):
    """The heuristic against its baselines in three regimes."""
    from hiddenstate import plotting

    figure, axes = plotting.panels(3)
    for letter, ax in zip("abc", axes, strict=True):
        _baseline_lines(ax, estimates, f"figure1{letter}")
        ax.set(xscale="log", xlabel="steps T")
    axes[0].set_title("(a) steps T, sampling rate 1/T,\nnoise multiplier 5/$\\sqrt{T}$")
    axes[0].set(yscale="log", ylabel="$\\varepsilon$")
    axes[1].set_ylim(0, None)
    constant = pick(estimates, "figure1b", "standard")["value"].mean()
    axes[1].set_title(f"(b) steps T, sampling rate 1/T,\nstandard $\\varepsilon$ = {constant:.3g}")
    first = pick(estimates, "figure1c", "heuristic", "single_step").iloc[0]
    fixed = pick(estimates, "figure1c", "heuristic").iloc[0]
    axes[2].set_title(
        f"(c) steps T, sampling rate {fixed['sampling_rate']:g},\n"
        f"noise multiplier {fixed['noise_multiplier']:g}"
    )
    axes[2].axhline(first["value"], color="0.5", lw=0.9, ls=":", label="heuristic of one step")
    axes[2].set_ylim(0, 14)
    plotting.legend_below(figure, axes[2], columns=4)
    return figure


def draw_quadratic(estimates: pd.DataFrame):
    """Epsilon against the curvature of the regulariser, with the paper's three values."""
    from hiddenstate import plotting

    figure, (ax,) = plotting.panels(1, height=3.2)
    rows = pick(estimates, "quadratic", "quadratic regulariser")
    ax.plot(rows["x"], rows["value"], color=plotting.OBSERVED, label="exact")
    stated = STATED_QUADRATIC
    ax.plot(list(stated), list(stated.values()), label="stated by the paper", **plotting.STATED)
    ends = rows.iloc[[0, -1]]["value"].max()
    ax.axhline(ends, color="0.5", lw=0.9, ls=":", label="larger of the two linear cases")
    ax.set(xlabel="curvature of the regulariser", ylabel="$\\varepsilon$ of the last iterate")
    plotting.legend_below(figure, ax, columns=1)
    return figure


def draw_figure5(estimates: pd.DataFrame):
    """Ratio of the quadratic loss's epsilon to the largest linear one, over steps and rates."""
    from matplotlib.colors import TwoSlopeNorm

    from hiddenstate import plotting

    cells = named(estimates, "figure5")
    methods = ("enumerated", "rounded up")
    figure, axes = plotting.panels(len(cells), len(methods), height=3.6, sharex=True, sharey=True)
    for row, method in enumerate(methods):
        for column, cell in enumerate(cells):
            ax = axes[row * len(cells) + column]
            rows = estimates[(estimates["cell"] == cell) & (estimates["method"] == method)]
            table = rows.pivot(index="sampling_rate", columns="steps", values="value")
            norm = TwoSlopeNorm(1.0, 0.8, 1.1)
            image = ax.imshow(table, cmap="RdBu_r", norm=norm, aspect="auto", origin="lower")
            at = np.unravel_index(np.argmax(table.to_numpy()), table.shape)
            ax.plot(at[1], at[0], "k*", ms=7)
            shown = "exact sums" if method == "enumerated" else "the paper's rounding"
            ax.set_title(
                f"one step: $\\varepsilon$ = {rows['x'].iloc[0]:g}, {shown}\n"
                f"largest ratio {table.to_numpy().max():.4f} (star)"
            )
            ax.set_xticks(range(len(table.columns)), [f"{t:g}" for t in table.columns], rotation=90)
            ax.set_yticks(range(len(table.index)), [f"{q:g}" for q in table.index])
            ax.tick_params(labelsize=6)
            ax.grid(False)
            if row == len(methods) - 1:
                ax.set_xlabel("steps")
            if column == 0:
                ax.set_ylabel("sampling rate")
    figure.colorbar(
        image, ax=axes, shrink=0.6, extend="min", label="ratio of epsilons; red: heuristic exceeded"
    )
    return figure


def draw_history(estimates: pd.DataFrame):
    """Epsilon against the factor of the regulariser that keeps the history."""
    from hiddenstate import plotting

    figure, (ax,) = plotting.panels(1, height=4.0)
    rows = pick(estimates, "history", "history regulariser")
    ax.plot(rows["x"] - 1, rows["value"], color=plotting.OTHER, label="this regulariser, accounted")
    for method in ("heuristic", "standard"):
        value = pick(estimates, "history", method)["value"].iloc[0]
        ax.axhline(value, **_baseline(method))
    for method, label, role, marker in _AUDIT_SERIES:
        rows = pick(estimates, "history", method)
        ax.plot(
            rows["x"] - 1, rows["value"], ls="none", color=getattr(plotting, role), marker=marker,
            ms=4.5, label=label,
        )  # fmt: skip
    ax.set(xscale="log", xlabel="factor of the regulariser, less one", ylabel="$\\varepsilon$")
    ax.set_ylim(0, None)
    plotting.legend_below(figure, ax, columns=1)
    return figure


def _audit_panels(estimates: pd.DataFrame, height: float):
    from hiddenstate import plotting

    cells = named(estimates, "audits_q")
    figure, axes = plotting.panels(len(cells), height=height, sharey=True)
    for ax, cell in zip(axes, cells, strict=True):
        _baseline_lines(ax, estimates, cell, methods=("standard",))
        ax.set(xscale="log", xlabel="steps", title=f"sampling rate {cell.removeprefix('audits_q')}")
    axes[0].set_ylabel("$\\varepsilon$")
    return figure, dict(zip(cells, axes, strict=True))


def draw_figure3(estimates: pd.DataFrame):
    """Gradient canary among zero gradients: estimates against heuristic and composition."""
    from hiddenstate import plotting

    figure, axes = _audit_panels(estimates, 3.2)
    for cell, ax in axes.items():
        for method, label, role, marker in _AUDIT_SERIES:
            rows = pick(estimates, cell.replace("audits", "gradient"), method)
            ax.plot(
                rows["x"], rows["value"], color=getattr(plotting, role), marker=marker, ms=4.5,
                lw=0.8, label=label,
            )  # fmt: skip
        ax.set_ylim(0, None)
    plotting.legend_below(figure, ax, columns=2)
    return figure


def draw_figure6(estimates: pd.DataFrame):
    """Malicious data set: estimates against heuristic and composition."""
    from hiddenstate import plotting

    figure, axes = _audit_panels(estimates, 3.6)
    colors = {"bits": plotting.PUBLISHED, "analog": plotting.OTHER}
    names = {"bits": "one bit a step (Algorithm 3)", "analog": "analog (ours)"}
    for cell, ax in axes.items():
        rows = pick(estimates, cell, "one bit a step")
        ax.plot(
            rows["x"],
            rows["value"],
            color=colors["bits"],
            lw=1,
            ls=":",
            label="one bit a step, largest exact $\\varepsilon$",
        )
        for attack, color in colors.items():
            for method, label, _, marker in _AUDIT_SERIES:
                rows = pick(estimates, cell.replace("audits", attack), method)
                ax.plot(
                    rows["x"],
                    rows["value"],
                    color=color,
                    marker=marker,
                    mfc="none" if marker == "^" else color,
                    ms=4.5,
                    lw=0.8,
                    label=f"{names[attack]}: {label}",
                )
        ax.set_ylim(0, None)
    plotting.legend_below(figure, ax, columns=2)
    return figure


def tabulate_audits(estimates: pd.DataFrame) -> pd.DataFrame:
    """Every audit by every estimator."""
    rows = estimates[estimates["cell"].str.split("_").str[0].isin(ATTACKS)]
    index = ["cell", "sampling_rate", "steps", "noise_multiplier"]
    table = rows.pivot_table(index=index, columns="method", values="value", sort=False)
    records = []
    for (cell, rate, steps, noise), values in table.iterrows():
        baselines = {
            method: pick(estimates, f"audits_q{rate:g}", method).set_index("x")["value"][steps]
            for method in ("heuristic", "standard")
        }
        records.append(
            {
                "attack": cell.split("_")[0],
                "sampling rate": f"{rate:g}",
                "steps": f"{steps:g}",
                "noise multiplier": f"{noise:.4f}",
                **{name: f"{value:.3f}" for name, value in baselines.items()},
                **{name: f"{value:.3f}" for name, value in values.items()},
            }
        )
    return pd.DataFrame(records)


def tabulate_table1(estimates: pd.DataFrame) -> pd.DataFrame:
    """Heuristic and standard columns of Table 1, printed and ours."""
    records = []
    for cell in named(estimates, "table1"):
        for origin, part in estimates[estimates["cell"] == cell].groupby("origin"):
            ours = part.set_index("method")["value"]
            first = part.iloc[0]
            records.append(
                {
                    "batch size": f"{first['batch']:g}",
                    "parameters": {
                        "recalled": "recalled from De et al. 2022",
                        "reconstructed": "our reconstruction",
                    }[origin],
                    "noise multiplier": f"{first['noise_multiplier']:.4f}",
                    "steps": f"{first['steps']:g}",
                    "epochs": f"{first['steps'] * first['batch'] / first['records']:.1f}",
                    "heuristic, printed": f"{first['printed_heuristic']:g}",
                    "heuristic, ours": f"{ours['heuristic']:.3f}",
                    "standard, printed": f"{first['printed_standard']:g}",
                    "standard, ours": f"{ours['standard']:.3f}",
                    "full batch, ours": f"{ours['full batch']:.3f}",
                    "accuracy, printed": first["accuracy"],
                }
            )
    return pd.DataFrame(records)
