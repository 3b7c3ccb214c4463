"""Mistakes in trainings with Opacus, each with a canary and a score that find it: a table.

    python examples/opacus_bugs.py DIR --workers 2

A training as in Opacus's MNIST example (a convolutional network, batches of 16 by Poisson sampling,
two epochs of SGD), with 160 of scikit-learn's digits. ``train`` audits it with
``hiddenstate.auditing.kit``; ``BUGS`` are mistakes that people make, each put into that training.
One campaign for each, with the same claim and looks; a killed run goes on with the same DIR. One of
them in the shell:

    hiddenstate audit-training examples/opacus_bugs.py --function late_clipping \\
        --noise-multiplier 0.6 --sampling-rate 0.1 --steps 20 --models 40 --looks 5 10 20
"""

import argparse
import math
import sys
import time
import warnings
from dataclasses import dataclass, field
from functools import lru_cache, partial
from pathlib import Path

import torch
from opacus import PrivacyEngine
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from hiddenstate.auditing import SequentialAudit, campaign, composed, kit
from hiddenstate.digits import records

NOISE_MULTIPLIER, SAMPLING_RATE, EPOCHS, CLIP, LEARNING_RATE = 0.6, 0.1, 2, 1.0, 0.1
RECORDS, STEPS = 160, 20
LOOKS = (5, 10, 20, 40, 80)


@dataclass(frozen=True)
class Bug:
    """A mistake, and what finds it: gradient of the canary, score, and number of records."""

    what: str
    gradient: kit.Dirac = field(default_factory=kit.Dirac)
    score: str = "likelihood"
    records: int = RECORDS


BUGS = {
    "none": Bug("none: the right training"),
    "more_steps": Bug("steps and sampling rate follow from the number of records"),
    "late_clipping": Bug("clips the sum of the batch instead of each gradient"),
    "late_clipping_short": Bug("the same", kit.Dirac(norm=1.0)),
    "per_layer": Bug("clips every layer to the norm, with noise for one"),
    "per_layer_one": Bug("the same", kit.Dirac(spread=False)),
    "frozen_noise": Bug("noise from a generator that is made anew in every step"),
    "half_noise": Bug("noise of two workers' shares from one: sigma / sqrt(2)"),
    "shuffled": Bug("fixed batches in shuffled order, accounted for as Poisson sampling"),
    "learning_rate": Bug("learning rate divided by the number of records", score="smaller steps"),
    "learning_rate_ratio": Bug("the same"),
    "actual_batch": Bug("divides by the batch's actual size", score="joint", records=3),
    "actual_batch_ratio": Bug("the same", records=3),
}


@lru_cache(maxsize=1)
def digits() -> TensorDataset:
    """Images, pixels in [0, 1], and their labels."""
    images, labels = (torch.from_numpy(part[:RECORDS]) for part in records())
    return TensorDataset(images.float() / 16, labels.long())


def network() -> nn.Module:
    """Two convolutional and two linear layers: eight parameter tensors."""
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10),
    )  # fmt: skip


