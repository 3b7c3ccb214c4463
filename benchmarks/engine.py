"""Sample-gradients a second of one thread: this engine against Opacus and the public audit code.

    OMP_NUM_THREADS=1 python benchmarks/engine.py           minutes
    OMP_NUM_THREADS=1 python benchmarks/engine.py --quick   under a minute, fewer peers and records

Every variant sums the clipped gradients of the same records at the same parameters, and takes its
fastest round in processor seconds, of a second's rounds at least, so that other work on the machine
disturbs little. Its row is printed as soon as it is measured, peers first, beside the public code
and the best of Opacus. Agreement is the distance from the float64 sum in units of its norm. The
last columns relate operations to single-thread sgemm of 1024 x 1024: the operations of a dense
forward, backward and weight-gradient pass, and those that the native kernel executes (it skips what
max-pooling zeroes and, by Winograd's algorithm, more than half of a 3 x 3 convolution, so it can be
above 100 % of what sgemm could do).

The last table is of linear models, as last-layer audits train them: one after the other in native
code, and ``GROUP`` at once in two matrix products.

Peers are run with several block sizes. With glibc's allocator, set
MALLOC_MMAP_THRESHOLD_ and MALLOC_TRIM_THRESHOLD_ to 1073741824 to tune it, for peers too.
"""

import argparse
import copy
import os
import platform
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.func import functional_call, grad, vmap

from hiddenstate import models
from hiddenstate.adversaries.initialisation import average_case
from hiddenstate.dpsgd.clipping import ClippedSum, cross_entropy, flat_parameters
from hiddenstate.dpsgd.kernels.linear import GROUP
from hiddenstate.dpsgd.native import compiling
from hiddenstate.dpsgd.native.convolutions import Convolution
from hiddenstate.dpsgd.native.kernel import _compiled
from hiddenstate.dpsgd.native.layers import Linear
from hiddenstate.dpsgd.native.network import as_network
from hiddenstate.dpsgd.native.source import c_source, passes_of
from hiddenstate.streams import stream

CLIPPING_NORM = 1.0
PUBLIC = "public code, vmap of grad"
CASES = {
    # model: record shape, blocks of the peers (the public code's own is 1,000), of book-keeping
    "mnist_cnn": ((1, 28, 28), (64, 250, 1000), (64, 128, 250)),
    "cifar_cnn": ((3, 32, 32), (16, 50), (16, 32)),
    "digits_resnet": ((1, 8, 8), (64, 250, 1000), (64, 128, 250)),
}
LAST_LAYERS = {"digits": (700, 64, 10), "features": (1000, 512, 10)}
"""Records, features, classes."""


def public_code(model: nn.Module, x: torch.Tensor, y: torch.Tensor, block: int):
    """vmap of grad over the records of a block, as the worst-case-initialisation paper's code."""
    parameters = {n: p.detach() for n, p in model.named_parameters()}

    def loss(parameters, record, label):
        outputs = functional_call(model, parameters, (record[None],))
        return nn.functional.cross_entropy(outputs, label[None])

    each = vmap(grad(loss), in_dims=(None, 0, 0))

    def step():
        total = {n: torch.zeros_like(p) for n, p in parameters.items()}
        for records, labels in zip(x.split(block), y.split(block), strict=True):
            gradients = each(parameters, records, labels)
            squares = sum(g.flatten(1).square().sum(1) for g in gradients.values())
            factor = (CLIPPING_NORM / squares.sqrt()).clamp(max=1)
            for n, g in gradients.items():
                total[n] += torch.einsum("b,b...->...", factor, g)
        return torch.cat([t.flatten() for t in total.values()])

    return step


def opacus(model: nn.Module, x: torch.Tensor, y: torch.Tensor, block: int, mode: str):
    """Opacus's clipping and accumulation in virtual steps, without noise."""
    from opacus.grad_sample import GradSampleModule
    from opacus.grad_sample.grad_sample_module_fast_gradient_clipping import (
        GradSampleModuleFastGradientClipping,
    )
    from opacus.optimizers import DPOptimizer, DPOptimizerFastGradientClipping
    from opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping

    model = copy.deepcopy(model)
    plain = torch.optim.SGD(model.parameters(), lr=1.0)
    settings = {
        "noise_multiplier": 0.0,
        "max_grad_norm": CLIPPING_NORM,
        "expected_batch_size": 1,
        "loss_reduction": "sum",
    }
    loss = nn.CrossEntropyLoss(reduction="sum")
    if mode == "ghost":
        wrapped = GradSampleModuleFastGradientClipping(
            model, max_grad_norm=CLIPPING_NORM, use_ghost_clipping=True, loss_reduction="sum"
        )
        optimiser = DPOptimizerFastGradientClipping(plain, **settings)
        loss = DPLossFastGradientClipping(wrapped, optimiser, loss, loss_reduction="sum")
    else:
        from opacus.grad_sample.gsm_exp_weights import GradSampleModuleExpandedWeights

        if mode == "ew":
            wrapped = GradSampleModuleExpandedWeights(model, loss_reduction="sum")
        else:
            wrapped = GradSampleModule(
                model, loss_reduction="sum", force_functorch=mode == "functorch"
            )
        optimiser = DPOptimizer(plain, **settings)

    def step():
        for records, labels in zip(x.split(block), y.split(block), strict=True):
            optimiser.signal_skip_step(True)  # a virtual step: accumulate, do not update
            loss(wrapped(records), labels).backward()
            optimiser.step()
            optimiser.zero_grad()
        total = torch.cat([p.summed_grad.flatten() for p in optimiser.params])
        for p in optimiser.params:
            p.summed_grad = None
        return total

    return step


