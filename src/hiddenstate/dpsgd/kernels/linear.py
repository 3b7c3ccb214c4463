"""Clipped sums of many linear models at once, in two matrix products.

A linear model's per-sample gradient is its logits' gradient times the record, and all models see
the same records. So one product gives the logits of all, and one the sums of all.
"""

import math
from functools import cached_property, partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from hiddenstate.dpsgd.graph import run_order
from hiddenstate.dpsgd.kernels.base import SHORT, Problem, cross_entropy, factors, mistrust
from hiddenstate.dpsgd.kernels.bookkeeping import BookKeeping, book_keeping
from hiddenstate.dpsgd.probe import Probe
from hiddenstate.errors import InputError

GROUP = 32
"""Models at once. Always so many, so that a model's sums round the same whatever it is beside."""
_RECORDS = 1024  # at once, so that a block stays in the cache


class Linear(BookKeeping):
    """A linear model's; one alone, and its norms, by book-keeping."""

    kind = "linear"

    @cached_property
    def activations(self) -> float:
        """Two and a half times what the layer's shape says."""
        return 2.5 * self.record_bytes

    def many(self, thetas: Tensor, indices: NDArray[np.int64], clipping_norm: float) -> Tensor:
        """The sums (models, p) of many models over the same records."""
        x, y = self.problem.x, self.problem.y
        # The full batch in its order needs no copy of the records.
        if len(indices) != len(y) or not np.array_equal(indices, np.arange(len(y))):
            records = torch.as_tensor(indices)
            x, y = x[records], y[records]
        layer = self.layers[0].layer
        return clipped_sums(layer, x.flatten(1), y, thetas, clipping_norm)


def linear(problem: Problem, probe: Probe) -> Linear:
    """The kernel; InputError for other models, and where it is wrong."""
    layer = linear_layer(problem.model)
    if layer is None or problem.loss is not cross_entropy:
        raise InputError(
            "kernel: got 'linear', but the model is no single linear layer with cross-entropy; "
            "expected 'auto'"
        )
    sums = partial(clipped_sums, layer, thetas=probe.theta[None])

    def gradients(x: Tensor, y: Tensor) -> Tensor:
        rows, short = (
            torch.cat([
                sums(x[i : i + 1].flatten(1), y[i : i + 1], clipping_norm=norm)
                for i in range(len(x))
            ])
            for norm in (math.inf, SHORT)
        )  # fmt: skip
        own, clipped = rows.norm(dim=1), short.norm(dim=1)
        mistrust(rows, torch.where(own > SHORT, SHORT * own / clipped, clipped), own)
        return rows

    kernel = book_keeping(problem, probe, Linear)
    if kernel is None or probe.differs(gradients, probe.tolerance):
        raise InputError("kernel: got 'linear', which is wrong for the model; expected 'auto'")
    return kernel


def linear_layer(model: nn.Module) -> nn.Linear | None:
    """The model's only layer, if it is a linear one on flattened records with all trained."""
    modules = run_order(model) or []
    layers = [m for m in modules if type(m) is not nn.Flatten]
    if len(layers) != 1 or type(layers[0]) is not nn.Linear:
        return None
    flat = all(m.start_dim == 1 and m.end_dim == -1 for m in modules if isinstance(m, nn.Flatten))
    own = {id(p) for p in layers[0].parameters() if p.requires_grad}
    return layers[0] if flat and own == {id(p) for p in model.parameters()} else None


def clipped_sums(
    layer: nn.Linear, x: Tensor, y: Tensor, thetas: Tensor, clipping_norm: float
) -> Tensor:
    """Sums (models, p) of clipped cross-entropy gradients at thetas (models, p), weights first.

    x: shape (records, features). y: shape (records,).
    """
    # The first block begins the sum, which spares a pass over zeros.
    total = _block(layer, x[:_RECORDS], y[:_RECORDS], thetas, clipping_norm)
    for start in range(_RECORDS, len(x), _RECORDS):
        block = slice(start, start + _RECORDS)
        total += _block(layer, x[block], y[block], thetas, clipping_norm)
    return total


def _block(layer: nn.Linear, x: Tensor, y: Tensor, thetas: Tensor, clipping_norm: float) -> Tensor:
    models, records, classes = len(thetas), len(x), layer.out_features
    size = classes * layer.in_features
    weights = thetas[:, :size].reshape(models * classes, -1)
    # g holds the logits first, and is changed in place so that it stays in the cache.
    g = (weights @ x.T).view(models, classes, records)
    squares = x.square().sum(1)
    if layer.bias is not None:
        g += thetas[:, size:, None]
        squares = squares + 1  # the bias reads a constant 1
    # The gradients by the logits: softmax less one at the label.
    g -= g.amax(1, keepdim=True)
    g.exp_()
    g /= g.sum(1, keepdim=True)
    g -= g.new_zeros(classes, records).scatter_(0, y[None], 1.0)
    if math.isfinite(clipping_norm):
        # A gradient is an outer product, whose norm is the product of two norms.
        norms = (g.square().sum(1) * squares).sqrt_()
        g *= factors(norms, clipping_norm)[:, None]
    sums = (g.view(models * classes, records) @ x).view(models, size)
    return sums if layer.bias is None else torch.cat((sums, g.sum(2)), 1)
