"""The layers of the native kernel: their sizes, their calls of the C headers, their layouts."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from hiddenstate.dpsgd.native.calls import HEAVY, ROOM, SCALE, Buffer, Call, Layout, Place, Tensor
from hiddenstate.dpsgd.native.layouts import eights, numbers, per_channel

FROM_VALUE = {"NONE", "TANH", "RELU"}
"""Activations whose slope follows from their value: a layer before them can do them itself."""


@dataclass(frozen=True, kw_only=True)
class Layer:
    """One layer: the tensors that it reads (0 is the record), the one that it gives, its calls.

    start: of its parameters, weights first, among the model's.
    """

    sources: tuple[int, ...]
    output: Tensor
    start: int = 0
    _transposes: ClassVar[bool] = False

    @property
    def transposed(self) -> bool:
        """True if its weights are stored a second time, for its input's gradient."""
        return self._transposes and 0 not in self.sources

    @property
    def border(self) -> int:
        """Zeros that it wants around its input."""
        return 0

    @property
    def weights(self) -> int:
        """Entries of the packed weights."""
        return 0

    @property
    def biases(self) -> int:
        """Entries of the packed bias."""
        return 0

    @property
    def back(self) -> int:
        """Entries of the weights that are stored a second time."""
        return self.weights

    @property
    def room(self) -> int:
        """Floats that its calls need for themselves, in a place that all layers share."""
        return 0

    @property
    def heavy(self) -> bool:
        """True if its weights are read more quickly for several records together."""
        return False

    def layouts(self, lanes: int) -> tuple[Layout, Layout, Layout, Layout]:
        """Layouts of parameters: forward weights, bias, backward weights; gradient of the first."""
        return (np.zeros(0, np.int64),) * 4

    def members(self, i: int) -> list[str]:
        """C declarations of what it keeps for each record, apart from tensors."""
        return []

    def prepare(self, p: Place) -> list[Call]:
        """Calls made once for all records."""
        return []

    def forward(self, p: Place) -> list[Call]:
        raise NotImplementedError

    def backward(self, p: Place) -> list[Call]:
        """Its parameters' gradients, whose squares are added to ``squares``."""
        return []

    def pass_on(self, p: Place, which: int, add: bool) -> list[Call]:
        """Its input's gradient, written, or added to what is there."""
        raise NotImplementedError

    def collect(self, p: Place) -> list[Call]:
        """Its parameters' gradients, times c, to the sum."""
        return []


@dataclass(frozen=True, kw_only=True)
class Linear(Layer):
    """A linear layer, with the activation behind it."""

    input: Tensor
    bias: bool
    activation: str = "NONE"
    _transposes: ClassVar[bool] = True

    @property
    def weights(self) -> int:
        return self.input.floats * self.output.channels

    @property
    def biases(self) -> int:
        return self.output.channels

    def layouts(self, lanes: int) -> tuple[Layout, Layout, Layout, Layout]:
        t = self.input
        real = (self.output.real, t.real, t.height, t.width)
        w = np.zeros((self.output.channels, t.channels, t.height, t.width), np.int64)
        w[: real[0], : real[1]] = numbers(self.start, real)
        # torch flattens an image channel by channel; here a place has its channels in a row.
        backward = w.transpose(0, 2, 3, 1).reshape(self.output.channels, -1)
        bias = per_channel(self.output, self.start + int(np.prod(real)) if self.bias else None)
        forward, back = (eights(rows, lanes) for rows in (backward.T, backward))
        return forward, bias, back, backward.T

    def members(self, i: int) -> list[str]:
        return [f"float g{i}[{self.output.channels}]"]

    def forward(self, p: Place) -> list[Call]:
        sizes = self.input.floats, self.output.channels, self.activation, 0
        pointers = p.source.x(), p.w(p.weights), p.w(p.bias), p.out.x()
        return [self._product("linear", sizes, pointers)]

    def backward(self, p: Place) -> list[Call]:
        inputs, outputs, x, g = self.input.floats, self.output.channels, p.source.x(), p.own("g")
        # The weights' gradient is an outer product, whose norm is the product of two norms.
        norm = Call("squared_norm", (outputs,), (g,), f"squares += squared_norm({inputs}, {x}) * ")
        # A vector is one row, so that no length of a row is used.
        return [before_activation(p, self.activation, self.bias, (0, 0, 0), g), norm]

    def pass_on(self, p: Place, which: int, add: bool) -> list[Call]:
        sizes = self.output.channels, self.input.floats, "NONE", int(add)
        return [self._product("linear", sizes, (p.own("g"), p.w(p.back), "0", p.source.d()))]

    def collect(self, p: Place) -> list[Call]:
        inputs, outputs, g = self.input.floats, self.output.channels, p.own("g")
        outer = SCALE, p.source.x(), g, f"sum + {p.d_weights}"
        return [self._product("add_outer", (inputs, outputs), outer), _scaled(outputs, g, p.d_bias)]

    def _product(self, name: str, sizes: tuple[object, ...], pointers: tuple[str, ...]) -> Call:
        """Product with the weights' matrix; for a group, unless it reads records in place."""
        alone, products = 0 in self.sources, self.input.entries * self.output.real
        sizes = (1, 0, *sizes) if alone else sizes
        return Call(name, sizes, pointers, together=not alone, products=products)

    @property
    def heavy(self) -> bool:
        return self.weights >= HEAVY and 0 not in self.sources


