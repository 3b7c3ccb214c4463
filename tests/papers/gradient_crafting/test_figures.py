import numpy as np
import pandas as pd
import pytest

from hiddenstate import plotting
from hiddenstate.papers.gradient_crafting import FAMILY, adversaries, cells
from hiddenstate.papers.gradient_crafting.figures import networks, shared
from hiddenstate.papers.gradient_crafting.grid import GradientCraftingGrid
from hiddenstate.pipeline.estimates import select
from hiddenstate.pipeline.family import Figure, Lacking
from hiddenstate.pipeline.runnable import MODELS


@pytest.fixture(autouse=True)
def close_figures():
    from matplotlib import pyplot

    yield
    pyplot.close("all")


def drawn(estimates, name):
    with plotting.style():
        return FAMILY.figures[name].draw(estimates)


def test_no_adversary_has_the_marker_of_the_valid_bound(monkeypatch):
    """Two more than there are."""
    words = [*adversaries.ADVERSARIES, "fifth", "sixth"]
    entry = adversaries.ADVERSARIES[adversaries.LOSS]
    for word in words[-2:]:
        monkeypatch.setitem(adversaries.ADVERSARIES, word, entry)
    markers = [shared.look(word)["marker"] for word in words]
    assert "^" not in markers and len(set(markers)) == len(words)


@pytest.mark.whole
@pytest.mark.parametrize("name", FAMILY.figures)
def test_every_figure_is_drawn(grid, estimates, tmp_path, name):
    assert FAMILY.figures[name].when(grid)
    plotting.save(drawn(estimates, name), [tmp_path / "figure.png"], "small")
    assert (tmp_path / "figure.png").stat().st_size > 10_000


def test_of_one_random_coordinate_the_audits_of_most_coordinates_are_drawn(estimates):
    """Two coordinates of 20 models rather than one of 24, and of others the 24 models."""
    rows = select(estimates, part="housing", quantity="epsilon", every=1, start="fresh")
    large = rows[(rows["models"] == 24) & (rows["adversary"] == "random coordinate")]
    one = large[large["repeat"] == 0].assign(adversary="one random coordinate")
    several = [one.assign(models=20, repeat=repeat, value=3.0 + repeat) for repeat in range(2)]
    ax = drawn(pd.concat([estimates, one.assign(value=9.0), *several]), "housing").axes[0]
    (points,) = [line.get_ydata() for line in ax.lines if line.get_label().startswith("one random")]
    assert sorted(points) == [3.0, 4.0]


def test_panels_say_how_many_repeats_and_models_they_show(estimates):
    titles = [ax.get_title() for ax in drawn(estimates, "housing").axes]
    assert titles[0].endswith("2 repeats, 2 x 24 models")
    assert titles[1].endswith("1 repeat, 2 x 20 models")
    assert titles[2].startswith("shared start, reshuffled, 1 repeat")


def test_the_audit_of_most_models_is_the_one_that_is_drawn(estimates):
    ax = drawn(estimates, "housing").axes[0]
    rows = select(estimates, part="housing", quantity="epsilon", method="valid", models=24)
    rows = select(rows, start="fresh", every=1)
    shown = [line.get_ydata() for line in ax.lines if line.get_marker() == "^"]
    shown = np.concatenate([values for values in shown if len(values)])
    # Every repeat is a point.
    np.testing.assert_allclose(sorted(shown), sorted(rows["value"]))


def test_bounds_above_the_true_epsilon_are_drawn(estimates):
    """At every clipping norm, and inside the panel."""
    rows = select(estimates, part="network", quantity="epsilon", method="valid", every=1)
    one = rows[(rows["clipping_norm"] == 2) & (rows["adversary"] == "random coordinate")].index
    high = estimates.copy()
    high.loc[one, "value"] = 24.88
    panels = [ax for ax in drawn(high, "networks").axes if "ResNet" in ax.get_title()]
    (ax,) = panels
    shown = np.concatenate([line.get_ydata() for line in ax.lines if line.get_marker() == "^"])
    assert 24.88 in shown and ax.get_ylim()[1] > 24.88


def test_points_that_stand_side_by_side_do_not_hide_each_other(estimates):
    for name in ("housing", "networks"):
        for ax in drawn(estimates, name).axes:
            at = [x for line in ax.lines if line.get_marker() not in ("None", "") for x in
                  set(np.round(line.get_xdata(), 6))]  # fmt: skip
            assert len(at) == len(set(at)), name


def test_lines_that_coincide_are_drawn_once(estimates):
    """B = 64 and B = 128 are the accountant's to the eye."""
    rows = select(estimates, part="single")
    one = rows[rows["batch_size"] == 2]
    both = pd.concat([rows, *(one.assign(batch_size=b) for b in (64.0, 128.0))])
    apart = one.assign(batch_size=256.0, value=one["value"] * 0.9)
    ax = drawn(pd.concat([both, apart]), "evolution").axes[0]
    labels = [line.get_label() for line in ax.lines]
    assert "B = 2 to 128" in labels and "B = 256" in labels and "B = 64" not in labels


