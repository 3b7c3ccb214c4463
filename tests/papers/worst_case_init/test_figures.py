"""Figures of the smoke scale's audits."""

import numpy as np
import pytest

from hiddenstate import plotting
from hiddenstate.estimates import select
from hiddenstate.papers.worst_case_init import FAMILY


def drawn(estimates, name):
    with plotting.style():
        return FAMILY.figures[name].draw(estimates)


@pytest.fixture(autouse=True)
def close_figures():
    from matplotlib import pyplot

    yield
    pyplot.close("all")


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
def test_figures_show_every_audit_s_mean_and_valid_bound(estimates, name):
    axes = [ax for ax in drawn(estimates, name).axes if len(ax.lines) > 2]
    for marker, method in (("s", "as published"), ("^", "valid")):
        rows = select(estimates, figure=name, quantity="epsilon", method=method)
        expected = rows.groupby("cell")["value"].mean()
        shown = np.concatenate([points(ax, marker)[:, 1] for ax in axes])
        np.testing.assert_allclose(sorted(set(np.round(shown, 9))), sorted(set(expected.round(9))))


def test_what_the_paper_states_is_drawn_in_the_panels_of_its_own_tasks(estimates):
    """Open circles for MNIST's name, none for the digits'."""
    for name, values in (("figure1", [3.41, 6.48]), ("figure2", [0.51, 1.0, 3.41, 6.48])):
        plain = drawn(estimates, name)
        assert not any(len(points(ax, "o")) for ax in plain.axes)
        ours = drawn(estimates.replace({"task": {"digits": "mnist"}}), name)
        shown = [points(ax, "o")[:, 1] for ax in ours.axes]
        assert sorted(np.concatenate(shown)) == values


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
        return [title.partition("\n")[2] for title in titles if title]

    assert set(second_lines(estimates)) == {""}
    assert second_lines(lacking) == (words.split("|") if words else [""])
    plotting.save(drawn(lacking, name), [tmp_path / "figure.png"], "smoke")
