"""Checks on estimates of the paper's own grid, and on replications that are perfect."""

import importlib.util
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from hiddenstate.papers.worst_case_init import FAMILY, cells, checks, estimates, summaries
from hiddenstate.papers.worst_case_init.stated import STATED
from hiddenstate.pipeline.evidence import Outcome
from hiddenstate.study import claims
from hiddenstate.study.levels import Level

CLAIMS = Path(__file__).parents[3] / "workflow/config/claims"

_spec = importlib.util.spec_from_file_location(
    "made_up_rows", Path(__file__).parents[1] / "made_up/worst_case_init.py"
)
made_up = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(made_up)


@pytest.fixture(autouse=True)
def random_records():
    """None: the paper's grid has all of its records, and no data is read here."""


def paper_estimates(grid, figure, task, quantity, draw, **changes):
    """Audits of the paper's grid that find what the paper prints, and 2.5 where it prints none."""
    values = STATED[(STATED["figure"] == figure) & (STATED["task"] == task)]
    values = values[values["quantity"] == quantity].dropna(axis=1, how="all")
    factors = set(values) - {"figure", "task", "quantity", "value"}
    found = []
    for sweep in getattr(grid, figure):
        for audit in cells.audits(grid, sweep):
            levels = estimates.described(audit)
            if levels.pop("task") != task:
                continue
            same = np.logical_and.reduce([values[name] == levels[name] for name in factors])
            value = (values["value"][same].tolist() or [2.5])[0]
            del levels["cell"]
            rows = made_up.rows(figure, value, 0.2, task=task, **levels | changes)
            found += [row | {"truth": value, "value": draw(value, row)} for row in rows]
    return pd.DataFrame(found)


@pytest.mark.whole
@pytest.mark.parametrize(
    "check, figure, task, printed",
    [
        ("figure1_mnist", "figure1", "mnist", (0.08, 0.54, 1.89, 6.48, 0.00, 0.06, 0.61, 3.41)),
        (
            "figure1_cifar10",
            "figure1",
            "cifar10",
            (0.00, 0.18, 1.43, 4.96, 0.07, 0.02, 0.20, 0.69),
        ),
        ("figure2", "figure2", "mnist", (3.41, 6.48)),
        ("figure3_mnist", "figure3", "mnist", (7.41, 7.21, 6.48)),
        ("figure3_cifar10", "figure3", "cifar10", (7.01, 6.95, 4.96)),
        ("last_layer", "figure5", "cifar10_last_layer", (0.67, 1.62, 3.64, 9.33, 9.19)),
    ],
)
def test_every_value_that_the_paper_prints_is_compared(scale_of, check, figure, task, printed):
    """Read off sections 5.2 and 5.3 of the text once more.

    Audits of a thousand models, twenty of each, tell every number from its rival in any rerun.
    """
    models, n = 1000, 20

    def like_the_paper(value, row):
        return made_up.like_five(value, "mean", row["epsilon"], models, n)[row["repeat"]]

    options = {"models": models, "n": n}
    grid = scale_of("paper")[0]
    frame = paper_estimates(grid, figure, task, "mean", like_the_paper, **options)
    found = FAMILY.checks[check].measure(frame)
    assert found.outcome == Outcome.AGREES
    assert sorted(float(row.stated) for row in found.rows if row.stated) == sorted(printed)
    for value in printed:
        # Any one of them far off contradicts; no audits find far more than the whole epsilon.
        away = np.where(frame["truth"] > frame["epsilon"] / 2, -1.5, 1.5)
        off = frame["value"].mask(frame["truth"] == value, frame["value"] + away)
        moved = FAMILY.checks[check].measure(frame.assign(value=off))
        assert moved.outcome == Outcome.CONTRADICTS


def test_cifar10s_numbers_by_records_are_told_from_each_other(scale_of):
    """The paper calls their difference significant, so the whole epsilon is not the nearest."""
    grid = scale_of("paper")[0]
    frame = paper_estimates(grid, "figure3", "cifar10", "mean", lambda value, _: value)
    found = FAMILY.checks["figure3_cifar10"].measure(frame)
    told = {row.stated: row.allowed for row in found.rows}
    for number, rival in (("7.01", "4.96"), ("6.95", "4.96"), ("4.96", "6.95")):
        assert f"excludes {rival}" in told[number]


