"""Last-iterate DP-SGD under a linear loss: the exact privacy loss, a heuristic for other losses.

If every loss is linear, gradients do not depend on the iterate and the last one is a sum: with
the canary it is distributed as P = Binomial(T, q) + N(0, sigma^2 T) along the canary's gradient,
without it as Q = N(0, sigma^2 T). *The Last Iterate Advantage* (arXiv 2410.06186, Theorem 1)
proposes the privacy loss of this pair as a heuristic for losses that are not linear. It is exact
for linear losses and no guarantee for any other: section 4 of the paper, ``accounting.quadratic``
and ``adversaries.repeaters`` hold losses that leak more.

Words: noise multiplier sigma, sampling rate q, steps T. World "in" is P, world "out" is Q;
``null="out"`` bounds P(S) - e^epsilon Q(S), ``"in"`` the reverse, ``"either"`` the larger of the
two, which is what add/remove adjacency asks for.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import erfcx, ndtri

from hiddenstate.accounting import roots
from hiddenstate.accounting.arguments import (
    check_delta,
    check_mechanism,
    check_number,
    check_steps,
    doubles,
    doubles_of,
)
from hiddenstate.accounting.binomial import MOST_STEPS, log_binomial, log_mass
from hiddenstate.accounting.mixture import DIRECTIONS, Floats, GaussianMixture
from hiddenstate.accounting.tradeoff import Direction, Null, TradeoffCurve, check_null
from hiddenstate.errors import InputError

_SWEPT = 1 << 13
"""Elements of a sweep's matrices: small enough for a core's cache."""

_DIGITS = 1e-9
"""Relative error of epsilon, above which it is rounded up instead."""

_NODES = 24
"""Points of a Chebyshev interpolation in the logarithm of the noise multiplier."""

_ANGLES = np.pi * (np.arange(_NODES) + 0.5) / _NODES
_CHEBYSHEV_POINTS = np.cos(_ANGLES)
_TO_COEFFICIENTS = 2 / _NODES * np.cos(np.arange(_NODES)[:, None] * _ANGLES)
_TO_COEFFICIENTS[0] /= 2


@doubles
def last_iterate(noise_multiplier: float, sampling_rate: float, steps: int) -> GaussianMixture:
    """The pair of Theorem 1: Binomial(steps, sampling_rate) + N(0, sigma^2 steps) against noise."""
    check_mechanism(noise_multiplier, sampling_rate, steps)
    if sampling_rate == 1:
        shifts, log_weights = np.array([float(steps)]), np.zeros(1)
        return GaussianMixture(shifts, log_weights, noise_multiplier * math.sqrt(steps))
    check_steps(steps, MOST_STEPS)
    log_weights = log_binomial(int(steps), float(sampling_rate))
    support = np.flatnonzero(log_weights > -math.inf)
    return GaussianMixture(
        support.astype(float), log_weights[support], noise_multiplier * math.sqrt(steps)
    )


@dataclass(frozen=True, eq=False)
class _Sweep:
    """Epsilon of many mechanisms at once; arrays of shape (n,).

    With x_k = (k - y)/s the terms of ``GaussianMixture.log_delta_at`` are, for null "out",
    weight_k phi(x_k) [R(x_k) - R(x_0)]; null "in" has the signs of x changed and the factor
    e^-f(y). So a matrix of exponentials and one of R give the loss f(y), delta and both slopes,
    and Newton's method on sqrt(-log delta), which is nearly linear in y, needs few steps. Points
    for which it would lose digits are left to ``GaussianMixture``.
    """

    noise_multiplier: Floats
    rate: Floats
    steps: Floats
    level: Floats

    def epsilon(self, null: Null) -> Floats:
        """Epsilon of each mechanism at its level of delta."""
        for point in np.flatnonzero(~self._fine()):
            # The checks of a single mechanism name what is out of range.
            check_delta(self.level[point])
            last_iterate(*self._mechanism(point))
        found = np.zeros(len(self.level))
        with np.errstate(divide="ignore"):
            most = {"out": np.full(len(found), math.inf), "in": -self.steps * np.log1p(-self.rate)}
        sampled = np.flatnonzero(-np.expm1(-most["in"]) > self.level)
        for direction in DIRECTIONS if null == "either" else (null,):
            # No loss of null "in" exceeds that of never being sampled.
            todo = sampled[most[direction][sampled] > found[sampled]]
            found[todo] = np.maximum(found[todo], self._swept(todo, direction))
        return found

    def _swept(self, points: NDArray[np.int64], null: Direction) -> Floats:
        """Epsilon of the points, by Chebyshev interpolation where many differ in noise alone.

        log epsilon is analytic in log sigma. Where the last coefficients of a panel say that it is
        not resolved, or epsilon is 0, the panel is halved, and few points are solved one by one.
        """
        solved = np.full(len(points), math.nan)
        names = np.stack([a[points] for a in (self.rate, self.steps, self.level)])
        log_noise = np.log(self.noise_multiplier[points])
        order = np.lexsort((log_noise, *names))
        ends = np.flatnonzero(np.any(np.diff(names[:, order], axis=1) != 0, axis=0)) + 1
        # Of fewer points each is solved by itself, at less cost than the nodes.
        panels = [part for part in np.split(order, ends) if len(part) >= 2 * _NODES]
        while panels:
            low, high = (np.array([log_noise[part[end]] for part in panels]) for end in (0, -1))
            middle, half = (low + high) / 2, (high - low) / 2
            nodes = np.exp(middle[:, None] + half[:, None] * _CHEBYSHEV_POINTS)
            first = points[[part[0] for part in panels]]
            with np.errstate(divide="ignore"):
                logs = np.log(self._at(first, nodes)._one_by_one(null).reshape(nodes.shape))
            halved = []
            for part, values, centre, width in zip(panels, logs, middle, half, strict=True):
                # A panel of one noise multiplier has no width.
                place = (log_noise[part] - centre) / width if width > 0 else log_noise[part] * 0
                coefficients = _TO_COEFFICIENTS @ np.nan_to_num(values)
                if np.all(np.isfinite(values)) and np.max(np.abs(coefficients[-4:])) < 1e-11:
                    angles = np.arccos(np.clip(place, -1, 1))[:, None] * np.arange(_NODES)
                    solved[part] = np.exp(np.cos(angles) @ coefficients)
                else:
                    at = int(np.searchsorted(place, 0))
                    halved += [part[:at], part[at:]]
            panels = [part for part in halved if len(part) >= 2 * _NODES]
        rest = np.flatnonzero(np.isnan(solved))
        solved[rest] = self._at(points[rest])._one_by_one(null)
        return solved

    def _at(self, points: NDArray[np.int64], noise: Floats | None = None) -> "_Sweep":
        """The mechanisms of these points, each with the noise multipliers (points, n) given."""
        if noise is None:
            noise = self.noise_multiplier[points][:, None]
        others = (np.repeat(a[points], noise.shape[1]) for a in (self.rate, self.steps, self.level))
        return _Sweep(noise.ravel(), *others)

    def _one_by_one(self, null: Direction) -> Floats:
        """Epsilon of every mechanism for one null hypothesis."""
        solved = self._solved(np.arange(len(self.level)), 1.0 if null == "out" else -1.0)
        for i in np.flatnonzero(np.isnan(solved)):
            pair = last_iterate(*self._mechanism(i))
            low, high = pair.bracket(float(self.level[i]), share=_DIGITS / 2, null=null)
            solved[i] = (low + high) / 2 if high <= low * (1 + 1.1 * _DIGITS) else high
        return solved

    def _mechanism(self, point: np.int64) -> tuple[float, float, int]:
        return self.noise_multiplier[point], self.rate[point], self.steps[point]

    def _fine(self) -> NDArray[np.bool_]:
        """Which points are mechanisms and probabilities; as in ``last_iterate``."""
        sigma, rate, steps, level = self.noise_multiplier, self.rate, self.steps, self.level
        fine = (sigma >= 1e-50) & (sigma <= 1e50) & (rate > 0) & (rate <= 1) & (steps >= 1)
        most = np.where(rate == 1, 2.0**53 - 1, MOST_STEPS)
        return fine & (steps <= most) & (steps == np.floor(steps)) & (level > 0) & (level < 1)

    def _solved(self, points: NDArray[np.int64], side: float) -> Floats:
        """Epsilon of the points for one null hypothesis; nan where this method loses digits."""
        rate, steps = self.rate[points], self.steps[points]
        # e^-39 is 1e-17, the share of delta that the windows may miss.
        mean, need = steps * rate, -np.log(self.level[points]) + 39
        s = self.noise_multiplier[points] * np.sqrt(steps)
        # Where the loss at about the y that is looked for has its largest term.
        quantile = ndtri(self.level[points])
        y = (mean - np.sqrt(s**2 + mean * (1 - rate)) * quantile) / s if side > 0 else quantile
        tilted, deviation = _tilted(rate, steps, s, y)
        up, down = _reach(tilted, 45.0, s)
        first, last = tilted - down, tilted + up
        if side > 0:
            # Bernstein's inequality: all but a share of 1e-17 of delta lies in these windows.
            up, down = _reach(mean, need, math.inf)
            first, last = np.minimum(first, mean - down), np.maximum(last, mean + up)
            wide = np.sqrt(1 / (1 / np.maximum(mean * (1 - rate), 1e-300) + 1 / s**2))
            deviation = np.minimum(deviation, wide)
        first = np.where(rate == 1, steps, np.maximum(np.floor(first), 0))
        last = np.minimum(np.ceil(last), steps)
        # Every stride-th term tells the sum where terms change slowly.
        angle = np.arccos(np.clip(1 - 38 / np.maximum(deviation, 1.0) ** 2, -1, 1))
        # At a deviation of sqrt(19) = 4.36 the angle is pi and the stride 2; below, all count.
        stride = np.where((rate == 1) | (deviation < 4.4), 1.0, np.floor(2 * np.pi / angle))
        width = np.floor((last - first) / stride) + 1
        solved = np.full(len(points), math.nan)
        order = np.argsort(width, kind="stable")
        start = 0
        while start < len(order):
            # Rows of about the same width.
            rows = max(1, int(_SWEPT // width[order[start]]))
            block = order[start : start + rows]
            block = block[: max(1, int(_SWEPT // width[block[-1]]))]
            start += len(block)
            if width[block[-1]] <= _SWEPT:
                k = first[block, None] + stride[block, None] * np.arange(width[block[-1]])
                solved[block] = self._newton(points[block], k, side, stride[block])
        return solved

    def _newton(self, points: NDArray[np.int64], k: Floats, side: float, stride: Floats) -> Floats:
        """Epsilon by Newton's method; k: the numbers of samples that matter to each point.

        Of each point they are ``stride`` apart. By Poisson's summation formula that changes a sum
        by twice its terms' characteristic function at 2 pi / stride, of a binomial variable about
        exp(-variance (1 - cos(2 pi / stride))). The variance is checked to make that 1e-14.
        """
        rate, steps = self.rate[points, None], self.steps[points, None]
        s = (self.noise_multiplier[points] * np.sqrt(self.steps[points]))[:, None]
        log_level = np.log(self.level[points])
        # Of one binomial law, where the same numbers of samples matter to all.
        if np.ptp(rate) == np.ptp(steps) == 0 and np.all(k == k[:1]):
            log_weights = log_mass(k[:1], steps[:1], rate[:1])
        else:
            log_weights = log_mass(k, steps, rate)
        reach, aim = k / s, np.sqrt(-log_level)
        mean, deviation = steps * rate, np.sqrt(s**2 + steps * rate * (1 - rate))
        quantile = ndtri(self.level[points])[:, None]
        # Where P exceeds y, or Q is below y, with the probability delta: a little too far.
        y = (mean - deviation * quantile if side > 0 else s * quantile)[:, 0] / s[:, 0]
        epsilon = np.full(len(points), math.nan)
        settled = np.zeros(len(points), dtype=bool)
        with np.errstate(all="ignore"):
            for _ in range(40):
                x = side * (reach - y[:, None])
                mills, nothing = erfcx(x / -math.sqrt(2)), erfcx(side * y / math.sqrt(2))
                e = np.multiply(x, x)
                e *= -0.5
                e += log_weights
                peak = np.max(e, axis=1)
                e -= peak[:, None]
                np.exp(e, out=e)
                total = np.sum(e, axis=1)
                leaks = mills - nothing[:, None]
                leaks *= e
                leak = side * np.sum(leaks, axis=1)
                loss = peak + np.log(total * stride) + y**2 / 2
                slope = np.einsum("ij,ij->i", e, reach) / total
                log_delta = peak + np.log(leak * stride / 2)
                # Of delta by epsilon, over delta.
                if side > 0:
                    decay = total * nothing / leak
                else:
                    log_delta -= loss
                    decay = np.einsum("ij,ij->i", e, mills) / leak
                h = np.sqrt(-log_delta)
                # Newton's step on h, whose slope in y is side decay slope / (2 h).
                step = 2 * h * (aim - h) / (side * decay * slope)
                step = np.clip(step, -2, 2)
                # A row is done when its next step is below rounding.
                close = np.abs(step) < 1e-8 * np.maximum(np.abs(y), 1)
                last = close & ~settled
                epsilon[last] = (side * (loss + slope * step))[last]
                settled |= close | ~np.isfinite(step)
                if np.all(settled):
                    break
                y = np.where(settled, y, y + step)
            # Omitted terms fall faster than geometrically from the ends of the window.
            ends = [0, -1]
            share = np.maximum(e[:, ends] / total[:, None], np.abs(leaks[:, ends] / leak[:, None]))
            inner = np.stack([k[:, 0] > 0, k[:, -1] < steps[:, 0]], axis=1) & (rate < 1)
            lost = np.any(inner & (share > 1e-17), axis=1) | (np.max(x, axis=1) > 25)
            spared = 1 - np.cos(2 * np.pi / stride)
            for weights in (e, side * leaks):
                each = np.sum(weights, axis=1)
                centre = np.einsum("ij,ij->i", weights, k) / each
                apart = np.einsum("ij,ij->i", weights, (k - centre[:, None]) ** 2) / each
                # 2 e^-33 is 1e-14. The negated comparison counts nan as lost.
                lost |= (stride > 1) & ~(apart * spared > 33)
            # What rounding of delta moves epsilon by, most on a plateau of delta, and of the loss.
            rounding = 1e-13 / decay + 1e-15 + 2e-16 * y**2
            lost |= rounding > _DIGITS / 4 * np.abs(epsilon)
        return np.where(lost, math.nan, np.maximum(epsilon, 0.0))


def _tilted(rate: Floats, steps: Floats, s: Floats, y: Floats) -> tuple[Floats, Floats]:
    """Mode and deviation of Binomial(steps, rate) times exp(-(k / s - y)^2 / 2), about.

    Newton's method on the derivative of its logarithm, in log k.
    """
    with np.errstate(all="ignore"):
        odds = np.log(rate) - np.log1p(-rate) + y / s
        log_k = np.log(np.clip(rate * np.exp(np.clip(y / s, -50, 50)), 1e-30, 0.5) * steps)
        for _ in range(12):
            k = np.exp(log_k)
            rest = np.maximum(steps - k, 1e-9 * steps)
            slope = 1 + k / rest + k / s**2
            log_k += np.clip((odds + np.log(rest / k) - k / s**2) / slope, -5, 5)
            log_k = np.minimum(log_k, np.log(steps))
        k = np.exp(log_k)
        variance = 1 / (1 / k + 1 / np.maximum(steps - k, 1e-300) + 1 / s**2)
    return k, np.sqrt(np.nan_to_num(variance))


def _reach(mode: Floats, nats: ArrayLike, s: ArrayLike) -> tuple[Floats, Floats]:
    """How far above and below the mode such weights fall by so many nats, at most.

    By Bernstein's inequality for the binomial factor, and by the Gaussian one: at the mode of their
    product both fall from a tangent.
    """
    nats = np.asarray(nats, dtype=float)
    gaussian = np.asarray(s) * np.sqrt(2 * nats)
    up = nats / 3 + np.sqrt(nats**2 / 9 + 2 * nats * mode)
    return np.minimum(up, gaussian) + 2, np.minimum(np.sqrt(2 * nats * mode), gaussian) + 2


def last_iterate_epsilon(
    noise_multiplier: ArrayLike,
    sampling_rate: ArrayLike,
    steps: ArrayLike,
    delta: ArrayLike,
    *,
    null: Null = "either",
) -> Floats:
    """Epsilon of the last iterate at ``delta``: exact for linear losses, else a heuristic.

    Call it before training to predict what an audit of the final model may find. It is no
    guarantee: a loss, a regulariser or a data set can be built whose last iterate leaks more.

    The arguments broadcast, so one call draws a curve; many noise multipliers of one sampling rate
    and number of steps cost least. Relative error below 1e-9 for up to 100,000 steps and sampling
    rates down to 1e-5. Where rounding of delta moves epsilon further, as on a plateau of delta or
    near the total variation, epsilon is rounded up to what is certain (``GaussianMixture.bracket``
    has both ends). Raises InputError on a value out of range.
    Source: *The Last Iterate Advantage*, Theorem 1 and Appendix A.
    """
    check_null(null)
    given = {
        "noise_multiplier": noise_multiplier,
        "sampling_rate": sampling_rate,
        "steps": steps,
        "delta": delta,
    }
    arrays = np.broadcast_arrays(*(doubles_of(name, value) for name, value in given.items()))
    return _Sweep(*map(np.ravel, arrays)).epsilon(null).reshape(arrays[0].shape)[()]


def last_iterate_delta(
    noise_multiplier: ArrayLike,
    sampling_rate: ArrayLike,
    steps: ArrayLike,
    epsilon: ArrayLike,
    *,
    null: Null = "either",
) -> Floats:
    """Delta of the last iterate at ``epsilon``: exact for linear losses, else a heuristic.

    The inverse of ``last_iterate_epsilon``; the arguments broadcast. Equation 2 of the paper.
    Relative error below 1e-9, or what a change of epsilon by 1e-15 makes if that is more: for
    example, 2e-8 at noise multiplier 1e7 and sampling rate 0.01 over five steps.
    """

    def solve(noise_multiplier: float, sampling_rate: float, steps: int, epsilon: float) -> float:
        pair = last_iterate(noise_multiplier, sampling_rate, steps)
        return float(pair.delta(epsilon, null=null))

    return _broadcast(solve, noise_multiplier, sampling_rate, steps, epsilon)


def last_iterate_noise_multiplier(
    epsilon: ArrayLike, delta: ArrayLike, sampling_rate: ArrayLike, steps: ArrayLike
) -> Floats:
    """Noise multiplier at which ``last_iterate_epsilon`` is ``epsilon``, to 1e-12 relative.

    Exact for linear losses, else a heuristic and no guarantee. The arguments broadcast. Raises
    InputError where no noise at all is needed, because the canary is rarely sampled.
    """

    def solve(epsilon: float, delta: float, sampling_rate: float, steps: int) -> float:
        check_number("epsilon", epsilon, 0 < epsilon < math.inf, "above 0")
        check_delta(delta)
        target = math.log(delta)
        pair = last_iterate(1.0, sampling_rate, steps)

        def excess(log_sigma: float) -> float:
            sigma = math.exp(log_sigma)
            noisy = GaussianMixture(pair.shifts, pair.log_weights, sigma * math.sqrt(steps))
            directions = (
                float(noisy.log_delta_at(y, null=null))
                for null in DIRECTIONS
                for y in [noisy.threshold(epsilon if null == "out" else -epsilon)]
                # No loss of null "in" reaches this epsilon, where its delta is 0.
                if y > -math.inf
            )
            return max(directions) - target

        # Without noise the canary shows whenever it is sampled, and only then.
        sampled = -math.expm1(steps * math.log1p(-sampling_rate)) if sampling_rate < 1 else 1.0
        if sampled <= delta:
            raise InputError(
                f"delta: got {delta}; expected less than {sampled:.3g}, the probability that the "
                "canary is sampled at all: with this delta no noise is needed"
            )
        # Mechanisms with other noise are refused. Powers of a larger epsilon are no numbers.
        most = math.log(1e50)
        refused = "such that the noise multiplier is from 1e-50 to 1e50"
        low, high = -1.0, 1.0
        while epsilon > 1e120 or excess(low) < 0:
            check_number("epsilon", epsilon, epsilon <= 1e120 and low > -most, f"below, {refused}")
            low = max(2 * low, -most)
        while excess(high) > 0:
            check_number("epsilon", epsilon, high < most, f"above, {refused}")
            high = min(2 * high, most)
        # The larger end, so that noise is rounded up.
        return math.exp(roots.between(excess, low, high, absolute=1e-13)[1])

    return _broadcast(solve, epsilon, delta, sampling_rate, steps)


def full_batch_epsilon(
    noise_multiplier: ArrayLike, sampling_rate: ArrayLike, steps: ArrayLike, delta: ArrayLike
) -> Floats:
    """Exact epsilon of full-batch gradient descent with the same expected step and noise.

    Every record in every step, noise multiplier sigma/q: Gaussian differential privacy with
    mu = sqrt(T) q / sigma, whether or not the iterates are released. Equation 4 of the paper.
    """
    for mechanism in np.broadcast(noise_multiplier, sampling_rate, steps):
        check_mechanism(*mechanism)
    noise = np.asarray(noise_multiplier, dtype=float) / np.asarray(sampling_rate, dtype=float)
    return last_iterate_epsilon(noise, 1.0, steps, delta)


def tradeoff_curve(
    noise_multiplier: float, sampling_rate: float, steps: int, *, null: Null, lines: int = 1001
) -> TradeoffCurve:
    """Lower bound on the trade-off function of the last iterate under a linear loss.

    Made of ``lines`` exact supporting lines: see ``GaussianMixture.tradeoff_curve``.
    """
    return last_iterate(noise_multiplier, sampling_rate, steps).tradeoff_curve(
        null=null, lines=lines
    )


def _broadcast(solve: Callable[..., float], *arguments: ArrayLike) -> Floats:
    """The scalar ``solve`` at every point of the broadcast arguments."""
    grid, solve = np.broadcast(*arguments), doubles(solve)
    return np.fromiter((solve(*point) for point in grid), float, grid.size).reshape(grid.shape)[()]
