"""The package's default bound: averages over thresholds, exact for every number of scores.

A trade-off function bounds every functional of the empirical curve and not only its points, and
an average over thresholds pays nothing for choosing one. The functionals here are Mann-Whitney
counts: how many pairs of an in-score and an out-score stand in the right order, over all pairs
(the area under the curve), over the 1/2, 1/4, 1/8, … highest out-scores (the end of low
false-positive rates), and over the 1/2, 1/4, 1/8, … lowest in-scores (the end of low
false-negative rates). The area sees what is spread over the curve, the ends see what a few runs
give away, however large the true leak is.

Theorem. Let the in-scores be independent draws from Q, the out-scores independent draws from P and
of the in-scores, and T(P, Q) >= f: no test of "out" against "in" with false-positive rate t has a
false-negative rate below f(t). Let S be a function of the comparisons C_ij = 1{Y_j > X_i} of
in-scores Y_j with out-scores X_i that never decreases when a C_ij turns from 0 to 1, and is
symmetric in the scores of either world. Then for every s, Pr(S >= s) <= Pr(S* >= s), where S* is S
of the comparisons C*_ij = 1{V_j < 1 - f(U_i)}, with U_i and V_j independent and uniform on (0, 1).

Proof. Write U_i for the probability that an out-score exceeds X_i, ties broken at random by a
uniform variable, and W_j for the same of Y_j. The U_i are independent and uniform. Calling Y_j
"in" when W_j <= t is a test with false-positive rate t, so Pr(W_j <= t) <= 1 - f(t), and W_j is
stochastically no smaller than W*_j = inf{t : 1 - f(t) >= V_j}; couple them by quantiles so that
W_j >= W*_j. If Y_j > X_i then W_j <= U_i, hence almost surely W*_j < U_i and V_j < 1 - f(U_i).
So C_ij <= C*_ij for all pairs at once, and S <= S*.

Nothing is assumed of the scores' distributions: not continuity, not a shape, not that the test is
a good one. A tie between the worlds counts against the audit. The law of S* depends on f alone and
is simulated exactly; comparing S with the simulations gives an exact test at any number of them
(Barnard 1963), over the joint randomness of scores and simulations. Since S does not depend on the
claim tested and S* grows with the parameter for the same U and V, rejections are nested, and the
last rejected claim is a lower bound with exactly the stated confidence. At the curve f itself the
probability of exceeding the truth equals the level, up to ties and the rounding down.

What is assumed: independent runs, a score function that was not fitted to these runs, and that the
parameter's truth is judged by the family's own curves. A family with the wrong shape, say Gaussian
for a subsampled mechanism, bounds the smallest member that lies below the mechanism's curve.
"""

from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray

from hiddenstate.auditing.families import Family
from hiddenstate.auditing.intervals import (
    SIMULATIONS,
    symmetric_ranks,
    uniform_order_statistics,
)
from hiddenstate.auditing.rules import last_true
from hiddenstate.errors import InputError
from hiddenstate.streams import stream

FULL = 128
"""Worlds with more scores than this are represented by some of their order statistics."""

DENSE = 8
"""The ranks kept of such a world grow by one part in this many, from either end."""

ANCHORS = 24
"""Parameter values at which the functionals are put on a common scale."""


