import json
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from command_line import CELL, START, TINY, run, trains

from hiddenstate.datasets import data
from hiddenstate.pipeline import scores
from hiddenstate.study import config

WORST = "digits_pre1_n3_C1_T1_lr2_eps10_1x2"


@pytest.mark.whole
def test_a_cell_is_started_trained_restored_and_verified(capsys, tiny):
    assert trains(capsys, "start", START, "--out", "start.parquet")[0] == 0
    trained = ("--start", "start.parquet", "--checkpoint", "kept", "--out", "scores.parquet")
    assert trains(capsys, "train", CELL, *trained)[0] == 0
    assert not (tiny / "kept").exists()
    (tiny / "cached").mkdir()
    (tiny / f"cached/{CELL}.parquet").write_bytes((tiny / "scores.parquet").read_bytes())
    restore = ("restore", "worst_case_init", "--config", "tiny.yaml", "--cached", "cached")
    assert run(capsys, *restore, "--out", "again")[0] == 0
    restored = [path.relative_to(tiny / "again") for path in (tiny / "again").rglob("*.parquet")]
    assert restored == [Path(f"scores/{CELL}.parquet")]
    assert (tiny / "again" / restored[0]).read_bytes() == (tiny / "scores.parquet").read_bytes()
    verified = ("--cached", "scores.parquet", "--start", "start.parquet", "--out", "v.csv")
    status, _, err = trains(capsys, "verify", CELL, *verified, "--models", "20")
    assert status == 2
    assert "got 20 new and 2 cached scores" in err
    status, out, _ = trains(capsys, "verify", CELL, *verified, "--models", "100")
    assert status == 0
    assert out.count("True") == 2
    # What was trained again has noise of its own.
    verdicts = pd.read_csv("v.csv")
    assert set(verdicts["new"]) == {100}
    status, out, _ = run(capsys, "verified", "v.csv", "--out", "all.csv", "--json")
    assert status == 0 and [row["agree"] for row in json.loads(out)] == [True, True]
    verdicts.assign(agree=[True, False]).to_csv("bad.csv", index=False)
    status, _, err = run(capsys, "verified", "v.csv", "bad.csv", "--out", "all.csv")
    assert status == 2
    assert f"differ from those computed again: {CELL} (p-values in all.csv)" in err

    # One bad file of two, and nothing is restored.
    (tiny / f"cached/{WORST}.parquet").write_bytes((tiny / "scores.parquet").read_bytes())
    status, _, err = run(capsys, *restore, "--out", "never")
    assert status == 2
    assert f"cached/{WORST}.parquet: computed for start.stages []" in err
    (tiny / f"cached/{WORST}.parquet").write_text("not Parquet")
    status, _, err = run(capsys, *restore, "--out", "never")
    assert status == 2
    assert f"cached/{WORST}.parquet: not a readable Parquet" in err
    assert not (tiny / "never").exists()

    before = sorted(path.name for path in tiny.iterdir())
    out = ("--out", "o.parquet")
    other = ("--cached", "scores.parquet", "--start", "start.parquet")
    for command, cell, arguments, expected in (
        ("train", WORST, (*other[2:], *out), "start.parquet: computed for stages []; expected [{"),
        ("verify", WORST, (*other, *out), "scores.parquet: computed for start.stages []"),
        ("train", CELL, (*other[2:], *out, "--workers", "0"), "workers: got 0; expected an"),
        ("train", CELL, (*other[2:], *out, "--device", "gpu"), "--device: got 'gpu'; expected"),
        ("start", START, (*out, "--device", "gpu"), "--device: got 'gpu'; expected"),
    ):
        status, _, err = trains(capsys, command, cell, *arguments)
        assert status == 2, (command, arguments)
        assert err.splitlines()[-1].startswith("hiddenstate: error: "), err
        assert expected in err
    assert sorted(path.name for path in tiny.iterdir()) == before


