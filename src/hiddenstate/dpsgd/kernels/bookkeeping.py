"""Book-keeping: per-sample gradients as products of what went into a layer and what came back.

A layer's per-sample gradient is a product of what went in (the activations) and what came back
(the gradient by the outputs). One forward and one backward pass collect both for all layers; the
gradient norms follow from them, and the clipped sum is the same product, each record weighted by
its clipping factor (book-keeping: Bu, Wang, Zha and Karypis 2023; ghost norms: Li, Tramer, Liang
and Hashimoto 2022). The weights' own gradients are never computed in the backward pass.
"""

import copy
import math
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial, reduce
from typing import Any, Self, TypeVar

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils.hooks import RemovableHandle

from hiddenstate.dpsgd.kernels.base import (
    Block,
    Blockwise,
    PerSample,
    Problem,
    named,
    named_of_many,
    probed,
)
from hiddenstate.dpsgd.probe import Probe, first_line, on_trial
from hiddenstate.dpsgd.recurrent import RecurrentRule
from hiddenstate.dpsgd.rules import Rule, rule_of


class BookKeeping(Blockwise):
    """Kernel by the rules of the layers with trainable parameters, which have one each.

    layers: these. channels_first: whether a ``view`` in the model needs images so, where models are
    side by side.
    """

    kind = "torch"

    def __init__(self, problem: Problem, layers: "list[Tap]"):
        super().__init__(problem)
        self.layers = layers
        self.channels_first = False
        self.recurrent = any(tap.rule is RecurrentRule for tap in layers)

    def of(self, problem: Problem) -> Self:
        other = super().of(problem)
        other.layers = [copy.copy(tap) for tap in self.layers]
        return other

    def floats(self) -> list[int]:
        return [self.problem.views * tap.floats() for tap in self.layers]

    def _weighs(self) -> float:
        return self.record_bytes

    def gathered_bytes(self, models: int, indices: Tensor) -> float:
        """The records, and what the first layers read of them."""
        if self.writes:
            return math.inf
        shared = indices.dim() == 1
        first = sum(tap.floats() for tap in self.layers if tap.first)
        floats = models * self.problem.x[0].numel() + (1 if shared else models) * first
        return self.problem.dtype.itemsize * indices.shape[-1] * floats

    def gradients(self, thetas: Tensor, block: Block) -> PerSample:
        with torch.enable_grad():
            # A recurrent layer has its gradients from its rule's ``run``, made for several models.
            if len(thetas) == 1 and not self.recurrent:
                return Factors(self._alone(thetas[0].detach(), *block.of(0)), block.views)
            return Factors(self._side_by_side(thetas.detach(), block), block.views)

    def _anchor(self) -> Tensor:
        problem = self.problem
        return torch.zeros((), dtype=problem.dtype, device=problem.device, requires_grad=True)

    def _alone(self, theta: Tensor, x: Tensor, y: Tensor) -> "list[tuple[Tap, Tensor, Tensor]]":
        """Each layer with what it read of the records and the gradients by its outputs."""
        model = self.problem.model
        seen: dict[str, Tensor] = {}
        additions: list[Tensor] = []

        def listen(tap: Tap) -> RemovableHandle:
            # Zeros that take no memory: the gradient by them is that by the layer's outputs.
            addition = self._anchor().expand(len(x), *tap.output_shape)
            additions.append(addition)

            def hook(module: nn.Module, inputs: tuple, named: dict, output: Tensor) -> Tensor:
                seen[tap.name] = inputs[0] if inputs else named["input"]
                return output + addition

            return tap.module(model).register_forward_hook(hook, with_kwargs=True)

        handles = [listen(tap) for tap in self.layers]
        try:
            outputs = functional_call(model, named(theta, model), (x,))
        finally:
            for handle in handles:
                handle.remove()
        back = torch.autograd.grad(self.problem.loss(outputs, y).sum(), additions)
        # As the records lie: how gradients lie in memory decides how their sums round.
        last, plain = torch.channels_last, torch.contiguous_format
        ways = [last if self.problem.channels_last and g.dim() == 4 else plain for g in back]
        return [
            (
                tap,
                tap.rule.read(tap.layer, seen[tap.name].detach())[None],
                g.contiguous(memory_format=way)[None],
            )
            for tap, g, way in zip(self.layers, back, ways, strict=True)
        ]

    def _side_by_side(self, thetas: Tensor, block: Block) -> "list[tuple[Tap, Tensor, Tensor]]":
        """The same of many models, in one call of the model.

        All models' records are one batch, which layers without parameters see as it is; each layer
        with parameters takes it apart again. So the model may do whatever treats each record on
        its own.
        """
        model, models = self.problem.model, len(thetas)
        x, y = block.flat(models)
        parameters = named_of_many(thetas, model)
        anchor = self._anchor()
        heard: dict[str, tuple[Any, Any]] = {}

        def forward(tap: Tap, module: nn.Module, input: Tensor) -> Any:
            # What a layer reads of the records themselves is kept with the block for its next use.
            known = input is x and not self.writes
            a = tap.read_once(block, models) if known else tap.read(input, models)
            weights = {
                n: parameters[tap.path(n)] if p.requires_grad else p.expand(models, *p.shape)
                for n, p in module.named_parameters()
            }

            def hear(a: Any, g: Any) -> None:
                heard[tap.name] = a, g

            outputs = tap.rule.run(tap.layer, weights, a, tap.output_shape, anchor, hear)
            if self.channels_first and isinstance(outputs, Tensor):
                return outputs.contiguous()
            return outputs

        modules = [tap.module(model) for tap in self.layers]
        for tap, module in zip(self.layers, modules, strict=True):
            # In place of its class's: the model's own code goes on calling the layer.
            vars(module)["forward"] = partial(forward, tap, module)
        try:
            with _unread(model):
                outputs = model(x)
        finally:
            for module in modules:
                del vars(module)["forward"]
        # Its result is dropped: the pass back lets every layer ``hear`` its gradients.
        torch.autograd.grad(self.problem.loss(outputs, y).sum(), anchor, allow_unused=True)
        if len(heard) < len(self.layers):
            raise RuntimeError("a layer's outputs do not reach the loss")
        return [(tap, *heard[tap.name]) for tap in self.layers]


