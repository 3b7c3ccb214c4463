"""Copies of the workflow to run, and ways to run them."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from hiddenstate import papers
from hiddenstate.datasets import data
from hiddenstate.study import config

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def checkout():
    """Fill a directory with a copy of the files that make the workflow, without results."""

    def copy(target):
        target.mkdir(parents=True, exist_ok=True)
        for name in ("Snakefile", "workflow", "envs", "src"):
            source = ROOT / name
            if source.is_dir():
                ignore = shutil.ignore_patterns("__pycache__")
                shutil.copytree(source, target / name, ignore=ignore)
            else:
                shutil.copy(source, target / name)
        (target / "profiles").symlink_to("workflow/profiles")
        return target

    return copy


@pytest.fixture(scope="session")
def start():
    """Start snakemake in a directory."""

    def popen(directory, *arguments, environment=None, **options):
        return subprocess.Popen(
            [sys.executable, "-m", "snakemake", *arguments],
            cwd=directory,
            env=os.environ | {"PYTHONPATH": str(directory / "src")} | (environment or {}),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            **options,
        )

    return popen


@pytest.fixture(scope="session")
def snakemake(start):
    """Run snakemake in a directory; return its exit status and what it printed."""

    def run(directory, *arguments, **options):
        process = start(directory, *arguments, **options)
        output, _ = process.communicate(timeout=1500)
        return process.returncode, output

    return run


@pytest.fixture(scope="session")
def data_sets():
    """The environment of a scale's data sets, which are empty: enough to plan, not to train."""

    def place(directory, scale):
        grid = config.read(directory / f"workflow/config/scales/{scale}.yaml")
        for name in config.families(grid):
            family = papers.load(name)
            for job in family.jobs(getattr(grid, name))["train"].values():
                for source in job.data:
                    folder = data._FOLDERS.get(source) or source.partition(":")[2]
                    (directory / "data" / folder).mkdir(parents=True, exist_ok=True)
        return {"HIDDENSTATE_DATA": str(directory / "data")}

    return place
