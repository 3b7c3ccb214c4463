"""What a model does that a sum over its records cannot have: found before training, and told."""

import os
import subprocess
import sys
from contextlib import contextmanager

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from oracle import clipped, explicit
from torch import nn
from torch.nn.utils import prune

from hiddenstate.adversaries.canaries import blank
from hiddenstate.adversaries.initialisation import pretrained
from hiddenstate.dpsgd import memory, probe
from hiddenstate.dpsgd.clipping import (
    ClippedSum,
    cross_entropy,
    flat_parameters,
    refuse_on_device,
)
from hiddenstate.dpsgd.ensemble import Ensemble, scores
from hiddenstate.dpsgd.kernels.bookkeeping import BookKeeping
from hiddenstate.dpsgd.mechanism import Mechanism
from hiddenstate.dpsgd.probe import Probe
from hiddenstate.errors import InputError
from hiddenstate.sampling import FullBatch
from hiddenstate.streams import stream

FALLS_BACK = pytest.mark.filterwarnings("ignore:no book-keeping rule")
LOOPS = pytest.mark.filterwarnings("ignore:.*record by record")


@pytest.fixture(autouse=True)
def four_measured(monkeypatch):
    """Measure the memory of a kernel with four records, not with 128 too, which are many passes.

    It decides how many records a block has alone, and is tested in ``test_side_by_side``.
    """
    monkeypatch.setattr(memory, "slope", lambda work, few: 0.0)


class Net(nn.Module):
    """Two layers, and what a subclass does before, between and after them."""

    def __init__(self):
        super().__init__()
        self.one, self.other = nn.Linear(6, 5), nn.Linear(5, 3)

    def forward(self, x):
        return self.after(self.other(self.between(self.one(self.before(x))).tanh()))

    def before(self, x):
        return x

    def between(self, h):
        return h

    def after(self, logits):
        return logits


def table(records=9, name="probe"):
    rng = stream(0, name)
    return rng.normal(size=(records, 6)).astype(np.float32), rng.integers(3, size=records)


@contextmanager
def refused_or_right():
    """Where a kernel may refuse, what it gives must agree."""
    try:
        yield
    except InputError as error:
        assert str(error).startswith(("model:", "kernel:"))


def agrees(total: ClippedSum, model: nn.Module, x, y, norm=0.5) -> None:
    expected = clipped(explicit(model, x, y), norm)
    found = total(flat_parameters(model), np.arange(len(x)), norm)
    assert (found - expected).norm() <= 1e-5 * expected.norm()


# A record's gradient that depends on the records beside it


class Bytes(Net):
    """A common idiom: pixels in bytes are scaled, wherever one of the batch is in bytes."""

    def before(self, x):
        return x / 255 if x.max() > 20 else x


class Largest(Net):
    def before(self, x):
        return x / x.abs().amax().clamp(min=20)


class Guarded(Net):
    def between(self, h):
        return h / 10 if h.abs().max() > 20 else h


@FALLS_BACK
@LOOPS
@pytest.mark.parametrize("build", [Bytes, Largest, Guarded])
@pytest.mark.parametrize("kernel", ["auto", "torch", "explicit"])
@pytest.mark.parametrize("at", [0, 4, 250])
def test_one_unlike_record_among_many_tells_a_model_that_mixes_them(build, kernel, at):
    x, y = table(300)
    x[at] *= 200
    with pytest.raises(InputError, match="model: mixes the records of a batch"):
        ClippedSum(build(), x, y, kernel=kernel)


@LOOPS
@FALLS_BACK
def test_a_branch_on_values_is_taken_by_each_record_on_its_own():
    x, y = table()
    model = Bytes()
    with pytest.warns(UserWarning, match="record by record"):
        total = ClippedSum(model, x, y)
    assert total.kind == "loop"
    agrees(total, model, x, y)


@FALLS_BACK
@LOOPS
@pytest.mark.parametrize("kernel", ["auto", "torch", "explicit"])
def test_a_branch_that_only_later_parameters_take_is_taken_by_each_record_on_its_own(kernel):
    x, y = table()
    model = Guarded()
    with refused_or_right():
        total = ClippedSum(model, x, y, kernel=kernel)
        with torch.no_grad():
            model.one.weight.mul_(20)
        agrees(total, model, x, y)


class Empty(Net):
    """Parameters without entries."""

    def __init__(self):
        super().__init__()
        self.none, self.rows = nn.Parameter(torch.empty(0)), nn.Parameter(torch.empty(3, 0))

    def before(self, x):
        return x + self.none.sum() + self.rows.sum()


