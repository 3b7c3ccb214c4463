"""Scores of hundreds of models trained under DP-SGD, with and without a canary.

On a CPU a score is the same bit for bit however the runs are chunked, ordered, spread over threads
or resumed. How models are trained is in ``strategies``, the loop over them in ``audit``.
"""

import dataclasses
import math
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from numbers import Real
from typing import TypedDict, Unpack

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from hiddenstate import streams
from hiddenstate.dpsgd import audit
from hiddenstate.dpsgd.checkpoint import Checkpoint, fingerprint, structure
from hiddenstate.dpsgd.clipping import ClippedSum, KernelName, usable
from hiddenstate.dpsgd.kernels.base import single_precision
from hiddenstate.dpsgd.known import FixedCanary
from hiddenstate.dpsgd.run import Canary as Canary
from hiddenstate.dpsgd.run import Ensemble as Ensemble
from hiddenstate.dpsgd.run import Initial as Initial
from hiddenstate.dpsgd.run import Observer as Observer
from hiddenstate.dpsgd.run import Run as Run
from hiddenstate.dpsgd.run import Watch as Watch
from hiddenstate.dpsgd.strategies import free_memory, strategy
from hiddenstate.dpsgd.strategies import last_iterate as last_iterate
from hiddenstate.dpsgd.strategies import last_iterates as last_iterates
from hiddenstate.errors import InputError, check_count, expect
from hiddenstate.pipeline.parts import Identity, Row, Store, place
from hiddenstate.sampling import FullBatch
from hiddenstate.streams import World

Measure = Callable[[Run, Tensor], float]
"""Something else to know of a last iterate (p,), such as its ``Accuracy``."""

LAST = "last iterate"
"""The adversary of a canary's own score, beside observers."""


class How(TypedDict, total=False):
    """Place and manner of training models.

    On a CPU ``kernel`` and ``side_by_side`` alone decide digits of a score, the last ones.

    device: "cpu" (the default), "cuda", ... workers: threads of a CPU, which train a model each, as
    many as fit ``memory`` bytes. chunk: the models that are finished, and kept, together; 10 unless
    told. kernel: as of ``ClippedSum``; "linear" trains linear models on a CPU 32 at a time in two
    matrix products a step: several times faster, the same scores except for rounding, and chunks of
    32.

    side_by_side: whether the models of a chunk are trained side by side, as on an accelerator by
    default. By default ``memory`` is ``free_memory``, a chunk is as many models as ``arranged``
    finds room for, and on an accelerator blocks of records are as large as it says. Where memory
    runs out all the same, half of the models are trained at a time.
    """

    device: str
    workers: int
    chunk: int | None
    memory: float | None
    kernel: KernelName
    side_by_side: bool | None


def scores(
    ensemble: Ensemble,
    *,
    models: int,
    seed: int,
    name: tuple[str | int, ...] = (),
    repeats: int = 1,
    worlds: tuple[World, ...] = ("in", "out"),
    checkpoint: Store = None,
    progress: bool = False,
    measures: Mapping[str, Measure] | None = None,
    observers: Mapping[str, Observer] | None = None,
    **how: Unpack[How],
) -> pd.DataFrame:
    """Score of each model: columns world, repeat, run and score (larger speaks for "in").

    ``models`` is the number of models of each data set and repeat. Runs are finished, and with
    ``checkpoint`` (a directory) kept, in chunks; a call that finds finished ones of the same audit
    there goes on from them. ``Parts`` of a cell in its place train their own models alone, and the
    table has these alone. ``measures`` adds a column for each of its names. ``observers`` see the
    iterates as they are made: each adds a row to each model, and a column adversary says whose
    score it is, the canary's being that of the "last iterate". ``how``: see ``How``.

    Raises InputError for input that does not fit together, and for a checkpoint of another audit.
    """
    check_count("models", models)
    check_count("repeats", repeats)
    if not worlds or not set(worlds) <= {"in", "out"} or len(worlds) > len(set(worlds)):
        raise InputError(f"worlds: got {worlds}; expected 'in', 'out' or both")
    measures, observers = measures or {}, observers or {}
    needed = ("measures", measures, "__call__"), ("observers", observers, "watch")
    for what, given, method in needed:
        fine = isinstance(given, Mapping) and all(hasattr(v, method) for v in given.values())
        expect(fine, what, given, f"a dictionary of {what} by name")
    taken: tuple[str, ...] = ("world", "repeat", "run", "score")
    if observers:
        taken = (LAST, *taken, "adversary")
    _refuse_names("measures", measures, taken)
    _refuse_names("observers", observers, (*taken, *measures))
    runs: list[Identity] = [
        (w, r, i) for w in worlds for r in range(repeats) for i in range(models)
    ]
    group = _group(
        ensemble, runs, seed, name, checkpoint, measures=measures, observers=observers, **how
    )
    with _arithmetic(how.get("device", "cpu")), audit.progress_bar(len(runs), progress) as bar:
        done = audit.finished(group, bar)
    table = pd.DataFrame([*done], columns=["world", "repeat", "run"])
    table = table.join(pd.DataFrame([*done.values()], columns=group.store.columns))
    if not observers:
        return table
    shared = ["world", "repeat", "run", *measures]
    table = table.rename(columns={"score": LAST})
    return table.melt(shared, [LAST, *observers], var_name="adversary", value_name="score")


