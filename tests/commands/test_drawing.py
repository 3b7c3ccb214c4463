import re
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from command_line import CLAIMS, SMOKE, run

from hiddenstate import plotting
from hiddenstate.papers.encoding_loss import figures
from hiddenstate.pipeline import estimates
from hiddenstate.pipeline.family import needed
from hiddenstate.study import config, levels


def smoke_estimates(directory):
    """One row of encoding_loss at scale smoke."""
    _, grid, seed = config.section(SMOKE, "encoding_loss")
    path = directory / "e.csv"
    row = {"quantity": "epsilon", "kind": "exact", "value": 1.0}
    estimates.write(path, pd.DataFrame([row]), config.grid_name(SMOKE, "encoding_loss", grid, seed))
    return path


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
    path = smoke_estimates(tmp_path)
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


def test_what_one_sees_is_said_at_the_scale_that_it_was_written_of(capsys, tmp_path, monkeypatch):
    """The average case alone stood under "Worst-case initial parameters leak more"."""
    path = smoke_estimates(tmp_path)
    figure = replace(figures.figure1, draw=lambda rows: plotting.panels(1)[0])
    monkeypatch.setattr(figures, "figure1", figure)
    said = []

    def save(drawn, paths, footer, message):
        said.append(message)
        for one in paths:
            one.parent.mkdir(exist_ok=True)
            one.write_bytes(b"")

    monkeypatch.setattr(plotting, "save", save)
    for published in (True, False):
        monkeypatch.setattr(levels, "published", lambda *_, found=published: found)
        given = ("--config", SMOKE, "--estimates", path, "--out", tmp_path / "figures")
        assert run(capsys, "figures", "encoding_loss", "figure1", *given)[0] == 0
    assert said == [figure.message, figure.title] and figure.message


def test_a_figure_that_lacks_all_its_cells_says_so(capsys, tmp_path, monkeypatch):
    """Of models that were left out it ended the job of all figures with a traceback."""
    path = smoke_estimates(tmp_path)
    figure = replace(figures.figure1, draw=lambda rows: needed(rows[:0]))
    monkeypatch.setattr(figures, "figure1", figure)
    said, save = [], plotting.save

    def saved(drawn, *given):
        said.extend(text.get_text() for ax in drawn.axes for text in ax.texts)
        save(drawn, *given)

    monkeypatch.setattr(plotting, "save", saved)
    given = ("--config", SMOKE, "--estimates", path, "--out", tmp_path / "figures")
    assert run(capsys, "figures", "encoding_loss", "figure1", *given)[0] == 0
    assert said == ["none of its cells is there"]
    assert (tmp_path / "figures/figure1.png").read_bytes().startswith(b"\x89PNG")
