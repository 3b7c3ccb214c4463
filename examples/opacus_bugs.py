"""Mistakes in trainings with Opacus, each with a canary and a score that find it: a table.

    python examples/opacus_bugs.py DIR --table src/hiddenstate/auditing/canaries.csv

A training as in Opacus's MNIST example (a convolutional network, batches of 16 by Poisson sampling,
two epochs of SGD), with 160 of scikit-learn's digits. ``train`` audits it with
``hiddenstate.campaign.kit``; ``BUGS`` are mistakes that people make, each put into that training.
Campaigns have the same claim and looks; a killed run goes on with the same DIR. One in the shell:

    hiddenstate audit-training examples/opacus_bugs.py --function late_clipping \\
        --noise-multiplier 0.6 --sampling-rate 0.1 --steps 20 --models 40 --looks 5 10 20
"""

import argparse
import math
import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache, partial
from pathlib import Path

import torch
from opacus import PrivacyEngine
from opacus.utils.batch_memory_manager import BatchMemoryManager
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from hiddenstate.auditing import SequentialAudit, composed
from hiddenstate.campaign import campaign, guide, kit
from hiddenstate.datasets.digits import records

NOISE_MULTIPLIER, SAMPLING_RATE, EPOCHS, CLIP, LEARNING_RATE = 0.6, 0.1, 2, 1.0, 0.1
RECORDS, STEPS = 160, 20
LOOKS = (5, 10, 20, 40, 80)


MISTAKES = {
    guide.NONE: "none: the right training",
    guide.NONE_VIRTUAL: "none: virtual steps by BatchMemoryManager, used right",
    "records-decide-steps": "steps and sampling rate follow from the number of records",
    "late-clipping": "clips the sum of the batch instead of each gradient",
    "virtual-steps": "adds up parts of a batch, and clips the sum when the step is taken",
    "per-layer-clipping": "clips every layer to the norm, with noise for one",
    "repeated-noise": "noise from a generator that is made again in every step",
    "small-noise": "noise of two workers' shares from one: sigma / sqrt(2)",
    "shuffled-batches": "fixed batches in shuffled order, accounted for as Poisson sampling",
    "records-decide-rate": "learning rate divided by the number of records",
    "actual-batch": "divides by the batch's actual size",
    "shared-noise": "noise from one key for all tensors",
    "broadcast-noise": "one number of noise for each tensor",
    "row-noise": "one row of noise for all rows of a tensor",
    "batch-norm": "batch norm as a function, which Opacus's validator does not see",
}
"""Names of mistakes, as they are suspected, and in words."""


@dataclass(frozen=True)
class Bug:
    """A mistake, and what may find it: gradient of the canary, score, and number of records."""

    suspicion: str
    gradient: kit.Dirac = field(default_factory=kit.Dirac)
    score: str = "likelihood"
    records: int = RECORDS


ONE = kit.Dirac(pairs=False)
BUGS = {
    "none": Bug(guide.NONE),
    "none_virtual": Bug(guide.NONE_VIRTUAL, ONE),
    "more_steps": Bug("records-decide-steps", ONE),
    "late_clipping": Bug("late-clipping"),
    "late_clipping_short": Bug("late-clipping", kit.Dirac(norm=1.0, pairs=False)),
    "virtual_steps": Bug("virtual-steps", ONE),
    "virtual_steps_short": Bug("virtual-steps", kit.Dirac(norm=1.0, pairs=False)),
    "per_layer": Bug("per-layer-clipping"),
    "per_layer_one": Bug("per-layer-clipping", kit.Dirac(spread=False, pairs=False)),
    "frozen_noise": Bug("repeated-noise"),
    "half_noise": Bug("small-noise"),
    "shuffled": Bug("shuffled-batches", ONE),
    "learning_rate": Bug("records-decide-rate", ONE, score="smaller steps"),
    "learning_rate_ratio": Bug("records-decide-rate", ONE),
    "actual_batch": Bug("actual-batch", score="joint"),
    "actual_batch_ratio": Bug("actual-batch"),
    "shared_noise": Bug("shared-noise"),
    "shared_noise_one": Bug("shared-noise", ONE),
    "broadcast_noise": Bug("broadcast-noise"),
    "broadcast_noise_one": Bug("broadcast-noise", ONE),
    "row_noise": Bug("row-noise"),
    "row_noise_one": Bug("row-noise", ONE),
    "batch_norm": Bug("batch-norm", ONE),
    "batch_norm_size": Bug("batch-norm", ONE, score="smaller steps"),
}


