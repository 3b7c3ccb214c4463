"""Data sets as arrays: images in [0, 1], labels, and the digest that names exactly these numbers.

``digits``, ``housing`` (features, not images) and ``mnist`` come with this package. The others, and
MNIST where it lies there too, are read from the directory that the environment variable
HIDDENSTATE_DATA names (``data`` in the working directory if it is unset). All are checked against
the published files' checksums, and never replaced by another. (CIFAR is distributed as pickles:
torchvision verifies their MD5 sums before it loads them.)
"""

import hashlib
import os
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from hiddenstate import files
from hiddenstate.datasets import digits, housing, mnist
from hiddenstate.errors import InputError
from hiddenstate.streams import stream

NAMES = ("digits", "housing", "mnist", "cifar10", "cifar100")

_FOLDERS = {
    "mnist": "MNIST/raw",
    "cifar10": "cifar-10-batches-py",
    "cifar100": "cifar-100-python",
}
_PARTS = ("public", "private", "test")
LAYOUTS = {
    "folder": "a directory with train/<class>/<image> and test/<class>/<image>",
    "features": "an .npz file with public_x, public_y, private_x, private_y, test_x and test_y",
}


@dataclass(frozen=True, eq=False)
class Dataset:
    """Records with labels.

    x: shape (records, channels, height, width), float32 in [0, 1], or (records, features). y: shape
    (records,), int64.
    """

    name: str
    x: NDArray[np.float32]
    y: NDArray[np.int64]
    classes: int

    def __len__(self) -> int:
        return len(self.y)

    @property
    def sha256(self) -> str:
        """Digest of the records and labels, for provenance."""
        total = hashlib.sha256(np.ascontiguousarray(self.x).tobytes())
        total.update(np.ascontiguousarray(self.y).tobytes())
        return total.hexdigest()

    def take(self, indices: NDArray | slice) -> "Dataset":
        return Dataset(self.name, self.x[indices], self.y[indices], self.classes)

    def halves(self) -> tuple["Dataset", "Dataset"]:
        """First half (to pre-train on) and second half (private); the order is the data set's."""
        middle = len(self) // 2
        return self.take(slice(None, middle)), self.take(slice(middle, None))


def load(
    name: str, split: Literal["train", "test"] = "train", *, download: bool = False
) -> Dataset:
    """The data set called ``name``; ``download`` lets torchvision fetch what is not there."""
    if name not in NAMES:
        raise InputError(f"data set: got {name!r}; expected one of {', '.join(NAMES)}")
    if split not in ("train", "test"):
        raise InputError(f"split: got {split!r}; expected 'train' or 'test'")
    if name == "digits":
        return _digits(split)
    if name == "housing":
        return _housing(split)
    return _mnist(split) if name == "mnist" else _torchvision(name, split, download)


@dataclass(frozen=True, eq=False)
class Splits:
    """A data set as an audit uses it: public and private halves of the training data, and a test.

    Pixels are standardised by each channel's mean and deviation over the public half, unless raw.
    """

    public: Dataset
    private: Dataset
    test: Dataset

    @property
    def train(self) -> Dataset:
        x = np.concatenate((self.public.x, self.private.x))
        y = np.concatenate((self.public.y, self.private.y))
        return Dataset(self.public.name, x, y, self.public.classes)

    @property
    def classes(self) -> int:
        return self.public.classes

    @property
    def sha256(self) -> str:
        """Digest of all three parts, for provenance."""
        parts = (self.public, self.private, self.test)
        return hashlib.sha256("".join(part.sha256 for part in parts).encode()).hexdigest()


def place(source: str) -> Path | None:
    """Path of ``source``, as for ``splits``; None if it comes with a package."""
    kind, _, path = source.partition(":")
    if kind in ("folder", "features"):
        return _root() / path
    name = path if kind == "raw" else source
    if name not in _FOLDERS:
        return None
    found = _root() / _FOLDERS[name]
    return None if name == "mnist" and not found.exists() else found


def digest(source: str) -> str | None:
    """SHA-256 of the files of a data set of the user's own, by their names and bytes.

    None of one that comes with a package or has published checksums, and of one that is not there.
    It reads no image: of 60,000 it takes seconds, where ``splits`` takes minutes.
    """
    if source.partition(":")[0] not in LAYOUTS:
        return None
    found = place(source)
    return _digest(found) if found and found.exists() else None


@lru_cache(maxsize=8)
def _digest(path: Path) -> str:
    total = hashlib.sha256()
    parts = sorted([*images(path / "train"), *images(path / "test")])
    for file in [path] if path.is_file() else parts:
        # The size says where a file ends, so that no bytes can pass to the next one unnoticed.
        total.update(f"{file.relative_to(path).as_posix()}\0{file.stat().st_size}\0".encode())
        with file.open("rb") as content:
            while block := content.read(2**20):
                total.update(block)
    return total.hexdigest()


