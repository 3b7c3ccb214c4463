"""The figure of the atlas: a panel for each setting."""

import math
from typing import Any

import numpy as np
import pandas as pd

from hiddenstate import plotting
from hiddenstate.accounting.bounds import GROUPS
from hiddenstate.atlas import proven
from hiddenstate.rounding import shown

STYLES: dict[tuple[str, str], tuple[str, dict[str, Any]]] = {
    # group, kind: label, marker
    ("proven", "upper"): ("proven for any loss", {"marker": "<", "color": plotting.UPPER}),
    ("shown", "lower"): (
        "all iterates (lower bound)",
        {"marker": ">", "color": plotting.UPPER, "mfc": "none"},
    ),
    ("hidden", "upper"): (
        "proven for any loss, last iterate",
        {"marker": "v", "color": plotting.UPPER},
    ),
    ("assumed", "upper"): (
        "proven under an assumption",
        {"marker": "<", "color": plotting.UPPER, "mfc": "none"},
    ),
    ("assumed", "exact"): (
        "exact under an assumption",
        {"marker": "D", "color": plotting.OTHER, "ms": 5},
    ),
    ("assumed", "estimate"): ("another mechanism", {"marker": "x", "color": plotting.PUBLISHED}),
    ("counterexample", "lower"): (
        "known last iterate (lower bound)",
        {"marker": ">", "color": plotting.VALID},
    ),
    ("counterexample", "exact"): (
        "known last iterate (exact)",
        {"marker": "D", "color": plotting.VALID, "ms": 5},
    ),
    ("simulated", "lower"): (
        "simulated audit, 95 % (bar: a perfect one)",
        {"marker": ">", "color": plotting.OBSERVED},
    ),
    ("trained here", "lower"): (
        "trained audit of this setting, 95 %",
        {"marker": ">", "color": plotting.OBSERVED, "mfc": "none"},
    ),
}

COLUMNS = 3


def draw(settings: list[tuple[str, pd.DataFrame]]) -> Any:
    """Titles and rows of settings, with the names of bounds in the column ``method``, as panels."""
    names = _names([rows for _, rows in settings])
    columns = min(COLUMNS, len(settings))
    drawn, axes = plotting.panels(
        columns, math.ceil(len(settings) / columns), height=0.2 * len(names) + 1.0, sharey=True
    )
    labels: dict[str, Any] = {}
    for ax, (title, rows) in zip(axes, settings, strict=False):
        labels |= _panel(ax, title, rows, names)
    for ax in axes[len(settings) :]:
        ax.set_axis_off()
    axes[0].set_yticks(range(len(names)), names)
    axes[0].set_ylim(len(names) - 0.5, -0.5)
    ordered = [label for label, _ in STYLES.values() if label in labels]
    ordered += [label for label in labels if label not in ordered]
    handles = [labels[label] for label in ordered]
    plotting.shared_legend(drawn, handles, ordered, min(columns + 1, 4))
    return drawn


def _names(parts: list[pd.DataFrame]) -> list[str]:
    """Every bound once, by group and in the order of the rows."""
    groups = list(GROUPS)
    found = pd.concat(parts)[["group", "method"]].drop_duplicates()
    found = found.assign(rank=[groups.index(group) for group in found["group"]])
    ordered = found.sort_values("rank", kind="stable")
    return [_label(row.group, row.method) for row in ordered.itertuples()]


def _label(group: str, method: str) -> str:
    return {"trained": f"{method} (elsewhere)", "trained here": f"{method} (trained)"}.get(
        group, method
    )


def _panel(ax: Any, title: str, rows: pd.DataFrame, names: list[str]) -> dict[str, Any]:
    least = proven(rows)
    end = 1.45 * max(least, 1e-3)
    line = ax.axvline(least, color=plotting.UPPER, ls="--", lw=1)
    handles: dict[str, Any] = {"the least that is proven for any loss": line}
    elsewhere = [i for i, name in enumerate(names) if name.endswith("(elsewhere)")]
    if elsewhere:
        # Another setting's epsilon has no place on this axis.
        ax.axhspan(elsewhere[0] - 0.5, len(names) - 0.5, color="0.95", zorder=0)
    for row in rows.itertuples():
        at = names.index(_label(row.group, row.method))
        if np.isnan(row.value):
            ax.text(0.99, at, "none", **_number(ax), color="0.6")
            continue
        if row.group == "trained":
            share = math.floor(100 * row.value / row.allowed) if row.allowed > 0 else 0
            ax.text(0.99, at, f"{share} % of {shown(row.allowed, 'exact', 3)}", **_number(ax))
            continue
        label, style = STYLES[row.group, row.kind]
        bar = row.allowed if row.group == "trained here" else row.truth
        if not np.isnan(bar):
            ax.plot([min(row.value, end), min(bar, end)], [at, at], color="0.75", lw=1, zorder=1)
            ax.plot(min(bar, end), at, marker="|", color="0.35", ms=7, zorder=2)
        style = {"ls": "none", "ms": 6, "zorder": 3, "clip_on": False} | style
        if row.value > end:
            style |= {"marker": "$\\rightarrow$", "ms": 9}
            label = "beyond the axis"
        (handles[label],) = ax.plot(min(row.value, end), at, **style)
        ax.text(0.99, at, shown(row.value, row.kind, 4), **_number(ax))
    ax.set(title=title, xlabel="$\\varepsilon$", xlim=(0, 1.25 * end))
    return handles


def _number(ax: Any) -> dict[str, Any]:
    """How the number of a row is written, at the right end of its panel."""
    return {"transform": ax.get_yaxis_transform(), "ha": "right", "va": "center", "fontsize": 6.5}
