"""Native code for a network of convolutions, linear layers and what goes between, on a CPU."""

import copy
import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hiddenstate.dpsgd.kernels.base import (
    SHORT,
    OfModel,
    Problem,
    cross_entropy,
    mistrust,
    sums_unlike,
)
from hiddenstate.dpsgd.native.compiling import CompilationError
from hiddenstate.dpsgd.native.kernel import Kernel
from hiddenstate.dpsgd.native.network import as_network
from hiddenstate.dpsgd.probe import Probe


class Native(OfModel):
    """One record of one model at a time."""

    kind = "native"

    def __init__(self, problem: Problem, code: Kernel):
        super().__init__(problem)
        self._code = code  # which has memory of its own for each thread

    def sum(self, theta: Tensor, indices: NDArray[np.int64], clipping_norm: float) -> Tensor:
        return torch.from_numpy(self._code(theta.numpy(), indices, clipping_norm)[0])

    def norms(self, theta: Tensor, indices: NDArray[np.int64]) -> Tensor:
        return torch.from_numpy(self._code(theta.numpy(), indices, math.inf)[1].copy())

    def guesses(self, theta: Tensor, x: Tensor) -> Tensor:
        # The compiled code has the record's shape as constants, where torch's model may not.
        if x.shape[1:] != self.problem.x.shape[1:] or x.dtype != self.problem.dtype:
            return super().guesses(theta, x)
        # Class 0 stands for the labels, on which no guess depends.
        code = self._code.on(x.numpy(), np.zeros(len(x), np.int64))
        return torch.from_numpy(code.guesses(theta.numpy()))


def native(problem: Problem, probe: Probe) -> Native | str:
    """The kernel, or why there is none; an empty reason where it knows no such problem."""
    applies = (
        problem.device.type == "cpu"
        and problem.augmentation is None
        and problem.loss is cross_entropy
        and problem.dtype == problem.x.dtype == torch.float32
    )
    # Of a copy: a forward that is traced may leave what it was traced with in its model.
    shape = tuple(problem.x.shape[1:])
    known = as_network(copy.deepcopy(problem.model), shape) if applies else None
    if known is None:
        return ""
    try:
        code = Kernel(known, problem.x.numpy(), problem.y.numpy())
    except CompilationError as error:
        return str(error)

    def gradients(x: Tensor, y: Tensor) -> Tensor:
        one = code.on(x.float().numpy(), y.numpy())
        theta = probe.theta.float().numpy()
        alone = [one(theta, np.array([i]), math.inf)[:2] for i in range(len(x))]
        rows, norms = (torch.from_numpy(np.stack(each)) for each in zip(*alone, strict=True))
        mistrust(rows, norms[:, 0], rows.norm(dim=1))
        return rows

    whole = code.copy()  # whose workspace goes with it

    def sums(_: Any, theta: Tensor, *rest: Tensor) -> tuple[Tensor, Tensor]:
        total, norms, _ = whole(theta.numpy(), rest[-1].numpy(), SHORT)
        return torch.from_numpy(total), torch.from_numpy(norms)

    kernel = Native(problem, code)
    if probe.differs(gradients, 1e-3) or sums_unlike(kernel, probe, 3e-3, sums):
        return "its gradients of the model are wrong"
    return kernel
