import numpy as np

from hiddenstate.auditing.other_way import guessed_other_way, known_other_way, other_way


def test_no_p_value_is_zero():
    high = np.arange(5_000.0)
    for found in (
        guessed_other_way(2_000, 0),
        known_other_way(np.ones(2_000), np.ones(2_000)),
        other_way(high - 1e5, high),
    ):
        assert 0 < found.p_value < 1e-300
