"""Training the network of 68 parameters on California housing: native, vmap and a plain loop.

Each trains the same models of 8-6-2 units, 400 records a step, from the same initial parameters,
batches and noise: ``kernels.tiny`` in native code, the same arithmetic in numpy, per-sample
gradients by ``torch.func.vmap``, and a plain loop over records with torch's autograd. The slow ones
get fewer steps, which are stated; every time is per 250 steps of one model on one core. The last
iterates of the common steps must agree.
"""

import argparse
import time

import numpy as np
import torch
from torch.func import functional_call, grad, vmap

from hiddenstate import models
from hiddenstate.datasets import housing
from hiddenstate.dpsgd.clipping import cross_entropy, named
from hiddenstate.dpsgd.kernels.tiny import Dense, Trainer
from hiddenstate.sampling import Cyclic
from hiddenstate.streams import stream

STEPS, BATCH, RATE, CLIP, STD = 250, 400, 0.1 / 400, 1.0, 17.0
NETWORK = Dense((8, 6, 2))


def drawn(index: int, records: int):
    """Initial parameters, batches and noise of one model."""
    rng = stream(index, "benchmark")
    batches = Cyclic(BATCH, shuffled_once=True).batches(records, STEPS, rng)
    noise = rng.standard_normal((STEPS, NETWORK.parameters), dtype=np.float32)
    return NETWORK.initial(rng), batches, np.float32(STD) * noise


def by_torch(x, y, initial, batches, noise, *, loop: bool):
    """The same training with torch's per-sample gradients."""
    model = models.fcnn()

    def loss(parameters, record, label):
        return cross_entropy(functional_call(model, parameters, (record[None],)), label[None])[0]

    per_sample = vmap(grad(loss), in_dims=(None, 0, 0))
    theta = torch.from_numpy(initial)
    x, y = torch.from_numpy(x), torch.from_numpy(y)
    for batch, added in zip(batches, noise, strict=True):
        if loop:
            rows = []
            parameters = {n: p.clone().requires_grad_() for n, p in named(theta, model).items()}
            for i in batch:
                value = loss(parameters, x[i], y[i])
                parts = torch.autograd.grad(value, list(parameters.values()))
                rows.append(torch.cat([p.flatten() for p in parts]))
            gradients = torch.stack(rows)
        else:
            index = torch.from_numpy(batch)
            parts = per_sample(named(theta, model), x[index], y[index])
            gradients = torch.cat([p.flatten(1) for p in parts.values()], dim=1)
        factors = (CLIP / gradients.norm(dim=1).clamp(min=1e-30)).clamp(max=1)
        theta = theta - RATE * (factors @ gradients + torch.from_numpy(added))
    return theta.numpy()


def seconds(train, repeats: int) -> float:
    """Shortest time of one call."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        train()
        times.append(time.perf_counter() - start)
    return min(times)


def main() -> None:
    """Print a line for each way, and the ratios to the native one."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--repeats", type=int, default=20, help="calls, of which the fastest counts"
    )
    parser.add_argument("--loop-steps", type=int, default=5, help="steps of the plain loop")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    x, y = housing.records()
    initial, batches, noise = drawn(0, len(y))
    trainers = {
        kernel: Trainer(NETWORK, x, y, learning_rate=RATE, clipping_norm=CLIP, kernel=kernel)
        for kernel in ("native", "numpy")
    }

    def run(kind: str, steps: int):
        given = (initial, batches[:steps], noise[:steps])
        if kind in trainers:
            return trainers[kind].last_iterate(*given)
        return by_torch(x, y, *given, loop=kind == "loop")

    few = min(STEPS, arguments.loop_steps)
    expected = run("native", few)
    plan = {"native": STEPS, "numpy": STEPS, "vmap": STEPS, "loop": few}
    once = {"native": arguments.repeats, "numpy": 3, "vmap": 3, "loop": 1}
    times = {}
    for kind, steps in plan.items():
        np.testing.assert_allclose(run(kind, few), expected, atol=1e-5)
        times[kind] = seconds(lambda k=kind, s=steps: run(k, s), once[kind]) * STEPS / steps
    draw = seconds(lambda: drawn(1, len(y)), arguments.repeats)
    print("way,steps measured,ms a model of 250 steps,million sample gradients a second,ratio")
    for kind, steps in plan.items():
        rate = sum(map(len, batches)) / times[kind] / 1e6
        ratio = times[kind] / times["native"]
        print(f"{kind},{steps},{1e3 * times[kind]:.2f},{rate:.3f},{ratio:.1f}")
    print(f"drawing initial parameters, batches and noise: {1e3 * draw:.2f} ms a model")


if __name__ == "__main__":
    main()
