"""Rules that form layers' per-sample gradients from inputs and output gradients.

A rule says what the gradient takes of a layer's inputs (``read``), brings that and the outputs'
gradients into one form (``prepare``), and then gives the squared norm of every record's gradient
and the sum of the gradients, each record weighted. Leading dimensions are (models, records) but in
``read``. Many models' layers run at once on what was read (``outputs``): nothing is read twice.
"""

import itertools
import math
from collections.abc import Callable
from functools import reduce
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

RULES: dict[type[nn.Module], list[type["Rule"]]] = {}
"""The rules of each type of layer; the first that knows a layer's options is taken."""


def rule_for(*kinds: type[nn.Module]) -> Callable[[type["Rule"]], type["Rule"]]:
    """Register a rule for layers of exactly these types."""

    def add(rule: type[Rule]) -> type[Rule]:
        for kind in kinds:
            RULES.setdefault(kind, []).append(rule)
        return rule

    return add


class Rule:
    """Interface of a rule. ``layer`` is of a type that it is registered for."""

    @staticmethod
    def knows(layer: Any) -> bool:
        """True if the rule covers this layer's options."""
        return True

    @staticmethod
    def read(layer: Any, inputs: Tensor) -> Tensor:
        """Differentiable transform of inputs (n, ...) from which gradients are formed; (n, ...)."""
        raise NotImplementedError

    @staticmethod
    def outputs(layer: Any, weights: dict[str, Tensor], a: Tensor) -> Tensor:
        """Forward pass of weights (models, ...) on the result of ``read``; a new tensor."""
        raise NotImplementedError

    @staticmethod
    def shaped(outputs: Tensor, shape: torch.Size) -> Tensor:
        """Reshape outputs to the layer's own output shape of a record; (n, *shape)."""
        raise NotImplementedError

    @staticmethod
    def records(layer: Any, outputs: Any) -> Any:
        """A layer's own outputs with their records first."""
        return outputs

    @classmethod
    def run(
        cls,
        layer: Any,
        weights: dict[str, Tensor],
        a: Tensor,
        shape: torch.Size,
        anchor: Tensor,
        hear: Callable[[Any, Any], None],
    ) -> Any:
        """Outputs of the layer; a backward pass has ``hear`` take the a and g of ``prepare``.

        The anchor requires a gradient, so that the outputs do, whatever the layer read.
        """
        seen = a.detach()

        def listen(g: Tensor) -> None:
            hear(seen, cls.shaped(g, shape).unflatten(0, (len(seen), -1)))

        outputs = _Listening.apply(cls.outputs(layer, weights, a), anchor, listen)
        return cls.shaped(outputs, shape)

    @staticmethod
    def prepare(layer: Any, a: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
        """Result of ``read``, and output gradients, in the form that the methods below take."""
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


class _Listening(torch.autograd.Function):
    """A layer's outputs as they are; ``hear`` is given the gradient by them."""

    @staticmethod
    def forward(
        ctx: Any, outputs: Tensor, anchor: Tensor, hear: Callable[[Tensor], None]
    ) -> Tensor:
        ctx.mark_dirty(outputs)  # and not a view: what follows may write in place
        ctx.hear = hear
        return outputs

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        ctx.hear(gradients[0])
        return gradients[0], None, None


def rule_of(layer: nn.Module) -> type[Rule] | None:
    """The rule for this layer, or None."""
    known = RULES.get(type(layer), []) if ordinary(layer) else []
    return next((rule for rule in known if rule.knows(layer)), None)


def ordinary(layer: nn.Module) -> bool:
    """True if the layer is as its class says: no hooks, no reparametrised weights."""
    names = {name for name, _ in layer.named_parameters()}
    # Recurrent layers have names of their own for weights and biases.
    own = {"weight", "bias", *getattr(layer, "_flat_weights_names", ())}
    return names <= own and untouched(layer)


def untouched(module: nn.Module) -> bool:
    """True if a call of the module runs its class's ``forward`` and no more.

    A hook for all modules, or a ``__call__`` of the module's own, is more.
    """
    kind = type(module)
    return (
        kind.__call__ is nn.Module.__call__
        and kind._call_impl is nn.Module._call_impl
        and "forward" not in vars(module)
        and not nn.modules.module._has_any_global_hook()
        and not (
            module._forward_hooks
            or module._forward_pre_hooks
            or module._backward_hooks
            or module._backward_pre_hooks
        )
    )


class Product(Rule):
    """Layers whose gradient is sum_t g_t a_t^T: a (models, records, t, in), g (.., t, out).

    Where all models read the same, a is an expanded tensor, and what concerns it alone is done
    once. Where a gradient is smaller than its factors, a is prepared to be the gradients (models,
    records, out, in) themselves, and g what the bias takes, (models, records, 1, out).
    """

    @staticmethod
    def outputs(layer: Any, weights: dict[str, Tensor], a: Tensor) -> Tensor:
        a = a.flatten(1, 2)
        matrix = weights["weight"].movedim(2, -1).flatten(2).mT  # patches have their channels last
        if "bias" not in weights:
            return torch.bmm(a, matrix)
        return torch.baddbmm(weights["bias"][:, None], a, matrix)

    @staticmethod
    def mean(a: Tensor, g: Tensor, views: int) -> tuple[Tensor, Tensor]:
        """All views' places are places of the one record, unless these are added up."""
        a, g = (part.unflatten(1, (-1, views)) for part in (a, g))
        if _multiplied(a, g):
            return a.mean(2), g.mean(2)
        return a.flatten(2, 3), g.flatten(2, 3) / views

    @staticmethod
    def squared_norms(layer: Any, a: Tensor, g: Tensor) -> Tensor:
        squares = []
        if layer.weight.requires_grad:
            if _multiplied(a, g):
                squares.append(torch.linalg.vector_norm(a, dim=(-2, -1)).square())
            else:
                # All models read the same: products of one serve all.
                a = a[:1] if a.stride(0) == 0 else a
                # The norm of one outer product is the product of two norms.
                if a.shape[-2] == 1:
                    squares.append(a.square().sum((-2, -1)) * g.square().sum((-2, -1)))
                else:
                    # No gradient is formed: the square of sum_t g_t a_t^T is the sum over s and t
                    # of (a_s . a_t) (g_s . g_t).
                    squares.append(_by_places((a @ a.mT) * (g @ g.mT), a, g, _of_gradients))
        if layer.bias is not None and layer.bias.requires_grad:
            squares.append(g.sum(-2).square().sum(-1))
        return reduce(torch.add, squares)

    @staticmethod
    def weighted_sums(layer: Any, a: Tensor, g: Tensor, weights: Tensor) -> dict[str, Tensor]:
        sums, multiplied = {}, _multiplied(a, g)
        g = (g * weights[..., None, None]).flatten(1, 2)
        if layer.weight.requires_grad and multiplied:
            sums["weight"] = torch.einsum("mb,mboi->moi", weights, a)
        elif layer.weight.requires_grad:
            sums["weight"] = torch.bmm(g.mT, a.flatten(1, 2))
        if layer.bias is not None and layer.bias.requires_grad:
            sums["bias"] = g.sum(1)
        return sums


_CANCELS = 3e-3
"""Squared norms of less than this share of their places' own are taken again."""
_AT_ONCE = 2**22
"""Numbers of the gradients that are formed at once."""
_READ_BACK = {"cpu"}
"""Devices whose flags may be read back."""


def _by_places(
    products: Tensor, a: Tensor, g: Tensor, again: Callable[[Tensor, Tensor], Tensor]
) -> Tensor:
    """Squared norms (models, records): sums of the products (models, records, t, t) of places.

    Where these cancel, as where outputs are centred and inputs far from 0, it is ``again`` that
    gives the squared norms, of a and of g in float64.
    """
    found = products.sum((-2, -1))
    cancelled = found < products.diagonal(dim1=-2, dim2=-1).sum(-1).mul_(_CANCELS)
    # To read flags back would make an accelerator wait, so all records are taken again there.
    if found.device.type not in _READ_BACK:
        return torch.where(cancelled, again(a, g.double()).to(found), found)
    if bool(cancelled.any()):
        a = a.expand(len(g), *a.shape[1:])  # which may be one model's for all
        for at in cancelled.nonzero().split(max(1, _AT_ONCE // (a.shape[-1] * g.shape[-1]))):
            own = at.unbind(1)
            found[own] = again(a[own], g[own].double()).to(found)
    return found


def _of_gradients(a: Tensor, g: Tensor) -> Tensor:
    """Squared norms of sum_t g_t a_t^T in float64."""
    a = a.double()
    if a.device.type in _READ_BACK:
        return (g.mT @ a).square().sum((-2, -1))
    # All records' gradients would take far more time and memory than products of places.
    return ((a @ a.mT) * (g @ g.mT)).sum((-2, -1))


def _of_tokens(a: Tensor, g: Tensor) -> Tensor:
    """Squared norms of embeddings' gradients in float64: each place times its token's sum."""
    return ((_same_tokens(a).to(g) @ g) * g).sum((-2, -1))


def _same_tokens(a: Tensor) -> Tensor:
    """True where two places have one token, shape (..., t, t)."""
    return a[..., None] == a[..., None, :]


def _multiplied(a: Tensor, g: Tensor) -> bool:
    # Factors have equally many places; gradients, of two outputs or more, have a g of one.
    return a.shape[-2] != g.shape[-2]


def _smaller(layer: Any, a: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
    """Factors, or the gradients where they are smaller."""
    (places, inputs), outputs = a.shape[-2:], g.shape[-1]
    # One place has its norm without products; one output's gradients would pass for factors
    # (``_multiplied``).
    if (
        min(places, outputs) == 1
        or places * (inputs + outputs) < inputs * outputs
        or not layer.weight.requires_grad
    ):
        return a, g
    models, records = g.shape[:2]
    if a.stride(0) or models == 1:
        products = torch.bmm(g.flatten(0, 1).mT, a.flatten(0, 1)).unflatten(0, (models, records))
    else:
        # One product a record, the models beside each other: expanded, a would be copied for each.
        products = torch.bmm(g.permute(1, 0, 3, 2).flatten(1, 2), a[0])
        products = products.unflatten(1, (models, -1)).transpose(0, 1)
    return products, g.sum(-2, keepdim=True)


@rule_for(nn.Linear)
class LinearRule(Product):
    """Linear layers, on vectors or on sequences of them."""

    @staticmethod
    def read(layer: nn.Linear, inputs: Tensor) -> Tensor:
        """Vectors of the inputs (n, ..., in); (n, t, in)."""
        return inputs.reshape(len(inputs), -1, inputs.shape[-1])

    @staticmethod
    def shaped(outputs: Tensor, shape: torch.Size) -> Tensor:
        return outputs.reshape(-1, *shape)

    @staticmethod
    def prepare(layer: nn.Linear, a: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
        return _smaller(layer, a, g.reshape(*g.shape[:2], -1, g.shape[-1]))

    @staticmethod
    def floats(layer: nn.Linear, output_shape: torch.Size) -> int:
        return output_shape.numel() // layer.out_features * (layer.in_features + layer.out_features)


@rule_for(nn.Conv1d, nn.Conv2d)
class ConvolutionRule(Product):
    """Convolutions of one group, as a linear layer on the patches."""

    @staticmethod
    def knows(layer: Any) -> bool:
        return layer.groups == 1

    @staticmethod
    def read(layer: Any, inputs: Tensor) -> Tensor:
        """Patches of the images (n, ...); (n, places, patch)."""
        return _Patches.apply(*_bordered(layer, inputs), layer)

    @staticmethod
    def shaped(outputs: Tensor, shape: torch.Size) -> Tensor:
        return outputs.reshape(-1, *shape[1:], shape[0]).movedim(-1, 1)

    @staticmethod
    def prepare(layer: Any, a: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
        return _smaller(layer, a, g.movedim(2, -1).flatten(2, -2))

    @staticmethod
    def weighted_sums(layer: Any, a: Tensor, g: Tensor, weights: Tensor) -> dict[str, Tensor]:
        sums = Product.weighted_sums(layer, a, g, weights)
        if "weight" in sums:
            shape = (*layer.kernel_size, layer.in_channels)
            sums["weight"] = sums["weight"].unflatten(-1, shape).movedim(-1, 2)
        return sums

    @staticmethod
    def floats(layer: Any, output_shape: torch.Size) -> int:
        kernel = math.prod(layer.kernel_size) * layer.in_channels
        return output_shape[1:].numel() * (kernel + layer.out_channels)


class _Patches(torch.autograd.Function):
    """``_patches`` for autograd: what places saw of an image is added up where they saw it."""

    @staticmethod
    def forward(ctx: Any, images: Tensor, padding: tuple[int, int], layer: Any) -> Tensor:
        """The patches (images, places, patch)."""
        ctx.layer, ctx.padding, ctx.shape = layer, padding, images.shape
        return _patches(layer, images if images.dim() == 4 else images[:, :, None], padding)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        """The gradient by the images, from that by the patches.

        Tap by tap: torch's ``fold`` takes ten times as long on an accelerator.
        """
        kernel, stride, dilation = _plane(ctx.layer)
        inner = ctx.shape[2:] if len(ctx.shape) == 4 else (1, *ctx.shape[2:])
        sizes = [n + 2 * border for n, border in zip(inner, ctx.padding, strict=True)]
        spans = [dilation[i] * (kernel[i] - 1) + 1 for i in (0, 1)]
        seen = [(sizes[i] - spans[i]) // stride[i] + 1 for i in (0, 1)]
        taps = gradients[0].unflatten(2, (*kernel, -1)).unflatten(1, seen)
        images = taps.new_zeros(len(taps), *sizes, taps.shape[-1])
        for row, column in itertools.product(*map(range, kernel)):
            rows, columns = (
                slice(at * dilation[i], at * dilation[i] + stride[i] * seen[i], stride[i])
                for i, at in enumerate((row, column))
            )
            images[:, rows, columns] += taps[:, :, :, row, column]
        whole = (slice(border, border + n) for n, border in zip(inner, ctx.padding, strict=True))
        return images[:, *whole].movedim(-1, 1).reshape(ctx.shape), None, None


def _bordered(layer: Any, images: Tensor) -> tuple[Tensor, tuple[int, int]]:
    """Images with the border that the layer makes, and how many more zeros it adds to rows and
    columns on either side."""
    if layer.padding_mode == "zeros" and layer.padding == "valid":
        return images, (0, 0)
    if layer.padding_mode == "zeros" and layer.padding != "same":
        return images, (0, *layer.padding)[-2:]  # a sequence is an image of one row
    mode = "constant" if layer.padding_mode == "zeros" else layer.padding_mode
    return F.pad(images, layer._reversed_padding_repeated_twice, mode), (0, 0)


def _plane(layer: Any) -> tuple[Any, Any, Any]:
    """Kernel, stride and dilation in two dimensions, where sequences are images of one row."""
    sizes = layer.kernel_size, layer.stride, layer.dilation
    return tuple((1, *size)[-2:] for size in sizes)  # type: ignore[return-value]


def _patches(layer: Any, images: Tensor, padding: tuple[int, int]) -> Tensor:
    """Patch that each output place sees; (images, places, kernel height x width x channels).

    Channels last, so that a patch is a few contiguous runs and nothing is transposed after it.
    """
    kernel, stride, dilation = _plane(layer)
    if any(padding):
        images = F.pad(images, (padding[1], padding[1], padding[0], padding[0]))
    images = images.movedim(1, -1).contiguous()
    n, high, wide = images.stride()[:3]
    sizes = [
        (images.shape[i + 1] - dilation[i] * (kernel[i] - 1) - 1) // stride[i] + 1 for i in (0, 1)
    ]
    steps = (high * stride[0], wide * stride[1])
    taps = (high * dilation[0], wide * dilation[1], 1)
    # A view, in which windows overlap; ``flatten`` alone copies them.
    patches = images.as_strided(
        (len(images), *sizes, *kernel, images.shape[-1]), (n, *steps, *taps)
    )
    return patches.flatten(3).flatten(1, 2)


class Few(Rule):
    """Layers of few parameters, whose per-sample gradients are taken as they are.

    Prepared, a and g are the gradients by weight and by bias, (models, records, numbers), without
    any number where there is none that is trained.
    """

    @staticmethod
    def read(layer: Any, inputs: Tensor) -> Tensor:
        return inputs

    @staticmethod
    def shaped(outputs: Tensor, shape: torch.Size) -> Tensor:
        return outputs.reshape(-1, *shape)

    @staticmethod
    def mean(a: Tensor, g: Tensor, views: int) -> tuple[Tensor, Tensor]:
        """The mean of both, which are gradients."""
        a, g = (part.unflatten(1, (-1, views)).mean(2) for part in (a, g))
        return a, g

    @staticmethod
    def squared_norms(layer: Any, a: Tensor, g: Tensor) -> Tensor:
        return a.square().sum(-1) + g.square().sum(-1)

    @staticmethod
    def weighted_sums(layer: Any, a: Tensor, g: Tensor, weights: Tensor) -> dict[str, Tensor]:
        return {
            name: torch.einsum("mb,mbc->mc", weights, gradients)
            for name, gradients in (("weight", a), ("bias", g))
            if gradients.shape[-1]
        }

    @staticmethod
    def floats(layer: Any, output_shape: torch.Size) -> int:
        return 3 * output_shape.numel() + sum(p.numel() for p in layer.parameters())


def _trained(layer: Any, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor]:
    """Gradients (models, records, numbers) by weight and bias, or none where they are frozen."""
    none = weight.new_zeros((*weight.shape[:2], 0))
    # PReLU and RMSNorm have no bias at all.
    trains = layer.bias is not None and layer.bias.requires_grad if hasattr(layer, "bias") else 0
    return (
        weight if layer.weight is not None and layer.weight.requires_grad else none,
        bias if trains and bias is not None else none,
    )


def _over_places(images: Tensor) -> Tensor:
    """Images (models, records, channels, ...) summed over their places, however they lie."""
    return images.sum(tuple(range(3, images.dim()))) if images.dim() > 3 else images


_BY_CHANNEL = (
    nn.GroupNorm,
    *(nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d),
    *(nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d),
)
"""Norms with a gain for each channel; others have one for each entry of the last dimensions."""


@rule_for(*_BY_CHANNEL, nn.LayerNorm, nn.RMSNorm)
class NormRule(Few):
    """Norms: the gradient of the gain is the sum of g times the normalised input."""

    @staticmethod
    def knows(layer: Any) -> bool:
        # In training, running statistics change with every batch.
        return layer.weight is not None and not (
            isinstance(layer, nn.modules.batchnorm._NormBase)
            and layer.track_running_stats
            and layer.training
        )

    @staticmethod
    def read(layer: Any, inputs: Tensor) -> Tensor:
        """Normalised values of the inputs (n, channels, ...)."""
        if isinstance(layer, nn.GroupNorm):
            return F.group_norm(inputs, layer.num_groups, eps=layer.eps)
        if isinstance(layer, nn.LayerNorm):
            return F.layer_norm(inputs, layer.normalized_shape, eps=layer.eps)
        if isinstance(layer, nn.RMSNorm):
            return F.rms_norm(inputs, layer.normalized_shape, eps=layer.eps)
        # An instance norm: a batch norm without running statistics mixes records and is refused.
        if layer.running_mean is None:
            return F.instance_norm(inputs, eps=layer.eps)
        known = layer.running_mean.to(inputs), layer.running_var.to(inputs)
        return F.batch_norm(inputs, *known, eps=layer.eps)

    @staticmethod
    def outputs(layer: Any, weights: dict[str, Tensor], a: Tensor) -> Tensor:
        # Ones stand for the axes that a gain does not have: the records, and places on either side.
        after = a.dim() - 3 if isinstance(layer, _BY_CHANNEL) else 0
        before = a.dim() - 1 - layer.weight.dim() - after
        gain, *bias = (
            weights[n].reshape(len(a), *[1] * before, *layer.weight.shape, *[1] * after)
            for n in ("weight", "bias")
            if n in weights
        )
        return torch.addcmul(*bias, gain, a) if bias else gain * a

    @staticmethod
    def shaped(outputs: Tensor, shape: torch.Size) -> Tensor:
        return outputs.flatten(0, 1)

    @staticmethod
    def prepare(layer: Any, a: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
        if isinstance(layer, _BY_CHANNEL):
            return _trained(layer, _over_places(g * a), _over_places(g))
        shape = (*a.shape[:2], -1, layer.weight.numel())
        return _trained(layer, (g * a).reshape(shape).sum(2), g.reshape(shape).sum(2))

    @staticmethod
    def floats(layer: Any, output_shape: torch.Size) -> int:
        return 3 * output_shape.numel()


@rule_for(nn.PReLU)
class SlopeRule(Few):
    """PReLU: the gradient of a slope is the sum of g times the inputs below 0."""

    @staticmethod
    def outputs(layer: nn.PReLU, weights: dict[str, Tensor], a: Tensor) -> Tensor:
        after = [1] * (a.dim() - 3)
        return torch.where(a > 0, a, weights["weight"].view(len(a), 1, -1, *after) * a)

    @staticmethod
    def prepare(layer: nn.PReLU, a: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
        product = _over_places(g * a.clamp(max=0))
        each = product if layer.num_parameters > 1 else product.sum(-1, keepdim=True)
        return _trained(layer, each, None)


_TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)


@rule_for(nn.Conv1d, nn.Conv2d, nn.Conv3d, *_TRANSPOSED)
class TapsRule(Few):
    """Other convolutions: grouped (depthwise, say), transposed, or of volumes.

    The gradient of the weights at one tap is the product of the smaller image with what it meets
    of the larger one there: of outputs' gradients and inputs, or the other way round where the
    convolution is transposed.
    """

    @staticmethod
    def outputs(layer: Any, weights: dict[str, Tensor], a: Tensor) -> Tensor:
        models, dims = len(a), len(layer.kernel_size)
        images = a.movedim(0, 1).flatten(1, 2)  # the models' channels beside each other, in groups
        weight = weights["weight"].flatten(0, 1)
        bias = weights["bias"].flatten() if "bias" in weights else None
        groups = models * layer.groups
        if isinstance(layer, _TRANSPOSED):
            turned: Any = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)[dims - 1]
            found = turned(
                images, weight, bias, layer.stride, layer.padding, layer.output_padding, groups,
                layer.dilation,
            )  # fmt: skip
        else:
            plain: Any = (F.conv1d, F.conv2d, F.conv3d)[dims - 1]
            bordered = _whole(layer, images)
            found = plain(bordered, weight, bias, layer.stride, 0, layer.dilation, groups)
        return found.unflatten(1, (models, -1)).movedim(1, 0)

    @staticmethod
    def prepare(layer: Any, a: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
        shape, bias = g.shape[:2], _over_places(g)
        small, large = g.flatten(0, 1), a.flatten(0, 1)
        if g.device.type == "cpu":  # elsewhere so many groups are slow
            return _trained(layer, _by_groups(layer, large, small).unflatten(0, shape), bias)
        if isinstance(layer, _TRANSPOSED):
            sides = [side for pad in reversed(layer.padding) for side in (pad, pad)]
            small, large = large, F.pad(small, sides)
        else:
            large = _whole(layer, large)
        rows = small.unflatten(1, (layer.groups, -1)).flatten(3)  # (n, groups, channels, places)
        taps = []
        for tap in itertools.product(*map(range, layer.kernel_size)):
            met = large
            for dim, (at, side) in enumerate(zip(tap, small.shape[2:], strict=True), 2):
                first, step = at * layer.dilation[dim - 2], layer.stride[dim - 2]
                met = met.narrow(dim, first, step * (side - 1) + 1)
                met = met[(slice(None),) * dim + (slice(None, None, step),)]
            columns = met.unflatten(1, (layer.groups, -1)).flatten(3)
            if columns.shape[2] == 1:
                taps.append((rows * columns).sum(-1, keepdim=True))
            else:
                taps.append(rows @ columns.mT)
        weight = torch.stack(taps, -1).flatten(1).unflatten(0, shape)
        return _trained(layer, weight, bias)


def _by_groups(layer: Any, a: Tensor, g: Tensor) -> Tensor:
    """Gradients (n, numbers) by the weights: torch's own, each record a group of channels."""
    transposed = isinstance(layer, _TRANSPOSED)
    further = layer.output_padding if transposed else [0] * len(layer.stride)
    padding = layer.padding
    if isinstance(padding, str) or layer.padding_mode != "zeros":
        a, padding = _whole(layer, a), [0] * len(layer.stride)
    one = [part.reshape(1, -1, *part.shape[2:]) for part in (g, a)]
    shape = layer.weight.shape
    weight = g.new_empty(len(g) * shape[0], *shape[1:])  # whose values this gradient is not by
    _, found, _ = torch.ops.aten.convolution_backward(
        *one, weight, None, layer.stride, padding, layer.dilation, transposed, further,
        len(g) * layer.groups, (False, True, False),
    )  # fmt: skip
    return found.view(len(g), -1)


def _whole(layer: Any, images: Tensor) -> Tensor:
    """Images with all of the border that a convolution makes."""
    mode = "constant" if layer.padding_mode == "zeros" else layer.padding_mode
    return F.pad(images, layer._reversed_padding_repeated_twice, mode)


@rule_for(nn.Embedding)
class EmbeddingRule(Rule):
    """Embeddings: g goes to the rows of the tokens. a is (models, records, t), g (.., t, width)."""

    @staticmethod
    def knows(layer: nn.Embedding) -> bool:
        # The first writes into the table, and the last counts tokens of the whole batch.
        return layer.max_norm is None and not layer.sparse and not layer.scale_grad_by_freq

    @staticmethod
    def read(layer: nn.Embedding, inputs: Tensor) -> Tensor:
        """Tokens (n, ...) in a row; (n, t)."""
        return inputs.reshape(len(inputs), -1)

    @staticmethod
    def outputs(layer: nn.Embedding, weights: dict[str, Tensor], a: Tensor) -> Tensor:
        return F.embedding(_rows(layer, a), weights["weight"].flatten(0, 1))

    @staticmethod
    def shaped(outputs: Tensor, shape: torch.Size) -> Tensor:
        return outputs.reshape(-1, *shape)

    @staticmethod
    def prepare(layer: nn.Embedding, a: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
        g = g.reshape(*g.shape[:2], -1, g.shape[-1])
        if layer.padding_idx is not None:
            # As in torch, the padding's row gets no gradient.
            g = g * (a != layer.padding_idx)[..., None]
        return a, g

    @staticmethod
    def mean(a: Tensor, g: Tensor, views: int) -> tuple[Tensor, Tensor]:
        """All views' tokens are tokens of the one record."""
        a, g = (part.unflatten(1, (-1, views)).flatten(2, 3) for part in (a, g))
        return a, g / views

    @staticmethod
    def squared_norms(layer: nn.Embedding, a: Tensor, g: Tensor) -> Tensor:
        # Gradients of two places meet in the row of one token, and nowhere else.
        return _by_places((g @ g.mT) * _same_tokens(a), a, g, _of_tokens)

    @staticmethod
    def weighted_sums(
        layer: nn.Embedding, a: Tensor, g: Tensor, weights: Tensor
    ) -> dict[str, Tensor]:
        sums = g.new_zeros(len(g) * layer.num_embeddings, layer.embedding_dim)
        sums.index_add_(0, _rows(layer, a).flatten(), (g * weights[..., None, None]).flatten(0, 2))
        return {"weight": sums.unflatten(0, (len(g), -1))}

    @staticmethod
    def floats(layer: nn.Embedding, output_shape: torch.Size) -> int:
        tokens = output_shape[:-1].numel()
        # g, and the two matrices of tokens x tokens of ``squared_norms``.
        return tokens * (layer.embedding_dim + 2 * tokens)


def _rows(layer: nn.Embedding, tokens: Tensor) -> Tensor:
    """Rows of the tokens (models, ...) in the models' tables, one below the other."""
    first = layer.num_embeddings * torch.arange(len(tokens), device=tokens.device)
    return tokens + first.view(-1, *[1] * (tokens.dim() - 1))
