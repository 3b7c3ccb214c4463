"""Operations that a training step of models side by side dispatches, counted without a device.

A GPU waits for Python wherever operations are small, so fewer of them is faster. Here a step runs
on torch's ``meta`` device, where tensors have shapes and no numbers; each operation that reaches a
device is counted. Views launch nothing there; every other operation launches at least one kernel.
Memory is counted in the same way: the most that is allocated at once, beside what ``arranged``
reckons with. It takes seconds, and says nothing of time.

The step is that of ``last_iterates``: full batch, noise, a canary's record. Its blocks are as large
as ``--memory`` allows. "Before" is commit cdc0844: vmap, and blocks of at most 128 records.
"""

import argparse
import collections
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from hiddenstate import models
from hiddenstate.adversaries.canaries import blank
from hiddenstate.dpsgd import ensemble as engine
from hiddenstate.dpsgd import strategies
from hiddenstate.dpsgd.clipping import ClippedSum
from hiddenstate.dpsgd.mechanism import Mechanism
from hiddenstate.dpsgd.memory import Allocations
from hiddenstate.sampling import FullBatch

SHAPES = {"mnist_cnn": (1, 28, 28), "cifar_cnn": (3, 32, 32)}
BEFORE = {"mnist_cnn": (174, 125, 8), "cifar_cnn": (377, 246, 48)}
"""Views and kernels of a block, and blocks of a step of 1,000 records."""
RECORDS, MODELS = 1000, (10, 30)
_NOTHING = {"aten.detach.default", "aten._unsafe_view.default"}  # though not declared as views


class Count(Allocations):
    """Counts operations too."""

    def __init__(self) -> None:
        super().__init__()
        self.views, self.kernels = collections.Counter[str](), collections.Counter[str]()

    def __torch_dispatch__(
        self, function: Any, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        """Run the operation and count it."""
        free = function.is_view or str(function) in _NOTHING
        (self.views if free else self.kernels)[str(function)] += 1
        return super().__torch_dispatch__(function, types, args, kwargs)


def counted(work: Callable[[], object]) -> Count:
    """What ``work`` dispatches."""
    with Count() as count:
        work()
    return count


def training(name: str, total: ClippedSum, count: int, steps: int, memory: float) -> Count:
    """What a training of so many models dispatches once its runs are made."""
    sgd = {"sampling": FullBatch(), "learning_rate": 1e-3, "clipping_norm": 1.0}
    mechanism = Mechanism(**sgd, steps=steps, noise_multiplier=1.0, adjacency="add_or_remove")
    x, y = records(name)
    start = torch.zeros(total.parameters)
    # The canary's record is the last of the sum's.
    canary = blank(SHAPES[name], label=0)
    audit = engine.Ensemble(models.build(name, 10), mechanism, x[:-1], y[:-1], canary, start)
    runs = [engine.Run("in", 0, i, audit, total, 0, ("dispatches",)) for i in range(count)]
    for run in runs:
        run.fixed = SimpleNamespace(
            gradients=None
        )  # the canary would read the start, which has no numbers
    return counted(lambda: engine.last_iterates(runs, kept=memory / 8))


def records(name: str) -> tuple[np.ndarray, np.ndarray]:
    """Records of the network's shape and their labels."""
    rng = np.random.default_rng(0)
    return rng.random((RECORDS, *SHAPES[name]), dtype=np.float32), np.arange(RECORDS) % 10


def main() -> None:
    """Print a row for each network and number of models."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--memory", type=float, default=24, help="GiB that models may take (24)")
    parser.add_argument("--kinds", action="store_true", help="print every kind of operation too")
    options = parser.parse_args()
    memory = options.memory * 2**30
    # Meta tensors have no generator; normal_ is the one operation all the same.
    strategies._noise = lambda runs: torch.Tensor.normal_
    columns = ("network", "models", "block", "blocks", "views", "kernels", "a step", "times fewer")
    print(*columns, "once a training", "peak GiB", "reckoned GiB", sep=",")
    for name in SHAPES:
        total = ClippedSum(models.build(name, 10), *records(name), device="meta", kernel="torch")
        own = total.block
        views, kernels, blocks = BEFORE[name]
        before = blocks * (views + kernels)
        print(name, "before", -(-RECORDS // blocks), blocks, views, kernels, before, sep=",")
        for count in MODELS:
            total.block = own
            together, total.block = strategies.arranged(total, count, memory)
            thetas = torch.empty(together, total.parameters, device="meta")
            batch = list(total.many.blocks(torch.empty(RECORDS, dtype=torch.int64, device="meta")))
            total.many.sums(thetas, batch, 1.0)
            block = counted(partial(total.sums, thetas, batch[:1], 1.0))
            two, three = (training(name, total, together, n, memory) for n in (2, 3))
            step = sum(c.total() for c in (three.views - two.views, three.kernels - two.kernels))
            once = two.views.total() + two.kernels.total() - 2 * step
            reckoned = len(batch[0].y) * total.activations + strategies._vectors(total)
            print(
                name, together, len(batch[0].y), len(batch), block.views.total(),
                block.kernels.total(), step, f"{before / step:.1f}", once,
                f"{three.peak / 2**30:.2f}", f"{together * reckoned / 2**30:.2f}", sep=",",
            )  # fmt: skip
        if options.kinds:
            for kind, number in (block.kernels + block.views).most_common():
                print(f"  {number} {kind}")


if __name__ == "__main__":
    main()
