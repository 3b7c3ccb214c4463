"""The bounds for sampled batches on a domain, against exact laws on the line."""

from dataclasses import replace

import chain
import numpy as np
import pytest

from hiddenstate.accounting import composition, cyclic_operator, sampled, shifts
from hiddenstate.accounting.setting import Setting
from hiddenstate.errors import InputError
from hiddenstate.sampling import Poisson

DELTA = 1e-3


def setting(sampling_rate, smoothness=None, weak_convexity=0.0, **numbers):
    """Curvatures of the largest batch's sum, and a learning rate on sums."""
    if smoothness is not None:
        strong = numbers.get("strong_convexity", 0.0)
        smoothness = (smoothness - strong) * sampling_rate + strong
    return Setting(
        sampling=Poisson(sampling_rate),
        batch_size=1.0,
        smoothness=smoothness,
        weak_convexity=weak_convexity * sampling_rate,
        **numbers,
    )


SHORT = {"noise_multiplier": 1.0, "sampling_rate": 0.2, "steps": 400, "smoothness": 0.0}
RUNS = [
    (setting(**SHORT, diameter=4.0), 1.0),
    (setting(**SHORT | {"noise_multiplier": 2.0, "sampling_rate": 0.5}, diameter=6.0), 1.0),
    (
        setting(
            noise_multiplier=1.0,
            sampling_rate=0.2,
            steps=400,
            smoothness=0.1,
            strong_convexity=0.1,
            diameter=1e3,
        ),
        0.9,
    ),
]


def leaked(run, move, width):
    """Exact epsilon of sampled steps on [-width/2, width/2] that a record pushes by 1."""
    rate = run.rate
    out, pushed = (chain.step(move, width, run.noise_multiplier, push) for push in (0.0, 1.0))
    inside = (1 - rate) * out + rate * pushed
    laws = (chain.last_iterate([one] * run.steps) for one in (inside, out))
    return chain.epsilon(*laws, DELTA)


@pytest.mark.parametrize(("run", "slope"), RUNS)
def test_no_convex_loss_on_the_line_leaks_more_and_composition_is_beaten(run, slope):
    found = sampled.convex(run, DELTA)
    leak = leaked(run, lambda x: slope * x, min(run.width, 30.0))
    assert 0.05 * found < leak <= found
    assert found < 0.6 * composition.bracket(*run.mechanism, DELTA).lower


def test_the_price_of_a_shift_is_the_least_that_a_general_solver_finds():
    for factor in (1.0, 0.99, 0.5):
        for steps in (1, 3, 10):
            # Spending a_t leaves R_t = c R_(t-1) - a_t, R_T = 0: sum a_t c^(T-t) = c^T.
            weights = factor ** np.arange(steps - 1, -1, -1)
            least = factor ** (2 * steps) / (weights @ weights)
            assert shifts.contracted_fraction(factor, steps) == pytest.approx(least, rel=1e-12)


def test_of_many_steps_the_last_alone_count():
    short, long = (
        setting(noise_multiplier=2.0, sampling_rate=0.01, steps=steps, smoothness=1.0, diameter=1.0)
        for steps in (10_000, 1_000_000)
    )
    assert sampled.convex(long, 1e-5) == pytest.approx(sampled.convex(short, 1e-5), rel=1e-2)
    assert composition.bracket(*long.mechanism, 1e-5).lower > 3 * sampled.convex(long, 1e-5)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"smoothness": None}, "smoothness: got none"),
        ({"diameter": None}, "diameter: got None; expected a number, or"),
        ({"smoothness": 3.0}, "learning_rate: got 1.0; expected at most"),
        ({"diameter": -1.0}, "diameter: got -1.0"),
    ],
)
def test_outside_its_assumptions_it_names_the_parameter(changes, message):
    numbers = {"noise_multiplier": 1.0, "sampling_rate": 0.1, "steps": 10, "smoothness": 1.0}
    with pytest.raises(InputError, match=message):
        sampled.convex(setting(**{**numbers, "diameter": 1.0, **changes}), 1e-5)


CURVED = {"noise_multiplier": 2.0, "sampling_rate": 0.3, "learning_rate": 0.5, "steps": 200}
LEAKY = CURVED | {"noise_multiplier": 1.0, "sampling_rate": 1.0, "steps": 60}


