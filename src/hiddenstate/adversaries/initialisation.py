"""Initial parameters: DP-SGD's guarantee holds for any, so the adversary may choose them."""

import copy
import hashlib
import io
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.optim.sgd import sgd

from hiddenstate.dpsgd.augmentation import Augmentation
from hiddenstate.dpsgd.clipping import (
    Loss,
    checked,
    cross_entropy,
    flat_parameters,
    refuse_classes,
)
from hiddenstate.dpsgd.kernels.base import single_precision
from hiddenstate.dpsgd.probe import CHANCE, copied
from hiddenstate.errors import InputError, check_count
from hiddenstate.files import require


def average_case(model: nn.Module, rng: np.random.Generator, *, normal: bool = False) -> Tensor:
    """Xavier-uniform weights, zero biases, unit gains of norms; shape (p,).

    ``normal``: Xavier-normal weights and biases of 0.01, as in the public code of the latter.
    Source: Glorot and Bengio 2010, as in Annamalai and De Cristofaro 2024, Section 5.2.
    """
    parts = []
    for name, p in model.named_parameters():
        if not p.requires_grad:
            continue
        if p.dim() < 2:
            gain = name.rpartition(".")[2] == "weight"
            parts.append(torch.full((p.numel(),), 1.0 if gain else 0.01 if normal else 0.0))
            continue
        # A kernel's entries times the channels in and out; a dense layer's p[0, 0] is one entry.
        fans = p[0, 0].numel() * (p.shape[0] + p.shape[1])
        bound, deviation = (6 / fans) ** 0.5, _deviation(p)
        drawn = (
            rng.normal(0, deviation, p.numel()) if normal else rng.uniform(-bound, bound, p.numel())
        )
        parts.append(torch.from_numpy(drawn.astype(np.float32)))
    return torch.cat(parts)


def average_case_deviations(model: nn.Module) -> Tensor:
    """Standard deviations of the entries of ``average_case``, normal or not; shape (p,)."""
    trained = [p for p in model.parameters() if p.requires_grad]
    return torch.cat([torch.full((p.numel(),), _deviation(p)) for p in trained])


def _deviation(p: Tensor) -> float:
    """Standard deviation of a parameter's entries; only weights are drawn."""
    return 0.0 if p.dim() < 2 else (2 / (p[0, 0].numel() * (p.shape[0] + p.shape[1]))) ** 0.5


def pretrained(
    model: nn.Module,
    x: NDArray[np.float32],
    y: NDArray[np.int64],
    *,
    start: Tensor,
    epochs: int,
    batch_size: int,
    learning_rate: float,
    rng: np.random.Generator,
    momentum: float = 0.0,
    weight_decay: float = 0.0,
    drops: Sequence[int] = (),
    shuffled: bool = True,
    augmentation: Augmentation | None = None,
    loss: Loss = cross_entropy,
    device: str = "cpu",
) -> Tensor:
    """Worst case: parameters (p,) trained without privacy on records like the private ones.

    SGD (with Nesterov's momentum, if any) on mean losses from ``start`` (p,); ordinary records'
    gradients become small, so that the canary's stands out. The step size is a tenth after each
    epoch of ``drops``, where the momentum starts again. ``augmentation`` shows a random view of
    each record. Source: Annamalai and De Cristofaro 2024, Section 4, and their public code.

    Raises InputError for numbers that are not finite, given or found, and for rates out of range.
    """
    check_count("batch_size", batch_size)
    if epochs:
        check_count("epochs", epochs)
    _check_rates(learning_rate, momentum, weight_decay)
    _check_start(start, model)
    if augmentation:
        augmentation.check(np.shape(x)[1:])
    records, labels = (part.to(device) for part in checked(x, y, model, loss))
    trained = copied(model).to(device)
    parameters = [p for p in trained.parameters() if p.requires_grad]
    # A copy, for the parameters become views of it and are trained in place.
    nn.utils.vector_to_parameters(start.detach().clone().to(device), parameters)
    kept = [buffer.clone() for buffer in trained.buffers()]
    classes = None
    with single_precision(records.device), _chance(rng, records.device):
        for epoch in range(epochs):
            if epoch == 0 or epoch in drops:
                rate = learning_rate * 0.1 ** sum(drop <= epoch for drop in drops)
                buffers: list[Tensor | None] = [None] * len(parameters)
            order = torch.from_numpy(rng.permutation(len(x)) if shuffled else np.arange(len(x)))
            for batch in order.to(device).split(batch_size):
                seen = records[batch]
                if augmentation:
                    views = torch.from_numpy(augmentation.draw(len(seen), rng))
                    seen = augmentation.apply(seen, views)
                outputs = trained(seen)
                if classes is None and loss is cross_entropy and outputs.dim() == 2:
                    classes = outputs.shape[1]
                    refuse_classes(labels, classes)
                mean = loss(outputs, labels[batch]).mean()
                gradients = torch.autograd.grad(mean, parameters, materialize_grads=True)
                # The optimiser's class imports torch's compiler, which takes more than a second.
                with torch.no_grad():
                    sgd(
                        parameters, list(gradients), buffers, lr=rate, momentum=momentum,
                        dampening=0, nesterov=momentum > 0, weight_decay=weight_decay,
                        maximize=False,
                    )  # fmt: skip
            if not all(map(torch.equal, kept, trained.buffers())):
                raise InputError(
                    "model: pre-training changes its buffers, such as batch norm's running "
                    "statistics, and returns parameters alone; expected eval mode, or GroupNorm"
                )
    found = flat_parameters(trained).cpu()
    if not bool(found.isfinite().all()):
        raise InputError(
            f"learning_rate: {learning_rate} made the pre-training diverge; expected a smaller one"
        )
    return found


