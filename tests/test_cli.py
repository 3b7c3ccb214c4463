import re
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

from hiddenstate import cli

ROOT = Path(__file__).parents[1]
SMOKE = str(ROOT / "workflow/config/scales/smoke.yaml")


def run(capsys, *arguments):
    """Exit status and what was printed; an escaped exception fails the test with its traceback."""
    try:
        status = cli.main(list(map(str, arguments)))
    except SystemExit as stop:
        status = stop.code
    output = capsys.readouterr()
    assert "Traceback" not in output.err
    return status, output.out, output.err


def subcommands():
    help_text = cli._parser().format_help()
    return re.findall(r"^    (\w+)", help_text, flags=re.MULTILINE)


def test_there_are_subcommands():
    assert {"scores", "bounds", "estimates", "figure", "table", "claims"} <= set(subcommands())


@pytest.mark.parametrize("name", subcommands())
def test_every_subcommand_explains_itself(capsys, name):
    status, out, _ = run(capsys, name, "--help")
    assert status == 0
    options = re.findall(r"^  (?:-h, )?(--[\w-]+|\w+)(?:[ ,].*)?$", out, flags=re.MULTILINE)
    assert len(options) >= 1
    assert re.search(r"^[A-Z].*\.$", out, flags=re.MULTILINE), "no summary sentence"


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["scores", "nonesuch", "--config", SMOKE, "--cell", "x", "--out", "o"], "encoding_loss"),
        (
            ["scores", "encoding_loss", "--config", "none.yaml", "--cell", "x", "--out", "o"],
            "none.yaml: no such file",
        ),
        (
            ["scores", "encoding_loss", "--config", SMOKE, "--cell", "x", "--out", "o"],
            "no cell 'x'; expected one of",
        ),
        (
            [
                "figure",
                "encoding_loss",
                "f9",
                "--config",
                SMOKE,
                "--estimates",
                "e.csv",
                "--out",
                "o.pdf",
            ],
            "unknown encoding_loss figure 'f9'; expected one of figure1",
        ),
        (
            [
                "figure",
                "encoding_loss",
                "figure1",
                "--config",
                SMOKE,
                "--estimates",
                "e.csv",
                "--out",
                "o.pdf",
            ],
            "e.csv: no such file",
        ),
        (["digest", "none.parquet"], "none.parquet: no such file"),
        (
            [
                "claims",
                "--claims",
                "c.yaml",
                "--scale",
                "smoke",
                "--estimates",
                "encoding_loss",
                "--csv",
                "c.csv",
                "--markdown",
                "c.md",
            ],
            "expected FAMILY=FILE",
        ),
    ],
)
def test_bad_input_gets_one_clear_message(capsys, tmp_path, monkeypatch, arguments, expected):
    monkeypatch.chdir(tmp_path)
    status, _, err = run(capsys, *arguments)
    assert status == 2
    assert err.startswith("hiddenstate: error: ")
    assert expected in err
    assert list(tmp_path.iterdir()) == []


def test_an_estimates_file_of_something_else_is_refused(capsys, tmp_path):
    path = tmp_path / "e.csv"
    pd.DataFrame({"a": [1]}).to_csv(path)
    status, _, err = run(
        *(capsys, "table", "encoding_loss", "epsilon", "--config", SMOKE),
        *("--estimates", path, "--out", tmp_path / "t.md"),
    )
    assert status == 2
    assert "lacks the columns quantity" in err


def test_scores_of_other_parameters_are_refused(capsys, tmp_path):
    cell = "q0.1_T100_sigma1_sound"
    out = tmp_path / "scores" / f"{cell}.parquet"
    assert (
        run(capsys, "scores", "encoding_loss", "--config", SMOKE, "--cell", cell, "--out", out)[0]
        == 0
    )
    changed = tmp_path / "changed.yaml"
    changed.write_text(Path(SMOKE).read_text().replace("runs: 200", "runs: 201"))
    # The first cell of the grid is missing; give it this file under its name.
    first = "q0.1_T100_sigma4_published"
    out.rename(out.with_name(f"{first}.parquet"))
    status, _, err = run(
        *(capsys, "estimates", "encoding_loss", "--config", changed),
        *("--scores", out.parent, "--bounds", tmp_path, "--out", tmp_path / "e.csv"),
    )
    assert status == 2
    assert f"{first}.parquet: computed for" in err
    assert not (tmp_path / "e.csv").exists()


def test_no_command_loads_torch():
    code = "import sys, hiddenstate.cli, hiddenstate.plotting; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
