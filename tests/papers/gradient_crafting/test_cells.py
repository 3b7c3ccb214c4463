import copy
from pathlib import Path

import pytest
from pydantic import ValidationError

from hiddenstate.papers.gradient_crafting import FAMILY, cells, costs
from hiddenstate.papers.gradient_crafting.grid import GradientCraftingGrid
from hiddenstate.pipeline import scores
from hiddenstate.study import config


@pytest.fixture
def checked(content):
    return lambda **changes: GradientCraftingGrid.model_validate(content | changes)


def test_every_repeat_is_a_cell_of_its_own(grid):
    expected = {cell.name for cell in cells.expected(grid)}
    names = [name for name in FAMILY.jobs(grid)["train"] if name not in expected]
    assert names == [
        "housing_k1_fresh_eps24_24_repeat0",
        "housing_k1_fresh_eps24_24_repeat1",
        "housing_k1_fresh_eps24_20_repeat0",
        "housing_k1_shared_eps24_20_repeat0",
        "housing_k1_reshuffled_eps24_20_repeat0",
        "housing_k2_fresh_eps24_20_repeat0",
        "digits_convnet_C1_k1_fresh_eps24_20_repeat0",
        "digits_convnet_C1_k2_fresh_eps24_20_repeat0",
        "digits_resnet_C1_k1_fresh_eps24_20_repeat0",
        "digits_resnet_C2_k1_fresh_eps24_20_repeat0",
    ]


def test_cached_scores_are_of_cells_that_the_scales_ask_for():
    """Their identity, which a new field of the parameters would change, is that of the files."""
    tree = Path(__file__).parents[3]
    files = {path.stem: path for path in (tree / "results/cached" / cells.NAME).glob("*.parquet")}
    seen, simulated = set(), set()
    for scale in ("laptop", "paper"):
        whole = config.read(tree / f"workflow/config/scales/{scale}.yaml")
        jobs = FAMILY.jobs(whole.gradient_crafting)["train"]
        simulated |= FAMILY.jobs(whole.gradient_crafting)["simulate"].keys()
        known = files.keys() & jobs.keys()
        assert known
        seen |= known
        for name in known:
            assert scores.computed(files[name], jobs[name].identity, whole.seed), name
    # A simulation that other code computed is computed again.
    assert seen == files.keys() - simulated


def test_an_audit_that_is_asked_for_twice_is_refused(checked, content):
    housing = copy.deepcopy(content["housing"])
    housing["sweeps"].append(housing["sweeps"][0] | {"adversaries": ["loss-based"]})
    with pytest.raises(ValidationError, match=r"sweeps.5: got the audit housing_k1_fresh_eps24_24"):
        checked(housing=housing)


def test_an_audit_of_a_network_that_is_asked_for_twice_is_refused(checked, content):
    networks = copy.deepcopy(content["networks"])
    sweeps = networks["digits_resnet"]["sweeps"]
    sweeps.append(sweeps[0] | {"clipping_norms": [4]})
    assert len(cells.network_audits(checked(networks=networks))) == 5
    sweeps.append(sweeps[0] | {"clipping_norms": [2]})
    with pytest.raises(ValidationError, match=r"sweeps.2: got the audit digits_resnet_C2_k1"):
        checked(networks=networks)


def test_a_network_s_audits_have_ideal_ones_beside_them(grid):
    asked = {cell.name: cell.parameters.epsilons for cell in cells.ideal(grid)}
    assert asked["ideal_k1_20"] == asked["ideal_k2_20"] == (24,)
    assert asked["ideal_k4_100"] == (4,)


def test_a_network_s_data_are_known_before_it_is_trained(grid):
    jobs = FAMILY.jobs(grid)["train"]
    assert {name: job.data for name, job in jobs.items() if job.data} == {
        cell.name: ["digits"]
        for cell in (*cells.network_audits(grid), *cells.expected(grid))
        if cell.name != "expected_housing"
    }


@pytest.mark.parametrize("part", ["norms", "one_run"])
def test_parts_that_train_the_network_need_it(checked, part):
    others = {name: None for name in ("housing", "norms", "one_run") if name != part}
    with pytest.raises(ValidationError, match=f"{part}: got it without housing"):
        checked(**others)


def test_a_part_that_is_not_there_has_no_cells_and_no_figures(checked):
    plain = checked(housing=None, networks={}, norms=None, one_run=None, single=None, hidden=None)
    jobs = FAMILY.jobs(plain)
    assert not jobs["train"] and not jobs["simulate"]
    assert all(name.startswith("ideal") for name in jobs["bound"])
    assert not any(figure.when(plain) for figure in FAMILY.figures.values())


def test_cost_counts_every_training(checked):
    (cell, *_) = cells.trained(checked())
    p = cell.parameters
    # One model without the canary, three with it, and two simulations, of 10 steps of 20 records.
    assert costs.cost(p) == pytest.approx(24 * 6 * 10 * 20 * 2.1e-8)
    more = p.model_copy(update={"every": 5, "adversaries": ("loss-based",)})
    assert costs.cost(more) == pytest.approx(24 * 2 * 50 * 20 * 2.1e-8)


@pytest.mark.parametrize(
    ("centred", "words"),
    [
        ({"epsilons": [8], "models": 20}, "got 8; expected some"),
        ({"epsilons": [24], "models": 25}, "got 25; expected at most 24"),
        ({"epsilons": [24], "models": 20, "repeats": 3}, "got 3; expected at most 2"),
    ],
)
def test_only_models_that_are_there_can_be_read_again(checked, content, centred, words):
    housing = copy.deepcopy(content["housing"])
    housing["sweeps"][0]["centred"] = centred
    with pytest.raises(ValidationError, match=words):
        checked(housing=housing)


def test_a_second_reading_leaves_the_audit_s_identity(checked, content):
    housing = copy.deepcopy(content["housing"])
    del housing["sweeps"][0]["centred"]
    assert cells.housing_audits(checked()) == cells.housing_audits(checked(housing=housing))
    assert cells.centred(checked(housing=housing)) == []
