"""Ensemble of models that an audit trains, and one run of it with its random streams.

Every model is a run with a name (world, repeat, index) and random streams of its own, so its score
depends on no other run.
"""

import copy
import math
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, Protocol, TypeAlias
from weakref import WeakSet

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from hiddenstate import streams
from hiddenstate.dpsgd.augmentation import Augmentation
from hiddenstate.dpsgd.clipping import (
    ClippedSum,
    KernelName,
    Loss,
    checked_indices,
    cross_entropy,
    tensor,
)
from hiddenstate.dpsgd.known import (
    FixedCanary,
    Known,
    Movement,
    check_record,
    each_once,
    gradients_of,
    numbers,
    read_only,
    score_of,
)
from hiddenstate.dpsgd.mechanism import Mechanism
from hiddenstate.dpsgd.probe import CHANCE
from hiddenstate.errors import InputError
from hiddenstate.pipeline.parts import Identity
from hiddenstate.sampling import Poisson
from hiddenstate.streams import World

Initial: TypeAlias = Tensor | Callable[[np.random.Generator], Tensor]
"""Initial parameters (p,): the same for all models, or drawn for each from its own stream."""


class Canary(Protocol):
    """Difference between the two data sets, and how the last iterate is searched for it."""

    @property
    def record(self) -> tuple[NDArray[np.float32], int] | None:
        """A record that only runs with the canary train on, or None if the canary is a gradient."""

    @property
    def sampled(self) -> bool:
        """True if the canary has a place among the records: the sampling decides on its use."""

    def inserted(self, step: int) -> bool:
        """True if this step has it, whatever the sampling draws; the first is 1.

        Never, for a record that the sampling draws.
        """

    def fixed(self, known: Known) -> FixedCanary:
        """All of it for one run, from what is known before training, and how it is read."""


class Watch(Protocol):
    """Observer's record of one run, whose iterates it is shown as they are made."""

    def see(self, step: int, theta: Tensor) -> None:
        """A copy of the iterate (p,) after this step, the first is 1."""

    def score(self) -> float:
        """Score of all that was seen: larger speaks for "in"."""


class Observer(Protocol):
    """An adversary who sees more than the last iterate."""

    def watch(self, known: Known, canary: FixedCanary) -> Watch:
        """Begins with a run, from what is known before it is trained and its canary."""


_CHECKED = WeakSet["Ensemble"]()
"""Ensembles whose starts are known to follow from a run's name."""


