"""Threshold rules: how the errors of many tests become one confident statement on privacy.

A single test, fixed in advance, errs at rates that an exact interval bounds. An auditor has the
scores in hand and wants the best of all tests; each rule here pays for that choice in its own
way, and ``AsPublished`` does not pay, which is why it is not valid. The package's default,
``Averaged`` (in ``hiddenstate.auditing.averaged``), needs no choice.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.special import betainc, betaincinv

from hiddenstate.auditing.curve import EmpiricalCurve, empirical_curve, seed
from hiddenstate.auditing.hypotheses import Hypotheses, number
from hiddenstate.auditing.intervals import (
    band_upper,
    clopper_pearson_upper,
    dkw_upper,
    jeffreys_upper,
)
from hiddenstate.errors import InputError
from hiddenstate.streams import stream

_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(96)

MANY = 1 << 14
"""Thresholds beyond which blocks that cannot hold the best one are left out."""

PARTS = 32
"""Into how many blocks such a block is divided."""

Interval = Literal["clopper-pearson", "jeffreys", "joint-beta"]

Upper = Callable[[NDArray[np.int64], int, float], NDArray[np.float64]]
"""Upper bounds on error rates from counts, the number of runs and the level."""


class LowerBoundRule(Protocol):
    """Rule that turns scores into lower bounds."""

    @property
    def name(self) -> str:
        """The word a table shows."""

    @property
    def valid(self) -> bool:
        """True if the bound is wrong in at most ``level`` of the audits, whatever the scores."""

    def bounds(
        self, in_scores: NDArray, out_scores: NDArray, hypotheses: Hypotheses, level: float
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Bounds and the thresholds they come from (NaN: from many), for the leading axes."""


