"""California housing: 20,640 districts of the 1990 census, shipped with the package.

Source: Pace and Barry 1997, "Sparse spatial autoregressions", Statistics & Probability Letters 33;
the file is the version with counts of rooms and bedrooms, without the column that Géron 2017 added.
It lacks the bedrooms of 207 districts, which get the median.
"""

import hashlib
import io
import lzma
from importlib.resources import files

import numpy as np
from numpy.typing import NDArray

from hiddenstate.errors import InputError

SHA256 = "cc48f986170108c0042b76febdd6568117dde52d0381e1a3d5310074a74130b2"
"""Digest of the uncompressed file."""


def records() -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """(x, y): shape (20640, 8) and (20640,), in the file's order, which is geographic.

    The eight features of scikit-learn's version (median income, house age, rooms, bedrooms and
    persons a household, population, latitude, longitude, in its order), each with mean 0 and
    deviation 1 over all records. Label 1: the median house value is above the median of all.
    """
    path = files("hiddenstate").joinpath("housing.csv.xz")
    try:
        text = lzma.decompress(path.read_bytes())
    except (OSError, lzma.LZMAError) as error:
        raise InputError(f"{path}: not readable ({error}); expected the package's file") from error
    found = hashlib.sha256(text).hexdigest()
    if found != SHA256:
        raise InputError(f"{path}: SHA-256 {found}; expected {SHA256}, the package's file")
    table = np.genfromtxt(io.BytesIO(text), delimiter=",", names=True)
    bedrooms, households = table["total_bedrooms"], table["households"]
    bedrooms = np.where(np.isnan(bedrooms), np.nanmedian(bedrooms), bedrooms)
    features = [
        table["median_income"],
        table["housing_median_age"],
        table["total_rooms"] / households,
        bedrooms / households,
        table["population"],
        table["population"] / households,
        table["latitude"],
        table["longitude"],
    ]
    x = np.stack(features, axis=1)
    value = table["median_house_value"]
    x = (x - x.mean(axis=0)) / x.std(axis=0)
    return x.astype(np.float32), (value > np.median(value)).astype(np.int64)