@dataclass(frozen=True, eq=False)
class Ensemble:
    """Properties that all models of an audit share.

    x: shape (records, *record shape), float32, without the canary. y: shape (records,), int64; a
    loss of one's own may have labels of another kind. Integer records stay integers where the
    model takes these.

    The mechanism's ``adjacency`` says how the worlds differ. "add_or_remove": the canary is there
    or not. "replace": its record takes the place of the last one of ``x``, or its gradient that of
    the opposite gradient. Raises InputError for a canary that is used in more steps than the
    mechanism accounts for. With an ``augmentation`` a record's gradient is the mean over random
    views of it, drawn again in each step.
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
        if not isinstance(self.mechanism, Mechanism):
            raise InputError(f"mechanism: got {self.mechanism!r}; expected a Mechanism")
        if not all(hasattr(self.canary, n) for n in ("record", "sampled", "inserted", "fixed")):
            raise InputError(
                f"canary: got {self.canary!r:.40}; expected a canary, such as blank(...)"
            )
        if isinstance(self.initial, nn.Module):
            raise InputError(
                "initial: got a model; expected flat_parameters(model), or a function of a random "
                "generator"
            )
        x, y = numbers("x", self.x), numbers("y", self.y, kinds="biufc")
        if len(x) != len(y):
            raise InputError(f"y: got {len(y)} labels; expected {len(x)}, one a record")
        if not self.positions:
            raise InputError("x: got no record; expected at least one")
        if self.canary.record is not None:
            check_record(self.canary.record, x, y, whole=self.loss is cross_entropy)
        self._refuse_unaccounted()

    @cached_property
    def shown(self) -> tuple[NDArray[Any], NDArray[Any]]:
        # Copied once: all runs show their adversaries the same arrays.
        return read_only(self.x), read_only(self.y)

    @property
    def replaces(self) -> bool:
        """True if the canary's record takes another's place instead of joining the others."""
        return self.mechanism.adjacency == "replace" and self.canary.record is not None

    @cached_property
    def insertions(self) -> int:
        """Steps that have the canary whatever the sampling draws."""
        return sum(bool(self.canary.inserted(step + 1)) for step in range(self.mechanism.steps))

    @property
    def most_insertions(self) -> int:
        """Number of gradients a canary needs: one for each step where the sampling decides."""
        return self.mechanism.steps if self.canary.sampled else self.insertions

    @property
    def positions(self) -> int:
        """Records that the sampling draws from with the canary: what accountants ask for."""
        return len(self.x) + (self.canary.sampled and not self.replaces)

    def clipped_sum(self, device: str = "cpu", kernel: KernelName = "auto") -> ClippedSum:
        """Clipped sums over the records, the canary's record last if it has one."""
        x, y = numbers("x", self.x), numbers("y", self.y, kinds="biufc")
        if self.canary.record is not None:
            record, label = self.canary.record
            x = np.concatenate((x, _like("record", record, x)[None]))
            y = np.concatenate((y, _like("label", label, y)[None]))
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
                f"canary: it is inserted in none of {mechanism.steps} steps, so that both data "
                "sets are the same; expected a schedule with at least one of these steps"
            )
        if mechanism.insertions is None and isinstance(mechanism.sampling, Poisson):
            # At a lower rate accountants count on sampling, which insertions do not follow.
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

    ``batches`` are of the records that both data sets have; ``trained_on`` adds this world's own
    record. An adversary is given ``known()`` alone. ``paired`` runs with and without the canary
    have all random numbers in common, which no adversary sees. Pairs differ in their noise alone.
    """

    world: World
    repeat: int
    index: int
    ensemble: Ensemble
    gradients: ClippedSum
    seed: int
    name: tuple[str | int, ...]
    observers: Mapping[str, Observer] = field(default_factory=dict)
    paired: bool = False
    initial: Tensor = field(init=False)
    batches: list[NDArray[np.int64]] = field(init=False)
    trained_on: list[NDArray[np.int64]] = field(init=False)
    _drawn: list[bool] = field(init=False)
    _watches: dict[str, Watch] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        initial = given = self._start()
        if initial.is_complex():
            raise InputError(f"initial: got {initial.dtype}; expected real numbers")
        initial = initial.to(self.gradients.dtype)
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
        if self.ensemble not in _CHECKED:
            if not torch.equal(given, self._start()):
                raise InputError(
                    "initial: gave a run two starts; expected what draws from its argument alone"
                )
            _CHECKED.add(self.ensemble)
        self.initial = initial.to(self.gradients.device, copy=True)
        mechanism = self.ensemble.mechanism
        drawn = mechanism.sampling.batches(
            self.ensemble.positions, mechanism.steps, self.stream("sampling")
        )
        drawn = each_once(lambda batch: checked_indices(batch, self.ensemble.positions), drawn)
        self.batches = self.trained_on = drawn
        canary = self.ensemble.canary
        if canary.sampled:
            # The canary's position is the last: its own, or that of the record it replaces.
            last = self.ensemble.positions - 1
            self.batches = each_once(lambda batch: batch[batch != last], drawn)
            if canary.record is None or (self.world == "out" and not self.ensemble.replaces):
                self.trained_on = self.batches
            elif self.world == "in" and self.ensemble.replaces:
                own = len(self.ensemble.x)  # the canary's place in the clipped sum
                self.trained_on = each_once(
                    lambda batch: np.where(batch == last, own, batch), drawn
                )
        elif canary.record is not None and self.world == "in":
            self.trained_on = [
                np.append(batch, len(self.ensemble.x)) if canary.inserted(step) else batch
                for step, batch in enumerate(drawn, 1)
            ]
        # A step drew the canary's position where the common batch lacks it.
        self._drawn = [
            len(batch) < len(whole) for batch, whole in zip(self.batches, drawn, strict=True)
        ]

    def stream(self, purpose: str) -> np.random.Generator:
        """The random stream of this run, or of its pair, for this purpose."""
        world = "pair" if self.paired else self.world
        index = 0 if self.paired and purpose != "noise" else self.index
        path = (*self.name, world, self.repeat, index, purpose)
        return streams.stream(self.seed, *path)

    def views(self) -> Iterator[NDArray[np.int64] | None]:
        """Views of the records of each batch it trains on."""
        return _views(self.ensemble.augmentation, self.trained_on, self.stream("augmentation"))

    def adds(self, step: int) -> bool:
        """True if the canary's gradient, if it is one, is used in this step; the first is 1."""
        return self._drawn[step - 1] or bool(self.ensemble.canary.inserted(step))

    def known(self) -> Known:
        """Adversary's knowledge of this run before its training."""
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
                simulated, gradients, mechanism, initial, self.batches, ensemble.augmentation,
                # Views of its own: the run's are the records' own in one world alone, for with the
                # canary's record in a batch the others have other ones.
                self.stream("simulated augmentation"),
            ),
        )  # fmt: skip

    @cached_property
    def fixed(self) -> FixedCanary:
        """The ensemble's canary in this run; it is asked for before training, and once."""
        return self.ensemble.canary.fixed(self.known())

    @property
    def identity(self) -> Identity:
        return self.world, self.repeat, self.index

    @property
    def words(self) -> str:
        return streams.model_in_words(self.world, self.index)

    def score(self, last: Tensor) -> float:
        return self.score_by(self.fixed, last)

    def score_by(self, canary: FixedCanary, last: Tensor) -> float:
        """The score that another adversary's canary, fixed before training, gives it.

        Raises InputError for one that is not finite.
        """
        rate = self.ensemble.mechanism.learning_rate
        return score_of(canary, last.detach().cpu().numpy(), self.words, rate)

    def begin(self) -> None:
        """Let the observers begin, before the first step; again where a training starts again."""
        self._watches = {n: o.watch(self.known(), self.fixed) for n, o in self.observers.items()}

    def see(self, step: int, theta: Tensor) -> None:
        """Show the observers the iterate after this step; the first is 1."""
        for watch in self._watches.values():
            watch.see(step, theta.clone())

    def watched(self) -> dict[str, float]:
        """The observers' scores. Raises InputError for one that is not finite."""
        found = {name: float(watch.score()) for name, watch in self._watches.items()}
        for name, score in found.items():
            if not math.isfinite(score):
                raise InputError(
                    f"observers: {name!r} gave {self.words} the score {score}; "
                    "expected a finite number"
                )
        return found

    def _start(self) -> Tensor:
        """The initial parameters as they are given."""
        given = self.ensemble.initial
        if not callable(given):
            return tensor("initial", given).detach()
        # Torch has one generator, which a start may seed: other threads must not draw from it.
        with CHANCE, torch.random.fork_rng(devices=[]):
            return tensor("initial", given(self.stream("initialisation"))).detach()

    def iterates(self, *, stop: threading.Event | None = None) -> Iterator[Tensor]:
        """The iterates after each step; the tensor is updated in place from step to step.

        A training of its own: on a CPU it repeats the run's, on an accelerator its noise is other
        than that of models side by side. Who wants to see a run's iterates is an ``Observer``.
        """
        mechanism = self.ensemble.mechanism
        self.begin()
        rng = self.stream("noise")
        inserted = Additions([self])
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
            self.see(step, theta)
            yield theta


