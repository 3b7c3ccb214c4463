from dataclasses import replace

import numpy as np
import pytest

from hiddenstate.accounting.cyclic import CyclicDPSGD
from hiddenstate.adversaries import swapped_record
from hiddenstate.dpsgd.cyclic import displaced

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
    with pytest.raises(ValueError, match=r"smoothness 1, the run says 0\.5"):
        swapped_record.logistic(replace(RUN, smoothness=0.5), dimension=2, diameter=1.0)
