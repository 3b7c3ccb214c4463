"""Amplification by iteration: a crafted gradient in the first step, then hidden steps.

Section 6 of Cebere, Bellet and Papernot 2025, in one dimension, as reconstructed from its
description: the derivation is ours. Let theta_1 = theta_0 - eta (b C + sigma C Z_1), with b = 1 in
world "in", and let the gradient sum G of B records, anything in [-B C, B C], be the adversary's
choice. Divided by eta sigma C, with the sign turned and the landscape's threshold at 0,

    X_1 = b mu - threshold + Z_1,    X_{t+1} = X_t + drift(X_t) + Z_{t+1},

mu = 1 / sigma, and a drift within beta = B / sigma. The step of the paper's landscape is beta
sgn(x); a ramp is clip(slope x, -beta, beta); a flat or convex landscape is beta = 0. All of these
ascend, so the likelihood ratio of X_T ascends too (totally positive kernels compose, Karlin 1968),
the best tests are thresholds on X_T, and the step of the last noise is integrated in closed form.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import csc_array
from scipy.special import logsumexp, ndtr, ndtri

from hiddenstate.accounting import arguments, binomial, roots
from hiddenstate.accounting.tradeoff import Null, check_null
from hiddenstate.errors import InputError, check_count
from hiddenstate.streams import World

Array = NDArray[np.float64]

REACH = 9.0
"""Noise beyond so many deviations is left out: a probability of 2e-19 a step."""

LOCKED = 12.0
"""A drift of the step beyond this is the same as this: a sign turns with probability 2e-33."""

NODES = 8
"""Gauss-Legendre nodes a panel; panels are one deviation of the noise wide, or less on a ramp."""

MOST_NODES = 60_000

NEGLIGIBLE = 1e-60
"""Probability of a node that is left out of a law."""


@dataclass(frozen=True)
class SingleInsertion:
    """The construction: one crafted gradient, then ``steps`` - 1 hidden steps.

    mu: the insertion's Gaussian differential privacy, 1 / noise multiplier. beta: batch size over
    noise multiplier, 0 for a flat landscape. threshold: where the landscape breaks, in deviations
    of the noise above the mean of world "out"; half way, mu / 2, unless given. slope: infinite for
    the step, else that of a ramp.
    """

    mu: float
    beta: float
    steps: int
    threshold: float | None = None
    slope: float = math.inf

    def __post_init__(self) -> None:
        for name, value in (("mu", self.mu), ("slope", self.slope)):
            if not value > 0:
                raise InputError(f"{name}: got {value}; expected more than 0")
        if not self.mu < math.inf:
            raise InputError(f"mu: got {self.mu}; expected a finite number")
        if not 0 <= self.beta < math.inf:
            raise InputError(f"beta: got {self.beta}; expected 0 or more")
        if self.threshold is not None and not math.isfinite(self.threshold):
            raise InputError(f"threshold: got {self.threshold}; expected a finite number")
        check_count("steps", self.steps)

    @property
    def start(self) -> tuple[float, float]:
        """Mean of X_1 in the worlds "out" and "in"."""
        threshold = self.mu / 2 if self.threshold is None else self.threshold
        return -threshold, self.mu - threshold

    def drift(self, x: ArrayLike) -> Array:
        """A step's change of the iterates without its noise."""
        x = np.asarray(x, dtype=float)
        if math.isinf(self.slope):
            return self.beta * np.sign(x)
        return np.clip(self.slope * x, -self.beta, self.beta)

    def sampled(self, world: World, runs: int, rng: np.random.Generator) -> Array:
        """X_T of independent runs, shape (runs,): the literal process."""
        x = self.start[world == "in"] + rng.standard_normal(runs)
        for _ in range(self.steps - 1):
            x += self.drift(x) + rng.standard_normal(runs)
        return x

    def laws(self) -> list["Law"]:
        """Law of X_t for t = 1, ..., steps. Exact except for quadrature, about 1e-12."""
        if self.beta == 0:
            # A flat landscape adds noise alone.
            return [self._normal_pair(t) for t in range(1, self.steps + 1)]
        return self._laws

    @property
    def law(self) -> "Law":
        return self.laws()[-1]

    def _normal_pair(self, steps: int) -> "Law":
        means = np.array([[mean] for mean in self.start])
        return Law(means, np.ones((2, 1)), math.sqrt(steps))

    @cached_property
    def _laws(self) -> list["Law"]:
        found = [self._normal_pair(1)]
        if self.steps == 1:
            return found
        beta = min(self.beta, LOCKED) if math.isinf(self.slope) else self.beta
        same = SingleInsertion(self.mu, beta, self.steps, self.threshold, self.slope)
        x, weights = same._quadrature()
        after = x + same.drift(x)
        kernel = _kernel(x, weights, after)
        density = np.stack([_normal(x - mean) for mean in same.start])
        for t in range(2, self.steps + 1):
            kept = (density * weights).max(axis=0) > NEGLIGIBLE
            means = np.stack((after[kept], after[kept]))
            found.append(Law(means, (density * weights)[:, kept], 1.0))
            if t < self.steps:
                density = np.stack([kernel @ f for f in density])
        return found

    def _quadrature(self) -> tuple[Array, Array]:
        """Nodes and weights on all that X_1, ..., X_{T-1} reach."""
        core = 0.0 if math.isinf(self.slope) else self.beta / self.slope
        spread = max(map(abs, self.start)) + REACH * math.sqrt(self.steps)
        width = 1.0 if math.isinf(self.slope) else 1 / (1 + self.slope)
        end = max(spread + self.beta * (self.steps - 2), core + 1)
        if (end + core / width) * 2 * NODES > MOST_NODES:
            raise InputError(
                f"beta: got {self.beta} with slope {self.slope} and {self.steps} steps, which take "
                f"more than {MOST_NODES} nodes; expected a smaller one"
            )
        inner = np.linspace(0, core, 1 + math.ceil(core / width))
        outer = np.linspace(core, end, 1 + math.ceil(end - core))
        half = np.concatenate((inner[:-1], outer))
        edges = np.concatenate((-half[:0:-1], half))
        nodes, node_weights = np.polynomial.legendre.leggauss(NODES)
        widths = np.diff(edges)[:, None] / 2
        x = (edges[:-1, None] + edges[1:, None]) / 2 + widths * nodes
        return x.ravel(), (widths * node_weights).ravel()


