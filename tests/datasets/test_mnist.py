"""The MNIST files that come with the package, and those of a data directory."""

import gzip
import hashlib
import shutil
import struct
import tomllib
from fnmatch import fnmatch
from pathlib import Path

import numpy as np
import pytest

from hiddenstate.datasets import data, mnist
from hiddenstate.errors import InputError

ROOT = Path(__file__).parents[2]
SHIPPED = ROOT / "src/hiddenstate/datasets/mnist"


@pytest.fixture
def nowhere(tmp_path, monkeypatch):
    """A data directory without any data."""
    monkeypatch.setenv("HIDDENSTATE_DATA", str(tmp_path))
    return tmp_path


def test_the_files_are_those_that_torchvision_downloads():
    from torchvision.datasets import MNIST

    found = {
        path.name: hashlib.md5(path.read_bytes(), usedforsecurity=False).hexdigest()
        for path in SHIPPED.glob("*.gz")
    }
    assert found == dict(MNIST.resources)


def test_they_are_part_of_the_package_with_their_licence():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    patterns = project["tool"]["setuptools"]["package-data"]["hiddenstate.datasets.mnist"]
    for name in (*(f"{name}.gz" for name in mnist.SHA256), "LICENSE.md"):
        assert any(fnmatch(name, pattern) for pattern in patterns)
    licence = (SHIPPED / "LICENSE.md").read_text()
    for words in ("Yann LeCun", "Corinna Cortes", "Burges", "licenses/by-sa/3.0"):
        assert words in licence


@pytest.mark.whole
def test_without_a_data_directory_mnist_is_the_package_s(nowhere, monkeypatch):
    from torchvision.datasets import MNIST

    assert data.place("mnist") is None and data.place("raw:mnist") is None
    train, test = data.load("mnist"), data.load("mnist", "test")
    assert train.x.shape == (60000, 1, 28, 28) and test.x.shape == (10000, 1, 28, 28)
    assert train.x.dtype == np.float32 and train.y.dtype == np.int64 and train.classes == 10
    assert train.x.min() == 0 and train.x.max() == 1
    # As torchvision reads them: of the training images, and with their labels.
    raw = nowhere / "MNIST/raw"
    raw.mkdir(parents=True)
    for path in SHIPPED.glob("*.gz"):
        (raw / path.stem).write_bytes(gzip.decompress(path.read_bytes()))
    for ours, theirs in ((train, MNIST(nowhere)), (test, MNIST(nowhere, train=False))):
        np.testing.assert_array_equal(ours.x[:, 0], theirs.data.numpy().astype("f4") / 255)
        np.testing.assert_array_equal(ours.y, theirs.targets.numpy())
    # The halves that every cached score of an audit on MNIST was trained on.
    expected = "e92322a054cf50bf88789317f055e18fc98af205532346954e0b1b18653a8eca"
    assert data.splits("mnist").sha256 == expected


def idx(array: np.ndarray) -> bytes:
    header = struct.pack(">HBB", 0, 8, array.ndim) + struct.pack(f">{array.ndim}I", *array.shape)
    return header + array.tobytes()


def test_a_data_directory_is_asked_first_and_checked(nowhere, monkeypatch):
    raw = nowhere / "MNIST/raw"
    raw.mkdir(parents=True)
    rng = np.random.default_rng(0)
    images, labels = rng.integers(256, size=(5, 28, 28)), rng.integers(10, size=5)
    for part in ("train", "t10k"):
        (raw / f"{part}-images-idx3-ubyte").write_bytes(idx(images.astype(np.uint8)))
        (raw / f"{part}-labels-idx1-ubyte").write_bytes(idx(labels.astype(np.uint8)))
    assert data.place("mnist") == raw
    with pytest.raises(InputError, match=r"train-images-idx3-ubyte: SHA-256 \w+; expected ba8910"):
        data.load("mnist")
    digests = {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in raw.iterdir()}
    monkeypatch.setattr(mnist, "SHA256", digests)
    loaded = data.load("mnist")
    np.testing.assert_array_equal(loaded.x[:, 0], (images / 255).astype(np.float32))
    np.testing.assert_array_equal(loaded.y, labels)
    (raw / "t10k-labels-idx1-ubyte").unlink()
    with pytest.raises(InputError, match=r"t10k-labels-idx1-ubyte: not readable .*No such file"):
        data.load("mnist", "test")


def test_a_damaged_file_of_the_package_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(mnist, "files", lambda _: tmp_path)
    with pytest.raises(InputError, match=r"t10k-images-idx3-ubyte\.gz: not readable"):
        mnist.records("test")
    for path in SHIPPED.glob("t10k*"):
        shutil.copy(path, tmp_path)
    labels = tmp_path / "t10k-labels-idx1-ubyte.gz"
    whole = labels.read_bytes()
    for content in (whole[:2000], b"damaged"):
        labels.write_bytes(content)
        with pytest.raises(InputError, match=r"t10k-labels-idx1-ubyte\.gz: not readable"):
            mnist.records("test")
    labels.write_bytes(gzip.compress(b"another"))
    with pytest.raises(InputError, match=r"\.gz: SHA-256 \w+; expected ff7bcf\w+, the published"):
        mnist.records("test")
