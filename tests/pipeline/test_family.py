"""What a family's estimates are given: cells with what was made of them."""

import pandas as pd
import pytest

from hiddenstate.pipeline.cells import Cell, FamilyGrid, Grid
from hiddenstate.pipeline.family import Bounds, Family, Train


class Noise(Grid):
    noise_multiplier: float


def audits(grid):
    return [Cell(f"sigma{sigma:g}", Noise(noise_multiplier=sigma)) for sigma in (1.0, 2.0)]


def others(grid):
    return [Cell("other", Noise(noise_multiplier=3.0))]


def never(*_):
    raise AssertionError("nothing is computed")


def family(estimate):
    works = (Train(audits, never, size=lambda cell: (1, 1)), Bounds(audits, never))
    return Family("a", "b", FamilyGrid, (*works, Bounds(others, never)), estimate, ())


@pytest.fixture
def frames():
    names = ("sigma1", "sigma2", "other")
    return {name: pd.DataFrame({"value": [i]}) for i, name in enumerate(names)}


def test_a_work_s_cells_come_with_what_was_made_of_them(frames):
    def estimate(grid, scores, bounds):
        trained = scores.of(audits)
        # Of trained cells those that are there, with the parameters of each.
        assert [(c.parameters.noise_multiplier, t["value"].item()) for c, t in trained] == [(2, 1)]
        assert [t["value"].item() for _, t in bounds.of(audits)] == [0, 1]
        # All works of the folder, in the order in which the family lists them.
        assert [cell.name for cell, _ in bounds.every()] == ["sigma1", "sigma2", "other"]
        assert [cell.name for cell, _ in scores.every()] == ["sigma2"]
        return pd.DataFrame({"value": [1.0]})

    made = family(estimate).estimates(FamilyGrid(shows="x"), {"sigma2": frames["sigma2"]}, frames)
    assert made["value"].item() == 1.0


def test_cells_that_no_work_makes_are_not_passed_over(frames):
    with pytest.raises(LookupError, match="no work makes other in this folder"):
        family(lambda grid, scores, bounds: scores.of(others)).estimates(
            FamilyGrid(shows="x"), {}, frames
        )
