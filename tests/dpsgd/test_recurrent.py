"""Recurrent layers by their rule, against each record's gradient in float64."""

import numpy as np
import pytest
import torch
from oracle import clipped, explicit
from torch import nn

from hiddenstate.dpsgd.clipping import ClippedSum, flat_parameters
from hiddenstate.dpsgd.recurrent import RecurrentRule
from hiddenstate.errors import InputError
from hiddenstate.streams import stream

STEPS, WIDTH, HIDDEN, RECORDS, CLASSES = 5, 3, 4, 7, 3
KINDS = {
    "lstm": nn.LSTM,
    "gru": nn.GRU,
    "tanh": nn.RNN,
    "relu": lambda *sizes, **options: nn.RNN(*sizes, nonlinearity="relu", **options),
}
OPTIONS = {
    "plain": {"batch_first": True},
    "steps first": {},
    "no bias": {"batch_first": True, "bias": False},
    "two directions": {"batch_first": True, "bidirectional": True},
    "three layers": {"num_layers": 3, "dropout": 0.5},
    "all": {"num_layers": 2, "bidirectional": True, "bias": False},
}


class Reader(nn.Module):
    """Classes by a recurrent layer's states, or by its last ones, behind a linear layer."""

    def __init__(self, memory, read="states"):
        super().__init__()
        self.first, self.memory, self.read = nn.Linear(WIDTH, WIDTH), memory, read
        self.last = nn.LazyLinear(CLASSES)

    def forward(self, x):
        h = self.first(x)
        states, last = self.memory(h if self.memory.batch_first else h.transpose(0, 1))
        if self.read != "states":
            last = last[self.read == "cells"] if isinstance(last, tuple) else last
            return self.last(last.movedim(0, 1).flatten(1))
        return self.last((states if self.memory.batch_first else states.movedim(0, 1)).flatten(1))


def records(name="recurrent"):
    rng = stream(0, name)
    return rng.normal(size=(RECORDS, STEPS, WIDTH)), rng.integers(CLASSES, size=RECORDS)


def reader(kind, options, read="states") -> nn.Module:
    """In float64, in eval mode, with large weights."""
    model = Reader(KINDS[kind](WIDTH, HIDDEN, **options), read).double().eval()
    model(torch.from_numpy(records()[0]))
    rng = stream(0, "recurrent", "weights")
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(torch.from_numpy(rng.normal(size=p.shape) / 1.5))
    return model


def worst(total: ClippedSum, model: nn.Module) -> float:
    """Largest error of a sum of one model, and of three side by side."""
    x, y = records()
    theta = flat_parameters(model).clone()
    thetas = torch.stack([theta, 1.2 * theta, -theta])
    trained = [p for p in model.parameters() if p.requires_grad]
    norm, expected = None, []
    for each in thetas:
        nn.utils.vector_to_parameters(each.clone(), trained)
        rows = explicit(model, x, y)
        norm = norm or float(rows.norm(dim=1).median())
        expected.append(clipped(rows, norm))
    expected = torch.stack(expected)
    alone = torch.stack([total(each, np.arange(RECORDS), norm) for each in thetas])
    together = total.side_by_side(thetas, torch.arange(RECORDS), None, norm)
    errors = [(found - expected).norm(dim=1) / expected.norm(dim=1) for found in (alone, together)]
    return float(torch.stack(errors).max())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("options", OPTIONS)
def test_sums_of_one_model_and_of_three_are_those_of_float64_gradients(kind, options):
    model = reader(kind, OPTIONS[options])
    total = ClippedSum(model, *records())
    assert total.kind == "torch"
    assert worst(total, model) <= 1e-9


@pytest.mark.parametrize(("kind", "read"), [("lstm", "last"), ("lstm", "cells"), ("gru", "last")])
def test_last_states_and_cells_pass_gradients_back(kind, read):
    model = reader(kind, OPTIONS["all"], read)
    total = ClippedSum(model, *records())
    assert total.kind == "torch"
    assert worst(total, model) <= 1e-9


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "frozen", [["weight_ih_l0"], ["bias_hh_l0"], ["weight_hh_l0", "bias_hh_l0"]]
)
def test_a_recurrent_layer_may_have_parameters_frozen(kind, frozen):
    model = reader(kind, OPTIONS["plain"])
    for name in frozen:
        model.memory.get_parameter(name).requires_grad_(False)
    total = ClippedSum(model, *records())
    assert total.kind == "torch"
    assert worst(total, model) <= 1e-9


@pytest.mark.parametrize("kind", KINDS)
def test_a_recurrent_layer_that_reads_the_records_is_exact_in_float32(kind):
    model = reader(kind, OPTIONS["plain"]).float()
    model.first = nn.Identity()
    total = ClippedSum(model, *records())
    assert total.kind == "torch"
    assert 0 < worst(total, model) <= 1e-5


class GivenState(Reader):
    def forward(self, x):
        first = torch.ones(1, len(x), HIDDEN).to(x)
        return self.last(self.memory(self.first(x), (first, first))[0].flatten(1))


class TwoRows(Reader):
    """Each record becomes two sequences."""

    def forward(self, x):
        rows = torch.stack((x, 2 * x), 1).flatten(0, 1)
        return self.last(self.memory(self.first(rows))[0].unflatten(0, (-1, 2)).flatten(1))


@pytest.mark.whole
@pytest.mark.filterwarnings("ignore:.*record by record", "ignore:LSTM with projections")
@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (Reader, {"proj_size": 2}),
        pytest.param(GivenState, {}, marks=pytest.mark.slow),
        pytest.param(TwoRows, {}, marks=pytest.mark.slow),
    ],
)
def test_other_recurrent_layers_take_the_slow_way(kind, options):
    model = kind(nn.LSTM(WIDTH, HIDDEN, batch_first=True, **options))
    x, y = records()
    model(torch.from_numpy(x).float())
    model = model.double()
    with pytest.warns(UserWarning, match="no book-keeping rule for (memory|first)"):
        total = ClippedSum(model, x, y)
    assert total.kind != "torch"
    assert worst(total, model) <= 1e-9


def test_dropout_between_recurrent_layers_is_refused_while_it_is_active():
    model = reader("gru", OPTIONS["three layers"]).train()
    with pytest.raises(InputError, match="random"):
        ClippedSum(model, *records())


@pytest.mark.whole
@pytest.mark.filterwarnings("ignore:.*record by record")
def test_a_wrong_factor_is_seen(monkeypatch):
    right = RecurrentRule.prepare

    def off(layer, a, g):
        return right(layer, a, [1.0001 * g[0], *g[1:]])

    model = reader("gru", OPTIONS["plain"])
    total = ClippedSum(model, *records())
    monkeypatch.setattr(RecurrentRule, "prepare", off)
    assert worst(total, model) > 1e-6
    with pytest.warns(UserWarning, match="no book-keeping rule"):
        ClippedSum(model, *records())
