"""Figures of the atlas."""

from textwrap import fill
from typing import Any

import numpy as np
import pandas as pd

from hiddenstate import plotting
from hiddenstate.atlas import proven
from hiddenstate.papers.atlas.estimates import checkpoints, settings
from hiddenstate.pipeline.estimates import select
from hiddenstate.pipeline.family import figure
from hiddenstate.rounding import shown

_SERIES: dict[str, tuple[tuple[str, ...], str, str, dict[str, Any]]] = {
    # label: groups of rows, kind, which of several, marker
    "linear heuristic: if all losses were linear": (
        ("assumed",), "exact", "min", {"marker": "D", "color": plotting.OTHER, "ms": 5},
    ),
    "proven under an assumption on the loss": (
        ("assumed", "hidden"), "upper", "min", {"marker": "<", "color": "black", "mfc": "none"},
    ),
    "largest of the simulated audits, lower bound (95 % each)": (
        ("simulated",), "lower", "max", {"marker": "^", "color": plotting.OBSERVED},
    ),
    "worst known losses, lower bound": (
        ("counterexample",), "lower", "max", {"marker": ">", "color": plotting.VALID},
    ),
}  # fmt: skip


@figure(
    "What hiding the iterates buys",
    "Epsilon of the last iterate as a share of the standard epsilon (dashed), which holds for "
    "every loss and can be published without assumptions. Marks have their epsilon beside them. "
    "Audits above the linear heuristic use a loss that is not linear. A bound proven under an "
    "assumption may lie below the worst known losses, which do not meet it. The table has every "
    "bound and its assumption.",
    message="Hiding the iterates can help if losses are linear, and not at all for the worst "
    "losses",
    of="2 x",
)
def atlas(estimates: pd.DataFrame) -> Any:
    parts = [part for _, part in settings(estimates).groupby("cell", sort=False)]
    drawn, (ax,) = plotting.panels(1, height=0.75 * len(parts) + 1.6)
    drawn.set_figwidth(2 * plotting.WIDTH)
    ax.axvline(1, color=plotting.UPPER, ls="--", lw=1.2, label="standard epsilon (all iterates)")
    for i, (label, (groups, kind, which, style)) in enumerate(_SERIES.items()):
        found = [
            part[part["group"].isin(groups) & (part["kind"] == kind)]["value"].agg(which)
            for part in parts
        ]
        shares = [value / proven(part) for value, part in zip(found, parts, strict=True)]
        places = [place + 0.21 * (i - 1.5) for place in range(len(parts))]
        ax.plot(shares, places, ls="none", label=label, **style)
        for value, share, place in zip(found, shares, places, strict=True):
            if value == value:
                ax.annotate(
                    shown(value, kind, 3), (share, place), (6, 0), textcoords="offset points",
                    va="center", fontsize="x-small",
                    bbox={"fc": "w", "ec": "none", "pad": 0.5},
                )  # fmt: skip
    ax.set_yticks(range(len(parts)), [_words(part) for part in parts], fontsize="small")
    ax.set(ylim=(len(parts) - 0.5, -0.5), xlim=(0, 1.12))
    ax.set_xlabel("$\\varepsilon$ of the last iterate / standard $\\varepsilon$")
    return plotting.legend_below(drawn, ax, 2)


def _words(part: pd.DataFrame) -> str:
    first = part.iloc[0]
    standard = shown(proven(part), "upper", 3)
    setting = fill(first["words"].split(" (")[0], 46)
    return f"{fill(first['title'], 46)}\n{setting}\nstandard $\\varepsilon$ = {standard}"


@figure(
    "What audits of the last iterate find",
    "Share (%) of the standard epsilon that audits prove with 95 % confidence each, rounded down. "
    "Simulated audits are of the setting itself. Trained audits are of the trainings of this "
    "package whose epsilon is nearest, as a share of the epsilon that their own accountant proves. "
    "Empty: not run for that setting.",
    message="Some attacks on the last iterate find nearly all of epsilon, others nearly nothing",
)
def audits(estimates: pd.DataFrame) -> Any:
    rows = settings(estimates)
    whole = rows["cell"].map({cell: proven(part) for cell, part in rows.groupby("cell")})
    rows = rows.assign(whole=rows["allowed"].where(rows["group"] == "trained", whole))
    kinds = {"simulated": "simulated", "trained here": "trained", "trained": "trained, nearest"}
    rows = rows[rows["group"].isin(kinds) & rows["value"].notna()]
    names = rows["method"] + " (" + rows["group"].map(kinds) + ")"
    rows = rows.assign(name=names, share=np.floor(100 * rows["value"] / rows["whole"]))
    table = rows.pivot(index="name", columns="title", values="share")
    number = rows["method"].str.extract(r"k = (\d+)")[0].astype(float)
    order = rows.assign(
        rank=rows["group"].map(list(kinds).index),
        word=rows["method"].str.split("k = ").str[0],
        number=number,
    ).sort_values(["rank", "word", "number", "method"])
    titles = settings(estimates)["title"].unique()
    table = table.reindex(index=order["name"].unique(), columns=titles)
    drawn, (ax,) = plotting.panels(1, height=0.3 * len(table) + 1.8)
    drawn.set_figwidth(2 * plotting.WIDTH)
    shades = {"cmap": "Blues", "vmin": 0, "vmax": 100, "linewidths": 0.5}
    plotting.heat_map(
        ax, table, "share of epsilon (%)", annot=True, fmt=".0f", annot_kws={"size": 8}, **shades
    )
    ax.set_xticklabels(table.columns, rotation=25, ha="right", fontsize="small")
    ax.set(xlabel="", ylabel="")
    return drawn


@figure(
    "Released checkpoints",
    "Line: epsilon of DP-SGD with Poisson batches if every k-th iterate is published and every "
    "loss is linear. It is exact to a tenth of a per cent. Dashed: the standard epsilon, for "
    "every loss and all iterates. Dotted: the last iterate alone. Triangles: simulated audits of "
    "what is released, lower bounds that hold with 95 % confidence each. For other losses only the "
    "standard epsilon is guaranteed.",
    when=lambda grid: bool(grid.released),
    message="If losses are linear, publishing a tenth of the iterates costs little",
    of="2 x",
)
def released(estimates: pd.DataFrame) -> Any:
    rows = checkpoints(estimates)
    panels = list(rows.groupby("cell", sort=False))
    drawn, axes = plotting.panels(max(len(panels), 1))
    for ax, (_, part) in zip(axes, panels, strict=False):
        exact = select(part, method="linear losses", kind="upper")
        curve = exact.set_index("x")["value"].sort_index()
        plotting.curve(
            ax, curve, color=plotting.OTHER, marker="o", ms=4, label="every k-th iterate"
        )
        ends = [
            ("all iterates (standard epsilon)", "--", curve.iloc[0]),
            ("the last iterate alone", ":", curve.iloc[-1]),
        ]
        for label, dashes, value in ends:
            ax.axhline(value, color=plotting.UPPER, ls=dashes, lw=1, label=label)
        audits = select(part, method="audit")
        ax.plot(
            *(audits["x"], audits["value"]),
            **{"ls": "none", "marker": "^", "color": plotting.OBSERVED},
            label="audit, lower bound (95 %)",
        )
        ax.set(
            xscale="log", xlabel="every k-th iterate is released", ylim=(0, None),
            title=part["title"].iloc[0].replace(", sampling", ",\nsampling"),
        )  # fmt: skip
    axes[0].set_ylabel(f"$\\varepsilon$ ($\\delta$ = {plotting.power(estimates['delta'].iloc[0])})")
    return plotting.legend_below(drawn, axes[0], 2)
