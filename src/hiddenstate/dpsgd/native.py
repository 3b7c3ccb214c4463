"""Sum of clipped per-sample gradients in native code, for plain feed-forward networks on a CPU.

``clipped_sum.h`` holds the algorithm. Here the driver for one architecture is written (a call with
constant sizes for every layer), compiled with the system's C compiler on first use, kept in the
user's cache directory, and given its weights and data in the layouts it wants. Where there is no
compiler, or the model is of another kind, the torch path of ``clipping`` does the same work.
"""

import copy
import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
import threading
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from hiddenstate.dpsgd.chain import run_order
from hiddenstate.dpsgd.rules import ordinary
from hiddenstate.files import atomic

_PAD = 16  # channels are padded to whole vectors of the widest kind
_MOST_PLACES = 2**14  # of a pooled output, which lies on the stack for a vector of channels
_ACTIVATIONS: dict[type[nn.Module], str] = {nn.Tanh: "TANH", nn.ReLU: "RELU"}
_KNOWN = {nn.Conv2d, nn.Linear, nn.MaxPool2d, nn.Flatten, *_ACTIVATIONS}
_FLAGS = ("-O3", "-march=native", "-fno-math-errno", "-shared", "-fPIC", "-lm")


@dataclass(frozen=True)
class _Convolution:
    """Input height, width, channels (of which ``real_inputs`` are no padding); kernel; output."""

    height: int
    width: int
    inputs: int
    real_inputs: int
    kernel: tuple[int, int]
    padding: int
    outputs: int
    real_outputs: int
    bias: bool
    start: int  # of its parameters, weights first, among the model's
    activation: str = "NONE"
    pooled: bool = False

    @property
    def shape(self) -> tuple[int, int]:
        """Height and width of the output."""
        sides = (self.height + 2 * self.padding, self.width + 2 * self.padding)
        high, wide = (side - k + 1 for side, k in zip(sides, self.kernel, strict=True))
        return (high // 2, wide // 2) if self.pooled else (high, wide)

    @property
    def sparse(self) -> bool:
        """Whether the weight gradient skips the losers of the pooling."""
        return self.pooled and self.inputs % _PAD == 0


@dataclass(frozen=True)
class _Linear:
    """Input as (height, width, channels, channels that are no padding), and output."""

    image: tuple[int, int, int, int]
    outputs: int
    real_outputs: int
    bias: bool
    start: int  # of its parameters, weights first, among the model's
    activation: str = "NONE"

    @property
    def inputs(self) -> int:
        high, wide, channels, _ = self.image
        return high * wide * channels


_Layer = _Convolution | _Linear


class CompilationError(RuntimeError):
    """There is no C compiler, or it failed."""


def layers(model: nn.Module, record_shape: tuple[int, ...]) -> list[_Layer] | None:
    """The model as a chain of layers that the native code knows, or None."""
    modules = run_order(model)
    starts = _starts(model, modules) if modules else None
    if modules is None or starts is None:
        return None
    found: list[_Layer] = []
    image = None  # height, width, channels, real channels, while the data are images
    vector = None
    if len(record_shape) == 3:
        channels, high, wide = record_shape
        image = (high, wide, channels, channels)
    elif len(record_shape) == 1:
        vector = (1, 1, record_shape[0], record_shape[0])
    for module in modules:
        last = found[-1] if found else None
        kind = type(module)
        if isinstance(module, nn.Conv2d) and image and _plain(module, image[3]):
            high, wide, channels, real = image
            kernel, padding = tuple(module.kernel_size), int(module.padding[0])
            outputs = module.out_channels
            found.append(
                _Convolution(
                    high, wide, channels, real, (kernel[0], kernel[1]), padding,
                    _padded(outputs), outputs, module.bias is not None, starts[module],
                )
            )  # fmt: skip
        elif kind in _ACTIVATIONS and last and last.activation == "NONE":
            found[-1] = replace(last, activation=_ACTIVATIONS[kind])
        elif (
            isinstance(module, nn.MaxPool2d)
            and image
            and _halving(module)
            and isinstance(last, _Convolution)
            and not last.pooled
        ):
            found[-1] = replace(last, pooled=True)
        elif isinstance(module, nn.Flatten) and image and (module.start_dim, module.end_dim) == (
            1, -1,
        ):  # fmt: skip
            vector, image = image, None
        elif kind is nn.Flatten and vector:
            pass
        elif isinstance(module, nn.Linear) and vector and _real(vector) == module.in_features:
            outputs = module.out_features
            found.append(
                _Linear(vector, _padded(outputs), outputs, module.bias is not None, starts[module])
            )
            vector = (1, 1, _padded(outputs), outputs)
        else:
            return None
        if image and found:
            layer = found[-1]
            assert isinstance(layer, _Convolution)
            image = (*layer.shape, layer.outputs, layer.real_outputs)
            if min(layer.shape) < 1:
                return None
    pooled = [layer.shape for layer in found if isinstance(layer, _Convolution) and layer.pooled]
    if any(high * wide > _MOST_PLACES for high, wide in pooled):
        return None
    ends = found and isinstance(found[-1], _Linear) and found[-1].activation == "NONE"
    return found if ends else None


def _starts(model: nn.Module, modules: list[nn.Module]) -> dict[nn.Module, int] | None:
    """Where each layer's parameters begin among the model's; None unless each has its own.

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


def _real(image: tuple[int, int, int, int]) -> int:
    """Number of entries that are no padding."""
    high, wide, _, channels = image
    return high * wide * channels


def _plain(conv: nn.Conv2d, channels: int) -> bool:
    return (
        conv.in_channels == channels
        and conv.stride == (1, 1)
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


def _padded(channels: int) -> int:
    return -(-channels // _PAD) * _PAD


class Kernel:
    """Sum of clipped gradients of one model over records of one data set.

    x: shape (records, *record shape), float32. y: shape (records,), int64. Safe to call from
    several threads at once; the result does not depend on how many do.
    """

    def __init__(self, chain: list[_Layer], x: NDArray[np.float32], y: NDArray[np.int64]):
        if compiler() is None:
            raise CompilationError("no C compiler was found")
        self._function, self._workspace_bytes, lanes = _compiled(_driver(chain))
        self._chain = chain
        self._take(x, y)
        # Where each entry of the packed weights comes from (0: padding), and where each
        # parameter's gradient lies in the packed sum.
        weights: list[NDArray[np.int64]] = []
        sums: list[NDArray[np.int64]] = []
        for index, layer in enumerate(chain):
            forward, backward, gradient, bias = _layouts(layer, lanes)
            weights += [forward, bias, backward] if index else [forward, bias]
            sums += [gradient, bias]
        self._gather = np.concatenate([w.ravel() for w in weights])
        packed = np.concatenate([s.ravel() for s in sums])
        self._sum_size = packed.size
        places = np.flatnonzero(packed)
        self._scatter = np.empty(len(places), np.int64)
        self._scatter[packed[places] - 1] = places

    def _take(self, x: NDArray[np.float32], y: NDArray[np.int64]) -> None:
        classes = self._chain[-1].real_outputs
        self._x = _prepared(self._chain[0], np.asarray(x, np.float32))
        self._y = np.ascontiguousarray(y, np.int64)
        if self._y.min() < 0 or self._y.max() >= classes:
            raise ValueError(
                f"labels from {self._y.min()} to {self._y.max()} for {classes} classes"
            )
        self._local = threading.local()

    def on(self, x: NDArray[np.float32], y: NDArray[np.int64]) -> "Kernel":
        """The same model's kernel on other records."""
        other = copy.copy(self)
        other._take(x, y)
        return other

    def __call__(
        self, theta: NDArray[np.float32], indices: NDArray[np.int64], clipping_norm: float
    ) -> tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.float32]]:
        """(sum of clipped gradients (p,), gradient norms (b,), losses (b,)) of these records."""
        indices = np.ascontiguousarray(indices, np.int64)
        local = self._local
        if not hasattr(local, "pointers"):
            # Borders of images are never written, so they stay zero from call to call.
            local.workspace = _aligned(self._workspace_bytes // 4)
            local.weights, local.sum = _aligned(self._gather.size), _aligned(self._sum_size)
            local.theta = np.zeros(len(theta) + 1, np.float32)  # the first stands for padding
            arrays = (local.weights, self._x, self._y, local.sum, local.workspace)
            local.pointers = [array.ctypes.data for array in arrays]
        weights, x, y, total, workspace = local.pointers
        local.theta[1:] = theta
        # "clip" is the mode that does not buffer; the entries are in range by construction.
        np.take(local.theta, self._gather, out=local.weights, mode="clip")
        local.sum.fill(0)
        norms, losses = observed = np.empty((2, indices.size), np.float32)
        first = observed.ctypes.data
        outside = self._function(
            weights, x, y, len(self._y), indices.ctypes.data, indices.size, clipping_norm, total,
            first, first + 4 * indices.size, workspace,
        )  # fmt: skip
        if outside:
            raise ValueError(f"indices must be of the {len(self._y)} records")
        return local.sum[self._scatter], norms, losses


def _aligned(size: int) -> NDArray[np.float32]:
    """Zeros, on a cache line's boundary."""
    room = np.zeros(size + 16, np.float32)
    start = -room.ctypes.data % 64 // 4
    return room[start : start + size]


def _prepared(first: _Layer, x: NDArray[np.float32]) -> NDArray[np.float32]:
    """Records as the first layer reads them: padded images with channels last, or vectors."""
    if isinstance(first, _Linear):
        return np.ascontiguousarray(x.reshape(len(x), -1))
    p = first.padding
    return np.ascontiguousarray(np.pad(x.transpose(0, 2, 3, 1), ((0, 0), (p, p), (p, p), (0, 0))))


def _layouts(layer: _Layer, lanes: int) -> tuple[NDArray[np.int64], ...]:
    """Parameter numbers, counted from 1 with 0 for padding, in the layouts of the driver.

    Returns (forward, backward, gradient, bias).
    """
    start = layer.start + 1
    shape: tuple[int, ...]
    backward: NDArray[np.int64]
    if isinstance(layer, _Convolution):
        shape = (layer.real_outputs, layer.real_inputs, *layer.kernel)
        w = np.zeros((layer.outputs, layer.inputs, *layer.kernel), np.int64)
        w[: shape[0], : shape[1]] = np.arange(start, start + np.prod(shape)).reshape(shape)
        forward = _blocks(w.transpose(2, 3, 1, 0), lanes)
        rows = w.transpose(0, 2, 3, 1)
        if layer.pooled:
            backward = rows
        elif layer.inputs % lanes == 0:
            backward = _blocks(w[:, :, ::-1, ::-1].transpose(2, 3, 0, 1), lanes)
        else:
            backward = np.zeros(0, np.int64)  # a first layer, which passes no gradient on
        gradient = rows if layer.sparse else forward
    else:
        high, wide, channels, real = layer.image
        shape = (layer.real_outputs, real, high, wide)
        w = np.zeros((layer.outputs, channels, high, wide), np.int64)
        w[: shape[0], :real] = np.arange(start, start + np.prod(shape)).reshape(shape)
        # A first layer reads the records as they are; later ones read channels last.
        backward = w.transpose(0, 2, 3, 1).reshape(layer.outputs, -1)
        forward = gradient = backward.T
    start += int(np.prod(shape))
    bias = np.zeros(layer.outputs, np.int64)
    if layer.bias:
        bias[: layer.real_outputs] = np.arange(start, start + layer.real_outputs)
    return forward, backward, gradient, bias


def _blocks(w: NDArray, lanes: int) -> NDArray:
    """(..., outputs) as (output block, ..., channel in block), two vectors a block if they fit."""
    outputs = w.shape[-1]
    block = lanes if outputs % (2 * lanes) else 2 * lanes
    return w.reshape(-1, outputs // block, block).transpose(1, 0, 2)


def _driver(chain: list[_Layer]) -> str:
    """C source of the driver: every layer's calls, with its sizes as constants."""
    fields: list[str] = []
    forward: list[str] = []
    backward: list[str] = []
    collect: list[str] = []
    weight = total = 0
    for i, layer in enumerate(chain):
        after = chain[i + 1] if i + 1 < len(chain) else None
        p = after.padding if isinstance(after, _Convolution) else 0
        act, bias_norm = layer.activation, "squares += " if layer.bias else ""
        x = "x0" if i == 0 else f"s->x{i}"
        w, b = weight, weight + _weights(layer)
        back = b + layer.outputs
        weight = back + (_weights(layer) if i else 0)
        dw, db = total, total + _weights(layer)
        total = db + layer.outputs
        if isinstance(layer, _Convolution):
            high, wide = layer.shape
            kh, kw = layer.kernel
            ci, co = layer.inputs, layer.outputs
            padded_h, padded_w = layer.height + 2 * layer.padding, layer.width + 2 * layer.padding
            out_w = wide + 2 * p
            out = f"s->x{i + 1} + {(p * out_w + p) * co}"
            dout = f"s->d{i + 1} + {(p * out_w + p) * co}"
            row = out_w * co
            fields.append(
                f"float x{i + 1}[{(high + 2 * p) * row}], d{i + 1}[{(high + 2 * p) * row}]"
            )
            kernel = f"{kh}, {kw}, {high}, {wide}, {co}"
            if layer.pooled:
                fields.append(
                    f"int32_t winner{i}[{high * wide * co}]; float g{i}[{high * wide * co}]"
                )
                forward.append(
                    f"conv_pool_forward({padded_w}, {ci}, {kernel}, {act}, {x}, w + {w}, w + {b}, "
                    f"{out}, {row}, s->winner{i});"
                )
                g, g_row = f"s->g{i}", wide * co
                name = "pooled_weights" if layer.sparse else "few_channels_weights"
                gradient = (
                    f"squares += {name}({padded_w}, {ci}, {kernel}, {x}, {g}, s->winner{i}, "
                    f"s->sum + {dw});"
                )
                pass_on = (
                    f"pooled_input({padded_h}, {padded_w}, {ci}, {kernel}, w + {back}, {g}, "
                    f"s->winner{i}, s->d{i});"
                )
            else:
                qy, qx = kh - 1 - layer.padding, kw - 1 - layer.padding
                g_row = (wide + 2 * qx) * co
                fields.append(f"float g{i}[{(high + 2 * qy) * g_row}]")
                forward.append(
                    f"conv_forward({padded_w}, {ci}, {kernel}, {act}, {x}, w + {w}, w + {b}, "
                    f"{out}, {row});"
                )
                g = f"s->g{i} + {qy * g_row + qx * co}"
                gradient = (
                    f"squares += conv_weights({padded_w}, {ci}, {kernel}, {x}, {g}, {g_row}, "
                    f"s->sum + {dw});"
                )
                inner = (layer.padding * padded_w + layer.padding) * ci
                pass_on = (
                    f"conv_forward({wide + 2 * qx}, {co}, {kh}, {kw}, {layer.height}, "
                    f"{layer.width}, {ci}, NONE, s->g{i}, w + {back}, 0, s->d{i} + {inner}, "
                    f"{padded_w * ci});"
                )
            steps = [
                f"{bias_norm}before_activation({high}, {wide}, {co}, {act}, {out}, {row}, {dout}, "
                f"{row}, {g}, {g_row}, s->sum + {db});",
                gradient,
            ]
            collect.append(f"add_scaled({_weights(layer)}, c, s->sum + {dw}, sum + {dw});")
            collect.append(f"add_scaled({co}, c, s->sum + {db}, sum + {db});")
        else:
            n, m = layer.inputs, layer.outputs
            fields.append(f"float x{i + 1}[{m}], d{i + 1}[{m}], g{i}[{m}]")
            forward.append(f"linear({n}, {m}, {act}, {x}, w + {w}, w + {b}, s->x{i + 1});")
            steps = [
                f"{bias_norm}before_activation(1, 1, {m}, {act}, s->x{i + 1}, 0, s->d{i + 1}, 0, "
                f"s->g{i}, 0, s->sum + {db});",
                f"squares += squared_norm({n}, {x}) * squared_norm({m}, s->g{i});",
            ]
            pass_on = f"linear({m}, {n}, NONE, s->g{i}, w + {back}, 0, s->d{i});"
            collect.append(f"add_outer({n}, {m}, c, {x}, s->g{i}, sum + {dw});")
            collect.append(f"add_scaled({m}, c, s->g{i}, sum + {db});")
        backward = [*steps, *([pass_on] if i else []), *backward]
    last, size = len(chain), chain[-1].real_outputs
    record = _prepared(chain[0], np.zeros((1, *_record(chain[0])), np.float32)).size
    members = "\n".join(f"  {field};" for field in fields)
    lines = "\n    ".join(
        [
            *forward,
            f"losses[i] = cross_entropy({size}, {chain[-1].outputs}, s->x{last}, "
            f"(int)labels[indices[i]], s->d{last});",
            *backward,
            "norms[i] = sqrtf(squares);",
            "const float c = norms[i] > clip ? clip / norms[i] : 1;",
            *collect,
        ]
    )
    return f"""#include "clipped_sum.h"
typedef struct {{
  float sum[{total}];
{members}
}} Scratch;
size_t scratch_bytes(void) {{ return sizeof(Scratch); }}
int lanes(void) {{ return LANES; }}
/* Returns 0, or 1 if an index is not of a record: then nothing was summed. */
int clipped_sum(const float *w, const float *x, const int64_t *labels, int64_t records,
                const int64_t *indices, int64_t n, float clip, float *sum, float *norms,
                float *losses, Scratch *s) {{
  for (int64_t i = 0; i < n; i++)
    if (indices[i] < 0 || indices[i] >= records) return 1;
  for (int64_t i = 0; i < n; i++) {{
    const float *x0 = x + indices[i] * {record};
    float squares = 0;
    {lines}
  }}
  return 0;
}}
"""


def _record(first: _Layer) -> tuple[int, ...]:
    if isinstance(first, _Linear):
        return (first.inputs,)
    return (first.inputs, first.height, first.width)


def _weights(layer: _Layer) -> int:
    area = layer.kernel[0] * layer.kernel[1] if isinstance(layer, _Convolution) else 1
    return area * layer.inputs * layer.outputs


@cache
def compiler() -> str | None:
    """Path of the system's C compiler, or None."""
    return next(filter(None, map(shutil.which, (os.environ.get("CC", "cc"), "gcc", "clang"))), None)


@cache
def _compiled(driver: str) -> tuple[Any, int, int]:
    """(function, bytes of its workspace, lanes of a vector) of a driver."""
    library = load(driver, "clipped_sum.h")
    library.scratch_bytes.restype = ctypes.c_size_t
    function = library.clipped_sum
    function.restype = ctypes.c_int
    pointer, count = ctypes.c_void_p, ctypes.c_int64
    function.argtypes = (
        pointer, pointer, pointer, count, pointer, count, ctypes.c_float, *[pointer] * 4,
    )  # fmt: skip
    return function, library.scratch_bytes(), library.lanes()


def load(driver: str, *headers: str) -> ctypes.CDLL:
    """C source that includes ``headers`` of this package, compiled unless the cache has it.

    Raises CompilationError without a compiler, if it fails, or if the library cannot be used.
    """
    if compiler() is None:
        raise CompilationError("no C compiler was found")
    sources = {
        "driver.c": driver,
        **{name: files("hiddenstate.dpsgd").joinpath(name).read_text() for name in headers},
    }
    # A cache shared by unlike machines must not hand one machine's instructions to another.
    parts = (*sources.values(), compiler(), *_FLAGS, platform.machine(), _processor())
    name = hashlib.sha256("\0".join(map(str, parts)).encode()).hexdigest()[:32] + ".so"
    path = _cache_directory() / name
    try:
        if not _whole(path):
            _compile(path, sources)
        return ctypes.CDLL(str(path))
    except OSError as error:
        # Such as a cache on a file system without permission to execute.
        raise CompilationError(f"{path} cannot be used ({error})") from error


def _compile(path: Path, sources: dict[str, str]) -> None:
    with tempfile.TemporaryDirectory() as folder, atomic(path) as temporary:
        for source, text in sources.items():
            Path(folder, source).write_text(text)
        done = subprocess.run(
            [str(compiler()), "driver.c", "-o", str(temporary), *_FLAGS],
            cwd=folder,
            capture_output=True,
            text=True,
        )
        if done.returncode:
            raise CompilationError(f"{compiler()} failed: {done.stderr.strip()[:500]}")
        content = temporary.read_bytes()
        temporary.write_bytes(content + hashlib.sha256(content).digest())


def _whole(path: Path) -> bool:
    """Whether the library ends with its own digest: to load a part of one may kill the process."""
    content = path.read_bytes() if path.exists() else b""
    return len(content) > 32 and hashlib.sha256(content[:-32]).digest() == content[-32:]


def _cache_directory() -> Path:
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hiddenstate"
    try:
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=home):
            return home
    except OSError:
        return Path(tempfile.mkdtemp(prefix="hiddenstate-"))


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line for line in lines if line.startswith(("flags", "Features"))), "")
