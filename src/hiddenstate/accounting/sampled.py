"""The last iterate of DP-SGD with sampled batches: an upper bound for convex losses.

Shifted interpolation (Bok, Su and Altschuler 2024, arXiv 2403.00278, noisy SGD; Altschuler and
Talwar 2022) with Poisson sampling and add/remove adjacency. In units of learning rate times
clipping norm a step is x <- proj(x - sum of gradients + N(0, sigma^2 I)); a record adds at most 1
with probability q. Let a step without it take two iterates to a distance of at most c <= 1 times
theirs: convex losses whose gradients clipping never changes (``cyclic_operator.contraction``).
Split the noise of each of the last K steps into variances (1 - beta) sigma^2 and beta sigma^2.
The first part hides the record, as in K steps whose iterates are all released at the noise
multiplier sigma sqrt(1 - beta); the second hides the shift R that the steps before have left, at
the price of mu^2 = (c R)^2 theta_c(K) / (beta sigma^2). Two runs are never further apart than the
domain's diameter, nor than 1 / (1 - c). Proof: docs/cyclic-bounds.md, section 6.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from hiddenstate.accounting import cyclic, cyclic_operator, linear, pld
from hiddenstate.errors import InputError, expect

SHARES = np.linspace(0.02, 0.9, 45)
"""Shares beta of the noise that may hide the shift."""


@dataclass(frozen=True, kw_only=True)
class SampledDPSGD:
    """DP-SGD whose steps sample each record independently, and what is assumed of its losses.

    ``learning_rate`` multiplies the noisy sum of gradients of norm at most ``clipping_norm``. The
    curvatures hold for what a step descends whatever the batch, which may be empty: the smoothness
    of the largest sum, and the strong convexity of a regulariser that is in every step. Without a
    smoothness nothing is assumed of the losses.
    """

    noise_multiplier: float
    sampling_rate: float
    steps: int
    learning_rate: float = 1.0
    clipping_norm: float = 1.0
    smoothness: float | None = None
    strong_convexity: float = 0.0
    diameter: float | None = None

    def __post_init__(self) -> None:
        linear.check_mechanism(self.noise_multiplier, self.sampling_rate, self.steps)
        for name in ("learning_rate", "clipping_norm", "smoothness", "diameter"):
            value = getattr(self, name)
            if value is not None:
                least = "a number >= 0" if name == "smoothness" else "a number > 0"
                fine = value >= 0 if name == "smoothness" else value > 0
                expect(fine and value < math.inf, name, value, least)

    @property
    def mechanism(self) -> tuple[float, float, int]:
        """Noise multiplier, sampling rate and steps."""
        return self.noise_multiplier, self.sampling_rate, self.steps


def convex(run: SampledDPSGD, delta: float) -> float:
    """Upper bound on epsilon of the last iterate of convex losses that clipping never changes.

    The best of splits of the noise and numbers of last steps, chosen by an approximation; what is
    returned is dp-accounting's bound of the one chosen. Raises an input error without a smoothness,
    a diameter or strong convexity, and where a step does not contract.
    """
    linear.check_delta(delta)
    if run.smoothness is None:
        raise InputError("smoothness: got none; expected that of convex losses")
    factor = cyclic_operator.contraction(run.learning_rate, run.strong_convexity, run.smoothness)
    apart = [] if run.diameter is None else [run.diameter / run.learning_rate / run.clipping_norm]
    if factor < 1:
        apart.append(1 / (1 - factor))
    expect(bool(apart), "diameter", run.diameter, "a number, or losses that are strongly convex")
    steps, share = _chosen(run, factor, min(apart))
    mu = _shift(run, factor, min(apart), steps, share)
    return _composed(run, steps, share, mu, delta)


def _shift(run: SampledDPSGD, factor: float, shift: float, steps: int, share: float) -> float:
    """Gaussian differential privacy of hiding the shift in the last steps, rounded up."""
    theta = float(cyclic.contracted_fraction(factor, steps))
    return shift * math.sqrt(theta / share) / run.noise_multiplier * (1 + 1e-12)


def _chosen(run: SampledDPSGD, factor: float, shift: float) -> tuple[int, float]:
    """Number of last steps and share of the noise, by the central limit of the losses."""
    every = np.unique(np.geomspace(1, run.steps, 200).astype(int))
    best = (math.inf, run.steps, float(SHARES[0]))
    for steps in every.tolist():
        mu = np.array([_shift(run, factor, shift, steps, float(b)) for b in SHARES])
        variance = run.noise_multiplier**2 * (1 - SHARES)
        spread = run.sampling_rate**2 * np.expm1(np.minimum(1 / variance, 50))
        total = mu**2 + steps * spread
        at = int(np.argmin(total))
        best = min(best, (float(total[at]), steps, float(SHARES[at])))
    return best[1:]


def _composed(run: SampledDPSGD, steps: int, share: float, mu: float, delta: float) -> float:
    """Epsilon of ``steps`` sampled steps and one Gaussian mechanism, by dp-accounting."""
    # Imported here because it takes a second and most commands never account.
    from dp_accounting.pld import privacy_loss_distribution

    noise = run.noise_multiplier * math.sqrt(1 - share) * (1 - 1e-15)
    least = pld.least_delta(steps + 1)
    expect(delta >= least, "delta", delta, f"at least {least:.2g} for {steps} steps")
    interval = pld.fine_interval(noise, run.sampling_rate, steps)
    hidden: Any = pld.privacy_loss(noise, run.sampling_rate, steps, interval=interval)
    spent = privacy_loss_distribution.from_gaussian_mechanism(
        1 / mu, value_discretization_interval=interval
    )
    return float(hidden.compose(spent).get_epsilon_for_delta(delta - least / 100))
