"""The atlas against the families' own functions, at the families' own settings."""

import json
import math
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

from hiddenstate import atlas, plotting
from hiddenstate.accounting import bounds as upper
from hiddenstate.accounting import gaussian
from hiddenstate.accounting.setting import Setting
from hiddenstate.atlas import lower, proven
from hiddenstate.atlas import trained as shipped
from hiddenstate.atlas.words import Answer
from hiddenstate.auditing import Averaged, lower_bound
from hiddenstate.errors import InputError
from hiddenstate.papers import encoding_loss, gradient_crafting, linear_heuristic, worst_case_init
from hiddenstate.papers.atlas import FAMILY, figures, trained
from hiddenstate.papers.atlas.cells import AtlasGrid, Ordered, Sampled
from hiddenstate.papers.gradient_crafting import stated
from hiddenstate.papers.linear_heuristic.grid import HistoryCurves
from hiddenstate.pipeline import scores
from hiddenstate.pipeline.cells import Cell
from hiddenstate.pipeline.estimates import select
from hiddenstate.pipeline.evidence import Outcome
from hiddenstate.rounding import shown
from hiddenstate.sampling import Cyclic, FullBatch, Poisson
from hiddenstate.study import config

ROOT = Path(__file__).parents[2]
CACHE = ROOT / "results/cached"
FILES = [
    CACHE / "gradient_crafting/housing_k5_fresh_eps8_5000_repeat0.parquet",
    CACHE / "worst_case_init/mnist_pre5_n1000_C1_T100_lr4_eps10_5x100_repeat0.parquet",
]
DELTA = 1e-5
SEED = 20240709
NUMBERS = {"noise_multiplier": 1.0, "sampling_rate": 0.1, "steps": 100}
SAMPLED = Sampled(**NUMBERS)
FIXED = Ordered(noise_multiplier=5.0, records=1000, batch_size=100, steps=50, smoothness=1.0)
LOWER = {one.name: one for one in lower.COUNTEREXAMPLES}


def sampled_batches(rate, **numbers):
    return Setting(sampling=Poisson(rate), **numbers)


@pytest.fixture(scope="module")
def sampled():
    """The rows of a setting of encoding_loss (Figure 1) and linear_heuristic (section 4.3)."""
    return atlas.rows(SAMPLED.known, DELTA, 500, SEED).set_index("name")


@pytest.fixture
def quick(monkeypatch):
    """Critical values from few simulations, where nothing is said of their level."""
    few = Averaged(simulations=500)

    def bound(inside, outside, hypotheses, rule=None, **options):
        return lower_bound(inside, outside, hypotheses, few, **options)

    monkeypatch.setattr(lower, "lower_bound", bound)


@pytest.fixture(scope="module")
def shown_rows():
    """Estimates of a setting of either sampler."""
    grid = AtlasGrid(
        shows="small",
        delta=DELTA,
        runs=200,
        settings=[
            {"title": "sampled", "setting": {**SAMPLED.model_dump(), "steps": 30}},
            {"title": "fixed", "setting": FIXED},
        ],
    )
    with pytest.MonkeyPatch.context() as patch:
        few = Averaged(simulations=500)

        def bound(inside, outside, hypotheses, rule=None, **options):
            return lower_bound(inside, outside, hypotheses, few, **options)

        patch.setattr(lower, "lower_bound", bound)
        made = {name: job.run(SEED, None) for name, job in FAMILY.jobs(grid)["bound"].items()}
        return FAMILY.estimates(grid, {}, made)


# --- the same numbers as the families' ------------------------------------------------------------


