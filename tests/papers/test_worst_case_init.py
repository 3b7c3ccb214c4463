"""Audits from chosen initial parameters, on random records and on the digits of the smoke scale."""

import copy
import dataclasses
import itertools
from functools import partial
from pathlib import Path

import mpmath
import numpy as np
import pandas as pd
import pytest
import torch
import yaml
from scipy import optimize, stats
from torch import nn

from hiddenstate import config, data, models
from hiddenstate import estimates as files
from hiddenstate.accounting import pld
from hiddenstate.adversaries.initialisation import average_case
from hiddenstate.data import Dataset, Splits
from hiddenstate.dpsgd import ensemble as engine
from hiddenstate.dpsgd.ensemble import Run
from hiddenstate.errors import InputError
from hiddenstate.papers import Cell, Workplace
from hiddenstate.papers import worst_case_init as family
from hiddenstate.papers.worst_case_init import cells, checks
from hiddenstate.papers.worst_case_init import estimates as audits
from hiddenstate.papers.worst_case_init.stated import STATED
from hiddenstate.streams import stream

SCALES = Path(__file__).parents[2] / "workflow/config/scales"
SEED = 3
METHODS = audits.METHODS
PRIVATE = 60


def splits(classes=10, shape=(1, 8, 8)) -> Splits:
    """Random records, of which every class is a cloud of its own."""
    rng = stream(0, "records", classes, *shape)
    centres = rng.normal(size=(classes, *shape))

    def part(records):
        y = rng.integers(classes, size=records)
        x = centres[y] + rng.normal(size=(records, *shape))
        return Dataset("random", x.astype(np.float32), y, classes)

    return Splits(part(50), part(PRIVATE), part(40))


@pytest.fixture(autouse=True)
def random_records(monkeypatch):
    """Data sets "random", "coarse" (more classes) and "mnist" (its shape alone) beside digits."""
    known = {
        "random": splits(),
        "coarse": splits(classes=13),
        "mnist": splits(shape=(1, 28, 28)),
    }
    real = data.splits
    monkeypatch.setattr(data, "splits", lambda source: known.get(source) or real(source))


STAGE = {"dataset": "random", "epochs": 2, "batch_size": 16, "learning_rate": 0.1}
TASK = {
    "dataset": "random",
    "model": "digits_cnn",
    "private": PRIVATE,
    "steps": 3,
    "learning_rate": {"average": 4, "worst": 8},
    "pretraining": [STAGE],
    "models": 2,
}


def make(sweep=None, figure="figure1", **task) -> cells.WorstCaseInitGrid:
    """A grid of one task and one sweep."""
    return cells.WorstCaseInitGrid(
        shows="nothing",
        delta=1e-5,
        repeats=1,
        ideal_audits=100,
        tasks={"random": TASK | task},
        **{figure: [{"task": "random", "epsilons": [10], "records": [20]} | (sweep or {})]},
    )


def cell_of(sweep=None, **task) -> Cell:
    (cell,) = cells.train_cells(make(sweep, **task))
    return cell


def start_of(cell: Cell) -> pd.DataFrame:
    return cells.initialise(cell.start, SEED, Workplace())


def train(cell: Cell, **workplace) -> pd.DataFrame:
    start = workplace.pop("start", None)
    start = start_of(cell) if start is None else start
    return cells.train(cell, SEED, Workplace(start=start, **workplace))


def parts(frame: pd.DataFrame, part="trained", repeat=0) -> torch.Tensor:
    chosen = frame[(frame["repeat"] == repeat) & (frame["part"] == part)]
    return torch.from_numpy(chosen["value"].to_numpy(copy=True))


@pytest.fixture
def trained(monkeypatch):
    """What ``train`` gives the engine: a list of (ensemble, options)."""
    calls = []
    real = engine.scores

    def watched(ensemble, **options):
        calls.append((ensemble, options))
        return real(ensemble, **options)

    monkeypatch.setattr(engine, "scores", watched)
    return calls


# The mechanism


@pytest.mark.filterwarnings("ignore:Full backward hook is firing:UserWarning")
@pytest.mark.parametrize("world", ["in", "out"])
@pytest.mark.parametrize("noise_multiplier", [None, 0.01])
def test_every_step_is_that_of_opacus(trained, monkeypatch, noise_multiplier, world):
    """MNIST CNN, 39 records and the target, three steps, as calibrated and with little noise."""
    from opacus import GradSampleModule
    from opacus.optimizers import DPOptimizer, optimizer

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


def test_a_record_moves_the_parameters_as_far_at_any_number_of_records(trained):
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


def test_noise_is_calibrated_to_epsilon():
    """Full-batch DP-SGD is sqrt(steps) / sigma Gaussian differential privacy."""
    table = train(cell_of())
    (multiplier,) = table["noise_multiplier"].unique()
    epsilon = audits.epsilon_of(np.sqrt(3) / multiplier, 1e-5)
    assert 10 - 1e-3 < epsilon <= 10


# The grid


