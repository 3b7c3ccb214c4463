"""Scores of hundreds of models trained under DP-SGD, with and without a canary.

Every model is a run with a name (world, repeat, index) and random streams of its own, so on a CPU
its score is the same bit for bit however the runs are chunked, ordered, spread over threads or
resumed. A CPU trains one model at a time in each thread, which is fastest there; an accelerator
trains as many side by side as fit its memory.
"""

import copy
import math
import threading
from collections.abc import Callable, Hashable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from tqdm import tqdm

from hiddenstate import streams
from hiddenstate.dpsgd.augmentation import Augmentation
from hiddenstate.dpsgd.checkpoint import (
    Checkpoint,
    Identity,
    Row,
    World,
    fingerprint,
    structure,
)
from hiddenstate.dpsgd.clipping import (
    Block,
    ClippedSum,
    KernelName,
    Loss,
    cross_entropy,
    tensor,
    usable,
)
from hiddenstate.dpsgd.known import Fixed, Known, Movement, each_once, read_only
from hiddenstate.dpsgd.mechanism import Mechanism
from hiddenstate.dpsgd.products import GROUP
from hiddenstate.errors import InputError, check_count
from hiddenstate.sampling import Cyclic, FullBatch, Poisson

Initial: TypeAlias = Tensor | Callable[[np.random.Generator], Tensor]
"""Initial parameters (p,): the same for all models, or drawn for each from its own stream."""
_KEPT_SHARE = 1 / 8
"""The part of the memory for what models side by side keep from step to step."""
_CPU_MEMORY = 2**31
"""Bytes that models may take by default where no device tells how many it has free."""
Measure = Callable[["Run", Tensor], float]
"""Something else to know of a last iterate (p,), such as its ``Accuracy``."""


class Canary(Protocol):
    """What the worlds differ in, and how the last iterate is searched for it."""

    @property
    def record(self) -> tuple[NDArray[np.float32], int] | None:
        """A record that only the world "in" trains on, or None if the canary is a gradient."""

    @property
    def sampled(self) -> bool:
        """Whether it has a place among the records: the sampling decides when it is used."""

    def inserted(self, step: int) -> bool:
        """Whether this step has it, whatever the sampling draws; the first is 1.

        Never, for a record that the sampling draws.
        """

    def fixed(self, known: Known) -> Fixed:
        """All of it for one run, from what is known before training, and how it is read."""


@dataclass(frozen=True, eq=False)
class Ensemble:
    """What every model of an audit has in common.

    x: shape (records, *record shape), float32, without the canary. y: shape (records,), int64; a
    loss of one's own may have labels of another kind. Integer records stay integers where the
    model has an embedding.

    The mechanism's ``adjacency`` says how the worlds differ. "add_or_remove": the canary is there
    or not. "replace": its record takes the place of the last one of ``x``, or its gradient that of
    the opposite gradient. Raises InputError for a canary that is used in more steps than the
    mechanism accounts for. With an ``augmentation`` a record's gradient is the mean over random
    views of it, drawn anew in each step.
    """

    model: nn.Module
    mechanism: Mechanism
    x: NDArray[np.float32]
    y: NDArray[np.int64]
    canary: Canary
    initial: Initial
    loss: Loss = cross_entropy
    augmentation: Augmentation | None = None

    def __post_init__(self) -> None:
        if len(self.x) != len(self.y):
            raise InputError(f"y: got {len(self.y)} labels; expected {len(self.x)}, one a record")
        if not self.positions:
            raise InputError("x: got no record; expected at least one")
        if self.canary.record is not None:
            _check_record(self.canary.record, self.x, self.y, self.loss)
        self._refuse_unaccounted()

    @cached_property
    def shown(self) -> tuple[NDArray[Any], NDArray[Any]]:
        """Records and labels as adversaries are shown them, one copy for all runs."""
        return read_only(self.x), read_only(self.y)

    @property
    def replaces(self) -> bool:
        """Whether the canary's record takes another's place instead of joining the others."""
        return self.mechanism.adjacency == "replace" and self.canary.record is not None

    @cached_property
    def insertions(self) -> int:
        """Steps that have the canary whatever the sampling draws."""
        return sum(bool(self.canary.inserted(step + 1)) for step in range(self.mechanism.steps))

    @property
    def most_insertions(self) -> int:
        """How many gradients a canary has to have: one for each step where the sampling decides."""
        return self.mechanism.steps if self.canary.sampled else self.insertions

    @property
    def positions(self) -> int:
        """Records that the sampling draws from in the world "in": what accountants ask for."""
        return len(self.x) + (self.canary.sampled and not self.replaces)

    def clipped_sum(self, device: str = "cpu", kernel: KernelName = "auto") -> ClippedSum:
        """Clipped sums over the records, the canary's record last if it has one."""
        x, y = np.asarray(self.x), np.asarray(self.y)
        if self.canary.record is not None:
            record, label = self.canary.record
            x = np.concatenate((x, np.asarray(record)[None]))
            y = np.concatenate((y, np.asarray(label)[None]))
        return ClippedSum(
            self.model, x, y, loss=self.loss, device=device, kernel=kernel,
            augmentation=self.augmentation,
        )  # fmt: skip

    def _refuse_unaccounted(self) -> None:
        mechanism = self.mechanism
        used = self.insertions
        if self.canary.sampled:
            if used or mechanism.insertions is not None:
                raise InputError(
                    f"insertions: got {mechanism.insertions}, and {used} steps in which the canary "
                    "is inserted whatever is sampled, with a canary that is sampled; expected None "
                    "and 0, for the sampling decides when it is used"
                )
            return
        if self.canary.record is not None and (mechanism.insertions is None or not used):
            raise InputError(
                f"insertions: got {mechanism.insertions}, and {used} steps in which the canary's "
                "record is inserted; expected both, for a record with a schedule of its own"
            )
        if self.canary.record is not None and mechanism.adjacency == "replace":
            raise InputError(
                "adjacency: got 'replace' with a record that is inserted in steps of its own, "
                "where it takes no other's place; expected 'add_or_remove'"
            )
        if not used:
            raise InputError(
                f"canary: it is inserted in none of {mechanism.steps} steps, so that the worlds "
                "are the same; expected a schedule that has at least one of them"
            )
        if mechanism.insertions is None and isinstance(mechanism.sampling, Poisson):
            accounted = mechanism.steps if mechanism.sampling.rate == 1 else 0
        else:
            accounted = mechanism.composition(self.positions)[2]
        if used > accounted:
            raise InputError(
                f"canary: it is inserted in {used} of {mechanism.steps} steps, whatever "
                f"{mechanism.sampling} draws; expected at most {accounted}, what the mechanism "
                f"accounts for, or a mechanism with insertions={used}"
            )