def scores_by_adversary(
    ensembles: Mapping[str, Ensemble],
    *,
    models: int,
    seed: int,
    name: tuple[str | int, ...] = (),
    checkpoint: Store = None,
    progress: bool = False,
    **how: Unpack[How],
) -> pd.DataFrame:
    """One audit by each of several adversaries: columns world, repeat, run, score and adversary.

    ensembles: by the adversary's name; they differ in the canary alone. The models without the
    canary are trained once, and each adversary reads them; those with it are each one's own, except
    for their random numbers. Other arguments and errors as of ``scores``.

    Raises InputError too where models without the canary depend on it: their batches, if some
    canaries are sampled and others are not, or gradients of adjacency "replace".
    """
    check_count("models", models)
    _refuse_unlike(ensembles)
    sums: dict[str, ClippedSum] = {}  # of the records alone, which are tried once

    def group(world: World, those: tuple[str, ...]) -> audit.Group:
        runs: list[Identity] = [(world, 0, index) for index in range(models)]
        first, *others = those
        folder = place(checkpoint) / ("out" if world == "out" else f"in-{first}")
        return _group(
            ensembles[first], runs, seed, name, folder, **how, sums=sums,
            own=audit.column(first, "score"),
            others={audit.column(word, "score"): ensembles[word] for word in others},
        )  # fmt: skip

    with _arithmetic(how.get("device", "cpu")):
        return audit.by_adversary([*ensembles], group, ("score",), progress=progress)


def _for_several(kernel: KernelName) -> KernelName:
    """The kernel for models side by side; InputError where it knows one model at a time."""
    if kernel == "auto":
        return "torch"
    if kernel in ("native", "linear"):
        raise InputError(
            f"kernel: got {kernel!r} with models side by side; expected 'auto', 'torch' or "
            "'explicit', which train several models together"
        )
    return kernel


def _group(
    ensemble: Ensemble,
    runs: Sequence[Identity],
    seed: int,
    name: tuple[str | int, ...],
    checkpoint: Store,
    *,
    measures: Mapping[str, Measure] | None = None,
    observers: Mapping[str, Observer] | None = None,
    own: str = "score",
    others: Mapping[str, Ensemble] | None = None,
    sums: dict[str, ClippedSum] | None = None,
    device: str = "cpu",
    workers: int = 1,
    chunk: int | None = None,
    memory: float | None = None,
    kernel: KernelName = "auto",
    side_by_side: bool | None = None,
) -> audit.Group:
    """Runs of an ensemble, whose rows have the canary's ``own`` score and what ``others`` read.

    sums: that of an ensemble that differs in the canary alone; filled where it is empty. Ensembles
    with a record of their own do not share it.
    """
    check_count("workers", workers)
    if chunk is not None:
        check_count("chunk", chunk)
    if memory is not None and not (isinstance(memory, Real) and memory > 0):
        raise InputError(f"memory: got {memory!r}; expected bytes, more than 0")
    if side_by_side is None:
        side_by_side = usable(device).type != "cpu"
    made_once = sums if sums is not None and ensemble.canary.record is None else {}
    if not made_once:
        kind = _for_several(kernel) if side_by_side else kernel
        made_once["sum"] = ensemble.clipped_sum(device, kind)
    gradients = made_once["sum"]
    if gradients.kind == "linear" and gradients.device.type != "cpu":
        raise InputError(f"device: got {device!r} with kernel 'linear'; expected 'cpu'")
    others, measures, observers = others or {}, measures or {}, observers or {}
    for measure in measures.values():
        if isinstance(measure, Accuracy):
            gradients.refuse_tests(measure.x, measure.y)
    made = {
        "kernel": gradients.kind, "device": gradients.device.type,
        "precision": gradients.dtype, "side by side": side_by_side,
    }  # fmt: skip
    canary_of = {n: other.canary for n, other in others.items()}
    readers: dict[str, Measure | Canary | Observer] = {**canary_of, **measures, **observers}
    # The digest is compared with chunks alone, which only a directory has.
    mark = (
        "" if place(checkpoint).directory is None else _fingerprint(ensemble, seed, name, readers)
    )
    how = strategy(
        gradients, side_by_side=side_by_side, workers=workers, chunk=chunk,
        memory=free_memory(gradients.device) if memory is None else memory,
    )  # fmt: skip

    def observed(chunk: list[Identity], stop: threading.Event) -> Iterator[tuple[Identity, Row]]:
        canaries: dict[Identity, dict[str, FixedCanary]] = {}

        def runs() -> Iterator[Run]:
            for identity in chunk:
                run = Run(*identity, ensemble, gradients.own(), seed, name, observers)
                # Before the training starts, as the run's own canary.
                canaries[identity] = {n: _fixed(run, other) for n, other in others.items()}
                yield run

        for run, last in how.trained(runs(), stop):
            row = {own: run.score(last)} | run.watched()
            row |= {n: run.score_by(it, last) for n, it in canaries.pop(run.identity).items()}
            # Of a copy, for many an operation of tensors changes them in place.
            row |= {n: float(measure(run, last.clone())) for n, measure in measures.items()}
            yield run.identity, row

    columns = (own, *observers, *others, *measures)
    store = Checkpoint(checkpoint, mark, columns, made, tuple(measures))
    return audit.Group(runs, store, how.chunks, observed, how.threads)


