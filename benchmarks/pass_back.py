"""Seconds of an expected audit's pass back over seconds of the training that it goes back through.

    OMP_NUM_THREADS=1 python benchmarks/pass_back.py

A step of a training sums clipped gradients by the kernel that the engine takes for the model. A
step of the pass back multiplies that sum's derivative by a vector, in torch for every model. Both
are of the same records at the same parameters, in processor seconds, the fastest of several rounds
in turns.
"""

import argparse
import os
import time

import numpy as np
import torch
from torch import nn
from zoo import ZOO, Classifier

from hiddenstate import models
from hiddenstate.dpsgd.adjoint import vjp
from hiddenstate.dpsgd.clipping import ClippedSum, flat_parameters
from hiddenstate.streams import stream

CASES = {
    "mnist_cnn": (lambda: models.build("mnist_cnn"), (1, 28, 28), 500),
    "cifar_cnn": (lambda: models.build("cifar_cnn"), (3, 32, 32), 100),
    "digits_mlp": (lambda: models.build("digits_mlp"), (1, 8, 8), 1000),
    "MLP": (*ZOO["MLP"], 500),
    "CNN, GELU": (*ZOO["CNN, GELU"], 100),
    "attention": (*ZOO["attention"], 200),
    "GRU": (lambda: Classifier(nn.GRU(32, 32, batch_first=True)), ZOO["LSTM"][1], 20),
}
"""Model, shape of a record, records."""


def measure(name: str, rounds: int) -> tuple[str, float, float]:
    """The kernel, and seconds of a step of the training and of the pass back."""
    make, shape, records = CASES[name]
    torch.manual_seed(0)
    model, rng = make(), stream(0, "pass back", name)
    tokens = isinstance(model, Classifier)
    x = rng.integers(0, 1000, (records, *shape)) if tokens else rng.normal(size=(records, *shape))
    gradients = ClippedSum(
        model, x if tokens else x.astype(np.float32), rng.integers(0, 2, records)
    )
    theta, every = flat_parameters(model), np.arange(records)
    vector = torch.randn_like(theta)
    seconds = np.empty((rounds, 2))
    for row in seconds:
        start = time.process_time()
        gradients(theta, every, 1.0)
        between = time.process_time()
        vjp(gradients, theta, every, 1.0, vector)
        row[:] = between - start, time.process_time() - between
    return gradients.kind, *seconds.min(axis=0)


def main() -> None:
    """Print a row of each model."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=8)
    rounds = parser.parse_args().rounds
    torch.set_num_threads(1)
    capability = os.environ.get("ATEN_CPU_CAPABILITY", torch.backends.cpu.get_cpu_capability())
    print(f"instruction set: {capability}\n")
    print("| model | kernel of the training | records/s | pass back over training |")
    print("|---|---|---|---|")
    for name in CASES:
        kind, forward, back = measure(name, rounds)
        print(
            f"| {name} | {kind} | {CASES[name][2] / forward:,.0f} | {back / forward:.1f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
