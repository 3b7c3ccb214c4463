"""Numbers that the paper prints."""

QUADRATIC = {0.0: 2.222, 0.5: 2.274, 1.0: 2.182}
"""Curvature and epsilon, section 4.2."""
