"""Sequential audits: look after every few models, stop as soon as the claim is refuted.

Looking again and again at the same level would refute true claims too often. The coupling that
proves ``hiddenstate.auditing.averaged`` holds for all pairs of scores at once, so for those of
every prefix of the runs at once: whatever is computed from the comparisons of the first n_1, n_2, …
runs and never decreases in them is stochastically largest where the claimed curve is attained. The
largest statistic over all looks is such a function, and its law depends on the claimed curve and
the looks alone. It is simulated, so one critical value for all looks is exact: a true claim is
refuted at any look with at most the level's probability, however the audit is stopped.

The statistic of a look is the largest, over the Mann-Whitney counts of ``averaged``, of the count
less what is surprising under the claim, in standard deviations; so each look has about the same
level of its own. What is assumed in addition: the looks are planned before the scores are seen, and
runs come in an order that does not depend on their scores (their index, not their completion).
Ties are broken by coins that belong to the run and stay the same at every look; their seed is drawn
once, without a look at the scores, or ties count against the audit (``averaged``).
"""

import hashlib
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hiddenstate.auditing.averaged import (
    SCALING,
    OrderStatistics,
    break_ties,
    counts,
    functional_shares,
    surprising,
    tied,
)
from hiddenstate.auditing.curve import Coins, check_confidence, check_one, drawn
from hiddenstate.auditing.hypotheses import Hypotheses, claimed, number
from hiddenstate.auditing.intervals import (
    SIMULATIONS,
    allowed_rank,
    safe_share,
    uniform_order_statistics,
)
from hiddenstate.auditing.other_way import OtherWay, other_way
from hiddenstate.errors import InputError, check_count
from hiddenstate.rounding import shown
from hiddenstate.streams import key, stream

MEMORY = 2_000_000
"""Simulated scores of a data set held at once."""

Size = tuple[int, int]
"""Numbers of in-scores and of out-scores."""


Decision: TypeAlias = Literal["refuted", "continue", "consistent", "other way"]


@dataclass(frozen=True)
class Verdict:
    """Verdict on a claim after the looks taken so far.

    decision: "refuted", "continue" (looks are left), "consistent" (none is), or "other way" (none
    is, but the scores point the other way, which decides nothing). looks: how many were
    taken, up to the one that refuted. models: in- and out-scores used by the last of them.
    p_value: upper bound, valid at any time of stopping; at most 1 - confidence if and only if
    refuted. coins: seed of the coins that broke ties, None where there was nothing to break.
    other_way: how scores point the other way.
    """

    decision: Decision
    looks: int
    models: Size
    p_value: float
    coins: int | None = None
    other_way: OtherWay | None = None

    def __str__(self) -> str:
        verdict = "no verdict" if self.other_way else self.decision
        return (
            f"{verdict} after {self.looks} look(s) at up to {self.models[0]} and {self.models[1]} "
            f"models, p-value at most {shown(self.p_value, 'upper', 2)}"
        )


def jointly(verdicts: Sequence[Verdict]) -> Verdict:
    """One verdict of several tests of the same claim, each at its share of the level.

    The claim is refuted where the first of them refutes it; the p-value is theirs by the union
    bound. Where none does, one whose scores point the other way leaves no verdict.
    """
    share = len(verdicts)
    refuting = [verdict for verdict in verdicts if verdict.decision == "refuted"]
    first = min(refuting or verdicts, key=lambda v: (v.looks if refuting else 0, v.p_value))
    found = next((v.other_way for v in verdicts if v.other_way and not refuting), None)
    decision: Decision = "other way" if found else first.decision
    p_value = min(1.0, share * first.p_value)
    return replace(first, decision=decision, p_value=p_value, other_way=found)


