"""Interface of kernels, and code that the kernels of torch models share.

A kernel gives sums of clipped per-sample gradients of one model over records of one data set.
"""

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property, wraps
from typing import Any, Generic, ParamSpec, Protocol, Self, TypeVar

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call

from hiddenstate.dpsgd import memory
from hiddenstate.dpsgd.augmentation import Augmentation
from hiddenstate.dpsgd.probe import Probe, on_trial
from hiddenstate.errors import InputError
from hiddenstate.streams import stream

Loss = Callable[[Tensor, Tensor], Tensor]
"""Maps outputs (records, ...) and labels (records,) to losses (records,)."""
Array = TypeVar("Array")
P = ParamSpec("P")
T = TypeVar("T")

_BLOCK_BYTES = 2**26
"""Activations and patches of the records that are processed at once, for one model."""


class Kernel(ABC, Generic[Array]):
    """Sums of clipped gradients, of torch tensors or numpy arrays.

    Not for use by several threads at once: each takes its own ``copy``, which shares the records.
    One that has a ``last_iterate`` trains a model whole, in one call: ``tiny``.
    """

    kind: str

    @abstractmethod
    def sum(self, theta: Array, indices: NDArray[np.int64], clipping_norm: float) -> Array:
        """Sum (p,) over the records at ``indices`` of gradients at theta (p,), clipped."""

    @abstractmethod
    def norms(self, theta: Array, indices: NDArray[np.int64]) -> Array:
        """Norms of the per-sample gradients at theta (p,), unclipped; shape (len(indices),)."""

    @abstractmethod
    def copy(self) -> Self:
        """An independent one that shares the records, for another thread."""


def cross_entropy(outputs: Tensor, labels: Tensor) -> Tensor:
    """Cross-entropy of each record; shape (records,)."""
    return F.cross_entropy(outputs, labels, reduction="none")


def flat_parameters(model: nn.Module) -> Tensor:
    """The model's trainable parameters as one vector (p,), in ``named_parameters`` order."""
    return torch.cat([p.detach().flatten() for p in model.parameters() if p.requires_grad])


def named(theta: Tensor, model: nn.Module) -> dict[str, Tensor]:
    """The inverse: a vector (p,) as the model's parameters by name (views)."""
    parameters = {n: p for n, p in model.named_parameters() if p.requires_grad}
    parts = theta.split([p.numel() for p in parameters.values()])
    return {
        name: part.view(p.shape) for (name, p), part in zip(parameters.items(), parts, strict=True)
    }


def named_of_many(thetas: Tensor, model: nn.Module) -> dict[str, Tensor]:
    """Vectors (models, p) as the model's parameters by name, (models, ...) (views)."""
    parameters = {n: p for n, p in model.named_parameters() if p.requires_grad}
    parts = thetas.split([p.numel() for p in parameters.values()], 1)
    return {
        name: part.unflatten(1, p.shape)
        for (name, p), part in zip(parameters.items(), parts, strict=True)
    }


def factors(norms: Tensor, clipping_norm: float) -> Tensor:
    """Clipping factors of gradients with these norms, in the same shape.

    NaN where a norm overflows: 0 would silently drop the record from the sum.
    """
    # 0 times an infinite norm is NaN, and 0 times any other norm adds nothing.
    return (clipping_norm / norms).clamp(max=1).add(norms, alpha=0)


def check_clipping_norm(clipping_norm: float, dtype: torch.dtype) -> None:
    """InputError for a clipping norm that is none, or too short for this precision."""
    # The squares of gradients that are much shorter must not underflow.
    least = 1e4 * torch.finfo(dtype).tiny ** 0.5
    if not clipping_norm >= least:
        raise InputError(
            f"clipping_norm: got {clipping_norm}; expected a number above 0, in {dtype} "
            f"{least:.0e} or more"
        )


