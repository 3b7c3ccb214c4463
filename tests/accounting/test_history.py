"""The regulariser that keeps the history: its noise, its accounting, the literal algorithm."""

import math

import numpy as np
import pytest
from literal import last_iterates
from scipy.stats import chi2, kstest

from hiddenstate.accounting import composition, history, pld
from hiddenstate.accounting.linear import last_iterate_epsilon
from hiddenstate.errors import InputError
from hiddenstate.streams import stream


@pytest.mark.parametrize(
    ("growth", "expected"),
    [(1.5, 4.2796), (2, 5.4502), (10, 6.9809), pytest.param(1.05, 2.0311, marks=pytest.mark.slow)],
)
def test_oracle(growth, expected):
    assert history.epsilon(1.0, 0.1, 100, growth, 1e-5) == pytest.approx(expected, abs=2e-4)


@pytest.mark.whole
def test_between_two_compositions_and_above_the_heuristic():
    sigma, rate, steps, delta = 1.0, 0.1, 100, 1e-5
    composed = pld.epsilon(sigma, rate, steps, delta)
    leak = history.epsilon(sigma, rate, steps, 100.0, delta)
    assert pld.epsilon(sigma / math.sqrt(1 - 1e-4), rate, steps, delta) <= leak
    assert leak == pytest.approx(composed, abs=2e-3)
    assert history.epsilon(sigma, rate, steps, 2.0, delta) > last_iterate_epsilon(
        sigma, rate, steps, delta
    )


def test_single_step():
    assert history.epsilon(0.8, 0.1, 1, 3.0, 1e-5) == pytest.approx(
        pld.epsilon(0.8, 0.1, 1, 1e-5), abs=1e-4
    )


def test_literal_algorithm():
    """200,000 runs; correlations and means by z-tests, variances by chi-square, at 1e-6 in all.

    Detects a correlation of 0.02 and a standard deviation 2 % off.
    """
    sigma, rate, steps, growth, runs = 0.7, 0.3, 5, 3.0, 200_000

    def regulariser(model):
        moved = np.zeros_like(model)
        moved[:, 1:] = growth * model[:, :-1]
        return model - moved

    noise = history.noise_multipliers(sigma, steps, growth)
    models = {
        present: last_iterates(
            -np.eye(steps)[0] * present,
            np.zeros((1, steps)),
            sigma,
            rate,
            steps,
            runs,
            stream(0, "test_history", int(present)),
            regulariser=regulariser,
        )
        / growth ** np.arange(steps)
        for present in (False, True)
    }
    out = models[False] / noise
    # The noise of all coordinates is standard normal and independent.
    low, high = chi2.ppf([1e-8, 1 - 1e-8], runs) / runs
    assert np.all((low < np.mean(out**2, axis=0)) & (np.mean(out**2, axis=0) < high))
    correlation = out.T @ out / runs
    np.fill_diagonal(correlation, 0)
    assert np.max(np.abs(correlation)) < 6 / math.sqrt(runs)
    for i in range(steps):
        assert kstest(out[:20_000, i], "norm").pvalue > 1e-7
    # The canary adds independent Bernoulli variables to it.
    shift = models[True].mean(axis=0)
    error = np.sqrt((noise**2 + rate * (1 - rate)) / runs)
    assert np.all(np.abs(shift - rate) < 6 * error)
    covariance = np.cov(models[True].T)
    expected = np.diag(noise**2 + rate * (1 - rate))
    spread = np.sqrt(np.outer(np.diag(expected), np.diag(expected)) / runs)
    assert np.all(np.abs(covariance - expected) < 12 * spread)


def test_bad_growth():
    with pytest.raises(InputError, match=r"^growth: got 1"):
        history.noise_multipliers(1.0, 3, 1.0)


@pytest.mark.parametrize("mechanism", [(1.0, 1e-4, 10_000, 1e-5), (5.0, 0.01, 5_000, 1e-6)])
def test_tight_where_a_step_loses_far_less_than_a_thousandth(mechanism):
    """At a large factor it is composition; losses spaced by 1e-3 gave 0.085 in place of 0.038."""
    sigma, rate, steps, delta = mechanism
    bounds = composition.bracket(*mechanism, width=2e-4)
    found = history.epsilon(sigma, rate, steps, 1e6, delta)
    assert bounds.lower <= found <= bounds.upper + 1e-3


def test_rounding_comes_off_delta_and_deltas_near_it_are_refused():
    """At 1e-12 it was below composition's lower bound, by 1e-3, and at 1e-13 four times too large.

    At a large factor it is composition with all but the same noise.
    """
    mechanism = (1.0, 1e-3, 10_000)
    least = pld.least_delta(10_000)
    bounds = composition.bracket(*mechanism, least, width=2e-3)
    assert bounds.lower <= history.epsilon(*mechanism, 1e6, least) <= bounds.upper + 2e-3
    for delta in (1e-12, 1e-13):
        with pytest.raises(InputError, match=f"^delta: got {delta}; expected at least 1.1e-09"):
            history.epsilon(*mechanism, 1e6, delta)


def test_rare_sampling_and_many_steps():
    """dp-accounting raised at rates of 1e-50, and arrays were as long as the steps."""
    assert history.epsilon(1.0, 1e-50, 10, 2.0, 1e-5) == 0.0
    # 2 steps sample the record with less than this probability, or with more.
    assert history.epsilon(1.0, 4.5e-6, 2, 2.0, 1e-5) == 0.0
    assert history.epsilon(0.2, 6e-6, 2, 2.0, 1e-5) > 0.0
    assert history.epsilon(1.0, 1.0, 3, 2.0, 1e-5) > 1.0
    with pytest.raises(InputError, match=r"^steps: got 1000000000000; expected at most"):
        history.epsilon(1.0, 0.1, 10**12, 2.0, 0.5)
