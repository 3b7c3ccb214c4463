"""One mechanism, one answer: every row honours an option of the optimiser or is refused."""

import functools
import itertools
import math
import pickle

import chain
import numpy as np
import pytest

from hiddenstate.accounting import (
    balls_and_bins,
    batched,
    bounds,
    composition,
    cyclic,
    divergence,
    pld,
    rdp,
    swapped,
    varying,
    weighted,
)
from hiddenstate.accounting.bounds import HEURISTIC, STANDARD
from hiddenstate.accounting.setting import Setting
from hiddenstate.errors import InputError
from hiddenstate.papers.atlas import released
from hiddenstate.sampling import BallsAndBins, Cyclic, FixedSize, FullBatch, Poisson, Reshuffled

DELTA = 1e-5
SAMPLED = {"noise_multiplier": 2.0, "steps": 60, "batch_size": 5.0, "learning_rate": 0.1}
ORDERED = {"noise_multiplier": 2.0, "steps": 60, "records": 58, "learning_rate": 0.1}
MECHANISMS = {
    "poisson": SAMPLED | {"sampling": Poisson(0.2)},
    "full": SAMPLED | {"sampling": FullBatch()},
    "fixed-size": ORDERED | {"sampling": FixedSize(5)},
    "balls-and-bins": SAMPLED | {"sampling": BallsAndBins(12)},
    "cyclic": ORDERED | {"sampling": Cyclic(5)},
    "shuffled": ORDERED | {"sampling": Cyclic(5, shuffled_once=True)},
    "reshuffled": ORDERED | {"sampling": Reshuffled(5, drop_last=False)},
}
LOSSES = {
    "any": {},
    "a domain": {"diameter": 0.1},
    "convex": {"smoothness": 0.5, "weak_convexity": 0.0},
    "convex on a domain": {"smoothness": 0.5, "weak_convexity": 0.0, "diameter": 0.1},
    "weakly convex on a domain": {"smoothness": 0.5, "diameter": 0.1},
    "strongly convex": {"smoothness": 0.5, "strong_convexity": 0.3},
    "strongly convex on a domain": {"smoothness": 0.5, "strong_convexity": 0.3, "diameter": 0.1},
    "rough": {"smoothness": 0.5, "holder": 0.5, "diameter": 0.1},
}
OPTIONS = {
    "schedule": ["linear", "cosine", "step"],
    "momentum": [0.5],
    "weight_decay": [0.5],
    "release_every": [1, 3],
    "average_last": [10],
    "ema_decay": [0.9],
    "group": [3],
    "adjacency": ["swap"],
}


def kept(function):
    """The function, which calculates what arguments give once; they may be arrays."""
    found = {}

    @functools.wraps(function)
    def once(*args, **options):
        key = pickle.dumps((args, sorted(options.items())))
        if key not in found:
            found[key] = function(*args, **options)
        return found[key]

    return once


KEPT = [
    (module, name, kept(getattr(module, name)))
    for module, name in (
        (balls_and_bins, "bracket"),
        (balls_and_bins, "lower_epsilon"),
        (batched, "lower_epsilon"),
        (composition, "bracket"),
        (composition, "fine_bracket"),
        (pld, "privacy_loss"),
        (rdp, "epsilon"),
        (rdp, "fixed_size_epsilon"),
        (swapped, "bracket"),
        (varying, "least"),
        (weighted, "epsilon"),
    )
]
"""Functions that most losses and options ask for the same numbers."""


@pytest.fixture
def once_each(monkeypatch):
    for module, name, once in KEPT:
        monkeypatch.setattr(module, name, once)


@pytest.mark.whole
@pytest.mark.usefixtures("once_each")
@pytest.mark.parametrize("losses", LOSSES)
@pytest.mark.parametrize("sampler", MECHANISMS)
def test_every_row_honours_every_option_or_is_refused(sampler, losses):
    """The guard of ``found`` holds each against each other, exact values among them."""
    plain = MECHANISMS[sampler] | LOSSES[losses]
    before = {one.bound.name: one for one in bounds.found(Setting(**plain), DELTA)}
    for option, values in OPTIONS.items():
        for value in values:
            setting = Setting(**plain | {option: value})
            for one in bounds.found(setting, DELTA):
                if option in setting.changed and option not in one.bound.honours:
                    assert one.value is None
                    name = "--" + option.replace("_", "-")
                    assert name in one.assumption or "--sampler fixed-size" in one.assumption
                    continue
                was = before.get(one.bound.name)
                if one.value is None or was is None or was.value is None:
                    continue
                if option == "adjacency" and setting.swaps == Setting(**plain).swaps:
                    assert one.epsilon == was.epsilon  # as it is by default
                elif option not in one.bound.uses:
                    # All iterates tell the noisy sums, whatever is made of them.
                    assert one.epsilon == was.epsilon
                    assert "all iterates" in one.assumption or one.bound.kind == "estimate"
                elif one.epsilon == was.epsilon:
                    # No less than composition, whose value it has.
                    assert one.epsilon == pytest.approx(before[STANDARD].epsilon, rel=1e-9)


