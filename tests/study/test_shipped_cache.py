"""The cache that the package ships serves some scales, and stops none."""

import shutil
from pathlib import Path

import pytest
from command_line import shipped_scales

from hiddenstate import papers
from hiddenstate.pipeline import cache
from hiddenstate.study import config, forecast

ROOT = Path(__file__).parents[2]
SCALES = shipped_scales()


LARGE = ("laptop", "paper")


@pytest.mark.parametrize(
    "scale",
    [
        pytest.param(path, id=path.stem, marks=[pytest.mark.whole] * (path.stem in LARGE))
        for path in SCALES
    ],
)
def test_no_cached_file_stops_a_scale(scale):
    """Cells of two scales may have one name, and other parameters."""
    grid = config.read(scale)
    for name in config.families(grid):
        family = papers.load(name)
        every = family.jobs(getattr(grid, name))
        for kind in cache.SERVED:
            served = forecast.served(
                every[kind], grid.seed, scale, name, ROOT / "results/cached" / name
            )
            assert {*served} <= {*every[kind]}


def test_a_scale_of_the_user_s_own_may_change_cached_cells(tmp_path):
    """They are computed, and not refused as files of no scale's cells are."""
    shutil.copytree(ROOT / "workflow/config/scales", tmp_path / "scales")
    scale = tmp_path / "scales/own.yaml"
    scale.write_text("extends: laptop\nlinear_heuristic:\n  training:\n    models: 90\n")
    family, grid, seed = config.section(scale, "linear_heuristic")
    every, folder = family.jobs(grid)["train"], ROOT / "results/cached/linear_heuristic"
    served = forecast.served(every, seed, scale, "linear_heuristic", folder)
    # An expected audit does not depend on the number of models.
    assert served == [name for name in every if name.startswith("expected_")]
