"""Made-up estimates of estimators, by check and outcome."""

CASES = {}
