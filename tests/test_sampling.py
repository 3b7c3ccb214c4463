"""What every way to draw batches promises of them."""

import numpy as np
import pytest

from hiddenstate.accounting.setting import Setting
from hiddenstate.errors import InputError
from hiddenstate.sampling import Cyclic, FullBatch, Poisson, Reshuffled, Sampling
from hiddenstate.streams import stream

EVERY = [FullBatch(), Poisson(0.3), Cyclic(4), Cyclic(4, shuffled_once=True), Reshuffled(4)]


def drawn(sampling, records, steps, *name):
    return sampling.batches(records, steps, stream(0, "sampling", *name))


@pytest.mark.parametrize("sampling", EVERY, ids=repr)
@pytest.mark.parametrize(("records", "steps"), [(12, 9), (13, 9), (12, 1), (5, 6)])
def test_no_record_is_used_more_often_than_it_may_be_and_one_is_as_often(sampling, records, steps):
    used = []
    for i in range(300):
        batches = drawn(sampling, records, steps, i)
        assert len(batches) == steps
        assert all(len(set(batch)) == len(batch) for batch in batches)
        used.append(np.bincount(np.concatenate(batches).astype(int), minlength=records))
    visits = sampling.visits(records, steps)
    assert np.max(used) <= visits
    # Of independent steps each has a record with the rate, whose mean is known to 5 deviations.
    if sampling.rate < 1:
        spread = (steps * records * 300 * sampling.rate * (1 - sampling.rate)) ** 0.5
        assert abs(np.sum(used) - visits * sampling.rate * records * 300) < 5 * spread
    else:
        assert np.max(used) == visits


@pytest.mark.parametrize("sampling", EVERY, ids=repr)
def test_models_share_batches_if_nothing_is_drawn(sampling):
    same = all(
        np.array_equal(a, b)
        for a, b in zip(drawn(sampling, 12, 3, 1), drawn(sampling, 12, 3, 2), strict=True)
    )
    assert same == sampling.shared


def test_bounds_are_of_the_ways_that_they_know():
    class Odd(Sampling):
        def batches(self, records, steps, rng):
            return [np.arange(1)] * steps

    with pytest.raises(InputError, match=r"sampling: got .*Odd.*expected FullBatch, Poisson"):
        Setting(sampling=Odd(), noise_multiplier=1.0, steps=3, records=12)
