"""Explicit per-sample gradients: by torch.func, or record by record."""

import copy
import warnings
from functools import cached_property
from itertools import islice

import torch
from torch import Tensor, nn
from torch.func import grad, vmap

from hiddenstate.dpsgd.kernels.base import (
    Block,
    Blockwise,
    Explicit,
    PerSample,
    Problem,
    named,
    probed,
)
from hiddenstate.dpsgd.probe import Probe, first_line
from hiddenstate.errors import InputError


class OneModel(Blockwise):
    """One model's records at once, by torch.func."""

    kind = "explicit"

    def gradients(self, thetas: Tensor, block: Block) -> PerSample:
        """Per-sample gradients, the mean over the views of a record."""
        # Where torch.func maps an operation by a loop, it asks its users to report that.
        torch._C._functorch._set_vmap_fallback_warning_enabled(False)
        found = self._each(thetas, block)
        if block.views > 1:
            found = found.unflatten(1, (-1, block.views)).mean(2)
        return Explicit(found)

    def _each(self, thetas: Tensor, block: Block) -> Tensor:
        """Shape (models, records, p)."""
        return torch.stack([self._one(theta, *block.of(m)) for m, theta in enumerate(thetas)])

    def _one(self, theta: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """Shape (records, p)."""
        each = vmap(grad(self.problem.record_loss), in_dims=(None, 0, 0))
        found = each(named(theta, self.problem.model), x, y)
        return torch.cat([gradients.flatten(1) for gradients in found.values()], 1)


class ManyModels(OneModel):
    """All models' records at once, by torch.func."""

    def _each(self, thetas: Tensor, block: Block) -> Tensor:
        if len(thetas) == 1:
            return super()._each(thetas, block)

        def loss(theta: Tensor, x: Tensor, y: Tensor) -> Tensor:
            return self.problem.record_loss(named(theta, self.problem.model), x, y)

        each = vmap(grad(loss), in_dims=(None, 0, 0))
        own = None if block.shared else 0
        return vmap(each, in_dims=(0, own, own))(thetas, block.x, block.y)


class Loop(OneModel):
    """One record after another, by one backward pass each."""

    kind = "loop"
    _rows: int | None = None
    """Rows to fill of a block, or None for all."""

    @cached_property
    def activations(self) -> float:
        """Measured with all rows there and four filled: a record leaves only its row behind."""
        some = copy.copy(self)
        some._rows = 4
        return super(Loop, some).activations

    def _one(self, theta: Tensor, x: Tensor, y: Tensor) -> Tensor:
        model = self.problem.model
        trained = [p for p in model.parameters() if p.requires_grad]
        rows = theta.new_empty(len(x), len(theta))
        with torch.no_grad():  # into the kernel's own model: to call another's takes longer
            nn.utils.vector_to_parameters(theta, trained)
        with torch.enable_grad():
            for row, record, label in islice(zip(rows, x, y, strict=True), self._rows):
                loss = self.problem.loss(model(record[None].clone()), label[None])[0]
                found = torch.autograd.grad(loss, trained, materialize_grads=True)
                torch.cat([gradients.flatten() for gradients in found], out=row)
        return rows


def explicit(problem: Problem, probe: Probe) -> OneModel:
    """The fastest of these kernels that gives the gradients of autograd, one by one."""
    reason = ""
    for kernel in (ManyModels(problem), OneModel(problem), Loop(problem)):
        try:
            wrong = _wrong(kernel, probe)
            wrong = wrong or kernel.unlike(probe, 1e-3)
            # Measured with two models of four records, which may fail where the probe does not.
            wrong = wrong or not kernel.activations > 0
        except Exception as error:  # whatever torch.func makes a model raise
            reason = first_line(error)
            continue
        if not wrong:
            if isinstance(kernel, Loop):
                warnings.warn(
                    "gradients are computed record by record, which is slow, because torch.func "
                    f"cannot compute them together ({reason or 'its gradients are wrong'}). "
                    "Layers with a book-keeping rule are faster, and so is a forward without "
                    "control flow on values (for example, one that is given its attention mask)",
                    stacklevel=5,
                )
            return kernel
    raise InputError(
        "model: its per-sample gradients are not those of autograd, record by record"
        f"{f' ({reason})' if reason else ''}; expected a model that treats each record on its "
        "own, the same way every time"
    )


def _wrong(kernel: OneModel, probe: Probe) -> bool:
    """True if its gradients differ from the probe's, in the model's own precision where torch fails
    in float64, as in its LSTM."""
    ways = (None, probe.tolerance), (torch.device("cpu"), 1e-3)
    for device, close in ways:
        try:
            # As many models as records: torch's rules have confused the two.
            return any(
                probe.differs(probed(kernel, probe, beside, device=device), close)
                for beside in (0, 1)
            )
        except Exception as error:  # whatever torch.func makes a model raise
            failure = error
    raise failure
