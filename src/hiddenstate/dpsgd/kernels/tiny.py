"""DP-SGD on small fully connected ReLU networks: thousands of models, milliseconds each.

A network of some dozens of parameters spends its time in function calls when it is trained layer
by layer. Here a whole training is one call of native code (``tiny.h``, compiled on first use), or
the same arithmetic in numpy where there is no C compiler: equal to rounding. A model's last
iterate depends on nothing but the arguments of its own call, so it is the same bit for bit however
models are grouped or spread over threads.

What is added to the clipped sums, noise and canary gradients alike, is an argument for all steps
at once, and only the last iterate comes back: nothing can be made to depend on an iterate between.
"""

import ctypes
import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from numbers import Integral
from typing import Any, Literal, Self

import numpy as np
import torch
from numpy.typing import NDArray

from hiddenstate.dpsgd.kernels.base import Kernel, check_clipping_norm
from hiddenstate.dpsgd.known import Floats, Movement, numbers
from hiddenstate.dpsgd.native import compiling
from hiddenstate.errors import InputError

Code = Literal["auto", "native", "numpy"]

MOST_PARAMETERS = 2**14
"""Most parameters of a native network, whose sums lie on a thread's stack."""


@dataclass(frozen=True)
class Dense:
    """A fully connected ReLU network with biases, such as 8-6-2 with 68 parameters.

    widths: numbers of features, of each hidden layer's units, and of classes. Its parameters (p,)
    are in the order in which torch flattens the same network.
    """

    widths: tuple[int, ...]

    def __post_init__(self) -> None:
        whole = all(isinstance(width, Integral) for width in self.widths)
        if not whole or len(self.widths) < 2 or min(self.widths) < 1 or self.widths[-1] < 2:
            raise InputError(
                f"widths: got {self.widths}; expected features, hidden units, and 2 or more classes"
            )

    @property
    def layers(self) -> list[tuple[int, int]]:
        """Inputs and outputs of each layer."""
        return list(zip(self.widths[:-1], self.widths[1:], strict=True))

    @property
    def parameters(self) -> int:
        return sum((inputs + 1) * outputs for inputs, outputs in self.layers)

    def initial(self, rng: np.random.Generator) -> Floats:
        """torch's default initial parameters (p,): uniform within 1 / sqrt(inputs)."""
        bounds = [
            np.full((inputs + 1) * outputs, 1 / math.sqrt(inputs))
            for inputs, outputs in self.layers
        ]
        scale = np.concatenate(bounds)
        return (rng.uniform(-1, 1, len(scale)) * scale).astype(np.float32)

    def split(self, theta: NDArray[Any]) -> list[tuple[NDArray[Any], NDArray[Any]]]:
        """Weights (outputs, inputs) and biases (outputs,) of each layer; views."""
        parts, start = [], 0
        for inputs, outputs in self.layers:
            middle, end = start + inputs * outputs, start + (inputs + 1) * outputs
            parts.append((theta[start:middle].reshape(outputs, inputs), theta[middle:end]))
            start = end
        return parts

    def logits(self, theta: NDArray[Any], x: NDArray[Any]) -> NDArray[Any]:
        """Outputs (records, classes) for records (records, features)."""
        return self._activations(theta, x)[-1]

    def losses(
        self, theta: NDArray[Any], x: NDArray[Any], y: NDArray[np.int64]
    ) -> NDArray[np.float64]:
        """Cross-entropy of each record; shape (records,)."""
        logits = self.logits(theta.astype(float), np.asarray(x, float))
        logits = logits - logits.max(axis=1, keepdims=True)
        return np.log(np.exp(logits).sum(axis=1)) - logits[np.arange(len(y)), y]

    # An overflow shows as NaN in the sum, of which numpy need not warn.
    @np.errstate(over="ignore", invalid="ignore")
    def clipped_sum(
        self,
        theta: NDArray[Any],
        x: NDArray[Any],
        y: NDArray[np.int64],
        clipping_norm: float,
    ) -> NDArray[Any]:
        """Sum (p,) of the records' clipped gradients, in the precision of theta.

        No numbers where a norm overflows: clipped to 0, its record would vanish.
        """
        gradients, norms = self._per_sample(theta, x, y)
        # A norm of 0 divides nothing, and 0 times one that overflows makes the factor NaN.
        factors = np.minimum(1, clipping_norm / np.maximum(norms, 1e-30)) + 0 * norms
        factors = factors.astype(theta.dtype)
        parts = []
        for g, a in gradients[::-1]:
            clipped = g * factors[:, None]
            parts += [(clipped.T @ a).ravel(), clipped.sum(axis=0)]
        return np.concatenate(parts)

    def norms(self, theta: NDArray[Any], x: NDArray[Any], y: NDArray[np.int64]) -> NDArray[Any]:
        return self._per_sample(theta, x, y)[1]

    def _per_sample(
        self, theta: NDArray[Any], x: NDArray[Any], y: NDArray[np.int64]
    ) -> tuple[list[tuple[NDArray[Any], NDArray[Any]]], NDArray[Any]]:
        """Gradients by each layer's outputs with its inputs, the last layer first, and norms."""
        inputs = self._activations(theta, x)
        logits = inputs.pop()
        g = np.exp(logits - logits.max(axis=1, keepdims=True))
        g /= g.sum(axis=1, keepdims=True)
        g[np.arange(len(y)), y] -= 1
        squares = np.zeros(len(y), theta.dtype)
        gradients = []
        for (w, _), a in zip(self.split(theta)[::-1], inputs[::-1], strict=True):
            gradients.append((g, a))
            # A gradient is the outer product of g and (a, 1): weights and bias in one.
            squares += (g * g).sum(axis=1) * ((a * a).sum(axis=1) + 1)
            if a is not inputs[0]:
                g = (g @ w) * (a > 0)
        return gradients, np.sqrt(squares)

    def _activations(self, theta: NDArray[Any], x: NDArray[Any]) -> list[NDArray[Any]]:
        """Inputs of each layer, and the logits."""
        layers = self.split(theta)
        found = [np.asarray(x, theta.dtype)]
        for i, (w, b) in enumerate(layers):
            out = found[-1] @ w.T + b
            found.append(out if i == len(layers) - 1 else np.maximum(out, 0))
        return found


