"""Batches in an order that is drawn: what all sums show of a record, against simulation."""

import functools
import math
from pathlib import Path

import deltas
import mpmath
import numpy as np
import pytest
from scipy.special import logsumexp

from hiddenstate.accounting import balls_and_bins, batched, gaussian, ordered, pld
from hiddenstate.accounting.setting import Setting
from hiddenstate.errors import InputError
from hiddenstate.rounding import shown
from hiddenstate.sampling import Cyclic

RUNS = 200_000
DELTA = 1e-3
PAIRS = (batched.SWAPPED, batched.ZEROED)
SETTINGS = [(1.0, 10, 1, False), (0.8, 60, 1, False), (2.5, 20, 4, False), (1.5, 20, 4, True)]
"""Noise multiplier, batches of an epoch, epochs, and whether the order is drawn in each of them."""


def draw(noise, batches, shift, runs, rng):
    """Means of the batches' sums, shape (runs, batches): one, drawn uniformly, is at the shift."""
    sums = noise * rng.standard_normal((runs, batches))
    sums[np.arange(runs), rng.integers(batches, size=runs)] += shift
    return sums


def log_likelihood_ratio(sums, noise, pair):
    """Of the record being there against its being exchanged, shape (runs,)."""
    present, absent = (logsumexp((sums - shift / 2) * shift / noise**2, axis=1) for shift in pair)
    return present - absent


def bound(setting, pair, delta=DELTA):
    *numbers, redrawn = setting
    return batched.lower_epsilon(*numbers, delta, pair, redrawn=redrawn)


@functools.cache
def simulated(setting):
    """Log-likelihood ratios of the best adversary, of runs with the record, by pair."""
    noise, batches, epochs, redrawn = setting
    rng = np.random.default_rng(batches)
    # Epochs whose order is drawn again are independent; else their means are sufficient.
    sigma, independent = (noise, epochs) if redrawn else (noise / math.sqrt(epochs), 1)
    ratios = {pair: np.zeros(RUNS) for pair in PAIRS}
    for _ in range(independent):
        sums = draw(sigma, batches, PAIRS[0][0], RUNS, rng)
        # By shift: what each world's likelihood is over that of noise.
        logs = {
            shift: np.log(np.exp((sums - shift / 2) * (shift / sigma**2)).sum(axis=1))
            for shift in {shift for pair in PAIRS for shift in pair}
        }
        for (present, absent), ratio in ratios.items():
            ratio += logs[present] - logs[absent]
    return ratios


def simulated_delta(epsilon, setting, pair):
    """Delta at this epsilon of the best adversary; standard error."""
    beyond = -np.expm1(np.minimum(0, epsilon - simulated(setting)[pair]))
    return beyond.mean(), beyond.std() / math.sqrt(RUNS)


@pytest.mark.whole
@pytest.mark.parametrize("pair", PAIRS)
@pytest.mark.parametrize("setting", SETTINGS)
def test_the_bound_lies_between_nothing_and_composition(setting, pair):
    """In 16 comparisons at 4 standard errors about one in a thousand suites fails by chance."""
    noise, _, epochs, _ = setting
    lower = bound(setting, pair)
    found, error = simulated_delta(lower, setting, pair)
    assert found > DELTA - 4 * error
    upper = float(gaussian.epsilon((pair[0] - pair[1]) * math.sqrt(epochs) / noise, DELTA))
    assert 0 < lower < upper
    found, error = simulated_delta(upper, setting, pair)
    assert found < DELTA + 4 * error


@pytest.mark.whole
@pytest.mark.parametrize("setting", SETTINGS)
def test_the_simulation_tells_a_bound_that_is_too_large(setting):
    """The bound of a swapped record, asked of one that is zeroed out; and a bound half as much."""
    too_large = bound(setting, batched.SWAPPED)
    found, error = simulated_delta(too_large, setting, batched.ZEROED)
    assert found < DELTA - 4 * error
    too_large = 1.5 * bound(setting, batched.SWAPPED)
    found, error = simulated_delta(too_large, setting, batched.SWAPPED)
    assert found < DELTA - 4 * error


@pytest.mark.parametrize("pair", [*PAIRS, (1.0, 0.0)])
@pytest.mark.parametrize("epochs", [1, 9])
def test_one_batch_is_the_gaussian_mechanism(pair, epochs):
    mu = (pair[0] - pair[1]) * math.sqrt(epochs) / 3
    exact = float(gaussian.epsilon(mu, 1e-5))
    found = batched.lower_epsilon(3.0, 1, epochs, 1e-5, pair)
    assert found <= exact
    assert found == pytest.approx(exact, rel=1e-6)


@pytest.mark.parametrize("noise", [0.05, 0.1, 0.3])
@pytest.mark.parametrize("below_one", [1e-6, 1e-9, 1e-12, 1e-14])
def test_a_delta_near_1_rounds_no_lower_bound_up(noise, below_one):
    delta = 1 - below_one
    with mpmath.workdps(40):
        for redrawn in (False, True):
            found = batched.lower_epsilon(noise, 1, 1, delta, redrawn=redrawn)
            assert found == 0 or deltas.gaussian(2 / noise, found) >= delta
        steps, several = 2001, Cyclic(10, shuffled_once=True)
        setting = Setting(
            sampling=several, noise_multiplier=noise * 2000**0.5 / 2, steps=steps, records=20
        )
        found = ordered.epsilon(setting, delta).lower
        # The record is in 1,001 steps or in 1,000, each as likely.
        noises = setting.noise_multiplier * mpmath.sqrt(steps)
        mean = sum(deltas.gaussian(2 * visits / noises, found) for visits in (1001, 1000)) / 2
        assert found == 0 or mean >= delta