def _check_rates(learning_rate: float, momentum: float, weight_decay: float) -> None:
    for name, value, fits in (
        ("learning_rate", learning_rate, 0 < learning_rate < math.inf),
        ("momentum", momentum, 0 <= momentum < 1),
        ("weight_decay", weight_decay, 0 <= weight_decay < math.inf),
    ):
        if not fits:
            raise InputError(f"{name}: got {value}; expected a rate of SGD")


def _check_start(start: Tensor, model: nn.Module) -> None:
    if not (expected := flat_parameters(model).shape) == start.shape:
        raise InputError(f"start: got shape {tuple(start.shape)}; expected {tuple(expected)}")
    if not bool(start.isfinite().all()):
        i = int((~start.isfinite()).nonzero()[0])
        raise InputError(f"start: parameter {i} is {float(start[i])}; expected finite numbers")


@contextmanager
def _chance(rng: np.random.Generator, device: torch.device) -> Iterator[None]:
    """Run the block with torch's generators seeded from ``rng``, which is not advanced.

    One thread runs at a time, because torch has one generator for all of them.
    """
    with CHANCE, torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(int(copy.deepcopy(rng).integers(2**63)))
        yield


def read(path: str | Path, sha256: str, build: Callable[[int], nn.Module]) -> tuple[Tensor, int]:
    """Worst case from a file: parameters (p,), and how many of them are the last layer's.

    The file has one array for each of the model's parameters, by name: a .npz file, or a
    ``state_dict`` that torch saved. Where no name is the model's, its order decides, for others
    name the same layers otherwise. ``build`` makes the model for a number of classes, which the
    file's last bias has.

    Raises InputError for a file with another digest than ``sha256``, one that cannot be read, and
    one of another model.
    """
    content = require(path, "a model's parameters by name").read_bytes()
    if (found := hashlib.sha256(content).hexdigest()) != sha256:
        raise InputError(f"{path}: has the SHA-256 {found}; expected {sha256}")
    given: Mapping[str, Tensor]
    try:
        if str(path).endswith(".npz"):
            with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
                given = {name: torch.as_tensor(array) for name, array in arrays.items()}
        else:
            given = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
            given = {name: torch.as_tensor(value) for name, value in given.items()}
    except Exception as error:  # whatever readers of damaged files raise
        reason = str(error).partition("\n")[0][:200]
        raise InputError(
            f"{path}: expected a .npz file or a state_dict of torch ({reason})"
        ) from error
    # The number of classes changes shapes and no names.
    names = [name for name, _ in build(2).named_parameters()]
    if len(given) == len(names) and not given.keys() & set(names):
        given = dict(zip(names, given.values(), strict=True))
    bias = names[-1]
    classes = len(given[bias]) if bias in given and given[bias].dim() == 1 else 2
    expected = dict(build(classes).named_parameters())
    for name in expected | given:
        if name not in given:
            raise InputError(f"{path}: lacks {name!r}; expected {', '.join(expected)}")
        if name not in expected:
            raise InputError(f"{path}: got {name!r}; expected {', '.join(expected)}")
        if given[name].shape != expected[name].shape:
            raise InputError(
                f"{path}: {name!r} has shape {tuple(given[name].shape)}; expected "
                f"{tuple(expected[name].shape)}"
            )
        if not bool(given[name].isfinite().all()):
            raise InputError(f"{path}: {name!r} holds values that are no finite numbers")
    last = sum(given[name].numel() for name in [*expected][-2:])
    return torch.cat([given[name].flatten().float() for name in expected]), last
