"""The atlas against the families' own functions, at the families' own settings."""

import json
import math
import shutil
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

from hiddenstate import config, plotting, scores
from hiddenstate.accounting import cyclic_guarantees, gaussian
from hiddenstate.auditing import Averaged, lower_bound
from hiddenstate.errors import InputError
from hiddenstate.estimates import select
from hiddenstate.evidence import Outcome
from hiddenstate.family import Cell
from hiddenstate.papers import encoding_loss, gradient_crafting, linear_heuristic, worst_case_init
from hiddenstate.papers.atlas import FAMILY, bounds, cells, estimates, trained
from hiddenstate.papers.atlas.cells import AtlasGrid, Cyclic, Poisson
from hiddenstate.papers.atlas.words import Answer
from hiddenstate.papers.gradient_crafting import stated

ROOT = Path(__file__).parents[2]
CACHE = ROOT / "results/cached"
FILES = [
    CACHE / "gradient_crafting/housing_k5_fresh_eps8_5000_repeat0.parquet",
    CACHE / "worst_case_init/mnist_pre5_n1000_C1_T100_lr4_eps10_5x100_repeat0.parquet",
]
DELTA = 1e-5
SEED = 20240709
NUMBERS = {"noise_multiplier": 1.0, "sampling_rate": 0.1, "steps": 100}
SAMPLED = Poisson(**NUMBERS)
FIXED = Cyclic(noise_multiplier=5.0, records=1000, batch_size=100, steps=50, smoothness=1.0)


@pytest.fixture(scope="module")
def sampled():
    """The rows of a setting of encoding_loss (Figure 1) and linear_heuristic (section 4.3)."""
    return bounds.rows(SAMPLED, DELTA, 500, SEED).set_index("name")


@pytest.fixture
def quick(monkeypatch):
    """Critical values from few simulations, where nothing is said of their level."""
    few = Averaged(simulations=500)

    def bound(inside, outside, hypotheses, rule=None, **options):
        return lower_bound(inside, outside, hypotheses, few, **options)

    monkeypatch.setattr(bounds, "lower_bound", bound)
    monkeypatch.setattr(trained, "lower_bound", bound)


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
        quick = partial(lower_bound, rule=few)
        patch.setattr(bounds, "lower_bound", quick)
        patch.setattr(
            trained, "lower_bound", lambda i, o, h, rule=None, **more: quick(i, o, h, **more)
        )
        patch.setattr(cells, "cached_files", lambda folder: FILES)
        made = {name: job.run(SEED, None) for name, job in FAMILY.jobs(grid)["bound"].items()}
        return FAMILY.estimate(grid, {}, made)


# --- the same numbers as the families' ------------------------------------------------------------


def test_the_encoding_loss_is_audited_as_its_family_does(sampled):
    """Scores, curves and bound of encoding_loss, at epsilons that are 0.5 apart."""
    family = encoding_loss.cells
    mechanism = family.Mechanism(**NUMBERS)
    grid = config.section(ROOT / "workflow/config/scales/laptop.yaml", "encoding_loss")[1]
    (cell,) = [c for c in family.simulated(grid) if c.name == "q0.1_T100_sigma1_sound"]
    assert cell.parameters.mechanism == mechanism
    fewer = cell.parameters.model_copy(update={"runs": 500, "repeats": 1})
    observed = family.simulate(Cell(cell.name, fewer), SEED)
    setting = family.Setting(sampling_rate=0.1, steps=100)
    table = family.account(
        Cell("q0.1_T100", family.Accounted(mechanism=setting, epsilons=EPSILONS, delta=DELTA)), SEED
    )
    curves = {e: encoding_loss.estimates._curves(part) for e, part in table.groupby("epsilon")}
    rows = encoding_loss.estimates._epsilon_rows(observed, curves).set_index("method")
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
    (cell,) = family.cells.keeps_history(family.cells.HistoryCurves)(grid)
    p = cell.parameters
    assert (p.noise_multiplier, p.sampling_rate, p.steps) == (1.0, 0.1, 100)
    assert p.delta == DELTA
    assert max(p.growths) == bounds.GROWTH
    few = p.model_copy(update={"growths": [bounds.GROWTH], "resolution": 0.5})
    rows = family.bounds.history_regulariser(Cell(cell.name, few), SEED)
    found = rows[rows["quantity"] == "epsilon"].set_index("method")["value"]
    assert sampled.loc["linear losses", "value"] == found["heuristic"]
    # Upper bounds of the families are at most 1 % too large, the atlas's 1e-3 or so.
    standard = sampled.loc["composition (PLD)", "value"]
    assert found["standard"] == pytest.approx(standard, rel=0.01)
    kept = sampled.loc["history regulariser", "value"]
    assert kept <= found["history regulariser"] <= 1.01 * kept
    (_, heuristic), (_, upper), (_, full) = (
        (row.method, row.value)
        for row in family.bounds._baselines(1.0, 0.1, [100], DELTA).itertuples()
    )
    assert sampled.loc["full batch", "value"] == full
    assert sampled.loc["linear losses", "value"] == heuristic
    assert upper == found["standard"]


