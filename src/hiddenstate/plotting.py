"""One style for every figure: upper bounds dashed, lower bounds with their confidence,
values that a paper states as open markers."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from hiddenstate.files import atomic

PALETTE = sns.color_palette("colorblind")
OBSERVED, UPPER, PUBLISHED, VALID, OTHER = (PALETTE[i] for i in (0, 7, 1, 2, 4))
"""Colours by role: what was observed, upper bounds, estimates as published, valid lower bounds."""

STATED = {"marker": "o", "mfc": "none", "mec": "black", "ls": "none", "ms": 9, "mew": 1.2}
"""Values stated by the paper: open black circles."""

WIDTH = 3.4
"""Width of one panel in inches."""

_RC = {
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
    with sns.axes_style("ticks"), sns.plotting_context("paper"), plt.rc_context(_RC):
        yield


def panels(columns: int, rows: int = 1, *, height: float = 2.9, **options) -> tuple[Figure, list]:
    """A figure of equal panels and its axes in reading order."""
    figure, axes = plt.subplots(
        rows, columns, figsize=(WIDTH * columns, height * rows), squeeze=False, **options
    )
    return figure, list(axes.flat)


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
    figure.suptitle(footer, x=0.995, ha="right", fontsize=6, color="0.35")
    for path in paths:
        metadata = {"CreationDate": None} if path.suffix == ".pdf" else None
        with atomic(path) as temporary:
            figure.savefig(temporary, metadata=metadata)
    plt.close(figure)
