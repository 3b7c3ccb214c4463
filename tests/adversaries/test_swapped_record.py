from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import norm

from hiddenstate.accounting import cyclic, cyclic_operator
from hiddenstate.accounting.cyclic import CyclicDPSGD
from hiddenstate.adversaries import swapped_record
from hiddenstate.dpsgd import exact
from hiddenstate.dpsgd.cyclic import displaced
from hiddenstate.errors import InputError
from hiddenstate.streams import stream

RUN = CyclicDPSGD(
    steps=12,
    steps_per_pass=6,
    batch_size=1,
    step_size=0.1,
    clipping_norm=0.5,
    noise_std=0.2,
    smoothness=1.0,
    position=2,
)


@pytest.mark.parametrize(
    "instance",
    [
        swapped_record.line(RUN, -0.5),
        swapped_record.logistic(replace(RUN, batch_size=3), dimension=4, diameter=2.0),
    ],
    ids=["line", "logistic"],
)
def test_worlds_differ_at_visits_by_the_displacement_and_nowhere_else(instance):
    run, points = instance.run, np.zeros((3, len(instance.start)))
    for batch in range(run.steps_per_pass):
        moved = [displaced(run, instance.gradients[w], batch, points) for w in ("in", "out")]
        apart = np.linalg.norm(moved[0] - moved[1], axis=1)
        expected = run.displacement if batch == run.position - 1 else 0.0
        np.testing.assert_allclose(apart, expected, atol=1e-15)
        assert np.all(instance.score(moved[0]) >= instance.score(moved[1]))


def test_logistic_gradients_are_those_of_the_loss():
    instance = swapped_record.logistic(replace(RUN, batch_size=3), dimension=4, diameter=2.0)
    gradients = instance.gradients["in"]
    point = np.array([0.3, -0.2, 0.5, 0.1])
    for batch in range(6):
        at = gradients(batch, np.zeros((1, 4)))[0]
        records = -2 * at  # the slope at zero is -1/2
        norms = np.linalg.norm(records, axis=1)
        np.testing.assert_allclose(norms, [2.0 if batch == 1 else 1.0, 1.0, 1.0])
        for index, record in enumerate(records):
            losses = [
                np.log1p(np.exp(-(point + h) @ record))
                for h in np.vstack((1e-6 * np.eye(4), -1e-6 * np.eye(4)))
            ]
            numeric = (np.array(losses[:4]) - losses[4:]) / 2e-6
            found = gradients(batch, point[None])[0, index]
            np.testing.assert_allclose(found, numeric, atol=1e-8)


def test_a_run_that_misstates_the_smoothness_is_refused():
    with pytest.raises(ValueError, match=r"smoothness: got 0\.5; expected 1"):
        swapped_record.logistic(replace(RUN, smoothness=0.5), dimension=2, diameter=1.0)


def random_schedule(rng, smoothness, position=None):
    per_pass = int(rng.integers(1, 60))
    return CyclicDPSGD(
        steps=int(rng.integers(per_pass, 600)),
        steps_per_pass=per_pass,
        batch_size=2,
        step_size=1.0,
        clipping_norm=1.0,
        noise_std=1.0,
        weak_convexity=float(rng.choice([0.0, rng.exponential(0.01), rng.exponential(0.2)])),
        smoothness=smoothness,
        position=position or int(rng.integers(1, per_pass + 1)),
    )


