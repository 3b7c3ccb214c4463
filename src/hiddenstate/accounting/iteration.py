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
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import csc_array
from scipy.special import log_ndtr, logsumexp, ndtr, ndtri, ndtri_exp

from hiddenstate.accounting import arguments, binomial, roots
from hiddenstate.accounting.mixture import log_mills
from hiddenstate.accounting.tradeoff import Direction, Null, check_null
from hiddenstate.errors import InputError, check_count, expect
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

RAREST = -32.0
"""Logarithm of 1e-14: rarer outputs of hidden steps miss too much of what ``REACH`` leaves out."""

RARE = -2000.0
"""Numbers of sampled steps whose log-probability is below this are left out."""

LARGEST = 1e12
"""Means in deviations; beyond, doubles hardly tell apart outputs that are a deviation apart."""

LEAST_NOISE, LARGEST_NOISE = 1e-8, 1e300
"""Noise with which the means of all sums of steps are within ``LARGEST``, and doubles suffice."""


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
        if not self.mu <= LARGEST:
            raise InputError(f"mu: got {self.mu}; expected at most {LARGEST:g}")
        if not 0 <= self.beta < math.inf:
            raise InputError(f"beta: got {self.beta}; expected 0 or more")
        if self.threshold is not None and not abs(self.threshold) <= LARGEST:
            words = f"expected at most {LARGEST:g} on either side of 0"
            raise InputError(f"threshold: got {self.threshold}; {words}")
        check_count("steps", self.steps)
        arguments.in_doubles(self, "mu", "beta", "threshold", "slope")

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
        return list(self._evolution())

    @cached_property
    def law(self) -> "Law":
        if self.beta == 0:
            return self._normal_pair(self.steps)
        # Only the last law is kept in memory.
        return deque(self._evolution(), 1).pop()

    def _normal_pair(self, steps: int) -> "Law":
        means = np.array([[mean] for mean in self.start])
        return Law(means, np.zeros((2, 1)), math.sqrt(steps))

    def _evolution(self) -> Iterator["Law"]:
        if self.beta == 0:
            # A flat landscape adds noise alone.
            yield from map(self._normal_pair, range(1, self.steps + 1))
            return
        yield self._normal_pair(1)
        if self.steps == 1:
            return
        beta = min(self.beta, LOCKED) if math.isinf(self.slope) else self.beta
        same = SingleInsertion(self.mu, beta, self.steps, self.threshold, self.slope)
        x, weights = same._quadrature()
        after = x + same.drift(x)
        kernel = _kernel(x, weights, after)
        density = np.stack([_normal(x - mean) for mean in same.start])
        for t in range(2, self.steps + 1):
            kept = (density * weights).max(axis=0) > NEGLIGIBLE
            means = np.stack((after[kept], after[kept]))
            with np.errstate(divide="ignore"):
                logs = np.log((density * weights)[:, kept])
            # The last noise stays in closed form: normal laws around the nodes of X_(t-1).
            yield Law(means, logs, 1.0, RAREST)
            if t < self.steps:
                density = np.stack([kernel @ f for f in density])

    def _quadrature(self) -> tuple[Array, Array]:
        """Nodes and weights on all that X_1, ..., X_{T-1} reach."""
        core = 0.0 if math.isinf(self.slope) else self.beta / self.slope
        spread = max(map(abs, self.start)) + REACH * math.sqrt(self.steps)
        width = 1.0 if math.isinf(self.slope) else 1 / (1 + self.slope)
        # X_(T-1) has drifted T - 2 times.
        end = max(spread + self.beta * (self.steps - 2), core + 1)
        if (end + core / width) * 2 * NODES > MOST_NODES:
            raise InputError(
                f"beta: got {self.beta} with slope {self.slope} and {self.steps} steps, which take "
                f"more than {MOST_NODES} nodes; expected a smaller one"
            )
        inner = np.linspace(0, core, 1 + math.ceil(core / width))
        outer = np.linspace(core, end, 1 + math.ceil(end - core))
        # The drift's breaks, at 0 or at the ends of the ramp, are edges: no panel straddles one.
        half = np.concatenate((inner[:-1], outer))
        edges = np.concatenate((-half[:0:-1], half))
        nodes, node_weights = np.polynomial.legendre.leggauss(NODES)
        widths = np.diff(edges)[:, None] / 2
        x = (edges[:-1, None] + edges[1:, None]) / 2 + widths * nodes
        return x.ravel(), (widths * node_weights).ravel()


