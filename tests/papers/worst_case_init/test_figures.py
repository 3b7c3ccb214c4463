"""Figures of the smoke scale's audits."""

import numpy as np
import pandas as pd
import pytest

from hiddenstate import plotting
from hiddenstate.papers.worst_case_init import FAMILY
from hiddenstate.pipeline.estimates import select


def drawn(estimates, name):
    with plotting.style():
        return FAMILY.figures[name].draw(estimates)


@pytest.fixture(autouse=True)
def close_figures():
    from matplotlib import pyplot

    yield
    pyplot.close("all")


@pytest.fixture(scope="module")
def audits(estimates):
    """The estimates without expected audits."""
    return estimates[estimates["kind"] != "expected"]


def test_expected_audits_of_a_task_of_one_s_own_have_panels_by_records(estimates):
    told = select(estimates, quantity="expected epsilon", task="digits")
    titles = [ax.get_title() for ax in drawn(estimates, "figure1").axes]
    assert titles[0].startswith("digits, n = 50, expected audits")
    more = pd.concat([estimates, told.assign(records=40.0)], ignore_index=True)
    titles = [ax.get_title().split("\n")[0] for ax in drawn(more, "figure1").axes[:2]]
    assert sorted(titles) == [f"digits, n = {n}, expected audits" for n in (40, 50)]
    # One epsilon alone has none.
    one = estimates[(estimates["kind"] != "expected") | (estimates["epsilon"] == 10)]
    assert not any("expected" in ax.get_title() for ax in drawn(one, "figure1").axes)


@pytest.mark.whole
@pytest.mark.parametrize("name", FAMILY.figures)
def test_every_figure_is_drawn(estimates, tmp_path, name):
    figure = drawn(estimates, name)
    plotting.save(figure, [tmp_path / "figure.png"], "smoke")
    assert (tmp_path / "figure.png").stat().st_size > 10_000


def points(ax, marker):
    """The marked points of an axes, (n, 2)."""
    lines = [line.get_xydata() for line in ax.lines if line.get_marker() == marker]
    return np.concatenate([np.zeros((0, 2)), *lines])


@pytest.mark.parametrize("name", ["figure1", "figure2", "figure3", "figure4", "figure5", "figure7"])
def test_figures_show_every_audit_s_mean_and_valid_bound(audits, name):
    axes = [ax for ax in drawn(audits, name).axes if len(ax.lines) > 2]
    for marker, method in (("s", "as published"), ("^", "valid")):
        rows = select(audits, figure=name, quantity="epsilon", method=method)
        expected = rows.groupby("cell")["value"].mean()
        shown = np.concatenate([points(ax, marker)[:, 1] for ax in axes])
        np.testing.assert_allclose(sorted(set(np.round(shown, 9))), sorted(set(expected.round(9))))


@pytest.mark.whole
def test_what_the_paper_states_is_drawn_in_the_panels_of_its_own_tasks(estimates):
    """Open circles for MNIST's name, none for the digits'."""
    for name, values in (("figure1", [3.41, 6.48]), ("figure2", [0.51, 1.0, 3.41, 6.48])):
        plain = drawn(estimates, name)
        assert not any(len(points(ax, "o")) for ax in plain.axes)
        ours = estimates[estimates["kind"] != "expected"].replace({"task": {"digits": "mnist"}})
        # The paper's audits are of all records.
        other = drawn(ours.assign(records=50), name)
        assert not any(len(points(ax, "o")) for ax in other.axes)
        assert "stated" not in other.legends[0].get_texts()[-1].get_text()
        own = drawn(ours.assign(records=30_000), name)
        assert sorted(np.concatenate([points(ax, "o")[:, 1] for ax in own.axes])) == values
        told = own.legends[0].get_texts()[-1].get_text()
        assert told == "stated by the paper"


def test_norms_of_more_records_are_crosses_beside_the_audits_own(estimates):
    norms = select(estimates, figure="figure2", quantity="gradient_norm")
    more = norms.assign(figure="figure2_norms", records=30_000, models=1, value=norms["value"] / 2)
    assert not any(len(points(ax, "x")) for ax in drawn(estimates, "figure2").axes)
    figure = drawn(pd.concat([estimates, more]), "figure2")
    shown = np.concatenate([points(ax, "x") for ax in figure.axes])
    expected = more.groupby("epochs")["value"].mean()
    np.testing.assert_allclose(shown, np.column_stack([expected.index, expected]))
    assert figure.axes[1].get_legend().get_texts()[0].get_text() == "norms, n = 30,000"


def test_values_stand_beside_audits_of_as_many_records_alone(estimates):
    """Also where another panel has as many records as the paper."""
    ours = select(estimates, figure="figure1").replace({"task": {"digits": "mnist"}})
    both = pd.concat(
        [estimates[estimates["figure"] != "figure1"], ours, ours.assign(records=30_000)]
    )
    circles = [len(points(ax, "o")) > 0 for ax in drawn(both, "figure1").axes]
    assert sum(circles) == 1 and len(circles) == 2


