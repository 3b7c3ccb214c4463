"""Commands run as from a shell, and a small scale file for them."""

import argparse
import subprocess
from pathlib import Path

from hiddenstate import cli

ROOT = Path(__file__).parents[1]
SMOKE = str(ROOT / "workflow/config/scales/smoke.yaml")
CLAIMS = ROOT / "workflow/config/claims"


def shipped_scales():
    """Scale files of the package; a user's own may lie beside them, where git can tell."""
    place = ROOT / "workflow/config/scales"
    listed = subprocess.run(
        ["git", "ls-files", "*.yaml"], cwd=place, capture_output=True, text=True
    )
    return sorted(place / name for name in listed.stdout.split()) or sorted(place.glob("*.yaml"))


def run(capsys, *arguments):
    """Exit status and what was printed; an escaped exception fails the test with its traceback."""
    try:
        status = cli.main(list(map(str, arguments)))
    except SystemExit as stop:
        status = stop.code
    output = capsys.readouterr()
    assert "Traceback" not in output.err
    return status, output.out, output.err


def parsers(parser=None):
    """The parser of each command by its words, such as "audit" and "job train"."""
    found = {}
    for action in (parser or cli.parser())._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, one in action.choices.items():
                inner = parsers(one)
                found |= {f"{name} {job}": each for job, each in inner.items()} or {name: one}
    return found


TINY = """
seed: 1
worst_case_init:
  shows: tiny
  delta: 1.0e-5
  repeats: 1
  ideal_audits: 100
  tasks:
    digits:
      dataset: digits
      model: digits_cnn
      private: 719
      steps: 1
      learning_rate: {average: 2, worst: 2}
      pretraining: [{dataset: digits, epochs: 1, batch_size: 64, learning_rate: 0.1}]
      models: 2
  figure3:
    - {task: digits, epochs: [0, 1], records: [3], epsilons: [10]}
"""
START = "digits_pre0_repeat0"
CELL = "digits_pre0_n3_C1_T1_lr2_eps10_1x2"


def trains(capsys, command, cell, *arguments):
    family = ("worst_case_init", "--config", "tiny.yaml", "--cell", cell)
    return run(capsys, command, *family, *arguments)
