"""What a few records, indices or parameters alone would show is right or refused, never silent."""

import numpy as np
import pytest
import torch
from oracle import clipped, problem
from oracle import explicit as explicit_gradients
from torch import nn

from hiddenstate.dpsgd.clipping import ClippedSum, cross_entropy, flat_parameters
from hiddenstate.dpsgd.kernels.linear import Linear
from hiddenstate.dpsgd.native import compiling
from hiddenstate.dpsgd.native.kernel import Kernel
from hiddenstate.errors import InputError

KINDS = [np.int8, np.uint8, np.int32, np.uint64, torch.uint8, torch.int16, torch.int64]


def logistic(kernel):
    model, x, y = problem(
        "rare", lambda: nn.Sequential(nn.Flatten(), nn.Linear(6, 3)), (6,), 3, records=9
    )
    return ClippedSum(model, x, y, kernel=kernel), flat_parameters(model)


def entries(total, theta):
    """Every way for indices into a sum."""
    yield lambda indices: total(theta, indices, 0.1)
    yield lambda indices: total.norms(theta, indices)
    if total.kind != "native":
        yield lambda indices: total.side_by_side(theta[None], indices, None, 0.1)[0]
    if isinstance(total.kernel, Linear):
        yield lambda indices: total.linear_sums(theta[None], indices, 0.1)[0]


@pytest.mark.parametrize("kernel", ["auto", "torch", "explicit", "linear"])
def test_indices_of_all_integer_types_are_one_and_others_are_refused_everywhere(kernel):
    """Torch reads uint8 as a mask, and negative indices from behind."""
    total, theta = logistic(kernel)
    for entry in entries(total, theta):
        expected = entry(np.array([1, 0, 1]))
        for kind in KINDS:
            given = [1, 0, 1]
            same = np.array(given, kind) if isinstance(kind, type) else torch.tensor(given).to(kind)
            torch.testing.assert_close(entry(same), expected)
        for wrong in ([0, -1], [9, 0], [True, False], [0.0, 1.0], 3, [[[0]]]):
            for values in (np.array(wrong), torch.tensor(wrong)):
                with pytest.raises(InputError, match="indices: got"):
                    entry(values)


class Do(nn.Module):
    """A function of its layers, by name, and of the records."""

    def __init__(self, function, **layers):
        super().__init__()
        self.function = function
        for name, layer in layers.items():
            setattr(self, name, layer)

    def forward(self, x):
        return self.function(self, x)


def agree(model, x, y, kernel, *, tolerance=1e-5, **options):
    """Sums and norms are those of float64, at parameters far from the first, alone and together."""
    total = ClippedSum(model, x, y, kernel=kernel, **options)
    start, everything = flat_parameters(model), np.arange(len(x))
    draw = torch.from_numpy(np.random.default_rng(0).standard_normal((2, len(start))))
    thetas = torch.stack([-2 * start, 3 * start]) + 0.3 * draw.to(start)
    expected, norm = [], None
    for theta in thetas:
        nn.utils.vector_to_parameters(theta.clone(), model.parameters())
        gradients = explicit_gradients(model, x, y)
        norm = norm or float(gradients.norm(dim=1).median())
        expected.append(clipped(gradients, norm))
    for _ in range(2):
        found = [total(theta, everything, norm) for theta in thetas]
        if total.kind != "native":
            found += [*total.side_by_side(thetas, torch.arange(len(x)), None, norm)]
        for sums, right in zip(found, 2 * expected, strict=False):
            assert (sums - right).norm() <= tolerance * right.norm(), (sums - right).norm()
    return total.kind


def records(n=12, features=6, seed=0):
    rng = np.random.default_rng(seed)
    return rng.standard_normal((n, features)).astype(np.float32), np.arange(n) % 3


WRITES = {
    "in place": lambda x: x.mul_(0.5),
    "by data": lambda x: x.data.mul_(0.5),
    "where it is large": lambda x: x.data.clamp_(max=1.9),
    "by other data": lambda x: setattr(x, "data", 0.5 * x.data),
    "by numpy": lambda x: np.multiply(x.numpy(), 0.5, out=x.numpy()),
}


@pytest.mark.filterwarnings("ignore:gradients are computed record by record")
@pytest.mark.filterwarnings("ignore:no book-keeping rule")
@pytest.mark.parametrize("branches", [False, True])
@pytest.mark.parametrize("kernel", ["auto", "explicit"])
@pytest.mark.parametrize("way", WRITES)
def test_records_that_a_model_writes_into_are_its_own(way, kernel, branches):
    """Models side by side share records, and later sums use them again."""

    def write(model, x):
        if branches and float(x[0, 0]) > 1e9:  # records of which are none: it is read all the same
            return model.first(x)
        WRITES[way](x)
        return model.last(torch.tanh(model.first(x)))

    x, y = records()
    x[5, 0] = 30
    agree(Do(write, first=nn.Linear(6, 3), last=nn.Linear(3, 3)), x, y, kernel)


