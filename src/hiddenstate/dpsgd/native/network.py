"""A model as the native kernel's layers: a list, each reading tensors that earlier ones gave."""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from hiddenstate.dpsgd.graph import Add, Step, steps
from hiddenstate.dpsgd.native.calls import PAD, Buffer, Place, Tensor
from hiddenstate.dpsgd.native.convolutions import Convolution, fastest
from hiddenstate.dpsgd.native.layers import (
    FROM_VALUE,
    Activation,
    Average,
    Layer,
    Linear,
    MaxPool,
    Norm,
    Sum,
)
from hiddenstate.dpsgd.rules import ordinary

_STACK = 2**18
"""Bytes of the stack that a layer may take; threads have 512 KiB and more."""
_ACTIVATIONS = {nn.Tanh: "TANH", nn.ReLU: "RELU", nn.SiLU: "SILU", nn.GELU: "GELU"}
_KNOWN = {
    nn.Conv2d, nn.Linear, nn.GroupNorm, nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d,
    nn.Flatten, Add, *_ACTIVATIONS,
}  # fmt: skip


@dataclass(frozen=True)
class Network:
    """A model as the native kernel runs it: a record's tensor, and the layers in order."""

    record: Tensor
    layers: tuple[Layer, ...]

    @cached_property
    def buffers(self) -> list[Buffer]:
        """Buffers of the record and of the layers' outputs."""
        tensors = [self.record, *(layer.output for layer in self.layers)]
        borders = [0] * len(tensors)
        for layer in self.layers:
            for v in layer.sources:
                borders[v] = max(borders[v], layer.border)
        return list(map(Buffer, range(len(tensors)), tensors, borders))

    @cached_property
    def places(self) -> list[Place]:
        """Places of the layers' tensors, weights and gradients."""
        found, weights, sums = [], 0, 0
        for i, layer in enumerate(self.layers):
            sources = tuple(self.buffers[v] for v in layer.sources)
            bias, d_bias = weights + layer.weights, sums + layer.weights
            back = bias + layer.biases
            out = self.buffers[i + 1]
            found.append(Place(i, sources, out, weights, bias, back, sums, d_bias))
            weights = back + (layer.back if layer.transposed else 0)
            sums = d_bias + layer.biases
        return found

    def prepared(self, x: NDArray[np.float32]) -> NDArray[np.float32]:
        """Records as the layers read them: images with zeros around, channels last, or vectors.

        Behind the last image lie zeros, for layers read whole vectors of few channels.
        """
        if self.record.flat:
            return np.ascontiguousarray(x.reshape(len(x), -1))
        border, (high, wide, channels) = self.buffers[0].border, self.record.sizes
        found = np.zeros(len(x) * self.buffers[0].size + PAD, np.float32)
        images = found[:-PAD].reshape(len(x), high + 2 * border, wide + 2 * border, channels)
        images[:, border : border + high, border : border + wide] = x.transpose(0, 2, 3, 1)
        return found

    @property
    def classes(self) -> int:
        return self.layers[-1].output.real

    @property
    def sums(self) -> int:
        """Entries of the packed sum."""
        return sum(layer.weights + layer.biases for layer in self.layers)