_IMAGES = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")
"""What torchvision's folders take for images, which is here as importing it takes seconds."""


def images(part: Path) -> list[Path]:
    """Every image of a part's classes, below ``part/<class>``, in one order everywhere.

    torchvision reads no other file, also none beside the folders of classes.
    """
    within = islice(os.walk(part, followlinks=True), 1, None)  # the first is the part itself
    return sorted(
        Path(folder, name)
        for folder, _, names in within
        for name in names
        if name.lower().endswith(_IMAGES) and os.path.isfile(os.path.join(folder, name))
    )


def require(source: str) -> None:
    """Raise InputError unless ``source``, as for ``splits``, can be read; reads none of it."""
    kind, _, path = source.partition(":")
    if kind == "raw" and path in NAMES:
        require(path)
    elif kind in ("folder", "features") and path:
        there = _root() / path
        if not there.exists():
            raise InputError(
                f"{there}: not there; expected {LAYOUTS[kind]}. The path is relative to the "
                "directory that the environment variable HIDDENSTATE_DATA names"
            )
    elif source not in NAMES:
        raise InputError(
            f"data set: got {source!r}; expected one of {', '.join(NAMES)}, "
            "raw:<name>, folder:<path> or features:<file>"
        )
    elif (found := place(source)) and not found.is_dir():
        raise InputError(_absent(source, "is not there"))


def splits(source: str) -> Splits:
    """The data of ``source``: a name in ``NAMES``, "folder:<path>" or "features:<file>".

    "raw:" before a name leaves its pixels in [0, 1]. A folder holds train/<class>/<image> and
    test/<class>/<image>, 32 x 32 pixels in colour or resized to that. A feature file is an .npz
    with arrays public_x (n, width), public_y (n,), and likewise private and test, used as they
    are. Paths are relative to HIDDENSTATE_DATA.
    """
    require(source)
    return _splits(source, _root())


@lru_cache(maxsize=2)
def _splits(source: str, root: Path) -> Splits:
    kind, _, path = source.partition(":")
    if kind == "features":
        return features(root / path)
    if kind == "folder":
        place = root / path
        train, test = (image_folder(place / part, size=32) for part in ("train", "test"))
        # Labels are places in the sorted list of classes.
        expected, found = (
            ", ".join(sorted(entry.name for entry in (place / part).iterdir() if entry.is_dir()))
            for part in ("train", "test")
        )
        if found != expected:
            raise InputError(f"{place}: test has the classes {found}; expected {expected}")
        # Images come sorted by class.
        train = train.take(stream(0, "data", path).permutation(len(train)))
    else:
        name = path if kind == "raw" else source
        train, test = load(name), load(name, "test")
    public, private = train.halves()
    if kind == "raw":
        return Splits(public, private, test)
    axes = (0, *range(2, public.x.ndim))  # all but the channel or feature
    mean = public.x.mean(axis=axes, keepdims=True, dtype=np.float64)
    deviation = public.x.std(axis=axes, keepdims=True, dtype=np.float64)
    level = np.flatnonzero(deviation == 0)
    if len(level):
        raise InputError(
            f"data set {source}: channel {level[0]} is {float(mean.flat[level[0]]):g} in all "
            "public records; expected one that differs, to be standardised"
        )

    def standardised(part: Dataset) -> Dataset:
        x = ((part.x - mean) / deviation).astype(np.float32)
        return Dataset(part.name, x, part.y, part.classes)

    return Splits(*map(standardised, (public, private, test)))


def features(path: Path) -> Splits:
    """The parts of a feature file, as they are; InputError where one does not fit the others."""
    arrays = files.arrays(path, LAYOUTS["features"])
    try:
        parts = [
            Dataset(
                path.stem,
                arrays[f"{part}_x"].astype(np.float32, casting="same_kind"),
                _whole(arrays[f"{part}_y"], f"{path}: {part}_y"),
                int(max(arrays[f"{other}_y"].max() for other in _PARTS)) + 1,
            )
            for part in _PARTS
        ]
    # An InputError is a ValueError, and says already what is wrong.
    except InputError:
        raise
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"{path}: {error}; expected {LAYOUTS['features']}") from error
    for name, part in zip(_PARTS, parts, strict=True):
        if len(part.x) != len(part.y):
            raise InputError(
                f"{path}: {name}_y: got {len(part.y)} labels; expected {len(part.x)}, one a record"
            )
        if part.x.ndim != 2 or part.x.shape[1] != parts[0].x.shape[-1]:
            raise InputError(
                f"{path}: {name}_x: got shape {part.x.shape}; expected "
                f"({len(part.x)}, {parts[0].x.shape[-1]}), the width of public_x"
            )
        broken = np.argwhere(~np.isfinite(part.x))
        if len(broken):
            i, at = broken[0]
            raise InputError(
                f"{path}: {name}_x: record {i} holds {part.x[i, at]} (entry {at}); expected finite "
                "numbers"
            )
    return Splits(*parts)


