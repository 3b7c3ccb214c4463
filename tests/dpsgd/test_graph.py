"""Graphs of layers, however a ``forward`` is written."""

import pytest
import torch
import torch.nn.functional as F
from oracle import check, problem
from torch import nn

from hiddenstate.dpsgd import graph
from hiddenstate.dpsgd.clipping import ClippedSum
from hiddenstate.dpsgd.native import compiling
from hiddenstate.dpsgd.native.network import as_network

needs_compiler = pytest.mark.skipif(compiling.compiler() is None, reason="no C compiler")
SHAPE, CLASSES = (1, 6, 6), 3


class Block(nn.Module):
    """A residual network whose parts are named as functions are, to be written in many ways."""

    def __init__(self):
        super().__init__()
        self.add = nn.Conv2d(1, 6, 3, padding=1)
        self.mean = nn.Conv2d(6, 6, 3, padding=1)
        self.norm = nn.GroupNorm(2, 6)
        self.relu = nn.ReLU(inplace=True)
        self.pool = nn.AdaptiveAvgPool2d((1, 1))
        self.out = nn.Linear(6, 3)

    def inner(self, h):
        return self.norm(self.mean(torch.tanh(h)))

    def joined(self, h):
        return self.inner(h) + h

    def head(self, h):
        return self.out(self.pool(h).flatten(1))

    def forward(self, x):
        return self.head(self.relu(self.joined(self.add(x))))


def joined(function):
    """The network with its sum written otherwise."""
    return type("Joined", (Block,), {"joined": lambda self, h: function(self.inner(h), h)})


def ended(function):
    """The network with its mean over places written otherwise."""
    return type("Ended", (Block,), {"head": lambda self, h: self.out(function(h))})


def assigned(f, h):
    f += h
    return f


JOINED = [
    lambda f, h: f + h,
    lambda f, h: h + f,
    torch.add,
    lambda f, h: torch.add(input=f, other=h),
    lambda f, h: torch.add(h, f, alpha=1),
    lambda f, h: f.add(h),
    lambda f, h: f.add_(h),
    assigned,
]
ENDED = [
    lambda h: h.mean((2, 3)),
    lambda h: h.mean([-1, -2]),
    lambda h: h.mean(dim=(3, 2), keepdim=True).flatten(1),
    lambda h: torch.mean(h, (2, 3)),
    lambda h: torch.mean(h, dim=(-2, -1), keepdim=True).view(h.size(0), -1),
    lambda h: F.adaptive_avg_pool2d(h, 1).flatten(1),
    lambda h: F.adaptive_avg_pool2d(h, (1, 1)).reshape(h.shape[0], -1),
    lambda h: F.avg_pool2d(h, 6).view(-1, 6),
    lambda h: F.avg_pool2d(h, kernel_size=(6, 6)).flatten(1),
]


@needs_compiler
@pytest.mark.parametrize("build", [*map(joined, JOINED), *map(ended, ENDED)])
def test_residual_networks_run_natively_however_they_are_written(build):
    model, x, y = problem("written", build, SHAPE, CLASSES, records=8)
    known = as_network(model, SHAPE)
    plain = as_network(Block(), SHAPE)
    assert [type(layer) for layer in known.layers] == [type(layer) for layer in plain.layers]
    check(ClippedSum(model, x, y, kernel="native"), model, x, y)


ACTIVATED = [
    F.relu_,
    torch.relu_,
    lambda h: h.relu_(),
    lambda h: F.relu(h, True),
    lambda h: F.relu(input=h, inplace=True),
    lambda h: torch.relu(h),
]


@pytest.mark.parametrize("function", ACTIVATED)
def test_activations_are_known_in_place_too(function):
    class Activated(Block):
        def forward(self, x):
            return self.head(function(self.joined(self.add(x))))

    assert as_network(Activated(), SHAPE) == as_network(Block(), SHAPE)


@pytest.mark.parametrize(
    ("kind", "function"),
    [
        ("SILU", F.silu),
        ("SILU", lambda h: F.silu(h, True)),
        ("SILU", nn.SiLU(inplace=True)),
        ("GELU", F.gelu),
        ("GELU", nn.GELU()),
        ("GELU_TANH", nn.GELU("tanh")),
        ("GELU_TANH", lambda h: F.gelu(h, approximate="tanh")),
    ],
)
def test_gates_are_known_however_they_are_written(kind, function):
    class Gated(Block):
        def forward(self, x):
            return self.head(self.gate(self.joined(self.add(x))))

    model = Gated()
    model.gate = function
    kinds = [layer.kind for layer in as_network(model, SHAPE).layers if hasattr(layer, "kind")]
    assert kinds == ["TANH", kind]


