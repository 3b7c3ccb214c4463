"""Printed epsilons of published audits, judged by the simulated law of their estimator.

An audit of so many models with normal scores publishes an epsilon whose law depends on one number
alone, the separation of the scores. Near 0 the law is far from normal: most audits publish 0, and
five of them that do are no exact number. So a printed mean or maximum is compared with ours by that
law on both sides, at every separation that our audits leave possible.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from hiddenstate.accounting import gaussian
from hiddenstate.auditing.hypotheses import GaussianDP
from hiddenstate.auditing.rules import AsPublished
from hiddenstate.pipeline.evidence import Estimate, Judged, Outcome, mean, must_cover, printed

Floats = NDArray[np.float64]
LEVEL = 0.05
"""Of the published estimator's one-sided error rates."""
STEP = 0.1
"""Between separations of which the law is simulated."""
AUDITS = 2000
"""Audits that are simulated of each separation."""
DRAWS = 4000
"""Replications of several audits that are drawn from these."""
SHARE = 0.1
"""Of the level that the unknown separation takes."""
SCATTERED = 0.01
"""Repeats whose scatter is rarer than this under the law do not have that law."""


@dataclass(frozen=True)
class Law:
    """The law of the published epsilon, by the separation of normal scores.

    models: with the canary and without it, each, of one audit. delta: of the epsilons. most: the
    largest separation that is possible, mu of the mechanism.
    """

    models: int
    delta: float
    most: float

    @property
    def separations(self) -> Floats:
        """Simulated separations, from 0 to the most."""
        return np.append(np.arange(0, self.most - STEP / 2, STEP), self.most)

    @property
    def audits(self) -> Floats:
        """Epsilons of simulated audits, shape (separations, audits)."""
        return _audits(self)

    def several(self, n: int, statistic: Literal["mean", "maximum"], seed: int) -> Floats:
        """A statistic of ``n`` audits, shape (separations, draws)."""
        return _several(self, n, statistic, seed)

    def perfect(self, n: int, statistic: Literal["mean", "maximum"], draws: int = DRAWS) -> Floats:
        """A statistic of ``n`` audits at the largest separation, shape (draws,)."""
        found = gaussian.epsilon_below(_mus(self.models, round(self.most, 9)), self.delta)
        drawn = found[np.random.default_rng(3).integers(0, AUDITS, (draws, n))]
        return drawn.mean(axis=1) if statistic == "mean" else drawn.max(axis=1)

    def nearest(self, value: float) -> int:
        """Index of the separation whose audits publish this value on average."""
        return int(np.abs(self.audits.mean(axis=1) - value).argmin())

    def mean(self, values: Sequence[float]) -> Estimate:
        """The mean of audits, with the error that their number of models leaves at least."""
        at = self.audits[self.nearest(float(np.mean(values)))]
        return mean(values, float(at.std(ddof=1)))


@lru_cache(maxsize=16)
def _audits(law: Law) -> Floats:
    found = [_mus(law.models, round(float(one), 9)) for one in law.separations]
    return gaussian.epsilon_below(np.array(found), law.delta)


@lru_cache(maxsize=256)
def _mus(models: int, separation: float) -> Floats:
    # The same draws at each separation, so that the law changes smoothly with it.
    apart, out = np.random.default_rng(2405).normal(0, 1, (2, AUDITS, models))
    return AsPublished().bounds(apart + separation, out, GaussianDP(), LEVEL)[0]


@lru_cache(maxsize=64)
def _several(law: Law, n: int, statistic: str, seed: int) -> Floats:
    drawn = law.audits[:, np.random.default_rng(seed).integers(0, AUDITS, (DRAWS, n))]
    return drawn.mean(axis=2) if statistic == "mean" else drawn.max(axis=2)


@dataclass(frozen=True)
class Replicated:
    """A mean, or the largest, of a paper's audits, beside independent audits of the same law.

    values: our published epsilons. number: what the paper prints of ``of`` audits; rounding, rival
    and digits as of ``evidence.Stated``. The interval is of what such a paper would print, given
    ours.
    """

    what: str
    values: tuple[float, ...]
    law: Law
    number: float
    rounding: float
    rival: float | None = None
    statistic: Literal["mean", "maximum"] = "mean"
    of: int = 5
    digits: int = 2
    exact: bool = field(default=False, init=False)

    def judge(self, confidence: float) -> Judged:
        """The outcome of the number alone, at the confidence of its own interval."""
        ours = np.asarray(self.values, dtype=float)
        found = float(ours.mean())
        theirs = self.law.several(self.of, self.statistic, 5)
        means = self.law.several(len(ours), "mean", 7)
        level = 1 - confidence
        share = SHARE * level
        tails = [share / 2, 1 - share / 2]
        lows, highs = np.quantile(means, tails, axis=1)
        tails = [(level - share) / 2, 1 - (level - share) / 2]
        # Independent draws of either side, so their differences are those of replications.
        below, above = np.quantile(theirs - means, tails, axis=1)

        def limits(value: float) -> tuple[float, float]:
            there = (lows <= value) & (value <= highs)
            if not there.any():
                there = (
                    np.abs(means.mean(axis=1) - value) == np.abs(means.mean(axis=1) - value).min()
                )
            return value + float(below[there].min()), value + float(above[there].max())

        def outcome(value: float) -> Outcome:
            return printed(*limits(value), self.number, self)

        at = int(np.abs(means.mean(axis=1) - found).argmin())
        low, high = limits(found)
        found_outcome, turns = outcome(found), 0.0
        if self._scattered(ours, at):
            found_outcome = Outcome.UNDECIDED
        else:
            again, counts = np.unique(np.round(means[at], 3), return_counts=True)
            other = np.array([outcome(float(value)) != found_outcome for value in again])
            turns = float((other * counts).sum() / counts.sum())
        return Judged(
            self.what,
            f"{self.number:.{self.digits}f}",
            found if self.statistic == "mean" else float(ours.max()),
            low,
            high,
            must_cover(self.number, self),
            found_outcome,
            turns,
        )

    def _scattered(self, ours: Floats, at: int) -> bool:
        """True if our repeats scatter more than audits of that law do."""
        if len(ours) < 2:
            return False
        drawn = self.law.audits[
            at, np.random.default_rng(11).integers(0, AUDITS, (DRAWS, len(ours)))
        ]
        return bool((drawn.std(axis=1) >= ours.std() - 1e-12).mean() < SCATTERED)
