"""Lower bounds from one training: m canaries, each included or not by a coin of its own.

The auditor tosses an independent fair coin for each of m canaries, trains once with those whose
coin fell on "in", and guesses coins from the trained model: "in", "out", or no guess. How many
guesses can be right is limited by the privacy of the training (Steinke, Nasr and Jagielski 2023;
Mahloujifar, Melis and Chaudhuri 2024). One training then does what hundreds do in an audit with
one canary, as far as the canaries can be told apart in one model.

Assumptions. (1) The coins S are independent and fair, and nothing but the training sees them: not
exactly half of the canaries, not the first ones. (2) The guesses are a function of what was
trained (and of randomness of their own), T = T(Y). (3) The claim holds for adding or removing any
one canary, whatever the other coins are. Nothing is assumed of independence between canaries, of
the scores, or of the quality of the guesses.

Notation. r guesses are made and W of them are right; q(k) = Pr(W = k). For a set K of counts let
R(K) = sum over k in K of k q(k) / m, and B(K) = sum over k in K of (r - k + 1) q(k - 1) / m.

Lemma. If r is fixed in advance and every canary has the trade-off function f (f(x) is the least
false-negative rate at false-positive rate x, in either direction), then R(K) <= 1 - f(B(K)).

Proof. For coins s write s^i for s with coin i turned over, and let A_i(s) be the event that guess i
was made and equals s_i, and that the number of right guesses, judged by s, lies in K. Calling s
rather than s^i on A_i(s) is a test, so Pr(A_i(s) | s) <= 1 - f(Pr(A_i(s) | s^i)). Average over i
and uniform s: on the left, sum_i Pr(guess i right, W in K) / m = R(K). Inside f, S^i is as uniform
as S; judged by it, guess i is wrong and the count is one less, so the average is
sum_i Pr(guess i wrong, W + 1 in K) / m = B(K), because k - 1 right guesses leave r - k + 1 wrong
ones. f is convex, so the average of 1 - f is at most 1 - f of the average (Jensen).
If the trade-off function depends on the direction, half of the pairs have f and half its inverse;
then f is the lower boundary of the average of both epigraphs (a Minkowski sum), which is its own
inverse.

Theorem 1 ((epsilon, delta)). Let V be binomial with r trials of probability
e^epsilon / (1 + e^epsilon). With r fixed in advance, for every v >= 1,

    Pr(W >= v) <= Pr(V >= v) + m delta Pr(V >= v) Pr(V < v) / (v Pr(V = v)),

and some (epsilon, delta)-private mechanism attains it wherever it is below 1.

Proof. With f(x) >= 1 - delta - e^epsilon x the lemma says that the excesses
e_k = max(0, k q(k) - e^epsilon (r - k + 1) q(k - 1)) sum to at most m delta (take for K the counts
with an excess). Let p be V's law and rho(k) = q(k) / p(k). Since
k p(k) = e^epsilon (r - k + 1) p(k - 1), rho(k) <= rho(k - 1) + e_k / (k p(k)). Then
Pr(W >= v) - Pr(V >= v) = sum over k >= v > j of p(k) p(j) (rho(k) - rho(j)), which is at most
sum_i e_i Pr(V >= max(v, i)) Pr(V < min(v, i)) / (i p(i)). The factor of e_i is largest at i = v:
above v, Pr(V >= i) / (i p(i)) decreases in i, and below, Pr(V < i) / (i p(i)) increases, as p is
log-concave. Attained by q = a p + b p 1{k >= v} with guesses exchangeable in the canaries.
Steinke, Nasr and Jagielski (the code in their Appendix D) have, in place of the second term,
2 m delta max_i Pr(v - i <= V < v) / i. The tests find that no smaller where Pr(V >= v) < 1/2, so
where a p-value is of use; for v far below the mean it can be smaller, and is then below the tail of
the mechanism that attains the bound above.

Theorem 2 (any trade-off function). With r fixed in advance, Pr(W >= v) < tau whenever this
recursion ends with R + B > r / m: begin with R = tau v / m, B = tau (r - v) / m, and for
i = v - 1, ..., 0 let B' = max(B, f(1 - R)), then R' = R + (B' - B) i / (r - i).

Proof. Suppose Pr(W >= v) >= tau. Write R_c, B_c for the sums of k q(k) / m and (r - k) q(k) / m
over k >= c. The lemma with K = {k >= c} says R_c <= 1 - f(B_{c-1}), that is B_{c-1} >= f(1 - R_c)
as f is its own inverse. Counting q(i) in adds i q(i) / m to R and (r - i) q(i) / m to B, so it
leaves u = R - B i / (r - i) as it is. Compare the recursion's state with the true one: in the
beginning R and u are not above their true values, as all j >= v. If so before a step, then so
after. Either B' = f(1 - R) > B, which is not above the true B', hence neither are R' = u + B' i /
(r - i) nor the next u, which is u plus a positive multiple of B'; or B' = B and R' = R, and the
next u = R - B (i - 1) / (r - i + 1) is not above the true one if the true B' is at most B (R is
not), and otherwise for the first reason. R + B grows only in steps of the first kind, after each
of which it is not above the true value r Pr(W >= i) / m <= r / m.
This is the recursion of Mahloujifar, Melis and Chaudhuri with the steps taken in their order; the
derivation is ours.

Theorem 3 (guesses whose number the model decides). For (epsilon, delta) and any r = r(Y),
Pr(V_r >= W) + m delta is a p-value, where V_r has r trials.

Proof. Given Y and the coins before i, guess i is right with probability at most
p + (1 - p) b_i, where the posterior's excess over p = e^epsilon / (1 + e^epsilon) has
E[b_i] <= delta (half of it for either direction). So W <= V_r + F given Y, with V_r binomial and
E[F] <= m delta, and Pr(F >= 1) is all it costs. No such statement is made for other trade-off
functions: a mechanism may reveal much in rare outcomes, and r(Y) picks them.

Choosing r, or the score, after seeing which guesses are right is not covered by anything here.
"""

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import bdtr, expit, ndtr, ndtri

