"""Scores that point the other way: lower with the canary than without it, as a loss is.

An audit takes larger scores to speak for "in". From scores that speak for "out" every valid bound
is 0 and no claim is refuted. So a claim that is not refuted is called consistent only if the scores
do not point the other way.

Two tests of one law for both data sets look for that, each at half of ``LEVEL``: the area under the
curve is too small (Mann and Whitney 1947), or too many in-scores are below all out-scores. Where
the highest scores, too, are mostly in-scores, nothing is reported. At most one in a thousand
trainings that leak nothing is reported.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import bdtr, bdtrc

from hiddenstate.auditing.averaged import break_ties, tied
from hiddenstate.auditing.curve import Coins, seed
from hiddenstate.auditing.intervals import LEAST
from hiddenstate.streams import stream

LEVEL = 1e-3
"""Probability that scores of one law in both data sets are said to point the other way, at most."""

SHOWN = 0.05
"""Scores that show the canary at this level in the audit's direction do not point the other way."""

TOSSES = 16
"""Sets of coins that break ties between in- and out-scores."""

EXACT = 2_500
"""Pairs of scores up to which the law of the area is computed and not approximated."""


class OtherWayWarning(UserWarning):
    """Scores that point the other way prove nothing."""


@dataclass(frozen=True)
class OtherWay:
    """Scores, or guesses, that point the other way.

    share: probability that an in-score is above an out-score (a tie counts half), or the share of
    right guesses. p_value: how probable that is, at most, if nothing leaks.
    """

    share: float
    p_value: float
    guesses: bool = False

    def __str__(self) -> str:
        found = (
            f"{100 * self.share:.2g} % of the guesses are right"
            if self.guesses
            else f"an in-score is above an out-score with probability {self.share:.2g}"
        )
        return (
            f"the scores point the other way: {found} (p-value {self.p_value:.1g} if nothing "
            "leaks). An audit takes larger scores to speak for 'in', so they do not support the "
            "claim. A score that is smaller with the canary, such as a loss, needs a minus sign. "
            "Choosing the sign now doubles the probability of a false refutation"
        )


def other_way(
    in_scores: NDArray[np.float64], out_scores: NDArray[np.float64], coins: Coins = None
) -> OtherWay | None:
    """Sign that these scores, shapes (n_in,) and (n_out,), point the other way; else None."""
    tosses: list[Coins] = [coins]
    if coins != "against" and tied(in_scores, out_scores).any():
        tosses = [
            int(each) for each in stream(seed(coins), "other way").integers(2**32, size=TOSSES)
        ]
    broken = [break_ties(in_scores, out_scores, each) for each in tosses]
    # One set of coins names equal scores too often; twice the mean of p-values is a p-value.
    p_value = float(np.mean([_same_law(-into, -out) for into, out in broken]))
    p_value *= 2 if len(tosses) > 1 else 1
    if p_value > LEVEL or np.mean([_same_law(into, out) for into, out in broken]) <= SHOWN:
        return None
    ordered = np.sort(out_scores)
    below = [np.searchsorted(ordered, in_scores, side).mean() for side in ("left", "right")]
    return OtherWay(float(sum(below)) / 2 / len(out_scores), p_value)


def guessed_other_way(made: int, correct: int) -> OtherWay | None:
    """Sign that the guesses of an audit in one run point the other way; None if there is none."""
    p_value = max(LEAST, float(bdtr(correct, made, 0.5))) if made else 1.0
    return OtherWay(correct / made, p_value, guesses=True) if p_value <= LEVEL else None


def known_other_way(reached: NDArray[np.float64], exceeded: NDArray[np.float64]) -> OtherWay | None:
    """The same for scores whose law without the canary is known.

    reached, exceeded: probability that an out-score is at least as high as each score, and higher.
    """
    # Out-scores are so low with a probability of a half at most, also where they have atoms.
    low = int((exceeded > 0.5).sum())
    p_value = max(LEAST, float(bdtrc(low - 1, len(exceeded), 0.5)))
    share = float(1 - (reached + exceeded).mean() / 2)
    return OtherWay(share, p_value) if p_value <= LEVEL else None


def _same_law(into: NDArray[np.float64], out: NDArray[np.float64]) -> float:
    """p-value of one law for both data sets, against larger or highest in-scores."""
    from scipy.stats import mannwhitneyu

    method = "exact" if len(into) * len(out) <= EXACT else "asymptotic"
    area = float(mannwhitneyu(into, out, alternative="greater", method=method).pvalue)
    n, m = len(into), len(out)
    top = int((into > out.max()).sum())
    # The highest scores are all of one data set: drawn without putting back.
    choose = [math.lgamma(k + 1) for k in (n, n - top, n + m, n + m - top)]
    highest = math.exp(choose[0] - choose[1] - choose[2] + choose[3])
    return min(1.0, max(LEAST, 2 * min(area, highest)))
