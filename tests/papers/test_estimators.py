import types
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import integrate, stats

from hiddenstate import plotting
from hiddenstate.auditing import ApproxDP, Averaged, methods
from hiddenstate.errors import InputError
from hiddenstate.papers.estimators import FAMILY, cells, checks, estimates, figures, simulations
from hiddenstate.papers.estimators.bugs import BUGS
from hiddenstate.papers.estimators.cells import (
    LEVEL,
    NAME,
    Calibrated,
    Composed,
    Gaussian,
    Leak,
    Response,
    calibrated,
    detected,
)
from hiddenstate.papers.estimators.estimates import required
from hiddenstate.papers.estimators.simulations import calibrate
from hiddenstate.pipeline.cells import Cell
from hiddenstate.pipeline.evidence import Outcome
from hiddenstate.streams import stream
from hiddenstate.study import config

SCALES = Path(__file__).parents[2] / "workflow" / "config" / "scales"


def test_the_leaks_epsilon_is_the_hockey_stick_by_integration():
    epsilon = Leak(probability=0.3, shift=2.0, delta=0.01).setting.truth

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
    [Leak(probability=0.3, shift=2.0, delta=0.01), Gaussian(mu=1.0), Response(epsilon=1.2)],
    ids=lambda mechanism: type(mechanism).__name__,
)
def test_simulated_scores_attain_the_truth(mechanism):
    """No threshold has fewer errors than the truth allows, and one comes near."""
    hypotheses, truth, _ = mechanism.setting
    ins, outs = mechanism.scores(stream(1, "attain"), (400_000,))
    thresholds = np.linspace(-1, 4, 51)
    fpr = np.array([(outs >= t).mean() for t in thresholds])
    fnr = np.array([(ins < t).mean() for t in thresholds])
    index = int(np.floor(truth / hypotheses.step))
    gap = fnr - hypotheses.fnr(index, fpr)
    # Five standard errors of both rates.
    assert gap.min() > -5 * np.sqrt(2 * 0.25 / 400_000) - 0.01
    assert gap.min() < 0.01
    if isinstance(hypotheses, ApproxDP):
        assert truth > 1


@pytest.mark.whole
@pytest.mark.parametrize("null", ["out", "in"])
def test_the_composed_mechanisms_scores_lie_on_its_own_curve(null):
    mechanism = Composed(noise_multiplier=0.8, sampling_rate=0.2, steps=8, null=null)
    hypotheses, truth, _ = mechanism.setting
    index = int(np.argmin(np.abs(hypotheses.grid - truth)))
    assert hypotheses.grid[index] == pytest.approx(truth)
    # What exceeds the truth is told from the very next value.
    assert 0.999 * truth < hypotheses.grid[index + 1] < truth
    ins, outs = mechanism.scores(stream(1, "composed"), (200_000,))
    thresholds = np.quantile(outs, np.linspace(0.02, 0.98, 25))
    fpr = np.array([(outs >= t).mean() for t in thresholds])
    fnr = np.array([(ins < t).mean() for t in thresholds])
    # Five standard errors of both rates, and the curve's own rounding.
    assert np.abs(fnr - hypotheses.fnr(index, fpr)).max() < 5 * np.sqrt(2 * 0.25 / 200_000) + 0.002


@pytest.mark.whole
def test_bounds_of_a_cell_do_not_depend_on_its_other_numbers_of_scores():
    def bounds(*scores):
        parameters = Calibrated(mechanism=Gaussian(mu=1.0), audits=50, scores=scores)
        return calibrate(Cell("gaussian_mu1", parameters), 3)

    alone, among = bounds(60), bounds(50, 60)
    among = among[among["x"] == 60].reset_index(drop=True)
    pd.testing.assert_frame_equal(alone, among)


@pytest.mark.parametrize(
    ("power", "needed"),
    [([0.1, 0.95, 1.0], 50), ([0.1, 0.95, 0.5], np.inf), ([0.95, 1, 1], 20), ([0, 0, 0.9], 100)],
)
def test_the_models_needed_are_enough_from_there_on(power, needed):
    rows = pd.DataFrame({"x": [20, 50, 100], "value": power})
    assert required(rows) == needed


