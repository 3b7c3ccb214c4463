import hashlib
import pickle
import struct

import numpy as np
import pytest
from PIL import Image

from hiddenstate import data
from hiddenstate.errors import InputError


def test_digits_are_bundled_and_split_without_overlap():
    train, test = data.load("digits"), data.load("digits", "test")
    assert train.x.shape == (1438, 1, 8, 8) and len(test) == 359
    assert train.x.dtype == np.float32 and train.x.min() == 0 and train.x.max() == 1
    assert train.y.dtype == np.int64 and set(train.y) == set(range(10))
    images = {x.tobytes() for x in (*train.x, *test.x)}
    assert len(images) > 1790  # all but a few duplicates of the source
    assert train.sha256 == data.load("digits").sha256 != test.sha256


def test_halves_are_disjoint_and_whole():
    whole = data.load("digits")
    first, second = whole.halves()
    np.testing.assert_array_equal(np.concatenate((first.x, second.x)), whole.x)
    np.testing.assert_array_equal(np.concatenate((first.y, second.y)), whole.y)


def test_unknown_names_and_splits_are_refused():
    with pytest.raises(InputError, match="imagenet"):
        data.load("imagenet")
    with pytest.raises(InputError, match="validation"):
        data.load("digits", "validation")


@pytest.mark.parametrize("name", ["mnist", "cifar10", "cifar100"])
def test_an_absent_data_set_names_the_place_and_the_ways_out(name, tmp_path, monkeypatch):
    monkeypatch.setenv("HIDDENSTATE_DATA", str(tmp_path))
    with pytest.raises(InputError) as caught:
        data.load(name)
    message = str(caught.value)
    assert str(tmp_path) in message and "HIDDENSTATE_DATA" in message and "download" in message
    assert list(tmp_path.iterdir()) == []


def _idx(array: np.ndarray) -> bytes:
    header = struct.pack(">HBB", 0, 8, array.ndim) + struct.pack(f">{array.ndim}I", *array.shape)
    return header + array.tobytes()


def test_mnist_files_are_read_and_checked(tmp_path, monkeypatch):
    raw = tmp_path / "MNIST" / "raw"
    raw.mkdir(parents=True)
    rng = np.random.default_rng(0)
    images, labels = rng.integers(256, size=(5, 28, 28)), rng.integers(10, size=5)
    for part in ("train", "t10k"):
        (raw / f"{part}-images-idx3-ubyte").write_bytes(_idx(images.astype(np.uint8)))
        (raw / f"{part}-labels-idx1-ubyte").write_bytes(_idx(labels.astype(np.uint8)))
    monkeypatch.setenv("HIDDENSTATE_DATA", str(tmp_path))
    with pytest.raises(InputError, match="SHA-256"):
        data.load("mnist")
    digests = {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in raw.iterdir()}
    monkeypatch.setattr(data, "_MNIST_SHA256", digests)
    loaded = data.load("mnist")
    np.testing.assert_array_equal(loaded.x[:, 0], (images / 255).astype(np.float32))
    np.testing.assert_array_equal(loaded.y, labels)
    assert loaded.classes == 10


def test_cifar_pixels_and_labels_come_through_in_order(tmp_path, monkeypatch):
    from torchvision import datasets

    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    rng = np.random.default_rng(0)
    images, labels = rng.integers(256, size=(4, 3, 32, 32), dtype=np.uint8), [3, 0, 9, 3]
    content = {"data": images.reshape(4, -1), "labels": labels}
    (folder / "data_batch_1").write_bytes(pickle.dumps(content))
    (folder / "batches.meta").write_bytes(pickle.dumps({"label_names": [*"abcdefghij"]}))
    # The published checksums cannot hold for invented pictures.
    monkeypatch.setattr(datasets.CIFAR10, "train_list", [["data_batch_1", None]])
    monkeypatch.setattr(datasets.CIFAR10, "test_list", [])
    meta = {**datasets.CIFAR10.meta, "md5": None}
    monkeypatch.setattr(datasets.CIFAR10, "meta", meta)
    monkeypatch.setenv("HIDDENSTATE_DATA", str(tmp_path))
    loaded = data.load("cifar10")
    np.testing.assert_array_equal(loaded.x, (images / 255).astype(np.float32))
    np.testing.assert_array_equal(loaded.y, labels)
    assert loaded.classes == 10


def test_damaged_cifar_files_are_refused_before_they_are_loaded(tmp_path, monkeypatch):
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    for name in (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch", "batches.meta"):
        (folder / name).write_bytes(b"not what was published")
    monkeypatch.setenv("HIDDENSTATE_DATA", str(tmp_path))
    with pytest.raises(InputError, match="damaged"):
        data.load("cifar10")


def test_an_image_folder_becomes_records_of_one_size(tmp_path):
    for name, shade, size in (("cats", 255, (6, 9)), ("dogs", 0, (5, 5))):
        (tmp_path / name).mkdir()
        Image.new("RGB", size, (shade,) * 3).save(tmp_path / name / "one.png")
    colour = data.image_folder(tmp_path, size=4)
    assert colour.x.shape == (2, 3, 4, 4) and colour.classes == 2
    np.testing.assert_array_equal(colour.y, [0, 1])
    assert colour.x[0].min() == 1 and colour.x[1].max() == 0
    assert data.image_folder(tmp_path, size=4, channels=1).x.shape == (2, 1, 4, 4)


def test_image_folders_that_are_absent_empty_or_damaged_are_explained(tmp_path):
    with pytest.raises(InputError, match="no such directory"):
        data.image_folder(tmp_path / "absent", size=4)
    with pytest.raises(InputError, match="one directory of images a class"):
        data.image_folder(tmp_path, size=4)
    (tmp_path / "cats").mkdir()
    (tmp_path / "cats" / "broken.png").write_bytes(b"no image")
    with pytest.raises(InputError, match="cannot be read"):
        data.image_folder(tmp_path, size=4)
