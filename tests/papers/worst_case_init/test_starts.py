"""Initial parameters, against loops of plain SGD written here."""

import dataclasses
import hashlib
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

from hiddenstate import models
from hiddenstate.adversaries.initialisation import average_case
from hiddenstate.datasets import data
from hiddenstate.datasets.data import Splits
from hiddenstate.errors import InputError
from hiddenstate.papers.worst_case_init import cells, starts
from hiddenstate.streams import stream


@pytest.fixture
def draw(seed):
    """The random streams of the first repeats' initial parameters."""
    return partial(stream, seed, "worst_case_init", "start", "random", "digits_cnn")


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
    assert 0.9 * bound < weight.abs().max() <= bound and bias.abs().max() < 1e-8


def test_without_epochs_the_initial_parameters_are_a_xavier_draw(cell_of, parts, start_of, draw):
    found = parts(start_of(cell_of({"epochs": [0]})))
    expected = average_case(models.digits_cnn(), draw(0, "xavier", 0))
    assert torch.equal(found, expected)
    assert_xavier(found[-170:-10].view(10, 16), found[-10:])


def test_more_epochs_go_on_where_fewer_end(cell_of, parts, splits, start_of, draw):
    none, one, three = (parts(start_of(cell_of({"epochs": [e]}))) for e in (0, 1, 3))
    public = splits().public
    again = partial(plain_sgd, models.digits_cnn(), x=public.x, y=public.y)
    first = again(none, rng=draw(0, "order", 0), epochs=1)
    torch.testing.assert_close(one, first, rtol=1e-4, atol=1e-6)
    rest = again(one, rng=draw(0, "order", 0), epochs=2, skipped=1)
    torch.testing.assert_close(three, rest, rtol=1e-4, atol=1e-6)
    assert float((three - one).norm()) > 0.1


def test_a_stage_with_other_classes_keeps_all_but_the_last_layer(
    cell_of, parts, splits, stage, start_of, draw
):
    """A last stage that learns nothing shows what it starts from."""
    coarse = stage | {"dataset": "coarse", "half": False}
    still = stage | {"epochs": 1, "learning_rate": 1e-9}
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
    alike = parts(start_of(cell_of({"epochs": [1]}, pretraining=[stage, still])))
    alone = parts(start_of(cell_of({"epochs": [2]})))
    torch.testing.assert_close(alike, alone, rtol=0, atol=1e-8)


def test_a_last_layer_is_trained_on_what_enters_the_model_s_last_layer(
    cell_of, parts, splits, start_of, trained, draw
):
    cell = cell_of({"epochs": [0]}, trains="last layer")
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
    found = starts.features(cell.parameters.start, backbone.numpy(), "cpu", public.x)
    torch.testing.assert_close(torch.from_numpy(found), seen[0], rtol=1e-5, atol=1e-6)

    drawn = parts(frame)
    assert_xavier(drawn[:160].view(10, 16), drawn[160:])
    trained = start_of(cell_of({"epochs": [2]}, trains="last layer"))
    assert torch.equal(parts(trained, "backbone"), backbone)
    rng = draw(0, "last layer", "order", 0)
    expected = plain_sgd(nn.Linear(16, 10), drawn, seen[0].detach().numpy(), public.y, rng, 2)
    torch.testing.assert_close(parts(trained), expected, rtol=1e-4, atol=1e-6)


@pytest.mark.whole
def test_features_are_used_as_they_are(monkeypatch, cell_of, splits, stage, start_of, train):
    wide = splits(shape=(1, 2, 3))
    flat = Splits(
        *(
            dataclasses.replace(part, x=part.x.reshape(len(part), 6))
            for part in (wide.public, wide.private, wide.test)
        )
    )
    monkeypatch.setattr(data, "splits", lambda source: flat)
    stage = stage | {"dataset": "features:some.npz"}
    cell = cell_of(
        dataset="features:some.npz", model="features", trains="last layer", pretraining=[stage],
        canary="clip_backdoor",
    )  # fmt: skip
    start = start_of(cell)
    assert set(start["part"]) == {"trained"} and len(start) == 70
    assert len(train(cell, start=start)) == 4


