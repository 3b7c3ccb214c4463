"""Balls and bins: each record in a random batch of each epoch, against simulated runs."""

import itertools
import math

import numpy as np
import pytest
from scipy import optimize, stats

from hiddenstate.accounting import balls_and_bins, batched, bounds, gaussian, pld
from hiddenstate.accounting.bounds import HEURISTIC, STANDARD
from hiddenstate.accounting.setting import Setting
from hiddenstate.errors import InputError
from hiddenstate.sampling import BallsAndBins

RUNS = 200_000


def losses(sigma, bins, epochs, rng):
    """Privacy losses of all sums with the record, and without it with their sign changed."""
    found = np.zeros((2, RUNS))
    for _ in range(epochs):
        for world in (0, 1):
            sums = sigma * rng.standard_normal((RUNS, bins), dtype=np.float32)
            sums[:, 0] += 1 - world
            found[world] += np.log(np.exp((sums - 0.5) / sigma**2).mean(axis=1))
    return found[0], -found[1]


def delta_of(losses, epsilon):
    each = np.maximum(0.0, -np.expm1(epsilon - losses))
    return each.mean(), each.std() / math.sqrt(RUNS)


@pytest.mark.whole
@pytest.mark.parametrize(
    ("sigma", "bins", "epochs"),
    [(1.0, 12, 5), (0.5, 40, 2), pytest.param(2.0, 30, 20, marks=pytest.mark.slow)],
)
def test_the_bracket_is_the_law_of_200_000_runs(sigma, bins, epochs):
    """Two directions and three settings at 5 deviations: wrong once in a million suites."""
    delta = 0.01
    lower, upper = balls_and_bins.bracket(sigma, bins, epochs, delta)
    assert upper - lower <= 0.01 * upper
    both = losses(sigma, bins, epochs, np.random.default_rng(bins))
    worst = [max(delta_of(one, epsilon) for one in both) for epsilon in (lower, upper)]
    assert worst[0][0] + 5 * worst[0][1] >= delta
    assert worst[1][0] - 5 * worst[1][1] <= delta
    # A bracket five per cent off is seen on either side.
    high, error = max(delta_of(one, 0.95 * lower) for one in both)
    assert high - 2 * error > delta
    low, error = max(delta_of(one, 1.05 * upper) for one in both)
    assert low + 2 * error < delta


@pytest.mark.whole
@pytest.mark.parametrize("delta", [1e-3, 1e-7])
@pytest.mark.parametrize("sigma", [0.4, 1.0, 3.0])
def test_two_bins_by_integration(sigma, delta):
    """One epoch: delta by a grid over one sum, the other in closed form, in both directions."""
    x = np.linspace(-14, 14, 28_001)
    density = np.exp(-(x**2) / 2)
    density /= density.sum()
    ratio = np.exp(x / sigma - 1 / (2 * sigma**2))

    def exact(epsilon):
        # The mean of both ratios is e^epsilon or 1 / e^epsilon where the other one is the rest.
        found = []
        for sign in (1, -1):
            rest = 2 * math.exp(sign * epsilon) - ratio
            edge = sigma * np.log(np.maximum(rest, 1e-300)) + 1 / (2 * sigma)
            beyond = stats.norm.sf(sign * (edge - 1 / sigma)) - rest * stats.norm.sf(sign * edge)
            if sign == 1:
                found.append(density @ np.where(rest > 0, beyond, 1 - rest) / 2)
            else:
                inside = np.where(rest > 0, -beyond, 0)
                found.append(math.exp(epsilon) * (density @ inside) / 2)
        return max(found)

    lower, upper = balls_and_bins.bracket(sigma, 2, 1, delta)
    assert lower <= upper <= lower * 1.01 + 1e-3
    assert exact(lower) >= delta * (1 - 1e-4)
    assert exact(upper) <= delta * (1 + 1e-4)
    assert exact(upper * 0.97) > delta > exact(lower * 1.03)


def test_published_numbers_of_random_allocation():
    """The range that PLD_accounting 2.0 prints, which is wider."""
    lower, upper = balls_and_bins.bracket(1.0, 100, 10, 1e-5)
    assert 1.664 < lower < upper < 1.740


@pytest.mark.whole
def test_one_bin_is_the_gaussian_mechanism_and_more_hide_more():
    known = float(gaussian.epsilon(math.sqrt(4) / 3, 1e-5))
    lower, upper = balls_and_bins.bracket(3.0, 1, 4, 1e-5)
    assert lower <= known <= upper
    found = [balls_and_bins.bracket(0.8, bins, 4, 1e-5) for bins in (1, 2, 5, 50, 1000)]
    assert all(one.lower > other.upper for one, other in itertools.pairwise(found))


@pytest.mark.whole
def test_little_noise_overflows_nothing():
    for sigma in (0.01, 0.05, 0.06, 0.2):
        lower, upper = balls_and_bins.bracket(sigma, 30, 3, 1e-9)
        assert 0 < lower <= upper <= float(gaussian.epsilon(math.sqrt(3) / sigma, 1e-9)) * 1.001


