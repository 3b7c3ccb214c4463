"""Lower bounds from one training under the hypothesis that the whole mechanism is Gaussian DP.

As in ``hiddenstate.auditing.one_run``, m canaries are each included or not by an independent fair
coin, and one model is trained. What is assumed of the training is more.

Hypothesis ("whole-mechanism Gaussian DP"). For all coin vectors s, s' that differ in d coins, the
laws P_s and P_s' of what is released have T(P_s, P_s') >= G(mu sqrt(d)), the trade-off function of
two normal laws mu sqrt(d) apart.

It holds for DP-SGD whose canaries are orthogonal gradients of norm at most C in every step in which
they are inserted, such as C e_d in a coordinate d of each canary's own: given the iterates before,
the means of a step's noisy sums under s and s' are at most C sqrt(d) apart, and Gaussian DP
composes adaptively (Dong, Roth and Su 2022, Theorem 3.2), to mu sqrt(d) with mu the square root
of the number of insertions over the noise multiplier. Scores need not be independent. It does NOT
follow from mu-Gaussian DP of each canary alone, which allows a mechanism to give all coins away at
once in a rare event, so that no bound valid for all of those mechanisms is near the truth
(``one_canary_ceiling``).

Known null law. Let s be the coins, n their sum, and L the sum of the scores of the canaries that
are in, over sqrt(n) times a score's deviation, so that L is standard normal when no canary is in.
The adversary knows this law if nothing but noise moves what it reads, or can simulate it.

Theorem 1. For every s, Phi(mu sqrt(n) - L) is a p-value of the hypothesis with mu.
Proof. P_0(L >= c) = 1 - Phi(c). Coin vectors 0 and s differ in n coins, so that
P_s(L >= c) <= Phi(mu sqrt(n) - c), the power at level 1 - Phi(c) of the best test of two normal
laws mu sqrt(n) apart. With equality for independent scores of means mu and 0. For each s the
p-values grow with mu, so tests are nested, and mu >= (L - 1.645) / sqrt(n) at 95 %.

A deviation too small overstates mu, and one too large is safe. Where the law is simulated from
draws of all scores without canaries, L is taken as normal with the draws' mean and deviation, each
at an upper confidence bound whose level comes off the level of the whole.

A simulation may know more: the noise that it added to each score, as where a score is what noise
moves and a small rest. Write L = N + R, with N standard normal. Then E L = E R and
E L^2 = 1 + E(L^2 - N^2), and both means are estimated with the errors of R alone: of 100 draws with
a rest of 0.1 the deviation is known to 3 %, where the draws of L themselves leave 22 %.

Unknown null law. Let all m coins be guessed, W guesses be right, and k be fixed in advance.

Theorem 2. Pr(W >= v) <= Phi(Phi^-1(p) + mu sqrt(k)), where p is the largest over w of
Pr(w + k - 2 X >= v), X hypergeometric: w of m guesses are right, and X of them are among k.
Proof. Turn over k coins of S that are drawn independently of all else, and call the result S'. Its
law is that of S, and S' is independent of which coins were turned over. Calling S rather than S'
when at least v guesses are right by S is a test of coin vectors that differ in k coins. Under S',
with w guesses right by S', X of those have their coin turned over and are wrong by S, and k - X
wrong ones are right by S: w + k - 2 X are, so the mean over S' of the false-positive rate is at
most p. The bound Phi(Phi^-1(x) + mu sqrt(k)) is concave in x, so that it holds of the means
(Jensen).
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import gammaln, log_ndtr, ndtr, ndtri, ndtri_exp

from hiddenstate.auditing.audit import LowerBound
from hiddenstate.auditing.curve import check_confidence, check_scores
from hiddenstate.auditing.hypotheses import GaussianDP, number
from hiddenstate.auditing.intervals import LEAST
from hiddenstate.auditing.one_run import Guesses, check_audit, one_run_bound
from hiddenstate.errors import InputError, check_count
from hiddenstate.streams import stream

SIMULATED = 0.1
"""Share of the level for what simulated scores leave open of the null law."""

LEAST_DRAWS = 100

RESOLUTION = 1e-3
"""Bounds on mu are rounded down to a multiple of it."""

SHARES = (0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
"""Shares of coins to guess among which is planned."""

PLANNED = 400
"""Simulated audits by which it is."""


def whole_gaussian_bound(
    scores: ArrayLike,
    included: ArrayLike,
    *,
    deviation: float | None = None,
    null_scores: ArrayLike | None = None,
    null_noise: ArrayLike | None = None,
    confidence: float = 0.95,
) -> LowerBound:
    """Lower bound on mu under whole-mechanism Gaussian DP, with a known null law (Theorem 1).

    scores: shape (m,), one per canary, larger speaks for "in". included: shape (m,), the coins.
    The law of the scores without any canary is given by ``deviation`` (independent, normal, of mean
    0), or by ``null_scores``: shape (draws, m), at least 100 independent draws of all of them; then
    their sum is taken as normal. ``null_noise``, of the same shape, is the part of each draw that
    is independent normal noise of ``deviation``. Raises InputError for unusable arguments.
    """
    observed, coins = check_audit(scores, included)
    level = 1 - check_confidence(confidence)
    count = int(coins.sum())
    unit = math.nan if deviation is None else number("deviation", deviation)
    if deviation is not None:
        _check_unit(unit)
    given = [argument is not None for argument in (deviation, null_scores, null_noise)]
    if given not in ([True, False, False], [False, True, False], [True, True, True]):
        raise InputError(
            "deviation, null_scores: expected one of them, the null law of the scores, or both "
            "with null_noise"
        )
    if count == 0:
        # Nothing was inserted: nothing can be shown.
        return _bound(-math.inf, confidence, "known null law")
    mean = 0.0
    if null_scores is not None:
        draws = _drawn("null_scores", null_scores, coins)
        alpha = SIMULATED * level
        if null_noise is None:
            mean, unit = _simulated_null(draws, alpha)
        else:
            noise = _drawn("null_noise", null_noise, coins)
            mean, unit = _null_with_noise(draws, noise, unit, alpha)
        # The test has the rest of the level (union bound).
        level *= 1 - SIMULATED
    total = (_sum(observed[coins]) / math.sqrt(count) - mean) / unit
    return _bound((total + ndtri(level)) / math.sqrt(count), confidence, "known null law")


def whole_gaussian_p_value(
    scores: ArrayLike, included: ArrayLike, claim: float, *, deviation: float
) -> float:
    """p-value of whole-mechanism Gaussian DP with mu = ``claim``, the null law known (Theorem 1).

    Arguments as for ``whole_gaussian_bound``; claim: at least 0.
    """
    observed, coins = check_audit(scores, included)
    mu, unit = number("claim", claim), number("deviation", deviation)
    if not 0 <= mu < math.inf:
        raise InputError(f"claim: got {mu}; expected a number of at least 0")
    _check_unit(unit)
    if not coins.any():
        return 1.0
    root = math.sqrt(int(coins.sum()))
    return max(LEAST, float(ndtr(mu * root - _sum(observed[coins]) / (unit * root))))


MOST = 1e100
"""Size of scores and, of a deviation, what it and its inverse may have: squares stay numbers."""


def _check_unit(unit: float) -> None:
    if not 1 / MOST <= unit <= MOST:
        raise InputError(
            f"deviation: got {unit}; expected a positive number from {1 / MOST:g} to {MOST:g}"
        )


def _sum(values: NDArray[np.float64], name: str = "scores", axis: int | None = None) -> Any:
    """Sum of scores; InputError where one is so large that squares of sums would be no numbers."""
    if (largest := np.abs(values).max(initial=0)) > MOST:
        raise InputError(f"{name}: got one of size {largest:g}; expected at most {MOST:g}")
    return values.sum(axis=axis)


def _drawn(name: str, values: ArrayLike, coins: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Sum over the canaries that are in, over sqrt(n), of each draw (draws, m); (draws,)."""
    draws = check_scores(name, values, least=0)
    if draws.ndim != 2 or draws.shape[1] != len(coins) or len(draws) < LEAST_DRAWS:
        raise InputError(
            f"{name}: got shape {draws.shape}; expected (draws, {len(coins)}), at least "
            f"{LEAST_DRAWS} draws"
        )
    sums = _sum(draws[:, coins], name, axis=1) / math.sqrt(int(coins.sum()))
    if not np.ptp(sums) > 1 / MOST:
        raise InputError(f"{name}: all draws are the same; expected those of a noisy training")
    return sums