@pytest.mark.parametrize("name", ["null", "as_published", "default_is_tight"])
def test_a_mechanism_that_a_scale_lacks_is_not_judged(name):
    """What is claimed of mu 0 and 3, where mu is 1 and 2."""
    rows = [
        {"quantity": quantity, "cell": f"gaussian_mu{mu}", "method": method, "x": n}
        | {"value": 0.05, "audits": 1000, "valid": method == Averaged.name}
        for quantity in ("exceedance", "median")
        for mu in (1, 2)
        for n in (100, 1000)
        for method in (Averaged.name, "as published (not valid)")
    ]
    assert getattr(checks, name).measure(pd.DataFrame(rows)) is None


def test_a_zoo_of_which_no_bug_is_found_contradicts():
    names = ("none", "mean_noise")
    rows = [{"quantity": "power", "cell": name, "x": 20, "value": 0.0} for name in names]
    found = checks.bugs.measure(pd.DataFrame(rows).assign(audits=200))
    assert found.note.startswith("0 of 1 found in more than half of the audits of up to 20 models")
    assert found.outcome == Outcome.CONTRADICTS


@pytest.mark.parametrize(
    ("share", "outcomes", "least"),
    [
        (0.04, ["agrees"], 0.95),
        (0.05, ["agrees", "undecided"], 0.95),
        (0.1, ["contradicts"], 0.8),
    ],
)
def test_a_bound_that_uses_its_whole_level_holds_and_one_that_doubles_it_does_not(
    share, outcomes, least
):
    """60 studies of 10 points, of 1,500 audits each.

    At its whole level the guard band leaves most undecided, and contradicts no more than it may.
    """
    rng, hits, runs = np.random.default_rng(3), 0, 60
    points = pd.DataFrame({"x": np.arange(10), "cell": "c", "audits": 1500, "valid": True})
    points = points.assign(quantity="exceedance", method=Averaged.name)
    for _ in range(runs):
        points["value"] = rng.binomial(1500, share, 10) / 1500
        hits += checks.default_holds.measure(points).outcome in outcomes
    assert hits / runs > least - 3 * np.sqrt(least * (1 - least) / runs)


def test_the_root_seed_reaches_the_simulated_audits():
    cell = Cell("gaussian_mu1", Calibrated(mechanism=Gaussian(mu=1.0), audits=50, scores=(50,)))
    assert not calibrate(cell, 1)["value"].equals(calibrate(cell, 2)["value"])
    pd.testing.assert_frame_equal(calibrate(cell, 1), calibrate(cell, 1))


@pytest.mark.whole
def test_the_summary_of_the_default_is_that_of_its_bounds(monkeypatch):
    """Quantiles by way of the statistic are those of the bounds, and as many exceed the truth."""
    quick = Averaged(simulations=500)
    monkeypatch.setattr(simulations, "Averaged", lambda: quick)
    for mechanism in (Gaussian(mu=0.5), Composed(noise_multiplier=0.8, sampling_rate=0.2, steps=2)):
        cell = Cell("one", Calibrated(mechanism=mechanism, audits=100, scores=(50,)))
        found = calibrate(cell, 1).set_index("method").loc["averaged"]
        hypotheses, truth, _ = mechanism.setting
        worlds = [mechanism.scores(stream(1, NAME, "one", 50, block), (50, 50)) for block in (0, 1)]
        ins, outs = (np.concatenate(part) for part in zip(*worlds, strict=True))
        values, _ = quick.bounds(ins, outs, hypotheses, LEVEL)
        upward = hypotheses.trivial == 0
        assert found["exceeding"] == (values > truth if upward else values < truth).sum()
        quantiles = np.quantile(
            values, [0.1, 0.5, 0.9], method="inverted_cdf" if upward else "higher"
        )
        assert found[["low", "value", "high"]].tolist() == pytest.approx(list(quantiles))


def test_the_grid_of_every_scale_makes_cells():
    for scale in ("smoke", "laptop"):
        _, grid, _ = config.section(SCALES / f"{scale}.yaml", "estimators")
        assert {"response", "composed", "composed_in"} <= {cell.name for cell in calibrated(grid)}
        assert len(detected(grid)[0].parameters.bugs) == len(BUGS)