@dataclass
class Run:
    """One model of an ensemble, before it is trained: the experimenter's view.

    ``batches`` are of the records that both worlds have; ``trained_on`` adds what this world has
    besides. An adversary is given ``known()`` alone.
    """

    world: World
    repeat: int
    index: int
    ensemble: Ensemble
    gradients: ClippedSum
    seed: int
    name: tuple[str | int, ...]
    initial: Tensor = field(init=False)
    batches: list[NDArray[np.int64]] = field(init=False)
    trained_on: list[NDArray[np.int64]] = field(init=False)
    _drawn: list[bool] = field(init=False)

    def __post_init__(self) -> None:
        given = self.ensemble.initial
        initial = given(self.stream("initialisation")) if callable(given) else given
        initial = tensor("initial", initial).detach().to(self.gradients.dtype)
        if initial.shape != (self.gradients.parameters,):
            raise InputError(
                f"initial: got shape {tuple(initial.shape)}; expected "
                f"({self.gradients.parameters},), the model's trainable parameters"
            )
        if not bool(initial.isfinite().all()):
            i = int((~initial.isfinite()).nonzero()[0])
            raise InputError(
                f"initial: parameter {i} is {float(initial[i])}; expected finite numbers"
            )
        self.initial = initial.to(self.gradients.device, copy=True)
        mechanism = self.ensemble.mechanism
        drawn = mechanism.sampling.batches(
            self.ensemble.positions, mechanism.steps, self.stream("sampling")
        )
        self.batches = self.trained_on = drawn
        canary = self.ensemble.canary
        if canary.sampled:
            last = self.ensemble.positions - 1
            self.batches = each_once(lambda batch: batch[batch != last], drawn)
            if canary.record is None or (self.world == "out" and not self.ensemble.replaces):
                self.trained_on = self.batches
            elif self.world == "in" and self.ensemble.replaces:
                swap = partial(_swapped, old=last, new=len(self.ensemble.x))
                self.trained_on = each_once(swap, drawn)
        elif canary.record is not None and self.world == "in":
            self.trained_on = [
                np.append(batch, len(self.ensemble.x)) if canary.inserted(step) else batch
                for step, batch in enumerate(drawn, 1)
            ]
        self._drawn = [
            len(batch) < len(whole) for batch, whole in zip(self.batches, drawn, strict=True)
        ]

    def stream(self, purpose: str) -> np.random.Generator:
        """The random stream of this run for this purpose."""
        path = (*self.name, self.world, self.repeat, self.index, purpose)
        return streams.stream(self.seed, *path)

    def views(self) -> Iterator[NDArray[np.int64] | None]:
        """Views of the records of each batch it trains on."""
        return _views(self.ensemble.augmentation, self.trained_on, self.stream("augmentation"))

    def adds(self, step: int) -> bool:
        """Whether the canary's gradient, if it is one, is used in this step; the first is 1."""
        return self._drawn[step - 1] or bool(self.ensemble.canary.inserted(step))

    def known(self) -> Known:
        """What an adversary knows of this run before it is trained."""
        ensemble, gradients = self.ensemble, self.gradients
        mechanism, initial = ensemble.mechanism, read_only(self.initial.cpu().numpy())
        return Known(
            mechanism=mechanism,
            x=ensemble.shown[0],
            y=ensemble.shown[1],
            initial=initial,
            batches=tuple(each_once(read_only, self.batches)),
            insertions=ensemble.most_insertions,
            rng=self.stream("adversary"),
            shared_rng=streams.stream(self.seed, *self.name, "adversary", self.repeat),
            losses=partial(_losses, gradients),
            simulated=partial(
                _simulated, gradients, mechanism, initial, self.batches, ensemble.augmentation,
                self.stream("augmentation"),
            ),
        )  # fmt: skip

    @cached_property
    def fixed(self) -> Fixed:
        """The ensemble's canary in this run; it is asked for before training, and once."""
        return self.ensemble.canary.fixed(self.known())

    def iterates(self, *, stop: threading.Event | None = None) -> Iterator[Tensor]:
        """The iterates after each step; the tensor is updated in place from step to step."""
        mechanism = self.ensemble.mechanism
        rng = self.stream("noise")
        inserted = _Insertions([self])
        theta = self.initial.clone()
        for step, (batch, views) in enumerate(zip(self.trained_on, self.views(), strict=True), 1):
            if stop is not None and stop.is_set():
                return
            update = self.gradients(theta, batch, mechanism.clipping_norm, views)
            if (gradient := inserted.of(step)) is not None:
                update += gradient[0]
            if mechanism.noise_std > 0:
                draw = rng.standard_normal(theta.numel(), dtype=np.float32)
                update += mechanism.noise_std * torch.from_numpy(draw).to(theta)
            theta -= mechanism.learning_rate * update
            yield theta