@FALLS_BACK
@pytest.mark.parametrize("kernel", ["auto", "explicit"])
def test_a_parameter_without_entries_changes_nothing(kernel):
    x, y = table()
    model = Empty()
    agrees(ClippedSum(model, x, y, kernel=kernel), model, x, y)


# What a call does besides the forwards of the classes


def plain():
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))


class Limited(nn.Sequential):
    def __call__(self, x):
        return super().__call__(x.clamp(-4, 4))


class Implied(nn.Sequential):
    def _call_impl(self, x):
        return super()._call_impl(x.clamp(-4, 4))

    __call__ = nn.Module._call_impl


def replaced():
    model = plain()
    model[0].forward = lambda x, layer=model[0]: F.linear(x.clamp(-4, 4), *layer.parameters())
    return model


@FALLS_BACK
@pytest.mark.parametrize("build", [lambda: Limited(*plain()), lambda: Implied(*plain()), replaced])
@pytest.mark.parametrize("kernel", ["auto", "torch", "explicit"])
def test_calls_of_their_own_are_run_where_no_probed_record_shows_them(build, kernel):
    x, y = table(40)
    x[3:30] *= 8
    model = build()
    with refused_or_right():
        agrees(ClippedSum(model, x, y, kernel=kernel), model, x, y)


HOOKS = {
    "forward": lambda m, _, h: h.clamp(-2, 2) if isinstance(m, nn.Linear) else None,
    "forward_pre": lambda m, h: (h[0].clamp(-4, 4),) if isinstance(m, nn.Linear) else None,
    "full_backward": lambda m, g, _: (g[0].clamp(-0.1, 0.1),) if g[0] is not None else None,
}


@FALLS_BACK
@LOOPS
@pytest.mark.parametrize("kernel", ["auto", "torch", "explicit"])
@pytest.mark.parametrize("way", HOOKS)
def test_hooks_for_all_modules_are_run_where_no_probed_record_shows_them(way, kernel):
    x, y = table(40)
    x[3:30] *= 8
    model = plain()
    handle = getattr(nn.modules.module, f"register_module_{way}_hook")(HOOKS[way])
    try:
        with refused_or_right():
            agrees(ClippedSum(model, x, y, kernel=kernel), model, x, y)
    finally:
        handle.remove()


@FALLS_BACK
@LOOPS
@pytest.mark.filterwarnings("ignore:Full backward hook is firing:UserWarning")
@pytest.mark.parametrize("kernel", ["auto", "torch", "explicit"])
@pytest.mark.parametrize("way", HOOKS)
@pytest.mark.parametrize("at", [0, 2])
def test_a_layer_s_own_hooks_are_run_where_no_probed_record_shows_them(way, kernel, at):
    x, y = table(40)
    x[3:30] *= 8
    model = plain()
    getattr(model[at], f"register_{way}_hook")(HOOKS[way])
    with refused_or_right():
        agrees(ClippedSum(model, x, y, kernel=kernel), model, x, y)


def test_a_hook_for_all_modules_that_counts_its_calls_is_refused():
    x, y = table()
    calls = []
    handle = nn.modules.module.register_module_forward_hook(lambda *_: calls.append(1))
    try:
        with pytest.raises(InputError, match="model: calling it changes '_global_forward_hooks'"):
            ClippedSum(plain(), x, y)
    finally:
        handle.remove()


class Outside(Net):
    """Large hidden values alone meet a parameter outside of its layer."""

    def between(self, h):
        return torch.where(h.abs() > 4, h * self.other.bias.norm(), h)


@FALLS_BACK
@pytest.mark.parametrize("kernel", ["auto", "torch", "explicit"])
def test_parameters_outside_of_their_layers_tell_where_some_records_alone_meet_them(kernel):
    x, y = table(40)
    x[3:30] *= 8
    model = Outside()
    with refused_or_right():
        agrees(ClippedSum(model, x, y, kernel=kernel), model, x, y)


# What a forward leaves behind


class Counting(Net):
    """Its temperature falls with every call, as in annealing."""

    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def after(self, logits):
        self.calls += 1
        return logits / (1 + 0 * self.calls)


class Remembering(Net):
    def __init__(self):
        super().__init__()
        self.seen = 0

    def after(self, logits):
        self.seen += 1
        return logits


class Caching(Net):
    """It makes what it needs once, as many models do."""

    mask = None

    def after(self, logits):
        if self.mask is None:
            self.mask = torch.ones(3, dtype=logits.dtype)
        return logits * self.mask.to(logits)


