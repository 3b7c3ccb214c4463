"""The layers of the native kernel: their sizes, their calls of ``clipped_sum.h``, their layouts."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

PAD = 16
"""Channels are padded to multiples of this: whole vectors of the widest kind."""
Layout = NDArray[np.int64]
"""Parameter numbers, counted from 1, with 0 for padding."""
_SHARED = {
    "conv_forward": ("void", "rrrw"),
    "conv_weights": ("float", "rrw"),
    "pooled_weights": ("float", "rriw"),
    "winograd_forward": ("void", "rrrww"),
    "winograd_gradient": ("float", "rrww"),
    "norm_forward": ("void", "rrrwww"),
    "norm_gradients": ("void", "rrrrww"),
    "norm_back": ("void", "rrrrrrrw"),
}
"""Functions that take long to compile: equal calls share one. What each returns, and which of its
pointers it reads (r; i: integers) and which it writes."""
_POINTERS = {"r": "const float", "i": "const int32_t", "w": "float"}
_WIDE = 48
"""Places from which Winograd's algorithm is faster: they nearly fill four tiles of 4 x 4."""
_DENSE = 1.4
"""So many of its dense products take the time of one with a winner."""
_AT_ONCE = 16
"""Tiles, at most, that it transforms before it multiplies (``AT_ONCE`` in C)."""
_NEAR_BY = 4096
"""Floats of a strip of an input, if one row of windows does not take more (``NEAR_BY`` in C)."""
_ROOM = "all->room"
_SCALE = "scale"
GROUP = 4
"""Records that a layer takes at once if reading its weights takes longer than their use."""
_HEAVY = 2**16
"""Weights from which that is so: a quarter of a MiB, beside all else in the second cache."""
_FEW = 8
"""Tiles of a record up to which Winograd's algorithm gains from those of others."""


@dataclass(frozen=True)
class Tensor:
    """Height, width and channels of a record's tensor; ``real`` ones of these are no padding.

    flat: a vector to torch, though it lies as the image that it was.
    """

    height: int
    width: int
    channels: int
    real: int
    flat: bool = False

    @property
    def sizes(self) -> tuple[int, int, int]:
        """Height, width and channels."""
        return self.height, self.width, self.channels

    @property
    def floats(self) -> int:
        """Number of entries."""
        return self.height * self.width * self.channels

    @property
    def entries(self) -> int:
        """Number of entries that are no padding."""
        return self.height * self.width * self.real


@dataclass(frozen=True)
class Buffer:
    """Where a tensor lies: an image with ``border`` zeros around it, or the record itself (0)."""

    index: int
    tensor: Tensor
    border: int

    @property
    def wide(self) -> int:
        """Pixels of a row, with its border."""
        return self.tensor.width + 2 * self.border

    @property
    def row(self) -> int:
        """Floats of a row."""
        return self.wide * self.tensor.channels

    @property
    def size(self) -> int:
        """Floats of the whole."""
        return (self.tensor.height + 2 * self.border) * self.row

    def x(self, padding: int = 0) -> str:
        """C expression of the tensor, from so much of its border on."""
        return at(f"s->x{self.index}" if self.index else "x0", self._inside(padding))

    def d(self, padding: int = 0, more: int = 0) -> str:
        """The same of its gradient, and ``more`` floats on."""
        return at(f"s->d{self.index}", self._inside(padding) + more)

    def _inside(self, padding: int) -> int:
        return (self.border - padding) * (self.row + self.tensor.channels)


def at(name: str, floats: int) -> str:
    """C expression of what lies so many floats on."""
    return f"{name} + {floats}" if floats else name