class Trainer(Kernel[NDArray[Any]]):
    """DP-SGD of one network on one data set, a kernel that trains it whole.

    Safe to call from several threads at once.

    x: shape (records, features). y: shape (records,). ``learning_rate`` multiplies the noisy sum of
    gradients clipped to ``clipping_norm``. ``kernel`` is "auto" (native code if there is a C
    compiler, else numpy, which says so once), "native" or "numpy".
    """

    def __init__(
        self,
        network: Dense,
        x: NDArray[Any],
        y: NDArray[np.int64],
        *,
        learning_rate: float,
        clipping_norm: float,
        kernel: Code = "auto",
    ):
        self.network = network
        # Copies: whoever writes into what was given changes no training. What a type does not hold
        # is refused below.
        with np.errstate(over="ignore", invalid="ignore"):
            self._x = np.array(numbers("x", x), np.float32, order="C")
            self._y = np.array(numbers("y", y), np.int64, order="C")
        features, classes = network.widths[0], network.widths[-1]
        if self._x.ndim != 2 or self._x.shape[1] != features or not len(self._x):
            raise InputError(
                f"x: got shape {self._x.shape}; expected (records, {features}), the first width"
            )
        if self._y.shape != (len(self._x),):
            raise InputError(f"y: got shape {self._y.shape}; expected ({len(self._x)},)")
        for i in np.flatnonzero(~np.isfinite(self._x).all(axis=1)):
            raise InputError(f"x: record {i} has entries that are no finite numbers in float32")
        for i in np.flatnonzero((self._y != y) | (self._y < 0) | (self._y >= classes)):
            raise InputError(
                f"y: record {i} has the label {np.asarray(y)[i]}; expected an integer from 0 to "
                f"{classes - 1}, the last width"
            )
        for name, value in (("learning_rate", learning_rate), ("clipping_norm", clipping_norm)):
            if not 0 < value < math.inf:
                raise InputError(f"{name}: got {value}; expected a positive number")
        check_clipping_norm(clipping_norm, torch.float32)
        if kernel not in ("auto", "native", "numpy"):
            raise InputError(f"kernel: got {kernel!r}; expected 'auto', 'native' or 'numpy'")
        self._rate, self._clip = float(learning_rate), float(clipping_norm)
        self._native = None if kernel == "numpy" else _native(network, required=kernel == "native")
        self.kind = "numpy" if self._native is None else "native"

    def copy(self) -> Self:
        return self

    def sum(
        self, theta: NDArray[Any], indices: NDArray[np.int64], clipping_norm: float
    ) -> NDArray[Any]:
        at = self._indices([indices])
        return self.network.clipped_sum(theta, self._x[at], self._y[at], clipping_norm)

    def norms(self, theta: NDArray[Any], indices: NDArray[np.int64]) -> NDArray[Any]:
        at = self._indices([indices])
        return self.network.norms(theta, self._x[at], self._y[at])

    def _indices(self, batches: Sequence[NDArray[np.int64]]) -> NDArray[np.int64]:
        """Indices of the batches' records in a row; InputError for what are none, as of a mask."""
        rows = [np.asarray(batch) for batch in batches]
        for row in rows:
            if row.ndim != 1 or (row.size and row.dtype.kind not in "iu"):
                raise InputError(
                    f"batches: got an array of {row.dtype}, shape {row.shape}; expected the "
                    "records' indices, integers"
                )
        found = np.concatenate(rows).astype(np.int64, copy=False) if rows else _NONE
        if found.size and (found.min() < 0 or found.max() >= len(self._x)):
            raise InputError(
                f"batches: got indices from {found.min()} to {found.max()}; expected those of "
                f"{len(self._x)} records"
            )
        return found

    def last_iterate(
        self,
        initial: NDArray[Any],
        batches: Sequence[NDArray[np.int64]],
        added: NDArray[Any] | None,
    ) -> Floats:
        """The parameters (p,) after one step for each batch of indices, from ``initial`` (p,).

        added: shape (steps, p), what each step adds to its sum of clipped gradients: noise, and a
        canary's gradients; None for nothing.
        """
        return self._train(initial, batches, added)[0]

    def simulated(self, initial: NDArray[Any], batches: Sequence[NDArray[np.int64]]) -> Movement:
        """Movement of the parameters without noise and canary, which anyone can compute."""
        last, moved = self._train(initial, batches, None)
        net = np.abs(last - np.asarray(initial, np.float32))
        return Movement(moved[0], moved[1], net, last)

    def _train(
        self,
        initial: NDArray[Any],
        batches: Sequence[NDArray[np.int64]],
        added: NDArray[Any] | None,
    ) -> tuple[Floats, Floats]:
        """Last iterate (p,), and sums of absolute and squared steps (2, p)."""
        p, steps = self.network.parameters, len(batches)
        # A copy, which the native code changes in place.
        theta = np.array(numbers("initial", initial), np.float32, order="C")
        if theta.shape != (p,):
            raise InputError(f"initial: got shape {theta.shape}; expected ({p},)")
        if added is not None:
            added = np.ascontiguousarray(numbers("added", added), np.float32)
            if added.shape != (steps, p):
                raise InputError(f"added: got shape {added.shape}; expected {(steps, p)}")
        indices = self._indices(batches)
        moved = np.zeros((2, p), np.float32)
        if self._native is not None:
            ends = np.cumsum([len(batch) for batch in batches], dtype=np.int64)
            # Held by name, for pointers alone would not keep their memory.
            arrays = (self._x, self._y, indices, ends, added, theta, moved)
            pointers = [None if array is None else array.ctypes.data for array in arrays]
            self._native(*pointers, steps, self._clip, self._rate)
            return theta, moved
        rate = np.float32(self._rate)
        for t, batch in enumerate(batches):
            update = self.sum(theta, batch, self._clip)
            step = rate * (update if added is None else update + added[t])
            theta = theta - step
            moved += np.stack((np.abs(step), step * step))
        return theta, moved


