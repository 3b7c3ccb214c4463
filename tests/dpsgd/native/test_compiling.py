"""The compiled library: where it is kept, and what is not loaded."""

import errno
import itertools
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from torch import nn

from hiddenstate.dpsgd.clipping import ClippedSum
from hiddenstate.dpsgd.native import compiling
from hiddenstate.dpsgd.native.kernel import _compiled
from hiddenstate.errors import InputError

pytestmark = pytest.mark.skipif(compiling.compiler() is None, reason="no C compiler")

SOURCE = "int answer(void) { return 42; }"
"""A library that compiles in a moment."""


@pytest.fixture
def cache(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    load, count = compiling.ctypes.CDLL, itertools.count()

    def again(path):
        # A process does not look at a file again whose name it has loaded before.
        return load(shutil.copy(path, tmp_path / f"loaded{next(count)}.so"))

    monkeypatch.setattr(compiling.ctypes, "CDLL", again)
    return tmp_path / "hiddenstate"


def answer() -> int:
    return compiling.load(SOURCE).answer()


def planted(path: Path) -> None:
    """A whole library in the cache's place that says something else."""
    path.parent.mkdir(parents=True, exist_ok=True)
    compiling._compile(path, {"driver.c": SOURCE.replace("42", "666")})


def library(cache: Path) -> Path:
    answer()
    (path,) = cache.glob("*.so")
    name = path.name
    path.unlink()
    return cache / name


def test_a_library_is_kept_for_its_owner_alone_and_loaded_again(cache, monkeypatch):
    before = os.umask(0o002)  # as where each user has a group of their own
    try:
        assert answer() == 42
    finally:
        os.umask(before)
    (path,) = cache.glob("*.so")
    assert (path.stat().st_mode & 0o777, cache.stat().st_mode & 0o777) == (0o600, 0o700)
    monkeypatch.setattr(compiling, "_compile", None)
    assert answer() == 42


@pytest.mark.parametrize("of", ["folder", "file", "folder above"])
def test_a_library_that_others_could_have_written_is_not_loaded(cache, of):
    path = library(cache)
    planted(path)
    assert answer() == 666  # it would be, were it the user's own
    path.unlink()
    planted(path)
    place = {"folder": cache, "file": path, "folder above": cache.parent}[of]
    place.chmod(0o777)
    assert answer() == 42


def test_a_library_of_another_user_is_not_loaded(cache, monkeypatch):
    path = library(cache)
    planted(path)
    me = os.geteuid()
    monkeypatch.setattr(compiling.os, "geteuid", lambda: me + 1)
    expected = 666 if me == 0 else 42  # root's own may be loaded by anyone
    assert answer() == expected
    if me == 0:
        os.chown(path, 65534, -1)
        assert answer() == 42


def test_a_link_is_not_loaded(cache, tmp_path):
    path = library(cache)
    planted(tmp_path / "elsewhere.so")
    path.symlink_to(tmp_path / "elsewhere.so")
    assert answer() == 42


@pytest.mark.parametrize("home", ["relative", ""])
def test_a_relative_cache_is_ignored_as_its_specification_says(monkeypatch, tmp_path, home):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CACHE_HOME", home)
    assert answer() == 42
    assert not (tmp_path / "relative").exists()
    assert list((tmp_path / "home" / ".cache" / "hiddenstate").glob("*.so"))


def test_a_cache_that_cannot_be_written_is_done_without_and_leaves_nothing_behind(tmp_path):
    """A process of its own, whose temporary folder is there until it ends."""
    (tmp_path / "file").write_text("in the way")
    (temporary := tmp_path / "temporary").mkdir()
    program = (
        "from hiddenstate.dpsgd.native import compiling\n"
        f"print([compiling.load({SOURCE!r} + ' ' * n).answer() for n in range(2)])\n"
    )
    environment = {**os.environ, "XDG_CACHE_HOME": f"{tmp_path}/file", "TMPDIR": str(temporary)}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout == "[42, 42]\n"
    assert not list(temporary.iterdir())


def test_a_full_cache_is_done_without(cache, monkeypatch):
    write, call, tried = Path.write_bytes, subprocess.run, []

    def full(path, content):
        tried.append(path)
        if cache in path.parents:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(path, content)

    def compiled(command, **options):
        place = Path(options["cwd"], command[command.index("-o") + 1])
        if cache in place.parents:
            return SimpleNamespace(returncode=1, stderr="No space left on device")
        return call(command, **options)

    monkeypatch.setattr(Path, "write_bytes", full)
    monkeypatch.setattr(compiling.subprocess, "run", compiled)
    # Of a source of its own, which no folder has yet.
    assert compiling.load(f"/* full */ {SOURCE}").answer() == 42
    assert [cache in path.parents for path in tried] == [True, False]
    assert not list(cache.iterdir())


def test_a_cache_whose_libraries_may_not_be_loaded_is_done_without(cache, monkeypatch):
    load, tried = compiling.ctypes.CDLL, []

    def refuse(path):
        tried.append(cache in Path(path).parents)
        if tried[-1]:
            raise OSError(f"{path}: failed to map segment from shared object")
        return load(path)

    monkeypatch.setattr(compiling.ctypes, "CDLL", refuse)
    assert answer() == 42
    assert tried == [True, False]


def test_a_cache_that_cannot_be_written_is_read(cache, monkeypatch):
    assert answer() == 42
    (path,) = cache.glob("*.so")

    def refuse(*_):
        raise AssertionError("compiled again")

    monkeypatch.setattr(compiling, "_compile", refuse)
    cache.chmod(0o500)
    try:
        assert answer() == 42
    finally:
        cache.chmod(0o700)
    assert path.exists()


def logistic():
    model = nn.Sequential(nn.Flatten(), nn.Linear(6, 3))
    return model, np.ones((4, 1, 2, 3), np.float32), np.array([0, 1, 2, 0])


@pytest.mark.whole
def test_a_damaged_library_in_the_cache_is_made_anew(cache, monkeypatch):
    model, x, y = logistic()
    _compiled.cache_clear()
    ClippedSum(model, x, y, kernel="native")
    (path,) = cache.rglob("*.so")
    whole = path.read_bytes()
    for damaged in (b"", whole[:100], whole[: len(whole) // 2], whole[:-100] + bytes(100)):
        # Another file in its place: writing into a loaded library would change it in use.
        path.unlink()
        path.write_bytes(damaged)
        assert not compiling._whole(path)
    _compiled.cache_clear()
    assert ClippedSum(model, x, y, kernel="native").kind == "native"
    assert path.read_bytes() == whole


@pytest.mark.whole
def test_a_library_that_may_not_be_loaded_leaves_the_work_to_torch(cache, monkeypatch):
    def refuse(path):
        raise OSError(f"{path}: failed to map segment from shared object")

    monkeypatch.setattr(compiling.ctypes, "CDLL", refuse)
    _compiled.cache_clear()
    model, x, y = logistic()
    with pytest.warns(UserWarning, match="failed to map segment"):
        assert ClippedSum(model, x, y).kind == "torch"
    with pytest.raises(InputError, match="failed to map segment"):
        ClippedSum(model, x, y, kernel="native")
