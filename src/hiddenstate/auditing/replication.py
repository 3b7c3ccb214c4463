"""Printed epsilons of published audits, judged by the simulated law of their estimator.

An audit of so many models with normal scores publishes an epsilon whose law depends on one number
alone, the separation of the scores. Near 0 the law is far from normal: most audits publish 0, and
five of them that do are no exact number. So a printed mean or maximum is compared with ours by that
law on both sides, at every separation that our audits leave possible.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from hiddenstate.accounting import gaussian
from hiddenstate.auditing.hypotheses import GaussianDP
from hiddenstate.auditing.intervals import clopper_pearson_upper
from hiddenstate.pipeline.evidence import Estimate, Judged, Outcome, Printed, mean

Floats = NDArray[np.float64]
LEVEL = 0.05
"""Level of the published estimator's one-sided error rates."""
STEP = 0.1
"""Distance of the separations at which the law is simulated."""
AUDITS = 2000
"""Audits that are simulated of each separation."""
DRAWS = 4000
"""Replications of several audits that are drawn from these."""
SHARE = 0.1
"""Share of the level that the unknown separation takes."""
SCATTERED = 0.01
"""Repeats whose scatter is rarer than this under the law do not have that law."""

Statistic = Literal["mean", "maximum"]


def _statistic(audits: Floats, name: Statistic) -> Floats:
    """Along the last axis."""
    return np.asarray(audits.mean(axis=-1) if name == "mean" else audits.max(axis=-1))


@dataclass(frozen=True)
class Law:
    """The law of the published epsilon, by the separation of normal scores.

    models: with the canary and without it, each, of one audit. delta: of the epsilons. most: the
    largest separation that is possible, mu of the mechanism. level: of each error rate's bound.
    """

    models: int
    delta: float
    most: float
    level: float = LEVEL

    @property
    def separations(self) -> Floats:
        """Simulated separations, from 0 to the most."""
        return np.append(np.arange(0, self.most - STEP / 2, STEP), self.most)

    @property
    def audits(self) -> Floats:
        """Epsilons of simulated audits, shape (separations, audits)."""
        return _audits(self)

    def several(self, n: int, statistic: Statistic, seed: int) -> Floats:
        """A statistic of ``n`` audits, shape (separations, draws)."""
        return _several(self, n, statistic, seed)

    def perfect(self, n: int, statistic: Statistic, draws: int = DRAWS) -> Floats:
        """A statistic of ``n`` audits at the largest separation, shape (draws,)."""
        return _perfect(self, n, statistic, draws)

    def at(self, separations: Floats, seed: int) -> Floats:
        """An audit of each separation, of their shape; other seeds draw other audits."""
        places = np.interp(separations, self.separations, np.arange(len(self.separations)))
        below = np.minimum(places.astype(int), len(self.separations) - 2)
        one = np.random.default_rng(seed).integers(0, AUDITS, separations.shape)
        share = places - below
        return (1 - share) * self.audits[below, one] + share * self.audits[below + 1, one]

    def expected(self, separation: Estimate) -> Estimate:
        """Mean of what audits of a separation publish, with the error of the simulation."""
        ends = separation.value + np.array([-separation.error, 0, separation.error])
        low, value, high = np.interp(ends, self.separations, self.audits.mean(axis=1))
        return Estimate(float(value), float(high - low) / 2, separation.freedom)

    def nearest(self, value: float) -> int:
        """Index of the separation whose audits publish this value on average."""
        return int(np.abs(self.audits.mean(axis=1) - value).argmin())

    def mean(self, values: Sequence[float]) -> Estimate:
        """The mean of audits, with the error that their number of models leaves at least."""
        at = self.audits[self.nearest(float(np.mean(values)))]
        return mean(values, float(at.std(ddof=1)))


@lru_cache(maxsize=64)
def _audits(law: Law) -> Floats:
    found = [published(law.models, round(float(one), 9), law.level) for one in law.separations]
    return gaussian.epsilon_below(np.array(found), law.delta)


@lru_cache(maxsize=64)
def _perfect(law: Law, n: int, statistic: Statistic, draws: int) -> Floats:
    mus = published(law.models, round(law.most, 9), law.level)
    found = gaussian.epsilon_below(mus, law.delta)
    drawn = found[np.random.default_rng(3).integers(0, AUDITS, (draws, n))]
    return _statistic(drawn, statistic)


