import lzma
import re
import tomllib
from fnmatch import fnmatch
from pathlib import Path

import numpy as np
import pytest

from hiddenstate import files
from hiddenstate.datasets import data, digits, housing
from hiddenstate.errors import InputError

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def records():
    return housing.records()


def test_the_features_are_those_of_scikit_learn(records):
    x, y = records
    assert x.shape == (20640, 8) and x.dtype == np.float32 and y.dtype == np.int64
    np.testing.assert_allclose(x.mean(axis=0), 0, atol=1e-4)
    np.testing.assert_allclose(x.std(axis=0), 1, atol=1e-4)
    # First record of the source, and the means and deviations that scikit-learn's version has.
    first = [8.3252, 41.0, 6.98412698, 1.02380952, 322.0, 2.55555556, 37.88, -122.23]
    mean = [3.870671, 28.639486, 5.429000, 1.096675, 1425.476744, 3.070655, 35.631861, -119.569704]
    spread = [1.899776, 12.585253, 2.474113, 0.473900, 1132.434688, 10.385797, 2.135901, 2.003483]
    expected = (np.array(first) - mean) / spread
    # The medians put in for 207 missing counts of bedrooms move that one feature's moments.
    np.testing.assert_allclose(np.delete(x[0], 3), np.delete(expected, 3), atol=2e-5)
    assert x[0, 3] == pytest.approx(expected[3], abs=0.02)


def test_half_of_the_labels_are_above_the_median(records):
    _, y = records
    assert set(y) == {0, 1}
    assert y.mean() == pytest.approx(0.5, abs=0.001)
    # 179,700 is the median value of the census; the first district's is 452,600.
    assert y[0] == 1


@pytest.mark.whole
def test_the_splits_are_disjoint_standardised_and_need_no_place(monkeypatch, records):
    monkeypatch.setenv("HIDDENSTATE_DATA", "nowhere")
    data.require("housing")
    splits = data.splits("housing")
    assert len(splits.train) == 16512 and len(splits.test) == 4128 and splits.classes == 2
    assert splits.public.x.mean(axis=0) == pytest.approx(np.zeros(8), abs=1e-4)
    raw = data.splits("raw:housing")
    found = np.concatenate((raw.train.x, raw.test.x))
    np.testing.assert_array_equal(np.sort(found, axis=0), np.sort(records[0], axis=0))


@pytest.mark.parametrize("name", ["housing", "digits"])
def test_a_damaged_file_is_refused(monkeypatch, tmp_path, name):
    records = {"housing": housing.records, "digits": digits.records}[name]
    monkeypatch.setattr(files, "files", lambda _: tmp_path)
    path = tmp_path / f"{name}.csv.xz"
    with pytest.raises(InputError, match="not readable"):
        records()
    for content in (b"damaged", lzma.compress(b"a,b\n1,2\n")):
        path.write_bytes(content)
        with pytest.raises(InputError, match=re.escape(str(path))):
            records()


@pytest.mark.parametrize("name", ["housing", "digits"])
def test_the_file_is_part_of_the_package(name):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    patterns = project["tool"]["setuptools"]["package-data"]["hiddenstate.datasets"]
    assert any(fnmatch(f"{name}.csv.xz", pattern) for pattern in patterns)


def test_the_digits_are_those_of_scikit_learn():
    images, labels = digits.records()
    assert images.shape == (1797, 1, 8, 8) and images.max() == 16
    # How many there are of each, and the first row of the first image, as its documentation shows.
    assert np.bincount(labels).tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
    assert images[0, 0, 0].tolist() == [0, 0, 5, 13, 9, 1, 0, 0]
