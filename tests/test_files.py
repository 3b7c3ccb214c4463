import errno
import re
import resource
import shutil
import tempfile
from contextlib import contextmanager

import pandas as pd
import pytest

from hiddenstate import files, plotting
from hiddenstate.errors import InputError
from hiddenstate.pipeline import estimates, scores


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path):
    target = tmp_path / "a.txt"
    target.write_text("old")
    with pytest.raises(RuntimeError), files.atomic(target) as temporary:
        temporary.write_text("half")
        raise RuntimeError
    assert target.read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]


def test_a_successful_write_replaces_the_file_and_makes_its_directory(tmp_path):
    target = tmp_path / "new" / "a.csv"
    with files.atomic(target) as temporary:
        assert temporary.suffix == ".csv"
        temporary.write_text("new")
    assert target.read_text() == "new"
    assert list(target.parent.iterdir()) == [target]
    assert target.stat().st_mode & 0o444


def test_a_reader_of_the_old_file_sees_all_of_it(tmp_path):
    """What is written in place would be cut short by a kill."""
    path = tmp_path / "a.csv"
    path.write_text("old")
    with path.open() as opened:
        with files.atomic(path) as temporary:
            temporary.write_text("new and longer")
        assert opened.read() == "old"
    assert path.read_text() == "new and longer"


def test_a_missing_file_is_named_with_what_was_expected(tmp_path):
    with pytest.raises(InputError, match=r"none\.csv: no such file; expected a table"):
        files.require(tmp_path / "none.csv", "a table")