_NONE = np.zeros(0, np.int64)


def _native(network: Dense, *, required: bool) -> Any:
    """The network's training in native code, or None."""
    reason = f"it has {network.parameters} parameters, more than {MOST_PARAMETERS}"
    if network.parameters <= MOST_PARAMETERS:
        try:
            return _compiled(network)
        except compiling.CompilationError as error:
            reason = str(error)
    if required:
        raise InputError(f"kernel: got 'native', but {reason}; expected 'auto' or 'numpy'")
    warnings.warn(f"no native code for {network}: {reason}; numpy trains it", stacklevel=3)
    return None


@cache
def _compiled(network: Dense) -> Any:
    function = compiling.load(_driver(network)).train
    function.restype = None
    function.argtypes = [ctypes.c_void_p] * 7 + [ctypes.c_int64, ctypes.c_float, ctypes.c_float]
    return function


def _driver(network: Dense) -> str:
    """C source of a training: every layer's calls, with its sizes as constants."""
    forward: list[str] = []
    backward: list[str] = []
    collect: list[str] = []
    start, last = 0, len(network.layers)
    for i, (n, m) in enumerate(network.layers):
        act = "RELU" if i < last - 1 else "NONE"
        forward.append(f"vec x{i + 1}[{m}]; dense({n}, {m}, {act}, w + {start}, x{i}, x{i + 1});")
        # The 1 is what the bias reads.
        steps = [f"squares += squares_of({m}, g{i}) * (squares_of({n}, x{i}) + 1.0f);"]
        # The first layer passes no gradient on to the records.
        if i:
            steps.append(
                f"vec g{i - 1}[{n}]; dense_back({n}, {m}, w + {start}, g{i}, x{i}, g{i - 1});"
            )
        backward = steps + backward
        collect.append(f"for (int o = 0; o < {m}; o++) g{i}[o] *= c;")
        collect.append(f"add_products({n}, {m}, x{i}, g{i}, sum + {start});")
        start += (n + 1) * m
    features, classes = network.widths[0], network.widths[-1]
    lines = "\n      ".join(
        [
            *forward,
            f"vec g{last - 1}[{classes}], squares = splat(0);",
            f"logit_gradient({classes}, x{last}, label, g{last - 1});",
            *backward,
            "const vec c = clipping_factor(squares, clip, present);",
            *collect,
        ]
    )
    return f"""#include "tiny.h"
/* Updates w in place; moved: sums of the steps' sizes, then of their squares. Step t has the
 * records indices[ends[t - 1]] to indices[ends[t] - 1]. */
void train(const float *x, const int64_t *labels, const int64_t *indices, const int64_t *ends,
           const float *added, float *w, float *moved, int64_t steps, float clip, float rate) {{
  int64_t at = 0;
  for (int64_t t = 0; t < steps; t++) {{
    vec sum[{start}];
    for (int i = 0; i < {start}; i++) sum[i] = splat(0);
    for (; at < ends[t]; at += MIN(LANES, ends[t] - at)) {{
      const int n = (int)MIN(LANES, ends[t] - at);
      float transposed[{features} * LANES];
      int32_t name[LANES];
      for (int l = 0; l < LANES; l++) {{
        const int64_t record = indices[at + (l < n ? l : 0)];
        if (at + l + AHEAD < ends[steps - 1])
          __builtin_prefetch(x + indices[at + l + AHEAD] * {features});
        transpose({features}, x + record * {features}, transposed + l);
        name[l] = (int32_t)labels[record];
      }}
      vec x0[{features}];
      for (int i = 0; i < {features}; i++) x0[i] = load(transposed + i * LANES);
      const ivec label = *(const ivec *)name, present = lanes_below(n);
      {lines}
    }}
    for (int i = 0; i < {start}; i++) {{
      const float step = rate * (sum_of_lanes(sum[i]) + (added ? added[t * {start} + i] : 0));
      w[i] -= step;
      moved[i] += fabsf(step);
      moved[{start} + i] += step * step;
    }}
  }}
}}
"""
