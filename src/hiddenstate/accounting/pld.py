"""DP-SGD whose intermediate iterates are released: composition by privacy loss distributions.

The mechanism is the Poisson-subsampled Gaussian mechanism composed over the steps. All numbers
come from dp-accounting with pessimistic rounding (connect-the-dots), so every epsilon and delta
is an upper bound and every false-negative rate a lower bound.
"""

import math
from collections.abc import Collection
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hiddenstate.accounting import tradeoff
from hiddenstate.accounting.tradeoff import TradeoffCurve

Null = Literal["out", "in", "either"]

INTERVAL = 1e-3
"""Spacing of the privacy losses; the bounds on epsilon are about this much above the truth.

It must resolve the losses of a single step: at a small sampling rate those of null "in" are all
below the sampling rate, and a coarser grid composes to nonsense, if pessimistic nonsense.
"""


def privacy_loss(
    noise_multiplier: float,
    sampling_rate: float,
    steps: int,
    *,
    null: Null = "either",
    interval: float = INTERVAL,
):
    """Privacy loss distribution of all iterates (a dp-accounting object, pessimistic).

    ``null="out"`` bounds P_in(S) - e^epsilon P_out(S), ``"in"`` the reverse, ``"either"`` the
    larger of the two, which is what add/remove adjacency asks for.
    """
    # Imported here because it takes seconds and most commands never account.
    from dp_accounting.pld import pld_pmf, privacy_loss_distribution, privacy_loss_mechanism

    if null == "either":
        single = privacy_loss_distribution.from_gaussian_mechanism(
            noise_multiplier, sampling_prob=sampling_rate, value_discretization_interval=interval
        )
        return single.self_compose(steps) if steps > 1 else single
    adjacency = privacy_loss_mechanism.AdjacencyType
    loss = privacy_loss_mechanism.GaussianPrivacyLoss(
        noise_multiplier,
        sampling_prob=sampling_rate,
        adjacency_type=adjacency.REMOVE if null == "out" else adjacency.ADD,
    )
    bounds = loss.connect_dots_bounds()
    lower = math.floor(bounds.epsilon_lower / interval)
    upper = math.ceil(bounds.epsilon_upper / interval)
    pmf = pld_pmf.create_pmf_pessimistic_connect_dots_fixed_gap(
        interval, lower, upper, loss.get_delta_for_epsilon(np.arange(lower, upper + 1) * interval)
    )
    single = privacy_loss_distribution.PrivacyLossDistribution(pmf)
    return single.self_compose(steps) if steps > 1 else single


def epsilon(
    noise_multiplier: float,
    sampling_rate: float,
    steps: int,
    delta: float,
    *,
    interval: float = INTERVAL,
) -> float:
    """Upper bound on epsilon at ``delta`` when all iterates are released (add/remove)."""
    loss = privacy_loss(noise_multiplier, sampling_rate, steps, interval=interval)
    return float(loss.get_epsilon_for_delta(delta))


def noise_multiplier(
    epsilon: float, delta: float, sampling_rate: float, steps: int, *, interval: float = INTERVAL
) -> float:
    """Noise multiplier whose epsilon at ``delta`` is at most ``epsilon``, and within 1e-4 of it."""
    return float(noise_multipliers([epsilon], delta, sampling_rate, steps, interval=interval)[0])


def noise_multipliers(
    epsilons: ArrayLike,
    delta: float,
    sampling_rate: float,
    steps: int,
    *,
    interval: float = INTERVAL,
) -> NDArray[np.float64]:
    """Noise multiplier of each epsilon, shape (n,): never too small, at most 1e-4 too private.

    Epsilon is smooth in the noise multiplier on logarithmic axes, so each secant search starts
    from the previous solution and needs two or three evaluations.
    """
    tolerance = 1e-4

    def log_epsilon(log_sigma: float) -> float:
        sigma = math.exp(log_sigma)
        value = epsilon(sigma, sampling_rate, steps, delta, interval=interval)
        if not 0 < value < math.inf:
            raise ArithmeticError(f"no finite positive epsilon at noise multiplier {sigma}")
        return math.log(value)

    epsilons = np.asarray(epsilons, dtype=float)
    solutions = np.empty_like(epsilons)
    # Two points on the curve to begin with: a first guess from the advanced-composition scale.
    spread = sampling_rate * math.sqrt(steps * math.log(1 / delta))
    guess = math.log(max(0.6, spread))
    points = [(x, log_epsilon(x)) for x in (guess, guess + 0.2)]
    for i in np.argsort(epsilons):
        # Aim a little inside the tolerance, on the private side.
        aim = math.log(epsilons[i]) + math.log1p(-tolerance / 2)
        for _ in range(60):
            (x0, y0), (x1, y1) = points[-2:]
            slope = (y1 - y0) / (x1 - x0) if x1 != x0 else -1.0
            step = np.clip((aim - y1) / min(slope, -0.05), -0.5, 0.5)
            x = x1 + float(step)
            points.append((x, log_epsilon(x)))
            if abs(points[-1][1] - aim) < tolerance / 2:
                break
        else:
            raise ArithmeticError(f"calibration to epsilon {epsilons[i]} did not converge")
        solutions[i] = math.exp(points[-1][0])
    return solutions


def tradeoff_curves(
    noise_multiplier: float,
    sampling_rate: float,
    steps: int,
    *,
    nulls: Collection[Null] = ("out", "in", "either"),
    lines: int = 1001,
    interval: float = INTERVAL,
) -> dict[Null, TradeoffCurve]:
    """Lower bounds on the trade-off functions of all iterates, by null hypothesis.

    Each curve is the envelope of supporting lines, ``lines`` on either side of epsilon 0. Refining
    them and the interval raises both error rates by less than 2e-4 (Lévy distance) at sampling
    rates of 0.01 and more.
    """
    losses = {
        null: privacy_loss(noise_multiplier, sampling_rate, steps, null=null, interval=interval)
        for null in ("out", "in")
        if null in nulls or "either" in nulls
    }
    # Beyond this epsilon the guarantees say nothing that an audit could see.
    reach = max(1e-2, *(loss.get_epsilon_for_delta(1e-9) for loss in losses.values()))
    epsilons = np.linspace(-reach, reach, 2 * lines - 1)
    deltas = {
        null: np.asarray(loss.get_delta_for_epsilon(epsilons)) for null, loss in losses.items()
    }
    curves = {
        null: tradeoff.from_deltas(epsilons, deltas[null]) for null in losses if null in nulls
    }
    if "either" in nulls:
        either = np.maximum(deltas["out"], deltas["in"])[lines - 1 :]
        curves["either"] = tradeoff.symmetric(epsilons[lines - 1 :], either)
    return curves


def tradeoff_curve(
    noise_multiplier: float, sampling_rate: float, steps: int, *, null: Null, **options
) -> TradeoffCurve:
    """Lower bound on the trade-off function of all iterates for one null hypothesis."""
    return tradeoff_curves(noise_multiplier, sampling_rate, steps, nulls=[null], **options)[null]
