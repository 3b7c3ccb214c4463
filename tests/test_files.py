import pytest

from hiddenstate import files
from hiddenstate.errors import InputError


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


def test_a_missing_file_is_named_with_what_was_expected(tmp_path):
    with pytest.raises(InputError, match=r"none\.csv: no such file; expected a table"):
        files.require(tmp_path / "none.csv", "a table")