@lru_cache(maxsize=1024)
def published(
    models: int, separation: float, level: float, audits: int = AUDITS, seed: int = 2405
) -> Floats:
    """mu that ``AsPublished`` finds in audits with normal scores of a separation, shape (audits,).

    The same draws at each separation, so that the law changes smoothly with it.
    """
    into, out = _scores(models, audits, seed)
    # Audits lie on one line, too far apart to overlap.
    place = (100 + 2 * separation) * np.arange(audits)
    line = (into + separation + place[:, None]).ravel()
    shown = _shown(models, level)
    best = np.zeros(audits)
    # Between two thresholds none shows more than the upper one with the lower one's count. So of
    # stretches, with the count below each, only those that may beat the best are halved.
    audit, low, count = np.arange(audits), np.full(audits, -1), np.zeros(audits, dtype=np.intp)
    high = np.full(audits, models)
    while len(audit):
        middle = (low + high) // 2
        # One search for all audits, each of which has a range of its own.
        found = np.searchsorted(line, out[audit, middle] + place[audit]) - models * audit
        np.maximum.at(best, audit, shown[middle, found])
        audit = np.repeat(audit, 2)
        low, high = np.column_stack([low, middle]).ravel(), np.column_stack([middle, high]).ravel()
        count = np.column_stack([count, found]).ravel()
        kept = (high - low > 1) & (shown[high - 1, count] > best[audit])
        audit, low, high, count = audit[kept], low[kept], high[kept], count[kept]
    return best


@lru_cache(maxsize=4)
def _scores(models: int, audits: int, seed: int) -> Floats:
    """Scores at separation 0 with the canary and without it, each audit's in ascending order."""
    return np.sort(np.random.default_rng(seed).normal(0, 1, (2, audits, models)), axis=-1)


@lru_cache(maxsize=8)
def _shown(models: int, level: float) -> Floats:
    """mu that the threshold just above a score without the canary shows.

    By the place of that score in ascending order, and the scores with the canary that are below.
    """
    upper = clopper_pearson_upper(np.arange(models + 1), models, level)
    # Above the i-th lowest of n scores, i from 0, are n - 1 - i false positives.
    return GaussianDP().violated(upper[-2::-1, None], upper)


@lru_cache(maxsize=64)
def _several(law: Law, n: int, statistic: Statistic, seed: int) -> Floats:
    drawn = law.audits[:, np.random.default_rng(seed).integers(0, AUDITS, (DRAWS, n))]
    return _statistic(drawn, statistic)


@dataclass(frozen=True, kw_only=True)
class OfSeveral(Printed):
    """A mean, or the largest, of a paper's audits, beside the law that ours have.

    number: what the paper prints of ``of`` audits. The interval is of what such a paper would
    print, given ours.
    """

    what: str
    law: Law
    number: float
    rounding: float
    rival: float | None = None
    statistic: Statistic = "mean"
    of: int = 5
    digits: int = 2
    exact: bool = field(default=False, init=False)

    def judged(
        self, value: float, low: float, high: float, outcome: Outcome, turns: float
    ) -> Judged:
        stated, allowed = f"{self.number:.{self.digits}f}", self.allowed(self.number)
        return Judged(self.what, stated, value, low, high, allowed, outcome, turns)


@dataclass(frozen=True, kw_only=True)
class Replicated(OfSeveral):
    """Comparison by audits of the same law, of which ``values`` are the published epsilons."""

    values: tuple[float, ...]

    def judge(self, confidence: float) -> Judged:
        """The outcome of the number alone, at the confidence of its own interval."""
        ours = np.asarray(self.values, dtype=float)
        found = float(ours.mean())
        side = self.law, len(ours), self.statistic, self.of, 1 - confidence
        at = int(np.abs(_quantiles(*side)[0] - found).argmin())
        low, high = (float(end[0]) for end in _limits(*side, np.array([found])))
        found_outcome, turns = self.outcome(low, high, self.number), 0.0
        if self._scattered(ours, at):
            found_outcome = Outcome.UNDECIDED
        else:
            counts, lows, highs = _again(*side, at)
            other = self.outcomes(lows, highs, self.number) != found_outcome
            turns = float(counts[other].sum() / counts.sum())
        value = float(_statistic(ours, self.statistic))
        return self.judged(value, low, high, found_outcome, turns)

    def _scattered(self, ours: Floats, at: int) -> bool:
        """True if our repeats scatter more than audits of that law do."""
        if len(ours) < 2:
            return False
        drawn = _deviations(self.law, len(ours), at)
        return bool((drawn >= ours.std() - 1e-12).mean() < SCATTERED)