def test_cells_that_figures_share_appear_once_and_names_tell_cells_apart():
    for scale in ("smoke", "laptop", "paper"):
        grid = config.read(SCALES / f"{scale}.yaml").worst_case_init
        every = [
            cell
            for sweeps in cells.figures(grid).values()
            for sweep in sweeps
            for cell in cells.cells_of(grid, sweep)
        ]
        names = [cell.name for cell in cells.train_cells(grid)]
        assert len(names) == len(set(names)) < len(every)
        for kind in (every, [cell.start for cell in every], audits.bound_cells(grid)):
            named = {}
            for cell in kind:
                assert named.setdefault(cell.name, cell.parameters) == cell.parameters
            distinct = {repr(sorted(p.items(), key=str)) for p in named.values()}
            assert len(distinct) == len(named)


@pytest.mark.parametrize("factor", ["epsilons", "clipping_norms", "learning_rates"])
def test_values_that_differ_late_have_names_of_their_own(factor):
    grid = make({factor: [1.25, 1.2500000001]})
    assert len({cell.name for cell in cells.train_cells(grid)}) == 2
    if factor == "epsilons":
        assert len({cell.name for cell in audits.bound_cells(grid)}) == 2


def test_sweeps_combine_what_they_list_and_take_the_rest_from_the_task():
    grid = make({"epochs": [0, 2], "records": [20, 30], "epsilons": [1, 2], "repeats": 4})
    found = cells.train_cells(grid)
    assert len(found) == 8
    for cell in found:
        average = cell.start.parameters["stages"] == []
        assert cell.parameters["learning_rate"] == (4 if average else 8)
        assert cell.parameters["start"] == cell.start.parameters
        assert (cell.parameters["steps"], cell.parameters["models"]) == (3, 2)
        assert cell.parameters["repeats"] == cell.start.parameters["repeats"] == 4
    (plain,) = cells.train_cells(make({"records": None}))
    assert plain.parameters["records"] == PRIVATE
    assert plain.start.parameters["stages"][-1]["epochs"] == 2


def test_the_data_sets_of_stages_count_as_read():
    stages = [STAGE | {"dataset": "coarse"}, STAGE]
    cell = cell_of(pretraining=stages)
    assert cells.data_of(cell) == cells.data_of(cell.start) == ["coarse", "random"]
    # Without pre-training a whole model needs no other data; a last layer needs its backbone's.
    assert cells.data_of(cell_of({"epochs": [0]}, pretraining=stages)) == ["random"]
    last = cell_of({"epochs": [0]}, pretraining=stages, trains="last layer")
    assert cells.data_of(last) == ["coarse", "random"]


def test_a_sweep_of_an_unknown_task_is_refused(tmp_path):
    content = yaml.safe_load((SCALES / "smoke.yaml").read_text())
    content["worst_case_init"]["figure4"][0]["task"] = "digit"
    path = tmp_path / "edited.yaml"
    path.write_text(yaml.safe_dump(content))
    with pytest.raises(InputError) as caught:
        config.read(path)
    message = str(caught.value)
    assert "edited.yaml: worst_case_init" in message
    assert "figure4.0.task: got 'digit'; expected one of digits, digits_last_layer" in message
    assert len(message) < 300  # and not the whole section


@pytest.mark.parametrize(
    "key, value, bound",
    [
        ("epochs", -1, "greater than or equal to 0"),
        ("records", 1, "greater than or equal to 2"),
        ("clipping_norms", 0.0, "greater than 0"),
        ("epsilons", -2.0, "greater than 0"),
        ("steps", 0, "greater than or equal to 1"),
        ("learning_rates", 0.0, "greater than 0"),
    ],
)
def test_numbers_of_a_sweep_that_mean_nothing_are_refused(tmp_path, key, value, bound):
    content = yaml.safe_load((SCALES / "smoke.yaml").read_text())
    content["worst_case_init"]["figure1"][0][key] = [value]
    path = tmp_path / "edited.yaml"
    path.write_text(yaml.safe_dump(content))
    with pytest.raises(InputError) as caught:
        config.read(path)
    message = str(caught.value)
    assert f"edited.yaml: worst_case_init.figure1.0.{key}.0: got {value!r}; " in message
    assert bound in message


def test_the_figures_shown_are_those_that_have_cells():
    smoke = config.read(SCALES / "smoke.yaml").worst_case_init
    everything = {*family.FAMILY.figures, *family.FAMILY.tables}
    assert family.shown(smoke) == everything
    assert family.shown(make(figure="figure3")) == {"figure3", "audits"}
    assert family.shown(make(figure="figure1")) == {"figure1", "table1", "accuracy", "audits"}


# Initial parameters


def draw(*name) -> np.random.Generator:
    return stream(SEED, "worst_case_init", "start", "random", "digits_cnn", *name)