@pytest.mark.parametrize("kernel", ["auto", "explicit"])
@pytest.mark.parametrize(("build", "name"), [(Counting, "calls"), (Remembering, "seen")])
def test_a_forward_that_changes_its_model_is_refused(build, name, kernel):
    x, y = table()
    with pytest.raises(InputError, match=rf"model: calling it changes '{name}'"):
        ClippedSum(build(), x, y, kernel=kernel)


def test_what_is_made_by_the_first_call_alone_is_no_change():
    x, y = table()
    agrees(ClippedSum(model := Caching(), x, y), model, x, y)


class Scaled(Net):
    """It keeps the norm of its first parameters, or its first records' largest number."""

    def __init__(self, kept):
        super().__init__()
        self.kept, self.scale = kept, None

    def after(self, logits):
        if self.scale is None:
            self.scale = self.kept(self)
        return logits / self.scale

    def before(self, x):
        self.records = x.detach()
        return x


@pytest.mark.parametrize(
    "kept",
    [
        lambda net: net.one.weight.detach().norm(),
        lambda net: float(net.one.weight.norm()),
        lambda net: net.other.bias.detach(),
        lambda net: net.records.abs().max(),
    ],
)
@pytest.mark.parametrize("kernel", ["auto", "explicit"])
def test_what_the_first_call_makes_of_parameters_or_records_is_refused(kept, kernel):
    x, y = table()
    model = Scaled(kept)
    with pytest.raises(InputError, match="model: its first call makes 'scale'"):
        ClippedSum(model, x, y, kernel=kernel)
    assert model.scale is None


class Showing(Net):
    """What each call gives is kept to be looked at, and read by none."""

    def between(self, h):
        self.shown = float(h.abs().max())
        return h


@FALLS_BACK
@LOOPS
def test_what_each_call_makes_anew_is_no_change():
    x, y = table()
    agrees(ClippedSum(model := Showing(), x, y), model, x, y)


def test_spectral_norm_in_training_mode_is_refused_by_the_buffer_that_it_changes():
    x, y = table()
    model = nn.Sequential(nn.utils.parametrizations.spectral_norm(nn.Linear(6, 3)))
    with pytest.raises(InputError, match=r"changes '0\.parametrizations\.weight\.0\._[uv]'"):
        ClippedSum(model, x, y)


# What the backward pass alone does


class Backwards(torch.autograd.Function):
    """Its outputs are its inputs; ``change`` is made of the gradient."""

    @staticmethod
    def forward(ctx, h, change):
        ctx.change = change
        return h.clone()

    @staticmethod
    def backward(ctx, g):
        return ctx.change(g), None


def changed(change):
    """A network whose hidden gradient is changed by a function of its own."""
    return type("Changed", (Net,), {"between": lambda self, h: Backwards.apply(h, change)})


def by_numpy(g):
    return g * float(np.random.random() > 1e-4)  # noqa: NPY002


def by_the_system(g):
    return g * (1 + int.from_bytes(os.urandom(1), "little"))


@pytest.mark.parametrize(
    "change", [lambda g: g * (torch.rand_like(g) > 1e-4), by_numpy, by_the_system]
)
@pytest.mark.parametrize("kernel", ["auto", "explicit"])
def test_chance_in_the_backward_pass_alone_is_refused(change, kernel):
    x, y = table()
    with pytest.raises(InputError, match=r"model: .*expected no dropout or other chance in it"):
        ClippedSum(changed(change)(), x, y, kernel=kernel)


class Hooked(Net):
    """Its hidden gradient is clipped by the whole batch's norm."""

    def between(self, h):
        if h.requires_grad:
            h.register_hook(lambda g: g / (g.norm() / 0.2).clamp(min=1.0))
        return h


def straight(h):
    other = h.roll(4, 0)
    return h + (other - other.detach())


class Straight(Net):
    """One record's hidden values have another's gradient, added to their own."""

    between = staticmethod(straight)


class Born(Straight):
    """As pre-trained layers with a new last one that is zero, where no hidden gradient shows."""

    def __init__(self):
        super().__init__()
        nn.init.zeros_(self.other.weight)


@FALLS_BACK
@LOOPS
@pytest.mark.parametrize(
    "build",
    [
        Hooked,
        Straight,
        Born,
        changed(lambda g: g if len(g) <= 4 else g - g.mean(0)),
        changed(lambda g: g.flip(0)),
        changed(lambda g: g.cumsum(0) if len(g) > 2 else g),
    ],
)
@pytest.mark.parametrize("kernel", ["auto", "torch", "explicit"])
@pytest.mark.parametrize("records", [3, 40])
def test_records_mixed_in_the_backward_pass_alone_are_refused(build, kernel, records):
    x, y = table(records)
    with pytest.raises(InputError, match="model: mixes the records of a batch"):
        ClippedSum(build(), x, y, kernel=kernel)


