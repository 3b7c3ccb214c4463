"""Evidence: what a check found, and the one statistical rule that turns it into an outcome.

A check measures quantities and says which values the sentence allows. The rule is the same for all
of them. Every quantity has a confidence interval, and the intervals of one claim hold
simultaneously with 95 % confidence (Bonferroni):

* the claim **agrees** if every interval lies inside the region that the sentence allows,
* it is **contradicted** if any interval lies outside,
* everything else is **undecided**, and so is what a rerun with other seeds would not say again with
  95 % (the guard band).

This is equivalence testing: few repeats leave a claim undecided, never confirmed. A printed number
is a region of one point. There the claim agrees if the interval, which then includes the paper's
own error, covers the number and excludes the nearest rival that the paper itself tells it from.
Repeats that come out equal have an unknown error, not none: a known one is given with them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import InitVar, dataclass, field
from enum import StrEnum
from typing import Protocol, SupportsFloat

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
CONFIDENCE = 0.95
"""Confidence of all intervals of one claim together."""
GUARD = 0.95
"""A claim is decided only if a rerun with other seeds would decide it so with this probability."""
IMPOSSIBLE = 5.0
"""Standard errors beyond what is possible at which an estimate says that something is wrong."""
POWER = 0.8
"""A test that would find the stated alternative less often decides nothing by finding nothing."""


class Outcome(StrEnum):
    """Outcome of evidence for a sentence, whoever wrote it."""

    AGREES = "agrees"
    CONTRADICTS = "contradicts"
    UNDECIDED = "undecided"
    COMPATIBLE = "compatible"
    """A printed number without a competing value: agreement with it proves nothing."""


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

    def turns(self, outcome: Outcome, low: float, high: float, confidence: float) -> float:
        """Probability that a rerun gives another outcome for the region from low to high."""


@dataclass(frozen=True)
class Exact:
    """A number that is computed, not estimated; ``accuracy`` is the most it may be off."""

    value: float
    accuracy: float = 0.0
    error: float = field(default=0.0, init=False)

    def interval(self, confidence: float) -> tuple[float, float]:
        return self.value - self.accuracy, self.value + self.accuracy

    def turns(self, outcome: Outcome, low: float, high: float, confidence: float) -> float:
        """0: a rerun computes the same number."""
        return 0.0


@dataclass(frozen=True)
class Estimate:
    """A number with a standard error and its degrees of freedom; Student's t interval.

    An error that is not known (NaN, as of a single repeat, or 0, as of equal repeats) gives the
    whole range. ``least`` and ``most`` are what is proven possible: no interval leaves that range.
    """

    value: float
    error: float
    freedom: float = math.inf
    least: float = -math.inf
    most: float = math.inf

    @property
    def known(self) -> bool:
        """True if the error is known."""
        return self.error > 0 and self.freedom > 0

    def interval(self, confidence: float) -> tuple[float, float]:
        """Student's interval within what is possible; all of that without a known error."""
        half = self.half(confidence) if self.known else math.inf
        if max(self.least - self.value, self.value - self.most) > IMPOSSIBLE * self.error:
            # No chance: something is wrong, and nothing else is said.
            return self.least, self.most
        low, high = (
            min(max(end, self.least), self.most) for end in (self.value - half, self.value + half)
        )
        return low, high

    def half(self, confidence: float) -> float:
        """Half the width of Student's interval."""
        from scipy import special

        return float(special.stdtrit(self.freedom, (1 + confidence) / 2)) * self.error

    def chance(self, low: float, high: float) -> float:
        """Probability that a rerun's value lies between these limits."""
        from scipy import special

        if low >= high:
            return 0.0
        ends = (np.array([low, high]) - self.value) / self.error
        below = special.stdtr(self.freedom, ends)
        return float(below[1] - below[0])

    def turns(self, outcome: Outcome, low: float, high: float, confidence: float) -> float:
        if not self.known:
            return 0.0
        half = self.half(confidence)
        # The centre decides: an interval is inside a region if it is half a width from both ends.
        # An end beyond what is possible is no end.
        low = -math.inf if low <= self.least else low
        high = math.inf if high >= self.most else high
        inside = self.chance(low + half, high - half)
        outside = 1 - self.chance(low - half, high + half)
        same = {Outcome.AGREES: inside, Outcome.CONTRADICTS: outside}
        return 1 - same.get(outcome, 1 - inside - outside)

    def over(self, scale: float) -> Estimate:
        """The same in units of ``scale``, a positive number without error."""
        ends = self.least / scale, self.most / scale
        return Estimate(self.value / scale, self.error / scale, self.freedom, *ends)

    def __sub__(self, other: Estimate) -> Estimate:
        """The difference of two independent estimates, with Welch's degrees of freedom."""
        error, freedom = _welch([(1.0, self), (1.0, other)])
        least, most = self.least - other.most, self.most - other.least
        return Estimate(self.value - other.value, error, freedom, least, most)