def plain_sgd(model, theta, x, y, rng, epochs, batch_size=16, learning_rate=0.1, skipped=0):
    """Parameters after plain SGD from theta, a loop of its own; ``skipped`` epochs are past."""
    nn.utils.vector_to_parameters(theta.clone(), model.parameters())
    x, y = torch.from_numpy(x), torch.from_numpy(y)
    for _ in range(skipped):
        rng.permutation(len(x))
    for _ in range(epochs):
        order = rng.permutation(len(x))
        for i in range(0, len(x), batch_size):
            batch = order[i : i + batch_size]
            loss = nn.functional.cross_entropy(model(x[batch]), y[batch])
            model.zero_grad()
            loss.backward()
            with torch.no_grad():
                for p in model.parameters():
                    p -= learning_rate * p.grad
    return nn.utils.parameters_to_vector(model.parameters()).detach()


def assert_xavier(weight: torch.Tensor, bias: torch.Tensor):
    """Uniform up to the bound, no bias. (P(largest of 160 below 0.9 of it) = 5e-8.)"""
    bound = (6 / sum(weight.shape)) ** 0.5
    assert 0.9 * bound < weight.abs().max() <= bound and bias.abs().max() < 1e-20


def test_without_epochs_the_initial_parameters_are_a_xavier_draw():
    found = parts(start_of(cell_of({"epochs": [0]})))
    expected = average_case(models.digits_cnn(), draw(0, "xavier", 0))
    assert torch.equal(found, expected)
    assert_xavier(found[-170:-10].view(10, 16), found[-10:])


def test_more_epochs_go_on_where_fewer_end():
    none, one, three = (parts(start_of(cell_of({"epochs": [e]}))) for e in (0, 1, 3))
    public = splits().public
    again = partial(plain_sgd, models.digits_cnn(), x=public.x, y=public.y)
    first = again(none, rng=draw(0, "order", 0), epochs=1)
    torch.testing.assert_close(one, first, rtol=1e-4, atol=1e-6)
    rest = again(one, rng=draw(0, "order", 0), epochs=2, skipped=1)
    torch.testing.assert_close(three, rest, rtol=1e-4, atol=1e-6)
    assert float((three - one).norm()) > 0.1


def test_a_stage_with_other_classes_keeps_all_but_the_last_layer():
    """A last stage that learns nothing shows what it starts from."""
    coarse = STAGE | {"dataset": "coarse", "half": False}
    still = STAGE | {"epochs": 1, "learning_rate": 1e-30}
    found = parts(start_of(cell_of({"epochs": [1]}, pretraining=[coarse, still])))
    source = splits(classes=13)
    x = np.concatenate((source.public.x, source.private.x))
    y = np.concatenate((source.public.y, source.private.y))
    start = average_case(models.digits_cnn(13), draw(0, "xavier", 0))
    first = plain_sgd(models.digits_cnn(13), start, x, y, draw(0, "order", 0), epochs=2)
    assert len(found) == len(first) - 3 * 17
    torch.testing.assert_close(found[:-170], first[:-221], rtol=1e-4, atol=1e-6)
    assert_xavier(found[-170:-10].view(10, 16), found[-10:])
    # With as many classes the last layer stays too.
    alike = parts(start_of(cell_of({"epochs": [1]}, pretraining=[STAGE, still])))
    alone = parts(start_of(cell_of({"epochs": [2]})))
    torch.testing.assert_close(alike, alone, rtol=0, atol=1e-20)


LAST = {"trains": "last layer", "canary": "clip_backdoor", "pretraining": [STAGE, STAGE]}


def test_a_last_layer_is_trained_on_what_enters_the_model_s_last_layer():
    cell = cell_of({"epochs": [0]}, **LAST)
    frame = start_of(cell)
    backbone = parts(frame, "backbone")
    public = splits().public
    theta = average_case(models.digits_cnn(), draw(0, "xavier", 0))
    expected = plain_sgd(models.digits_cnn(), theta, public.x, public.y, draw(0, "order", 0), 2)
    torch.testing.assert_close(backbone, expected, rtol=1e-4, atol=1e-6)

    model, seen = models.digits_cnn(), []
    nn.utils.vector_to_parameters(backbone.clone(), model.parameters())
    model[-1].register_forward_hook(lambda module, inputs, output: seen.append(inputs[0]))
    model(torch.from_numpy(public.x))
    found = cells._features(cell.parameters["start"], backbone.numpy(), "cpu", public.x)
    torch.testing.assert_close(torch.from_numpy(found), seen[0], rtol=1e-5, atol=1e-6)

    drawn = parts(frame)
    assert_xavier(drawn[:160].view(10, 16), drawn[160:])
    trained = start_of(cell_of({"epochs": [2]}, **LAST))
    assert torch.equal(parts(trained, "backbone"), backbone)
    rng = draw(0, "last layer", "order", 0)
    expected = plain_sgd(nn.Linear(16, 10), drawn, seen[0].detach().numpy(), public.y, rng, 2)
    torch.testing.assert_close(parts(trained), expected, rtol=1e-4, atol=1e-6)


