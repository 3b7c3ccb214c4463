import dataclasses
import os
import pickle
import re

import numpy as np
import pytest
from PIL import Image

from hiddenstate.datasets import data
from hiddenstate.errors import InputError
from hiddenstate.pipeline import held


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


@pytest.mark.parametrize("name", ["cifar10", "cifar100"])
def test_an_absent_data_set_names_the_place_and_the_ways_out(name, tmp_path, monkeypatch):
    monkeypatch.setenv("HIDDENSTATE_DATA", str(tmp_path))
    with pytest.raises(InputError) as caught:
        data.load(name)
    message = str(caught.value)
    assert str(tmp_path) in message and "HIDDENSTATE_DATA" in message and "download" in message
    assert list(tmp_path.iterdir()) == []


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


# Public, private and test


@pytest.fixture
def root(tmp_path, monkeypatch):
    """The directory of data sets."""
    monkeypatch.setenv("HIDDENSTATE_DATA", str(tmp_path))
    return tmp_path


def test_splits_are_disjoint_and_standardised_by_the_public_half_alone(root):
    found, raw = data.splits("digits"), data.load("digits")
    assert (len(found.public), len(found.private), len(found.test)) == (719, 719, 359)
    # Disjoint: together they are all of the data set, in its order.
    public, private = raw.x[:719].astype(np.float64), raw.x[719:]
    mean, deviation = public.mean(), public.std()
    for part, pixels in ((found.public, public), (found.private, private)):
        np.testing.assert_allclose(part.x, (pixels - mean) / deviation, rtol=1e-5, atol=1e-6)
    test = data.load("digits", "test")
    np.testing.assert_allclose(found.test.x, (test.x - mean) / deviation, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(np.concatenate((found.public.y, found.private.y)), raw.y)
    np.testing.assert_array_equal(found.test.y, test.y)
    assert abs(found.public.x.mean(dtype=float)) < 1e-6 < abs(found.private.x.mean(dtype=float))
    assert found.public.x.dtype == np.float32
    np.testing.assert_array_equal(found.train.x[700:740], np.concatenate(
        (found.public.x[700:], found.private.x[:21])
    ))  # fmt: skip
    assert found.classes == found.train.classes == 10


def test_the_digest_of_splits_sees_every_part(root):
    whole = data.splits("digits")
    digests = {whole.sha256}
    for part in ("public", "private", "test"):
        old = getattr(whole, part)
        x, y = old.x.copy(), old.y.copy()
        x[3, 0, 4, 4] = np.nextafter(x[3, 0, 4, 4], 9)
        y[3] = (y[3] + 1) % 10
        for changed in (dataclasses.replace(old, x=x), dataclasses.replace(old, y=y)):
            digests.add(dataclasses.replace(whole, **{part: changed}).sha256)
    digests.add(data.Splits(whole.private, whole.public, whole.test).sha256)
    assert len(digests) == 8
    assert data.Splits(whole.public, whole.private, whole.test).sha256 == whole.sha256


def paint(folder, classes, images):
    """PNGs whose shade tells the class; the blue channel is brighter than the others."""
    for label, name in enumerate(classes):
        (folder / name).mkdir(parents=True)
        for i in range(images):
            shade = 20 * label + i
            Image.new("RGB", (4, 4), (shade, shade, shade + 100)).save(
                folder / name / f"{i:02}.png"
            )


def test_a_folder_of_images_has_its_classes_in_both_halves(root):
    paint(root / "pets" / "train", ("cats", "dogs", "newts"), images=12)
    paint(root / "pets" / "test", ("cats", "dogs", "newts"), images=2)
    found = data.splits("folder:pets")
    assert (len(found.public), len(found.private), len(found.test)) == (18, 18, 6)
    assert found.public.x.shape == (18, 3, 32, 32) and found.classes == 3
    for half in (found.public, found.private):
        assert set(half.y) == {0, 1, 2}
    # Labels stay with their images: shades rise with the class.
    x = np.concatenate((found.public.x, found.private.x))[:, 0, 0, 0]
    y = np.concatenate((found.public.y, found.private.y))
    assert max(x[y == 0]) < min(x[y == 1]) < max(x[y == 1]) < min(x[y == 2])
    assert len(set(x)) == 36
    # Each channel by its own mean and deviation.
    np.testing.assert_allclose(found.public.x.mean(axis=(0, 2, 3)), 0, atol=1e-5)
    np.testing.assert_allclose(found.public.x.std(axis=(0, 2, 3)), 1, rtol=1e-5)
    data._splits.cache_clear()
    assert data.splits("folder:pets").sha256 == found.sha256


def test_a_channel_that_never_differs_is_refused(root):
    # Standardised, it was NaN.
    for part in ("train", "test"):
        for name, red in (("cats", 40), ("dogs", 200)):
            (root / "red" / part / name).mkdir(parents=True)
            for i in range(4):
                place = root / "red" / part / name / f"{i}.png"
                Image.new("RGB", (32, 32), (red + i, 0, i)).save(place)
    with pytest.raises(InputError, match="data set folder:red: channel 1 is 0 in all public"):
        data.splits("folder:red")


def test_data_read_from_one_place_are_not_remembered_for_another(root, monkeypatch):
    for place in ("one", "other"):
        for part in ("train", "test"):
            paint(root / place / "pets" / part, ("cats", "dogs"), images=2 + (place == "other"))
    found = []
    for place in ("one", "other"):
        monkeypatch.setenv("HIDDENSTATE_DATA", str(root / place))
        found.append(len(data.splits("folder:pets").train))
    assert found == [4, 6]


def test_a_folder_whose_parts_have_other_classes_is_refused(root):
    paint(root / "pets" / "train", ("cats", "dogs"), images=2)
    paint(root / "pets" / "test", ("dogs", "newts"), images=2)
    with pytest.raises(InputError, match=r"pets: test has the classes dogs, newts; expected cats"):
        data.splits("folder:pets")


def arrays():
    rng = np.random.default_rng(0)
    return {
        f"{part}_{kind}": rng.normal(size=(n, 5)) if kind == "x" else rng.integers(4, size=n)
        for part, n in (("public", 6), ("private", 7), ("test", 8))
        for kind in "xy"
    }


def test_features_are_taken_as_they_are(root):
    given = arrays()
    given["test_y"][2] = 6  # a class that no training record has
    np.savez(root / "wide.npz", **given)
    found = data.splits("features:wide.npz")
    for part in ("public", "private", "test"):
        np.testing.assert_array_equal(getattr(found, part).x, given[f"{part}_x"].astype("f4"))
        np.testing.assert_array_equal(getattr(found, part).y, given[f"{part}_y"])
    assert found.classes == 7


def test_images_are_those_that_a_folder_s_records_are(root):
    for part in ("train", "test"):
        paint(root / "pets" / part, ("cats", "dogs"), images=2)
    train = root / "pets/train"
    (train / "cats/deep").mkdir()
    for further in ("cats/deep/a.PNG", "beside.png", "cats/not.txt"):
        Image.new("RGB", (4, 4)).save(train / further, format="png")
    (root / "newts").mkdir()
    Image.new("RGB", (4, 4)).save(root / "newts/0.jpg")
    (train / "newts").symlink_to(root / "newts")
    expected = ["cats/00.png", "cats/01.png", "cats/deep/a.PNG", "dogs/00.png", "dogs/01.png"]
    expected += ["newts/0.jpg"]
    assert [path.relative_to(train).as_posix() for path in data.images(train)] == expected
    assert len(data.image_folder(train, size=4)) == len(expected)
    assert held.held("folder:pets") == held.Held(3, 3, 3, (3, 32, 32))
    assert data.images(root / "absent") == []


@pytest.mark.parametrize(
    ("given", "reason"), [("", "it is empty"), ("  ", "it is empty"), ("~nosuch/x", "no user has")]
)
@pytest.mark.parametrize(
    "read",
    [lambda: data.splits("digits"), lambda: data.place("folder:x"), lambda: data.load("mnist")],
)
def test_a_variable_that_names_no_directory_is_refused(monkeypatch, given, reason, read):
    monkeypatch.setenv("HIDDENSTATE_DATA", given)
    message = f"HIDDENSTATE_DATA: got {given!r}, but {reason}.*; expected the directory"
    with pytest.raises(InputError, match=message):
        read()


def test_the_digest_of_files_sees_names_and_bytes_alone(root):
    (root / "own").mkdir()
    for part in ("train", "test"):
        (root / f"own/{part}/cat").mkdir(parents=True)
        (root / f"own/{part}/cat/1.png").write_bytes(b"12")
    np.savez(root / "wide.npz", **arrays())

    def digests():
        data._digest.cache_clear()
        return [data.digest(source) for source in ("folder:own", "features:wide.npz")]

    first = digests()
    assert len({*first, None}) == 3
    os.utime(root / "own/train/cat/1.png", (1, 1))
    for unread in ("own/readme", "own/train/cat/.DS_Store", "own/train/beside.png"):
        (root / unread).write_text("read by nobody")
    assert digests() == first
    for path, content in (("own/train/cat/1.png", b"13"), ("own/test/cat/2.png", b"")):
        before = digests()[0]
        (root / path).write_bytes(content)
        assert digests()[0] != before
    np.savez(root / "wide.npz", **arrays() | {"test_y": np.zeros(8)})
    assert digests()[1] != first[1]
    for source in ("digits", "mnist", "cifar10", "raw:mnist", "folder:none", "features:none.npz"):
        assert data.digest(source) is None


@pytest.mark.parametrize("lacking", sorted(arrays()))
def test_features_without_one_of_their_arrays_are_refused(root, lacking):
    np.savez(root / "wide.npz", **{name: a for name, a in arrays().items() if name != lacking})
    with pytest.raises(InputError, match=rf"wide\.npz: .*{lacking}.*; expected an \.npz file with"):
        data.splits("features:wide.npz")


def test_damaged_features_are_refused(root):
    path = root / "wide.npz"
    np.savez(path, **arrays())
    whole = path.read_bytes()
    np.save(root / "one.npy", np.ones(3))
    one = (root / "one.npy").read_bytes()
    for content in (whole[: len(whole) // 2], b"", b"not an archive", one):
        path.write_bytes(content)
        with pytest.raises(
            InputError, match=r"wide\.npz: .*; expected an \.npz file with public_x"
        ):
            data.splits("features:wide.npz")


def test_features_with_too_few_labels_are_refused(root):
    given = arrays()
    np.savez(root / "wide.npz", **given | {"private_y": given["private_y"][:-1]})
    with pytest.raises(InputError, match=r"wide\.npz: private_y: got 6 labels; expected 7"):
        data.splits("features:wide.npz")


@pytest.mark.parametrize(
    ("name", "at", "value", "message"),
    [
        ("private_x", (3, 2), np.nan, r"private_x: record 3 holds nan \(entry 2\)"),
        ("test_x", (0, 0), np.inf, r"test_x: record 0 holds inf"),
        ("test_x", (0, 0), 1j, r"wide\.npz: Cannot cast .*complex"),
        ("public_y", 4, 0.5, r"public_y: record 4 has the label 0\.5"),
        ("test_y", 1, -1, r"test_y: record 1 has the label -1"),
        ("test_y", 1, np.nan, r"test_y: record 1 has the label nan"),
    ],
)
def test_features_that_are_no_numbers_or_classes_are_named(root, name, at, value, message):
    given = arrays()
    given[name] = given[name].astype(complex if value == 1j else float)
    given[name][at] = value
    np.savez(root / "wide.npz", **given)
    with pytest.raises(InputError, match=message):
        data.splits("features:wide.npz")


@pytest.mark.parametrize("shape", [(7, 1), (7, 4), ()])
def test_features_whose_labels_are_no_list_are_refused(root, shape):
    np.savez(root / "wide.npz", **arrays() | {"private_y": np.zeros(shape, int)})
    message = rf"wide\.npz: private_y: got shape {re.escape(str(shape))}; expected \(records,\)"
    with pytest.raises(InputError, match=message):
        data.splits("features:wide.npz")


def test_features_of_unlike_widths_are_refused(root):
    given = arrays()
    np.savez(root / "wide.npz", **given | {"test_x": given["test_x"][:, :4]})
    with pytest.raises(InputError, match=r"test_x: got shape \(8, 4\); expected \(8, 5\)"):
        data.splits("features:wide.npz")


@pytest.mark.parametrize("kind, layout", [("folder", "train/<class>"), ("features", "public_x")])
def test_what_is_required_but_absent_is_named_with_the_ways_to_provide_it(root, kind, layout):
    with pytest.raises(InputError) as caught:
        data.require(f"{kind}:some/where")
    message = str(caught.value)
    assert str(root / "some/where") in message
    assert layout in message and "HIDDENSTATE_DATA" in message


def test_required_data_sets_are_looked_for_and_not_read(root):
    data.require("digits")
    data.require("mnist")
    data.require("raw:mnist")
    with pytest.raises(InputError) as caught:
        data.require("cifar100")
    message = str(caught.value)
    assert str(root / "cifar-100-python") in message
    assert "HIDDENSTATE_DATA" in message and "download=True" in message
    (root / "cifar-100-python").mkdir(parents=True)
    data.require("cifar100")
    (root / "some.npz").write_bytes(b"")
    data.require("features:some.npz")


@pytest.mark.parametrize("source", ["imagenet", "folder", "folder:", "features:", "file:x", ""])
def test_unknown_sources_are_refused(root, source):
    with pytest.raises(InputError, match=r"expected one of digits, .*folder:<path> or feat"):
        data.require(source)


def test_raw_data_are_those_that_standardising_starts_from():
    raw, standardised = data.splits("raw:digits"), data.splits("digits")
    train = data.load("digits")
    assert np.array_equal(np.concatenate((raw.public.x, raw.private.x)), train.x)
    mean, deviation = raw.public.x.mean(dtype=np.float64), raw.public.x.std(dtype=np.float64)
    expected = (raw.test.x - mean) / deviation
    np.testing.assert_allclose(standardised.test.x, expected, atol=1e-6)


@pytest.mark.parametrize("source", ["raw:", "raw:nonesuch", "raw:folder:x"])
def test_raw_is_of_a_named_data_set(source):
    with pytest.raises(InputError, match="raw:<name>"):
        data.require(source)