class _Read(RuntimeError):
    """Something beside a layer's rule reads a parameter."""


class _Unread(nn.Parameter):
    """A parameter that nothing may read but its kind, for of many models it is one's alone."""

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        name = func.__name__
        name = func.__self__.__name__ if name == "__get__" else name  # of an attribute
        kwargs = kwargs or {}
        first, *further = args or (None,)
        others = (*further, *kwargs.values())
        own = name in _KIND and not any(isinstance(a, cls) for a in others)
        own |= name in _KINDS or (name == "type" and not others)  # which with one is a cast
        if not own and (isinstance(first, cls) or name not in _LIKE):
            raise _Read(f"{name} of a parameter is used outside its layer")
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **kwargs)


_KIND = {
    *("shape", "dtype", "device", "layout", "ndim", "requires_grad", "is_cuda", "is_meta"),
    *("itemsize", "nbytes", "size", "dim", "ndimension", "numel", "nelement", "stride", "__len__"),
    *("is_floating_point", "is_complex", "is_contiguous", "element_size", "get_device"),
    *("is_sparse", "is_sparse_csr", "is_leaf", "is_quantized", "is_nested", "is_cpu", "is_signed"),
    *("is_inference", "is_pinned", "is_shared", "storage_offset", "retains_grad", "names"),
    *("zeros_like", "ones_like", "empty_like", "new_zeros", "new_ones", "new_empty", "new_full"),
}
"""Attributes and functions of a tensor that depend on no value of it."""
_KINDS = {"result_type", "is_same_size"}
"""Functions of any tensors that depend on no value of them."""
_LIKE = {"to", "type_as", "expand_as", "view_as"}
"""Functions of one tensor that take no value of another."""


@contextmanager
def _unread(model: nn.Module) -> Iterator[None]:
    """Trainable parameters are ``_Unread``, by whichever name they are known."""
    trained = [(p, type(p)) for p in model.parameters() if p.requires_grad]
    try:
        for p, _ in trained:
            p.__class__ = _Unread
        yield
    finally:
        for p, kind in trained:
            p.__class__ = kind


def _layers(problem: Problem) -> "tuple[list[Tap], list[str]]":
    """A tap for each layer with trainable parameters, and what stands in the way of their use."""
    taps, reasons = [], []
    owners = [
        (name, module)
        for name, module in problem.model.named_modules()
        if any(p.requires_grad for p in module.parameters(recurse=False))
    ]
    for name, module in owners:
        rule = rule_of(module)
        if rule is None:
            reasons.append(f"{name or 'the model'} ({type(module).__name__})")
        else:
            taps.append(Tap(name, module, rule))
    # The gradient of a shared parameter is a sum over layers, whose norm no single layer knows.
    held = [id(p) for _, m in owners for p in m.parameters(recurse=False)]
    if len(set(held)) < len(held):
        reasons.append("shared parameters")
    return taps, reasons


K = TypeVar("K", bound=BookKeeping)


