"""The adversary who sees every sum of shuffled batches: its ratio, its draws, and its observer."""

import itertools
import math

import numpy as np
import pytest
import torch
from scipy import stats

from hiddenstate.accounting import batched, gaussian
from hiddenstate.adversaries.gradient_canaries import Coordinate, Inserted
from hiddenstate.adversaries.shuffled_sums import BatchSums, Shuffled
from hiddenstate.dpsgd.ensemble import LAST, Ensemble, Run, scores
from hiddenstate.dpsgd.mechanism import Mechanism
from hiddenstate.errors import InputError
from hiddenstate.sampling import Cyclic, Poisson, Reshuffled

pytestmark = pytest.mark.usefixtures("one_sum")
PAIRS = (batched.SWAPPED, batched.ZEROED, batched.SILENT)


def log_density(sums, noise, shift, redrawn, chances=None):
    """By the law of total probability: all places of the record, of each epoch or of all.

    The last chance is that to sit out.
    """
    epochs, batches = sums.shape
    chances = [1 / batches] * batches + [0] if chances is None else chances
    places = itertools.product(range(batches + 1), repeat=epochs if redrawn else 1)
    total = []
    for place in places:
        means = np.zeros((epochs, batches + 1))
        means[np.arange(epochs), list(place) * (1 if redrawn else epochs)] = shift
        chance = math.prod(chances[one] for one in place)
        density = stats.norm.logpdf(sums, means[:, :batches], noise).sum()
        total.append(density + (math.log(chance) if chance else -math.inf))
    return np.logaddexp.reduce(total)


@pytest.mark.parametrize("redrawn", [False, True])
@pytest.mark.parametrize("pair", PAIRS)
def test_the_ratio_is_that_of_densities(pair, redrawn):
    shown = Shuffled(0.7, 4, 3, pair, redrawn)
    sums = np.random.default_rng(0).normal(0.4, 1, (5, 3, 4))
    expected = [np.subtract(*(log_density(s, 0.7, shift, redrawn) for shift in pair)) for s in sums]
    np.testing.assert_allclose(shown.ratio(sums), expected, rtol=1e-12)
    other = Shuffled(0.7, 4, 3, pair, not redrawn)
    assert np.abs(other.ratio(sums) - expected).max() > 0.01


@pytest.mark.parametrize("redrawn", [False, True])
@pytest.mark.parametrize("chances", [(0.4, 0.3, 0.3, 0.0), (0.3, 0.3, 0.3, 0.1), (5 / 6, 1 / 6, 0)])
@pytest.mark.parametrize("pair", PAIRS)
def test_the_ratio_of_batches_of_several_sizes_is_that_of_densities(pair, chances, redrawn):
    batches = len(chances) - 1
    shown = Shuffled(0.7, batches, 3, pair, redrawn)
    sums = np.random.default_rng(0).normal(0.4, 1, (5, 3, batches))
    expected = [
        np.subtract(*(log_density(s, 0.7, shift, redrawn, chances) for shift in pair)) for s in sums
    ]
    found = shown.ratio(sums, np.array(chances[:-1]))
    np.testing.assert_allclose(found, expected, rtol=1e-12)
    assert np.abs(shown.ratio(sums) - expected).max() > 0.01


@pytest.mark.parametrize("redrawn", [False, True])
def test_runs_have_the_law_of_their_world(redrawn):
    """E[exp(-ratio)] is 1 in the world "in"; the last iterate is a normal sum."""
    shown = Shuffled(1.2, 6, 2, batched.ZEROED, redrawn)
    runs = 200_000
    inside, last = shown.drawn(True, runs, np.random.default_rng(1))
    outside, without = shown.drawn(False, runs, np.random.default_rng(2))
    for weights in (np.exp(-inside), np.exp(outside)):
        assert weights.mean() == pytest.approx(1, abs=5 * weights.std() / runs**0.5)
    # The other world's runs would not do.
    assert np.exp(-outside).mean() > 1.2
    for values, mean in ((last, 4.0), (without, 2.0)):
        scale = 1.2 * math.sqrt(12)
        assert values.mean() == pytest.approx(mean, abs=5 * scale / runs**0.5)
        assert values.std() == pytest.approx(scale, rel=0.01)
    mu = (last.mean() - without.mean()) / last.std()
    assert gaussian.epsilon(mu, 1e-3) < batched.lower_epsilon(
        1.2, 6, 2, 1e-3, batched.ZEROED, redrawn=redrawn
    )