@pytest.mark.whole
def test_a_perfect_replication_of_figure_1_is_contradicted_in_at_most_one_of_twenty(scale_of):
    """Ours and the paper's five runs are draws of one distribution, at each of eight values."""
    rng = np.random.default_rng(5)
    runs, wrong, sd = 120, 0, 0.4
    grid = scale_of("paper")[0]
    frame = paper_estimates(grid, "figure1", "mnist", "mean", lambda value, _: value)
    printed = frame["value"].drop_duplicates()
    for _ in range(runs):
        # The paper's mean has the error of five runs, so the truth is not what is printed.
        truths = dict(zip(printed, rng.normal(printed, sd / np.sqrt(5)), strict=True))
        ours = rng.normal(frame["value"].map(truths), sd)
        found = checks.printed.figure1_mnist.measure(frame.assign(value=ours))
        wrong += found.outcome == Outcome.CONTRADICTS
    # 5 % by the level, and three standard errors of so few runs.
    assert wrong / runs < 0.05 + 3 * np.sqrt(0.05 * 0.95 / runs)


def test_no_two_printed_numbers_of_a_figure_and_task_have_the_same_levels():
    for key, rows in STATED.groupby(["figure", "task", "quantity"]):
        assert sorted(checks.printed._numbers(*key)[1].values()) == sorted(rows["value"]), key


def test_an_audit_in_two_figures_counts_once_among_the_valid_bounds():
    one = made_up.bounds(0.14, 100)
    many = pd.concat([one, *([one.assign(figure=f"figure{i}") for i in range(2, 5)])])
    assert checks.audits.valid.measure(many).rows == checks.audits.valid.measure(one).rows


def test_initial_parameters_are_compared_with_all_records_alone():
    """With few records a perfect audit needs no worst case: the paper's sentence is of all."""
    few = pd.DataFrame(made_up.apart("figure1", 1.0, 2.0, records=100))
    assert checks.factors.ordering.measure(few) is None
    whole = pd.concat([few, pd.DataFrame(made_up.apart("figure1", 2.0, 1.0))])
    assert checks.factors.ordering.measure(whole).outcome == Outcome.AGREES
    # Below epsilon 4 nothing is said.
    small = pd.DataFrame(made_up.apart("figure1", 1.0, 2.0, epsilon=2.0))
    assert checks.factors.ordering.measure(small) is None


def test_clipping_norms_are_compared_with_all_records_where_both_have_an_audit():
    """With few records an audit finds everything at either norm."""
    few = made_up.clipping(9, 9, 8.9)
    assert checks.factors.clipping.measure(few).outcome == Outcome.UNDECIDED
    large = made_up.clipping(9, 9, 6).assign(records=30_000)
    large["cell"] += ", all records"
    one = pd.concat([few, large[large["clipping_norm"] == 1.0]])
    assert checks.factors.clipping.measure(one).outcome == Outcome.UNDECIDED
    assert checks.factors.clipping.measure(pd.concat([few, large])).outcome == Outcome.AGREES
    # A norm without an audit of all records stays open.
    half = pd.concat([few, large[large["clipping_norm"] != 0.1]])
    assert checks.factors.clipping.measure(half).outcome == Outcome.UNDECIDED


def test_every_other_audit_of_a_last_layer_is_compared_with_the_one_at_clipping_norm_1():
    found = checks.last_layer.last_layer_factors.measure(made_up.factors(9, 8.9))
    assert [row.what for row in found.rows] == [
        "epsilon at C = 10, n = 100 less that at C = 1, n = 100",
        "epsilon at C = 1, n = 20 less that at C = 1, n = 100",
    ]


def test_checks_without_their_cells_judge_nothing():
    other = pd.DataFrame(made_up.rows("figure9", 1.0))
    for name, check in FAMILY.checks.items():
        if name not in {"valid", *made_up.FIXED}:
            assert check.measure(other) is None, name
    assert checks.audits.valid.measure(other.assign(kind="estimate")) is None


def test_notes_say_how_many_repeats_there_are_if_some_are_missing():
    part = made_up.pretraining_epsilon(3, 6)
    assert "repeats" not in checks.factors.pretraining_epsilon.measure(part).note
    few = part[part["repeat"] < 3]
    assert "(3 of 5 repeats)" in checks.factors.pretraining_epsilon.measure(few).note