def book_keeping(problem: Problem, probe: Probe, kind: type[K]) -> K | None:
    """The kernel of a model, or None, with a warning that names what it has no rule for."""
    taps, reasons = _layers(problem)
    kernel = kind(problem, taps)
    if not reasons:
        reasons = _trial(kernel)
    if not reasons and probe.branches():
        reasons.append("the model, whose control flow depends on its records")
    if not reasons:
        try:
            # First side by side, which may find that images need their channels first.
            beside, alone = _differs_side_by_side(kernel, probe), probed(kernel, probe)
            if beside or any(
                differs(alone, probe.tolerance)
                for differs in (probe.differs, probe.differs_together)
            ):
                reasons.append("the model, which uses parameters outside their layers")
            elif kernel.unlike(probe, 1e-4):
                reasons.append("the model, whose sums over all records are not autograd's")
        except _Read:
            reasons.append("the model, which uses parameters outside their layers")
        except RuntimeError as error:
            reasons.append(f"the model ({first_line(error)})")
    if not reasons:
        return kernel
    warnings.warn(
        f"no book-keeping rule for {', '.join(reasons)}: explicit per-sample gradients "
        "are used, which need far more memory and time",
        stacklevel=5,
    )
    return None


def _differs_side_by_side(kernel: BookKeeping, probe: Probe) -> bool:
    try:
        return probe.differs(probed(kernel, probe, beside=1), probe.tolerance)
    except RuntimeError:
        # A ``view`` in the model may need images with their channels first in memory.
        kernel.channels_first = True
        return probe.differs(probed(kernel, probe, beside=1), probe.tolerance)


def _trial(kernel: BookKeeping) -> list[str]:
    """Run two records through; what stands in the way of the layers' use."""
    problem = kernel.problem
    calls: dict[str, list] = {tap.name: [] for tap in kernel.layers}
    x = problem.x[:2].clone()

    def listen(tap: Tap) -> RemovableHandle:
        def hook(module: nn.Module, inputs: tuple, named: dict, output: Any) -> None:
            given = (*inputs, *named.values())
            alone = len(given) == 1 and isinstance(given[0], Tensor)
            calls[tap.name].append(tap.rule.records(tap.layer, output).shape if alone else ())
            tap.first = alone and given[0] is x

        return tap.module(problem.model).register_forward_hook(hook, with_kwargs=True)

    handles = [listen(tap) for tap in kernel.layers]
    with on_trial(), torch.no_grad():
        problem.model(x)
    for handle in handles:
        handle.remove()
    # The version counts writes that autograd sees; others show by the values.
    kernel.writes = x._version > 0 or not (x.is_meta or torch.equal(x, problem.x[:2]))
    for tap in kernel.layers:
        shapes = calls[tap.name]
        if len(shapes) != 1 or shapes[0][:1] != (len(x),):
            return [f"{tap.name}, called {len(shapes)} times or not on the records alone"]
        tap.output_shape = shapes[0][1:]
    return []


class Factors:
    """Per-sample gradients as (tap, what it read, gradient by its output) of each layer."""

    def __init__(self, layers: "list[tuple[Tap, Tensor, Tensor]]", views: int = 1):
        self._layers = [(tap, *tap.rule.prepare(tap.layer, a, g)) for tap, a, g in layers]
        if views > 1:
            self._layers = [(tap, *tap.rule.mean(a, g, views)) for tap, a, g in self._layers]

    def squared_norms(self) -> Tensor:
        squares = [tap.rule.squared_norms(tap.layer, a, g) for tap, a, g in self._layers]
        return reduce(torch.add, squares)

    def weighted_sum(self, weights: Tensor) -> Tensor:
        parts = []
        for tap, a, g in self._layers:
            sums = tap.rule.weighted_sums(tap.layer, a, g, weights)
            # In the order of named_parameters, as everywhere.
            parts += [sums[n].flatten(1) for n, _ in tap.layer.named_parameters() if n in sums]
        return torch.cat(parts, 1)


class Tap:
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
        return f"{self.name}.{parameter}" if self.name else parameter

    def read(self, inputs: Tensor, models: int) -> Tensor:
        """Read what the layer needs of all models' inputs (models * records, ...), taken apart."""
        return self.rule.read(self.layer, inputs).unflatten(0, (models, -1))

    def read_once(self, block: Block, models: int) -> Tensor:
        """Read what the layer needs of the records themselves, (models, records, ...)."""
        key = f"read {self.name}"
        if key not in block.kept:
            own = block.x if block.shared else block.x.flatten(0, 1)
            block.kept[key] = self.rule.read(self.layer, own)
        found: Tensor = block.kept[key]
        # Expanded, not repeated: rules see by the stride of 0 that all models read the same.
        if block.shared:
            return found.expand(models, *found.shape)
        return found.unflatten(0, (models, -1))

    def floats(self) -> int:
        return self.rule.floats(self.layer, self.output_shape)
