"""Features of the public code's archive, imported."""

import numpy as np
import pytest

from hiddenstate import cli
from hiddenstate.datasets import data


@pytest.fixture
def archive(tmp_path):
    rng = np.random.default_rng(0)
    folder = tmp_path / "data" / "cifar10_half_finetune_last"
    folder.mkdir(parents=True)
    for word, n in (("pretrain", 30), ("train", 20), ("test", 10)):
        np.save(folder / f"X_{word}.npy", rng.normal(size=(n, 7)).astype(np.float32))
        np.save(folder / f"y_{word}.npy", np.arange(n) % 10)
    return folder


def imported(archive, out):
    return cli.main(["import-features", str(archive), str(out)])


def test_features_are_read_as_the_archive_has_them(archive, tmp_path, monkeypatch, capsys):
    assert imported(archive, tmp_path / "wrn.npz") == 0
    told = capsys.readouterr().out
    assert "30 public, 20 private, 10 test records of 7 features in 10 classes" in told
    monkeypatch.setenv("HIDDENSTATE_DATA", str(tmp_path))
    splits = data.splits("features:wrn.npz")
    parts = zip(
        (splits.public, splits.private, splits.test), ("pretrain", "train", "test"), strict=True
    )
    for part, word in parts:
        np.testing.assert_array_equal(part.x, np.load(archive / f"X_{word}.npy"))
        np.testing.assert_array_equal(part.y, np.load(archive / f"y_{word}.npy"))
    before = (tmp_path / "wrn.npz").read_bytes()
    assert imported(archive, tmp_path / "wrn.npz") == 0
    # The digest that is told is the same for the same arrays.
    assert told.splitlines()[1] == capsys.readouterr().out.splitlines()[1]
    assert (tmp_path / "wrn.npz").read_bytes() == before


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda f: (f / "X_test.npy").unlink(), "X_test.npy: no such file"),
        (lambda f: (f / "y_train.npy").write_bytes(b"PK"), "y_train.npy"),
        (lambda f: np.save(f / "y_train.npy", np.arange(3)), "got 3 labels; expected 20"),
        (lambda f: np.save(f / "X_train.npy", np.ones((20, 6))), "expected (20, 7)"),
        (lambda f: np.save(f / "X_train.npy", np.full((20, 7), np.nan)), "record 0 holds nan"),
    ],
)
def test_what_cannot_be_used_is_named_and_nothing_is_written(
    archive, tmp_path, capsys, change, words
):
    change(archive)
    (tmp_path / "wrn.npz").write_bytes(b"before")
    assert imported(archive, tmp_path / "wrn.npz") == 2
    told = capsys.readouterr().err
    assert words in told and str(archive) in told
    assert (tmp_path / "wrn.npz").read_bytes() == b"before"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data", "wrn.npz"]


def test_another_kind_of_file_is_refused(archive, tmp_path, capsys):
    assert imported(archive, tmp_path / "wrn.csv") == 2
    assert "expected a name that ends in .npz" in capsys.readouterr().err