@lru_cache(maxsize=64)
def _quantiles(
    law: Law, n: int, statistic: Statistic, of: int, level: float
) -> tuple[Floats, Floats, Floats, Floats, Floats]:
    """Mean of ``n`` audits of ours, its limits, and those of theirs less it, by separation."""
    theirs, means = law.several(of, statistic, 5), law.several(n, "mean", 7)
    share = SHARE * level
    tails = [share / 2, 1 - share / 2]
    lows, highs = np.quantile(means, tails, axis=1)
    tails = [(level - share) / 2, 1 - (level - share) / 2]
    # Independent draws of either side, so their differences are those of replications.
    below, above = np.quantile(theirs - means, tails, axis=1)
    return means.mean(axis=1), lows, highs, below, above


def _limits(
    law: Law, n: int, statistic: Statistic, of: int, level: float, values: Floats
) -> tuple[Floats, Floats]:
    """Limits of what ``of`` audits publish, by the mean of ``n`` of ours, each of ``values``."""
    centres, lows, highs, below, above = _quantiles(law, n, statistic, of, level)
    value = values[:, None]
    there = (lows <= value) & (value <= highs)
    off = np.abs(centres - value)
    # Where no separation is plausible, the nearest stands for all.
    there |= ~there.any(axis=1, keepdims=True) & (off == off.min(axis=1, keepdims=True))
    low = values + np.where(there, below, np.inf).min(axis=1)
    return low, values + np.where(there, above, -np.inf).max(axis=1)


@lru_cache(maxsize=256)
def _again(
    law: Law, n: int, statistic: Statistic, of: int, level: float, at: int
) -> tuple[NDArray[np.intp], Floats, Floats]:
    """Means of ours drawn again at one separation: how often there is each, and its limits."""
    # Rounded, so that limits are computed for few values.
    again, counts = np.unique(np.round(law.several(n, "mean", 7)[at], 3), return_counts=True)
    return counts, *_limits(law, n, statistic, of, level, again)


@lru_cache(maxsize=256)
def _deviations(law: Law, n: int, at: int) -> Floats:
    """Standard deviations of ``n`` audits of one separation, shape (draws,)."""
    drawn = law.audits[at, np.random.default_rng(11).integers(0, AUDITS, (DRAWS, n))]
    return np.asarray(drawn.std(axis=1))


@dataclass(frozen=True, kw_only=True)
class Foretold(OfSeveral):
    """Comparison by the law at the separation that expected audits give, with its error.

    scatter: standard deviation of the separation between starts, of which each of the paper's
    audits has its own. The error of the separation, the starts' scatter and the law of the audits
    are drawn together.
    """

    separation: Estimate
    scatter: float

    def judge(self, confidence: float) -> Judged:
        """The outcome of the number alone, at the confidence of its own interval."""
        if not self.separation.known:
            return self.judged(math.nan, math.nan, math.nan, Outcome.UNDECIDED, 0.0)

        def told(moved: float) -> tuple[float, float, float]:
            return foretold(
                self.law, self.separation, self.scatter, confidence, self.statistic, self.of, moved
            )

        value, low, high = told(0.0)
        outcome = self.outcome(low, high, self.number)
        # Of our separation, drawn again: quantiles of Student's law, equally likely.
        again = _student(self.separation.freedom, (np.arange(AGAIN) + 0.5) / AGAIN)
        other = [self.outcome(*told(float(t))[1:], self.number) != outcome for t in again]
        turns = float(np.mean(other))
        return self.judged(value, low, high, outcome, turns)


def foretold(
    law: Law,
    separation: Estimate,
    scatter: float,
    confidence: float,
    statistic: Statistic = "mean",
    of: int = 5,
    moved: float = 0.0,
) -> tuple[float, float, float]:
    """Mean and limits of what ``of`` audits publish, each from a start of its own.

    separation: with its error, and so many (``moved``) errors away. scatter: its standard deviation
    between starts.
    """
    errors, starts = _moves(separation.freedom, of)
    every = separation.value + separation.error * (moved + errors) + scatter * starts
    # No separation exceeds the mechanism's mu.
    drawn = _statistic(law.at(np.clip(every, 0, law.most), 5), statistic)
    low, high = np.quantile(drawn, [(1 - confidence) / 2, (1 + confidence) / 2])
    return float(drawn.mean()), float(low), float(high)


@lru_cache(maxsize=16)
def _moves(freedom: float, of: int) -> tuple[Floats, Floats]:
    """Draws of a separation's error, shape (DRAWS, 1), and of ``of`` starts, in deviations."""
    rng = np.random.default_rng(13)
    return _student(freedom, rng.uniform(size=(DRAWS, 1))), rng.normal(size=(DRAWS, of))


AGAIN = 40
"""Separations that are drawn again for the guard band."""


def _student(freedom: float, shares: Floats) -> Floats:
    from scipy import stats

    return np.asarray(stats.t.ppf(shares, freedom))
