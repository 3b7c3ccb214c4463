"""Numbers in single precision give the answers of the doubles that they are."""

import dataclasses

import numpy as np
import pytest

from hiddenstate.accounting import (
    balls_and_bins,
    batched,
    composition,
    gaussian,
    iteration,
    linear,
    pld,
    rdp,
    sitting_out,
    swapped,
    weighted,
)
from hiddenstate.accounting.arguments import check_mechanism
from hiddenstate.accounting.setting import Setting
from hiddenstate.errors import InputError
from hiddenstate.sampling import Poisson

NOISE, RATE, EPSILON, DELTA = map(np.float32, (1.3, 0.01, 1.1, 1e-5))

ASKED = {
    "pld.epsilon": lambda s, q, e, d: pld.epsilon(s, q, 1000, d),
    "pld.epsilon, interval": lambda s, q, e, d: pld.epsilon(s, q, 1000, d, interval=q),
    "pld.noise_multiplier": lambda s, q, e, d: pld.noise_multiplier(e, d, q, 1000),
    "pld.noise_multipliers": lambda s, q, e, d: pld.noise_multipliers([e], d, q, 1000).tolist(),
    "pld.tradeoff_curve": lambda s, q, e, d: pld.tradeoff_curve(s, q, 100, null="in")(0.1),
    "rdp.epsilon": lambda s, q, e, d: rdp.epsilon(s, q, 1000, d),
    "rdp.divergence": lambda s, q, e, d: rdp.divergence(s, q, s),
    "rdp.fixed_size_epsilon": lambda s, q, e, d: rdp.fixed_size_epsilon(s, 6000, 60, 1000, d),
    "composition.bracket": lambda s, q, e, d: composition.bracket(s, q, 1000, d, width=q),
    "composition.fine_bracket": lambda s, q, e, d: composition.fine_bracket(s, q, 100, d),
    "linear.epsilon": lambda s, q, e, d: linear.last_iterate_epsilon(s, q, 1000, d),
    "linear.delta": lambda s, q, e, d: linear.last_iterate_delta(s, q, 1000, e),
    "linear.noise": lambda s, q, e, d: linear.last_iterate_noise_multiplier(e, d, q, 100),
    "linear.full_batch": lambda s, q, e, d: linear.full_batch_epsilon(s, q, 1000, d),
    "linear.last_iterate": lambda s, q, e, d: linear.last_iterate(s, q, 1000).epsilon(d),
    "weighted.epsilon": lambda s, q, e, d: weighted.epsilon(s, q, [1.0, 0.5, 0.2], d),
    "batched.lower_epsilon": lambda s, q, e, d: batched.lower_epsilon(s, 100, 1, d),
    "balls_and_bins.lower_epsilon": lambda s, q, e, d: balls_and_bins.lower_epsilon(s, 9, 1, d),
    "balls_and_bins.bracket": lambda s, q, e, d: balls_and_bins.bracket(s, 9, 1, d),
    "sitting_out.swapped": lambda s, q, e, d: sitting_out.swapped(s, 100, 3, d),
    "swapped.bracket": lambda s, q, e, d: swapped.bracket(s, q, 10, d),
    "gaussian.bracket": lambda s, q, e, d: gaussian.bracket(s, d),
    "gaussian.mu": lambda s, q, e, d: gaussian.mu(e, d),
    "iteration.subsampled": lambda s, q, e, d: iteration.subsampled(s, q, 100).epsilon(d),
    "iteration.berry_esseen": lambda s, q, e, d: iteration.berry_esseen(s, q, 100),
}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("name", ASKED)
def test_single_precision_is_no_other_question(name):
    ask = ASKED[name]
    numbers = NOISE, RATE, EPSILON, DELTA
    assert repr(ask(*numbers)) == repr(ask(*map(float, numbers)))


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("noise", [0.0, np.inf, np.nan, -1.0])
def test_a_noise_in_single_precision_is_checked_as_a_double(noise):
    """Single precision has no 1e-50 and no 1e50: 0 and infinity were taken for them."""
    with pytest.raises(InputError, match=r"noise_multiplier: got .*; expected a number from 1e-50"):
        check_mechanism(np.float32(noise), np.float32(0.1), 10)


@pytest.mark.filterwarnings("error")
def test_the_numbers_of_a_setting_are_doubles():
    given = {
        "noise_multiplier": 1.1,
        "batch_size": 60.0,
        "learning_rate": 0.3,
        "clipping_norm": 0.7,
        "smoothness": 1.1,
        "weak_convexity": 0.1,
        "diameter": 3.3,
        "momentum": 0.1,
        "weight_decay": 0.01,
    }
    single = {name: np.float32(number) for name, number in given.items()}
    setting = Setting(sampling=Poisson(RATE), steps=100, records=6000, **single)
    for field in dataclasses.fields(Setting):
        assert not isinstance(getattr(setting, field.name), np.floating), field.name
    assert [type(number) for number in setting.mechanism] == [float, float, int]
