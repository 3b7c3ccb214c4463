"""Convolutions of the native kernel: as such, and by Winograd's algorithm."""

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from hiddenstate.dpsgd.native.calls import (
    GROUP,
    HEAVY,
    PAD,
    ROOM,
    Call,
    Layout,
    Place,
    Tensor,
)
from hiddenstate.dpsgd.native.layers import Layer, before_activation, cleared, collected
from hiddenstate.dpsgd.native.layouts import blocks, numbers, per_channel

_WIDE = 48
"""Places from which Winograd's algorithm is faster: they nearly fill four tiles of 4 x 4."""
_AT_ONCE = 16
"""Tiles, at most, that it transforms before it multiplies (``AT_ONCE`` in C)."""
_NEAR_BY = 4096
"""Floats of a strip of an input, if one row of windows does not take more (``NEAR_BY`` in C)."""
_FEW = 8
"""Tiles of a record up to which Winograd's algorithm gains from those of others."""


@dataclass(frozen=True, kw_only=True)
class Convolution(Layer):
    """A convolution, with the activation and the 2 x 2 max-pooling behind it."""

    input: Tensor
    kernel: tuple[int, int]
    stride: tuple[int, int]
    padding: int
    bias: bool
    activation: str = "NONE"
    pooled: bool = False
    _transposes: ClassVar[bool] = True

    @property
    def border(self) -> int:
        return self.padding

    @property
    def weights(self) -> int:
        return self.kernel[0] * self.kernel[1] * self.input.channels * self.output.channels

    @property
    def biases(self) -> int:
        return self.output.channels

    @property
    def back(self) -> int:
        if not self.scatters:
            return self.weights
        return (self.kernel[0] + 2) * (self.kernel[1] + 2) * self.weights // math.prod(self.kernel)

    @property
    def inked(self) -> bool:
        """True if it skips windows of a record's zeros."""
        return 0 in self.sources

    @property
    def scatters(self) -> bool:
        """True if the input gradient skips the losers of the pooling."""
        return self.pooled

    @property
    def places(self) -> Tensor:
        """The convolution's own output, without what the pooling leaves out."""
        t, each = self.output, 2 if self.pooled else 1
        return replace(t, height=each * t.height, width=each * t.width)

    @property
    def stack(self) -> int:
        """Bytes that its calls take of the stack, at most: a strip of an image that it pools."""
        if not self.pooled:
            return 0
        wide, windows = self.input.width + 2 * self.padding, self.output.width * PAD
        copied = self.input.channels % 8 == 0  # or else it takes all channels in place
        strip = max(_NEAR_BY, (self.kernel[0] + 1) * wide * 2 * PAD) if copied else 0
        # A strip, and a gradient and a place of each of its windows (``pooled_strip`` in C).
        return 4 * (strip + 2 * max(_NEAR_BY, windows))

    def layouts(self, lanes: int) -> tuple[Layout, Layout, Layout, Layout]:
        w = self._numbers
        forward, rows = blocks(w.transpose(2, 3, 1, 0), lanes), w.transpose(0, 2, 3, 1)
        backward: Layout = np.zeros(0, np.int64)  # a first layer's, which passes no gradient on
        if self.scatters:
            backward = np.pad(rows, ((0, 0), (1, 1), (1, 1), (0, 0)))
        elif self.input.channels % lanes == 0:
            # Each phase of the input's places meets its own taps, the last of them first.
            (down, across), parts = self.stride, []
            for a in range(down):
                for b in range(across):
                    own = w[:, :, a::down, b::across][:, :, ::-1, ::-1]
                    parts.append(blocks(own.transpose(2, 3, 0, 1), lanes).ravel())
            backward = np.concatenate(parts)
        after = self.start + self._pairs * math.prod(self.kernel)
        bias = per_channel(self.output, after if self.bias else None)
        return forward, bias, backward, rows if self.pooled else forward

    def members(self, i: int) -> list[str]:
        if not self.pooled:
            return [f"float g{i}[{self._bordered[2]}]"]
        floats = self.output.floats
        found = [f"int32_t winner{i}[{floats}]", f"float g{i}[{floats}]"]
        found += [f"int32_t ink{i}[{2 * self.output.height}]"] if self.inked else []
        if self.scatters:
            found.append(f"int32_t at{i}[{floats}]")
        return found

    def forward(self, p: Place) -> list[Call]:
        source, out = p.source, p.out
        pointers = source.x(self.padding), p.w(p.weights), p.w(p.bias), out.x()
        sizes = *self.kernel, *self.output.sizes, self.activation
        image = source.wide, self.input.channels
        if self.pooled:
            pooled, found = (*image, *sizes, out.row), (p.own("winner"), self._ink(p))
            return [Call("conv_pool_forward", pooled, (*pointers, *found), products=self._dense)]
        steps = out.row, self.output.channels
        constants = *image, *self.stride, *sizes, 0, *steps
        return [Call("conv_forward", constants, pointers, products=self._dense)]

    def backward(self, p: Place) -> list[Call]:
        source, out, (inside, row) = p.source, p.out, self._g
        g, dw = p.own("g", inside), p.gradient(p.d_weights)
        before = before_activation(p, self.activation, self.bias, (out.row, out.row, row), g)
        image, sizes = (source.wide, self.input.channels), (*self.kernel, *self.output.sizes)
        x = source.x(self.padding)
        if self.pooled:
            pooled, products = (x, g, p.own("winner"), self._ink(p), dw), self._winners
            call = Call(
                "pooled_weights", (*image, *sizes), pooled, "squares += ", products=products
            )
            return [before, call]
        constants = *image, *self.stride, *sizes, row
        call = Call("conv_weights", constants, (x, g, dw), "squares += ", products=self._dense)
        return [before, call]

    def pass_on(self, p: Place, which: int, add: bool) -> list[Call]:
        source, inputs, outputs = p.source, self.input.channels, self.output.channels
        if self.pooled:
            pooled = source.wide, inputs, *self.kernel, *self.output.sizes
            read = p.w(p.back), p.own("g"), p.own("winner")
            given = *read, source.d(self.padding), p.own("at")
            patch = (self.kernel[0] + 1) * (self.kernel[1] + 1)  # the winners', and zeros
            products = patch * self.output.height * self.output.width * self._pairs
            call = Call("pooled_input", pooled, given, products=products)
            return [*cleared(source, add), call]
        (inside, row), calls, back = self._g, [], p.back
        steps = self.stride[0] * source.row, self.stride[1] * inputs
        for down in self._phases[0]:
            for across in self._phases[1]:
                taps = down.taps * across.taps
                if down.rows * across.rows and (taps or not add):
                    to = down.first * source.row + across.first * inputs
                    g = inside + down.earliest * row + across.earliest * outputs
                    kernel, sides = (down.taps, across.taps), (down.rows, across.rows)
                    sizes = row // outputs, outputs, 1, 1, *kernel, *sides, inputs
                    pointers = p.own("g", g), p.w(back), "0", source.d(more=to)
                    constants = *sizes, "NONE", int(add), *steps
                    products = taps * down.rows * across.rows * self._pairs
                    calls.append(Call("conv_forward", constants, pointers, products=products))
                back += taps * inputs * outputs
        return calls

    def collect(self, p: Place) -> list[Call]:
        return [collected(p, p.d_weights, self.weights), collected(p, p.d_bias, self.biases)]

    @property
    def _numbers(self) -> Layout:
        """Numbers of the weights: outputs, inputs, kernel."""
        real = (self.output.real, self.input.real, *self.kernel)
        w = np.zeros((self.output.channels, self.input.channels, *self.kernel), np.int64)
        w[: real[0], : real[1]] = numbers(self.start, real)
        return w

    def _ink(self, p: Place) -> str:
        """C expression of where a record's windows are not all zeros."""
        return p.own("ink") if self.inked else "0"

    @property
    def _pairs(self) -> int:
        """Pairs of an input and an output channel that are no padding."""
        return self.input.real * self.output.real

    @property
    def _winners(self) -> int:
        """Products of the places of the output alone, with all taps and pairs of channels."""
        return math.prod(self.kernel) * self.output.height * self.output.width * self._pairs

    @property
    def _dense(self) -> int:
        """Products of all places, before the pooling too."""
        return self._winners * (4 if self.pooled else 1)

    @property
    def _g(self) -> tuple[int, int]:
        """Begin of the gradient before the activation behind its zeros, and a row's length."""
        return (0, self.output.width * self.output.channels) if self.pooled else self._bordered[:2]

    @property
    def _bordered(self) -> tuple[int, int, int]:
        """The same with the zeros that the input's gradient reads, and the size of the whole."""
        places, (above, below, left, right) = self.places, self._margins
        row = (places.width + left + right) * places.channels
        size = (above + places.height + below) * row
        return above * row + left * places.channels, row, size

    @property
    def _phases(self) -> list[list["_Phase"]]:
        """Phases of rows and of columns."""
        inputs, outputs = self.input.sizes, self.places.sizes
        return [
            _phases(inputs[i], outputs[i], self.kernel[i], self.stride[i], self.padding)
            for i in (0, 1)
        ]

    @property
    def _margins(self) -> list[int]:
        """Zeros around its output's gradient: above, below, left, right."""
        return [
            max(0, *(getattr(phase, side) for phase in phases))
            for phases in self._phases
            for side in ("before", "after")
        ]