def _welch(parts: Sequence[tuple[float, Estimate]]) -> tuple[float, float]:
    """Error and degrees of freedom of a weighted sum; the error of an unknown one is unknown."""
    # An exact number, as ``_estimate`` makes one, has error 0 and infinite freedom, and is known.
    if not all(one.known or math.isinf(one.freedom) for _, one in parts):
        return math.nan, 0.0
    error = math.sqrt(math.fsum((weight * one.error) ** 2 for weight, one in parts))
    finite = [(w * one.error) ** 4 / one.freedom for w, one in parts if math.isfinite(one.freedom)]
    return error, error**4 / math.fsum(finite) if math.fsum(finite) > 0 else math.inf


@dataclass(frozen=True)
class Share:
    """A share of independent trials; the interval is Clopper and Pearson's."""

    successes: int
    trials: int

    @property
    def value(self) -> float:
        return self.successes / self.trials

    @property
    def error(self) -> float:
        """Binomial standard error at the observed share, kept away from 0 at the ends."""
        p = (self.successes + 1) / (self.trials + 2)
        return math.sqrt(p * (1 - p) / self.trials)

    def interval(self, confidence: float) -> tuple[float, float]:
        """Clopper and Pearson's limits."""
        low, high = self._limits(np.array([self.successes]), confidence)
        return float(low[0]), float(high[0])

    def _limits(self, k: NDArray[np.intp], confidence: float) -> tuple[Floats, Floats]:
        """The limits for each number of successes."""
        from scipy import stats

        n, tail = self.trials, (1 - confidence) / 2
        # A beta law has no parameter of 0; these ends are 0 and 1.
        low = np.where(k > 0, stats.beta.ppf(tail, np.maximum(k, 1), n - k + 1), 0.0)
        high = np.where(k < n, stats.beta.isf(tail, k + 1, np.maximum(n - k, 1)), 1.0)
        return low, high

    def turns(self, outcome: Outcome, low: float, high: float, confidence: float) -> float:
        """Probability that as many new trials give another outcome.

        The share is taken as (successes + 1/2) / (trials + 1): that of none, or of all, is known no
        better than that of some.
        """
        from scipy import stats

        counts = np.arange(self.trials + 1)
        chances = stats.binom.pmf(counts, self.trials, (self.successes + 0.5) / (self.trials + 1))
        # Each count needs quantiles of two beta laws; those left out have no weight that matters.
        counts, chances = counts[chances > 1e-9], chances[chances > 1e-9]
        ends = zip(*self._limits(counts, confidence), strict=True)
        turned = [_place(*both, low, high) != outcome for both in ends]
        return math.fsum(chances[turned])


