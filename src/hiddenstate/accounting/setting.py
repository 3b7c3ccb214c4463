"""DP-SGD as its user knows it, with what is assumed of its losses: what bounds are asked about."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from hiddenstate.accounting import arguments
from hiddenstate.accounting.cyclic import CyclicDPSGD
from hiddenstate.errors import InputError, expect
from hiddenstate.sampling import Cyclic, FullBatch, Ordered, Poisson, Reshuffled, is_shuffled


@dataclass(frozen=True, kw_only=True)
class Setting:
    """A training with DP-SGD. Raises an input error that names what is out of range.

    Batches that are sampled (``Poisson``, ``FullBatch``): a record is added or removed, and
    ``learning_rate`` multiplies the noisy sum of gradients of norm at most ``clipping_norm``. In an
    order (``Cyclic``, ``Reshuffled``): of ``records``, which the batch size divides, one is
    swapped, and the learning rate multiplies the noisy mean of the batch.

    The curvatures are of every loss; if batches are sampled, of the largest sum that a batch can
    have, which is all records': each record's loss has at most as much, divided by the records.
    Then a strong convexity is of a regulariser that is in every step, whatever the batch, which may
    be empty. Without a smoothness nothing is assumed of the losses. ``smoothness`` is the Hölder
    constant of the gradients where ``holder``, their exponent, is less than 1.
    """

    sampling: FullBatch | Poisson | Ordered
    noise_multiplier: float
    """Noise standard deviation over the clipping norm, on the sum of gradients."""
    steps: int
    records: int | None = None
    """In the data set; None where batches are sampled."""
    learning_rate: float = 1.0
    clipping_norm: float = 1.0
    weak_convexity: float = 0.0
    """Of the losses; 0: convex."""
    smoothness: float | None = None
    """Largest curvature of the losses; 0: linear. None: nothing is known."""
    strong_convexity: float = 0.0
    """Of losses whose gradients clipping then never changes."""
    holder: float = 1.0
    diameter: float | None = None
    """Of the domain that iterates are projected on, in the parameters' unit; None: no domain."""

    def __post_init__(self) -> None:
        listed = isinstance(self.sampling, FullBatch | Poisson | Ordered)
        expect(listed, "sampling", self.sampling, "FullBatch, Poisson, Cyclic or Reshuffled")
        arguments.check_mechanism(
            self.noise_multiplier, self.rate if self.sampled else 1, self.steps
        )
        for name in ("learning_rate", "clipping_norm", "diameter"):
            value = getattr(self, name)
            fine = value is None or 0 < value < math.inf
            expect(fine, name, value, "a number > 0")
        for name in ("weak_convexity", "smoothness", "strong_convexity"):
            value = getattr(self, name)
            fine = value is None or 0 <= value < math.inf
            expect(fine, name, value, "a number >= 0")
        expect(0 <= self.holder <= 1, "holder", self.holder, "a number from 0 to 1")
        if isinstance(self.sampling, Ordered):
            records, size = self.records, self.sampling.batch_size
            fine = isinstance(records, int) and records >= 1
            expect(fine, "records", records, "a whole number >= 1")
            assert records is not None
            expect(records % size == 0, "batch_size", size, f"a divisor of {records} records")

    @property
    def sampled(self) -> bool:
        """Whether each step samples records independently, or has all of them."""
        return isinstance(self.sampling, FullBatch | Poisson)

    @property
    def rate(self) -> float:
        """Probability that a step samples a record."""
        if not self.sampled:
            raise InputError(f"sampling: got {self.sampling}; expected sampled batches")
        return self.sampling.rate

    @property
    def mechanism(self) -> tuple[float, float, int]:
        """Noise multiplier, sampling rate and steps."""
        return self.noise_multiplier, self.rate, self.steps

    @property
    def shuffled(self) -> bool:
        """Whether the order of the records is drawn, once or in each epoch."""
        return is_shuffled(self.sampling)

    @property
    def redrawn(self) -> bool:
        """Whether the order of the records is drawn in each epoch."""
        return isinstance(self.sampling, Reshuffled)

    @property
    def width(self) -> float | None:
        """Diameter of the domain in units of learning rate times clipping norm."""
        if self.diameter is None:
            return None
        return self.diameter / self.learning_rate / self.clipping_norm * (1 + 1e-15)

    @property
    def break_even(self) -> float | None:
        """Steps from which on a domain can hide more than composition allows, roughly.

        If no step moves two iterates apart: K steps that hide the diameter d and as many shifts s
        of a record cost mu^2 = (d + K s)^2 / K sigma^2, least 4 d s / sigma^2, where composition of
        T steps has T s^2 / sigma^2; with sampling rate q both are about q of the one and q^2 of the
        other. Steps that move them apart take longer. None without a domain, and for an order of
        more than one batch, which hides something without any.
        """
        if self.diameter is None:
            return None
        shift = self.learning_rate * self.clipping_norm
        if self.sampled:
            return 4 * self.diameter / (shift * self.rate)
        if self.steps_per_pass > 1:
            return None
        assert isinstance(self.sampling, Ordered)
        return 4 * self.diameter / (2 * shift / self.sampling.batch_size)

    @property
    def steps_per_pass(self) -> int:
        """Steps that go through the data once, in an order."""
        assert isinstance(self.sampling, Ordered) and self.records is not None
        return self.records // self.sampling.batch_size

    def schedule(self, position: int = 1) -> CyclicDPSGD:
        """The steps of a record whose batch is that of step ``position``, 1 to a pass's steps.

        The noise on the displacement is learning_rate * noise_multiplier * clipping_norm /
        batch_size, so a visit moves the iterate by at most 2 / noise_multiplier times it.
        """
        if not isinstance(self.sampling, Ordered):
            raise InputError(f"sampling: got {self.sampling}; expected batches in an order")
        size = self.sampling.batch_size
        return CyclicDPSGD(
            steps=self.steps,
            steps_per_pass=self.steps_per_pass,
            batch_size=size,
            step_size=self.learning_rate,
            clipping_norm=self.clipping_norm,
            noise_std=self.learning_rate * self.noise_multiplier * self.clipping_norm / size,
            weak_convexity=self.weak_convexity,
            smoothness=self.smoothness or 0.0,
            position=position,
        )

    @property
    def numbers(self) -> dict[str, Any]:
        """All of it, by the words of the command line; None where there is none."""
        of: dict[str, Any] = {"sampler": self.sampling.sampler}
        match self.sampling:
            case FullBatch():
                of |= {"sampling_rate": 1.0}
            case Poisson(rate):
                of |= {"sampling_rate": rate}
            case Cyclic(size) | Reshuffled(size):
                of |= {"records": self.records, "batch_size": size}
        rest = {k: v for k, v in vars(self).items() if k not in ("sampling", "records")}
        return of | rest

    @property
    def words(self) -> str:
        """Its numbers, as a reader sees them."""
        return ", ".join(self._words())

    def _words(self) -> Iterator[str]:
        yield f"noise multiplier {self.noise_multiplier:g}"
        if isinstance(self.sampling, Ordered):
            fixed, drawn = "" if self.shuffled else "fixed ", ""
            if self.shuffled:
                drawn = f" whose order is shuffled {'in each epoch' if self.redrawn else 'once'}"
            yield (
                f"{self.steps:,} steps through {self.records:,} records in {fixed}batches of "
                f"{self.sampling.batch_size:,}{drawn} (swap a record)"
            )
            yield f"learning rate {self.learning_rate:g}"
        else:
            yield f"sampling rate {self.rate:g}"
            yield f"{self.steps:,} steps (add or remove a record)"
        if self.smoothness is not None:
            convex = f"weak convexity {self.weak_convexity:g}" if self.weak_convexity else "convex"
            yield convex
            if self.holder < 1:
                yield f"gradients Hölder continuous, {self.smoothness:g} |x - y|^{self.holder:g}"
            else:
                yield f"smoothness {self.smoothness:g}"
        if self.strong_convexity:
            yield f"strong convexity {self.strong_convexity:g}"
        if self.diameter is not None and self.sampled:
            shift = self.learning_rate * self.clipping_norm
            yield f"domain of diameter {self.diameter / shift:g} steps"
        elif self.diameter is not None:
            yield f"domain of diameter {self.diameter:g}"
