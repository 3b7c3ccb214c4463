"""One style for every figure: upper bounds dashed, lower bounds with their confidence,
values that a paper states as open markers.

seaborn and matplotlib are imported where a figure is drawn, so that naming figures costs no time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from io import BytesIO
from math import ceil
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any

from hiddenstate.files import atomic

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SERIES = tuple(f"C{i}" for i in range(10))
"""Colours of lines that have no role, such as one per level of a parameter: inside ``style`` those
of seaborn's palette "colorblind"."""

MARKERS = "sDvPXdo^"
"""Markers of lines, one per level of a parameter."""

OBSERVED, UPPER, PUBLISHED, VALID, OTHER = (SERIES[i] for i in (0, 7, 1, 2, 4))
"""Colours by role: what was observed, upper bounds, estimates as published, valid lower bounds."""

STATED: dict[str, Any] = {
    "marker": "o", "mfc": "none", "mec": "black", "ls": "none", "ms": 9, "mew": 1.2
}  # fmt: skip
"""Values stated by the paper: open black circles."""

WIDTH = 3.4
"""Width of one panel in inches."""

_OWN: dict[str, Any] = {
    "axes.titlesize": "medium",
    "axes.grid": True,
    "grid.alpha": 0.35,
    "legend.frameon": False,
    "legend.fontsize": "small",
    "pdf.fonttype": 42,
    # Without a salt of its own, matplotlib draws new identifiers for every file.
    "svg.hashsalt": "hiddenstate",
    "figure.constrained_layout.use": True,
    "savefig.dpi": 160,
}


@contextmanager
def style() -> Iterator[None]:
    """Seaborn's style for papers, and the package's own, for what is drawn and saved inside."""
    import matplotlib
    import seaborn as sns

    with matplotlib.rc_context():
        matplotlib.rcdefaults()  # a reader's matplotlibrc may ask for LaTeX, or another size
        sns.set_theme("paper", "ticks", "colorblind", rc=_OWN)
        yield


def panels(
    columns: int, rows: int = 1, *, height: float = 2.9, **options: Any
) -> tuple[Figure, list[Axes]]:
    """A figure of equal panels and its axes in reading order."""
    # Without pyplot, which takes a while to import and keeps every figure for a screen.
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH * columns, height * rows))
    return figure, list(figure.subplots(rows, columns, squeeze=False, **options).flat)


def absent() -> Figure:
    """A figure of which no cell is there, in words."""
    drawn, (ax,) = panels(1)
    ax.set_axis_off()
    ax.text(0.5, 0.5, "none of its cells is there", ha="center", va="center")
    return drawn


def line(axes: Axes, rows: pd.DataFrame, **style: Any) -> None:
    """A line through tidy rows, ``value`` by ``x``; dashed, as upper bounds are, by default."""
    import seaborn as sns

    own = {"linestyle": "--", "linewidth": 1.3} | _long(style)
    if "color" in own:
        own.setdefault("markeredgecolor", own["color"])
    labels = axes.get_xlabel(), axes.get_ylabel()
    sns.lineplot(rows, x="x", y="value", estimator=None, legend=False, ax=axes, **own)
    # seaborn writes the columns' names.
    axes.set(xlabel=labels[0], ylabel=labels[1])


def curve(axes: Axes, points: pd.Series, **style: Any) -> None:
    """A solid line through the values of a series by its index."""
    points = points.rename("value").rename_axis("x").reset_index()
    line(axes, points, **{"linestyle": "-"} | _long(style))


def _long(style: dict[str, Any]) -> dict[str, Any]:
    """The long names of a line's properties, so that one overrides the other's."""
    from matplotlib.cbook import normalize_kwargs
    from matplotlib.lines import Line2D

    return normalize_kwargs(style, Line2D)


def repeats(
    axes: Axes,
    rows: pd.DataFrame,
    series: Mapping[str, tuple[str, Any, str]],
    *,
    deviations: float,
    width: float = 0.54,
) -> None:
    """Means and standard deviations over repeats by category ``x``, the series side by side.

    ``rows`` have ``x``, ``value`` and ``series``; ``series`` gives each its label, colour and
    marker, in their order; an empty label keeps it out of the legend. Of a single repeat the mean
    alone is drawn.
    """
    import seaborn as sns

    _, colors, markers = zip(*series.values(), strict=True)
    vertical = axes.get_ylabel()
    sns.pointplot(
        rows, x="x", y="value", hue="series", hue_order=list(series), order=sorted(set(rows["x"])),
        palette=list(colors), markers=list(markers), errorbar=("sd", deviations), dodge=width,
        linestyle="none", markersize=5, markeredgewidth=0, err_kws={"linewidth": 1.2},
        capsize=0.06, legend=False, ax=axes,
    )  # fmt: skip
    axes.set(xlabel="", ylabel=vertical)
    for label, color, marker in filter(lambda row: row[0], series.values()):
        axes.plot([], [], color=color, marker=marker, ls="none", ms=5, label=label)