@dataclass(frozen=True)
class Interval:
    """A number whose limits were computed elsewhere, two-sided, at a confidence of their own.

    At a higher confidence the interval is (-inf, inf).
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

    def turns(self, outcome: Outcome, low: float, high: float, confidence: float) -> float:
        """Largest share of such limits that fail."""
        return 1 - self.confidence


def mean(
    values: Sequence[float], known: float = 0.0, *, least: float = -math.inf, most: float = math.inf
) -> Estimate:
    """The mean of independent repeats, each of which has at least the ``known`` deviation.

    The known one, such as what the number of models leaves, is the error unless the repeats
    scatter more than it allows (chi-square test at 5 %). Without it a single repeat, and repeats
    that are all equal, have an error that is not known.
    """
    found = np.asarray(values, dtype=float)
    n, value = len(found), float(found.mean())
    sd = float(found.std(ddof=1)) if n > 1 else math.nan
    if known > 0:
        from scipy import stats

        if n == 1 or stats.chi2.sf((n - 1) * (sd / known) ** 2, n - 1) >= 1 - CONFIDENCE:
            return Estimate(value, known / math.sqrt(n), math.inf, least, most)
    return Estimate(value, sd / math.sqrt(n), n - 1, least, most)


def mean_of(value: float, sd: float, n: int) -> Estimate:
    """The mean of ``n`` repeats of which the mean and the standard deviation are known."""
    return Estimate(value, sd / math.sqrt(n), n - 1)


def average(estimates: Sequence[Estimate]) -> Estimate:
    """The mean of independent estimates, with Welch's degrees of freedom."""
    n = len(estimates)
    value = math.fsum(one.value for one in estimates) / n
    error, freedom = _welch([(1 / n, one) for one in estimates])
    least, most = (
        math.fsum(ends) / n for ends in zip(*((e.least, e.most) for e in estimates), strict=True)
    )
    return Estimate(value, error, freedom, least, most)


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
    turns: float
    """Probability that a rerun with other seeds gives another outcome; 0 for exact numbers."""


def _place(low: float, high: float, least: float, most: float) -> Outcome:
    """Outcome by the place of an interval: inside a region, outside it, or across an end."""
    if least <= low and high <= most:
        return Outcome.AGREES
    return Outcome.CONTRADICTS if high < least or low > most else Outcome.UNDECIDED


@dataclass(frozen=True)
class Within:
    """A quantity and the region that the sentence allows it.

    A plain number is exact. ``low`` and ``high`` are the region's ends, an infinite one is no end;
    ``reason`` says where they come from.
    """

    what: str
    given: InitVar[Quantity | SupportsFloat]
    low: float = -math.inf
    high: float = math.inf
    reason: str = ""
    stated: str = ""
    found: Quantity = field(init=False)

    def __post_init__(self, given: Quantity | SupportsFloat) -> None:
        found = given if hasattr(given, "interval") else Exact(float(given))
        object.__setattr__(self, "found", found)

    @property
    def exact(self) -> bool:
        """True if the quantity has no statistical error."""
        return isinstance(self.found, Exact)

    def judge(self, confidence: float) -> Judged:
        """The outcome of the quantity alone, at the confidence of its own interval."""
        low, high = self.found.interval(confidence)
        unknown = math.isnan(self.found.value)
        outcome = Outcome.UNDECIDED if unknown else _place(low, high, self.low, self.high)
        allowed = _region(self.low, self.high) + (f" ({self.reason})" if self.reason else "")
        turns = self.found.turns(outcome, self.low, self.high, confidence)
        return Judged(self.what, self.stated, self.found.value, low, high, allowed, outcome, turns)