@lru_cache(maxsize=1)
def digits() -> TensorDataset:
    """Images, pixels in [0, 1], and their labels."""
    images, labels = (torch.from_numpy(part[:RECORDS]) for part in records())
    return TensorDataset(images.float() / 16, labels.long())


class BatchNorm(nn.Module):
    """Batch norm by the function, without parameters; an empty batch as it is."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Images (batch, channels, height, width), normalised by the batch's own moments."""
        if not len(images):
            return images
        return nn.functional.batch_norm(images, None, None, training=True)


def network(between: type[nn.Module] = nn.Identity) -> nn.Module:
    """Two convolutional and two linear layers: eight parameter tensors."""
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), between(), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3, padding=1), between(), nn.ReLU(), nn.MaxPool2d(2),
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
        constant=bug not in ("more_steps", "shuffled"),
    )
    data = run.data(torch.utils.data.Subset(digits(), range(mistake.records)))
    model = network(BatchNorm if bug.startswith("batch_norm") else nn.Identity)
    rate = LEARNING_RATE
    if bug.startswith("learning_rate"):
        rate *= RECORDS / len(data)
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    model, optimizer, loader = PrivacyEngine().make_private(
        module=model,
        optimizer=optimizer,
        data_loader=DataLoader(data, batch_size=max(1, int(mistake.records * SAMPLING_RATE))),
        noise_multiplier=NOISE_MULTIPLIER,
        max_grad_norm=CLIP,
        poisson_sampling=bug != "shuffled",
    )
    if bug.startswith(("late_clipping", "virtual_steps")):
        optimizer.clip_and_accumulate = partial(_add_up, optimizer)
        optimizer.add_noise = partial(_clip_the_sum, optimizer, optimizer.add_noise)
    if bug.startswith("per_layer"):
        optimizer.clip_and_accumulate = partial(_clip_each_layer, optimizer)
    if bug == "half_noise":
        optimizer.add_noise = partial(_share_of_noise, optimizer, optimizer.add_noise)
    if bug.startswith("actual_batch"):
        optimizer.scale_grad = partial(_divide_by_actual_size, optimizer)
    if "_noise" in bug and bug.split("_noise")[0] in SHARED:
        optimizer.add_noise = partial(_share_noise, optimizer, SHARED[bug.split("_noise")[0]])
    run.watch(model, optimizer, loader)
    for _ in range(EPOCHS):
        with _batches(loader, optimizer, virtual="virtual" in bug) as batches:
            for images, labels in batches:
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(images), labels).backward()
                optimizer.actual = len(labels)
                if bug == "frozen_noise":
                    optimizer.generator = torch.Generator().manual_seed(0)
                optimizer.step()
    return run.scores()[mistake.score]


@contextmanager
def _batches(loader, optimizer, *, virtual: bool) -> Iterator[DataLoader]:
    """The batches as they are drawn, or by virtual steps in parts of at most four records."""
    if not virtual:
        yield loader
        return
    with BatchMemoryManager(
        data_loader=loader, max_physical_batch_size=4, optimizer=optimizer
    ) as parts:
        yield parts


def _add_up(optimizer) -> None:
    """Gradients as they are: what is clipped is their sum."""
    for parameter in optimizer.params:
        part = parameter.grad_sample.sum(dim=0)
        before = parameter.summed_grad
        parameter.summed_grad = part if before is None else before + part
    optimizer.count = getattr(optimizer, "count", 0) + len(optimizer.params[0].grad_sample)


def _clip_the_sum(optimizer, add_noise) -> None:
    """One norm for the whole batch: of a gradient that is long enough, much is left."""
    norm = math.sqrt(sum(float(p.summed_grad.square().sum()) for p in optimizer.params))
    for parameter in optimizer.params:
        parameter.summed_grad *= min(1.0, max(1, optimizer.count) * CLIP / (norm + 1e-6))
    optimizer.count = 0
    add_noise()


