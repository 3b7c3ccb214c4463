import numpy as np
import pandas as pd
import pytest

from hiddenstate import plotting
from hiddenstate.estimates import select
from hiddenstate.family import Figure
from hiddenstate.papers.gradient_crafting import FAMILY
from hiddenstate.papers.gradient_crafting.cells import GradientCraftingGrid


@pytest.fixture(autouse=True)
def close_figures():
    from matplotlib import pyplot

    yield
    pyplot.close("all")


def drawn(estimates, name):
    with plotting.style():
        return FAMILY.figures[name].draw(estimates)


@pytest.mark.parametrize("name", FAMILY.figures)
def test_every_figure_is_drawn(grid, estimates, tmp_path, name):
    assert FAMILY.figures[name].when(grid)
    plotting.save(drawn(estimates, name), [tmp_path / "figure.png"], "small")
    assert (tmp_path / "figure.png").stat().st_size > 10_000


def test_panels_say_how_many_repeats_and_models_they_show(estimates):
    titles = [ax.get_title() for ax in drawn(estimates, "housing").axes]
    assert titles[0].endswith("2 repeats, 24 models per world")
    assert titles[1].endswith("1 repeat, 20 models per world")


def test_the_audit_of_most_models_is_the_one_that_is_drawn(estimates):
    ax = drawn(estimates, "housing").axes[0]
    rows = select(estimates, part="housing", quantity="epsilon", method="valid", models=24)
    rows = select(rows, start="fresh", every=1)
    expected = rows.groupby("adversary")["value"].mean()
    shown = [line.get_ydata() for line in ax.lines if line.get_marker() == "^"]
    shown = np.concatenate([values for values in shown if len(values)])
    np.testing.assert_allclose(sorted(shown), sorted(expected))


def test_a_network_s_other_starts_and_smaller_audits_are_not_pooled(estimates):
    rows = estimates[estimates["part"] == "network"]
    others = [rows.assign(start="shared", models=99), rows.assign(models=19)]
    both = pd.concat([estimates, *(part.assign(value=part["value"] + 9) for part in others)])
    for name in ("networks", "networks_every", "clipping"):

        def drawn_points(frame, name=name):
            axes = drawn(frame, name).axes
            return [np.array(line.get_xydata()) for ax in axes for line in ax.lines]

        for one, other in zip(drawn_points(estimates), drawn_points(both), strict=True):
            np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(
    ("changes", "hidden"),
    [
        ({"start": "shared"}, {"housing_every", "curves"}),
        ({"adversaries": ["loss-based"]}, {"curves"}),
    ],
)
def test_a_figure_whose_audits_a_scale_lacks_is_not_drawn(content, changes, hidden):
    sweeps = [sweep | changes for sweep in content["housing"]["sweeps"] if "start" not in sweep]
    grid = GradientCraftingGrid.model_validate(
        content | {"housing": content["housing"] | {"sweeps": sweeps}}
    )
    shown = FAMILY.shown(Figure, grid)
    assert "housing" in shown
    assert hidden.isdisjoint(shown)


def test_more_levels_than_colours_are_all_drawn(estimates):
    # A grid may name more batch sizes, sampling rates or epsilons than there are colours.
    many = [2.0**i for i in range(len(plotting.SERIES) + 2)]

    def with_many(part, column):
        rows = select(estimates, part=part)
        one = rows[rows[column] == rows[column].dropna().max()]
        return pd.concat([rows, *[one.assign(**{column: level}) for level in many]])

    ax = drawn(with_many("single", "batch_size"), "evolution").axes[0]
    labels = {line.get_label() for line in ax.lines}
    assert {f"B = {size:g}" for size in many} <= labels
    ax = drawn(with_many("hidden", "sampling_rate"), "hidden").axes[1]
    assert {f"q = {rate:g}" for rate in many} <= {line.get_label() for line in ax.lines}
    ax = drawn(with_many("housing", "epsilon"), "curves").axes[0]
    assert {f"$\\varepsilon$ = {e:g}" for e in many} <= {line.get_label() for line in ax.lines}


def test_the_caption_says_what_the_reading_hides():
    for name in ("evolution", "ratio"):
        assert "23 to 29 %" in FAMILY.figures[name].caption


@pytest.mark.parametrize("name", FAMILY.tables)
def test_every_table_has_rows(grid, estimates, name):
    assert FAMILY.tables[name].when(grid)
    assert len(FAMILY.tables[name].draw(estimates)) > 1