def _fixed(run: Run, other: Ensemble) -> FixedCanary:
    """The canary of an ensemble that differs in it alone, for a run without a canary."""
    known = dataclasses.replace(run.known(), insertions=other.most_insertions)
    return other.canary.fixed(known)


def _refuse_names(what: str, labels: Iterable[str], taken: tuple[str, ...]) -> None:
    """InputError for labels that are other columns' or rows' names."""
    for label in labels:
        if label in taken:
            raise InputError(f"{what}: got {label!r}; expected other names than {taken}")


def _refuse_unlike(ensembles: Mapping[str, Ensemble]) -> None:
    """InputError for ensembles that differ in more than the canary, or whose models without the
    canary are not the same."""
    parts = [field.name for field in dataclasses.fields(Ensemble) if field.name != "canary"]
    for (first, one), (word, other) in pairwise(ensembles.items()):
        for part in parts:
            if getattr(other, part) is not getattr(one, part):
                raise InputError(
                    f"ensembles: {word!r} has another {part} than {first!r}; expected ensembles "
                    "that differ in the canary alone"
                )
        reason = ""
        full = isinstance(one.mechanism.sampling, FullBatch)
        if one.positions != other.positions and not full:
            reason = f"batches are drawn from {other.positions} records, not {one.positions}"
        elif one.mechanism.adjacency == "replace" and not (one.replaces and other.replaces):
            reason = "'replace' has them add the opposite of a canary's gradient"
        if reason:
            raise InputError(
                f"ensembles: {word!r} needs other models without the canary than {first!r} has: "
                f"{reason}; expected ensembles that can share them, or `scores` of each"
            )


@contextmanager
def _arithmetic(device: str) -> Iterator[None]:
    """No product of an accelerator is of TF32 meanwhile, and torch's threads are restored then."""
    # ``ClippedSum.own`` sets torch to one thread, which must not outlast the audit.
    threads = torch.get_num_threads()
    try:
        with single_precision(usable(device)):
            yield
    finally:
        torch.set_num_threads(threads)


@dataclass(frozen=True, eq=False)
class Accuracy:
    """Share of records that the last iterate classifies rightly; a measure for ``scores``.

    A large test set can cost as much as training: ``models`` limits it to the first ones of each
    data set and repeat.
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


def _fingerprint(
    ensemble: Ensemble,
    seed: int,
    name: tuple[str | int, ...],
    readers: Mapping[str, Measure | Canary | Observer],
) -> str:
    """Digest of everything that decides the scores and measures."""
    initial = ensemble.initial
    if callable(initial):
        # Drawn first, so that a model that it draws into holds the same each time. What is drawn
        # tells the parameters of the audit's own model that it reads from those it does not.
        threads = torch.get_num_threads()
        torch.set_num_threads(1)  # as where models are trained, or it would round otherwise
        try:
            drawn = initial(streams.stream(seed, *name, "fingerprint"))
        finally:
            torch.set_num_threads(threads)
        own = [p for p in ensemble.model.parameters() if p.requires_grad]
        initial = (fingerprint(initial, free=own), drawn)
    return fingerprint(
        seed, name, ensemble.mechanism, structure(ensemble.model), ensemble.x, ensemble.y,
        ensemble.canary, initial, ensemble.loss, ensemble.augmentation, dict(readers),
    )  # fmt: skip
