"""Content of data sets, with which limits of scale files compare; no record is read."""

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple, Protocol
from zipfile import BadZipFile, ZipFile

import numpy as np

from hiddenstate.datasets import data
from hiddenstate.pipeline.family import at_most, limit
from hiddenstate.pipeline.runnable import DATA, IMAGE

WIDTHS = {
    **{"mnist_cnn": 32, "mnist_linear": 784, "cifar_cnn": 128, "digits_cnn": 16, "digits_mlp": 16},
    **{"digits_resnet": 16, "fcnn": 6, "resnet18": 512, "wrn_16_4": 256},
}
"""Features that the last layer of a model is shown."""

CLASSES = {"digits": 10, "housing": 2, "mnist": 10, "cifar10": 10, "cifar100": 100}


class Held(NamedTuple):
    """Classes, records to train on by half, and the shape of a record."""

    classes: int
    public: int
    private: int
    shape: tuple[int, ...]

    @property
    def train(self) -> int:
        return self.public + self.private


def held(source: str) -> Held | None:
    """Classes, halves and shape of records of the data set of ``source``, as for ``data.splits``.

    None of one that is absent or cannot be read, which its jobs refuse with the reason.
    """
    name = source.removeprefix("raw:")
    if name in DATA:
        shape, records = DATA[name]
        return Held(CLASSES[name], records // 2, records - records // 2, shape)
    found = data.place(source)
    if found is None or not found.exists():
        return None
    return _features(found) if source.startswith("features:") else _folder(found)


@cache
def _features(path: Path) -> Held | None:
    try:
        # An array of the file is read where it is asked for.
        with np.load(path, allow_pickle=False) as file:
            labels = [file[f"{part}_y"] for part in ("public", "private", "test")]
        with ZipFile(path) as arrays, arrays.open("public_x.npy") as head:
            old = np.lib.format.read_magic(head) == (1, 0)
            read = (
                np.lib.format.read_array_header_1_0 if old else np.lib.format.read_array_header_2_0
            )
            shape, _, _ = read(head)
        classes = max(int(part.max()) for part in labels) + 1
    except (OSError, ValueError, LookupError, TypeError, BadZipFile):
        return None
    return Held(classes, len(labels[0]), len(labels[1]), shape[1:])


@cache
def _folder(path: Path) -> Held | None:
    train = path / "train"
    if not train.is_dir():
        return None
    classes, records = sum(entry.is_dir() for entry in train.iterdir()), len(data.images(train))
    return Held(classes, records // 2, records - records // 2, IMAGE)


class Network(Protocol):
    """A section of a network that is trained as a whole."""

    @property
    def dataset(self) -> str: ...

    @property
    def model(self) -> str: ...


def network(path: str, section: Network, key: str, needed: int) -> Iterator[str]:
    """Limits of a network that DP-SGD trains on so many records, which ``key`` asks for."""
    if section.model == "features":
        yield limit(f"{path}.model", repr(section.model), "a network, whose layers are trained")
    if found := held(section.dataset):
        words = f"records, those of {section.dataset}"
        yield from at_most(f"{path}.{key}", needed, found.train, words)
        if found.classes < 2:
            yield limit(f"{path}.dataset", repr(section.dataset), "data of two classes at least")