from hiddenstate.accounting.tradeoff import TradeoffCurve
from hiddenstate.auditing.audit import LowerBound
from hiddenstate.auditing.curve import Coins, check_confidence, check_scores, drawn, refuse_mixed
from hiddenstate.auditing.hypotheses import (
    ApproxDP,
    GaussianDP,
    Hypotheses,
    Tabulated,
    claimed,
)
from hiddenstate.auditing.intervals import LEAST
from hiddenstate.auditing.other_way import OtherWayWarning, guessed_other_way
from hiddenstate.auditing.rules import last_true
from hiddenstate.errors import InputError, is_whole
from hiddenstate.streams import stream

MARGIN = 1e-9
"""Relative room for rounding: p-values are raised by it, contradictions must exceed it."""


@dataclass(frozen=True)
class Guesses:
    """Outcome of an audit in one run: ``correct`` of ``made`` guesses on ``canaries`` coins.

    fixed: whether ``made`` was fixed before the training, not read off the model. coins: seed of
    the coins that broke ties; None where there was nothing to break.
    """

    canaries: int
    made: int
    correct: int
    fixed: bool = True
    coins: int | None = None

    def __post_init__(self) -> None:
        for name in ("canaries", "made", "correct"):
            value = getattr(self, name)
            if not is_whole(value):
                raise InputError(f"{name}: got {value!r}; expected a whole number")
        if self.canaries < 1:
            raise InputError(f"canaries: got {self.canaries}; expected at least 1")
        if not 0 <= self.made <= self.canaries:
            raise InputError(f"made: got {self.made}; expected 0 to {self.canaries} guesses")
        if not 0 <= self.correct <= self.made:
            raise InputError(f"correct: got {self.correct}; expected 0 to {self.made}")


