"""Samplers of DP-SGD's batches, read by training, accounting and commands alike.

A new way is one class here: trainings, mechanisms and their accounting ask it for no more than
``Sampling`` has.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, TypeAlias

from hiddenstate.errors import InputError, check_count

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Batches: TypeAlias = "list[NDArray[np.int64]]"


class Sampling(ABC):
    """A way to draw batches."""

    rate: float
    """Probability that a step has a record that it may have."""
    shared: bool = False
    """True if all models of one world have the same batches."""

    @abstractmethod
    def batches(self, records: int, steps: int, rng: "np.random.Generator") -> Batches:
        """Indices of the records of each step."""

    def visits(self, records: int, steps: int) -> int:
        return steps


@dataclass(frozen=True)
class FullBatch(Sampling):
    """Every record in every step."""

    sampler: ClassVar[str] = "full"
    rate = 1.0
    shared = True

    def batches(self, records: int, steps: int, rng: "np.random.Generator") -> Batches:
        # Imported here, and below, because most commands draw no batches.
        import numpy as np

        return [np.arange(records)] * steps


@dataclass(frozen=True)
class Poisson(Sampling):
    """Every record in every step with probability ``rate``, independently."""

    sampler: ClassVar[str] = "poisson"
    rate: float

    def __post_init__(self) -> None:
        if not 0 < self.rate <= 1:
            raise InputError(f"rate: got {self.rate}; expected a probability above 0")

    def batches(self, records: int, steps: int, rng: "np.random.Generator") -> Batches:
        import numpy as np

        return [np.flatnonzero(rng.random(records) < self.rate) for _ in range(steps)]


@dataclass(frozen=True)
class FixedSize(Sampling):
    """``batch_size`` records in every step, drawn without replacement."""

    sampler: ClassVar[str] = "fixed-size"
    batch_size: int

    def __post_init__(self) -> None:
        check_count("batch_size", self.batch_size)

    def batches(self, records: int, steps: int, rng: "np.random.Generator") -> Batches:
        """Indices of the records of each step; InputError for fewer records than a batch has."""
        _check_size(self.batch_size, records)
        return [rng.choice(records, self.batch_size, replace=False) for _ in range(steps)]


@dataclass(frozen=True)
class BallsAndBins(Sampling):
    """Each record in one of ``bins`` batches of every epoch, drawn by itself and anew."""

    sampler: ClassVar[str] = "balls-and-bins"
    rate = 1.0
    bins: int

    def __post_init__(self) -> None:
        check_count("bins", self.bins)

    def batches(self, records: int, steps: int, rng: "np.random.Generator") -> Batches:
        import numpy as np

        found: Batches = []
        while len(found) < steps:
            places = rng.integers(self.bins, size=records)
            found += [np.flatnonzero(places == one) for one in range(self.bins)]
        return found[:steps]

    def visits(self, records: int, steps: int) -> int:
        return math.ceil(steps / self.bins)


@dataclass(frozen=True)
class Cyclic(Sampling):
    """Disjoint batches of ``batch_size`` records in turn, over and over; the last may be smaller.

    ``shuffled_once`` draws the order of the records once for each model, uniformly and whatever the
    data; ``Reshuffled`` draws it for each epoch. The batches are of positions: the canary has its
    own in both worlds, so that the other records keep their batches.
    """

    rate = 1.0
    batch_size: int
    shuffled_once: bool = False

    def __post_init__(self) -> None:
        check_count("batch_size", self.batch_size)

    @property
    def sampler(self) -> str:
        """Name on the command line."""
        return "shuffled" if self.shuffled_once else "cyclic"

    @property
    def shared(self) -> bool:  # type: ignore[override]
        """Setting where nothing is drawn."""
        return not self.shuffled_once

    def batches(self, records: int, steps: int, rng: "np.random.Generator") -> Batches:
        import numpy as np

        order = rng.permutation(records) if self.shuffled_once else np.arange(records)
        cycle = [order[i : i + self.batch_size] for i in range(0, records, self.batch_size)]
        return [cycle[t % len(cycle)] for t in range(steps)]

    def steps_per_pass(self, records: int) -> int:
        return math.ceil(records / self.batch_size)

    def visits(self, records: int, steps: int) -> int:
        return math.ceil(steps / self.steps_per_pass(records))


@dataclass(frozen=True)
class Reshuffled(Sampling):
    """Batches of ``batch_size`` records in an order drawn for each epoch.

    Those left over sit out, as of a shuffling data loader that drops the last, smaller batch, or
    are a batch of their own if ``drop_last`` is false.
    """

    sampler: ClassVar[str] = "reshuffled"
    rate = 1.0
    batch_size: int
    drop_last: bool = True

    def __post_init__(self) -> None:
        check_count("batch_size", self.batch_size)

    def batches(self, records: int, steps: int, rng: "np.random.Generator") -> Batches:
        """Indices of the records of each step; InputError for fewer records than a batch has."""
        _check_size(self.batch_size, records)
        found: Batches = []
        each = self.steps_per_pass(records)
        while len(found) < steps:
            order = rng.permutation(records)
            found += [order[i * self.batch_size : (i + 1) * self.batch_size] for i in range(each)]
        return found[:steps]

    def steps_per_pass(self, records: int) -> int:
        return max(1, (math.floor if self.drop_last else math.ceil)(records / self.batch_size))

    def visits(self, records: int, steps: int) -> int:
        return math.ceil(steps / self.steps_per_pass(records))


def _check_size(batch_size: int, records: int) -> None:
    if records < batch_size:
        raise InputError(f"batch_size: got {batch_size}; expected at most {records}, the records")


Ordered = Cyclic | Reshuffled
"""Every record in one batch of each epoch."""


def is_shuffled(sampling: Sampling) -> bool:
    """True if the order of the records is drawn, once or in each epoch."""
    return isinstance(sampling, Reshuffled) or (
        isinstance(sampling, Cyclic) and sampling.shuffled_once
    )


SAMPLERS = (
    "poisson",
    "full",
    "fixed-size",
    "balls-and-bins",
    "cyclic",
    "shuffled",
    "reshuffled",
)
"""What the command line calls them."""
