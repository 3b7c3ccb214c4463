"""Models and data that a copy, a later call or another setting would silently make others."""

import copy
import weakref
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from hiddenstate.dpsgd.clipping import ClippedSum
from hiddenstate.dpsgd.probe import _Untouched
from hiddenstate.errors import InputError

FALLS_BACK = pytest.mark.filterwarnings("ignore:no book-keeping rule")


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


X, LABELS = torch.linspace(-1, 1, 48).reshape(8, 6), torch.arange(8) % 4


def plain():
    return nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6))


# Tensors in a parameter's memory


class Alias(nn.Module):
    """It holds a part of its weights in some manner."""

    def __init__(self, hold):
        super().__init__()
        self.fc = nn.Linear(6, 4)
        hold(self, self.fc.weight.detach()[1:3])

    def forward(self, x):
        return self.fc(x)


HOLD = {
    "buffer": lambda net, part: net.register_buffer("part", part),
    "frozen parameter": lambda net, part: setattr(
        net, "part", nn.Parameter(part, requires_grad=False)
    ),
    "parameter": lambda net, part: setattr(net, "part", nn.Parameter(part)),
    "attribute": lambda net, part: setattr(net, "part", part),
    "array": lambda net, part: setattr(net, "part", part.numpy()),
    "list": lambda net, part: setattr(net, "part", [{"it": part}]),
    "object": lambda net, part: setattr(net, "part", SimpleNamespace(it=part)),
    "other type": lambda net, part: setattr(net, "part", part.view(torch.int32)),
}


@FALLS_BACK
@pytest.mark.parametrize("how", HOLD)
def test_tensors_in_a_parameters_memory_are_refused(how):
    model = Alias(HOLD[how])
    with pytest.raises(InputError, match=r"model: '(fc.weight|part.*)' lies in the memory of "):
        ClippedSum(model, X, LABELS)
    ClippedSum(Alias(lambda net, part: HOLD[how](net, part.clone())), X, LABELS)


class Slotted:
    __slots__ = ("part",)

    def __call__(self):
        return self.part.sum()


def in_a_slot(part):
    found = Slotted()
    found.part = part
    return found


class Scaled(nn.Module):
    """It reads a part of its weights where no attribute has it."""

    def __init__(self, reads):
        super().__init__()
        self.fc = nn.Linear(6, 4)
        self.read = reads(self.fc.weight.detach()[1:3])

    def forward(self, x):
        return self.fc(x) * (2 + self.read().tanh())


@FALLS_BACK
@pytest.mark.parametrize(
    "reads",
    [
        lambda part: partial(torch.sum, part),
        lambda part: partial(lambda held: next(iter(held)).sum(), {part: 1}),
        in_a_slot,
    ],
)
def test_hidden_tensors_in_a_parameters_memory_are_refused(reads):
    with pytest.raises(InputError, match="model: a copy with the same parameters has another loss"):
        ClippedSum(Scaled(reads), X, LABELS)
    ClippedSum(Scaled(lambda part: reads(part.clone())), X, LABELS)


@pytest.mark.parametrize("what", ["x", "y", "array"])
def test_records_and_labels_in_a_parameters_memory_are_refused(what):
    model = nn.Linear(6, 6)
    own = model.weight.data.numpy() if what == "array" else model.weight.data
    x, y = (torch.randn(6, 6), own) if what == "y" else (own, torch.zeros(6, 6))
    name = "y" if what == "y" else "x"
    with pytest.raises(InputError, match=f"{name}: lies in the memory of parameter 'weight'"):
        ClippedSum(model, x, y, loss=lambda o, y: (o - y).square().sum(1))


def test_parameters_whose_entries_lie_in_one_place_are_refused():
    model = plain()
    model[0].bias = nn.Parameter(torch.zeros(1).expand(6))
    with pytest.raises(InputError, match=r"model: entries of parameter '0\.bias' lie in one place"):
        ClippedSum(model, X, LABELS)


@FALLS_BACK
def test_parameters_that_are_one_or_lie_side_by_side_are_taken():
    model = plain()
    model[2].weight = model[0].weight
    ClippedSum(model, X, LABELS)
    model, both = plain(), torch.randn(6, 12) / 6
    model[0].weight.data, model[2].weight.data = both[:, ::2], both[:, 1::2]
    model[0].bias.data, model[2].bias.data = torch.zeros(12).split(6)
    model.register_buffer("constant", torch.zeros(1).expand(4))
    ClippedSum(model, X, LABELS)


# Models that are their own copy


class Single(nn.Linear):
    def __deepcopy__(self, memo):
        return self


class Sharing(nn.Linear):
    """Its copies have its own tensors."""

    def __deepcopy__(self, memo):
        other = Sharing(6, 6)
        memo[id(self)] = other
        other.weight, other.bias = self.weight, copy.deepcopy(self.bias)
        return other


