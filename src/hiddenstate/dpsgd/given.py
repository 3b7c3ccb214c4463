"""The user's own model, uncopied, on records as given: what copies and casts must agree with.

Kernels and their probe work on copies of the model and on records in its precision. What is lost on
the way there, neither of them can see.
"""

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from types import FunctionType, ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from hiddenstate.dpsgd.probe import (
    FAILURES,
    Loss,
    copied,
    on_trial,
    refuse_mixing,
    stir,
)
from hiddenstate.errors import InputError
from hiddenstate.streams import stream

_BLOCK = 128
"""Records whose losses together are compared with those of each alone."""
_FEW = 8
"""Records whose losses are compared with those among so many more, at other parameters."""
_CLOSE = 1e-4
"""How far losses and gradients in float32 may be apart, relatively, by rounding."""


class Given:
    """A model, records and labels as given, and the types in which the model takes them.

    whole: whether the model takes records as integers. x and y keep the types they were given in
    where the model and the loss take these.
    """

    def __init__(self, model: nn.Module, x: Tensor, y: Tensor, loss: Loss):
        refuse_aliases(model, x, y)
        self.model, self.x, self.y, self.loss = model, x, y, loss
        self.place = next(p.device for p in model.parameters())
        self.whole = False
        if len(x) and not x.is_complex():
            refuse_tokens(model, x)
            self.whole = not x.is_floating_point() and self._runs(lambda m: m(self._records([0])))

    def _runs(self, call: Callable[[nn.Module], Any]) -> bool:
        """True if a copy of the model, which a failed call may change, runs."""
        with on_trial(), torch.no_grad():
            try:
                call(copied(self.model))
            except FAILURES:
                return False
        return True

    def _records(self, indices: Any) -> Tensor:
        return self.x[indices].to(self.place)

    def _loss(self, model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        # A copy, for a model may write into its records.
        return self.loss(model(x.to(self.place, copy=True)), y.to(self.place))

    def refuse_unlike(self, x: Tensor, y: Tensor) -> None:
        """InputError where the checked records (x, y) or a copy give other losses or gradients.

        Each record's loss alone, by the model itself on the record as given, is compared with that
        of a copy on checked records, many together, in an order of their own; the gradients of a
        few records too. At other parameters, for at some all losses are the same, each record's
        loss among many is compared with that among a few.
        """
        held, taken, labels = copied(self.model), self.x, self.y
        if self.x.dtype != x.dtype and not self._runs(lambda m: m(self._records([0]))):
            taken = x
        if self.y.dtype != y.dtype and not self._runs(
            lambda m: self._loss(m, taken[:1], self.y[:1])
        ):
            labels = y
        order = torch.from_numpy(stream(0, "given").permutation(len(x)))
        with on_trial(), torch.no_grad():
            alone = torch.cat(
                [self._loss(self.model, taken[i : i + 1], labels[i : i + 1]) for i in range(len(x))]
            )
            together, sizes = self._together(held, x, y, order.split(_BLOCK))
            close = 1e-6 if alone.dtype == x.dtype == torch.float64 else _CLOSE
            if (i := _furthest(alone, together.to(alone), sizes, close)) is not None:
                self._explain(i, taken, labels, x, y, held)
                # What neither the copy nor the types explain is due to the records beside.
                refuse_mixing(alone[i : i + 1], together[i : i + 1].to(alone), 0.0)
            moved = copied(self.model)
            stir(moved, "given")
            many, sizes = self._together(moved, x, y, order.split(_BLOCK))
            few, _ = self._together(moved, x, y, torch.arange(len(x)).split(_FEW))
            if (i := _furthest(few, many, sizes, close)) is not None:
                refuse_mixing(few[i : i + 1], many[i : i + 1], 0.0)
        self._refuse_other_gradients(taken, labels, x, y, held)

    def _together(
        self, model: nn.Module, x: Tensor, y: Tensor, parts: tuple[Tensor, ...]
    ) -> tuple[Tensor, Tensor]:
        """Records' losses, some at a time, and the sizes that their rounding grows with."""
        losses, sizes = [], []
        for some in parts:
            outputs = model(x[some].to(self.place))
            losses.append(self.loss(outputs, y[some].to(self.place)))
            own = outputs if len(outputs) == len(some) else losses[-1]
            # Losses are differences of a record's outputs.
            sizes.append(torch.maximum(own.reshape(len(some), -1).abs().amax(1), losses[-1].abs()))
        back = torch.cat(parts).argsort().to(self.place)
        return torch.cat(losses)[back], torch.cat(sizes)[back].nan_to_num(0, 0, 0)

    def _explain(
        self, i: int, taken: Tensor, labels: Tensor, x: Tensor, y: Tensor, held: nn.Module
    ) -> None:
        """InputError where a record's loss changes by the copy, or by the types, alone."""
        one = slice(i, i + 1)
        with on_trial(), torch.no_grad():
            own = self._loss(self.model, taken[one], labels[one])
            copy = self._loss(held, taken[one], labels[one])
            cast = self._loss(held, x[one], y[one]).to(copy)
        if not torch.allclose(own, copy, rtol=1e-5, atol=1e-6, equal_nan=True):
            raise _lost(f"the loss of record {i} is {float(own):g}, and {float(copy):g} by a copy")
        if not torch.allclose(copy, cast, rtol=_CLOSE / 2, atol=1e-6, equal_nan=True):
            name, before, after = ("x", taken, x) if taken.dtype != x.dtype else ("y", labels, y)
            raise InputError(
                f"{name}: the loss of record {i} is {float(copy):g} in {before.dtype} as given, "
                f"and {float(cast):g} in {after.dtype}, the model's precision; expected values "
                "that it can hold, or a model in float64"
            )

    def _refuse_other_gradients(
        self, taken: Tensor, labels: Tensor, x: Tensor, y: Tensor, held: nn.Module
    ) -> None:
        """InputError where a copy's gradients of a few records are not the model's own."""
        own, theirs = ([p for p in m.parameters() if p.requires_grad] for m in (self.model, held))
        foreign = {id(p) for p in own}
        few, copys = list(dict.fromkeys([0, len(x) // 2, len(x) - 1])), []
        x, y = x[few], y[few]
        with on_trial(), torch.enable_grad():
            for j, i in enumerate(few):
                mine, one = slice(j, j + 1), slice(i, i + 1)
                loss = self._loss(held, x[mine], y[mine])
                if foreign & {id(leaf) for leaf in _leaves(loss)}:
                    raise _lost("a copy's loss depends on the parameters of the model itself")
                found = _gradient(loss, theirs)
                expected = _gradient(self._loss(self.model, taken[one], labels[one]), own)
                if not float((found - expected).norm()) <= _CLOSE * (expected.norm() + 1e-3):
                    raise _lost(f"the gradient of record {i} is another by a copy")
                copys.append(torch.cat((loss.detach().flatten(), found)))
            with _moved(own):
                for j, before in enumerate(copys):
                    mine = slice(j, j + 1)
                    loss = self._loss(held, x[mine], y[mine])
                    after = torch.cat((loss.detach().flatten(), _gradient(loss, theirs)))
                    # The first entry is the loss.
                    close = 1e-6 * (float(before[1:].norm()) + 1e-3)
                    if not torch.allclose(after, before, rtol=1e-5, atol=close, equal_nan=True):
                        raise _lost("a copy's loss depends on the parameters of the model itself")
                # What lies in the memory of parameters moved with them, but not in a copy.
                for p, moved in zip(theirs, own, strict=True):
                    p.data.copy_(moved.data)
                for one in torch.arange(len(few)).split(1):
                    losses = [self._loss(m, x[one], y[one]) for m in (self.model, held)]
                    if not torch.allclose(*losses, rtol=_CLOSE, equal_nan=True):
                        raise _lost("a copy with the same parameters has another loss")


def _furthest(losses: Tensor, others: Tensor, sizes: Tensor, close: float) -> int | None:
    """The record whose losses are furthest apart, if further than by rounding."""
    apart = (losses - others).abs() / (close * (1 + 0.1 * sizes.to(losses) + losses.abs()))
    # The difference of two infinite losses is NaN, but they are the same.
    same = (losses == others) | (losses.isnan() & others.isnan())
    apart = apart.nan_to_num(torch.inf).masked_fill(same, 0)
    return int(apart.argmax()) if bool((apart > 1).any()) else None


def refuse_tokens(model: nn.Module, x: Tensor) -> None:
    """InputError for a record with a token beyond the table of one of the model's embeddings.

    Of models side by side, a table is followed by another's.
    """
    if not any(isinstance(layer, nn.Embedding) for layer in model.modules()):
        return
    model, wrong = copied(model), list[str]()

    # ``start`` is the first record of the block that the loop below is at.
    def look(name: str, layer: Any, inputs: tuple[Any, ...]) -> None:
        tokens, rows = inputs[0], layer.num_embeddings
        for i, *at in ((tokens < 0) | (tokens >= rows)).nonzero()[:1].tolist():
            token = f"gives {name} the token {int(tokens[i, *at])}"
            wrong.append(f"x: record {start + i} {token}; expected 0 to {rows - 1}")

    for name, layer in model.named_modules():
        if isinstance(layer, nn.Embedding):
            layer.register_forward_pre_hook(partial(look, name or "the model"))
    place = next(p.device for p in model.parameters())
    for start in range(0, len(x), _BLOCK):
        # The hook notes a wrong token before the layer fails on it.
        with on_trial(), torch.no_grad(), suppress(*FAILURES):
            model(x[start : start + _BLOCK].to(place, copy=True))
        if wrong:
            raise InputError(wrong[0])


@contextmanager
def _moved(parameters: list[nn.Parameter]) -> Iterator[None]:
    """Parameters have other values, in place, so that all that reads them shows; then their own.

    Autograd is not told, for it would refuse to go back through graphs that were made before.
    """
    rng = stream(0, "given", "parameters")
    kept = [p.detach().clone() for p in parameters]
    try:
        for p in parameters:
            noise = torch.from_numpy(np.asarray(rng.uniform(0.1, 1, tuple(p.shape))))
            p.data.add_(noise.to(p))
        yield
    finally:
        for p, values in zip(parameters, kept, strict=True):
            p.data.copy_(values)


def _gradient(loss: Tensor, parameters: list[nn.Parameter]) -> Tensor:
    found = torch.autograd.grad(loss.sum(), parameters, allow_unused=True, materialize_grads=True)
    return torch.cat([g.flatten() for g in found])


def _lost(what: str) -> InputError:
    return InputError(
        f"model: {what}; expected a model that copy.deepcopy copies whole, without functions that "
        "hold its own layers or parameters"
    )


def _leaves(loss: Tensor) -> list[Tensor]:
    """Tensors that a loss has gradients by."""
    found, waiting, seen = [], [loss.grad_fn], set()
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if hasattr(node, "variable"):  # a node that accumulates into a leaf
            found.append(node.variable)
        waiting += [parent for parent, _ in node.next_functions]
    return found


def refuse_hooks(model: nn.Module) -> None:
    """InputError for hooks on parameters, which no copy of the model has."""
    for name, p in model.named_parameters():
        if p._backward_hooks or getattr(p, "_post_accumulate_grad_hooks", None):
            raise InputError(
                f"model: {name} has a hook (register_hook), which per-sample gradients do not "
                "pass; expected none, or the same change in forward"
            )


def refuse_aliases(model: nn.Module, x: Tensor, y: Tensor) -> None:
    """InputError for what lies in the memory of a parameter that is trained, and changes with it.

    In a copy, or where parameters are given from outside, it would not, or the other way round.
    """
    trained = [(n, p) for n, p in model.named_parameters() if p.requires_grad]
    for name, p in trained:
        least = 1
        # By strides in order, an axis has to step over all that the axes before it span.
        for step, size in sorted((s, n) for s, n in zip(p.stride(), p.shape, strict=True) if n > 1):
            if step < least:
                raise InputError(
                    f"model: entries of parameter {name!r} lie in one place, as those of an "
                    f"expanded one; expected {name}.clone(), or forward to expand a smaller one"
                )
            least = step * size
    places = [(name, p, place) for name, p in trained if (place := _place(p)) is not None]
    others = [(f"model: {name!r}", value) for name, value in _tensors(model)]
    for what, value in (*others, ("x:", x), ("y:", y)):
        if (at := _place(value)) is None:
            continue
        for name, p, place in places:
            if value is not p and np.shares_memory(at, place):
                raise InputError(
                    f"{what} lies in the memory of parameter {name!r}, and no copy of the model "
                    "changes both; expected a tensor of its own (clone), or one that forward makes "
                    "of the parameter"
                )


def _tensors(model: nn.Module) -> Iterator[tuple[str, Any]]:
    """Tensors and arrays that a model holds, also in its containers and objects, by name."""
    waiting: list[tuple[str, Any]] = [("", model)]
    seen: set[int] = set()
    while waiting:
        name, value = waiting.pop()
        if id(value) in seen or isinstance(value, _HOLD_NONE):
            continue
        seen.add(id(value))
        if isinstance(value, Tensor | np.ndarray):
            yield name, value
        inner: dict[Any, Any] = dict(getattr(value, "__dict__", {}))
        if isinstance(value, nn.Module):
            for part in ("_modules", "_buffers", "_parameters"):
                inner |= inner.pop(part)
        elif isinstance(value, dict):
            inner |= value
        elif isinstance(value, list | tuple | set | frozenset | deque):
            inner |= enumerate(value)
        waiting += [(f"{name}.{n}" if name else str(n), v) for n, v in inner.items()]


_HOLD_NONE = (str, bytes, bool, int, float, type(None), type, ModuleType, FunctionType)
"""Types of values in which no tensor of a model's own lies."""


def _place(value: Any) -> np.ndarray | None:
    """Where a tensor or an array lies, as an array of its shape that is never read."""
    if isinstance(value, np.ndarray):
        return value
    try:
        start, steps = value.data_ptr(), value.stride()
    except RuntimeError:  # of some layouts
        return None
    if not start or not value.numel():
        return None
    size = value.element_size()
    lies = {
        "version": 3,
        "data": (start, True),
        "typestr": f"|V{size}",  # bytes of no type, for numpy lacks some of torch's
        "shape": tuple(value.shape),
        "strides": tuple(step * size for step in steps),
    }
    return np.asarray(SimpleNamespace(__array_interface__=lies))


def whole_numbers_kept(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Integer records in a precision that holds them; InputError names the first number it changes.

    For example, float32 holds 2^24 and not the next integer.
    """
    cast = x.to(dtype)
    # From 2^53 on float64 rounds integers, so that the comparison itself would tell nothing.
    lost = (cast.double() != x.double()) | (x.abs() >= 2**53 if x.dtype == torch.int64 else False)
    if bool(lost.any()):
        i, at = map(int, lost.reshape(len(x), -1).nonzero()[0])
        raise InputError(
            f"x: record {i} holds {int(x[i].flatten()[at])} (entry {at}), which {dtype} does not "
            "hold; expected smaller numbers, a model in float64, or one that takes integers"
        )
    return cast
