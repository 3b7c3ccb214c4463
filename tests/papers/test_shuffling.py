"""shuffling: mechanisms that Poisson's accountant calls enough, and what is found of them."""

import math

import pandas as pd
import pytest

from hiddenstate import papers
from hiddenstate.accounting import gaussian, pld
from hiddenstate.errors import InputError
from hiddenstate.papers.shuffling import cells, simulations, training
from hiddenstate.pipeline.cells import Cell, Workplace
from hiddenstate.pipeline.estimates import select

FAMILY = papers.load("shuffling")
NETWORKS = {
    "dataset": "digits", "model": "digits_mlp", "claims": [10.0], "batches": 3, "batch_size": 8,
    "epochs": 2, "learning_rate": 0.5, "models": 12, "ideal_audits": 2,
}  # fmt: skip


@pytest.fixture(scope="module")
def grid():
    return cells.ShufflingGrid(
        shows="a test", delta=1e-5, claims=[1.0, 4.0], batches=[1, 10], epochs=[3],
        repeated_batches=10, runs=300, networks=cells.Networks(**NETWORKS),
    )  # fmt: skip


def test_the_grid_has_each_mechanism_once(grid):
    found = [cell.parameters for cell in cells.simulated(grid)]
    main = [p for p in found if p.repeats == 1]
    # Two claims and records; 1 and 10 batches of one epoch, and 10 of three in either order.
    assert len(main) == 2 * 2 * (2 + 2)
    assert {p.order for p in main if p.epochs == 1} == {"each epoch"}
    ideal = [p for p in found if p.repeats == 2]
    trained = [cell.parameters for cell in cells.trained(grid)]
    assert [(p.order, p.runs, p.record) for p in ideal] == [
        (p.order, p.models, cells.SILENT) for p in trained
    ]


@pytest.mark.whole
def test_the_noise_is_what_poisson_s_accountant_asks_for(grid):
    for cell in cells.simulated(grid):
        p = cell.parameters
        steps = p.batches * p.epochs
        found = pld.epsilon(p.noise_multiplier, 1 / p.batches, steps, p.delta)
        assert p.claim * 0.999 < found <= p.claim * (1 + 1e-9)


def test_one_batch_shows_the_gaussian_mechanism(grid):
    """No order hides anything: sampled always, a swapped record has twice the sensitivity."""
    cell = next(c for c in cells.simulated(grid) if c.parameters.batches == 1)
    sigma = cell.parameters.noise_multiplier
    value = simulations.account(cell, 0).set_index("method")["value"]
    exact = float(gaussian.epsilon(2 / sigma, 1e-5))
    assert value["composition"] == pytest.approx(exact, rel=1e-6)
    assert value["linear losses"] == pytest.approx(exact, rel=1e-6)
    assert value["largest sum"] == pytest.approx(exact, rel=1e-5)
    claim = float(gaussian.epsilon(1 / sigma, 1e-5))
    assert claim == pytest.approx(cell.parameters.claim, rel=1e-3)


def test_too_few_records_are_refused(grid):
    (cell, *_) = cells.trained(grid)
    many = cell.parameters.model_copy(update={"batch_size": 1000})
    with pytest.raises(InputError, match="got 3 batches of 1000; expected at most"):
        training.train(Cell(cell.name, many), 0, Workplace())


@pytest.mark.whole
def test_scores_become_estimates_of_each_adversary(grid):
    simulated = cells.simulated(grid)
    bounds = {cell.name: simulations.account(cell, 0) for cell in simulated}
    scores = {cell.name: simulations.simulate(cell, 0) for cell in simulated}
    (cell, *_) = cells.trained(grid)
    scores[cell.name] = training.train(cell, 0, Workplace())
    assert set(scores[cell.name]["adversary"]) == {simulations.ALL, simulations.LAST}
    found = FAMILY.estimates(grid, scores, bounds)
    assert (found["quantity"] == "epsilon").all()
    keys = ["cell", "method"]
    known = select(found, part="simulated").set_index(keys)["value"]
    for name in bounds:
        if name in known.index.get_level_values(0):
            composition = known[name, "composition"]
            assert known[name, "largest sum"] <= composition * (1 + 1e-9)
            assert known[name, "linear losses"] <= composition * (1 + 1e-9)
    ideal = select(found, part="ideal", method=simulations.ALL)
    assert ideal.groupby("cell")["repeat"].nunique().tolist() == [2, 2]
    (row,) = select(found, part="trained", method=simulations.ALL).itertuples()
    assert (row.record, row.claim, row.order) == (cells.SILENT, 10, "once")
    table = FAMILY.tables["networks"].draw(found)
    assert table["adversary sees"].tolist() == [simulations.LAST, simulations.ALL]
    assert all(math.isfinite(float(value)) for value in table["found"])
    assert isinstance(table, pd.DataFrame)


def measured(name, rows):
    shared = {"part": "simulated", "claim": 1.0, "epochs": 1, "order": "once", "record": "swapped"}
    frame = pd.DataFrame([shared | row for row in rows])
    return papers.load("shuffling").checks[name].measure(frame)


@pytest.mark.parametrize(("name", "factors"), [("not_uniform", 2), ("grows", 2)])
def test_a_setting_that_shows_nothing_has_no_factor(name, factors):
    def items(few):
        rows = [
            {"method": method, "batches": batches, "value": value}
            for method in ("largest sum", "linear losses")
            for batches, value in ((10, few), (100, 0.5), (1000, 1.5))
        ]
        return measured(name, rows).items

    assert len(items(0.25)) == factors
    found = items(0.0)
    assert all(math.isfinite(one.found.value) for one in found)
    if name == "not_uniform":
        assert found[0].found.value == 3
    else:
        assert [one.what[:17] for one in found] == ["1000 over 100 bat"]


@pytest.mark.parametrize("name", ["not_uniform", "grows"])
def test_factors_are_not_judged_where_nothing_is_shown(name):
    methods = ("largest sum", "linear losses")
    rows = [{"method": m, "batches": n, "value": 0.0} for m in methods for n in (10, 100)]
    assert measured(name, rows) is None


def test_networks_are_not_judged_beside_linear_losses_that_show_nothing():
    def found(ideal):
        rows = [{"part": "ideal", "value": ideal * more} for more in (0.9, 1.1)]
        rows = [*rows, {"part": "trained", "value": 1.0}]
        return measured("networks", [{"method": simulations.ALL} | row for row in rows])

    assert found(1.0).items[0].found.value == pytest.approx(1)
    assert found(0.0) is None