def test_the_quadratic_regulariser_is_linear_heuristics_where_that_is_exact():
    few = Poisson(noise_multiplier=1.0, sampling_rate=0.1, steps=3)
    grid = config.section(ROOT / "workflow/config/scales/laptop.yaml", "linear_heuristic")[1]
    (cell,) = linear_heuristic.cells.quadratic(grid)
    p = cell.parameters
    assert (p.noise_multiplier, p.sampling_rate, p.steps) == (1.0, 0.1, 3)
    # The same curvatures but for 0, which is the linear loss.
    exact = linear_heuristic.bounds.quadratic_regulariser(
        Cell(cell.name, p.model_copy(update={"points": 6})), SEED
    )
    rows = {row["name"]: row for row in bounds._counterexamples(few, p.delta)}
    ours = rows["quadratic regulariser"]["value"]
    assert ours == pytest.approx(exact["value"].iloc[1:].max(), rel=1e-8)
    assert ours <= exact["value"].iloc[1:].max()


@pytest.mark.parametrize("period", [1, 5, 25])
def test_a_perfect_crafted_audit_is_gradient_craftings_idle_coordinate(quick, period):
    """With 250 insertions at epsilon 8, as ``stated`` has it from elsewhere."""
    sigma = stated.NOISE_MULTIPLIERS[8.0]
    setting = Poisson(noise_multiplier=sigma, sampling_rate=1.0, steps=250 * period)
    mechanism = (sigma * math.sqrt(period), 1.0, 250)
    row = bounds._crafted(setting, mechanism, period, "", DELTA, 100, SEED)
    assert row["truth"] == pytest.approx(stated.IDLE[period][8.0][0], rel=5e-4)
    assert 0 <= row["value"] <= row["truth"]


def test_the_rows_insert_in_every_kth_step(quick):
    sigma = stated.NOISE_MULTIPLIERS[8.0]
    setting = Poisson(noise_multiplier=sigma, sampling_rate=1.0, steps=250)
    rows = bounds.rows(setting, DELTA, 100, SEED).set_index("name")
    assert rows.loc["gradient-crafting audit, k = 1", "truth"] == pytest.approx(8, rel=5e-4)
    for period in (5, 25):
        # So many insertions of shift 1 against the noise of 250 steps.
        mu = 250 / period / (sigma * math.sqrt(250))
        truth = rows.loc[f"gradient-crafting audit, k = {period}", "truth"]
        assert truth == pytest.approx(gaussian.epsilon(mu, DELTA), rel=1e-6)
    # Full batch: hiding buys nothing, even if losses are linear.
    answer = Answer.of(rows.reset_index())
    assert answer.linear == pytest.approx(answer.proven, rel=1e-8)
    assert "if every loss is linear: nothing" in answer.lines[1]


