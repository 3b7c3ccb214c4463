"""Evidence: what a check found, and the one statistical rule that turns it into an outcome.

A check measures quantities and says which values the sentence allows. The rule is the same for all
of them. Every quantity has a confidence interval, and the intervals of one claim hold
simultaneously with 95 % confidence (Bonferroni):

* the claim **agrees** if every interval lies inside the region that the sentence allows,
* it is **contradicted** if any interval lies outside,
* everything else is **undecided**.

This is equivalence testing: few repeats leave a claim undecided, never confirmed. A printed number
is a region of one point. There the claim agrees if the interval, which then includes the paper's
own error, covers the number and excludes the nearest rival that the paper itself tells it from.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

import numpy as np

CONFIDENCE = 0.95
"""Of all intervals of one claim together."""
POWER = 0.8
"""A test that would find the stated alternative less often decides nothing by finding nothing."""


class Outcome(StrEnum):
    """What evidence says of a sentence, whoever wrote it."""

    AGREES = "agrees"
    CONTRADICTS = "contradicts"
    UNDECIDED = "undecided"
    COMPATIBLE = "compatible"
    """Of one printed number that has no rival: it can be contradicted and proves nothing alone."""


class Quantity(Protocol):
    """A number with its error: ``interval(confidence)`` is two-sided."""

    @property
    def value(self) -> float:
        """The point estimate."""

    @property
    def error(self) -> float:
        """The standard error; 0 if the number is exact."""

    def interval(self, confidence: float) -> tuple[float, float]:
        """Limits that hold the truth with at least this confidence."""


@dataclass(frozen=True)
class Exact:
    """A number that is computed, not estimated; ``accuracy`` is the most it may be off."""

    value: float
    accuracy: float = 0.0
    error: float = field(default=0.0, init=False)

    def interval(self, confidence: float) -> tuple[float, float]:
        """The value less and plus its accuracy, at any confidence."""
        return self.value - self.accuracy, self.value + self.accuracy


@dataclass(frozen=True)
class Estimate:
    """A number with a standard error and its degrees of freedom; Student's t interval.

    An error that is not known (NaN, as of a single repeat) gives an interval without ends.
    """

    value: float
    error: float
    freedom: float = math.inf

    def interval(self, confidence: float) -> tuple[float, float]:
        """Student's interval; the whole line without an error or degrees of freedom."""
        if math.isnan(self.error) or self.freedom <= 0 or math.isnan(self.freedom):
            return -math.inf, math.inf
        from scipy import stats

        half = float(stats.t.ppf((1 + confidence) / 2, self.freedom)) * self.error
        return self.value - half, self.value + half

    def __sub__(self, other: Estimate) -> Estimate:
        """The difference of two independent estimates, with Welch's degrees of freedom."""
        error = math.hypot(self.error, other.error)
        if math.isnan(error):
            return Estimate(self.value - other.value, math.nan)
        parts = [one.error**4 / one.freedom for one in (self, other) if math.isfinite(one.freedom)]
        total = math.fsum(parts)
        return Estimate(
            self.value - other.value, error, error**4 / total if total > 0 else math.inf
        )


@dataclass(frozen=True)
class Share:
    """A share of independent trials; the interval is Clopper and Pearson's."""

    successes: int
    trials: int

    @property
    def value(self) -> float:
        """Successes over trials."""
        return self.successes / self.trials

    @property
    def error(self) -> float:
        """Binomial standard error at the observed share, kept away from 0 at the ends."""
        p = (self.successes + 1) / (self.trials + 2)
        return math.sqrt(p * (1 - p) / self.trials)

    def interval(self, confidence: float) -> tuple[float, float]:
        """Clopper and Pearson's limits."""
        from scipy import stats

        k, n, tail = self.successes, self.trials, (1 - confidence) / 2
        low = float(stats.beta.ppf(tail, k, n - k + 1)) if k else 0.0
        high = float(stats.beta.isf(tail, k + 1, n - k)) if k < n else 1.0
        return low, high


@dataclass(frozen=True)
class Interval:
    """A number whose limits were computed elsewhere, two-sided, at a confidence of their own.

    At any higher confidence nothing is known: the interval has no ends.
    """

    value: float
    low: float
    high: float
    confidence: float

    @property
    def error(self) -> float:
        """Not known: the limits are all that there is."""
        return math.nan

    def interval(self, confidence: float) -> tuple[float, float]:
        """The limits, if they hold at this confidence; else the whole line."""
        known = self.confidence >= confidence
        return (self.low, self.high) if known else (-math.inf, math.inf)


def mean(values: Sequence[float]) -> Estimate:
    """The mean of independent repeats; of a single one the error is unknown."""
    found = np.asarray(values, dtype=float)
    n = len(found)
    sd = float(found.std(ddof=1)) if n > 1 else math.nan
    return Estimate(float(found.mean()), sd / math.sqrt(n), n - 1)


