"""Trained audits of linear_heuristic: what is trained, and the paper's own set-up for a step."""

import dataclasses
import math
from pathlib import Path

import numpy as np
import pytest
import torch

from hiddenstate import models
from hiddenstate.accounting import linear
from hiddenstate.datasets import data
from hiddenstate.dpsgd import adjoint
from hiddenstate.dpsgd.augmentation import Augmentation
from hiddenstate.dpsgd.ensemble import Run, last_iterate
from hiddenstate.errors import InputError
from hiddenstate.papers.linear_heuristic import FAMILY, cells, costs, expected, training
from hiddenstate.pipeline import scores
from hiddenstate.pipeline.cells import Cell, Workplace
from hiddenstate.sampling import Poisson
from hiddenstate.study import config

SCALES = Path(__file__).parents[2] / "workflow/config/scales"
CACHED = Path(__file__).parents[2] / "results/cached/linear_heuristic"


def grid(scale):
    return config.section(SCALES / f"{scale}.yaml", "linear_heuristic")[1]


@pytest.fixture(scope="module")
def jobs():
    return FAMILY.jobs(grid("smoke"))["train"]


def cell(jobs, attack):
    audits = (job.cell for job in jobs.values() if not job.cell.name.startswith("expected_"))
    return next(cell for cell in audits if cell.parameters.attack == attack)


def test_the_canary_is_a_training_image_with_a_wrong_label_in_its_own_stead(jobs):
    whole = data.splits("digits").train
    ensemble = training.audited(cell(jobs, "natural").parameters, 0)
    assert ensemble.positions == len(whole) == 1438
    x, label = ensemble.canary.record
    (place,) = np.flatnonzero((whole.x == x).all(axis=(1, 2, 3)))
    assert label != whole.y[place]
    np.testing.assert_array_equal(ensemble.x, np.delete(whole.x, place, axis=0))
    np.testing.assert_array_equal(ensemble.y, np.delete(whole.y, place))
    blank = training.audited(cell(jobs, "blank").parameters, 0)
    np.testing.assert_array_equal(blank.canary.record[0], x)
    assert blank.canary.record[1] == label
    assert not blank.x.any() and set(blank.y) == {whole.y[place]}
    assert len(blank.x) == 1437


@pytest.mark.parametrize("attack", ["natural", "blank", "dirac"])
def test_accountants_and_models_have_the_same_mechanism(jobs, attack):
    p = cell(jobs, attack).parameters
    ensemble = training.audited(p, 0)
    mechanism = ensemble.mechanism
    assert mechanism.sampling == Poisson(p.sampling_rate)
    found = mechanism.composition(ensemble.positions)
    assert found == (p.noise(), p.sampling_rate, p.steps)
    assert mechanism.learning_rate == pytest.approx(0.3 / (0.08 * 1438))
    if attack != "dirac":
        assert mechanism.epsilon(1e-5, records=1438) == pytest.approx(8, rel=2e-4)


def test_a_gradient_s_score_is_the_noisy_count_of_its_steps(jobs):
    """The canary's steps are the same in both runs, but that in one they are not added."""
    p = cell(jobs, "dirac").parameters.model_copy(update={"noise_multiplier": 0.1, "steps": 5})
    ensemble = training.audited(p, 0)
    present = Run("in", 0, 1, ensemble, ensemble.clipped_sum(), 3, ("x",))
    drift = present.score(last_iterate(present))
    used = sum(present.adds(step) for step in range(1, 6))
    absent = Run("in", 0, 1, ensemble, ensemble.clipped_sum(), 3, ("x",))
    absent._drawn = [False] * 5
    gap = drift - absent.score(last_iterate(absent))
    assert gap / ensemble.mechanism.learning_rate == pytest.approx(used, abs=0.3)


@pytest.mark.whole
def test_scores_have_accuracies_and_depend_on_name_seed_and_purpose_alone(jobs, tmp_path):
    job = jobs[cell(jobs, "natural").name]
    frame = job.run(1, Workplace(models=3, checkpoint=tmp_path))
    assert list(frame) == ["world", "repeat", "run", "score", "accuracy", "noise_multiplier"]
    assert frame.equals(job.run(1, Workplace(models=3, workers=2)))
    others = job.run(1, Workplace(models=3, purpose="verification"))
    assert not np.isin(others["score"], frame["score"]).any()
    assert frame["accuracy"].between(0, 1).all()
    assert job.data == ["digits"]