def _simulated_null(sums: NDArray[np.float64], level: float) -> tuple[float, float]:
    """Upper bounds on mean and deviation of the in-scores' sum over sqrt(n), both at ``level``."""
    from scipy.stats import chi2

    n = len(sums)
    deviation = float(sums.std(ddof=1)) * math.sqrt((n - 1) / chi2.ppf(level / 2, n - 1))
    return float(sums.mean() - ndtri(level / 2) * deviation / math.sqrt(n)), deviation


def _null_with_noise(
    sums: NDArray[np.float64], noise: NDArray[np.float64], unit: float, level: float
) -> tuple[float, float]:
    """Bound and deviation where each sum has a known part, normal with deviation ``unit``."""
    if len(sums) != len(noise):
        raise InputError(f"null_noise: got {len(noise)} draws; expected {len(sums)}, as of scores")
    from scipy.stats import chi2, t

    n = len(sums)
    square = float((noise**2).sum()) / unit**2
    # Noise of the stated deviation is refused in two of a billion calls.
    if not chi2.ppf(1e-9, n) < square < chi2.isf(1e-9, n):
        raise InputError(
            f"null_noise: its sums have the deviation {unit * math.sqrt(square / n):.3g}; expected "
            f"{unit:.3g}, as of independent noise of that deviation"
        )

    def most(values: NDArray[np.float64]) -> float:
        error = float(values.std(ddof=1)) / math.sqrt(n)
        return float(values.mean() + t.isf(level / 2, n - 1) * error)

    variance = unit**2 + most(sums**2 - noise**2)
    if not variance > 0:
        raise InputError("null_noise: varies more than null_scores; expected a part of their noise")
    return most(sums - noise), math.sqrt(variance)