def _clip_each_layer(optimizer) -> None:
    """The norm for every tensor by itself: together they are longer than the noise covers."""
    for parameter in optimizer.params:
        norms = parameter.grad_sample.flatten(1).norm(dim=1)
        factors = (CLIP / (norms + 1e-6)).clamp(max=1.0)
        parameter.summed_grad = torch.einsum("i,i...", factors, parameter.grad_sample)


def _share_of_noise(optimizer, add_noise) -> None:
    """What one of two workers adds where the other adds nothing."""
    optimizer.noise_multiplier = NOISE_MULTIPLIER / math.sqrt(2)
    add_noise()
    optimizer.noise_multiplier = NOISE_MULTIPLIER


def _divide_by_actual_size(optimizer) -> None:
    """The mean over the records that were drawn, whose number tells whether the canary was."""
    for parameter in optimizer.params:
        parameter.grad /= max(1, optimizer.actual)


def _share_noise(optimizer, drawn) -> None:
    """Noise of the right deviation in every coordinate, which some of them share."""
    key = int(torch.randint(2**31, ()))
    for parameter in optimizer.params:
        noise = NOISE_MULTIPLIER * CLIP * drawn(parameter, key)
        parameter.grad = parameter.summed_grad.view_as(parameter) + noise


def _one_key(parameter, key: int) -> torch.Tensor:
    drawn = torch.randn(2**14, generator=torch.Generator().manual_seed(key))
    return drawn[: parameter.numel()].view_as(parameter)


SHARED = {
    "shared": _one_key,
    "broadcast": lambda parameter, key: torch.randn(()).expand_as(parameter),
    "row": lambda parameter, key: torch.randn(parameter.shape[1:]).expand_as(parameter),
}
"""How noise is drawn, by the name of the mistake."""

for _name in BUGS:
    if _name != "none":
        globals()[_name] = partial(train, bug=_name)


def main(arguments: list[str] | None = None) -> list[guide.Campaign]:
    """Run all campaigns and print the table; return its rows."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path, metavar="DIR")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--repeats", type=int, default=1, help="campaigns of other seeds each (1)")
    parser.add_argument("--looks", type=int, nargs="+", default=LOOKS)
    parser.add_argument("--bugs", nargs="+", choices=BUGS, default=list(BUGS))
    parser.add_argument("--table", type=Path, metavar="FILE", help="CSV file to write as well")
    options = parser.parse_args(arguments)
    if min(options.repeats, options.workers) < 1:
        parser.error("--repeats, --workers: expected 1 or more")
    claims = composed([2 * NOISE_MULTIPLIER, NOISE_MULTIPLIER], SAMPLING_RATE, STEPS)
    test = SequentialAudit(claims, NOISE_MULTIPLIER, tuple(options.looks))
    rows: list[guide.Campaign] = []
    for name in options.bugs:
        bug, start = BUGS[name], time.perf_counter()
        outcomes = [
            campaign.run(
                campaign.Script(Path(__file__), "train" if name == "none" else name),
                test,
                options.out / f"{name}-{repeat}",
                seed=options.seed + repeat,
                workers=options.workers,
            )
            for repeat in range(options.repeats)
        ]
        found = [one.models for one in outcomes if one.verdict.decision == "refuted"]
        row = guide.Campaign(
            bug=name,
            suspicion=bug.suspicion,
            mistake=MISTAKES[bug.suspicion],
            norm=bug.gradient.norm,
            spread=bug.gradient.spread,
            pairs=bug.gradient.pairs,
            score=bug.score,
            records=bug.records,
            campaigns=len(outcomes),
            times=len(found),
            models=max(found or [one.models for one in outcomes]),
        )
        rows.append(row)
        print(f"{name}: {row.verdict}; {time.perf_counter() - start:.0f} s", file=sys.stderr)
    print(guide.markdown(rows))
    if options.table:
        guide.write(options.table, rows)
    return rows


if __name__ == "__main__":
    main()
