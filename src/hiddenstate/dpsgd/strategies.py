"""Strategies of training an ensemble: one model at a time, linear ones in groups, or side by side.

A CPU trains one model at a time in each thread, which is fastest there; an accelerator trains as
many side by side as fit its memory. ``strategy`` chooses.
"""

import threading
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hiddenstate import streams
from hiddenstate.dpsgd.audit import in_chunks
from hiddenstate.dpsgd.clipping import ClippedSum
from hiddenstate.dpsgd.kernels.base import Block, Blockwise
from hiddenstate.dpsgd.kernels.linear import GROUP
from hiddenstate.dpsgd.run import Additions, Run
from hiddenstate.pipeline.parts import Identity

_KEPT_SHARE = 1 / 8
"""The part of the memory for what models side by side keep from step to step."""
_CPU_MEMORY = 2**31
"""Bytes that models may take by default where no device tells how many it has free."""


class Strategy(Protocol):
    """Strategy of training the runs of one ensemble."""

    @property
    def threads(self) -> int:
        """Number of chunks that are trained at once."""

    def chunks(self, runs: list[Identity]) -> list[list[Identity]]:
        """The runs in chunks, each of one world, that are finished and kept together."""

    def trained(self, runs: Iterable[Run], stop: threading.Event) -> Iterator[tuple[Run, Tensor]]:
        """Each run of a chunk with its last iterate (p,); fewer once the event is set."""