def as_network(model: nn.Module, record_shape: tuple[int, ...]) -> Network | None:
    """The model as a network of layers that the native code knows, or None."""
    found = steps(model)
    starts = _starts(model, [step.layer for step in found]) if found else None
    if found is None or starts is None or len(record_shape) not in (1, 3):
        return None
    record = _vector(record_shape[0])
    if len(record_shape) == 3:
        channels, high, wide = record_shape
        record = Tensor(high, wide, channels, channels)
    # What the traced tensors are, and which layer gave them (0: they are the record).
    tensors, givers = [record], [0]
    layers: list[Layer] = []
    readers = _readers(found)
    for step in found:
        module, given = step.layer, [givers[s] for s in step.sources]
        t, last = tensors[step.sources[0]], layers[given[0] - 1] if given[0] else None
        if isinstance(module, nn.Flatten):
            if (module.start_dim, module.end_dim) != (1, -1):
                return None
            # A record is read as it is; later images have their channels last.
            tensors.append(replace(t, flat=True) if given[0] else _vector(t.entries))
            givers.append(given[0])
            continue
        alone = readers[step.sources[0]] == 1
        fused = _fused(module, t, last) if alone and last else None
        layer = fused or _layer(module, tuple(given), [tensors[s] for s in step.sources], starts)
        if layer is None or min(layer.output.height, layer.output.width) < 1:
            return None
        if fused:
            layers[given[0] - 1] = fused
        else:
            layers.append(layer)
        tensors.append(replace(layer.output, flat=t.flat))
        givers.append(given[0] if fused else len(layers))
    end = tensors[-1]
    if not (end.flat and end.height == end.width == 1 and givers[-1] == len(layers) > 0):
        return None
    # All that read the record read it as an image, or all as a vector.
    first = [
        one.input for one in layers if isinstance(one, Linear | Convolution) and 0 in one.sources
    ]
    # Never empty, for no other layer may read the record (``_layer``).
    whole = Network(first[0], tuple(map(fastest, layers)))
    alike = all(t == first[0] for t in first)
    return whole if alike and all(map(_fits, layers, whole.places)) else None


def _fits(layer: Layer, place: Place) -> bool:
    """True if the layer can read the tensor there, and does not overflow the stack."""
    if isinstance(layer, Linear):
        return place.source.border == 0  # it reads its input as one run
    return not isinstance(layer, Convolution) or layer.stack <= _STACK


def _vector(entries: int) -> Tensor:
    return Tensor(1, 1, entries, entries, flat=True)


def _readers(found: list[Step]) -> list[int]:
    """Number of layers that read each tensor, or a flattened view of it."""
    roots, counts = [0], [0]
    for i, step in enumerate(found):
        flattens = isinstance(step.layer, nn.Flatten)
        for source in () if flattens else step.sources:
            counts[roots[source]] += 1
        roots.append(roots[step.sources[0]] if flattens else i + 1)
        counts.append(0)
    return [counts[root] for root in roots]


def _fused(module: nn.Module, t: Tensor, last: Layer) -> Layer | None:
    """The layer that gave t, doing the module's work too, or None."""
    kind = _activation(module)
    if isinstance(last, Linear | Convolution) and kind in FROM_VALUE and last.activation == "NONE":
        return replace(last, activation=kind)
    if (
        isinstance(module, nn.MaxPool2d)
        and _halving(module)
        and isinstance(last, Convolution)
        and not (t.flat or last.pooled)
        and last.stride == (1, 1)
    ):
        # An activation that came first now follows the pooling: those that convolutions have
        # ascend, so both orders give the same.
        return replace(last, pooled=True, output=_pooled(last.output, (2, 2), (2, 2)))
    return None


def _layer(
    module: nn.Module,
    sources: tuple[int, ...],
    read: list[Tensor],
    starts: dict[nn.Module, int],
) -> Layer | None:
    """The module as a layer of its own, or None."""
    t = read[0]
    start = starts.get(module, 0)
    if isinstance(module, nn.Conv2d):
        if t.flat or not _plain(module, t.real):
            return None
        kernel, stride, padding = _pair(module.kernel_size), _pair(module.stride), module.padding[0]
        high, wide = (
            (side + 2 * int(padding) - k) // s + 1
            for side, k, s in zip((t.height, t.width), kernel, stride, strict=True)
        )
        output = Tensor(high, wide, _padded(module.out_channels), module.out_channels)
        return Convolution(
            sources=sources, output=output, start=start, input=t, kernel=kernel, stride=stride,
            padding=int(padding), bias=module.bias is not None,
        )  # fmt: skip
    if isinstance(module, nn.Linear):
        if not t.flat or t.entries != module.in_features:
            return None
        output = Tensor(1, 1, _padded(module.out_features), module.out_features, flat=True)
        bias = module.bias is not None
        return Linear(sources=sources, output=output, start=start, input=t, bias=bias)
    if 0 in sources:
        return None  # the others want whole vectors of channels, which a record does not have
    if isinstance(module, Add):
        return Sum(sources=sources, output=t) if read[1] == t else None
    if kind := _activation(module):
        return Activation(sources=sources, output=t, kind=kind)
    if isinstance(module, nn.GroupNorm):
        size = module.num_channels // module.num_groups
        vector = t.height == t.width == 1
        if module.num_channels != t.real or (t.flat and not vector) or (vector and size == 1):
            return None
        return Norm(
            sources=sources, output=t, start=start, size=size, eps=module.eps,
            gain=module.weight is not None, bias=module.bias is not None,
        )  # fmt: skip
    if t.flat:
        return None
    if isinstance(module, nn.MaxPool2d):
        output = _pooled(t, (2, 2), (2, 2))
        return MaxPool(sources=sources, output=output) if _halving(module) else None
    sizes = _averaging(module, t)
    if sizes is None:
        return None
    kernel, stride = sizes
    return Average(sources=sources, output=_pooled(t, kernel, stride), kernel=kernel, stride=stride)


