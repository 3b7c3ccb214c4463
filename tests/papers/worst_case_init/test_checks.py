"""Checks, on made-up estimates that hold, fail and are not enough."""

import re

import numpy as np
import pandas as pd
import pytest

from hiddenstate.estimates import select
from hiddenstate.papers.worst_case_init import FAMILY, cells, checks, estimates
from hiddenstate.papers.worst_case_init.stated import STATED


def rows(figure, mean, sd, *, task="digits", quantity="epsilon", method="as published", **levels):
    """Two repeats of an audit, with that mean and standard deviation."""
    levels = {
        "case": "worst", "epochs": 5, "records": 50, "clipping_norm": 1.0, "steps": 3,
        "learning_rate": 8.0, "epsilon": 10.0, "models": 100, "planned": 2,
    } | levels  # fmt: skip
    cell = f"{task}-{sorted(levels.items())}"
    shared = {"figure": figure, "task": task, "cell": cell, "quantity": quantity, "method": method}
    kind = "lower" if method == "valid" else "estimate"
    return [
        shared | levels | {"kind": kind, "repeat": i, "value": mean + sign * sd / np.sqrt(2)}
        for i, sign in enumerate((-1, 1))
    ]


def perfect(value, deviation, epsilon=10.0, models=100):
    """What a perfect audit publishes."""
    shared = {"quantity": "ideal_epsilon", "method": "as published", "kind": "estimate"}
    levels = {"epsilon": epsilon, "models": models, "value": value, "deviation": deviation}
    return [shared | levels]


def average(figure, mean, sd, **levels):
    return rows(figure, mean, sd, **{"case": "average", "epochs": 0} | levels)


def norms(*means, figure="figure2"):
    found = []
    for epochs, mean in enumerate(means):
        case = "worst" if epochs else "average"
        options = {"quantity": "gradient_norm", "method": "mean", "epochs": epochs, "case": case}
        found += rows(figure, mean, 0.0, **options)
    return found


def accuracies(at_one, at_ten, epsilon=10.0, records=50):
    options = {"quantity": "accuracy", "method": "mean", "epsilon": epsilon, "records": records}
    found = rows("figure4", at_one, 0.0, clipping_norm=1.0, **options)
    return found + rows("figure4", at_ten, 0.0, clipping_norm=10.0, **options)


def clipping(at_one, at_ten, sd, **options):
    found = rows("figure4", at_one, sd, clipping_norm=1.0, **options)
    return found + rows("figure4", at_ten, sd, clipping_norm=10.0, **options)


def records(*means, **options):
    return [
        row
        for n, mean in zip((20, 50, 100), means, strict=False)
        for row in rows("figure3", mean, 0.1, records=n, **options)
    ]


def layer(at_one, at_ten, of_few, **options):
    found = rows("figure7", at_one, 1, clipping_norm=1.0, **options)
    found += rows("figure7", at_ten, 1, clipping_norm=10.0, **options)
    return found + rows("figure7", of_few, 0.5, clipping_norm=1.0, records=20, **options)