@pytest.mark.whole
def test_the_encoding_loss_is_audited_as_its_family_does(sampled):
    """Scores, curves and bound of encoding_loss, at epsilons that are 0.5 apart."""
    family = encoding_loss.cells
    mechanism = family.Mechanism(**NUMBERS)
    grid = config.section(ROOT / "workflow/config/scales/laptop.yaml", "encoding_loss")[1]
    (cell,) = [c for c in family.simulated(grid) if c.name == "q0.1_T100_sigma1_sound"]
    assert cell.parameters.mechanism == mechanism
    fewer = cell.parameters.model_copy(update={"runs": 500, "repeats": 1})
    observed = encoding_loss.simulations.simulate(Cell(cell.name, fewer), SEED)
    setting = family.Setting(sampling_rate=0.1, steps=100)
    table = encoding_loss.simulations.account(
        Cell("q0.1_T100", family.Accounted(mechanism=setting, epsilons=EPSILONS, delta=DELTA)), SEED
    )
    curves = {e: encoding_loss.estimates._curves(part) for e, part in table.groupby("epsilon")}
    rows = encoding_loss.estimates._epsilon_rows(observed, curves)[0].set_index("method")
    ours = sampled.loc["encoding-loss audit"]
    assert ours["runs"] == 500
    assert rows.loc["lower bound", "kind"] == ours["kind"] == "lower"
    # Both report a value of their own table below the bound.
    assert abs(rows.loc["lower bound", "value"] - ours["value"]) < 0.6
    assert ours["value"] > 4


EPSILONS = (5.0, 5.5, 6.0, 6.5)


def test_the_heuristic_and_its_counterexamples_are_linear_heuristics(sampled):
    family = linear_heuristic
    grid = config.section(ROOT / "workflow/config/scales/laptop.yaml", "linear_heuristic")[1]
    (cell,) = family.cells.keeps_history(HistoryCurves)(grid)
    p = cell.parameters
    assert (p.noise_multiplier, p.sampling_rate, p.steps) == (1.0, 0.1, 100)
    assert p.delta == DELTA
    assert max(p.growths) == lower.GROWTH
    few = p.model_copy(update={"growths": [lower.GROWTH], "resolution": 0.5})
    rows = family.bounds.history_regulariser(Cell(cell.name, few), SEED)
    found = rows[rows["quantity"] == "epsilon"].set_index("method")["value"]
    assert sampled.loc["linear heuristic", "value"] == found["heuristic"]
    # Upper bounds of the families are at most 1 % too large, the atlas's 1e-3 or so.
    standard = sampled.loc["standard epsilon", "value"]
    assert found["standard"] == pytest.approx(standard, rel=0.01)
    kept = sampled.loc["history regulariser", "value"]
    assert kept <= found["history regulariser"] <= 1.01 * kept
    (_, heuristic), (_, upper), (_, full) = (
        (row.method, row.value)
        for row in family.bounds._baselines(1.0, 0.1, [100], DELTA).itertuples()
    )
    assert sampled.loc["full-batch heuristic", "value"] == full
    assert sampled.loc["linear heuristic", "value"] == heuristic
    assert upper == found["standard"]


@pytest.mark.whole
def test_the_quadratic_regulariser_is_linear_heuristics_where_that_is_exact():
    few = sampled_batches(0.1, noise_multiplier=1.0, steps=3)
    grid = config.section(ROOT / "workflow/config/scales/laptop.yaml", "linear_heuristic")[1]
    (cell,) = linear_heuristic.cells.quadratic(grid)
    p = cell.parameters
    assert (p.noise_multiplier, p.sampling_rate, p.steps) == (1.0, 0.1, 3)
    # The same curvatures except for 0, which is the linear loss.
    exact = linear_heuristic.bounds.quadratic_regulariser(
        Cell(cell.name, p.model_copy(update={"points": 6})), SEED
    )
    ours = LOWER["quadratic regulariser"].compute(few, p.delta).epsilon
    assert ours == pytest.approx(exact["value"].iloc[1:].max(), rel=1e-8)
    assert ours <= exact["value"].iloc[1:].max()


@pytest.mark.parametrize("period", [1, 5, 25])
def test_a_perfect_crafted_audit_is_gradient_craftings_idle_coordinate(quick, period):
    """With 250 insertions at epsilon 8, as ``stated`` has it from elsewhere."""
    sigma = stated.NOISE_MULTIPLIERS[8.0]
    setting = sampled_batches(1.0, noise_multiplier=sigma, steps=250 * period)
    found = lower._crafted(setting, DELTA, period, 100, SEED)
    assert found.truth == pytest.approx(stated.IDLE[period][8.0][0], rel=5e-4)
    assert 0 <= found.epsilon <= found.truth


