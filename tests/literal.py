"""Algorithm 1 of *The Last Iterate Advantage*, step by step, on constant gradients."""

import numpy as np


def last_iterates(canary, others, sigma, rate, steps, runs, random, regulariser=None):
    """Last iterates (runs, d), from zero, at learning rate and clipping norm one.

    canary: its gradient (d,); zeros where it is absent. others: the other records' gradients
    (n, d). regulariser: the gradient of models (runs, d) that is added to each step, not clipped.
    """
    gradients = np.concatenate((canary[None, :], others))
    gradients = gradients / np.maximum(1, np.linalg.norm(gradients, axis=1, keepdims=True))
    model = np.zeros((runs, len(canary)))
    for _ in range(steps):
        update = (random.random((runs, len(gradients))) < rate) @ gradients
        if regulariser is not None:
            update = update + regulariser(model)
        model = model - update - sigma * random.standard_normal(model.shape)
    return model