def mean_of(value: float, sd: float, n: int) -> Estimate:
    """The mean of ``n`` repeats of which the mean and the standard deviation are known."""
    return Estimate(value, sd / math.sqrt(n), n - 1)


def average(estimates: Sequence[Estimate]) -> Estimate:
    """The mean of independent estimates, with Welch's degrees of freedom."""
    n = len(estimates)
    value = math.fsum(one.value for one in estimates) / n
    error = math.sqrt(math.fsum(one.error**2 for one in estimates)) / n
    known = [one for one in estimates if one.error > 0 and math.isfinite(one.freedom)]
    parts = math.fsum((one.error / n) ** 4 / one.freedom for one in known)
    return Estimate(value, error, error**4 / parts if parts > 0 else math.inf)


@dataclass(frozen=True)
class Judged:
    """One row of a claim's evidence as pages show it."""

    what: str
    stated: str
    measured: float
    low: float
    high: float
    allowed: str
    outcome: str
    margin: float | None
    """Distance to the next other outcome in standard errors; None for exact numbers, and where the
    error is not known."""


@dataclass(frozen=True)
class Within:
    """A quantity and the region that the sentence allows it.

    ``low`` and ``high`` are the region's ends, an infinite one is no end; ``reason`` says where
    they come from.
    """

    what: str
    found: Quantity
    low: float = -math.inf
    high: float = math.inf
    reason: str = ""
    stated: str = ""

    @property
    def exact(self) -> bool:
        """If the quantity has no statistical error."""
        return self.found.error == 0

    def judge(self, confidence: float) -> Judged:
        """The outcome of the quantity alone, at the confidence of its own interval."""
        low, high = self.found.interval(confidence)
        if math.isnan(self.found.value):
            outcome = Outcome.UNDECIDED
        elif self.low <= low and high <= self.high:
            outcome = Outcome.AGREES
        elif high < self.low or low > self.high:
            outcome = Outcome.CONTRADICTS
        else:
            outcome = Outcome.UNDECIDED
        ends = [end for end in (self.low, self.high) if math.isfinite(end)]
        margin = min((abs(limit - end) for end in ends for limit in (low, high)), default=math.inf)
        return Judged(
            self.what,
            self.stated,
            self.found.value,
            low,
            high,
            _region(self.low, self.high) + (f" ({self.reason})" if self.reason else ""),
            outcome,
            _in_errors(margin, self.found.error),
        )


@dataclass(frozen=True)
class Stated:
    """A quantity and the number that the paper prints for it.

    ``number`` carries the paper's own error where the paper gives one (``mean_of``), else none;
    ``rounding`` is half a unit of its last printed digit. ``rival`` is the nearest number that the
    paper itself tells this one from: only excluding it makes agreement mean something. Without a
    rival the number can be contradicted and confirms nothing by itself.
    """

    what: str
    found: Estimate | Exact
    number: Estimate | Exact
    rounding: float = 0.0
    rival: float | None = None
    digits: int = 2

    @property
    def exact(self) -> bool:
        """If neither number has a statistical error."""
        return self.found.error == 0 and self.number.error == 0

    def judge(self, confidence: float) -> Judged:
        """The outcome of the number alone, at the confidence of its own interval."""
        centre = self.number.value
        low, high = _difference(self.found, self.number).interval(confidence)
        low, high = low + centre, high + centre
        bottom, top = centre - self.rounding, centre + self.rounding
        if math.isnan(self.found.value):
            outcome = Outcome.UNDECIDED
        elif high < bottom or low > top:
            outcome = Outcome.CONTRADICTS
        elif self.rival is None:
            outcome = Outcome.COMPATIBLE
        elif low <= self.rival <= high:
            outcome = Outcome.UNDECIDED
        else:
            outcome = Outcome.AGREES
        ends = [bottom, top, *([] if self.rival is None else [self.rival])]
        margin = min(abs(limit - end) for end in ends for limit in (low, high))
        error = math.hypot(self.found.error, self.number.error)
        words = f"{centre:.{self.digits}f}"
        rival = "" if self.rival is None else f", and exclude {self.rival:.{self.digits}f}"
        return Judged(
            self.what,
            words,
            self.found.value,
            low,
            high,
            f"the interval, with the number's own error in it, must cover {words}{rival}",
            outcome,
            _in_errors(margin, error),
        )


@dataclass(frozen=True)
class Test:
    """A test whose null hypothesis is the sentence.

    ``p_value`` contradicts it if it is small; a large one agrees only if the test would have found
    ``alternative`` with a ``power`` of at least 80 %.
    """

    __test__ = False  # for pytest, which collects classes of this name

    what: str
    p_value: float
    power: float
    alternative: str
    exact: bool = field(default=False, init=False)

    def judge(self, confidence: float) -> Judged:
        """The outcome of the test alone, at level 1 - confidence."""
        if math.isnan(self.p_value):
            outcome = Outcome.UNDECIDED
        elif self.p_value < 1 - confidence:
            outcome = Outcome.CONTRADICTS
        else:
            outcome = Outcome.AGREES if self.power >= POWER else Outcome.UNDECIDED
        from scipy import stats

        # A p-value of 0 is one below the least number.
        p_value = max(self.p_value, 1e-300)
        z = abs(stats.norm.isf(p_value / 2) - stats.norm.isf((1 - confidence) / 2))
        return Judged(
            self.what,
            "",
            self.p_value,
            math.nan,
            math.nan,
            f"p at least {1 - confidence:.3g}, with a power of {self.power:.0%} (80 % needed) "
            f"against {self.alternative}",
            outcome,
            float(z),
        )