@pytest.mark.whole
def test_the_rows_insert_in_every_kth_step(quick):
    sigma = stated.NOISE_MULTIPLIERS[8.0]
    setting = Setting(sampling=FullBatch(), noise_multiplier=sigma, steps=250)
    rows = atlas.rows(setting, DELTA, 100, SEED).set_index("name")
    assert rows.loc["gradient-crafting audit, k = 1", "truth"] == pytest.approx(8, rel=5e-4)
    for period in (5, 25):
        # So many insertions of shift 1 against the noise of 250 steps.
        mu = 250 / period / (sigma * math.sqrt(250))
        truth = rows.loc[f"gradient-crafting audit, k = {period}", "truth"]
        assert truth == pytest.approx(gaussian.epsilon(mu, DELTA), rel=1e-6)
    # Full batch: hiding buys nothing, even if losses are linear.
    answer = Answer.of(rows.reset_index())
    assert answer.linear == pytest.approx(answer.proven, rel=1e-8)
    assert "hiding iterates would save nothing" in answer.lines(setting)[1]


@pytest.mark.whole
def test_trained_audits_are_bounded_as_their_families_do():
    found = trained.table(FILES).set_index("audit")
    observed = select(scores.read(FILES[0])[0], adversary="simulated coordinate")
    worlds = gradient_crafting.estimates._worlds(observed)
    theirs = [
        row["value"]
        for row in gradient_crafting.summaries.audit(*worlds, DELTA)
        if row["method"] == "valid"
    ]
    ours = found.loc["gradient-crafting audit, k = 5"]
    assert [gaussian.epsilon_below(ours["mu_bound"], DELTA)] == theirs
    assert gaussian.epsilon(ours["mu"], DELTA) == pytest.approx(8, abs=1e-6)

    job = trained._job(FILES[1])
    repeats = worst_case_init.estimates._repeat(job.cell.parameters, scores.read(FILES[1])[0])
    theirs = [r["value"] for r in repeats if r.get("method") == "valid"]
    ours = found.loc[trained.WORST]
    below = gaussian.epsilon_below(ours["mu_bound"], DELTA)
    assert [below] == pytest.approx(theirs, abs=1e-12)
    assert ours["noise_multiplier"] == pytest.approx(
        scores.read(FILES[1])[0]["noise_multiplier"].iloc[0], rel=1e-4
    )


@pytest.mark.whole
def test_the_shipped_table_is_of_the_cached_scores():
    made = trained.table(trained.cached_files(CACHE))
    pd.testing.assert_frame_equal(shipped.table(), made, rtol=1e-9)


def test_a_fixed_order_has_the_guarantees_of_its_command(quick):
    rows = atlas.rows(FIXED.known, DELTA, 100, SEED).set_index("name")
    setting = Setting(
        sampling=Cyclic(100), records=1000, steps=50, noise_multiplier=5.0, learning_rate=0.1,
        smoothness=1.0, weak_convexity=0.0,
    )  # fmt: skip
    assert setting == FIXED.known
    for found in upper.found(setting, DELTA):
        assert rows.loc[found.bound.name, "value"] == found.epsilon
    # Linear losses: five visits of a shift of 2 against the noise of 50 steps.
    mu = 5 * 2 / (5.0 * math.sqrt(50))
    exact = gaussian.epsilon(mu, DELTA)
    assert rows.loc["linear heuristic", "value"] == pytest.approx(exact, rel=1e-6)
    assert rows.loc["gradient-crafting audit, k = 1", "truth"] == pytest.approx(exact, rel=1e-6)
    tight = rows.loc["quadratic losses of this curvature", "value"]
    assert (
        rows.loc["linear heuristic", "value"]
        <= tight
        <= rows.loc["cyclic, clipping without effect", "value"]
    )
    assert rows.loc["history regulariser", "value"] == pytest.approx(
        rows.loc["standard epsilon", "value"], rel=1e-3
    )


# --- order, and what is refused -------------------------------------------------------------------