@dataclass(frozen=True, eq=False)
class Problem:
    """Model, loss and records whose gradients are taken, on one device and in one precision.

    channels_last: whether images lie in memory with their channels last, which is faster in many
    layers.
    """

    model: nn.Module
    loss: Loss
    x: Tensor
    y: Tensor
    augmentation: Augmentation | None = None
    channels_last: bool = False

    @property
    def device(self) -> torch.device:
        return self.x.device

    @cached_property
    def dtype(self) -> torch.dtype:
        return next(p.dtype for p in self.model.parameters() if p.requires_grad)

    @cached_property
    def parameters(self) -> int:
        return sum(p.numel() for p in self.model.parameters() if p.requires_grad)

    @property
    def views(self) -> int:
        """Views of a record, 1 without an augmentation."""
        return self.augmentation.views if self.augmentation else 1

    def copy(self) -> "Problem":
        return replace(self, model=copy.deepcopy(self.model))

    def gathered(
        self, indices: Tensor, weights: Tensor | None = None, drawn: Tensor | None = None
    ) -> "Block":
        """A block of the records at indices (records,), or (models, records), or views of them."""
        x, y = self._records(indices), self.y[indices]
        if drawn is None:
            return Block(x, y, weights, indices.dim() == 1)
        assert self.augmentation is not None
        models, views = len(drawn), drawn.shape[2]
        if indices.dim() == 1:
            x, y = x.expand(models, *x.shape), y.expand(models, *y.shape)
        x = torch.stack([self.augmentation.apply(*own) for own in zip(x, drawn, strict=True)])
        return Block(x, y.repeat_interleave(views, 1), weights, False, views)

    def _records(self, indices: Tensor) -> Tensor:
        """Records at the indices, (*indices, *record shape); images keep their channels last."""
        if not self.channels_last:
            return self.x[indices]
        return self.x.movedim(1, -1)[indices].movedim(-1, -3)

    def record_loss(self, parameters: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        # Of a copy of the record, into which the model may write.
        return self.loss(functional_call(self.model, parameters, (x[None].clone(),)), y[None])[0]


@contextmanager
def single_precision(device: torch.device) -> Iterator[None]:
    """No product is of fewer bits meanwhile, as autocast's and an accelerator's of TF32 are.

    Raises InputError for torch's settings of a processor, as threads share them.
    """
    if _exact(device):
        yield
        return
    if torch.is_inference_mode_enabled():  # without which autograd works
        with torch.inference_mode(False), single_precision(device):
            yield
        return
    if (kind := device.type) == "cpu" or _autocast(kind):
        with torch.autocast(kind, enabled=False), single_precision(device):
            yield
        return
    cudnn: Any = torch.backends.cudnn
    kinds: tuple[Any, ...] = (torch.backends.cuda.matmul, cudnn.conv, cudnn.rnn)
    before = [one.fp32_precision for one in kinds]
    try:
        for one in kinds:
            one.fp32_precision = "ieee"
        yield
    finally:
        for one, precision in zip(kinds, before, strict=True):
            one.fp32_precision = precision


def _autocast(kind: str) -> bool:
    return torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind)


def _exact(device: torch.device) -> bool:
    """True for a processor with autograd and products of float32; InputError if none can be.

    It takes a microsecond, for small models call it every fifty.
    """
    if device.type != "cpu":
        return False
    try:
        found = torch.get_float32_matmul_precision()
    except RuntimeError:  # set for one library and not for another
        found = "several precisions"
    if found not in ("high", "highest"):
        raise InputError(
            f"torch.set_float32_matmul_precision: got {found!r}, which may take products of "
            "bfloat16 on a processor; expected 'high' or 'highest'"
        )
    return not (torch.is_autocast_enabled("cpu") or torch.is_inference_mode_enabled())


def in_single_precision(method: Callable[P, T]) -> Callable[P, T]:
    """A method of what has a ``device``, in single precision there."""

    @wraps(method)
    def exact(*args: P.args, **kwargs: P.kwargs) -> T:
        owner: Any = args[0]
        if _exact(owner.device):
            return method(*args, **kwargs)
        with single_precision(owner.device):
            return method(*args, **kwargs)

    return exact


