"""Sums of clipped per-sample gradients, without the per-sample gradients.

A layer's per-sample gradient is a product of what went in (the activations) and what came back
(the gradient by the outputs). One forward and one backward pass collect both for all layers; the
gradient norms follow from them, and the clipped sum is the same product, each record weighted by
its clipping factor (book-keeping: Bu, Wang, Zha and Karypis 2023; ghost norms: Li, Tramer, Liang
and Hashimoto 2022). The weights' own gradients are never computed in the backward pass.

A network of layers that ``native`` knows runs there on a CPU. A model with trainable parameters in
modules without a rule below falls back to explicit per-sample gradients, and says so once. Each
kernel is compared with a few records' own gradients when it is made (``probe``).
"""

import copy
import math
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property, partial, reduce
from typing import Any, Literal, get_args

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.utils.hooks import RemovableHandle

from hiddenstate.dpsgd import memory, native, products
from hiddenstate.dpsgd.augmentation import Augmentation
from hiddenstate.dpsgd.driver import network
from hiddenstate.dpsgd.probe import CHANCE, Probe, copied, first_line, refuse_mixing
from hiddenstate.dpsgd.rules import Rule, rule_of
from hiddenstate.errors import InputError

KernelName = Literal["auto", "native", "linear", "torch", "explicit", "opacus"]
Loss = Callable[[Tensor, Tensor], Tensor]
"""Maps outputs (records, ...) and labels (records,) to losses (records,)."""

_Way = Literal["side by side", "models", "records"]
"""What torch.func maps over at once: models and their records, one model's records, or nothing."""
_COMPARED = 128
"""Records, at most, whose losses together are compared with those of each alone."""
_BLOCK_BYTES = 2**26
"""Activations and patches of the records that are processed at once, for one model."""


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


def _named_of_many(thetas: Tensor, model: nn.Module) -> dict[str, Tensor]:
    """Vectors (models, p) as the model's parameters by name, (models, ...) (views)."""
    parameters = {n: p for n, p in model.named_parameters() if p.requires_grad}
    parts = thetas.split([p.numel() for p in parameters.values()], 1)
    return {
        name: part.unflatten(1, p.shape)
        for (name, p), part in zip(parameters.items(), parts, strict=True)
    }


LARGEST = 1e15
"""What an entry of a record may be at most: squared norms of far larger ones overflow."""