def test_no_lower_bound_is_above_what_is_proven(sampled, shown_rows):
    least = proven(sampled.reset_index())
    values = sampled[sampled["kind"].isin(["lower", "exact"])]["value"].dropna()
    assert len(values) == 9
    assert values.max() <= least
    found = FAMILY.checks["ordered"].measure(shown_rows)
    assert found.outcome != Outcome.CONTRADICTS, found.rows
    assert found.rows[0].outcome == Outcome.AGREES
    # One computed bound is enough, of audits at 95 % it takes more than one.
    for group, wrong in (("counterexample", 1), ("simulated", 6), ("trained", 6)):
        changed = shown_rows.copy()
        at = changed.index[(changed["group"] == group) & changed["value"].notna()][:wrong]
        assert len(at) == wrong
        changed.loc[at, "value"] = 1e-3 + np.fmax(least, changed.loc[at, "allowed"])
        outcome = FAMILY.checks["ordered"].measure(changed).outcome
        assert outcome == Outcome.CONTRADICTS, group


def test_checks_need_what_they_name(shown_rows):
    assert FAMILY.checks["attained"].measure(shown_rows).outcome == Outcome.AGREES
    weaker = shown_rows.copy()
    weaker.loc[weaker["method"] == "history regulariser", "value"] *= 0.98
    assert FAMILY.checks["attained"].measure(weaker).outcome == Outcome.CONTRADICTS
    some = shown_rows[shown_rows["group"] == "proven"]
    assert FAMILY.checks["attained"].measure(some) is None
    assert FAMILY.checks["audited"].measure(some) is None


def test_the_figure_and_the_tables_show_every_row(shown_rows):
    with plotting.style():
        drawn, audits = (FAMILY.figures[name].draw(shown_rows) for name in ("atlas", "audits"))
    (ax,) = drawn.axes
    assert [t.get_text().split("\n")[0] for t in ax.get_yticklabels()] == ["sampled", "fixed"]
    # Beside each mark stands the epsilon of which it is the share.
    lines = {line.get_label(): line.get_xdata() for line in ax.lines}
    parts = [part for _, part in shown_rows.groupby("cell", sort=False)]
    worst = [
        part[part["group"] == "counterexample"]["value"].max() / atlas.proven(part)
        for part in parts
    ]
    np.testing.assert_allclose(lines["worst known losses, lower bound"], worst)
    assert len(ax.texts) == sum(np.isfinite(x).sum() for x in lines.values()) - 2
    table = audits.axes[0].texts
    found = shown_rows["group"].isin(["simulated", "trained", "trained here"])
    assert len(table) == (found & shown_rows["value"].notna()).sum()
    assert all(0 <= int(text.get_text()) <= 100 for text in table)
    table = FAMILY.tables["atlas"].draw(shown_rows)
    assert len(table) == len(shown_rows)
    assert table["assumption"].str.len().min() > 10
    assert list(FAMILY.tables["answer"].draw(shown_rows)["setting"]) == ["sampled", "fixed"]


@pytest.mark.whole
def test_no_cell_depends_on_what_is_on_disk(monkeypatch, tmp_path, shown_rows, quick):
    assert "trained" in set(shown_rows["group"])
    grid = AtlasGrid(
        shows="small", delta=DELTA, runs=100, settings=[{"title": "one", "setting": FIXED}]
    )
    here = FAMILY.jobs(grid)["bound"]
    monkeypatch.chdir(tmp_path)
    there = FAMILY.jobs(grid)["bound"]
    assert [job.cell for job in here.values()] == [job.cell for job in there.values()]
    made = {name: job.run(SEED, None) for name, job in there.items()}
    assert "trained" in set(FAMILY.estimates(grid, {}, made)["group"])
    without = grid.model_copy(update={"trained": False})
    assert "trained" not in set(FAMILY.estimates(without, {}, made)["group"])


def test_the_nearest_audit_is_nearest_in_ratio_and_the_largest():
    audits = shipped.table()
    assert {trained.WORST, trained.AVERAGE} < set(audits["audit"])
    for epsilon, expected in ((8.2, 8.0), (5.0, 4.0), (1e9, 24.0), (0.0, 1.0)):
        near = shipped.nearest(audits, epsilon, DELTA).set_index("audit")
        assert near.loc["gradient-crafting audit, k = 1", "cell"] == (
            f"housing_k1_fresh_eps{expected:g}_5000_repeat0"
        )
    twins = pd.DataFrame({"audit": "a", "mu": [1.0, 1.0], "models": [10, 20], "cell": ["s", "l"]})
    assert shipped.nearest(twins, 3.0, DELTA)["cell"].tolist() == ["l"]
    # A file beside them that is of another reading, or of another repeat, is none of them.
    assert not audits["cell"].str.contains("shared|repeat1|pre1_|C10_|C0.1_|code").any()


