"""Estimates: epsilons against integrals, error rates of perfect audits, made-up scores."""

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from scipy import optimize, stats

from hiddenstate.accounting import gaussian
from hiddenstate.papers.worst_case_init import FAMILY, cells, simulations
from hiddenstate.papers.worst_case_init import estimates as module
from hiddenstate.pipeline.cells import Cell
from hiddenstate.pipeline.estimates import select
from hiddenstate.streams import stream


@pytest.mark.whole
def test_perfect_audits_err_as_often_as_their_method_lets_them(monkeypatch):
    """Audits at the true epsilon, as published 2,000 (100 models per world), valid 200 (20 models).

    The valid method may exceed it in 5 % (its common level is uncertain by 0.34 points, 5 of them
    allowed) with a false-positive rate of 1e-6. The published one exceeds it in 10 %, which 2,000
    audits tell from 5 % at a p-value below 1e-6.
    """
    above = {}
    for method, number, size in (("as published", 2000, 100), ("valid", 200, 20)):
        parameters = cells.IdealParameters(epsilon=4.0, models=size, delta=1e-5, audits=number)
        monkeypatch.setattr(simulations, "SIMULATED", (method,))
        frame = simulations.simulate(Cell("ideal", parameters), 0)
        assert (frame["method"] == method).all() and len(frame) == number
        assert 0.3 < frame["value"].median() < 4.0
        above[method] = (frame["value"] > 4.0).sum()
    assert above["valid"] <= stats.binom.isf(1e-6, 200, 0.05 + 5 * 0.0034)
    assert above["as published"] > stats.binom.isf(1e-6, 2000, 0.05)
    assert frame.equals(simulations.simulate(Cell("ideal", parameters), 0))


def test_the_best_threshold_of_an_audit_is_found_among_its_scores():
    """Of two hundred scores about half are above a threshold that errs as often either way."""
    parameters = cells.IdealParameters(epsilon=10.0, models=100, delta=1e-5, audits=50)
    frame = simulations.simulate(Cell("ideal", parameters), 0)
    shares = frame.loc[frame["value"] > 0, "above"]
    assert np.allclose(200 * shares, np.round(200 * shares))
    assert 0.4 < shares.median() < 0.6 and shares.between(0.05, 0.95).all()


def test_perfect_audits_follow_the_root_seed(make):
    (cell,) = cells.ideal(make(models=20))
    one, other = simulations.simulate(cell, 1), simulations.simulate(cell, 2)
    assert one.equals(simulations.simulate(cell, 1)) and not one.equals(other)