@contextmanager
def full_disk():
    """No file grows beyond 1,000 bytes, that of pytest's own report neither."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


ROWS = pd.DataFrame({"kind": ["upper"] * 500, "value": [i / 7 for i in range(500)]})
SCORES = pd.DataFrame({"world": ["in", "out"] * 250, "repeat": 0, "run": range(500)})


def figure():
    drawn, (ax,) = plotting.panels(1)
    ax.plot([1, 2])
    return drawn


@pytest.mark.parametrize(
    ("name", "write"),
    [
        ("estimates.csv", lambda path: estimates.write(path, ROWS, GRID)),
        ("s.parquet", lambda path: scores.write(path, SCORES.assign(score=ROWS["value"]), {})),
        ("f.png", lambda path: plotting.save(figure(), [path], "footer")),
        ("f.pdf", lambda path: plotting.save(figure(), [path], "footer")),
    ],
)
def test_a_full_disk_is_told_and_leaves_nothing(tmp_path, name, write):
    with pytest.raises(InputError) as caught, full_disk():
        write(tmp_path / name)
    assert str(caught.value) == f"{tmp_path / name}: cannot be written: File too large"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("number", [errno.EACCES, errno.EROFS, errno.ENOSPC])
def test_a_directory_that_cannot_be_written_is_told(tmp_path, monkeypatch, number):
    def refuse(**_):
        raise OSError(number, "refused")

    monkeypatch.setattr(tempfile, "mkstemp", refuse)
    with (
        pytest.raises(InputError, match=r"a\.csv: cannot be written: "),
        files.atomic(tmp_path / "a.csv"),
    ):
        pass


def test_a_place_below_a_file_or_taken_by_a_directory_is_told(tmp_path):
    (tmp_path / "file").write_text("")
    (tmp_path / "directory").mkdir()
    for name in ("file/a.csv", "directory"):
        with (
            pytest.raises(InputError, match=f"{name}: cannot be written: "),
            files.atomic(tmp_path / name) as temporary,
        ):
            temporary.write_text("new")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["directory", "file"]


def test_an_error_of_reading_another_file_is_not_blamed_on_the_one_written(tmp_path):
    with pytest.raises(FileNotFoundError), files.atomic(tmp_path / "a.csv"):
        (tmp_path / "other").read_text()


def test_one_process_alone_is_in_a_directory(tmp_path):
    place = tmp_path / "checkpoint"
    with files.alone(place, "another process trains it"):
        expected = re.escape(f"{place}: another process trains it; wait until it has ended, or")
        with (
            pytest.raises(InputError, match=expected),
            files.alone(place, "another process trains it"),
        ):
            pass
        (place / "finished").touch()
    # What it kept stays, and the directory is free.
    with files.alone(place, "another process trains it"):
        (place / "finished").unlink()
    assert not place.exists()


def test_an_empty_directory_of_the_user_stays_and_a_file_is_refused_by_name(tmp_path):
    with files.alone(tmp_path / "new", ""):
        pass
    (tmp_path / "own").mkdir()
    with files.alone(tmp_path / "own", ""):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["own"]
    (tmp_path / "file").touch()
    expected = f"{tmp_path / 'file'}: cannot be written: File exists"
    with pytest.raises(InputError, match=re.escape(expected)), files.alone(tmp_path / "file", ""):
        pass


def test_parts_share_a_directory_but_not_with_the_whole(tmp_path):
    place = tmp_path / "checkpoint"

    def refused(part):
        with pytest.raises(InputError, match="at work"), files.alone(place, "at work", part):
            pass

    with files.alone(place, "at work", "0-2"):
        with files.alone(place, "at work", "1-2"):
            refused("1-2")
        refused("0-2")
        refused("")
    assert not place.exists()
    with files.alone(place, "at work"):
        refused("0-2")


def test_a_lock_that_its_holder_removed_is_made_again(tmp_path, monkeypatch):
    """Between the moments at which a process opens the file and locks it."""
    place, flock = tmp_path / "checkpoint", files.fcntl.flock
    removed = []

    def lock(opened, how):
        if not removed:
            removed.append((place / ".lock").unlink())
        flock(opened, how)

    monkeypatch.setattr(files.fcntl, "flock", lock)
    with files.alone(place, ""):
        assert (place / ".lock").exists()


def test_without_locks_in_the_file_system_a_warning_says_so(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(files.fcntl, "flock", refuse)
    with (
        pytest.warns(UserWarning, match="cannot be locked: No locks available"),
        files.alone(tmp_path / "a", ""),
    ):
        assert (tmp_path / "a").is_dir()


GRID = "a at laptop (1f)"
HEAD = ",".join(estimates.COLUMNS) + "\n"
ROW = f"epsilon,c,pld,upper,,1.5,,,0.95,{GRID}\n"


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("", "not a readable CSV file"),
        (HEAD, "has no rows"),
        (HEAD + ROW + ROW[:-3], "ends within a line; the file is cut short"),
        (HEAD + ROW + ROW[:9] + "\n", f"grid: got 'nan'; expected '{GRID}'"),
        (HEAD + ROW + ROW.replace("laptop", "smoke"), "grid: got 'a at smoke (1f)'; expected"),
        (HEAD + ROW + ROW.replace("1.5", "many"), "value: got 'many'; expected numbers"),
        (HEAD + ROW.replace("upper", ""), "kind: got 'nan'; expected one of upper"),
        (HEAD + ROW.replace("upper", "x" * 9000), "kind: got 'xxx"),
        (HEAD + "a" + ",1" * 20 + "\n" + ROW, "e.csv: "),
        (HEAD.replace("value", "wert") + ROW, "lacks the columns value"),
        (HEAD + ROW + "\xff", "cannot be read"),
    ],
)
def test_estimates_that_were_cut_or_edited_amiss_are_refused(tmp_path, content, expected):
    path = tmp_path / "e.csv"
    path.write_bytes(content.encode("latin-1"))
    with pytest.raises(InputError) as caught:
        estimates.read(path, GRID)
    message = str(caught.value)
    assert message.startswith(f"{path}: ")
    assert expected in message
    assert len(message.splitlines()) == 1
    assert len(message) < 400 + len(str(path))


def test_estimates_keep_every_digit(tmp_path):
    estimates.write(tmp_path / "e.csv", ROWS, GRID)
    assert list(estimates.read(tmp_path / "e.csv", GRID)["value"]) == list(ROWS["value"])


@pytest.mark.parametrize("gone", ["before it is opened", "before it is looked at"])
def test_a_directory_that_another_process_removes_is_made_again(tmp_path, monkeypatch, gone):
    """Whoever leaves a directory removes it; the next may have opened the old lock, or not yet."""
    directory, times = tmp_path / "work", iter([True])
    method = "open" if "opened" in gone else "stat"
    as_it_is = getattr(type(directory), method)

    def after_the_other(path, *arguments, **options):
        if path.name.startswith(".lock") and next(times, False):
            shutil.rmtree(directory)
        return as_it_is(path, *arguments, **options)

    monkeypatch.setattr(type(directory), method, after_the_other)
    with files.alone(directory, "someone is in it"):
        assert [path.name for path in directory.iterdir()] == [".lock"]
    assert not directory.exists()


def test_a_lock_that_cannot_be_made_is_refused_by_name(tmp_path):
    (tmp_path / ".lock").symlink_to(tmp_path / "nowhere" / "lock")
    with pytest.raises(InputError, match=r"\.lock"), files.alone(tmp_path, "someone is in it"):
        pass
