import dataclasses
import math

import numpy as np
import pytest
from scipy import stats

from hiddenstate.accounting import pld
from hiddenstate.dpsgd.mechanism import Mechanism
from hiddenstate.errors import InputError
from hiddenstate.sampling import Cyclic, FixedSize, FullBatch, Poisson, Reshuffled
from hiddenstate.streams import stream


def mechanism(**changes) -> Mechanism:
    given = {
        "sampling": FullBatch(),
        "steps": 20,
        "learning_rate": 0.1,
        "clipping_norm": 2.0,
        "noise_multiplier": 3.0,
        "adjacency": "add_or_remove",
    }
    return Mechanism(**{**given, **changes})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("sampling", "full"),
        ("steps", 0),
        ("steps", 2.5),
        ("steps", math.nan),
        ("insertions", 2.5),
        ("insertions", 21),
        ("learning_rate", 0.0),
        ("learning_rate", math.nan),
        ("clipping_norm", 0.0),
        ("clipping_norm", math.nan),
        ("noise_multiplier", -1.0),
        ("noise_multiplier", math.inf),
        ("adjacency", "swap"),
    ],
)
def test_refuses_values_out_of_range_by_name(name, value):
    with pytest.raises(InputError, match=name):
        mechanism(**{name: value})


def test_refuses_noise_relative_to_an_infinite_clipping_norm():
    with pytest.raises(InputError, match="clipping off"):
        mechanism(clipping_norm=math.inf)
    assert mechanism(clipping_norm=math.inf, noise_multiplier=0.0).noise_std == 0


@pytest.mark.parametrize(
    "wrong",
    [lambda: Poisson(0.0), lambda: Poisson(1.1), lambda: Cyclic(0), lambda: Cyclic(2.5)],
)
def test_samplings_refuse_impossible_sizes(wrong):
    with pytest.raises(InputError):
        wrong()


@pytest.mark.parametrize("records", [0, 21.5, math.nan])
def test_accountants_refuse_impossible_numbers_of_records(records):
    for sampling in (FullBatch(), Cyclic(5)):
        with pytest.raises(InputError, match="records: got"):
            mechanism(sampling=sampling).epsilon(1e-5, records=records)


def test_noise_is_a_multiple_of_the_clipping_norm():
    assert mechanism().noise_std == 6.0


def test_full_batch_composes_every_step():
    assert mechanism().composition(100) == (3.0, 1.0, 20)


def test_replacing_a_record_doubles_the_sensitivity():
    assert mechanism(adjacency="replace").composition(100) == (1.5, 1.0, 20)
    with pytest.raises(InputError, match="Poisson"):
        mechanism(sampling=Poisson(0.1), adjacency="replace").composition(100)


def test_cyclic_composes_the_most_visits_that_a_record_has():
    cyclic = mechanism(sampling=Cyclic(30))
    # 100 records make batches of 30, 30, 30, 10; in 20 steps each is visited 5 times.
    assert cyclic.composition(100) == (3.0, 1.0, 5)
    visits = np.zeros(100)
    for batch in cyclic.sampling.batches(100, 21, stream(0)):
        visits[batch] += 1
    assert visits.max() == dataclasses.replace(cyclic, steps=21).composition(100)[2] == 6


def test_reshuffled_batches_are_full_and_drawn_in_each_epoch():
    """A record is used at most once an epoch, and each is left over as often as the others."""
    sampling = Reshuffled(30)
    batches = sampling.batches(100, 7, stream(0))
    assert [len(batch) for batch in batches] == [30] * 7
    epochs = [np.concatenate(batches[:3]), np.concatenate(batches[3:6])]
    assert all(len(set(epoch)) == 90 for epoch in epochs)
    assert set(epochs[0]) != set(epochs[1])
    used = np.bincount(np.concatenate(sampling.batches(100, 3 * 4000, stream(1))), minlength=100)
    # Binomial with 4,000 epochs of probability 0.9; a wrong one of 0.87 is seen.
    assert np.abs(used / 4000 - 0.9).max() < 4.5 * (0.9 * 0.1 / 4000) ** 0.5 < 0.03
    with pytest.raises(InputError, match="got 30; expected at most 29"):
        sampling.batches(29, 1, stream(0))


@pytest.mark.parametrize("adjacency", ["add_or_remove", "replace"])
def test_batches_of_a_fixed_size_have_no_accountant_here(adjacency):
    fixed = mechanism(sampling=FixedSize(10), adjacency=adjacency)
    for call in (fixed.composition, lambda n: fixed.epsilon(1e-5, records=n)):
        with pytest.raises(InputError, match=r"sampling: got FixedSize\(batch_size=10\)"):
            call(100)
    # A canary with a schedule of its own is in no batch that is drawn.
    assert dataclasses.replace(fixed, insertions=3).composition(100)[1:] == (1.0, 3)
    with pytest.raises(InputError, match="got 10; expected at most 9"):
        fixed.sampling.batches(9, 1, stream(0))


def test_reshuffled_batches_compose_a_visit_an_epoch():
    mechanism = Mechanism(
        sampling=Reshuffled(30), steps=7, learning_rate=1, clipping_norm=1, noise_multiplier=2,
        adjacency="add_or_remove",
    )  # fmt: skip
    # Three batches of 100 records an epoch: the most visits in seven steps are three.
    assert mechanism.composition(100) == (2, 1.0, 3)


def test_shuffled_cycles_visit_every_record_once_a_pass():
    batches = Cyclic(30, shuffled_once=True).batches(100, 8, stream(0))
    for one_pass in (batches[:4], batches[4:]):
        assert sorted(np.concatenate(one_pass)) == list(range(100))
    assert not np.array_equal(batches[0], np.arange(30))


def test_poisson_includes_each_record_independently_at_its_rate():
    rate, records, steps = 0.3, 50, 4000
    counts = np.zeros(records)
    sizes = []
    for batch in Poisson(rate).batches(records, steps, stream(3)):
        counts[batch] += 1
        sizes.append(len(batch))
    # Chi-squared with 50 degrees of freedom; false-positive rate 1e-6, and with 4,000 steps a rate
    # off by 2 percentage points fails surely.
    expected = steps * rate
    statistic = ((counts - expected) ** 2 / (expected * (1 - rate))).sum()
    assert stats.chi2.sf(statistic, records) > 1e-6
    # Fixed-size sampling would have no spread of sizes, Poisson's is n q (1 - q).
    assert abs(np.var(sizes) / (records * rate * (1 - rate)) - 1) < 5 * math.sqrt(2 / steps)


def test_accounts_with_the_numbers_it_trains_with():
    poisson = mechanism(sampling=Poisson(0.2))
    assert poisson.epsilon(1e-5, records=100) == pld.epsilon(3.0, 0.2, 20, 1e-5)
    curve = poisson.tradeoff_curve(records=100, null="out")
    np.testing.assert_array_equal(curve.fnr, pld.tradeoff_curve(3.0, 0.2, 20, null="out").fnr)


@pytest.mark.parametrize("adjacency", ["add_or_remove", "replace"])
def test_calibration_reaches_epsilon_and_never_more(adjacency):
    found = mechanism(adjacency=adjacency).calibrated(4.0, 1e-5, records=100)
    assert 4.0 * (1 - 2e-4) < found.epsilon(1e-5, records=100) <= 4.0


def test_no_epsilon_without_noise():
    with pytest.raises(InputError, match="noise_multiplier"):
        mechanism(noise_multiplier=0.0).epsilon(1e-5, records=100)