def test_estimates_are_of_each_repeat_and_the_figures_that_show_it(make):
    grid = make({"repeats": 2}, models=8)
    (cell,) = cells.trained(grid)
    rng = stream(0, "estimates")
    keys = [(r, w, i) for r in range(2) for w in ("in", "out") for i in range(8)]
    table = pd.DataFrame(keys, columns=["repeat", "world", "run"])
    table["score"] = rng.normal(size=32) + 100 * ((table["world"] == "in") & (table["repeat"] == 1))
    table["accuracy"] = [0.5, np.nan, 0.25, np.nan] * 8
    table["gradient_norm"] = table["repeat"] + 0.5
    # Where the best thresholds are among the scores; the first two audits have a bound of 0.
    above = np.array([np.nan, np.nan, 0.35, 1.0, 0.95] + [0.4, 1.0, 1.0] * 32)
    ideal = pd.DataFrame({"method": "as published", "value": np.arange(101.0), "above": above})
    found = FAMILY.estimates(grid, {cell.name: table}, {"ideal_eps10_models8": ideal})
    values = found.set_index(["quantity", "method", "repeat"])["value"]
    assert values["accuracy", "mean", 0] == 0.375
    assert values["gradient_norm", "mean", 1] == 1.5
    # Eight of eight right in both worlds: each rate is at most 1 - 0.05^(1/8) (Clopper-Pearson).
    mu = 2 * stats.norm.isf(1 - 0.05 ** (1 / 8))
    expected = gaussian.epsilon_below(mu, 1e-5)
    assert values["epsilon", "as published", 1] == pytest.approx(expected, abs=1e-4)
    # A two-sided interval has half the level in each tail.
    mu = 2 * stats.norm.isf(1 - 0.025 ** (1 / 8))
    expected = gaussian.epsilon_below(mu, 1e-5)
    assert values["epsilon", "two-sided", 1] == pytest.approx(expected, abs=1e-4)
    # No valid bound is above the mu that separates the worlds in 5 % of audits.
    x = np.linspace(-10, 20, 30_001)
    largest_out = 8 * stats.norm.pdf(x) * stats.norm.cdf(x) ** 7

    def separated(mu):
        return np.trapezoid(largest_out * stats.norm.sf(x - mu) ** 8, x)

    most = gaussian.epsilon_below(optimize.brentq(lambda mu: separated(mu) - 0.05, 0, 5), 1e-5)
    assert 0.5 * most < values["epsilon", "valid", 1] <= 1.05 * most
    assert values["epsilon", "valid", 0] < 0.5 * most
    row = found[found["quantity"] == "ideal_epsilon"].iloc[0]
    assert (row["value"], row["low"], row["high"]) == (50, 5, 95)
    best = found[found["quantity"] == "best threshold"]
    best = best.set_index(best["x"].round(1))
    assert (best["audits"] == 99).all() and best["value"].sum() == pytest.approx(1)
    # 0.4 begins the fifth tenth, and 1 belongs to the last.
    assert best["value"][[0.4, 0.5, 1.0]].tolist() == pytest.approx([1 / 99, 32 / 99, 66 / 99])
    kinds = found[found["quantity"] == "epsilon"].groupby("method")["kind"].first()
    expected = {"as published": "estimate", "two-sided": "estimate", "valid": "lower"}
    assert kinds.to_dict() == expected
    rows = found[found["quantity"] == "separation"].set_index("repeat")
    # Cohen's d for two samples of equal size, from scipy's t statistic.
    second = table[table["repeat"] == 1].groupby("world")["score"].apply(list)
    t = stats.ttest_ind(second["in"], second["out"]).statistic
    assert rows.loc[1, "value"] == pytest.approx(t * np.sqrt(2 / 8))
    assert gaussian.epsilon_below(rows.loc[1, "most"], 1e-5) == pytest.approx(10, abs=1e-6)


def test_expected_audits_are_compared_with_the_same_repeats_and_bound_nothing(smoke, estimates):
    grid, scores = smoke[:2]
    rows = select(estimates, kind="expected")
    assert len(rows) and rows["confidence"].isna().all()
    assert set(rows["quantity"]) == {
        "expected separation", "expected epsilon", "expected against observed"
    }  # fmt: skip
    assert not set(rows["quantity"]) & set(estimates.loc[estimates.kind != "expected", "quantity"])
    (told,) = select(rows, quantity="expected against observed", epochs=2).itertuples()
    frame = scores[told.cell][lambda frame: frame["repeat"] == 0]
    into, out = (frame.loc[frame["world"] == w, "score"] for w in ("in", "out"))
    t = stats.ttest_ind(into, out).statistic * np.sqrt(2 / len(into))
    assert told.observed == pytest.approx(t)
    (cell,) = [c for c in cells.expected(grid) if c.name.startswith("expected_digits_pre2")][1:]
    made = scores[cell.name].iloc[0]
    assert made["separation"] == pytest.approx(made["difference"] / made["upper"])
    assert made["lower"] <= made["upper"]
    assert told.expected == pytest.approx(made["separation"])
    spread = np.hypot(told.error, told.observed_error)
    assert told.value == pytest.approx((t - made["separation"]) / spread)


