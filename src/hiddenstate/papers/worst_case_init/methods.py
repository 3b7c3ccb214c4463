"""Methods that judge the audits of worst_case_init: rules and their levels, by name."""

import numpy as np
from numpy.typing import NDArray

from hiddenstate.auditing import AsPublished, GaussianDP
from hiddenstate.auditing.methods import PUBLISHED, REPEATABLE
from hiddenstate.auditing.rules import LowerBoundRule

Floats = NDArray[np.float64]
LEVEL = 0.05
METHODS: dict[str, tuple[LowerBoundRule, float]] = {
    # Departure worst_case_init.one_sided: the text says 95 %, and not of which side.
    PUBLISHED: (AsPublished(), LEVEL),
    "two-sided": (AsPublished(), LEVEL / 2),
    "valid": (REPEATABLE, LEVEL),
}
"""Rules and their levels. "95 % confidence (Clopper-Pearson)" may mean one-sided or two-sided
intervals; the former is the main reading."""


def bounds(method: str, in_scores: Floats, out_scores: Floats) -> tuple[Floats, Floats]:
    """A method's bound on mu for each audit, and the threshold that gives it."""
    rule, level = METHODS[method]
    return rule.bounds(in_scores, out_scores, GaussianDP(), level)