def test_single_models_of_all_records_are_judged_in_place_of_the_audits_of_fewer():
    """Of norms and accuracies, whatever the audits of the same figure show."""

    def beside(single, audits, **levels):
        there = made_up.rows(single, 5, n=1, quantity="repeats", method="count", **levels)
        return pd.concat([audits, pd.DataFrame(there)], ignore_index=True)

    few = made_up.norms(1.0, 1.2, 0.51)
    few = few.assign(records=100, cell=few["cell"] + " of few")
    few["epochs"] = few["epochs"].replace(2, 5)
    whole = made_up.norms(1.0, 0.8, 0.51).assign(figure="figure2_norms")
    whole["epochs"] = whole["epochs"].replace(2, 5)
    both = beside("figure2_norms", pd.concat([few, whole], ignore_index=True))
    measure = checks.factors.pretraining.measure
    # The paper's numbers are of all records.
    assert measure(few) is None
    found = measure(both)
    assert found.outcome == Outcome.AGREES and "30,000 records" in found.note
    single = both["figure"] == "figure2_norms"
    moved = both.assign(value=both["value"] + 0.1 * (single & (both["epochs"] == 5)))
    assert measure(moved).outcome == Outcome.CONTRADICTS
    rising = both.assign(value=both["value"] + 0.4 * (single & (both["epochs"] == 1)))
    assert measure(rising).outcome == Outcome.CONTRADICTS

    few = made_up.both_norms(0.03)
    few = few.assign(records=100, cell=few["cell"] + " of few")
    small = made_up.accuracies("worst", 0.0, 0.0005)
    whole = made_up.accuracies("worst", 0.0, 0.0005, figure="figure4", clipping_norm=10.0)
    whole = whole.assign(figure="figure4_accuracies")
    both = pd.concat([few, small, whole], ignore_index=True)
    both = beside("figure4_accuracies", both, clipping_norm=10.0)
    measure = checks.accuracy.clipping_accuracy.measure
    assert measure(few) is None
    assert measure(both).outcome == Outcome.AGREES
    # Both clipping norms are compared.
    assert measure(both[both["clipping_norm"] == 10.0]) is None
    off = both.assign(value=both["value"] + 0.03 * (both["figure"] == "figure4_accuracies"))
    assert measure(off).outcome == Outcome.CONTRADICTS


def expected(task, before, after):
    """Expected audits before and after pre-training."""
    levels = {"task": task, "quantity": "expected separation", "norm": 1.0, "cosine": 1.0}
    levels["records"] = 30_000 if task == "mnist" else 300
    return [
        *made_up.average("expected", before, 0.02, high=1.01 * before, **levels),
        *made_up.rows("expected", after, 0.02, high=1.01 * after, **levels),
    ]


def test_a_last_layer_is_no_evidence_on_pre_training_whole_models():
    layer = expected("digits_last_layer", 2.0, 2.0)
    mine = pd.DataFrame(
        expected("mnist", 1.2, 1.7)
        + layer
        + made_up.rows("figure5", 9.0, 0.2, task="digits_last_layer")
    )
    assert checks.factors.pretraining_epsilon.measure(mine).outcome == Outcome.AGREES
    both = mine[mine["figure"] != "figure5"]
    assert checks.factors.pretraining_epsilon.measure(both).outcome == Outcome.UNDECIDED


@pytest.mark.parametrize("starts", [5, 15])
def test_the_end_of_a_spread_holds_at_larger_epsilons_whatever_the_number_of_starts(starts):
    """Two pairs tell it at epsilon 4; one pair at epsilon 10 does not, and has less noise."""
    levels = {"quantity": "expected separation", "norm": 1.0, "cosine": 1.0, "most": 2.0}
    small = made_up.rows("expected", 0.5, 0.02, high=0.6, epsilon=4.0, planned=5, **levels)
    large = made_up.rows(
        "expected", 1.0, 0.02, n=starts, high=np.nan, epsilon=10.0, planned=starts, **levels
    )
    told = summaries.separations(pd.DataFrame([*small, *large])).set_index("epsilon")
    assert told["n"].tolist() == [5, starts]
    assert told.loc[10.0, "mean"] == pytest.approx(1.0 + (0.6 / 0.5 - 1) / 2, abs=0.01)
    assert 0.1 < told.loc[10.0, "error"] < 0.2


def test_without_sampling_error_every_threshold_gives_one_mu():
    """Equation 1 of the paper: in this sense each threshold is a largest one."""
    thresholds, mu = np.linspace(-3, 5, 81), 2.0
    fpr, fnr = stats.norm.sf(thresholds), stats.norm.cdf(thresholds - mu)
    assert np.allclose(stats.norm.isf(fpr) - stats.norm.ppf(fnr), mu, atol=1e-9)
    uneven = made_up.CASES["thresholds"]["contradicts"]()
    evidence = FAMILY.checks["thresholds"].measure(uneven)
    (claim,) = [one for one in claims.read(CLAIMS) if one.id == "worst_case_init.thresholds"]
    assert claims.verdict(claim, evidence, Level("laptop", "laptop")) == "depends on the reading"
