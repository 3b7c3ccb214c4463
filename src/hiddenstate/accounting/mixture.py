"""The exact privacy loss of a mixture of Gaussians against a Gaussian.

World "in" is the mixture P, world "out" the Gaussian Q; ``null="out"`` bounds P(S) - e^epsilon
Q(S), ``"in"`` the reverse, ``"either"`` the larger of the two.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import erf, erfcx, log_ndtr

from hiddenstate.accounting import roots, tradeoff
from hiddenstate.accounting.arguments import in_doubles
from hiddenstate.accounting.tradeoff import Direction, Null, TradeoffCurve, check_null
from hiddenstate.errors import expect

_NEGLIGIBLE = 100.0
"""Terms bounded this many nats below the largest are left out: under 1e-25 of the sum in all."""

DIRECTIONS: tuple[Direction, Direction] = ("out", "in")

_CHUNK = 1 << 20
"""Elements of the largest temporary matrix."""

_GROUP = 64
"""Points that share one search for the terms that matter."""

_U = float(np.finfo(float).eps)

Floats = NDArray[np.float64]
Terms = Callable[[Floats, slice], Floats]
"""What each of a slice of components has at points of shape (m, 1) or (): shape (m, n) or (n,)."""


@dataclass(frozen=True, eq=False)
class GaussianMixture:
    """P = sum_k weight_k N(shift_k, s^2) against Q = N(0, s^2), all shifts at least zero.

    shifts, log_weights: shape (n,), shifts ascending. noise_std: s, in the shifts' unit.

    The log-likelihood ratio f(y) = log P(y)/Q(y) = log sum_k weight_k g_k(y), with
    g_k(y) = exp((2 shift_k y - shift_k^2) / (2 s^2)), increases with y. So {Y >= y} is the most
    powerful test of Q against P at its level (Neyman and Pearson), and the supremum in delta at
    epsilon = f(y). Everything follows from sums over k of positive terms, taken in log space.
    """

    shifts: Floats
    log_weights: Floats
    noise_std: float

    def __post_init__(self) -> None:
        in_doubles(self, "noise_std")
        if self.shifts[0] < 0 or np.any(np.diff(self.shifts) <= 0):
            raise ValueError("shifts must be non-negative and ascend")
        if not np.any(self.shifts > 0):
            raise ValueError("P and Q are the same distribution")
        if not self.noise_std > 0:
            raise ValueError(f"noise_std must be positive, got {self.noise_std}")

    @property
    def least_loss(self) -> float:
        """Infimum of the log-likelihood ratio."""
        return float(self.log_weights[0]) if self.shifts[0] == 0 else -math.inf

    def loss(self, y: ArrayLike) -> Floats:
        """Log-likelihood ratio log P(y)/Q(y), exact, in the shape of ``y``."""
        return self._sum(y, self._log_ratios, self._log_ratios)

    def fpr(self, y: ArrayLike) -> Floats:
        """False-positive rate of the test {Y >= y}: its probability under Q."""
        return np.exp(log_ndtr(-np.asarray(y, dtype=float) / self.noise_std))

    def fnr(self, y: ArrayLike) -> Floats:
        """False-negative rate of the test {Y >= y}: probability of {Y < y} under P."""

        def terms(y: Floats, k: slice) -> Floats:
            return self.log_weights[k] + log_ndtr((y - self.shifts[k]) / self.noise_std)

        return np.exp(self._sum(y, terms, lambda y, k: self._tail_bounds(y, k, -1)))

    def log_delta_at(self, y: ArrayLike, *, null: Direction) -> Floats:
        """Logarithm of delta at epsilon = loss(y) for null "out", at -loss(y) for "in"; exact.

        With x_k = (shift_k - y)/s and R = Phi/phi, which increases, null "out" has
        delta = P(Y >= y) - e^f(y) Q(Y >= y) = sum_k weight_k Phi(x_k) [1 - R(x_0)/R(x_k)],
        x_0 belonging to shift 0: every term is a component's own delta, so none cancels another.
        Null "in" is the same with the signs of all x changed and e^-f(y) before the sum.
        """
        check_null(null, DIRECTIONS)
        side = 1.0 if null == "out" else -1.0

        def terms(y: Floats, k: slice) -> Floats:
            x = side * (self.shifts[k] - y) / self.noise_std
            nothing = -side * y / self.noise_std
            lower = nothing if null == "out" else x
            with np.errstate(divide="ignore"):
                share = np.log(-np.expm1(-mills_rise(lower, self.shifts[k] / self.noise_std)))
            if null == "out":
                return self.log_weights[k] + log_ndtr(x) + share
            return self._log_ratios(y, k) + log_ndtr(nothing) + share

        def bounds(y: Floats, k: slice) -> Floats:
            bound = self._tail_bounds(y, k, 1) if null == "out" else self._log_ratios(y, k)
            return np.where(self.shifts[k] > 0, bound, -math.inf)  # shift 0 leaks nothing

        total = self._sum(y, terms, bounds)
        return total if null == "out" else total - self.loss(y)

    def threshold(self, epsilon: ArrayLike) -> Floats:
        """The y with loss(y) = epsilon; minus infinity where the loss always exceeds epsilon.

        f is convex (a cumulant function) and increasing, so Newton's steps from a point right of
        the solution descend to it. Every term of the sum, being below f, gives such a point.
        """
        epsilon = np.asarray(epsilon, dtype=float)
        flat = epsilon.ravel()
        y = np.full(flat.shape, -math.inf)
        todo = np.flatnonzero(flat > self.least_loss)
        variance = self.noise_std**2
        if len(self.shifts) == 2 and self.shifts[0] == 0:
            nothing, something = self.log_weights
            # log((e^epsilon - weight_0) / weight_1), which keeps its digits near the least loss.
            excess = flat[todo] + np.log(-np.expm1(nothing - flat[todo])) - something
            # And near 0.
            near = np.expm1(np.minimum(flat[todo], 1)) * math.exp(min(-something, 700))
            small = np.abs(near) < 0.5
            excess[small] = np.log1p(near[small])
            y[todo] = variance * excess / self.shifts[1] + self.shifts[1] / 2
            return y.reshape(epsilon.shape)
        if todo.size > 64 * _GROUP:
            # The inverse of f is concave, so its tangents are right of it too, and nearer.
            knots = np.sort(flat[todo])[:: _GROUP // 2]
            found = self.threshold(knots)
            slopes = variance / self._mean_shift(found, knots)
            right = np.searchsorted(knots[1:], flat[todo])
            y[todo] = np.min(
                [found[i] + (flat[todo] - knots[i]) * slopes[i] for i in (right, right - 1)], axis=0
            )
        else:
            k = _spread(np.flatnonzero(self.shifts > 0))
            shifts = self.shifts[k]
            start = (variance * (flat[todo, None] - self.log_weights[k]) + shifts**2 / 2) / shifts
            y[todo] = np.min(start, axis=1)
        for _ in range(200):
            if not todo.size:
                return y.reshape(epsilon.shape)
            value = self.loss(y[todo])
            # The slope is the mean shift under the tilted weights, over s^2.
            slope = self._mean_shift(y[todo], value) / variance
            with np.errstate(divide="ignore"):  # no slope, where shifts are all but impossible
                step = (value - flat[todo]) / slope
            # From the right no step is negative but for rounding.
            y[todo] -= np.maximum(step, 0)
            todo = todo[step > 1e-15 * np.maximum(np.abs(y[todo]), self.noise_std)]
        raise ArithmeticError("Newton's method did not converge")

    def delta(self, epsilon: ArrayLike, *, null: Null = "either") -> Floats:
        """Exact delta at each epsilon (of either sign), in the shape of ``epsilon``."""
        check_null(null)
        epsilon = np.asarray(epsilon, dtype=float)
        expect(not np.isnan(epsilon).any(), "epsilon", math.nan, "a number")
        if (ends := np.isinf(epsilon)).any():  # no set, or all outputs
            found = self.delta(np.where(ends, 0.0, epsilon), null=null)
            return np.where(ends, np.where(epsilon > 0, 0.0, 1.0), found)
        if null == "either":
            return np.maximum(self.delta(epsilon, null="out"), self.delta(epsilon, null="in"))
        y = self.threshold(epsilon if null == "out" else -epsilon)
        everywhere = np.isneginf(y)
        finite = np.where(everywhere, 0.0, y)
        inside = np.exp(self.log_delta_at(finite, null=null))
        # Below its range the loss exceeds epsilon everywhere, and the best set is the whole line.
        whole = -np.expm1(np.minimum(epsilon, 0.0)) if null == "out" else 0.0
        return np.where(everywhere, whole, inside)

    def epsilon(self, delta: float, *, null: Null = "either") -> float:
        """Exact epsilon >= 0 at ``delta``.

        Along the line both epsilon = f(y) and its delta are explicit, so one root-find in y does.
        """
        check_null(null)
        if len(self.shifts) == 1:
            # Two Gaussians are mirror images, and this direction keeps more digits.
            null = "out"
        if null == "either":
            return max(self.epsilon(delta, null="out"), self.epsilon(delta, null="in"))
        y0 = float(self.threshold(0.0))
        target = math.log(delta)

        def excess(y: float) -> float:
            return float(self.log_delta_at(y, null=null)) - target

        if excess(y0) <= 0:
            return 0.0
        step = self.noise_std if null == "out" else -self.noise_std
        while excess(y0 + step) > 0:
            step *= 2
        ends = roots.between(
            excess, *sorted((y0, y0 + step)), absolute=1e-15 * min(self.noise_std, y0)
        )
        # Of the two ends the one with less delta, which rounds epsilon up.
        return abs(float(self.loss(ends[null == "out"])))

    def bracket(self, delta: float, *, share: float, null: Null = "either") -> tuple[float, float]:
        """Bounds on epsilon at ``delta``: a ``share`` of it above and below ``epsilon``, or more.

        More where rounding moves it further, as near the total variation.
        """
        mus = self.shifts / self.noise_std
        # The total variation is at most the mean of the components' own.
        if float(np.exp(self.log_weights) @ erf(mus / math.sqrt(8))) <= delta * (1 - 1e-12):
            return 0.0, 0.0
        distance = math.sqrt(-2 * math.log(delta))
        off = 1e-12
        # A loss is of outputs about mu / 2, times mu; logarithms of weights round by themselves.
        mu = float(mus[-1])
        loss = _U * (4 * (len(mus) > 1) + mu * (mu + 4 * distance + 4))
        exact = self.epsilon(delta, null=null)
        low, high = exact * (1 - share), exact * (1 + share)
        # As a rule a share is more than rounding moves it.
        if high - low > 4 * loss:
            at_low, at_high = self.delta([low + loss, high - loss], null=null)
            # Delta falls with epsilon, so the two enclose it if they differ by more than rounding.
            if at_low >= delta * (1 + off) and at_high <= delta * (1 - off):
                return low, high
        least = self.epsilon(delta * (1 + off), null=null) * (1 - 8 * _U) - loss
        # No component has a larger shift, and delta is at most Phi(-distance) there.
        most = mu * (mu / 2 + distance)
        most = min(most, self.epsilon(delta * (1 - off), null=null) + loss) * (1 + 8 * _U)
        return max(0.0, min(low, least)), max(high, most)

    def tradeoff_curve(self, *, null: Null, lines: int = 1001) -> TradeoffCurve:
        """Lower bound on the trade-off function from ``lines`` of its supporting lines.

        Each line touches the exact function (up to 1e-12 of rounding). Between two contacts the
        bound is below it by at most a quarter of the difference of their slopes times that of
        their false-positive rates. The contacts are even in y and reach rates of 1e-9 on both
        axes.
        """
        check_null(null)
        reach = 6.0 * self.noise_std  # Phi(-6) = 9.9e-10
        y = np.linspace(-reach, reach, lines)
        if null == "either":
            epsilons = np.unique(np.concatenate(([0.0], np.abs(self.loss(y)))))
            return tradeoff.symmetric(epsilons, self.delta(epsilons))
        # Each direction from its own lines: swapping a curve's axes would enlarge the rounding
        # errors of its flat end.
        losses = self.loss(y) if null == "out" else -self.loss(y[::-1])
        deltas = np.exp(self.log_delta_at(y if null == "out" else y[::-1], null=null))
        return tradeoff.from_deltas(losses, deltas)

    def _log_ratios(self, y: Floats, k: slice) -> Floats:
        """Logarithms of weight_k g_k(y)."""
        shifts = self.shifts[k]
        return self.log_weights[k] + (y - shifts / 2) * shifts / self.noise_std**2

    def _tail_bounds(self, y: Floats, k: slice, side: int) -> Floats:
        """Upper bounds on weight_k Phi(side (shift_k - y)/s), at most some 30 nats too high."""
        x = np.minimum(side * (self.shifts[k] - y) / self.noise_std, 0)
        return self.log_weights[k] - x**2 / 2

    def _mean_shift(self, y: Floats, loss: Floats) -> Floats:
        means = np.empty_like(y)
        for rows, k in self._blocks(y, self._log_ratios):
            means[rows] = (
                np.exp(self._log_ratios(y[rows, None], k) - loss[rows, None]) @ self.shifts[k]
            )
        return means

    def _sum(self, y: ArrayLike, terms: Terms, bounds: Terms) -> Floats:
        """Log of the sum over k of exp(terms(y, k)), leaving out terms that are negligible."""
        y = np.asarray(y, dtype=float)
        flat = y.ravel()
        total = np.empty(flat.shape)
        for rows, k in self._blocks(flat, bounds):
            total[rows] = _log_sum(terms(flat[rows, None], k))
        return total.reshape(y.shape)

    def _blocks(self, y: Floats, bounds: Terms) -> Iterator[tuple[NDArray[np.int64], slice]]:
        """Rows of y and the slice of k that matters to them.

        The bounds of a component grow with y relative to those of any component left of it. So
        whatever is negligible left of the largest one at the smallest y stays negligible at a
        larger y, and the other way round on the right.
        """
        order = np.argsort(y, kind="stable")
        # Of few components no search is worth while.
        group = max(_GROUP, _CHUNK // 16 // len(self.shifts)) if len(self.shifts) < 64 else _GROUP
        for start in range(0, len(y), group):
            rows = order[start : start + group]
            low, high = (bounds(y[rows[i]], slice(None)) for i in (0, -1))
            first = int(np.argmax(low >= np.max(low) - _NEGLIGIBLE))
            last = len(high) - int(np.argmax((high >= np.max(high) - _NEGLIGIBLE)[::-1]))
            k = slice(first, max(last, first + 1))
            few = max(1, _CHUNK // (k.stop - k.start))
            for part in range(0, len(rows), few):
                yield rows[part : part + few], k


def _log_sum(terms: Floats) -> Floats:
    """Logarithm of the sum of exp(terms) over the last of two axes.

    As SciPy's ``logsumexp``, without its fraction of a millisecond a call.
    """
    rows, top = np.arange(len(terms)), np.argmax(terms, axis=1)
    peak = terms[rows, top]
    # Two infinities of the same sign would have no difference.
    others = np.exp(terms - np.maximum(peak, -1e300)[:, None])
    others[rows, top] = 0
    return peak + np.log1p(others.sum(axis=1))


def _spread(indices: NDArray[np.int64], most: int = 256) -> NDArray[np.int64]:
    """About ``most`` of the indices, dense among the first and thinning out."""
    if len(indices) <= most:
        return indices
    return indices[np.unique(np.geomspace(1, len(indices), most).astype(int)) - 1]


def log_mills(x: ArrayLike) -> Floats:
    """Log of Phi(x)/phi(x), up to the constant log sqrt(pi/2)."""
    x = np.asarray(x, dtype=float)
    # Phi(37) rounds to one, and erfcx would overflow soon after.
    return np.where(
        x > 37, x**2 / 2 + math.log(2), np.log(erfcx(-np.minimum(x, 37) / math.sqrt(2)))
    )


def mills_rise(x: ArrayLike, gap: ArrayLike) -> Floats:
    """log_mills(x + gap) - log_mills(x), gap at least 0, to 1e-12 of it; broadcasts.

    A difference would lose the digits of a small gap, so that is Gauss's quadrature of the slope.
    """
    x, gap = np.broadcast_arrays(np.asarray(x, dtype=float), np.asarray(gap, dtype=float))
    near = gap < 0.01 * np.maximum(1, np.abs(x))
    if not near.any():
        return log_mills(x + gap) - log_mills(x)
    found = np.empty(x.shape)
    found[~near] = log_mills(x[~near] + gap[~near]) - log_mills(x[~near])
    start, half = x[near], gap[near] / 2
    rise = sum(w * _slope(start + half * (1 + node)) for node, w in _GAUSS)
    found[near] = half * rise
    return found


_GAUSS = ((-math.sqrt(0.6), 5 / 9), (0.0, 8 / 9), (math.sqrt(0.6), 5 / 9))
"""Nodes and weights on [-1, 1]."""


def _slope(x: Floats) -> Floats:
    """Derivative of ``log_mills``: x + phi(x)/Phi(x)."""
    with np.errstate(over="ignore"):
        slope = x + math.sqrt(2 / math.pi) / erfcx(-x / math.sqrt(2))
    if not (far := x < -20).any():
        return slope
    # There the two cancel: Laplace's continued fraction.
    z = fraction = -x[far]
    for k in range(12, 1, -1):
        fraction = z + k / fraction
    slope[far] = 1 / fraction
    return slope
