"""How the layers' per-sample gradients follow from their inputs and their outputs' gradients.

A rule says what the gradient takes of a layer's inputs (``read``), brings that and the outputs'
gradients into one form (``prepare``), and then gives the squared norm of every record's gradient
and the sum of the gradients, each record weighted. Leading dimensions are (models, records) but in
``read``. Many models' layers run at once on what was read (``outputs``): nothing is read twice.
"""

from functools import reduce
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Rule:
    """What a rule offers. ``layer`` is of the type that ``RULES`` names for it."""

    @staticmethod
    def knows(layer: Any) -> bool:
        """Whether the rule covers this layer's options."""
        return True

    @staticmethod
    def read(layer: Any, inputs: Tensor) -> Tensor:
        """What the gradient takes of inputs (n, ...), so that autograd goes through; (n, ...)."""
        raise NotImplementedError

    @staticmethod
    def outputs(layer: Any, weights: dict[str, Tensor], a: Tensor) -> Tensor:
        """A new tensor: what layers with weights (models, ...) make of what was read."""
        raise NotImplementedError

    @staticmethod
    def shaped(outputs: Tensor, shape: torch.Size) -> Tensor:
        """These outputs as the layer gives them, a record's of this shape; (n, *shape)."""
        raise NotImplementedError

    @staticmethod
    def prepare(layer: Any, a: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
        """What was read, and output gradients, in the form that the methods below take."""
        raise NotImplementedError

    @staticmethod
    def mean(a: Tensor, g: Tensor, views: int) -> tuple[Tensor, Tensor]:
        """Prepared a and g of every record's mean over so many views of it, which are in a row."""
        raise NotImplementedError

    @staticmethod
    def squared_norms(layer: Any, a: Tensor, g: Tensor) -> Tensor:
        """Squared norm of each record's gradient; shape (models, records)."""
        raise NotImplementedError

    @staticmethod
    def weighted_sums(layer: Any, a: Tensor, g: Tensor, weights: Tensor) -> dict[str, Tensor]:
        """Weighted sums over the records by parameter name; shapes (models, ...)."""
        raise NotImplementedError

    @staticmethod
    def floats(layer: Any, output_shape: torch.Size) -> int:
        """Numbers that one record needs, about, in the form of ``prepare``."""
        raise NotImplementedError


def rule_of(layer: nn.Module) -> type[Rule] | None:
    """The rule for this layer, or None."""
    rule = RULES.get(type(layer))
    return rule if rule is not None and ordinary(layer) and rule.knows(layer) else None


def ordinary(layer: nn.Module) -> bool:
    """Whether the layer is as its class says: no hooks, no reparametrised weights."""
    names = {name for name, _ in layer.named_parameters()}
    return names <= {"weight", "bias"} and untouched(layer)


def untouched(module: nn.Module) -> bool:
    """Whether a call of the module runs its class's ``forward`` and no more."""
    return not (
        module._forward_hooks
        or module._forward_pre_hooks
        or module._backward_hooks
        or module._backward_pre_hooks
    )


class Product(Rule):
    """Layers whose gradient is sum_t g_t a_t^T: a (models, records, t, in), g (.., t, out).

    Where all models read the same, a is an expanded tensor, and what concerns it alone is done
    once.
    """

    @staticmethod
    def outputs(layer: Any, weights: dict[str, Tensor], a: Tensor) -> Tensor:
        """A new tensor: what layers with weights (models, ...) make of what was read."""
        a = a.flatten(1, 2)
        matrix = weights["weight"].movedim(2, -1).flatten(2).mT  # patches have their channels last
        if "bias" not in weights:
            return torch.bmm(a, matrix)
        return torch.baddbmm(weights["bias"][:, None], a, matrix)

    @staticmethod
    def mean(a: Tensor, g: Tensor, views: int) -> tuple[Tensor, Tensor]:
        """All views' places are places of the one record."""
        a, g = (part.unflatten(1, (-1, views)).flatten(2, 3) for part in (a, g))
        return a, g / views

    @staticmethod
    def squared_norms(layer: Any, a: Tensor, g: Tensor) -> Tensor:
        """Squared norm of each record's gradient; shape (models, records)."""
        places, inputs, outputs = a.shape[-2], a.shape[-1], g.shape[-1]
        a = a[:1] if a.stride(0) == 0 else a
        squares = []
        if layer.weight.requires_grad:
            if places == 1:
                squares.append(a.square().sum((-2, -1)) * g.square().sum((-2, -1)))
            elif places * (inputs + outputs) < inputs * outputs:
                squares.append(((a @ a.mT) * (g @ g.mT)).sum((-2, -1)))
            else:
                squares.append(_norms(a, g).square())
        if layer.bias is not None and layer.bias.requires_grad:
            squares.append(g.sum(-2).square().sum(-1))
        return reduce(torch.add, squares)

    @staticmethod
    def weighted_sums(layer: Any, a: Tensor, g: Tensor, weights: Tensor) -> dict[str, Tensor]:
        """Weighted sums over the records by parameter name; shapes (models, ...)."""
        g = (g * weights[..., None, None]).flatten(1, 2)
        sums = {}
        if layer.weight.requires_grad:
            sums["weight"] = torch.bmm(g.mT, a.flatten(1, 2))
        if layer.bias is not None and layer.bias.requires_grad:
            sums["bias"] = g.sum(1)
        return sums


def _norms(a: Tensor, g: Tensor) -> Tensor:
    """Norms (models, records) of sum_t g_t a_t^T; a may be one for all models."""
    models, records = g.shape[:2]
    if len(a) == models:
        products = torch.bmm(g.flatten(0, 1).mT, a.flatten(0, 1))
        return torch.linalg.vector_norm(products, dim=(1, 2)).view(models, records)
    # One product a record, the models beside each other: expanded, a would be copied for each.
    products = torch.bmm(g.permute(1, 0, 3, 2).flatten(1, 2), a[0]).unflatten(1, (models, -1))
    return torch.linalg.vector_norm(products, dim=(2, 3)).mT


class LinearRule(Product):
    """Linear layers, on vectors or on sequences of them."""

    @staticmethod
    def read(layer: nn.Linear, inputs: Tensor) -> Tensor:
        """What the gradient takes of inputs (n, ..., in): the vectors; (n, t, in)."""
        return inputs.reshape(len(inputs), -1, inputs.shape[-1])

    @staticmethod
    def shaped(outputs: Tensor, shape: torch.Size) -> Tensor:
        """These outputs as the layer gives them, a record's of this shape; (n, *shape)."""
        return outputs.reshape(-1, *shape)

    @staticmethod
    def prepare(layer: nn.Linear, a: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
        """What was read, and output gradients, in the form that the methods below take."""
        return a, g.reshape(*g.shape[:2], -1, g.shape[-1])

    @staticmethod
    def floats(layer: nn.Linear, output_shape: torch.Size) -> int:
        """Numbers that one record needs, about, in the form of ``prepare``."""
        return output_shape.numel() // layer.out_features * (layer.in_features + layer.out_features)


class ConvolutionRule(Product):
    """Convolutions of one group, as a linear layer on the patches."""

    @staticmethod
    def knows(layer: Any) -> bool:
        """Whether the rule covers this layer's options."""
        return layer.groups == 1 and layer.padding_mode == "zeros" and layer.padding != "same"

    @staticmethod
    def read(layer: nn.Conv2d, inputs: Tensor) -> Tensor:
        """What the gradient takes of images (n, ...): the patches; (n, places, patch)."""
        return _Patches.apply(inputs, layer)

    @staticmethod
    def shaped(outputs: Tensor, shape: torch.Size) -> Tensor:
        """These outputs as the layer gives them, a record's of this shape; (n, *shape)."""
        return outputs.reshape(-1, *shape[1:], shape[0]).movedim(-1, 1)

    @staticmethod
    def prepare(layer: nn.Conv2d, a: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
        """What was read, and output gradients, in the form that the methods below take."""
        return a, g.movedim(2, -1).flatten(2, 3)

    @staticmethod
    def weighted_sums(layer: nn.Conv2d, a: Tensor, g: Tensor, weights: Tensor) -> dict[str, Tensor]:
        """Weighted sums over the records by parameter name; shapes (models, ...)."""
        sums = Product.weighted_sums(layer, a, g, weights)
        if "weight" in sums:
            shape = (*layer.kernel_size, layer.in_channels)
            sums["weight"] = sums["weight"].unflatten(-1, shape).movedim(-1, 2)
        return sums

    @staticmethod
    def floats(layer: nn.Conv2d, output_shape: torch.Size) -> int:
        """Numbers that one record needs, about, in the form of ``prepare``."""
        kernel = layer.kernel_size[0] * layer.kernel_size[1] * layer.in_channels
        return output_shape[1:].numel() * (kernel + layer.out_channels)


class _Patches(torch.autograd.Function):
    """``_patches`` for autograd: what places saw of an image is added up where they saw it."""

    @staticmethod
    def forward(ctx: Any, images: Tensor, layer: nn.Conv2d) -> Tensor:
        """The patches (images, places, patch)."""
        ctx.layer, ctx.size = layer, images.shape[2:]
        return _patches(layer, images)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        """The gradient by the images, from that by the patches."""
        layer = ctx.layer
        places = gradients[0].unflatten(-1, (layer.kernel_size[0] * layer.kernel_size[1], -1))
        columns = places.permute(0, 3, 2, 1).flatten(1, 2)
        shape = layer.kernel_size, layer.dilation, _padding(layer), layer.stride
        return F.fold(columns, ctx.size, *shape), None


def _padding(layer: nn.Conv2d) -> tuple[int, ...]:
    return layer.padding if isinstance(layer.padding, tuple) else (0, 0)  # the word "valid"


def _patches(layer: nn.Conv2d, images: Tensor) -> Tensor:
    """What each output place sees; (images, places, kernel height x width x channels).

    Channels last, so that a patch is a few contiguous runs and nothing is transposed after it.
    """
    padding = _padding(layer)
    if any(padding):
        images = F.pad(images, (padding[1], padding[1], padding[0], padding[0]))
    images = images.movedim(1, -1).contiguous()
    n, high, wide = images.stride()[:3]
    sizes = [
        (images.shape[i + 1] - layer.dilation[i] * (layer.kernel_size[i] - 1) - 1)
        // layer.stride[i]
        + 1
        for i in (0, 1)
    ]
    steps = (high * layer.stride[0], wide * layer.stride[1])
    taps = (high * layer.dilation[0], wide * layer.dilation[1], 1)
    patches = images.as_strided(
        (len(images), *sizes, *layer.kernel_size, images.shape[-1]), (n, *steps, *taps)
    )
    return patches.flatten(3).flatten(1, 2)


class NormRule(Rule):
    """Group and layer norm: the gradient of the gain is the sum of g times the normalised input.

    Prepared, a and g are the gradients by gain and bias, (models, records, channels).
    """

    @staticmethod
    def knows(layer: Any) -> bool:
        """Whether the rule covers this layer's options."""
        return (
            layer.weight is not None
            and layer.bias is not None
            and (layer.weight.requires_grad and layer.bias.requires_grad)
        )

    @staticmethod
    def read(layer: Any, inputs: Tensor) -> Tensor:
        """What the gradient takes of inputs (n, channels, ...): their normalised values."""
        if isinstance(layer, nn.GroupNorm):
            return F.group_norm(inputs, layer.num_groups, eps=layer.eps)
        return F.layer_norm(inputs, layer.normalized_shape, eps=layer.eps)

    @staticmethod
    def outputs(layer: Any, weights: dict[str, Tensor], a: Tensor) -> Tensor:
        """A new tensor: what layers with weights (models, ...) make of what was read."""
        after = a.dim() - 3 if isinstance(layer, nn.GroupNorm) else 0
        before = a.dim() - 1 - layer.weight.dim() - after
        gain, bias = (
            weights[n].reshape(len(a), *[1] * before, *layer.weight.shape, *[1] * after)
            for n in ("weight", "bias")
        )
        return torch.addcmul(bias, gain, a)

    @staticmethod
    def shaped(outputs: Tensor, shape: torch.Size) -> Tensor:
        """These outputs as the layer gives them, a record's of this shape; (n, *shape)."""
        return outputs.flatten(0, 1)

    @staticmethod
    def prepare(layer: Any, a: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
        """What was read, and output gradients, in the form that the methods below take."""
        if isinstance(layer, nn.GroupNorm):
            product = (g * a).flatten(3).sum(-1) if a.dim() > 3 else g * a
            return product, (g.flatten(3).sum(-1) if a.dim() > 3 else g)
        shape = (*a.shape[:2], -1, layer.weight.numel())
        return (g * a).reshape(shape).sum(2), g.reshape(shape).sum(2)

    @staticmethod
    def mean(a: Tensor, g: Tensor, views: int) -> tuple[Tensor, Tensor]:
        """Both are gradients, of which this is the mean."""
        a, g = (part.unflatten(1, (-1, views)).mean(2) for part in (a, g))
        return a, g

    @staticmethod
    def squared_norms(layer: Any, a: Tensor, g: Tensor) -> Tensor:
        """Squared norm of each record's gradient; shape (models, records)."""
        return a.square().sum(-1) + g.square().sum(-1)

    @staticmethod
    def weighted_sums(layer: Any, a: Tensor, g: Tensor, weights: Tensor) -> dict[str, Tensor]:
        """Weighted sums over the records by parameter name; shapes (models, ...)."""
        return {
            "weight": torch.einsum("mb,mbc->mc", weights, a),
            "bias": torch.einsum("mb,mbc->mc", weights, g),
        }

    @staticmethod
    def floats(layer: Any, output_shape: torch.Size) -> int:
        """Numbers that one record needs, about, in the form of ``prepare``."""
        return 3 * output_shape.numel()


RULES: dict[type[nn.Module], type[Rule]] = {
    nn.Linear: LinearRule,
    nn.Conv2d: ConvolutionRule,
    nn.GroupNorm: NormRule,
    nn.LayerNorm: NormRule,
}
