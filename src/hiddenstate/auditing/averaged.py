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
symmetric in the scores of either data set. Then for every s, Pr(S >= s) <= Pr(S' >= s), where S' is
S of the comparisons C'_ij = 1{V_j < 1 - f(U_i)}, with U_i and V_j independent and uniform on (0,
1).

Proof. Give every score a uniform variable of its own, independent of all else, that decides which
of two equal scores is higher; a test may toss such coins too, so T(P, Q) >= f holds with them.
Write U_i for the probability that an out-score is higher than X_i, and W_j for the same of Y_j.
The U_i are independent and uniform. Calling Y_j "in" when W_j <= t is a test with false-positive
rate t, so Pr(W_j <= t) <= 1 - f(t), and W_j is stochastically no smaller than
W'_j = inf{t : 1 - f(t) >= V_j}; couple them by quantiles so that W_j >= W'_j. If Y_j is higher than
X_i then W_j <= U_i, hence almost surely W'_j < U_i and V_j < 1 - f(U_i). So C_ij <= C'_ij for all
pairs at once, and S <= S'.

Nothing is assumed of the scores' distributions: not continuity, not a shape, not that the test is a
good one. Ties between in- and out-scores are broken as in the proof, by uniform variables of a
stream whose seed (``coins``) is drawn without a look at the scores; or they count against the
audit, which lowers S and needs no chance. A seed that everybody shares would not do: scores that
are always equal would always meet the same coins. The law of S' depends on f alone and is simulated
exactly. Audits with the same numbers of scores share their simulations, so their common level is
that of the critical value found: with the r-th largest of m simulations, a Beta(r, m + 1 - r)
variable (the share of a law beyond an order statistic of its sample). The rank is the largest whose
level is the nominal one or less with probability ``CERTAINTY``; p-values are the same bound on the
share beyond S. So the statement holds at each number of scores by itself and not on average over
seeds. Since S does not depend on the hypothesis tested and S' grows with the parameter for the same
U and V, rejections are nested, and the last rejected hypothesis is a lower bound with the stated
confidence.

Where the law of the out-scores is known exactly (``known_null``), the U_i need not be drawn: fixed
numbers take their place in S and in S' alike, and C_ij = 1{W_j < u_i} <= 1{V_j < 1 - f(u_i)} by
the same coupling. The in-scores alone are then the audit.

What is assumed: independent runs, a score function that was not fitted to these runs, and that the
parameter's truth is judged by the hypotheses' own curves. Those of the wrong shape, say Gaussian
for a subsampled mechanism, bound the smallest member that lies below the mechanism's curve.
"""

import math
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from hiddenstate.auditing.curve import Coins, drawn, seed
from hiddenstate.auditing.hypotheses import GaussianDP, Hypotheses, number
from hiddenstate.auditing.intervals import (
    SIMULATIONS,
    allowed_rank,
    safe_share,
    symmetric_ranks,
    uniform_order_statistics,
)
from hiddenstate.errors import InputError
from hiddenstate.streams import stream

FULL = 128
"""Worlds with more scores than this are represented by some of their order statistics."""

DENSE = 8
"""The ranks kept of such scores grow by one part in this many, from either end."""

ANCHORS = 24
"""Parameter values at which the functionals are put on a common scale."""

SCALING = 2_000
"""Simulated audits behind that scale, which validity does not depend on."""

BLOCK = 250
"""Simulated audits evaluated at once: few enough for a processor's cache."""

KNOWN = 10_001
"""Quantiles that stand for out-scores whose law is known."""