def _views(
    augmentation: Augmentation | None, batches: list[NDArray[np.int64]], rng: np.random.Generator
) -> Iterator[NDArray[np.int64] | None]:
    """Views of the records of each batch, as ``Augmentation.draw`` has them, or None."""
    for batch in batches:
        yield augmentation.draw(len(batch), rng) if augmentation else None


def _simulated(
    gradients: ClippedSum,
    mechanism: Mechanism,
    initial: NDArray[Any],
    batches: list[NDArray[np.int64]],
    augmentation: Augmentation | None,
    rng: np.random.Generator,
) -> Movement:
    """How a training without noise and canary moves the parameters."""
    start = torch.tensor(initial, dtype=gradients.dtype, device=gradients.device)
    theta, absolute, squared = start.clone(), torch.zeros_like(start), torch.zeros_like(start)
    drawn = _views(augmentation, batches, copy.deepcopy(rng))
    for batch, views in zip(batches, drawn, strict=True):
        step = mechanism.learning_rate * gradients(theta, batch, mechanism.clipping_norm, views)
        theta -= step
        absolute += step.abs()
        squared += step.square()
    parts = (absolute, squared, (theta - start).abs())
    return Movement(*(part.cpu().numpy() for part in parts))


def _losses(
    gradients: ClippedSum, theta: NDArray[Any], x: NDArray[Any], y: NDArray[Any]
) -> NDArray[Any]:
    """Losses of records at parameters (p,)."""
    at = torch.tensor(theta, dtype=gradients.dtype, device=gradients.device)
    return gradients.losses(at, x, y).cpu().numpy()


class _Insertions:
    """The gradients of runs of one world side by side, step by step."""

    def __init__(self, runs: list[Run]):
        rows = [row for run in runs if (row := _gradients(run)) is not None]
        self._rows = torch.stack(rows) if rows else None
        if self._rows is None:
            return
        steps = range(1, runs[0].ensemble.mechanism.steps + 1)
        adding = np.array([[run.adds(step) for run in runs] for step in steps])
        turn = np.maximum(adding.cumsum(0) - 1, 0) % self._rows.shape[1]
        self._any: NDArray[np.bool_] = np.any(adding, axis=1)
        self._adding = torch.from_numpy(adding[..., None]).to(self._rows)
        self._turn = torch.from_numpy(turn).to(self._rows.device)
        self._each = torch.arange(len(runs), device=self._rows.device)

    def of(self, step: int) -> Tensor | None:
        """What this step adds to the sums (models, p), if anything; the first is 1."""
        if self._rows is None or not self._any[step - 1]:
            return None
        return self._rows[self._each, self._turn[step - 1]] * self._adding[step - 1]


