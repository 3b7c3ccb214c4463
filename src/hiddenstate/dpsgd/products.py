"""Clipped sums of many linear models at once, in two matrix products.

A linear model's per-sample gradient is its logits' gradient times the record, and all models see
the same records. So one product gives the logits of all, and one the sums of all.
"""

import math

import torch
from torch import Tensor, nn

from hiddenstate.dpsgd.graph import run_order

GROUP = 32
"""Models at once. Always so many, so that a model's sums round the same whatever it is beside."""
_RECORDS = 1024  # at once, so that a block stays in the cache


def factors(norms: Tensor, clipping_norm: float) -> Tensor:
    """What gradients of these norms are multiplied by, in the same shape.

    No number where a norm overflows: as 0 its record would vanish from the sum without a word.
    """
    return (clipping_norm / norms).clamp(max=1).add(norms, alpha=0)


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
    total = _block(layer, x[:_RECORDS], y[:_RECORDS], thetas, clipping_norm)
    for start in range(_RECORDS, len(x), _RECORDS):
        block = slice(start, start + _RECORDS)
        total += _block(layer, x[block], y[block], thetas, clipping_norm)
    return total


def _block(layer: nn.Linear, x: Tensor, y: Tensor, thetas: Tensor, clipping_norm: float) -> Tensor:
    models, records, classes = len(thetas), len(x), layer.out_features
    size = classes * layer.in_features
    weights = thetas[:, :size].reshape(models * classes, -1)
    g = (weights @ x.T).view(models, classes, records)
    squares = x.square().sum(1)
    if layer.bias is not None:
        g += thetas[:, size:, None]
        squares = squares + 1
    # The gradients by the logits: softmax less one at the label.
    g -= g.amax(1, keepdim=True)
    g.exp_()
    g /= g.sum(1, keepdim=True)
    g -= g.new_zeros(classes, records).scatter_(0, y[None], 1.0)
    if math.isfinite(clipping_norm):
        norms = (g.square().sum(1) * squares).sqrt_()
        g *= factors(norms, clipping_norm)[:, None]
    sums = (g.view(models * classes, records) @ x).view(models, size)
    return sums if layer.bias is None else torch.cat((sums, g.sum(2)), 1)