def _views(
    augmentation: Augmentation | None, batches: list[NDArray[np.int64]], rng: np.random.Generator
) -> Iterator[NDArray[np.int64] | None]:
    """Views of the records of each batch, as ``Augmentation.draw`` has them, or None."""
    for batch in batches:
        yield augmentation.draw(len(batch), rng) if augmentation else None


def simulated(
    gradients: ClippedSum,
    mechanism: Mechanism,
    initial: NDArray[Any],
    batches: list[NDArray[np.int64]],
    augmentation: Augmentation | None,
    rng: np.random.Generator,
) -> Movement:
    """Movement of the parameters in a training without noise and canary."""
    start = torch.tensor(initial, dtype=gradients.dtype, device=gradients.device)
    theta, absolute, squared = start.clone(), torch.zeros_like(start), torch.zeros_like(start)
    # A copy, so that every call draws the same views.
    drawn = _views(augmentation, batches, copy.deepcopy(rng))
    for batch, views in zip(batches, drawn, strict=True):
        step = mechanism.learning_rate * gradients(theta, batch, mechanism.clipping_norm, views)
        theta -= step
        absolute += step.abs()
        squared += step.square()
    parts = (absolute, squared, (theta - start).abs(), theta)
    return Movement(*(part.cpu().numpy() for part in parts))


