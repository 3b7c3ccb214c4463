import json

import pandas as pd
from command_line import SMOKE, run

from hiddenstate import cli
from hiddenstate.papers import encoding_loss
from hiddenstate.pipeline import scores


def test_cells_and_digests_are_the_same_in_json(capsys, tmp_path):
    cells = ("cells", "encoding_loss", "--config", SMOKE)
    lines = run(capsys, *cells)[1].splitlines()
    rows = json.loads(run(capsys, *cells, "--json")[1])
    assert [f"{r['kind']}\t{r['cell']}\t{json.dumps(r['identity'])}" for r in rows] == lines
    frame = pd.DataFrame({"world": ["in", "out"], "repeat": 0, "run": 0, "score": [1.0, 0.0]})
    path = tmp_path / "a.parquet"
    scores.write(path, frame, scores.provenance({}, seed=0, wall_seconds=0))
    digest, name = run(capsys, "digest", path)[1].rstrip().split("  ")
    assert json.loads(run(capsys, "digest", path, "--json")[1]) == {name: digest}


def test_a_family_that_the_scale_lacks_is_named(capsys, tiny):
    family = ("encoding_loss", "--config", "tiny.yaml", "--cell", "x", "--out", "o.parquet")
    status, _, err = run(capsys, "simulate", *family)
    assert status == 2
    assert "tiny.yaml: has no section encoding_loss" in err


def test_cells_that_share_a_job_are_as_if_each_had_its_own(capsys, tmp_path):
    cells = ["q0.1_T100_sigma1_published", "q0.1_T100_sigma1_sound"]
    command = ("simulate", "encoding_loss", "--config", SMOKE)
    shared = [tmp_path / f"{cell}.parquet" for cell in cells]
    assert run(capsys, *command, "--cell", *cells, "--out", *shared)[0] == 0
    for cell, path in zip(cells, shared, strict=True):
        alone = tmp_path / "alone.parquet"
        assert run(capsys, *command, "--cell", cell, "--out", alone)[0] == 0
        assert scores.read(alone)[1]["digest"] == scores.read(path)[1]["digest"]
        assert scores.read(alone)[1]["cell"] == scores.read(path)[1]["cell"]


def test_the_cell_of_a_shared_job_that_fails_is_named(capsys, tmp_path, monkeypatch):
    def fail(mechanism):
        raise ValueError("out of range")

    monkeypatch.setattr(encoding_loss.simulations, "_noise_multiplier", fail)
    cells = ["q0.1_T100_sigma1_published", "q0.1_T100_sigma1_sound"]
    command = ("simulate", "encoding_loss", "--config", SMOKE, "--cell", *cells)
    assert cli.main([*command, "--out", *(str(tmp_path / cell) for cell in cells)]) == cli.FAILED
    assert capsys.readouterr().err.rstrip().endswith("(of the cell q0.1_T100_sigma1_published)")


def test_a_family_without_cells_of_a_kind_is_named(capsys, tmp_path):
    out = str(tmp_path / "scores.parquet")
    given = ["--config", str(SMOKE), "--cell", "any", "--out", out]
    assert cli.main(["train", "cyclic_bounds", *given]) == 2
    assert "the family has no cell to train" in capsys.readouterr().err
