"""The heuristic's curve against three other ways to compute it.

All compute epsilon at delta 1e-6 of Binomial(T, q) + N(0, sigma^2 T) against N(0, sigma^2 T), for
60 numbers of steps T from 1 to 10,000, sigma = 0.5, q = 0.01 (Figure 1c of *The Last Iterate
Advantage*):

- dp-accounting's privacy loss distribution of a mixture of Gaussians. It is pessimistic: its
  epsilon lies above the exact one by less than its discretisation interval.
- dp-accounting's divergence of a mixture of Gaussians, solved for epsilon by SciPy. Asked for one
  epsilon alone it can be far too small, so it is asked for far ones beside it.
- a plain SciPy sum over the number of samples, solved for epsilon by SciPy. It loses digits
  where its two terms cancel.

``--every 6`` measures the first at every sixth point alone, and says so.
"""

import argparse
import math
import time
from collections.abc import Callable

import numpy as np
from dp_accounting.pld import privacy_loss_distribution, privacy_loss_mechanism
from scipy.optimize import brentq
from scipy.special import logsumexp, ndtr
from scipy.stats import binom

from hiddenstate.accounting.linear import last_iterate_epsilon

SIGMA, RATE, DELTA, POINTS, INTERVAL = 0.5, 0.01, 1e-6, 60, 1e-3


def curve_steps() -> np.ndarray:
    """POINTS distinct integers from 1 to 10,000, as even on a logarithmic axis as they can be."""
    many = POINTS
    while len(steps := np.unique(np.geomspace(1, 10_000, many).round().astype(int))) < POINTS:
        many += 1
    return steps


def oracle(steps: int) -> float:
    """Epsilon of the same pair by dp-accounting, pessimistic."""
    k = np.arange(steps + 1.0)
    loss = privacy_loss_distribution.from_mixture_gaussian_mechanism(
        SIGMA * math.sqrt(steps),
        k,
        binom.pmf(k, steps, RATE),
        value_discretization_interval=INTERVAL,
    )
    return float(loss.get_epsilon_for_delta(DELTA))


def divergence(steps: int) -> float:
    """Epsilon of the same pair by dp-accounting's divergence, one direction (the larger here)."""
    k = np.arange(steps + 1.0)
    mass = binom.pmf(k, steps, RATE)
    likely = mass > 0  # others it refuses
    loss = privacy_loss_mechanism.MixtureGaussianPrivacyLoss(
        SIGMA * math.sqrt(steps),
        k[likely],
        mass[likely],
        adjacency_type=privacy_loss_mechanism.AdjacencyType.REMOVE,
    )
    return _solve(
        lambda epsilon: float(loss.get_delta_for_epsilon([1e-9, epsilon, epsilon + 200])[1])
    )


def plain_sum(steps: int) -> float:
    """Epsilon of the same pair from a SciPy sum, one direction (the larger one here)."""
    k, s = np.arange(steps + 1.0), SIGMA * math.sqrt(steps)
    weights, log_weights = binom.pmf(k, steps, RATE), binom.logpmf(k, steps, RATE)

    def delta(epsilon: float) -> float:
        def excess(y: float) -> float:
            return float(logsumexp(log_weights + (y - k / 2) * k / s**2)) - epsilon

        y = brentq(excess, -50 * s, steps + 50 * s)
        return float(weights @ ndtr((k - y) / s) - math.exp(epsilon) * ndtr(-y / s))

    return _solve(delta)


def _solve(delta: Callable[[float], float]) -> float:
    """The epsilon at which the decreasing ``delta`` is DELTA."""
    return float(brentq(lambda epsilon: delta(epsilon) - DELTA, 1e-9, 60, xtol=1e-9))


def main() -> None:
    """Print a row for each point that the first was measured at, and the ratios of the times."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--every", type=int, default=1, help="measure the oracle at every n-th")
    every = parser.parse_args().every
    steps = curve_steps()
    start = time.perf_counter()
    ours = last_iterate_epsilon(SIGMA, RATE, steps, DELTA)
    fast = time.perf_counter() - start
    print("steps,epsilon,distribution_minus_epsilon,distribution_seconds")
    slow, above = 0.0, []
    for i in range(len(steps) - 1, -1, -every):
        start = time.perf_counter()
        theirs = oracle(int(steps[i]))
        seconds = time.perf_counter() - start
        slow += seconds
        above.append(theirs - ours[i])
        print(f"{steps[i]},{ours[i]:.9f},{above[-1]:.2e},{seconds:.2f}", flush=True)
    print(f"hiddenstate, {len(steps)} points: {fast:.3f} s")
    print(f"dp-accounting, distribution, {len(above)} of {len(steps)} points: {slow:.1f} s")
    print(f"ratio: {'at least ' if every > 1 else ''}{slow / fast:.0f}")
    print(f"distribution minus exact epsilon: {min(above):.2e} to {max(above):.2e}")
    for name, other in (("dp-accounting, divergence", divergence), ("SciPy sum", plain_sum)):
        start = time.perf_counter()
        theirs = np.array([other(int(t)) for t in steps])
        seconds = time.perf_counter() - start
        furthest = np.max(np.abs(theirs - ours))
        print(f"{name}, {len(steps)} points: {seconds:.3f} s, {seconds / fast:.1f} times as long")
        print(f"  differs by at most {furthest:.2e}")


if __name__ == "__main__":
    main()