@dataclass(frozen=True)
class Call:
    """A C statement: a function's constant sizes, then its pointers; ``then`` uses the result.

    together: whether it can take all records of a group, and has how many as its first size, and
    how many floats they are apart as its second.
    """

    name: str
    sizes: Sequence[object]
    pointers: Sequence[str]
    then: str = ""
    together: bool = False

    def of(self, records: int) -> "Call":
        """The same for so many records."""
        if not self.together:
            return self
        return replace(self, sizes=(records, "APART", *self.sizes), together=False)

    def __str__(self) -> str:
        arguments = ", ".join(map(str, (*self.sizes, *self.pointers)))
        return f"{self.then}{self.name}({arguments});"

    def shared(self, known: dict["Call", str]) -> "Call":
        """The call of a function for these sizes alone, which ``known`` gets, where it pays."""
        if self.name not in _SHARED:
            return self
        names = [p if p == "0" else f"p{i}" for i, p in enumerate(self.pointers)]
        inner = Call(self.name, tuple(self.sizes), tuple(names))
        name = known.setdefault(inner, f"{self.name}_{len(known)}")
        return Call(name, (), [p for p in self.pointers if p != "0"], self.then)

    def definition(self, name: str) -> str:
        """C source of the function that makes this call and no other."""
        kind, uses = _SHARED[self.name]
        given = [
            f"{_POINTERS[use]} *{p}" for p, use in zip(self.pointers, uses, strict=True) if p != "0"
        ]
        back = "" if kind == "void" else "return "
        return f"static NOINLINE {kind} {name}({', '.join(given)}) {{\n  {back}{self}\n}}"


@dataclass(frozen=True)
class Place:
    """What a layer's calls refer to: tensors, and offsets among weights and gradients."""

    i: int
    sources: tuple[Buffer, ...]
    out: Buffer
    weights: int
    bias: int
    back: int
    d_weights: int
    d_bias: int

    @property
    def source(self) -> Buffer:
        """The only tensor that the layer reads."""
        return self.sources[0]

    def w(self, offset: int) -> str:
        """C expression of weights."""
        return f"w + {offset}"

    def gradient(self, offset: int) -> str:
        """C expression of this record's gradient."""
        return f"s->sum + {offset}"

    def own(self, name: str, floats: int = 0) -> str:
        """C expression of a member of the layer's own."""
        return at(f"s->{name}{self.i}", floats)

    def shared(self, name: str) -> str:
        """The same of what all records share."""
        return f"all->{name}{self.i}"


