"""Description of a training, read by the trainer and the accountants alike.

One step of DP-SGD is ``theta <- theta - learning_rate * (sum of clipped gradients + noise)`` with
noise N(0, (noise_multiplier * clipping_norm)^2) on every coordinate. Sums, not means: a learning
rate stated per mean is divided by the number of records of the full data set, in both worlds.
"""

import dataclasses
import math
from dataclasses import dataclass
from typing import Literal

from hiddenstate.accounting import pld
from hiddenstate.accounting.tradeoff import TradeoffCurve
from hiddenstate.errors import InputError, check_count
from hiddenstate.sampling import FixedSize, Poisson, Sampling

Adjacency = Literal["add_or_remove", "replace"]


@dataclass(frozen=True, kw_only=True)
class Mechanism:
    """DP-SGD as a mechanism: everything that its privacy depends on, and the learning rate.

    ``learning_rate`` multiplies the noisy *sum*. An infinite ``clipping_norm`` turns clipping off
    and leaves room for no noise. ``adjacency`` is what the guarantee compares: data sets that
    differ in one record's presence, or in one record's value (twice the sensitivity).

    ``insertions`` is for a canary that is a gradient, added in steps of its own whatever the
    sampling draws: the most steps that it is added in, which is then what accountants count.
    Without it they account for a record that the sampling draws.
    """

    sampling: Sampling
    steps: int
    learning_rate: float
    clipping_norm: float
    noise_multiplier: float
    adjacency: Adjacency
    insertions: int | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.sampling, Sampling):
            raise InputError(
                f"sampling: got {self.sampling!r}; expected FullBatch, Poisson, "
                "FixedSize, BallsAndBins, Cyclic or Reshuffled"
            )
        check_count("steps", self.steps)
        if self.insertions is not None:
            check_count("insertions", self.insertions)
            if self.insertions > self.steps:
                raise InputError(
                    f"insertions: got {self.insertions}; expected 1 to {self.steps}, the steps"
                )
        if not (0 < self.learning_rate < math.inf):
            raise InputError(f"learning_rate: got {self.learning_rate}; expected a positive number")
        if not self.clipping_norm > 0:
            raise InputError(f"clipping_norm: got {self.clipping_norm}; expected more than 0")
        if not (0 <= self.noise_multiplier < math.inf):
            raise InputError(f"noise_multiplier: got {self.noise_multiplier}; expected 0 or more")
        if math.isinf(self.clipping_norm) and self.noise_multiplier > 0:
            raise InputError(
                f"noise_multiplier: got {self.noise_multiplier} with clipping off; noise is a "
                "multiple of the clipping norm, so expected 0 or a finite clipping norm"
            )
        if self.adjacency not in ("add_or_remove", "replace"):
            raise InputError(
                f"adjacency: got {self.adjacency!r}; expected 'add_or_remove' or 'replace'"
            )

    @property
    def noise_std(self) -> float:
        """Standard deviation of the noise on each coordinate of the sum of clipped gradients."""
        # Without noise the clipping norm may be infinite, and 0 times infinity is NaN.
        return self.noise_multiplier * self.clipping_norm if self.noise_multiplier > 0 else 0.0

    def composition(self, records: int) -> tuple[float, float, int]:
        """(noise multiplier, sampling rate, steps) of the composition that bounds the privacy loss.

        ``records`` counts the canary. For cyclic batches the steps are a record's own visits, the
        most any record has; with ``insertions`` they are these, at sampling rate 1. The noise
        multiplier is per unit of sensitivity. Only all iterates' release is bounded so: this is
        the accountant's view, not the hidden state's.
        """
        check_count("records", records)
        sensitivity = 1 if self.adjacency == "add_or_remove" else 2
        effective = self.noise_multiplier / sensitivity
        if self.insertions is not None:
            return effective, 1.0, self.insertions
        if isinstance(self.sampling, Poisson) and self.adjacency == "replace":
            raise InputError(
                "adjacency: got 'replace' with Poisson sampling, for which no accountant is "
                "offered; expected 'add_or_remove'"
            )
        if isinstance(self.sampling, FixedSize):
            # Another record takes the canary's place in a batch, so it shows more than Poisson's.
            raise InputError(
                f"sampling: got {self.sampling}, for which a mechanism has no accountant; expected "
                "Poisson, or `accounting.swapped.bracket` with fixed_size=True"
            )
        return effective, self.sampling.rate, self.sampling.visits(records, self.steps)

    def epsilon(self, delta: float, *, records: int) -> float:
        """Upper bound on epsilon at ``delta`` when all iterates are released."""
        return pld.epsilon(*self._noisy(records), delta)

    def tradeoff_curve(
        self, *, records: int, null: Literal["out", "in", "either"]
    ) -> TradeoffCurve:
        """Lower bound on the trade-off function when all iterates are released."""
        return pld.tradeoff_curve(*self._noisy(records), null=null)

    def calibrated(self, epsilon: float, delta: float, *, records: int) -> "Mechanism":
        """This mechanism with the noise multiplier at which its epsilon at ``delta`` is as given.

        Never too little noise: the epsilon attained is at most ``epsilon``.
        """
        _, rate, steps = self.composition(records)
        sensitivity = 1 if self.adjacency == "add_or_remove" else 2
        # ``pld`` calibrates for a sensitivity of 1.
        multiplier = sensitivity * pld.noise_multiplier(epsilon, delta, rate, steps)
        return dataclasses.replace(self, noise_multiplier=multiplier)

    def _noisy(self, records: int) -> tuple[float, float, int]:
        if self.noise_multiplier == 0:
            raise InputError("noise_multiplier: got 0; without noise no epsilon is finite")
        return self.composition(records)
