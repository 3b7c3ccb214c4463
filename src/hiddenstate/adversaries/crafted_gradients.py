"""Audits of small networks whose canary is fixed before training and sought in the last iterate.

Source: Cebere, Bellet and Papernot 2025, for their network of 68 parameters on California housing.
What their paper leaves open is a parameter here. An adversary is asked once, before the first step,
for its canary: a gradient for every insertion, or a record whose clipped gradient is inserted. It
knows the records, the initial parameters and the batches, and may simulate as it likes. It is
given neither noise nor iterates; its canary is handed the last iterate alone.
"""

import math
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from hiddenstate import streams
from hiddenstate.accounting import linear
from hiddenstate.adversaries.canaries import RecordReading, mislabelled
from hiddenstate.adversaries.gradient_canaries import (
    Adversary,
    RandomCoordinate,
    SimulatedCoordinate,
)
from hiddenstate.dpsgd.audit import Group, by_adversary, column, in_chunks
from hiddenstate.dpsgd.checkpoint import Checkpoint, fingerprint
from hiddenstate.dpsgd.kernels.tiny import Code, Dense, Trainer
from hiddenstate.dpsgd.known import (
    FixedCanary,
    Floats,
    Known,
    check_record,
    each_once,
    gradients_of,
    read_only,
    score_of,
)
from hiddenstate.dpsgd.mechanism import Mechanism
from hiddenstate.errors import InputError, check_count
from hiddenstate.pipeline.parts import Identity, Row, Store, place
from hiddenstate.sampling import Cyclic, Reshuffled
from hiddenstate.streams import World, model_in_words

Start = Literal["fresh", "shared"]
Name = tuple[str | int, ...]


@dataclass(frozen=True)
class LossBased:
    """A_L, the baseline: a random training record with a wrong label, the same in all runs."""

    name = "loss-based"

    def canary(self, known: Known) -> RecordReading:
        classes = int(known.y.max()) + 1
        return mislabelled(known.x, known.y, classes, known.shared_rng).fixed(known)


ADVERSARIES: tuple[Adversary, ...] = (LossBased(), RandomCoordinate(), SimulatedCoordinate())
"""The three of the paper."""


@dataclass(frozen=True, kw_only=True)
class Insertions:
    """DP-SGD with an insertion in every ``every``-th step, ``insertions`` in all.

    The batches are disjoint, in an order drawn for each run, or for each of its epochs if
    ``reshuffled``, where records left over sit out. ``learning_rate`` is per mean of a batch.
    epsilon, delta: what the insertions alone are accounted for, exactly, by Gaussian
    differential privacy.
    """

    epsilon: float
    every: int = 1
    insertions: int = 250
    batch_size: int = 400
    learning_rate: float = 0.1
    clipping_norm: float = 1.0
    delta: float = 1e-5
    reshuffled: bool = False

    def __post_init__(self) -> None:
        for name in ("every", "insertions"):
            check_count(name, getattr(self, name))

    @cached_property
    def mechanism(self) -> Mechanism:
        """Mechanism that the insertions and the noise make."""
        noise = linear.last_iterate_noise_multiplier(self.epsilon, self.delta, 1.0, self.insertions)
        size = self.batch_size
        return Mechanism(
            sampling=Reshuffled(size) if self.reshuffled else Cyclic(size, shuffled_once=True),
            steps=self.every * self.insertions,
            # The mechanism's learning rate multiplies sums.
            learning_rate=self.learning_rate / self.batch_size,
            clipping_norm=self.clipping_norm,
            noise_multiplier=float(noise),
            adjacency="add_or_remove",
            insertions=self.insertions,
        )

    @property
    def mu(self) -> float:
        """Gaussian differential privacy of the insertions: sqrt(insertions) / noise multiplier."""
        return math.sqrt(self.insertions) / self.mechanism.noise_multiplier

    def inserted(self) -> NDArray[np.int64]:
        """Indices of the steps with an insertion: every, 2 every, ..., counted from 1."""
        return np.arange(1, self.insertions + 1) * self.every - 1