def guess(scores: ArrayLike, included: ArrayLike, made: int, *, coins: Coins = None) -> Guesses:
    """Guess "in" for the highest half of ``made`` canaries, "out" for the lowest, none between.

    scores: shape (m,), one per canary, larger speaks for "in". included: shape (m,), the coins
    (True: in). made: fixed before the training, 1 to m. coins: seed of the stream that orders equal
    scores, so that the order of the canaries can tell nothing; None: a new one where equal scores
    are guessed differently; "against": such guesses count as wrong as often as can be. Raises
    InputError for unusable scores or coins.
    """
    observed, inside = check_audit(scores, included)
    m = len(inside)
    if not is_whole(made):
        raise InputError(f"made: got {made!r}; expected a whole number of guesses")
    if not 1 <= made <= m:
        raise InputError(f"made: got {made}; expected 1 to {m} guesses")
    first, last = made // 2, m - (made - made // 2)
    ordered = np.sort(observed)
    # Chance decides where one score stands on both sides of a border.
    borders = [b for b in (first, last) if 0 < b < m]
    seed = drawn(coins) if any(ordered[b - 1] == ordered[b] for b in borders) else None
    if seed is None:
        order = np.argsort(observed)
    elif seed == "against":
        # Of equal scores those that are in come first, where "out" is guessed.
        order = np.lexsort((~inside, observed))
    else:
        order = stream(seed, "auditing", "one-run").permutation(m)
        order = order[np.argsort(observed[order], kind="stable")]
    low, high = order[:first], order[last:]
    correct = int(inside[high].sum() + (~inside[low]).sum())
    return Guesses(m, int(made), correct, coins=None if seed == "against" else seed)


def guess_beyond(scores: ArrayLike, included: ArrayLike, low: float, high: float) -> Guesses:
    """Guess "out" for scores up to ``low``, "in" for those from ``high``, none between.

    The thresholds may come from the scores (never from the coins), so the number of guesses is not
    fixed, and only (epsilon, delta) can be bounded. Arguments as for ``guess``.
    """
    observed, coins = check_audit(scores, included)
    if not low < high:
        raise InputError(f"low, high: got {low}, {high}; expected low < high")
    into, out = observed >= high, observed <= low
    correct = int(coins[into].sum() + (~coins[out]).sum())
    return Guesses(len(coins), int(into.sum() + out.sum()), correct, fixed=False)


def one_run_p_value(guesses: Guesses, hypotheses: Hypotheses, claim: float) -> float:
    """Upper bound on how probable so many right guesses are if the claim holds (a p-value).

    claim: a value of the parameter of ``hypotheses``, such as epsilon; it is judged at the next
    less private value of the grid. Raises InputError if the grid does not reach so far, or if the
    number of guesses was not fixed and the hypotheses are other than ``ApproxDP``.
    """
    return _p_value(guesses, hypotheses, claimed(hypotheses, claim))


def one_run_bound(
    guesses: Guesses, hypotheses: Hypotheses, *, confidence: float = 0.95
) -> LowerBound:
    """Lower bound on the leakage that the guesses prove, in the parameter of ``hypotheses``.

    Valid: at most ``1 - confidence`` of such audits claim more than the truth, under the
    assumptions of the module. For ``ApproxDP`` by Theorems 1 and 3, else by Theorem 2.
    """
    level = 1 - check_confidence(confidence)
    rejected = _last_refuted(guesses, hypotheses, level) if guesses.made and guesses.correct else -1
    if rejected < 0 and (found := guessed_other_way(guesses.made, guesses.correct)):
        warnings.warn(str(found), OtherWayWarning, stacklevel=2)
    return LowerBound(
        parameter=hypotheses.parameter,
        value=float(hypotheses.trivial if rejected < 0 else hypotheses.grid[rejected]),
        direction="upper" if hypotheses.trivial == np.inf else "lower",
        confidence=1 - level,
        method="one run",
        valid=True,
        threshold=float("nan"),
    )


def _p_value(guesses: Guesses, hypotheses: Hypotheses, index: int) -> float:
    """Upper bound on Pr(W >= correct) at ``hypotheses.grid[index]``."""
    if guesses.correct == 0:
        return 1.0
    if isinstance(hypotheses, ApproxDP):
        return _approx_tail(guesses, float(hypotheses.grid[index]), hypotheses.delta)
    least = _least(hypotheses, index, guesses)
    # The probabilities that are contradicted begin at the p-value: close in on it from above.
    low, high = -700.0, 0.0
    # Five rounds of 64 candidates narrow 700 nats down to a millionth.
    for _ in range(5):
        candidates = np.linspace(low, high, 64)
        found = np.flatnonzero(_contradicted(guesses, least, np.exp(candidates)))
        if len(found) == 0:
            return 1.0
        low, high = candidates[max(found[0] - 1, 0)], candidates[found[0]]
    return min(1.0, float(np.exp(high)) * (1 + MARGIN))