def test_an_audit_of_the_very_setting_is_said_to_be_one():
    mu = gaussian.mu(10.0, DELTA)
    same = Setting(sampling=FullBatch(), noise_multiplier=10 / mu, steps=100)
    rows = pd.DataFrame({"group": ["proven"], "value": [10.0]})
    for setting, group, words in (
        (same, "trained here", "this setting: mnist, 1,000 records"),
        (replace(same, sampling=Poisson(0.5)), "trained", "another setting: mnist"),
        (replace(same, noise_multiplier=5.1), "trained", "another setting: mnist"),
    ):
        found = shipped.with_trained(rows, setting, 10.0, DELTA).set_index("name")
        assert found.loc[trained.WORST, "group"] == group
        assert found.loc[trained.WORST, "assumption"].startswith(words)


def test_a_cached_file_that_does_not_fit_is_refused_by_name(tmp_path):
    source = CACHE / "gradient_crafting/housing_k5_fresh_eps8_5000_repeat0.parquet"
    path = tmp_path / "gradient_crafting" / source.name
    path.parent.mkdir()
    shutil.copy(source, path)
    table = pq.read_table(path)
    origin = json.loads(table.schema.metadata[b"hiddenstate"])

    def rewritten(**changes):
        claimed = origin | {"cell": origin["cell"] | changes}
        scores.write_table(path, table.to_pandas(), claimed)

    rewritten(revision=7)
    with pytest.raises(InputError, match=r"housing_k5.*revision 7"):
        trained.table(trained.cached_files(tmp_path))
    rewritten(epsilon="much")
    with pytest.raises(InputError, match=r"housing_k5.*none of gradient_crafting"):
        trained.table(trained.cached_files(tmp_path))


@pytest.mark.whole
def test_simulated_audits_have_a_seed(quick):
    def value(seed):
        return lower._crafted(FIXED.known, DELTA, 1, 300, seed).epsilon

    assert value(1) == value(1) > 0
    assert len({value(seed) for seed in (1, 2, 3)}) > 1


@pytest.mark.parametrize(
    ("numbers", "name", "words"),
    [
        ((1.0, 0.5, 50_000), "encoding-loss audit", "expected at most 20,000 to be simulated"),
        ((0.11, 1.0, 50), "encoding-loss audit", "epsilon is beyond 500"),
        ((0.11, 1.0, 50), "gradient-crafting audit, k = 1", "epsilon is beyond 500"),
        ((1.0, 0.1, 3), "gradient-crafting audit, k = 5", "expected at least 5 for one insertion"),
    ],
)
def test_what_cannot_be_simulated_says_why(quick, numbers, name, words):
    sigma, rate, steps = numbers
    setting = sampled_batches(rate, noise_multiplier=sigma, steps=steps)
    (one,) = (audit for audit in lower.audits(200, SEED) if audit.name == name)
    (found,) = upper.found(setting, DELTA, [one])
    assert found.value is None
    assert words in found.assumption


@pytest.mark.whole
def test_where_the_canary_is_hardly_sampled_nothing_is_left_to_hide(quick):
    setting = sampled_batches(1e-6, noise_multiplier=1.0, steps=2)
    rows = atlas.rows(setting, DELTA, 100, SEED)
    assert proven(rows) == 0
    assert rows[rows["kind"] == "lower"]["value"].max() == 0
    assert Answer.of(rows).lines(setting) == [
        "Report epsilon = 0: delta covers all that the iterates tell."
    ]


def test_the_same_setting_twice_is_refused():
    one = {"title": "one", "setting": FIXED}
    with pytest.raises(ValueError, match="once more"):
        AtlasGrid(shows="small", delta=DELTA, runs=100, settings=[one, one])


def test_the_grid_of_every_scale_makes_cells():
    for scale in ("smoke", "laptop"):
        _, grid, _ = config.section(ROOT / f"workflow/config/scales/{scale}.yaml", "atlas")
        jobs = set(FAMILY.jobs(grid)["bound"])
        assert "settings" in jobs and len(jobs) == 1 + len(grid.released) > 1