@dataclass(frozen=True, kw_only=True)
class Norm(Layer):
    """Group norm, by groups of ``size`` channels."""

    size: int
    eps: float
    gain: bool
    bias: bool

    @property
    def weights(self) -> int:
        return self.output.channels

    @property
    def biases(self) -> int:
        return self.output.channels

    @property
    def room(self) -> int:
        """Two sums by channel, too many for a thread's stack where layers are wide."""
        return 2 * self.output.channels

    def layouts(self, lanes: int) -> tuple[Layout, Layout, Layout, Layout]:
        gain = per_channel(self.output, self.start if self.gain else None)
        bias = per_channel(self.output, self.start + self.output.real if self.bias else None)
        return gain, bias, np.zeros(0, np.int64), gain

    def members(self, i: int) -> list[str]:
        return [f"float {name}{i}[{self.output.channels}]" for name in ("mean", "scale")]

    def forward(self, p: Place) -> list[Call]:
        sizes = *self._sizes, f"{self.eps!r}f", p.source.row, p.out.row
        bias = p.w(p.bias) if self.bias else "0"
        kept = p.own("mean"), p.own("scale")
        return [Call("norm_forward", sizes, (p.source.x(), self._gain(p), bias, p.out.x(), *kept))]

    def backward(self, p: Place) -> list[Call]:
        gradients = p.gradient(p.d_weights), p.gradient(p.d_bias)
        read = p.source.x(), p.own("mean"), p.own("scale"), p.out.d()
        sizes = *self.output.sizes, p.source.row, p.out.row
        # The input's gradient needs both, whether or not they are of parameters.
        channels = (self.output.channels,)
        return [
            Call("norm_gradients", sizes, (*read, *gradients)),
            *(
                Call("squared_norm", channels, (gradient,), "squares += ")
                for gradient, has in zip(gradients, (self.gain, self.bias), strict=True)
                if has
            ),
        ]

    def pass_on(self, p: Place, which: int, add: bool) -> list[Call]:
        kept = p.own("mean"), p.own("scale")
        gradients = p.gradient(p.d_weights), p.gradient(p.d_bias)
        pointers = p.source.x(), self._gain(p), *kept, p.out.d(), *gradients, p.source.d(), ROOM
        return [Call("norm_back", (*self._sizes, int(add), p.source.row, p.out.row), pointers)]

    def collect(self, p: Place) -> list[Call]:
        offsets = ((self.gain, p.d_weights), (self.bias, p.d_bias))
        return [collected(p, offset, self.output.channels) for has, offset in offsets if has]

    def _gain(self, p: Place) -> str:
        return p.w(p.weights) if self.gain else "0"

    @property
    def _sizes(self) -> tuple[int, ...]:
        return *self.output.sizes, self.output.real, self.size


