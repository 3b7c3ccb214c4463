"""Laws of last iterates on an interval that steps are projected on, by a Markov chain.

Where iterates are projected the ends are atoms. Within the interval a cell's mass sits at its
middle, which moves a divergence by the square of its width.
"""

import math

import numpy as np
from scipy.optimize import brentq
from scipy.special import ndtr


def step(move, width, sigma, push=0.0, cells=601):
    """Transitions of x -> projection of move(x) + push + N(0, sigma^2) on [-width/2, width/2]."""
    edges = np.linspace(-width / 2, width / 2, cells + 1)
    points = np.concatenate((edges[:1], (edges[1:] + edges[:-1]) / 2, edges[-1:]))
    below = ndtr((edges[None, :] - (move(points) + push)[:, None]) / sigma)
    return np.hstack((below[:, :1], np.diff(below, axis=1), 1 - below[:, -1:]))


def last_iterate(steps):
    """Law after these transitions, from the lower end."""
    law = np.zeros(len(steps[0]))
    law[0] = 1
    for one in steps:
        law = law @ one
    return law


def epsilon(p, q, delta):
    """Exact epsilon at ``delta`` of two laws."""

    def excess(epsilon):
        one = np.maximum(p - math.exp(epsilon) * q, 0).sum()
        return max(one, np.maximum(q - math.exp(epsilon) * p, 0).sum()) - delta

    return brentq(excess, 0, 50) if excess(0) > 0 else 0.0