def last_iterate(run: Run, stop: threading.Event | None = None) -> Tensor:
    """The released parameters (p,) of one run."""
    theta = run.initial
    for theta in run.iterates(stop=stop):  # noqa: B007 - only the last is released
        pass
    return theta


def last_iterates(runs: list[Run], *, kept: float = _KEPT_SHARE * _CPU_MEMORY) -> Tensor:
    """The released parameters (models, p) of runs of one world, trained side by side.

    On a CPU each has the noise that it has alone. On an accelerator noise comes from one generator
    of the device, named by the first run: the same runs together get the same noise, but another
    grouping gets other noise, equal in distribution only.

    Batches are uploaded for as many steps at once as ``kept`` bytes hold, and where all steps have
    the same one its records stay gathered if they take no more.
    """
    mechanism, gradients = runs[0].ensemble.mechanism, runs[0].gradients
    thetas = torch.stack([run.initial for run in runs])
    added = torch.zeros_like(thetas)  # to the clipped sums: noise and insertions
    noise, inserted = _noise(runs), _Insertions(runs)
    for step, batch in enumerate(_Batches(runs, kept), 1):
        noise(added)
        if (gradient := inserted.of(step)) is not None:
            added += gradient
        sums = gradients.sums(thetas, batch.blocks(gradients), mechanism.clipping_norm)
        thetas.sub_(sums.add_(added), alpha=mechanism.learning_rate)
    return thetas


def _noise(runs: list[Run]) -> Callable[[Tensor], Tensor]:
    """Draws each step's noise into a tensor shaped as the parameters (models, p)."""
    first = runs[0]
    std = first.ensemble.mechanism.noise_std
    if std == 0:
        return Tensor.zero_
    if first.gradients.device.type == "cpu":
        rngs = [run.stream("noise") for run in runs]

        def drawn(noise: Tensor) -> Tensor:
            rows = [rng.standard_normal(noise.shape[1], dtype=np.float32) for rng in rngs]
            return noise.copy_(torch.from_numpy(np.stack(rows))).mul_(std)

        return drawn
    path = (*first.name, first.world, first.repeat, first.index, "noise", "side by side")
    generator = torch.Generator(first.gradients.device).manual_seed(
        streams.key(first.seed, *path) % 2**63
    )
    return lambda noise: noise.normal_(0, std, generator=generator)


@dataclass(eq=False)
class _Batch:
    """A step's batches on the device, as ``ClippedSum.blocks`` takes them."""

    tensors: tuple[Tensor, Tensor | None, Tensor | None]
    gathered: list[Block] | None = None

    def blocks(self, gradients: ClippedSum) -> Iterable[Block]:
        """The records, block by block."""
        return gradients.blocks(*self.tensors) if self.gathered is None else self.gathered


