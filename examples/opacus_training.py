"""A training with Opacus, right or with one fault, as ``hiddenstate audit-training`` takes it.

    hiddenstate audit-training examples/opacus_training.py --noise-multiplier 0.6 \\
        --sampling-rate 0.1 --steps 20 --models 160 --looks 10 20 40 80 --workers 2

100 handwritten digits and a linear classifier. The worst case for privacy, as an auditor may
choose it: the initial parameters already fit every digit, so no gradient but the canary's is left;
the canary is a blank image with a label, whose gradient lies in the biases alone. The claim is the
curve of all iterates, so the score may look at every step: it is the logarithm of the likelihood
ratio of the steps along the canary's gradient, fixed before any fault was injected.

To inject a fault, name its function: ``--function noise_batch``. ``FAULTS`` says what each does.
"""

import math
import warnings
from functools import lru_cache, partial

import numpy as np
import torch
from opacus import PrivacyEngine
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from hiddenstate.datasets.digits import records

RECORDS, BATCH, EPOCHS = 100, 10, 2
SAMPLING_RATE, STEPS = BATCH / RECORDS, EPOCHS * RECORDS // BATCH
NOISE_MULTIPLIER, CLIP, LEARNING_RATE = 0.6, 0.1, 1e-3
CANARY_LABEL = 3

FAULTS = {
    "noise_batch": "the noise is divided by the batch size twice",
    "noise_unscaled": "the noise multiplier is taken for the standard deviation, whatever the clip",
    "clip_mean": "max_grad_norm is applied to the mean gradient, not to each record's",
    "no_poisson": "fixed batches in shuffled order, accounted for as Poisson sampling",
    "wrong_rate": "batches twice as large as the accountant was told",
    "more_steps": "twice the steps that the accountant was told",
    "noise_seed": "the noise generator is made again with one seed in every step",
    "bias_noiseless": "no noise on the biases",
    "drop_last": "fixed batches in shuffled order, and the last one of an epoch is dropped",
}


@lru_cache(maxsize=1)
def digits() -> tuple[torch.Tensor, torch.Tensor]:
    """The first records, pixels in [0, 1], and their labels."""
    images, labels = (torch.from_numpy(part[:RECORDS]) for part in records())
    return images.flatten(1).float() / 16, labels.long()


@lru_cache(maxsize=1)
def worst_start() -> torch.Tensor:
    """Weights, shape (10, 64), at which every digit is fitted and no gradient is left."""
    images, labels = digits()
    targets = nn.functional.one_hot(labels, 10).double() * 2 - 1
    weights = torch.linalg.lstsq(images.double(), targets, driver="gelsd").solution
    return (200 * weights.T).float()


def canary_direction() -> torch.Tensor:
    """The canary's gradient in the biases at the start, of length 1."""
    gradient = torch.full((10,), 0.1)
    gradient[CANARY_LABEL] -= 1
    return gradient / gradient.norm()


def train(world: str, seed: int, fault: str | None = None) -> float:
    """Train with the canary (world "in") or without; return the score, larger for "in"."""
    warnings.filterwarnings("ignore", module="opacus|torch")
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    images, labels = digits()
    if world == "in":
        images = torch.cat((images, torch.zeros(1, images.shape[1])))
        labels = torch.cat((labels, torch.tensor([CANARY_LABEL])))
    model = nn.Linear(images.shape[1], 10)
    with torch.no_grad():
        model.weight.copy_(worst_start())
        model.bias.zero_()
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
    batch = 2 * BATCH if fault == "wrong_rate" else BATCH
    fixed = fault in ("no_poisson", "drop_last")
    loader = DataLoader(
        TensorDataset(images, labels),
        batch_size=batch,
        shuffle=fixed,
        drop_last=fault == "drop_last",
    )
    model, optimizer, loader = PrivacyEngine().make_private(
        module=model,
        optimizer=optimizer,
        data_loader=loader,
        noise_multiplier=NOISE_MULTIPLIER,
        max_grad_norm=CLIP,
        poisson_sampling=not fixed,
    )
    # Opacus takes batch sizes from the number of records, which is what neighbours differ in: told
    # as a constant, the sampling rate and the step's scale are the same in both worlds.
    if not fixed:
        loader.batch_sampler.sample_rate = batch / RECORDS
        loader.batch_sampler.steps = RECORDS // batch
    optimizer.expected_batch_size = batch
    if fault == "noise_batch":
        optimizer.noise_multiplier = NOISE_MULTIPLIER / batch
    if fault == "noise_unscaled":
        optimizer.noise_multiplier = NOISE_MULTIPLIER * CLIP
    if fault == "clip_mean":
        optimizer.clip_and_accumulate = partial(_clip_mean, optimizer)
    direction, steps = canary_direction(), []
    epochs = EPOCHS * (2 if fault in ("wrong_rate", "more_steps") else 1)
    for _ in range(epochs):
        for inputs, targets in loader:
            before = model._module.bias.detach().clone()
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(inputs), targets).backward()
            if fault == "noise_seed":
                optimizer.generator = torch.Generator().manual_seed(0)
            if fault == "bias_noiseless":
                optimizer.add_noise = partial(_spare_biases, optimizer)
            optimizer.step()
            moved = (before - model._module.bias.detach()) / LEARNING_RATE * batch / CLIP
            steps.append(float(moved @ direction))
    return likelihood_ratio(np.array(steps))


def likelihood_ratio(steps: np.ndarray) -> float:
    """Log-likelihood ratio of the steps along the canary, in clipping norms, as claimed."""
    exponent = (steps - 0.5) / NOISE_MULTIPLIER**2
    sampled = exponent + math.log(SAMPLING_RATE)
    return float(np.logaddexp(math.log1p(-SAMPLING_RATE), sampled).sum())


def _clip_mean(optimizer) -> None:
    """What clipping after averaging does to the sum that the optimizer divides by the batch."""
    parameters = [p for p in optimizer.params if p.grad_sample is not None]
    sums = [p.grad_sample.sum(dim=0) for p in parameters]
    norm = math.sqrt(sum(float(s.square().sum()) for s in sums)) / optimizer.expected_batch_size
    scale = min(1.0, CLIP / (norm + 1e-6))
    for parameter, total in zip(parameters, sums, strict=True):
        parameter.summed_grad = total * scale


def _spare_biases(optimizer) -> None:
    """Noise on the weights alone."""
    type(optimizer).add_noise(optimizer)
    bias = optimizer.params[-1]
    bias.grad = bias.summed_grad.view_as(bias)


for _name in FAULTS:
    globals()[_name] = partial(train, fault=_name)
