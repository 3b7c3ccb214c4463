import numpy as np
import pandas as pd
import pytest
from scipy import integrate, stats

from hiddenstate.auditing import ApproxDP
from hiddenstate.family import Cell
from hiddenstate.papers.estimators.cells import (
    Calibrated,
    Composed,
    Gaussian,
    Leak,
    calibrate,
)
from hiddenstate.papers.estimators.estimates import required
from hiddenstate.streams import stream


def test_the_leaks_epsilon_is_the_hockey_stick_by_integration():
    epsilon = Leak(probability=0.3, shift=2.0, delta=0.01).truth

    def density(x):
        return 0.7 * stats.norm.pdf(x) + 0.3 * stats.norm.pdf(x - 2)

    def delta(p, q):
        return integrate.quad(
            lambda x: max(0.0, p(x) - np.exp(epsilon) * q(x)), -12, 14, limit=400, points=[2.0]
        )[0]

    both = delta(density, stats.norm.pdf), delta(stats.norm.pdf, density)
    assert max(both) == pytest.approx(0.01, rel=1e-4)


@pytest.mark.parametrize(
    "mechanism",
    [Leak(probability=0.3, shift=2.0, delta=0.01), Gaussian(mu=1.0)],
    ids=lambda mechanism: type(mechanism).__name__,
)
def test_simulated_scores_attain_the_truth(mechanism):
    """No threshold has fewer errors than the truth allows, and one comes near."""
    family, truth = mechanism.curves, mechanism.truth
    ins, outs = mechanism.scores(stream(1, "attain"), (400_000,))
    thresholds = np.linspace(-1, 4, 51)
    fpr = np.array([(outs >= t).mean() for t in thresholds])
    fnr = np.array([(ins < t).mean() for t in thresholds])
    index = int(np.floor(truth / family.step))
    gap = fnr - family.fnr(index, fpr)
    # Five standard errors of both rates.
    assert gap.min() > -5 * np.sqrt(2 * 0.25 / 400_000) - 0.01
    assert gap.min() < 0.01
    if isinstance(family, ApproxDP):
        assert truth > 1


def test_the_composed_mechanisms_scores_lie_on_its_own_curve():
    mechanism = Composed(noise_multiplier=0.8, sampling_rate=0.2, steps=8)
    family, truth = mechanism.curves, mechanism.truth
    index = int(np.argmin(np.abs(family.grid - truth)))
    assert family.grid[index] == pytest.approx(truth)
    ins, outs = mechanism.scores(stream(1, "composed"), (200_000,))
    thresholds = np.quantile(outs, np.linspace(0.02, 0.98, 25))
    fpr = np.array([(outs >= t).mean() for t in thresholds])
    fnr = np.array([(ins < t).mean() for t in thresholds])
    # Five standard errors of both rates, and the curve's own rounding.
    assert np.abs(fnr - family.fnr(index, fpr)).max() < 5 * np.sqrt(2 * 0.25 / 200_000) + 0.002


def test_bounds_of_a_cell_do_not_depend_on_its_other_numbers_of_scores():
    def bounds(*scores):
        parameters = Calibrated(mechanism=Gaussian(mu=1.0), audits=50, scores=scores)
        return calibrate(Cell("gaussian_mu1", parameters), 3)

    alone, among = bounds(60), bounds(50, 60)
    among = among[among["scores"] == 60].reset_index(drop=True)
    pd.testing.assert_frame_equal(alone, among)


@pytest.mark.parametrize(
    ("power", "needed"),
    [([0.1, 0.95, 1.0], 50), ([0.1, 0.95, 0.5], np.inf), ([0.95, 1, 1], 20), ([0, 0, 0.9], 100)],
)
def test_the_models_needed_are_enough_from_there_on(power, needed):
    rows = pd.DataFrame({"x": [20, 50, 100], "value": power})
    assert required(rows) == needed


def test_the_root_seed_reaches_the_simulated_audits():
    cell = Cell("gaussian_mu1", Calibrated(mechanism=Gaussian(mu=1.0), audits=50, scores=(50,)))
    assert not calibrate(cell, 1)["value"].equals(calibrate(cell, 2)["value"])
    pd.testing.assert_frame_equal(calibrate(cell, 1), calibrate(cell, 1))
