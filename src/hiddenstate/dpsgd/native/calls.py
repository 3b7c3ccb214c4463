"""Parts of a network's C source: tensors, their places, and calls."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

PAD = 16
"""Channels are padded to multiples of this: whole vectors of the widest kind."""
Layout = NDArray[np.int64]
"""Parameter numbers, counted from 1, with 0 for padding."""
_SHARED = {
    "conv_forward": ("void", "rrrw"),
    "conv_pool_forward": ("void", "rrrwkk"),
    "conv_weights": ("float", "rrw"),
    "pooled_weights": ("float", "rriiw"),
    "winograd_forward": ("void", "rrrwkw"),
    "winograd_back": ("void", "rirww"),
    "winograd_gradient": ("float", "rrww"),
    "norm_forward": ("void", "rrrwww"),
    "norm_gradients": ("void", "rrrrww"),
    "norm_back": ("void", "rrrrrrrww"),
}
"""Functions that take long to compile: equal calls share one. What each returns, and which of its
pointers it reads (r; i: integers) and which it writes (w; k)."""
_POINTERS = {"r": "const float", "i": "const int32_t", "w": "float", "k": "int32_t"}
ROOM = "all->room"
"""C expression of the place that all layers share."""
SCALE = "scale"
"""C expression of the factor by which a record's gradient is clipped."""
GROUP = 4
"""Records that a layer takes at once if reading its weights takes longer than their use."""
HEAVY = 2**14
"""Weights from which that is so: a sixteenth of a MiB, more than the first cache holds."""


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
        return self.height * self.width * self.channels

    @property
    def entries(self) -> int:
        """Number of entries that are no padding."""
        return self.height * self.width * self.real


@dataclass(frozen=True)
class Buffer:
    """Place of a tensor: an image with ``border`` zeros around it, or the record itself (0)."""

    index: int
    tensor: Tensor
    border: int

    @property
    def wide(self) -> int:
        """Pixels of a row, with its border."""
        return self.tensor.width + 2 * self.border

    @property
    def row(self) -> int:
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
    how many floats they are apart as its second. products: multiplications and additions of a
    record, in pairs, without those of padding.
    """

    name: str
    sizes: Sequence[object]
    pointers: Sequence[str]
    then: str = ""
    together: bool = False
    products: int = 0

    def of(self, records: int) -> "Call":
        """The same for so many records."""
        if not self.together:
            return self
        # ``APART`` is the driver's: floats from one record's memory to the next one's.
        return replace(self, sizes=(records, "APART", *self.sizes), together=False)

    def __str__(self) -> str:
        arguments = ", ".join(map(str, (*self.sizes, *self.pointers)))
        return f"{self.then}{self.name}({arguments});"

    def shared(self, known: dict["Call", str]) -> "Call":
        """The call of a function for these sizes alone, which ``known`` gets, where it pays."""
        if self.name not in _SHARED:
            return self
        # A missing pointer stays the constant 0, for which the C code is compiled without its use.
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
    """Operands of a layer's calls: tensors, and offsets among weights and gradients."""

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