@pytest.mark.whole
@pytest.mark.parametrize("deltas", [[1e-13], pytest.param([1e-6, 0.4], marks=pytest.mark.slow)])
def test_tiny_deltas_and_much_noise(deltas):
    for mechanism in ((200.0, 1000, 1), (30.0, 3, 2), (5.0, 100_000, 1)):
        for delta in deltas:
            lower, upper = balls_and_bins.bracket(*mechanism, delta)
            assert 0 <= lower <= upper <= max(1.05 * lower, lower + 2e-3)


@pytest.mark.whole
def test_what_a_random_batch_hides_of_linear_losses():
    numbers = {"sampling": BallsAndBins(12), "noise_multiplier": 1.0, "steps": 60}

    def rows(**more):
        found = bounds.found(Setting(**numbers, **more), 1e-5)
        return {one.bound.name: one for one in found}

    last = rows()[HEURISTIC].epsilon
    # In plain SGD the batch does not matter: a shift of the epochs in the noise of all steps.
    assert last == pytest.approx(float(gaussian.epsilon(5 / math.sqrt(60), 1e-5)), rel=1e-9)
    standard = rows()[STANDARD].value
    each = [rows(release_every=k)[HEURISTIC].epsilon for k in (1, 3, 12, 60)]
    assert standard.lower <= each[0] <= standard.epsilon
    assert each == sorted(each, reverse=True)
    assert each[-1] == pytest.approx(last, rel=1e-6)
    assert 0.8 * last < rows(momentum=0.9)[HEURISTIC].epsilon < standard.epsilon
    assert rows(group=2)[STANDARD].assumption == "none: not known with --group"
    assert "--adjacency swap" in rows(adjacency="swap")[HEURISTIC].assumption
    words = rows(release_every=5)[HEURISTIC].assumption
    assert "--release-every: got 5; expected a divisor or a multiple of the 12 batches" in words
    swap = rows(adjacency="swap")["without amplification by sampling"].epsilon
    assert swap == pytest.approx(float(gaussian.epsilon(2 * math.sqrt(5), 1e-5)), rel=1e-6)


@pytest.mark.whole
def test_bins_cost_about_what_poisson_batches_cost():
    lower, _ = balls_and_bins.bracket(1.1, 240, 60, 1e-5)
    assert 0.9 < lower / pld.epsilon(1.1, 1 / 240, 14_400, 1e-5) < 1


def test_every_record_is_in_one_batch_of_each_epoch():
    drawn = BallsAndBins(7).batches(50, 21, np.random.default_rng(0))
    assert len(drawn) == 21
    for epoch in range(3):
        seen = np.concatenate(drawn[7 * epoch : 7 * epoch + 7])
        assert sorted(seen.tolist()) == list(range(50))
    assert len({len(batch) for batch in drawn}) > 3
    assert BallsAndBins(7).visits(50, 21) == 3


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: balls_and_bins.bracket(0.0, 10, 1, 1e-5), "noise_multiplier: got 0.0"),
        (lambda: balls_and_bins.bracket(1.0, 0, 1, 1e-5), "batches: got 0"),
        (lambda: balls_and_bins.bracket(1.0, 10, 1, 1.0), "delta: got 1.0"),
        (lambda: BallsAndBins(0), "bins: got 0"),
        (
            lambda: Setting(sampling=BallsAndBins(12), noise_multiplier=1.0, steps=50),
            "steps: got 50; expected whole epochs of 12",
        ),
    ],
)
def test_what_is_out_of_range_is_named(call, words):
    with pytest.raises(InputError, match=words):
        call()


def test_the_lower_end_of_a_pair_is_the_bracket_of_half_the_noise():
    """A swapped record whose others are opposite stands out by 2 or by nothing."""
    lower = balls_and_bins.lower_epsilon(2.0, 20, 5, 1e-5, batched.SWAPPED, redrawn=True)
    found = balls_and_bins.bracket(1.0, 20, 5, 1e-5)
    assert lower == pytest.approx(found.lower, rel=1e-6)
    zeroed = balls_and_bins.lower_epsilon(2.0, 20, 5, 1e-5, batched.ZEROED, redrawn=True)
    assert zeroed < lower


@pytest.mark.parametrize("sigma", [1e10, 1e12, 1e15, 1e50])
def test_noise_that_doubles_hardly_tell_from_none_lowers_the_lower_bound(sigma):
    """At 1e15 it was twice epsilon, a rounding error, and at 1e50 the grid was a single point."""
    delta = 1e-2 / sigma
    with np.errstate(divide="raise", invalid="raise"):
        lower = balls_and_bins.lower_epsilon(sigma, 4, 3, delta, (1.0, 0.0), redrawn=True)
    # With so much noise the ratio of each epoch is all but normal, of deviation 1 / (2 sigma), and
    # delta at epsilon = t mu is mu (phi(t) - t Phi(-t)).
    mu = math.sqrt(3) / (2 * sigma)
    exact = mu * optimize.brentq(
        lambda t: stats.norm.pdf(t) - t * stats.norm.sf(t) - delta / mu, 0, 9
    )
    assert 0 <= lower <= exact * (1 + 1e-6)
    assert lower > 0.5 * exact or sigma > 1e12
