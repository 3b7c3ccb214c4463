"""The cache that the package ships serves some scales, and stops none."""

from pathlib import Path

import pytest

from hiddenstate import papers
from hiddenstate.pipeline import cache
from hiddenstate.study import config

ROOT = Path(__file__).parents[2]
SCALES = sorted((ROOT / "workflow/config/scales").glob("*.yaml"))


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
        for kind in cache.SERVED:
            for job in family.jobs(getattr(grid, name))[kind].values():
                file = cache.path(ROOT / "results/cached" / name, job)
                assert cache.serves(file, job, grid.seed) in (True, False)
