"""How DP-SGD draws its batches, said once for what is trained, what is accounted and commands."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from hiddenstate.errors import InputError, check_count

Batches = list[NDArray[np.int64]]


@dataclass(frozen=True)
class FullBatch:
    """Every record in every step."""

    sampler: ClassVar[str] = "full"
    rate: ClassVar[float] = 1.0

    def batches(self, records: int, steps: int, rng: np.random.Generator) -> Batches:
        """Indices of the records of each step; nothing is drawn."""
        return [np.arange(records)] * steps


@dataclass(frozen=True)
class Poisson:
    """Every record in every step with probability ``rate``, independently."""

    sampler: ClassVar[str] = "poisson"
    rate: float

    def __post_init__(self) -> None:
        if not 0 < self.rate <= 1:
            raise InputError(f"rate: got {self.rate}; expected a probability above 0")

    def batches(self, records: int, steps: int, rng: np.random.Generator) -> Batches:
        """Indices of the records of each step, ascending; a batch may be empty."""
        return [np.flatnonzero(rng.random(records) < self.rate) for _ in range(steps)]


@dataclass(frozen=True)
class Cyclic:
    """Disjoint batches of ``batch_size`` records in turn, over and over; the last may be smaller.

    ``shuffled`` draws the order of the records once for each model, uniformly and whatever the
    data. The batches are of positions: the canary has its own in both worlds, so that the other
    records keep their batches.
    """

    batch_size: int
    shuffled: bool = False

    def __post_init__(self) -> None:
        check_count("batch_size", self.batch_size)

    @property
    def sampler(self) -> str:
        """What the command line calls it."""
        return "shuffled" if self.shuffled else "cyclic"

    def batches(self, records: int, steps: int, rng: np.random.Generator) -> Batches:
        """Indices of the records of each step."""
        order = rng.permutation(records) if self.shuffled else np.arange(records)
        cycle = [order[i : i + self.batch_size] for i in range(0, records, self.batch_size)]
        return [cycle[t % len(cycle)] for t in range(steps)]


@dataclass(frozen=True)
class Reshuffled:
    """Batches of ``batch_size`` records in an order drawn for each epoch; those left over sit out.

    As of a shuffling data loader that drops the last, smaller batch. No bound of the library's is
    on it but composition's.
    """

    batch_size: int

    def __post_init__(self) -> None:
        check_count("batch_size", self.batch_size)

    def batches(self, records: int, steps: int, rng: np.random.Generator) -> Batches:
        """Indices of the records of each step; InputError for fewer records than a batch has."""
        each = records // self.batch_size
        if not each:
            raise InputError(
                f"batch_size: got {self.batch_size}; expected at most {records}, the records"
            )
        epochs = -(-steps // each)
        drawn = [rng.permutation(records)[: each * self.batch_size] for _ in range(epochs)]
        return list(np.concatenate(drawn).reshape(-1, self.batch_size)[:steps])


Sampling = FullBatch | Poisson | Cyclic

SAMPLERS = ("poisson", "full", "cyclic", "shuffled")
"""What the command line calls them."""
