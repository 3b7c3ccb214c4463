"""DP-SGD as its user knows it, with what is assumed of its losses: what bounds are asked about."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hiddenstate.accounting import arguments
from hiddenstate.accounting.cyclic import CyclicDPSGD
from hiddenstate.errors import InputError, check_double, expect
from hiddenstate.rounding import counted, nth
from hiddenstate.sampling import (
    BallsAndBins,
    FixedSize,
    FullBatch,
    Ordered,
    Poisson,
    Reshuffled,
    is_shuffled,
)

OPTIMISER = {"schedule": "constant", "momentum": 0.0, "weight_decay": 0.0}
"""What the optimiser does with its steps, and the values of plain SGD."""

RELEASE = {"release_every": None, "average_last": None, "ema_decay": None}
"""What is released beside the last iterate or in place of it, and the values of the last alone."""


ADJACENCIES = ("add-remove", "swap")
"""How neighbouring data sets differ."""

ADJACENCY: dict[str, Any] = {"group": 1, "adjacency": None}
"""What else neighbouring data sets may differ in, and the values of one record."""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """A training with DP-SGD. Raises an input error that names what is out of range.

    The learning rate multiplies the noisy mean of a batch: the noisy sum of gradients of norm at
    most ``clipping_norm`` over ``batch_size``, which is the expected size where each record is
    drawn by itself (``Poisson``, ``BallsAndBins``). There and in full batches a record is added or
    removed; elsewhere one of ``records`` is swapped.

    The curvatures are of every record's loss. A sampled batch may by chance have all records, so
    its mean's are up to 1 / ``rate`` times theirs. A strong convexity is then of a regulariser that
    is in every step, whatever the batch, which may be empty. Without a smoothness nothing is
    assumed of the losses. ``smoothness`` is the Hölder constant of the gradients where ``holder``,
    their exponent, is less than 1.
    """

    sampling: FullBatch | Poisson | FixedSize | BallsAndBins | Ordered
    noise_multiplier: float
    """Noise standard deviation over the clipping norm, on the sum of gradients."""
    steps: int
    records: int | None = None
    """In the data set; None where batches are sampled and it is not known."""
    batch_size: float | None = None
    """Of sampled batches, on average; needed by a domain and by curvatures, or None. In an order:
    the sampling's."""
    learning_rate: float = 1.0
    """Of the first step, on the mean of a batch."""
    clipping_norm: float = 1.0
    weak_convexity: float | None = None
    """Of the losses; 0: convex. None: nothing is known, so it may be as large as the smoothness;
    0 where losses are strongly convex."""
    smoothness: float | None = None
    """Largest curvature of the losses; 0: linear. None: nothing is known."""
    strong_convexity: float = 0.0
    """Of losses whose gradients clipping then never changes."""
    holder: float = 1.0
    diameter: float | None = None
    """Of the domain that every step projects the iterate on, in the parameters' unit; None: no
    domain."""
    schedule: str = "constant"
    """Of the learning rates: a name of ``weighted.SCHEDULES``."""
    momentum: float = 0.0
    weight_decay: float = 0.0
    """Times the learning rate; outside of clipping."""
    release_every: int | None = None
    """Every so manieth iterate is released; 1: all. None: the last alone."""
    average_last: int | None = None
    """The mean of so many last iterates is released in place of the last; None: the last."""
    ema_decay: float | None = None
    """An exponential moving average of all iterates is released in place of the last."""
    group: int = 1
    """Records that are added, removed or swapped together."""
    adjacency: str | None = None
    """One of ``ADJACENCIES``; None: records are added or removed where each is sampled by itself,
    and swapped elsewhere."""

    def __post_init__(self) -> None:
        for name in ("records", "steps", "group", "release_every", "average_last"):
            if isinstance(value := getattr(self, name), np.integer | bool):
                expect(not isinstance(value, bool), name, value, "a whole number")
                object.__setattr__(self, name, int(value))
        for field in fields(self):
            value = arguments.double(getattr(self, field.name))
            check_double(field.name, value)
            object.__setattr__(self, field.name, value)
        listed = isinstance(self.sampling, FullBatch | Poisson | FixedSize | BallsAndBins | Ordered)
        known = "FullBatch, Poisson, FixedSize, BallsAndBins, Cyclic or Reshuffled"
        expect(listed, "sampling", self.sampling, known)
        self._check_batches()
        # With less noise composition takes minutes.
        fine = 1e-3 <= self.noise_multiplier <= 1e50
        expect(fine, "noise_multiplier", self.noise_multiplier, "a number from 0.001 to 1e50")
        arguments.check_mechanism(
            self.noise_multiplier, self.rate if self.sampled else 1, self.steps
        )
        if self.sampled:
            expect(self.rate >= 1e-50, "sampling_rate", self.rate, "a number from 1e-50 to 1")
        for name in ("learning_rate", "clipping_norm", "diameter", "batch_size"):
            value = getattr(self, name)
            fine = value is None or 0 < value < math.inf
            expect(fine, name, value, "a number > 0")
        for name in ("weak_convexity", "smoothness", "strong_convexity", "weight_decay"):
            value = getattr(self, name)
            fine = value is None or 0 <= value < math.inf
            expect(fine, name, value, "a number >= 0")
        expect(0 <= self.holder <= 1, "holder", self.holder, "a number from 0 to 1")
        if self.weak_convexity is None:
            convex = self.smoothness is None or self.strong_convexity > 0
            object.__setattr__(self, "weak_convexity", 0.0 if convex else self.smoothness)
        self._check_optimiser()
        self._check_release()

    def _check_batches(self) -> None:
        records = self.records
        fine = records is None or (isinstance(records, int) and records >= 1)
        expect(fine, "records", records, "a whole number >= 1")
        if isinstance(self.sampling, Ordered | FixedSize):
            expect(records is not None, "records", records, "a whole number >= 1")
            assert records is not None
            size = self.sampling.batch_size
            expect(size <= records, "batch_size", size, f"at most {records}, the records")
            object.__setattr__(self, "batch_size", size)
        elif self.batch_size is None:
            for name in ("smoothness", "diameter"):
                value = getattr(self, name)
                if value is not None:
                    raise InputError(
                        f"batch_size: got none; expected that of a batch, on average: {name} and "
                        "the learning rate are of its mean"
                    )
        if isinstance(self.sampling, BallsAndBins):
            words = f"whole epochs of {self.sampling.bins:,}"
            expect(self.steps % self.sampling.bins == 0, "steps", self.steps, words)
        self._check_adjacency()

    def _check_adjacency(self) -> None:
        group, adjacency = self.group, self.adjacency
        fine = isinstance(group, int) and group >= 1
        expect(fine, "group", group, "a whole number >= 1")
        if self.records is not None:
            expect(group <= self.records, "group", group, f"at most {self.records}, the records")
        if isinstance(self.sampling, Ordered):
            size = self.sampling.batch_size
            expect(group <= size, "group", group, f"at most {size}, the records of a batch")
        words = " or ".join(ADJACENCIES)
        expect(adjacency in (None, *ADJACENCIES), "adjacency", adjacency, words)
        if adjacency == "add-remove" and self.swaps:
            raise InputError(
                "adjacency: got add-remove; expected swap, as the batches have a fixed size"
            )

    def _check_optimiser(self) -> None:
        # Imported here because most settings have none.
        from hiddenstate.accounting import weighted

        weighted.check_schedule(self.schedule)
        momentum, decay = self.momentum, self.weight_decay * self.learning_rate
        arguments.check_number("momentum", momentum, 0 <= momentum < 1, "in [0, 1)")
        if not decay < 1:
            raise InputError(
                f"weight_decay: got {self.weight_decay:g} at learning rate "
                f"{self.learning_rate:g}; expected a product of less than 1"
            )

    def _check_release(self) -> None:
        given = [name for name in RELEASE if getattr(self, name) is not None]
        if len(given) > 1:
            raise InputError(f"{given[1]}: expected only one of {', '.join(RELEASE)}")
        for name in ("release_every", "average_last"):
            value = getattr(self, name)
            fine = value is None or (isinstance(value, int) and 1 <= value <= self.steps)
            expect(fine, name, value, f"a whole number from 1 to the steps, {self.steps}")
        if self.ema_decay is not None:
            fine = 0 < self.ema_decay < 1
            arguments.check_number("ema_decay", self.ema_decay, fine, "in (0, 1)")

    @property
    def changed(self) -> list[str]:
        """The options whose values are not those of plain SGD and one record.

        The optimiser's, the release's, a group, and a swap where batches have no order.
        """
        plain = OPTIMISER | RELEASE | {"group": 1}
        found = [name for name, value in plain.items() if getattr(self, name) != value]
        return [*found, "adjacency"] if self.swaps and not self.ordered else found

    @property
    def swaps(self) -> bool:
        """True if neighbouring data sets differ in a record that is swapped."""
        return self.adjacency == "swap" or isinstance(self.sampling, Ordered | FixedSize)

    @property
    def fixed_size(self) -> bool:
        """True if each step draws a batch of one size without replacement."""
        return isinstance(self.sampling, FixedSize)

    @property
    def rates(self) -> NDArray[np.float64]:
        """Learning rate of each step, shape (steps,)."""
        from hiddenstate.accounting import weighted

        weighted.require_steps(self.steps)
        return self.learning_rate * weighted.relative_rates(self.schedule, self.steps)

    @property
    def weights(self) -> NDArray[np.float64]:
        """Weight of each step's sum in what is released of linear losses, the largest being 1."""
        from hiddenstate.accounting import weighted

        return weighted.optimiser_weights(
            self.steps,
            schedule=self.schedule,
            momentum=self.momentum,
            weight_decay=self.weight_decay,
            learning_rate=self.learning_rate,
            average_last=self.average_last,
            ema_decay=self.ema_decay,
        )

    @property
    def curvature(self) -> tuple[float, float, float]:
        """Weak convexity, smoothness and strong convexity of the largest batch's mean.

        A sampled batch may have all records, which are 1 / rate times the expected batch; strong
        convexity is of a regulariser that every step has once.
        """
        assert self.weak_convexity is not None
        if self.smoothness is None:
            raise InputError("smoothness: got none; expected that of the losses")
        expect(self.holder == 1, "holder", self.holder, "1: smooth losses")
        strong = self.strong_convexity
        if not self.sampled:
            return self.weak_convexity, self.smoothness, strong * self.smallest_share
        expect(
            strong <= self.smoothness,
            "strong_convexity",
            strong,
            f"at most the smoothness, {self.smoothness:g}",
        )
        whole = 1 / self.rate
        return self.weak_convexity * whole, (self.smoothness - strong) * whole + strong, strong

    def factors(self, constant: Callable[..., float]) -> NDArray[np.float64]:
        """Largest factor by which each step increases the distance of two iterates, shape (steps,).

        constant: of a step without decay, from its step size. With decay a = rate * weight decay a
        step is 1 - a times the one of step size rate / (1 - a).
        """
        kept = 1 - self.rates * self.weight_decay
        sizes, places = np.unique(self.rates / kept, return_inverse=True)
        found = np.array([constant(float(size)) for size in sizes])
        return found[places] * kept * (1 + 1e-15)

    @property
    def sampled(self) -> bool:
        """True if each step draws its batch for itself, or has all records."""
        return isinstance(self.sampling, FullBatch | Poisson | FixedSize)

    @property
    def ordered(self) -> bool:
        """True if batches go through the records in an order."""
        return isinstance(self.sampling, Ordered)

    @property
    def allocated(self) -> bool:
        """True if each record draws its batch of every epoch (balls and bins)."""
        return isinstance(self.sampling, BallsAndBins)

    @property
    def rate(self) -> float:
        """Probability that a step samples a record."""
        if not self.sampled:
            raise InputError(f"sampling: got {self.sampling}; expected sampled batches")
        if isinstance(self.sampling, FixedSize):
            assert self.records is not None
            return self.sampling.batch_size / self.records
        return float(self.sampling.rate)

    @property
    def mechanism(self) -> tuple[float, float, int]:
        return self.noise_multiplier, self.rate, self.steps

    @property
    def shuffled(self) -> bool:
        """True if the order of the records is drawn, once or in each epoch."""
        return is_shuffled(self.sampling)

    @property
    def redrawn(self) -> bool:
        """True if the order of the records is drawn in each epoch."""
        return isinstance(self.sampling, Reshuffled)

    @property
    def width(self) -> float | None:
        """Diameter of a sampled run's domain over the most that a record moves its first step."""
        if self.diameter is None:
            return None
        return self.diameter / self.shift * (1 + 1e-15)

    @property
    def shift(self) -> float:
        """Most that a record's gradient moves the first step."""
        assert self.batch_size is not None
        return self.learning_rate * self.clipping_norm / self.batch_size

    @property
    def break_even(self) -> float | None:
        """Steps from which on a domain can hide more than composition allows, roughly.

        If no step moves two iterates apart: K steps that hide the diameter d and as many shifts s
        of a record cost mu^2 = (d + K s)^2 / K sigma^2, least 4 d s / sigma^2, where composition of
        T steps has T s^2 / sigma^2; with sampling rate q both are about q of the one and q^2 of the
        other. Steps that move them apart take longer. None without a domain, and for an order of
        more than one batch, which hides something without any.
        """
        if self.diameter is None or self.changed or self.allocated:
            return None
        if self.sampled:
            return 4 * self.diameter / (self.shift * self.rate)
        return None if self.steps_per_pass > 1 else 4 * self.diameter / (2 * self.shift)

    @property
    def steps_per_pass(self) -> int:
        """Steps in which every record is once; the last batch may be smaller."""
        if isinstance(self.sampling, BallsAndBins):
            return self.sampling.bins
        assert isinstance(self.sampling, Ordered) and self.records is not None
        return self.sampling.steps_per_pass(self.records)

    @property
    def sitting_out(self) -> float:
        """Probability that a record is in no batch of an epoch, as its loader drops the rest."""
        if not isinstance(self.sampling, Reshuffled):
            return 0.0
        assert self.records is not None
        return max(0.0, 1 - self.steps_per_pass * self.sampling.batch_size / self.records)

    @property
    def smallest_share(self) -> float:
        """Size of the smallest batch of an order over the others'."""
        assert isinstance(self.sampling, Ordered) and self.records is not None
        size = self.sampling.batch_size
        left = self.records - size * (self.steps_per_pass - 1)
        return min(left, size) / size

    def at(self, position: int = 1) -> CyclicDPSGD:
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
            weak_convexity=self.weak_convexity or 0.0,
            smoothness=self.smoothness or 0.0,
            position=position,
        )

    @property
    def numbers(self) -> dict[str, Any]:
        """All of it, by the words of the command line; None where there is none."""
        rate: dict[str, Any] = {"sampling_rate": self.rate} if self.sampled else {}
        if isinstance(self.sampling, BallsAndBins):
            rate = {"bins": self.sampling.bins}
        rest = {k: v for k, v in vars(self).items() if k != "sampling"}
        return {"sampler": self.sampling.sampler} | rate | rest

    @property
    def words(self) -> str:
        """Its numbers, as a reader sees them."""
        return ", ".join(self._words())

    def _words(self) -> Iterator[str]:
        yield f"noise multiplier {self.noise_multiplier:g}"
        one = "a record" if self.group == 1 else counted(self.group, "record")
        if isinstance(self.sampling, Ordered):
            fixed, drawn = "" if self.shuffled else "fixed ", ""
            if self.shuffled:
                drawn = f" whose order is shuffled {'in each epoch' if self.redrawn else 'once'}"
            if self.sitting_out:
                left = (self.records or 0) % self.sampling.batch_size
                drawn += (
                    f" without {counted(left, 'record')} that {'sits' if left == 1 else 'sit'} out"
                )
            yield (
                f"{counted(self.steps, 'step')} through {counted(self.records or 0, 'record')} in "
                f"{fixed}batches of "
                f"{self.sampling.batch_size:,}{drawn} (swap {one})"
            )
        elif isinstance(self.sampling, FixedSize):
            yield (
                f"{counted(self.steps, 'step')}, each on {self.sampling.batch_size:,} of "
                f"{counted(self.records or 0, 'record')} drawn without replacement (swap {one})"
            )
        else:
            steps, change = counted(self.steps, "step"), "swap" if self.swaps else "add or remove"
            if isinstance(self.sampling, BallsAndBins):
                bins = counted(self.sampling.bins, "batch")
                yield f"{steps}, each record in one of {bins} of an epoch ({change} {one})"
            else:
                yield f"sampling rate {self.rate:g}"
                yield f"{steps} ({change} {one})"
            if self.batch_size is not None:
                yield f"batches of {self.batch_size:g} on average"
        if self.diameter or self.smoothness is not None or self.weight_decay:
            yield f"learning rate {self.learning_rate:g} on the mean of a batch"
        if self.schedule != "constant":
            yield f"learning rates by the schedule {self.schedule}"
        for name in ("momentum", "weight_decay"):
            if getattr(self, name):
                yield f"{name.replace('_', ' ')} {getattr(self, name):g}"
        if self.smoothness is not None and self.holder < 1:
            yield f"gradients Hölder continuous, {self.smoothness:g} |x - y|^{self.holder:g}"
        elif self.smoothness is not None:
            yield f"weak convexity {self.weak_convexity:g}" if self.weak_convexity else "convex"
            yield f"smoothness {self.smoothness:g} of every loss"
        if self.strong_convexity:
            yield f"strong convexity {self.strong_convexity:g}"
        if self.diameter is not None:
            yield f"projected on a domain of diameter {self.diameter:g}"
        if self.release_every is not None:
            yield f"every {nth(self.release_every)}iterate released"
        if self.average_last is not None:
            yield f"the mean of the last {counted(self.average_last, 'iterate')} released"
        if self.ema_decay is not None:
            yield f"an average of all iterates with decay {self.ema_decay:g} released"