def test_exact_laws_do_not_carry_the_models_of_the_scale(grid):
    for name in ("evolution", "ratio", "hidden"):
        assert FAMILY.figures[name].footer("laptop", grid).endswith("no model is trained")
    assert FAMILY.figures["housing"].footer("laptop", grid) == "scale laptop: small"


@pytest.mark.parametrize("trained", [True, False])
def test_one_run_audits_of_one_kind_alone_are_drawn(estimates, trained):
    """A scale may ask for unused coordinates alone, or for networks alone."""
    idle = estimates["method"] == "unused coordinates"
    others = estimates[(estimates["part"] != "one run") | (idle != trained)]
    (ax,) = (ax for ax in drawn(others, "one_run").axes if ax.get_title())
    assert ("trained networks" if trained else "unused coordinates, 2 audits") in ax.get_title()
    if trained:
        (below,) = ax.child_axes
        assert all(t.get_text().endswith("\n2 audits") for t in below.get_xticklabels())


def test_a_median_that_so_many_guesses_cannot_exceed_is_open(estimates):
    rows = estimates.copy()
    planned = (rows["part"] == "one run") & (rows["rule"] == "planned share guessed")
    right = planned & (rows["quantity"] == "share all right")
    for share, markers in ((0.5, 3), (0.4, 0)):
        rows.loc[right, "value"] = share
        figure = drawn(rows, "one_run")
        lines = [line for ax in figure.axes for line in ax.lines]
        found = [line for line in lines if line.get_markerfacecolor() == "w"]
        assert sum(len(line.get_xdata()) for line in found) == markers


@pytest.mark.whole
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


@pytest.mark.whole
def test_more_levels_than_colours_are_all_drawn(estimates):
    # A grid may name more batch sizes, sampling rates or epsilons than there are colours.
    many = [2.0**i for i in range(len(plotting.SERIES) + 2)]

    def with_many(part, column):
        rows = select(estimates, part=part)
        one = rows[rows[column] == rows[column].dropna().max()]
        # Lines that coincide are drawn once.
        factors = [0.95**i for i, _ in enumerate(many, 1)]
        parts = [
            one.assign(**{column: level}, value=one["value"] * factor)
            for level, factor in zip(many, factors, strict=True)
        ]
        return pd.concat([rows[~rows[column].isin(many)], *parts])

    ax = drawn(with_many("single", "batch_size"), "evolution").axes[0]
    labels = {line.get_label() for line in ax.lines}
    assert {f"B = {size:g}" for size in many} <= labels
    ax = drawn(with_many("hidden", "sampling_rate"), "hidden").axes[1]
    assert {f"q = {rate:g}" for rate in many} <= {line.get_label() for line in ax.lines}
    # Of trade-off curves three are drawn, for more lie on each other: the least and the largest.
    ax = drawn(with_many("housing", "epsilon"), "curves").axes[0]
    labels = {line.get_label() for line in ax.lines if "varepsilon" in line.get_label()}
    assert len(labels) == 3
    assert {f"$\\varepsilon$ = {e:g}" for e in (many[0], many[-1])} <= labels


def test_the_caption_says_what_the_reading_hides():
    for name in ("evolution", "ratio"):
        assert "a part" in FAMILY.figures[name].caption


def test_networks_have_the_titles_of_their_models():
    for model, words in networks._TITLES.items():
        assert model in MODELS
        dataset = "cifar10" if "CIFAR" in words else "digits"
        assert networks._network(pd.Series({"model": model, "dataset": dataset})) == words
    assert networks._TITLES["resnet18"] == "ResNet-18 on CIFAR-10"


def test_the_mean_shift_of_the_sampled_loss_is_that_of_the_rows(estimates):
    rows = estimates.assign(mu=estimates["mu"].where(estimates["part"] != "hidden", 0.7))
    assert drawn(rows, "hidden").axes[1].get_title().endswith("mean shift 0.7")


@pytest.mark.parametrize("name", FAMILY.tables)
def test_every_table_has_rows(grid, estimates, name):
    assert FAMILY.tables[name].when(grid)
    assert len(FAMILY.tables[name].draw(estimates)) > 1


@pytest.mark.parametrize("name", ["housing", "housing_every"])
def test_where_no_audit_is_there_its_figure_lacks_it(grid, name):
    """Neither a trained one nor a simulated one."""
    (cell, *_) = cells.landscapes(grid)
    law = {"batch_size": 1, "threshold": "midpoint", "step": 1, "mu": 1.0}
    law |= {"epsilon_gdp": 1.0, "epsilon_exact": 1.0}
    rows = FAMILY.estimates(grid, {}, {cell.name: pd.DataFrame([law])})
    with pytest.raises(Lacking):
        drawn(rows, name)
