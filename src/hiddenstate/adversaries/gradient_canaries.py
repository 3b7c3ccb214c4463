"""Canaries that are gradients: one coordinate of full clipping norm, chosen before training.

Source: Cebere, Bellet and Papernot 2025 (A_GC-R, A_GC-S). The score reads that coordinate of the
last iterate and of the initial parameters alone. The adversaries audit both kinds of runs; an
``Inserted`` one is a canary of ``hiddenstate.dpsgd.ensemble``.
"""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from hiddenstate.accounting import linear
from hiddenstate.dpsgd.known import FixedCanary, Floats, Known
from hiddenstate.errors import InputError, check_count, is_whole
from hiddenstate.sampling import FullBatch, Poisson

if TYPE_CHECKING:
    from torch import Tensor

    from hiddenstate.dpsgd.mechanism import Mechanism

Rank = Literal["absolute", "squared", "net"]


@dataclass(frozen=True)
class Periodic:
    """Insertion in the steps ``every``, 2 ``every``, ...; the first step is 1."""

    every: int = 1

    def __post_init__(self) -> None:
        check_count("every", self.every)

    def __call__(self, step: int) -> bool:
        return step % self.every == 0


@dataclass(frozen=True)
class Once:
    """Insertion in one step alone, the first by default."""

    at: int = 1

    def __post_init__(self) -> None:
        check_count("at", self.at)

    def __call__(self, step: int) -> bool:
        return step == self.at


Schedule = Periodic | Once


class Adversary(Protocol):
    """Adversary that chooses the canary; ``name`` is the word that a table shows."""

    @property
    def name(self) -> str:
        """A word of its own."""

    def canary(self, known: Known) -> FixedCanary:
        """The whole canary of one run, from what is known before training."""


@dataclass(frozen=True, eq=False)
class DiracCanary:
    """The gradient C e_d in every insertion, read as theta_0[d] - theta_T[d]."""

    coordinate: int
    gradients: NDArray[Any]
    initial: float
    record: None = None

    def score(self, last: Floats) -> float:
        """Movement of the last iterate against the canary's coordinate."""
        return self.initial - float(last[self.coordinate])


def dirac(known: Known, coordinate: int) -> DiracCanary:
    """The canary of this coordinate at the full clipping norm."""
    p = len(known.initial)
    if not is_whole(coordinate) or not 0 <= coordinate < p:
        raise InputError(f"coordinate: got {coordinate}; expected 0 to {p - 1}")
    gradient = np.zeros(p, np.float32)
    gradient[coordinate] = known.mechanism.clipping_norm
    # One row in memory for all insertions.
    gradients = np.broadcast_to(gradient, (known.insertions, p))
    return DiracCanary(coordinate, gradients, float(known.initial[coordinate]))


@dataclass(frozen=True)
class Coordinate:
    """The same coordinate in every run."""

    d: int

    @property
    def name(self) -> str:
        return f"coordinate {self.d}"

    def canary(self, known: Known) -> DiracCanary:
        return dirac(known, self.d)


@dataclass(frozen=True)
class RandomCoordinate:
    """A_GC-R: a uniformly random coordinate, of each run, or one for the audit if ``shared``."""

    shared: bool = False

    @property
    def name(self) -> str:
        return "one random coordinate" if self.shared else "random coordinate"

    def canary(self, known: Known) -> DiracCanary:
        rng = known.shared_rng if self.shared else known.rng
        return dirac(known, int(rng.integers(len(known.initial))))