def test_features_are_used_as_they_are(monkeypatch):
    wide = splits(shape=(1, 2, 3))
    flat = Splits(
        *(
            dataclasses.replace(part, x=part.x.reshape(len(part), 6))
            for part in (wide.public, wide.private, wide.test)
        )
    )
    monkeypatch.setattr(data, "splits", lambda source: flat)
    stage = STAGE | {"dataset": "features:some.npz"}
    cell = cell_of(
        dataset="features:some.npz", model="features", trains="last layer", pretraining=[stage],
        canary="clip_backdoor",
    )  # fmt: skip
    start = start_of(cell)
    assert set(start["part"]) == {"trained"} and len(start) == 70
    assert len(train(cell, start=start)) == 4


def test_repeats_start_apart_and_the_same_seed_starts_alike():
    cell = cell_of({"repeats": 3}, **LAST)
    frame = start_of(cell)
    assert frame.equals(start_of(cell))
    for part in ("backbone", "trained"):
        each = [parts(frame, part, repeat) for repeat in range(3)]
        assert all(not torch.equal(each[i], each[j]) for i, j in ((0, 1), (0, 2), (1, 2)))
    # Fewer repeats are the first ones.
    fewer = start_of(cell_of({"repeats": 1}, **LAST))
    assert torch.equal(parts(fewer), parts(frame))
    other = cells.initialise(cell.start, SEED + 1, Workplace())
    assert not np.isclose(other["value"], frame["value"]).all()


# Trained models


def test_scores_are_the_same_after_an_interruption_and_for_any_number_of_workers(
    tmp_path, monkeypatch
):
    cell = cell_of({"repeats": 2, "models": 12})
    start = start_of(cell)
    whole = train(cell, start=start)
    assert whole.groupby(["world", "repeat"]).size().eq(12).all()
    assert whole["score"].nunique() == 48
    assert train(cell, start=start, workers=2).equals(whole)

    count, real = [], engine.last_iterate

    def killed(run, stop=None):
        count.append((run.world, run.name[-1], run.index))
        if len(count) == 42:
            raise KeyboardInterrupt
        return real(run, stop)

    monkeypatch.setattr(engine, "last_iterate", killed)
    with pytest.raises(KeyboardInterrupt):
        train(cell, start=start, checkpoint=tmp_path)
    before = list(count)
    assert train(cell, start=start, checkpoint=tmp_path).equals(whole)
    # The first repeat and the second's first world, but for an unfinished chunk, are kept.
    again = set(before) & set(count[42:])
    assert len(again) <= 10 and all(repeat == 1 for _, repeat, _ in again)
    assert len(count) - 42 < 48 - 42 + 10


def test_a_purpose_gives_other_scores_of_the_same_audit():
    cell = cell_of()
    start = start_of(cell)
    plain, again = train(cell, start=start), train(cell, start=start, purpose="verification")
    assert not set(plain["score"]) & set(again["score"])
    same = ["world", "repeat", "run", "noise_multiplier", "gradient_norm"]
    assert plain[same].equals(again[same])


def test_private_records_that_are_not_there_are_refused():
    with pytest.raises(InputError, match="private: got 61; expected 60, the private records of ra"):
        train(cell_of(private=61))


def test_more_records_than_are_private_are_refused_with_the_scale_file(tmp_path):
    content = yaml.safe_load((SCALES / "smoke.yaml").read_text())
    content["worst_case_init"]["figure3"][0]["records"] = [20, 720]
    path = tmp_path / "edited.yaml"
    path.write_text(yaml.safe_dump(content))
    expected = r"figure3\.0\.records: got 720; expected at most 719, the private records of digits"
    with pytest.raises(InputError, match=expected):
        config.read(path)


def test_dearer_cells_cost_more():
    cost = family.FAMILY.cost
    plain = cost(cell_of())
    for dearer in ({"records": [40]}, {"steps": [50]}, {"models": 30}, {"repeats": 3}):
        assert cost(cell_of(dearer)) > plain
    assert cost(cell_of(**LAST)) < plain


def test_repeats_draw_records_of_their_own_from_the_private_half(trained):
    train(cell_of({"repeats": 2, "records": [20]}))
    private = {x.tobytes(): int(y) for x, y in zip(*_arrays(splits().private), strict=True)}
    drawn = []
    for audit, _ in trained:
        keys = [x.tobytes() for x in audit.x]
        assert len(set(keys)) == 19
        assert all(private[key] == y for key, y in zip(keys, audit.y, strict=True))
        drawn.append(set(keys))
    assert drawn[0] != drawn[1]


def _arrays(part: Dataset):
    return part.x, part.y


def test_a_blank_target_is_zero_and_has_the_task_s_label(trained):
    train(cell_of(label=4))
    x, y = trained[0][0].canary.record
    assert x.shape == (1, 8, 8) and not x.any() and y == 4


def test_a_mislabelled_target_is_one_of_the_records_with_another_label(trained):
    train(cell_of({"repeats": 2}, canary="mislabelled"))
    targets = set()
    for audit, _ in trained:
        x, y = audit.canary.record
        (i,) = np.flatnonzero((audit.x == x).all(axis=(1, 2, 3)))
        assert audit.y[i] != y and 0 <= y < 10
        targets.add(x.tobytes())
    assert len(targets) == 2


