"""Models side by side, as an accelerator trains them; here on a CPU and on torch's meta device."""

import functools
import runpy
from pathlib import Path

import numpy as np
import oracle
import pytest
import torch
from torch import nn

from hiddenstate import models
from hiddenstate.adversaries.canaries import blank
from hiddenstate.adversaries.gradient_canaries import Inserted, Periodic, RandomCoordinate
from hiddenstate.adversaries.initialisation import average_case
from hiddenstate.dpsgd import ensemble, rules
from hiddenstate.dpsgd import strategies as module
from hiddenstate.dpsgd.clipping import ClippedSum, flat_parameters
from hiddenstate.dpsgd.ensemble import Ensemble, Run, last_iterate, last_iterates, scores
from hiddenstate.dpsgd.kernels.base import Problem
from hiddenstate.dpsgd.mechanism import Mechanism
from hiddenstate.dpsgd.strategies import arranged, free_memory
from hiddenstate.errors import InputError
from hiddenstate.sampling import Cyclic, FullBatch, Poisson
from hiddenstate.streams import stream

pytestmark = pytest.mark.usefixtures("one_sum")
BENCHMARK = runpy.run_path(str(Path(__file__).parents[2] / "benchmarks" / "dispatches.py"))


STEPS = 5
CANARIES = {
    "record": blank((1, 8, 8), 9),
    "gradient": Inserted(RandomCoordinate(), Periodic(2)),
    "sampled gradient": Inserted(RandomCoordinate(), None),
}
INSERTIONS = {"gradient": 2}


def make(sampling=None, canary=None, initial=None, insertions=None) -> Ensemble:
    """An audit of a small CNN on 20 records."""
    rng = stream(0, "side by side")
    model = models.digits_cnn()
    mechanism = Mechanism(
        sampling=sampling or FullBatch(),
        steps=STEPS,
        learning_rate=0.02,
        clipping_norm=1.0,
        noise_multiplier=2.0,
        adjacency="add_or_remove",
        insertions=insertions,
    )
    x, y = rng.random((20, 1, 8, 8)).astype(np.float32), rng.integers(10, size=20)
    start = average_case(model, stream(0, "start")) if initial is None else initial
    return Ensemble(model, mechanism, x, y, canary or CANARIES["record"], start)


def run(audit: Ensemble, world="in", index=0) -> Run:
    return Run(world, 0, index, audit, audit.clipped_sum(kernel="torch"), 1, ("test",))


# Sums of clipped gradients


class Frozen(nn.Sequential):
    """Layers of which one has only its bias trained, and one only its weight."""

    def __init__(self):
        super().__init__(*models.digits_cnn())
        self[0].weight.requires_grad_(False)
        self[-1].bias.requires_grad_(False)


class Twice(nn.Module):
    """Two layers read the records themselves, and so does a sum; the ReLU writes in place."""

    def __init__(self):
        super().__init__()
        self.one, self.other = nn.Conv2d(2, 2, 3, padding=1), nn.Conv2d(2, 2, 1, bias=False)
        self.last = nn.Linear(50, 3)

    def forward(self, x):
        return self.last(input=(torch.relu_(self.one(x)) + self.other(x) + x).flatten(1))


class Viewing(nn.Sequential):
    """It looks at a convolution's output as rows, in a way that depends on how images lie."""

    def forward(self, x):
        return self[1](self[0](x).view(len(x), -1).tanh_())


LIMIT = functools.partial(nn.Hardtanh, -0.2, 0.4, inplace=True)  # it writes into the records


NETWORKS = {
    "frozen": (Frozen, (1, 8, 8)),
    "twice": (Twice, (2, 5, 5)),
    "one layer": (lambda: nn.Linear(5, 3), (5,)),
    "blocks": (lambda: oracle.residual_blocks(nn.LayerNorm(16)), (3, 8, 8)),
    "view": (lambda: Viewing(nn.Conv2d(1, 4, 3), nn.Linear(36, 3)), (1, 5, 5)),
    "in place": (lambda: nn.Sequential(LIMIT(), nn.Linear(5, 3)), (5,)),
    "in place, a view": (lambda: nn.Sequential(nn.Flatten(), LIMIT(), nn.Linear(8, 3)), (2, 4)),
    "strides": (
        lambda: nn.Sequential(
            nn.Conv2d(2, 4, (3, 2), stride=(2, 1), padding=(1, 0), dilation=(1, 2)),
            nn.Tanh(),
            nn.Conv2d(4, 3, (2, 3), stride=2, padding=(0, 1), dilation=(2, 1)),
            nn.Flatten(),
            nn.Linear(3 * 1 * 3, 3),
        ),
        (2, 7, 7),
    ),
}