def test_mechanisms_that_no_name_tells_apart_are_refused():
    _, grid, _ = config.section(SCALES / "smoke.yaml", "estimators")
    near = [Gaussian(mu=1.0), Gaussian(mu=1.0000001)]
    with pytest.raises(InputError, match=r"gaussian_mu1: got mu 1.0 and 1.0000001; expected one"):
        calibrated(grid.model_copy(update={"gaussian": near}))


def test_a_sequential_audit_uses_fewer_models_for_nearly_the_same_power():
    """At the claim, at twice it, and at a number fixed in advance: 400 audits each."""
    parameters = cells.Sequential(claim=1.0, truths=[1.0, 2.0], looks=[10, 20, 40], audits=400)
    (cell,) = cells.sequenced(types.SimpleNamespace(sequential=parameters))
    found = simulations.stop(cell, 1).set_index(["method", "x"])
    assert (found.loc["fixed number", "models"] == 40).all()
    assert found.loc["fixed number", "refuted"].loc[2.0] > 360
    assert found.loc["sequential", "refuted"].loc[2.0] > 340
    assert 10 < found.loc[("sequential", 2.0), "models"] < 32
    # A true claim costs nearly all models, and is refuted at the level.
    assert found.loc[("sequential", 1.0), "models"] > 37
    claims = found["refuted"].xs(1.0, level="x")
    assert (claims <= stats.binom.ppf(1 - 1e-6, 400, LEVEL)).all()
    rows = estimates._sequential(found.reset_index(), cell.name)
    shown = rows[rows["quantity"] == "refuted"].set_index(["method", "x"])
    assert (400 * shown["value"] == found["refuted"]).all()
    with plotting.style():
        assert len(figures.sequential.draw(rows).axes) == 2


def test_every_rule_of_the_list_is_drawn():
    assert list(figures.STYLES) == [rule.name for rule in methods.every(0.0)]


@pytest.mark.parametrize("shown", [["2"], ["0.5", "2"], ["1", "3", "4"], ["0.5", "2", "4", "9"]])
def test_the_figure_shows_every_kind_of_mechanism_and_says_what_is_true_of_it(shown):
    """Of Gaussian shifts those nearest to 1 and 3, for a row of eight panels has tiny letters."""
    truths = {"gaussian_mu0": 0, "response": 1.5, "composed": 0.8}
    truths = {f"gaussian_mu{mu}": float(mu) for mu in shown} | truths
    rows = [
        {"quantity": quantity, "cell": cell, "method": method, "x": n, "truth": truth}
        | {"value": 0.05, "low": 0.04, "high": 0.06, "parameter": "epsilon"}
        for quantity in ("exceedance", "median")
        for cell, truth in (truths | {"composed_in": 0.8, "leak": 3.8}).items()
        for method in figures.STYLES
        for n in (100, 1000)
    ]
    with plotting.style():
        drawn = figures.calibration.draw(pd.DataFrame(rows))
    *gaussian, response, composed, leak = [
        ax.get_title() for ax in drawn.axes[: len(drawn.axes) // 2]
    ]
    near = {"2": ["2"], "0.5 2": ["0.5", "2"], "1 3 4": ["1", "3"], "0.5 2 4 9": ["0.5", "2"]}
    assert gaussian == [f"Gaussian, $\\mu$ = {mu}" for mu in near[" ".join(shown)]]
    assert "$\\varepsilon$ = 1.5" in response and "composed" in composed and "rare" in leak


def test_what_a_cell_costs_grows_with_its_audits_scores_and_looks():
    """At laptop scale the cells took 20, 2.6 and 1 seconds."""
    loss, cost, stop = (work.cost for work in FAMILY.works)
    grid = config.read(SCALES / "laptop.yaml").estimators
    calibration, (zoo,), (looks,) = (work(grid) for work in (calibrated, detected, cells.sequenced))
    assert cost(calibration[0]) == pytest.approx(20, rel=0.05)
    assert loss(zoo) == pytest.approx(2.6) and stop(looks) == pytest.approx(1, rel=0.2)
    p = calibration[0].parameters
    more = Cell("more", p.model_copy(update={"audits": 10 * p.audits}))
    assert cost(more) == pytest.approx(10 * cost(calibration[0]), rel=0.1)
    late = Cell("late", looks.parameters.model_copy(update={"looks": [10, 10_000]}))
    assert stop(late) == pytest.approx(11)
