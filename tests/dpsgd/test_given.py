"""Records, labels and models as a user gives them: what copies and casts lose is told or kept."""

import itertools
import warnings
from collections import deque

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from oracle import clipped
from torch import nn

from hiddenstate.dpsgd.clipping import ClippedSum, cross_entropy, flat_parameters
from hiddenstate.errors import InputError

FALLS_BACK = pytest.mark.filterwarnings("ignore:no book-keeping rule")
LOOPS = pytest.mark.filterwarnings("ignore:.*record by record")


def own_gradients(model, x, y, loss=cross_entropy):
    """By the model itself, on each record as given; shape (records, p)."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    rows = []
    for i in range(len(x)):
        value = loss(model(x[i : i + 1]), y[i : i + 1]).sum()
        rows.append(torch.cat([g.flatten() for g in torch.autograd.grad(value, parameters)]))
    return torch.stack(rows)


def agrees(model, x, y, loss=cross_entropy) -> ClippedSum:
    total = ClippedSum(model, x, y, loss=loss)
    gradients = own_gradients(model, x, y, loss)
    norm = float(gradients.norm(dim=1).median())
    expected = clipped(gradients, norm)
    found = total(flat_parameters(model), np.arange(len(x)), norm)
    assert (found - expected).norm() <= 1e-5 * expected.norm()
    return total


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


LABELS = torch.arange(8) % 4


class Hash(nn.Module):
    """It reads integers, and has no embedding."""

    def __init__(self):
        super().__init__()
        self.last = nn.Linear(300, 4)

    def forward(self, x):
        return self.last(F.one_hot(x.long() % 50, 50).to(self.last.weight).flatten(1))


class Lookup(nn.Module):
    """A table of its own."""

    def __init__(self):
        super().__init__()
        self.table, self.last = nn.Parameter(torch.randn(50, 3)), nn.Linear(18, 4)

    def forward(self, x):
        return self.last(self.table[x % 50].flatten(1))


class Seconds(nn.Module):
    """Unix time, of which a cast would leave minutes."""

    def __init__(self):
        super().__init__()
        self.last = nn.Linear(6, 4)

    def forward(self, x):
        return self.last(((x - 1.7e9) / 1e4).to(self.last.weight))


@FALLS_BACK
@pytest.mark.parametrize(
    ("build", "x"),
    [
        (Hash, torch.randint(2**31, (8, 6))),
        (Hash, torch.randint(2**31, (8, 6)).int()),
        (Lookup, torch.randint(2**31, (8, 6))),
        (Seconds, 1_700_000_000 + torch.randint(10_000, (8, 6))),
    ],
)
def test_integers_stay_integers_where_the_model_takes_them(build, x):
    assert not agrees(build(), x, LABELS).kernel.problem.x.is_floating_point()


def test_integers_that_the_models_precision_does_not_hold_are_refused():
    x = torch.randint(2**20, (8, 6))
    ClippedSum(nn.Linear(6, 4), x, LABELS)
    x[5, 2] = 2**24 + 1
    with pytest.raises(InputError, match=r"x: record 5 holds 16777217 \(entry 2\), which torch"):
        ClippedSum(nn.Linear(6, 4), x, LABELS)
    ClippedSum(nn.Linear(6, 4).double(), x, LABELS)


@pytest.mark.parametrize("build", [Hash, Seconds])
def test_records_in_float64_that_lose_what_the_model_reads_are_refused(build):
    """One such record among many is enough."""
    x = torch.randint(1000, (300, 6)).double() + (1.7e9 if build is Seconds else 0)
    x[217, 1] = 2**24 + 1 if build is Hash else 1.7e9 + 9_999
    with pytest.raises(
        InputError, match=r"x: the loss of record \d+ is .* as given, and .*float32"
    ):
        ClippedSum(build(), x, torch.arange(300) % 4)


def modulo(outputs, labels):
    return (outputs.flatten(1).sum(1) - (labels.long() % 50).to(outputs)).square()


def test_labels_of_a_loss_of_ones_own_keep_what_they_say():
    x, y = torch.randn(8, 6), 10**8 + torch.randint(10**6, (8,))
    agrees(nn.Linear(6, 1), x, y, modulo)
    with pytest.raises(InputError, match=r"y: the loss of record \d is .* as given, and .*float32"):
        ClippedSum(nn.Linear(6, 1), x, y.double(), loss=modulo)


# What a copy does not have


class Held(nn.Module):
    """Its layer is reached through a function that holds the model itself."""

    def __init__(self):
        super().__init__()
        self.last = nn.Linear(6, 4)
        self.apply_last = lambda x: F.linear(x, self.last.weight, self.last.bias)

    def forward(self, x):
        return self.apply_last(x)


@pytest.mark.parametrize("zero", [False, True])
def test_a_model_whose_copy_calls_the_original_is_refused(zero):
    model, x = Held(), torch.randn(8, 6)
    if zero:  # where gradients alone would not tell
        nn.init.zeros_(model.last.weight)
        x = torch.zeros(8, 6)
    with pytest.raises(InputError, match=r"copy's loss depends on the parameters of the model it"):
        ClippedSum(model, x, LABELS)


@pytest.mark.parametrize("register", ["register_hook", "register_post_accumulate_grad_hook"])
def test_hooks_on_parameters_are_refused(register):
    """A mask of gradients, as sparse training has it."""
    model = nn.Linear(6, 4)
    getattr(model.weight, register)(lambda given: None)
    with pytest.raises(InputError, match=r"model: weight has a hook"):
        ClippedSum(model, torch.randn(8, 6), LABELS)


class Scaled(nn.Module):
    """Its parameter knows a factor, which a copy of it does not."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 6))
        self.weight.factor = 2.0

    def forward(self, x):
        return x @ self.weight.T * getattr(self.weight, "factor", 1.0)


