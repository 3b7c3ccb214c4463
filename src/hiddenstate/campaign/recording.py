"""Record a training with Opacus step by step while it runs, without changing it.

The residual of a step is what the optimizer released less the sum of clipped gradients, over the
claimed deviation of the noise: in a right training independent normal variables of variance 1. The
sum is computed here from the gradients of each record, and compared with the optimizer's own.
Trainings need not know of this: Opacus's classes are observed where they are, for as long as
``recording`` lasts.
"""

import math
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from copy import deepcopy
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from opacus import PrivacyEngine
from opacus.data_loader import DPDataLoader
from opacus.optimizers import DPOptimizer
from opacus.utils import adaptive_clipping  # noqa: F401, its class is observed as well
from opacus.utils.batch_memory_manager import BatchSplittingSampler
from opacus.utils.fast_gradient_clipping_utils import DPTensorFastGradientClipping
from torch import Tensor
from torch.optim.optimizer import register_optimizer_step_pre_hook

from hiddenstate.campaign import batches, clipping
from hiddenstate.campaign.checking import around, around_all

KEPT_STEPS = 48
"""Steps whose residuals are kept; the others leave their sums alone."""
KEPT_COORDINATES = 8192
"""Coordinates of each tensor that are looked at, half of them its first ones."""
SHARE = 0.2
"""Of the time so far, what gradients of each record may take where ghost clipping makes none."""
ONE_LOSS = (
    "the loss is one number, not one for each record, so that ghost clipping shortens the sum of a "
    "batch and no record's gradient"
)
TINY = 1e-5
"""What counts as no noise, in deviations, where rounding is not coarser."""


@dataclass
class Step:
    """Numbers that are read of a step.

    rows: gradients that the optimizer had. accumulated: batches in them. noise_multiplier,
    clipping_norm, divisor, dtype: the optimizer's. squares, tiny, counts: by tensor, sum of squared
    residuals, how many are below ``tolerance``, and how many there are. along, along_last:
    residual along the sum of this step and of the last, and along the last residual, each normal.
    by_rows: sum of squared residuals had the optimizer divided by the number of rows.
    residuals: by tensor, in its shape as far as it is kept; None if this step's are not.
    """

    rows: int
    accumulated: int
    noise_multiplier: float
    clipping_norm: float
    divisor: float
    dtype: str
    squares: list[float]
    tiny: list[int]
    counts: list[int]
    tolerance: float
    along: float | None
    along_last: float | None
    by_rows: float
    residuals: list[np.ndarray] | None = None
    repeated: float | None = None


@dataclass
class Recorded:
    """Record of a training.

    steps: of the private optimizer. names: of its tensors. wrong: what is wrong with a sum of
    clipped gradients, with the step, None for after the training. batches: records of each batch
    that a step used, by index. rates: of the sampler of each, None without Poisson sampling.
    records: their number. sampler: in words, one without Poisson sampling if there is one. loaders:
    of each loader that Opacus replaced, its batch size, sampler and the mean batch of what replaced
    it. history: of the accountant. ghost: norms of the module that clips and of the optimizer that
    adds noise. mixed: how far a record's output depends on the others in its batch. plain: classes
    of optimizers that stepped private parameters. bare: steps before which its optimizer stepped
    without Opacus. micro: (step, rows, records) where they differ. reused: steps whose gradients
    are of no new batch. optimizers: identities of the private ones that stepped. compared: sums
    that were compared with clipped gradients of the records. outside: steps of other optimizers on
    tensors that Opacus never had.
    """

    steps: list[Step] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    wrong: list[tuple[int | None, clipping.Wrong]] = field(default_factory=list)
    batches: list[list[int]] = field(default_factory=list)
    records: int | None = None
    rates: list[float | None] = field(default_factory=list)
    sampler: str | None = None
    loaders: list[tuple[int, str, float]] = field(default_factory=list)
    history: list[tuple[float, float, int]] | None = None
    ghost: tuple[float, float] | None = None
    mixed: float = 0.0
    plain: list[str] = field(default_factory=list)
    bare: list[int] = field(default_factory=list)
    micro: list[tuple[int, int, int]] = field(default_factory=list)
    reused: list[int] = field(default_factory=list)
    optimizers: set[int] = field(default_factory=set)
    secure: bool = False
    compared: int = 0
    outside: int = 0

    @property
    def rate(self) -> float | None:
        """The largest sampling rate, None unless every batch is of Poisson sampling."""
        known = [rate for rate in self.rates if rate is not None]
        return max(known) if known and len(known) == len(self.rates) else None

    @property
    def noise(self) -> list[float]:
        """The first numbers of the first step's residuals, by which trainings are told apart."""
        first = self.steps[0].residuals if self.steps else None
        return [] if first is None else [float(x) for x in first[0].ravel()[:32]]