def test_fewer_records_are_drawn_once_for_all_audits_and_more_are_refused(jobs):
    whole = data.splits("digits").train

    def kept(attack, seed, records):
        p = cell(jobs, attack).parameters.model_copy(update={"records": records})
        ensemble = training.audited(p, seed)
        assert ensemble.positions == records
        # The gradient canary has the place of the record that is the others' canary.
        return ensemble.x

    natural = kept("natural", 0, 1000)
    np.testing.assert_array_equal(natural, kept("dirac", 0, 1000))
    assert not np.array_equal(natural, kept("natural", 1, 1000))
    drawn = {record.tobytes() for record in natural}
    assert drawn < {record.tobytes() for record in whole.x}
    # At random, not the first ones.
    assert not drawn <= {record.tobytes() for record in whole.x[:1100]}
    with pytest.raises(InputError, match="records: got 1439; expected at most 1438"):
        kept("natural", 0, 1439)


def expected_cells(scale):
    cells = (job.cell for job in FAMILY.jobs(grid(scale))["train"].values())
    return {cell.name: cell for cell in cells if cell.name.startswith("expected_")}


def few(p, **update):
    """One training from two starts, in a cell."""
    cell = expected_cells("smoke")["expected_digits_mlp_figure2"]
    trainings = (p.model_copy(update=update),)
    return Cell("x", cell.parameters.model_copy(update={"trainings": trainings}))


def test_every_audited_training_has_an_expected_audit():
    asked = grid("laptop")
    audits = [p for own in cells.trained_audits(asked).values() for p in own]
    found = expected_cells("laptop").values()
    own = [p for cell in found for p in cell.parameters.trainings if p.dataset == "digits"]
    assert [cells.trained_name(p) for p in own] == [cells.trained_name(p) for p in audits]
    other = [p for cell in found for p in cell.parameters.trainings if p.dataset == "mnist"]
    assert {(p.model, p.records) for p in other} == {("mnist_cnn", 1000)} and len(other) == 11
    # The number of models of a real audit decides nothing.
    assert all("models" not in p.model_dump() for p in own)


@pytest.mark.whole
def test_an_expected_audit_of_slow_training_is_the_linear_heuristic(jobs):
    """Without other movement a gradient canary shows what linear losses do, from any start."""
    (p, *_) = expected_cells("smoke")["expected_digits_mlp_figure2"].parameters.trainings
    slow = few(p, steps=12, sampling_rate=0.3, learning_rate=1e-4)
    rows = expected.expect(slow, 0, Workplace())
    (audit,) = slow.parameters.trainings
    assert rows["epsilon"].tolist() == pytest.approx(rows["heuristic"].tolist(), rel=5e-3)
    assert rows["heuristic"][0] == linear.last_iterate_epsilon(p.noise(), 0.3, 12, p.delta)
    assert (rows["epsilon"] < rows["standard"]).all() and rows["negative"].tolist() == [0, 0]
    step = 1e-4 / (0.3 * 1438)
    assert rows["shift"].tolist() == pytest.approx([0.3 * 12 * step] * 2, rel=2e-3)
    noise = step * p.noise() * math.sqrt(12)
    assert rows["deviation"].tolist() == pytest.approx([noise] * 2, rel=2e-3)
    assert rows["audit"].unique() == cells.trained_name(audit)


@pytest.mark.whole
def test_an_epsilon_above_that_of_all_iterates_is_an_error(monkeypatch):
    (p, *_) = expected_cells("smoke")["expected_digits_mlp_figure4"].parameters.trainings
    assert (expected.expect(few(p), 0, Workplace())["epsilon"] <= 8.01).all()
    honest = adjoint.trajectory

    def half(*given, **named):
        found = honest(*given, **named)
        return dataclasses.replace(found, deviation=found.deviation / 50)

    monkeypatch.setattr(expected, "trajectory", half)
    with pytest.raises(ArithmeticError, match=r"expected at most 7\.9994"):
        expected.expect(few(p), 0, Workplace())