def network(name: str) -> tuple[ClippedSum, torch.Tensor]:
    """(sum, parameters (3, p) of three models) in float64."""
    make, shape = NETWORKS[name]
    rng = stream(0, "side by side", name)
    model = make().double()
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(torch.from_numpy(rng.normal(size=p.shape) / 2))
    total = ClippedSum(model, rng.random((7, *shape)), rng.integers(3, size=7), kernel="torch")
    assert total.kind == "torch"
    theta = flat_parameters(model)
    return total, torch.stack([theta, 1.1 * theta, -theta])


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("block", [3, 100])
def test_models_side_by_side_get_what_each_gets_alone(name, block):
    total, thetas = network(name)
    alone = torch.stack([total(theta, np.arange(7), 0.5) for theta in thetas])
    assert (alone[0] - alone[1]).norm() > 1e-3 * alone[0].norm()
    total.block = block
    together = total.side_by_side(thetas, torch.arange(7), None, 0.5)
    torch.testing.assert_close(together, alone, rtol=1e-9, atol=1e-12)
    indices = torch.tensor([[0, 1, 2, 6], [3, 5, 0, 0], [4, 0, 0, 0]])
    weights = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0], [1, 0, 0, 0]], dtype=torch.float64)
    batches = ([0, 1, 2, 6], [3, 5], [4])
    alone = torch.stack([total(t, np.array(b), 0.5) for t, b in zip(thetas, batches, strict=True)])
    together = total.side_by_side(thetas, indices, weights, 0.5)
    torch.testing.assert_close(together, alone, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    ("name", "indices", "weights", "drawn"),
    [
        ("indices", torch.arange(6).view(1, 6), None, None),
        ("indices", torch.arange(6).view(6, 1), None, None),
        ("weights", torch.arange(6), torch.ones(3, 1), None),
        ("weights", torch.arange(6), torch.ones(1, 6), None),
        ("weights", torch.arange(6).expand(3, 6), torch.ones(6), None),
        ("drawn", torch.arange(6), None, torch.zeros(3, 6, 1, 3, dtype=torch.long)),
    ],
)
def test_indices_and_weights_are_of_each_model_or_refused(name, indices, weights, drawn):
    """Torch would regroup or repeat them."""
    total, thetas = network("blocks")
    with pytest.raises(InputError, match=f"^{name}: got shape"):
        total.side_by_side(thetas, indices, weights, 0.5, drawn)


@pytest.mark.parametrize("name", ["frozen", "twice", "blocks"])
def test_gathered_blocks_serve_again_and_the_first_layers_read_once(name, monkeypatch):
    total, thetas = network(name)
    total.block = 4
    firsts = [tap.name for tap in total.kernel.layers if tap.first]
    assert firsts == {"frozen": ["0"], "twice": ["one", "other"], "blocks": ["0"]}[name]
    read = []
    patches = rules._patches
    monkeypatch.setattr(
        rules, "_patches", lambda layer, x, *rest: read.append(len(x)) or patches(layer, x, *rest)
    )
    blocks = list(total.many.blocks(torch.arange(7)))
    first = total.many.sums(thetas, blocks, 0.5)
    # Shared records are unfolded once for all three models, the others' inputs for each.
    assert sorted(read)[: 2 * len(firsts)] == [3] * len(firsts) + [4] * len(firsts)
    once = len(read)
    again = total.many.sums(thetas.flip(0), blocks, 0.5)
    assert len(read) == 2 * once - 2 * len(firsts)
    torch.testing.assert_close(again.flip(0), first, rtol=1e-9, atol=1e-12)


def test_records_that_the_model_writes_into_are_not_kept():
    for name in NETWORKS:
        total, thetas = network(name)
        before = total.kernel.problem.x.clone()
        found = total.many.gathered_bytes(3, torch.arange(7))
        assert (found == np.inf) == name.startswith("in place")
        total.side_by_side(thetas, torch.arange(7), None, 0.5)
        assert torch.equal(total.kernel.problem.x, before)


