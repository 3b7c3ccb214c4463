"""What an adversary is handed cannot be used to change the training."""

import numpy as np
import pytest

from hiddenstate.dpsgd.known import each_once, read_only


@pytest.mark.parametrize(
    "array",
    [
        np.arange(12, dtype=np.float32).reshape(3, 4),
        np.arange(12).reshape(3, 4).T,
        np.arange(10)[::3],
        np.zeros(0, np.int64),
        np.float32(3.0),
    ],
    ids=str,
)
def test_a_copy_is_equal_and_neither_it_nor_its_base_can_be_written_to(array):
    array = np.asarray(array)
    given, before = read_only(array), array.copy()
    with pytest.raises(ValueError, match="read-only"):
        given[...] = 0
    with pytest.raises(ValueError, match="WRITEABLE"):
        given.flags.writeable = True
    with pytest.raises(TypeError):
        given.base[:] = 0
    assert given.dtype == array.dtype and given.flags.aligned and given.flags.c_contiguous
    np.testing.assert_array_equal(given, array)
    array[...] = 7
    np.testing.assert_array_equal(given, before)


def test_steps_that_share_a_batch_go_on_sharing_it():
    one, two = np.arange(3), np.arange(4)
    changed = each_once(read_only, [one, two, one])
    assert changed[0] is changed[2] and len(changed[1]) == 4