class ClippedSum:
    """Sum of clipped gradients of a model's loss over records of one data set.

    x: shape (records, *record shape); taken to the model's precision, but for integer records of a
    model with an embedding. y: shape (records,), integers for cross-entropy. ``kernel`` is "auto"
    (native code where it applies), "native", "linear" (many linear models in two matrix products,
    ``linear_sums``), "torch" (book-keeping), "explicit" (per-sample gradients by torch.func) or
    "opacus" (by Opacus, which knows layers that torch.func does not). With an ``augmentation`` a
    record's gradient is the mean over the views that a call names, by "torch" or "explicit". Not
    for use by several threads at once: give each its own ``copy``.

    Raises InputError for data that are no numbers or do not fit the model, for a model without
    per-sample gradients, and where no kernel agrees with the gradients of a few records.
    """

    def __init__(
        self,
        model: nn.Module,
        x: NDArray | Tensor,
        y: NDArray | Tensor,
        *,
        loss: Loss = cross_entropy,
        device: str | torch.device = "cpu",
        kernel: KernelName = "auto",
        augmentation: Augmentation | None = None,
    ):
        if kernel not in get_args(KernelName):
            names = ", ".join(get_args(KernelName))
            raise InputError(f"kernel: got {kernel!r}; expected one of {names}")
        if augmentation is not None:
            if kernel not in ("auto", "torch", "explicit"):
                raise InputError(
                    f"kernel: got {kernel!r} with an augmentation; expected 'auto', 'torch' or "
                    "'explicit', for the others know no views"
                )
            augmentation.check(tuple(x.shape[1:]))
        self.augmentation = augmentation
        self._local = threading.local()
        self.device = usable(device)
        held = copied(model)
        _refuse_mixing(model)
        self._model = held.to(self.device)
        self._loss = loss
        self.parameters = sum(p.numel() for p in model.parameters() if p.requires_grad)
        self.dtype = _precision(model)
        records, labels = checked(x, y, self._model, self._loss)
        self._x = records.to(self.device)
        self._y = labels.to(self.device)
        probe = Probe(model, records, labels, loss, relabel=loss is cross_entropy)
        if probe.classes is not None and loss is cross_entropy:
            refuse_classes(labels, probe.classes)
        self._native: native.Kernel | None = None
        self._taps: dict[str, _Tap] = {}
        self._writes = self._channels_first = False
        self._opacus: nn.Module | None = None
        self._linear: nn.Linear | None = None
        self._way: _Way = "side by side"
        if kernel == "linear":
            self._linear = self._linear_layer(probe)
        if kernel in ("auto", "native") and augmentation is None:
            self._native = self._native_kernel(probe, required=kernel == "native")
        if self._native is None and self._linear is None:
            self._refuse_mixing_on_device()
        self._channels_last = self._x.dim() == 4 and self._takes_channels_last()
        if self._channels_last:
            # Max-pooling and the unfolding of patches are far faster so.
            self._x = _with_channels_last(self._x)
        if kernel in ("auto", "torch", "linear") and self._native is None:
            self._taps = self._find_taps(probe)
        if self._native is None and not self._taps:
            if self._channels_last:
                # torch.func's convolutions are far slower on such images, and fail on some.
                self._x, self._channels_last = self._x.contiguous(), False
            if kernel == "opacus":
                self._opacus = _for_opacus(self._model)
                self._refuse_wrong_opacus(probe)
            else:
                self._way = self._explicit_way(probe)
        self.kind = (
            "native" if self._native
            else "linear" if self._linear
            else "torch" if self._taps
            else "opacus" if self._opacus
            else "loop" if self._way == "records"
            else "explicit"
        )  # fmt: skip
        if self.device.type not in ("cpu", "meta"):
            self._refuse_on_device(probe)
        floats = self._record_floats()
        self.record_bytes, self.widest = self.dtype.itemsize * sum(floats), max(floats)
        # Native code holds one record at a time.
        self.block = 1 if self._native else max(1, min(128, int(_BLOCK_BYTES // self._weighs())))

    def _weighs(self) -> float:
        """Bytes by which a record counts in a block."""
        return self.record_bytes if self._taps or self._linear else self.activations / 2.5

    @cached_property
    def activations(self) -> float:
        """Bytes of one more record in one model, at most at once.

        Measured, but for native code, which has room for one record, and linear models; a tenth
        more, for allocators waste some.
        """
        if self._native or self._linear:
            return 2.5 * self.record_bytes
        models = 2
        thetas = flat_parameters(self._model).expand(models, -1)
        views = self.augmentation.views if self.augmentation else 0

        def work(records: int) -> None:
            indices = torch.arange(records, device=self.device).expand(models, -1) % len(self._y)
            shape = (models, records, views, 3)
            drawn = torch.zeros(shape, dtype=torch.int64, device=self.device) if views else None
            self._block_sum(thetas, self._gathered(indices, None, drawn), 1.0)

        taken = memory.slope(work)
        if 128 * taken <= _BLOCK_BYTES:
            # Of small records two take less than what is done once: the most is elsewhere then.
            taken = memory.slope(work, 64)
        return max(1.1 * taken / models, float(self.dtype.itemsize))

    def own(self) -> "ClippedSum":
        """This thread's copy; torch uses no other thread in it, or sums would round otherwise."""
        if not hasattr(self._local, "copy"):
            torch.set_num_threads(1)
            self._local.copy = self.copy()
        return self._local.copy

    def copy(self) -> "ClippedSum":
        """An independent one that shares the data; for another thread."""
        other = copy.copy(self)
        other._local = threading.local()
        other._model = copy.deepcopy(self._model)
        other._taps = {n: copy.copy(tap) for n, tap in self._taps.items()}
        if self._opacus is not None:
            other._opacus = _for_opacus(other._model)
        return other

    def __call__(
        self,
        theta: Tensor,
        indices: NDArray[np.int64],
        clipping_norm: float,
        drawn: NDArray[np.int64] | None = None,
    ) -> Tensor:
        """Sum (p,) over the records at ``indices`` of gradients at theta (p,), clipped.

        drawn: the records' views, shape (len(indices), views, 3), as ``Augmentation.draw`` has
        them; None for the records as they are.
        """
        self._refuse_call(theta, clipping_norm)
        if self._native is not None:
            found, _, _ = self._native(theta.numpy(), indices, clipping_norm)
            return torch.from_numpy(found)
        total = torch.zeros_like(theta)
        if not len(indices):
            return total
        views = None if drawn is None else torch.as_tensor(drawn)
        places = torch.as_tensor(indices, device=self.device)
        for start in range(0, len(indices), self.block):
            part = slice(start, start + self.block)
            seen = None if views is None else views[None, part]
            block = self._gathered(places[part], None, seen)
            total += self._block_sum(theta[None], block, clipping_norm)[0]
        return total

    def side_by_side(
        self,
        thetas: Tensor,
        indices: Tensor,
        weights: Tensor | None,
        clipping_norm: float,
        drawn: Tensor | None = None,
    ) -> Tensor:
        """The sums (models, p) of many models at once, thetas (models, p).

        indices: shape (records,) for all models, or (models, records) for one batch each. weights:
        1 for a record that counts and 0 for padding, shape (models, records), or None for all 1.
        drawn: views of each model's own, shape (models, records, views, 3), or None. Nothing is
        read back from the device.
        """
        self._refuse_call(thetas, clipping_norm)
        return self.sums(thetas, self.blocks(indices, weights, drawn), clipping_norm)

    def blocks(
        self, indices: Tensor, weights: Tensor | None = None, drawn: Tensor | None = None
    ) -> "Iterator[Block]":
        """A batch as ``side_by_side`` takes it, gathered block by block.

        Blocks are of at most ``block`` records, and of about one size.
        """
        records = indices.shape[-1]
        count = -(-records // self.block)
        for i in range(count):
            part = slice(i * records // count, (i + 1) * records // count)
            scale = None if weights is None else weights[:, part]
            seen = None if drawn is None else drawn[:, part]
            yield self._gathered(indices[..., part], scale, seen)

    def sums(self, thetas: Tensor, blocks: "Iterable[Block]", clipping_norm: float) -> Tensor:
        """The sums (models, p) over the records of blocks, which may be used again and again."""
        total = None
        for block in blocks:
            found = self._block_sum(thetas, block, clipping_norm)
            total = found if total is None else total.add_(found)
        return torch.zeros_like(thetas) if total is None else total

    def gathered_bytes(self, models: int, indices: Tensor) -> float:
        """Memory that a batch's blocks take once they have been used; infinite if they change."""
        if not self._taps or self._writes:
            return math.inf
        shared = indices.dim() == 1
        first = sum(tap.floats() for tap in self._taps.values() if tap.first)
        floats = models * self._x[0].numel() + (1 if shared else models) * first
        return self.dtype.itemsize * indices.shape[-1] * floats

    def linear_sums(
        self, thetas: Tensor, indices: NDArray[np.int64], clipping_norm: float
    ) -> Tensor:
        """The sums (models, p) of many linear models over the same records; kernel "linear"."""
        assert self._linear is not None
        self._refuse_call(thetas, clipping_norm)
        x, y = self._x, self._y
        if len(indices) != len(y) or not np.array_equal(indices, np.arange(len(y))):
            records = torch.as_tensor(indices)
            x, y = x[records], y[records]
        return products.clipped_sums(self._linear, x.flatten(1), y, thetas, clipping_norm)

    def norms(self, theta: Tensor, indices: NDArray[np.int64]) -> Tensor:
        """Norms of the per-sample gradients at theta (p,), unclipped; shape (len(indices),)."""
        self._refuse_call(theta, math.inf)
        if self._native is not None:
            return torch.from_numpy(self._native(theta.numpy(), indices, math.inf)[1].copy())
        parts = torch.as_tensor(indices, device=self.device).split(self.block)
        blocks = (self._gathered(part) for part in parts)
        return torch.cat(
            [self._gradients(theta[None], block).squared_norms()[0] for block in blocks]
        ).sqrt()

    def losses(self, theta: Tensor, x: NDArray[Any], y: NDArray[Any]) -> Tensor:
        """Losses of the records (x, y), not those of the sum, at theta (p,); shape (len(y),)."""
        records, labels = checked(x, y, self._model, self._loss)
        if self._channels_last:
            records = _with_channels_last(records)  # as those of the sum
        with torch.no_grad():
            parameters = named(theta, self._model)
            outputs = functional_call(self._model, parameters, (records.to(self.device),))
            return self._loss(outputs, labels.to(self.device))

    def accuracy(self, theta: Tensor, x: NDArray[np.float32], y: NDArray[np.int64]) -> float:
        """Share of the records (x, y), not those of the sum, that theta (p,) classifies rightly."""
        right = 0
        with torch.no_grad():
            parameters = named(theta, self._model)
            if self._channels_last:
                parameters = _taps_with_channels_last(parameters)
            for start in range(0, len(y), 256):
                records = tensor("x", x[start : start + 256]).to(self._x)
                labels = tensor("y", y[start : start + 256]).to(self.device)
                outputs = functional_call(self._model, parameters, (records,))
                right += int((outputs.argmax(1) == labels).sum())
        return right / len(y)

    def refuse_tests(self, x: NDArray[np.float32], y: NDArray[np.int64]) -> None:
        """InputError for records (x, y) whose ``accuracy`` cannot be told."""
        records, labels = checked(x, y, self._model, self._loss)
        try:
            with torch.no_grad():
                outputs = self._model(records[:1].to(self.device))
        except RuntimeError as error:
            raise InputError(
                f"x: the model fails on test records of shape {tuple(records.shape[1:])} "
                f"({first_line(error)}); expected {tuple(self._x.shape[1:])}, as in training"
            ) from error
        if outputs.dim() != 2:
            raise InputError(
                f"model: its outputs have shape {tuple(outputs.shape)}; expected one for each "
                "class, of which accuracy takes the largest"
            )
        refuse_classes(whole_labels(labels), outputs.shape[1])

    def _refuse_call(self, theta: Tensor, clipping_norm: float) -> None:
        if theta.shape[-1:] != (self.parameters,):
            raise InputError(
                f"theta: got shape {tuple(theta.shape)}; expected {self.parameters} parameters"
            )
        if not clipping_norm > 0:
            raise InputError(f"clipping_norm: got {clipping_norm}; expected a number above 0")

    def _block_sum(self, thetas: Tensor, block: "Block", clipping_norm: float) -> Tensor:
        gradients = self._gradients(thetas, block)
        norms = gradients.squared_norms().sqrt()
        # norm 0 would divide 0 by 0 without clipping and is harmless with it
        scale = (
            products.factors(norms, clipping_norm)
            if math.isfinite(clipping_norm)
            else norms * 0 + 1
        )
        return gradients.weighted_sum(scale if block.weights is None else scale * block.weights)

    def _gathered(
        self, indices: Tensor, weights: Tensor | None = None, drawn: Tensor | None = None
    ) -> "Block":
        """A block of the records at indices (records,), or (models, records), or views of them."""
        x, y = self._records(indices), self._y[indices]
        if drawn is None:
            return Block(x, y, weights, indices.dim() == 1)
        assert self.augmentation is not None
        models, views = len(drawn), drawn.shape[2]
        if indices.dim() == 1:
            x, y = x.expand(models, *x.shape), y.expand(models, -1)
        x = torch.stack([self.augmentation.apply(*own) for own in zip(x, drawn, strict=True)])
        return Block(x, y.repeat_interleave(views, 1), weights, False, views)

    def _gradients(self, thetas: Tensor, block: "Block") -> "_Factors | _Explicit":
        """Per-sample gradients in implicit or explicit form."""
        x, y, shared, views = block.x, block.y, block.shared, block.views
        if self._opacus is not None:
            return _Explicit(
                torch.stack(
                    [
                        self._by_opacus(theta, *((x, y) if shared else (x[m], y[m])))
                        for m, theta in enumerate(thetas)
                    ]
                )
            )
        if not self._taps:
            found = self._explicit(thetas, x, y, shared)
            return _Explicit(found if views == 1 else found.unflatten(1, (-1, views)).mean(2))
        with torch.enable_grad():
            if len(thetas) == 1:
                x, y = (x, y) if shared else (x[0], y[0])
                return _Factors(self._tapped(thetas[0].detach(), x, y), views)
            return _Factors(self._side_by_side(thetas.detach(), block), views)

    def _records(self, indices: Tensor) -> Tensor:
        """Records at the indices, (*indices, *record shape); images keep their channels last."""
        if not self._channels_last:
            return self._x[indices]
        return self._x.movedim(1, -1)[indices].movedim(-1, -3)

    def _record_loss(self, theta: Tensor, x: Tensor, y: Tensor) -> Tensor:
        return self._named_loss(named(theta, self._model), x, y)

    def _explicit(self, thetas: Tensor, x: Tensor, y: Tensor, shared: bool) -> Tensor:
        """Per-sample gradients (models, records, p), in the way that is right for the model."""
        if self._way == "side by side" and len(thetas) > 1:
            each = vmap(grad(self._record_loss), in_dims=(None, 0, 0))
            return vmap(each, in_dims=(0, *[None if shared else 0] * 2))(thetas, x, y)
        alone = self._by_record if self._way == "records" else self._by_vmap
        own = [(x, y) if shared else (x[m], y[m]) for m in range(len(thetas))]
        return torch.stack([alone(theta, *its) for theta, its in zip(thetas, own, strict=True)])

    def _by_vmap(self, theta: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """Per-sample gradients (records, p) of one model."""
        each = vmap(grad(self._named_loss), in_dims=(None, 0, 0))
        found = each(named(theta, self._model), x, y)
        return torch.cat([gradients.flatten(1) for gradients in found.values()], 1)

    def _named_loss(self, parameters: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return self._loss(functional_call(self._model, parameters, (x[None],)), y[None])[0]

    def _by_record(self, theta: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """Per-sample gradients (records, p), by one backward pass each."""
        rows = []
        with torch.enable_grad():
            at = theta.detach().requires_grad_()
            parameters = named(at, self._model)
            for record, label in zip(x, y, strict=True):
                loss = self._named_loss(parameters, record, label)
                rows.append(torch.autograd.grad(loss, at, retain_graph=True)[0])
        return torch.stack(rows)

    def _by_opacus(self, theta: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """Per-sample gradients (records, p) by Opacus's hooks."""
        assert self._opacus is not None
        parameters = [p for p in self._opacus.parameters() if p.requires_grad]
        with torch.no_grad():
            nn.utils.vector_to_parameters(theta.clone(), parameters)
        with torch.enable_grad(), warnings.catch_warnings():
            # Records need no gradient, of which torch warns at every call.
            warnings.filterwarnings("ignore", "Full backward hook is firing")
            # Its convolutions are wrong on images whose channels come last in memory.
            self._loss(self._opacus(x.contiguous()), y).sum().backward()
        rows = [p.grad_sample.flatten(1) for p in parameters]
        for p in parameters:
            p.grad = p.grad_sample = None
        return torch.cat(rows, 1)

    def _tapped(self, theta: Tensor, x: Tensor, y: Tensor) -> "list[tuple[_Tap, Tensor, Tensor]]":
        """Each layer with what it read of the records and the gradients by its outputs."""
        seen: dict[str, Tensor] = {}
        additions: list[Tensor] = []

        def listen(tap: _Tap) -> RemovableHandle:
            zero = torch.zeros((), dtype=self.dtype, device=self.device, requires_grad=True)
            addition = zero.expand(len(x), *tap.output_shape)
            additions.append(addition)

            def hook(module: nn.Module, inputs: tuple, named: dict, output: Tensor) -> Tensor:
                seen[tap.name] = inputs[0] if inputs else named["input"]
                return output + addition

            return tap.module(self._model).register_forward_hook(hook, with_kwargs=True)

        handles = [listen(tap) for tap in self._taps.values()]
        try:
            outputs = functional_call(self._model, named(theta, self._model), (x,))
        finally:
            for handle in handles:
                handle.remove()
        back = torch.autograd.grad(self._loss(outputs, y).sum(), additions)
        # Contiguous: how gradients lie in memory decides how their sums round.
        return [
            (tap, tap.rule.read(tap.layer, seen[name].detach())[None], g.contiguous()[None])
            for (name, tap), g in zip(self._taps.items(), back, strict=True)
        ]

    def _side_by_side(self, thetas: Tensor, block: "Block") -> "list[tuple[_Tap, Tensor, Tensor]]":
        """The same of many models, in one call of the model.

        All models' records are one batch, which layers without parameters see as it is; each layer
        with parameters takes it apart again. So the model may do whatever treats each record on
        its own.
        """
        models = len(thetas)
        x, y = block.flat(models)
        parameters = _named_of_many(thetas, self._model)
        anchor = torch.zeros((), dtype=self.dtype, device=self.device, requires_grad=True)
        seen: dict[str, Tensor] = {}
        back: dict[str, Tensor] = {}

        def forward(tap: _Tap, module: nn.Module, input: Tensor) -> Tensor:
            known = input is x and not self._writes
            a = block.read(tap, models) if known else tap.read(input, models)
            weights = {
                n: parameters[tap.path(n)] if p.requires_grad else p.expand(models, *p.shape)
                for n, p in module.named_parameters()
            }
            outputs = tap.rule.outputs(tap.layer, weights, a)
            seen[tap.name] = a.detach()
            outputs = _Heard.apply(outputs, anchor, partial(back.__setitem__, tap.name))
            outputs = tap.rule.shaped(outputs, tap.output_shape)
            return outputs.contiguous() if self._channels_first else outputs

        modules = [tap.module(self._model) for tap in self._taps.values()]
        for tap, module in zip(self._taps.values(), modules, strict=True):
            # In place of its class's: the model's own code goes on calling the layer.
            vars(module)["forward"] = partial(forward, tap, module)
        try:
            outputs = self._model(x)
        finally:
            for module in modules:
                del vars(module)["forward"]
        torch.autograd.grad(self._loss(outputs, y).sum(), anchor, allow_unused=True)
        return [
            (tap, a, tap.rule.shaped(back[name], tap.output_shape).unflatten(0, (models, -1)))
            for name, tap in self._taps.items()
            for a in [seen[name]]
        ]

    def _takes_channels_last(self) -> bool:
        """Whether the model takes images with their channels last; for a ``view`` it may not."""
        taps = _taps_with_channels_last(dict(self._model.named_parameters()))
        try:
            with torch.no_grad():
                functional_call(self._model, taps, (_with_channels_last(self._x[:2]),))
        except RuntimeError:
            return False
        return True

    def _native_kernel(self, probe: Probe, *, required: bool) -> native.Kernel | None:
        applies = (
            self.device.type == "cpu"
            and self._loss is cross_entropy
            and self.dtype == self._x.dtype == torch.float32
        )
        # Of a copy: a forward that is traced may leave what it was traced with in its model.
        shape = tuple(self._x.shape[1:])
        known = network(copy.deepcopy(self._model), shape) if applies else None
        if known is None:
            reason = "it knows no such model, loss or device"
        else:
            try:
                kernel = native.Kernel(known, self._x.numpy(), self._y.numpy())
            except native.CompilationError as error:
                reason = str(error)
            else:

                def gradients(x: Tensor, y: Tensor) -> Tensor:
                    one = kernel.on(x.float().numpy(), y.numpy())
                    theta = probe.theta.float().numpy()
                    rows = [one(theta, np.array([i]), math.inf)[0] for i in range(len(x))]
                    return torch.from_numpy(np.stack(rows))

                if not probe.differs(gradients, 1e-3):
                    return kernel
                reason = "its gradients of the model are wrong"
            if not required:
                warnings.warn(f"native kernel: {reason}; torch does its work", stacklevel=4)
        if required:
            raise InputError(f"kernel: got 'native', but {reason}; expected 'auto' or 'torch'")
        return None

    def _linear_layer(self, probe: Probe) -> nn.Linear:
        layer = products.linear_layer(self._model)
        if layer is None or self._loss is not cross_entropy:
            raise InputError(
                "kernel: got 'linear', but the model is no single linear layer with cross-entropy; "
                "expected 'auto'"
            )

        def gradients(x: Tensor, y: Tensor) -> Tensor:
            one = partial(products.clipped_sums, layer, thetas=probe.theta[None])
            rows = [
                one(x[i : i + 1].flatten(1), y[i : i + 1], clipping_norm=math.inf)
                for i in range(len(x))
            ]
            return torch.cat(rows)

        if probe.differs(gradients, probe.tolerance):
            raise InputError("kernel: got 'linear', which is wrong for the model; expected 'auto'")
        return layer

    def _on(
        self,
        probe: Probe,
        taps: dict[str, "_Tap"],
        beside: int = 0,
        device: torch.device | None = None,
    ) -> Callable[[Tensor, Tensor], Tensor]:
        """Per-sample gradients of a probe's records, by this kernel with these taps.

        Of one model, which may have so many others beside it. With a device there and in the sum's
        own precision, otherwise on the CPU in the probe's.
        """
        other = copy.copy(self)
        other.device, other.dtype = torch.device("cpu"), probe.dtype
        if device is not None:
            other.device, other.dtype = device, self.dtype
        there: Any = {"device": other.device, "dtype": other.dtype}
        other._model, other._taps = copy.deepcopy(probe.model).to(**there), taps
        if self._opacus is not None:
            other._opacus = _for_opacus(other._model)
        theta = probe.theta.to(**there)

        def gradients(x: Tensor, y: Tensor) -> Tensor:
            x = x.to(**there) if x.is_floating_point() else x.to(other.device)
            other._x = _with_channels_last(x) if self._channels_last else x
            other._y = y.to(other.device)
            thetas = torch.stack([theta, *[1.1 * theta] * beside])
            places = torch.arange(len(x), device=other.device)
            found = other._gradients(thetas, other._gathered(places))
            each = torch.eye(len(x), **there)
            rows = [found.weighted_sum(weights.expand(len(thetas), -1))[0] for weights in each]
            return torch.stack(rows).cpu()

        return gradients

    def _refuse_mixing_on_device(self) -> None:
        """Raise InputError for a model that fails on the device, or mixes a block of records.

        Each record's loss alone is compared with that among a block of them: the first ones, and
        those with the largest and the smallest entries and norms, by which a model may branch.
        """
        unlike: list[int] = []
        if self.device.type != "meta":
            flat = self._x.flatten(1)
            flat = flat if flat.is_floating_point() else flat.float()
            sizes = [torch.linalg.vector_norm(flat, order, dim=1) for order in (2, math.inf)]
            unlike = [int(pick(size)) for size in sizes for pick in (torch.argmax, torch.argmin)]
        chosen = list(dict.fromkeys([*unlike, *range(min(len(self._x), _COMPARED))]))
        x, y = self._x[chosen], self._y[chosen]
        try:
            with CHANCE, torch.random.fork_rng(devices=[]), torch.no_grad():
                together = self._loss(self._model(x), y)
                alone = [self._loss(self._model(x[i : i + 1]), y[i : i + 1]) for i in range(len(x))]
        except RuntimeError as error:
            raise InputError(
                f"model: fails on device {str(self.device)!r} ({first_line(error)}); expected "
                "tensors that move with it, by register_buffer, or are made on the records' device"
            ) from error
        if self.device.type != "meta":
            refuse_mixing(torch.cat(alone), together, 1e-3)

    def _explicit_way(self, probe: Probe) -> "_Way":
        """The fastest way to explicit gradients that gives those of autograd, one by one."""
        reason = ""
        ways: tuple[_Way, ...] = ("side by side", "models", "records")
        for way in ways:
            self._way = way
            try:
                # As many models as records: torch's rules have confused the two.
                wrong = any(
                    probe.differs(self._on(probe, {}, beside), probe.tolerance) for beside in (0, 1)
                )
            except Exception as error:  # whatever torch.func makes a model raise
                reason = first_line(error)
                continue
            if not wrong:
                if way == "records":
                    warnings.warn(
                        "the model's gradients are taken record by record, which takes long, for "
                        f"torch.func cannot take them together ({reason or 'it is wrong for it'}); "
                        "a forward that reads no values of its records (one that is given its "
                        "attention mask, say) and layers with a book-keeping rule are faster",
                        stacklevel=4,
                    )
                return way
        raise InputError(
            "model: its per-sample gradients are not those of autograd, record by record"
            f"{f' ({reason})' if reason else ''}; expected a model that treats each record on its "
            "own, the same way every time"
        )

    def _refuse_wrong_opacus(self, probe: Probe) -> None:
        try:
            wrong = probe.differs(self._on(probe, {}), probe.tolerance)
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

    def _refuse_on_device(self, probe: Probe) -> None:
        """InputError where the kernel's gradients on its device are not those of float64."""
        for beside in (0, 1):
            if probe.differs(self._on(probe, self._taps, beside, self.device), 1e-3):
                raise InputError(
                    f"device: on {str(self.device)!r} the gradients of kernel {self.kind!r} are "
                    "not those of float64 on a CPU, to 1e-3; expected another device or kernel"
                )

    def _find_taps(self, probe: Probe) -> dict[str, "_Tap"]:
        """A tap for every layer with trainable parameters, or none if any has no rule."""
        taps, reasons = {}, []
        owners = [
            (name, module)
            for name, module in self._model.named_modules()
            if any(p.requires_grad for p in module.parameters(recurse=False))
        ]
        for name, module in owners:
            rule = rule_of(module)
            if rule is None:
                reasons.append(f"{name or 'the model'} ({type(module).__name__})")
            else:
                taps[name] = _Tap(name, module, rule)
        held = [id(p) for _, m in owners for p in m.parameters(recurse=False)]
        if len(set(held)) < len(held):
            reasons.append("shared parameters")
        if not reasons:
            reasons = self._trial(taps)
        if not reasons and probe.branches():
            reasons.append("the model, which does other things for other values of its records")
        if not reasons:
            try:
                alone = probe.differs(self._on(probe, taps), probe.tolerance)
                if alone or self._differs_side_by_side(probe, taps):
                    reasons.append("the model, which uses parameters outside their layers")
            except RuntimeError as error:
                reasons.append(f"the model ({first_line(error)})")
        if reasons:
            warnings.warn(
                f"no book-keeping rule for {', '.join(reasons)}: explicit per-sample gradients "
                "are used, which need far more memory and time",
                stacklevel=4,
            )
            return {}
        return taps

    def _differs_side_by_side(self, probe: Probe, taps: dict[str, "_Tap"]) -> bool:
        try:
            return probe.differs(self._on(probe, taps, beside=1), probe.tolerance)
        except RuntimeError:
            # A ``view`` in the model may need images with their channels first in memory.
            self._channels_first = True
            return probe.differs(self._on(probe, taps, beside=1), probe.tolerance)

    def _trial(self, taps: dict[str, "_Tap"]) -> list[str]:
        """Run two records through; what stands in the way of the taps' use."""
        calls: dict[str, list] = {name: [] for name in taps}
        records = min(2, len(self._x))
        x = self._x[:records].clone()

        def listen(tap: _Tap) -> RemovableHandle:
            def hook(module: nn.Module, inputs: tuple, output: Tensor) -> None:
                calls[tap.name].append(output.shape)
                tap.first = bool(inputs) and inputs[0] is x

            return tap.module(self._model).register_forward_hook(hook)

        handles = [listen(tap) for tap in taps.values()]
        with torch.no_grad():
            self._model(x)
        for handle in handles:
            handle.remove()
        self._writes = x._version > 0
        for name, shapes in calls.items():
            if len(shapes) != 1 or shapes[0][0] != records:
                return [f"{name}, called {len(shapes)} times or not on the records as they are"]
            taps[name].output_shape = shapes[0][1:]
        return []

    def _record_floats(self) -> list[int]:
        """Numbers of each layer that one record of one model needs, by the layers' shapes."""
        views = self.augmentation.views if self.augmentation else 1
        if self._native is not None or not self._taps:
            return [views * (self.parameters + self._x[0].numel())]
        return [views * tap.floats() for tap in self._taps.values()]


def usable(device: str | torch.device, name: str = "device") -> torch.device:
    """A device that torch can use here; InputError, which calls it by a name, for any other."""
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise InputError(
            f"{name}: got {str(device)!r}; expected one that torch can use ({first_line(error)})"
        ) from error
    return torch.device(device)


def _precision(model: nn.Module) -> torch.dtype:
    """The type of the parameters that are trained, which have one that DP-SGD can add up in."""
    trained = [(n, p.dtype) for n, p in model.named_parameters() if p.requires_grad]
    for name, dtype in trained:
        if dtype not in (torch.float32, torch.float64) or dtype != trained[0][1]:
            raise InputError(
                f"model: {name} is of {dtype}; expected float32 or float64, all parameters the "
                "same: in less, small steps and squared norms are lost"
            )
    return trained[0][1]


def _with_channels_last(images: Tensor) -> Tensor:
    """The same images, with their channels last in memory."""
    return images.movedim(1, -1).contiguous().movedim(-1, 1)


def _taps_with_channels_last(parameters: dict[str, Tensor]) -> dict[str, Tensor]:
    """The same parameters; convolutions with these give images with their channels last."""
    return {
        name: value.to(memory_format=torch.channels_last) if value.dim() == 4 else value
        for name, value in parameters.items()
    }


def tensor(name: str, values: Any) -> Tensor:
    """An array as a tensor, of the same memory where that can be; InputError for no numbers."""
    if isinstance(values, np.ndarray) and min(values.strides, default=0) < 0:
        values = values.copy()  # torch knows no negative strides, such as those of x[:, ::-1]
    try:
        return torch.as_tensor(values)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(f"{name}: {first_line(error)}; expected an array of numbers") from error


def checked(x: Any, y: Any, model: nn.Module, loss: Loss) -> tuple[Tensor, Tensor]:
    """Records and labels as tensors of the types that the model and the loss take.

    InputError names the first that is none.
    """
    x, y, dtype = tensor("x", x), tensor("y", y), _precision(model)
    if x.is_complex():
        raise InputError(f"x: got {x.dtype}; expected real numbers")
    if not len(x):
        raise InputError("x: got no record; expected at least one")
    if len(x) != len(y):
        raise InputError(f"y: got {len(y)} labels; expected {len(x)}, one a record")
    embeds = any(isinstance(m, nn.Embedding | nn.EmbeddingBag) for m in model.modules())
    if x.is_floating_point() or not embeds:
        x = x.to(dtype)
        if not float(torch.linalg.vector_norm(x, math.inf)) <= LARGEST:
            i, at = map(int, (~(x.flatten(1).abs() <= LARGEST)).nonzero()[0])
            raise InputError(
                f"x: record {i} holds {float(x[i].flatten()[at])} (entry {at}); expected "
                f"finite numbers, {LARGEST:g} at most"
            )
    if loss is cross_entropy:
        y = whole_labels(y)
    elif y.is_floating_point():
        y = y.to(dtype)
    if y.is_floating_point() and not bool(y.isfinite().all()):
        i = int((~y.flatten(1).isfinite().all(1) if y.dim() > 1 else ~y.isfinite()).nonzero()[0])
        raise InputError(f"y: record {i} has the label {y[i].tolist()}; expected finite numbers")
    return x, y


def whole_labels(y: Tensor) -> Tensor:
    """Labels (records,) as int64; InputError names the first that is no whole number."""
    if y.dim() != 1:
        raise InputError(f"y: got shape {tuple(y.shape)}; expected one label a record")
    if y.is_floating_point():
        broken = (y != y.round()) | ~y.isfinite()
        if bool(broken.any()):
            i = int(broken.nonzero()[0])
            raise InputError(f"y: record {i} has the label {float(y[i]):g}; expected an integer")
    return y.to(torch.int64)


def refuse_classes(y: Tensor, classes: int) -> None:
    """InputError for labels (records,) that are none of so many classes."""
    outside = ((y < 0) | (y >= classes)).nonzero()
    if len(outside):
        i = int(outside[0])
        raise InputError(
            f"y: record {i} has the label {int(y[i])}; expected 0 to {classes - 1}, the model's "
            "classes"
        )


def _refuse_mixing(model: nn.Module) -> None:
    for name, module in model.named_modules():
        if "forward" in vars(module):
            raise InputError(
                f"model: {name or 'it'} has a forward of its own besides its class's, which a copy "
                "would call on the original's parameters; expected a class with that forward"
            )
        if isinstance(module, nn.modules.batchnorm._NormBase):
            mixes = isinstance(module, nn.modules.batchnorm._BatchNorm)
            if mixes and (module.training or module.running_mean is None):
                raise InputError(
                    f"model: {name} is {type(module).__name__} in training mode, which mixes the "
                    "records of a batch; expected eval mode, or GroupNorm instead"
                )
            if module.training and module.track_running_stats:
                raise InputError(
                    f"model: {name} ({type(module).__name__}) changes its running statistics with "
                    "every batch; expected track_running_stats=False or eval mode"
                )
        if isinstance(module, nn.modules.dropout._DropoutNd) and module.training and module.p > 0:
            raise InputError(f"model: {name} drops out at random; expected p = 0 or eval mode")
    if not any(p.requires_grad for p in model.parameters()):
        raise InputError("model: has no trainable parameter; expected at least one")


def _for_opacus(model: nn.Module) -> nn.Module:
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
        module.training |= any(p.requires_grad for p in module.parameters(recurse=False))
    try:
        return GradSampleModule(held, batch_first=True, loss_reduction="sum")
    except NotImplementedError as error:
        raise InputError(f"model: Opacus does not know it ({first_line(error)})") from error


class _Explicit:
    """Per-sample gradients as they are; shape (models, records, p)."""

    def __init__(self, gradients: Tensor):
        self._gradients = gradients

    def squared_norms(self) -> Tensor:
        return self._gradients.square().sum(-1)

    def weighted_sum(self, weights: Tensor) -> Tensor:
        return torch.einsum("mb,mbp->mp", weights, self._gradients)


@dataclass(eq=False)
class Block:
    """Records that are processed at once, with what is found out about them once.

    x: shape (records, ...) for all models (``shared``), or (models, records, ...) for each its own;
    with views, all views of a record are in a row. weights: (models, records), or None for all 1.
    """

    x: Tensor
    y: Tensor
    weights: Tensor | None
    shared: bool
    views: int = 1
    _flat: tuple[Tensor, Tensor] | None = None
    _read: dict[str, Tensor] = field(default_factory=dict)

    def flat(self, models: int) -> tuple[Tensor, Tensor]:
        """x and y of all models in one batch, one model's records after another's."""
        x, y = self.x, self.y
        if self._flat is None or (self.shared and len(self._flat[1]) != models * len(y)):
            if self.shared:
                x, y = x.expand(models, *x.shape), y.expand(models, *y.shape)
            self._flat = x.flatten(0, 1), y.flatten(0, 1)
        return self._flat

    def read(self, tap: "_Tap", models: int) -> Tensor:
        """What the layer reads of the records themselves, (models, records, ...)."""
        if tap.name not in self._read:
            own = self.x if self.shared else self.x.flatten(0, 1)
            self._read[tap.name] = tap.rule.read(tap.layer, own)
        found = self._read[tap.name]
        return (
            found.expand(models, *found.shape) if self.shared else found.unflatten(0, (models, -1))
        )


class _Heard(torch.autograd.Function):
    """A layer's outputs as they are; ``hear`` is given the gradient by them.

    The anchor requires a gradient, so that the outputs do, whatever the layer read.
    """

    @staticmethod
    def forward(
        ctx: Any, outputs: Tensor, anchor: Tensor, hear: Callable[[Tensor], None]
    ) -> Tensor:
        ctx.mark_dirty(outputs)  # and not a view: what follows may write in place
        ctx.hear = hear
        return outputs

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        ctx.hear(gradients[0])
        return gradients[0], None, None


class _Factors:
    """Per-sample gradients as (tap, what it read, gradient by its output) of each layer."""

    def __init__(self, layers: list[tuple["_Tap", Tensor, Tensor]], views: int = 1):
        self._layers = [(tap, *tap.rule.prepare(tap.layer, a, g)) for tap, a, g in layers]
        if views > 1:
            self._layers = [(tap, *tap.rule.mean(a, g, views)) for tap, a, g in self._layers]

    def squared_norms(self) -> Tensor:
        """Shape (models, records)."""
        squares = [tap.rule.squared_norms(tap.layer, a, g) for tap, a, g in self._layers]
        return reduce(torch.add, squares)

    def weighted_sum(self, weights: Tensor) -> Tensor:
        """Sum over the records of weight times gradient: (models, records) to (models, p)."""
        parts = []
        for tap, a, g in self._layers:
            sums = tap.rule.weighted_sums(tap.layer, a, g, weights)
            # In the order of named_parameters, as everywhere.
            parts += [sums[n].flatten(1) for n, _ in tap.layer.named_parameters() if n in sums]
        return torch.cat(parts, 1)


class _Tap:
    """A layer with trainable parameters, its rule and the shape of a record's output.

    ``first``: whether it reads the records themselves.
    """

    def __init__(self, name: str, layer: nn.Module, rule: type[Rule]):
        self.name, self.layer, self.rule = name, layer, rule
        self.output_shape = torch.Size()
        self.first = False

    def module(self, model: nn.Module) -> nn.Module:
        return model.get_submodule(self.name)

    def path(self, parameter: str) -> str:
        """The name of the layer's parameter in the model."""
        return f"{self.name}.{parameter}" if self.name else parameter

    def read(self, inputs: Tensor, models: int) -> Tensor:
        """What the layer reads of all models' inputs (models * records, ...), taken apart."""
        return self.rule.read(self.layer, inputs).unflatten(0, (models, -1))

    def floats(self) -> int:
        return self.rule.floats(self.layer, self.output_shape)