READS = {
    "detach": lambda m: m.first.weight.detach().abs().mean(),
    "sign": lambda m: torch.sign(m.first.weight).sum() / 4,
    "norm": lambda m: 2.0 if m.first.weight.norm() > 3 else 1.0,
    "data": lambda m: m.first.weight.data.sum(),
    "numpy": lambda m: float(m.first.weight.detach().numpy().sum()),
    "tolist": lambda m: m.first.weight[0].tolist()[0],
    "item": lambda m: m.first.weight[0, 0].item(),
    "vector": lambda m: nn.utils.parameters_to_vector(m.parameters()).detach().abs().max(),
    "state_dict": lambda m: m.state_dict()["last.bias"].abs().max(),
    "another name": lambda m: m.held[0].detach().square().sum(),
    "cast": lambda m: m.first.weight.type(torch.float64).detach().mean().float(),
    "of a memory": lambda m: m.memory.weight_hh_l0.detach().abs().mean(),
}
SEQUENCES = {"LSTM": nn.LSTM, "GRU": nn.GRU, "RNN": nn.RNN}


def scaled(scale, memory=None):
    """A model whose outputs a function of the model scales."""

    def forward(model, x):
        h = torch.tanh(model.first(x))
        if memory is not None:
            h = model.memory(h.unflatten(1, (3, 2)))[0][:, -1]
        return model.last(h) * scale(model)

    torch.manual_seed(0)
    model = Do(forward, first=nn.Linear(6, 6), last=nn.Linear(6, 3))
    if memory is not None:
        model.memory = memory(2, 6, batch_first=True)
    model.held = [model.first.weight]
    return model


@pytest.mark.filterwarnings("ignore:gradients are computed record by record")
@pytest.mark.filterwarnings("ignore:no book-keeping rule")
@pytest.mark.parametrize("kernel", ["auto", "torch", "explicit"])
@pytest.mark.parametrize(
    ("read", "memory"),
    [(name, None) for name in READS if name != "of a memory"]
    + [(name, memory) for name in ("detach", "norm", "of a memory") for memory in SEQUENCES],
)
def test_weights_that_forward_reads_beside_their_layers_are_those_of_each_model(
    read, memory, kernel
):
    model = scaled(READS[read], SEQUENCES.get(memory))
    agree(model, *records(), kernel, tolerance=1e-4)


KINDLY = {
    "type": lambda m: torch.ones(1).to(m.first.weight.dtype),
    "place": lambda m: torch.ones(1, device=m.first.weight.device),
    "size": lambda m: m.first.weight.shape[0] + m.first.weight.size(1) + m.first.weight.dim(),
    "like": lambda m: torch.ones_like(m.first.weight).mean() + torch.ones(1).to(m.first.weight),
    "count": lambda m: sum(p.numel() for p in m.parameters()) / 99,
    "sparse": lambda m: 1.0 + m.first.weight.is_sparse + m.first.weight.is_leaf,
    "cast": lambda m: torch.ones(1).type(m.first.weight.type()),
    "result": lambda m: torch.ones(1, dtype=torch.result_type(m.first.weight, m.last.bias)),
    "real": lambda m: 1.0 + next(m.parameters()).is_floating_point() + len(m.first.weight),
}


@pytest.mark.parametrize("memory", [None, "LSTM"])
@pytest.mark.parametrize("kind", KINDLY)
def test_the_kind_of_a_weight_may_be_asked_for(kind, memory):
    model = scaled(KINDLY[kind], SEQUENCES.get(memory))
    assert agree(model, *records(), "torch", tolerance=1e-4) == "torch"


def with_a_rare():
    """Records, one of which is large and none of those that are looked at closely."""
    x, y = records(400)
    x[200, 0] = 30
    return x, y


def sorted_where_large(model, x):
    """Rare records go through the first layer behind the others."""
    order = (x[:, 0] > 20).long().argsort(stable=True)
    return model.last(torch.tanh(model.first(x[order])[order.argsort()]))


