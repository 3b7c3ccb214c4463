"""Trained models: every step against Opacus, and what each repeat draws and records."""

import copy
import dataclasses
import itertools

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

from hiddenstate.accounting import gaussian
from hiddenstate.dpsgd import ensemble as engine
from hiddenstate.dpsgd.ensemble import Run
from hiddenstate.errors import InputError
from hiddenstate.papers.worst_case_init import cells, estimates, training
from hiddenstate.pipeline import runnable
from hiddenstate.streams import stream

PRIVATE = 60
LAST = {"trains": "last layer"}


@pytest.mark.whole
@pytest.mark.filterwarnings("ignore:Full backward hook is firing:UserWarning")
@pytest.mark.parametrize("world", ["in", "out"])
@pytest.mark.parametrize("noise_multiplier", [None, 0.01])
def test_every_step_is_that_of_opacus(
    trained, monkeypatch, noise_multiplier, world, cell_of, train
):
    """MNIST CNN, 39 records and the target, three steps, as calibrated and with little noise."""
    from opacus import GradSampleModule
    from opacus.optimizers import DPOptimizer, optimizer

    monkeypatch.setitem(runnable.DATA, "mnist", ((1, 28, 28), 2 * PRIVATE))
    cell = cell_of({"records": [40], "epochs": [0]}, dataset="mnist", model="mnist_cnn", models=1)
    train(cell)
    ((audit, options),) = trained
    if noise_multiplier is not None:
        mechanism = dataclasses.replace(audit.mechanism, noise_multiplier=noise_multiplier)
        audit = dataclasses.replace(audit, mechanism=mechanism)
    run = Run(world, 0, 0, audit, audit.clipped_sum(), options["seed"], options["name"])
    ours = [audit.initial, *(theta.clone() for theta in run.iterates())]

    theirs = copy.deepcopy(audit.model)
    nn.utils.vector_to_parameters(audit.initial.clone(), theirs.parameters())
    theirs = GradSampleModule(theirs, loss_reduction="sum")
    plain = torch.optim.SGD(theirs.parameters(), lr=4 / PRIVATE)
    private = DPOptimizer(
        plain,
        noise_multiplier=audit.mechanism.noise_multiplier,
        max_grad_norm=1.0,
        expected_batch_size=None,
        loss_reduction="sum",
    )
    noise = run.stream("noise")
    count = sum(p.numel() for p in theirs.parameters())
    pending = []

    def draw(std, reference, generator=None, secure_mode=False):
        if not pending:
            numbers = torch.from_numpy(noise.standard_normal(count, dtype=np.float32))
            pending.extend(numbers.split([p.numel() for p in theirs.parameters()]))
        return std * pending.pop(0).view_as(reference)

    monkeypatch.setattr(optimizer, "_generate_noise", draw)
    x, y = torch.from_numpy(audit.x), torch.from_numpy(audit.y)
    if world == "in":
        x, y = torch.cat((x, torch.zeros(1, 1, 28, 28))), torch.cat((y, torch.tensor([9])))
    assert len(x) == (40 if world == "in" else 39)
    for before, after in itertools.pairwise(ours):
        # Each step from our parameters, so that differences do not pile up.
        nn.utils.vector_to_parameters(before.clone(), theirs.parameters())
        private.zero_grad()
        nn.functional.cross_entropy(theirs(x), y, reduction="sum").backward()
        private.step()
        expected = nn.utils.parameters_to_vector(theirs.parameters()).detach() - before
        found = after - before
        assert float(expected.norm()) > 0.05
        assert float((found - expected).norm() / expected.norm()) < 1e-5
    assert not pending


@pytest.mark.whole
def test_a_record_moves_the_parameters_as_far_at_any_number_of_records(trained, cell_of, train):
    """The worlds' first steps differ by the target's clipped gradient times 4 / 60."""
    for records in (20, PRIVATE):
        train(cell_of({"records": [records], "epochs": [0]}))
    gaps = []
    for (audit, _), records in zip(trained, (20, PRIVATE), strict=True):
        # n counts the target.
        assert audit.positions == records == len(audit.x) + 1
        quiet = dataclasses.replace(audit.mechanism, noise_multiplier=0.0)
        audit = dataclasses.replace(audit, mechanism=quiet)
        first = [
            next(iter(Run(w, 0, 0, audit, audit.clipped_sum(), 0, ()).iterates())).clone()
            for w in ("in", "out")
        ]
        gaps.append(first[1] - first[0])
    audit = trained[0][0]
    gradient = gradients(audit.model, audit.initial, np.zeros((1, 1, 8, 8), np.float32), [9])[0]
    expected = 4 / PRIVATE * gradient / max(1.0, float(gradient.norm()))
    for gap in gaps:
        torch.testing.assert_close(gap, expected, rtol=1e-3, atol=1e-7)


