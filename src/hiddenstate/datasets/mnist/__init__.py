"""MNIST: 60,000 training and 10,000 test images of handwritten digits, shipped with the package.

The four files beside this one are those that Yann LeCun, Corinna Cortes and Christopher Burges
publish, byte for byte, under the Creative Commons licence BY-SA 3.0 (LICENSE.md).
"""

import gzip
import hashlib
import zlib
from importlib.resources import files
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from hiddenstate.errors import InputError

CLASSES = 10

SHA256 = {
    "train-images-idx3-ubyte": "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
    "train-labels-idx1-ubyte": "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
    "t10k-images-idx3-ubyte": "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
    "t10k-labels-idx1-ubyte": "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
}
"""Digests of the uncompressed files."""


def records(
    split: Literal["train", "test"], folder: Path | None = None
) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """(images, labels) of a split: shape (n, 1, 28, 28) with values up to 255, and (n,).

    ``folder`` holds the uncompressed files; without one they are the package's. Raises InputError
    for a file that is not there, cannot be read, or is not the published one.
    """
    part = "train" if split == "train" else "t10k"
    images = _content(f"{part}-images-idx3-ubyte", folder)
    labels = _content(f"{part}-labels-idx1-ubyte", folder)
    # An image file begins with four numbers of four bytes, a file of labels with two.
    return (
        np.frombuffer(images, np.uint8, offset=16).reshape(-1, 1, 28, 28),
        np.frombuffer(labels, np.uint8, offset=8),
    )


def _content(name: str, folder: Path | None) -> bytes:
    path = folder / name if folder else files("hiddenstate.datasets.mnist").joinpath(f"{name}.gz")
    try:
        found = path.read_bytes() if folder else gzip.decompress(path.read_bytes())
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"{path}: not readable ({error}); expected the published file") from error
    digest = hashlib.sha256(found).hexdigest()
    if digest != SHA256[name]:
        raise InputError(
            f"{path}: SHA-256 {digest}; expected {SHA256[name]}, the published file's"
            + ("" if folder else ", uncompressed")
        )
    return found
