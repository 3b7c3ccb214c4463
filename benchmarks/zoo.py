"""Models from outside: which way their clipped sums take, how exact it is, and how fast.

For each model the kernel that ``ClippedSum`` chooses, its error against a loop over records in
float64, and its speed as a ratio to the better of two others in the same process: ``vmap`` of
``grad`` by torch.func, and Opacus's hooks. One thread; each takes the records in blocks of its own
best size of those tried. The three take turns, and of each the fastest call counts, in processor
seconds. A ratio above 1 is faster than both.

    OMP_NUM_THREADS=1 python benchmarks/zoo.py [--quick] [name ...]
"""

import argparse
import copy
import math
import time
import warnings
from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from hiddenstate import models
from hiddenstate.dpsgd.clipping import ClippedSum, cross_entropy, flat_parameters

RECORDS, BLOCKS = 64, (16, 64)


class Classifier(nn.Module):
    """Tokens, embedded and averaged, or given to a recurrent layer."""

    def __init__(self, memory: nn.Module | None = None):
        super().__init__()
        self.embedding, self.memory = nn.Embedding(1000, 32), memory
        self.last = nn.Linear(32, 4)

    def forward(self, x: Tensor) -> Tensor:
        """Logits of tokens (records, length)."""
        words = self.embedding(x)
        return self.last(words.mean(1) if self.memory is None else self.memory(words)[0][:, -1])


class Attention(nn.Module):
    """A block of a transformer, its projections layers of their own."""

    def __init__(self, width: int = 32):
        super().__init__()
        self.norm, self.project = nn.LayerNorm(width), nn.Linear(width, 3 * width)
        self.out, self.last = nn.Linear(width, width), nn.Linear(width, 4)

    def forward(self, x: Tensor) -> Tensor:
        """Logits of sequences (records, length, width)."""
        q, k, v = self.project(self.norm(x)).chunk(3, -1)
        h = x + self.out(nn.functional.scaled_dot_product_attention(q, k, v))
        return self.last(h.mean(1))


def convolutions(act: type[nn.Module]) -> nn.Module:
    """A plain network for 3 x 32 x 32."""
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), act(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), act(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(32 * 64, 4),
    )  # fmt: skip


def perceptron(act: type[nn.Module]) -> nn.Module:
    """Two hidden layers for 64 features."""
    return nn.Sequential(nn.Linear(64, 128), act(), nn.Linear(128, 128), act(), nn.Linear(128, 4))


def depthwise() -> nn.Module:
    """Separable convolutions with group norm."""

    def block(inputs: int, outputs: int, stride: int) -> list[nn.Module]:
        return [
            nn.Conv2d(inputs, inputs, 3, stride, 1, groups=inputs, bias=False),
            nn.Conv2d(inputs, outputs, 1, bias=False), nn.GroupNorm(4, outputs), nn.ReLU(),
        ]  # fmt: skip

    first = nn.Conv2d(3, 16, 3, 1, 1)
    blocks = [*block(16, 32, 2), *block(32, 64, 2), *block(64, 64, 1)]
    return nn.Sequential(first, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 4))


def sequence() -> nn.Module:
    """Convolutions along a sequence of 8 x 64."""
    return nn.Sequential(
        nn.Conv1d(8, 32, 5, padding="same"), nn.ReLU(), nn.Conv1d(32, 32, 5, stride=2), nn.ReLU(),
        nn.Flatten(), nn.Linear(32 * 30, 4),
    )  # fmt: skip


def transposed() -> nn.Module:
    """Down and up again, on 3 x 32 x 32."""
    return nn.Sequential(
        nn.Conv2d(3, 16, 4, 2, 1), nn.PReLU(), nn.ConvTranspose2d(16, 8, 4, 2, 1), nn.ReLU(),
        nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(128, 4),
    )  # fmt: skip


def vision(name: str) -> nn.Module:
    """A network of torchvision's, batch norm in eval mode."""
    import torchvision

    return torchvision.models.get_model(name, num_classes=4).eval()


IMAGE, TOKENS = (3, 32, 32), (24,)
ZOO: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "MLP": (lambda: models.fcnn(64, 128, 4), (64,)),
    "MLP, SiLU": (lambda: perceptron(nn.SiLU), (64,)),
    "MLP, GELU": (lambda: perceptron(nn.GELU), (64,)),
    "CNN, ReLU": (lambda: convolutions(nn.ReLU), IMAGE),
    "CNN, GELU": (lambda: convolutions(nn.GELU), IMAGE),
    "CNN, SiLU": (lambda: convolutions(nn.SiLU), IMAGE),
    "depthwise CNN": (depthwise, IMAGE),
    "Conv1d net": (sequence, (8, 64)),
    "ConvTranspose2d, PReLU": (transposed, IMAGE),
    "Embedding classifier": (Classifier, TOKENS),
    "attention": (Attention, (24, 32)),
    "LSTM": (lambda: Classifier(nn.LSTM(32, 32, batch_first=True)), TOKENS),
    "GRU": (lambda: Classifier(nn.GRU(32, 32, batch_first=True)), TOKENS),
    "RNN": (lambda: Classifier(nn.RNN(32, 32, batch_first=True)), TOKENS),
    "resnet18, batch norm": (lambda: vision("resnet18"), IMAGE),
    "mobilenet_v2, batch norm": (lambda: vision("mobilenet_v2"), IMAGE),
    "shufflenet, batch norm": (lambda: vision("shufflenet_v2_x0_5"), IMAGE),
}


