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


def test_arguments_go_to_snakemake_and_the_page_is_the_default(tree):
    assert "ran: --cores all report\n" in reproduce(tree)[1]
    # Of several --cores the last counts: the default comes before any of the arguments.
    assert (
        "ran: --cores 4 all --config scale=smoke --cores 2\n"
        in (reproduce(tree, "all", "--config", "scale=smoke", "--cores", "2", CORES="4")[1])
    )


def test_strict_is_the_script_s_own_word_and_goes_no_further(tree):
    snakemake = tree / ".venv/bin/snakemake"
    snakemake.write_text(f"{SNAKEMAKE}print('strict:', os.environ.get('HIDDENSTATE_STRICT'))\n")
    out = reproduce(tree, "claims", "--strict", "--config", "scale=smoke", "bb=c")[1]
    assert "ran: --cores all claims --config scale=smoke bb=c\n" in out
    assert "strict: 1\n" in out
    assert "strict: None\n" in reproduce(tree, "claims")[1]


@pytest.mark.parametrize("name", ["PYTHONPATH", "PYTHONHOME"])
def test_libraries_of_the_reader_s_take_no_locked_one_s_place(tree, tmp_path_factory, name):
    """As modules of a cluster set it."""
    place = tmp_path_factory.mktemp("module")
    (place / "fcntl.py").write_text("raise SystemExit('not the locked one')\n")
    status, out, err = reproduce(tree, **{name: str(place)})
    assert (status, err) == (0, "")
    assert "ran: --cores all report\n" in out


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
    python.write_text("#!/bin/sh\necho 'Illegal instruction' >&2; exit 132\n")
    python.chmod(0o755)
    status, _, err = reproduce(tree)
    assert status == 132
    assert "Illegal instruction" in err
    assert "another run" not in err


def test_a_lock_that_cannot_be_written_is_named(tree):
    (tree / ".reproduce.lock").mkdir()
    status, out, err = reproduce(tree)
    assert status != 0
    assert ".reproduce.lock" in err
    assert "another run" not in err
    assert "ran:" not in out


def test_a_lock_that_is_a_link_leaves_its_file_as_it_is(tree):
    (tree / "precious").write_text("mine")
    (tree / ".reproduce.lock").symlink_to(tree / "precious")
    assert reproduce(tree)[0] == 0
    assert (tree / "precious").read_text() == "mine"


WITHOUT_LOCKS = """
import fcntl

def refuse(*_):
    raise OSError(38, "Function not implemented")

fcntl.flock = refuse
"""


def test_a_file_system_without_locks_is_a_warning(tree, tmp_path_factory):
    """Lustre and some NFS have none."""
    place = tmp_path_factory.mktemp("site")
    (place / "sitecustomize.py").write_text(WITHOUT_LOCKS)
    python = tree / ".venv/bin/python"
    python.unlink()
    python.write_text(f"#!/bin/sh\nPYTHONPATH='{place}' exec '{sys.executable}' \"$@\"\n")
    python.chmod(0o755)
    status, out, err = reproduce(tree)
    assert status == 0
    assert err == (
        "reproduce: warning: cannot lock .reproduce.lock: Function not implemented; "
        "start no other run in this directory\n"
    )
    assert "ran: --cores all report\n" in out


# Makes environments as quickly as none was ever made.
STAND_IN = """#!/bin/sh
case "$1 $2" in
"-m venv")
    shift 2
    [ "$1" != --clear ] || {{ rm -rf "$2"/* && shift; }}
    echo "made" >>"{log}"
    mkdir -p "$1/bin" && cp "$0" "$1/bin/python" && echo "echo ran: here" >"$1/bin/snakemake" ;;
"-m pip") [ ! -e "{log}.fails" ] ;;
*) exec "{python}" "$@" ;;
esac
"""


@pytest.fixture
def fresh(tree, tmp_path_factory):
    """A tree without an environment, the Python to make one with, and what was made."""
    place = tmp_path_factory.mktemp("python")
    python, log = place / "python", place / "log"
    python.write_text(STAND_IN.format(log=log, python=sys.executable))
    python.chmod(0o755)
    log.touch()
    shutil.rmtree(tree / ".venv")
    return tree, {"PYTHON": str(python)}, log


def test_an_environment_is_made_once_and_again_for_another_lock_file(fresh):
    tree, python, log = fresh
    for _ in range(2):
        assert reproduce(tree, "setup", **python)[0] == 0
        assert log.read_text() == "made\n"
    (tree / ".venv/old").touch()
    (tree / "envs/requirements.lock").write_text("numpy==2\n")
    assert reproduce(tree, "setup", **python)[0] == 0
    assert log.read_text() == "made\nmade\n"
    assert not (tree / ".venv/old").exists()


