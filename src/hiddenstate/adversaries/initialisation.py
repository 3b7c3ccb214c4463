"""Initial parameters: DP-SGD's guarantee holds for any, so the adversary may choose them."""

import copy

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from hiddenstate.dpsgd.clipping import Loss, cross_entropy, flat_parameters
from hiddenstate.errors import InputError


def average_case(model: nn.Module, rng: np.random.Generator) -> Tensor:
    """Xavier-uniform weights, zero biases, unit gains of norms; shape (p,).

    Source: Glorot and Bengio 2010, as in Annamalai and De Cristofaro 2024, Section 5.2.
    """
    parts = []
    for name, p in model.named_parameters():
        if not p.requires_grad:
            continue
        if p.dim() < 2:
            gain = name.rpartition(".")[2] == "weight"
            parts.append(torch.full((p.numel(),), float(gain)))
            continue
        area = p[0, 0].numel()
        bound = (6 / (area * (p.shape[0] + p.shape[1]))) ** 0.5
        parts.append(torch.from_numpy(rng.uniform(-bound, bound, p.numel()).astype(np.float32)))
    return torch.cat(parts)


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
    loss: Loss = cross_entropy,
    device: str = "cpu",
) -> Tensor:
    """Worst case: parameters (p,) trained without privacy on records like the private ones.

    Plain SGD on mean losses from ``start`` (p,); ordinary records' gradients become small, so that
    the canary's stands out. Source: Annamalai and De Cristofaro 2024, Section 4.

    Raises InputError for numbers that are not finite, given or found.
    """
    if len(x) != len(y):
        raise InputError(f"y: got {len(y)} labels; expected {len(x)}, one a record")
    if not (expected := flat_parameters(model).shape) == start.shape:
        raise InputError(f"start: got shape {tuple(start.shape)}; expected {tuple(expected)}")
    if not bool(start.isfinite().all()):
        i = int((~start.isfinite()).nonzero()[0])
        raise InputError(f"start: parameter {i} is {float(start[i])}; expected finite numbers")
    broken = np.flatnonzero(~np.isfinite(x).reshape(len(x), -1).all(1))
    if len(broken):
        raise InputError(f"x: record {broken[0]} holds values that are no finite numbers")
    trained = copy.deepcopy(model).to(device)
    parameters = [p for p in trained.parameters() if p.requires_grad]
    # A copy, for the parameters become views of it and are trained in place.
    nn.utils.vector_to_parameters(start.detach().clone().to(device), parameters)
    optimiser = torch.optim.SGD(parameters, lr=learning_rate, momentum=momentum)
    records, labels = torch.as_tensor(x).to(device), torch.as_tensor(y).to(device)
    for _ in range(epochs):
        order = torch.from_numpy(rng.permutation(len(x))).to(device)
        for batch in order.split(batch_size):
            optimiser.zero_grad()
            loss(trained(records[batch]), labels[batch]).mean().backward()
            optimiser.step()
    found = flat_parameters(trained).cpu()
    if not bool(found.isfinite().all()):
        raise InputError(
            f"learning_rate: {learning_rate} made the pre-training diverge; expected a smaller one"
        )
    return found