def test_verdicts_of_something_else_are_refused(capsys, tiny):
    status, _, err = run(capsys, "verified", "--out", "o.csv")
    assert status == 2
    assert "nothing to verify: no cell is cached" in err
    status, _, err = run(capsys, "verified", "none.csv", "--out", "o.csv")
    assert status == 2
    assert "none.csv: no such file; expected a file written by `hiddenstate job verify`" in err
    (tiny / "e.csv").write_text("a,b\n1,2\n")
    status, _, err = run(capsys, "verified", "e.csv", "--out", "o.csv")
    assert status == 2
    assert "e.csv: lacks the columns cell and agree" in err
    for content, expected in (
        (b"", "e.csv: not a readable CSV file"),
        ("cell,agree\na,True\n".encode("utf-16"), "e.csv: cannot be read: 'utf-8' codec"),
        (b"cell,agree\n", "e.csv: has no rows; expected a file written by"),
        (b"cell,agree\n1,a,False\n", "e.csv: line 2: fields: got 3; expected 2"),
        (b"cell,agree\na,no\n", "e.csv: agree: got no; expected True or False"),
    ):
        (tiny / "e.csv").write_bytes(content)
        status, _, err = run(capsys, "verified", "e.csv", "--out", "o.csv")
        assert status == 2 and expected in err, err
    assert not (tiny / "o.csv").exists()


@pytest.mark.whole
def test_scores_of_data_that_were_replaced_are_refused(capsys, tiny, monkeypatch):
    """Their path is in the cell's parameters and their content was in none: both passed as new."""
    monkeypatch.setenv("HIDDENSTATE_DATA", str(tiny))
    text = TINY.replace("dataset: digits", "dataset: 'features:own.npz'")
    text = text.replace("model: digits_cnn", "model: features\n      trains: last layer")
    text = text.replace("batch_size: 64", "batch_size: 20")
    text = text.replace("private: 719", "private: 20\n      canary: clip_backdoor")
    (tiny / "tiny.yaml").write_text(text)

    def write(seed):
        rng = np.random.default_rng(seed)
        x = {f"{part}_x": rng.normal(size=(20, 4)) for part in ("public", "private", "test")}
        y = {f"{part}_y": np.arange(20) % 10 for part in ("public", "private", "test")}
        np.savez(tiny / "own.npz", **x, **y)
        data._digest.cache_clear()
        data._splits.cache_clear()

    write(1)
    trained = ("--start", "start.parquet", "--out", f"cached/{CELL}.parquet")
    assert trains(capsys, "start", START, "--out", "start.parquet")[0] == 0
    assert trains(capsys, "train", CELL, *trained)[0] == 0
    restore = ("restore", "worst_case_init", "--config", "tiny.yaml", "--cached", "cached")
    assert run(capsys, *restore, "--out", "again")[0] == 0
    write(2)
    expected = r"{}: computed for files of features:own.npz \w{{64}}; expected \w{{64}}(;|$)"
    for status, _, err in (
        trains(capsys, "train", CELL, *trained[:2], "--out", "o.parquet"),
        run(capsys, *restore, "--out", "never"),
    ):
        assert status == 2
        name = "start.parquet" if "start" in err else f"cached/{CELL}.parquet"
        assert re.search(expected.format(re.escape(name)), err.strip())
    family, grid, seed = config.section("tiny.yaml", "worst_case_init")
    job = family.jobs(grid)["train"][CELL]
    assert not scores.computed(f"cached/{CELL}.parquet", job.identity, seed, job.files)
    # Where the data are not, as beside a cache from elsewhere, nothing can be compared.
    (tiny / "own.npz").unlink()
    assert run(capsys, *restore, "--out", "again")[0] == 0
    assert scores.computed(f"cached/{CELL}.parquet", job.identity, seed, job.files)
    # The same data in other files of the same content are the same.
    write(1)
    assert run(capsys, *restore, "--out", "again")[0] == 0
