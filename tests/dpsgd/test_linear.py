"""The reductions of DP-SGD with constant gradients against the literal loop."""

import math

import numpy as np
import pytest
from literal import last_iterates
from scipy.stats import ks_2samp, kstest

from hiddenstate.accounting.linear import last_iterate
from hiddenstate.dpsgd.linear import (
    log_likelihood_ratio,
    log_likelihood_ratios,
    projections,
)
from hiddenstate.streams import stream

SIGMA, RATE, STEPS, RUNS = 0.5, 0.2, 6, 20_000


@pytest.mark.parametrize("present", [False, True])
def test_projection_reduction(present):
    """Two-sample Kolmogorov-Smirnov at 1e-6, 20,000 runs each: detects a shift of 0.06 sd."""
    canary = np.array([-1.0, 0.0, 0.0])
    models = last_iterates(
        canary * present,
        np.zeros((3, 3)),
        SIGMA,
        RATE,
        STEPS,
        RUNS,
        stream(0, "test_dpsgd_linear", "literal", int(present)),
    )
    scores = projections(
        SIGMA, RATE, STEPS, present, RUNS, stream(0, "test_dpsgd_linear", "sum", int(present))
    )
    assert ks_2samp(-models @ canary, scores).pvalue > 1e-6
    # Across the canary there is only noise, whatever the world.
    for i in (1, 2):
        assert kstest(models[:, i] / (SIGMA * math.sqrt(STEPS)), "norm").pvalue > 1e-6


def test_projection_is_the_accounted_pair():
    pair = last_iterate(SIGMA, RATE, STEPS)
    random = stream(0, "test_dpsgd_linear", "pair")
    assert kstest(projections(SIGMA, RATE, STEPS, True, RUNS, random), pair.fnr).pvalue > 1e-6


def test_gradients_are_clipped_to_norm_one():
    """Without noise the model is a whole number of clipped steps; z-test of its mean at 1e-6."""
    models = last_iterates(
        np.array([-3.0, 0.0]),
        np.array([[0.0, -0.5], [0.0, -4.0]]),
        0.0,
        RATE,
        STEPS,
        RUNS,
        stream(0, "test_dpsgd_linear", "clipping"),
    )
    assert set(np.unique(models[:, 0])) <= set(range(STEPS + 1))
    error = math.sqrt(STEPS * RATE * (1 - RATE) / RUNS)
    assert abs(models[:, 0].mean() - STEPS * RATE) < 5 * error
    assert abs(models[:, 1].mean() - 1.5 * STEPS * RATE) < 5 * error * math.sqrt(1.25)


def test_log_likelihood_ratio_is_the_density_ratio():
    x = np.linspace(-4, 5, 13)
    ratio = 1 - RATE + RATE * np.exp((2 * x - 1) / (2 * SIGMA**2))
    np.testing.assert_allclose(log_likelihood_ratio(x, SIGMA, RATE), np.log(ratio))
    np.testing.assert_allclose(log_likelihood_ratio(x, SIGMA, 1.0), (2 * x - 1) / (2 * SIGMA**2))


def test_trajectory_ratios():
    """E_out[exp L] = E_in[exp -L] = 1 for a log-likelihood ratio; z-tests at 6 sd (2e-9)."""
    noise = np.array([1.0, 1.5, 2.0])
    for present, sign in ((False, 1), (True, -1)):
        random = stream(0, "test_dpsgd_linear", "trajectory", int(present))
        weight = np.exp(sign * log_likelihood_ratios(noise, RATE, present, 100_000, random))
        assert abs(weight.mean() - 1) < 6 * weight.std() / math.sqrt(len(weight))


def test_streams_decide_the_draws():
    first, again = (
        projections(SIGMA, RATE, STEPS, True, 5, stream(7, "test_dpsgd_linear")) for _ in range(2)
    )
    np.testing.assert_array_equal(first, again)