@dataclass(frozen=True, eq=False)
class Law:
    """Two mixtures of normal distributions: an observation in the worlds "out" and "in".

    means, log_weights: shape (2, components), "out" first. deviation: common to all components.
    The likelihood ratio must ascend. rarest: logarithm of the probability of the rarest outputs
    that it tells right. Delta is exact to 1e-14, epsilon to 1e-9, and to 1e-9 of itself above 1.
    """

    means: Array
    log_weights: Array
    deviation: float
    rarest: float = -math.inf

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
        z = (threshold - self.means) / self.deviation
        # In logarithms, as either rate may be below the least double.
        out = logsumexp(self.log_weights[0] + log_ndtr(-z[0]))
        inside = logsumexp(self.log_weights[1] + log_ndtr(z[1]))
        return float(-ndtri_exp(out) - ndtri_exp(inside))

    def delta(self, epsilon: float, *, null: Null = "out") -> float:
        """Exact hockey-stick divergence at ``epsilon`` >= 0.

        "out" tests P_in - e^epsilon P_out, "in" the reverse, "either" is the larger of the two.
        """
        check_null(null)
        if null == "either":
            return max(self.delta(epsilon, null="out"), self.delta(epsilon, null="in"))
        if not epsilon >= 0:
            raise InputError(f"epsilon: got {epsilon}; expected 0 or more")
        return math.exp(self._log_delta_at(self._output(epsilon, null), null))

    def _output(self, epsilon: float, null: Direction) -> float:
        """Where the privacy loss is ``epsilon``, or the end of what matters where it is nowhere."""
        level = epsilon if null == "out" else -epsilon

        def excess(x: float) -> float:
            return self.log_ratio(x) - level

        low, high = self._ends()
        if excess(high) <= 0:
            return high
        if excess(low) >= 0:
            return low
        return roots.between(excess, low, high, absolute=1e-15 * self.deviation)[0]

    def _ends(self) -> tuple[float, float]:
        """Outputs beyond which are fewer than the least double."""
        return (
            float(self.means.min()) - 40 * self.deviation,
            float(self.means.max()) + 40 * self.deviation,
        )

    def _log_delta_at(self, x: float, null: Direction) -> float:
        """Logarithm of delta at the privacy loss of x.

        The loss being the ratio of the densities there, delta is the tail of the one world less its
        density times the other's Mills ratio. Neither overflows, and nothing large is subtracted.
        """
        side, one, other = (1, 1, 0) if null == "out" else (-1, 0, 1)
        z = side * (x - self.means) / self.deviation
        tail = float(logsumexp(self.log_weights[one] + log_ndtr(-z[one])))
        density = self.log_weights - z**2 / 2
        shares = density[other] - density[other].max()
        # ``log_mills`` is the logarithm of 2 Phi(x) e^(x^2 / 2).
        mills = logsumexp(shares + log_mills(-z[other])) - logsumexp(shares) - math.log(2)
        lost = -math.expm1(min(float(logsumexp(density[one]) + mills) - tail, 0.0))
        return tail + math.log(lost) if lost else -math.inf

    def log_ratio(self, x: float) -> float:
        """Logarithm of the likelihood ratio of "in" to "out" at x, which ascends."""
        squares = ((x - self.means) / self.deviation) ** 2 / 2
        out, inside = logsumexp(self.log_weights - squares, axis=1)
        return float(inside - out)

    def epsilon(self, delta: float, *, null: Null = "out") -> float:
        """Exact epsilon at ``delta``: the smallest whose hockey-stick divergence is ``delta``.

        Raises InputError where outputs would matter that are rarer than ``rarest``.
        """
        check_null(null)
        if not 0 < delta < 1:
            raise InputError(f"delta: got {delta}; expected a probability inside (0, 1)")
        if null == "either":
            return max(self.epsilon(delta, null="out"), self.epsilon(delta, null="in"))
        if self.delta(0.0, null=null) <= delta:
            return 0.0
        target, ends = math.log(delta), (self._output(0.0, null), self._ends()[null == "out"])
        # Along the line both epsilon and its delta are explicit.
        found = roots.between(
            lambda x: self._log_delta_at(x, null) - target,
            *sorted(ends),
            absolute=1e-15 * self.deviation,
        )
        epsilon = abs(self.log_ratio(found[null == "out"]))
        # The outputs that decide have about the probability delta e^-epsilon in the other world.
        fine = target - epsilon >= self.rarest
        why = f"a larger one: epsilon hangs on outputs rarer than e^{self.rarest:.0f}"
        expect(fine, "delta", delta, why)
        return epsilon

    def errors(self, points: int = 1001) -> tuple[Array, Array]:
        """Points (FPR, FNR) of the exact trade-off curve, FPR ascending; ``points`` or more.

        FPR - FNR runs from -1 to 1 in steps of at most 2 / ``points``.
        """
        # Phi(-37) is 6e-300, so further out no rate changes.
        far = 37 * self.deviation
        at = np.linspace(self.means.max() + far, self.means.min() - far, 33)
        fpr, fnr = self.above(at)[0], self.below(at)[1]
        while True:
            middles = (at[:-1] + at[1:]) / 2
            # Far from 0 there may be no number between two neighbours.
            split = (at[:-1] > middles) & (middles > at[1:])
            (wide,) = np.nonzero((np.diff(fpr - fnr) > 2 / points) & split)
            between = middles[wide]
            if not len(wide):
                return fpr, fnr
            at = np.insert(at, wide + 1, between)
            fpr = np.insert(fpr, wide + 1, self.above(between)[0])
            fnr = np.insert(fnr, wide + 1, self.below(between)[1])

    def _sum(self, function: Callable[[Array], Array], at: ArrayLike) -> tuple[Array, Array]:
        """Both worlds' mixtures of ``function`` at standardised distances."""
        at = np.asarray(at, dtype=float)
        # In parts, as 1,001 points times 60,000 components would take half a gigabyte.
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
            for means, weights in zip(self.means, np.exp(self.log_weights), strict=True)
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