@dataclass(frozen=True)
class Averaged:
    """Exact bound from averages over thresholds: valid for every number of scores (default).

    The functionals S_l of the module's docstring are combined as S = max_l g_l(S_l), where g_l is
    increasing, fixed before the scores are seen, and says which parameter makes S_l surprising
    at its share of the level: ``area`` for the area under the whole curve, the rest in equal
    parts for the two ends. The shares decide where the bound is tight; the maximum is then
    calibrated as a whole, so no share is lost to a union bound and validity depends on none of
    them. ``simulations`` plus one should be a multiple of 1 / level. Audits with the same ``seed``
    and numbers of scores share their simulations; given those, their common level is the nominal
    one up to sqrt(level (1 - level) / simulations), 0.34 percentage points at 5 %.
    """

    area: float = 0.5
    simulations: int = SIMULATIONS
    seed: int = 0
    name = "averaged"
    valid = True

    def __post_init__(self) -> None:
        if not 0 < self.area < 1:
            raise InputError(f"area: got {self.area}; expected a share inside (0, 1)")

    def bounds(self, in_scores, out_scores, family, level):
        """Bounds for the leading axes of the scores; they come from no single threshold."""
        if level * (self.simulations + 1) < 1:
            raise InputError(
                f"simulations: {self.simulations} cannot resolve a level of {level:.2g}; "
                f"expected at least {int(np.ceil(1 / level)) - 1}"
            )
        n_out, n_in = out_scores.shape[-1], in_scores.shape[-1]
        calibration = _calibration(self, n_out, n_in, family, level)
        statistic = calibration.observed(in_scores, out_scores)
        rejected = [
            last_true(lambda index, s=s: s > calibration.critical(index), len(family.grid))
            for s in statistic.ravel()
        ]
        values = np.concatenate(([family.trivial], family.grid))[np.array(rejected) + 1]
        return values.reshape(statistic.shape), np.full(statistic.shape, np.nan)

    def contradicts(self, in_scores, out_scores, family, level, index):
        """Whether the scores reject the claim ``family.grid[index]``, for the leading axes.

        One test instead of a search: true if and only if the bound is that value or beyond.
        """
        n_out, n_in = out_scores.shape[-1], in_scores.shape[-1]
        calibration = _calibration(self, n_out, n_in, family, level)
        return calibration.observed(in_scores, out_scores) > calibration.critical(index)


class _Calibration:
    """The statistic S and its critical values, for one family and one number of scores."""

    def __init__(self, rule: Averaged, n_out: int, n_in: int, family: Family, level: float):
        self.rule, self.family, self.level = rule, family, level
        self.out, self.into = _World.of(n_out), _World.of(n_in)
        self._critical: dict[int, float] = {}
        self._drawn: dict[str, tuple[NDArray, NDArray]] = {}

    def observed(self, in_scores: NDArray, out_scores: NDArray) -> NDArray[np.float64]:
        """S of the scores, shape of the leading axes."""
        # Standings instead of scores: 0 for the highest of all kept scores. A stable sort with
        # the out-scores first lets a tie count against the audit.
        kept = np.concatenate((self.out.kept(out_scores), self.into.kept(in_scores)), axis=-1)
        order = np.argsort(-kept, axis=-1, kind="stable")
        standing = np.empty(kept.shape)
        places = np.arange(kept.shape[-1]) / kept.shape[-1]
        np.put_along_axis(standing, order, np.broadcast_to(places, kept.shape), axis=-1)
        shape, split = standing.shape[:-1], len(self.out.ranks)
        standing = standing.reshape(-1, standing.shape[-1])
        return self._statistic(standing[:, :split], standing[:, split:]).reshape(shape)

    def critical(self, index: int) -> float:
        """Value that S* exceeds or reaches with probability ``level`` at ``family.grid[index]``."""
        if index not in self._critical:
            simulated = self._statistic(*self._null(index, *self._draws("level")))
            allowed = int(self.level * (len(simulated) + 1) + 1e-9)
            self._critical[index] = float(np.sort(simulated)[-allowed])
        return self._critical[index]

    def _draws(self, purpose: str) -> tuple[NDArray, NDArray]:
        """U and V of the theorem, the kept order statistics of each simulated audit."""
        if purpose not in self._drawn:
            rule, size = self.rule, self.rule.simulations
            rng = stream(rule.seed, "auditing", "averaged", purpose, self.out.n, self.into.n)
            self._drawn[purpose] = tuple(
                uniform_order_statistics(world.ranks, world.n, size, rng)
                for world in (self.out, self.into)
            )
        return self._drawn[purpose]

    def _null(self, index: int, u: NDArray, v: NDArray) -> tuple[NDArray, NDArray]:
        """Standings of simulated audits: in-score j is above out-score i if V_j < 1 - f(U_i)."""
        return 1 - self.family.fnr(index, u), v

    def _statistic(self, out: NDArray, into: NDArray) -> NDArray[np.float64]:
        """S = max_l g_l(S_l) of standings, shapes (audits, kept ranks), smaller is higher.

        g_l reads off the anchor at which the count is surprising; outside the anchors it goes on
        by one grid step per standard deviation, so it increases everywhere.
        """
        # Half a pair below: a count that only reaches a surprising one is not above it.
        counts = self._counts(out, into) - 0.5
        anchors, surprising, deviation = self._scale
        beyond = np.maximum(counts - surprising[-1], 0) / deviation[-1]
        before = np.minimum(counts - surprising[0], 0) / deviation[0]
        between = [np.interp(counts[:, k], surprising[:, k], anchors) for k in self._functionals]
        return np.max(np.transpose(between) + beyond + before, axis=1)

    def _counts(self, out: NDArray, into: NDArray) -> NDArray[np.int64]:
        """The functionals S_l, shape (audits, functionals): pairs in order, all and at the ends."""
        above = self.into.up_to(_count_below(into, out))
        below = self.out.n - self.out.up_to(_count_below(out, np.nextafter(into, 2)))
        high = np.cumsum(above * self.out.weights, axis=1)
        low = np.cumsum((below * self.into.weights)[:, ::-1], axis=1)
        return np.concatenate(
            (high[:, -1:], high[:, self.out.ends], low[:, self.into.ends]), axis=1
        )

    @property
    def _functionals(self) -> range:
        return range(1 + len(self.out.ends) + len(self.into.ends))

    @cached_property
    def _scale(self) -> tuple[NDArray, NDArray, NDArray]:
        """g_l as a table: anchors (grid indices), counts surprising there, their deviations."""
        shares = np.full(len(self._functionals), (1 - self.rule.area))
        shares[1:] /= len(shares) - 1
        shares[0] = self.rule.area
        # Dense where an audit can tell values apart, sparse toward the far end of the grid.
        last = len(self.family.grid) - 1
        anchors = np.unique((np.linspace(0, 1, ANCHORS) ** 2 * last).astype(int))
        draws = tuple(d[::2] for d in self._draws("scale"))
        table, deviations = [], []
        for index in anchors:
            counts = np.sort(self._counts(*self._null(int(index), *draws)), axis=0)
            # The functionals overlap, so twice their shares make up about the level.
            ranks = np.maximum(1, np.round(2 * shares * self.level * len(counts))).astype(int)
            table.append(counts[-ranks, self._functionals])
            # Half a pair at least, where the worlds separate in every simulation.
            deviations.append(np.maximum(counts.std(axis=0), 0.5))
        return anchors, np.maximum.accumulate(np.array(table), axis=0), np.array(deviations)