@pytest.mark.parametrize(("most", "records"), [(0, 2), (7 * 8 * 53, 7), (10**9, 32)])
def test_of_large_models_fewer_records_are_compared_together(most, records, monkeypatch):
    monkeypatch.setattr(probe, "_BYTES", most)
    x, y = map(torch.from_numpy, table(40))
    assert sum(p.numel() for p in Net().parameters()) == 53
    assert len(Probe(Net(), x, y, cross_entropy, relabel=True)._many[1]) == records
    with pytest.raises(InputError, match="model: mixes the records of a batch"):
        Probe(Hooked(), x, y, cross_entropy, relabel=True)


def test_a_loss_that_mixes_records_in_its_backward_pass_alone_is_refused():
    def loss(outputs, y):
        return cross_entropy(straight(outputs), y)

    x, y = table(40)
    with pytest.raises(InputError, match="model: mixes the records of a batch"):
        ClippedSum(plain(), x, y, loss=loss)


@FALLS_BACK
@LOOPS
@pytest.mark.parametrize("kernel", ["auto", "explicit"])
def test_gradients_that_each_record_changes_on_its_own_are_right(kernel):
    x, y = table(40)
    model = changed(lambda g: g / (g.norm(dim=1, keepdim=True) / 0.2).clamp(min=1.0))()
    with refused_or_right():
        agrees(ClippedSum(model, x, y, kernel=kernel), model, x, y)


# Many models at once, by torch.func


def unlike(kernel_of_models: ClippedSum, thetas: torch.Tensor, records: int) -> float:
    """How far sums side by side are from those of each model alone, relatively."""
    alone = torch.stack([kernel_of_models(t, np.arange(records), 0.5) for t in thetas])
    together = kernel_of_models.side_by_side(thetas, torch.arange(records), None, 0.5)
    return float((together - alone).norm() / alone.norm())


@pytest.mark.whole
@FALLS_BACK
@pytest.mark.parametrize("models", [2, 5, 8])
def test_explicit_gradients_of_many_models_are_probed_too(models):
    """torch's nested vmap of a PReLU is wrong where there are as many models as records.

    A probe on whose records a PReLU does nothing does not show it, in six of a hundred starts.
    """
    rng = stream(0, "prelu")
    for start in range(10):
        torch.manual_seed(start)
        model = nn.Sequential(nn.Linear(6, 2), nn.PReLU(), nn.Linear(2, 3))
        x, y = table(8)
        total = ClippedSum(model, x, y, kernel="explicit")
        theta = flat_parameters(model)
        noise = torch.from_numpy(rng.normal(size=(models, len(theta)))).float()
        assert unlike(total, theta + noise, 8) <= 1e-5


@FALLS_BACK
def test_scores_of_a_prelu_side_by_side_are_those_of_one_model_at_a_time():
    x, y = table(8)
    model = nn.Sequential(nn.Linear(6, 5), nn.PReLU(), nn.Linear(5, 3))
    mechanism = Mechanism(
        sampling=FullBatch(), steps=4, learning_rate=0.1, clipping_norm=1.0, noise_multiplier=1.0,
        adjacency="replace",
    )  # fmt: skip
    audit = Ensemble(model, mechanism, x, y, blank((6,), 2), flat_parameters(model))
    beside, alone = (
        scores(audit, models=8, seed=1, side_by_side=side)["score"] for side in (True, False)
    )
    np.testing.assert_allclose(beside, alone, rtol=1e-4, atol=1e-4)


# Refusals that say what to do


def pruned():
    model = Net()
    prune.l1_unstructured(model.one, "weight", amount=0.3)
    return model


def normed():
    with pytest.warns(FutureWarning):
        return nn.Sequential(nn.utils.weight_norm(nn.Linear(6, 3)))


@pytest.mark.parametrize(
    ("build", "hint"),
    [(pruned, r"one\.weight .*prune\.remove"), (normed, r"0\.weight .*parametrizations")],
)
@pytest.mark.parametrize("use", ["sum", "pre-training"])
def test_models_that_torch_cannot_copy_are_refused_with_what_to_do(build, hint, use):
    x, y = table()
    model = build()
    with pytest.raises(InputError, match=f"model: {hint}"):
        if use == "sum":
            ClippedSum(model, x, y)
        else:
            pretrained(
                model, x, y, start=flat_parameters(model), epochs=1, batch_size=3,
                learning_rate=0.1, rng=stream(0, "p"),
            )  # fmt: skip