@dataclass(frozen=True, kw_only=True)
class Activation(Layer):
    """An activation behind a layer that does not have it as its own."""

    kind: str

    def forward(self, p: Place) -> list[Call]:
        sizes = *self.output.sizes, self.kind, p.source.row, p.out.row
        return [Call("activation", sizes, (p.source.x(), p.out.x()))]

    def pass_on(self, p: Place, which: int, add: bool) -> list[Call]:
        return [_passed_back(p, p.source, self.kind, add)]


@dataclass(frozen=True, kw_only=True)
class Sum(Layer):
    """The sum of two tensors."""

    def forward(self, p: Place) -> list[Call]:
        one, other = p.sources
        sizes = *self.output.sizes, one.row, other.row, p.out.row
        return [Call("add_tensors", sizes, (one.x(), other.x(), p.out.x()))]

    def pass_on(self, p: Place, which: int, add: bool) -> list[Call]:
        return [_passed_back(p, p.sources[which], "NONE", add)]


@dataclass(frozen=True, kw_only=True)
class MaxPool(Layer):
    """2 x 2 max-pooling behind anything but a convolution."""

    def members(self, i: int) -> list[str]:
        return [f"int32_t winner{i}[{self.output.floats}]"]

    def forward(self, p: Place) -> list[Call]:
        sizes = *self.output.sizes, p.source.row, p.out.row
        return [Call("max_pool", sizes, (p.source.x(), p.out.x(), p.own("winner")))]

    def pass_on(self, p: Place, which: int, add: bool) -> list[Call]:
        # Cleared first, for rows and columns of odd images that no window has get no gradient.
        sizes = *self.output.sizes, 1, p.out.row, p.source.row
        pointers = p.own("winner"), p.out.d(), p.source.d()
        return [*cleared(p.source, add), Call("max_pool_back", sizes, pointers)]


@dataclass(frozen=True, kw_only=True)
class Average(Layer):
    """Average pooling without padding."""

    kernel: tuple[int, int]
    stride: tuple[int, int]

    def forward(self, p: Place) -> list[Call]:
        sizes = *self.kernel, *self.stride, *self.output.sizes, p.source.row, p.out.row
        return [Call("average", sizes, (p.source.x(), p.out.x()))]

    def pass_on(self, p: Place, which: int, add: bool) -> list[Call]:
        sizes = *self.kernel, *self.stride, *self.output.sizes, p.out.row, p.source.row
        calls = cleared(p.source, add)
        return [*calls, Call("average_back", sizes, (p.out.d(), p.source.d()))]


def before_activation(
    p: Place, activation: str, bias: bool, rows: tuple[int, int, int], g: str
) -> Call:
    """The gradient before the activation, and the bias's."""
    sizes = *p.out.tensor.sizes, activation, *rows
    pointers = p.out.x(), p.out.d(), g, p.gradient(p.d_bias)
    return Call("before_activation", sizes, pointers, "squares += " if bias else "")


def _passed_back(p: Place, source: Buffer, activation: str, add: bool) -> Call:
    known = p.out if activation in FROM_VALUE else source
    sizes = *p.out.tensor.sizes, activation, int(add), known.row, p.out.row, source.row
    return Call("pass_back", sizes, (known.x(), p.out.d(), source.d()))


def cleared(source: Buffer, add: bool) -> list[Call]:
    """Call that clears the input's gradient, for layers that add to it place by place."""
    d = f"s->d{source.index}"
    return [] if add else [Call("memset", (), (d, "0", f"sizeof {d}"))]


def collected(p: Place, offset: int, size: int) -> Call:
    """A gradient of this record, times c, to the sum."""
    return _scaled(size, p.gradient(offset), offset)


def _scaled(size: int, gradient: str, offset: int) -> Call:
    return Call("add_scaled", (size,), (SCALE, gradient, f"sum + {offset}"), together=True)