@contextmanager
def recording(
    noise_multiplier: float | None = None, clipping_norm: float | None = None
) -> Iterator[Recorded]:
    """Record the trainings with Opacus of this process; what is claimed scales the residuals."""
    recorder = _Recorder(noise_multiplier, clipping_norm)
    with ExitStack() as stack:
        recorder.observe(stack)
        yield recorder.found
        recorder.end()


class _Recorder:
    def __init__(self, noise_multiplier: float | None, clipping_norm: float | None) -> None:
        self.sigma, self.norm = noise_multiplier, clipping_norm
        self.found = Recorded()
        self.optimizers: dict[int, Any] = {}
        self.engines: list[Any] = []
        self.data: Any = None
        self.arrivals: list[tuple[Any, list[int]]] = []
        self.pending: _Pending | None = None
        self.last: tuple[list[Tensor], list[Tensor]] | None = None
        self.stride = 1
        self.probing = self.observed = False
        self.backwards, self.spent, self.began = 0, 0.0, time.process_time()
        self.ghosts: list[Tensor] | None = None
        self.losses: int | None = None
        self.told: dict[int, int] | None = None
        self.output: Tensor | None = None

    # What is observed.

    def observe(self, stack: ExitStack) -> None:
        """Put observers around Opacus's methods, until the stack is closed."""
        batches.tell(self)
        handle = register_optimizer_step_pre_hook(self._stepping)
        stack.callback(handle.remove)

        for owner, name, wrapper in (
            (DPOptimizer, "__init__", self._made),
            (PrivacyEngine, "_prepare_model", self._model),
            (PrivacyEngine, "_prepare_data_loader", self._loader),
            (torch.Tensor, "backward", self._loss),
        ):
            around(stack, owner, name, wrapper)
        around_all(stack, DPTensorFastGradientClipping, "backward", self._backward)
        around_all(stack, DPOptimizer, "pre_step", self._pre_step)

    def _made(self, original: Any, optimizer: Any, /, *given: Any, **named: Any) -> None:
        original(optimizer, *given, **named)
        self.optimizers[id(optimizer.original_optimizer)] = optimizer

    def _model(self, original: Any, engine: Any, /, *given: Any, **named: Any) -> Any:
        module = given[0] if given else named["module"]
        if engine not in self.engines:
            self.engines.append(engine)
        made = original(engine, *given, **named)
        self.found.names = [name for name, p in module.named_parameters() if p.requires_grad]
        self.named = {id(p): name for name, p in module.named_parameters()}
        if named.get("batch_first", True):
            # Without a wrapper of Opacus's the model is called itself.
            called = made if isinstance(made, torch.nn.Module) else module
            called.register_forward_hook(partial(self._forward, made), with_kwargs=True)
        return made

    def _loader(self, original: Any, engine: Any, /, *given: Any, **named: Any) -> Any:
        loader = given[0] if given else named["data_loader"]
        made = original(engine, *given, **named)
        self.data = made.dataset
        size = getattr(loader, "batch_size", None)
        if isinstance(made, DPDataLoader) and size:
            drawn = made.sample_rate * len(made.dataset)
            self.found.loaders.append((int(size), type(loader.sampler).__name__, drawn))
        return made

    def arrived(self, loader: Any, indices: Sequence[int]) -> None:
        """A batch was handed out by some loader."""
        if self.data is None or loader._dataset is self.data:
            self.arrivals.append((loader, list(indices)))
            # Batches of an evaluation, which no step takes, would pile up.
            del self.arrivals[:-64]

    def _forward(self, made: Any, module: Any, given: Any, named: Any, output: Any) -> None:
        if self.probing or not (module.training and torch.is_grad_enabled()):
            return
        if len(self.found.steps) in (0, 3):
            tensors = [x for x in (*given, *named.values()) if isinstance(x, Tensor) and x.ndim]
            self.output = _first(output, len(tensors[0])) if tensors else None
            self.probing = True
            try:
                itself = {id(self): self, id(made): made}
                self.found.mixed = max(self.found.mixed, _mixing(module, itself, given, named))
            except (RuntimeError, TypeError, ValueError, IndexError):
                pass  # it cannot be copied, or does not run on half a batch: nothing is known
            finally:
                self.probing = False

    def _loss(self, original: Any, loss: Any, /, *given: Any, **named: Any) -> Any:
        output, self.output = self.output, None
        if output is not None and not self.probing and output.requires_grad and not loss.ndim:
            # A loss may have no second derivative.
            with suppress(RuntimeError):
                self.found.mixed = max(self.found.mixed, _mixing_of_loss(loss, output))
        return original(loss, *given, **named)

    # Gradients of each record, and the sum of them.

    def _pre_step(self, original: Any, optimizer: Any, /, *given: Any, **named: Any) -> Any:
        # Our own probes run the observed methods, too.
        if self.probing:
            return original(optimizer, *given, **named)
        self.observed = True
        with self._compared(optimizer):
            return original(optimizer, *given, **named)

    @contextmanager
    def _compared(self, optimizer: Any) -> Iterator[None]:
        """Clip a part of the batch as claimed, and compare with it what the optimizer sums up."""
        if self.told is None:
            # A training that goes on from a checkpoint has an accountant that was told before.
            self.told = {id(e): sum(t for *_, t in _history(e) or []) for e in self.engines}
        if self.pending is None:
            self.pending = _Pending(
                sigma=_noise_multiplier(optimizer), norm=float(optimizer.max_grad_norm)
            )
        pending = self.pending
        samples = self.ghosts if _is_ghost(optimizer) else _samples(optimizer)
        losses, self.ghosts, self.losses = self.losses, None, None
        before = _summed(optimizer)
        if samples is None:
            pending.unknown = True
            drawn = self._drawn(losses)
            pending.rows += drawn if losses is None else losses
            yield
            return
        norms = getattr(optimizer, "max_grad_norms", None)
        part = clipping.flat(samples, self.norm or pending.norm)
        if norms is not None and type(optimizer).__name__.endswith("PerLayerOptimizer"):
            part = clipping.by_layer(samples, norms)
            if longer := clipping.longer(norms, pending.norm):
                self.found.wrong.append((len(self.found.steps), longer))
        rows = len(samples[0])
        pending.rows += rows
        pending.accumulated = max(pending.accumulated, _accumulated(optimizer))
        pending.add(part)
        self._drawn(rows)
        yield
        own = _summed(optimizer)
        if own is None:
            return
        more = own = [o.reshape(p.shape) for o, p in zip(own, part, strict=True)]
        # Parts of a batch that came before are in the optimizer's sum already.
        if before is not None:
            more = [o - b.reshape(o.shape) for o, b in zip(own, before, strict=True)]
        pending.own = own
        self.found.compared += 1
        wrong = clipping.compare(more, part, samples, self.norm or pending.norm)
        if wrong is not None:
            pending.another = True
            if wrong.words:
                self.found.wrong.append((len(self.found.steps), wrong))

    def _drawn(self, rows: int | None) -> int:
        """Take the batches that these rows are of."""
        taken = self._taken(rows)
        if not taken:
            if rows and self.found.records is not None:
                self.found.reused.append(len(self.found.steps))
            return 0
        drawn = sum(len(indices) for _, indices in taken)
        if rows is not None and rows != drawn and not (drawn == 0 and rows == 1):
            # Rows fewer than records: the optimizer clips sums of several.
            self.found.micro.append((len(self.found.steps), rows, drawn))
        loader = taken[-1][0]
        sampler = batches.poisson(loader._index_sampler)
        self.found.records = len(loader._dataset)
        rate = None if sampler is None else float(sampler.sample_rate)
        if rate is None or self.found.sampler is None:
            self.found.sampler = batches.words(loader._index_sampler)
        assert self.pending is not None
        every = [i for _, indices in taken for i in indices]
        if isinstance(loader._index_sampler, BatchSplittingSampler):
            self.pending.drawn.extend(every)
            self.pending.split, self.pending.rate = True, rate
        elif len(every) == len(set(every)) == self.found.records:
            # Batches that are added up to all records are one batch, of which nothing is drawn.
            self.found.batches.append(every)
        else:
            self.found.batches += [indices for _, indices in taken]
        self.found.rates += [rate] * (len(self.found.batches) - len(self.found.rates))
        return drawn

    def _taken(self, rows: int | None) -> list[tuple[Any, list[int]]]:
        """The first batches in a row that have so many records, or else the last ones.

        A training may fetch batches ahead, or pass over its data between two steps, where batches
        of Poisson sampling are those of the training.
        """
        sampled = [one for one in self.arrivals if batches.poisson(one[0]._index_sampler)]
        arrivals = sampled or self.arrivals
        for first in range(len(arrivals) if rows is not None else 0):
            total = 0
            for last in range(first, len(arrivals)):
                total += len(arrivals[last][1])
                if total == rows:
                    self.arrivals = arrivals[last + 1 :]
                    return arrivals[first : last + 1]
        self.arrivals = []
        taken: list[tuple[Any, list[int]]] = []
        while arrivals and (not taken or sum(len(i) for _, i in taken) < (rows or 0)):
            taken.insert(0, arrivals.pop())
        return taken

    def _backward(self, original: Any, loss: Any, /) -> Any:
        """Ghost clipping makes no gradients of records; at times they are made here."""
        ghost = float(loss.module.max_grad_norm), float(loss.optimizer.max_grad_norm)
        # Of norms that change, those that are worst for privacy.
        self.found.ghost = max(self.found.ghost or ghost, ghost, key=lambda pair: pair[0] - pair[1])
        losses = loss.loss_per_sample
        self.losses = len(losses) if losses.ndim else None
        self.backwards += 1
        started = time.process_time()
        # Few, for they cost as much as several steps.
        if self.backwards == 1 or self.spent < SHARE * (started - self.began):
            self.ghosts = _batched(loss)
            self.spent += time.process_time() - started
        found = original(loss)
        if not losses.ndim and len(loss.module.get_norm_sample()) > 1:
            self.found.wrong.append((len(self.found.steps), clipping.Wrong("one loss", ONE_LOSS)))
        return found

    # The step itself.

    def _stepping(self, torch_optimizer: Any, *_: Any) -> None:
        optimizer = self.optimizers.get(id(torch_optimizer))
        if optimizer is None or self.probing:
            groups = [p for group in torch_optimizer.param_groups for p in group["params"]]
            if optimizer is None and any(hasattr(p, "grad_sample") for p in groups):
                self.found.plain.append(type(torch_optimizer).__name__)
            elif optimizer is None and self.engines and not self.probing:
                self.found.outside += 1
            return
        if self.pending is None and self.observed:
            self.found.bare.append(len(self.found.steps))
            return
        if self.pending is None:
            with self._compared(optimizer):
                pass  # its own pre_step was replaced
        pending, self.pending = self.pending, None
        assert pending is not None
        parameters = list(optimizer.params)
        if any(p.grad is None for p in parameters):
            return
        own = pending.own or _summed(optimizer)
        use_own = own is not None and (pending.another or pending.unknown or not pending.sums)
        sums = own if use_own else pending.sums
        if not sums:
            sums = [torch.zeros_like(p) for p in parameters]
        if pending.split:
            self.found.batches.append(pending.drawn)
            self.found.rates.append(pending.rate)
        self._record(optimizer, pending, parameters, sums)

    def _record(
        self, optimizer: Any, pending: "_Pending", parameters: list[Any], sums: list[Any]
    ) -> None:
        index = len(self.found.steps)
        mean = optimizer.loss_reduction == "mean"
        divisor = float(optimizer.expected_batch_size) * pending.accumulated if mean else 1.0
        # More noise than claimed is no fault.
        deviation = max(self.sigma or 0.0, pending.sigma) * (self.norm or pending.norm)
        if not deviation > 0:
            deviation = math.inf if not pending.norm else 1e-12 * pending.norm
        sums = [s.detach().reshape(p.shape) for s, p in zip(sums, parameters, strict=True)]
        released = [p.grad.detach().to(p.dtype) * divisor for p in parameters]
        residuals, flat_sums, by_rows = [], [], 0.0
        largest = 0.0
        for r, s in zip(released, sums, strict=True):
            cut = _cut(r)
            here, there = cut(r), cut(s).to(r.dtype)
            residuals.append(((here - there) / deviation).double())
            flat_sums.append((there / deviation).double())
            largest = max(largest, float(there.abs().max()) if there.numel() else 0.0)
            other = (here * (max(pending.rows, 1) / divisor) - there) / deviation
            by_rows += float((other.double() ** 2).sum())
        eps = torch.finfo(released[0].dtype).eps
        # Without noise, what is left is the rounding of the sum, coarser the larger the sum is.
        tolerance = max(TINY, 64 * eps * (1 + largest / deviation))
        last = self.last
        step = Step(
            rows=pending.rows,
            accumulated=pending.accumulated,
            noise_multiplier=pending.sigma,
            clipping_norm=pending.norm,
            divisor=divisor,
            dtype=_precision([p.grad.detach() for p in parameters], divisor),
            squares=[float((r**2).sum()) for r in residuals],
            tiny=[int((r.abs() < tolerance).sum()) for r in residuals],
            counts=[r.numel() for r in residuals],
            tolerance=tolerance,
            along=_along(residuals, flat_sums),
            along_last=None if last is None else _along(residuals, last[0]),
            by_rows=by_rows,
            repeated=None if last is None else _along(residuals, last[1]),
        )
        self.last = flat_sums, residuals
        if index % self.stride == 0:
            step.residuals = [r.float().cpu().numpy() for r in residuals]
        self.found.steps.append(step)
        # Every other kept step is dropped, so that those left are evenly spaced over the training.
        if index / self.stride >= KEPT_STEPS:
            self.stride *= 2
            for at, other_step in enumerate(self.found.steps):
                if at % self.stride:
                    other_step.residuals = None
        self.found.secure |= bool(optimizer.secure_mode)
        self.found.optimizers.add(id(optimizer))
        self.used = optimizer
        if hasattr(self, "named"):
            self.found.names = [
                self.named.get(id(p), f"tensor {j}") for j, p in enumerate(parameters)
            ]

    def end(self) -> None:
        """Read the accountant, and clip gradients that are known."""
        for engine in self.engines:
            if (history := _history(engine)) is not None:
                own = _since(history, (self.told or {}).get(id(engine), 0))
                # An engine beside the training's own was told of no step.
                if own or self.found.history is None:
                    self.found.history = own
        optimizer = getattr(self, "used", None)
        if optimizer is not None and not _is_ghost(optimizer):
            self.probing = True
            wrong = clipping.probe(optimizer, self.norm)
            if wrong is not None and wrong.words:
                self.found.wrong.append((None, wrong))


