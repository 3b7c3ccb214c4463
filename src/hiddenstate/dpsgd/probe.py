"""A few records' gradients by plain autograd, one by one: what every kernel must agree with.

Kernels read a model's layers; what its ``forward`` really does with them no reading of layers can
tell. So each kernel is compared with these gradients once, when it is made.
"""

import copy
import math
import random
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import vmap
from torch.nn.parameter import is_lazy
from torch.utils._python_dispatch import TorchDispatchMode

from hiddenstate.dpsgd.checkpoint import fingerprint
from hiddenstate.errors import InputError
from hiddenstate.streams import stream

CHANCE = threading.RLock()
"""Held by what draws from, or watches, the generators that a process has one of."""


@contextmanager
def on_trial() -> Iterator[None]:
    """A model is run to see what it does: chance is as before, and torch's warnings are silent."""
    with CHANCE, torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


_TOGETHER, _BYTES = 32, 2**30
"""Records whose gradients together are compared, and the most that these take in float64."""
Loss = Callable[[Tensor, Tensor], Tensor]

FAILURES = (
    *(RuntimeError, TypeError, ValueError, LookupError, AssertionError, AttributeError),
    *(ArithmeticError, NameError, OSError),
)
"""What a model raises that does not fit its records or its precision."""


class Probe:
    """Two records, their labels, parameters, and float64 gradients at these.

    The parameters are the model's with some noise, for at a special point (zeros, say) a wrong
    gradient may be right. With ``classes`` known the labels are the least likely ones, whose
    gradients are large. A model that cannot run in float64 runs in its own precision.

    x: shape (records, *record shape). y: shape (records,). Raises InputError for a model that
    fails on the records, is random, mixes the records of a batch, or changes when it is called.
    """

    def __init__(self, model: nn.Module, x: Tensor, y: Tensor, loss: Loss, *, relabel: bool):
        self._loss = loss
        self.dtype = torch.float64
        picked = [0, len(x) - 1]
        self.x, self.y = x[picked].detach().cpu(), y[picked].detach().cpu()
        # As many where there are fewer: kernels put the records of several models side by side.
        size = 8 * sum(p.numel() for p in model.parameters() if p.requires_grad)
        together = max(2, min(_TOGETHER, _BYTES // max(1, size)))
        some = np.resize(stream(0, "probe", "together").permutation(len(x)), together)
        self._many = x[some].detach().cpu(), y[some].detach().cpu()
        if self.x.is_floating_point():
            # The second record is a neighbour, so that two equal ones do not hide mixing.
            self.x[1] += self._noise(self.x[1:])[0]
        with on_trial():
            try:
                self._prepare(copied(model).cpu().double(), relabel)
            except InputError:  # which is a ValueError too
                raise
            except FAILURES:
                self.dtype = next(p.dtype for p in model.parameters() if p.requires_grad)
                try:
                    self._prepare(copied(model).cpu(), relabel)
                except InputError:
                    raise
                except FAILURES as error:
                    raise InputError(
                        f"model: fails on records of shape {tuple(x.shape[1:])}, {x.dtype} "
                        f"({first_line(error)}); expected one that takes them"
                    ) from error
        self.tolerance = 1e-6 if self.dtype == torch.float64 else 1e-3

    def _prepare(self, model: nn.Module, relabel: bool) -> None:
        """The model at the parameters, and the gradients there."""
        self.model = model
        stir(model, "parameters")
        self.theta = torch.cat(
            [p.detach().flatten() for p in model.parameters() if p.requires_grad]
        )
        # Before the first call, which may leave something behind.
        uncalled, untouched = copied(model), _Untouched(model)
        self.x = self._cast(self.x)
        if not isinstance(outputs := self._outputs(self.x[:1]), Tensor):
            raise TypeError(f"its output is {type(outputs).__name__}, no tensor")
        self.classes = outputs.shape[1] if outputs.dim() == 2 else None
        relabel = relabel and bool(self.classes)
        if relabel:
            with torch.no_grad():
                alone = [self._outputs(record[None])[0] for record in self.x]
            self.y = torch.stack(alone).argmin(1)
        self._refuse_changing()
        self._refuse_writes(untouched)
        self._refuse_random_and_mixed()
        self._refuse_kept(uncalled)
        self._refuse_mixed_gradients(relabel)

    def _refuse_writes(self, untouched: "_Untouched") -> None:
        """InputError for a pass that writes into parameters, be it what was there."""
        with untouched, torch.enable_grad(), suppress(*FAILURES):  # which the next pass raises
            losses = self._loss(self.model(self.x[:1].clone()), self.y[:1])
            trained = [p for p in self.model.parameters() if p.requires_grad]
            torch.autograd.grad(losses.sum(), trained, allow_unused=True)
        if (name := untouched.broken()) is not None:
            raise InputError(
                f"model: forward writes into parameter {name!r}, so that a training has others "
                "than its steps gave it; expected a forward that calculates with changed values "
                "of its own"
            )

    def _refuse_changing(self) -> None:
        """InputError for what a pass leaves behind, in the model or in what its code names.

        The first pass may make what it needs: the second is watched.
        """
        for before in (None, "made"):
            if before:
                states = _states(self.model, self._loss)
            with torch.no_grad():
                self._losses(self.x[:1], self.y[:1])
                self._losses(self.x, self.y)
            self.gradients = self._gradients(self.x)
        changed = [
            name
            for name, state in _states(self.model, self._loss).items()
            if states.get(name) != state
        ]
        if changed:
            raise InputError(
                f"model: calling it changes {changed[0]!r}, so that a model depends on those "
                "that are trained before it; expected a forward that leaves the model as it is"
            )

    def _refuse_kept(self, uncalled: nn.Module) -> None:
        """InputError for what the first calls make of parameters or records, and later ones use.

        A copy of the model, yet uncalled, makes it at other parameters and of other records.
        """
        other = copy.copy(self)
        other.model = uncalled
        stir(uncalled, "others")
        # Integers have no neighbours, so the two records change places.
        records = self.x + self._noise(self.x) if self.x.is_floating_point() else self.x.flip(0)
        other._outputs(records[:1])
        with torch.no_grad():
            other._losses(records, self.y)
        other._gradients(records)
        trained = [p for p in uncalled.parameters() if p.requires_grad]
        with torch.no_grad():  # not in place, or what was made as a view of them would change too
            nn.utils.vector_to_parameters(self.theta.clone(), trained)
            made, losses = (probe._losses(self.x, self.y) for probe in (self, other))
        apart = (other._gradients(self.x) - self.gradients).norm(dim=1)
        close = 1e-6 if self.dtype == torch.float64 else 1e-3
        if not torch.allclose(made, losses, rtol=close, atol=close, equal_nan=True) or bool(
            (apart > _margins(self.gradients, close)).any()
        ):
            mine, its = _states(self.model, self._loss), _states(other.model, other._loss)
            name = next((name for name in mine if mine[name] != its.get(name)), "something")
            raise InputError(
                f"model: its first call makes {name!r} of parameters or records, and later calls "
                "use it at others; expected a forward that depends on nothing before it"
            )

    def differs(self, kernel: Callable[[Tensor, Tensor], Tensor], tolerance: float) -> bool:
        """True if a kernel's per-sample gradients are others than these.

        ``kernel`` maps records (n, *record shape) and labels (n,) to gradients (n, p), at
        ``theta``. Rounding may crown another winner of a max-pooling where two are level; a
        neighbouring record then settles it.
        """
        with on_trial():
            return self._differs(kernel, tolerance)

    def _differs(self, kernel: Callable[[Tensor, Tensor], Tensor], tolerance: float) -> bool:
        if _same(kernel(self.x, self.y), self.gradients, tolerance):
            return False
        if not self.x.is_floating_point():
            return True
        near = self.x + self._noise(self.x)
        return not _same(kernel(near, self.y), self._gradients(near), tolerance)

    def differs_together(
        self, kernel: Callable[[Tensor, Tensor, Tensor], Tensor], tolerance: float
    ) -> bool:
        """The same of the sum of many records' gradients, each with a weight.

        ``kernel`` maps records, labels and weights (1, records) to the sum (1, p). Two records may
        not show what only some meet, large ones for example.
        """
        x, y, weights = self._weighted
        with on_trial():
            for near in self._near(x):
                expected = self._gradient(near, y, weights)[None]
                if _same(kernel(near, y, weights[None]), expected, tolerance):
                    return False
        return True

    def _near(self, x: Tensor) -> Iterator[Tensor]:
        """The records, and neighbours: one settles what rounding may have decided in the other."""
        yield x
        if x.is_floating_point():
            yield x + self._noise(x)

    def _outputs(self, x: Tensor) -> Tensor:
        return self.model(x.clone())  # into which it may write

    def _cast(self, x: Tensor) -> Tensor:
        return x.to(self.dtype) if x.is_floating_point() else x

    def _noise(self, x: Tensor) -> Tensor:
        """A tenth of the records' own spread, or of 1 for constant ones."""
        # With the usual correction the spread of a single entry is NaN.
        spread = float(x.double().std(correction=0)) or 1.0
        draw = stream(0, "probe", "records").standard_normal(tuple(x.shape))
        return (0.1 * spread * torch.from_numpy(draw)).to(x)

    def _losses(self, x: Tensor, y: Tensor) -> Tensor:
        losses = self._loss(self._outputs(x), y)
        if losses.shape != (len(x),):
            raise InputError(
                f"loss: got shape {tuple(losses.shape)} for {len(x)} records; expected "
                f"({len(x)},), one a record"
            )
        return losses

    def _refuse_random_and_mixed(self) -> None:
        before = _generators()
        with torch.no_grad():
            alone, again = (
                torch.cat([self._losses(self.x[i : i + 1], self.y[i : i + 1]) for i in range(2)])
                for _ in range(2)
            )
            together = self._losses(self.x, self.y)
        other = self._gradients(self.x)
        if _generators() != before:
            raise InputError(
                "model: draws random numbers; expected no dropout or other chance in it"
            )
        if not torch.equal(alone, again):
            raise InputError(
                f"model: gave a record the losses {float(alone[0])!r} and {float(again[0])!r} at "
                "the same parameters; expected no dropout or other chance in it"
            )
        apart = (other - self.gradients).norm(dim=1)
        if bool((apart > _margins(self.gradients, 1e-5)).any()):  # not so if it is no number
            raise InputError(
                "model: gave a record two gradients at the same parameters; expected no dropout or "
                "other chance in it"
            )
        refuse_mixing(alone, together, 1e-6 if self.dtype == torch.float64 else 1e-3)

    def _refuse_mixed_gradients(self, relabel: bool) -> None:
        """InputError where records change each other's gradients, if in the backward pass alone.

        The gradient of many records' losses is compared with the sum of those of a few of them
        alone and of the others, fewer than all, together: what mixes them by their number, norm,
        mean or places gives another sum then. Weights of the records tell a permutation.
        """
        x, y = self._cast(self._many[0]), self._many[1]
        if relabel:
            with torch.no_grad():
                y = self._outputs(x).argmin(1)
        weights = torch.from_numpy(stream(0, "probe", "weights").uniform(0.5, 1.5, len(x)))
        weights = weights.to(self.dtype)
        alone = len(x) // 4 or 1
        close = 1e-6 if self.dtype == torch.float64 else 1e-3
        self._weighted = x, y, weights
        for records in self._near(x):
            off, margin = self._gradient(records, y, weights), 0.0
            for part in (*(slice(i, i + 1) for i in range(alone)), slice(alone, None)):
                found = self._gradient(records[part], y[part], weights[part])
                off, margin = off - found, margin + float(_margins(found[None], close))
            if not float(off.norm()) > margin:
                return
        raise InputError(
            f"model: mixes the records of a batch (the gradient of {len(x)} together is not the "
            "sum of their own); expected each record to be treated on its own, by hooks "
            "and in the backward pass too"
        )

    def branches(self) -> bool:
        """True if ``forward`` branches on the records' values, as ``if x.max() > 1`` does.

        Records that torch maps over have no values to read.
        """
        try:
            with on_trial(), torch.no_grad():
                vmap(lambda record: self.model(record[None]))(self.x)
        except RuntimeError as error:
            return any(sign in str(error) for sign in _VALUES_READ)
        return False

    def _gradients(self, x: Tensor, y: Tensor | None = None) -> Tensor:
        """Shape (records, p); labels (records,) are the probe's own if none are given."""
        y = self.y if y is None else y
        one = torch.ones(1, dtype=self.dtype)
        rows = [self._gradient(x[i : i + 1], y[i : i + 1], one) for i in range(len(x))]
        return torch.stack(rows)

    def _gradient(self, x: Tensor, y: Tensor, weights: Tensor) -> Tensor:
        """The gradient (p,) of the sum of losses with weights (records,)."""
        parameters = [p for p in self.model.parameters() if p.requires_grad]
        with torch.enable_grad():
            total = (weights * self._losses(x, y)).sum()
            found = torch.autograd.grad(
                total, parameters, allow_unused=True, materialize_grads=True
            )
        return torch.cat([g.flatten() for g in found])


class _Untouched(TorchDispatchMode):
    """Sees what is written into while it is entered, and knows parameters as they were before."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self._model, self._written = model, set[int]()
        self._before = [
            (name, p, p.detach(), p.detach().clone()) for name, p in model.named_parameters()
        ]

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # Torch would import its compiler, a second, to keep it out of here.
        return False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        for i, argument in enumerate(func._schema.arguments):
            if argument.alias_info is not None and argument.alias_info.is_write:
                value = args[i] if i < len(args) else kwargs.get(argument.name)
                for one in value if isinstance(value, list | tuple) else [value]:
                    if isinstance(one, Tensor) and (place := _storage(one)):
                        self._written.add(place)
        return func(*args, **kwargs)

    def broken(self) -> str | None:
        """The first parameter that was written into, or is another; None if there is none."""
        now = dict(self._model.named_parameters())
        for name, p, held, values in self._before:  # held, or other values might get its memory
            same = p.data_ptr() == held.data_ptr()
            same = same and torch.allclose(p, values, 0, 0, equal_nan=True)
            if now.get(name) is not p or not same or _storage(p) in self._written:
                return name
        return None


def _storage(tensor: Tensor) -> int:
    """Where the memory lies that a tensor is a view of, or 0 where none is known."""
    with suppress(RuntimeError):
        return tensor.untyped_storage().data_ptr()
    return 0


def _states(model: nn.Module, loss: Loss) -> dict[str, str]:
    """Digests of all that the model and the loss hold or name, by name."""
    held: dict[str, object] = {"loss": loss}
    held |= {n: v for n, v in vars(nn.modules.module).items() if n in _GLOBAL_HOOKS and v}
    for path, module in model.named_modules():
        own = {n: v for n, v in vars(module).items() if n not in _TORCH_S_OWN}
        own |= module._buffers | module._parameters
        own |= {n: v for n, v in vars(module).items() if n in _HOOKS and v}
        held |= {f"{path}.{name}" if path else name: value for name, value in own.items()}
        held[f"class {type(module).__qualname__}"] = type(module)
    found = {}
    for name, value in held.items():
        try:
            found[name] = repr(value) if type(value) in _PLAIN else fingerprint(value)
        except InputError as error:
            raise InputError(
                f"model: nothing shows whether a call changes {name!r} ({error})"
            ) from error
    return found


@contextmanager
def nothing_shared(uncalled: nn.Module, loss: Loss) -> Iterator[None]:
    """InputError where calls of a model change what a copy of it, itself not called, holds too.

    Such as what the first call makes in a class, a module or the loss: all later models use it.
    """
    before = _states(uncalled, loss)
    yield
    after = _states(uncalled, loss)
    changed = [name for name, state in after.items() if before.get(name) != state]
    if changed:
        raise InputError(
            f"model: its first call changes {changed[0]!r}, which all copies of the model share, "
            "so that a model depends on those before it; expected to find it made"
        )


_VALUES_READ = (".item()", "data-dependent control flow", "data pointer")
"""What torch says where a mapped tensor's values are read."""


def refuse_mixing(alone: Tensor, together: Tensor, close: float) -> None:
    """InputError where records' losses (records,) are others alone than beside other records."""
    if torch.allclose(alone, together, rtol=close, atol=close, equal_nan=True):
        return
    i = int((alone - together).abs().nan_to_num(math.inf).argmax())
    raise InputError(
        f"model: mixes the records of a batch (a record's loss is {float(alone[i]):g} alone and "
        f"{float(together[i]):g} beside others); expected each record to be treated on its own"
    )


def copied(model: nn.Module) -> nn.Module:
    """A copy of the model; InputError, which says what to do, where torch makes none."""
    if not isinstance(model, nn.Module):
        raise InputError(f"model: got {model!r:.80}; expected a torch.nn.Module")
    for name, value in (*model.named_parameters(), *model.named_buffers()):
        if is_lazy(value) or value.is_meta:
            raise InputError(
                f"model: {name!r} has no values, as in a lazy layer before its first call or on "
                "device 'meta'; expected a model that has been called, on a CPU"
            )
        if value.is_inference():
            raise InputError(
                f"model: {name!r} was made in torch.inference_mode, and autograd does not take it; "
                "expected a model that was made outside"
            )
    if hasattr(model, "_orig_mod"):
        raise InputError(
            "model: is compiled (torch.compile), and its code was made for its own parameters; "
            "expected the model that was compiled, model._orig_mod"
        )
    if isinstance(model, torch.jit.ScriptModule):
        raise InputError(
            "model: is a script (torch.jit), whose layers cannot be read; expected the model that "
            "it was made from"
        )
    for path, module in model.named_modules():
        for name, value in vars(module).items():
            if isinstance(value, Tensor) and value.grad_fn is not None:
                raise InputError(
                    f"model: {path + '.' if path else ''}{name} is calculated from other "
                    "parameters by a hook, which no copy of the model can have; expected "
                    "torch.nn.utils.prune.remove(module, name) after pruning, or "
                    "torch.nn.utils.parametrizations.weight_norm in place of "
                    "torch.nn.utils.weight_norm"
                )
    try:
        found = copy.deepcopy(model)
    except Exception as error:  # whatever a module's own attributes raise
        raise InputError(
            f"model: cannot be copied ({first_line(error)}); expected one that copy.deepcopy copies"
        ) from error
    # A module or tensor of a class of its own may be its own copy.
    own, its = _parts(model), _parts(found)
    if shared := own.keys() & its.keys():
        name = next(name for key, name in own.items() if key in shared)
        raise InputError(
            f"model: copy.deepcopy gives {repr(name) if name else 'the model'} itself, no copy; "
            "expected a model that copy.deepcopy copies whole"
        )
    return found


def _parts(model: nn.Module) -> dict[object, str]:
    """Names of a model's modules by their identity, and of its tensors by where they lie."""
    found: dict[object, str] = {id(module): name for name, module in model.named_modules()}
    for name, value in (*model.named_parameters(), *model.named_buffers()):
        if place := _storage(value):
            found.setdefault((value.device, place), name)
    return found


def stir(model: nn.Module, name: str) -> None:
    """Add some noise, of a stream of this name, to the trainable parameters."""
    rng = stream(0, "probe", name)
    with torch.no_grad():
        for p in model.parameters():
            if p.requires_grad:
                inputs = p.numel() // len(p) if p.numel() and p.dim() else 1
                # Zeros move by a tenth of a usual initialisation, 1 / sqrt(inputs).
                scale = 0.1 * float(p.square().mean().sqrt()) or 0.1 * inputs**-0.5
                draw = np.asarray(rng.standard_normal(tuple(p.shape)))
                p.add_(scale * torch.from_numpy(draw).to(p))


_PLAIN = (bool, int, float, str, type(None))
"""Types of values whose text says all, with no need of a digest."""
_TORCH_S_OWN = set(vars(nn.Module()))
_HOOKS = {name for name in _TORCH_S_OWN if name.endswith("hooks")}
_GLOBAL_HOOKS = {f"_global{name}" for name in _HOOKS}
"""Torch's names of the hooks that all modules have."""


def _same(found: Tensor, expected: Tensor, tolerance: float) -> bool:
    distance = (found.to(expected) - expected).norm(dim=1)
    return bool((distance <= _margins(expected, tolerance)).all())


def _margins(gradients: Tensor, tolerance: float) -> Tensor:
    """How far gradients (records, p) may be off, shape (records,)."""
    # The second term is for gradients that are zero except for rounding.
    return tolerance * (gradients.norm(dim=1) + 1e-3)


def first_line(error: Exception) -> str:
    """The beginning of an error's message."""
    return str(error).strip().partition("\n")[0][:200]


def _generators() -> tuple[object, ...]:
    """States of the generators that a model could draw from, whether or not it shows."""
    shared: Any = np.random.get_state()  # noqa: NPY002 - models may draw from it
    states = torch.get_rng_state().numpy().tobytes(), shared[1].tobytes(), shared[2:]
    return (*states, random.getstate())