def bounds(above, below):
    found = []
    for i in range((above + below) // 2):
        levels = {"method": "valid", "steps": i + 1}
        found += rows("figure1", 11.0 if 2 * i < above else 9.0, 0.0, **levels)
    return found


GAPS = [*average("figure1", 3, 0), *rows("figure1", 6, 0)]


CASES = {
    "ordering": (
        [*average("figure1", 3, 0.5), *rows("figure1", 6, 0.5)],
        [
            # The ranges meet; at epsilon 4 too; the other way round; one task of two.
            [*average("figure1", 3, 1.6), *rows("figure1", 6, 1.6)],
            [*GAPS, *average("figure1", 1, 0.6, epsilon=4), *rows("figure1", 2, 0.6, epsilon=4)],
            [*average("figure1", 6, 0.1), *rows("figure1", 3, 0.1)],
            [*GAPS, *average("figure1", 3, 2, task="other"), *rows("figure1", 4, 2, task="other")],
            # Of several numbers of records the largest counts.
            [*GAPS, *average("figure1", 3, 2, records=90), *rows("figure1", 4, 2, records=90)],
        ],
        # Below epsilon 4 nothing is claimed.
        [*average("figure1", 3, 0.5, epsilon=2), *rows("figure1", 2, 0.5, epsilon=2)],
    ),
    "last_layer_gap": (
        # Only the largest epsilon counts.
        [
            *GAPS, *average("figure5", 8, 1), *rows("figure5", 8.5, 1),
            *average("figure1", 1, 0, epsilon=1), *rows("figure1", 1, 0, epsilon=1),
            *average("figure5", 1, 0, epsilon=1), *rows("figure5", 2, 0, epsilon=1),
        ],
        [
            [*GAPS, *average("figure5", 4, 1), *rows("figure5", 8, 1)],
            # Smaller than one task's difference and not the other's.
            [*GAPS, *average("figure1", 3, 0, task="b"), *rows("figure1", 4, 0, task="b"),
             *average("figure5", 6, 1), *rows("figure5", 8, 1)],
        ],
        GAPS,
    ),
    "pretraining": (
        norms(1.0, 0.8, 0.6),
        [norms(1.0, 1.1, 0.6), norms(0.6, 0.8, 1.0), norms(1.0, 0.6, 0.61)],
        [*average("figure2", 3, 0.5), *norms(1.0)],
    ),
    "pretraining_epsilon": (
        [*average("figure2", 3, 0.5), *rows("figure2", 6, 0.5, epochs=2)],
        [
            [*average("figure2", 3, 2), *rows("figure2", 6, 2, epochs=2)],
            [*average("figure2", 6, 0), *rows("figure2", 3, 0, epochs=2)],
        ],
        average("figure2", 3, 0.5),
    ),
    "records": (
        # Only the largest epsilon counts.
        [*records(9, 8, 7), *records(1, 2, epsilon=1.0)],
        [records(9, 7, 8), records(7, 9), [*records(9, 8), *records(1, 2, task="other")]],
        records(9),
    ),
    "clipping": (
        [*clipping(6, 4, 1), *accuracies(0.9, 0.8)],
        [
            [*clipping(6, 5.5, 1), *accuracies(0.9, 0.8)],
            [*clipping(6, 4, 1), *accuracies(0.8, 0.9)],
            [*clipping(4, 6, 1), *accuracies(0.9, 0.8)],
            # Every number of records counts, with its own accuracies.
            [*clipping(6, 4, 1), *accuracies(0.9, 0.8),
             *clipping(6, 4, 1, records=90), *accuracies(0.8, 0.9, records=90)],
        ],
        [*rows("figure4", 6, 1, clipping_norm=1.0), *accuracies(0.9, 0.8)],
    ),
    "last_layer": (
        # Three standard errors of two repeats: 3 / sqrt(2) = 2.12.
        [*rows("figure5", 7.9, 1), *perfect(10, 1)],
        [
            [*rows("figure5", 7.8, 1), *perfect(10, 1)],
            [*rows("figure5", 12.2, 1), *perfect(10, 1)],
            [*rows("figure5", 8.5, 5), *perfect(10, 0.5), *perfect(8.5, 9, models=5)],
        ],
        [*average("figure5", 10, 1), *perfect(10, 1)],
    ),
    "few_records": (
        # Three standard errors of two repeats: 2.12; many records and small epsilons do not count.
        [
            *average("figure1", 8, 1, records=100), *rows("figure1", 10, 1, records=100),
            *rows("figure1", 3, 1, records=101), *rows("figure1", 9, 1, epsilon=4.0),
            *perfect(10, 1),
        ],
        [
            [*average("figure1", 7.8, 1), *rows("figure1", 10, 1), *perfect(10, 1)],
            [*average("figure1", 10, 1), *rows("figure1", 12.2, 1), *perfect(10, 1)],
        ],
        [*rows("figure1", 3, 1, records=101), *perfect(10, 1)],
    ),
    "last_layer_factors": (
        # Two of the largest sd apart at most; only the largest epsilon counts.
        [*layer(9.9, 9, 8), *layer(4, 1, 1, epsilon=4.0)],
        [layer(9, 9, 6), layer(6, 9, 9)],
        rows("figure7", 9, 1),
    ),
    # 0.1 % of Binomial(100, 5 %) exceed 12: an even number of rows a cell, so 12 hold, 14 fail.
    "valid": (bounds(12, 88), [bounds(14, 86), bounds(100, 0)], rows("figure1", 11, 0.1)),
}  # fmt: skip


def test_pre_training_is_judged_at_one_epsilon_and_for_each_task_and_clipping_norm():
    """Comparing a small epsilon's average case with a large one's worst case proves nothing."""
    flat = [*average("figure2", 6, 0.5), *rows("figure2", 6, 0.5, epochs=2)]
    small = [*average("figure2", 1, 0.1, epsilon=1.0), *rows("figure2", 9, 0.1, epsilon=1.0)]
    rises = [*average("figure2", 3, 0.5), *rows("figure2", 6, 0.5, epochs=2)]
    measure = checks.pretraining_epsilon.measure
    assert not measure(pd.DataFrame([*small, *flat])).holds
    assert measure(pd.DataFrame([*average("figure2", 3, 1), *small[2:]])) is None
    for levels in ({"task": "other"}, {"clipping_norm": 10.0}):
        other = [row | levels for row in flat]
        assert not measure(pd.DataFrame([*rises, *other])).holds
        both = [*norms(1.0, 0.8, 0.6), *(row | levels for row in norms(3.0, 2.0, 1.0))]
        assert checks.pretraining.measure(pd.DataFrame(both)).holds
        worse = [*norms(1.0, 0.8, 0.6), *(row | levels for row in norms(0.1, 0.2, 0.3))]
        assert not checks.pretraining.measure(pd.DataFrame(worse)).holds


@pytest.mark.parametrize("check", CASES)
def test_checks_hold_fail_and_abstain(check):
    measure = FAMILY.checks[check].measure
    holding, failing, lacking = CASES[check]
    found = measure(pd.DataFrame(holding))
    assert found.holds is True and found.measured and found.tolerance
    for frame in failing:
        assert measure(pd.DataFrame(frame)).holds is False
    assert measure(pd.DataFrame(lacking)) is None
    assert measure(pd.DataFrame(rows("figure9", 1, 1))) is None


def test_an_audit_with_a_single_repeat_is_left_out():
    """It has no standard deviation to be within."""
    whole = pd.DataFrame([*average("figure1", 3, 0.5), *rows("figure1", 6, 0.5)])
    assert checks.ordering.measure(whole).holds is True
    lacking = whole[(whole["case"] == "average") | (whole["repeat"] == 0)]
    assert checks.ordering.measure(lacking) is None
    # Nor does it keep fewer records, whose audits have several, from being judged.
    more = [*rows("figure1", 4, 0.5, records=90), *average("figure1", 4, 0.5, records=90)[:1]]
    found = checks.ordering.measure(pd.concat([whole, pd.DataFrame(more)]))
    assert found is not None and "n = 50" in found.measured and "n = 90" not in found.measured


def test_measured_values_say_how_many_repeats_there_are_if_some_are_missing(scale_of):
    """Every check, where each audit should have five repeats and has two."""
    for name, (holding, _, _) in CASES.items():
        measure = FAMILY.checks[name].measure
        whole, part = (measure(pd.DataFrame(holding).assign(planned=n)) for n in (2, 5))
        assert "repeats" not in whole.measured and whole.holds == part.holds
        assert re.search(r"\(\d+ of \d+ repeats\)", part.measured)
        assert re.sub(r" \(\d+ of \d+ repeats\)", "", part.measured) == whole.measured
    few = pd.DataFrame([*average("figure1", 3, 0.5), *rows("figure1", 6, 0.5, planned=3)])
    assert "3.00 ± 0.50 average, 6.00 ± 0.50 (2 of 3 repeats) worst" in (
        checks.ordering.measure(few).measured
    )
    frame = paper_estimates(scale_of("paper")[0], "figure3", "mnist")
    measured = checks.stated_figure3_mnist.measure(frame).measured
    assert "7.21 ± 0.20 (2 of 5 repeats) (paper: 7.21)" in measured


def test_every_check_is_tested():
    stated = {name for name in FAMILY.checks if name.startswith("stated")}
    assert set(CASES) | stated | {"live"} == set(FAMILY.checks)


def test_a_live_audit_agrees_or_not():
    one = {"task": "mnist", "records": 100}
    known = [*rows("figure3", 8, 1, planned=5, **one), *rows("figure3", 4, 1, epsilon=4.0, **one)]
    same = rows("live", 9, 0, planned=1, **one)[:1]
    for p_value, holds in ((0.3, True), (0.0011, True), (0.0009, False)):
        agreement = {"quantity": "agreement", "value": p_value, "method": "Kolmogorov-Smirnov"}
        frame = pd.DataFrame([*known, *same, same[0] | agreement])
        found = checks.live.measure(frame)
        assert found.holds is holds
        # The first repeat of mean 8 and deviation 1: 8 - 1 / sqrt(2).
        assert f"p = {p_value:.2g}; published 9.00 here, 7.29 there" in found.measured
    assert checks.live.measure(pd.DataFrame(known)) is None


def test_accuracies_are_compared_with_table_1_where_all_records_are_used():
    one = {"task": "mnist", "quantity": "accuracy", "method": "mean", "records": 30_000}
    other = rows("figure1", 0.1, 0, **one | {"case": "average", "epsilon": 1.0})
    for mean, holds in ((0.966, True), (0.952, True), (0.972, False), (0.946, False)):
        right = rows("table1", mean, 0, planned=1, **one | {"case": "average", "epsilon": 4.0})
        count = [right[0] | {"quantity": "repeats", "method": "count", "value": 2}]
        found = checks.stated_table1_mnist.measure(pd.DataFrame([*other, *right, *count]))
        assert found.holds is holds
        assert found.measured == (f"epsilon 4, average case: {100 * mean:.1f} % (paper: 95.9 %)")
        few = pd.DataFrame([*right, *count]).assign(records=100)
        assert checks.stated_table1_mnist.measure(few) is None
    # Without a sweep of its own it is Figure 1's.
    assert checks.stated_table1_mnist.measure(pd.DataFrame(other)).holds is False


def test_an_audit_in_two_figures_counts_once_among_the_valid_bounds():
    frame = pd.DataFrame(bounds(14, 86))
    many = pd.concat([frame, *([frame.assign(figure=f"figure{i}") for i in range(2, 5)])])
    assert checks.valid.measure(many).measured == checks.valid.measure(frame).measured


def paper_estimates(grid: cells.WorstCaseInitGrid, figure: str, task: str) -> pd.DataFrame:
    """Audits of the paper's grid that find what the paper states, and 2.5 where it states none."""
    values = select(STATED, figure=figure, task=task, quantity="mean").dropna(axis=1, how="all")
    factors = set(values) - {"figure", "task", "quantity", "value"}
    found = []
    for sweep in getattr(grid, figure):
        for audit in cells.audits(grid, sweep):
            levels = estimates.described(audit)
            if levels.pop("task") != task:
                continue
            same = np.logical_and.reduce([values[name] == levels[name] for name in factors])
            value = values["value"][same].tolist() or [2.5]
            del levels["cell"]
            found += rows(figure, value[0], 0.2, task=task, **levels)
    return pd.DataFrame(found)


@pytest.mark.parametrize(
    "check, figure, task, stated",
    [
        ("stated_figure1_mnist", "figure1", "mnist", (0.08, 0.54, 1.89, 6.48, 0.06, 0.61, 3.41)),
        ("stated_figure1_cifar10", "figure1", "cifar10", (0.18, 1.43, 4.96, 0.07, 0.02, 0.2, 0.69)),
        ("stated_figure2", "figure2", "mnist", (3.41, 6.48)),
        ("stated_figure3_mnist", "figure3", "mnist", (7.41, 7.21, 6.48)),
        ("stated_figure3_cifar10", "figure3", "cifar10", (7.01, 6.95, 4.96)),
        ("stated_figure5", "figure5", "cifar10_last_layer", (0.67, 1.62, 3.64, 9.33, 9.19)),
    ],
)
def test_every_value_that_the_paper_states_is_compared(scale_of, check, figure, task, stated):
    """Read off sections 5.2 and 5.3 of the text once more."""
    frame = paper_estimates(scale_of("paper")[0], figure, task)
    measure = FAMILY.checks[check].measure
    found = measure(frame)
    assert found.holds is True
    for value in stated:
        assert f"{value:.2f} ± 0.20 (2 of 5 repeats) (paper: {value:.2f})" in found.measured
        # Any one of them out of range fails it.
        off = frame["value"].mask((frame["value"] - value).abs() < 0.15, frame["value"] + 0.3)
        assert measure(frame.assign(value=off)).holds is False
    assert measure(frame.assign(task="digits")) is None


def test_deviations_are_in_standard_errors_of_the_mean():
    # Two repeats with sd 0.5: a standard error of 0.5 / sqrt(2).
    found = pd.DataFrame(rows("figure5", 9.1, 0.4) + perfect(9.0, 0.5))
    assert checks.last_layer.measure(found).deviation == pytest.approx(0.1 / (0.5 / 2**0.5))
    (stated,) = select(
        STATED, figure="figure3", task="mnist", quantity="mean", records=100, epsilon=10
    )["value"]
    levels = {"task": "mnist", "case": "worst", "records": 100}
    found = pd.DataFrame(rows("figure3", stated - 1.5, 0.6, **levels))
    measured = checks.stated_figure3_mnist.measure(found)
    assert measured.deviation == pytest.approx(-1.5 / (0.6 / 2**0.5))
    # 40 bounds, of which 2 are expected above: (8 - 2) / sqrt(40 * 0.05 * 0.95).
    measured = checks.valid.measure(pd.DataFrame(bounds(8, 32)))
    assert measured.deviation == pytest.approx(6 / np.sqrt(1.9))