@dataclass(frozen=True, kw_only=True, eq=False)
class CraftedAudit(Insertions):
    """Audit of a small dense network, trained as ``Insertions`` specifies.

    x: shape (records, features). y: shape (records,). start: initial parameters drawn for each run,
    or once for each repeat.
    """

    x: Floats = field(repr=False)
    y: NDArray[np.int64] = field(repr=False)
    start: Start = "fresh"
    network: Dense = Dense((8, 6, 2))  # noqa: RUF009 - frozen

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.start not in ("fresh", "shared"):
            raise InputError(f"start: got {self.start!r}; expected 'fresh' or 'shared'")

    @cached_property
    def shown(self) -> tuple[Floats, NDArray[np.int64]]:
        return read_only(self.x), read_only(self.y)


@dataclass(frozen=True, eq=False)
class _Run:
    """One model: its streams, what is known of it, and its training."""

    audit: CraftedAudit
    world: Literal["in", "out"]
    repeat: int
    index: int
    seed: int
    name: Name
    role: Name = ()
    kernel: Code = "auto"
    again: Name = ()

    def stream(self, purpose: str) -> np.random.Generator:
        path = (*self.name, *self.again, self.world, *self.role, self.repeat, self.index, purpose)
        return streams.stream(self.seed, *path)

    @cached_property
    def initial(self) -> Floats:
        shared = streams.stream(self.seed, *self.name, "shared", self.repeat, "initialisation")
        fresh = self.audit.start == "fresh"
        return read_only(
            self.audit.network.initial(self.stream("initialisation") if fresh else shared)
        )

    @cached_property
    def batches(self) -> tuple[NDArray[np.int64], ...]:
        mechanism = self.audit.mechanism
        drawn = mechanism.sampling.batches(
            len(self.audit.y), mechanism.steps, self.stream("sampling")
        )
        return tuple(each_once(read_only, drawn))

    def known(self, adversary: Adversary) -> Known:
        """This adversary's knowledge of one run before its training."""
        audit = self.audit
        path = (*self.name, "adversary", adversary.name, self.repeat)
        trainer = self.trainer(audit.x, audit.y)
        return Known(
            mechanism=audit.mechanism,
            x=audit.shown[0],
            y=audit.shown[1],
            initial=self.initial,
            batches=self.batches,
            insertions=audit.insertions,
            rng=self.stream(f"adversary {adversary.name}"),
            shared_rng=streams.stream(self.seed, *path),
            losses=audit.network.losses,
            simulated=partial(trainer.simulated, self.initial, self.batches),
        )

    def canary(self, adversary: Adversary) -> FixedCanary:
        """The canary that this adversary fixes before the training starts."""
        found, audit = adversary.canary(self.known(adversary)), self.audit
        if found.record is not None:
            check_record(found.record, audit.x, audit.y, whole=True)
        return found

    @property
    def kind(self) -> str:
        return self.trainer(self.audit.x, self.audit.y).kind

    def trainer(self, x: Floats, y: NDArray[np.int64]) -> Trainer:
        """Trainer of the audited network on these records."""
        return Trainer(
            self.audit.network,
            x,
            y,
            learning_rate=self.audit.mechanism.learning_rate,
            clipping_norm=self.audit.mechanism.clipping_norm,
            kernel=self.kernel,
        )

    def trained(self, canary: FixedCanary | None) -> Floats:
        trainer, batches, added = self.prepared(canary)
        return trainer.last_iterate(self.initial, batches, added)

    def prepared(
        self, canary: FixedCanary | None
    ) -> tuple[Trainer, Sequence[NDArray[np.int64]], Floats]:
        """Trainer, batches and what is added to the sums: all that the training depends on."""
        audit, mechanism = self.audit, self.audit.mechanism
        x, y, batches = audit.x, audit.y, list(self.batches)
        shape = (mechanism.steps, audit.network.parameters)
        added = self.stream("noise").standard_normal(shape, dtype=np.float32)
        added *= np.float32(mechanism.noise_std)
        if canary is None:
            return self.trainer(x, y), batches, added
        expected = audit.insertions, audit.network.parameters
        given = gradients_of(canary, canary.record, expected, mechanism.clipping_norm)
        if given is not None:
            added[audit.inserted()] += given.astype(np.float32)
        if canary.record is not None:
            x = np.concatenate((x, np.asarray(canary.record[0], np.float32)[None]))
            y = np.append(y, canary.record[1])
            for t in audit.inserted():
                batches[t] = np.append(batches[t], len(audit.y))
        return self.trainer(x, y), batches, added