def test_blocks_are_of_about_one_size():
    total, _ = network("frozen")
    total.block = 3
    assert [len(block.y) for block in total.many.blocks(torch.arange(7))] == [2, 2, 3]
    assert list(total.many.blocks(torch.arange(0))) == []


# Memory


def test_the_memory_is_what_a_device_has_free(monkeypatch):
    assert free_memory(torch.device("cpu")) == 2**31
    for name, value in (("memory_reserved", 50), ("memory_allocated", 20)):
        monkeypatch.setattr(torch.cuda, name, lambda device, value=value: value)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (970, 4000))
    assert free_memory(torch.device("cuda", 1)) == 800


def test_models_go_side_by_side_first_and_blocks_grow_then():
    total = make().clipped_sum(kernel="torch")
    one = module.model_bytes(total)

    def reckoned(together, block):
        return together * (block * total.activations + 32 * total.parameters)

    for memory in np.geomspace(one / 10, 3e3 * one, 60):
        together, block = arranged(total, 100, memory)
        assert 1 <= together <= 100 and block >= 1
        room = memory * 7 / 8
        if together > 1:
            assert reckoned(together, total.block) <= room and block >= total.block
        if together < 100:  # no more would fit, but that groups are of about one size
            groups = -(-100 // together)
            assert reckoned(-(-100 // (groups - 1)), total.block) > room
        if block > 1:
            assert reckoned(together, block) <= room < reckoned(together, block + 1)
    # No tensor has more entries than 32 bits count.
    together, block = arranged(total, 100, 1e15)
    assert together == 100
    assert 100 * block * total.widest < 2**31 <= 100 * (block + 1) * total.widest
    assert total.widest == max(total.kernel.floats())


LARGER = {
    "mnist_cnn": (models.mnist_cnn, (1, 28, 28)),
    "digits_cnn": (models.digits_cnn, (1, 8, 8)),
    "digits_resnet": (models.digits_resnet, (1, 8, 8)),
    "fcnn": (models.fcnn, (8,)),
}


@pytest.mark.whole
@pytest.mark.parametrize("name", LARGER)
@pytest.mark.parametrize("own", [False, True])
def test_the_estimate_of_the_memory_is_above_what_is_allocated(name, own):
    model, x, y = oracle.problem(name, *LARGER[name], 2)
    total = ClippedSum(model, x, y, kernel="torch", device="meta")
    total.block = 300
    thetas = torch.empty(5, total.parameters, device="meta")
    indices = torch.empty((5, 300) if own else 300, dtype=torch.int64, device="meta")
    work = functools.partial(total.side_by_side, thetas, indices, None, 1.0)
    peak = BENCHMARK["counted"](work).peak
    # The last iterates, their noise and sums are reckoned with, and no part of this call.
    assert 5 * module.model_bytes(total) / 1.5 < peak < 5 * module.model_bytes(total)


@pytest.mark.whole
@pytest.mark.parametrize("where", ["cpu", "meta"])
def test_scores_arrange_models_and_blocks_by_the_memory(where, monkeypatch):
    audit = make(initial=functools.partial(average_case, models.digits_cnn()))
    total = audit.clipped_sum(where, "torch")
    found = []

    def train(runs, _stop, *, kept):
        found.append((len(runs), runs[0].gradients.block, kept))
        return torch.stack([run.initial for run in runs])

    monkeypatch.setattr(module, "last_iterates", train)
    monkeypatch.setattr(Run, "score", lambda run, last: 0.0)
    for times in (2.5, 30):
        memory = times * module.model_bytes(total)
        monkeypatch.setattr(ensemble, "free_memory", lambda device, memory=memory: memory)
        together, block = arranged(total, 7, memory)
        assert block > total.block
        found.clear()
        scores(audit, models=7, seed=0, device=where, side_by_side=True)
        block = total.block if where == "cpu" else block
        sizes = [2, 2, 2, 1] if times == 2.5 else [7]
        assert together == sizes[0]
        assert found == [(size, block, memory / 8) for size in sizes * 2]
    found.clear()
    scores(audit, models=7, seed=0, device=where, side_by_side=True, chunk=3, memory=memory)
    assert [size for size, *_ in found] == [3, 3, 1] * 2


# Uploads


def on_meta(audit, monkeypatch, count=3):
    """Runs whose tensors have no numbers: whatever reads one back fails."""
    monkeypatch.setattr(module, "_noise", lambda runs: torch.Tensor.normal_)
    runs = [run(audit, "in", i) for i in range(count)]
    total = audit.clipped_sum("meta", "torch")
    for one in runs:
        one.fixed, one.gradients, one.initial = one.fixed, total, one.initial.to("meta")
    return runs


@pytest.mark.whole
@pytest.mark.parametrize("canary", CANARIES)
@pytest.mark.parametrize("sampling", [FullBatch(), Poisson(0.4), Cyclic(6)])
def test_nothing_is_read_back_within_a_training(sampling, canary, monkeypatch):
    audit = make(sampling, CANARIES[canary], insertions=INSERTIONS.get(canary))
    assert last_iterates(on_meta(audit, monkeypatch)).shape == (3, 3690)
    tensor = torch.empty(1, device="meta")
    with pytest.raises((RuntimeError, NotImplementedError)):
        tensor.item()


STEP = 3 * 21 * 2 * 12
"""Bytes of three full batches' indices and weights, twice."""


@pytest.mark.parametrize(
    ("sampling", "kept", "uploads"),
    [
        (FullBatch(), 1e9, 1),
        (FullBatch(), 1, 1),
        (Cyclic(6), 1e9, 1),
        (Cyclic(6, shuffled_once=True), 1e9, 2),
        (Poisson(0.4), 1e9, 2),
        (Poisson(0.4), 1, 2 * STEPS),
        (Poisson(0.4), STEP * 2, 6),
    ],
)
def test_batches_are_uploaded_once_if_there_is_room(sampling, kept, uploads, monkeypatch):
    audit = make(sampling)
    runs = [run(audit, "in", i) for i in range(3)]
    if isinstance(sampling, Poisson):
        longest = max(len(batch) for one in runs for batch in one.trained_on)
        kept = kept * longest / 21 if kept > 1 else kept
    calls = []
    there = module._Batches._there
    monkeypatch.setattr(
        module._Batches, "_there", lambda self, values: calls.append(1) or there(self, values)
    )
    together = last_iterates(runs, kept=kept)
    assert len(calls) == uploads
    for alone, side in zip(map(last_iterate, runs), together, strict=True):
        torch.testing.assert_close(side, alone, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(("room", "gathers"), [(1, 2), (0.99, 2 * STEPS)])
def test_a_full_batch_is_gathered_once_if_there_is_room(room, gathers, monkeypatch):
    audit = make()
    runs = [run(audit, "in", i) for i in range(3)]
    needed = runs[0].gradients.many.gathered_bytes(3, torch.arange(21))
    # Each model's records, and what the first layer reads, for all models once.
    assert needed == 4 * 21 * (3 * 64 + 64 * (9 + 16))
    calls = []
    gathered = Problem.gathered
    monkeypatch.setattr(
        Problem, "gathered", lambda self, *of: calls.append(1) or gathered(self, *of)
    )
    for one in runs:
        one.gradients.block = 11
    together = last_iterates(runs, kept=room * needed)
    assert len(calls) == gathers
    for alone, side in zip(map(last_iterate, runs), together, strict=True):
        torch.testing.assert_close(side, alone, rtol=1e-4, atol=1e-6)


@pytest.mark.whole
def test_a_step_dispatches_a_fifth_of_what_it_did(monkeypatch):
    """Of the MNIST CNN, ten models and 1,000 records in 24 GiB; ``benchmarks/dispatches.py``."""
    name = "mnist_cnn"
    monkeypatch.setattr(module, "_noise", lambda runs: torch.Tensor.normal_)
    x, y = BENCHMARK["records"](name)
    total = ClippedSum(models.mnist_cnn(), x, y, device="meta", kernel="torch")
    together, total.block = arranged(total, 10, 24 * 2**30)
    two, three = (BENCHMARK["training"](name, total, together, n, 24 * 2**30) for n in (2, 3))
    step = (three.views - two.views).total() + (three.kernels - two.kernels).total()
    views, kernels, blocks = BENCHMARK["BEFORE"][name]
    assert together == 10 and 0 < 5 * step < blocks * (views + kernels)