class Printed:
    """Requirement on an interval for a number that a paper prints.

    ``rounding`` is half a unit of its last digit, ``digits`` are the decimals. ``rival`` is the
    nearest number that the paper itself tells this one from: only excluding it makes agreement mean
    something. Without a rival the number can be contradicted and confirms nothing by itself.
    """

    rounding: float
    rival: float | None
    digits: int

    def outcome(self, low: float, high: float, number: float) -> Outcome:
        """What an interval says of a printed number."""
        return Outcome(str(self.outcomes(np.array(low), np.array(high), number)))

    def outcomes(self, low: Floats, high: Floats, number: float) -> NDArray[np.str_]:
        """``outcome`` of each interval."""
        off = (high < number - self.rounding) | (low > number + self.rounding)
        covers: NDArray[np.str_] = np.asarray(Outcome.COMPATIBLE)
        if self.rival is not None:
            near = (low <= self.rival) & (self.rival <= high)
            covers = np.where(near, Outcome.UNDECIDED, Outcome.AGREES)
        return np.where(off, Outcome.CONTRADICTS, covers)

    def allowed(self, number: float) -> str:
        """Allowed values, in words."""
        rival = "" if self.rival is None else f", excludes {self.rival:.{self.digits}f}"
        return f"covers {number:.{self.digits}f}{rival}"


@dataclass(frozen=True)
class Stated(Printed):
    """A quantity and the number that the paper prints for it.

    ``number`` carries the paper's own error where the paper gives one (``mean_of``), else none.
    """

    what: str
    found: Estimate | Exact
    number: Estimate | Exact
    rounding: float = 0.0
    rival: float | None = None
    digits: int = 2

    @property
    def exact(self) -> bool:
        """True if neither number has a statistical error."""
        return isinstance(self.found, Exact) and isinstance(self.number, Exact)

    def judge(self, confidence: float) -> Judged:
        """The outcome of the number alone, at the confidence of its own interval."""
        centre = self.number.value
        # The difference has the errors of both; its interval is moved to the printed number.
        low, high = _difference(self.found, self.number).interval(confidence)
        low, high = low + centre, high + centre
        unknown = math.isnan(self.found.value)
        outcome = Outcome.UNDECIDED if unknown else self.outcome(low, high, centre)
        turns = self._turns(outcome, low, high)
        # For show alone: the outcome is decided by now.
        if isinstance(self.found, Estimate):
            least, most = self.found.least, self.found.most
            low, high = (min(max(end, least), most) for end in (low, high))
        stated, allowed = f"{centre:.{self.digits}f}", self.allowed(centre)
        return Judged(self.what, stated, self.found.value, low, high, allowed, outcome, turns)

    def _turns(self, outcome: Outcome, low: float, high: float) -> float:
        """Probability that our side, drawn again, gives another outcome."""
        if isinstance(self.found, Exact) or not (self.found.known and math.isfinite(high - low)):
            return 0.0
        # A rerun moves our centre; the arms of the interval, paper's error included, stay as long.
        below, above = self.found.value - low, high - self.found.value
        number = self.number.value
        bottom, top = number - self.rounding - above, number + self.rounding + below
        covers = self.found.chance(bottom, top)
        near = 0.0
        if self.rival is not None:
            near = self.found.chance(max(bottom, self.rival - above), min(top, self.rival + below))
        same = {
            Outcome.CONTRADICTS: 1 - covers,
            Outcome.AGREES: covers - near,
            Outcome.COMPATIBLE: covers,
        }
        return 1 - same.get(outcome, near)


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
    turning: float | None = None
    """Probability that a rerun contradicts, where its law is known; None: that of the null."""
    exact: bool = field(default=False, init=False)

    def judge(self, confidence: float) -> Judged:
        """The outcome of the test alone, at level 1 - confidence."""
        if math.isnan(self.p_value):
            outcome = Outcome.UNDECIDED
        elif self.p_value < 1 - confidence:
            outcome = Outcome.CONTRADICTS
        else:
            outcome = Outcome.AGREES if self.power >= POWER else Outcome.UNDECIDED
        allowed = f"not rejected at {100 * (1 - confidence):.3g} %; the test would detect "
        allowed += f"{self.alternative} with a power of {self.power:.0%} (80 % needed)"
        turns, none = self._turns(outcome, 1 - confidence), math.nan
        return Judged(self.what, "", self.p_value, none, none, allowed, outcome, turns)

    def _turns(self, outcome: Outcome, level: float) -> float:
        if outcome == Outcome.CONTRADICTS:
            from scipy import special

            # The z of a rerun is taken as normal, with deviation 1, about the one that was found.
            # A p-value of 0 is one below the least number.
            beyond = special.ndtri(level) - special.ndtri(max(self.p_value, 1e-300))
            return float(special.ndtr(-beyond))
        return level if self.turning is None else self.turning


