"""Sample-gradients a second of one thread: this engine against Opacus and the public audit code.

    OMP_NUM_THREADS=1 python benchmarks/engine.py

Every variant sums the clipped gradients of the same records at the same parameters. The rows of a
model are timed in turn, several rounds, and each takes its fastest round in processor seconds, so
that other work on the machine disturbs little. Agreement is the distance from the float64 sum in
units of its norm. The last columns relate operations to single-thread sgemm of 1024 x 1024: the
operations of a dense forward, backward and weight-gradient pass, and those that the native kernel
executes (it skips what max-pooling zeroes, so it can be above 100 % of what sgemm could do).

Peers get their best block size of those tried, which the table names. With glibc's allocator, set
MALLOC_MMAP_THRESHOLD_ and MALLOC_TRIM_THRESHOLD_ to 1073741824 to tune it, for peers too.
"""

import argparse
import copy
import os
import time
import warnings
from collections.abc import Callable

import numpy as np
import pandas as pd
import torch
from torch import nn
from torch.func import functional_call, grad, vmap

from hiddenstate import models
from hiddenstate.adversaries.initialisation import average_case
from hiddenstate.dpsgd import native
from hiddenstate.dpsgd.clipping import ClippedSum, cross_entropy, flat_parameters
from hiddenstate.streams import stream

CLIPPING_NORM = 1.0
RECORDS = 1000
PUBLIC = f"public code, vmap of grad|{RECORDS}"
CASES = {
    # model: record shape, blocks of the peers (the public code's own is 1,000), of book-keeping
    "mnist_cnn": ((1, 28, 28), (64, 250, 1000), (64, 128, 250)),
    "cifar_cnn": ((3, 32, 32), (16, 50), (16, 32)),
}


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
    """(dense, executed by the native kernel) floating-point operations of one sample-gradient."""
    dense = executed = 0
    for i, layer in enumerate(native.layers(model, shape)):
        if isinstance(layer, native._Linear):
            products = layer.inputs * layer.real_outputs
            dense += products * (3 if i else 2)
            executed += products * (3 if i else 2)
            continue
        high, wide = (layer.height, layer.width)
        high, wide = (
            side + 2 * layer.padding - k + 1
            for side, k in zip((high, wide), layer.kernel, strict=True)
        )
        each = layer.kernel[0] * layer.kernel[1] * layer.real_inputs * layer.real_outputs
        dense += each * high * wide * (3 if i else 2)
        used = layer.shape[0] * layer.shape[1]
        forward = used * (4 if layer.pooled else 1)
        executed += each * (forward + (used if layer.sparse else forward) + (used if i else 0))
    return 2.0 * dense, 2.0 * executed


def sgemm_peak() -> float:
    """Floating-point operations a second of one thread's 1024 x 1024 sgemm."""
    a, b = torch.rand(1024, 1024), torch.rand(1024, 1024)
    return 2 * 1024**3 / fastest({"": lambda: a @ b}, 10)[""]


def fastest(variants: dict[str, Callable], rounds: int) -> dict[str, float]:
    """Least processor seconds of each, taken in turn."""
    best = dict.fromkeys(variants, float("inf"))
    for _ in range(rounds):
        for name, step in variants.items():
            start = time.process_time()
            step()
            best[name] = min(best[name], time.process_time() - start)
    return best


def table(name: str, rounds: int, peak: float) -> pd.DataFrame:
    """One row a variant."""
    shape, peer_blocks, own_blocks = CASES[name]
    rng = stream(0, "benchmark", name)
    model = models.build(name)
    with torch.no_grad():
        nn.utils.vector_to_parameters(average_case(model, rng), model.parameters())
    x = torch.from_numpy(rng.random((2 * RECORDS, *shape)).astype(np.float32))
    x = x[clear_winners(model, x)][:RECORDS]
    y = torch.from_numpy(rng.integers(10, size=RECORDS))
    variants: dict[str, Callable] = {PUBLIC: public_code(model, x, y, RECORDS)}
    for block in peer_blocks:
        if block < RECORDS:
            variants[f"vmap of grad, smaller blocks|{block}"] = public_code(model, x, y, block)
        for mode in ("hooks", "functorch", "ew", "ghost"):
            variants[f"Opacus, {mode}|{block}"] = opacus(model, x, y, block, mode)
    for block in own_blocks:
        variants[f"hiddenstate, torch book-keeping|{block}"] = ours(model, x, y, "torch", block)
    if native.compiler():
        variants["hiddenstate, native|1"] = ours(model, x, y, "native")
    expected = reference(model, x, y)
    agreement = {}
    for key, step in list(variants.items()):
        try:
            agreement[key] = float((step() - expected).norm() / expected.norm())
        except Exception as error:
            print(f"{name}: {key}: {type(error).__name__}: {error}")
            del variants[key]
    seconds = fastest(variants, rounds)
    dense, executed = operations(model, shape)
    rows = []
    for key, s in seconds.items():
        variant, block = key.split("|")
        done = executed if "native" in variant else dense
        rows.append(
            {
                "model": name,
                "variant": variant,
                "block": int(block),
                "sample-gradients/s": RECORDS / s,
                "agreement": agreement[key],
                "dense / sgemm": RECORDS / s * dense / peak,
                "executed / sgemm": RECORDS / s * done / peak,
            }
        )
    rows = pd.DataFrame(rows).sort_values("sample-gradients/s", ascending=False)
    rows = rows.drop_duplicates("variant")
    rate = rows.set_index("variant")["sample-gradients/s"]
    public = rate[PUBLIC.split("|")[0]]
    rows.insert(4, "/ public code", rows["sample-gradients/s"] / public)
    theirs = rate.filter(like="Opacus").max()
    rows.insert(5, "/ Opacus's best", rows["sample-gradients/s"] / theirs)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore")
    peak = sgemm_peak()
    tuned = "MALLOC_MMAP_THRESHOLD_" in os.environ
    print(
        f"1 thread, torch {torch.__version__}, sgemm {peak / 1e9:.0f} GFLOP/s, "
        f"allocator {'tuned' if tuned else 'as it is'}, load {os.getloadavg()[0]:.1f}"
    )
    rows = pd.concat([table(name, arguments.rounds, peak) for name in arguments.models])
    formats = {
        "sample-gradients/s": "{:,.0f}".format,
        "/ public code": "{:.2f}".format,
        "/ Opacus's best": "{:.2f}".format,
        "agreement": "{:.0e}".format,
        "dense / sgemm": "{:.0%}".format,
        "executed / sgemm": "{:.0%}".format,
    }
    print(rows.to_string(index=False, formatters=formats))


if __name__ == "__main__":
    main()
