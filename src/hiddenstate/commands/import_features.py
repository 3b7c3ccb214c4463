"""``hiddenstate import-features``: a last layer's inputs, from arrays to one file."""

import argparse
import hashlib
from typing import Any

from hiddenstate.errors import InputError
from hiddenstate.rounding import counted

ARRAYS = {"public": "pretrain", "private": "train", "test": "test"}
"""Parts of a feature file, and the words that the arrays' names have for them."""


def run(options: argparse.Namespace) -> None:
    """Write the features and labels of six .npy files to one .npz file: X_pretrain, y_pretrain,
    X_train, y_train, X_test and y_test.

    The public code of 2405.14106 unpacks them so.

    folder: path | folder of the six .npy files
    out: path | .npz file to write
    """
    import numpy as np

    from hiddenstate import files
    from hiddenstate.datasets import data

    folder, out = options.folder, options.out
    if out.suffix != ".npz":
        raise InputError(f"{out}: expected a name that ends in .npz")
    arrays: dict[str, Any] = {}
    for part, word in ARRAYS.items():
        for key, letter in (("x", "X"), ("y", "y")):
            path = folder / f"{letter}_{word}.npy"
            arrays[f"{part}_{key}"] = files.array(path, "an array of numbers of the public code")
    with files.atomic(out) as temporary:
        np.savez(temporary, **arrays)
        try:
            splits = data.features(temporary)
        except InputError as error:
            raise InputError(str(error).replace(str(temporary), str(folder))) from error
        digest = hashlib.sha256(temporary.read_bytes()).hexdigest()
    parts = (splits.public, splits.private, splits.test)
    sizes = ", ".join(f"{len(part)} {name}" for part, name in zip(parts, ARRAYS, strict=True))
    print(
        f"{out}: {sizes} records of {counted(parts[0].x.shape[1], 'feature')} in "
        f"{counted(splits.classes, 'class')}"
    )
    print(f"SHA-256 {digest}")