def test_means_over_epochs_are_all_that_the_sums_of_a_fixed_batch_show():
    noise, epochs, pair = 1.7, 5, batched.ZEROED
    sums = np.random.default_rng(0).normal(0.3, 2, (6, epochs, 8))

    def log_density(shift):
        """Of the record in each batch in turn, up to what both worlds share."""
        each = -((sums - shift) ** 2) / 2 / noise**2 + sums**2 / 2 / noise**2
        return logsumexp(each.sum(axis=1), axis=1)

    found = log_likelihood_ratio(sums.mean(axis=1), noise / math.sqrt(epochs), pair)
    assert found == pytest.approx(log_density(pair[0]) - log_density(pair[1]), rel=1e-12)


def test_an_epoch_is_the_same_however_often_the_order_is_drawn():
    once, again = (bound((0.9, 30, 1, redrawn), batched.SWAPPED) for redrawn in (False, True))
    assert once == again
    # Each further epoch shows more, and less than where the order stays.
    several = [bound((0.9, 30, epochs, True), batched.SWAPPED) for epochs in (1, 2, 10)]
    assert several == sorted(set(several))
    assert several[1] < bound((0.9, 30, 2, False), batched.SWAPPED)


def test_more_batches_hide_more_and_more_epochs_less():
    few, many = (batched.lower_epsilon(0.8, batches, 1, 1e-5) for batches in (10, 1000))
    assert many < few < batched.lower_epsilon(0.8, 10, 2, 1e-5)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((0.0, 10, 1, 1e-5), "noise_multiplier: got 0.0"),
        ((1.0, 0, 1, 1e-5), "batches: got 0"),
        ((1.0, 10, 1.5, 1e-5), "epochs: got 1.5"),
        ((1.0, 10, 1, 0.0), "delta: got 0.0"),
    ],
)
def test_what_is_out_of_range_is_named(arguments, words):
    with pytest.raises(InputError, match=words):
        batched.lower_epsilon(*arguments)


@pytest.mark.whole
def test_the_table_of_the_docs():
    page = (Path(__file__).parents[2] / "docs/accounting.md").read_text()
    table = page[page.index("| batches | noise multiplier |") :].splitlines()[2:5]
    for line in table:
        batches, noise, *stated = (
            float(cell.replace(",", "")) for cell in line.strip("| ").split("|")
        )
        mechanism = (noise, int(batches), 1)
        assert pld.epsilon(noise, 1 / batches, int(batches), 1e-5) == pytest.approx(1, abs=2e-3)
        linear = float(gaussian.epsilon(2 / noise / math.sqrt(batches), 1e-5))
        found = [
            balls_and_bins.lower_epsilon(*mechanism, 1e-5, batched.ZEROED),
            float(gaussian.epsilon(1 / noise, 1e-5)),
            balls_and_bins.lower_epsilon(*mechanism, 1e-5),
            float(gaussian.epsilon(2 / noise, 1e-5)),
            linear,
        ]
        kinds = ("lower", "upper", "lower", "upper", "exact")
        printed = [
            float(shown(value, kind, decimals=3)) for value, kind in zip(found, kinds, strict=True)
        ]
        assert printed == stated, printed
    others = [
        balls_and_bins.lower_epsilon(noise, batches, 1, 1e-5, (1.0, 0.0))
        for noise, batches in ((1.741, 10), (0.902, 100), (0.641, 1000))
    ]
    words = "{}, {} and {}".format(*(shown(value, "lower", decimals=3) for value in others))
    assert words in " ".join(page.split()), words


@pytest.mark.whole
@pytest.mark.parametrize(
    ("sigma", "batches", "epochs", "runs"),
    [
        (2.0, 10, 10, 200_000),
        (0.8, 100, 5, 60_000),
        pytest.param(1.1, 40, 20, 200_000, marks=pytest.mark.slow),
        pytest.param(0.8, 100, 5, 200_000, marks=pytest.mark.slow),
    ],
)
def test_the_likelihood_ratio_is_the_law_of_its_runs(sigma, batches, epochs, runs):
    """Delta of the exact pair, simulated; a bound a twentieth larger would be seen."""
    delta = 0.01
    found = balls_and_bins.lower_epsilon(sigma, batches, epochs, delta, redrawn=True)
    rng = np.random.default_rng(7)

    def ratios(present):
        total = np.zeros(runs)
        for _ in range(epochs):
            sums = sigma * rng.standard_normal((runs, batches), dtype=np.float32)
            sums[:, 0] += 2.0 * present
            total += np.log(np.exp((2 * sums - 2) / sigma**2).mean(axis=1))
        return total

    inside, outside = ratios(True), -ratios(False)

    def deltas(epsilon):
        parts = [np.maximum(0, -np.expm1(epsilon - loss)) for loss in (inside, outside)]
        worst = max(parts, key=np.mean)
        return worst.mean(), worst.std() / runs**0.5

    mean, error = deltas(found)
    assert mean + 5 * error >= delta
    mean, error = deltas(1.05 * found)
    assert mean + 5 * error < delta
    assert found > batched.lower_epsilon(sigma, batches, epochs, delta, redrawn=True)


def test_no_bound_is_without_end():
    """So little noise that e^-epsilon is no number."""
    for redrawn in (False, True):
        found = balls_and_bins.lower_epsilon(0.05, 10, 3, 1e-5, redrawn=redrawn)
        # Composition of the visits: mu = 2 sqrt(3) / 0.05.
        assert 100 < found < float(gaussian.epsilon(2 * 3**0.5 / 0.05, 1e-5))
