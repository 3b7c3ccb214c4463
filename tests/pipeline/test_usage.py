"""What a job took is written down as it ends, and a run's sum has a budget."""

import os
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

from hiddenstate.pipeline import usage

ROOT = Path(__file__).parents[2]
BENCHMARK = [sys.executable, ROOT / "benchmarks/workflow.py"]


@pytest.mark.whole
def test_a_command_writes_what_it_took(tmp_path):
    path = tmp_path / "usage.tsv"
    code = "import time; t = time.process_time()\nwhile time.process_time() < t + 0.5: pass\n"
    code += "from hiddenstate import cli; cli.main(['cells', 'atlas', '--config', 'none.yaml'])"
    environment = {"HIDDENSTATE_USAGE": str(path), "HIDDENSTATE_DRIVER": "7"}
    subprocess.run([sys.executable, "-c", code], env=os.environ | environment, capture_output=True)
    (row,) = pd.read_csv(path, sep="\t", names=usage.COLUMNS).to_dict("records")
    assert (row["run"], row["family"], row["command"]) == (7, "atlas", "cells")
    assert 0.5 < row["seconds"] < 60 and 10 < row["megabytes"] < 2000


def test_a_file_that_cannot_be_written_ends_no_job(tmp_path):
    usage.append(tmp_path / "none/usage.tsv", "atlas", "bound")


@pytest.mark.whole
def test_the_last_run_is_summed_and_held_to_its_budget(tmp_path):
    rows = [("1", "a", "bound", "x", 6000, 10), ("2", "a", "bound", "x", 60, 10)]
    rows += [("2", "b", "train", "y", 120, 30), ("2", "all", "snakemake", "", 30, 20)]
    path = tmp_path / "usage.tsv"
    path.write_text("".join("\t".join(map(str, row)) + "\n" for row in rows))

    def run(budget):
        command = [*BENCHMARK, "--logs", path, "--budget", budget]
        return subprocess.run(command, capture_output=True, text=True)

    within, beyond = run("3.5"), run("3.4")
    assert within.returncode == 0, within.stderr
    assert "3 processes, 3.5 core-minutes, at most 30 MB in one" in within.stdout
    assert beyond.returncode == 1 and "more than the budget of 3.4" in beyond.stderr