def _history(engine: Any) -> list[tuple[float, float, int]] | None:
    """Noise multiplier, sampling rate and number of the steps that an accountant was told."""
    told = getattr(engine.accountant, "history", None)
    return None if told is None else [(float(s), float(q), int(t)) for s, q, t in told]


def _since(history: list[tuple[float, float, int]], before: int) -> list[tuple[float, float, int]]:
    """A history without so many of its first steps."""
    found = []
    for sigma, rate, steps in history:
        left = max(0, steps - before)
        before -= steps - left
        if left:
            found.append((sigma, rate, left))
    return found


@dataclass
class _Pending:
    """A step that is under way."""

    sigma: float
    norm: float
    rows: int = 0
    accumulated: int = 1
    sums: list[Tensor] = field(default_factory=list)
    own: list[Tensor] | None = None
    drawn: list[int] = field(default_factory=list)
    split: bool = False
    rate: float | None = None
    another: bool = False
    unknown: bool = False

    def add(self, part: list[Tensor]) -> None:
        self.sums = [a + b for a, b in zip(self.sums, part, strict=True)] if self.sums else part


def _is_ghost(optimizer: Any) -> bool:
    return any("FastGradientClipping" in owner.__name__ for owner in type(optimizer).__mro__)


def _samples(optimizer: Any) -> list[Tensor] | None:
    try:
        return [optimizer._get_flat_grad_sample(p).detach().to(p.dtype) for p in optimizer.params]
    except ValueError:
        return None