def test_a_strongly_convex_row_is_above_the_linear_loss_that_it_covers():
    """The false row of before: 1.436 beside an exact 6.90."""
    setting = Setting(
        sampling=FullBatch(), batch_size=1.0, noise_multiplier=5.0, steps=200, learning_rate=0.1,
        smoothness=0.0, schedule="cosine", weight_decay=5.0,
    )  # fmt: skip
    found = {one.bound.name: one for one in bounds.found(setting, DELTA)}
    assert found[HEURISTIC].epsilon == pytest.approx(6.8996, abs=1e-4)
    assert found["strongly convex losses"].epsilon >= found[HEURISTIC].epsilon


@pytest.mark.whole
@pytest.mark.parametrize("count", [16, pytest.param(200, marks=pytest.mark.slow)])
def test_schedules_with_decay_are_above_exact_linear_losses(count):
    draw = np.random.default_rng(0)
    rows = [
        one for one in bounds.BOUNDS if one.name in ("strongly convex losses", HEURISTIC, STANDARD)
    ]
    for number in range(count):
        kinds = ("linear", "cosine", "step", "constant")
        sampler = ("poisson", "full", "cyclic", "shuffled")[number % 4]
        setting = Setting(
            **MECHANISMS[sampler]
            | {
                "steps": int(draw.integers(1, 150)),
                "noise_multiplier": float(10 ** draw.uniform(-0.3, 1)),
                "schedule": kinds[number // 4 % 4],
                "weight_decay": float(10 ** draw.uniform(-2, 0.9)),
                "smoothness": 0.0,
            }
        )
        found = {one.bound.name: one for one in bounds.found(setting, DELTA, rows)}
        row = found["strongly convex losses"]
        assert row.epsilon >= found[HEURISTIC].value.lower
        assert row.epsilon <= found[STANDARD].epsilon * 1.5


@functools.lru_cache(maxsize=200)
def chained(setting, rate, push):
    """Transitions of one step of a linear loss, with decay, at its learning rate."""
    kept = 1 - rate * setting.weight_decay
    sigma = setting.noise_multiplier * rate
    return chain.step(lambda x: kept * x, setting.diameter, sigma, push * rate, cells=201)


@pytest.mark.whole
@pytest.mark.usefixtures("once_each")
@pytest.mark.parametrize("count", [12, pytest.param(40, marks=pytest.mark.slow)])
@pytest.mark.parametrize("sampler", ["full", "cyclic", "poisson"])
def test_schedules_on_a_domain_are_above_exact_chains(sampler, count):
    """Linear losses projected on an interval, with decay."""
    draw = np.random.default_rng(1)
    for number in range(count):
        steps, sigma = int(draw.integers(2, 40)), float(10 ** draw.uniform(-0.2, 0.7))
        sampling = {"full": FullBatch(), "cyclic": Cyclic(1), "poisson": Poisson(0.3)}[sampler]
        width = float(10 ** draw.uniform(0.2, 1.3))
        setting = Setting(
            sampling=sampling, steps=steps, noise_multiplier=sigma, learning_rate=1.0,
            schedule=("linear", "cosine", "step")[number % 3], smoothness=0.0, diameter=width,
            weight_decay=float(draw.choice([0.0, 0.1, 0.5])), records=4,
            batch_size=None if sampler == "cyclic" else 1.0,
        )  # fmt: skip
        leaks = []
        for position in range(4) if sampler == "cyclic" else [0]:
            laws = ([], [])
            for t, rate in enumerate(setting.rates):
                if sampler == "cyclic":
                    visit = t % 4 == position
                    laws[0].append(chained(setting, rate, 1.0 * visit))
                    laws[1].append(chained(setting, rate, -1.0 * visit))
                else:
                    pushed = chained(setting, rate, 1.0)
                    still = chained(setting, rate, 0.0)
                    laws[0].append((1 - setting.rate) * still + setting.rate * pushed)
                    laws[1].append(still)
            leaks.append(chain.epsilon(*map(chain.last_iterate, laws), 1e-3))
        for one in bounds.found(setting, 1e-3):
            if one.bound.kind == "upper" and one.value is not None:
                assert max(leaks) <= one.epsilon * (1 + 1e-3)


def test_at_a_constant_rate_the_programme_is_the_one_that_is_known():
    for lipschitz in (1.0, 1.02):
        for diameter in (None, 0.4):
            run = cyclic.CyclicDPSGD(
                steps=50, steps_per_pass=7, batch_size=2, step_size=0.1, clipping_norm=1.0,
                noise_std=0.1, weak_convexity=(lipschitz - 1) / 0.1, position=3,
            )  # fmt: skip
            shifts = run.displacement * varying.visits(run)
            factors, noises = np.full(50, lipschitz), np.full(50, run.noise_std)
            found = varying.least(factors, noises, shifts, diameter) / 2
            if diameter is None:
                assert found == pytest.approx(cyclic.sharp(run, lipschitz), rel=1e-8)
            else:
                clipped = varying.least(
                    np.ones(50), noises, np.full(50, run.displacement * run.batch_size), diameter
                )
                known = cyclic.bounded_domain(run, lipschitz, diameter)
                assert 0.999 * known < min(found, clipped / 2) < 1.05 * known
    contracting = cyclic.strongly_convex(
        cyclic.CyclicDPSGD(
            steps=50, steps_per_pass=7, batch_size=2, step_size=0.1, clipping_norm=1.0,
            noise_std=0.1, smoothness=1.0, position=3,
        ), 0.5,
    )  # fmt: skip
    found = varying.least(np.full(50, 0.95), noises, shifts)
    assert found / 2 == pytest.approx(contracting, rel=1e-6)


def test_steps_that_decay_to_nothing_lose_no_visit():
    """The last learning rates are 1e-10 of the first; each visit still has its own price."""
    rates = np.geomspace(1, 1e-10, 500)
    found = varying.least(np.ones(500), rates, rates)
    assert found >= 1.0  # the last visit alone, which nothing follows
    grown = varying.least(np.full(500, 3.0), np.ones(500), np.ones(500))
    assert grown == math.inf or grown >= 400


def test_a_lower_bound_above_an_upper_one_is_an_error_of_ours():
    setting = Setting(sampling=Poisson(0.1), noise_multiplier=1.0, steps=10)
    one = dict(group="proven", assumption="all iterates", source="ours")
    upper = bounds.Bound(name="upper", compute=lambda *_: 1.0, **one)
    lower = bounds.Bound(
        name="lower", kind="lower", compute=lambda *_: 1.1, **one | {"group": "shown"}
    )
    with pytest.raises(ArithmeticError, match=r"lower is 1\.1, above upper, 1\.0"):
        bounds.found(setting, DELTA, [upper, lower])
    for value in (math.inf, math.nan):
        wrong = bounds.Bound(name="odd", compute=lambda *_, value=value: value, **one)
        with pytest.raises(ArithmeticError, match="odd"):
            bounds.found(setting, DELTA, [wrong])


def test_smoothness_alone_assumes_nothing_about_convexity():
    numbers = ORDERED | {"sampling": Cyclic(5), "smoothness": 1.0}
    weak, convex = (
        {one.bound.name: one.epsilon for one in bounds.found(Setting(**numbers | more), DELTA)}
        for more in ({}, {"weak_convexity": 0.0})
    )
    assert weak["cyclic, clipped"] > convex["cyclic, clipped"]
    assert "weak convexity 1" in Setting(**numbers).words
    assert Setting(**numbers | {"strong_convexity": 0.1}).weak_convexity == 0


def test_the_rate_and_the_curvature_mean_the_same_with_every_sampler():
    """Full batches are one batch of an order; Poisson batches of rate 1 are full ones."""
    loss = {"smoothness": 0.3, "strong_convexity": 0.2, "learning_rate": 0.5, "diameter": 3.0}
    numbers = {"noise_multiplier": 4.0, "steps": 30} | loss
    full = Setting(sampling=FullBatch(), batch_size=10.0, **numbers)
    same = Setting(sampling=Poisson(1.0), batch_size=10.0, **numbers)
    once = Setting(sampling=Cyclic(10), records=10, **numbers)
    assert full.curvature == same.curvature == once.curvature
    # A swapped record moves a step by twice as much as one that is removed.
    assert once.at().displacement == pytest.approx(2 * full.shift)


# --- released checkpoints -------------------------------------------------------------------------


@pytest.mark.whole
@pytest.mark.parametrize(
    ("mechanism", "every"),
    [((1.0, 0.1, 20), 4), ((0.7, 0.05, 30), 10), ((2.0, 0.3, 12), 2), ((1.0, 0.2, 6), 6)],
)
def test_epsilon_of_released_checkpoints_is_the_law_of_200_000_runs(mechanism, every):
    """Delta by the exact likelihood ratio of what is released, simulated in either direction."""
    delta, runs = 0.01, 200_000
    lower, upper = composition.fine_bracket(*mechanism, delta, every)
    rng = np.random.default_rng(every)
    inside, outside = (
        released.scores(*mechanism, every, present, runs, rng) for present in (True, False)
    )
    sampled = [
        np.maximum(0, -np.expm1(epsilon - loss))
        for epsilon in (lower, upper)
        for loss in (inside, -outside)
    ]
    means, errors = np.mean(sampled, axis=1), np.std(sampled, axis=1) / math.sqrt(runs)
    # The larger direction has the delta; five deviations are wrong once in a million.
    low, high = means[:2].max() + 5 * errors[:2].max(), means[2:].max() - 5 * errors[2:].max()
    assert high <= delta <= low
    # An epsilon two per cent off is seen.
    wrong = np.maximum(0, -np.expm1(0.95 * lower - inside)).mean()
    assert max(wrong, np.maximum(0, -np.expm1(0.95 * lower + outside)).mean()) > 1.02 * delta


@pytest.mark.whole
def test_releasing_more_leaks_more_and_the_ends_are_known():
    found = [
        composition.fine_bracket(0.7, 0.01, 1000, 1e-6, k) for k in (1, 2, 4, 5, 10, 100, 1000)
    ]
    assert [round(one.upper, 1) for one in found] == [5.4, 3.4, 2.7, 2.6, 2.4, 2.3, 2.2]
    assert all(one.lower > after.upper for one, after in itertools.pairwise(found))
    with pytest.raises(InputError, match="a divisor of the 1,000 steps, for example 250 or 500"):
        composition.bracket(0.7, 0.01, 1000, 1e-6, every=300)


def test_released_checkpoints_in_an_order():
    """Independent Gaussian mechanisms, and all iterates are composition."""
    numbers = {"sampling": Cyclic(5), "records": 20, "steps": 12, "noise_multiplier": 2.0}
    for every, visits in {1: 3.0, 4: 3 / 4, 6: (4 + 1) / 6, 12: 9 / 12}.items():
        setting = Setting(**numbers, release_every=every)
        found = {one.bound.name: one for one in bounds.found(setting, DELTA)}
        expected = divergence.gaussian_epsilon(visits / 2, DELTA)
        assert found[HEURISTIC].epsilon == pytest.approx(expected, rel=1e-6)
    assert found[STANDARD].epsilon >= found[HEURISTIC].epsilon
    once = Setting(**numbers | {"sampling": Cyclic(5)}, release_every=1)
    found = {one.bound.name: one for one in bounds.found(once, DELTA)}
    assert found[HEURISTIC].epsilon == pytest.approx(found[STANDARD].epsilon, rel=1e-6)


def test_numbers_in_single_precision_are_taken_as_doubles():
    def found(kind):
        numbers = {
            "noise_multiplier": 1.3, "batch_size": 130.0, "learning_rate": 0.11,
            "clipping_norm": 1.7, "smoothness": 0.013, "diameter": 1.1,
        }  # fmt: skip
        setting = Setting(
            sampling=Poisson(kind(0.013)), steps=3000, weak_convexity=0.0,
            **{name: kind(value) for name, value in numbers.items()},
        )  # fmt: skip
        fixed = rdp.fixed_size_epsilon(kind(1.1), 1000, 10, 100, kind(1e-5))
        return [one.epsilon for one in bounds.found(setting, 1e-5)], fixed

    assert found(np.float32) == found(lambda value: float(np.float32(value)))