def _activation(module: nn.Module) -> str | None:
    """The module's activation, if it is one."""
    if type(module) is nn.GELU and module.approximate == "tanh":
        return "GELU_TANH"
    return _ACTIVATIONS.get(type(module))


def _starts(model: nn.Module, modules: list[nn.Module]) -> dict[nn.Module, int] | None:
    """Index of each layer's first parameter in the model; None unless each layer has its own.

    Every layer is of exactly a known type and every parameter of the model is trained, by one
    layer that runs once: weights first, then biases.
    """
    places, start = {}, 0
    for p in model.parameters():
        places[id(p)] = start
        start += p.numel()
    held = [p for module in modules for p in module.parameters()]
    if {id(p) for p in held} != set(places) or len(held) != len(places):
        return None
    if not all(p.requires_grad for p in held):
        return None
    starts = {}
    for module in modules:
        if type(module) not in _KNOWN or not ordinary(module):
            return None
        order = [name for name, _ in module.named_parameters()]
        if order not in ([], ["weight"], ["weight", "bias"]):
            return None
        starts[module] = next((places[id(p)] for p in module.parameters()), 0)
    return starts


def _plain(conv: nn.Conv2d, channels: int) -> bool:
    return (
        conv.in_channels == channels
        and conv.dilation == (1, 1)
        and conv.groups == 1
        and conv.padding_mode == "zeros"
        and isinstance(conv.padding, tuple)
        and conv.padding[0] == conv.padding[1] < min(conv.kernel_size)
    )


def _halving(pool: nn.MaxPool2d) -> bool:
    return (
        pool.kernel_size in (2, (2, 2))
        and pool.stride in (2, (2, 2))
        and pool.padding in (0, (0, 0))
        and pool.dilation in (1, (1, 1))
        and not pool.ceil_mode
        and not pool.return_indices
    )


def _averaging(module: nn.Module, t: Tensor) -> tuple[tuple[int, int], tuple[int, int]] | None:
    """Kernel and stride of average pooling, or None if it is none, or is padded or uneven."""
    if isinstance(module, nn.AvgPool2d):
        plain = module.padding in (0, (0, 0)) and not module.ceil_mode
        if not plain or module.divisor_override is not None:
            return None
        return _pair(module.kernel_size), _pair(module.stride)
    if isinstance(module, nn.AdaptiveAvgPool2d):
        sides, wanted = (t.height, t.width), _pair(module.output_size)
        parts = [side if n is None else n for side, n in zip(sides, wanted, strict=True)]
        if any(n < 1 or side % n for side, n in zip(sides, parts, strict=True)):
            return None
        window = sides[0] // parts[0], sides[1] // parts[1]
        return window, window
    return None


def _pair(value: Any) -> tuple[Any, Any]:
    return (value, value) if isinstance(value, int) or value is None else (value[0], value[1])


def _pooled(t: Tensor, kernel: tuple[int, int], stride: tuple[int, int]) -> Tensor:
    high, wide = (
        (side - k) // s + 1 for side, k, s in zip((t.height, t.width), kernel, stride, strict=True)
    )
    return replace(t, height=high, width=wide)


def _padded(channels: int) -> int:
    return -(-channels // PAD) * PAD
