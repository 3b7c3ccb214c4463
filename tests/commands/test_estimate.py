import shutil
from pathlib import Path

import pandas as pd
import pytest
from command_line import CELL, CLAIMS, SMOKE, run

from hiddenstate import plotting
from hiddenstate.errors import InputError
from hiddenstate.pipeline import scores, sealed
from hiddenstate.pipeline.family import Figure
from hiddenstate.study import config, levels


def test_scores_of_other_parameters_are_refused(capsys, tmp_path):
    cell = "q0.1_T100_sigma1_sound"
    out = tmp_path / "scores" / f"{cell}.parquet"
    assert (
        run(capsys, "simulate", "encoding_loss", "--config", SMOKE, "--cell", cell, "--out", out)[0]
        == 0
    )
    changed = tmp_path / "changed.yaml"
    changed.write_text(Path(SMOKE).read_text().replace("runs: 200", "runs: 201"))
    # The first cell of the grid is missing; give it this file under its name.
    first = "q0.1_T100_sigma4_published"
    out.rename(out.with_name(f"{first}.parquet"))
    status, _, err = run(
        *(capsys, "estimate", "encoding_loss", "--config", changed),
        *("--results", tmp_path, "--out", tmp_path / "e.csv"),
    )
    assert status == 2
    assert f"{first}.parquet: computed for" in err
    assert not (tmp_path / "e.csv").exists()


@pytest.fixture
def bounds(tmp_path):
    """Bounds of two mechanisms under the names that a scale file gives them."""
    family, grid, seed = config.section(SMOKE, "encoding_loss")
    jobs = family.jobs(grid)["bound"]
    files = {}
    for i, (name, job) in enumerate(list(jobs.items())[:2]):
        files[name] = tmp_path / "bounds" / f"{name}.parquet"
        table = pd.DataFrame({"fpr": [0.0, 0.5, 1.0], "fnr": [1.0, 0.1 * i, 0.0]})
        origin = scores.provenance(job.identity, seed=seed, wall_seconds=0.0)
        scores.write_table(files[name], table, origin)
    for name, job in family.jobs(grid)["simulate"].items():
        table = pd.DataFrame({"world": ["in", "out"], "repeat": 0, "run": 0, "score": [1.0, 0.0]})
        origin = scores.provenance(job.identity, seed=seed, wall_seconds=0.0)
        scores.write(tmp_path / "scores" / f"{name}.parquet", table, origin)
    return files


def estimate(capsys, directory):
    family = ("encoding_loss", "--config", SMOKE, "--results", directory)
    return run(capsys, "estimate", *family, "--out", directory / "e.csv")


def test_bounds_of_another_mechanism_are_refused_by_name(capsys, tmp_path, bounds):
    shutil.copy(bounds["q0.1_T100_sigma1"], bounds["q0.1_T100_sigma4"])
    status, _, err = estimate(capsys, tmp_path)
    assert status == 2
    expected = "computed for mechanism.noise_multiplier 1.0; expected 4.0"
    assert f"q0.1_T100_sigma4.parquet: {expected}" in err
    assert not (tmp_path / "e.csv").exists()


def test_a_figure_s_bounds_in_the_place_of_another_s_are_refused_and_not_restored(capsys, tmp_path):
    """Three figures of one set of parameters were drawn alike, with status 0."""
    place = tmp_path / "bounds"
    place.mkdir()
    other = ("--cell", "figure1c", "--out", place / "figure1a.parquet")
    smoke = ("linear_heuristic", "--config", SMOKE)
    assert run(capsys, "bound", *smoke, *other)[0] == 0
    restore = ("--cached", tmp_path, "--out", tmp_path / "restored")
    assert run(capsys, "restore", *smoke, *restore)[0] == 0
    assert not (tmp_path / "restored").exists()
    shutil.copy(place / "figure1a.parquet", place / "figure1c.parquet")
    assert run(capsys, "restore", *smoke, *restore)[0] == 0
    assert [path.name for path in tmp_path.glob("restored/*/*")] == ["figure1c.parquet"]


