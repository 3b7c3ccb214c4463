import numpy as np
import pytest

from hiddenstate import streams


def test_a_name_gives_the_same_numbers_forever():
    # Pinned: a change of these values changes every committed score.
    assert streams.key(7, "family", "cell", 0) == 230714126639221796081402295973092225392
    first = streams.stream(7, "family", "cell", 0).random(2)
    np.testing.assert_array_equal(first, streams.stream(7, "family", "cell", 0).random(2))


@pytest.mark.parametrize(
    "other", [(8, "a", 1), (7, "b", 1), (7, "a", 2), (7, "a", "1"), (7, "a"), (7, "a", 1, 0)]
)
def test_any_change_of_the_name_changes_the_stream(other):
    assert streams.key(*other) != streams.key(7, "a", 1)


def test_neighbouring_streams_are_uncorrelated():
    # 1,000 pairs of 1,000 normals: the mean correlation is N(0, 1/10^6); |z| < 5 fails by chance
    # with probability 6e-7, and a common correlation of 0.01 is found with power 1 - 3e-7.
    rows = np.array([streams.stream(1, "x", i).standard_normal(1000) for i in range(1001)])
    products = (rows[1:] * rows[:-1]).mean(axis=1)
    assert abs(products.mean()) * 1000 < 5
