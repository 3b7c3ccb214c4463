"""One style for every figure: upper bounds dashed, lower bounds with their confidence,
values that a paper states as open markers.

matplotlib is imported where a figure is drawn, so that naming figures costs no time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any

from hiddenstate.files import atomic

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# The ten colours of seaborn's palette "colorblind".
_BLUE, _ORANGE, _GREEN, _RED, _PURPLE, _BROWN, _PINK, _GREY, _YELLOW, _SKY = SERIES = (
    "#0173b2", "#de8f05", "#029e73", "#d55e00", "#cc78bc",
    "#ca9161", "#fbafe4", "#949494", "#ece133", "#56b4e9",
)  # fmt: skip
"""Colours of lines that have no role, such as one per level of a parameter."""

OBSERVED, UPPER, PUBLISHED, VALID, OTHER = _BLUE, _GREY, _ORANGE, _GREEN, _PURPLE
"""Colours by role: what was observed, upper bounds, estimates as published, valid lower bounds."""

STATED: dict[str, Any] = {
    "marker": "o", "mfc": "none", "mec": "black", "ls": "none", "ms": 9, "mew": 1.2
}  # fmt: skip
"""Values stated by the paper: open black circles."""

WIDTH = 3.4
"""Width of one panel in inches."""

_DARK, _THIN, _SMALL, _TEXT = ".15", 0.8, 8.8, 9.6
_RC: dict[str, Any] = {
    # seaborn's "ticks" in its context "paper", written out: importing seaborn takes longer than
    # drawing a figure.
    "axes.axisbelow": True,
    "axes.edgecolor": _DARK,
    "axes.labelcolor": _DARK,
    "axes.labelsize": _TEXT,
    "axes.linewidth": 1.0,
    "font.sans-serif": ["Arial", "DejaVu Sans", "Liberation Sans", "sans-serif"],
    "font.size": _TEXT,
    "grid.color": ".8",
    "grid.linewidth": _THIN,
    "legend.title_fontsize": _TEXT,
    "lines.linewidth": 1.2,
    "lines.markersize": 4.8,
    "lines.solid_capstyle": "round",
    "patch.edgecolor": "w",
    "patch.force_edgecolor": True,
    "patch.linewidth": _THIN,
    "text.color": _DARK,
    **{f"{axis}tick.color": _DARK for axis in "xy"},
    **{f"{axis}tick.labelsize": _SMALL for axis in "xy"},
    **{f"{axis}tick.major.size": 4.8 for axis in "xy"},
    **{f"{axis}tick.major.width": 1.0 for axis in "xy"},
    **{f"{axis}tick.minor.size": 3.2 for axis in "xy"},
    **{f"{axis}tick.minor.width": _THIN for axis in "xy"},
    # The package's own.
    "axes.titlesize": "medium",
    "axes.grid": True,
    "grid.alpha": 0.35,
    "legend.frameon": False,
    "legend.fontsize": "small",
    "pdf.fonttype": 42,
    "svg.hashsalt": "hiddenstate",
    "figure.constrained_layout.use": True,
    "savefig.dpi": 160,
}


@contextmanager
def style() -> Iterator[None]:
    """The package's style for the figures made inside the block."""
    import matplotlib

    with matplotlib.rc_context(_RC):
        yield


def panels(
    columns: int, rows: int = 1, *, height: float = 2.9, **options: Any
) -> tuple[Figure, list[Axes]]:
    """A figure of equal panels and its axes in reading order."""
    # Without pyplot, which takes a while to import and keeps every figure for a screen.
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH * columns, height * rows))
    return figure, list(figure.subplots(rows, columns, squeeze=False, **options).flat)


def line(axes: Axes, rows: pd.DataFrame, **style: Any) -> None:
    """A line through tidy rows, ``value`` by ``x``; dashed, as upper bounds are, by default."""
    rows = rows.sort_values("x")
    axes.plot(rows["x"], rows["value"], **{"ls": "--", "lw": 1.3} | style)


def colors(levels: Iterable[float]) -> dict[float, str]:
    """One colour per level of a parameter, in ascending order."""
    return {x: SERIES[i % len(SERIES)] for i, x in enumerate(sorted(set(levels)))}


def diagonal(axes: Axes) -> None:
    """The trade-off of a mechanism that leaks nothing."""
    axes.plot([0, 1], [1, 0], color="0.75", lw=0.8, zorder=0)


def legend_below(figure: Figure, axes: Axes, columns: int) -> None:
    """One legend for all panels, below them, from the labels of one panel."""
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=columns)


def save(figure: Figure, paths: list[Path], footer: str) -> None:
    """Write the figure to each path (format by suffix), with the scale and data it shows.

    Dates are left out of the files, so the same estimates give the same bytes.
    """
    import matplotlib

    # Of this size about 22 letters fit into an inch.
    shown = fill(footer, int(22 * figure.get_figwidth()))
    figure.suptitle(shown, x=0.995, ha="right", fontsize=6, color="0.35")
    # The first layout holds for all formats, since finding it takes as long as drawing: that of
    # pixels, whose hinted letters are the widest.
    for path in sorted(paths, key=lambda path: path.suffix == ".pdf"):
        metadata: Any = {"CreationDate": None} if path.suffix == ".pdf" else None
        drawn = BytesIO()
        figure.savefig(drawn, format=path.suffix[1:], metadata=metadata)
        with atomic(path) as temporary:
            temporary.write_bytes(drawn.getvalue())
        with matplotlib.rc_context({"figure.constrained_layout.use": False}):
            figure.set_layout_engine(None)