class Compiled(nn.Module):
    """As ``torch.compile`` wraps a model, without its compiler."""

    def __init__(self, model):
        super().__init__()
        self._orig_mod = model

    def forward(self, x):
        return self._orig_mod(x)


def test_compiled_and_scripted_models_are_refused_for_those_they_were_made_from(monkeypatch):
    x, y = table()
    with pytest.raises(InputError, match=r"model: .*torch\.compile.*_orig_mod"):
        ClippedSum(Compiled(Net()), x, y)
    with pytest.warns(FutureWarning):
        scripted = torch.jit.script(nn.Sequential(nn.Linear(6, 3)))
    with pytest.raises(InputError, match=r"model: .*script"):
        ClippedSum(scripted, x, y)


class Elsewhere(Net):
    """A tensor that stays on the processor when the model moves."""

    def __init__(self):
        super().__init__()
        self.shift = torch.ones(5)

    def between(self, h):
        return h + self.shift


@pytest.mark.parametrize("kernel", ["torch", "explicit"])
def test_tensors_that_do_not_move_with_the_model_are_refused_with_what_to_do(kernel):
    x, y = table()
    with pytest.raises(InputError, match=r"model: fails on device 'meta' .*register_buffer"):
        ClippedSum(Elsewhere(), x, y, kernel=kernel, device="meta")


# A loop over records is the last resort


class Recurrent(nn.Module):
    """Begins with a state of ones, which the rule of recurrent layers does not know."""

    def __init__(self, kind):
        super().__init__()
        self.memory, self.last = kind(2, 4, batch_first=True), nn.Linear(4, 3)

    def forward(self, x):
        state = torch.ones(1, len(x), 4).to(x)
        state = (state, state) if isinstance(self.memory, nn.LSTM) else state
        return self.last(self.memory(x.unflatten(1, (3, 2)), state)[0][:, -1])


@pytest.mark.whole
@FALLS_BACK
@LOOPS
@pytest.mark.parametrize(
    ("kernel", "kind"),
    [
        *(("auto", nn.LSTM), ("auto", nn.RNN), ("explicit", nn.LSTM), ("explicit", nn.RNN)),
        pytest.param("auto", nn.GRU, marks=pytest.mark.slow),
        pytest.param("explicit", nn.GRU, marks=pytest.mark.slow),
    ],
)
def test_what_torch_func_does_not_know_is_taken_record_by_record(kind, kernel):
    x, y = table()
    model = Recurrent(kind)
    total = ClippedSum(model, x, y, kernel=kernel)
    # torch maps its LSTM over records in float32, and fails in float64.
    assert total.kind == ("explicit" if kind is nn.LSTM else "loop")
    agrees(total, model, x, y)
    theta = flat_parameters(model)
    assert unlike(total, torch.stack([theta, 1.1 * theta, -theta]), 9) <= 1e-6


@pytest.mark.whole
@FALLS_BACK
def test_the_loop_is_announced_once_with_its_reason():
    x, y = table()
    with pytest.warns(UserWarning, match=r"record by record.*\(.+\)") as told:
        ClippedSum(Recurrent(nn.RNN), x, y)
    assert sum("record by record" in str(one.message) for one in told) == 1


# On the device itself


def test_a_kernel_that_is_wrong_on_its_device_is_refused(monkeypatch):
    """Here the processor stands in for the device; a fault of a device shows there alone."""
    x, y = table()
    model = Net()
    total = ClippedSum(model, x, y, kernel="torch")
    probe = Probe(model, torch.from_numpy(x), torch.from_numpy(y), cross_entropy, relabel=True)
    refuse_on_device(total.kernel, probe)
    right = BookKeeping.gradients

    class Off:
        def __init__(self, gradients):
            self.gradients = gradients

        def weighted_sum(self, weights):
            return 1.01 * self.gradients.weighted_sum(weights)

        def squared_norms(self):
            return 1.01**2 * self.gradients.squared_norms()

    monkeypatch.setattr(BookKeeping, "gradients", lambda *given: Off(right(*given)))
    with pytest.raises(InputError, match=r"device: on 'cpu' .* 'torch' are not those of float64"):
        refuse_on_device(total.kernel, probe)


def test_no_compiler_is_imported():
    """Torch's takes a second of every job that trains."""
    code = (
        "import sys, torch; from hiddenstate.dpsgd.clipping import ClippedSum; "
        "ClippedSum(torch.nn.Linear(3, 2), torch.eye(3), torch.tensor([0, 1, 0])); "
        "sys.exit('torch._dynamo' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