def test_the_documentation_has_every_bound_with_what_it_assumes():
    page = (ROOT / "docs/atlas.md").read_text()
    every = atlas.bounds()
    rows = {
        f"| {one.name} | {one.kind}{', 95 %' * (one.group == 'simulated')} | {one.assumption} |"
        for one in every
    }
    header = "| bound | kind | what it holds for |\n|---|---|---|\n"
    tables = [part.split("\n\n")[0] for part in page.split(header)[1:]]
    assert rows == {line for table in tables for line in table.splitlines()}


# --- the sentences ----------------------------------------------------------------------------


def told(setting, delta=DELTA, seed=SEED):
    """The rows by name, and the answer's sentences."""
    rows = atlas.rows(setting, delta, 100, seed)
    return rows.set_index("name"), Answer.of(rows).lines(setting)


def test_on_a_bounded_domain_no_last_iterate_is_known():
    rows, lines = told(replace(FIXED.known, diameter=1.0))
    assert rows[rows["kind"] != "upper"]["value"].isna().all()
    assert "known exactly only without --diameter" in rows.loc["linear heuristic", "assumption"]
    # Clipping and the projection alone are no better than composition on so large a domain.
    answer = Answer.of(rows.reset_index())
    assert answer.curved < answer.hidden == answer.proven
    assert lines[0].startswith("Report epsilon = ") and "holds for every loss" in lines[0]
    # Linear losses are among those of the convex bound.
    assert "If every loss were linear, epsilon would be at most" in lines[1]
    assert not any("In the worst case" in line for line in lines)


def test_clipping_and_a_projection_promise_something_to_any_loss():
    """A domain that one step's noise hides: 3.387, where composition of 100 visits has 24.4."""
    ball = Setting(
        sampling=Cyclic(1), records=10, noise_multiplier=5.0, steps=1000, smoothness=1000.0,
        diameter=0.2, learning_rate=0.1,
    )  # fmt: skip
    rows, lines = told(ball)
    found = rows.loc["any clipped losses on a domain"]
    assert found["value"] == pytest.approx(gaussian.epsilon(0.8, DELTA), rel=1e-6)
    assert found["value"] < 3.3871 < 24 < rows.loc["standard epsilon", "value"]
    assert lines[0].startswith("Report epsilon = 3.39 if only the last iterate is released")
    assert "any clipped loss on this domain" in lines[0]
    # Of an unknown curvature the same is known.
    unknown, _ = told(replace(ball, smoothness=None))
    assert unknown.loc["any clipped losses on a domain", "value"] == found["value"]


@pytest.mark.whole
def test_convex_losses_on_a_domain_have_a_bound_with_sampled_batches():
    numbers = {"noise_multiplier": 1.0, "steps": 5000}
    setting = sampled_batches(
        0.1,
        **(numbers | {"batch_size": 1.0, "learning_rate": 1.0}),
        **{"smoothness": 0.05, "weak_convexity": 0.0, "diameter": 2.0},
    )
    rows, lines = told(setting)
    convex = rows.loc["convex losses on a domain"]
    assert convex["value"] < rows.loc["standard epsilon", "value"] / 5
    assert lines[0].startswith("Report epsilon = ")
    stated = (
        f'at most {shown(convex["value"], "upper", 3)} if every loss is as the row "convex losses'
    )
    assert stated in " ".join(lines)
    # Beyond 4 * 2 / 0.1 steps, as it says.
    assert "From about 80 steps on" in lines[-1]
    assert lower.setting_name(setting) != lower.setting_name(sampled_batches(0.1, **numbers))
    # Where clipping or a large curvature breaks the assumption the row says why there is none.
    steep, _ = told(replace(setting, smoothness=0.3))
    steep = steep.loc["convex losses on a domain"]
    assert np.isnan(steep["value"]) and steep["assumption"].startswith("none: --learning-rate")


