"""The reference values of simulated audits, computed without the package.

A normal score, or the literal process of Section 6, in 5,000 models of each world, and the
published estimate: the best threshold on the same scores, each error rate at its one-sided
Clopper-Pearson bound of 97.5 %, mu from both, epsilon from mu. Prints a line for each setting.
"""

import sys

import numpy as np
from scipy.optimize import brentq
from scipy.special import betaincinv, log_ndtr, ndtr, ndtri

DELTA = 1e-5
MODELS = 5000

_counts = np.arange(MODELS)
_quantile = np.append(-ndtri(betaincinv(_counts + 1, MODELS - _counts, 0.975)), -np.inf)
"""Of each number of errors: minus the normal quantile of its upper bound."""


def epsilon(mu):
    def excess(e):
        return ndtr(-e / mu + mu / 2) - np.exp(e + log_ndtr(-e / mu - mu / 2)) - DELTA

    return brentq(excess, 0, mu * (mu / 2 + 10) + 10, xtol=1e-12) if mu > 1e-4 else 0.0


def calibrated(target):
    return brentq(lambda mu: epsilon(mu) - target, 1e-3, 30, xtol=1e-13)


def published(inside, outside):
    """mu of one audit by the published estimate."""
    present = np.argsort(np.concatenate((inside, outside))) < MODELS
    missed, false = np.cumsum(present), MODELS - np.cumsum(~present)
    return max(0.0, (_quantile[missed] + _quantile[false]).max())


def idle(target, every, audits, rng):
    """Epsilons that audits of an unused coordinate find; shape (audits,)."""
    mu = calibrated(target) / np.sqrt(every)
    drawn = (rng.standard_normal((2, MODELS)) for _ in range(audits))
    return np.array([epsilon(published(mu + a, b)) for a, b in drawn])


def landscape(target, batch_size, audits, rng, steps=25):
    """Epsilons that audits of the landscape's last iterate find; shape (audits,)."""
    mu = calibrated(target)
    found = []
    for _ in range(audits):
        x = rng.standard_normal((2, MODELS)) + np.array([[mu / 2], [-mu / 2]])
        for _ in range(steps - 1):
            x += batch_size * mu * np.sign(x) + rng.standard_normal(x.shape)
        found.append(epsilon(published(*x)))
    return np.array(found)


def main(audits, landscapes):
    rng = np.random.default_rng(20260801)

    def tell(name, exact, values):
        print(f"{name}: exact {exact:.4f}, mean {values.mean():.4f}, sd {values.std(ddof=1):.4f}")

    for every in (1, 5, 25):
        for target in (1, 4, 8, 10, 12, 24):
            exact = epsilon(calibrated(target) / np.sqrt(every))
            tell(f"idle k = {every}, {target}", exact, idle(target, every, audits, rng))
    for target, sizes in ((1, (1, 2, 4, 8)), (2, (1, 2, 4, 8)), (4, (1, 2, 4, 8)), (8, (1, 2, 4))):
        for size in sizes:
            found = landscape(target, size, landscapes, rng)
            tell(f"landscape B = {size}, {target}", np.nan, found)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