@dataclass(frozen=True, eq=False)
class Law:
    """Two mixtures of normal distributions: an observation in the worlds "out" and "in".

    means, weights: shape (2, components), "out" first. deviation: common to all components. The
    likelihood ratio must ascend.
    """

    means: Array
    weights: Array
    deviation: float

    def above(self, threshold: ArrayLike) -> tuple[Array, Array]:
        """P(X > threshold) in the worlds "out" and "in": false and true positive rates."""
        return self._sum(lambda z: ndtr(-z), threshold)

    def below(self, threshold: ArrayLike) -> tuple[Array, Array]:
        """P(X <= threshold), to full relative precision: true and false negative rates."""
        return self._sum(ndtr, threshold)

    def gdp_mu(self, threshold: float = 0.0) -> float:
        """The Gaussian-DP reading: the mu of a normal pair with the error rates of this test.

        It speaks of one point of the trade-off curve, not of the curve.
        """
        out, _ = self.above(threshold)
        _, inside = self.below(threshold)
        return float(-ndtri(out) - ndtri(inside))

    def delta(self, epsilon: float, *, null: Null = "out") -> float:
        """Exact hockey-stick divergence at ``epsilon`` >= 0.

        "out" tests P_in - e^epsilon P_out, "in" the reverse, "either" is the larger of the two.
        """
        check_null(null)
        if null == "either":
            return max(self.delta(epsilon, null="out"), self.delta(epsilon, null="in"))
        if not epsilon >= 0:
            raise InputError(f"epsilon: got {epsilon}; expected 0 or more")
        level = epsilon if null == "out" else -epsilon

        def excess(x: float) -> float:
            return self.log_ratio(x) - level

        low = float(self.means.min()) - 37 * self.deviation
        high = float(self.means.max()) + 37 * self.deviation
        if excess(high) <= 0:
            best = high
        elif excess(low) >= 0:
            best = low
        else:
            # The divergence is stationary there, so that this error enters it squared.
            best = roots.between(excess, low, high, absolute=1e-9)[0]
        if null == "out":
            out, inside = self.above(best)
            return max(0.0, float(inside - math.exp(epsilon) * out))
        out, inside = self.below(best)
        return max(0.0, float(out - math.exp(epsilon) * inside))

    def log_ratio(self, x: float) -> float:
        """Logarithm of the likelihood ratio of "in" to "out" at x, which ascends."""
        squares = ((x - self.means) / self.deviation) ** 2 / 2
        with np.errstate(divide="ignore"):
            out, inside = logsumexp(np.log(self.weights) - squares, axis=1)
        return float(inside - out)

    def epsilon(self, delta: float, *, null: Null = "out") -> float:
        """Exact epsilon at ``delta``: the smallest whose hockey-stick divergence is ``delta``."""
        if not 0 < delta < 1:
            raise InputError(f"delta: got {delta}; expected a probability inside (0, 1)")
        if self.delta(0.0, null=null) <= delta:
            return 0.0
        high = 1.0
        while self.delta(high, null=null) > delta:
            high *= 2
        return roots.between(lambda e: self.delta(e, null=null) - delta, 0.0, high, absolute=1e-10)[
            1
        ]

    def errors(self, points: int = 1001) -> tuple[Array, Array]:
        """Points (FPR, FNR) of the exact trade-off curve, FPR ascending; ``points`` or more.

        FPR - FNR runs from -1 to 1 in steps of at most 2 / ``points``.
        """
        far = 37 * self.deviation
        at = np.linspace(self.means.max() + far, self.means.min() - far, 33)
        fpr, fnr = self.above(at)[0], self.below(at)[1]
        while True:
            (wide,) = np.nonzero(np.diff(fpr - fnr) > 2 / points)
            between = (at[wide] + at[wide + 1]) / 2
            if not len(wide):
                return fpr, fnr
            at = np.insert(at, wide + 1, between)
            fpr = np.insert(fpr, wide + 1, self.above(between)[0])
            fnr = np.insert(fnr, wide + 1, self.below(between)[1])

    def _sum(self, function: Callable[[Array], Array], at: ArrayLike) -> tuple[Array, Array]:
        """Both worlds' mixtures of ``function`` at standardised distances."""
        at = np.asarray(at, dtype=float)
        if at.size > 64:
            parts = [
                self._sum(function, part) for part in np.array_split(at.ravel(), at.size // 32)
            ]
            out, inside = (
                np.concatenate(side).reshape(at.shape) for side in zip(*parts, strict=True)
            )
            return out, inside
        found = [
            function((at[..., None] - means) / self.deviation) @ weights
            for means, weights in zip(self.means, self.weights, strict=True)
        ]
        return found[0], found[1]


def optimal_threshold(epsilon: float, mu: float) -> float:
    """h*, where the landscape must break for its one bit to be as private as the insertion is.

    The likelihood ratio of the first step is e^epsilon there: epsilon / mu + mu / 2, in deviations
    of the noise above the mean of world "out".
    """
    if not (0 < mu < math.inf and epsilon >= 0):
        raise InputError(
            f"mu, epsilon: got {mu}, {epsilon}; expected mu above 0, epsilon 0 or more"
        )
    return epsilon / mu + mu / 2


@dataclass(frozen=True)
class GaussianFit:
    """The Gaussian trade-off function nearest to a curve.

    distance: the Lévy distance, the shift of both error rates that takes one curve beyond the
    other, as found at the given points. bound: what it is at most, whatever lies between them.
    """

    mu: float
    distance: float
    bound: float


def nearest_gaussian(fpr: ArrayLike, fnr: ArrayLike) -> GaussianFit:
    """Nearest Gaussian-DP curve to the trade-off curve through these points, FPR ascending.

    Along FPR - FNR = d, FPR + FNR changes by no more than d does, on either curve; so between two
    points whose d are s apart half the gap is at most s / 2 above the larger of its ends. A fit is
    not a guarantee: a curve near G_mu may lie below it, where mu-GDP claims more than holds.
    """
    from scipy.optimize import minimize_scalar

    fpr, fnr = np.asarray(fpr, float), np.asarray(fnr, float)
    if fpr.shape != fnr.shape or fpr.ndim != 1 or len(fpr) < 2:
        raise InputError(f"fpr, fnr: got shapes {fpr.shape}, {fnr.shape}; expected (n,), n >= 2")
    if np.any(np.diff(fpr) < 0) or np.any(np.diff(fnr) > 0):
        raise InputError("fpr, fnr: got a curve that does not descend; expected a trade-off curve")
    difference, total = fpr - fnr, fpr + fnr
    z = np.linspace(-REACH, REACH, 40_001)

    def gap(mu: float) -> float:
        shifted = z + mu / 2  # thresholds about the middle of the two means
        out, inside = ndtr(-shifted), ndtr(shifted - mu)
        gaussian = np.interp(difference, (out - inside)[::-1], (out + inside)[::-1])
        return float(np.abs(total - gaussian).max() / 2)

    # By the point where the curves cross the diagonal, mu is near this.
    middle = float(np.interp(0.0, difference, total)) / 2
    guess = max(-2 * float(ndtri(min(max(middle, 1e-300), 0.5))), 0.0)
    low, high = 0.5 * guess, 1.5 * guess + 0.05
    mu = float(
        minimize_scalar(gap, bounds=(low, high), method="bounded", options={"xatol": 1e-7}).x
    )
    distance = gap(mu)
    ends = np.concatenate(([-1.0], difference, [1.0]))
    return GaussianFit(mu, distance, distance + float(np.diff(ends).max()) / 2)


def swapped(noise_multiplier: float, sampling_rate: float, steps: int) -> Law:
    """Law of a linear loss's last iterate if a record that turns round is swapped, and noise.

    A Binomial(steps, rate) number of its gradients, or that of opposite ones. The likelihood ratio
    ascends, as the density of either side over that of the noise does on its side.
    """
    arguments.check_mechanism(noise_multiplier, sampling_rate, steps)
    log_weights = binomial.log_binomial(int(steps), sampling_rate)
    # Rare counts of the one side are what is nearest to the other.
    (counts,) = np.nonzero(log_weights > -700)
    weights = np.exp(log_weights[counts])
    means = np.stack((-counts, counts)).astype(float)
    return Law(means, np.stack((weights, weights)), noise_multiplier * math.sqrt(steps))


def subsampled(noise_multiplier: float, sampling_rate: float, steps: int) -> Law:
    """Law of a linear loss's last iterate: a Binomial(steps, rate) number of canaries, and noise.

    With ``sampling_rate`` 1 it is a normal pair, exactly. The likelihood ratio ascends, for all
    shifts are upwards.
    """
    from scipy.stats import binom

    arguments.check_mechanism(noise_multiplier, sampling_rate, steps)
    counts = np.arange(steps + 1.0)
    weights = binom.pmf(counts, steps, sampling_rate)
    kept = weights > 1e-30
    none = np.zeros((1, kept.sum()))
    none[0, 0] = 1.0
    means = np.stack((np.zeros(kept.sum()), counts[kept]))
    return Law(
        means, np.concatenate((none, weights[kept][None])), noise_multiplier * math.sqrt(steps)
    )


def berry_esseen(noise_multiplier: float, sampling_rate: float, steps: int) -> float:
    """Bound on how far ``subsampled``'s FNR, at any FPR, is from that of two normal distributions.

    The two are N(0, sigma^2 T) and N(q T, (sigma^2 + q (1 - q)) T), whose deviations differ. The
    best tests are thresholds, whose FPR is the same; their FNR is a distribution function of a sum
    of T independent terms. Constant 0.4748: Shevtsova 2011. It vanishes as 1 / sqrt(T); the pair
    tends to a Gaussian trade-off function only as q (1 - q) / sigma^2 does to 0.
    """
    arguments.check_mechanism(noise_multiplier, sampling_rate, steps)
    variance = noise_multiplier**2 + sampling_rate * (1 - sampling_rate)
    if sampling_rate == 1:
        return 0.0
    third = sum(
        probability * _third_moment(shift, noise_multiplier)
        for shift, probability in (
            (1 - sampling_rate, sampling_rate),
            (-sampling_rate, 1 - sampling_rate),
        )
    )
    return min(1.0, 0.4748 * third / (variance**1.5 * math.sqrt(steps)))


def _third_moment(shift: float, deviation: float) -> float:
    """E |shift + deviation Z|^3."""
    r = abs(shift) / deviation
    density = math.exp(-r * r / 2) / math.sqrt(2 * math.pi)
    return deviation**3 * ((r**3 + 3 * r) * math.erf(r / math.sqrt(2)) + 2 * (r * r + 2) * density)


def _normal(z: Array) -> Array:
    return np.exp(-z * z / 2) / math.sqrt(2 * math.pi)


def _kernel(x: Array, weights: Array, after: Array) -> csc_array:
    """Density at each node of a step from the other nodes, with the quadrature's weights."""
    first, last = np.searchsorted(x, after - REACH), np.searchsorted(x, after + REACH)
    counts = last - first
    pointers = np.concatenate(([0], np.cumsum(counts)))
    rows = np.arange(pointers[-1]) - np.repeat(pointers[:-1] - first, counts)
    values = _normal(x[rows] - np.repeat(after, counts)) * np.repeat(weights, counts)
    return csc_array((values, rows, pointers), shape=(len(x), len(x)))