@pytest.mark.parametrize("task", [{}, LAST], ids=["all layers", "last layer"])
def test_a_clip_backdoor_target_is_least_likely_at_the_initial_parameters(trained, task):
    train(cell_of(**task | {"canary": "clip_backdoor"}))
    audit = trained[0][0]
    x, y = audit.canary.record
    norms = np.linalg.norm(audit.x.reshape(len(audit.x), -1), axis=1)
    assert np.linalg.norm(x) == pytest.approx(norms.mean(), rel=1e-5)
    model = copy.deepcopy(audit.model)
    nn.utils.vector_to_parameters(audit.initial.clone(), model.parameters())
    assert int(model(torch.from_numpy(x)[None]).argmin()) == y


def test_a_target_from_a_file_has_the_task_s_label(trained, tmp_path):
    record = stream(0, "target").normal(size=(1, 8, 8))
    np.save(tmp_path / "target.npy", record)
    train(cell_of(canary=str(tmp_path / "target.npy"), label=2))
    x, y = trained[0][0].canary.record
    np.testing.assert_array_equal(x, record.astype(np.float32))
    assert y == 2


def test_a_target_from_a_file_is_part_of_the_cell(tmp_path):
    file = tmp_path / "target.npy"
    np.save(file, np.zeros((1, 8, 8)))
    before = cell_of(canary=str(file))
    assert cell_of(canary=str(file)) == before
    np.save(file, np.ones((1, 8, 8)))
    assert cell_of(canary=str(file)).parameters["canary"] != before.parameters["canary"]


def test_a_target_that_is_neither_known_nor_a_file_is_refused_with_the_scale_file(tmp_path):
    content = yaml.safe_load((SCALES / "smoke.yaml").read_text())
    content["worst_case_init"]["tasks"]["digits"]["canary"] = "blnk"
    path = tmp_path / "edited.yaml"
    path.write_text(yaml.safe_dump(content))
    with pytest.raises(InputError, match=r"tasks\.digits\.canary: got 'blnk'; expected blank, mis"):
        config.read(path)


def test_accuracy_is_measured_for_the_first_models_only(trained):
    table = train(cell_of({"repeats": 2, "models": cells.TESTED + 1}))
    tested = table["run"] < cells.TESTED
    assert tested.sum() == 4 * cells.TESTED
    assert table.loc[tested, "accuracy"].between(0, 1).all()
    assert table.loc[~tested, "accuracy"].isna().all()
    audit, options = trained[1]
    run = Run("out", 0, 3, audit, audit.clipped_sum(), SEED, options["name"])
    model = copy.deepcopy(audit.model)
    nn.utils.vector_to_parameters(engine.last_iterate(run), model.parameters())
    test = splits().test
    right = model(torch.from_numpy(test.x)).argmax(1).numpy() == test.y
    row = table[(table["world"] == "out") & (table["repeat"] == 1) & (table["run"] == 3)]
    assert row["accuracy"].item() == pytest.approx(right.mean(), abs=1e-12)


@pytest.mark.parametrize("task, norm", [({}, 5.0), (LAST, 2.0)], ids=["all layers", "last layer"])
def test_the_gradient_norm_is_the_records_mean_after_clipping(trained, task, norm):
    table = train(cell_of({"clipping_norms": [norm]}, **task))
    audit = trained[0][0]
    norms = gradients(audit.model, audit.initial, audit.x, audit.y).norm(dim=1)
    assert 0 < (norms > norm).sum() < len(norms)  # some are clipped, some are not
    (found,) = table["gradient_norm"].unique()
    assert found == pytest.approx(float(norms.clamp(max=norm).mean()), rel=1e-5)


# Estimates


def hockey_stick(mu: float, epsilon: float):
    """Delta of N(mu, 1) against N(0, 1): the integral of (p - e^epsilon q)+, to 25 digits."""
    with mpmath.workdps(30):
        mu, epsilon = mpmath.mpf(mu), mpmath.mpf(epsilon)
        start = epsilon / mu + mu / 2
        return mpmath.quad(
            lambda x: mpmath.npdf(x - mu) - mpmath.exp(epsilon) * mpmath.npdf(x),
            [start + gap for gap in (0, 1, 2, 4, 8, 16, 32)],
        )


@pytest.mark.parametrize("delta", [1e-5, 1e-3])
@pytest.mark.parametrize("mu", [0.01, 0.2, 1.0, 2.5, 6.0])
def test_epsilon_of_mu_is_rounded_down_from_the_integral(mu, delta):
    epsilon = float(audits.epsilon_of(mu, delta))
    assert hockey_stick(mu, epsilon) >= delta
    assert hockey_stick(mu, epsilon + 2e-9) <= delta
    # dp-accounting's is an upper bound.
    assert 0 <= pld.epsilon(1 / mu, 1.0, 1, delta) - epsilon < 2e-3
    assert audits.mu_of(epsilon, delta) == pytest.approx(mu, rel=1e-6)