@pytest.mark.parametrize("count", [200, pytest.param(4_000, marks=pytest.mark.slow)])
def test_the_bound_by_visits_is_attained_where_the_curvature_permits(count):
    rng = stream(0, "test", "tightest-slopes")
    for _ in range(count):
        # step M = 1 permits every slope from 0; the first position needs only those of the visits.
        run = random_schedule(rng, 1.0)
        lipschitz = cyclic_operator.unclipped(*run.curvature)
        slopes = swapped_record.tightest_slopes(run)
        assert slopes.min() >= 0 and slopes.max() <= lipschitz
        truth = exact.scalar_affine(slopes, run)
        assert truth == pytest.approx(cyclic.sharp(run, lipschitz), rel=1e-12)
        run = random_schedule(rng, float(rng.uniform(0, 1)), position=1)
        slopes = swapped_record.tightest_slopes(run)
        assert slopes.min() >= 1 - run.smoothness
        lipschitz = cyclic_operator.unclipped(*run.curvature)
        truth, bound = exact.scalar_affine(slopes, run), cyclic.sharp(run, lipschitz)
        needed = lipschitz ** (1 - run.steps_per_pass)
        if run.visits == 1 or 1 - run.smoothness <= needed * run.hidden_steps / run.steps_per_pass:
            assert truth == pytest.approx(bound, rel=1e-12)
        assert truth <= bound
        # Never below what constant slopes show.
        assert truth >= exact.scalar_affine(np.full(run.steps, lipschitz), run) * (1 - 1e-9)


def test_no_slopes_at_the_visits_show_more():
    # Three visits of a small run, every pair of later visits' slopes on a grid.
    run = replace(RUN, steps=11, steps_per_pass=4, position=1, step_size=1.0, weak_convexity=0.1)
    best = exact.scalar_affine(swapped_record.tightest_slopes(run), run)
    grid = np.linspace(0, 1.1, 56)
    found = []
    for second in grid:
        for third in grid:
            slopes = np.full(11, 1.1)
            slopes[[4, 8]] = second, third
            found.append(exact.scalar_affine(slopes, run))
    assert best * (1 - 1e-3) < max(found) <= best * (1 + 1e-12)


def test_slopes_survive_growth_beyond_floating_point():
    run = replace(
        RUN, steps=30_000, steps_per_pass=10_000, position=1, step_size=1.0, weak_convexity=0.2
    )
    for smoothness in (1.0, 0.3):
        slopes = swapped_record.tightest_slopes(replace(run, smoothness=smoothness))
        assert np.isfinite(slopes).all() and slopes.min() >= 1 - smoothness
    with pytest.raises(InputError, match=r"^step_size: got 3.0; expected at most 2 / "):
        swapped_record.tightest_slopes(replace(run, step_size=3.0, smoothness=1.0))


def test_exact_accounting_is_reached_by_clipped_runs_from_below():
    # The upper side holds for every run; the lower is a clipped data set whose batch and clipping
    # norm are large, so that clipping is rare: its exact delta is within 2 % of the bound's.
    run = CyclicDPSGD(
        steps=6,
        steps_per_pass=3,
        batch_size=200,
        step_size=1.0,
        clipping_norm=100.0,
        noise_std=1.0,
        weak_convexity=0.1,
        smoothness=0.9,
    )
    slopes = swapped_record.tightest_slopes(run)
    bound = cyclic.sharp(run, cyclic_operator.unclipped(*run.curvature))
    mu = np.sqrt(2 * bound)

    def world(sign):
        def gradients(batch, points):
            # The visit's slope is that of the second visit; at the first the start is one point.
            mates = (1 - slopes[3 + batch]) * points[:, :, None]
            if batch != 0:
                return mates
            # The mates carry the contraction, a little more each for the record that does not.
            records = np.repeat(mates * 200 / 199, 200, axis=1)
            records[:, 0] = -sign * run.clipping_norm
            return records

        return gradients

    assert (1 - slopes[3]) * 200 / 199 <= 0.9
    line = exact.on_the_line(run, world(1), world(-1))
    for epsilon in (0.5, 1.0, 2.0):
        gaussian = norm.cdf(mu / 2 - epsilon / mu) - np.exp(epsilon) * norm.cdf(
            -mu / 2 - epsilon / mu
        )
        assert 0.98 * gaussian < line.delta(epsilon) <= gaussian * (1 + 1e-9)