def intervals(
    axes: Axes, places: pd.Series, rows: pd.DataFrame, scale: float = 1, **style: Any
) -> None:
    """Each row's ``value`` with its interval from ``low`` to ``high``, times the scale."""
    value, low, high = (scale * rows[name] for name in ("value", "low", "high"))
    axes.errorbar(places, value, (value - low, high - value), **style)


def heat_map(axes: Axes, table: pd.DataFrame, label: str, **options: Any) -> None:
    """A table as colours, its first row at the top; ``label`` is the colour bar's, if any."""
    import seaborn as sns

    bar = {"label": label} if label else None
    sns.heatmap(table, ax=axes, cbar=bool(label), cbar_kws=bar, **options)


def colors(levels: Iterable[Any], palette: Sequence[str] = SERIES) -> dict[Any, str]:
    """One colour per level of a parameter, in ascending order."""
    return {x: palette[i % len(palette)] for i, x in enumerate(sorted(set(levels)))}


def looks(levels: Iterable[float]) -> dict[float, dict[str, str]]:
    """A colour and a marker per level of a parameter, so that print without colours tells them."""
    every = colors(levels).items()
    return {
        x: {"color": color, "marker": MARKERS[i % len(MARKERS)]}
        for i, (x, color) in enumerate(every)
    }


def diagonal(axes: Axes) -> None:
    """The trade-off of a mechanism that leaks nothing."""
    axes.plot([0, 1], [1, 0], color="0.75", lw=0.8, zorder=0)


def legend_below(figure: Figure, axes: Axes | Iterable[Axes], columns: int) -> Figure:
    """The figure with one legend below all panels: each label of these panels, or of one, once."""
    entries: dict[str, Artist] = {}
    for ax in axes if isinstance(axes, Iterable) else [axes]:
        for handle, label in zip(*ax.get_legend_handles_labels(), strict=True):
            entries.setdefault(label, handle)
    return shared_legend(figure, [*entries.values()], [*entries], columns)


def shared_legend(
    figure: Figure, handles: Sequence[Artist], labels: Sequence[str], columns: int
) -> Figure:
    """The figure with a legend below of as many columns as fit, and at most so many."""
    place = {"loc": "outside lower center"}
    legend = figure.legend(handles, labels, ncols=columns, **place)
    while columns > 1 and legend.get_window_extent().width > figure.bbox.width:
        legend.remove()
        columns -= 1
        legend = figure.legend(handles, labels, ncols=columns, **place)
    return figure


def power(x: float) -> str:
    """A number as a label has it: $10^{-5}$ for a power of ten."""
    mantissa, exponent = f"{x:e}".split("e")
    return f"$10^{{{int(exponent)}}}$" if float(mantissa) == 1 and x < 0.01 else f"{x:g}"


def say_delta(figure: Figure, delta: float) -> str:
    """Add delta to the vertical axes that show an epsilon, or else to the horizontal ones.

    Returns words for the footer where titles or legends alone name an epsilon, else nothing.
    """
    from matplotlib.text import Text

    for way in ("y", "x"):
        found = [axes for axes in figure.axes if "varepsilon" in getattr(axes, f"get_{way}label")()]
        for axes in found:
            label = getattr(axes, f"get_{way}label")()
            if "delta" not in label:
                gap = "\n" if len(label) > 30 else " "
                getattr(axes, f"set_{way}label")(f"{label}{gap}($\\delta$ = {power(delta)})")
        if found:
            return ""
    words = [text for text in figure.findobj(Text) if "varepsilon" in text.get_text()]
    return f"; $\\varepsilon$ at $\\delta$ = {power(delta)}" if words else ""


def _plain_logarithms(axes: Axes) -> None:
    """Write 0.6 for 6 x 10^-1 where a logarithmic axis shows less than two powers of ten."""
    from matplotlib.ticker import FuncFormatter, LogFormatter, NullFormatter

    for axis in (axes.xaxis, axes.yaxis):
        if axis.get_scale() != "log" or not isinstance(axis.get_minor_formatter(), LogFormatter):
            continue
        low, high = sorted(axis.get_view_interval())
        if sum(low <= tick <= high for tick in axis.get_majorticklocs()) >= 2:
            axis.set_minor_formatter(NullFormatter())
        else:
            axis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
            axis.set_minor_formatter(
                FuncFormatter(lambda x, _: f"{x:g}" if f"{x:e}"[0] in "25" else "")
            )


def save(figure: Figure, paths: list[Path], footer: str, message: str = "") -> None:
    """Write the figure to each path (format by suffix), with the scale and data it shows.

    ``message``, if any, stands above the panels. Dates are left out of the files, so the same
    estimates give the same bytes.
    """
    import matplotlib

    for axes in figure.axes:
        _plain_logarithms(axes)
    # Of these sizes about 22 and 12 letters fit into an inch. The suptitle, which the layout makes
    # room for, holds the footer below as many empty lines as the larger message takes.
    shown = fill(footer, int(22 * figure.get_figwidth()))
    title = fill(message, int(12 * figure.get_figwidth()))
    lines = ceil(1.55 * len(title.splitlines()))
    figure.suptitle("\n" * lines + shown, x=0.995, ha="right", fontsize=6, color="0.35")
    figure.text(0.008, 0.985, title, ha="left", va="top", fontsize=9, fontweight="bold")
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