def test_what_parameters_know_besides_their_numbers_is_not_lost_without_a_word():
    with pytest.raises(InputError, match=r"model: the loss of record \d is .* by a copy"):
        ClippedSum(Scaled(), torch.randn(8, 6), LABELS)


def test_records_that_a_model_writes_into_are_as_they_were():
    x = torch.randn(8, 6)
    before = x.clone()
    model = nn.Sequential(nn.ReLU(inplace=True), nn.Linear(6, 4))
    total = ClippedSum(model, x, LABELS)
    assert torch.equal(x, before)
    expected = clipped(own_gradients(model, before.clone(), LABELS), 0.5)
    found = total(flat_parameters(model), np.arange(8), 0.5)
    assert (found - expected).norm() <= 1e-5 * expected.norm()
    assert torch.equal(x, before)


def test_the_model_is_as_it_was():
    model, x = nn.Sequential(nn.Linear(6, 5), nn.PReLU(), nn.Linear(5, 4)), torch.randn(8, 6)
    before = {name: p.clone() for name, p in model.named_parameters()}
    versions = {name: p._version for name, p in model.named_parameters()}
    chance = torch.get_rng_state()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ClippedSum(model, x, LABELS)
    for name, p in model.named_parameters():
        assert torch.equal(p, before[name])
        assert p.grad is None
        assert p._version == versions[name]
    assert torch.equal(torch.get_rng_state(), chance)


# State wherever it lies

CALLS = 0


class State(nn.Module):
    def __init__(self, held=None):
        super().__init__()
        self.last, self.held = nn.Linear(6, 4), held

    def forward(self, x):
        self.use(x)
        return self.last(x)


class Iterates(State):
    def use(self, x):
        next(self.held)


class Appends(State):
    def use(self, x):
        self.held.append(1)


class InAnObject(State):
    def use(self, x):
        self.held.calls += 1


class InItsClass(State):
    calls = 0

    def use(self, x):
        InItsClass.calls += 1


class InItsModule(State):
    def use(self, x):
        global CALLS
        CALLS += 1


class InAFunction(State):
    def use(self, x):
        self.held()


class OfSeveral(State):
    def use(self, x):
        if len(x) > 1:
            self.held.append(1)


class InItsParameter(State):
    def __init__(self):
        super().__init__()
        self.calls = nn.Parameter(torch.zeros(()), requires_grad=False)

    def use(self, x):
        self.calls += 1


class InABackwardPass(State):
    def use(self, x):
        if torch.is_grad_enabled():
            self.held.append(1)


class Empty:
    calls = 0


def counting():
    calls = deque()
    return lambda: calls.append(1)


@pytest.mark.parametrize(
    ("build", "name"),
    [
        (lambda: Iterates(itertools.count()), "held"),
        (lambda: Iterates(iter(range(10**6))), "held"),
        (lambda: Appends(deque()), "held"),
        (lambda: Appends([]), "held"),
        (lambda: InAnObject(Empty()), "held"),
        (lambda: InItsClass(), "class InItsClass"),
        (lambda: InItsModule(), "class InItsModule"),
        (lambda: InAFunction(counting()), "held"),
        (lambda: OfSeveral([]), "held"),
        (lambda: InItsParameter(), "calls"),
        (lambda: InABackwardPass([]), "held"),
    ],
)
def test_state_that_leaks_from_model_to_model_is_refused_wherever_it_lies(build, name):
    with pytest.raises(InputError, match=rf"model: calling it changes '{name}'"):
        ClippedSum(build(), torch.randn(8, 6), LABELS)