@pytest.fixture
def saved(tmp_path):
    """Parameters of a model with other classes than the data, in files of either kind."""
    model = models.digits_cnn(13)
    theta = average_case(model, stream(9, "saved"))
    nn.utils.vector_to_parameters(theta.clone(), model.parameters())
    torch.save(model.state_dict(), tmp_path / "weights.pt")
    others = {f"net.layer{i}": p for i, p in enumerate(model.state_dict().values())}
    torch.save(others, tmp_path / "others.pt")
    arrays = {name: p.detach().numpy() for name, p in model.named_parameters()}
    np.savez(tmp_path / "weights.npz", **arrays)
    return theta, tmp_path


@pytest.mark.whole
@pytest.mark.parametrize("name", ["weights.pt", "weights.npz", "others.pt"])
def test_a_task_starts_from_a_file_of_weights(name, saved, cell_of, parts, stage, start_of, train):
    theta, folder = saved
    alike = {"pretraining": [{"weights": str(folder / name)}]}
    cell = cell_of({"epochs": [1]}, dataset="coarse", **alike)
    start = start_of(cell)
    assert torch.equal(parts(start), theta)
    assert len(train(cell, start=start)) == 4
    # The digest is part of the cell, so other weights are another cell.
    (kept,) = cell.parameters.model_dump(mode="json")["start"]["stages"]
    assert kept["sha256"] == hashlib.sha256((folder / name).read_bytes()).hexdigest()
    # Other classes keep all but the last layer, and further stages go on from there.
    other = parts(start_of(cell_of({"epochs": [1]}, **alike)))
    assert torch.equal(other[:-170], theta[:-221])
    assert_xavier(other[-170:-10].view(10, 16), other[-10:])
    still = stage | {"epochs": 1, "learning_rate": 1e-9}
    further = cell_of({"epochs": [1]}, pretraining=[*alike["pretraining"], still])
    torch.testing.assert_close(parts(start_of(further))[:-170], theta[:-221], rtol=0, atol=1e-6)
    # The average case is a draw, and a last layer's backbone is the file's.
    average = parts(start_of(cell_of({"epochs": [0]}, dataset="coarse", **alike)))
    assert average.shape == theta.shape and not torch.equal(average, theta)
    layer = cell_of(
        {"epochs": [0]}, trains="last layer", pretraining=[*alike["pretraining"], stage]
    )
    assert torch.equal(parts(start_of(layer), "backbone")[:-170], theta[:-221])


def damage(folder, what):
    arrays = dict(np.load(folder / "weights.npz"))
    if what == "name":
        arrays["9.scale"] = arrays.pop("0.weight")
    if what == "shape":
        arrays["0.weight"] = arrays["0.weight"][:, :, :2]
    if what == "number":
        arrays["3.bias"][2] = np.nan
    np.savez(folder / "weights.npz", **arrays)
    if what == "bytes":
        (folder / "weights.npz").write_bytes(b"PK no archive")


@pytest.mark.parametrize(
    ("what", "expected"),
    [
        ("name", "lacks '0.weight'; expected 0.weight, 0.bias, "),
        ("shape", r"'0.weight' has shape \(16, 1, 2, 3\); expected \(16, 1, 3, 3\)"),
        ("number", "'3.bias' holds values that are no finite numbers"),
        ("bytes", "expected a .npz file or a state_dict of torch"),
    ],
)
def test_weights_of_something_else_are_refused(what, expected, saved, cell_of, start_of):
    _, folder = saved
    damage(folder, what)
    cell = cell_of({"epochs": [1]}, pretraining=[{"weights": str(folder / "weights.npz")}])
    with pytest.raises(InputError, match=f"weights.npz: {expected}"):
        start_of(cell)