def ours(model: nn.Module, x: torch.Tensor, y: torch.Tensor, kernel: str, block: int | None = None):
    """This engine's kernels."""
    total = ClippedSum(model, x, y, kernel=kernel)
    total.block = block or total.block
    theta, indices = flat_parameters(model), np.arange(len(x))
    return lambda: total(theta, indices, CLIPPING_NORM)


def reference(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """The sum in float64, one record after the other."""
    model = copy.deepcopy(model).double()
    total = 0
    for record, label in zip(x.double(), y, strict=True):
        loss = cross_entropy(model(record[None]), label[None]).sum()
        g = torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(model.parameters()))])
        total = total + g * (CLIPPING_NORM / g.norm()).clamp(max=1)
    return total


def clear_winners(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """Whether no pooling window's two largest entries are so close that rounding may flip them.

    Float32 and float64 crown different winners there and differ by whole gradients.
    """
    clear = torch.ones(len(x), dtype=torch.bool)
    values = x.double()
    with torch.no_grad():
        for layer in copy.deepcopy(model).double():
            if isinstance(layer, nn.MaxPool2d):
                windows = values.unfold(2, 2, 2).unfold(3, 2, 2).flatten(4)
                best = windows.topk(2).values
                clear &= (best[..., 0] - best[..., 1]).flatten(1).amin(1) > 1e-6
            values = layer(values)
    return clear


def operations(model: nn.Module, shape: tuple[int, ...]) -> tuple[float, float]:
    """(dense, executed by the native kernel) floating-point operations of one sample-gradient.

    Those of convolutions and linear layers alone.
    """
    dense, whole = 0, as_network(model, shape)
    executed = sum(call.products for calls in passes_of(whole) for call in calls)
    for layer in whole.layers:
        passes = 3 if layer.transposed else 2
        if isinstance(layer, Linear):
            products = layer.input.entries * layer.output.real
            dense += products * passes
        elif isinstance(layer, Convolution):
            pairs = layer.input.real * layer.output.real
            each = layer.kernel[0] * layer.kernel[1] * pairs
            used = layer.output.height * layer.output.width
            places = used * (4 if layer.pooled else 1)
            dense += each * places * passes
    return 2.0 * dense, 2.0 * executed


def sgemm_peak() -> float:
    """Floating-point operations a second of one thread's 1024 x 1024 sgemm."""
    a, b = torch.rand(1024, 1024), torch.rand(1024, 1024)
    return 2 * 1024**3 / fastest(lambda: a @ b, 10)


def fastest(step: Callable, rounds: int) -> float:
    """Least processor seconds of a round, of so many rounds or a second's, if these are more."""
    best, spent = float("inf"), 0.0
    while rounds > 0 or spent < 1:
        start = time.process_time()
        step()
        took = time.process_time() - start
        best, spent, rounds = min(best, took), spent + took, rounds - 1
    return best


def instructions() -> str:
    """The vector instructions that the native code of this processor uses."""
    if not compiling.compiler():
        return "no native code"
    _, _, lanes = _compiled(c_source(as_network(models.fcnn(), (8,))))
    if platform.machine() != "x86_64":
        return f"{platform.machine()}, {lanes} lanes"
    return "AVX-512" if lanes == 16 else "AVX2 or narrower"


def processor() -> str:
    """The processor's name for itself."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())


def problem(model: nn.Module, name: str, shape: tuple[int, ...], records: int):
    """The model at Xavier parameters; records and labels without near ties."""
    rng = stream(0, "benchmark", name)
    with torch.no_grad():
        nn.utils.vector_to_parameters(average_case(model, rng), model.parameters())
    x = torch.from_numpy(rng.random((2 * records, *shape)).astype(np.float32))
    x = x[clear_winners(model, x)][:records]
    return x, torch.from_numpy(rng.integers(10, size=len(x)))


def variants(model, x, y, name: str, quick: bool):
    """(name, block, function that builds it), peers first."""
    _, peer_blocks, own_blocks = CASES[name]
    yield PUBLIC, len(x), lambda: public_code(model, x, y, len(x))
    for block in peer_blocks[:1] if quick else peer_blocks:
        if block < len(x):
            yield "vmap of grad, smaller blocks", block, partial(public_code, model, x, y, block)
        for mode in ("hooks", "ghost") if quick else ("hooks", "functorch", "ew", "ghost"):
            yield f"Opacus, {mode}", block, partial(opacus, model, x, y, block, mode)
    for block in own_blocks[:1] if quick else own_blocks:
        yield "hiddenstate, torch book-keeping", block, partial(ours, model, x, y, "torch", block)
    if compiling.compiler():
        yield "hiddenstate, native", 1, partial(ours, model, x, y, "native")


ROW = "{:32} {:>5} {:>12} {:>9} {:>9} {:>9} {:>7} {:>9}"


def convolutions(name: str, records: int, rounds: int, peak: float, quick: bool) -> None:
    """Print one row a variant."""
    model, shape = models.build(name), CASES[name][0]
    x, y = problem(model, name, shape, records)
    expected = reference(model, x, y)
    dense, executed = operations(model, shape)
    public = theirs = 0.0
    print(f"\n{name}, {len(x)} records")
    print(ROW.format("", "block", "sample-gr./s", "/ public", "/ Opacus", "agreement", "dense",
                     "executed"))  # fmt: skip
    for variant, block, build in variants(model, x, y, name, quick):
        try:
            step = build()
            agreement = float((step() - expected).norm() / expected.norm())
            rate = len(x) / fastest(step, rounds)
        except Exception as error:
            print(f"{variant}, block {block}: {type(error).__name__}: {error}", flush=True)
            continue
        public = public or rate
        theirs = max(theirs, rate) if "Opacus" in variant else theirs
        done = executed if "native" in variant else dense
        print(ROW.format(
            variant, block, f"{rate:,.0f}", f"{rate / public:.2f}",
            f"{rate / theirs:.2f}" if theirs else "", f"{agreement:.0e}",
            f"{rate * dense / peak:.0%}", f"{rate * done / peak:.0%}",
        ), flush=True)  # fmt: skip


def last_layers(rounds: int) -> None:
    """Print a linear model's rows: one model after the other, and many at once."""
    print(
        f"\nlinear models, {GROUP} of them\n"
        f"{'':32} {'sample-gr./s':>12} {'/ native':>9} {'agreement':>9}"
    )
    for name, (records, features, classes) in LAST_LAYERS.items():
        model = models.logistic_regression(features, classes)
        x, y = problem(model, name, (features,), records)
        theta, everything = flat_parameters(model), np.arange(records)
        expected = reference(model, x, y)
        thetas, first = theta.expand(GROUP, -1).contiguous(), 0.0
        for kernel in ("native", "linear"):
            if kernel == "native" and not compiling.compiler():
                continue
            total = ClippedSum(model, x, y, kernel=kernel)
            if kernel == "linear":
                step = partial(total.linear_sums, thetas, everything, CLIPPING_NORM)
            else:
                step = partial(total, theta, everything, CLIPPING_NORM)
            found, models_at_once = step(), GROUP if kernel == "linear" else 1
            agreement = float((found - expected).norm(dim=-1).max() / expected.norm())
            rate = models_at_once * records / fastest(step, 4 * rounds)
            first = first or rate
            print(f"{f'{name} ({records} x {features}), {kernel}':32} {rate:12,.0f} "
                  f"{rate / first:9.2f} {agreement:9.0e}", flush=True)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="under a minute, with fewer peers")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore")
    peak = sgemm_peak()
    tuned = "MALLOC_MMAP_THRESHOLD_" in os.environ
    print(
        f"{processor()}, {instructions()}\n1 thread, torch {torch.__version__}, "
        f"sgemm {peak / 1e9:.0f} GFLOP/s, allocator {'tuned' if tuned else 'as it is'}, "
        f"load {os.getloadavg()[0]:.1f}",
        flush=True,
    )
    rounds = min(arguments.rounds, 2) if arguments.quick else arguments.rounds
    for name in arguments.models:
        records = (50 if name == "cifar_cnn" else 200) if arguments.quick else 1000
        convolutions(name, records, rounds, peak, arguments.quick)
    last_layers(rounds)


if __name__ == "__main__":
    main()