def _accumulated(optimizer: Any) -> int:
    try:
        return int(optimizer.accumulated_iterations)
    except ValueError:
        return 1


def _noise_multiplier(optimizer: Any) -> float:
    """Noise that the optimizer should add, also where the clipping norm is adapted with noise."""
    sigma = float(getattr(optimizer, "_adjusted_noise_multiplier", optimizer.noise_multiplier))
    spread = getattr(optimizer, "unclipped_num_std", None)
    if spread and sigma and not hasattr(optimizer, "_adjusted_noise_multiplier"):
        # Andrew et al. 2021, Theorem 1: what is left for gradients beside the noise of the count.
        return float((sigma**-2 - (2 * float(spread)) ** -2) ** -0.5)
    return sigma


def _precision(gradients: list[Tensor], divisor: float) -> str:
    """The shortest type that holds a gradient's numbers, or them times the divisor."""
    largest = max(gradients, key=Tensor.numel).flatten()[:1000]
    largest = largest[largest != 0]
    for short in (torch.bfloat16, torch.float16):
        for numbers in (largest, largest * divisor):
            if len(largest) and bool((numbers == numbers.to(short).to(numbers.dtype)).all()):
                return str(short).removeprefix("torch.")
    return str(gradients[0].dtype).removeprefix("torch.")


