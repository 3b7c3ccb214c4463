"""Who may import whom: the contracts of pyproject.toml, and that they notice what breaks them."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def lint(tree):
    done = subprocess.run(
        [sys.executable, "-c", "from importlinter.cli import lint_imports_command as c; c()"],
        cwd=tree,
        env={"PYTHONPATH": str(tree / "src"), "PATH": "/usr/bin", "COLUMNS": "200"},
        capture_output=True,
        text=True,
    )
    return done.returncode, done.stdout + done.stderr


@pytest.fixture
def copy(tmp_path):
    shutil.copytree(ROOT / "src", tmp_path / "src", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


def test_rooms_import_downwards_only(copy):
    status, said = lint(copy)
    assert status == 0, said


@pytest.mark.parametrize(
    ("module", "imported"),
    [
        ("accounting/pld.py", "hiddenstate.auditing.audit"),
        ("pipeline/scores.py", "hiddenstate.papers"),
        ("papers/encoding_loss/checks.py", "hiddenstate.papers.cyclic_bounds"),
        ("papers/atlas/checks.py", "hiddenstate.papers.cyclic_bounds"),
        ("accounting/pld.py", "torch"),
    ],
)
def test_an_import_upwards_is_found(copy, module, imported):
    path = copy / "src/hiddenstate" / module
    path.write_text(path.read_text() + f"\n\ndef _late():\n    import {imported}\n")
    status, said = lint(copy)
    assert status == 1, said
    assert imported in said
