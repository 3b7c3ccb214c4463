"""Made-up estimates of atlas, by check and outcome."""

CASES = {}
