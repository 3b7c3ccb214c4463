"""The one command, with stand-ins for the environment and for snakemake."""

import fcntl
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SNAKEMAKE = """#!/usr/bin/env python
import os, sys
print("ran:", *sys.argv[1:])
places = ("XDG_CACHE_HOME", "MPLCONFIGDIR", "HOME")
print("cache:", ", ".join(os.environ.get(name, "") for name in places))
print("name:", os.environ.get("LOGNAME", ""))
"""


@pytest.fixture
def tree(tmp_path):
    """A set-up tree whose snakemake only says how it was called."""
    (tmp_path / "envs").mkdir()
    shutil.copy(ROOT / "reproduce", tmp_path)
    lock = tmp_path / "envs/requirements.lock"
    lock.write_text("")
    programs = tmp_path / ".venv/bin"
    programs.mkdir(parents=True)
    (programs / "python").symlink_to(sys.executable)
    (programs / "snakemake").write_text(SNAKEMAKE)
    (programs / "snakemake").chmod(0o755)
    summed = subprocess.run(["cksum"], input="", capture_output=True, text=True).stdout
    (tmp_path / ".venv/stamp").write_text(f"{summed.strip()} {tmp_path}\n")
    return tmp_path


def reproduce(tree, *arguments, **environment):
    done = subprocess.run(
        [tree / "reproduce", *arguments],
        capture_output=True,
        text=True,
        env=os.environ | environment,
        timeout=60,
    )
    return done.returncode, done.stdout, done.stderr


def test_arguments_go_to_snakemake_and_figures_are_the_default(tree):
    assert "ran: --cores all figures\n" in reproduce(tree)[1]
    # Of several --cores the last counts: the default comes before any of the arguments.
    assert (
        "ran: --cores 4 all --config scale=smoke --cores 2\n"
        in (reproduce(tree, "all", "--config", "scale=smoke", "--cores", "2", CORES="4")[1])
    )


def test_a_held_lock_is_another_run(tree):
    with (tree / ".reproduce.lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        status, out, err = reproduce(tree)
    assert status == 1
    assert "another run is at work" in err
    assert "ran:" not in out
    # It goes with its holder.
    assert reproduce(tree)[0] == 0


def test_any_other_failure_of_the_lock_is_told_as_it_is(tree):
    python = tree / ".venv/bin/python"
    python.unlink()
    status, _, err = reproduce(tree)
    assert status != 0
    assert "another run" not in err
    assert ".venv/bin/python" in err
    python.write_text(
        "#!/bin/sh\necho 'reproduce: cannot lock .reproduce.lock: No locks available' >&2; exit 1\n"
    )
    python.chmod(0o755)
    status, _, err = reproduce(tree)
    assert status == 1
    assert "No locks available" in err
    assert "another run" not in err


def test_a_lock_that_cannot_be_written_is_named(tree):
    (tree / ".reproduce.lock").mkdir()
    status, out, err = reproduce(tree)
    assert status != 0
    assert ".reproduce.lock" in err
    assert "another run" not in err
    assert "ran:" not in out


def test_a_file_system_without_locks_is_named(tree):
    """The lock's own lines, with a flock that the file system refuses."""
    script = (tree / "reproduce").read_text()
    code = script.split("<<'END'", 1)[1].split("\n", 1)[1].split("\nEND\n")[0]
    refusing = "import fcntl\ndef refuse(*_):\n    raise OSError(37, 'No locks available')\n"
    refusing += "fcntl.flock = refuse\n"
    done = subprocess.run([sys.executable, "-c", refusing + code], capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr == "reproduce: cannot lock .reproduce.lock: No locks available\n"


def test_without_a_usable_home_caches_stay_in_the_tree(tree):
    own = {"XDG_CACHE_HOME": "", "MPLCONFIGDIR": "", "HOME": str(tree)}
    assert f"cache: , , {tree}\n" in reproduce(tree, **own)[1]
    for home in (str(tree / "nowhere"), ""):
        out = reproduce(tree, HOME=home)[1]
        assert f"cache: {tree}/.cache, {tree}/.cache/matplotlib, {tree}/.cache" in out


def test_a_user_without_an_entry_has_a_name(tree):
    """``id -un`` fails for them, and so does Snakemake without LOGNAME."""
    program = tree / ".venv/bin/id"
    program.write_text("#!/bin/sh\nexit 1\n")
    program.chmod(0o755)
    nameless = {"PATH": f"{program.parent}:{os.environ['PATH']}", "LOGNAME": "", "USER": ""}
    assert "name: hiddenstate\n" in reproduce(tree, **nameless)[1]
    assert "name: ada\n" in reproduce(tree, **nameless | {"USER": "ada"})[1]
    program.unlink()
    assert "name: \n" in reproduce(tree, LOGNAME="", USER="")[1]


def test_an_interruption_before_the_first_job_is_one_line(tree):
    """While Snakemake loads and reads the workflow; its own answer is a traceback."""
    (tree / ".venv/bin/snakemake").write_text("import time\nprint('on')\ntime.sleep(60)\n")
    command = [tree / "reproduce"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, start_new_session=True, **pipes) as process:
        assert process.stdout.readline() == "on\n"
        os.killpg(process.pid, signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert err.strip() == "reproduce: interrupted; the same command goes on where it stopped"


@pytest.mark.parametrize(
    "slip", ["n=5", "scale", "all", "=5", "1=2", "verify_cells=\u0663", "ve rify=1", "a:b"]
)
def test_a_slip_in_the_configuration_is_told_before_anything_is_done(tree, slip):
    shutil.rmtree(tree / ".venv")
    before = sorted(tree.rglob("*"))
    status, out, err = reproduce(tree, "figures", "--config", "scale=smoke", slip)
    assert status == 1
    assert out == ""
    assert err == (
        f"reproduce: --config: got '{slip}'; expected KEY=VALUE with a key of "
        "workflow/config/config.yaml, such as scale=smoke (targets stand before --config)\n"
    )
    assert sorted(tree.rglob("*")) == before


@pytest.mark.parametrize("option", ["--config", "-C"])
def test_what_is_no_slip_goes_on(tree, option):
    arguments = (
        "all",
        option,
        "scale=smoke",
        "verify_cells=3",
        "device=cuda:1",
        "-n",
        "--until",
        "x",
    )
    assert f"ran: --cores all {' '.join(arguments)}\n" in reproduce(tree, *arguments)[1]
