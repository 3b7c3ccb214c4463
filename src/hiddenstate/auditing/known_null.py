"""Audits without out-models, where the law of the out-scores is known exactly."""

import warnings
from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hiddenstate.auditing.audit import LowerBound
from hiddenstate.auditing.averaged import Averaged
from hiddenstate.auditing.curve import check_confidence, one_audit
from hiddenstate.auditing.hypotheses import Hypotheses
from hiddenstate.auditing.other_way import OtherWayWarning, known_other_way
from hiddenstate.errors import InputError


def known_null_bound(
    in_scores: ArrayLike,
    exceeded: Callable[[NDArray[np.float64]], ArrayLike],
    hypotheses: Hypotheses,
    *,
    confidence: float = 0.95,
) -> LowerBound:
    """Lower bound on the leakage from in-scores alone, given the exact law of the out-scores.

    in_scores: shape (n,). exceeded: the probability that an out-score is at least as high as each
    value, such as ``scipy.stats.norm.sf`` for standard Gaussian out-scores; with atoms, their
    probability counts in. The bound is valid only as far as this law is exact: known from how the
    mechanism is built (the canary's gradient in a coordinate that no record touches, a simulated
    mechanism), never fitted to scores. The proof is in ``hiddenstate.auditing.averaged``. Raises
    InputError for scores, a confidence or probabilities that are unusable.
    """
    scores = one_audit("in_scores", in_scores)
    level = 1 - check_confidence(confidence)
    shares = np.asanyarray(exceeded(scores))
    # Of complex numbers a half would be dropped, and of masked ones the mask.
    real = shares.dtype.kind in "biuf" and not np.ma.is_masked(shares)
    known = real and shares.shape == scores.shape and np.all((shares >= 0) & (shares <= 1))
    shares = np.asarray(shares, dtype=float) if known else shares
    if not known:
        raise InputError(
            f"exceeded: got {shares!r:.80}; expected a probability for each of {len(scores)} scores"
        )
    if np.any(np.diff(shares[np.argsort(scores)]) > 1e-12):
        raise InputError("exceeded: grows with the score; expected the upper tail of a law")
    calibration = Averaged().sized((len(scores), 0), hypotheses, level)
    values, _ = calibration.bounds(calibration.observed_known(shares))
    if values == hypotheses.trivial:
        above = np.asarray(exceeded(np.nextafter(scores, np.inf)), dtype=float)
        if found := known_other_way(shares, above):
            warnings.warn(str(found), OtherWayWarning, stacklevel=2)
    return LowerBound(
        parameter=hypotheses.parameter,
        value=float(values),
        direction="upper" if hypotheses.trivial == np.inf else "lower",
        confidence=float(confidence),
        method="averaged, known null law",
        valid=True,
        threshold=float("nan"),
    )