@pytest.mark.parametrize("numbers", [CURVED, LEAKY])
@pytest.mark.parametrize(("weak", "diameter"), [(0.02, 4.0), (0.1, 2.0), (0.1, 4.0), (1.0, 0.5)])
def test_no_expanding_loss_on_the_line_leaks_more(numbers, weak, diameter):
    run = setting(**numbers, weak_convexity=weak, smoothness=weak, diameter=diameter)
    found = sampled.clipped(run, DELTA)
    leak = leaked(run, lambda x: (1 + 0.5 * weak) * x, run.width)
    assert leak <= found
    if numbers is LEAKY and diameter >= 2:
        # With an eighth of the price of the domain it would not hold.
        eighth = replace(run, diameter=diameter / 8)
        assert sampled.clipped(eighth, DELTA) < leak


@pytest.mark.parametrize("numbers", [CURVED, LEAKY])
@pytest.mark.parametrize("power", [0.3, 0.7])
@pytest.mark.parametrize("diameter", [1.0, 4.0])
def test_no_loss_with_hoelder_gradients_on_the_line_leaks_more(numbers, power, diameter):
    # sgn(x) |x|^p has the Hölder constant 2^(1 - p).
    constant = 0.05
    run = setting(
        **numbers, smoothness=constant * 2 ** (1 - power), holder=power, diameter=diameter
    )
    found = sampled.holder(run, DELTA)

    def move(x):
        # In units of learning rate times clipping norm, 0.5 times 1.
        return x + constant * np.sign(x) * np.abs(0.5 * x) ** power

    leak = leaked(run, move, run.width)
    assert leak <= found
    if numbers is LEAKY and diameter >= 2:
        eighth = replace(run, diameter=diameter / 8)
        assert sampled.holder(eighth, DELTA) < leak


@pytest.mark.parametrize("smoothness", [0.0, 0.05, 0.6])
def test_gradients_of_exponent_1_are_smooth(smoothness):
    """At the constant of the triangle inequality, whose price is known exactly."""
    smooth = setting(**CURVED, weak_convexity=smoothness, smoothness=smoothness, diameter=1.0)
    exact = sampled._best(
        smooth,
        DELTA,
        lambda steps: (
            (smooth.width * (lipschitz := cyclic_operator.trivial(0.5, smoothness, smoothness)))
            ** 2
            * float(shifts.visible_fraction(lipschitz, steps))
        ),
    )
    found = sampled.holder(smooth, DELTA)
    assert exact * (1 - 1e-6) <= found <= 1.03 * exact


@pytest.mark.whole
def test_of_one_step_the_last_noise_alone_hides_the_domain():
    """Liang et al.'s analysis: the last step hides the diameter and the record."""
    run = setting(**CURVED | {"steps": 1}, smoothness=0.4, diameter=1.0)
    lipschitz = cyclic_operator.clipped(0.5, 0.0, 0.4)
    split = [
        sampled._composed(run, 1, share, lipschitz * 2.0 / (2.0 * share**0.5), DELTA)
        for share in sampled.SHARES[::4].tolist()
    ]
    assert 0.995 * min(split) < sampled.clipped(run, DELTA) < 1.05 * min(split)


def test_a_domain_that_costs_too_much_for_a_grid_is_bounded_all_the_same(monkeypatch):
    numbers = {"sampling_rate": 0.01, "steps": 200, "noise_multiplier": 1.0, "smoothness": 1.0}
    near = setting(**numbers, diameter=10.0)
    composed = sampled.clipped(near, 1e-5)
    # A grid eight times as coarse costs next to nothing.
    monkeypatch.setattr(sampled, "MOST_POINTS", int(16 * 10 / 8e-3))
    assert composed < sampled.clipped(near, 1e-5) < 1.01 * composed
    monkeypatch.setattr(sampled, "MOST_POINTS", 1)
    # Two epsilons at half delta each: more, and not by much.
    assert composed < sampled.clipped(near, 1e-5) < 1.3 * composed
    monkeypatch.undo()
    # 100 times the noise hidden by one step or by a hundred: mu = 1e4 to 1e6.
    far = setting(**numbers, diameter=1e6)
    found = sampled.convex(far, 1e-5)
    assert 0.5 * 1e12 / 200 < found < sampled.clipped(far, 1e-5)