def ensemble(sampling, **changes):
    rng = np.random.default_rng(0)
    x = rng.random((11, 5)).astype(np.float32)
    x[:, 0] = 0  # nothing moves the first parameter
    mechanism = Mechanism(
        **{
            "sampling": sampling, "steps": 6, "learning_rate": 0.3, "clipping_norm": 2.0,
            "noise_multiplier": 0.8, "adjacency": "replace",
        } | changes
    )  # fmt: skip
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(5, 3))
    canary = Inserted(Coordinate(0), schedule=None)
    return Ensemble(model, mechanism, x, rng.integers(3, size=11), canary, torch.zeros(18))


@pytest.mark.parametrize(
    ("sampling", "redrawn", "sizes"),
    [
        (Cyclic(4, True), False, (4, 4, 4)),
        (Reshuffled(4), True, (4, 4, 4)),
        (Cyclic(5, True), False, (5, 5, 2)),
        (Reshuffled(5, drop_last=False), True, (5, 5, 2)),
        (Reshuffled(5), True, (5, 5)),
        (Cyclic(20, True), False, (12,)),
    ],
)
def test_the_observer_sees_the_sums_of_a_training(sampling, redrawn, sizes):
    audit = ensemble(sampling)
    shape, chances = (6 // len(sizes), len(sizes)), np.array(sizes) / 12
    table = scores(audit, models=4, seed=3, observers={"all": BatchSums()})
    assert list(table["adversary"].unique()) == [LAST, "all"]
    shown = Shuffled(0.8, shape[1], shape[0], batched.SILENT, redrawn)
    for world in ("in", "out"):
        for index in range(4):
            run = Run(world, 0, index, audit, audit.clipped_sum(), 3, ())
            path = [0.0, *(float(theta[0]) for theta in run.iterates())]
            sums = -np.diff(path).reshape(shape) / 0.3 / 2.0
            rows = table[(table["world"] == world) & (table["run"] == index)]
            found = rows.set_index("adversary")["score"]
            assert found["all"] == pytest.approx(float(shown.ratio(sums, chances)), rel=1e-5)
            # Each epoch has one visit: with it, the sum is the noise's.
            sign = 1 if world == "in" else -1
            visits = [run.adds(step) for step in range(1, 7)]
            assert np.reshape(visits, shape).sum(axis=1).max() == 1
            assert sum(sizes) < 12 or sum(visits) == shape[0]
            noise = sums.ravel() - sign * np.array(visits)
            assert np.abs(noise).max() < 4 * 0.8


@pytest.mark.parametrize(
    ("sampling", "changes", "words"),
    [
        (Cyclic(4), {}, "expected noise, shuffled batches"),
        (Poisson(0.5), {}, "expected noise, shuffled batches"),
        (Reshuffled(4), {"adjacency": "add_or_remove"}, "a canary that is replaced"),
        (Reshuffled(4), {"noise_multiplier": 0.0}, "expected noise"),
        (Reshuffled(4), {"steps": 5}, "got 5 steps; expected whole epochs"),
    ],
)
def test_what_cannot_be_seen_so_is_refused(sampling, changes, words):
    with pytest.raises(InputError, match=words):
        scores(ensemble(sampling, **changes), models=1, seed=0, observers={"all": BatchSums()})


@pytest.mark.parametrize("noise", [0.02, 0.05, 1.0])
def test_ratios_with_little_noise_neither_overflow_nor_vanish(noise):
    shown, shift = Shuffled(noise, 5, 2, batched.SWAPPED, redrawn=True), batched.SWAPPED[0]
    sums = np.random.default_rng(1).normal(size=(40, 2, 5))
    exponents = (sums - shift / 2) * shift / noise**2
    largest = exponents.max(axis=-1, keepdims=True)
    means = largest[..., 0] + np.log(np.exp(exponents - largest).mean(axis=-1))
    np.testing.assert_allclose(shown.ratio(sums), means.sum(axis=-1), rtol=1e-10)


@pytest.mark.filterwarnings("error")
def test_the_ratio_of_single_numbers_is_that_of_doubles():
    """In single precision the exponentials of ratios beyond 88 would overflow."""
    shown = Shuffled(0.3, 4, 3, batched.SWAPPED, True)
    sums = np.random.default_rng(0).normal(0, 3, (5, 3, 4)).astype(np.float32)
    found = shown.ratio(sums)
    assert found.dtype == np.float64 and np.abs(found).max() > 88
    assert (found == shown.ratio(sums.astype(float))).all()
    with pytest.raises(TypeError, match="complex"):
        shown.ratio(sums * 1j)
