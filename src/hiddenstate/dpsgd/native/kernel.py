"""The compiled network: given weights and data in the layouts it wants, and called."""

import copy
import ctypes
import math
import threading
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hiddenstate.dpsgd.native import compiling
from hiddenstate.dpsgd.native.network import Network
from hiddenstate.dpsgd.native.source import c_source

_TOGETHER = 256
"""Records whose gradients are summed in float32."""


class Kernel:
    """Sum of clipped gradients of one model over records of one data set.

    x: shape (records, *record shape), float32. y: shape (records,), int64. Safe to call from
    several threads at once; the result does not depend on how many do.
    """

    def __init__(self, network: Network, x: NDArray[np.float32], y: NDArray[np.int64]):
        if compiling.compiler() is None:
            raise compiling.CompilationError("no C compiler was found")
        self._function, self._workspace_bytes, lanes = _compiled(c_source(network))
        self._network = network
        self._take(x, y)
        # Where each entry of the packed weights comes from (0: padding), and where each
        # parameter's gradient lies in the packed sum.
        weights: list[NDArray[np.int64]] = []
        sums: list[NDArray[np.int64]] = []
        for layer in network.layers:
            forward, bias, backward, gradient = layer.layouts(lanes)
            weights += [forward, bias, backward] if layer.transposed else [forward, bias]
            sums += [gradient, bias]
        self._gather = np.concatenate([w.ravel() for w in weights])
        packed = np.concatenate([s.ravel() for s in sums])
        self._sum_size = packed.size
        places = np.flatnonzero(packed)
        self._scatter = np.empty(len(places), np.int64)
        self._scatter[packed[places] - 1] = places

    def _take(self, x: NDArray[np.float32], y: NDArray[np.int64]) -> None:
        classes = self._network.classes
        self._x = self._network.prepared(np.asarray(x, np.float32))
        self._y = np.ascontiguousarray(y, np.int64)
        if self._y.min() < 0 or self._y.max() >= classes:
            raise ValueError(
                f"labels from {self._y.min()} to {self._y.max()} for {classes} classes"
            )
        # The threads' pointers are of the records before.
        self._local = threading.local()

    def on(self, x: NDArray[np.float32], y: NDArray[np.int64]) -> "Kernel":
        """The same model's kernel on other records."""
        other = copy.copy(self)
        other._take(x, y)
        return other

    def copy(self) -> "Kernel":
        """The same kernel, with memory of its own."""
        other = copy.copy(self)
        other._local = threading.local()
        return other

    def __call__(
        self, theta: NDArray[np.float32], indices: NDArray[np.int64], clipping_norm: float
    ) -> tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.float32]]:
        """(sum of clipped gradients (p,), gradient norms (b,), losses (b,)) of these records."""
        (norms, losses, _), total = self._run(theta, indices, clipping_norm, summed=True)
        return total, norms, losses

    def guesses(self, theta: NDArray[np.float32]) -> NDArray[np.int64]:
        """The class that the model at theta (p,) takes each of all records for."""
        indices = np.arange(len(self._y))
        return self._run(theta, indices, math.inf, summed=False)[0][2].astype(np.int64)

    def _run(
        self,
        theta: NDArray[np.float32],
        indices: NDArray[np.int64],
        clipping_norm: float,
        *,
        summed: bool,
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Norms, losses and guesses of the records; their sum (p,), if it is asked for."""
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
        observed = np.empty((3, indices.size), np.float32)
        # Addresses by hand, as numpy takes microseconds for each.
        rows = [observed.ctypes.data + i * observed.strides[0] for i in range(3)]
        chosen = indices.ctypes.data
        # In parts, for the rounding of one long sum in float32 adds up.
        whole: NDArray[Any] | None = None
        for start in range(0, indices.size, _TOGETHER):
            local.sum.fill(0)
            outside = self._function(
                weights, x, y, len(self._y), chosen + 8 * start,
                min(_TOGETHER, indices.size - start), clipping_norm, total if summed else None,
                *(row + 4 * start for row in rows), workspace,
            )  # fmt: skip
            if outside:
                raise ValueError(f"indices must be of the {len(self._y)} records")
            if summed:
                part = local.sum[self._scatter]
                whole = part if whole is None else np.add(whole, part, dtype=np.float64)
        if whole is None:
            whole = np.zeros(len(self._scatter))
        return observed, whole.astype(np.float32, copy=False)


def _aligned(size: int) -> NDArray[np.float32]:
    """Zeros, on a cache line's boundary."""
    room = np.zeros(size + 16, np.float32)
    start = -room.ctypes.data % 64 // 4
    return room[start : start + size]


@cache
def _compiled(driver: str) -> tuple[Any, int, int]:
    """(function, bytes of its workspace, lanes of a vector) of a driver."""
    library = compiling.load(driver)
    library.scratch_bytes.restype = ctypes.c_size_t
    function = library.clipped_sum
    function.restype = ctypes.c_int
    pointer, count = ctypes.c_void_p, ctypes.c_int64
    function.argtypes = (
        pointer, pointer, pointer, count, pointer, count, ctypes.c_float, *[pointer] * 5,
    )  # fmt: skip
    return function, library.scratch_bytes(), library.lanes()
