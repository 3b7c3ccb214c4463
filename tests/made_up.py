"""Helpers of made-up estimates: repeats whose mean and scatter are known exactly."""

import numpy as np


def repeats(mean, sd, n=5):
    """``n`` values with exactly this mean and this standard deviation."""
    spread = np.linspace(-1, 1, n)
    return mean + sd * spread / spread.std(ddof=1)
