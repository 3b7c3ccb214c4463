"""Copies of the workflow to run, and ways to run them."""

import compileall
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import yaml

from hiddenstate import papers
from hiddenstate.datasets import data
from hiddenstate.study import config

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def checkout():
    """Fill a directory with a copy of the files that make the workflow, without results."""
    # The copies have the package as bytecode too, so that no run compiles it again.
    compileall.compile_dir(ROOT / "src", quiet=1)

    def copy(target):
        target.mkdir(parents=True, exist_ok=True)
        for name in ("Snakefile", "workflow", "envs", "src"):
            source = ROOT / name
            if source.is_dir():
                shutil.copytree(source, target / name)
            else:
                shutil.copy(source, target / name)
        (target / "profiles").symlink_to("workflow/profiles")
        return target

    return copy


def variables(directory, environment, *programs):
    """Environment variables of a run with a directory's copy of the package."""
    places = (*programs, Path(sys.executable).parent, os.environ["PATH"])
    path = os.pathsep.join(map(str, places))
    own = {"PATH": path, "PYTHONPATH": str(directory / "src")}
    return os.environ | own | (environment or {})


@pytest.fixture(scope="session")
def start():
    """Start snakemake in a directory."""

    def popen(directory, *arguments, environment=None, **options):
        return subprocess.Popen(
            [sys.executable, "-m", "snakemake", *arguments],
            cwd=directory,
            env=variables(directory, environment),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            **options,
        )

    return popen


@pytest.fixture(scope="session")
def jobs():
    """A folder with the program `hiddenstate`, each run of which is a fork of one process."""
    with tempfile.TemporaryDirectory() as folder:
        address, program = f"{folder}/socket", Path(folder) / "hiddenstate"
        ask, serve = (Path(__file__).with_name(name) for name in ("ask.py", "jobs.py"))
        program.write_text(f"#!/bin/sh\nexec '{sys.executable}' -IS '{ask}' '{address}' \"$@\"\n")
        program.chmod(0o755)
        command = [sys.executable, serve, address]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
            assert server.stdout.readline() == "ready\n"
            yield folder
            server.terminate()


@pytest.fixture(scope="session")
def snakemake(tmp_path_factory, jobs):
    """Run snakemake in a directory; return its exit status and what it printed.

    Each run is a fork of one process that has imported it, which spares seconds; so is each job.
    """
    output = tmp_path_factory.mktemp("snakemake") / "output"
    command = [sys.executable, Path(__file__).with_name("snakemakes.py")]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    ) as server:

        def run(directory, *arguments, environment=None):
            request = {
                "directory": str(directory),
                "arguments": arguments,
                "environment": variables(directory, environment, jobs),
                "output": str(output),
            }
            server.stdin.write(json.dumps(request) + "\n")
            return int(server.stdout.readline()), output.read_text()

        yield run
        server.stdin.close()


@pytest.fixture(scope="session")
def smoke_run(once, checkout, snakemake):
    """A finished smoke run of everything, with a space in its name; to be read, not changed."""

    def make(directory):
        checkout(directory)
        status, output = snakemake(directory, "all", "--cores", "2", "--config", "scale=smoke")
        assert status == 0, output[-5000:]

    return once("smoke run", make)


SMALL = ("--cores", "1", "--config", "scale=small")


@pytest.fixture(scope="session")
def small_run(once, checkout, snakemake):
    """A finished run of one paper alone, encoding_loss at scale small; to be read, not changed."""

    def make(directory):
        scales = checkout(directory) / "workflow/config/scales"
        smoke = yaml.safe_load((scales / "smoke.yaml").read_text())
        content = {key: smoke[key] for key in ("seed", "encoding_loss")}
        del content["encoding_loss"]["settings"][1:]
        (scales / "small.yaml").write_text(yaml.safe_dump(content))
        status, output = snakemake(directory, "all", *SMALL)
        assert status == 0, output[-3000:]

    return once("small run", make)


@pytest.fixture
def finished(small_run, tmp_path):
    """A copy of the small run."""
    return shutil.copytree(small_run, tmp_path / "finished", symlinks=True)


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
