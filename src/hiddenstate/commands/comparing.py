"""Comparison of an accelerator with this machine's processor, on the package's own networks.

Nothing here is about speed alone: each number is compared with the one of this machine's processor,
and the time that it took stands beside it.
"""

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch

from hiddenstate import models
from hiddenstate.adversaries.canaries import blank
from hiddenstate.dpsgd.clipping import ClippedSum, KernelName, flat_parameters, usable
from hiddenstate.dpsgd.ensemble import Ensemble, scores
from hiddenstate.dpsgd.mechanism import Mechanism
from hiddenstate.dpsgd.run import Run
from hiddenstate.errors import InputError
from hiddenstate.sampling import FullBatch, Poisson
from hiddenstate.streams import stream

NETWORKS: dict[str, tuple[int, ...]] = {
    "digits_mlp": (64,),
    "digits_cnn": (1, 8, 8),
    "digits_resnet": (1, 8, 8),
    "mnist_cnn": (1, 28, 28),
    "cifar_cnn": (3, 32, 32),
}
"""Networks of the papers, with the shape of their records."""
KERNELS: tuple[KernelName, ...] = ("torch", "explicit")
"""Those that know accelerators."""
RECORDS, TOGETHER = 64, 3
CLOSE = 1e-4
"""Relative distance of two sums of clipped gradients in single precision, at most."""
STEPS, RATE = 3, 0.5 / RECORDS
LITTLE, MUCH = 1e-6, 1e4
"""Noise multipliers: next to gradients nothing, and all that there is."""
MEMORY = 2.0**28
"""Bytes for models: told, so that the same call gives the same noise."""


@dataclass(frozen=True)
class Row:
    """One thing that was compared.

    off: relative distance from what is expected, at most ``most``. ratio: times that the device is
    faster than one core of the processor; nan where no time was taken. problem: why there is no
    number.
    """

    check: str
    network: str
    kernel: str
    off: float
    most: float
    ratio: float = math.nan
    problem: str = ""

    @property
    def passed(self) -> bool:
        return not self.problem and self.off <= self.most


def rows(device: str, networks: dict[str, tuple[int, ...]] = NETWORKS) -> Iterator[Row]:
    """All comparisons, as they are made; InputError for a device that torch cannot use."""
    usable(device)
    for network, shape in networks.items():
        for kernel in KERNELS:
            yield from _sums(device, network, shape, kernel)
        yield from _audits(device, network, shape)


def _made(network: str, shape: tuple[int, ...]) -> tuple[torch.nn.Module, np.ndarray, np.ndarray]:
    """A network, and records and labels for it."""
    rng = stream(0, "device check", *shape)
    x = rng.random((RECORDS, *shape), dtype=np.float32)
    torch.manual_seed(0)
    return models.build(network).eval(), x, rng.integers(10, size=RECORDS)


def _sums(device: str, network: str, shape: tuple[int, ...], kernel: KernelName) -> Iterator[Row]:
    """Sums of clipped gradients, of one model and of several side by side."""
    model, x, y = _made(network, shape)
    here = ClippedSum(model, x, y, kernel=kernel)
    try:
        # Every kernel is compared with float64 gradients as it is made, on the device too.
        there = ClippedSum(model, x, y, device=device, kernel=kernel)
    except InputError as error:
        yield Row("gradients", network, kernel, math.nan, CLOSE, problem=str(error))
        return
    theta = flat_parameters(model)
    thetas = torch.stack([theta * (1 + 0.1 * i) for i in range(TOGETHER)])
    every = np.arange(RECORDS)
    norm = float(here.norms(theta, every).median())
    expected = torch.stack([here(each, every, norm) for each in thetas])
    took = _seconds(lambda: here(theta, every, norm), "cpu")
    alone = torch.stack([there(each, every, norm).cpu() for each in thetas.to(device)])
    faster = took / _seconds(lambda: there(theta.to(device), every, norm), device)
    yield Row("one model", network, kernel, _off(alone, expected), CLOSE, faster)
    indices = torch.arange(RECORDS, device=device)
    moved = thetas.to(device)
    together = there.side_by_side(moved, indices, None, norm).cpu()
    faster = TOGETHER * took
    faster /= _seconds(lambda: there.side_by_side(moved, indices, None, norm), device)
    yield Row("side by side", network, kernel, _off(together, expected), CLOSE, faster)


def _audits(device: str, network: str, shape: tuple[int, ...]) -> Iterator[Row]:
    """Short audits with hardly any noise, which an accelerator draws itself, and the noise."""
    model, x, y = _made(network, shape)
    start = flat_parameters(model)
    for sampling in (FullBatch(), Poisson(0.5)):
        kind = type(sampling).__name__

        def audit(noise_multiplier: float, sampling: FullBatch | Poisson = sampling) -> Ensemble:
            mechanism = Mechanism(
                sampling=sampling, steps=STEPS, learning_rate=RATE, clipping_norm=1.0,
                noise_multiplier=noise_multiplier, adjacency="add_or_remove",
            )  # fmt: skip
            return Ensemble(model, mechanism, x, y, blank(shape, label=0), start)

        def found(noise_multiplier: float, **how: Any) -> pd.DataFrame:
            how = {"device": device, "side_by_side": True, "memory": MEMORY, **how}
            chosen = audit(noise_multiplier)
            return scores(chosen, models=TOGETHER, seed=0, measures={"moved": _moved}, **how)

        try:
            here = found(LITTLE, device="cpu", side_by_side=False)["score"]
            there = found(LITTLE)["score"]
            chunks = found(LITTLE, chunk=2)["score"]
            once, again = found(1.0), found(1.0)
            noise = found(MUCH)["moved"]
        except InputError as error:
            yield Row(f"audit, {kind}", network, "torch", math.nan, CLOSE, problem=str(error))
            continue
        yield Row(f"audit, {kind}", network, "torch", _off(there, here), 10 * CLOSE)
        yield Row(f"audit in chunks, {kind}", network, "torch", _off(chunks, there), 10 * CLOSE)
        yield Row(f"audit again, {kind}", network, "torch", _off(again["moved"], once["moved"]), 0)
        # Mean squares of so many independent normal numbers, within five standard errors.
        square = float((noise**2).mean()) / (STEPS * (RATE * MUCH) ** 2)
        most = 5 * math.sqrt(2 / (len(noise) * len(start)))
        yield Row(f"noise, {kind}", network, "torch", abs(square - 1), most)


def _moved(run: Run, last: torch.Tensor) -> float:
    """Root mean square of how far the parameters are from where they started."""
    return float((last.cpu() - run.initial.cpu()).square().mean().sqrt())


def _off(found: Any, expected: Any) -> float:
    """Largest distance, relative to the largest number that is expected."""
    one, other = (np.asarray(values, dtype=float) for values in (found, expected))
    distance = float(np.abs(one - other).max() / np.abs(other).max())
    return distance if math.isfinite(distance) else math.inf


def _seconds(call: Callable[[], object], device: str) -> float:
    """The least of three times that a call takes, after one that is not counted."""
    found = []
    for _ in range(4):
        begin = time.perf_counter()
        call()
        if torch.device(device).type == "cuda":
            torch.cuda.synchronize()
        found.append(time.perf_counter() - begin)
    return min(found[1:])