def rarely(
    what: str, successes: int, trials: int, rate: float, alternative: float, tests: int = 1
) -> Test:
    """The exact binomial test of "at most this share of independent trials".

    A sentence whose truth is at the rate itself, as of bounds that use their whole level, would
    never be inside a region; so it is tested, with the power against a larger ``alternative``.
    ``tests`` is how many estimates of a claim share its level.
    """
    from scipy import stats

    # sf(critical - 1) is the probability of as many: isf is the least with sf at most the level.
    critical = int(stats.binom.isf((1 - CONFIDENCE) / tests, trials, rate)) + 1
    return Test(
        f"{what}: {successes} of {trials}",
        float(stats.binom.sf(successes - 1, trials, rate)),
        float(stats.binom.sf(critical - 1, trials, alternative)),
        f"{alternative:.3g} of them, where {rate:.3g} may be",
    )


Item = Within | Stated | Test


@dataclass(frozen=True)
class Evidence:
    """All that a check found of one claim.

    ``every`` items must agree; with ``any_of`` one is enough, as for "in some cases". ``note`` is a
    sentence on what was measured.
    """

    items: Sequence[Item]
    note: str = ""
    any_of: bool = False

    def __post_init__(self) -> None:
        if not self.items:
            raise ValueError("evidence without any item; use needed() where cells are absent")

    @property
    def rows(self) -> list[Judged]:
        """Each item with its simultaneous interval and its own outcome."""
        # Exact numbers take nothing from the level that estimates share.
        shared = sum(not item.exact for item in self.items) or 1
        return [item.judge(1 - (1 - CONFIDENCE) / shared) for item in self.items]

    @property
    def outcome(self) -> Outcome:
        """The outcome of the whole claim."""
        return combine([Outcome(row.outcome) for row in self.rows], any_of=self.any_of)

    @property
    def exact(self) -> bool:
        """If the outcome rests on numbers without statistical error alone."""
        decisive = [
            item
            for item, row in zip(self.items, self.rows, strict=True)
            if row.outcome == self.outcome
        ]
        return (
            bool(decisive)
            and any(item.exact for item in decisive)
            and (self.outcome == Outcome.CONTRADICTS or all(item.exact for item in decisive))
        )

    @property
    def margin(self) -> float | None:
        """How far the claim is from another outcome, in standard errors; None if exact.

        An outcome that any one item gives needs all of those to change; another, any one.
        """
        decisive = Outcome.AGREES if self.any_of else Outcome.CONTRADICTS
        rows = [row for row in self.rows if row.margin is not None]
        if self.outcome == decisive:
            of_all = [row for row in self.rows if row.outcome == decisive]
            if any(row.margin is None for row in of_all):
                return None
            return max(row.margin for row in of_all if row.margin is not None)
        return min((row.margin for row in rows if row.margin is not None), default=None)


def combine(outcomes: Sequence[Outcome], *, any_of: bool) -> Outcome:
    """The outcome of several quantities of one claim."""
    found = set(outcomes)
    if any_of:
        if Outcome.AGREES in found:
            return Outcome.AGREES
        return Outcome.CONTRADICTS if found == {Outcome.CONTRADICTS} else Outcome.UNDECIDED
    if Outcome.CONTRADICTS in found:
        return Outcome.CONTRADICTS
    if Outcome.AGREES in found and found <= {Outcome.AGREES, Outcome.COMPATIBLE}:
        return Outcome.AGREES
    return Outcome.UNDECIDED


def _difference(one: Estimate | Exact, other: Estimate | Exact) -> Quantity:
    if isinstance(one, Exact) and isinstance(other, Exact):
        return Exact(one.value - other.value, one.accuracy + other.accuracy)
    return _estimate(one) - _estimate(other)


def _estimate(one: Estimate | Exact) -> Estimate:
    return one if isinstance(one, Estimate) else Estimate(one.value, 0.0)


def _in_errors(distance: float, error: float) -> float | None:
    return distance / error if math.isfinite(error) and error > 0 else None


def _region(low: float, high: float) -> str:
    if math.isinf(low) and math.isinf(high):
        return "any value"
    if math.isinf(low):
        return f"at most {high:.6g}"
    if math.isinf(high):
        return f"at least {low:.6g}"
    return f"{low:.6g} to {high:.6g}"


Measure = Callable[[Any], Evidence]
