"""Inputs of wrong kinds: an error names the argument and what was expected."""

import os
import warnings

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

from hiddenstate.adversaries.canaries import blank
from hiddenstate.dpsgd.clipping import ClippedSum, flat_parameters
from hiddenstate.dpsgd.ensemble import Ensemble, scores
from hiddenstate.dpsgd.mechanism import Mechanism
from hiddenstate.errors import InputError
from hiddenstate.sampling import FullBatch

X, Y = np.linspace(-1, 1, 48, dtype=np.float32).reshape(8, 6), np.arange(8) % 4
XT, YT = torch.from_numpy(X), torch.from_numpy(Y)
MECHANISM = Mechanism(
    sampling=FullBatch(), steps=2, learning_rate=0.1, clipping_norm=1.0, noise_multiplier=1.0,
    adjacency="add_or_remove",
)  # fmt: skip
DATA = {
    "sparse x": (XT.to_sparse(), Y, "x:"),
    "compressed x": (XT.to_sparse_csr, Y, "x:"),
    "sparse y": (X, YT.to_sparse(), "y:"),
    "quantized x": (lambda: torch.quantize_per_tensor(XT, 0.1, 0, torch.qint8), Y, "x:"),
    "nested x": (lambda: torch.nested.nested_tensor([*XT]), Y, "x:"),
    "x without values": (XT.to("meta"), Y, "x:"),
    "masked x": (np.ma.masked_array(X, X > 0.5), Y, "x:"),
    "ragged x": ([[1.0], [1.0, 2.0]] * 4, Y, "x:"),
    "table of texts": (pd.DataFrame({"a": ["u"] * 8}), Y, "x:"),
    "texts as x": (X.astype(str), Y, "x:"),
    "objects as x": (X.astype(object), Y, "x:"),
    "dates as x": (X.astype("datetime64[s]"), Y, "x:"),
    "complex x": (X.astype(complex), Y, "x:"),
    "text as x": ("abc", Y, "x:"),
    "number as x": (3.0, Y, "x:"),
    "x of no dimension": (np.array(3.0), Y, "x:"),
    "no x": (None, Y, "x:"),
    "set as x": ({1, 2}, Y, "x:"),
    "generator as x": ((row for row in X), Y, "x:"),
    "no entries": (X[:, :0], Y, "x:"),
    "not finite x": (np.where(X > 0.5, np.nan, X), Y, "x:"),
    "number as y": (X, 3, "y:"),
    "y of no dimension": (X, torch.tensor(3), "y:"),
    "no y": (X, None, "y:"),
    "texts as y": (X, np.array([*"abcdabcd"]), "y:"),
    "objects as y": (X, Y.astype(object), "y:"),
    "complex y": (X, Y.astype(complex), "y:"),
    "column as y": (X, Y[:, None], "y:"),
    "table as y": (X, pd.DataFrame({"y": Y}), "y:"),
    "missing y": (X, pd.Series([1, None] * 4, dtype="Int64"), "y:"),
    "not finite y": (X, np.where(Y == 1, np.nan, Y), "y:"),
    "huge y": (X, np.full(8, 1e300), r"y: record 0 has the label 1e\+300"),
    "too few y": (X, Y[:3], "y:"),
}


def data(case):
    x, y, name = DATA[case]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch calls some of these a prototype
        return x() if callable(x) else x, y, name


@pytest.mark.parametrize("case", DATA)
def test_records_and_labels_of_wrong_kinds_are_named(case):
    x, y, name = data(case)
    with pytest.raises(InputError, match=f"^{name}.*; expected "):
        ClippedSum(nn.Linear(6, 4), x, y)


@pytest.mark.parametrize("case", DATA)
def test_an_ensembles_records_and_labels_of_wrong_kinds_are_named(case):
    x, y, name = data(case)
    with pytest.raises(InputError, match=f"^({name}|canary:).*expected "):
        canary = blank((6,), label=1)
        Ensemble(nn.Linear(6, 4), MECHANISM, x, y, canary, torch.zeros(28)).clipped_sum()


def test_no_records_are_named():
    with pytest.raises(InputError, match="x: got no record; expected at least one"):
        ClippedSum(nn.Linear(6, 4), X[:0], Y[:0])


@pytest.mark.parametrize(
    ("x", "y"),
    [
        (X.tolist(), Y.tolist()),
        (pd.DataFrame(X, index=range(8, 0, -1)), pd.Series(Y, index=range(7, -1, -1))),
        (pd.DataFrame(X, columns=[*"abcdef"]), pd.Series(Y, dtype="Int64")),
        (np.ma.masked_array(X), Y.astype(np.uint16)),
        (XT.clone().requires_grad_(), Y),
    ],
)
def test_tables_and_lists_are_taken_in_their_order(x, y):
    problem = ClippedSum(nn.Linear(6, 4), x, y).kernel.problem
    assert torch.equal(problem.x, XT)
    assert torch.equal(problem.y, YT)


def test_arrays_that_are_read_only_are_taken_without_a_warning_and_stay_as_they_are():
    x = X.copy()
    x.setflags(write=False)
    model = nn.Sequential(nn.ReLU(inplace=True), nn.Linear(6, 4))  # writes into what it is given
    agree = ClippedSum(model, X.copy(), Y), ClippedSum(model, x, Y)
    sums = [total(flat_parameters(model), np.arange(len(Y)), 1.0) for total in agree]
    assert torch.equal(*sums)
    assert np.array_equal(x, X)