def gradients(model, theta, x, y) -> torch.Tensor:
    """Per-sample gradients (records, p), one backward pass each."""
    model = copy.deepcopy(model)
    nn.utils.vector_to_parameters(theta.clone(), model.parameters())
    rows = []
    for record, label in zip(x, y, strict=True):
        model.zero_grad()
        logits = model(torch.as_tensor(record)[None])
        nn.functional.cross_entropy(logits, torch.tensor([label])).backward()
        rows.append(torch.cat([p.grad.flatten() for p in model.parameters()]))
    return torch.stack(rows)


@pytest.mark.whole
def test_noise_is_calibrated_to_epsilon(cell_of, train):
    """Full-batch DP-SGD is sqrt(steps) / sigma Gaussian differential privacy."""
    table = train(cell_of())
    (multiplier,) = table["noise_multiplier"].unique()
    epsilon = gaussian.epsilon_below(np.sqrt(3) / multiplier, 1e-5)
    assert 10 - 1e-3 < epsilon <= 10


@pytest.mark.whole
def test_scores_are_the_same_after_an_interruption_and_for_any_number_of_workers(
    tmp_path, monkeypatch, cell_of, start_of, train
):
    cell = cell_of({"repeats": 2, "models": 12})
    start = start_of(cell)
    whole = train(cell, start=start)
    assert whole.groupby(["world", "repeat"]).size().eq(12).all()
    assert whole["score"].nunique() == 48
    assert train(cell, start=start, workers=2).equals(whole)

    count, real = [], engine.Run.iterates

    def killed(run, **stop):
        count.append((run.world, run.name[-1], run.index))
        if len(count) == 42:
            raise KeyboardInterrupt
        return real(run, **stop)

    monkeypatch.setattr(engine.Run, "iterates", killed)
    with pytest.raises(KeyboardInterrupt):
        train(cell, start=start, checkpoint=tmp_path)
    before = list(count)
    assert train(cell, start=start, checkpoint=tmp_path).equals(whole)
    # The first repeat and the second's first world, except for an unfinished chunk, are kept.
    again = set(before) & set(count[42:])
    assert len(again) <= 10 and all(repeat == 1 for _, repeat, _ in again)
    assert len(count) - 42 < 48 - 42 + 10


@pytest.mark.whole
def test_a_purpose_gives_other_scores_of_the_same_audit(cell_of, start_of, train):
    cell = cell_of()
    start = start_of(cell)
    plain, again = train(cell, start=start), train(cell, start=start, purpose="verification")
    assert not set(plain["score"]) & set(again["score"])
    same = ["world", "repeat", "run", "noise_multiplier", "gradient_norm"]
    assert plain[same].equals(again[same])


@pytest.mark.whole
def test_a_verifier_s_number_of_models_replaces_the_cell_s(cell_of, start_of, train):
    """The models are the first ones of as many as the cell has."""
    cell = cell_of({"models": 3})
    start = start_of(cell)
    few, more = train(cell, start=start, models=2), train(cell, start=start)
    assert few.groupby("world").size().to_dict() == {"in": 2, "out": 2}
    assert few.equals(more[more["run"] < 2].reset_index(drop=True))


@pytest.mark.whole
def test_a_repeat_that_is_a_cell_of_its_own_has_the_scores_it_has_among_all(
    make, in_parts, start_of, train
):
    for task in ({}, LAST):
        grid = make({"repeats": 3}, **task)
        (whole,) = cells.trained(grid)
        parts = cells.trained(in_parts(grid))
        assert pd.concat([start_of(c) for c in parts], ignore_index=True).equals(start_of(whole))
        assert pd.concat([train(c) for c in parts], ignore_index=True).equals(train(whole))


def test_training_without_initial_parameters_is_refused(cell_of):
    with pytest.raises(InputError, match="start: got none; expected the initial parameters of ran"):
        training.train(cell_of(), 0, training.Workplace())


def test_private_records_that_are_not_there_are_refused(cell_of, train, monkeypatch):
    with pytest.raises(
        ValueError, match=r"tasks\.random\.private: got 61; expected 60, half of ra"
    ):
        cell_of(private=61)
    # Data that have fewer records than a scale file was checked for are found out by the training.
    monkeypatch.setitem(runnable.DATA, "random", ((1, 8, 8), 2 * 61))
    with pytest.raises(InputError, match="private: got 61; expected 60, the private records of ra"):
        train(cell_of(private=61))


@pytest.mark.whole
def test_repeats_draw_records_of_their_own_from_the_private_half(trained, cell_of, splits, train):
    train(cell_of({"repeats": 2, "records": [20]}))
    private = {x.tobytes(): int(y) for x, y in zip(*_arrays(splits().private), strict=True)}
    drawn = []
    for audit, _ in trained:
        keys = [x.tobytes() for x in audit.x]
        assert len(set(keys)) == 19
        assert all(private[key] == y for key, y in zip(keys, audit.y, strict=True))
        drawn.append(set(keys))
    assert drawn[0] != drawn[1]


