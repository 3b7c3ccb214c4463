"""Digits: 1,797 handwritten ones of 8 x 8 pixels, shipped with the package.

Source: the test set of Alpaydin and Kaynak 1998, "Optical Recognition of Handwritten Digits", UCI
Machine Learning Repository (Creative Commons BY 4.0); the file is scikit-learn's, byte for byte.
"""

import numpy as np
from numpy.typing import NDArray

from hiddenstate.files import shipped

SHA256 = "6ebb3d2fee246a4e99363262ddf8a00a3c41bee6014c373ed9d9216ba7f651b8"
"""Digest of the uncompressed file."""


def records() -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """(images, labels): shape (1797, 1, 8, 8) with values up to 16, and (1797,)."""
    # 64 pixels, row by row, and the label.
    table = np.loadtxt(shipped("digits.csv.xz", SHA256).splitlines(), np.uint8, delimiter=",")
    return table[:, :-1].reshape(-1, 1, 8, 8), table[:, -1]