def _losses(
    gradients: ClippedSum, theta: NDArray[Any], x: NDArray[Any], y: NDArray[Any]
) -> NDArray[Any]:
    at = torch.tensor(theta, dtype=gradients.dtype, device=gradients.device)
    return gradients.losses(at, x, y).cpu().numpy()


class Additions:
    """The gradients of runs of one world side by side, step by step."""

    def __init__(self, runs: list[Run]):
        rows = [row for run in runs if (row := _gradients(run)) is not None]
        self._rows = torch.stack(rows) if rows else None
        if self._rows is None:
            return
        steps = range(1, runs[0].ensemble.mechanism.steps + 1)
        adding = np.array([[run.adds(step) for run in runs] for step in steps])
        # The k-th use has the k-th gradient, or the only one where all add the same.
        turn = np.maximum(adding.cumsum(0) - 1, 0) % self._rows.shape[1]
        self._any: NDArray[np.bool_] = np.any(adding, axis=1)
        self._adding = torch.from_numpy(adding[..., None]).to(self._rows)
        self._turn = torch.from_numpy(turn).to(self._rows.device)
        self._each = torch.arange(len(runs), device=self._rows.device)

    def as_used(self, step: int) -> Tensor:
        """Addition of this step to the sums (models, p), as if all of them used the canary."""
        assert self._rows is not None
        return self._rows[self._each, self._turn[step - 1]]

    def of(self, step: int) -> Tensor | None:
        """Addition of this step to the sums (models, p), if any; the first is 1."""
        if self._rows is None or not self._any[step - 1]:
            return None
        return self.as_used(step) * self._adding[step - 1]


def _gradients(run: Run) -> Tensor | None:
    """Gradients that this run's insertions add, (insertions, p), or (1, p) if all add the same."""
    ensemble = run.ensemble
    shape = ensemble.most_insertions, len(run.initial)
    record, most = ensemble.canary.record, ensemble.mechanism.clipping_norm
    rows = gradients_of(run.fixed, record, shape, most)
    if rows is None or not len(rows):
        return None
    if rows.strides[0] == 0:  # a broadcast row
        rows = rows[:1]
    replace = ensemble.mechanism.adjacency == "replace"
    if run.world == "out" and not replace:
        return None
    signed = torch.tensor(rows, dtype=run.initial.dtype, device=run.initial.device)
    # With "replace" the other data set has the opposite gradient.
    return signed if run.world == "in" else -signed


def _like(name: str, values: Any, others: NDArray[Any]) -> NDArray[Any]:
    """The canary's record or label in the type of whole numbers; InputError where that changes it.

    Beside other numbers these would all be rounded.
    """
    own = np.asarray(values)
    if others.dtype.kind not in "biu":
        return own
    # NaN that is cast warns; the comparison below finds it.
    with np.errstate(invalid="ignore"):
        cast = own.astype(others.dtype)
    if not np.array_equal(cast, own):
        raise InputError(
            f"canary: its {name} is not of {others.dtype}, as the others are; expected whole "
            "numbers that this type holds"
        )
    return cast