@dataclass(frozen=True, kw_only=True)
class Layer:
    """One layer: the tensors that it reads (0 is the record), the one that it gives, its calls.

    start: of its parameters, weights first, among the model's.
    """

    sources: tuple[int, ...]
    output: Tensor
    start: int = 0
    _turns: ClassVar[bool] = False

    @property
    def turned(self) -> bool:
        """Whether its weights lie there a second time, for its input's gradient."""
        return self._turns and 0 not in self.sources

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
    def room(self) -> int:
        """Floats that its calls need for themselves, in a place that all layers share."""
        return 0

    @property
    def heavy(self) -> bool:
        """Whether its weights are read more quickly for several records together."""
        return False

    def layouts(self, lanes: int) -> tuple[Layout, Layout, Layout, Layout]:
        """Where parameters lie: forward weights, bias, backward weights; gradient of the first."""
        return (np.zeros(0, np.int64),) * 4

    def members(self, i: int) -> list[str]:
        """C declarations of what it keeps of a record besides tensors."""
        return []

    def prepare(self, p: Place) -> list[Call]:
        """What is done once for all records."""
        return []

    def forward(self, p: Place) -> list[Call]:
        """The forward pass."""
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
class Convolution(Layer):
    """A convolution, with the activation and the 2 x 2 max-pooling behind it."""

    input: Tensor
    kernel: tuple[int, int]
    stride: tuple[int, int]
    padding: int
    bias: bool
    activation: str = "NONE"
    pooled: bool = False
    _turns: ClassVar[bool] = True

    @property
    def border(self) -> int:
        """Zeros that it wants around its input."""
        return self.padding

    @property
    def weights(self) -> int:
        """Entries of the packed weights."""
        return self.kernel[0] * self.kernel[1] * self.input.channels * self.output.channels

    @property
    def biases(self) -> int:
        """Entries of the packed bias."""
        return self.output.channels

    @property
    def sparse(self) -> bool:
        """Whether the weight gradient skips the losers of the pooling."""
        return self.pooled and self.input.channels % PAD == 0

    @property
    def scatters(self) -> bool:
        """Whether the input gradient skips them."""
        return self.pooled

    @property
    def places(self) -> Tensor:
        """The convolution's own output, without what the pooling leaves out."""
        t, each = self.output, 2 if self.pooled else 1
        return replace(t, height=each * t.height, width=each * t.width)

    @property
    def stack(self) -> int:
        """Bytes that its calls take of the stack, at most: rows of an image that it pools."""
        if not self.pooled:
            return 0
        wide, pooled = self.input.width + 2 * self.padding, self.output.width
        rows = 4 * pooled * 2 * PAD  # two before the pooling, of two vectors of channels
        strip = max(_NEAR_BY, (self.kernel[0] + 1) * wide * 2 * PAD) if self.sparse else 0
        return 4 * (rows + strip + pooled * PAD)

    def layouts(self, lanes: int) -> tuple[Layout, Layout, Layout, Layout]:
        """Where parameters lie: forward weights, bias, backward weights; gradient of the first."""
        real = (self.output.real, self.input.real, *self.kernel)
        w = np.zeros((self.output.channels, self.input.channels, *self.kernel), np.int64)
        w[: real[0], : real[1]] = _numbers(self.start, real)
        forward, rows = _blocks(w.transpose(2, 3, 1, 0), lanes), w.transpose(0, 2, 3, 1)
        backward: Layout = np.zeros(0, np.int64)  # a first layer's, which passes no gradient on
        if self.scatters:
            backward = rows
        elif self.input.channels % lanes == 0:
            # Each phase of the input's places meets its own taps, the last of them first.
            (down, across), parts = self.stride, []
            for a in range(down):
                for b in range(across):
                    own = w[:, :, a::down, b::across][:, :, ::-1, ::-1]
                    parts.append(_blocks(own.transpose(2, 3, 0, 1), lanes).ravel())
            backward = np.concatenate(parts)
        bias = _vector(self.output, self.start + int(np.prod(real)) if self.bias else None)
        return forward, bias, backward, rows if self.sparse else forward

    def members(self, i: int) -> list[str]:
        """C declarations of what it keeps of a record besides tensors."""
        if not self.pooled:
            return [f"float g{i}[{self._bordered[2]}]"]
        floats, counts = self.output.floats, 4 * self.output.height * self.output.width
        found = [f"int32_t winner{i}[{floats}]", f"float g{i}[{floats}]"]
        if self.scatters:
            found.append(f"int32_t won{i}[{floats + PAD}], counts{i}[{counts}]")
        return found

    def forward(self, p: Place) -> list[Call]:
        """The forward pass."""
        source, out = p.source, p.out
        pointers = source.x(self.padding), p.w(p.weights), p.w(p.bias), out.x()
        sizes = *self.kernel, *self.output.sizes, self.activation
        image = source.wide, self.input.channels
        if self.pooled:
            winner = p.own("winner")
            return [Call("conv_pool_forward", (*image, *sizes, out.row), (*pointers, winner))]
        steps = out.row, self.output.channels
        return [Call("conv_forward", (*image, *self.stride, *sizes, 0, *steps), pointers)]

    def backward(self, p: Place) -> list[Call]:
        """Its parameters' gradients, whose squares are added to ``squares``."""
        source, out, (inside, row) = p.source, p.out, self._g
        g, dw = p.own("g", inside), p.gradient(p.d_weights)
        before = _before(p, self.activation, self.bias, (out.row, out.row, row), g)
        image, sizes = (source.wide, self.input.channels), (*self.kernel, *self.output.sizes)
        x = source.x(self.padding)
        if self.pooled:
            name = "pooled_weights" if self.sparse else "few_channels_weights"
            pointers = x, g, p.own("winner"), dw
            return [before, Call(name, (*image, *sizes), pointers, "squares += ")]
        constants = *image, *self.stride, *sizes, row
        return [before, Call("conv_weights", constants, (x, g, dw), "squares += ")]

    def pass_on(self, p: Place, which: int, add: bool) -> list[Call]:
        """Its input's gradient, written, or added to what is there."""
        source, inputs, outputs = p.source, self.input.channels, self.output.channels
        if self.pooled:
            pooled = source.wide, inputs, *self.kernel, *self.output.sizes
            read, sorts = (
                (p.w(p.back), p.own("g"), p.own("winner")),
                (p.own("won"), p.own("counts")),
            )
            given = *read, source.d(self.padding), *sorts
            return [*_cleared(source, add), Call("pooled_input", pooled, given)]
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
                    calls.append(Call("conv_forward", (*sizes, "NONE", int(add), *steps), pointers))
                back += taps * inputs * outputs
        return calls

    def collect(self, p: Place) -> list[Call]:
        """Its parameters' gradients, times c, to the sum."""
        return [_collected(p, p.d_weights, self.weights), _collected(p, p.d_bias, self.biases)]

    @property
    def _g(self) -> tuple[int, int]:
        """Where the gradient before the activation begins behind its zeros, and a row's length."""
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
        """Of rows and of columns."""
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

    A tile of 4 x 4 or 3 x 3 places takes 36 products for every pair of channels in place of 144.
    So it is no more work than the winners alone behind a pooling, whose weight gradient skips the
    others.
    """

    @property
    def edge(self) -> int:
        """Places of a tile's side."""
        return 7 - self.kernel[0]

    @property
    def room(self) -> int:
        """Floats that its calls need for themselves, in a place that all layers share."""
        inputs, outputs, block = self.input.channels, self.output.channels, 2 * PAD
        tiles, some, turned = self.tiles, _most_at_once(self.tiles), _most_at_once(self.tiles_back)
        wanted = [[some * inputs, some * block], [turned * outputs, turned * block]]
        if not self.pooled:
            wanted += [[tiles * inputs, tiles * block, PAD // 2 * block]]
        most = max(36 * sum(floats + PAD for floats in each) for each in wanted)
        return most + (self._unpooled.floats if self._across else 0)

    def members(self, i: int) -> list[str]:
        """C declarations of what it keeps of a record besides tensors."""
        size = 36 * self._pairs
        found = [f"float w{i}[{size}]", *super().members(i)]
        if self.turned and not self.scatters:
            found.append(f"float back{i}[{size}]")
            found += [f"float spread{i}[{self._bordered[2]}]"] if self.pooled else []
        return found

    def prepare(self, p: Place) -> list[Call]:
        """What is done once for all records: its weights are transformed."""
        taps, sizes = self.kernel[0], (self.input.channels, self.output.channels)
        calls = [Call("winograd_weights", (taps, *sizes), (p.w(p.weights), p.shared("w")))]
        if self.turned and not self.scatters:
            back = p.w(p.back), p.shared("back")
            calls.append(Call("winograd_weights", (taps, *sizes[::-1]), back))
        return calls

    def forward(self, p: Place) -> list[Call]:
        """The forward pass."""
        image = self.kernel[0], p.source.wide, self.input.channels
        read = p.source.x(self.padding), p.shared("w"), p.w(p.bias)
        out, y, places = self.output, p.out.x(), self._unpooled
        if self.pooled and not self._across:
            pooled = *image, *out.sizes, self.activation, p.out.row
            pointers = *read, y, p.own("winner"), _ROOM
            return [self._call("winograd_pool_forward", pooled, pointers, self.tiles)]
        kind, to, row = self.activation, y, p.out.row
        if self._across:
            kind, to = "NONE", at(_ROOM, self.room - places.floats)
            row = places.width * out.channels
        sizes = *image, *places.sizes, kind, 0, row, out.channels
        calls = [self._call("winograd_forward", sizes, (*read, to, _ROOM), self.tiles)]
        if self._across:
            rows = *out.sizes, row, p.out.row
            calls.append(Call("max_pool", rows, (to, y, p.own("winner"))))
            active = *out.sizes, self.activation, p.out.row, p.out.row
            calls.append(Call("activation", active, (y, y)))
        return calls

    def backward(self, p: Place) -> list[Call]:
        """Its parameters' gradients, whose squares are added to ``squares``."""
        before, dense = super().backward(p)
        if self.pooled:
            return [before, dense]
        image = self.kernel[0], p.source.wide, self.input.channels
        sizes = *image, *self.output.sizes, self._g[1]
        return [before, Call("winograd_gradient", sizes, (*dense.pointers, _ROOM), dense.then)]

    def pass_on(self, p: Place, which: int, add: bool) -> list[Call]:
        """Its input's gradient, written, or added to what is there."""
        if self.scatters:
            return super().pass_on(p, which, add)
        inputs, outputs, (inside, row, _) = self.input, self.output, self._bordered
        image = self.kernel[0], row // outputs.channels, outputs.channels
        steps = p.source.row, inputs.channels
        sizes = *image, *inputs.sizes, "NONE", int(add), *steps
        g = p.own("spread" if self.pooled else "g")
        pointers = g, p.shared("back"), "0", p.source.d(), _ROOM
        call = self._call("winograd_forward", sizes, pointers, self.tiles_back)
        if not self.pooled:
            return [call]
        pooled, winners = (*outputs.sizes, 0, self._g[1], row), (p.own("winner"), p.own("g"))
        return [Call("max_pool_back", pooled, (*winners, at(g, inside))), call]

    def _call(
        self, name: str, sizes: tuple[object, ...], pointers: tuple[str, ...], tiles: int
    ) -> Call:
        """For one record, or for a group where its own tiles are few."""
        if tiles <= _FEW and not self._across and 0 not in self.sources:
            return Call(name, sizes, pointers, together=True)
        return Call(name, (1, 0, *sizes), pointers)

    @property
    def heavy(self) -> bool:
        """Whether its weights are read more quickly for several records together."""
        return 36 * self._pairs >= _HEAVY and min(self.tiles, self.tiles_back) <= _FEW

    @property
    def _pairs(self) -> int:
        return self.input.channels * self.output.channels

    @property
    def scatters(self) -> bool:
        """Whether the input gradient skips the losers of the pooling: where that is faster."""
        winners = self.output.height * self.output.width * self.kernel[0] * self.kernel[1]
        return self.pooled and 36 * self.tiles_back > _DENSE * winners

    @property
    def tiles(self) -> int:
        """Tiles of the forward pass."""
        return self._tiles_of(self._unpooled)

    @property
    def tiles_back(self) -> int:
        """Tiles of the input's gradient."""
        return self._tiles_of(self.input)

    @property
    def _across(self) -> bool:
        """Whether the pooling's windows lie across the tiles, so that it comes afterwards."""
        return self.pooled and self.edge % 2 == 1

    @property
    def _unpooled(self) -> Tensor:
        """What the forward pass makes before it pools."""
        if not self._across:
            return self.places
        high, wide = (
            side + 2 * self.padding - self.kernel[0] + 1
            for side in (self.input.height, self.input.width)
        )
        return replace(self.output, height=high, width=wide)

    def _tiles_of(self, t: Tensor) -> int:
        return -(-t.height // self.edge) * -(-t.width // self.edge)


def _most_at_once(tiles: int) -> int:
    """How many tiles are taken at once, at most, where a record has so many."""
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


@dataclass(frozen=True, kw_only=True)
class Linear(Layer):
    """A linear layer, with the activation behind it."""

    input: Tensor
    bias: bool
    activation: str = "NONE"
    _turns: ClassVar[bool] = True

    @property
    def weights(self) -> int:
        """Entries of the packed weights."""
        return self.input.floats * self.output.channels

    @property
    def biases(self) -> int:
        """Entries of the packed bias."""
        return self.output.channels

    def layouts(self, lanes: int) -> tuple[Layout, Layout, Layout, Layout]:
        """Where parameters lie: forward weights, bias, backward weights; gradient of the first."""
        t = self.input
        real = (self.output.real, t.real, t.height, t.width)
        w = np.zeros((self.output.channels, t.channels, t.height, t.width), np.int64)
        w[: real[0], : real[1]] = _numbers(self.start, real)
        backward = w.transpose(0, 2, 3, 1).reshape(self.output.channels, -1)
        bias = _vector(self.output, self.start + int(np.prod(real)) if self.bias else None)
        forward, back = (_eights(rows, lanes) for rows in (backward.T, backward))
        return forward, bias, back, backward.T

    def members(self, i: int) -> list[str]:
        """C declarations of what it keeps of a record besides tensors."""
        return [f"float g{i}[{self.output.channels}]"]

    def forward(self, p: Place) -> list[Call]:
        """The forward pass."""
        sizes = self.input.floats, self.output.channels, self.activation, 0
        pointers = p.source.x(), p.w(p.weights), p.w(p.bias), p.out.x()
        return [self._call("linear", sizes, pointers)]

    def backward(self, p: Place) -> list[Call]:
        """Its parameters' gradients, whose squares are added to ``squares``."""
        inputs, outputs, x, g = self.input.floats, self.output.channels, p.source.x(), p.own("g")
        norm = Call("squared_norm", (outputs,), (g,), f"squares += squared_norm({inputs}, {x}) * ")
        return [_before(p, self.activation, self.bias, (0, 0, 0), g), norm]

    def pass_on(self, p: Place, which: int, add: bool) -> list[Call]:
        """Its input's gradient, written, or added to what is there."""
        sizes = self.output.channels, self.input.floats, "NONE", int(add)
        return [self._call("linear", sizes, (p.own("g"), p.w(p.back), "0", p.source.d()))]

    def collect(self, p: Place) -> list[Call]:
        """Its parameters' gradients, times c, to the sum."""
        inputs, outputs, g = self.input.floats, self.output.channels, p.own("g")
        outer = _SCALE, p.source.x(), g, f"sum + {p.d_weights}"
        return [self._call("add_outer", (inputs, outputs), outer), _scaled(outputs, g, p.d_bias)]

    def _call(self, name: str, sizes: tuple[object, ...], pointers: tuple[str, ...]) -> Call:
        """For a group, unless it reads records where they lie."""
        if 0 in self.sources:
            return Call(name, (1, 0, *sizes), pointers)
        return Call(name, sizes, pointers, together=True)

    @property
    def heavy(self) -> bool:
        """Whether its weights are read more quickly for several records together."""
        return self.weights >= _HEAVY and 0 not in self.sources


@dataclass(frozen=True, kw_only=True)
class Norm(Layer):
    """Group norm, by groups of ``size`` channels."""

    size: int
    eps: float
    gain: bool
    bias: bool

    @property
    def weights(self) -> int:
        """Entries of the packed weights."""
        return self.output.channels

    @property
    def biases(self) -> int:
        """Entries of the packed bias."""
        return self.output.channels

    def layouts(self, lanes: int) -> tuple[Layout, Layout, Layout, Layout]:
        """Where parameters lie: forward weights, bias, backward weights; gradient of the first."""
        gain = _vector(self.output, self.start if self.gain else None)
        bias = _vector(self.output, self.start + self.output.real if self.bias else None)
        return gain, bias, np.zeros(0, np.int64), gain

    def members(self, i: int) -> list[str]:
        """C declarations of what it keeps of a record besides tensors."""
        return [f"float {name}{i}[{self.output.channels}]" for name in ("mean", "scale")]

    def forward(self, p: Place) -> list[Call]:
        """The forward pass."""
        sizes = *self._sizes, f"{self.eps!r}f", p.source.row, p.out.row
        bias = p.w(p.bias) if self.bias else "0"
        kept = p.own("mean"), p.own("scale")
        return [Call("norm_forward", sizes, (p.source.x(), self._gain(p), bias, p.out.x(), *kept))]

    def backward(self, p: Place) -> list[Call]:
        """Its parameters' gradients, whose squares are added to ``squares``."""
        gradients = p.gradient(p.d_weights), p.gradient(p.d_bias)
        read = p.source.x(), p.own("mean"), p.own("scale"), p.out.d()
        sizes = *self.output.sizes, p.source.row, p.out.row
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
        """Its input's gradient, written, or added to what is there."""
        kept = p.own("mean"), p.own("scale")
        gradients = p.gradient(p.d_weights), p.gradient(p.d_bias)
        pointers = p.source.x(), self._gain(p), *kept, p.out.d(), *gradients, p.source.d()
        return [Call("norm_back", (*self._sizes, int(add), p.source.row, p.out.row), pointers)]

    def collect(self, p: Place) -> list[Call]:
        """Its parameters' gradients, times c, to the sum."""
        offsets = ((self.gain, p.d_weights), (self.bias, p.d_bias))
        return [_collected(p, offset, self.output.channels) for has, offset in offsets if has]

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
        """The forward pass."""
        sizes = *self.output.sizes, self.kind, p.source.row, p.out.row
        return [Call("activation", sizes, (p.source.x(), p.out.x()))]

    def pass_on(self, p: Place, which: int, add: bool) -> list[Call]:
        """Its input's gradient, written, or added to what is there."""
        return [_passed_back(p, p.source, self.kind, add)]


@dataclass(frozen=True, kw_only=True)
class Sum(Layer):
    """The sum of two tensors."""

    def forward(self, p: Place) -> list[Call]:
        """The forward pass."""
        one, other = p.sources
        sizes = *self.output.sizes, one.row, other.row, p.out.row
        return [Call("add_tensors", sizes, (one.x(), other.x(), p.out.x()))]

    def pass_on(self, p: Place, which: int, add: bool) -> list[Call]:
        """Its input's gradient, written, or added to what is there."""
        return [_passed_back(p, p.sources[which], "NONE", add)]


@dataclass(frozen=True, kw_only=True)
class MaxPool(Layer):
    """2 x 2 max-pooling behind anything but a convolution."""

    def members(self, i: int) -> list[str]:
        """C declarations of what it keeps of a record besides tensors."""
        return [f"int32_t winner{i}[{self.output.floats}]"]

    def forward(self, p: Place) -> list[Call]:
        """The forward pass."""
        sizes = *self.output.sizes, p.source.row, p.out.row
        return [Call("max_pool", sizes, (p.source.x(), p.out.x(), p.own("winner")))]

    def pass_on(self, p: Place, which: int, add: bool) -> list[Call]:
        """Its input's gradient, written, or added to what is there."""
        sizes = *self.output.sizes, 1, p.out.row, p.source.row
        pointers = p.own("winner"), p.out.d(), p.source.d()
        return [*_cleared(p.source, add), Call("max_pool_back", sizes, pointers)]


@dataclass(frozen=True, kw_only=True)
class Average(Layer):
    """Average pooling without padding."""

    kernel: tuple[int, int]
    stride: tuple[int, int]

    def forward(self, p: Place) -> list[Call]:
        """The forward pass."""
        sizes = *self.kernel, *self.stride, *self.output.sizes, p.source.row, p.out.row
        return [Call("average", sizes, (p.source.x(), p.out.x()))]

    def pass_on(self, p: Place, which: int, add: bool) -> list[Call]:
        """Its input's gradient, written, or added to what is there."""
        sizes = *self.kernel, *self.stride, *self.output.sizes, p.out.row, p.source.row
        calls = _cleared(p.source, add)
        return [*calls, Call("average_back", sizes, (p.out.d(), p.source.d()))]


def _before(p: Place, activation: str, bias: bool, rows: tuple[int, int, int], g: str) -> Call:
    """The gradient before the activation, and the bias's."""
    sizes = *p.out.tensor.sizes, activation, *rows
    pointers = p.out.x(), p.out.d(), g, p.gradient(p.d_bias)
    return Call("before_activation", sizes, pointers, "squares += " if bias else "")


def _passed_back(p: Place, source: Buffer, activation: str, add: bool) -> Call:
    sizes = *p.out.tensor.sizes, activation, int(add), p.out.row, source.row
    return Call("pass_back", sizes, (p.out.x(), p.out.d(), source.d()))


def _cleared(source: Buffer, add: bool) -> list[Call]:
    """For what adds to its input's gradient place by place."""
    d = f"s->d{source.index}"
    return [] if add else [Call("memset", (), (d, "0", f"sizeof {d}"))]


def _collected(p: Place, offset: int, size: int) -> Call:
    return _scaled(size, p.gradient(offset), offset)


def _scaled(size: int, gradient: str, offset: int) -> Call:
    return Call("add_scaled", (size,), (_SCALE, gradient, f"sum + {offset}"), together=True)


def _numbers(start: int, shape: tuple[int, ...]) -> Layout:
    return np.arange(start + 1, start + 1 + int(np.prod(shape))).reshape(shape)


def _vector(output: Tensor, start: int | None) -> Layout:
    """One parameter a channel, or none."""
    found = np.zeros(output.channels, np.int64)
    if start is not None:
        found[: output.real] = _numbers(start, (output.real,))
    return found


def _eights(w: Layout, lanes: int) -> Layout:
    """(inputs, outputs) as blocks of (inputs, eight vectors of outputs), and one of the rest."""
    cuts = range(8 * lanes, w.shape[1], 8 * lanes)
    return np.concatenate([block.ravel() for block in np.split(w, cuts, axis=1)])


def _blocks(w: Layout, lanes: int) -> Layout:
    """(..., outputs) as (output block, ..., channel in block), two vectors a block if they fit."""
    outputs = w.shape[-1]
    block = lanes if outputs % (2 * lanes) else 2 * lanes
    return w.reshape(-1, outputs // block, block).transpose(1, 0, 2)
