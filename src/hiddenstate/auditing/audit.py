"""The one call of an audit: scores in, a bound out that says what it is."""

import warnings
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from hiddenstate.auditing.averaged import Averaged, tied
from hiddenstate.auditing.curve import check_confidence, check_one
from hiddenstate.auditing.hypotheses import Hypotheses
from hiddenstate.auditing.other_way import OtherWayWarning, other_way
from hiddenstate.auditing.rules import LowerBoundRule, Split


@dataclass(frozen=True)
class LowerBound:
    """A statement on privacy from scores, and how far it can be trusted.

    parameter: what is bounded, such as "epsilon". value: the bound; the trivial one (0, or
    infinity for a noise multiplier) when the scores contradict nothing. direction: "lower" if the
    truth is at least ``value``, "upper" if at most (a noise multiplier). confidence: at least this
    share of such audits is right, if ``valid``; otherwise the word is only nominal. threshold: the
    score of the test the bound comes from, NaN if it comes from many. coins: seed of what chance
    decided, ties or halves; None where it decided nothing.
    """

    parameter: str
    value: float
    direction: str
    confidence: float
    method: str
    valid: bool
    threshold: float
    coins: int | None = None


def lower_bound(
    in_scores: ArrayLike,
    out_scores: ArrayLike,
    hypotheses: Hypotheses,
    rule: LowerBoundRule | None = None,
    *,
    confidence: float = 0.95,
) -> LowerBound:
    """Lower bound on the leakage that the scores prove, in the parameter of ``hypotheses``.

    in_scores, out_scores: shapes (n_in,), (n_out,), independent runs with and without the canary;
    larger speaks for "in". rule: ``Averaged()``, the package's default, unless given. Where scores
    of the two data sets are equal, coins of a new seed break the ties; the result has the seed, and
    ``Averaged(coins=seed)`` gives the same again. Scores that point the other way prove nothing,
    and a warning says so. Raises InputError for unusable scores or confidence.
    """
    in_scores, out_scores = check_one(in_scores, out_scores)
    confidence = check_confidence(confidence)
    rule = rule or Averaged()
    coins = None
    if isinstance(rule, Averaged):
        rule = rule.tossed(in_scores, out_scores)
        coins = rule.coins if tied(in_scores, out_scores) else None
    elif isinstance(rule, Split):
        rule = rule.tossed()
        coins = rule.coins
    values, thresholds = rule.bounds(in_scores, out_scores, hypotheses, 1 - confidence)
    if values == hypotheses.trivial and (found := other_way(in_scores, out_scores, coins)):
        warnings.warn(str(found), OtherWayWarning, stacklevel=2)
    return LowerBound(
        parameter=hypotheses.parameter,
        value=float(values),
        direction="upper" if hypotheses.trivial == np.inf else "lower",
        confidence=confidence,
        method=rule.name,
        valid=rule.valid,
        threshold=float(thresholds),
        coins=None if coins == "against" else coins,
    )