class CountingLoss:
    def __init__(self):
        self.calls = 0

    def __call__(self, outputs, labels):
        self.calls += 1
        return cross_entropy(outputs, labels)


def test_a_loss_with_state_is_refused_too():
    with pytest.raises(InputError, match="changes 'loss'"):
        ClippedSum(nn.Linear(6, 4), torch.randn(8, 6), LABELS, loss=CountingLoss())


SCALE = None


def kept_by_a_class():
    class Kept(State):
        scale = None

        def use(self, x):
            if Kept.scale is None:
                Kept.scale = float(self.last.weight.norm())

    return Kept(), cross_entropy


def kept_as_the_last_by_a_class():
    class Kept(State):
        def use(self, x):
            Kept.shown = float(x.sum())

    return Kept(), cross_entropy


def kept_by_a_module():
    class Kept(State):
        def use(self, x):
            global SCALE
            SCALE = SCALE or float(self.last.weight.norm())

    return Kept(), cross_entropy


def kept_by_a_function():
    scale = []

    def use(weight):
        if not scale:
            scale.append(float(weight.norm()))

    class Kept(State):
        def use(self, x):
            self.held(self.last.weight)

    return Kept(use), cross_entropy


def kept_in_a_backward_pass():
    class Passing(torch.autograd.Function):
        scale = None

        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, g):
            if Passing.scale is None:
                Passing.scale = float(g.norm())
            return g

    class Kept(nn.Linear):
        def forward(self, x):
            return Passing.apply(super().forward(x))

    return Kept(6, 4), cross_entropy


class ScaledLoss:
    scale = None

    def __call__(self, outputs, labels):
        if self.scale is None:
            self.scale = float(outputs.detach().abs().max())
        return cross_entropy(outputs / self.scale, labels)


def kept_by_a_loss():
    return nn.Linear(6, 4), ScaledLoss()


def kept_as_an_attribute_of_a_loss():
    def loss(outputs, labels):
        if not hasattr(loss, "scale"):
            loss.scale = float(outputs.detach().abs().max())
        return cross_entropy(outputs / loss.scale, labels)

    return nn.Linear(6, 4), loss


@pytest.mark.parametrize(
    ("build", "name"),
    [
        (kept_by_a_class, "class .*Kept"),
        (kept_as_the_last_by_a_class, "class .*Kept"),
        (kept_by_a_module, "class .*Kept"),
        (kept_by_a_function, "held"),
        (kept_in_a_backward_pass, "class .*Kept"),
        (kept_by_a_loss, "loss"),
        (kept_as_an_attribute_of_a_loss, "loss"),
    ],
)
def test_what_the_first_call_keeps_for_all_models_is_refused(build, name, monkeypatch):
    monkeypatch.setitem(globals(), "SCALE", None)
    model, loss = build()
    with pytest.raises(InputError, match=rf"model: its first call changes '{name}', which all"):
        ClippedSum(model, torch.randn(8, 6), LABELS, loss=loss)


def test_what_torch_compiles_at_the_first_call_is_no_change():
    """As ``torch.compile`` wraps a loss, without its compiler."""
    code = []

    def compiled(outputs, labels):
        code[:] = ["compiled"]
        return cross_entropy(outputs, labels)

    compiled._torchdynamo_orig_callable = cross_entropy
    agrees(plain(), torch.randn(8, 6), LABELS, compiled)


def test_what_a_call_on_whole_numbers_keeps_for_all_models_is_refused():
    class Kept(nn.Module):
        scale = None

        def __init__(self):
            super().__init__()
            self.table, self.last = nn.Embedding(20, 5), nn.Linear(5, 4)

        def forward(self, x):
            if Kept.scale is None:
                Kept.scale = float(self.table.weight.norm())
            return self.last(self.table(x).mean(1)) / Kept.scale

    with pytest.raises(InputError, match=r"model: its first call changes 'class .*Kept'"):
        ClippedSum(Kept(), torch.randint(20, (8, 6)), LABELS)


# Mixing that norms do not show