def test_a_gate_in_place_hides_what_was_there():
    class Overwriting(Block):
        def forward(self, x):
            h = self.add(x)
            return self.head(F.silu(h, True) + h)

    assert as_network(Overwriting(), SHAPE) is None


def test_steps_name_what_each_layer_reads():
    found = graph.steps(Block())
    kinds = [type(step.layer) for step in found]
    assert kinds == [
        nn.Conv2d, nn.Tanh, nn.Conv2d, nn.GroupNorm, graph.Add, nn.ReLU, nn.AdaptiveAvgPool2d,
        nn.Flatten, nn.Linear,
    ]  # fmt: skip
    assert [step.sources for step in found] == [
        (0,), (1,), (2,), (3,), (4, 1), (5,), (6,), (7,), (8,),
    ]  # fmt: skip
    assert graph.run_order(Block()) is None
    chain = nn.Sequential(nn.Flatten(), nn.Linear(36, 3))
    assert graph.run_order(chain) == list(chain)


class Overwritten(Block):
    """Reads a tensor after an activation in place has changed it."""

    def forward(self, x):
        h = self.add(x)
        return self.head(self.relu(h) + h)


class OverwrittenView(Block):
    def forward(self, x):
        h = self.add(x)
        flat = h.flatten(2)
        flat.tanh_()
        return self.head(h)


class OverwrittenFlat(Block):
    def __init__(self):
        super().__init__()
        self.wide = nn.Linear(216, 6)

    def forward(self, x):
        h = self.add(x)
        flat = h.view(h.size(0), -1)
        return self.out(self.wide(flat.tanh_()) + h.mean((2, 3)))


class OverwrittenRecords(Block):
    def forward(self, x):
        return super().forward(x.relu_())


class Doubled(Block):
    def forward(self, x):
        h = self.inner(self.add(x))
        h += h
        return self.head(h)


@pytest.mark.parametrize("build", [Overwritten, OverwrittenFlat])
def test_what_a_layer_in_place_overwrites_is_not_read(build):
    model, x, y = problem("overwritten", build, SHAPE, CLASSES, records=6)
    for p in (model.mean, model.norm):
        for q in p.parameters():
            q.requires_grad_(False)
    assert graph.steps(model) is None
    total = ClippedSum(model, x, y)
    assert total.kind == "torch"
    check(total, model, x, y)


@needs_compiler
def test_a_tensor_may_be_added_to_itself():
    model, x, y = problem("doubled", Doubled, SHAPE, CLASSES, records=6)
    check(ClippedSum(model, x, y, kernel="native"), model, x, y)


@pytest.mark.parametrize(
    "build",
    [
        OverwrittenView,
        OverwrittenRecords,
        joined(lambda f, h: torch.add(f, h, alpha=2)),
        joined(lambda f, h: f.add(h, alpha=0.5)),
        joined(lambda f, h: f + 1),
        joined(lambda f, h: f + h.mean((2, 3), keepdim=True)),
        joined(lambda f, h: f - h),
        joined(lambda f, h: f * h),
        joined(lambda f, h: torch.cat((f, h), 1)[:, :6]),
        joined(lambda f, h: f + h + h.size(0)),
        joined(lambda f, h: (h.tanh(), f + h)[1]),
        ended(lambda h: h.mean((2, 3), dtype=torch.float64).float()),
        ended(lambda h: h.mean(2).mean(2)),
        ended(lambda h: h.sum((2, 3)) / 36),
        ended(lambda h: h.mean((0, 2, 3), keepdim=True).flatten(1)),
        ended(lambda h: F.avg_pool2d(h, 6, 1, 3)[:, :, 3, 3]),
        ended(lambda h: F.avg_pool2d(h, 6, divisor_override=35).flatten(1)),
        ended(lambda h: F.adaptive_avg_pool2d(h, 4).mean((2, 3))),
        ended(lambda h: F.adaptive_max_pool2d(h, 1).flatten(1)),
    ],
)
def test_what_is_no_graph_of_known_layers_is_left_to_torch(build):
    assert as_network(build(), SHAPE) is None