_AT_ONCE = 64
"""Hypotheses that are judged side by side where their trade-off functions are one formula."""


def _last_refuted(guesses: Guesses, hypotheses: Hypotheses, level: float) -> int:
    """Last index of ``hypotheses.grid`` that the guesses refute; -1 if there is none."""
    if type(hypotheses) is not GaussianDP:
        return last_true(
            lambda index: _refuted(guesses, hypotheses, index, level), len(hypotheses.grid)
        )
    if not guesses.fixed:
        # It refuses a number of guesses that was read off the model.
        _least(hypotheses, 0, guesses)
    low, high = -1, len(hypotheses.grid)
    while high - low > 1:
        parts = np.unique(np.linspace(low + 1, high - 1, _AT_ONCE).astype(int))
        mus = hypotheses.grid[parts]

        def least(right: NDArray[np.float64], mus: NDArray[np.float64] = mus) -> Any:
            return _gaussian(mus, right)

        # Refutations are nested: all hypotheses before the first that holds are refuted.
        held = np.flatnonzero(~_contradicted(guesses, least, np.full(len(parts), level)))
        first = int(held[0]) if len(held) else len(parts)
        low = int(parts[first - 1]) if first else low
        high = int(parts[first]) if first < len(parts) else high
    return low


def _refuted(guesses: Guesses, hypotheses: Hypotheses, index: int, level: float) -> bool:
    """True if the p-value at ``hypotheses.grid[index]`` is at most ``level``."""
    if isinstance(hypotheses, ApproxDP):
        return _p_value(guesses, hypotheses, index) <= level
    least = _least(hypotheses, index, guesses)
    return bool(_contradicted(guesses, least, np.array([level]))[0])


def _approx_tail(guesses: Guesses, epsilon: float, delta: float) -> float:
    """Theorem 1, or Theorem 3 where the number of guesses was not fixed."""
    from scipy.stats import binom

    # Wrong guesses are counted: their probability keeps its digits where that of right ones is 1.
    r, v, wrong = guesses.made, guesses.correct, guesses.made - guesses.correct
    law = binom(r, expit(-epsilon))
    tail = float(law.cdf(wrong))
    excess = guesses.canaries * delta
    # Where the tail is 1 so is the p-value, and other terms are no numbers.
    if tail < 1 and guesses.fixed:
        # In logarithms, as each of the three may underflow. SciPy's tail is the logarithm of one
        # that has underflowed: there, terms fall at least as fast as after the first.
        log_tail = law.logcdf(wrong)
        if tail < 1e-290:
            log_tail = law.logpmf(wrong) - math.log1p(-wrong / (v + 1) * math.exp(epsilon))
        excess *= float(np.exp(log_tail + law.logsf(wrong) - law.logpmf(wrong))) / v
    return min(1.0, max(LEAST, (tail + excess) * (1 + MARGIN)))


Least = Callable[[NDArray[np.float64]], NDArray[np.float64]]


def _contradicted(guesses: Guesses, least: Least, tau: NDArray[np.float64]) -> NDArray[Any]:
    """Theorem 2: where Pr(W >= correct) must be below each ``tau``; shape of ``tau``."""
    m, r, v = guesses.canaries, guesses.made, guesses.correct
    right, wrong = tau * (v / m), tau * ((r - v) / m)
    most = r / m * (1 + MARGIN)
    for i in range(v - 1, -1, -1):
        forced = np.maximum(wrong, least(right))
        right = right + (forced - wrong) * (i / (r - i))
        wrong = forced
        # R + B never falls, so a contradiction stays one.
        if (right + wrong > most).all():
            break
    return right + wrong > most