@pytest.mark.parametrize("kernel", ["native", "torch", "explicit"])
def test_views_without_an_augmentation_are_refused(kernel):
    model = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 4))
    total = ClippedSum(model, X, Y, kernel=kernel)
    theta, views = flat_parameters(model), np.zeros((3, 7, 3), int)
    with pytest.raises(InputError, match=r"^drawn: got views .*; expected None"):
        total(theta, np.arange(3), 1.0, views)


@pytest.mark.parametrize("label", [-100, -1, 4])
def test_labels_of_a_test_set_that_are_no_classes_are_refused(label):
    """Torch has a loss of 0 for the label -100."""
    model = nn.Linear(6, 4)
    total, theta = ClippedSum(model, X, Y), flat_parameters(model)
    x, y = np.tile(X, (40, 1)), np.tile(Y, 40)
    y[300] = label
    for call in (total.losses, total.accuracy):
        message = f"^y: record 300 has the label {label}; expected 0 to 3"
        with pytest.raises(InputError, match=message):
            call(theta, x, y)
        call(theta, x[:300], y[:300])


def test_a_test_set_of_more_records_than_labels_is_refused():
    model = nn.Linear(6, 4)
    total, theta = ClippedSum(model, X, Y), flat_parameters(model)
    for call in (total.losses, total.accuracy):
        with pytest.raises(InputError, match=r"^y: got 256 labels; expected 320"):
            call(theta, np.tile(X, (40, 1)), np.tile(Y, 40)[:256])


def test_records_on_disk_are_read_for_a_checkpoint(tmp_path):
    np.save(tmp_path / "x.npy", X)
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    model = nn.Linear(6, 4)
    tables = [
        scores(
            Ensemble(model, MECHANISM, x, Y, blank((6,), 1), flat_parameters(model)),
            models=1, seed=0, checkpoint=tmp_path / "same",
        )
        for x in (X, mapped)
    ]  # fmt: skip
    assert tables[0].equals(tables[1])


def lazy():
    return nn.Sequential(nn.LazyLinear(4))


MODELS = {
    "lazy": (lazy, "model: '0.weight' has no values"),
    "meta": (lambda: nn.Linear(6, 4, device="meta"), "model: 'weight' has no values"),
    "frozen": (lambda: nn.Linear(6, 4).requires_grad_(False), "model: has no trainable parameter"),
    "without parameters": (nn.Tanh, "model: has no trainable parameter"),
    "function": (lambda: lambda x: x, "model: got .*; expected a torch.nn.Module"),
    "class": (lambda: nn.Linear, "model: got .*; expected a torch.nn.Module"),
    "nothing": (lambda: None, "model: got None; expected a torch.nn.Module"),
}


@pytest.mark.parametrize("kind", MODELS)
def test_models_of_wrong_kinds_are_named(kind):
    build, message = MODELS[kind]
    with pytest.raises(InputError, match=message):
        ClippedSum(build(), X, Y)
    with pytest.raises(InputError, match=message):
        ensemble = Ensemble(build(), MECHANISM, X, Y, blank((6,), label=1), torch.zeros(28))
        ensemble.clipped_sum()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"loss": None}, "loss: got None; expected a function"),
        ({"loss": lambda o, y: 1 / 0}, "model: fails on records .*division by zero"),
        (
            {"loss": lambda o, y: os.stat("/nowhere/at all")},
            "model: fails on records .*No such file",
        ),
        ({"device": None}, "device: got 'None'; expected one that torch can use"),
        ({"augmentation": 3}, "augmentation: got 3; expected an Augmentation"),
    ],
)
def test_options_of_wrong_kinds_are_named(given, message):
    with pytest.raises(InputError, match=message):
        ClippedSum(nn.Linear(6, 4), X, Y, **given)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"mechanism": None}, "mechanism: got None; expected a Mechanism"),
        ({"canary": None}, "canary: got None; expected a canary"),
        ({"canary": X[0]}, r"canary: got array[^;]*; expected a canary"),
        ({"canary": blank((6,), label="a")}, "canary: its label: got .*; expected real num"),
        ({"initial": nn.Linear(6, 4)}, "initial: got a model; expected flat_parameters"),
        ({"initial": torch.zeros(28).to_sparse()}, "initial: got a tensor .*; expected"),
        ({"initial": torch.zeros(28, device="meta")}, "initial: got a tensor .*; expected"),
        ({"initial": torch.zeros(28) * 1j}, "initial: got torch.complex64; expected real numbers"),
        ({"augmentation": 3}, "augmentation: got 3; expected an Augmentation"),
    ],
)
def test_parts_of_ensembles_of_wrong_kinds_are_named(given, message):
    parts = {
        "model": nn.Linear(6, 4), "mechanism": MECHANISM, "x": X, "y": Y,
        "canary": blank((6,), label=1), "initial": torch.zeros(28),
    }  # fmt: skip
    with pytest.raises(InputError, match=message):
        scores(Ensemble(**{**parts, **given}), models=2, seed=1)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"measures": [1]}, "measures: got"),
        ({"measures": {"a": 3}}, "measures: got"),
        ({"observers": {"a": 3}}, "observers: got"),
        ({"memory": "1G"}, "memory: got '1G'; expected bytes"),
    ],
)
def test_options_of_scores_of_wrong_kinds_are_named(given, message):
    ensemble = Ensemble(nn.Linear(6, 4), MECHANISM, X, Y, blank((6,), label=1), torch.zeros(28))
    with pytest.raises(InputError, match=message):
        scores(ensemble, models=2, seed=1, **given)
