"""Cells that are trained in parts: by several processes, in several folders, at several times."""

import json
import math

import pandas as pd
import pytest
from command_line import CELL, SMOKE, START, run, trains

from hiddenstate import cli
from hiddenstate.dpsgd import audit, checkpoint
from hiddenstate.pipeline import parts, scores

MODELS = 4
"""Models of the cell: 2 with the canary and 2 without."""


@pytest.fixture
def started(capsys, tiny):
    """The folder with a cache that has the initial parameters, and the whole cell's digest."""
    assert trains(capsys, "start", START, "--out", "cached/starts/" + START + ".parquet")[0] == 0
    assert train(capsys, "--out", "whole.parquet") == (0, "")
    return scores.origin("whole.parquet")["digest"]


def train(capsys, *arguments):
    """Status and error of training with the cached initial parameters."""
    start = ("--start", f"cached/starts/{START}.parquet")
    status, _, err = trains(capsys, "train", CELL, *start, *arguments)
    return status, err if status else ""


def part(name, folder="cached/parts"):
    return f"{folder}/{CELL}.part-{name}.parquet"


def interrupted(*_):
    raise KeyboardInterrupt


def gather(capsys):
    return trains(capsys, "gather", CELL, "--cached", "cached")


@pytest.mark.whole
def test_parts_of_three_folders_and_numbers_one_of_them_killed_are_one_job(
    capsys, tiny, started, monkeypatch
):
    one = ("--part", "1/4", "--checkpoint", "first", "--out", part("a"))
    two = ("--part", "2/3", "--checkpoint", "second", "--out", part("b"))
    rest = ("--hours", "1", "--checkpoint", "third", "--parts", "cached/parts", "--out", part("c"))
    assert train(capsys, *one) == (0, "")
    status, _, err = gather(capsys)
    assert (status, f"has 1 of {MODELS} models of {CELL}" in err) == (2, True)
    with monkeypatch.context() as killed:
        killed.setattr(parts, "write", interrupted)
        assert train(capsys, *two)[0] == 130
    assert not (tiny / part("b")).exists()
    assert [path.suffix for path in (tiny / "second").rglob("*.*")] == [".npz"]
    assert train(capsys, *two) == (0, "")
    with monkeypatch.context() as other:  # as at another commit, with other code
        other.setattr(scores, "commit", lambda: "another")
        assert train(capsys, *rest) == (0, "")
    # What part files have outlives the code, so that no chunk is left to be refused.
    assert not [*tiny.rglob("*.npz")]
    assert [len(pd.read_parquet(tiny / part(n))) // 2 for n in "abc"] == [1, 1, 2]
    status, err = train(capsys, *rest[:-1], part("d"))
    assert (status, "no model is left to train" in err) == (2, True)
    monkeypatch.setattr(audit, "in_chunks", None)  # nothing is trained from here
    assert gather(capsys)[0] == 0
    origin = scores.origin(f"cached/{CELL}.parquet")
    assert origin["digest"] == started
    assert [found["models"] for found in origin["part_files"]] == [1, 1, 2]
    assert origin["part_files"][2]["commit"] == "another"
    assert all(found["processor"] for found in origin["part_files"])
    assert not [*(tiny / "cached/parts").iterdir()]


@pytest.mark.whole
def test_an_overlap_is_taken_once_if_it_agrees_and_refused_if_not(capsys, tiny, started):
    for name, share in (("a", "1/2"), ("b", "2/2"), ("c", "1/1")):
        assert train(capsys, "--part", share, "--out", part(name)) == (0, "")
    path = tiny / part("a")
    frame, origin = scores.read(path)
    spread = scores.read(tiny / part("c"))[0].query("name == 'score'")["value"].std()
    for shift, status in ((1e-5, 0), (0.1, 2)):
        frame.loc[frame["name"] == "score", "value"] += shift * spread
        scores.write_table(path, frame, origin)
        done = train(capsys, "--parts", "cached/parts", "--out", "gathered.parquet")
        assert done[0] == status
    assert "has the score" in done[1]
    assert "another part file has" in done[1]


@pytest.mark.whole
@pytest.mark.parametrize(
    "what", ["start", "revision", "numerics", "seed", "damage", "name", "score", "one score"]
)
def test_a_part_of_something_else_is_refused_by_name(capsys, tiny, started, what, monkeypatch):
    assert train(capsys, "--part", "1/2", "--out", part("a")) == (0, "")
    path, expected = tiny / part("a"), part("a")
    frame, origin = scores.read(path)
    if what == "start":
        origin["start"], expected = "0" * 64, "digest 0000"
    elif what == "revision":
        origin["cell"]["revision"], expected = 0, "computed for revision 0; expected 1"
    elif what == "seed":
        origin["seed"], expected = 2, "computed for seed 2; expected 1"
    elif what == "numerics":
        kind = frame["made"].iloc[0].split()[1].rstrip(",")
        monkeypatch.setitem(checkpoint._NUMERICS, kind, 7)
        expected = "numerics 7; expected the same"
    elif what == "name":
        frame = frame[frame["name"] == "score"]
        expected = f"{path.name}: has score of model 0 with the canary; expected score, accuracy"
    elif what == "score":
        frame.loc[frame["name"] == "score", "value"] = math.nan
        expected = f"{path.name}: has the score nan of model 0 with the canary; expected a finite"
    elif what == "one score":
        frame = frame.drop(frame.index[frame["name"] == "score"][0])
        expected = f"{path.name}: has accuracy of model 0 with the canary; expected score, accuracy"
    scores.write_table(path, frame, origin)
    if what == "damage":
        path.write_bytes(path.read_bytes()[:-20])
    status, err = train(capsys, "--parts", "cached/parts", "--out", "gathered.parquet")
    assert status == 2
    assert expected in err
    assert not (tiny / "gathered.parquet").exists()


ELSEWHERE = "kernel torch, device cuda, precision torch.float32, side by side True, numerics {}"


@pytest.mark.parametrize(
    ("made", "models", "refused"),
    [
        (ELSEWHERE.format(checkpoint._NUMERICS["torch"]), "world == world", ""),
        (ELSEWHERE.format(checkpoint._NUMERICS["torch"]), "world == 'in'", "model both with the"),
        (ELSEWHERE.format(checkpoint._NUMERICS["torch"] - 1), "world == world", "numerics"),
        (ELSEWHERE.format(2).replace("float32", "float64"), "world == world", "equal precision"),
        ("chance", "world == world", "made with chance; this call has"),
    ],
    ids=["pairs", "one data set", "old code", "another precision", "no way"],
)
def test_another_device_trains_models_in_pairs(capsys, tiny, started, made, models, refused):
    assert train(capsys, "--part", "1/2", "--out", part("a")) == (0, "")
    path = tiny / part("a")
    frame, origin = scores.read(path)
    assert {*frame["world"]} == {"in", "out"}
    scores.write_table(path, frame.query(models).assign(made=made), origin)
    status, err = train(capsys, "--parts", "cached/parts", "--out", "gathered.parquet")
    assert (status, refused in err) == (2 if refused else 0, True)
    assert not refused or f"{part('a')}: has model" in err
    assert (tiny / "gathered.parquet").exists() == (not refused)


@pytest.mark.whole
def test_a_cell_trains_what_its_parts_lack(capsys, tiny, started):
    assert train(capsys, "--part", "1/4", "--out", part("a")) == (0, "")
    known = {*pd.read_parquet(tiny / part("a"))["world"]}
    assert known == {"in"}
    assert train(capsys, "--parts", "cached/parts", "--out", "gathered.parquet") == (0, "")
    origin = scores.origin("gathered.parquet")
    assert origin["digest"] == started
    assert [found["models"] for found in origin["part_files"]] == [1]


def test_a_part_has_the_name_of_a_part(capsys, tiny, started):
    status, err = train(capsys, "--part", "1/4", "--out", "scores.parquet")
    assert status == 2
    assert f"got scores.parquet; expected the name of a part file, such as {CELL}.part-1" in err


@pytest.mark.parametrize("hours", ["0", "-1", "nan", "few"])
def test_hours_are_a_number_above_zero(capsys, tiny, hours):
    status, _, err = trains(capsys, "train", CELL, "--hours", hours, "--out", part("a"))
    assert status == 2
    assert "expected hours above 0, such as 1.5" in err


def test_initial_parameters_are_copied_from_the_cache_if_they_are_the_cells(capsys, tiny, started):
    kept = tiny / "cached/starts" / f"{START}.parquet"
    again = ("start", START, "--cached", "cached", "--out", "again.parquet")
    assert trains(capsys, *again)[0] == 0
    assert (tiny / "again.parquet").read_bytes() == kept.read_bytes()
    frame, origin = scores.read(kept)
    scores.write_table(kept, frame, origin | {"seed": 2})
    status, _, err = trains(capsys, *again)
    assert (status, "computed for seed 2; expected 1" in err) == (2, True)


@pytest.mark.whole
def test_a_plan_counts_models_of_part_files(capsys, tiny, started):
    def planned():
        plan = ["plan", "--config", "tiny.yaml", "--results", "none", "--cached", "root", "--json"]
        assert cli.main(plan) == 0
        return json.loads(capsys.readouterr().out)

    before = planned()
    folder = "root/worst_case_init/parts"
    assert train(capsys, "--part", "1/4", "--out", part("a", folder)) == (0, "")
    after = planned()
    assert (before["partial"], after["partial"]) == ({}, {CELL: [1, MODELS]})
    assert before["all"]["models"] - after["all"]["models"] == 1
    assert after["all"]["hours"] < before["all"]["hours"]


def test_an_expected_audit_has_no_parts(capsys, tmp_path):
    cell = "expected_digits_pre0_n50_C1_T3_lr8_eps10_repeat0"
    family = ("train", "worst_case_init", "--config", SMOKE, "--cell", cell)
    out = tmp_path / f"{cell}.part-1.parquet"
    status, _, err = run(capsys, *family, "--part", "1/2", "--out", out)
    assert status == 2
    assert "is an expected audit, which has no parts" in err
    assert not out.exists()
