"""What kernels are tested against: every record's gradient by autograd, in float64."""

import copy
import math

import numpy as np
import torch
from torch import nn

from hiddenstate import models
from hiddenstate.dpsgd.clipping import ClippedSum, cross_entropy, flat_parameters
from hiddenstate.streams import stream


def problem(name: str, make, shape: tuple[int, ...], classes: int, records: int = 40):
    """(model, x, y) with inputs and parameters of their own random stream."""
    rng = stream(0, "clipping", name)
    model = make()
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(torch.from_numpy(rng.normal(size=p.shape) / math.sqrt(p[0].numel() + 1)))
    x = rng.random((records, *shape)).astype(np.float32)
    return model, x, rng.integers(classes, size=records)


def explicit(model: nn.Module, x, y) -> torch.Tensor:
    """Per-sample gradients in float64, one record after the other; shape (records, p)."""
    model = copy.deepcopy(model).double()
    rows = []
    for record, label in zip(torch.as_tensor(x).double(), torch.as_tensor(y), strict=True):
        loss = cross_entropy(model(record[None]), label[None]).sum()
        parameters = [p for p in model.parameters() if p.requires_grad]
        rows.append(torch.cat([g.flatten() for g in torch.autograd.grad(loss, parameters)]))
    return torch.stack(rows)


def clipped(gradients: torch.Tensor, clipping_norm: float) -> torch.Tensor:
    """Their sum, each clipped."""
    norms = gradients.norm(dim=1, keepdim=True)
    return (gradients * (clipping_norm / norms).clamp(max=1)).sum(0)


def check(total: ClippedSum, model: nn.Module, x, y, tolerance: float = 1e-5) -> None:
    """Norms and sums are those of float64, of all records and of single ones."""
    gradients, theta, everything = explicit(model, x, y), flat_parameters(model), np.arange(len(x))
    norms = gradients.norm(dim=1)
    np.testing.assert_allclose(total.norms(theta, everything), norms, rtol=tolerance)
    # A norm in the middle clips some records and leaves others.
    for clipping_norm in (float(norms.median()), float(norms.min()) / 10, math.inf):
        expected = clipped(gradients, clipping_norm)
        found = total(theta, everything, clipping_norm)
        assert (found - expected).norm() <= tolerance * expected.norm()
    # Record by record: one record's clipped gradient has the smaller of the norms.
    for i in range(0, len(x), 7):
        one = total(theta, np.array([i]), 0.5)
        assert float(one.norm()) <= 0.5 * (1 + 1e-6)
        expected = clipped(gradients[i : i + 1], 0.5)
        assert (one - expected).norm() <= tolerance * expected.norm()


def residual_blocks(*between: nn.Module) -> nn.Module:
    """The papers' residual blocks, both kinds, with and without a shortcut's own layers.

    between: layers on the 16 channels' means, before the last one.
    """
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1, bias=False),
        models.ResidualBlock(8, 16, 2, groups=4, first="norm"),
        models.ResidualBlock(16, 16, 1, groups=4, first="conv"),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        *between,
        nn.Linear(16, 4),
    )