def reference(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Per-sample gradients in float64, one record after the other; (records, p)."""
    model = copy.deepcopy(model).double()
    rows = []
    for record, label in zip(x, y, strict=True):
        record = record.double() if record.is_floating_point() else record
        loss = cross_entropy(model(record[None]), label[None]).sum()
        rows.append(
            torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(model.parameters()))])
        )
    return torch.stack(rows)


def clipped(rows: list[Tensor], norm: float) -> Tensor:
    """The sum of per-sample gradients, given by parameter, each record's clipped."""
    norms = torch.stack([row.flatten(1).norm(dim=1) for row in rows]).norm(dim=0)
    factors = (norm / norms).clamp(max=1)
    return torch.cat([torch.einsum("b,b...->...", factors, row).flatten() for row in rows])


def by_vmap(model: nn.Module, x: Tensor, y: Tensor, norm: float) -> Tensor:
    """The sum by torch.func."""
    parameters = {name: p.detach() for name, p in model.named_parameters()}

    def loss(parameters: dict[str, Tensor], record: Tensor, label: Tensor) -> Tensor:
        return cross_entropy(functional_call(model, parameters, (record[None],)), label[None])[0]

    found = vmap(grad(loss), in_dims=(None, 0, 0))(parameters, x, y)
    return clipped(list(found.values()), norm)


def by_opacus(model: nn.Module) -> Callable[[Tensor, Tensor, float], Tensor]:
    """The sum by Opacus's hooks."""
    from opacus.grad_sample import GradSampleModule

    held = GradSampleModule(copy.deepcopy(model).train(), loss_reduction="sum")

    def work(x: Tensor, y: Tensor, norm: float) -> Tensor:
        cross_entropy(held(x), y).sum().backward()
        rows = [p.grad_sample for p in held.parameters()]
        for p in held.parameters():
            p.grad = p.grad_sample = None
        return clipped(rows, norm)

    return work


def fastest(ways: dict[str, Callable[[int], object]], seconds: float) -> dict[str, float]:
    """Processor seconds of each way's fastest call with its best block.

    In turns, so that what else the machine does disturbs all alike.
    """
    turns = [(name, partial(work, block)) for name, work in ways.items() for block in BLOCKS]
    took = dict.fromkeys(ways, math.inf)
    for _, call in turns:
        call()
    end = time.process_time() + seconds * len(turns)
    while True:
        for name, call in turns:
            start = time.process_time()
            call()
            took[name] = min(took[name], time.process_time() - start)
        if time.process_time() > end:
            return took


def row(name: str, seconds: float) -> tuple[str, ...]:
    """Name, path, error, records a second, what the others do, and the ratio to the better."""
    make, shape = ZOO[name]
    torch.manual_seed(0)
    model, rng = make(), np.random.default_rng(0)
    x = rng.integers(1000, size=(RECORDS, *shape))
    if shape != TOKENS:
        x = rng.random((RECORDS, *shape), dtype=np.float32)
    labels = rng.integers(4, size=RECORDS)
    records, y = torch.as_tensor(x), torch.as_tensor(labels)
    total, theta = ClippedSum(model, x, labels), flat_parameters(model)
    gradients = reference(model, records[:8], y[:8])
    norm = float(gradients.norm(dim=1).median())
    expected, found = clipped([gradients], norm), total(theta, np.arange(8), norm)
    error = float((found - expected).norm() / expected.norm())

    def own(block: int) -> None:
        total.block = 1 if total.kind == "native" else block
        total(theta, np.arange(RECORDS), norm)

    def others(work: Callable[[Tensor, Tensor, float], Tensor], block: int) -> None:
        for part in torch.arange(RECORDS).split(block):
            work(records[part], y[part], norm)

    ways: dict[str, Callable[[int], object]] = {"own": own}
    for other, build in (("vmap", partial(partial, by_vmap, model)), ("opacus", by_opacus)):
        try:
            work = build() if other == "vmap" else build(model)
            if float((work(records[:8], y[:8], norm) - expected).norm()) > 1e-3 * norm:
                raise ValueError("its sum is another")
            others(work, RECORDS)
        except Exception:  # whatever it cannot do
            continue
        ways[other] = partial(others, work)
    took = {"vmap": math.inf, "opacus": math.inf, **fastest(ways, seconds)}
    best = min(took["vmap"], took["opacus"])
    speeds = [f"{RECORDS / took[way]:,.0f}" for way in ("own", "vmap", "opacus")]
    ratio = f"{best / took['own']:.2f}" if math.isfinite(best) else "alone"
    return name, total.kind, f"{error:.0e}", *speeds, ratio


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", help="models (all)")
    parser.add_argument("--quick", action="store_true", help="a call of each and little more")
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    print("| model | path | error | records/s | vmap | Opacus | to the better |")
    print("|---|---|---|---|---|---|---|")
    for name in options.names or ZOO:
        print("|", " | ".join(row(name, 0.0 if options.quick else 1.0)), "|", flush=True)


if __name__ == "__main__":
    main()