class _Batches:
    """The batches of runs side by side on the device, step by step.

    As many as fit ``kept`` bytes are uploaded at once, which is mostly all. Steps that have the
    same batches share one upload; where that is every step, the records are gathered once too, if
    they fit as well.
    """

    def __init__(self, runs: list[Run], kept: float):
        self._runs, self._kept = runs, kept
        self._gradients, self._augmentation = runs[0].gradients, runs[0].ensemble.augmentation
        by_step = list(zip(*(run.trained_on for run in runs), strict=True))
        self._keys: list[Hashable] = [
            # Views are drawn anew in each step, so that no other has the same batches.
            t if self._augmentation else tuple(map(id, batches))
            for t, batches in enumerate(by_step)
        ]
        self._batches = dict(zip(self._keys, by_step, strict=True))
        distinct = [batch for batches in self._batches.values() for batch in batches]
        self._longest = max(map(len, distinct))
        self._shared = all(
            batch is batches[0] or np.array_equal(batch, batches[0])
            for batches in self._batches.values()
            for batch in batches
        )

    def __iter__(self) -> Iterator[_Batch]:
        drawn = zip(*(run.views() for run in self._runs), strict=True)
        there: dict[Hashable, _Batch] = {}
        for t, key in enumerate(self._keys):
            if key not in there:
                ahead = list(dict.fromkeys(self._keys[t:]))[: self._at_once()]
                there = dict(zip(ahead, self._uploaded(ahead, drawn), strict=True))
            yield there[key]

    def _at_once(self) -> int:
        """How many distinct steps' batches fit twice: those before are there until these are."""
        views = 24 * self._augmentation.views if self._augmentation else 0
        record = 2 * (8 + self._gradients.dtype.itemsize + views)
        return max(1, int(self._kept // (len(self._runs) * max(1, self._longest) * record)))

    def _uploaded(self, keys: list[Hashable], drawn: Iterator[tuple]) -> Iterator[_Batch]:
        steps = [self._batches[key] for key in keys]
        counts = np.array([[len(batch) for batch in batches] for batches in steps])
        sizes = [int(n) for n in counts.max(1)]
        models = 1 if self._shared else len(self._runs)
        padded = np.zeros((len(steps), models, max(sizes)), np.int64)
        for i, batches in enumerate(steps):
            for m, batch in enumerate(batches[:models]):
                padded[i, m, : len(batch)] = batch
        indices, weights, views = self._there(padded), None, None
        if not self._shared:
            counting = np.arange(max(sizes)) < counts[..., None]
            weights = self._there(counting).to(self._gradients.dtype)
        if self._augmentation:
            shape = (len(steps), len(self._runs), max(sizes), self._augmentation.views, 3)
            each = np.zeros(shape, np.int64)
            for i, step in enumerate(next(drawn) for _ in steps):
                for m, own in enumerate(step):
                    each[i, m, : len(own)] = own
            views = self._there(each)
        for i, n in enumerate(sizes):
            batch = _Batch((
                indices[i, 0, :n] if self._shared else indices[i, :, :n],
                None if weights is None else weights[i, :, :n],
                None if views is None else views[i, :, :n],
            ))  # fmt: skip
            if len(self._batches) == 1 and not self._augmentation:
                self._keep(batch)
            yield batch

    def _keep(self, batch: _Batch) -> None:
        """Gather the records of a batch that all steps have, if there is room."""
        if self._gradients.gathered_bytes(len(self._runs), batch.tensors[0]) <= self._kept:
            batch.gathered = list(self._gradients.blocks(*batch.tensors))

    def _there(self, values: NDArray) -> Tensor:
        return torch.from_numpy(values).to(self._gradients.device)


def linear_iterates(runs: list[Run], stop: threading.Event | None = None) -> Tensor:
    """The released parameters (models, p) of runs of one world and repeat, for kernel "linear".

    Each run has its place by its index, and its own noise: its parameters are the same bit for bit
    whichever other runs of its group of ``products.GROUP`` are there.
    """
    first = runs[0]
    mechanism, gradients = first.ensemble.mechanism, first.gradients
    places = [run.index % GROUP for run in runs]
    thetas = torch.zeros(GROUP, gradients.parameters, dtype=gradients.dtype)
    thetas[places] = torch.stack([run.initial for run in runs])
    noise, drawn = _noise(runs), torch.empty(len(runs), thetas.shape[1], dtype=thetas.dtype)
    inserted = _Insertions(runs)
    shared = _shares_batches(mechanism)
    for step in range(1, mechanism.steps + 1):
        if stop is not None and stop.is_set():
            break
        batches = [run.trained_on[step - 1] for run in runs]
        if shared:
            update = gradients.linear_sums(thetas, batches[0], mechanism.clipping_norm)
        else:
            update = torch.zeros_like(thetas)
            for place, batch in zip(places, batches, strict=True):
                alone = thetas[place : place + 1]
                update[place] = gradients.linear_sums(alone, batch, mechanism.clipping_norm)[0]
        if (gradient := inserted.of(step)) is not None:
            update[places] += gradient
        update[places] += noise(drawn)
        thetas -= mechanism.learning_rate * update
    return thetas[places]


def _shares_batches(mechanism: Mechanism) -> bool:
    """Whether all models of one world have the same batches."""
    match mechanism.sampling:
        case FullBatch():
            return True
        case Cyclic(shuffled=shuffled):
            return not shuffled
    return False


def scores(
    ensemble: Ensemble,
    *,
    models: int,
    seed: int,
    name: tuple[str | int, ...] = (),
    repeats: int = 1,
    worlds: tuple[World, ...] = ("in", "out"),
    device: str = "cpu",
    workers: int = 1,
    chunk: int | None = None,
    memory: float | None = None,
    checkpoint: str | Path | None = None,
    progress: bool = False,
    kernel: KernelName = "auto",
    side_by_side: bool | None = None,
    measures: dict[str, Measure] | None = None,
) -> pd.DataFrame:
    """Score of each model: columns world, repeat, run and score (larger speaks for "in").

    ``models`` is the number of models of each world and repeat. Runs are finished, and with
    ``checkpoint`` (a directory) kept, in chunks of ``chunk`` models; a call that finds finished
    ones of the same audit there goes on from them. ``workers`` threads train a model each on a
    CPU, as many as fit ``memory`` bytes, in chunks of 10 unless told.

    On an accelerator (or with ``side_by_side``) the models of a chunk go side by side. By default
    ``memory`` is ``free_memory``, a chunk is as many models as ``arranged`` finds room for, and on
    an accelerator blocks of records are as large as it says. Where memory runs out all the same,
    half of the models go at a time.

    ``kernel="linear"`` trains linear models on a CPU 32 at a time in two matrix products a step:
    several times faster, the same scores but for rounding, and chunks of 32. ``measures`` adds a
    column for each of its names.

    Raises InputError for input that does not fit together, and for a checkpoint of another audit.
    """
    counts = {"models": models, "repeats": repeats, "workers": workers, "chunk": chunk}
    for argument, value in counts.items():
        if value is not None:
            check_count(argument, value)
    if memory is not None and not memory > 0:
        raise InputError(f"memory: got {memory}; expected bytes, more than 0")
    if not worlds or not set(worlds) <= {"in", "out"} or len(worlds) > len(set(worlds)):
        raise InputError(f"worlds: got {worlds}; expected 'in', 'out' or both")
    if side_by_side is None:
        side_by_side = usable(device).type != "cpu"
    if side_by_side and kernel == "auto":
        kernel = "torch"  # native code knows one model at a time
    if side_by_side and kernel in ("native", "linear", "opacus"):
        raise InputError(
            f"kernel: got {kernel!r} with models side by side; expected 'auto', 'torch' or "
            "'explicit', for the others know one model at a time"
        )
    gradients = ensemble.clipped_sum(device, kernel)
    grouped = gradients.kind == "linear"
    if grouped and gradients.device.type != "cpu":
        raise InputError(f"device: got {device!r} with kernel 'linear'; expected 'cpu'")
    measures = measures or {}
    for label, measure in measures.items():
        if label in (taken := ("world", "repeat", "run", "score")):
            raise InputError(f"measures: got {label!r}; expected other names than {taken}")
        if isinstance(measure, Accuracy):
            gradients.refuse_tests(measure.x, measure.y)
    identity = "" if checkpoint is None else _fingerprint(ensemble, seed, name, measures)
    made = {
        "kernel": gradients.kind, "device": gradients.device.type,
        "precision": gradients.dtype, "side by side": side_by_side,
    }  # fmt: skip
    store = Checkpoint(checkpoint, identity, ("score", *measures), made)
    done = store.read()
    pending: dict[World, list[Identity]] = {
        world: [
            (world, repeat, index)
            for repeat in range(repeats)
            for index in range(models)
            if (world, repeat, index) not in done
        ]
        for world in worlds
    }
    memory = free_memory(gradients.device) if memory is None else memory
    if side_by_side:
        most = max(1, *map(len, pending.values()))
        together, block = arranged(gradients, min(chunk or most, most), memory)
        chunk = chunk or together
        if gradients.device.type != "cpu":
            gradients.block = block  # a CPU's are as large as its cache
    fit = _Fit(together if side_by_side else 1)
    chunk = chunk or 10
    chunks = [
        part
        for world in worlds
        for part in (
            _groups(pending[world])
            if grouped
            else [pending[world][i : i + chunk] for i in range(0, len(pending[world]), chunk)]
        )
    ]
    stop, local = threading.Event(), threading.local()
    total = models * repeats * len(worlds)
    bar = tqdm(
        total=total, initial=total - sum(map(len, chunks)), unit="model", disable=not progress
    )

    def observe(run: Run, last: Tensor) -> Row:
        bar.update()
        # Of a copy, for many an operation of tensors changes them in place.
        others = {name: float(measure(run, last.clone())) for name, measure in measures.items()}
        return {"score": _score(run, last), **others}

    def work(identities: list[Identity]) -> dict[Identity, Row]:
        if not hasattr(local, "gradients"):
            # One thread a model: sums over several threads would round differently.
            torch.set_num_threads(1)
            local.gradients = gradients.copy()
        runs = (Run(*i, ensemble, local.gradients, seed, name) for i in identities)
        found: dict[Identity, Row] = {}
        if grouped:
            group = list(runs)
            lasts = linear_iterates(group, stop)
            if stop.is_set():
                return {}
            for run, last in zip(group, lasts, strict=True):
                found[run.world, run.repeat, run.index] = observe(run, last)
        elif not side_by_side:
            for identity, run in zip(identities, runs, strict=True):
                last = last_iterate(run, stop)
                if stop.is_set():
                    return {}
                found[identity] = observe(run, last)
        else:
            train = partial(last_iterates, kept=memory * _KEPT_SHARE)
            for run, last in _as_fits(list(runs), fit, train):
                found[run.world, run.repeat, run.index] = observe(run, last)
        store.write(found)
        return found

    threads = 1 if side_by_side else max(1, min(workers, int(memory // model_bytes(gradients))))
    torch_threads = torch.get_num_threads()
    with bar, _float32_products(), ThreadPoolExecutor(threads) as pool:
        futures = [pool.submit(work, identities) for identities in chunks]
        try:
            for future in as_completed(futures):
                done |= future.result()
        except BaseException:
            stop.set()
            pool.shutdown(cancel_futures=True)
            raise
        finally:
            torch.set_num_threads(torch_threads)
    keys = [(w, r, i) for w in worlds for r in range(repeats) for i in range(models)]
    table = pd.DataFrame(keys, columns=["world", "repeat", "run"])
    return table.join(pd.DataFrame([done[key] for key in keys]))


@contextmanager
def _float32_products() -> Iterator[None]:
    """No product of an accelerator is of TF32 meanwhile; torch's default differs by operation."""
    cudnn: Any = torch.backends.cudnn
    kinds: tuple[Any, ...] = (torch.backends.cuda.matmul, cudnn.conv, cudnn.rnn)
    before = [kind.fp32_precision for kind in kinds]
    try:
        for kind in kinds:
            kind.fp32_precision = "ieee"
        yield
    finally:
        for kind, precision in zip(kinds, before, strict=True):
            kind.fp32_precision = precision


@dataclass(frozen=True, eq=False)
class Accuracy:
    """Share of records that the last iterate classifies rightly; a measure for ``scores``.

    A large test set can cost as much as training: ``models`` limits it to the first ones of each
    world and repeat.
    """

    x: NDArray[np.float32]
    y: NDArray[np.int64]
    models: float = math.inf

    def __post_init__(self) -> None:
        if not self.models >= 1:
            raise InputError(f"models: got {self.models}; expected at least 1 that is tested")

    def __call__(self, run: Run, last: Tensor) -> float:
        """The share, over all records; NaN for a model that is not tested."""
        if run.index >= self.models:
            return math.nan
        return run.gradients.accuracy(last, self.x, self.y)


def _groups(identities: list[Identity]) -> list[list[Identity]]:
    """Runs of one world by repeat and group of ``products.GROUP``."""
    groups: dict[tuple[int, int], list[Identity]] = {}
    for identity in identities:
        groups.setdefault((identity[1], identity[2] // GROUP), []).append(identity)
    return list(groups.values())


def free_memory(device: torch.device) -> float:
    """Bytes that models may take by default: 2 GiB, or 80 % of what a CUDA device has free."""
    if device.type != "cuda":
        return _CPU_MEMORY
    unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return 0.8 * (torch.cuda.mem_get_info(device)[0] + unused)


def model_bytes(gradients: ClippedSum) -> int:
    """The memory that one more model side by side takes, from what a few records are seen to."""
    return int(gradients.block * gradients.activations) + _vectors(gradients)


def _vectors(gradients: ClippedSum) -> int:
    """Bytes of one model's parameters, sums and noise."""
    return 8 * gradients.parameters * gradients.dtype.itemsize


def arranged(gradients: ClippedSum, models: int, memory: float) -> tuple[int, int]:
    """(models side by side, records in a block) for so many models in so many bytes.

    An eighth is for what stays between steps. As many models as fit go side by side, in groups of
    about one size, with blocks of at least ``gradients.block`` records; then blocks are as large as
    memory allows. No tensor of a block has 2^31 entries, which some kernels count in 32 bits.
    """
    room = (1 - _KEPT_SHARE) * memory
    fitting = max(1, min(models, int(room // model_bytes(gradients))))
    together = -(-models // -(-models // fitting))
    block = int((room / together - _vectors(gradients)) // gradients.activations)
    return together, max(1, min(block, (2**31 - 1) // (together * gradients.widest)))


@dataclass
class _Fit:
    """How many models go side by side: fewer once that many ran out of memory."""

    models: int


def _as_fits(
    runs: list[Run], fit: _Fit, train: Callable[[list[Run]], Tensor] | None = None
) -> Iterator[tuple[Run, Tensor]]:
    """Runs with their last iterates, as many side by side as fit.

    Where memory runs out, both models and the records of a block are halved, for good.
    """
    train = train or last_iterates
    while runs:
        group, gradients = runs[: fit.models], runs[0].gradients
        try:
            lasts = train(group)
        except torch.OutOfMemoryError:
            if len(group) == gradients.block == 1:
                raise
            lasts = None
        # Outside the except clause, whose traceback would keep the tensors alive.
        if lasts is None:
            fit.models = (len(group) + 1) // 2
            gradients.block = (gradients.block + 1) // 2
        else:
            yield from zip(group, lasts, strict=True)
            runs = runs[len(group) :]


def _score(run: Run, last: Tensor) -> float:
    score = read(run.fixed, last)
    if math.isfinite(score):
        return score
    if bool(last.isfinite().all()):
        raise InputError(
            f"canary: gave model {run.index} of world {run.world!r} the score {score}, though its "
            "parameters are finite; expected a finite score, which a smaller learning_rate or "
            "other data may give"
        )
    raise InputError(
        f"learning_rate: {run.ensemble.mechanism.learning_rate} made model {run.index} of "
        f"world {run.world!r} diverge (score {score}); expected a smaller one, or records and "
        "labels with gradients whose norms do not overflow"
    )


def read(canary: Fixed, last: Tensor) -> float:
    """A canary's score of a last iterate (p,), of which it gets a copy."""
    return float(canary.score(last.detach().cpu().numpy().copy()))


def _gradients(run: Run) -> Tensor | None:
    """What this run's insertions add, (insertions, p), or (1, p) if all add the same."""
    ensemble, gradients = run.ensemble, run.fixed.gradients
    if (gradients is None) == (ensemble.canary.record is None):
        raise InputError(
            f"canary: it has {'a record and' if gradients is not None else 'neither a record nor'} "
            "gradients; expected one of them (`canaries.mislabelled` and `canaries.blank` make "
            "records)"
        )
    if gradients is None:
        return None
    rows = np.asarray(gradients)
    shape = (ensemble.most_insertions, len(run.initial))
    if rows.shape != shape:
        raise InputError(
            f"canary: its gradients have shape {rows.shape}; expected {shape}, one for each "
            "insertion"
        )
    if not len(rows):
        return None
    if rows.strides[0] == 0:
        rows = rows[:1]
    norm = float(np.linalg.norm(rows.astype(float), axis=1).max())
    most = ensemble.mechanism.clipping_norm
    if not norm <= most * (1 + 1e-6):
        raise InputError(f"canary: its gradient has norm {norm}; expected at most {most}")
    replace = ensemble.mechanism.adjacency == "replace"
    if run.world == "out" and not replace:
        return None
    signed = torch.tensor(rows, dtype=run.initial.dtype, device=run.initial.device)
    return signed if run.world == "in" else -signed


def _check_record(
    record: tuple[NDArray[np.float32], int],
    x: NDArray[np.float32],
    y: NDArray[Any],
    loss: Loss,
) -> None:
    """Raise InputError for a canary's record that is no record like the others."""
    values, label = np.asarray(record[0]), np.asarray(record[1])
    if len(x) and values.shape != np.shape(x)[1:]:
        raise InputError(f"canary: its record has shape {values.shape}; expected {np.shape(x)[1:]}")
    if len(y) and label.shape != np.shape(y)[1:]:
        raise InputError(f"canary: its label has shape {label.shape}; expected {np.shape(y)[1:]}")
    broken = np.flatnonzero(~np.isfinite(values))
    if len(broken):
        raise InputError(
            f"canary: its record holds {values.flat[broken[0]]} (entry {broken[0]}); expected "
            "finite numbers"
        )
    if loss is cross_entropy and not (label.shape == () and np.isfinite(label) and label % 1 == 0):
        raise InputError(f"canary: its record has the label {label}; expected an integer")


def _swapped(batch: NDArray[np.int64], *, old: int, new: int) -> NDArray[np.int64]:
    return np.where(batch == old, new, batch)


def _fingerprint(
    ensemble: Ensemble, seed: int, name: tuple[str | int, ...], measures: dict[str, Measure]
) -> str:
    """Digest of everything that decides the scores and measures."""
    initial = ensemble.initial
    if callable(initial):  # what it draws tells the parameters that it reads from those it does not
        threads = torch.get_num_threads()
        torch.set_num_threads(1)  # as where models are trained, or it would round otherwise
        try:
            drawn = initial(streams.stream(seed, *name, "fingerprint"))
        finally:
            torch.set_num_threads(threads)
        initial = (structure(initial), drawn)
    return fingerprint(
        seed, name, ensemble.mechanism, structure(ensemble.model), ensemble.x, ensemble.y,
        ensemble.canary, initial, ensemble.loss, ensemble.augmentation, measures,
    )  # fmt: skip
