import subprocess
import sys

import matplotlib as mpl
import numpy as np
import seaborn as sns
from PIL import Image

from hiddenstate import plotting

OWN = {"axes.titlesize", "axes.grid", "grid.alpha", "legend.fontsize", "image.cmap"}
"""Where the package's style differs from seaborn's on purpose; every map of colours is named."""


def test_the_style_is_seaborns_for_papers() -> None:
    expected = {**sns.axes_style("ticks"), **sns.plotting_context("paper")}
    del expected["font.sans-serif"]
    with plotting.style():
        drawn = {key: mpl.rcParams[key] for key in expected}
    for key in expected.keys() - OWN:
        if isinstance(expected[key], float):
            assert abs(drawn[key] - expected[key]) < 1e-9, key
        else:
            assert drawn[key] == expected[key], key


def test_the_first_colours_are_seaborns_for_the_colour_blind() -> None:
    assert list(plotting.SERIES) == sns.color_palette("colorblind").as_hex()


def test_drawing_does_not_import_seaborn() -> None:
    code = "from hiddenstate import plotting\nimport sys\n"
    code += "with plotting.style(): plotting.panels(1)\nprint('seaborn' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_no_label_is_cut_off_in_either_format(tmp_path):
    """Whichever is asked for first: letters of pixels are wider than those of a PDF."""
    with plotting.style():
        figure, (axes,) = plotting.panels(1)
        axes.set_yticks([0], ["cyclic, Theorem 4.5 (our reconstruction)"])
        plotting.save(figure, [tmp_path / "a.pdf", tmp_path / "a.png"], "footer")
    with Image.open(tmp_path / "a.png") as picture:
        columns = np.asarray(picture.convert("L")).min(axis=0)
    assert columns[:4].min() > 200
