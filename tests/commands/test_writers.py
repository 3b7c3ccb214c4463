"""Commands that write the pages of a source tree, one at a time."""

from pathlib import Path

import pytest

from hiddenstate import cli
from hiddenstate.files import WRITES, alone
from hiddenstate.study import gallery, publication

ROOT = Path(__file__).parents[2]
VERDICTS = str(ROOT / publication.evidence_file("atlas"))
SCALE = str(ROOT / "workflow/config/scales/laptop.yaml")


@pytest.mark.parametrize(
    "asked",
    [
        ["new-paper", "toy", "--tree", "{tree}"],
        ["verdicts", VERDICTS, "--config", SCALE, "--tree", "{tree}"],
        ["gallery", "--out", "{tree}/docs/gallery.md"],
    ],
)
def test_one_command_at_a_time_writes_pages_of_a_tree(capsys, tmp_path, asked, monkeypatch):
    def write(*_):
        raise AssertionError("wrote beside another command")

    (tmp_path / "Snakefile").touch()
    monkeypatch.setattr("hiddenstate.commands.new_paper.write", write)
    monkeypatch.setattr(publication, "publish", write)
    monkeypatch.setattr(gallery, "write", write)
    asked = [word.format(tree=tmp_path) for word in asked]
    with alone(tmp_path, WRITES):
        assert cli.main(asked) == 2
    said = capsys.readouterr().err
    assert f"{tmp_path}: another command writes files of this source tree; wait until" in said
    assert [path.name for path in tmp_path.iterdir()] == ["Snakefile"]
