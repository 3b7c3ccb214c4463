import numpy as np
import pytest
from scipy.stats import binomtest

from hiddenstate.accounting import cyclic
from hiddenstate.adversaries.expanding_clip import WORLDS, ExpandingClip
from hiddenstate.dpsgd.cyclic import displaced, last_iterates


@pytest.mark.parametrize(
    "step_size, steps, convex, corrected",
    [
        (0.02, 200, "0.005", "0.00789837"),
        (0.02, 800, "0.00125", "0.00509234"),
        (0.05, 800, "0.00125", "0.0125005"),
        (0.20, 400, "0.0025", "0.05"),
    ],
)
def test_the_affine_limit_attains_the_clipped_constant(step_size, steps, convex, corrected):
    instance = ExpandingClip(steps, step_size, displacement=20.0, margin=0.0)
    unit = instance.run.displacement**2 / 2
    assert f"{cyclic.sharp(instance.run, 1.0) / unit:.6g}" == convex
    bound = cyclic.sharp(instance.run, instance.lipschitz)
    assert f"{bound / unit:.6g}" == corrected
    assert bound * (1 - 1e-9) < instance.affine_rho() <= bound
    assert instance.affine_rho() > 1.5 * cyclic.pabi(instance.run)


def test_losses_are_convex_smooth_and_planned_around_the_noiseless_run():
    instance = ExpandingClip(50, 0.3, displacement=20.0, margin=0.1)
    gradients = instance.gradients("in")
    points = np.zeros((1, 2))
    for batch in range(1, 50):
        at = gradients(batch, points)[0, 0]
        # Planned: the curvature term vanishes, and the norm exceeds the clipping norm by a tenth.
        assert np.linalg.norm(at) == pytest.approx(1.1 * instance.run.clipping_norm)
        hessian = np.stack([gradients(batch, points + e)[0, 0] - at for e in np.eye(2)], axis=1)
        np.testing.assert_allclose(np.linalg.eigvalsh(hessian), [0, 1], atol=1e-9)
        np.testing.assert_allclose(hessian, hessian.T, atol=1e-9)
        points = displaced(instance.run, gradients, batch, points)
    np.testing.assert_allclose(instance.score(points), 0, atol=1e-9)
    worlds = [displaced(instance.run, instance.gradients(w), 0, np.zeros((1, 2))) for w in WORLDS]
    np.testing.assert_allclose(worlds[0] - worlds[1], [[20.0, 0.0]])


def test_simulated_runs_violate_the_convex_bound_and_respect_the_corrected_one():
    # Clopper-Pearson at 5e-7 a world: the certificate is wrong with probability below 1e-6. With
    # 8,192 runs a world it shows any divergence above 0.45; the bound it contradicts is 0.25.
    instance = ExpandingClip(800, 0.02, displacement=20.0, margin=0.05)
    called = [
        int((instance.score(last_iterates(
            instance.run, instance.gradients(world), np.zeros(2), 8192, seed=0, name=(world,)
        )) > 0).sum())
        for world in WORLDS
    ]  # fmt: skip
    level = {"confidence_level": 1 - 1e-6, "method": "exact"}
    p = binomtest(called[0], 8192).proportion_ci(**level).low
    q = binomtest(called[1], 8192).proportion_ci(**level).high
    divergence = p * np.log(p / q) + (1 - p) * np.log((1 - p) / (1 - q))
    assert cyclic.sharp(instance.run, 1.0) == pytest.approx(0.25)
    assert 0.45 < divergence < cyclic.sharp(instance.run, instance.lipschitz)