@dataclass(frozen=True)
class _Phase:
    """Rows (or columns) of a convolution's input that meet the same taps: every stride-th.

    With stride s and padding p, input row r meets output row y at tap r + p - s y. So the gradient
    of the rows with one remainder of r + p by s is a convolution of stride 1, with the taps of
    that remainder, of the output's gradient.
    """

    taps: int
    first: int  # of these rows
    rows: int  # how many
    earliest: int  # output row that meets the first of these rows at the last tap
    before: int  # zeros that are read before the first output row, and after the last one
    after: int


def _phases(side: int, output: int, kernel: int, stride: int, padding: int) -> list[_Phase]:
    found = []
    for remainder in range(stride):
        taps = len(range(remainder, kernel, stride))
        start = -((remainder - padding) // stride)  # output row of the first of these rows
        first = remainder + stride * start - padding
        rows = len(range(first, side, stride))
        earliest, reads = start - taps + 1, bool(rows and taps)
        before, after = (-earliest, start + rows - output) if reads else (0, 0)
        found.append(_Phase(taps, first, rows, earliest, before, after))
    return found


@dataclass(frozen=True, kw_only=True)
class Winograd(Convolution):
    """A convolution of 3 x 3 or 4 x 4 taps and stride 1 by Winograd's algorithm.

    A tile of 4 x 4 places takes 36 or 49 products for every pair of channels in place of 144 or
    256. So it is no more work than the winners alone behind a pooling, whose weight gradient skips
    the others.
    """

    @property
    def points(self) -> int:
        """Products of a tile, for each pair of channels."""
        return (self.kernel[0] + 3) ** 2

    @property
    def inked(self) -> bool:
        return False

    @property
    def scatters(self) -> bool:
        return False

    @property
    def room(self) -> int:
        inputs, outputs, block = self.input.channels, self.output.channels, 2 * PAD
        tiles, some = self.tiles, _most_at_once(self.tiles)
        # Of the passes forward and back, and of the weights' gradient; each part has PAD floats
        # more, as in C (``apart_of``).
        wanted = [[some * inputs, some * block], [some * outputs, some * block]]
        if not self.pooled:
            wanted += [[tiles * inputs, tiles * block, PAD // 2 * block]]
        return max(self.points * sum(floats + PAD for floats in each) for each in wanted)

    def layouts(self, lanes: int) -> tuple[Layout, Layout, Layout, Layout]:
        forward, bias, _, gradient = super().layouts(lanes)
        backward = blocks(self._numbers.transpose(2, 3, 0, 1), lanes)
        return forward, bias, backward, gradient

    def members(self, i: int) -> list[str]:
        size = self.points * self.input.channels * self.output.channels
        kept = ["w", "back"] if self.transposed else ["w"]
        return [*(f"float {name}{i}[{size}]" for name in kept), *super().members(i)]

    def prepare(self, p: Place) -> list[Call]:
        """Calls made once for all records: they transform the weights."""
        taps, sizes = self.kernel[0], (self.input.channels, self.output.channels)
        calls = [Call("winograd_weights", (taps, *sizes), (p.w(p.weights), p.shared("w")))]
        if self.transposed:
            back = p.w(p.back), p.shared("back")
            calls.append(Call("winograd_weights", (taps, *sizes[::-1]), back))
        return calls

    def forward(self, p: Place) -> list[Call]:
        # Sixteen places' activations at once would take the registers of the sums.
        own, row, y = self.activation if self.pooled else "NONE", p.out.row, p.out.x()
        read = p.source.x(self.padding), p.shared("w"), p.w(p.bias)
        sizes, given = (*self._sizes(p, int(self.pooled)), own, row), (y, self._winner(p), ROOM)
        calls = [self._call("winograd_forward", sizes, (*read, *given))]
        if own != self.activation:
            active = *self.output.sizes, self.activation, row, row
            calls.append(Call("activation", active, (y, y)))
        return calls

    def backward(self, p: Place) -> list[Call]:
        before, dense = super().backward(p)
        if self.pooled:
            return [before, dense]
        sizes, products = (*self._sizes(p), self._g[1]), self.points * self.tiles * self._pairs
        pointers = *dense.pointers, ROOM
        call = Call("winograd_gradient", sizes, pointers, dense.then, products=products)
        return [before, call]

    def pass_on(self, p: Place, which: int, add: bool) -> list[Call]:
        sizes, d = (*self._sizes(p, int(self.pooled)), self._g[1]), p.source.d(self.padding)
        pointers = p.own("g"), self._winner(p), p.shared("back"), d, ROOM
        return [*cleared(p.source, add), self._call("winograd_back", sizes, pointers)]

    def _sizes(self, p: Place, *pooled: int) -> tuple[int, ...]:
        return self.kernel[0], *pooled, p.source.wide, self.input.channels, *self.places.sizes

    def _winner(self, p: Place) -> str:
        return p.own("winner") if self.pooled else "0"

    def _call(self, name: str, sizes: tuple[object, ...], pointers: tuple[str, ...]) -> Call:
        """Call for one record, or for a group where its own tiles are few."""
        together = self.tiles <= _FEW and 0 not in self.sources
        sizes = sizes if together else (1, 0, *sizes)
        products = self.points * self.tiles * self._pairs
        return Call(name, sizes, pointers, together=together, products=products)

    @property
    def heavy(self) -> bool:
        weights = self.points * self.input.channels * self.output.channels
        return weights >= HEAVY and self.tiles <= _FEW

    @property
    def tiles(self) -> int:
        """Tiles of the places."""
        return -(-self.places.height // 4) * -(-self.places.width // 4)

    @property
    def _margins(self) -> list[int]:
        return [0, 0, 0, 0]  # tiles take zeros for what is beyond (``winograd_tiles`` in C)


def _most_at_once(tiles: int) -> int:
    """Largest number of tiles taken at once, where a record has so many."""
    return max(_at_once(tiles), _at_once(GROUP * tiles))


def _at_once(tiles: int) -> int:
    """About equal parts, of at most ``_AT_ONCE``."""
    return -(-tiles // -(-tiles // _AT_ONCE))


def fastest(layer: Layer) -> Layer:
    """The layer, or the same by Winograd's algorithm where that is faster."""
    if not isinstance(layer, Convolution):
        return layer
    found = Winograd(**vars(layer))
    kernels, whole = ((3, 3), (4, 4)), layer.input.channels % PAD == 0
    fits = layer.kernel in kernels and layer.stride == (1, 1) and whole
    return found if fits and found.places.height * found.places.width >= _WIDE else layer
