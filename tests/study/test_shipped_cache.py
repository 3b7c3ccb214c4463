"""The cache that the package ships serves some scales, and stops none."""

import functools
import shutil
from pathlib import Path

import pytest
import yaml
from command_line import shipped_scales

from hiddenstate import papers
from hiddenstate.pipeline import cache, scores
from hiddenstate.study import config, forecast

ROOT = Path(__file__).parents[2]
SCALES = shipped_scales()


LARGE = ("laptop", "paper")


@pytest.fixture(scope="module")
def read_once():
    """Files that several scales have are read once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scores, "read", functools.cache(scores.read))
        yield


@pytest.mark.usefixtures("read_once")
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


FAMILY = "linear_heuristic"
PANEL = {"sampling_rate": 0.08, "noise_multiplier": 2.1, "steps": [100], "learning_rate": 0.3}


def test_a_scale_of_the_user_s_own_may_change_cached_cells(tmp_path):
    """They are computed, and not refused as files of no scale's cells are."""
    shutil.copytree(ROOT / "workflow/config/scales", tmp_path / "scales")
    scale = tmp_path / "scales/own.yaml"
    fewer = {"models": 90, "figure2": [PANEL], "figure4": {"models": 90}}
    scale.write_text(yaml.safe_dump({"extends": "laptop", FAMILY: {"training": fewer}}))
    family, grid, seed = config.section(scale, FAMILY)
    every, folder = family.jobs(grid)["train"], ROOT / "results/cached" / FAMILY
    served = forecast.served(every, seed, scale, FAMILY, folder)
    # An expected audit depends on no number of models, but has all trainings of its figure.
    kept = {"expected_digits_mlp_figure2"}
    assert served == [name for name in every if name.startswith("expected_") and name not in kept]