def _summed(optimizer: Any) -> list[Tensor] | None:
    """The optimizer's sum of clipped gradients; None where a tensor has none."""
    sums: list[Any] = [getattr(p, "summed_grad", None) for p in optimizer.params]
    return None if any(s is None for s in sums) else [s.detach().clone() for s in sums]


def _cut(tensor: Tensor) -> Callable[[Tensor], Tensor]:
    if tensor.ndim < 2:
        numbers = _kept(tensor.numel(), KEPT_COORDINATES)
        return lambda t: t.reshape(-1)[numbers]
    # At least two rows of any matrix are kept, so that noise that rows share is seen.
    columns = min(tensor[0].numel(), KEPT_COORDINATES // 2)
    rows = _kept(len(tensor), max(1, KEPT_COORDINATES // columns))
    return lambda t: t.reshape(len(t), -1)[rows, :columns]


def _kept(n: int, most: int) -> slice | Tensor:
    """Where numbers, or rows, are looked at: neighbours first, then evenly to the last."""
    if n <= most:
        return slice(None)
    first, others = most // 2, most - most // 2
    spread = n - 1 - torch.arange(others) * (n - first) // others
    return torch.cat([torch.arange(first), spread])


def _along(residuals: list[Tensor], directions: list[Tensor]) -> float | None:
    """The residual along a direction: normal of variance 1 if they are independent."""
    if [r.shape for r in residuals] != [d.shape for d in directions]:
        return None
    length = math.sqrt(sum(float((d**2).sum()) for d in directions))
    if not length > 1e-9:
        return None
    return sum(float((r * d).sum()) for r, d in zip(residuals, directions, strict=True)) / length


def _batched(loss: Any) -> list[Tensor] | None:
    """Gradients of each record's loss, by one backward pass for all."""
    parameters = list(loss.optimizer.params)
    losses = loss.loss_per_sample
    if not losses.ndim or not len(losses) or losses.numel() != len(losses):
        return None
    losses = losses.flatten()
    # With its hooks on, Opacus would take this backward pass for one of the training's.
    loss.module.disable_hooks()
    try:
        found = torch.autograd.grad(
            losses,
            parameters,
            torch.eye(len(losses), dtype=losses.dtype, device=losses.device),
            # The training's own backward pass comes after this one.
            retain_graph=True,
            is_grads_batched=True,
        )
    except RuntimeError:
        return None
    finally:
        loss.module.enable_hooks()
    return [f.detach() for f in found]


def _mixing(
    module: Any, itself: dict[int, Any], given: Sequence[Any], named: Mapping[str, Any]
) -> float:
    """Difference of the outputs if the other half of a batch changes, relative to their size.

    Copies of the module run, so that its counters and generators stay as they are; what is in
    ``itself`` is not copied. Where equal runs differ, nothing is known: 0. Half of the batch is
    given alone too, if the module draws no random numbers.
    """
    tensors = [x for x in (*given, *named.values()) if isinstance(x, Tensor) and x.ndim]
    rows = len(tensors[0]) if tensors else 0
    if rows < 4:
        return 0.0
    half = rows // 2
    inner = getattr(module, "_module", module)
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()  # noqa: NPY002

    def reset() -> None:
        random.setstate(states[0])
        np.random.set_state(states[1])  # noqa: NPY002
        torch.set_rng_state(states[2])

    def of(change: Callable[[Tensor], Tensor], count: int, runs: int = 1) -> list[Any]:
        """The first half's outputs of a copy's runs, after a change of all inputs."""

        def changed(x: Any) -> Any:
            return change(x) if isinstance(x, Tensor) and x.ndim and len(x) == rows else x

        # deepcopy takes what is in its memo for copied already.
        copy = deepcopy(inner, dict(itself))
        inputs = {key: changed(x) for key, x in named.items()}
        reset()
        with torch.no_grad():
            found = [_first(copy(*map(changed, given), **inputs), count) for _ in range(runs)]
        return [None if one is None else one[:half] for one in found]

    try:
        (whole,) = of(lambda x: x, rows)
        if whole is None:
            return 0.0
        again, later = of(lambda x: x, rows, runs=2)
        if not torch.equal(whole, again):
            return 0.0
        others = of(lambda x: torch.cat([x[:half], x[: rows - half]]), rows)
        if torch.equal(whole, later):
            others += of(lambda x: x[:half], half)
    finally:
        reset()
    alike = [other for other in others if other is not None and other.shape == whole.shape]
    apart = [float((whole - other).abs().max()) for other in alike]
    return max(apart, default=0.0) / float(whole.abs().max() + 1e-6)


def _mixing_of_loss(loss: Tensor, output: Tensor) -> float:
    """Dependence of a record's gradient on the outputs of others, relative to its own."""
    half = len(output) // 2
    if half < 2:
        return 0.0
    (first,) = torch.autograd.grad(loss, output, create_graph=True)
    if not first.requires_grad:
        return 0.0
    # Fixed numbers: no generator of the training moves.
    weights = torch.sin(torch.arange(first[:half].numel(), dtype=first.dtype) + 1)
    along = (first[:half] * weights.reshape(first[:half].shape).to(first.device)).sum()
    (second,) = torch.autograd.grad(along, output, retain_graph=True)
    own, others = float(second[:half].abs().max()), float(second[half:].abs().max())
    return others / own if own > 0 else 0.0


def _first(output: Any, rows: int) -> Tensor | None:
    """The first tensor of an output with a row for each record."""
    if isinstance(output, Tensor):
        return output if output.ndim and len(output) == rows else None
    values = output.values() if isinstance(output, Mapping) else output
    parts = values if isinstance(output, Mapping | tuple | list) else []
    return next((f for part in parts if (f := _first(part, rows)) is not None), None)