def with_channels_last(images: Tensor) -> Tensor:
    """The same images, with their channels last in memory."""
    return images.movedim(1, -1).contiguous().movedim(-1, 1)


def filters_with_channels_last(parameters: dict[str, Tensor]) -> dict[str, Tensor]:
    """The same parameters; convolutions with these give images with their channels last."""
    return {
        # Only tensors of four dimensions have this memory format.
        name: value.to(memory_format=torch.channels_last) if value.dim() == 4 else value
        for name, value in parameters.items()
    }


@dataclass(eq=False)
class Block:
    """Records that are processed at once.

    x: shape (records, ...) for all models (``shared``), or (models, records, ...) for each its own;
    with views, all views of a record are in a row. weights: (models, records), or None for all 1.
    kept: what a kernel has found out about these records and may use again.
    """

    x: Tensor
    y: Tensor
    weights: Tensor | None
    shared: bool
    views: int = 1
    kept: dict[str, Any] = field(default_factory=dict)

    def of(self, model: int) -> tuple[Tensor, Tensor]:
        """One model's records and labels."""
        return (self.x, self.y) if self.shared else (self.x[model], self.y[model])

    def flat(self, models: int) -> tuple[Tensor, Tensor]:
        """x and y of all models in one batch, one model's records after another's."""
        known: tuple[Tensor, Tensor] | None = self.kept.get("flat")
        # A shared block may be asked for another number of models than before.
        if known is None or (self.shared and len(known[1]) != models * len(self.y)):
            x, y = self.x, self.y
            if self.shared:
                x, y = x.expand(models, *x.shape), y.expand(models, *y.shape)
            known = self.kept["flat"] = x.flatten(0, 1), y.flatten(0, 1)
        return known


class PerSample(Protocol):
    """The per-sample gradients of many models on a block, as they are or implied."""

    def squared_norms(self) -> Tensor:
        """Shape (models, records)."""

    def weighted_sum(self, weights: Tensor) -> Tensor:
        """Sum over the records of weight times gradient: (models, records) to (models, p)."""


@dataclass(eq=False)
class Explicit:
    """Per-sample gradients as they are; shape (models, records, p)."""

    gradients: Tensor

    def squared_norms(self) -> Tensor:
        return torch.linalg.vector_norm(self.gradients, dim=-1).square()

    def weighted_sum(self, weights: Tensor) -> Tensor:
        return torch.einsum("mb,mbp->mp", weights, self.gradients)


class OfModel(Kernel[Tensor]):
    """Base of the kernels of a torch model; gradients are those of ``problem``.

    writes: whether the model writes into its records.
    """

    writes = False

    def __init__(self, problem: Problem):
        self.problem = problem

    @cached_property
    def activations(self) -> float:
        return 2.5 * self.record_bytes

    @cached_property
    def block(self) -> int:
        return 1

    def of(self, problem: Problem) -> Self:
        """The same kernel for a model like this one's, and any records."""
        other = copy.copy(self)
        other.problem = problem
        return other

    def copy(self) -> Self:
        return self.of(self.problem.copy())

    def guesses(self, theta: Tensor, x: Tensor) -> Tensor:
        """The class that the model at theta (p,) takes each record for, shape (len(x),)."""
        parameters = named(theta, self.problem.model)
        if self.problem.channels_last:
            # Torch is wrong with such filters of one channel where outputs are one wide.
            several = {n: p for n, p in parameters.items() if p.dim() > 1 and p.shape[1] > 1}
            parameters |= filters_with_channels_last(several)
        with torch.no_grad():
            return functional_call(self.problem.model, parameters, (x.to(theta.device),)).argmax(1)

    def floats(self) -> list[int]:
        """Numbers of each layer that one record of one model needs."""
        return [self.problem.views * (self.problem.parameters + self.problem.x[0].numel())]

    @property
    def record_bytes(self) -> int:
        """Bytes of a record by the shapes of the layers alone."""
        return self.problem.dtype.itemsize * sum(self.floats())

    def gathered_bytes(self, models: int, indices: Tensor) -> float:
        """Memory that a batch's blocks take once they have been used; infinite if they change."""
        return math.inf


