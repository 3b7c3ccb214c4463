"""Theorems and displayed formulas, beside integrals of the densities that they are of."""

import pandas as pd

from hiddenstate.pipeline.estimates import select
from hiddenstate.pipeline.evidence import Within
from hiddenstate.pipeline.family import Check, Found, check, needed

SAME = 1e-4
"""Relative accuracy of the integrals, with room."""


def _values(
    estimates: pd.DataFrame, name: str, what: str, low: float, high: float, reason: str
) -> Found:
    """Every number of a sentence lies in its region; the least and the largest are shown."""
    values = needed(select(estimates, quantity="theorem", method=name)["value"])
    for which, value in (("least", values.min()), ("largest", values.max())):
        yield Within(f"{which} {what}", value, low, high, reason)
    return f"{len(values)} mechanisms or epsilons."


def _sentence(name: str, what: str, low: float, high: float, reason: str) -> Check:
    return check(_values, name=name, what=what, low=low, high=high, reason=reason)


_EQUAL = (1 - SAME, 1 + SAME, "equal, to the accuracy of the integral")
theorem_1 = _sentence(
    "shorter gradients",
    "delta of a linear loss with shorter gradients over equation 2",
    0,
    1,
    "private at equation 2",
)
theorem_1_tight = _sentence(
    "tightness", "delta of the one-dimensional loss over equation 2", *_EQUAL
)
inversion = _sentence("inversion", "epsilon at that delta less epsilon", -1e-6, 1e-6, "inverted")
first_expression = _sentence("first expression", "expression over the divergence", *_EQUAL)
second_expression = _sentence("second expression", "expression over the divergence", *_EQUAL)
monotone_loss = _sentence(
    "monotone loss", "rise of the privacy loss", 1e-12, float("inf"), "monotone"
)
full_batch_gdp = _sentence("full batch", "delta over that of Gaussian DP", *_EQUAL)
isotropic = _sentence("isotropic", "delta of two iterates over that of their sum", *_EQUAL)
single_iteration = _sentence("single iteration", "delta over that of one iteration", *_EQUAL)
linear_losses = _sentence("linear losses", "delta over that of linear losses", *_EQUAL)
support = _sentence("support", "number of values over 2^T", 1, 1, "2^T values")
history_variance = _sentence(
    "variance", "relative distance from the sum of the variances", 0, 1e-12, "equal"
)
history_limit = _sentence(
    "limit", "relative distance from sigma at the largest factor", 0, 1e-9, "converges"
)
