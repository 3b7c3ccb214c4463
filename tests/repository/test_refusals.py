"""Numbers that mean nothing are refused by every function that takes them, and named."""

import math

import pytest

from hiddenstate.accounting import (
    composition,
    history,
    iteration,
    linear,
    pld,
    quadratic,
    rdp,
)
from hiddenstate.adversaries import encoding_loss, repeaters
from hiddenstate.auditing import GaussianDP, divergence, planning
from hiddenstate.dpsgd.augmentation import Augmentation
from hiddenstate.dpsgd.kernels.tiny import Dense
from hiddenstate.errors import InputError

MECHANISM = {"noise_multiplier": 1.0, "sampling_rate": 0.1, "steps": 10}
FUNCTIONS = (
    (composition.bracket, {**MECHANISM, "delta": 1e-5}),
    (history.epsilon, {**MECHANISM, "delta": 1e-5, "growth": 1.1}),
    (history.noise_multipliers, {"noise_multiplier": 1.0, "steps": 10, "growth": 1.1}),
    (iteration.berry_esseen, MECHANISM),
    (iteration.subsampled, MECHANISM),
    (linear.full_batch_epsilon, {**MECHANISM, "delta": 1e-5}),
    (linear.last_iterate, MECHANISM),
    (linear.last_iterate_epsilon, {**MECHANISM, "delta": 1e-5}),
    (pld.epsilon, {**MECHANISM, "delta": 1e-5}),
    (quadratic.last_iterate, {**MECHANISM, "curvature": 0.1}),
    (rdp.divergence, {"noise_multiplier": 1.0, "sampling_rate": 0.1, "order": 4.0}),
    (rdp.epsilon, {**MECHANISM, "delta": 1e-5}),
    (repeaters.Repeaters, {**MECHANISM, "threshold": 1.0}),
    (repeaters.AnalogRepeaters, MECHANISM),
    (repeaters.best_threshold, {**MECHANISM, "delta": 1e-5}),
    (encoding_loss.sound, {"noise_multiplier": 1.0, "sampling_rate": 0.1}),
    (encoding_loss.published, {"noise_multiplier": 1.0, "sampling_rate": 0.1, "records": 100}),
)
WRONG = {
    "noise_multiplier": (math.nan, -1.0, 0.0, math.inf),
    "sampling_rate": (math.nan, -0.1, 0.0, 1.5),
    "steps": (math.nan, -1, 0, 2.5, math.inf),
    "delta": (math.nan, -1e-5, 0.0, 1.0),
    "order": (math.nan, -1.0, 1.0, math.inf),
}


@pytest.mark.parametrize(
    ("function", "given", "name", "value"),
    [
        pytest.param(function, given, name, value, id=f"{function.__module__}-{name}-{value}")
        for function, given in FUNCTIONS
        for name in given
        if name in WRONG
        for value in WRONG[name]
    ],
)
def test_what_is_no_mechanism_is_refused_by_name(function, given, name, value):
    with pytest.raises(InputError, match=f"{name}: got .*; expected a number"):
        function(**(given | {name: value}))


def test_an_insertion_has_whole_steps():
    for steps in (math.nan, 2.5, 0):
        with pytest.raises(InputError, match=f"steps: got {steps}; expected an integer"):
            iteration.SingleInsertion(mu=1.0, beta=0.5, steps=steps)


def median(truth=2.0, n=50, confidence=0.95):
    return planning.median_bound(GaussianDP(), GaussianDP(), truth, n, confidence=confidence)


@pytest.mark.parametrize(
    ("name", "value", "wrong"),
    [
        ("threshold", math.nan, lambda x: repeaters.Repeaters(1.0, 0.1, 10, x)),
        ("gain", 0.0, lambda x: repeaters.AnalogRepeaters(1.0, 0.1, 10, x)),
        ("records", 2.5, lambda x: encoding_loss.published(1.0, 0.1, x)),
        ("spacing", -1.0, lambda x: encoding_loss.EncodingLoss(1.0, 0.1, x, 2, 100)),
        ("decimals", 2.5, lambda x: encoding_loss.EncodingLoss(1.0, 0.1, 10.0, x, 100)),
        ("p", math.nan, lambda x: divergence.bernoulli(x, 0.2, 1)),
        ("q", 1.5, lambda x: divergence.bernoulli(0.1, x, 1)),
        ("order", 3, lambda x: divergence.bernoulli(0.1, 0.2, x)),
        ("certificates", 2.5, lambda x: divergence.certified(
            [1], [0], 1, failure_probability=0.05, certificates=x)),
        ("mu", math.nan, lambda x: median(truth=x)),
        ("mu", 99.0, lambda x: median(truth=x)),
        ("n", 2.5, lambda x: median(n=x)),
        ("confidence", 95, lambda x: median(confidence=x)),
        ("views", 2.5, lambda x: Augmentation(views=x)),
        ("shift", 2.5, lambda x: Augmentation(views=1, shift=x)),
        ("widths", (8, 2.5, 2), Dense),
    ],
)  # fmt: skip
def test_other_numbers_are_refused_by_name(name, value, wrong):
    with pytest.raises(InputError, match=f"^{name}: .*expected"):
        wrong(value)