def strategy(
    gradients: ClippedSum, *, side_by_side: bool, workers: int, chunk: int | None, memory: float
) -> Strategy:
    """Strategy for models with these gradients; arguments as of ``ensemble.scores``."""
    if side_by_side:
        return SideBySide(gradients, memory, chunk)
    threads = max(1, min(workers, int(memory // model_bytes(gradients))))
    return Grouped(threads) if gradients.kind == "linear" else OneByOne(threads, chunk or 10)


@dataclass(frozen=True)
class OneByOne:
    """One model at a time in each thread."""

    threads: int
    chunk: int

    def chunks(self, runs: list[Identity]) -> list[list[Identity]]:
        """Chunks of at most ``chunk`` models."""
        return in_chunks(runs, self.chunk)

    def trained(self, runs: Iterable[Run], stop: threading.Event) -> Iterator[tuple[Run, Tensor]]:
        for run in runs:
            last = last_iterate(run, stop)
            if stop.is_set():
                return
            yield run, last


@dataclass(frozen=True)
class Grouped:
    """Linear models, ``GROUP`` at a time in two matrix products a step."""

    threads: int

    def chunks(self, runs: list[Identity]) -> list[list[Identity]]:
        """Chunks by data set, repeat and group, with the same members whichever are finished."""
        groups: dict[tuple[str, int, int], list[Identity]] = {}
        for world, repeat, index in runs:
            groups.setdefault((world, repeat, index // GROUP), []).append((world, repeat, index))
        return list(groups.values())

    def trained(self, runs: Iterable[Run], stop: threading.Event) -> Iterator[tuple[Run, Tensor]]:
        group = list(runs)
        lasts = linear_iterates(group, stop)
        if not stop.is_set():
            yield from zip(group, lasts, strict=True)


@dataclass
class SideBySide:
    """Train as many models at once as fit ``memory`` bytes, and ``chunk`` at most.

    together: how many that is; fewer once that many ran out of memory.
    """

    gradients: ClippedSum
    memory: float
    chunk: int | None = None
    together: int = 1
    threads: ClassVar[int] = 1

    def chunks(self, runs: list[Identity]) -> list[list[Identity]]:
        """Chunks as ``arranged`` finds room for; it sizes an accelerator's blocks too."""
        worlds = Counter(world for world, _, _ in runs)
        # The second 1 is for a call without runs, for ``max`` takes two numbers or more.
        most = max(1, *worlds.values(), 1)
        self.together, block = arranged(self.gradients, min(self.chunk or most, most), self.memory)
        if self.gradients.device.type != "cpu":
            self.gradients.block = block  # a CPU's are as large as its cache
        return in_chunks(runs, self.chunk or self.together)

    def trained(self, runs: Iterable[Run], stop: threading.Event) -> Iterator[tuple[Run, Tensor]]:
        """Train as many models at once as fit.

        Where memory runs out, both models and the records of a block are halved, for good.
        """
        waiting = list(runs)
        while waiting:
            group, gradients = waiting[: self.together], waiting[0].gradients
            try:
                lasts = last_iterates(group, stop, kept=self.memory * _KEPT_SHARE)
            except torch.OutOfMemoryError:
                if len(group) == gradients.block == 1:
                    raise
                lasts = None
            # Outside the except clause, whose traceback would keep the tensors alive.
            if lasts is None:
                self.together = (len(group) + 1) // 2
                gradients.block = (gradients.block + 1) // 2
            elif stop.is_set():
                return
            else:
                yield from zip(group, lasts, strict=True)
                waiting = waiting[len(group) :]


def last_iterate(run: Run, stop: threading.Event | None = None) -> Tensor:
    """The released parameters (p,) of one run."""
    theta = run.initial
    for theta in run.iterates(stop=stop):  # noqa: B007 - only the last is released
        pass
    return theta


def last_iterates(
    runs: list[Run],
    stop: threading.Event | None = None,
    *,
    kept: float = _KEPT_SHARE * _CPU_MEMORY,
) -> Tensor:
    """The released parameters (models, p) of runs of one world, trained side by side.

    On a CPU each has the noise that it has alone. On an accelerator noise comes from one generator
    of the device, named by the first run: the same runs together get the same noise, but another
    grouping gets other noise, equal in distribution only.

    Batches are uploaded for as many steps at once as ``kept`` bytes hold, and where all steps have
    the same one its records stay gathered if they take no more.
    """
    mechanism, kernel = runs[0].ensemble.mechanism, runs[0].gradients.many
    thetas = torch.stack([run.initial for run in runs])
    added = torch.zeros_like(thetas)  # to the clipped sums: noise and insertions
    noise, inserted = _noise(runs), Additions(runs)
    for run in runs:
        run.begin()
    for step, batch in enumerate(_Batches(runs, kept), 1):
        if stop is not None and stop.is_set():
            break
        noise(added)  # overwrites what the step before added
        if (gradient := inserted.of(step)) is not None:
            added += gradient
        sums = kernel.sums(thetas, batch.blocks(kernel), mechanism.clipping_norm)
        thetas.sub_(sums.add_(added), alpha=mechanism.learning_rate)
        _show(runs, step, thetas, range(len(runs)))
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
        streams.key(first.seed, *path) % 2**63  # a key has 128 bits
    )
    return lambda noise: noise.normal_(0, std, generator=generator)


@dataclass(eq=False)
class _Batch:
    """A step's batches on the device, as ``Blockwise.blocks`` takes them."""

    tensors: tuple[Tensor, Tensor | None, Tensor | None]
    gathered: list[Block] | None = None

    def blocks(self, kernel: Blockwise) -> Iterable[Block]:
        """The records, block by block."""
        return kernel.blocks(*self.tensors) if self.gathered is None else self.gathered


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
        # Steps that share a batch share the array (``each_once``), so that its identity tells.
        self._keys: list[Hashable] = [
            # Views are drawn again in each step, so that no other has the same batches.
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
        """Number of distinct steps whose batches fit twice: those before stay until then."""
        # Bytes of a record: three numbers of 8 for each view, an index of 8, and a weight.
        views = 24 * self._augmentation.views if self._augmentation else 0
        record = 2 * (8 + self._gradients.dtype.itemsize + views)
        return max(1, int(self._kept // (len(self._runs) * max(1, self._longest) * record)))

    def _uploaded(self, keys: list[Hashable], drawn: Iterator[tuple]) -> Iterator[_Batch]:
        steps = [self._batches[key] for key in keys]
        counts = np.array([[len(batch) for batch in batches] for batches in steps])
        sizes = [int(n) for n in counts.max(1)]
        models = 1 if self._shared else len(self._runs)
        # Padding is record 0, with a weight of 0.
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
            # Views make every step distinct, so that all are uploaded in order, as these are drawn.
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
        kernel = self._gradients.many
        if kernel.gathered_bytes(len(self._runs), batch.tensors[0]) <= self._kept:
            batch.gathered = list(kernel.blocks(*batch.tensors))

    def _there(self, values: NDArray) -> Tensor:
        return torch.from_numpy(values).to(self._gradients.device)


def linear_iterates(runs: list[Run], stop: threading.Event | None = None) -> Tensor:
    """The released parameters (models, p) of runs of one world and repeat, for kernel "linear".

    Each run has its place by its index, and its own noise: its parameters are the same bit for bit
    whichever other runs of its group of ``GROUP`` are there.
    """
    first = runs[0]
    mechanism, gradients = first.ensemble.mechanism, first.gradients
    places = [run.index % GROUP for run in runs]
    # Rows without a run are trained as well and dropped: a product's shape decides its rounding.
    thetas = torch.zeros(GROUP, gradients.parameters, dtype=gradients.dtype)
    thetas[places] = torch.stack([run.initial for run in runs])
    noise, drawn = _noise(runs), torch.empty(len(runs), thetas.shape[1], dtype=thetas.dtype)
    inserted = Additions(runs)
    for run in runs:
        run.begin()
    shared = mechanism.sampling.shared
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
        _show(runs, step, thetas, places)
    return thetas[places]


def _show(runs: list[Run], step: int, thetas: Tensor, places: Iterable[int]) -> None:
    """Show each run's observers its row of the iterates; all runs have observers, or none has."""
    if runs[0].observers:
        for run, place in zip(runs, places, strict=True):
            run.see(step, thetas[place])


def free_memory(device: torch.device) -> float:
    """Bytes that models may take by default: 2 GiB, or 80 % of what a CUDA device has free."""
    if device.type != "cuda":
        return _CPU_MEMORY
    # What torch holds back from the device, and no tensor uses, is free too.
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