@pytest.mark.filterwarnings("ignore:gradients are computed record by record")
def test_a_way_for_rare_records_alone_is_seen_among_all():
    x, y = with_a_rare()
    model = Do(sorted_where_large, first=nn.Linear(6, 6), last=nn.Linear(6, 3))
    with pytest.warns(UserWarning, match="no book-keeping rule for the model"):
        kind = agree(model, x, y, "auto")
    assert kind in ("explicit", "loop")


@pytest.mark.skipif(compiling.compiler() is None, reason="no C compiler")
def test_native_code_that_is_wrong_for_one_record_is_not_used(monkeypatch):
    def broken(self, theta, indices, clipping_norm):
        total, *others = call(self, theta, indices, clipping_norm)
        return total * (1.5 if 200 in indices else 1), *others

    call = Kernel.__call__
    monkeypatch.setattr(Kernel, "__call__", broken)
    model = nn.Sequential(nn.Flatten(), nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 3))
    x, y = records(400)
    with pytest.warns(UserWarning, match="native kernel: its gradients of the model are wrong"):
        assert agree(model, x, y, "auto") == "torch"


class Mixing(torch.autograd.Function):
    """Gradients are mixed on the way back where a record is large."""

    @staticmethod
    def forward(ctx, h, large):
        ctx.large = bool(large.any())
        return h.clone()

    @staticmethod
    def backward(ctx, *gradients):
        g = gradients[0]
        return g + g.mean(0) * ctx.large, None


@pytest.mark.filterwarnings("ignore:no book-keeping rule")
def test_records_whose_gradients_mix_where_one_is_rare_are_refused():
    def forward(model, x):
        return model.last(Mixing.apply(torch.tanh(model.first(x)), x[:, 0] > 20))

    with pytest.raises(InputError, match="not those of autograd"):
        ClippedSum(Do(forward, first=nn.Linear(6, 6), last=nn.Linear(6, 3)), *with_a_rare())


def mixing(strength):
    """Records are mixed where one is large, which is met by few only."""

    def forward(model, x):
        h = torch.tanh(model.first(x))
        return model.last(h + strength * h.clone().mean(0) * (x[:, 0] > 20).any())

    return Do(forward, first=nn.Linear(6, 6), last=nn.Linear(6, 3))


@pytest.mark.parametrize("kernel", ["auto", "torch", "explicit"])
def test_mixing_behind_a_head_of_zeros_is_refused(kernel):
    model = mixing(0.5)
    nn.init.zeros_(model.last.weight)
    with pytest.raises(InputError, match="mixes the records"):
        ClippedSum(model, *with_a_rare(), kernel=kernel)


@pytest.mark.parametrize("kernel", ["auto", "torch"])
def test_mixing_beside_a_record_of_a_very_large_loss_is_refused(kernel):
    x, y = with_a_rare()
    model, plain = mixing(0.05), lambda outputs, labels: cross_entropy(outputs[:, :3], labels)
    model.first.weight.data[0] = 0
    model.last.weight.data[:, 0] = 0

    def loss(outputs, labels):
        return plain(outputs, labels) * (1 + 1e6 * (labels == 2))

    y[y == 2] = 1
    y[7] = 2
    with pytest.raises(InputError, match="mixes the records"):
        ClippedSum(model, x, y, loss=loss, kernel=kernel)


class Sequence(nn.Module):
    def __init__(self, tokens):
        super().__init__()
        self.table, self.last = nn.Embedding(tokens, 4), nn.Linear(4, 3)

    def forward(self, x):
        return self.last(self.table(x).mean(1))


@pytest.mark.parametrize("token", [10, -1])
@pytest.mark.parametrize("at", [0, 7, 39])
def test_tokens_beyond_a_table_are_refused_by_their_record(at, token):
    """A table is followed by that of the next model, whose rows would be taken."""
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 10, (40, 5)), np.arange(40) % 3
    total = ClippedSum(Sequence(10), x, y)
    x[at, 2] = token
    expected = f"x: record {at} gives table the token {token}; expected 0 to 9"
    with pytest.raises(InputError, match=expected):
        ClippedSum(Sequence(10), x, y)
    with pytest.raises(InputError, match=expected):
        total.refuse_tests(x, y)


def test_a_record_of_a_very_large_gradient_hides_no_other():
    def loss(outputs, labels):
        return cross_entropy(outputs, labels) * (1 + 1e5 * (labels == 2))

    x, y = with_a_rare()
    y[y == 2] = 1
    y[201] = 2
    model = Do(sorted_where_large, first=nn.Linear(6, 6), last=nn.Linear(6, 3))
    with pytest.warns(UserWarning, match="sums over all records are not autograd's"):
        assert ClippedSum(model, x, y, loss=loss).kind != "torch"
