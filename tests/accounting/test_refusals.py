"""What is no mechanism is refused by every function that takes one, and named."""

import math

import pytest

from hiddenstate.accounting import composition, history, iteration, linear, pld, quadratic, rdp
from hiddenstate.errors import InputError

MECHANISM = {"noise_multiplier": 1.0, "sampling_rate": 0.1, "steps": 10}
FUNCTIONS = (
    (composition.bracket, {**MECHANISM, "delta": 1e-5}),
    (history.epsilon, {**MECHANISM, "delta": 1e-5, "growth": 1.1}),
    (history.noise_multipliers, {"noise_multiplier": 1.0, "steps": 10, "growth": 1.1}),
    (iteration.berry_esseen, MECHANISM),
    (iteration.normal_pair_fnr, {**MECHANISM, "fpr": 0.1}),
    (iteration.subsampled, MECHANISM),
    (linear.full_batch_epsilon, {**MECHANISM, "delta": 1e-5}),
    (linear.last_iterate, MECHANISM),
    (linear.last_iterate_epsilon, {**MECHANISM, "delta": 1e-5}),
    (pld.epsilon, {**MECHANISM, "delta": 1e-5}),
    (quadratic.last_iterate, {**MECHANISM, "curvature": 0.1}),
    (rdp.divergence, {"noise_multiplier": 1.0, "sampling_rate": 0.1, "order": 4.0}),
    (rdp.epsilon, {**MECHANISM, "delta": 1e-5}),
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
        for name in given.keys() & WRONG.keys()
        for value in WRONG[name]
    ],
)
def test_what_is_no_mechanism_is_refused_by_name(function, given, name, value):
    with pytest.raises(InputError, match=f"{name}: got .*; expected a number"):
        function(**(given | {name: value}))


def test_the_epsilon_of_no_number_is_none():
    # It was 0, as for any mu of at most 0.
    with pytest.raises(InputError, match="mu: got nan; expected a number"):
        iteration.gaussian_epsilon(math.nan, 1e-5)
    assert iteration.gaussian_epsilon(-1.0, 1e-5) == 0
    for steps in (math.nan, 2.5, 0):
        with pytest.raises(InputError, match=f"steps: got {steps}; expected an integer"):
            iteration.SingleInsertion(mu=1.0, beta=0.5, steps=steps)