@dataclass(frozen=True)
class SimulatedCoordinate:
    """A_GC-S: the coordinate that a simulated training without noise and canary moves least.

    ``rank`` orders coordinates by the sum of absolute steps, of squared steps, or by the net
    displacement; ties go to the lowest. Neither the rule nor the absence of noise from the
    simulation is in the paper's text: this is a reconstruction.
    """

    rank: Rank = "absolute"
    name = "simulated coordinate"

    def __post_init__(self) -> None:
        if self.rank not in ("absolute", "squared", "net"):
            raise InputError(f"rank: got {self.rank!r}; expected 'absolute', 'squared' or 'net'")

    def canary(self, known: Known) -> DiracCanary:
        # Departure gradient_crafting.simulated_coordinate: the rule is not available.
        return dirac(known, int(getattr(known.simulated(), self.rank).argmin()))


@dataclass(frozen=True)
class Inserted:
    """An adversary's gradients in the steps of a schedule, as a canary of an ensemble.

    Without a schedule the canary has a place among the records, as if it were one, and is used
    when the sampling draws it.
    """

    adversary: Adversary
    schedule: Schedule | None = Periodic()

    @property
    def sampled(self) -> bool:
        return self.schedule is None

    @property
    def record(self) -> None:
        """Always None: both data sets have the same records."""

    def inserted(self, step: int) -> bool:
        return self.schedule is not None and self.schedule(step)

    def fixed(self, known: Known) -> FixedCanary:
        return self.adversary.canary(known)


@dataclass(frozen=True)
class Iterates:
    """Sees every ``every``-th iterate and the last: an observer of a canary in one coordinate.

    Its score is the log-likelihood ratio of the coordinate's moves between the iterates that it
    sees, which is exact where nothing else moves the coordinate. The canary is in the steps of the
    ``schedule``, or without one in each step with the sampling's probability. Raises InputError for
    another canary, a mechanism without noise, a replaced canary, or batches in an order.
    """

    every: int = 1
    schedule: Schedule | None = None

    def __post_init__(self) -> None:
        check_count("every", self.every)

    def watch(self, known: Known, canary: FixedCanary) -> "Moves":
        """Begin with the initial parameters."""
        mechanism = known.mechanism
        if canary.coordinate < 0:
            raise InputError(f"observers: got the canary {canary}; expected one in one coordinate")
        if mechanism.adjacency != "add_or_remove" or not mechanism.noise_multiplier > 0:
            raise InputError(
                f"observers: got {mechanism}; expected noise, and a canary that is added or removed"
            )
        if self.schedule is None and not isinstance(mechanism.sampling, FullBatch | Poisson):
            raise InputError(
                f"observers: got {mechanism.sampling} without a schedule of the canary; expected "
                "FullBatch or Poisson"
            )
        return Moves(self, mechanism, canary.coordinate, float(known.initial[canary.coordinate]))


class Moves:
    """The log-likelihood ratio of one coordinate's moves, as far as they were seen."""

    def __init__(self, observer: Iterates, mechanism: "Mechanism", coordinate: int, at: float):
        self._observer, self._mechanism = observer, mechanism
        self._coordinate, self._at, self._seen, self._sum = coordinate, at, 0, 0.0

    def see(self, step: int, theta: "Tensor") -> None:
        """The iterate after a step, if it is one of those that are seen."""
        if step % self._observer.every and step < self._mechanism.steps:
            return
        now = float(theta[self._coordinate])
        unit = self._mechanism.learning_rate * self._mechanism.clipping_norm
        self._sum += self._ratio((self._at - now) / unit, range(self._seen + 1, step + 1))
        self._at, self._seen = now, step

    def score(self) -> float:
        return self._sum

    def _ratio(self, move: float, steps: range) -> float:
        """Log-likelihood ratio of one move in these steps; unit: learning rate times C."""
        sigma, rate, shifts = self._mechanism.noise_multiplier, 1.0, len(steps)
        if self._observer.schedule is None:
            rate = self._mechanism.sampling.rate
        else:
            shifts = sum(map(self._observer.schedule, steps))
            if not shifts:
                return 0.0
        # The shift of so many steps against the noise of all.
        noise = sigma * math.sqrt(len(steps) / shifts)
        return float(linear.last_iterate(noise, rate, shifts).loss(move))