class Blockwise(OfModel):
    """A kernel that takes a torch model's records in blocks of at most ``block``.

    Many models may be side by side, each with the same records or its own.
    """

    @abstractmethod
    def gradients(self, thetas: Tensor, block: Block) -> PerSample:
        """Per-sample gradients at thetas (models, p)."""

    @cached_property
    def activations(self) -> float:
        """Bytes of one more record in one model, at most at once.

        Measured; a tenth more, for allocators waste some.
        """
        # Two models, for the kernels that know several take one alone another way.
        problem, models = self.problem, 2
        thetas = flat_parameters(problem.model).expand(models, -1)
        views = problem.views if problem.augmentation else 0

        def work(records: int) -> None:
            indices = torch.arange(records, device=problem.device).expand(models, -1)
            # Records repeat where the data set has fewer than are measured.
            indices = indices % len(problem.y)
            shape = (models, records, views, 3)
            drawn = torch.zeros(shape, dtype=torch.int64, device=problem.device) if views else None
            self._block_sum(thetas, problem.gathered(indices, None, drawn), 1.0)

        with on_trial():
            # A record takes no more than its part of all: then fewer need not be measured.
            most = memory.peak(lambda: work(4))
            taken = most / 4
            # Of large records, which make blocks of fewer than 128, two and four are enough.
            if 128 * taken > _BLOCK_BYTES:
                taken = (most - memory.peak(lambda: work(2))) / 2
            if 128 * taken <= _BLOCK_BYTES:
                # Of small records two take less than what is done once: the most is elsewhere then.
                taken = memory.slope(work, 64)
        # Never 0, for memory is divided by it.
        return max(1.1 * taken / models, float(problem.dtype.itemsize))

    @cached_property
    def block(self) -> int:
        return max(1, min(128, int(_BLOCK_BYTES // self._weighs())))

    def _weighs(self) -> float:
        """Bytes by which a record counts in a block."""
        # The inverse of ``OfModel.activations``: what was measured counts as bytes by shape.
        return self.activations / 2.5

    def sum(
        self,
        theta: Tensor,
        indices: NDArray[np.int64],
        clipping_norm: float,
        drawn: NDArray[np.int64] | None = None,
    ) -> Tensor:
        """Sum (p,) over the records at ``indices`` of gradients at theta (p,), clipped.

        drawn: the records' views, shape (len(indices), views, 3), or None.
        """
        total = torch.zeros_like(theta)
        views = None if drawn is None else torch.as_tensor(drawn)
        places = torch.as_tensor(indices, device=self.problem.device)
        for start in range(0, len(indices), self.block):
            part = slice(start, start + self.block)
            seen = None if views is None else views[None, part]
            block = self.problem.gathered(places[part], None, seen)
            total += self._block_sum(theta[None], block, clipping_norm)[0]
        return total

    def norms(self, theta: Tensor, indices: NDArray[np.int64]) -> Tensor:
        if not len(indices):
            return theta.new_zeros(0)
        parts = torch.as_tensor(indices, device=self.problem.device).split(self.block)
        blocks = (self.problem.gathered(part) for part in parts)
        return torch.cat(
            [self.gradients(theta[None], block).squared_norms()[0] for block in blocks]
        ).sqrt()

    def blocks(
        self, indices: Tensor, weights: Tensor | None = None, drawn: Tensor | None = None
    ) -> Iterator[Block]:
        """A batch of models side by side, gathered block by block.

        Blocks are of at most ``block`` records, and of about one size.
        """
        records = indices.shape[-1]
        count = -(-records // self.block)
        for i in range(count):
            part = slice(i * records // count, (i + 1) * records // count)
            scale = None if weights is None else weights[:, part]
            seen = None if drawn is None else drawn[:, part]
            yield self.problem.gathered(indices[..., part], scale, seen)

    def sums(self, thetas: Tensor, blocks: Iterable[Block], clipping_norm: float) -> Tensor:
        """The sums (models, p) over the records of blocks, which may be used again and again."""
        total = None
        for block in blocks:
            found = self._block_sum(thetas, block, clipping_norm)
            total = found if total is None else total.add_(found)
        return torch.zeros_like(thetas) if total is None else total

    def unlike(self, probe: Probe, close: float) -> bool:
        """True if sums over all records are not autograd's; see ``sums_unlike``."""
        # On device meta there are no values to compare.
        return self.problem.device.type != "meta" and sums_unlike(self, probe, close, _clipped)

    def _block_sum(self, thetas: Tensor, block: Block, clipping_norm: float) -> Tensor:
        gradients = self.gradients(thetas, block)
        norms = gradients.squared_norms().sqrt()
        # Without clipping every factor is 1; ``norms * 0`` makes it NaN where a norm overflows.
        finite = math.isfinite(clipping_norm)
        scale = factors(norms, clipping_norm) if finite else norms * 0 + 1
        return gradients.weighted_sum(scale if block.weights is None else scale * block.weights)


def _clipped(
    kernel: Blockwise, theta: Tensor, x: Tensor, y: Tensor, weights: Tensor, at: Tensor
) -> tuple[Tensor, Tensor]:
    found = kernel.gradients(theta[None], Block(x, y, None, True))
    norms = found.squared_norms().sqrt()
    return found.weighted_sum(weights * factors(norms, SHORT))[0], norms[0]


SHORT = 1e-3
"""A clipping norm by which records count about alike, however large their gradients are."""


def sums_unlike(
    kernel: OfModel, probe: Probe, close: float, sums: Callable[..., tuple[Tensor, Tensor]]
) -> bool:
    """True if a kernel's sums over all records are not autograd's gradients of the summed losses.

    A few records do not show ways that a model takes for rare ones alone. ``sums`` gives the sum
    (p,) of gradients clipped to ``SHORT`` and weighted, and the norms (records,), by a kernel, at
    parameters, of records, labels, weights and the records' indices. Autograd's losses have the
    weights and clipping factors. close: how far a block's sum may be off, of its terms' norms
    together. Rounding may crown another winner of a max-pooling where two are level: float64 then
    settles it, if the kernel has it. Notes whether the model writes into its records.
    """
    problem, model, exact = kernel.problem, copy.deepcopy(kernel.problem.model), None
    count, size = len(problem.y), max(1, min(128, _BLOCK_BYTES // kernel.record_bytes))
    weights = torch.ones(count, dtype=torch.float64, device=problem.device)
    if isinstance(kernel, Blockwise):
        # These tell a permutation; a kernel that takes records one by one has none.
        weights *= torch.from_numpy(stream(0, "probe", "sums").uniform(0.5, 1.5, count)).to(weights)
        size = min(size, kernel.block)
        if probe.dtype != problem.dtype:
            # One is the kernel's, and one is autograd's, whose parameters ``off`` sets.
            doubled = (copy.deepcopy(model).double() for _ in range(2))
            exact = kernel.of(replace(problem, model=next(doubled))), next(doubled)
    close = min(close, 1e-6) if problem.dtype == torch.float64 else close

    def off(kernel: OfModel, model: nn.Module, at: Tensor) -> bool:
        block, theta = problem.gathered(at), probe.theta.to(problem.device, kernel.problem.dtype)
        x, y = (v.to(theta) if v.is_floating_point() else v for v in (block.x, block.y))
        with torch.no_grad():
            # Of copies, for the model may write into its records.
            found, norms = sums(kernel, theta, x.clone(), y, weights[at].to(theta), at)
        scale = weights[at].to(theta) * factors(norms, SHORT)
        trained, handed = [p for p in model.parameters() if p.requires_grad], x.clone()
        nn.utils.vector_to_parameters(theta, trained)
        loss = (scale * problem.loss(model(handed), y)).sum()
        own = torch.autograd.grad(loss, trained, allow_unused=True, materialize_grads=True)
        kernel.writes |= not torch.equal(handed, x)
        expected = torch.cat([g.flatten() for g in own])
        # The second term is for gradients that are 0 except for rounding.
        margin = close * float((scale * norms).sum() + 1e-3 * SHORT)
        # Nothing is compared where autograd's sum is no number; a kernel's that is none is off.
        return bool(expected.isfinite().all()) and not float((found - expected).norm()) <= margin

    with on_trial(), torch.enable_grad():
        return any(
            off(kernel, model, at) and (exact is None or off(*exact, at))
            for at in torch.arange(count, device=problem.device).split(size)
        )


def probed(
    kernel: Blockwise, probe: Probe, beside: int = 0, *, device: torch.device | None = None
) -> Callable[..., Tensor]:
    """Per-sample gradients of a probe's records, (records, p), by this kernel.

    Of one model, which may have so many others beside it. With a device there and in the kernel's
    own precision, otherwise on the CPU in the probe's. With weights (n, records) n weighted sums
    in their place, (n, p).
    """
    dtype = probe.dtype if device is None else kernel.problem.dtype
    there: Any = {"device": device or torch.device("cpu"), "dtype": dtype}
    model = copy.deepcopy(probe.model).to(**there)
    with torch.no_grad():
        for p in model.parameters():  # far from those asked for: a kernel must not read its own
            p.mul_(-3 if p.requires_grad else 1)
    other = kernel.of(replace(kernel.problem, model=model))
    theta = probe.theta.to(**there)

    def gradients(x: Tensor, y: Tensor, weights: Tensor | None = None) -> Tensor:
        x = x.to(**there) if x.is_floating_point() else x.to(there["device"])
        x = with_channels_last(x) if kernel.problem.channels_last else x
        other.problem = replace(other.problem, x=x, y=y.to(there["device"]))
        # Other parameters beside, so that models that are mixed up show.
        thetas = torch.stack([theta, *[1.1 * theta] * beside])
        at = torch.arange(len(x), device=x.device)
        found = other.gradients(thetas, other.problem.gathered(at))

        def summed(gradients: PerSample, row: Tensor) -> Tensor:
            return gradients.weighted_sum(row.expand(len(thetas), -1))[0]

        def norm(i: Tensor) -> Tensor:
            alone = other.gradients(thetas, other.problem.gathered(i))
            return summed(alone, torch.ones(1, **there)).norm()

        # A row of the identity weighs one record alone, which gives its own gradient.
        each = torch.eye(len(x), **there) if weights is None else weights.to(**there)
        rows = torch.stack([summed(found, row) for row in each])
        norms = rows.norm(dim=1) if weights is None else torch.stack([norm(i) for i in at.split(1)])
        mistrust(rows, found.squared_norms()[0].sqrt(), norms)
        return rows.cpu()

    return gradients


def mistrust(gradients: Tensor, found: Tensor, norms: Tensor) -> None:
    """Make gradients NaN if their norms are found to be others than they are.

    Clipping goes by norms, and a sum with the same factors does not show that they are wrong.
    """
    relative = 1e-6 if norms.dtype == torch.float64 else 1e-3
    # Squares are summed, so what cancels in them leaves the root of their rounding.
    close = relative * norms + torch.finfo(norms.dtype).eps ** 0.5
    if not bool(((found - norms).abs() <= close).all()):  # nor if one of them is no number
        gradients.fill_(math.nan)
