"""Parts that the checks of several topics share."""

CLOSE = 0.1
"""Relative distance at which two epsilons of a figure whose axis ends at 8 are close: a tenth."""

SAME = 1e-3
"""Relative accuracy to which noise is calibrated and compositions are computed, with room."""

HALF = 0.5
"""Of a quantity, or of settings: "most" are more, and "much lower" is less."""
