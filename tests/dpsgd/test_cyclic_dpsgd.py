from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import kstest, norm

from hiddenstate.accounting.cyclic import CyclicDPSGD
from hiddenstate.dpsgd import cyclic
from hiddenstate.errors import InputError
from hiddenstate.streams import stream

RUN = CyclicDPSGD(
    steps=7, steps_per_pass=3, batch_size=2, step_size=0.3, clipping_norm=0.8, noise_std=0.2
)


def logistic_like(batch, points):
    """Gradients of two bumpy losses a batch, shape (runs, 2, d)."""
    return np.stack((np.sin(3 * points) + batch, 2 * points - 1), axis=1)


def test_clipping_keeps_short_gradients_and_shortens_long_ones():
    gradients = stream(0, "test", "clip").standard_normal((50, 4, 3)) * 2
    gradients[0, 0] = 0
    clipped = cyclic.clip(gradients, 1.5)
    norms = np.linalg.norm(gradients, axis=-1)
    assert np.linalg.norm(clipped, axis=-1).max() <= 1.5 * (1 + 1e-15)
    assert np.array_equal(clipped[norms <= 1.5], gradients[norms <= 1.5])
    long = norms > 1.5
    expected = 1.5 * gradients[long] / norms[long, None]
    np.testing.assert_allclose(clipped[long], expected, rtol=1e-15)


@pytest.mark.parametrize("size", [1e150, 1e160, 1e200, 1.7e308])
def test_gradients_whose_squares_overflow_are_clipped_along_their_direction(size):
    small = np.array([[3.0, -4.0], [0.3, 0.4], [0.0, 0.0]])
    gradients = np.concatenate((small, [[size, -size / 2], [0.0, size]]))
    expected = np.array([[0.9, -1.2], [0.3, 0.4], [0, 0], [3 / 5**0.5, -1.5 / 5**0.5], [0, 1.5]])
    found = cyclic.clip(gradients, 1.5)
    np.testing.assert_allclose(found, expected, rtol=1e-15)
    # What lies beside them has the same bits as alone.
    assert np.array_equal(found[:3], cyclic.clip(small, 1.5))
    # A clipping norm that they do not reach leaves them.
    if size < 1e300:
        np.testing.assert_allclose(cyclic.clip(gradients, 1e300), gradients, rtol=1e-15)


def soft_threshold(points, threshold):
    """Proximal step of threshold * |x|_1."""
    return np.sign(points) * np.maximum(np.abs(points) - threshold, 0)


def test_runs_follow_the_algorithm_literally():
    runs, d = 5, 2
    found = cyclic.last_iterates(
        RUN,
        logistic_like,
        np.array([0.5, -0.5]),
        runs,
        seed=3,
        name=("literal",),
        prox=lambda points: soft_threshold(points, 0.05),
    )
    noise = stream(3, "literal", 0).standard_normal((RUN.steps, cyclic.BLOCK, d))
    for run in range(runs):
        x = np.array([0.5, -0.5])
        for t in range(1, RUN.steps + 1):
            batch = (t - 1) % 3
            mean = np.zeros(d)
            for g in (np.sin(3 * x) + batch, 2 * x - 1):
                mean += g * min(1, 0.8 / np.linalg.norm(g)) / 2
            x = x - 0.3 * mean + 0.2 * noise[t - 1, run]
            x = np.sign(x) * np.maximum(np.abs(x) - 0.05, 0)
        np.testing.assert_allclose(found[run], x, rtol=1e-12)


def test_more_runs_leave_the_first_as_they_were():
    few, many = (
        cyclic.last_iterates(RUN, logistic_like, np.zeros(1), runs, seed=1, name=("x",))
        for runs in (10, cyclic.BLOCK + 10)
    )
    assert np.array_equal(few, many[:10])
    assert not np.array_equal(many[:10], many[cyclic.BLOCK :])


def test_noise_has_the_stated_standard_deviation_whatever_the_step_size():
    # Zero gradients: the last iterate is N(0, steps * noise_std^2). Kolmogorov-Smirnov at a false
    # positive rate of 1e-6; 40,000 draws detect a scale that is off by 10 % with power > 0.99.
    def pvalue(scale):
        points = cyclic.last_iterates(
            RUN, lambda batch, x: np.zeros((len(x), 1, 1)), [0.0], 40_000, seed=5, name=("noise",)
        )
        return kstest(points[:, 0], norm(0, scale * 0.2 * np.sqrt(7)).cdf).pvalue

    assert pvalue(1.0) > 1e-6
    assert pvalue(1.1) < 1e-6


def test_the_proximal_step_of_a_ball_is_the_projection():
    points = np.array([[3.0, 4.0], [0.3, -0.4]])
    np.testing.assert_allclose(cyclic.project_ball(points, 2.0), [[0.6, 0.8], [0.3, -0.4]])


def test_bad_arguments_are_named():
    with pytest.raises(InputError, match="runs: got 0; expected a whole number >= 1"):
        cyclic.last_iterates(RUN, logistic_like, [0.0], 0, seed=0, name=())
    with pytest.raises(InputError, match=r"start: got \(\); expected a point"):
        cyclic.last_iterates(RUN, logistic_like, 0.0, 1, seed=0, name=())


@pytest.mark.parametrize("idle", [(0,), (1, 2), (0, 2)])
def test_idle_steps_change_no_distribution(idle):
    # Mean and variance of 20,000 runs with and without drawing idle noises as one. The variances'
    # log ratio has a standard error of 0.014; seven are left with probability below 1e-10. Losing
    # one step's noise of seven is 0.15 off where nothing contracts.
    def gradients(batch, points):
        return 0 * points[:, None, :] if batch in idle else np.sin(3 * points)[:, None, :] + 0.3

    once, each = (
        cyclic.last_iterates(RUN, gradients, [0.2], 20_000, seed=1, name=("idle", *some), idle=some)
        for some in (idle, ())
    )
    error = np.sqrt((once.var() + each.var()) / 20_000)
    assert abs(once.mean() - each.mean()) < 6 * error
    assert abs(np.log(once.var() / each.var())) < 0.1
    lost = replace(RUN, noise_std=RUN.noise_std * np.sqrt(6 / 7))
    fewer = cyclic.last_iterates(lost, gradients, [0.2], 20_000, seed=2, name=())
    assert abs(np.log(fewer.var() / each.var())) > 0.1
    with pytest.raises(InputError, match=r"idle: got .* expected none where there is a proximal"):
        cyclic.last_iterates(
            RUN, gradients, [0.2], 1, seed=1, name=(), idle=idle, prox=lambda points: points
        )
