"""Per-sample gradients by Opacus's hooks, which know layers that torch.func does not."""

import copy
import warnings
from typing import Self

import torch
from torch import Tensor, nn

from hiddenstate.dpsgd.kernels.base import Block, Blockwise, Explicit, PerSample, Problem, probed
from hiddenstate.dpsgd.probe import Probe, first_line
from hiddenstate.dpsgd.rules import untouched
from hiddenstate.errors import InputError


class Opacus(Blockwise):
    """One model at a time."""

    kind = "opacus"

    def __init__(self, problem: Problem):
        super().__init__(problem)
        self._hooked = _hooked(problem.model)

    def of(self, problem: Problem) -> Self:
        other = super().of(problem)
        other._hooked = _hooked(problem.model)
        return other

    def gradients(self, thetas: Tensor, block: Block) -> PerSample:
        each = [self._one(theta, *block.of(m)) for m, theta in enumerate(thetas)]
        return Explicit(torch.stack(each))

    def _one(self, theta: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """Shape (records, p)."""
        parameters = [p for p in self._hooked.parameters() if p.requires_grad]
        with torch.no_grad():
            nn.utils.vector_to_parameters(theta.clone(), parameters)
        with torch.enable_grad(), warnings.catch_warnings():
            # Records need no gradient, of which torch warns at every call.
            warnings.filterwarnings("ignore", "Full backward hook is firing")
            # Its convolutions are wrong on images whose channels come last in memory.
            copied = x.clone(memory_format=torch.contiguous_format)  # into which it may write
            self.problem.loss(self._hooked(copied), y).sum().backward()
        rows = [p.grad_sample.flatten(1) for p in parameters]
        for p in parameters:
            p.grad = p.grad_sample = None
        return torch.cat(rows, 1)


def opacus(problem: Problem, probe: Probe) -> Opacus:
    """The kernel; InputError without Opacus, and for a model that it is wrong for."""
    # Beside other hooks, its own do not see what a layer reads or gives.
    for name, module in problem.model.named_modules():
        if _trained(module) and not untouched(module):
            raise InputError(
                f"kernel: got 'opacus', but {name or 'the model'} has hooks or a call of its own, "
                "beside which Opacus may be wrong; expected 'auto'"
            )
    if probe.branches():  # which it runs on many records at once
        raise InputError(
            "kernel: got 'opacus', but the model's control flow depends on its records; expected "
            "'auto'"
        )
    kernel = Opacus(problem)
    try:
        gradients = probed(kernel, probe)
        wrong = probe.differs(gradients, probe.tolerance)
        wrong = wrong or probe.differs_together(gradients, probe.tolerance)
        wrong = wrong or kernel.unlike(probe, 1e-3)
    except Exception as error:  # whatever its hooks raise
        raise InputError(
            f"model: Opacus takes no per-sample gradients of it ({first_line(error)}); "
            "expected kernel='auto'"
        ) from error
    if wrong:
        raise InputError(
            "model: its per-sample gradients (kernel='opacus') are not those of autograd, "
            "record by record; expected kernel='auto'"
        )
    return kernel


def _hooked(model: nn.Module) -> nn.Module:
    """A copy of the model with Opacus's hooks, which gather per-sample gradients."""
    try:
        from opacus.grad_sample import GradSampleModule
    except ImportError as error:
        raise InputError(
            "kernel: got 'opacus', which is not installed; expected `pip install opacus`"
        ) from error
    held = copy.deepcopy(model)
    for module in held.modules():
        # Its hooks keep nothing in eval mode; a dropout or norm, of no parameters, keeps its own.
        module.training |= _trained(module)
    try:
        return GradSampleModule(held, batch_first=True, loss_reduction="sum")
    except NotImplementedError as error:
        raise InputError(f"model: Opacus does not support it ({first_line(error)})") from error


def _trained(module: nn.Module) -> bool:
    return any(p.requires_grad for p in module.parameters(recurse=False))
