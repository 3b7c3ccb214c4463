"""DP-SGD itself: theta <- theta - lr * (sum of clipped gradients + N(0, (sigma C)^2 I)).

Sums, not means, so that the data-set size, which differs with the canary, leaks nothing.
``cyclic`` follows its own paper: neighbours swap a record, and the step takes the batch's mean.
"""
