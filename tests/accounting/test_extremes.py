"""Any setting that a user may type, extremes among them: an answer, or an input error by name."""

import math

import numpy as np
import pytest

from hiddenstate.accounting import (
    balls_and_bins,
    batched,
    bounds,
    composition,
    divergence,
    gaussian,
    history,
    linear,
    ordered,
    pld,
    rdp,
    sampled,
    sitting_out,
    swapped,
    weighted,
)
from hiddenstate.accounting.bounds import STANDARD
from hiddenstate.accounting.setting import Setting
from hiddenstate.errors import InputError
from hiddenstate.sampling import (
    SAMPLERS,
    BallsAndBins,
    Cyclic,
    FixedSize,
    FullBatch,
    Poisson,
    Reshuffled,
)


def drawn(draw, extreme):
    """A setting's numbers and a delta; steps and sizes such that each takes a second or so."""

    def power(low, high):
        return float(10 ** draw.uniform(low, high))

    def maybe(value, probability=0.3):
        return value if draw.random() < probability else None

    wide = 2.0 if extreme else 1.0
    records, size = int(power(0, 3.5)), int(power(0, 3))
    steps = max(1, int(power(0, 4 if extreme else 3)))
    sampler = draw.choice(SAMPLERS)
    size = min(size, records)
    bins = -(-records // size)
    if sampler == "balls-and-bins":
        steps = bins * -(-steps // bins)
    sampling = {
        "poisson": Poisson(min(1.0, power(-3 * wide, 0.1))),
        "full": FullBatch(),
        "fixed-size": FixedSize(size),
        "balls-and-bins": BallsAndBins(bins),
        "cyclic": Cyclic(size),
        "shuffled": Cyclic(size, shuffled_once=True),
        "reshuffled": Reshuffled(size, drop_last=bool(draw.random() < 0.5)),
    }[sampler]
    numbers = {
        "sampling": sampling,
        "noise_multiplier": power(-0.7 * wide, 1 * wide),
        "steps": steps,
        "records": records,
        "batch_size": float(size),
        "learning_rate": power(-3, 1),
        "smoothness": maybe(float(draw.choice([0.0, power(-2 * wide, wide)]))),
        "diameter": maybe(power(-wide, 2 * wide)),
        "schedule": maybe(str(draw.choice(["linear", "cosine", "step"]))),
        "momentum": maybe(float(draw.choice([0.5, 0.9, 0.999])), 0.15),
        "weight_decay": maybe(power(-4, 0), 0.2),
        "group": maybe(int(power(0, 1.5)), 0.2),
        "adjacency": maybe("swap", 0.2),
    }
    release = draw.choice(
        ["release_every", "average_last", "ema_decay", "none"], p=[0.1] * 3 + [0.7]
    )
    if release == "ema_decay":
        numbers["ema_decay"] = float(draw.uniform(0.1, 0.999))
    elif release != "none":
        numbers[release] = int(draw.integers(1, steps + 1))
    if numbers["smoothness"] is not None:
        numbers["weak_convexity"] = maybe(0.0, 0.5)
        numbers["strong_convexity"] = maybe(power(-3, 0) * numbers["smoothness"], 0.2)
        numbers["holder"] = maybe(0.5, 0.1)
    if numbers["schedule"] and sampler in ("cyclic", "shuffled"):
        # On a domain each batch of an order is tried.
        numbers["records"] = min(records, size * max(1, 100_000 // steps))
    delta = power(-13 if extreme else -8, -0.4)
    return {name: value for name, value in numbers.items() if value is not None}, delta


@pytest.mark.whole
@pytest.mark.parametrize(
    ("part", "count"),
    [(0, 10), (1, 20), *(pytest.param(i, 50, marks=pytest.mark.slow) for i in range(8))],
)
def test_drawn_settings_are_answered_or_refused_by_name(part, count):
    """``found`` raises where an upper bound is below what is known to leak, or is not finite."""
    draw = np.random.default_rng(part)
    answered = 0
    for number in range(count):
        numbers, delta = drawn(draw, extreme=number % 2 == 1)
        try:
            setting = Setting(**numbers)
        except InputError as refusal:
            assert ": " in str(refusal)
            continue
        assert setting.words
        found = bounds.found(setting, delta)
        bounds.unused(setting, found)
        proven = [one.epsilon for one in found if one.bound.group == "proven"]
        assert any(one is not None for one in proven), numbers
        (standard,) = (one for one in found if one.bound.name == STANDARD)
        for one in found:
            if one.value is None:
                assert one.assumption.startswith("none: ")
                assert len(one.assumption) > 15
            else:
                assert 0 <= one.epsilon < math.inf
        answered += standard.value is not None
    assert answered >= count / 2


@pytest.mark.parametrize("fixed_size", [False, True])
@pytest.mark.parametrize("noise", [1e18, 1e20, 1e50])
def test_so_much_noise_hides_a_swapped_record(noise, fixed_size):
    assert swapped.bracket(noise, 0.1, 10, 1e-5, fixed_size=fixed_size) == (0, 0)


def test_of_noise_that_rounding_cannot_follow_sampling_is_not_counted():
    lower, upper = swapped.bracket(2e6, 0.5, 10, 1e-8)
    whole = composition.bracket(1e6, 1.0, 10, 1e-8)
    assert (lower, upper) == (0, whole.upper) and upper > 0
    # Just below, with it.
    within = swapped.bracket(0.9e6, 0.5, 10, 1e-8)
    assert 0 < within.lower <= within.upper < 0.9 * composition.bracket(0.45e6, 1, 10, 1e-8).upper


def test_extreme_noise_in_a_history_is_answered_or_refused_by_name():
    for noise in (1e15, 1e50):
        assert history.epsilon(noise, 0.1, 10, 2.0, 1e-5) == 0
    for noise in (1e-3, 1e-200):
        with pytest.raises(InputError, match=f"noise_multiplier: got {noise}"):
            history.epsilon(noise, 0.1, 10, 2.0, 1e-5)


REFUSED = {
    "last_iterate": lambda noise, delta: linear.last_iterate_epsilon(noise, 0.1, 10, delta),
    "sweep": lambda noise, delta: linear.last_iterate_epsilon([1.0, noise], 0.1, 10, delta),
    "composition": lambda noise, delta: composition.bracket(noise, 0.1, 10, delta),
    "swapped": lambda noise, delta: swapped.bracket(noise, 0.1, 10, delta),
    "pld": lambda noise, delta: pld.epsilon(noise, 0.1, 10, delta),
    "rdp": lambda noise, delta: rdp.epsilon(noise, 0.1, 10, delta),
    "balls and bins": lambda noise, delta: balls_and_bins.bracket(noise, 10, 5, delta),
    "sitting out": lambda noise, delta: sitting_out.swapped(noise, 10, 5, delta),
    "weighted": lambda noise, delta: weighted.epsilon(noise, 0.1, [1.0, 2.0], delta),
    "bounds": lambda noise, delta: bounds.found(
        Setting(sampling=Poisson(0.1), noise_multiplier=noise, steps=10), delta
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_noise_whose_powers_are_no_numbers_and_no_delta_are_refused_by_name(name):
    for noise in (1e-200, 1e-160, 1e160, 1e200, math.nan):
        with pytest.raises(InputError, match=f"noise_multiplier: got {noise}".replace("+", r"\+")):
            REFUSED[name](noise, 1e-5)
    for delta in (0.0, 1.0, math.nan):
        with pytest.raises(InputError, match=f"delta: got {delta}; expected a number in"):
            REFUSED[name](1.0, delta)


@pytest.mark.parametrize("noise", [1e-3, 3e-4])
def test_with_little_noise_a_lower_bound_keeps_what_rounding_of_large_losses_takes(noise):
    """Losses of a step reach 1e7, and those of null "in" are at most -log(1 - q) each."""
    most = -100 * math.log1p(-0.01)
    with pytest.raises(composition.TooWide) as found:
        composition.bracket(noise, 0.01, 100, 1e-20, null="in", width=1e-12)
    lower, upper = found.value.bracket
    assert 0.99 * most < lower <= upper <= most * (1 + 1e-15)


def test_counts_of_other_libraries_are_counts():
    """NumPy's whole numbers come from grids; they were refused, and taken as they are: no JSON."""
    setting = Setting(
        sampling=Cyclic(10), records=np.int64(100), steps=np.int32(20), noise_multiplier=1.0,
        group=np.int64(2),
    )  # fmt: skip
    assert [type(n) for n in (setting.records, setting.steps, setting.group)] == [int] * 3


@pytest.mark.parametrize("holder", [1.0, 0.5])
def test_what_no_number_holds_is_refused_by_its_diameter(holder):
    setting = Setting(
        sampling=Poisson(0.01), noise_multiplier=1e8, steps=100, records=1000, batch_size=10.0,
        smoothness=1e100, diameter=1e120, holder=holder,
    )  # fmt: skip
    bound = sampled.clipped if holder == 1 else sampled.holder
    with pytest.raises(InputError, match=r"diameter: got 1e\+120"):
        bound(setting, 1e-5)


@pytest.mark.parametrize("sampling", [Cyclic(10), Cyclic(10, shuffled_once=True), Reshuffled(10)])
def test_more_steps_than_memory_holds_are_refused_by_name(sampling):
    setting = Setting(
        sampling=sampling, noise_multiplier=1e4, steps=10**12, records=1000, batch_size=10.0
    )
    with pytest.raises(InputError, match="steps: got 1000000000000"):
        ordered.epsilon(setting, 1e-5)


@pytest.mark.parametrize(
    "mechanism",
    [(5e-4, 0.01, 100, 1e-300), (5e7, 0.01, 100, 1e-300), (1e-5, 0.1, 10, 1e-5)],
)
def test_what_rounding_cannot_follow_is_bounded_without_sampling(mechanism):
    noise, _, steps, delta = mechanism
    found = composition.fine_bracket(*mechanism)
    assert found.lower == 0
    every = composition.bracket(noise, 1.0, steps, delta).upper
    assert found.upper == pytest.approx(every, rel=1e-6) and found.upper >= every * (1 - 1e-9)


BEYOND = 10**400
MECHANISM = {"noise_multiplier": 1.0, "sampling_rate": 0.1, "steps": 10, "delta": 1e-5}
BATCHED = {"noise_multiplier": 1.0, "batches": 10, "epochs": 5, "delta": 1e-5}
TRAINING = {
    "noise_multiplier": 1.0, "steps": 10, "records": 100, "learning_rate": 1.0, "group": 1,
    "clipping_norm": 1.0, "smoothness": 1.0, "weak_convexity": 0.0, "strong_convexity": 0.0,
    "momentum": 0.5, "weight_decay": 0.1, "release_every": 5, "average_last": 5, "ema_decay": 0.5,
}  # fmt: skip
TAKEN = {
    "linear": (linear.last_iterate_epsilon, MECHANISM),
    "full batch": (linear.full_batch_epsilon, MECHANISM),
    "delta": (
        linear.last_iterate_delta,
        {"noise_multiplier": 1.0, "sampling_rate": 0.1, "steps": 10, "epsilon": 1.0},
    ),
    "noise": (
        linear.last_iterate_noise_multiplier,
        {"epsilon": 1.0, "delta": 1e-5, "sampling_rate": 0.1, "steps": 10},
    ),
    "gaussian": (gaussian.epsilon, {"mu": 1.0, "delta": 1e-5}),
    "gaussian bracket": (gaussian.bracket, {"mu": 1.0, "delta": 1e-5}),
    "gaussian below": (gaussian.epsilon_below, {"mu": 1.0, "delta": 1e-5}),
    "gaussian mu": (gaussian.mu, {"epsilon": 1.0, "delta": 1e-5}),
    "pld": (pld.epsilon, MECHANISM),
    "rdp": (rdp.epsilon, MECHANISM),
    "composition": (composition.bracket, MECHANISM),
    "swapped": (swapped.bracket, MECHANISM),
    "history": (history.epsilon, {**MECHANISM, "growth": 2.0}),
    "balls and bins": (balls_and_bins.bracket, BATCHED),
    "batched": (batched.lower_epsilon, BATCHED),
    "sitting out": (sitting_out.swapped, BATCHED),
    "divergence": (divergence.epsilon, {"rho": 1.0, "delta": 1e-5}),
    "divergence, gaussian": (divergence.gaussian_epsilon, {"rho": 1.0, "delta": 1e-5}),
    "training": (lambda **given: Setting(sampling=Cyclic(10), **given), TRAINING),
    "cyclic": (Cyclic, {"batch_size": 10}),
    "balls": (BallsAndBins, {"bins": 10}),
}


@pytest.mark.parametrize(
    ("function", "given", "name"),
    [
        pytest.param(function, given, name, id=f"{title}-{name}")
        for title, (function, given) in TAKEN.items()
        for name in given
    ],
)
def test_integers_that_no_double_holds_are_refused_by_name(function, given, name):
    """They ended in an OverflowError."""
    expected = f"^{name}: got an integer of over 300 digits; expected less than 2\\^1023$"
    with pytest.raises(InputError, match=expected):
        function(**(given | {name: BEYOND}))