@dataclass(frozen=True)
class Averaged:
    """Exact bound from averages over thresholds: valid for every number of scores (default).

    The functionals S_l of the module's docstring are combined as S = max_l g_l(S_l), where g_l is
    increasing, fixed before the scores are seen, and says which parameter makes S_l surprising
    at its share of the level: ``area`` for the area under the whole curve, the rest in equal
    parts for the two ends. The shares decide where the bound is tight; the maximum is then
    calibrated as a whole, so no share is lost to a union bound and validity depends on none of
    them. Audits with the same ``seed`` and numbers of scores share their ``simulations``.

    coins: seed of the coins that break ties between in- and out-scores. None: a new one where there
    are ties, which ``lower_bound`` tells with its result. "against": ties count against the audit,
    so that no chance is needed and scores that are often equal, such as decisions, prove little.
    """

    area: float = 0.5
    simulations: int = SIMULATIONS
    seed: int = 0
    coins: Coins = None
    name = "averaged"
    valid = True

    def __post_init__(self) -> None:
        if not 0 < number("area", self.area) < 1:
            raise InputError(f"area: got {self.area}; expected a share inside (0, 1)")
        if self.coins is not None:
            drawn(self.coins)
        for name, least in (("simulations", 1), ("seed", 0)):
            value = number(name, getattr(self, name))
            if value < least or value != int(value):
                raise InputError(f"{name}: got {value:g}; expected a whole number >= {least}")

    def tossed(self, in_scores: NDArray, out_scores: NDArray) -> "Averaged":
        """The rule with the coins that these scores take: new ones where there are ties."""
        if self.coins is not None or not tied(in_scores, out_scores).any():
            return self
        return replace(self, coins=seed(None))

    def bounds(
        self, in_scores: NDArray, out_scores: NDArray, hypotheses: Hypotheses, level: float
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Bounds for the leading axes of the scores; they come from no single threshold."""
        calibration = self.calibration(in_scores, out_scores, hypotheses, level)
        return calibration.bounds(calibration.observed(in_scores, out_scores, self.coins))

    def contradicts(
        self,
        in_scores: NDArray,
        out_scores: NDArray,
        hypotheses: Hypotheses,
        level: float,
        index: int,
    ) -> NDArray[np.bool_]:
        """True where the scores reject the hypothesis ``grid[index]``, for the leading axes.

        One test instead of a search: true if and only if the bound is that value or beyond.
        """
        calibration = self.calibration(in_scores, out_scores, hypotheses, level)
        observed = calibration.observed(in_scores, out_scores, self.coins)
        return observed > calibration.critical(index)

    def p_values(
        self,
        in_scores: NDArray,
        out_scores: NDArray,
        hypotheses: Hypotheses,
        level: float,
        index: int,
    ) -> NDArray[np.float64]:
        """p-values of the hypothesis ``grid[index]``, for the leading axes: upper bounds.

        At most ``level`` if and only if ``contradicts``. ``level`` also decides, before the scores
        are seen, how the functionals are weighed.
        """
        calibration = self.calibration(in_scores, out_scores, hypotheses, level)
        observed = calibration.observed(in_scores, out_scores, self.coins)
        return calibration.p_values(observed, index)

    def calibration(
        self, in_scores: NDArray, out_scores: NDArray, hypotheses: Hypotheses, level: float
    ) -> "Calibration":
        """The statistic and its critical values for these numbers of scores."""
        return self.sized((in_scores.shape[-1], out_scores.shape[-1]), hypotheses, level)

    def sized(self, size: tuple[int, int], hypotheses: Hypotheses, level: float) -> "Calibration":
        """The statistic and its critical values for (in-scores, out-scores); 0 out: known law."""
        # Rules that differ in coins alone share a calibration, which is cached.
        return _calibration(replace(self, coins=None), size[1], size[0], hypotheses, level)


class Calibration:
    """The statistic S and its critical values, for one set of hypotheses and numbers of scores.

    n_out 0: the law of the out-scores is known.
    """

    def __init__(
        self, rule: Averaged, n_out: int, n_in: int, hypotheses: Hypotheses, level: float
    ) -> None:
        self.rule, self.hypotheses, self.level = rule, hypotheses, level
        self.allowed = allowed_rank(level, rule.simulations)
        self.known = n_out == 0
        self.out, self.into = OrderStatistics.of(n_out or KNOWN), OrderStatistics.of(n_in)
        self._answers: list[tuple[float, int]] = []
        self._drawn: dict[str, tuple[NDArray, NDArray]] = {}
        self._latest: tuple[int, NDArray] | None = None

    def observed(
        self, in_scores: NDArray, out_scores: NDArray, coins: Coins = None
    ) -> NDArray[np.float64]:
        """S of the scores, shape of the leading axes; coins as of ``Averaged``."""
        in_scores, out_scores = break_ties(in_scores, out_scores, coins)
        # Standings: smaller is higher.
        into, out = (
            -world.kept(scores)
            for world, scores in ((self.into, in_scores), (self.out, out_scores))
        )
        return self.statistic(
            out.reshape(-1, out.shape[-1]), into.reshape(-1, into.shape[-1])
        ).reshape(out.shape[:-1])

    def observed_known(self, exceeded: NDArray) -> NDArray[np.float64]:
        """S of in-scores of which an out-score is higher with these probabilities, (..., n_in)."""
        into = np.sort(exceeded, axis=-1)[..., self.into.ranks - 1].reshape(
            -1, len(self.into.ranks)
        )
        out = np.broadcast_to(self._quantiles, (len(into), len(self._quantiles)))
        return self.statistic(out, into).reshape(exceeded.shape[:-1])

    def bounds(
        self, statistic: NDArray[np.float64]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Last rejected hypotheses of these S, and NaN for the thresholds they do not come from."""
        rejected = [self._last_rejected(float(s)) for s in statistic.ravel()]
        reported = np.concatenate(([self.hypotheses.trivial], self.hypotheses.grid))
        values = reported[np.array(rejected, dtype=int) + 1]
        return values.reshape(statistic.shape), np.full(statistic.shape, np.nan)

    def p_values(self, statistic: NDArray[np.float64], index: int) -> NDArray[np.float64]:
        """Upper bounds on the probability that S' of ``grid[index]`` is these S or more."""
        simulated = self._ascending(index)
        # The next largest simulation is below S, so no more of the law reaches S than exceeds it.
        reached = len(simulated) - np.searchsorted(simulated, statistic)
        return safe_share(reached + 1, len(simulated))

    def critical(self, index: int) -> float:
        """Value that S' exceeds with at most the level's probability at ``grid[index]``."""
        return float(self._ascending(index)[-self.allowed])

    def _last_rejected(self, statistic: float) -> int:
        """Last index whose hypothesis this S rejects, -1 if none is.

        A hypothesis is rejected if fewer simulations than allowed reach S. S' grows with the index
        in every simulation, so one that reaches S at an index does so at all later ones, and one
        that does not at no earlier one: only those that are still undecided are evaluated again.
        """
        # A larger S rejects more, so the answers for smaller and larger ones enclose this one.
        below = bisect_right(self._answers, (statistic, math.inf))
        above = bisect_left(self._answers, (statistic, -math.inf))
        low = self._answers[below - 1][1] if below else -1
        end = len(self.hypotheses.grid)
        high = self._answers[above][1] + 1 if above < len(self._answers) else end
        undecided, reached = np.arange(self.rule.simulations), 0
        index, steps = int(statistic), 0
        while high - low > 1:
            index = min(max(index, low + 1), high - 1)
            values = self._simulated(index, undecided)
            reaches, needed = values >= statistic, self.allowed - reached
            # The hypothesis is rejected if and only if S is above this simulated value.
            nearest = float(np.partition(values, -needed)[-needed])
            # S' grows by about one with the index; where it does not, bisection bounds the steps.
            step, steps = max(int(abs(statistic - nearest)) + 1, 2**steps // 8), steps + 1
            if reaches.sum() < needed:
                low, index = index, index + step
                undecided, reached = undecided[~reaches], reached + int(reaches.sum())
            else:
                high, index = index, index - step
                undecided = undecided[reaches]
            if steps > 4 and high < end:
                index = (low + high) // 2
        if below == above:
            insort(self._answers, (statistic, low))
        return low

    def _ascending(self, index: int) -> NDArray[np.float64]:
        """S' at ``grid[index]`` of all simulations, ascending."""
        if self._latest is None or self._latest[0] != index:
            found = self._simulated(index, np.arange(self.rule.simulations))
            self._latest = index, np.sort(found)
        return self._latest[1]

    def _simulated(self, index: int, simulations: NDArray[np.int64]) -> NDArray[np.float64]:
        """S' at ``grid[index]`` of these simulations."""
        u, v = self._draws("level", self.rule.simulations)
        return np.concatenate(
            [self.statistic(*self._null(index, u[rows], v[rows])) for rows in blocks(simulations)]
        )

    def _draws(self, purpose: str, size: int) -> tuple[NDArray, NDArray]:
        """U and V of the theorem, the kept order statistics of each simulated audit.

        Their normal quantiles for Gaussian curves, which a parameter shifts.
        """
        if purpose not in self._drawn:
            n_out = 0 if self.known else self.out.n
            u, v = _uniforms(self.rule.seed, purpose, n_out, self.into.n, size)
            if self.known:
                u = self._quantiles[None, :]
            if type(self.hypotheses) is GaussianDP:
                u, v = ndtri(u), ndtri(v)
            self._drawn[purpose] = np.broadcast_to(u, (size, u.shape[1])), v
        return self._drawn[purpose]

    def _null(self, index: int, u: NDArray, v: NDArray) -> tuple[NDArray, NDArray]:
        """Standings of simulated audits: in-score j is above out-score i if V_j < 1 - f(U_i)."""
        if type(self.hypotheses) is GaussianDP:
            # V < 1 - f(U) is Phi^-1(V) < Phi^-1(U) + mu: no curve needs to be evaluated.
            return u + index * self.hypotheses.step, v
        return 1 - self.hypotheses.fnr(index, u), v

    @property
    def _quantiles(self) -> NDArray[np.float64]:
        """Stand-ins for the U_i where the law of the out-scores is known."""
        return self.out.ranks / (self.out.n + 1)

    def statistic(self, out: NDArray, into: NDArray) -> NDArray[np.float64]:
        """S = max_l g_l(S_l) of standings, shapes (audits, kept ranks), smaller is higher.

        g_l reads off the anchor at which the count is surprising; outside the anchors it goes on
        by one grid step per standard deviation, so it increases everywhere.
        """
        # Half a pair below: a count that only reaches a surprising one is not above it.
        found = counts(self.out, self.into, out, into) - 0.5
        anchors, surprising, deviation = self._scale
        beyond = np.maximum(found - surprising[-1], 0) / deviation[-1]
        before = np.minimum(found - surprising[0], 0) / deviation[0]
        between = [np.interp(found[:, k], surprising[:, k], anchors) for k in self._functionals]
        return np.max(np.transpose(between) + beyond + before, axis=1)

    @property
    def _functionals(self) -> range:
        return range(1 + len(self.out.ends) + len(self.into.ends))

    @cached_property
    def _scale(self) -> tuple[NDArray, NDArray, NDArray]:
        """g_l as a table: anchors (grid indices), counts surprising there, their deviations."""
        shares = functional_shares(self.rule.area, len(self._functionals))
        # Dense where an audit can tell values apart, sparse toward the far end of the grid.
        last = len(self.hypotheses.grid) - 1
        anchors = np.unique((np.linspace(0, 1, ANCHORS) ** 2 * last).astype(int))
        u, v = self._draws("scale", SCALING)
        separated = counts(self.out, self.into, np.ones_like(u[:1]), np.zeros_like(v[:1]))
        found = np.zeros((SCALING, len(self._functionals)), dtype=np.int64)
        table, deviations, growing = [], [], np.arange(SCALING)
        for index in anchors:
            for rows in blocks(growing):
                found[rows] = counts(self.out, self.into, *self._null(int(index), u[rows], v[rows]))
            # Counts only grow with the anchor, so an audit with the largest ones is done.
            growing = growing[(found[growing] < separated).any(axis=1)]
            quantiles, deviation = surprising(found, shares, self.level)
            table.append(quantiles)
            deviations.append(deviation)
        return anchors, np.maximum.accumulate(np.array(table), axis=0), np.array(deviations)


def functional_shares(area: float, functionals: int) -> NDArray[np.float64]:
    """Share of the level of each functional: the area's, and the rest in equal parts."""
    shares = np.full(functionals, (1 - area) / (functionals - 1))
    shares[0] = area
    return shares


def surprising(
    found: NDArray, shares: NDArray[np.float64], level: float
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Counts exceeded in about each share of the level, and the counts' deviations."""
    ordered = np.sort(found, axis=0)
    # The functionals overlap, so twice their shares make up about the level.
    ranks = np.maximum(1, np.round(2 * shares * level * len(ordered))).astype(int)
    # Half a pair at least, where the worlds separate in every simulation.
    return ordered[-ranks, range(len(shares))], np.maximum(ordered.std(axis=0), 0.5)


def counts(
    out_world: "OrderStatistics", in_world: "OrderStatistics", out: NDArray, into: NDArray
) -> NDArray[np.int64]:
    """The functionals S_l, shape (audits, functionals): pairs in order, all and at the ends.

    out, into: shapes (audits, kept ranks), each row ascending; smaller is higher.
    """
    audits, split = out.shape
    both = np.concatenate((out, into), axis=1)
    # A stable sort with the out-scores first lets what remains of ties count against the audit.
    is_out = np.argsort(both, axis=1, kind="stable") < split
    # Either world's scores stay in their order, so the place of one says how many others it passes.
    starts = both.shape[1] * np.arange(audits)[:, None]
    above = np.flatnonzero(is_out).reshape(audits, -1) - starts - np.arange(split)
    below = np.flatnonzero(~is_out).reshape(audits, -1) - starts - np.arange(into.shape[1])
    pairs = out_world.weights * np.append(0, in_world.ranks)[above]
    high = np.cumsum(pairs, axis=1)
    pairs = in_world.weights * (out_world.n - np.append(0, out_world.ranks))[below]
    low = np.cumsum(pairs[:, ::-1], axis=1)
    return np.concatenate((high[:, -1:], high[:, out_world.ends], low[:, in_world.ends]), axis=1)


def blocks(simulations: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
    """The simulated audits, ``BLOCK`` at a time."""
    return (simulations[start : start + BLOCK] for start in range(0, len(simulations), BLOCK))


def break_ties(
    in_scores: NDArray, out_scores: NDArray, coins: Coins
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The scores, or ranks in their order with ties between in- and out-scores broken at random.

    in_scores, out_scores: shapes (..., n_in), (..., n_out). coins: seed of a stream for each data
    set; of one audit, the first scores have the same coins however many follow. "against": the
    scores as they are. None: a new seed.
    """
    if coins == "against" or not tied(in_scores, out_scores).any():
        return in_scores, out_scores
    by = seed(coins)
    split = in_scores.shape[-1]
    pooled = np.concatenate((in_scores, out_scores), axis=-1)
    order = np.argsort(pooled, axis=-1)
    ascending = np.take_along_axis(pooled, order, axis=-1)
    steps = np.zeros(pooled.shape)
    np.cumsum(ascending[..., 1:] != ascending[..., :-1], axis=-1, out=steps[..., 1:])
    ranks = np.empty(pooled.shape)
    np.put_along_axis(ranks, order, steps, axis=-1)
    into, out = ranks[..., :split], ranks[..., split:]
    # Ranks of distinct scores are 1 apart, so coins below 1 order equal scores alone.
    into += stream(by, "auditing", "coins", "in").random(into.shape)
    out += stream(by, "auditing", "coins", "out").random(out.shape)
    return into, out


def tied(in_scores: NDArray, out_scores: NDArray) -> NDArray[np.bool_]:
    """True where an in-score equals an out-score, shape of the leading axes."""
    pooled = np.concatenate((in_scores, out_scores), axis=-1)
    order = np.argsort(pooled, axis=-1)
    ascending = np.take_along_axis(pooled, order, axis=-1)
    equal = ascending[..., 1:] == ascending[..., :-1]
    is_in = order < in_scores.shape[-1]
    # Runs of equal scores hold both worlds if two neighbours in them do, in whichever order.
    return np.asarray((equal & (is_in[..., 1:] != is_in[..., :-1])).any(axis=-1))


@dataclass(frozen=True, eq=False)
class OrderStatistics:
    """Order statistics of n scores that are kept, and the number of scores that each stands for."""

    n: int
    ranks: NDArray[np.int64]
    weights: NDArray[np.int64]
    ends: NDArray[np.int64]

    @classmethod
    def of(cls, n: int) -> "OrderStatistics":
        """All of up to ``FULL`` scores, fewer of the middle beyond."""
        ranks = np.arange(1, n + 1) if n <= FULL else symmetric_ranks(n, lambda rank: rank // DENSE)
        weights = np.diff(ranks, prepend=0)
        halves = n // 2 ** np.arange(1, n.bit_length())
        # Ranks are symmetric, so the same positions serve both ends.
        return cls(n, ranks, weights, np.searchsorted(ranks, halves, side="right") - 1)

    def kept(self, scores: NDArray) -> NDArray[np.float64]:
        """The kept order statistics, highest first."""
        return -np.sort(-scores, axis=-1)[..., self.ranks - 1]


@lru_cache(maxsize=8)
def _calibration(
    rule: Averaged, n_out: int, n_in: int, hypotheses: Hypotheses, level: float
) -> Calibration:
    return Calibration(rule, n_out, n_in, hypotheses, level)


@lru_cache(maxsize=4)
def _uniforms(
    seed: int, purpose: str, n_out: int, n_in: int, size: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Kept order statistics of uniform variables, which all calibrations of these sizes share."""
    rng = stream(seed, "auditing", "averaged", purpose, n_out, n_in)
    out, into = OrderStatistics.of(n_out), OrderStatistics.of(n_in)
    u = uniform_order_statistics(out.ranks, out.n, size, rng) if n_out else np.empty((0, 0))
    v = uniform_order_statistics(into.ranks, into.n, size, rng)
    u.flags.writeable = v.flags.writeable = False
    return u, v