@dataclass(frozen=True)
class Fixed:
    """One threshold chosen before the scores were seen: valid with Clopper-Pearson intervals.

    Each error rate is bounded at half the level. "jeffreys" does so with credible bounds;
    "joint-beta" takes the smallest parameter whose privacy region holds a posterior probability
    of ``level`` (Zanella-Béguelin et al. 2023). Neither is a confidence bound.
    """

    threshold: float
    interval: Interval = "clopper-pearson"

    def __post_init__(self) -> None:
        object.__setattr__(self, "threshold", number("threshold", self.threshold))
        if self.interval not in ("clopper-pearson", "jeffreys", "joint-beta"):
            raise InputError(
                f"interval: got {self.interval!r}; "
                "expected 'clopper-pearson', 'jeffreys' or 'joint-beta'"
            )

    @property
    def name(self) -> str:
        return f"fixed threshold, {self.interval}"

    @property
    def valid(self) -> bool:
        return self.interval == "clopper-pearson"

    def bounds(
        self, in_scores: NDArray, out_scores: NDArray, hypotheses: Hypotheses, level: float
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        threshold = np.broadcast_to(float(self.threshold), in_scores.shape[:-1])
        return _at(threshold, in_scores, out_scores, hypotheses, level, self.interval), threshold


@dataclass(frozen=True)
class Split:
    """The threshold that does best on one half of the scores, bounded on the other half: valid.

    coins: seed of the stream that draws the halves, so that scores sorted in their file do no harm;
    None: a new one, which ``lower_bound`` tells with its result.
    """

    coins: int | None = None
    name = "split"
    valid = True

    def __post_init__(self) -> None:
        seed(self.coins)

    def tossed(self) -> "Split":
        """The rule with a seed."""
        return self if self.coins is not None else replace(self, coins=seed(None))

    def bounds(
        self, in_scores: NDArray, out_scores: NDArray, hypotheses: Hypotheses, level: float
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Bounds on the second half at the threshold the first half chose."""
        if min(in_scores.shape[-1], out_scores.shape[-1]) < 4:
            raise InputError("splitting needs at least 4 scores in each data set")
        halves = []
        coins = self.tossed().coins
        assert coins is not None
        for world, scores in (("in", in_scores), ("out", out_scores)):
            n = scores.shape[-1]
            # Each audit's own halves.
            shuffled = stream(coins, "auditing", "split", world).permuted(scores, axis=-1)
            halves.append((shuffled[..., : n // 2], shuffled[..., n // 2 :]))
        (in_choose, in_bound), (out_choose, out_bound) = halves
        curve = empirical_curve(in_choose, out_choose)
        _, threshold = _best(curve, hypotheses, clopper_pearson_upper, level / 2)
        return _at(threshold, in_bound, out_bound, hypotheses, level), threshold


@dataclass(frozen=True)
class Bonferroni:
    """The best of all thresholds, the level shared out among them: valid.

    At a threshold that is itself a score of one data set the other's count is binomial given
    those scores, and the own rate at the r-th largest is Beta(r, n + 1 - r), which
    Clopper-Pearson bounds with room to spare; so every one of the n_in + n_out data-dependent
    thresholds fails with probability at most its share.
    """

    name = "Bonferroni"
    valid = True

    def bounds(
        self, in_scores: NDArray, out_scores: NDArray, hypotheses: Hypotheses, level: float
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        curve = empirical_curve(in_scores, out_scores)
        share = level / (2 * (curve.n_in + curve.n_out))
        return _best(curve, hypotheses, clopper_pearson_upper, share)


@dataclass(frozen=True)
class UniformBand:
    """The best of all thresholds, within bands that hold for the whole curve at once: valid.

    Each data set's band has half the level. kind: "beta" is equally tight at every count, "dkw" the
    Dvoretzky-Kiefer-Wolfowitz band, which cannot see small error rates.
    """

    kind: Literal["beta", "dkw"] = "beta"
    valid = True

    def __post_init__(self) -> None:
        if self.kind not in ("beta", "dkw"):
            raise InputError(f"kind: got {self.kind!r}; expected 'beta' or 'dkw'")

    @property
    def name(self) -> str:
        return f"uniform band, {self.kind}"

    def bounds(
        self, in_scores: NDArray, out_scores: NDArray, hypotheses: Hypotheses, level: float
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        curve = empirical_curve(in_scores, out_scores)
        return _best(curve, hypotheses, self.upper, level / 2)

    def upper(self, count: NDArray[np.int64], n: int, level: float) -> NDArray[np.float64]:
        """Upper confidence bounds on the rates with these counts, all at once."""
        return (band_upper if self.kind == "beta" else dkw_upper)(n, level)[count]


PUBLISHED = "as published"
"""Name of estimates by the rule of much published work."""


@dataclass(frozen=True)
class AsPublished:
    """The best threshold on the same scores, each interval at the full level: NOT valid.

    The estimator of much published work, kept to reproduce it. It claims more than the truth in
    more than ``level`` of the audits, the more so the more scores there are.
    """

    name = f"{PUBLISHED} (not valid)"
    valid = False

    def bounds(
        self, in_scores: NDArray, out_scores: NDArray, hypotheses: Hypotheses, level: float
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        curve = empirical_curve(in_scores, out_scores)
        return _best(curve, hypotheses, clopper_pearson_upper, level)


def _best(
    curve: EmpiricalCurve, hypotheses: Hypotheses, upper: Upper, level: float
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Largest of the bounds that all thresholds give, and the threshold that gives it."""
    positives, negatives = curve.false_positives, curve.false_negatives

    def bound(fp: NDArray[np.int64], fn: NDArray[np.int64]) -> NDArray[np.float64]:
        return hypotheses.violated(upper(fp, curve.n_out, level), upper(fn, curve.n_in, level))

    if curve.threshold.shape[-1] > MANY:
        best = np.empty((*curve.threshold.shape[:-1], 1), dtype=int)
        for audit in np.ndindex(*curve.threshold.shape[:-1]):
            best[audit] = _first_best(positives[audit], negatives[audit], bound, hypotheses.trivial)
        bounds = bound(*(np.take_along_axis(c, best, axis=-1) for c in (positives, negatives)))
    else:
        # Counts take few values, so each interval is computed once and looked up.
        corner = _corners(positives, negatives)
        fpr = upper(np.arange(curve.n_out + 1), curve.n_out, level)[positives[corner]]
        fnr = upper(np.arange(curve.n_in + 1), curve.n_in, level)[negatives[corner]]
        every = np.full(corner.shape, hypotheses.trivial)
        every[corner] = hypotheses.violated(fpr, fnr)
        best = np.argmax(_rank(every, hypotheses.trivial), axis=-1)[..., None]
        bounds = np.take_along_axis(every, best, axis=-1)
    return bounds[..., 0], np.take_along_axis(curve.threshold, best, axis=-1)[..., 0]


def _corners(positives: NDArray[np.int64], negatives: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Thresholds of which neither neighbour has fewer errors of one kind and as many of the other.

    positives, negatives: error counts at each threshold, descending and ascending. The best of all
    is among them, about a quarter. Of tied thresholds it is the first.
    """
    end = np.ones_like(positives[..., :1], dtype=bool)
    fewer, more = np.diff(positives, axis=-1) < 0, np.diff(negatives, axis=-1) > 0
    # The first and the last of each group of tied thresholds, which has one of either.
    first = np.concatenate((end, fewer | more), axis=-1)
    last = np.concatenate((fewer | more, end), axis=-1)
    fewer, more = np.concatenate((end, fewer), axis=-1), np.concatenate((more, end), axis=-1)
    corners = np.zeros_like(first)
    corners[first] = fewer[first] & more[last]
    return corners


def _rank(bounds: NDArray[np.float64], trivial: float) -> NDArray[np.float64]:
    return -bounds if trivial == np.inf else bounds


def _first_best(
    positives: NDArray[np.int64],
    negatives: NDArray[np.int64],
    bound: Callable[[NDArray[np.int64], NDArray[np.int64]], NDArray[np.float64]],
    trivial: float,
) -> int:
    """Position of the first of the best thresholds, with few of the bounds computed.

    positives, negatives: error counts at each threshold, descending and ascending. No threshold of
    a block is better than one with the errors of its last (false positives) and first (false
    negatives) would be, so blocks where that is not enough are left out, and the rest divided.
    """
    places = np.flatnonzero(_corners(positives, negatives))
    positives, negatives = positives[places], negatives[places]
    starts, width = np.zeros(1, dtype=int), len(places)
    best = nothing = float(_rank(np.array(trivial), trivial))
    while width > 1:
        parts = np.arange(0, width, -(-width // PARTS))
        ends = (starts[:, None] + np.append(parts[1:], width)).ravel()
        starts, width = (starts[:, None] + parts).ravel(), int(parts[1])
        # The last block may be shorter than the others, so that parts of it are empty.
        inside = starts < len(places)
        starts, ends = starts[inside], np.minimum(ends[inside], len(places)) - 1
        here = _rank(bound(positives[starts], negatives[starts]), trivial)
        reach = _rank(bound(positives[ends], negatives[starts]), trivial)
        best = max(best, float(here.max()))
        # Blocks that only reach the best stay, as the first of equal thresholds is sought.
        starts = starts[(reach >= best) & (reach > nothing)]
        if starts.size == 0:
            return 0
    return int(places[starts.min()])


def _at(
    threshold: NDArray[np.float64],
    in_scores: NDArray[np.float64],
    out_scores: NDArray[np.float64],
    hypotheses: Hypotheses,
    level: float,
    interval: Interval = "clopper-pearson",
) -> NDArray[np.float64]:
    """Bounds at one threshold for each audit."""
    false_positives = (out_scores >= threshold[..., None]).sum(axis=-1)
    false_negatives = (in_scores < threshold[..., None]).sum(axis=-1)
    n_out, n_in = out_scores.shape[-1], in_scores.shape[-1]
    if interval == "joint-beta":
        pairs = np.stack((false_positives.ravel(), false_negatives.ravel()), axis=1)
        # Counts repeat among audits, and each pair takes a search with an integral a step.
        distinct, inverse = np.unique(pairs, axis=0, return_inverse=True)
        values = [joint_beta(int(a), n_out, int(b), n_in, hypotheses, level) for a, b in distinct]
        return np.array(values)[inverse.ravel()].reshape(threshold.shape)
    upper = clopper_pearson_upper if interval == "clopper-pearson" else jeffreys_upper
    return hypotheses.violated(
        upper(false_positives, n_out, level / 2), upper(false_negatives, n_in, level / 2)
    )


def joint_beta(
    false_positives: int,
    n_out: int,
    false_negatives: int,
    n_in: int,
    hypotheses: Hypotheses,
    level: float,
) -> float:
    """Lower credible bound: largest parameter whose privacy region holds probability < ``level``.

    The two error rates are independent a posteriori, each Beta(errors + 1/2, others + 1/2). The
    privacy region of f is f(FPR) <= FNR; its posterior probability grows with the parameter, and
    the parameter at which it reaches ``level`` is that quantile of the parameter's posterior. The
    integral over the FPR runs over posterior quantiles, by Gauss-Legendre, so it needs no care
    about where the mass is.

    Source: Zanella-Béguelin et al. 2023, section 4. Theirs is two-sided and for epsilon; their
    region is cut off above as well, FNR <= 1 - f(1 - FPR), which has no mass at all at perfect
    privacy, so that scores without any signal would never give 0.
    """
    a, b = false_positives + 0.5, n_out - false_positives + 0.5
    fpr = betaincinv(a, b, (_NODES + 1) / 2)
    cdf = partial(betainc, false_negatives + 0.5, n_in - false_negatives + 0.5)

    def inside(index: int) -> bool:
        return float(np.sum(_WEIGHTS / 2 * (1 - cdf(hypotheses.fnr(index, fpr))))) >= level

    last = last_true(lambda index: not inside(index), len(hypotheses.grid))
    return hypotheses.trivial if last < 0 else float(hypotheses.grid[last])


def last_true(test: Callable[[int], bool], n: int) -> int:
    """Last index in 0..n-1 of a run of true that starts at 0, by bisection; -1 if none is."""
    low, high = -1, n
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if test(middle) else (low, middle)
    return low