def _whole(labels: NDArray, name: str) -> NDArray[np.int64]:
    """Labels as integers; ``name`` says which they are."""
    if labels.ndim != 1:
        raise InputError(f"{name}: got shape {labels.shape}; expected (records,), a label each")
    with np.errstate(invalid="ignore"):  # a non-finite label is refused here
        whole = np.asarray(labels, np.int64)
    broken = np.flatnonzero((whole != labels) | (whole < 0))
    if len(broken):
        i = broken[0]
        raise InputError(f"{name}: record {i} has the label {labels[i]}; expected 0, 1, 2, ...")
    return whole


def image_folder(path: str | Path, *, size: int, channels: Literal[1, 3] = 3) -> Dataset:
    """A user's own images, ``path/<class>/<image>``, resized to ``size`` x ``size`` pixels."""
    from torchvision import datasets, transforms

    path = Path(path)
    if not path.is_dir():
        raise InputError(f"{path}: no such directory; expected one directory of images a class")
    steps = [transforms.Resize((size, size)), transforms.ToTensor()]
    if channels == 1:
        steps.insert(0, transforms.Grayscale())
    try:
        images = datasets.ImageFolder(str(path), transforms.Compose(steps))
    except FileNotFoundError as error:
        raise InputError(f"{path}: {error}; expected one directory of images a class") from error
    try:
        x = np.stack([image.numpy() for image, _ in images])
    except OSError as error:
        raise InputError(f"{path}: holds an image that cannot be read ({error})") from error
    return Dataset(path.name, x, np.array(images.targets, np.int64), len(images.classes))


def _digits(split: str) -> Dataset:
    """The 1,797 bundled 8 x 8 digits; a fixed random fifth of them is the test split."""
    images, labels = digits.records()
    x = images.astype(np.float32) / np.float32(16)
    return _fifth(Dataset("digits", x, labels.astype(np.int64), 10), split)


def _housing(split: str) -> Dataset:
    """The 20,640 bundled districts; a fixed random fifth of them is the test split."""
    return _fifth(Dataset("housing", *housing.records(), 2), split)


def _mnist(split: Literal["train", "test"]) -> Dataset:
    """The 70,000 digits of 28 x 28 pixels, of the data directory if they are there."""
    images, labels = mnist.records(split, place("mnist"))
    x = images.astype(np.float32) / np.float32(255)
    return Dataset("mnist", x, labels.astype(np.int64), mnist.CLASSES)


def _fifth(whole: Dataset, split: str) -> Dataset:
    # Seed 0, whatever the run's: the split belongs to the data.
    order = stream(0, "data", whole.name).permutation(len(whole))
    n = len(whole) // 5
    return whole.take(order[n:] if split == "train" else order[:n])


def _root() -> Path:
    """The directory of data sets; InputError for a variable that names none."""
    given = os.environ.get("HIDDENSTATE_DATA", "data")
    try:
        if given.strip():
            return Path(given).expanduser()
        reason = "it is empty"
    except RuntimeError:
        reason = "no user has that name"
    raise InputError(
        f"HIDDENSTATE_DATA: got {given!r}, but {reason}; expected the directory of data sets, or "
        "no variable of that name"
    )


def _absent(name: str, state: str) -> str:
    return (
        f"{_root() / _FOLDERS[name]}: {name} {state}. Point the environment variable "
        f"HIDDENSTATE_DATA to the directory that holds {_FOLDERS[name]}, or fetch it with "
        f"hiddenstate.datasets.data.load({name!r}, download=True) on a machine with a network."
    )


def _torchvision(name: str, split: str, download: bool) -> Dataset:
    from torchvision import datasets

    root = _root()
    kind = {"cifar10": datasets.CIFAR10, "cifar100": datasets.CIFAR100}
    place = root / _FOLDERS[name]
    if download:
        root.mkdir(parents=True, exist_ok=True)
    try:
        images = kind[name](str(root), train=split == "train", download=download)
    except RuntimeError as error:
        # torchvision raises the same for files that are absent and for wrong checksums.
        state = "is damaged or incomplete" if place.exists() else "is not there"
        raise InputError(_absent(name, state)) from error
    x = images.data.transpose(0, 3, 1, 2).astype(np.float32) / 255
    return Dataset(name, x, np.asarray(images.targets, np.int64), len(images.classes))