class SharingBuffer(nn.Linear):
    def __init__(self):
        super().__init__(6, 6)
        self.register_buffer("scale", torch.ones(6))

    def __deepcopy__(self, memo):
        other = SharingBuffer()
        other.load_state_dict(self.state_dict())
        other.scale = self.scale
        return other


@pytest.mark.parametrize(
    ("build", "name"),
    [
        (lambda: Single(6, 4), "the model"),
        (lambda: nn.Sequential(Single(6, 6), nn.Linear(6, 4)), "'0'"),
        (lambda: nn.Sequential(Single(6, 6).requires_grad_(False), nn.Linear(6, 4)), "'0'"),
        (lambda: nn.Sequential(Sharing(6, 6), nn.Linear(6, 4)), r"'0\.weight'"),
        (lambda: nn.Sequential(SharingBuffer(), nn.Linear(6, 4)), r"'0\.scale'"),
    ],
)
def test_models_that_share_with_their_copies_are_refused(build, name):
    model = build()
    with pytest.raises(InputError, match=f"model: copy.deepcopy gives {name} itself, no copy"):
        ClippedSum(model, X, LABELS)
    assert next(model.parameters()).dtype == torch.float32


# Writes that autograd does not see


class Writing(nn.Module):
    def __init__(self, write):
        super().__init__()
        self.write, self.fc = write, nn.Linear(6, 4)
        self.scale = nn.Parameter(torch.ones(4), requires_grad=False)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.write(self, x)
        return self.fc(x) * self.scale


def written_in_numpy(net, x):
    weight = net.fc.weight.detach().numpy()
    weight.clip(-0.1, 0.1, out=weight)


def unchanged(net, x):
    with torch.no_grad():
        net.fc.weight.clamp_(-10, 10)  # at these parameters nothing, but at others


@pytest.mark.parametrize(
    ("write", "name"),
    [
        (lambda net, x: net.fc.weight.data.clamp_(-0.1, 0.1), r"fc\.weight"),
        (lambda net, x: net.fc.bias.data.mul_(2).div_(2), r"fc\.bias"),
        (lambda net, x: torch.clamp(net.fc.bias.data, -9, 9, out=net.fc.bias.data), r"fc\.bias"),
        (lambda net, x: net.scale.data.clamp_(max=0.5), "scale"),
        (lambda net, x: setattr(net.fc.weight, "data", net.fc.weight.data.clamp(-9, 9)), "fc"),
        (lambda net, x: setattr(net.fc, "weight", nn.Parameter(net.fc.weight.data)), "fc"),
        (unchanged, r"fc\.weight"),
        (written_in_numpy, r"fc\.weight"),
    ],
)
@pytest.mark.parametrize("kernel", ["auto", "explicit"])
def test_a_forward_that_writes_into_parameters_is_refused(write, name, kernel):
    with pytest.raises(InputError, match=f"model: forward writes into parameter '{name}"):
        ClippedSum(Writing(write), X, LABELS, kernel=kernel)


def test_the_memory_that_parameters_had_is_not_given_to_others():
    """Or new values there, equal to those of before, would look like parameters left alone."""
    model, values = nn.Linear(6, 4), np.ones((4, 6), np.float32)
    model.weight.data, freed = torch.from_numpy(values), weakref.ref(values)
    untouched = _Untouched(model)
    del values
    model.weight.data = model.weight.data.clone()
    assert freed() is not None
    assert untouched.broken() == "weight"


def test_embeddings_that_limit_their_norms_are_refused():
    """They write shorter rows into the parameters that a training is at."""
    model = nn.Sequential(nn.Embedding(5, 4, max_norm=9.0), nn.Flatten(), nn.Linear(12, 4))
    with pytest.raises(InputError, match=r"model: forward writes into parameter '0\.weight'"):
        ClippedSum(model, torch.randint(5, (8, 3)), LABELS)


def test_a_buffer_that_is_changed_by_data_is_refused():
    with pytest.raises(InputError, match="model: calling it changes 'calls'"):
        ClippedSum(Writing(lambda net, x: net.calls.data.add_(1)), X, LABELS)


@FALLS_BACK
def test_writes_into_values_and_records_that_torch_sees_are_taken():
    ClippedSum(Writing(lambda net, x: x.mul_(2)), X, LABELS)
    ClippedSum(Writing(lambda net, x: (x * 1).data.mul_(2)), X, LABELS)
    norm = nn.InstanceNorm1d(2, affine=True, track_running_stats=True).eval()
    ClippedSum(nn.Sequential(norm, nn.Flatten(), nn.Linear(6, 4)), X.reshape(8, 2, 3), LABELS)