@dataclass(frozen=True)
class _World:
    """Which order statistics of n scores are kept, and how many scores each stands for."""

    n: int
    ranks: NDArray[np.int64]
    weights: NDArray[np.int64]
    ends: NDArray[np.int64]

    @classmethod
    def of(cls, n: int) -> "_World":
        ranks = np.arange(1, n + 1) if n <= FULL else symmetric_ranks(n, lambda rank: rank // DENSE)
        weights = np.diff(ranks, prepend=0)
        halves = n // 2 ** np.arange(1, n.bit_length())
        # Ranks are symmetric, so the same positions serve both ends.
        return cls(n, ranks, weights, np.searchsorted(ranks, halves, side="right") - 1)

    def kept(self, scores: NDArray) -> NDArray[np.float64]:
        """The kept order statistics, highest first."""
        return -np.sort(-scores, axis=-1)[..., self.ranks - 1]

    def up_to(self, position: NDArray) -> NDArray[np.int64]:
        """How many scores the first ``position`` kept ones stand for."""
        return np.concatenate(([0], np.cumsum(self.weights)))[position]


def _count_below(rows: NDArray, values: NDArray) -> NDArray[np.int64]:
    """How many entries of each sorted row, in [0, 1], lie below each value of the same row."""
    apart = 2.0 * np.arange(len(rows))[:, None]
    found = np.searchsorted((rows + apart).ravel(), (values + apart).ravel())
    return found.reshape(values.shape) - rows.shape[1] * np.arange(len(rows))[:, None]


@lru_cache(maxsize=8)
def _calibration(
    rule: Averaged, n_out: int, n_in: int, family: Family, level: float
) -> _Calibration:
    return _Calibration(rule, n_out, n_in, family, level)
