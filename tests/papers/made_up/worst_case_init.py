"""Made-up estimates of worst_case_init, by check and outcome."""

CASES = {}
