"""Expected audits of coordinates against audits of many models."""

import math

import numpy as np
import pytest

from hiddenstate.accounting import gaussian
from hiddenstate.adversaries import crafted_gradients as crafted
from hiddenstate.auditing import worlds
from hiddenstate.auditing.summaries import separation
from hiddenstate.papers.gradient_crafting import cells, costs, expected, training
from hiddenstate.papers.gradient_crafting.adversaries import CRAFTED, ONE_RANDOM, RANDOM
from hiddenstate.papers.gradient_crafting.grid import GradientCraftingGrid
from hiddenstate.pipeline.cells import Cell, Workplace


@pytest.fixture(scope="module")
def found(content):
    """Expected audits of a housing network, and the audit they are of."""
    housing = content["housing"] | {"insertions": 20, "learning_rate": 0.5}
    points = {"epsilons": [4], "every": [2], "starts": 40, "orders": 5}
    asked = {"shows": "small", "delta": 1e-5, "housing": housing, "expected": points}
    (cell,) = cells.expected(GradientCraftingGrid.model_validate(asked))
    rows = expected.expect(cell, 1, Workplace()).set_index(["adversary", "knows"])
    return rows, cell.parameters.audits[0]


@pytest.mark.whole
@pytest.mark.parametrize("models", [800, pytest.param(3000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("start", ["fresh", "shared"])
def test_many_models_separate_scores_as_expected(found, start, models):
    rows, audit = found
    words = (RANDOM, CRAFTED) if start == "fresh" else (CRAFTED,)
    table = crafted.scores(
        training.audit_of(audit.model_copy(update={"start": start})), models=models, seed=2,
        adversaries=[training.adversary(word, "absolute") for word in words],
    )  # fmt: skip
    mu = gaussian.mu(4.0, 1e-5)
    for word in words:
        seen, error = separation(*worlds(table[table["adversary"] == word].sort_values("run")))
        share, own = rows.loc[
            (word, "nothing" if start == "fresh" else "start"), ["share", "error"]
        ]
        assert abs(seen / mu - share) < 3.5 * math.hypot(error / mu, own), (word, seen / mu, share)
    assert rows["error"].between(0, 0.1).all()


def test_what_is_known_leaves_less_spread(found):
    rows, _ = found
    share = rows["share"]
    for adversary in (ONE_RANDOM, CRAFTED):
        assert share[adversary, "start"] > share[adversary, "nothing"] - 0.02
    assert share.max() < 1.1 / math.sqrt(2)


def test_few_starts_whose_variances_are_estimated_below_zero_have_shares():
    rng = np.random.default_rng(0)
    noise = rng.normal(0, 2, (2, 2, 5))  # the noise itself has deviation 1
    places, shifts = np.zeros((2, 2), dtype=int), np.ones((2, 2, 2))
    trained = expected._Trained(-0.99 * noise, noise, places, places, shifts, 1.0)
    assert 1 + expected._variances(trained.moved, noise)["nothing"].mean() < 0
    assert all(math.isfinite(share) and share > 0 for _, share in trained.shares())


def test_variances_are_those_of_starts_and_orders():
    rng = np.random.default_rng(0)
    start, order = rng.normal(0, 3, (4000, 1, 1)), rng.normal(0, 2, (1, 60, 1))
    noise = rng.normal(0, 1, (4000, 60, 1))
    d = start + order + 0.5 * noise
    known = expected._variances(d, noise)
    # Beyond the noise of 1: 0.25 of the rest, and twice the covariance of 0.5.
    by_order = np.var(order, ddof=1)
    assert known["start"][0] == pytest.approx(by_order + 1.25, rel=0.02)
    assert known["batches"][0] == pytest.approx(9 + 1.25, rel=0.06)
    assert known["nothing"][0] == pytest.approx(9 + by_order + 1.25, rel=0.06)


def test_the_forecast_counts_every_training(content, monkeypatch):
    epsilons = {"epsilons": [4, 24], "every": [1, 2], "starts": 3, "orders": 2}
    asked = GradientCraftingGrid.model_validate(content | {"expected": epsilons})
    (cell,) = [cell for cell in cells.expected(asked) if cell.name == "expected_housing"]
    steps = []
    for name in ("last", "simulated"):
        train = getattr(expected._Housing, name)

        def counted(network, initial, batches, *noise, train=train):
            batches = list(batches)
            steps.append(len(batches))
            return train(network, initial, batches, *noise)

        monkeypatch.setattr(expected._Housing, name, counted)
    expected.expect(cell, 1, Workplace())
    record = costs._HOUSING_RECORD * cell.parameters.audits[0].batch_size
    assert costs.expected_cost(cell) == pytest.approx(sum(steps) * record)


def test_cells_have_every_point_of_a_network_once(content):
    asked = GradientCraftingGrid.model_validate(content)
    found: dict[str, Cell] = {cell.name: cell for cell in cells.expected(asked)}
    points = {
        name: [(audit.every, audit.clipping_norm) for audit in cell.parameters.audits]
        for name, cell in found.items()
    }
    both = [(1, 1.0), (2, 1.0)]
    assert points.pop("expected_housing") == both
    assert all(one == [*both, (1, 2.0)] for one in points.values()) and len(points) == 2
    assert cells.expected_trainings(found["expected_housing"]) == (
        3 * 2 * 2 * len(asked.expected.epsilons),
        1,
    )