def test_a_set_up_that_broke_is_done_again(fresh):
    tree, python, log = fresh
    log.with_name("log.fails").touch()
    assert reproduce(tree, "setup", **python)[0] != 0
    assert reproduce(tree, "setup", **python)[0] != 0
    log.with_name("log.fails").unlink()
    assert reproduce(tree, "setup", **python)[0] == 0
    (tree / ".venv/stamp").write_text("")  # killed before anything else was made
    shutil.rmtree(tree / ".venv/bin")
    assert reproduce(tree, "setup", **python)[0] == 0


@pytest.mark.parametrize("command", ["setup", "test", "figures"])
@pytest.mark.parametrize("foreign", ["link", "link to an own one", "made by hand", "moved", "file"])
def test_an_environment_that_was_not_made_here_is_refused(fresh, command, foreign):
    tree, python, log = fresh
    if foreign == "link to an own one":
        reproduce(tree, "setup", **python)
        (tree / ".venv").rename(tree / "elsewhere")
    elsewhere = tree / "elsewhere"
    elsewhere.mkdir(exist_ok=True)
    (elsewhere / "keep").write_text("hours of work")
    if foreign.startswith("link"):
        (tree / ".venv").symlink_to("elsewhere")
    elif foreign == "file":
        (elsewhere / "keep").rename(tree / ".venv")
    else:
        elsewhere.rename(tree / ".venv")
        if foreign == "moved":
            (tree / ".venv/stamp").write_text(f"1 2 /another{tree}\n")
    made = log.read_text()
    before = {path: path.is_file() and path.read_bytes() for path in tree.rglob("*")}
    status, out, err = reproduce(tree, command, **python)
    assert status == 1
    assert err.startswith("reproduce: .venv ") and err.count("\n") == 1
    assert "activate" in err and "rm " in err
    assert (out, log.read_text()) == ("", made)
    assert {path: path.is_file() and path.read_bytes() for path in tree.rglob("*")} == before


@pytest.mark.parametrize("command", ["setup", "test", "figures"])
def test_nothing_is_installed_under_a_run_at_work(fresh, command):
    tree, python, log = fresh
    reproduce(tree, "setup", **python)
    (tree / "envs/requirements.lock").write_text("numpy==2\n")
    with (tree / ".reproduce.lock").open("a") as held:
        fcntl.flock(held, fcntl.LOCK_SH)
        status, out, err = reproduce(tree, command, **python)
    assert status == 1
    assert "another run is at work" in err
    assert (out, log.read_text()) == ("", "made\n")
    assert (tree / ".venv/bin/python").exists()


def test_a_folder_is_the_scripts_own_whatever_cdpath_says(tree, tmp_path_factory):
    other = tmp_path_factory.mktemp("other") / tree.name
    other.mkdir()
    done = subprocess.run(
        [f"{tree.name}/reproduce"],
        cwd=tree.parent,
        env=os.environ | {"CDPATH": str(other.parent)},
        capture_output=True,
        text=True,
    )
    assert "ran: --cores all report\n" in done.stdout
    assert not list(other.iterdir())


def test_without_a_usable_home_caches_stay_in_the_tree(tree):
    own = {"XDG_CACHE_HOME": "", "MPLCONFIGDIR": "", "HOME": str(tree)}
    assert f"cache: , , {tree}\n" in reproduce(tree, **own)[1]
    for home in (str(tree / "nowhere"), ""):
        out = reproduce(tree, HOME=home)[1]
        assert f"cache: {tree}/.cache, {tree}/.cache/matplotlib, {tree}/.cache" in out


@pytest.mark.parametrize("name", ["XDG_CACHE_HOME", "HOME"])
def test_without_a_usable_cache_folder_caches_stay_in_the_tree(tree, name):
    """As where ~/.cache belongs to root; Snakemake ended with a traceback."""
    (tree / "in/nobody").mkdir(parents=True)
    own = {"XDG_CACHE_HOME": "", "MPLCONFIGDIR": "", "HOME": str(tree)}
    # A folder cannot be made below a file, by root neither.
    place = {"XDG_CACHE_HOME": tree / "file", "HOME": tree / "in/nobody"}[name]
    (place / ".cache" if name == "HOME" else place).touch()
    out = reproduce(tree, **own | {name: str(place)})[1]
    home = place if name == "HOME" else tree
    assert f"cache: {tree}/.cache, , {home}\n" in out


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


@pytest.mark.parametrize(
    ("number", "word"), [(signal.SIGINT, "interrupted"), (signal.SIGTERM, "terminated")]
)
def test_an_interruption_before_the_first_job_is_one_line(tree, number, word):
    """While Snakemake loads and reads the workflow; its own answer is a traceback."""
    program = "import time\nprint('on', flush=True)\ntime.sleep(60)\n"
    (tree / ".venv/bin/snakemake").write_text(program)
    command = [tree / "reproduce"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, start_new_session=True, **pipes) as process:
        assert process.stdout.readline() == "on\n"
        os.killpg(process.pid, number)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 128 + number
    assert err.strip() == f"reproduce: {word}; the same command goes on where it stopped"


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