def test_no_leak_is_epsilon_zero():
    assert audits.epsilon_of(0.0, 1e-5) == 0
    # Total variation 2 Phi(mu / 2) - 1 = 0.4 mu is below delta.
    assert audits.epsilon_of(2e-5, 1e-5) == 0
    assert audits.epsilon_of(3e-5, 1e-5) >= 0


def test_perfect_audits_err_as_often_as_their_method_lets_them(monkeypatch):
    """Audits at the true epsilon, as published 2,000 (100 models a world), valid 200 (20 models).

    The valid method may exceed it in 5 % (its common level is uncertain by 0.34 points, 5 of them
    allowed) with a false-positive rate of 1e-6. The published one exceeds it in 10 %, which 2,000
    audits tell from 5 % at a p-value below 1e-6.
    """
    above = {}
    for method, number, size in (("as published", 2000, 100), ("valid", 200, 20)):
        parameters = {"epsilon": 4.0, "models": size, "delta": 1e-5, "audits": number}
        monkeypatch.setattr(audits, "SIMULATED", {method: METHODS[method]})
        frame = audits.bound(Cell("ideal", parameters))
        assert (frame["method"] == method).all() and len(frame) == number
        assert 0.3 < frame["value"].median() < 4.0
        above[method] = (frame["value"] > 4.0).sum()
    assert above["valid"] <= stats.binom.isf(1e-6, 200, 0.05 + 5 * 0.0034)
    assert above["as published"] > stats.binom.isf(1e-6, 2000, 0.05)
    assert frame.equals(audits.bound(Cell("ideal", parameters)))


def test_a_perfect_audit_is_asked_for_each_epsilon_and_number_of_models():
    grid = make({"epsilons": [1, 4], "clipping_norms": [1, 10]})
    found = [(c.parameters["epsilon"], c.parameters["models"]) for c in audits.bound_cells(grid)]
    assert found == [(1, 2), (4, 2)]
    assert audits.bound_cells(make({"models": 1})) == []


def test_estimates_are_of_each_repeat_and_the_figures_that_show_it():
    grid = make({"repeats": 2}, models=8)
    (cell,) = cells.train_cells(grid)
    rng = stream(0, "estimates")
    keys = [(r, w, i) for r in range(2) for w in ("in", "out") for i in range(8)]
    table = pd.DataFrame(keys, columns=["repeat", "world", "run"])
    table["score"] = rng.normal(size=32) + 100 * ((table["world"] == "in") & (table["repeat"] == 1))
    table["accuracy"] = [0.5, np.nan, 0.25, np.nan] * 8
    table["gradient_norm"] = table["repeat"] + 0.5
    ideal = pd.DataFrame({"method": "as published", "value": np.arange(101.0)})
    found = audits.estimate(grid, {cell.name: table}, {"ideal_eps10_models8": ideal})
    values = found.set_index(["quantity", "method", "repeat"])["value"]
    assert values["accuracy", "mean", 0] == 0.375
    assert values["gradient_norm", "mean", 1] == 1.5
    # Eight of eight right in both worlds: each rate is at most 1 - 0.05^(1/8) (Clopper-Pearson).
    mu = 2 * stats.norm.isf(1 - 0.05 ** (1 / 8))
    expected = audits.epsilon_of(mu, 1e-5)
    assert values["epsilon", "as published", 1] == pytest.approx(expected, abs=1e-4)
    # A two-sided interval has half the level in each tail.
    mu = 2 * stats.norm.isf(1 - 0.025 ** (1 / 8))
    expected = audits.epsilon_of(mu, 1e-5)
    assert values["epsilon", "two-sided", 1] == pytest.approx(expected, abs=1e-4)
    # No valid bound is above the mu that separates the worlds in 5 % of audits.
    x = np.linspace(-10, 20, 30_001)
    largest_out = 8 * stats.norm.pdf(x) * stats.norm.cdf(x) ** 7

    def separated(mu):
        return np.trapezoid(largest_out * stats.norm.sf(x - mu) ** 8, x)

    most = audits.epsilon_of(optimize.brentq(lambda mu: separated(mu) - 0.05, 0, 5), 1e-5)
    assert 0.5 * most < values["epsilon", "valid", 1] <= 1.05 * most
    assert values["epsilon", "valid", 0] < 0.5 * most
    row = found[found["quantity"] == "ideal_epsilon"].iloc[0]
    assert (row["value"], row["low"], row["high"]) == (50, 5, 95)
    kinds = found[found["quantity"] == "epsilon"].groupby("method")["kind"].first()
    expected = {"as published": "estimate", "two-sided": "estimate", "valid": "lower"}
    assert kinds.to_dict() == expected
    rows = found[found["quantity"] == "separation"].set_index("repeat")
    # Cohen's d for two samples of equal size, from scipy's t statistic.
    second = table[table["repeat"] == 1].groupby("world")["score"].apply(list)
    t = stats.ttest_ind(second["in"], second["out"]).statistic
    assert rows.loc[1, "value"] == pytest.approx(t * np.sqrt(2 / 8))
    assert audits.epsilon_of(rows.loc[1, "most"], 1e-5) == pytest.approx(10, abs=1e-6)