def flip_bound(guesses: Guesses, flipped: int, *, confidence: float = 0.95) -> LowerBound:
    """Lower bound on mu under whole-mechanism Gaussian DP, no null law known (Theorem 2).

    guesses: of all coins. flipped: k, fixed before the training, 1 to m; see ``planned_flips``.
    """
    level = 1 - check_confidence(confidence)
    if guesses.made != guesses.canaries or not guesses.fixed:
        raise InputError(
            f"guesses: got {guesses.made} of {guesses.canaries} coins; expected a guess for each"
        )
    check_count("flipped", flipped)
    if flipped > guesses.canaries:
        raise InputError(f"flipped: got {flipped}; expected at most {guesses.canaries}, the coins")
    return _bound(_flipped(guesses, flipped, level), confidence, f"{flipped} coins turned over")


def _flipped(guesses: Guesses, k: int, level: float) -> float:
    """Largest mu that so many right guesses contradict, minus infinity for none."""
    log_p = _log_most_right(guesses.canaries, k, guesses.correct)
    return float(ndtri(level) - ndtri_exp(log_p)) / math.sqrt(k)


def _log_most_right(m: int, k: int, v: int) -> float:
    """Log of an upper bound on the largest over w of Pr(w + k - 2 X >= v), X hypergeometric.

    The lower tail of X is bounded by a geometric series from its largest term.
    """
    w = np.arange(m + 1)
    most, least = np.minimum(w, k), np.maximum(0, k - (m - w))
    # w + k - 2 X >= v means that X is at most this end.
    end = np.floor_divide(w + k - v, 2)
    found = np.where(end >= most, 0.0, -math.inf)
    inside = (end >= least) & (end < most)
    w, x, least = w[inside], end[inside], least[inside]

    def choose(n: NDArray[np.int64], r: NDArray[np.int64] | int) -> NDArray[np.float64]:
        return gammaln(n + 1.0) - gammaln(r + 1.0) - gammaln(n - r + 1.0)

    term = choose(w, x) + choose(m - w, k - x) - choose(np.array(m), k)
    # Of the term before the last to the last. Earlier ratios are smaller, as the law is
    # log-concave, so a geometric series bounds the tail.
    ratio = np.where(x > least, x * (m - w - k + x) / ((w - x + 1.0) * (k - x + 1.0)), 0.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        tail = np.where(ratio < 1, term - np.log1p(-ratio), 0.0)
    # The logarithms of the gamma function are right to some 1e-12 of their size.
    found[inside] = np.minimum(0.0, tail + 1e-10 * (1 + m))
    return float(found.max())


def _bound(value: float, confidence: float, method: str) -> LowerBound:
    # A millionth of the resolution is far above the rounding error of the value.
    down = 0.0 if value <= 0 else math.floor(value / RESOLUTION - 1e-6) * RESOLUTION
    return LowerBound(
        parameter="mu",
        value=max(0.0, down),
        direction="lower",
        confidence=float(confidence),
        method=f"whole-mechanism Gaussian DP, {method}",
        valid=True,
        threshold=float("nan"),
    )


def _check_plan(mu: float, canaries: int) -> None:
    check_count("canaries", canaries)
    if not number("mu", mu) > 0:
        raise InputError(f"mu: got {mu}; expected a positive number")


def planned_flips(mu: float, canaries: int, *, confidence: float = 0.95) -> int:
    """Number of coins to turn over, planned before training for normal scores that are mu apart.

    The number whose bound is highest at the median number of right guesses.
    """
    from scipy.stats import binom

    _check_plan(mu, canaries)
    right = int(binom.median(canaries, ndtr(mu / 2)))
    guesses = Guesses(canaries, canaries, right)
    level = 1 - check_confidence(confidence)
    numbers = np.unique(np.geomspace(1, canaries, 60).astype(int))
    return int(max(numbers, key=lambda k: _flipped(guesses, int(k), level)))


def planned_guesses(mu: float, canaries: int, *, confidence: float = 0.95) -> int:
    """Number of coins to guess, planned before training for normal scores that are mu apart.

    The number among ``SHARES`` with the highest bound by ``one_run_bound`` (each canary alone
    mu-Gaussian DP) at the median number of right guesses in simulated audits. Validity does not
    depend on it.
    """
    _check_plan(mu, canaries)
    rng = stream(0, "auditing", "planned guesses", canaries)
    coins = rng.random((PLANNED, canaries)) < 0.5
    scores = rng.standard_normal(coins.shape) + mu * coins
    ordered = np.take_along_axis(coins, scores.argsort(axis=1), axis=1)
    out = np.cumsum(~ordered, axis=1)
    inside = np.cumsum(ordered[:, ::-1], axis=1)
    # No bound is far above the truth: a short grid will do.
    hypotheses = GaussianDP(limit=mu, step=mu / 64)
    best, chosen = -1.0, canaries
    for made in sorted({min(canaries, max(2, round(share * canaries))) for share in SHARES}):
        low, high = made // 2, made - made // 2
        right = inside[:, high - 1] + (out[:, low - 1] if low else 0)
        guesses = Guesses(canaries, made, int(np.median(right)))
        value = one_run_bound(guesses, hypotheses, confidence=confidence).value
        if value > best:
            best, chosen = value, made
    return chosen


@dataclass(frozen=True)
class Imitation:
    """A mechanism that is Gaussian DP for each canary alone, and imitates a less private one.

    With probability tau it releases independent normal scores, mu apart, except that an out-score
    above a threshold (of probability a = apart / canaries) is drawn again from the in-scores above
    it, and an in-score below the mirrored threshold from the out-scores below it. Otherwise it
    releases noise alone. Given the first event it differs from the scores that it imitates by at
    most ``apart`` in total variation. tau = level / (1/2 - apart).
    """

    mu: float
    canaries: int
    apart: float
    level: float = 0.05

    @property
    def tau(self) -> float:
        return self.level / (0.5 - self.apart)

    @property
    def _first(self) -> float:
        return float(ndtri(self.apart / self.canaries))

    @property
    def gdp_mu(self) -> float:
        """Gaussian DP of each canary, given all other coins; to 1e-5, rounded up.

        A canary's trade-off function is tau times the normal one, clipped where it is steepest, and
        of slope 1 elsewhere; this is the largest mu that any of its points has.
        """
        if self.tau >= 1 or self._first >= -self.mu / 2:
            return math.inf
        quantiles, log_tau = np.linspace(self._first, -self.mu / 2, 2001), math.log(self.tau)
        right = ndtri_exp(log_tau + log_ndtr(quantiles + self.mu))
        return float((right - ndtri_exp(log_tau + log_ndtr(quantiles))).max()) + 1e-5

    def sampled(
        self, audits: int, rng: np.random.Generator
    ) -> tuple[NDArray[np.bool_], NDArray[np.float64]]:
        """Coins and scores of independent audits, both of shape (audits, canaries)."""
        coins = rng.random((audits, self.canaries)) < 0.5
        scores = self.mu * coins + rng.standard_normal(coins.shape)
        beyond = (2 * coins - 1) * (scores - self.mu * coins) < self._first
        again = self.mu - ndtri(ndtr(self.mu + self._first) * rng.random(coins.shape))
        scores = np.where(beyond, np.where(coins, self.mu - again, again), scores)
        event = rng.random(audits) < self.tau
        return coins, np.where(event[:, None], scores, rng.standard_normal(coins.shape))


def one_canary_ceiling(mu: float, canaries: int, *, confidence: float = 0.95) -> float:
    """Ceiling for the median of every valid bound, if each canary alone is all that is assumed.

    mu: the truth, independent normal scores mu apart. A valid bound exceeds the Gaussian DP of an
    ``Imitation`` with probability at most 1 - confidence there, so for the truth with at most
    (1 - confidence) / tau + apart = 1/2. The returned value is the least over ``apart``.
    """
    _check_plan(mu, canaries)
    level = 1 - check_confidence(confidence)
    return min(Imitation(mu, canaries, a, level).gdp_mu for a in np.linspace(0.01, 0.35, 69))
