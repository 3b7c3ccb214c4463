"""Linters and formatters, run as tests so that one command checks everything."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = [
    "src",
    "tests",
    "workflow",
    "Snakefile",
    "README.md",
    "envs",
    "reproduce",
    "pyproject.toml",
]


@pytest.mark.parametrize(
    "command",
    [
        ["ruff", "check", "."],
        ["ruff", "format", "--check", "."],
        ["snakefmt", "--check", "Snakefile", "workflow"],
        pytest.param(["snakemake", "--lint"], marks=pytest.mark.whole),
        pytest.param(["mypy"], marks=pytest.mark.whole),
    ],
    ids=" ".join,
)
def test_clean(command):
    done = subprocess.run(
        [sys.executable, "-m", *command], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_nothing_is_left_unfinished_or_tied_to_one_machine():
    # Spelled in parts, so that this file does not find itself.
    unfinished = re.compile(r"\b(" + "|".join(["TO" + "DO", "FIX" + "ME", "XX" + "X"]) + r")\b")
    place = re.compile(r"(?<![\w.])/(" + "|".join(["wo" + "rk", "ho" + "me", "ro" + "ot"]) + ")/")
    for name in SOURCES:
        path = ROOT / name
        for file in [path] if path.is_file() else path.rglob("*"):
            if file.suffix in {".py", ".smk", ".yaml", ".md", ".rst", ".sh", ""} and file.is_file():
                text = file.read_text()
                assert not unfinished.search(text), file
                assert not place.search(text), file


def test_the_snakefile_is_thin():
    text = (ROOT / "Snakefile").read_text()
    assert len(text.splitlines()) <= 60
    assert "def " not in text
    for rules in (ROOT / "workflow/rules").glob("*.smk"):
        source = rules.read_text()
        assert "lambda" not in source, rules
        assert not re.search(r"^\s+run:", source, flags=re.MULTILINE), rules