def test_trained_audits_are_bounded_as_their_families_do():
    files = FILES
    found = trained.bounded(trained.candidates(files)).set_index("audit")
    rows = estimates.with_trained(
        pd.DataFrame({"group": ["proven"], "value": [8.0]}), found.reset_index(), SAMPLED, DELTA
    ).set_index("name")

    observed = select(scores.read(files[0])[0], adversary="simulated coordinate")
    worlds = gradient_crafting.estimates._worlds(observed)
    theirs = [
        row["value"]
        for row in gradient_crafting.summaries.audit(*worlds, DELTA)
        if row["method"] == "valid"
    ]
    assert [rows.loc["gradient-crafting audit, k = 5", "value"]] == theirs
    assert rows.loc["gradient-crafting audit, k = 5", "allowed"] == pytest.approx(8, abs=1e-6)

    job = trained._job(files[1])
    repeats = worst_case_init.estimates._repeat(job.cell.parameters, scores.read(files[1])[0])
    theirs = [r["value"] for r in repeats if r.get("method") == "valid"]
    ours = rows.loc[trained.WORST]
    assert [ours["value"]] == pytest.approx(theirs, abs=1e-12)
    assert "noise multiplier 4.999" in ours["assumption"]
    assert found.loc[trained.WORST, "noise_multiplier"] == pytest.approx(
        scores.read(files[1])[0]["noise_multiplier"].iloc[0], rel=1e-4
    )


def test_a_fixed_order_has_the_guarantees_of_its_command(quick):
    rows = bounds.rows(FIXED, DELTA, 100, SEED).set_index("name")
    run = cyclic_guarantees.schedule(
        records=1000, batch_size=100, steps=50, noise_multiplier=5.0, step_size=0.1, smoothness=1.0
    )
    for found in cyclic_guarantees.guarantees(run, DELTA):
        assert rows.loc[found.bound.name, "value"] == found.epsilon
    # Linear losses: five visits of a shift of 2 against the noise of 50 steps.
    mu = 5 * 2 / (5.0 * math.sqrt(50))
    exact = gaussian.epsilon(mu, DELTA)
    assert rows.loc["linear losses", "value"] == pytest.approx(exact, rel=1e-6)
    assert rows.loc["gradient-crafting audit, k = 1", "truth"] == pytest.approx(exact, rel=1e-6)
    tight = rows.loc["quadratic losses of this curvature", "value"]
    assert rows.loc["linear losses", "value"] <= tight <= rows.loc["cyclic", "value"]
    assert rows.loc["history regulariser", "value"] == pytest.approx(
        rows.loc["composition (Gaussian)", "value"], rel=1e-3
    )


# --- order, and what is refused -------------------------------------------------------------------


def test_no_lower_bound_is_above_what_is_proven(sampled, shown_rows):
    least = estimates.proven(sampled.reset_index())
    lower = sampled[sampled["kind"].isin(["lower", "exact"])]["value"].dropna()
    assert len(lower) == 8
    assert lower.max() <= least
    found = FAMILY.checks["ordered"].measure(shown_rows)
    assert found.outcome != Outcome.CONTRADICTS, found.rows
    assert found.rows[0].outcome == Outcome.AGREES
    # One computed bound is enough, of audits at 95 % it takes more than one.
    for group, wrong in (("counterexample", 1), ("simulated", 4), ("trained", 4)):
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
        drawn = FAMILY.figures["atlas"].draw(shown_rows)
    axes = [ax for ax in drawn.axes if ax.get_title()]
    assert [ax.get_title() for ax in axes] == ["sampled", "fixed"]
    for ax, (_, part) in zip(axes, shown_rows.groupby("cell", sort=False), strict=True):
        assert len(ax.texts) == len(part)
    table = FAMILY.tables["atlas"].draw(shown_rows)
    assert len(table) == len(shown_rows)
    assert table["assumption"].str.len().min() > 10
    assert list(FAMILY.tables["answer"].draw(shown_rows)["setting"]) == ["sampled", "fixed"]


def test_without_a_cache_there_are_no_trained_audits(monkeypatch, quick):
    monkeypatch.setattr(cells, "cache", lambda: None)
    monkeypatch.setattr(trained, "cache", lambda: None)
    grid = AtlasGrid(
        shows="small", delta=DELTA, runs=100, settings=[{"title": "one", "setting": FIXED}]
    )
    jobs = FAMILY.jobs(grid)["bound"]
    assert jobs["trained"].cell.parameters.files == ()
    made = {name: job.run(SEED, None) for name, job in jobs.items()}
    found = FAMILY.estimate(grid, {}, made)
    assert "trained" not in set(found["group"])
    without = grid.model_copy(update={"trained": False})
    pd.testing.assert_frame_equal(found, FAMILY.estimate(without, {}, made))


