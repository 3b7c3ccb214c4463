import itertools
from types import SimpleNamespace

import pytest
from command_line import CELL, SMOKE, START, run, trains

from hiddenstate import files
from hiddenstate.commands import jobs
from hiddenstate.dpsgd import checkpoint
from hiddenstate.errors import InputError
from hiddenstate.pipeline import family, scores, verification
from hiddenstate.study import config


@pytest.mark.whole
def test_time_that_an_interrupted_run_took_counts(capsys, tiny, monkeypatch):
    def full(*arguments):
        raise InputError("no space left")

    assert trains(capsys, "start", START, "--out", "start.parquet")[0] == 0
    trained = ("--start", "start.parquet", "--checkpoint", "kept", "--out", "scores.parquet")
    with monkeypatch.context() as slow:
        slow.setattr(scores, "write", full)
        clock = SimpleNamespace(perf_counter=itertools.count(0, 1000).__next__)
        slow.setattr(checkpoint, "time", clock)
        assert trains(capsys, "train", CELL, *trained)[0] == 2
    chunks = 1000 * len(list((tiny / "kept").rglob("*.npz")))
    assert trains(capsys, "train", CELL, *trained)[0] == 0
    assert chunks < scores.origin("scores.parquet")["wall_seconds"] < chunks + 100


@pytest.mark.parametrize(
    ("command", "cell", "arguments", "expected"),
    [
        ("start", CELL, (), f"no cell '{CELL}' to start; expected one of 2: {START}"),
        ("train", START, (), f"no cell '{START}' to train; expected one of 2: {CELL}"),
        ("train", CELL, (), f"--start: missing; expected the initial parameters {START}"),
        ("train", CELL, ("--start", "s.parquet"), "s.parquet: no such file"),
        ("verify", CELL, ("--cached", "c.parquet"), "c.parquet: no such file"),
        ("verify", CELL, ("--cached", "c.parquet", "--models", "0"), "models: got 0; expected an"),
        ("train", CELL, ("--memory", "-1"), "--memory: got -1; expected MiB, 0 or more"),
        ("train", CELL, ("--workers", "0", "--checkpoint", "kept"), "workers: got 0; expected an"),
    ],
)
def test_bad_input_of_training_commands_is_named(capsys, tiny, command, cell, arguments, expected):
    status, _, err = trains(capsys, command, cell, *arguments, "--out", "o.parquet")
    assert status == 2
    assert err.startswith("hiddenstate: error: ")
    assert expected in err
    assert [path.name for path in tiny.iterdir()] == ["tiny.yaml"]


@pytest.mark.parametrize("command", ["start", "train", "verify"])
@pytest.mark.parametrize(
    ("out", "said"),
    [
        ("tiny.yaml/o.csv", "File exists"),
        (".", "Is a directory"),
        (f"{'x' * 250}.parquet", "File name too long"),
    ],
)
def test_a_file_that_cannot_be_written_is_named_before_any_model(
    capsys, tiny, monkeypatch, command, out, said
):
    """All models were trained and lost, as long as nobody gave a checkpoint."""
    monkeypatch.setattr(jobs, "_training", lambda *_: None)
    monkeypatch.setattr(family.Job, "checked", lambda *_: (None, ""))
    monkeypatch.setattr(verification, "refuse_few", lambda *_: None)
    cell = START if command == "start" else CELL
    cached = ("--cached", "c.parquet") if command == "verify" else ()
    status, _, err = trains(capsys, command, cell, *cached, "--out", out)
    assert (status, err) == (2, f"hiddenstate: error: {out}: cannot be written: {said}\n")
    assert [path.name for path in tiny.iterdir()] == ["tiny.yaml"]


def test_a_cell_that_another_process_trains_is_refused(capsys, tmp_path):
    checkpoint = tmp_path / "checkpoint"
    family, grid, _ = config.section(SMOKE, "gradient_crafting")
    cell = next(iter(family.jobs(grid)["train"]))
    arguments = ("train", "gradient_crafting", "--config", SMOKE, "--cell", cell)
    with files.alone(checkpoint, ""):
        status, _, err = run(
            *(capsys, *arguments, "--checkpoint", checkpoint, "--out", tmp_path / "o.parquet")
        )
    assert status == 2
    assert f"{checkpoint}: another process trains {cell}; wait until it has ended" in err
    assert not (tmp_path / "o.parquet").exists()


def test_only_what_was_kept_is_removed_from_a_checkpoint(tmp_path):
    """The option may name a folder that holds other things: a home, by a slip."""
    checkpoint = tmp_path / "home"
    kept = ["in-0-0.npz", "repeat3/out-3-12.npz", "in-a b/.in-0-4.k2_x9.npz"]
    others = ["thesis.npz", "data/in-0-0.csv", "repeat0/notes.txt", ".in-0-0.txt", "part1of2"]
    others += ["mydata/part1of2", "mydata/in-0-0.npz", "repeat3/deep/out-3-12.npz"]
    for name in (*kept, *others):
        (checkpoint / name).parent.mkdir(parents=True, exist_ok=True)
        (checkpoint / name).write_text(name)
    (checkpoint / "pictures").mkdir()
    (checkpoint / "repeat1").mkdir()
    jobs._discard(checkpoint, {"", "repeat0", "repeat1", "repeat2", "repeat3", "in-a b"})
    left = [str(p.relative_to(checkpoint)) for p in checkpoint.rglob("*") if p.is_file()]
    assert sorted(left) == sorted(others)
    assert (checkpoint / "pictures").is_dir()
    assert not any((checkpoint / name).exists() for name in ("repeat1", "in-a b"))


@pytest.mark.whole
def test_training_leaves_what_it_finds_in_its_checkpoint(capsys, tiny):
    """Other files, and a folder that was empty, are neither read nor removed."""
    kept = tiny / "kept"
    for name in ("mydata/part1of2", "mydata/x.npz", "repeat9/deep/in-0-0.txt"):
        (kept / name).parent.mkdir(parents=True, exist_ok=True)
        (kept / name).write_text(name)
    (tiny / "empty").mkdir()
    assert trains(capsys, "start", START, "--out", "start.parquet")[0] == 0
    before = sorted(kept.rglob("*"))
    for place in ("kept", "empty", "new"):
        done = trains(
            *(capsys, "train", CELL, "--start", "start.parquet", "--checkpoint", place),
            *("--out", f"{place}.parquet"),
        )
        assert done[0] == 0, done
    assert sorted(kept.rglob("*")) == before
    assert (tiny / "empty").is_dir() and not (tiny / "new").exists()
