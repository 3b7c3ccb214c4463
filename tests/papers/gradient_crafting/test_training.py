import numpy as np
import pandas as pd
import pytest
from pydantic import ValidationError

from hiddenstate.adversaries import crafted_gradients as crafted
from hiddenstate.errors import InputError
from hiddenstate.papers.gradient_crafting import FAMILY, cells, costs, training
from hiddenstate.papers.gradient_crafting.adversaries import ADVERSARIES
from hiddenstate.papers.gradient_crafting.grid import GradientCraftingGrid
from hiddenstate.pipeline import scores
from hiddenstate.pipeline.cells import Workplace

SEED = 3
"""That of the results in conftest."""


@pytest.fixture(scope="module")
def job(grid):
    return next(iter(FAMILY.jobs(grid)["train"].values()))


def test_scores_are_those_of_every_adversary_in_both_worlds(job, results, tmp_path):
    frame = results["scores"][job.cell.name]
    counts = frame.groupby(["adversary", "world"]).size()
    assert (counts == 24).all() and len(counts) == 6
    scores.write(tmp_path / "scores.parquet", frame, {})
    again, _ = scores.read(tmp_path / "scores.parquet")
    pd.testing.assert_frame_equal(again, frame)


def test_scores_depend_on_neither_workers_nor_checkpoint(job, results, tmp_path):
    frame = job.run(SEED, Workplace(workers=2, checkpoint=tmp_path / "checkpoint"))
    pd.testing.assert_frame_equal(frame, results["scores"][job.cell.name])


def test_verification_draws_other_numbers(job, results):
    frame = job.run(SEED, Workplace(purpose="verification", models=3))
    assert frame.groupby(["adversary", "world"]).size().eq(3).all()
    assert not np.isin(frame["score"], results["scores"][job.cell.name]["score"]).any()


def test_verification_keeps_what_all_runs_of_an_audit_share(monkeypatch, grid):
    """Another record, coordinate or start would have scores of another distribution."""
    seen = []

    def watched(self, known):
        canary = original(self, known)
        seen.append((canary.record[0].tobytes(), known.rng.random(), known.initial.tobytes()))
        return canary

    original = crafted.LossBased.canary
    monkeypatch.setattr(crafted.LossBased, "canary", watched)
    job = FAMILY.jobs(grid)["train"]["housing_k1_shared_eps24_20_repeat0"]
    for purpose in ("", "verification"):
        job.run(SEED, Workplace(purpose=purpose, models=2))
    shared, own, starts = zip(*seen, strict=True)
    assert len(set(shared)) == len(set(starts)) == 1
    assert len(set(own)) == len(own) == 2 * 2 * 2


def test_audits_of_other_sizes_and_repeats_are_independent(grid, results):
    names = [name for name in FAMILY.jobs(grid)["train"] if "k1_fresh" in name]
    values = [set(results["scores"][name]["score"]) for name in names]
    assert not values[0] & values[1] and not values[0] & values[2]


@pytest.mark.parametrize("word", ADVERSARIES)
def test_the_words_of_scale_files_are_the_adversaries_own(word):
    assert training.adversary(word, "net").name == word


def test_an_unknown_adversary_is_refused_wherever_it_is_named(content, grid, estimates):
    with pytest.raises(InputError, match="'nobody'; expected one of simulated coordinate"):
        training.adversary("nobody", "net")
    sweeps = [content["housing"]["sweeps"][0] | {"adversaries": ["nobody"]}]
    with pytest.raises(ValidationError, match="'nobody'"):
        GradientCraftingGrid.model_validate(
            content | {"housing": content["housing"] | {"sweeps": sweeps}}
        )
    unknown = estimates.assign(adversary=estimates["adversary"].replace("loss-based", "nobody"))
    for name in ("housing", "clipping"):
        with pytest.raises(InputError, match="nobody"):
            FAMILY.figures[name].draw(unknown)
    p = cells.housing_audits(grid)[0].parameters
    with pytest.raises(InputError, match="nobody"):
        costs.cost(p.model_copy(update={"adversaries": ("nobody",)}))