@dataclass(frozen=True, eq=False)
class SequentialAudit:
    """A test of one claim that may be looked at as often as planned, at one level in all.

    hypotheses, claim: the claim tested, such as ``ApproxDP(1e-5), 8.0``. looks: scores in each
    data set at every look, ascending; a pair is (in-scores, out-scores). confidence: a true claim
    is refuted with probability 1 - confidence at most, over all looks together. A single look is a
    test at a fixed number of scores. area: share of the level for the area under the curve.

        >>> audit = SequentialAudit(GaussianDP(), 1.0, looks=[10, 20, 40, 80, 160])
        >>> audit.judge(in_scores, out_scores).decision  # the scores so far, in order
        'continue'
    """

    hypotheses: Hypotheses
    claim: float
    looks: Sequence[int | Size]
    confidence: float = 0.95
    area: float = 0.5
    simulations: int = SIMULATIONS
    seed: int = 0

    def __post_init__(self) -> None:
        check_confidence(self.confidence)
        claimed(self.hypotheses, self.claim)
        check_count("simulations", self.simulations)
        allowed_rank(1 - self.confidence, self.simulations)
        if not 0 < number("area", self.area) < 1:
            raise InputError(f"area: got {self.area}; expected a share inside (0, 1)")
        sizes = [_size(look) for look in self.looks]
        if not sizes:
            raise InputError("looks: got none; expected the numbers of scores at each look")
        for before, after in pairwise(sizes):
            if not (before[0] <= after[0] and before[1] <= after[1] and before != after):
                raise InputError(f"looks: got {before} before {after}; expected ascending numbers")
        object.__setattr__(self, "looks", tuple(sizes))

    @property
    def sizes(self) -> list[Size]:
        """Numbers of scores with and without the canary at each look."""
        return [_size(look) for look in self.looks]

    @property
    def index(self) -> int:
        """The hypothesis tested: the claim, or the next less private one of the grid."""
        return claimed(self.hypotheses, self.claim)

    @cached_property
    def critical(self) -> float:
        """The value that no look may exceed."""
        return float(self._largest[-allowed_rank(1 - self.confidence, self.simulations)])

    def shared(self, tests: int) -> "SequentialAudit":
        """The same test at this share of the level, for one of several scores of the same runs."""
        if tests == 1:
            return self
        return replace(self, confidence=1 - (1 - self.confidence) / tests)

    def judge(self, in_scores: ArrayLike, out_scores: ArrayLike, *, coins: Coins = None) -> Verdict:
        """Judge the scores so far, at every planned look that they are enough for.

        in_scores, out_scores: shapes (n_in,), (n_out,), in the order of the runs, both from
        their first run on. The answer depends on the planned looks alone, not on when it is asked,
        so a campaign that was killed may ask again from all its scores. coins: as of ``Averaged``,
        the same at every look: without them a seed of the audit's own, so give the verdict's to
        another object that goes on with it.
        """
        # There may be too few scores for any look yet.
        into, out = check_one(in_scores, out_scores, least=0)
        taken = [k for k in self.sizes if k[0] <= len(into) and k[1] <= len(out)]
        if not taken:
            return Verdict("continue", 0, (0, 0), 1.0)
        # Scores beyond the last look that was reached must not change the answer.
        into, out = into[: taken[-1][0]], out[: taken[-1][1]]
        seed = self._own_coins(into, out) if coins is None else drawn(coins)
        told = None if seed == "against" or not tied(into, out) else seed
        verdict = replace(self.reached(*break_ties(into, out, seed)), coins=told)
        if verdict.decision == "consistent" and (found := other_way(into, out, seed)):
            return replace(verdict, decision="other way", other_way=found)
        return verdict

    def reached(self, into: NDArray, out: NDArray) -> Verdict:
        """Judge scores without ties at least at the first look, whichever way they point."""
        taken = [k for k in self.sizes if k[0] <= len(into) and k[1] <= len(out)]
        statistic = next(
            iter(self._statistics([(-into[None], -out[None])], self.sizes[: len(taken)]))
        )[0]
        beyond = np.flatnonzero(statistic > self.critical)
        last = int(beyond[0]) if beyond.size else len(taken) - 1
        # Later looks must not change the p-value of one that refuted. The next largest simulation
        # is below the statistic, as in ``Calibration.p_values``.
        reached = self.simulations - np.searchsorted(self._largest, statistic[: last + 1].max())
        p_value = float(safe_share(reached + 1, self.simulations))
        decision: Decision = (
            "refuted"
            if beyond.size
            else "consistent"
            if len(taken) == len(self.sizes)
            else "continue"
        )
        return Verdict(decision, last + 1, taken[last], p_value)

    def refuted_at(
        self, hypotheses: Hypotheses, truth: float, *, audits: int = 4_000, seed: int = 1
    ) -> NDArray[np.int64]:
        """Look at which each simulated audit refutes the claim, -1 where none does.

        hypotheses, truth: the mechanism's own curve, which the simulated scores attain. Shape
        (audits,). What ``hiddenstate plan-audit`` counts.
        """
        index = nearest(hypotheses, truth)
        paths = self._statistics(
            self._simulated(hypotheses, index, "truth", audits, seed), self.sizes
        )
        beyond = np.concatenate(list(paths)) > self.critical
        return np.where(beyond.any(axis=1), beyond.argmax(axis=1), -1)

    def _own_coins(self, into: NDArray, out: NDArray) -> int:
        """A seed that stays the same from the first look of an audit on; every audit has its own.

        A seed that was drawn and that nobody knows names it, so that whatever the scores are, it
        is as good as drawn.
        """
        n_in, n_out = self.sizes[0]
        first = hashlib.sha256(into[:n_in].tobytes() + out[:n_out].tobytes()).digest()
        return key(self._coins, "coins", int.from_bytes(first[:8], "little")) % 2**32

    @cached_property
    def _coins(self) -> int:
        return secrets.randbits(64)

    @cached_property
    def _largest(self) -> NDArray[np.float64]:
        """The largest statistic over all looks of each simulated audit, ascending."""
        simulated = self._simulated(
            self.hypotheses, self.index, "level", self.simulations, self.seed
        )
        paths = self._statistics(simulated, self.sizes)
        return np.sort(np.concatenate([path.max(axis=1) for path in paths]))

    @cached_property
    def _scale(self) -> list[tuple[NDArray[np.float64], NDArray[np.float64]]]:
        """Counts that are surprising at each look, and their deviations."""
        level = 1 - self.confidence
        simulated = list(self._simulated(self.hypotheses, self.index, "scale", SCALING, self.seed))
        scale = []
        for size in self.sizes:
            found = np.concatenate([_look(into, out, size) for into, out in simulated])
            shares = functional_shares(self.area, found.shape[1])
            scale.append(surprising(found, shares, level))
        return scale

    def _statistics(
        self,
        standings: "Iterator[tuple[NDArray, NDArray]] | list[tuple[NDArray, NDArray]]",
        sizes: list[Size],
    ) -> Iterator[NDArray[np.float64]]:
        """Statistic of each look, shape (audits, looks), block by block."""
        for into, out in standings:
            yield np.stack(
                [
                    np.max((_look(into, out, size) - quantiles) / deviations, axis=1)
                    # There is a scale for looks that are not taken yet too.
                    for size, (quantiles, deviations) in zip(sizes, self._scale, strict=False)
                ],
                axis=1,
            )

    def _simulated(
        self, hypotheses: Hypotheses, index: int, purpose: str, audits: int, seed: int
    ) -> Iterator[tuple[NDArray, NDArray]]:
        """Standings of simulated runs, in and out, whose trade-off curve is the hypothesis's.

        A single look needs no more than the order statistics that it keeps.
        """
        n_in, n_out = self.sizes[-1]
        if len(self.sizes) == 1:
            worlds = OrderStatistics.of(n_out), OrderStatistics.of(n_in)
            rng = stream(seed, "auditing", "one look", purpose, n_in, n_out)
            u, v = (uniform_order_statistics(w.ranks, w.n, audits, rng) for w in worlds)
            yield v, 1 - hypotheses.fnr(index, u)
            return
        block = max(1, MEMORY // max(n_in, n_out))
        for start in range(0, audits, block):
            shape = min(block, audits - start)
            rng = stream(seed, "auditing", "sequential", purpose, n_in, n_out, start)
            u, v = rng.random((shape, n_out)), rng.random((shape, n_in))
            yield v, 1 - hypotheses.fnr(index, u)


def _look(into: NDArray, out: NDArray, size: Size) -> NDArray[np.floating]:
    """The Mann-Whitney counts of the first runs, shape (audits, functionals), half a pair less."""
    worlds = OrderStatistics.of(size[0]), OrderStatistics.of(size[1])
    # Fewer than the look's scores are the order statistics that it keeps.
    kept = [
        scores
        if scores.shape[1] < world.n
        else np.sort(scores[:, : world.n], axis=1)[:, world.ranks - 1]
        for world, scores in zip(worlds, (into, out), strict=True)
    ]
    return counts(worlds[1], worlds[0], kept[1], kept[0]) - 0.5


def nearest(hypotheses: Hypotheses, value: float) -> int:
    """Index of the hypothesis nearest to a value inside the grid."""
    claimed(hypotheses, value)
    return int(np.argmin(np.abs(hypotheses.grid - value)))


def _size(look: int | Size) -> Size:
    """Numbers of scores with and without the canary at a look, at least two of each."""
    pair = look if isinstance(look, tuple) else (look, look)
    try:
        size = tuple(int(n) for n in pair)
        if len(size) != 2 or size != tuple(pair) or min(size) < 2:
            raise ValueError
    except (TypeError, ValueError) as error:
        raise InputError(
            f"looks: got {look!r}; expected at least 2 scores in each data set"
        ) from error
    return size[0], size[1]