@pytest.mark.whole
@pytest.mark.parametrize("name", ["figure2", "figure6"])
@pytest.mark.parametrize(
    ("levels", "words"),
    [
        ({"epsilon": 5.0}, "$ = 5"),
        ({"clipping_norm": 10.0}, "C = 10"),
        ({"task": "other"}, "other"),
    ],
)
def test_what_differs_from_panel_to_panel_is_never_pooled(estimates, name, levels, words):
    rows = select(estimates, figure=name)
    ideal = select(estimates, quantity="ideal_epsilon")
    others = [part.assign(value=part["value"] / 2, **levels) for part in (rows, ideal)]
    figure = drawn(pd.concat([estimates, *others]), name)
    titled = [ax for ax in figure.axes if ax.get_title()]
    assert [words in ax.get_title() for ax in titled] == [False, True]
    one, other = (points(ax, "s") for ax in titled)
    np.testing.assert_allclose(other[:, 1], one[:, 1] / 2)
    assert len(one)


def test_numbers_of_records_have_panels_of_their_own(audits):
    other = audits.replace({"records": {50.0: 40.0}})
    both = pd.concat([audits, select(other, figure="figure1", case="worst")])
    for name, titles in (("figure1", ["n = 50", "n = 40"]), ("figure3", ["2 x 5 models"])):
        axes = drawn(both, name).axes
        assert [ax.get_title().removeprefix("digits, ").split(",")[0] for ax in axes] == titles
    # The second panel has the worst case alone.
    assert [len(points(ax, "s")) for ax in drawn(both, "figure1").axes] == [2, 1]


@pytest.mark.whole
@pytest.mark.parametrize(
    "name, words",
    [
        # The average case lacks one of two repeats, the last layer's both.
        ("figure1", "3 of 4 repeats"),
        ("figure2", "3 of 4 repeats"),
        ("figure3", None),
        ("figure4", None),
        ("figure5", "0 of 4 repeats"),
        ("figure6", "1 of 2 repeats"),
        ("figure7", "0 of 4 repeats|0 of 4 repeats"),
    ],
)
def test_figures_are_drawn_from_the_repeats_there_are_and_say_how_many(
    estimates, lacking, tmp_path, name, words
):
    def second_lines(frame):
        titles = [ax.get_title() for ax in drawn(frame, name).axes]
        real = [title for title in titles if title and "expected audits" not in title]
        return [title.partition("\n")[2] for title in real]

    assert set(second_lines(estimates)) == {""}
    assert second_lines(lacking) == (words.split("|") if words else [""])
    plotting.save(drawn(lacking, name), [tmp_path / "figure.png"], "smoke")


def test_a_level_has_one_colour_in_all_panels(estimates):
    """Where a panel lacks a level, the others keep their colours."""
    rows = estimates[(estimates["figure"] == "figure4") & (estimates["clipping_norm"] == 10)]
    more = rows.assign(records=90, cell=rows["cell"].replace("n50", "n90", regex=True))
    drawn = FAMILY.figures["figure4"].draw(pd.concat([estimates, more], ignore_index=True))
    found = [dict(zip(*reversed(ax.get_legend_handles_labels()), strict=True)) for ax in drawn.axes]
    assert [sorted(labels) for labels in found] == [["C = 1", "C = 10"], ["C = 10"]]
    colours = [labels["C = 10"].get_color() for labels in found]
    assert colours[0] == colours[1]


@pytest.mark.parametrize(("name", "factor"), [("figure1", "case"), ("figure4", "clipping_norm")])
def test_expected_audits_of_all_records_have_a_panel_with_the_paper_s_values(
    estimates, name, factor
):
    audit = {"task": "mnist", "case": "worst", "epochs": 5.0, "clipping_norm": 1.0, "starts": 2.0}
    audit |= {"quantity": "expected epsilon", "records": 30_000.0, "figure": "expected"}
    levels = {"case": ["average", "worst"], "clipping_norm": [0.1, 1.0]}[factor]
    rows = pd.DataFrame(
        audit
        | {"epsilon": epsilon, factor: level, "method": method, "value": epsilon / 2 + 0.1 * i}
        | {"epochs": 0.0 if level == "average" else 5.0, "low": epsilon / 4, "high": epsilon}
        for epsilon in (4.0, 10.0)
        for i, level in enumerate(levels)
        for method in ("as published", "two-sided")
    )
    ours = select(estimates, figure=name).replace({"task": {"digits": "mnist"}})
    first, *others = drawn(pd.concat([ours, rows], ignore_index=True), name).axes
    assert first.get_title() == "mnist, n = 30,000, expected audits\n2 starts a point"
    shown = rows[rows["method"] == "as published"]["value"]
    np.testing.assert_allclose(sorted(points(first, "s")[:, 1]), sorted(shown))
    # The paper prints no epsilon by clipping norm.
    assert bool(len(points(first, "o"))) == (factor == "case")
    assert not any(len(points(ax, "o")) for ax in others)
    # Of fewer records, or of one level alone, there is no such panel.
    for fewer in (rows.assign(records=1000.0), rows[rows[factor] == levels[1]]):
        without = drawn(pd.concat([ours, fewer], ignore_index=True), name)
        assert len(without.axes) == len(others)
