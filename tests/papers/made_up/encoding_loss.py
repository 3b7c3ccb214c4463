"""Made-up estimates of encoding_loss, by check and outcome."""

CASES = {}
