"""The bound for convex losses and sampled batches, against exact laws on the line."""

import math

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.special import ndtr

from hiddenstate.accounting import composition, cyclic, sampled
from hiddenstate.accounting.sampled import SampledDPSGD
from hiddenstate.errors import InputError

DELTA = 1e-3


def last_iterates(run, slope, cells=601):
    """Laws of the last iterate on [0, D] with and without the record, by a Markov chain.

    The record pushes by 1, all other losses are quadratic about D/2 with 1 - slope their curvature.
    Where iterates are projected the ends are atoms. Within the interval a cell's mass sits at its
    middle, which moves a divergence by the square of its width.
    """
    width, sigma = run.diameter / run.learning_rate, run.noise_multiplier
    edges = np.linspace(0, width, cells + 1)
    points = np.concatenate(([0.0], (edges[1:] + edges[:-1]) / 2, [width]))

    def kernel(push):
        mean = width / 2 + slope * (points - width / 2) + push
        below = ndtr((edges[None, :] - mean[:, None]) / sigma)
        inner = np.diff(below, axis=1)
        return np.hstack((below[:, :1], inner, 1 - below[:, -1:]))

    out, pushed = kernel(0.0), kernel(1.0)
    inside = (1 - run.sampling_rate) * out + run.sampling_rate * pushed
    start = np.zeros(len(points))
    start[0] = 1
    p = q = start
    for _ in range(run.steps):
        p, q = p @ inside, q @ out
    return p, q


def exact_epsilon(p, q):
    def excess(epsilon):
        one = np.maximum(p - math.exp(epsilon) * q, 0).sum()
        return max(one, np.maximum(q - math.exp(epsilon) * p, 0).sum()) - DELTA

    return brentq(excess, 0, 50) if excess(0) > 0 else 0.0


SHORT = {"noise_multiplier": 1.0, "sampling_rate": 0.2, "steps": 400, "smoothness": 0.0}
RUNS = [
    (SampledDPSGD(**SHORT, diameter=4.0), 1.0),
    (SampledDPSGD(**SHORT | {"noise_multiplier": 2.0, "sampling_rate": 0.5}, diameter=6.0), 1.0),
    (
        SampledDPSGD(
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


@pytest.mark.parametrize(("run", "slope"), RUNS)
def test_no_convex_loss_on_the_line_leaks_more_and_composition_is_beaten(run, slope):
    found = sampled.convex(run, DELTA)
    domain = run if run.diameter < 100 else SampledDPSGD(**vars(run) | {"diameter": 30.0})
    leak = exact_epsilon(*last_iterates(domain, slope))
    assert 0.05 * found < leak <= found
    assert found < 0.6 * composition.bracket(*run.mechanism, DELTA).lower


def test_the_price_of_a_shift_is_the_least_that_a_general_solver_finds():
    for factor in (1.0, 0.99, 0.5):
        for steps in (1, 3, 10):
            # Spending a_t leaves R_t = c R_(t-1) - a_t, R_T = 0: sum a_t c^(T-t) = c^T.
            weights = factor ** np.arange(steps - 1, -1, -1)
            least = factor ** (2 * steps) / (weights @ weights)
            assert cyclic.contracted_fraction(factor, steps) == pytest.approx(least, rel=1e-12)


def test_of_many_steps_the_last_alone_count():
    short, long = (
        SampledDPSGD(
            noise_multiplier=2.0, sampling_rate=0.01, steps=steps, smoothness=1.0, diameter=1.0
        )
        for steps in (10_000, 1_000_000)
    )
    assert sampled.convex(long, 1e-5) == pytest.approx(sampled.convex(short, 1e-5), rel=1e-2)
    assert composition.bracket(*long.mechanism, 1e-5).lower > 3 * sampled.convex(long, 1e-5)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"smoothness": None}, "smoothness: got none"),
        ({"diameter": None}, "diameter: got None; expected a number, or"),
        ({"smoothness": 3.0}, "step_size: got 1.0; expected at most"),
        ({"diameter": -1.0}, "diameter: got -1.0"),
    ],
)
def test_outside_its_assumptions_it_names_the_parameter(changes, message):
    numbers = {"noise_multiplier": 1.0, "sampling_rate": 0.1, "steps": 10, "smoothness": 1.0}
    with pytest.raises(InputError, match=message):
        sampled.convex(SampledDPSGD(**{**numbers, "diameter": 1.0, **changes}), 1e-5)
