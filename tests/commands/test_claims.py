import shutil

import pandas as pd
from command_line import CLAIMS, SMOKE, run

from hiddenstate.commands.claims import _write_table
from hiddenstate.pipeline import estimates
from hiddenstate.study import config


def test_verdicts_are_judged_collected_and_compared(capsys, tmp_path):
    path, claims = tmp_path / "e.csv", CLAIMS / "encoding_loss.yaml"
    shutil.copy(SMOKE, tmp_path)
    scale = tmp_path / "one.yaml"
    scale.write_text("extends: smoke\nonly: [encoding_loss]\n")
    _, grid, seed = config.section(scale, "encoding_loss")
    row = {"quantity": "epsilon", "kind": "exact", "value": 1.0}
    estimates.write(path, pd.DataFrame([row]), config.grid_name(scale, "encoding_loss", grid, seed))
    judge = ("claims", "encoding_loss", "--config", scale, "--estimates", path)
    out = ("--out", tmp_path / "encoding_loss")
    assert run(capsys, *judge, *out, "--claims", claims)[0] == 0
    status, _, err = run(capsys, *judge, *out, "--claims", CLAIMS / "atlas.yaml")
    assert status == 2
    assert "atlas.yaml; expected encoding_loss.yaml" in err
    (tmp_path / "expected.csv").write_text("id,verdict\nencoding_loss.x,holds\n")
    collect = ("collect", tmp_path / "encoding_loss/claims.csv", "--config", scale)
    status, out, _ = run(
        *(capsys, *collect, "--out", tmp_path, "--expected", tmp_path / "expected.csv")
    )
    assert status == 0
    assert "- encoding_loss.x: no such claim, expected: holds" in out
    assert "- encoding_loss.x: no such claim" in (tmp_path / "claims.md").read_text()
    # Of a scale with another family these are not all.
    scale.write_text("extends: smoke\nonly: [encoding_loss, atlas]\n")
    status, _, err = run(capsys, *collect, "--out", tmp_path)
    assert status == 2
    assert "encoding_loss/claims.csv: no verdicts of atlas; expected every family's" in err


def test_a_table_that_a_scale_has_no_row_of_says_so(tmp_path):
    """An average case alone has no accuracy in the worst one; a file of nothing broke the page."""
    _write_table(tmp_path / "accuracy", pd.DataFrame([]).fillna(""), "a digest")
    page = pd.read_csv(tmp_path / "accuracy.csv", dtype=str, keep_default_na=False)
    assert page.to_numpy().tolist() == [["none at this scale"]]
    assert "none at this scale" in (tmp_path / "accuracy.md").read_text(encoding="utf-8")