def _least(hypotheses: Hypotheses, index: int, guesses: Guesses) -> Least:
    """f(1 - R) of the claim's trade-off function, averaged over both directions."""
    if not guesses.fixed:
        raise InputError(
            f"guesses: their number was read off the model; expected a number fixed in advance "
            f"to bound {hypotheses.parameter}, or ApproxDP"
        )
    if isinstance(hypotheses, Tabulated):
        both = _both_directions(hypotheses.curves[index])
        return lambda right: both(np.clip(1 - right, 0, 1))
    if type(hypotheses) is GaussianDP:  # a class made from it may have another curve
        return lambda right: _gaussian(index * hypotheses.step, right)
    _require_symmetric(hypotheses, index)
    return lambda right: hypotheses.fnr(index, np.clip(1 - right, 0, 1))


def _gaussian(mu: ArrayLike, right: NDArray[np.float64]) -> NDArray[np.float64]:
    """f(1 - R) of mu-Gaussian differential privacy, also where 1 - R rounds to 1."""
    return np.asarray(ndtr(ndtri(np.clip(right, 0, 1)) - mu))


def _both_directions(curve: TradeoffCurve) -> TradeoffCurve:
    """Lower boundary of the average of the epigraphs of a curve and its inverse."""
    fpr, fnr = np.append(0.0, curve.fpr), np.append(1.0, curve.fnr)
    edges = np.stack((np.diff(fpr), -np.diff(fnr)), axis=1)
    # The inverse has the same edges reflected; a sum of convex polygons takes both by slope.
    edges = np.concatenate((edges, edges[:, ::-1]))
    edges = edges[np.argsort(np.arctan2(edges[:, 0], edges[:, 1]), kind="stable")] / 2
    x = np.minimum(np.append(0.0, np.cumsum(edges[:, 0])), 1.0)
    y = np.maximum(1 - np.append(0.0, np.cumsum(edges[:, 1])), 0.0)
    # First edges may be vertical: the curve begins at the last point with rate 0.
    start = int(np.searchsorted(x, 0.0, side="right")) - 1
    return TradeoffCurve(np.append(x[start:], 1.0), np.append(y[start:], 0.0))


def _require_symmetric(hypotheses: Hypotheses, index: int) -> None:
    """Refuse hypotheses whose trade-off functions are not their own inverses."""
    rates = np.linspace(0.01, 0.99, 99)
    there = np.asarray(hypotheses.fnr(index, rates), dtype=float)
    # Only where f strictly descends does it have an inverse.
    inside = (there > 1e-9) & (rates < float(np.asarray(hypotheses.fnr(index, 0.0))))
    back = np.asarray(hypotheses.fnr(index, there[inside]), dtype=float)
    if np.abs(back - rates[inside]).max(initial=0.0) > 1e-6:
        raise InputError(
            f"hypotheses: {type(hypotheses).__name__} depends on the direction; expected symmetric "
            "trade-off functions, or Tabulated ones"
        )


def check_audit(
    scores: ArrayLike, included: ArrayLike
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Scores and coins as arrays, or an InputError that says what is wrong."""
    observed = check_scores("scores", scores, least=0)
    if np.ma.is_masked(included):
        raise InputError("included: some are masked; expected a coin for each canary")
    coins = np.asarray(included)
    if observed.ndim != 1 or len(observed) == 0:
        raise InputError(f"scores: got shape {observed.shape}; expected (m,), one per canary")
    if coins.shape != observed.shape:
        raise InputError(f"included: got shape {coins.shape}; expected {observed.shape}")
    if coins.dtype.kind not in "biuf" or not np.isin(coins, (0, 1)).all():
        raise InputError(f"included: got {coins.ravel()[:5]}…; expected True or False per canary")
    refuse_mixed(observed)
    coins = coins.astype(bool)
    heads, m = int(coins.sum()), len(coins)
    # One in a billion audits with fair coins is refused.
    if 2 * bdtr(min(heads, m - heads), m, 0.5) < 1e-9:
        raise InputError(
            f"included: {heads} of {m} canaries are in; expected independent fair coins"
        )
    return observed, coins
