"""California housing: 20,640 districts of the 1990 census, shipped with the package.

Source: Pace and Barry 1997, "Sparse spatial autoregressions", Statistics & Probability Letters 33;
the file is the version with counts of rooms and bedrooms, without the column that Géron 2017 added.
It lacks the bedrooms of 207 districts, which get the median.
"""

import numpy as np
from numpy.typing import NDArray

from hiddenstate.files import shipped

SHA256 = "cc48f986170108c0042b76febdd6568117dde52d0381e1a3d5310074a74130b2"
"""Digest of the uncompressed file."""


def records() -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """(x, y): shape (20640, 8) and (20640,), in the file's order, which is geographic.

    The eight features of scikit-learn's version (median income, house age, rooms, bedrooms and
    persons a household, population, latitude, longitude, in its order), each with mean 0 and
    deviation 1 over all records. Label 1: the median house value is above the median of all.
    """
    text = shipped("housing.csv.xz", SHA256)
    table = np.genfromtxt(text.splitlines(), delimiter=",", names=True)
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