def _arrays(part):
    return part.x, part.y


@pytest.mark.whole
def test_a_blank_target_is_zero_and_has_the_task_s_label(trained, cell_of, train):
    train(cell_of(label=4))
    x, y = trained[0][0].canary.record
    assert x.shape == (1, 8, 8) and not x.any() and y == 4


@pytest.mark.whole
def test_a_mislabelled_target_is_one_of_the_records_with_another_label(trained, cell_of, train):
    train(cell_of({"repeats": 2}, canary="mislabelled"))
    targets = set()
    for audit, _ in trained:
        x, y = audit.canary.record
        (i,) = np.flatnonzero((audit.x == x).all(axis=(1, 2, 3)))
        assert audit.y[i] != y and 0 <= y < 10
        targets.add(x.tobytes())
    assert len(targets) == 2


@pytest.mark.whole
@pytest.mark.parametrize("task", [{}, LAST], ids=["all layers", "last layer"])
def test_a_clip_backdoor_target_is_least_likely_at_the_initial_parameters(
    trained, task, cell_of, train
):
    train(cell_of(**task | {"canary": "clip_backdoor"}))
    audit = trained[0][0]
    x, y = audit.canary.record
    norms = np.linalg.norm(audit.x.reshape(len(audit.x), -1), axis=1)
    assert np.linalg.norm(x) == pytest.approx(norms.mean(), rel=1e-5)
    model = copy.deepcopy(audit.model)
    nn.utils.vector_to_parameters(audit.initial.clone(), model.parameters())
    assert int(model(torch.from_numpy(x)[None]).argmin()) == y


@pytest.mark.whole
def test_a_target_from_a_file_has_the_task_s_label(trained, tmp_path, cell_of, train):
    record = stream(0, "target").normal(size=(1, 8, 8))
    np.save(tmp_path / "target.npy", record)
    train(cell_of(canary=str(tmp_path / "target.npy"), label=2))
    x, y = trained[0][0].canary.record
    np.testing.assert_array_equal(x, record.astype(np.float32))
    assert y == 2


@pytest.mark.whole
def test_an_accuracy_alone_needs_one_world_whose_scores_stay_the_same(
    trained, cell_of, start_of, train
):
    cell = cell_of({"models": 1})
    start = start_of(cell)
    frame = train(cell, start=start)
    assert frame["world"].tolist() == ["out"] and frame["accuracy"].between(0, 1).all()
    audit, options = trained[0]
    both = engine.scores(audit, **options | {"worlds": ("in", "out")})
    out = both[both["world"] == "out"].reset_index(drop=True)
    assert out.equals(frame[out.columns])
    # Estimates of scores from before, of both worlds, are the same.
    worlds = (("in", 0.0), ("out", 1.0))
    whole = pd.concat([frame.assign(world=world, accuracy=value) for world, value in worlds])
    row = next(estimates._repeat(cell.parameters, whole))
    assert (row["quantity"], row["value"]) == ("accuracy", 1.0)


@pytest.mark.whole
def test_accuracy_is_measured_for_the_first_models_only(trained, cell_of, seed, splits, train):
    table = train(cell_of({"repeats": 2, "models": training.TESTED + 1}))
    tested = table["run"] < training.TESTED
    assert tested.sum() == 4 * training.TESTED
    assert table.loc[tested, "accuracy"].between(0, 1).all()
    assert table.loc[~tested, "accuracy"].isna().all()
    audit, options = trained[1]
    run = Run("out", 0, 3, audit, audit.clipped_sum(), seed, options["name"])
    model = copy.deepcopy(audit.model)
    nn.utils.vector_to_parameters(engine.last_iterate(run), model.parameters())
    test = splits().test
    right = model(torch.from_numpy(test.x)).argmax(1).numpy() == test.y
    row = table[(table["world"] == "out") & (table["repeat"] == 1) & (table["run"] == 3)]
    assert row["accuracy"].item() == pytest.approx(right.mean(), abs=1e-12)


@pytest.mark.whole
@pytest.mark.parametrize("task, norm", [({}, 5.0), (LAST, 2.0)], ids=["all layers", "last layer"])
def test_the_gradient_norm_is_the_records_mean_after_clipping(trained, task, norm, cell_of, train):
    table = train(cell_of({"clipping_norms": [norm]}, **task))
    audit = trained[0][0]
    norms = gradients(audit.model, audit.initial, audit.x, audit.y).norm(dim=1)
    assert 0 < (norms > norm).sum() < len(norms)  # some are clipped, some are not
    (found,) = table["gradient_norm"].unique()
    assert found == pytest.approx(float(norms.clamp(max=norm).mean()), rel=1e-5)