def test_weights_that_change_under_way_are_refused(saved, cell_of, start_of):
    _, folder = saved
    path = folder / "weights.pt"
    cell = cell_of({"epochs": [1]}, pretraining=[{"weights": str(path)}])
    torch.save({}, path)
    with pytest.raises(InputError, match=r"weights\.pt: has the SHA-256 .*; expected "):
        start_of(cell)
    content = path.read_bytes()
    path.unlink()
    with pytest.raises(InputError, match=r"weights\.pt: no such file; expected a model's"):
        start_of(cell)
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"weights: got 'away.npz'; expected the path of a"):
        cell_of(pretraining=[{"weights": "away.npz"}])
    digest = {"weights": str(path), "sha256": "0" * 64}
    with pytest.raises(ValueError, match=r"sha256: got '0{64}'; .*weights.pt has [0-9a-f]{64}"):
        cell_of(pretraining=[digest])
    given = {"weights": str(path)}
    with pytest.raises(ValueError, match="epochs: got 5; expected 0 or 1"):
        cell_of({"epochs": [5]}, pretraining=[given])


def test_weights_after_other_stages_are_refused(saved, cell_of, stage):
    _, folder = saved
    given = {"weights": str(folder / "weights.pt")}
    with pytest.raises(
        ValueError, match=r"pretraining\.1: got weights, which would undo the stages"
    ):
        cell_of(pretraining=[stage, given])


def test_repeats_start_apart_and_the_same_seed_starts_alike(cell_of, parts, seed, start_of):
    cell = cell_of({"repeats": 3}, trains="last layer")
    frame = start_of(cell)
    assert frame.equals(start_of(cell))
    for part in ("backbone", "trained"):
        each = [parts(frame, part, repeat) for repeat in range(3)]
        assert all(not torch.equal(each[i], each[j]) for i, j in ((0, 1), (0, 2), (1, 2)))
    # Fewer repeats are the first ones.
    fewer = start_of(cell_of({"repeats": 1}, trains="last layer"))
    assert torch.equal(parts(fewer), parts(frame))
    other = start_of(cell, seed + 1)
    assert not np.isclose(other["value"], frame["value"]).all()


def test_the_public_code_s_repeats_share_what_is_pre_trained_and_no_draw(make, in_parts, start_of):
    grid = in_parts(make({"repeats": 2, "epochs": [0, 2]}, xavier="normal", one_start=True))
    average, worst = [cells.trained(grid)[i : i + 2] for i in (0, 2)]
    assert [cells.start_of(cell).name for cell in average] == [
        "random_pre0_repeat0", "random_pre0_repeat1"
    ]  # fmt: skip
    assert {cells.start_of(cell).name for cell in worst} == {"random_pre2_repeat0"}
    for cell in average:
        assert 0.009 < start_of(cell)["value"].iloc[-1] < 0.011  # the last bias
    assert [cell.parameters.start.repeat_of(i) for cell in worst for i in (0, 1)] == [0] * 4


def test_what_came_later_is_no_part_of_a_cell_that_does_not_use_it(cell_of, stage):
    plain = cell_of().parameters.model_dump(mode="json")["start"]
    assert "xavier" not in plain and "one_start" not in plain
    assert set(plain["stages"][0]) == {*stage, "half"}
    used = cell_of(
        xavier="normal", one_start=True,
        pretraining=[stage | {"momentum": 0.9, "drops": [1], "shuffled": False}],
    ).parameters.model_dump(mode="json")["start"]  # fmt: skip
    assert used["xavier"] == "normal" and used["one_start"] is True
    found = used["stages"][0]
    assert (found["momentum"], found["drops"], found["shuffled"]) == (0.9, [1], False)
    assert "weight_decay" not in found


def test_a_stage_is_trained_as_it_says(make, start_of, stage, monkeypatch):
    given = []
    real = starts.initialisation.pretrained

    def watched(*args, **options):
        given.append(options)
        return real(*args, **options)

    monkeypatch.setattr(starts.initialisation, "pretrained", watched)
    said = {"momentum": 0.9, "weight_decay": 0.001, "drops": [1], "shuffled": False}
    (cell,) = cells.trained(make(pretraining=[stage | said | {"augmented": True}]))
    start_of(cell)
    (options,) = given
    assert options["momentum"] == 0.9 and options["weight_decay"] == 0.001
    assert tuple(options["drops"]) == (1,) and options["shuffled"] is False
    assert options["augmentation"].shift == 4 and options["augmentation"].mirror
