"""What checks take and what they leave out; their outcomes are in ``made_up``."""

import importlib.util
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from hiddenstate.papers.gradient_crafting import FAMILY, stated
from hiddenstate.pipeline.estimates import select
from hiddenstate.pipeline.evidence import Outcome

_spec = importlib.util.spec_from_file_location(
    "made_up_rows", Path(__file__).parents[1] / "made_up/gradient_crafting.py"
)
made_up = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(made_up)


def measure(name, estimates):
    return FAMILY.checks[name].measure(estimates)


def outcome(name, estimates):
    return measure(name, estimates).outcome


@pytest.mark.parametrize("missing", made_up.GOOD)
def test_adversaries_that_a_sweep_lacks_are_not_judged(missing):
    """Whatever is compared needs both."""
    less = {name: share for name, share in made_up.GOOD.items() if name != missing}
    rows = made_up.housing(less)
    assert (measure("outperforms", rows) is None) == (missing != made_up.RANDOM)
    shown = made_up.expected(0.6)
    both, alone = shown[shown["adversary"] != missing], made_up.housing(less, start="shared")
    # They compare coordinates, whatever the loss shows.
    compared = {"simulated_dimension": {made_up.RANDOM}, "shared_start": set()}
    for name, others in compared.items():
        assert measure(name, rows) is None and measure(name, alone) is None
        assert (measure(name, both) is None) == (missing in {made_up.CRAFTED} | others)


def test_below_epsilon_4_nothing_is_said_of_audits():
    assert measure("implication1", made_up.housing(made_up.GOOD, epsilons=(1.0,))) is None


def test_the_largest_audit_of_a_setting_is_judged():
    few = made_up.housing({made_up.CRAFTED: 0.2}, models=300)
    both = pd.concat([few, made_up.housing(made_up.GOOD)])
    assert outcome("implication1", both) == Outcome.AGREES
    assert measure("mu", few) is None


@pytest.mark.parametrize("name", ["networks_ordering", "clipping_norm"])
def test_a_network_s_other_starts_and_smaller_audits_are_no_repeats(name):
    good = made_up.networks(made_up.GOOD | {made_up.RANDOM: 1.0})
    bad = made_up.networks(made_up.GOOD | {made_up.RANDOM: 0.05, made_up.LOSS: 0.9})
    others = (bad.assign(start="shared", models=5000), bad.assign(models=99))
    found = measure(name, good)
    assert measure(name, pd.concat([good, *others])).rows == found.rows
    assert measure(name, others[0]) is None


def test_network_audits_that_can_tell_nothing_are_left_out():
    good = made_up.networks(made_up.GOOD, error=0.3)
    assert measure("networks_ordering", good) is None


def test_reference_values_are_of_one_delta():
    rows = made_up.ratios()
    assert measure("heat_map", rows.assign(delta=1e-6)) is None
    assert outcome("monotone", rows.assign(delta=1e-6)) == Outcome.AGREES
    assert measure("reference", made_up.published(0.0).assign(delta=1e-6)) is None


def test_a_calibration_of_unknown_epsilons_is_not_judged():
    rows = pd.DataFrame({"part": "ideal", "quantity": "epsilon", "epsilon": [3.0], "mu": [0.7]})
    assert measure("calibration", rows.assign(delta=1e-5)) is None


@pytest.mark.whole
def test_a_perfect_replication_of_an_idle_coordinate_is_contradicted_in_one_of_twenty():
    """Five repeats of each of the reference's audits, with their own deviations."""
    rng = np.random.default_rng(12)
    epsilons = (1.0, 4.0, 8.0, 12.0, 24.0)
    frame = made_up.published(0.0, epsilons=epsilons)
    means, sds = (
        frame["epsilon"].map({e: line[i] for e, line in stated.IDLE[1].items()}) for i in (1, 2)
    )
    runs = 150
    wrong = sum(
        outcome("reference", frame.assign(value=rng.normal(means, sds))) == Outcome.CONTRADICTS
        for _ in range(runs)
    )
    # 5 % by the level, and three standard errors of so few runs.
    assert wrong / runs < 0.05 + 3 * np.sqrt(0.05 * 0.95 / runs)
    # With an insertion in every fifth step, the nearest rival, it is contradicted.
    rivals = frame["epsilon"].map({e: line[1] for e, line in stated.IDLE[5].items()})
    for _ in range(10):
        rival = frame.assign(value=rng.normal(rivals, sds))
        assert outcome("reference", rival) == Outcome.CONTRADICTS


def test_a_coordinate_of_each_model_is_compared_with_the_simulated_one_too(estimates):
    """The number in the claim's rival is of this interpretation."""
    rows = select(estimates, part="expected", network="housing", every=1, epsilon=24)
    by = rows.set_index(["adversary", "knows"])["value"]
    ratio = by["random coordinate", "nothing"] / by["simulated coordinate", "nothing"]
    note = FAMILY.checks["simulated_dimension"].measure(estimates).note
    assert note.endswith(f" Drawn for each model, {ratio:.2f} at epsilon 24.")


def test_checks_without_their_cells_judge_nothing(estimates):
    nothing = estimates[estimates["part"] == "none"]
    for name in FAMILY.checks:
        assert measure(name, nothing) is None, name


@pytest.mark.whole
def test_checks_take_what_a_small_scale_has(estimates):
    for name in FAMILY.checks:
        measure(name, estimates)
