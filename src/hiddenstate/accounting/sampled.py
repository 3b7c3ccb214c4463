"""The last iterate of DP-SGD with sampled batches on a bounded domain: upper bounds.

Shifted interpolation (Bok, Su and Altschuler 2024, arXiv 2403.00278, noisy SGD; Altschuler and
Talwar 2022) with Poisson sampling and add/remove adjacency. In units of learning rate times
clipping norm over batch size a step is x <- proj(x - sum of gradients + N(0, sigma^2 I)); a record
adds at most 1 with probability q. Let a step without it take two iterates R apart to a distance of
at most h(R). Where steps differ each has units of its own, as its noise has (``varying``).
Split the noise of each of the last K steps into variances (1 - beta) sigma^2 and beta sigma^2.
The first part hides the record, as in K steps whose iterates are all released at the noise
multiplier sigma sqrt(1 - beta); the second hides the shift that the steps before have left, which
is at most the domain's diameter, at the price of mu^2 = sum a_t^2 / (beta sigma^2) for what each
step hides of it. Proof: docs/cyclic-bounds.md, section 6. The bounds differ in h:

* ``convex``   h(R) = c R with c <= 1: convex losses whose gradients clipping does not turn, or
               strongly convex ones that are never clipped (``cyclic_operator.contraction``);
* ``clipped``  h(R) = L R: any clipped losses of the curvature, L = ``cyclic_operator.clipped``, or
               ``trivial`` for larger steps;
* ``holder``   h(R) = R + step size * H R^p: any clipped losses with Hölder continuous gradients.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from hiddenstate.accounting import (
    arguments,
    composition,
    cyclic_operator,
    divergence,
    domain,
    pld,
    shifts,
    varying,
)
from hiddenstate.accounting.setting import Setting
from hiddenstate.errors import InputError, expect
from hiddenstate.rounding import counted

SHARES = np.linspace(0.02, 0.9, 45)
"""Shares beta of the noise that may hide the shift."""

MOST_POINTS = 1 << 17
"""Losses of a Gaussian mechanism, 16 mu apart at the ends, that are composed with steps."""

COARSEST = 0.03
"""Largest spacing of losses."""


Price = Callable[[int], float]
"""Least sum of squares of what that many last steps hide, in units of learning rate and clip."""


def convex(run: Setting, delta: float) -> float:
    """Upper bound on epsilon of the last iterate; convex losses, clipping keeps directions.

    With a strong convexity, of losses whose gradients clipping never changes. The best of splits of
    the noise and numbers of last steps, chosen by an approximation; what is returned is
    dp-accounting's bound of the one chosen. Raises an input error without a smoothness, a diameter
    or strong convexity, and where losses are not convex or a step does not contract.
    """
    weak, smooth, strong = run.curvature
    expect(weak == 0, "weak_convexity", run.weak_convexity, "0: convex losses")
    # With decay a = rate * decay a step has the size rate / (1 - a), at most 2 / smoothness.
    most = 2 / max(smooth + 2 * run.weight_decay, 1e-300)
    words = f"at most {most:.4g}, 2 over the curvature of the largest batch"
    expect(run.learning_rate <= most * (1 + 1e-12), "learning_rate", run.learning_rate, words)
    contraction = partial(cyclic_operator.contraction, strong_convexity=strong, smoothness=smooth)
    if _varies(run):
        expect(
            run.diameter is not None or strong + run.weight_decay > 0,
            *("diameter", run.diameter, "a number, or losses that are strongly convex"),
        )
        return _best_last(run, delta, contraction)
    factor = contraction(run.learning_rate)
    apart = [] if run.width is None else [run.width]
    if factor < 1:
        # A shift of 1 a step, each contracted by all later steps, adds up to a geometric series.
        apart.append(1 / (1 - factor))
    expect(bool(apart), "diameter", run.diameter, "a number, or losses that are strongly convex")
    shift = min(apart)
    return _best(
        run,
        delta,
        lambda steps: shifts.squared(shift) * float(shifts.contracted_fraction(factor, steps)),
    )


def clipped(run: Setting, delta: float) -> float:
    """Upper bound on epsilon of the last iterate of any clipped losses of the curvature.

    The bounds of Chien and Li 2024 for smooth losses and of Liang et al. 2025 (by the last step's
    noise alone, K = 1) rest on the same; this is their setting with Poisson sampling. Raises an
    input error without a smoothness or a diameter.
    """
    weak, smooth, _ = run.curvature
    width = _width(run)
    constant = partial(cyclic_operator.clipped_or_trivial, weak_convexity=weak, smoothness=smooth)
    if _varies(run):
        return _best_last(run, delta, constant)
    lipschitz = constant(run.learning_rate)
    shift = lipschitz * width
    return _best(
        run,
        delta,
        lambda steps: shifts.squared(shift) * float(shifts.visible_fraction(lipschitz, steps)),
    )


def holder(run: Setting, delta: float) -> float:
    """Upper bound on epsilon of the last iterate of clipped losses with Hölder gradients.

    |grad F(x) - grad F(y)| <= H |x - y|^p of the largest batch's mean F, which has 1 / rate times
    the expected records and as many times the run's smoothness, and p its ``holder``; clipping
    keeps it, as it enlarges no distance. Raises an input error without a smoothness or a diameter.
    """
    expect(run.smoothness is not None, "smoothness", None, "the Hölder constant of the gradients")
    assert run.smoothness is not None
    power = run.holder
    constant = run.learning_rate * run.smoothness / run.rate
    # Distances are in units u of a record's shift: constant (u R)^p / u.
    growth = domain.holder(constant * run.shift ** (power - 1), power)
    prices: dict[int, float] = {}
    for steps, spent in domain.spendings(growth, _width(run), run.steps):
        with np.errstate(over="ignore"):
            prices[steps] = min(prices.get(steps, math.inf), float(spent @ spent))
    return _best(run, delta, prices.__getitem__, list(prices))


def _varies(run: Setting) -> bool:
    """True if steps differ, or decay."""
    return run.schedule != "constant" or run.weight_decay > 0


def _best_last(run: Setting, delta: float, constant: Callable[[float], float]) -> float:
    """``_best`` for steps of factors of their own, in units of what a record moves each."""
    steps = run.rates / run.learning_rate
    # Rounded down, as less noise hides less.
    noises = steps * (1 - 1e-15)
    prices = varying.by_last_steps(run.factors(constant), noises, steps, run.width)
    expect(bool(np.isfinite(prices).any()), "steps", run.steps, "fewer that expand so much")
    # All steps together have nothing before them to hide, and ``_composed`` divides by mu.
    return _best(run, delta, lambda last: max(float(prices[last - 1]), 1e-12))


def _width(run: Setting) -> float:
    if run.width is None:
        raise InputError("diameter: got none; expected that of the domain")
    return run.width


def _best(run: Setting, delta: float, price: Price, every: Sequence[int] | None = None) -> float:
    """Least epsilon of some numbers of last steps and shares of the noise.

    Which is least is found by the central limit of the losses.
    """
    arguments.check_delta(delta)
    if every is None:
        every = np.unique(np.geomspace(1, run.steps, 200).astype(int)).tolist()
    squares = np.array([price(steps) for steps in every])[:, None] * (1 + 1e-12)
    words = "less, so that what a record moves has a finite square"
    expect(bool(np.isfinite(squares).any()), "diameter", run.diameter, words)
    spread = run.rate**2 * np.expm1(np.minimum(1 / (run.noise_multiplier**2 * (1 - SHARES)), 50))
    mus = np.sqrt(squares / SHARES) / run.noise_multiplier
    # Variances of the losses add up, and epsilon grows with their sum.
    total = mus**2 + np.array(every)[:, None] * spread
    steps, share = np.unravel_index(int(np.argmin(total)), total.shape)
    mu = float(mus[steps, share]) * (1 + 1e-12)
    return _composed(run, every[int(steps)], float(SHARES[share]), mu, delta)


def _composed(run: Setting, steps: int, share: float, mu: float, delta: float) -> float:
    """Epsilon of ``steps`` sampled steps and one Gaussian mechanism, by dp-accounting.

    The grid is coarser where the second spreads over more than ``MOST_POINTS`` of its losses. Where
    it would be coarser than ``COARSEST``: the two epsilons at half delta each.
    """
    noise = run.noise_multiplier * math.sqrt(1 - share) * (1 - 1e-15)
    least = pld.least_delta(steps + 1)
    expect(delta >= least, "delta", delta, f"at least {least:.2g} for {counted(steps, 'step')}")
    interval = max(pld.fine_interval(noise, run.rate, steps), 16 * mu / MOST_POINTS)
    if interval > COARSEST:
        apart = composition.bracket(noise, run.rate, steps, delta / 2).upper
        return (apart + divergence.gaussian_epsilon(mu**2 / 2, delta / 2)) * (1 + 1e-15)
    hidden: Any = pld.privacy_loss(noise, run.rate, steps, interval=interval)
    # At rate 1 both directions are one.
    spent = pld.privacy_loss(1 / mu, 1.0, 1, null="out", interval=interval)
    return pld.epsilon_of(hidden.compose(spent), delta - least / 100)
