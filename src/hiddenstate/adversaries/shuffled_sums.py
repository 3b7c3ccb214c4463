"""The adversary who sees the noisy sum of every batch, where the order of the records is drawn.

A record is in one batch of each epoch, and does not know which: the likelihood is a mean over all.
See ``accounting.batched`` for the sums, their units, and the pair of shifts that two worlds have.
"""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp

from hiddenstate.accounting import batched
from hiddenstate.dpsgd.known import FixedCanary, Known
from hiddenstate.errors import InputError
from hiddenstate.sampling import Ordered, Reshuffled, is_shuffled

if TYPE_CHECKING:
    from torch import Tensor

Floats = NDArray[np.float64]

BLOCK = 2_000_000
"""Sums that are drawn at once."""


@dataclass(frozen=True)
class Shuffled:
    """Epochs of as many batches, of a record that shifts one batch's sum in each of them.

    pair: shifts in the worlds "in" and "out". redrawn: whether each epoch has an order of its own.
    """

    noise_multiplier: float
    batches: int
    epochs: int
    pair: tuple[float, float]
    redrawn: bool

    @property
    def _shown(self) -> tuple[int, float]:
        """Independent epochs, and the deviation of their sums."""
        return batched.independent(self.noise_multiplier, self.epochs, redrawn=self.redrawn)

    def ratio(self, sums: Floats, chances: Floats | None = None) -> Floats:
        """Log-likelihood ratio of "in" of all sums, shape (..., epochs, batches).

        chances: of the record to be in each batch of an epoch, shape (batches,); equal by default.
        What they lack to 1 is its chance to sit out.
        """
        _, deviation = self._shown
        sums = np.asarray(sums).astype(float, casting="same_kind", copy=False)
        if not self.redrawn:
            sums = sums.mean(axis=-2, keepdims=True)

        def log_mean(shift: float) -> Floats:
            """Log of the mean density with the shift in each batch, over the density without."""
            if not shift:
                return np.zeros(sums.shape[:-1])
            exponents = (sums - shift / 2) * (shift / deviation**2)
            if chances is not None:
                there = logsumexp(exponents, axis=-1, b=chances)
                out = max(0.0, 1 - float(chances.sum()))
                return np.asarray(np.logaddexp(there, math.log(out)) if out else there)
            if exponents.max(initial=0) < 700 and exponents.min(initial=0) > -700:
                # No exponential overflows, nor is a sum of them zero.
                return np.log(np.exp(exponents, out=exponents).mean(axis=-1))
            return np.asarray(logsumexp(exponents, axis=-1)) - math.log(self.batches)

        inside, outside = map(log_mean, self.pair)
        return np.asarray((inside - outside).sum(axis=-1))

    def drawn(self, present: bool, runs: int, rng: np.random.Generator) -> tuple[Floats, Floats]:
        """Scores of all iterates and of the last one, where losses are linear; shape (runs,).

        The last iterate is the sum of all sums.
        """
        epochs, deviation = self._shown
        shift = self.pair[0 if present else 1]
        parts = []
        block = max(1, BLOCK // (epochs * self.batches))
        for first in range(0, runs, block):
            some = min(block, runs - first)
            sums = deviation * rng.standard_normal((some, epochs, self.batches))
            which = rng.integers(self.batches, size=(some, epochs, 1))
            np.put_along_axis(sums, which, np.take_along_axis(sums, which, -1) + shift, -1)
            # One epoch stands for several in the same order: its sums are their means.
            weight = self.epochs / epochs
            parts.append((self.ratio(sums), weight * sums.sum(axis=(1, 2))))
        every, last = zip(*parts, strict=True)
        return np.concatenate(every), np.concatenate(last)


@dataclass(frozen=True)
class BatchSums:
    """Sees all iterates of a training on shuffled batches: an observer of a sampled canary.

    Its score is the log-likelihood ratio of the canary's coordinate, where the worlds' gradients
    are opposite and nothing else moves it. Raises InputError for other worlds, batches that are not
    shuffled, a last epoch that is not whole, no noise, or another canary.
    """

    def watch(self, known: Known, canary: FixedCanary) -> "Moves":
        """Begin with the initial parameters."""
        mechanism = known.mechanism
        sampling = mechanism.sampling
        if canary.coordinate < 0:
            raise InputError(f"observers: got the canary {canary}; expected one in one coordinate")
        if (
            not isinstance(sampling, Ordered)
            or not is_shuffled(sampling)
            or mechanism.adjacency != "replace"
            or not mechanism.noise_multiplier > 0
        ):
            raise InputError(
                f"observers: got {mechanism}; expected noise, shuffled batches, and a canary that "
                "is replaced"
            )
        steps = mechanism.steps
        records = len(known.x) + 1  # the canary is one too
        # After whole epochs the next step visits it once more.
        epochs, next_step = (sampling.visits(records, n) for n in (steps, steps + 1))
        if next_step == epochs:
            raise InputError(f"observers: got {steps} steps; expected whole epochs")
        each = steps // epochs
        left = records - sampling.batch_size * np.arange(each)
        chances = np.minimum(left, sampling.batch_size) / records
        shown = Shuffled(
            mechanism.noise_multiplier, each, epochs, batched.SILENT,
            redrawn=isinstance(sampling, Reshuffled),
        )  # fmt: skip
        equal = np.allclose(chances, 1 / each, rtol=1e-12, atol=0)
        return Moves(known, canary.coordinate, shown, None if equal else chances)


class Moves:
    """The moves of one coordinate, step by step."""

    def __init__(self, known: Known, coordinate: int, shown: Shuffled, chances: Floats | None):
        mechanism = known.mechanism
        self._coordinate, self._shown, self._chances = coordinate, shown, chances
        self._unit = mechanism.learning_rate * mechanism.clipping_norm
        self._path = np.empty(mechanism.steps + 1)
        self._path[0] = known.initial[coordinate]

    def see(self, step: int, theta: "Tensor") -> None:
        self._path[step] = float(theta[self._coordinate])

    def score(self) -> float:
        sums = -np.diff(self._path) / self._unit
        by_epoch = sums.reshape(self._shown.epochs, self._shown.batches)
        return float(self._shown.ratio(by_epoch, self._chances))