def test_starts_that_two_rows_of_a_scale_ask_for_are_of_one_audit(smoke):
    """The first row asks for two pairs of one start, the second for one pair of fifteen."""
    grid, scores = smoke[:2]
    one = cells.expected(grid)[0]
    audit = one.parameters.audit
    start = audit.start.model_copy(update={"repeats": (audit.start.repeats[0] + 1,)})
    further = audit.model_copy(update={"start": start, "planned": 15})
    other = Cell("other", one.parameters.model_copy(update={"audit": further}))
    made = SimpleNamespace(of=lambda _: [(cell, scores[one.name]) for cell in (one, other)])
    rows = pd.DataFrame(module._expected(made, {}))
    assert select(rows, quantity="expected epsilon", method="as published")["starts"].to_list() == [
        2
    ]
    assert set(rows["planned"]) == {15}


def test_estimates_are_of_the_repeats_there_are(smoke, lacking, estimates):
    grid = smoke[0]
    counts = select(lacking, quantity="repeats").drop_duplicates("cell").set_index("cell")
    expected = {}
    for cell in cells.trained(grid):
        p = cell.parameters
        there = {0: 1 if p.steps == 3 else 0}.get(p.start.epochs, p.planned)
        expected[cell.name] = there if p.task == "digits" else 0
    assert counts["value"].to_dict() == expected
    assert set(expected.values()) == {0, 1, 2}
    assert (counts["planned"] == [cell.parameters.planned for cell in cells.trained(grid)]).all()
    # What is there has the estimates that it has among all.
    keys = ["figure", "cell", "quantity", "method", "repeat", "value"]
    both = select(lacking, quantity=["epsilon", "separation", "accuracy", "gradient_norm"])[keys]
    assert len(both.merge(estimates[keys], on=keys)) == len(both) > 50


def test_estimates_are_tidy(smoke):
    frame = smoke[3]
    assert np.isfinite(frame["value"]).all()
    assert set(frame["kind"]) == {"lower", "estimate", "exact", "expected"}
    assert (frame.loc[frame["kind"] == "lower", "confidence"] == 0.95).all()
    assert len(frame) == len(
        frame.drop_duplicates(["figure", "cell", "repeat", "quantity", "method", "x"])
    )


@pytest.mark.whole
def test_a_live_audit_is_compared_with_the_same_repeat_of_the_one_with_more(make):
    """Scores of both worlds count; the tests are exact, at a common level of 0.001."""
    grid = make({"repeats": 2, "models": 100}, figure="figure3")
    live = grid.figure3[0].model_copy(update={"repeats": 1})
    grid = grid.model_copy(update={"live": [live]})
    known, fresh = (cell.name for cell in cells.trained(grid))
    ideal = pd.DataFrame({"method": ["as published"] * 2, "value": [1.0, 2.0], "above": 0.5})
    bounds = {cell.name: ideal for cell in cells.ideal(grid)}
    rng = stream(0, "live")

    def scores(repeats, shift=0.0, models=100):
        frames = [
            pd.DataFrame({"world": world, "repeat": repeat, "run": range(models)})
            .assign(score=rng.normal(5 * repeat, 1, models) + (shift if world == "out" else 0.0))
            .assign(accuracy=0.5, gradient_norm=1.0, noise_multiplier=1.0)
            for repeat in repeats
            for world in ("in", "out")
        ]
        return pd.concat(frames, ignore_index=True)

    def agreement(found):
        rows = select(FAMILY.estimates(grid, found, bounds), quantity="agreement")
        assert (rows["figure"] == "live").all() and (rows["repeat"] == 0).all()
        return rows["value"].tolist()

    (same,) = agreement({known: scores((0, 1)), fresh: scores((0,))})
    (other,) = agreement({known: scores((0, 1)), fresh: scores((0,), shift=0.7)})
    assert same > 1e-3 > other
    # Too few to ever disagree, and not trained at all.
    few = {known: scores((0, 1), models=10), fresh: scores((0,), models=4)}
    assert agreement(few) == []
    assert agreement({known: scores((0, 1))}) == []