class Signed(nn.Module):
    def __init__(self, condition):
        super().__init__()
        self.last, self.condition = nn.Linear(6, 4), condition

    def forward(self, x):
        return self.last(x) * (2 if self.condition(x) else 1)


@pytest.mark.parametrize("kernel", ["auto", "torch", "explicit"])
@pytest.mark.parametrize("at", [0, 137, 299])
@pytest.mark.parametrize("value", [1.5, -1.5])
def test_a_record_that_is_unlike_in_one_entry_alone_tells_that_a_model_mixes(kernel, at, value):
    x = torch.randn(300, 6).clamp(-2, 2)
    x[:, 0] = x[:, 0].clamp(-1, 1)
    x[at, 0], x[at, 1:] = value, 0.1
    model = Signed(lambda x: ((x[:, 0] > 1.2) | (x[:, 0] < -1.2)).any())
    with pytest.raises(InputError, match="model: mixes the records of a batch"):
        ClippedSum(model, x, torch.arange(300) % 4, kernel=kernel)


def test_records_in_an_order_that_hides_mixing_are_taken_in_another():
    x = torch.randn(512, 6)
    x[:, 0] = torch.arange(512) >= 256
    model = Signed(lambda x: (x[:, 0] == 1).any())
    with pytest.raises(InputError, match="model: mixes the records of a batch"):
        ClippedSum(model, x, torch.arange(512) % 4)


# Silence


class Bag(nn.Module):
    def __init__(self):
        super().__init__()
        self.bag, self.last = nn.EmbeddingBag(20, 5), nn.Linear(5, 4)

    def forward(self, x):
        return self.last(self.bag(x))


def attention():
    layer = nn.TransformerEncoderLayer(6, 2, 12, dropout=0, batch_first=True)
    return nn.Sequential(nn.Unflatten(1, (1, 6)), layer, nn.Flatten(), nn.Linear(6, 4))


@pytest.mark.parametrize(
    ("build", "x"),
    [(Bag, torch.randint(20, (8, 6))), (attention, torch.randn(8, 6))],
)
def test_the_user_hears_nothing_of_torchs_own_trials(build, x):
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        agrees(build(), x, LABELS)
    assert all(str(one.message).startswith("no book-keeping rule") for one in told)


# Functions that read the model's own parameters, which a copy leaves where they are


def plain():
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 4))


def scaled_loss(model):
    return lambda o, y: cross_entropy(o / model[0].weight.detach().norm(), y)


def shown_loss(model):
    weight = model[2].bias.detach()
    return lambda o, y: cross_entropy(o, y) + weight.square().sum()


def hooked(model):
    layer = model[0]
    model[2].register_forward_pre_hook(lambda _, h: (h[0] / layer.weight.detach().norm(),))
    return cross_entropy


def hooked_backwards(model):
    layer = model[0]

    def scaled(h):
        h.register_hook(lambda g: g / float(layer.weight.norm()))
        return h

    model[1].register_forward_hook(lambda _, __, h: scaled(h) if h.requires_grad else h)
    return cross_entropy


@FALLS_BACK
@LOOPS
@pytest.mark.parametrize("reading", [scaled_loss, shown_loss, hooked, hooked_backwards])
@pytest.mark.parametrize("born", [False, True])
def test_functions_that_read_the_models_own_parameters_are_refused(reading, born):
    model, x = plain(), torch.randn(8, 6)
    if born:
        nn.init.zeros_(model[2].bias)
    loss = reading(model)
    before = [p.detach().clone() for p in model.parameters()]
    with pytest.raises(InputError, match="model: a copy's loss depends on the parameters of the"):
        ClippedSum(model, x, LABELS, loss=loss)
    assert all(map(torch.equal, before, model.parameters()))


@FALLS_BACK
def test_parameters_that_were_moved_have_their_own_values_again_bit_for_bit():
    """Autograd knows of no change."""
    x = torch.randn(8, 6)
    model = plain()
    model[0].weight.data[0, :2] = torch.tensor([-0.0, 1e-42])
    earlier = model(x).sum()
    before = [p.detach().clone().numpy().tobytes() for p in model.parameters()]
    ClippedSum(model, x, LABELS)
    assert [p.detach().numpy().tobytes() for p in model.parameters()] == before
    earlier.backward()


def test_functions_that_read_the_shapes_of_the_models_own_parameters_are_right():
    model, x = plain(), torch.randn(8, 6)
    agrees(model, x, LABELS, lambda o, y: cross_entropy(o / len(model[0].weight), y))