def test_the_nearest_audit_is_nearest_in_ratio_and_the_largest():
    audits = trained.find(CACHE)
    assert {trained.WORST, trained.AVERAGE} < set(audits["audit"])
    for epsilon, expected in ((8.2, 8.0), (5.0, 4.0), (1e9, 24.0), (0.0, 1.0)):
        near = estimates.nearest(audits, epsilon, DELTA).set_index("audit")
        assert near.loc["gradient-crafting audit, k = 1", "cell"] == (
            f"housing_k1_fresh_eps{expected:g}_5000_repeat0"
        )
    twins = pd.DataFrame({"audit": "a", "mu": [1.0, 1.0], "models": [10, 20], "cell": ["s", "l"]})
    assert estimates.nearest(twins, 3.0, DELTA)["cell"].tolist() == ["l"]
    # A file beside them that is of another reading, or of another repeat, is none of them.
    assert not audits["cell"].str.contains("shared|repeat1|pre1_|C10_|C0.1_").any()


def test_an_audit_of_the_very_setting_is_said_to_be_one():
    audits = trained.find(CACHE).assign(mu_bound=1.0)
    mu = gaussian.mu(10.0, DELTA)
    same = Poisson(noise_multiplier=10 / mu, sampling_rate=1.0, steps=100)
    rows = pd.DataFrame({"group": ["proven"], "value": [10.0]})
    for setting, words in (
        (same, "this setting: mnist, 1,000 records"),
        (same.model_copy(update={"sampling_rate": 0.5}), "another setting: mnist"),
        (same.model_copy(update={"noise_multiplier": 5.1}), "another setting: mnist"),
    ):
        near = estimates.nearest(audits, 10.0, DELTA)
        found = estimates.with_trained(rows, near, setting, DELTA).set_index("name")
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
        metadata = table.schema.metadata | {b"hiddenstate": json.dumps(claimed).encode()}
        pq.write_table(table.replace_schema_metadata(metadata), path)

    rewritten(revision=7)
    with pytest.raises(InputError, match=r"housing_k5.*revision 7"):
        trained.bounded(trained.find(tmp_path))
    rewritten(epsilon="much")
    with pytest.raises(InputError, match=r"housing_k5.*none of gradient_crafting"):
        trained.find(tmp_path)


def test_simulated_audits_have_a_seed(quick):
    def value(seed):
        return bounds._crafted(FIXED, (1.0, 1.0, 5), 1, "", DELTA, 300, seed)["value"]

    assert value(1) == value(1) > 0
    assert len({value(seed) for seed in (1, 2, 3)}) > 1


@pytest.mark.parametrize(
    ("numbers", "name", "words"),
    [
        ((1.0, 0.5, 50_000), "encoding-loss audit", "fewer than 100 runs"),
        ((0.11, 1.0, 50), "encoding-loss audit", "epsilon is beyond 500"),
        ((0.11, 1.0, 50), "gradient-crafting audit, k = 1", "epsilon is beyond 500"),
        ((1.0, 0.1, 3), "gradient-crafting audit, k = 5", "too few steps"),
    ],
)
def test_what_cannot_be_simulated_says_why(quick, numbers, name, words):
    sigma, rate, steps = numbers
    setting = Poisson(noise_multiplier=sigma, sampling_rate=rate, steps=steps)
    if name.startswith("enc"):
        row = bounds._encoding_loss(setting, 2000.0 if sigma < 1 else 1.0, DELTA, 200, SEED)
    else:
        period = int(name.split()[-1])
        inserted = steps // period
        mechanism = (sigma * math.sqrt(steps / inserted) if inserted else math.inf, rate, inserted)
        row = bounds._crafted(setting, mechanism, period, "", DELTA, 200, SEED)
    assert row["name"] == name
    assert row["value"] is None
    assert words in row["assumption"]


def test_where_the_canary_is_hardly_sampled_nothing_is_left_to_hide(quick):
    setting = Poisson(noise_multiplier=1.0, sampling_rate=1e-6, steps=2)
    rows = bounds.rows(setting, DELTA, 100, SEED)
    assert estimates.proven(rows) == 0
    assert rows[rows["kind"] == "lower"]["value"].max() == 0
    assert Answer.of(rows).lines == [
        "Hiding the iterates buys nothing: delta covers all that they tell."
    ]


