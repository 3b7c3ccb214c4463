import subprocess
import sys

import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest
import seaborn as sns
from matplotlib.colors import to_hex
from PIL import Image

from hiddenstate import plotting


def test_the_style_is_seaborns_for_papers_and_ends_with_the_block() -> None:
    expected = {**sns.axes_style("ticks"), **sns.plotting_context("paper")}
    before = dict(mpl.rcParams)
    with plotting.style():
        drawn = {key: mpl.rcParams[key] for key in expected}
        colors = [to_hex(color) for color in plotting.SERIES]
    assert {key for key in expected if drawn[key] != expected[key]} <= set(plotting._OWN) | {
        "font.sans-serif"
    }
    assert colors == sns.color_palette("colorblind").as_hex()
    assert dict(mpl.rcParams) == before


def test_what_a_reader_has_set_for_figures_changes_none(tmp_path) -> None:
    """As a matplotlibrc does."""

    def draw(name: str) -> bytes:
        with plotting.style():
            drawn, (axes,) = plotting.panels(1)
            axes.plot([0, 1], [0, 1], label="$\\varepsilon$")
            axes.legend()
            plotting.save(drawn, [tmp_path / name], "footer", "message")
        return (tmp_path / name).read_bytes()

    plain = draw("plain.pdf")
    own = {"savefig.bbox": "tight", "lines.solid_capstyle": "round", "legend.loc": "lower right"}
    with mpl.rc_context({**own, "pdf.compression": 0, "mathtext.fontset": "cm"}):
        assert draw("own.pdf") == plain


@pytest.mark.whole
def test_naming_figures_imports_no_library_that_draws() -> None:
    code = "from hiddenstate import papers, plotting\nimport sys\npapers.load('estimators')\n"
    code += "print({'seaborn', 'matplotlib'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_repeats_are_drawn_as_mean_and_deviations() -> None:
    """The point is the mean, the bar two standard deviations either way, one repeat has none."""
    rows = pd.DataFrame(
        {"x": [1, 1, 1, 1], "value": [1.0, 2.0, 3.0, 5.0], "series": ["a", "a", "a", "b"]}
    )
    with plotting.style():
        _, (axes,) = plotting.panels(1)
        series = {"a": ("first", "C0", "s"), "b": ("", "C1", "^")}
        plotting.repeats(axes, rows, series, deviations=2)
    drawn = [np.asarray(line.get_ydata(), float) for line in axes.lines]
    assert any(np.array_equal(y, [2.0]) for y in drawn)
    assert any(np.array_equal(np.unique(y[np.isfinite(y)]), [0.0, 4.0]) for y in drawn)
    assert [text for text in axes.get_legend_handles_labels()[1]] == ["first"]


def test_a_line_is_drawn_through_its_points_and_averages_nothing() -> None:
    rows = pd.DataFrame({"x": [2.0, 1.0, 1.0], "value": [3.0, 1.0, 2.0]})
    with plotting.style():
        _, (axes,) = plotting.panels(1)
        plotting.line(axes, rows)
    assert axes.lines[0].get_linestyle() == "--"
    assert sorted(axes.lines[0].get_ydata()) == [1.0, 2.0, 3.0]


def test_no_label_is_cut_off_in_either_format(tmp_path):
    """Whichever is asked for first: letters of pixels are wider than those of a PDF."""
    with plotting.style():
        figure, (axes,) = plotting.panels(1)
        axes.set_yticks([0], ["cyclic, Theorem 4.5 (our reconstruction)"])
        plotting.save(figure, [tmp_path / "a.pdf", tmp_path / "a.png"], "footer")
    with Image.open(tmp_path / "a.png") as picture:
        columns = np.asarray(picture.convert("L")).min(axis=0)
    assert columns[:4].min() > 200


def test_a_legend_below_has_as_many_columns_as_fit() -> None:
    """Wider than its figure it lost the ends of its words and lines."""
    for columns, words, expected in ((1, 40, 1), (2, 40, 2), (2, 5, 3)):
        with plotting.style():
            figure, (ax, *_) = plotting.panels(columns)
            for i in range(4):
                ax.plot([0, 1], [0, i], label=f"{i}" * words)
            plotting.legend_below(figure, ax, columns=3)
            (legend,) = figure.legends
            figure.canvas.draw()
        assert legend._ncols == expected
        assert legend.get_window_extent().width <= figure.bbox.width


def test_delta_stands_beside_epsilon_once():
    """On vertical axes; on horizontal ones only where no vertical one shows an epsilon."""
    drawn, (left, right) = plotting.panels(2)
    left.set(xlabel="theoretical $\\varepsilon$", ylabel="empirical $\\varepsilon$")
    right.set(xlabel="theoretical $\\varepsilon$", ylabel="share")
    plotting.say_delta(drawn, 1e-5)
    plotting.say_delta(drawn, 1e-5)
    assert left.get_ylabel() == "empirical $\\varepsilon$ ($\\delta$ = $10^{-5}$)"
    assert right.get_xlabel() == "theoretical $\\varepsilon$"
    drawn, (alone,) = plotting.panels(1)
    alone.set(xlabel="$\\varepsilon$", ylabel="share")
    plotting.say_delta(drawn, 1e-6)
    assert alone.get_xlabel() == "$\\varepsilon$ ($\\delta$ = $10^{-6}$)"