def stand_in(name, rng, records, side=32, classes=10):
    x = rng.standard_normal((records, 3, side, side)).astype(np.float32)
    return data.Dataset(name, x, rng.integers(classes, size=records), classes)


@pytest.mark.whole
@pytest.mark.parametrize(
    ("attack", "side"),
    [
        ("natural", 8),
        pytest.param("natural", 32, marks=pytest.mark.slow),
        pytest.param("dirac", 32, marks=pytest.mark.slow),
    ],
)
def test_the_paper_s_set_up_takes_a_step(monkeypatch, attack, side):
    """WRN-16-4 with 16 views, at the paper's sampling rates, on a dozen images like CIFAR-10's.

    Its parameters are as many for smaller images, which take less time.
    """
    rng = np.random.default_rng(0)
    parts = [stand_in("cifar10", rng, records, side) for records in (6, 6, 2)]
    monkeypatch.setattr(data, "splits", lambda name: data.Splits(*parts))
    jobs = FAMILY.jobs(grid("paper"))["train"]
    p = cell(jobs, attack).parameters
    assert (p.model, p.dataset, p.views, p.records, p.models) == (
        "wrn_16_4", "cifar10", 16, 50_000, 512
    )  # fmt: skip
    # What stays is the paper's; a batch has the expected size of one or two images.
    small = p.model_copy(update={"records": 12, "steps": 1, "epsilon": None})
    small = small.model_copy(update={"noise_multiplier": 3.0, "sampling_rate": 0.1})
    ensemble = training.audited(small, 0)
    assert ensemble.augmentation == Augmentation(views=16)
    gradients = ensemble.clipped_sum()
    assert gradients.parameters == models.parameter_count(ensemble.model) == 2_748_890
    assert gradients.kind == "torch"
    runs = (Run("in", 0, i, ensemble, gradients, 0, ("one",)) for i in range(100))
    run = next(run for run in runs if len(run.trained_on[0]) == 1 and not run.adds(1))
    quiet = dataclasses.replace(
        ensemble, mechanism=dataclasses.replace(ensemble.mechanism, noise_multiplier=0.0)
    )
    after = last_iterate(Run("in", 0, run.index, quiet, gradients, 0, ("one",)))
    # One clipped mean over 16 views: the step's length is the learning rate's, or less.
    step = float((after - run.initial).norm()) / ensemble.mechanism.learning_rate
    assert 0 < step <= 1 + 1e-4
    noisy = last_iterate(run)
    spread = float((noisy - after).std()) / ensemble.mechanism.learning_rate
    # 2.7 million coordinates: the deviation is known to a twentieth of a per cent.
    assert spread == pytest.approx(3.0, rel=3e-3)
    assert math.isfinite(run.score(noisy))
    assert torch.isfinite(noisy).all()


def test_cached_scores_are_those_that_the_middle_scale_asks_for():
    """Their identity, which a new field of the parameters would change, is that of the files."""
    files = {path.stem: path for path in CACHED.glob("*.parquet")}
    _, asked, seed = config.section(SCALES / "mnist.yaml", "linear_heuristic")
    jobs = FAMILY.jobs(asked)["train"]
    assert jobs and jobs.keys() <= files.keys()
    for name, job in jobs.items():
        assert scores.computed(files[name], job.identity, seed), name


def test_mnist_is_the_middle_scale():
    jobs = FAMILY.jobs(grid("mnist"))["train"]
    assert not expected_cells("mnist")
    assert {job.cell.parameters.model for job in jobs.values()} == {"mnist_cnn"}
    assert all(job.data == ["mnist"] for job in jobs.values())
    laptop = FAMILY.jobs(grid("laptop"))["train"]
    # Both scales' scores can be cached side by side.
    assert not jobs.keys() & laptop.keys()
    attacks = {"dirac", "natural", "blank"}
    assert {job.cell.parameters.attack for job in jobs.values()} == attacks
    of_mnist, of_digits = (cell(every, "natural").parameters for every in (jobs, laptop))
    mnist, digits = (costs.training(Cell("c", p)) / p.models for p in (of_mnist, of_digits))
    assert mnist > digits