def test_bounds_in_the_place_of_a_simulation_are_refused(capsys, tmp_path):
    """Both have the same parameters and code."""
    shuffling = ("shuffling", "--config", SMOKE)
    family, grid, _ = config.section(SMOKE, "shuffling")
    name = next(iter(family.jobs(grid)["simulate"]))
    path = tmp_path / f"scores/{name}.parquet"
    assert run(capsys, "bound", *shuffling, "--cell", name, "--out", path)[0] == 0
    status, _, err = run(
        capsys, "estimate", *shuffling, "--results", tmp_path, "--out", tmp_path / "e.csv"
    )
    assert status == 2
    assert f"{path}: computed for kind of work bound; expected simulate; remove the file" in err


def test_bounds_with_a_flipped_byte_are_refused_by_name(capsys, tmp_path, bounds):
    path = bounds["q0.1_T100_sigma4"]
    good = path.read_bytes()
    before, _ = scores.read(path)
    for position in range(0, len(good), 29):
        path.write_bytes(bytes([*good[:position], good[position] ^ 0x10, *good[position + 1 :]]))
        try:
            after, _ = scores.read(path)
        except InputError as error:
            assert str(path) in str(error)
        else:
            # What was hit says nothing of the values.
            pd.testing.assert_frame_equal(after, before)
    # The first page of values.
    path.write_bytes(bytes([*good[:40], good[40] ^ 0x10, *good[41:]]))
    status, _, err = estimate(capsys, tmp_path)
    assert status == 2
    assert f"{path}: " in err
    assert "damaged" in err or "not a readable Parquet file" in err


def test_scores_of_another_seed_are_as_those_that_are_not_there(capsys, tiny, monkeypatch):
    """Figures and claims told to remove the estimates, and refused those made again as well."""
    family, grid, seed = config.section("tiny.yaml", "worst_case_init")
    every, here = family.jobs(grid), tiny / "results"
    asked = ("worst_case_init", "--config", "tiny.yaml")
    for cell, job in every["bound"].items():
        out = here / job.work.folder / f"{cell}.parquet"
        assert run(capsys, "bound", *asked, "--cell", cell, "--out", out)[0] == 0
    job, out = every["train"][CELL], here / "estimates.csv"
    table = pd.DataFrame({"world": ["in", "out"], "repeat": 0, "run": 0, "score": [1.0, 0.0]})
    path = here / f"scores/{CELL}.parquet"
    scores.write(path, table, scores.provenance(job.identity, seed=seed + 1, wall_seconds=0.0))
    made = ("estimate", *asked, "--results", here, "--missing", "skip", "--out", out)
    assert run(capsys, *made)[0] == 0
    # Neither verdicts nor titles are those of the whole, whatever the scale.
    monkeypatch.setattr(levels, "of", lambda *_: levels.Level("paper", "paper"))
    monkeypatch.setattr(levels, "published", lambda *_: True)
    said = []
    monkeypatch.setattr(plotting, "save", lambda *given: said.append(given[-1]))
    monkeypatch.setattr(sealed, "sign", lambda *_: None)
    given = (*asked, "--estimates", out, "--out", here)
    judge = ("claims", *given, "--claims", CLAIMS / "worst_case_init.yaml")
    assert run(capsys, *judge)[0] == 0
    found = pd.read_csv(here / "claims.csv", keep_default_na=False)
    assert set(found.loc[found["ledger"] == "paper", "parameters"]) == {"reduced"}
    assert run(capsys, "figures", *given)[0] == 0
    assert said == [figure.title for figure in family.shown(Figure, grid).values()]
    # Estimates of what was replaced since are refused.
    next((here / "bounds").iterdir()).write_bytes(path.read_bytes())
    status, _, err = run(capsys, *judge)
    assert status == 2
    assert "estimates.csv: was made of other scores or bounds" in err