# Checks


def rows(figure, mean, sd, *, task="digits", quantity="epsilon", method="as published", **levels):
    """Two repeats of an audit, with that mean and standard deviation."""
    levels = {
        "case": "worst", "epochs": 5, "records": 50, "clipping_norm": 1.0, "steps": 3,
        "learning_rate": 8.0, "epsilon": 10.0, "models": 100,
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


def accuracies(at_one, at_ten, epsilon=10.0):
    options = {"quantity": "accuracy", "method": "mean", "epsilon": epsilon}
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


PRETRAINED = [*average("figure2", 3, 0.5), *rows("figure2", 6, 0.5, epochs=2)]
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
        [*PRETRAINED, *norms(1.0, 0.8, 0.6)],
        [
            [*PRETRAINED, *norms(1.0, 1.1, 0.6)],
            [*PRETRAINED, *norms(0.6, 0.8, 1.0)],
            [*average("figure2", 3, 2), *rows("figure2", 6, 2, epochs=2), *norms(1.0, 0.8, 0.6)],
            [*average("figure2", 6, 0), *rows("figure2", 3, 0, epochs=2), *norms(1.0, 0.8, 0.6)],
        ],
        [*average("figure2", 3, 0.5), *norms(1.0)],
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
    "last_layer_factors": (
        # Two of the largest sd apart at most; only the largest epsilon counts.
        [*layer(9.9, 9, 8), *layer(4, 1, 1, epsilon=4.0)],
        [layer(9, 9, 6), layer(6, 9, 9)],
        rows("figure7", 9, 1),
    ),
    # 0.1 % of Binomial(100, 5 %) exceed 12: an even number of rows a cell, so 12 hold, 14 fail.
    "valid": (bounds(12, 88), [bounds(14, 86), bounds(100, 0)], rows("figure1", 11, 0.1)),
}  # fmt: skip


@pytest.mark.parametrize("check", CASES)
def test_checks_hold_fail_and_abstain(check):
    measure = family.FAMILY.checks[check]
    holding, failing, lacking = CASES[check]
    found = measure(pd.DataFrame(holding))
    assert found.holds is True and found.measured and found.tolerance
    for frame in failing:
        assert measure(pd.DataFrame(frame)).holds is False
    assert measure(pd.DataFrame(lacking)) is None
    assert measure(pd.DataFrame(rows("figure9", 1, 1))) is None


def test_every_check_is_tested():
    stated = {name for name in family.FAMILY.checks if name.startswith("stated")}
    assert set(CASES) | stated == set(family.FAMILY.checks)


def test_an_audit_in_two_figures_counts_once_among_the_valid_bounds():
    frame = pd.DataFrame(bounds(14, 86))
    many = pd.concat([frame, *([frame.assign(figure=f"figure{i}") for i in range(2, 5)])])
    assert checks.check_valid(many).measured == checks.check_valid(frame).measured


def paper_estimates(figure: str, task: str) -> pd.DataFrame:
    """Audits of the paper's grid that find what the paper states, and 2.5 where it states none."""
    grid = config.read(SCALES / "paper.yaml").worst_case_init
    found = []
    for sweep in getattr(grid, figure):
        for cell in cells.cells_of(grid, sweep):
            levels = audits._described(cell)
            if sweep.task != task:
                continue
            values = STATED[
                (STATED["figure"] == figure)
                & (STATED["task"] == task)
                & (STATED["quantity"] == "mean")
            ].dropna(axis=1, how="all")
            factors = set(values) - {"figure", "task", "quantity", "value"}
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
def test_every_value_that_the_paper_states_is_compared(check, figure, task, stated):
    """Read off sections 5.2 and 5.3 of the text once more."""
    frame = paper_estimates(figure, task)
    measure = family.FAMILY.checks[check]
    found = measure(frame)
    assert found.holds is True
    for value in stated:
        assert f"{value:.2f} ± 0.20 (paper: {value:.2f})" in found.measured
        # Any one of them out of range fails it.
        off = frame["value"].mask((frame["value"] - value).abs() < 0.15, frame["value"] + 0.3)
        assert measure(frame.assign(value=off)).holds is False
    assert measure(frame.assign(task="digits")) is None


# Figures and tables


@pytest.fixture(scope="module")
def smoke():
    """The smoke grid, its cells' frames and its estimates as they come back from their file."""
    scale = config.read(SCALES / "smoke.yaml")
    grid, module = scale.worst_case_init, family.FAMILY
    every = module.cells(grid)
    starts = {c.name: module.initialise(c, scale.seed, Workplace()) for c in every["start"]}
    trained = {
        c.name: module.train(c, scale.seed, Workplace(start=starts[c.start.name]))
        for c in every["train"]
    }
    ideal = {c.name: module.bound(c) for c in every["bounds"]}
    return grid, trained, module.estimate(grid, trained, ideal)


