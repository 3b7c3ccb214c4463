"""Summaries of an attack's scores, with intervals that hold for every number of scores.

None of these bounds the mechanism from above: another attack may do better.
"""

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import betaincinv, rel_entr

from hiddenstate.auditing.curve import check_confidence, check_one
from hiddenstate.auditing.hypotheses import number
from hiddenstate.auditing.intervals import clopper_pearson_upper
from hiddenstate.auditing.rules import last_true
from hiddenstate.errors import InputError


@dataclass(frozen=True)
class Interval:
    """An estimate and a two-sided interval that misses the truth with 1 - confidence at most."""

    quantity: str
    value: float
    low: float
    high: float
    confidence: float


def separation(in_scores: ArrayLike, out_scores: ArrayLike) -> tuple[float, float]:
    """Difference of the mean scores over their standard deviation, and its standard error.

    in_scores, out_scores: shapes (n_in,), (n_out,). Of a mechanism that is mu-Gaussian
    differentially private and releases scores with Gaussian noise it is about mu at most. Other
    scores may exceed mu: it tells tight from loose, no more. Of scores that do not vary within
    either data set it is infinite, and NaN if all are equal.
    """
    into, out = check_one(in_scores, out_scores)
    # Powers of two change no digits, and keep the squares of the deviations within numbers.
    _, exponent = np.frexp(max(np.ptp(into / 2), np.ptp(out / 2)))
    with np.errstate(all="ignore"):
        (mean_in, square_in), (mean_out, square_out) = (
            _moments(np.ldexp(scores, -exponent)) for scores in (into, out)
        )
        value = float((mean_in - mean_out) / np.sqrt((square_in + square_out) / 2))
        return value, float(separation_error(value, 2 / (1 / len(into) + 1 / len(out))))


def _moments(scores: NDArray[np.float64]) -> tuple[np.float64, np.float64]:
    """Mean and variance; those of equal scores, whose sum may be rounded, are exact."""
    if (scores == scores[0]).all():
        return scores[0], np.float64(0)
    return scores.mean(), scores.var(ddof=1)


def separation_error(separation: ArrayLike, models: float) -> NDArray[np.float64]:
    """Standard error of the separation of so many normal scores in each data set."""
    return np.sqrt(2 / models * (1 + np.asarray(separation, dtype=float) ** 2 / 8))


def auc(in_scores: ArrayLike, out_scores: ArrayLike, *, confidence: float = 0.95) -> Interval:
    """Probability that an in-score is above an out-score, a tie counted half.

    in_scores, out_scores: shapes (n_in,), (n_out,). The interval inverts the exponential bound of
    Hoeffding 1963 (Theorem 1, for U-statistics by section 5b): the estimate strays from the truth a
    by relative entropy d with probability exp(-min(n_in, n_out) d(estimate, a)) at most, each way.
    """
    from scipy.optimize import brentq

    into, out = check_one(in_scores, out_scores)
    confidence = check_confidence(confidence)
    sides: tuple[Literal["left", "right"], ...] = ("left", "right")
    ordered, sought = np.sort(out), np.sort(into)
    below, below_or_tied = (int(np.searchsorted(ordered, sought, side).sum()) for side in sides)
    value = (below + below_or_tied) / 2 / len(into) / len(out)
    room = np.log(2 / (1 - confidence)) / min(len(into), len(out))

    def excess(truth: float) -> float:
        return float(rel_entr(value, truth) + rel_entr(1 - value, 1 - truth) - room)

    tiny = 1e-15
    low = brentq(excess, tiny, value) if value > tiny and excess(tiny) > 0 else 0.0
    high = brentq(excess, value, 1 - tiny) if value < 1 - tiny and excess(1 - tiny) > 0 else 1.0
    return Interval("AUC", value, float(low), float(high), confidence)


def tpr(
    in_scores: ArrayLike, out_scores: ArrayLike, fpr: float, *, confidence: float = 0.95
) -> Interval:
    """Largest true-positive rate of a threshold on the score at this false-positive rate.

    in_scores, out_scores: shapes (n_in,), (n_out,). The r-th highest out-score has a false-positive
    rate of Beta(r, n_out + 1 - r), so ranks exist whose thresholds err less, or more, than ``fpr``
    except for a quarter of the level each; given those, the in-scores above are binomial
    (Clopper and Pearson 1934, a quarter of the level each).
    """
    into, out = check_one(in_scores, out_scores)
    confidence = check_confidence(confidence)
    if not 0 < number("fpr", fpr) < 1:
        raise InputError(f"fpr: got {fpr}; expected a rate inside (0, 1)")
    n_in, n_out, share = len(into), len(out), (1 - confidence) / 4
    highest = np.sort(out)[::-1]

    def rate_below(index: int, confidence: float) -> float:
        """Upper limit of the false-positive rate at ``highest[index]``, with this confidence."""
        return float(betaincinv(index + 1, n_out - index, confidence))

    # Each limit takes the rank on its safe side, and counts tied in-scores against itself.
    strict = last_true(lambda index: rate_below(index, 1 - share) <= fpr, n_out)
    loose = 1 + last_true(lambda index: rate_below(index, share) < fpr, n_out)
    low, high = 0.0, 1.0
    if strict >= 0:
        above = int((into > highest[strict]).sum())
        low = 1 - float(clopper_pearson_upper(n_in - above, n_in, share))
    if loose < n_out:
        above = int((into >= highest[loose]).sum())
        high = float(clopper_pearson_upper(above, n_in, share))
    # Rounding must not take a whole product below itself.
    allowed = math.floor(fpr * n_out * (1 + 1e-12))
    threshold = highest[allowed] if allowed < n_out else -np.inf
    value = float((into > threshold).mean())
    return Interval(f"TPR at FPR {fpr:g}", value, low, high, confidence)
