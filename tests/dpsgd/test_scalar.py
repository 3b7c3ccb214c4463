import numpy as np
import pytest
from scipy.stats import ks_2samp

from hiddenstate.adversaries.encoding_loss import EncodingLoss
from hiddenstate.dpsgd import scalar
from hiddenstate.errors import InputError
from hiddenstate.streams import stream


def draw(runs, **changes):
    options = {"seed": 3, "name": ("test",), "steps": 7, "sampling_rate": 0.3, "records": 50}
    return scalar.draw(runs, canary=True, **(options | changes))


def same(a, b):
    return all(
        np.array_equal(getattr(a, name), getattr(b, name))
        for name in ("ordinary", "canary", "noise")
    )


@pytest.mark.parametrize("cut", [1, 249, 250, 251, 600])
def test_a_run_draws_the_same_numbers_in_any_chunk(cut):
    whole = draw(range(700))
    first, second = draw(range(cut)), draw(range(cut, 700))
    joined = scalar.Draws(
        *(
            np.concatenate([getattr(first, name), getattr(second, name)], axis=1)
            for name in ("ordinary", "canary", "noise")
        )
    )
    assert same(whole, joined)


@pytest.mark.parametrize("runs", [range(0, 10, 2), range(9, -1, -1), range(-2, 3), range(4, 4)])
def test_runs_that_are_no_neighbours_are_refused(runs):
    with pytest.raises(InputError, match=r"runs: got range\(.*expected neighbouring runs in order"):
        draw(runs)


def test_names_and_seeds_separate_the_draws():
    base = draw(range(10))
    assert not same(base, draw(range(10), name=("other",)))
    assert not same(base, draw(range(10), seed=4))


def test_the_draws_have_the_laws_they_are_named_for():
    # 700,000 of each; 5.5 standard errors fail by chance with probability 4e-8 a moment.
    draws = draw(range(100_000))
    n = draws.noise.size
    for values, mean, variance in (
        (draws.ordinary, 50 * 0.3, 50 * 0.3 * 0.7),
        (draws.canary, 0.3, 0.3 * 0.7),
        (draws.noise, 0.0, 1.0),
    ):
        assert abs(values.mean() - mean) < 5.5 * np.sqrt(variance / n)
        fourth = np.mean((values - mean) ** 4)
        assert abs(values.var() - variance) < 5.5 * np.sqrt((fourth - variance**2) / n)


def literal_last_iterates(gradient, records, *, rate, sigma, steps, runs, rng):
    """The algorithm as printed: each record sampled, its own gradient clipped, noise, update."""
    theta = np.zeros(runs)
    for _ in range(steps):
        total = sigma * rng.standard_normal(runs)
        for x in records:
            sampled = rng.random(runs) < rate
            total[sampled] += np.clip(gradient(x, theta[sampled]), -1, 1)
        theta -= total
    return theta


@pytest.mark.whole
@pytest.mark.parametrize("canary", [True, False])
def test_the_exact_law_is_that_of_the_literal_algorithm(canary):
    # Two samples of 3,000: the two-sample Kolmogorov-Smirnov test at level 1e-6 rejects by chance
    # with that probability, and finds a shift of 0.15 standard deviations with power above 0.9.
    # Twenty records clip, collide and leave large remainders, so every branch is in play.
    rate, sigma, steps, n, runs = 0.4, 0.7, 6, 20, 3000
    loss = EncodingLoss(sigma, rate, spacing=4.0, decimals=0, records=n)
    records = np.zeros(n + canary)
    records[n:] = 1.0
    rng = stream(11, "literal", str(canary))
    literal = literal_last_iterates(
        loss.gradient, records, rate=rate, sigma=sigma, steps=steps, runs=runs, rng=rng
    )
    draws = scalar.draw(
        range(runs),
        seed=11,
        name=("exact", str(canary)),
        steps=steps,
        sampling_rate=rate,
        records=n,
        canary=canary,
    )
    exact = scalar.last_iterate(loss.gradient, draws, noise_multiplier=sigma)
    assert ks_2samp(literal, exact).pvalue > 1e-6
    # The test is able to fail: without the canary's gradient the law is another.
    if canary:
        other = scalar.Draws(draws.ordinary, np.zeros_like(draws.canary), draws.noise)
        wrong = scalar.last_iterate(loss.gradient, other, noise_multiplier=sigma)
        assert ks_2samp(literal, wrong).pvalue < 1e-6


def test_clipping_and_learning_rate_act_as_in_the_update_rule():
    draws = scalar.Draws(np.array([[3.0]]), np.array([[1.0]]), np.array([[2.0]]))
    theta = scalar.last_iterate(
        lambda x, theta: np.full_like(theta, 5.0 if x else -0.25),
        draws,
        noise_multiplier=0.5,
        clipping_norm=2.0,
        learning_rate=0.1,
    )
    assert theta[0] == pytest.approx(-0.1 * (3 * -0.25 + 2.0 + 0.5 * 2.0 * 2.0))