@pytest.fixture(scope="module")
def estimates(smoke, tmp_path_factory):
    path = tmp_path_factory.mktemp("estimates") / "estimates.csv"
    files.write(path, smoke[2])
    return files.read(path)


def drawn(estimates, name):
    from hiddenstate import plotting

    with plotting.style():
        return family.FAMILY.figures[name].draw(estimates)


@pytest.fixture
def close_figures():
    from matplotlib import pyplot

    yield
    pyplot.close("all")


@pytest.mark.usefixtures("close_figures")
@pytest.mark.parametrize("name", family.FAMILY.figures)
def test_every_figure_is_drawn(estimates, tmp_path, name):
    from hiddenstate import plotting

    figure = drawn(estimates, name)
    plotting.save(figure, [tmp_path / "figure.png"], "smoke")
    assert (tmp_path / "figure.png").stat().st_size > 10_000


def points(ax, marker):
    """The marked points of an axes, (n, 2)."""
    lines = [line.get_xydata() for line in ax.lines if line.get_marker() == marker]
    return np.concatenate([np.zeros((0, 2)), *lines])


@pytest.mark.usefixtures("close_figures")
@pytest.mark.parametrize("name", ["figure1", "figure2", "figure3", "figure4", "figure5", "figure7"])
def test_figures_show_every_audit_s_mean_and_valid_bound(estimates, name):
    axes = [ax for ax in drawn(estimates, name).axes if len(ax.lines) > 2]
    for marker, method in (("s", "as published"), ("^", "valid")):
        rows = estimates[
            (estimates["figure"] == name)
            & (estimates["quantity"] == "epsilon")
            & (estimates["method"] == method)
        ]
        expected = rows.groupby("cell")["value"].mean()
        shown = np.concatenate([points(ax, marker)[:, 1] for ax in axes])
        np.testing.assert_allclose(sorted(set(np.round(shown, 9))), sorted(set(expected.round(9))))


@pytest.mark.usefixtures("close_figures")
def test_what_the_paper_states_is_drawn_in_the_panels_of_its_own_tasks(estimates):
    """Open circles for MNIST's name, none for the digits'."""
    for name, values in (("figure1", [3.41, 6.48]), ("figure2", [0.51, 1.0, 3.41, 6.48])):
        plain = drawn(estimates, name)
        assert not any(len(points(ax, "o")) for ax in plain.axes)
        ours = drawn(estimates.replace({"task": {"digits": "mnist"}}), name)
        shown = [points(ax, "o")[:, 1] for ax in ours.axes]
        assert sorted(np.concatenate(shown)) == values


def test_every_audit_is_in_the_table_once_with_the_figures_that_show_it(smoke, estimates):
    grid, trained, _ = smoke
    table = family.FAMILY.tables["audits"].draw(estimates)
    audited = [cell for cell in cells.train_cells(grid) if cell.parameters["models"] > 1]
    assert len(table) == len(audited) == 8
    shown = table.set_index(["task", "epochs", "n", "C"])
    assert shown.index.is_unique
    row = shown.loc["digits", 5, 50, 1.0]
    assert row["figures"] == "1, 2, 3, 4"
    assert shown.loc["digits last layer", 5, 50, 1.0]["figures"] == "5, 7"
    (cell,) = [c for c in audited if c.name.startswith("digits_pre5_n50_C1_")]
    frame = trained[cell.name]
    assert row["accuracy in %"] == f"{100 * frame['accuracy'].mean():.1f}"
    each = [
        audits._epsilons(
            "as published",
            *(part.loc[part["world"] == w, "score"].to_numpy()[None] for w in ("in", "out")),
            1e-5,
        )[0]
        for _, part in frame.groupby("repeat")
    ]
    assert row["as published"] == f"{np.mean(each):.2f} ± {np.std(each, ddof=1):.2f}"
    assert row["maximum"] == f"{max(each):.2f}"
    assert row["at most"] == f"{audits.mu_of(10.0, 1e-5):.2f}"


def test_tables_of_accuracies_tell_the_cases_apart(smoke, estimates):
    for name, epochs in (("table1", 0), ("accuracy", 5)):
        table = family.FAMILY.tables[name].draw(estimates)
        (cell,) = [
            n for n in smoke[1] if n.startswith(f"digits_pre{epochs}_n50_C1_T3_") and "_2x5" in n
        ]
        expected = f"{100 * smoke[1][cell]['accuracy'].mean():.1f}"
        assert table.to_dict("records") == [{"task": "digits", "epsilon = 10": expected}]
    paper = family.FAMILY.tables["table1"].draw(estimates.replace({"task": {"digits": "mnist"}}))
    assert paper["epsilon = 10"].item().endswith("(paper: 95.9)")


def test_estimates_are_tidy(smoke):
    frame = smoke[2]
    assert np.isfinite(frame["value"]).all()
    assert set(frame["kind"]) == {"lower", "estimate"}
    assert (frame.loc[frame["kind"] == "lower", "confidence"] == 0.95).all()
    assert len(frame) == len(
        frame.drop_duplicates(["figure", "cell", "repeat", "quantity", "method"])
    )
