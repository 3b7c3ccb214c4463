"""Made-up estimates of cyclic_bounds, by check and outcome."""

CASES = {}
