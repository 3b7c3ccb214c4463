"""Made-up estimates of gradient_crafting, by check and outcome."""

CASES = {}
