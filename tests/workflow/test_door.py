"""One run at a time in a directory, and no set-up under it, however the run was started."""

import contextlib
import fcntl
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCALE = "extends: smoke\nonly: [cyclic_bounds]\n"
ESTIMATES = ("results/tiny/cyclic_bounds/estimates.csv", "--cores", "1", "--config", "scale=tiny")


def held(path):
    """Whether any process holds a lock."""
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


@pytest.fixture
def tree(tmp_path, checkout):
    directory = checkout(tmp_path)
    (directory / "workflow/config/scales/tiny.yaml").write_text(SCALE)
    shutil.copy(ROOT / "reproduce", directory)
    return directory


@pytest.fixture
def at_work(tree, start):
    """A plain run of snakemake that stands still in its first job."""
    process = start(tree, *ESTIMATES, start_new_session=True)
    deadline = time.monotonic() + 120
    while not held(tree / ".reproduce.lock"):
        assert process.poll() is None, process.communicate()[0][-3000:]
        assert time.monotonic() < deadline
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGSTOP)
    yield process
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


@pytest.mark.whole
def test_under_a_plain_run_nothing_is_installed_unlocked_or_run(tree, at_work, snakemake):
    (tree / ".venv/bin").mkdir(parents=True)
    (tree / ".venv/stamp").write_text(f"1 2 {tree}\n")
    environment = os.environ | {"PYTHON": sys.executable}
    for command in ("setup", "figures", "test"):
        done = subprocess.run(
            ["./reproduce", command], cwd=tree, env=environment, capture_output=True, text=True
        )
        assert done.returncode == 1
        assert "another run is at work in this directory" in done.stderr
    assert (tree / ".venv/bin").is_dir()
    locks = tree / ".snakemake/locks"
    assert list(locks.iterdir())
    status, output = snakemake(tree, "--unlock", "--config", "scale=tiny")
    assert status != 0
    assert f"another run is at work in {tree}" in output
    assert list(locks.iterdir())
    # Another scale writes other files, which Snakemake's own lock does not cover.
    status, output = snakemake(tree, "atlas", "--cores", "1", "--config", "scale=smoke")
    assert status != 0
    assert f"another run is at work in {tree}" in output
    # What only looks is not kept out.
    assert snakemake(tree, *ESTIMATES, "--dry-run")[0] == 0


@pytest.mark.whole
def test_after_a_kill_the_same_plain_command_goes_on(tree, at_work, start):
    os.killpg(at_work.pid, signal.SIGKILL)
    at_work.wait()
    assert list((tree / ".snakemake/locks").iterdir())
    process = start(tree, *ESTIMATES)
    output, _ = process.communicate(timeout=600)
    assert process.returncode == 0, output[-3000:]
    assert (tree / ESTIMATES[0]).exists()


@pytest.mark.whole
def test_a_run_elsewhere_keeps_the_environment_of_its_tree(tree, start):
    (tree / "elsewhere").mkdir()
    lock = tree / "elsewhere/.reproduce.lock"
    process = start(tree, *ESTIMATES, "--directory", "elsewhere", start_new_session=True)
    try:
        while not lock.exists() or not held(lock):
            assert process.poll() is None, process.communicate()[0][-3000:]
            time.sleep(0.05)
        assert held(tree / ".reproduce.lock")
        with (tree / ".reproduce.lock").open("a") as file:  # but others may run elsewhere too
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