def test_the_same_setting_twice_is_refused():
    one = {"title": "one", "setting": FIXED}
    with pytest.raises(ValueError, match="once more"):
        AtlasGrid(shows="small", delta=DELTA, runs=100, settings=[one, one])


def test_the_grid_of_every_scale_makes_cells():
    for scale in ("smoke", "laptop"):
        _, grid, _ = config.section(ROOT / f"workflow/config/scales/{scale}.yaml", "atlas")
        expected = {"settings", "trained"} if scale == "laptop" else {"settings"}
        assert set(FAMILY.jobs(grid)["bound"]) == expected


def test_on_a_bounded_domain_no_last_iterate_is_known():
    ball = FIXED.model_copy(update={"diameter": 1.0})
    rows = bounds.rows(ball, DELTA, 100, SEED)
    assert rows[rows["kind"] != "upper"]["value"].isna().all()
    answer = Answer.of(rows)
    # Clipping and the projection alone are no better than composition on so large a domain.
    assert answer.curved < answer.hidden == answer.proven
    assert "nothing for any loss. Promise" in answer.lines[3]
    assert "not known here" in answer.lines[1]
    assert "not known here" in answer.lines[2]


def test_clipping_and_a_projection_promise_something_to_any_loss():
    """A domain that one step's noise hides: 3.387, where composition of 100 visits has 24.4."""
    ball = Cyclic(
        noise_multiplier=5.0,
        records=10,
        batch_size=1,
        steps=1000,
        smoothness=1000.0,
        diameter=0.2,
        learning_rate=0.1,
    )
    rows = bounds.rows(ball, DELTA, 100, SEED).set_index("name")
    found = rows.loc["clipping and a domain"]
    assert found["value"] == pytest.approx(gaussian.epsilon(0.8, DELTA), rel=1e-6)
    assert found["value"] < 3.3871 < 24 < rows.loc["composition (Gaussian)", "value"]
    answer = Answer.of(rows.reset_index())
    assert "Promise 3.387" in answer.lines[3]
    assert "nothing for any loss" not in " ".join(answer.lines)


def test_convex_losses_on_a_domain_have_a_bound_with_sampled_batches():
    numbers = {"noise_multiplier": 1.0, "sampling_rate": 0.1, "steps": 5000}
    setting = Poisson(**numbers, smoothness=0.5, diameter=2.0)
    rows = bounds.rows(setting, DELTA, 100, SEED).set_index("name")
    assert rows.loc["convex, sampled", "value"] < rows.loc["composition (PLD)", "value"] / 5
    answer = Answer.of(rows.reset_index())
    assert "if losses are convex and clipping never changes a gradient" in answer.lines[3]
    assert "Promise" in answer.lines[3] and "nothing for any loss" in answer.lines[3]
    assert setting.name != Poisson(**numbers).name
    # Where clipping or a large curvature breaks the assumption the row says why there is none.
    steep = bounds.rows(setting.model_copy(update={"smoothness": 3.0}), DELTA, 100, SEED)
    steep = steep.set_index("name").loc["convex, sampled"]
    assert np.isnan(steep["value"]) and steep["assumption"].startswith("none: step_size")


def test_the_sentences_say_what_the_rows_say(sampled):
    answer = Answer.of(sampled.reset_index())
    linear, worst = sampled.loc["linear losses", "value"], sampled.loc["history regulariser"]
    assert "if every loss is linear" in answer.lines[1] and "at best" not in answer.lines[1]
    assert "not clipped and whose numbers grow without end" in answer.lines[2]
    assert "every batch has" in answer.lines[2]
    assert "any loss" not in answer.lines[3].split("Promise")[1]
    # A loss that leaks less than linear ones is named as the best that is known.
    gentle = sampled.reset_index()
    gentle.loc[gentle["name"] == "quadratic regulariser", "value"] = 0.1 * linear
    assert "At best known" in Answer.of(gentle).lines[1]
    assert "(quadratic regulariser)" in Answer.of(gentle).lines[1]
    assert worst["value"] > linear