@dataclass(frozen=True)
class Open:
    """A part of a sentence that nothing was measured of: the claim is not decided without it."""

    what: str
    exact: bool = field(default=True, init=False)

    def judge(self, confidence: float) -> Judged:
        none = (math.nan,) * 3
        return Judged(self.what, "", *none, "a measurement", Outcome.UNDECIDED, 0.0)


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
        f"{what}: {successes} of {trials} (binomial test of at most {100 * rate:.3g} %)",
        float(stats.binom.sf(successes - 1, trials, rate)),
        float(stats.binom.sf(critical - 1, trials, alternative)),
        f"a rate of {100 * alternative:.3g} %",
        float(stats.binom.sf(critical - 1, trials, (successes + 0.5) / (trials + 1))),
    )


def below(
    what: str, found: Estimate, truth: float, alternative: float, words: str, tests: int = 1
) -> Test:
    """One-sided test of "all of it", with the power against a smaller ``alternative``.

    A rerun of the truth itself contradicts at the level of the test, which ``tests`` share.
    """
    from scipy import special

    p_value, power = math.nan, 0.0
    if found.known:
        p_value = float(special.stdtr(found.freedom, (found.value - truth) / found.error))
        critical = -special.stdtrit(found.freedom, (1 - CONFIDENCE) / tests)
        away = (truth - alternative) / found.error - critical
        power = float(special.stdtr(found.freedom, away))
    return Test(what, p_value, power, f"{alternative:.3g}, {words}")


class Item(Protocol):
    """A quantity, a printed number or a test, which can be judged."""

    @property
    def what(self) -> str:
        """Measured quantity, in words."""

    @property
    def exact(self) -> bool:
        """True if it has no statistical error."""

    def judge(self, confidence: float) -> Judged:
        """Its outcome alone, at the confidence of its own interval."""


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
        """The outcome of the whole claim; undecided inside the guard band."""
        rows = self.rows
        found = self._outcome(rows)
        # Tests at level 1 - GUARD turn with just that probability; rounding must not undo them.
        return Outcome.UNDECIDED if self._turns(rows) > 1 - GUARD + 1e-9 else found

    @property
    def exact(self) -> bool:
        """True if the outcome rests on numbers without statistical error alone."""
        rows = self.rows
        found = self._outcome(rows)
        decisive = [
            item for item, row in zip(self.items, rows, strict=True) if row.outcome == found
        ]
        # One exact contradiction is enough; agreement is exact if all of its items are.
        return (
            bool(decisive)
            and any(item.exact for item in decisive)
            and (found == Outcome.CONTRADICTS or all(item.exact for item in decisive))
        )

    @property
    def turns(self) -> float:
        """Probability, at most, that a rerun gives another outcome than these intervals do."""
        return self._turns(self.rows)

    def _outcome(self, rows: Sequence[Judged]) -> Outcome:
        return combine([Outcome(row.outcome) for row in rows], any_of=self.any_of)

    def _turns(self, rows: Sequence[Judged]) -> float:
        # An outcome that any one item gives needs all of those to change; another, any one.
        found = self._outcome(rows)
        if found == (Outcome.AGREES if self.any_of else Outcome.CONTRADICTS):
            return min(row.turns for row in rows if row.outcome == found)
        if found == Outcome.UNDECIDED:
            return 0.0
        return min(1.0, math.fsum(row.turns for row in rows))


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


def _region(low: float, high: float) -> str:
    if math.isinf(low) and math.isinf(high):
        return "any value"
    if math.isinf(low):
        return f"at most {high:.6g}"
    if math.isinf(high):
        return f"at least {low:.6g}"
    return f"{low:.6g} to {high:.6g}"