@arguments.doubles
def swapped(noise_multiplier: float, sampling_rate: float, steps: int) -> Law:
    """Law of a linear loss's last iterate if a record that turns round is swapped, and noise.

    A Binomial(steps, rate) number of its gradients, or that of opposite ones. The likelihood ratio
    ascends, as the density of either side over that of the noise does on its side.
    """
    counts, log_weights, rarest = _counts(noise_multiplier, sampling_rate, steps)
    # Rare counts of the one side are what is nearest to the other.
    means, deviation = np.stack((-counts, counts)), noise_multiplier * math.sqrt(steps)
    return Law(means, np.stack((log_weights, log_weights)), deviation, rarest)


@arguments.doubles
def subsampled(noise_multiplier: float, sampling_rate: float, steps: int) -> Law:
    """Law of a linear loss's last iterate: a Binomial(steps, rate) number of canaries, and noise.

    With ``sampling_rate`` 1 it is a normal pair, exactly. The likelihood ratio ascends, for all
    shifts are upwards.
    """
    counts, log_weights, rarest = _counts(noise_multiplier, sampling_rate, steps)
    none = np.full(len(counts), -math.inf)
    none[0] = 0.0
    means, deviation = np.stack((0 * counts, counts)), noise_multiplier * math.sqrt(steps)
    return Law(means, np.stack((none, log_weights)), deviation, rarest)


def _counts(
    noise_multiplier: float, sampling_rate: float, steps: int
) -> tuple[Array, Array, float]:
    """Numbers of steps that sample a record, their log-probabilities, and that of the rest."""
    arguments.check_mechanism(noise_multiplier, sampling_rate, steps)
    arguments.check_steps(steps, binomial.MOST_STEPS)
    fine = LEAST_NOISE <= noise_multiplier <= LARGEST_NOISE
    words = f"a number from {LEAST_NOISE:g} to {LARGEST_NOISE:g}"
    expect(fine, "noise_multiplier", noise_multiplier, words)
    log_weights = binomial.log_binomial(int(steps), sampling_rate)
    kept = log_weights > RARE
    (counts,) = np.nonzero(kept)
    return counts.astype(float), log_weights[kept], float(log_weights[~kept].max(initial=-math.inf))


@arguments.doubles
def berry_esseen(noise_multiplier: float, sampling_rate: float, steps: int) -> float:
    """Bound on how far ``subsampled``'s FNR, at any FPR, is from that of two normal distributions.

    The two are N(0, sigma^2 T) and N(q T, (sigma^2 + q (1 - q)) T), whose deviations differ. The
    best tests are thresholds, whose FPR is the same; their FNR is a distribution function of a sum
    of T independent terms. Constant 0.4748: Shevtsova 2011. It vanishes as 1 / sqrt(T); the pair
    tends to a Gaussian trade-off function only as q (1 - q) / sigma^2 does to 0.
    """
    arguments.check_mechanism(noise_multiplier, sampling_rate, steps)
    if sampling_rate == 1:
        return 0.0
    # In units of a term's deviation, whose cube may be beyond floating point.
    unit = math.hypot(noise_multiplier, math.sqrt(sampling_rate * (1 - sampling_rate)))
    third = sum(
        probability * _third_moment(shift / unit, noise_multiplier / unit)
        for shift, probability in (
            (1 - sampling_rate, sampling_rate),
            (-sampling_rate, 1 - sampling_rate),
        )
    )
    return min(1.0, 0.4748 * third / math.sqrt(steps))


def _third_moment(shift: float, deviation: float) -> float:
    """E |shift + deviation Z|^3."""
    s, d = abs(shift), deviation
    r = s / d
    density = math.exp(-r * r / 2) / math.sqrt(2 * math.pi)
    within = s * (s * s + 3 * d * d) * math.erf(r / math.sqrt(2))
    return within + 2 * d * (s * s + 2 * d * d) * density


def _normal(z: Array) -> Array:
    return np.exp(-z * z / 2) / math.sqrt(2 * math.pi)


def _kernel(x: Array, weights: Array, after: Array) -> csc_array:
    """Density at each node of a step from the other nodes, with the quadrature's weights."""
    # Only nodes that the noise reaches: each column has a short run of rows.
    first, last = np.searchsorted(x, after - REACH), np.searchsorted(x, after + REACH)
    counts = last - first
    pointers = np.concatenate(([0], np.cumsum(counts)))
    rows = np.arange(pointers[-1]) - np.repeat(pointers[:-1] - first, counts)
    values = _normal(x[rows] - np.repeat(after, counts)) * np.repeat(weights, counts)
    return csc_array((values, rows, pointers), shape=(len(x), len(x)))
