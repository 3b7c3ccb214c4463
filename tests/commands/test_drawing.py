import re
from pathlib import Path

import pandas as pd
import pytest
from command_line import CLAIMS, SMOKE, run

from hiddenstate.pipeline import estimates
from hiddenstate.study import config


def test_an_estimates_file_of_something_else_is_refused(capsys, tmp_path):
    path = tmp_path / "e.csv"
    pd.DataFrame({"a": [1]}).to_csv(path)
    status, _, err = run(
        *(capsys, "figures", "encoding_loss", "--config", SMOKE),
        *("--estimates", path, "--out", tmp_path / "figures"),
    )
    assert status == 2
    assert "lacks the columns quantity" in err


@pytest.mark.parametrize("command", ["figures", "claims"])
@pytest.mark.parametrize(("family", "scale"), [("encoding_loss", "laptop"), ("atlas", "smoke")])
def test_estimates_of_another_scale_or_family_are_refused(capsys, tmp_path, command, family, scale):
    """A figure says which scale it shows, so it is drawn of no other's estimates."""
    _, grid, seed = config.section(SMOKE, "encoding_loss")
    path = tmp_path / "e.csv"
    row = {"quantity": "epsilon", "kind": "exact", "value": 1.0}
    estimates.write(path, pd.DataFrame([row]), config.grid_name(SMOKE, "encoding_loss", grid, seed))
    scale_file = Path(SMOKE).with_stem(scale)
    given = [family, "--estimates", path, "--out", tmp_path / "out"]
    if command == "claims":
        given += ["--claims", CLAIMS / f"{family}.yaml"]
    status, _, err = run(capsys, command, "--config", scale_file, *given)
    assert status == 2
    assert re.search(
        rf"e\.csv: grid: got 'encoding_loss at smoke .*expected '{family} at {scale}", err
    )
    assert list(tmp_path.iterdir()) == [path]
