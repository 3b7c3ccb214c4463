"""Made-up estimates of linear_heuristic, by check and outcome."""

CASES = {}