@pytest.mark.whole
@pytest.mark.parametrize("weak", [0.0, 1.0])
def test_no_bound_on_the_last_iterate_helps_mnist_and_the_answer_says_so(weak):
    """Batches of 256, learning rate 0.5 on the mean, iterates within 10 of one another."""
    mnist = sampled_batches(
        256 / 60_000, noise_multiplier=1.0, steps=2344, learning_rate=0.5, batch_size=256.0,
        smoothness=1 / 60_000, weak_convexity=weak / 60_000, diameter=10.0,
    )  # fmt: skip
    rows, lines = told(mnist)
    least = rows.loc[
        ["convex losses on a domain", "clipped losses on a domain"][weak > 0 :], "value"
    ].min()
    assert least > 1000 * rows.loc["standard epsilon", "value"]
    (told_so,) = (line for line in lines if line.startswith("No bound of the last iterate"))
    # A bound that is many times as large is no news.
    assert told_so.endswith(f"is below {shown(rows.loc['standard epsilon', 'value'], 'upper', 3)}.")
    assert "From about 4,800,000 steps on a bound on this domain is below" in lines[-1]


@pytest.mark.whole
def test_losses_of_a_shuffled_order_that_are_strongly_convex():
    setting = Setting(
        sampling=Cyclic(100, shuffled_once=True), records=1000, noise_multiplier=5.0, steps=50,
        learning_rate=0.1, smoothness=1.0, strong_convexity=0.5,
    )  # fmt: skip
    rows, lines = told(setting)
    fixed, _ = told(replace(setting, sampling=Cyclic(100)))
    strongly = "strongly convex losses"
    assert rows.loc[strongly, "value"] < fixed.loc[strongly, "value"]
    # All positions are visited alike.
    assert rows.loc["linear heuristic", "value"] == pytest.approx(
        fixed.loc["linear heuristic", "value"], rel=1e-8
    )
    # The adversary of the counterexamples knows the order.
    assert "history regulariser" in fixed.index and "history regulariser" not in rows.index
    assert not any("In the worst case" in line for line in lines)
    assert "whose order is shuffled once" in setting.words
    assert "would then save between 0" in lines[1]
    assert any('as the row "strongly convex losses" says' in line for line in lines)
    with pytest.raises(InputError, match="whole passes of 10"):
        upper.linear_epsilon(replace(setting, steps=55), DELTA)


def test_the_sentences_say_what_the_rows_say(sampled):
    rows = sampled.reset_index()
    lines = Answer.of(rows).lines(SAMPLED.known)
    linear, worst = sampled.loc["linear heuristic", "value"], sampled.loc["history regulariser"]
    assert f"If every loss were linear, epsilon would be {linear:.3g}." in lines[1]
    assert "no guarantee" in lines[1]
    saved = sampled.loc["standard epsilon", "value"] - linear
    assert f"Hiding the iterates would then save {saved:.2g}." in lines[1]
    assert "never clipped, with parameters near 100^100, or an adversary who writes" in lines[2]
    # What is said of both is the lesser's.
    both = sampled.loc[["history regulariser", "malicious data set"], "value"]
    assert f"make the last iterate leak {math.floor(both.min() * 100) / 100}" in lines[2]
    assert "not clipped, and its numbers are near 100^100" in worst["assumption"]
    assert "in every batch" in sampled.loc["malicious data set", "assumption"]
    assert worst["value"] > linear


def test_the_regulariser_that_forgets_leaves_the_last_step():
    """One step's epsilon, which the quadratic regulariser of curvature 1 has by its own law."""
    few = sampled_batches(0.1, noise_multiplier=1.0, steps=8)
    exact = linear_heuristic.bounds.quadratic.last_iterate(1.0, 0.1, 8, 1.0).epsilon(DELTA)
    assert LOWER["forgetting regulariser"].compute(few, DELTA) == pytest.approx(exact, rel=1e-9)
    fixed = FIXED.known
    slopes = np.zeros(fixed.steps)
    rhos = [lower.exact.scalar_affine(slopes, fixed.at(at)) for at in range(1, 11)]
    mu = math.sqrt(2 * max(rhos))
    assert LOWER["forgetting regulariser"].compute(fixed, DELTA) == pytest.approx(
        gaussian.epsilon(mu, DELTA)
    )


def test_long_titles_are_wrapped_beside_the_figure():
    words = "a title of so many letters that no panel would be left beside it on a line"
    part = pd.DataFrame(
        [{"title": words, "words": "full batch", "group": "proven", "value": 1.0, "kind": "upper"}]
    )
    lines = figures._words(part).splitlines()
    assert max(map(len, lines)) <= 46 and " ".join(lines[:-2]) == words