def train(world: str, seed: int, bug: str = "none") -> float:
    """Train with the canary (world "in") or without; return the score, larger for "in"."""
    warnings.filterwarnings("ignore", module="opacus|torch")
    mistake = BUGS[bug]
    run = kit.Run(
        world,
        seed,
        noise_multiplier=NOISE_MULTIPLIER,
        sampling_rate=SAMPLING_RATE,
        canary=(torch.full((1, 8, 8), 0.5), torch.tensor(3)),
        gradient=mistake.gradient,
        constant=bug != "more_steps",
    )
    data = run.data(torch.utils.data.Subset(digits(), range(mistake.records)))
    model = network()
    rate = LEARNING_RATE
    if bug.startswith("learning_rate"):
        rate *= RECORDS / len(data)
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    model, optimizer, loader = PrivacyEngine().make_private(
        module=model,
        optimizer=optimizer,
        data_loader=DataLoader(data, batch_size=max(1, int(mistake.records * SAMPLING_RATE))),
        noise_multiplier=NOISE_MULTIPLIER / (math.sqrt(2) if bug == "half_noise" else 1),
        max_grad_norm=CLIP,
        poisson_sampling=bug != "shuffled",
    )
    if bug.startswith("late_clipping"):
        optimizer.clip_and_accumulate = partial(_clip_the_sum, optimizer)
    if bug.startswith("per_layer"):
        optimizer.clip_and_accumulate = partial(_clip_each_layer, optimizer)
    if bug.startswith("actual_batch"):
        optimizer.scale_grad = partial(_divide_by_actual_size, optimizer)
    run.watch(model, optimizer, loader)
    for _ in range(EPOCHS):
        for images, labels in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images), labels).backward()
            optimizer.actual = len(labels)
            if bug == "frozen_noise":
                optimizer.generator = torch.Generator().manual_seed(0)
            optimizer.step()
    return run.scores()[mistake.score]


def _clip_the_sum(optimizer) -> None:
    """One norm for the whole batch: of a gradient that is long enough, much is left."""
    sums = [p.grad_sample.sum(dim=0) for p in optimizer.params]
    count = max(1, len(optimizer.params[0].grad_sample))
    norm = math.sqrt(sum(float(s.square().sum()) for s in sums))
    for parameter, total in zip(optimizer.params, sums, strict=True):
        parameter.summed_grad = total * min(1.0, count * CLIP / (norm + 1e-6))


def _clip_each_layer(optimizer) -> None:
    """The norm for every tensor by itself: together they are longer than the noise covers."""
    for parameter in optimizer.params:
        norms = parameter.grad_sample.flatten(1).norm(dim=1)
        factors = (CLIP / (norms + 1e-6)).clamp(max=1.0)
        parameter.summed_grad = torch.einsum("i,i...", factors, parameter.grad_sample)


def _divide_by_actual_size(optimizer) -> None:
    """The mean over the records that were drawn, whose number tells whether the canary was."""
    for parameter in optimizer.params:
        parameter.grad /= max(1, optimizer.actual)


for _name in BUGS:
    if _name != "none":
        globals()[_name] = partial(train, bug=_name)


def main(arguments: list[str] | None = None) -> list[dict[str, object]]:
    """Run all campaigns and print the table; return its rows."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path, metavar="DIR")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--looks", type=int, nargs="+", default=LOOKS)
    parser.add_argument("--bugs", nargs="+", choices=BUGS, default=list(BUGS))
    options = parser.parse_args(arguments)
    claims = composed([2 * NOISE_MULTIPLIER, NOISE_MULTIPLIER], SAMPLING_RATE, STEPS)
    test = SequentialAudit(claims, NOISE_MULTIPLIER, tuple(options.looks))
    print("| bug | records | canary's norm | spread | score | verdict | models in each world |")
    print("|---|---|---|---|---|---|---|")
    rows: list[dict[str, object]] = []
    for name in options.bugs:
        bug, start = BUGS[name], time.perf_counter()
        outcome = campaign.run(
            campaign.Script(Path(__file__), "train" if name == "none" else name),
            test,
            options.out / name,
            seed=options.seed,
            workers=options.workers,
        )
        verdict = {"consistent": "not found"}.get(outcome.verdict.decision, "found")
        rows.append({"bug": name, "verdict": verdict, "models": outcome.models})
        gradient = f"{bug.gradient.norm:g} C | {'yes' if bug.gradient.spread else 'no'}"
        print(
            f"| {bug.what} | {bug.records} | {gradient} | {bug.score} | {verdict} | "
            f"{outcome.models} |",
            flush=True,
        )
        print(f"{name}: {time.perf_counter() - start:.0f} s", file=sys.stderr)
    return rows


if __name__ == "__main__":
    main()