def scores(
    audit: CraftedAudit,
    *,
    models: int,
    seed: int,
    repeat: int = 0,
    adversaries: Sequence[Adversary] = ADVERSARIES,
    name: Name = (),
    again: Name = (),
    workers: int = 1,
    chunk: int = 100,
    checkpoint: Store = None,
    progress: bool = False,
    kernel: Code = "auto",
    noiseless: bool = False,
) -> pd.DataFrame:
    """One audit by each adversary: columns world, repeat, run, score, adversary and coordinate.

    ``models`` is the number of models of each world. The models of world "out" are trained once:
    each adversary reads the same last iterates at its own coordinates; those of world "in" are its
    own. Finished models are kept in ``checkpoint`` (a directory) in chunks of ``chunk``, by which
    a call that is repeated goes on. ``workers`` threads train a model each. The scores depend on
    none of these, and ``repeat`` is but a name for other random numbers. ``again`` names other runs
    of the same audit: what all its runs share, such as a record or a start, stays as it is.
    ``noiseless``: what each adversary reads at the end of a training of the same run without noise
    and canary, which it can simulate before it sees the last iterate.
    """
    for argument, value in {"models": models, "workers": workers, "chunk": chunk}.items():
        check_count(argument, value)
    by_name = {adversary.name: adversary for adversary in adversaries}

    def group(world: World, names: tuple[str, ...]) -> Group:
        those = tuple(by_name[name] for name in names)
        role = names if world == "in" else ()
        folder = place(checkpoint) / "-".join((world, *role))
        columns = tuple(column(name, what) for name in names for what in _OBSERVED)
        mark = fingerprint(
            seed, name, again, audit.x, audit.y, audit, audit.mechanism, repeat, those,
            *(["noiseless"] if noiseless else [])
        )  # fmt: skip
        run = partial(_Run, audit, seed=seed, name=name, role=role, kernel=kernel, again=again)

        def observed(
            chunk: list[Identity], stop: threading.Event
        ) -> Iterator[tuple[Identity, Row]]:
            for identity in chunk:
                if stop.is_set():
                    return
                yield identity, _observed(run(*identity), those, noiseless)

        return Group(
            runs=[(world, repeat, index) for index in range(models)],
            store=Checkpoint(folder, mark, columns, {"kernel": run(world, repeat, 0).kind}),
            chunks=partial(in_chunks, size=chunk),
            observed=observed,
            threads=workers,
        )

    table = by_adversary([a.name for a in adversaries], group, _OBSERVED, progress=progress)
    columns = ["world", "repeat", "run", "score", "adversary", "coordinate"]
    return table.astype({"coordinate": int})[columns]


_OBSERVED = ("score", "coordinate")


def _observed(run: _Run, adversaries: tuple[Adversary, ...], noiseless: bool) -> Row:
    """Score and coordinate of each adversary of a run."""
    # All canaries are there before the training starts.
    canaries = [run.canary(adversary) for adversary in adversaries]
    if noiseless:
        trainer = run.trainer(run.audit.x, run.audit.y)
        last = trainer.last_iterate(run.initial, run.batches, None)
    else:
        # A model of world "in" has one adversary; those of "out" are trained for all.
        last = run.trained(canaries[0] if run.world == "in" else None)
    row: Row = {}
    for adversary, canary in zip(adversaries, canaries, strict=True):
        words = model_in_words(run.world, run.index)
        score = score_of(canary, last, words, run.audit.learning_rate)
        row[column(adversary.name, "score")] = score
        row[column(adversary.name, "coordinate")] = float(canary.coordinate)
    return row


def gradient_norms(
    audit: CraftedAudit, *, run: int, seed: int, repeat: int = 0, name: Name = ()
) -> NDArray[np.float64]:
    """Gradient norm of the baseline's record before each step of one model of world "in"; (steps,).

    The experimenter's view, for it takes every iterate. The paper's Section 4: such canaries do
    not reach the clipping norm throughout.
    """
    adversary = LossBased()
    one = _Run(audit, "in", repeat, run, seed, name, (adversary.name,))
    canary = adversary.canary(one.known(adversary))
    trainer, batches, added = one.prepared(canary)
    x, y = canary.record
    record, label = np.asarray(x, float)[None], np.array([y])
    theta, norms = one.initial, np.empty(len(batches))
    for t, batch in enumerate(batches):
        norms[t] = audit.network.norms(theta.astype(float), record, label)[0]
        # One step at a time, since a trainer returns the last iterate alone.
        theta = trainer.last_iterate(theta, [batch], added[t : t + 1])
    return norms
