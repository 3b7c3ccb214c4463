"""Certified brackets on the epsilon of composed Poisson-subsampled Gaussian mechanisms.

One step compares P = (1 - q) N(0, sigma^2) + q N(1, sigma^2) with Q = N(0, sigma^2); its privacy
loss at output y is l(y) = log(1 - q + q e^((y - 1/2)/sigma^2)), which ascends from log(1 - q). The
losses of a grid log(1 - q) + k h cut the line into bins, and both bounds come from the bins' masses
under P and Q:

- upper: the mass of a bin moves to the two losses at its ends such that its masses under both
  worlds stay as they are, which only spreads the loss (connect the dots, Doroshenko et al. 2022);
- lower: an adversary who is told the bin alone knows less (post-processing). The loss log(P/Q) of
  a bin around a grid point differs from the point by a residual of order h^2. The sum of all
  steps' residuals is bounded by Chernoff's inequality.

Both errors are of order h^2. The losses of all steps add up by a fast Fourier transform of the
*tilted* masses p e^(lambda l) (Esscher's transform) with lambda such that the epsilon looked for
is their mean. So rounding, wrapping around and truncation cost a small share of delta, however
small it is: each of these errors, as a probability of the tilted sum, moves delta by at most that
probability times M(lambda)^T e^(-lambda epsilon) / (1 + lambda). Computed masses have a relative
accuracy of about 1e-11, which no bound below adds to its error.

Rounding. Of a vector of sum 1 and length N each computed Fourier coefficient is off by at most
a = 4 log2(N) u, u being the spacing of doubles at 1 (Higham 2002, chapter 24). Its T-th power z^T
is then off by at most T (a + 5 u) |z|^(T - 1), and by Parseval and Cauchy-Schwarz the absolute
errors of all tilted probabilities together are at most T (2 a + 5 u) times the Euclidean norm of
the z^(T - 1). The inverse transform is used as it is: setting its negative values to 0 would add
mass that no error holds. Sums of the grid's ends cost 4 u of them a step.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import fft
from scipy.special import ndtr, ndtri

from hiddenstate.accounting import arguments, linear, roots
from hiddenstate.accounting.mixture import GaussianMixture
from hiddenstate.accounting.tradeoff import Direction, Null, check_null
from hiddenstate.errors import InputError, check_count, expect
from hiddenstate.rounding import counted

_DIRECTIONS: tuple[Direction, Direction] = ("out", "in")
Floats = NDArray[np.float64]

MOST_POINTS = 1 << 23
"""Longest grid: it takes half a gigabyte and some seconds."""

MOST_STEPS = 10**9
"""Beyond, a bracket would take minutes."""

LEAST_NOISE, MOST_NOISE, LEAST_DELTA = 1e-4, 1e6, 1e-200
"""Elsewhere losses of a sampled step are lost in rounding, and sampling is not counted."""

MOST_WORK = 1 << 26
"""Privacy losses and points of Fourier transforms that a direction's bracket may take in all, which
is ten seconds or so."""

ROUGH_WORK, FINE_WORK = 1 << 25, 1 << 23
"""The same of a bracket whose width nobody asked for: to 1 % of epsilon, and to less."""

_NEGLIGIBLE = 90.0
"""Weights of so many nats below 1 count as losses without end."""

_U = float(np.finfo(float).eps)


class Bracket(NamedTuple):
    """Certified bounds: ``lower`` <= epsilon <= ``upper``."""

    lower: float
    upper: float


class TooWide(InputError):
    """A width that is not to be had; ``bracket`` is the best there is."""

    def __init__(self, message: str, bracket: Bracket) -> None:
        super().__init__(message)
        self.bracket = bracket


class Exhausted(Exception):
    """A bracket's work is spent."""


@dataclass
class Work:
    """Losses and points that a bracket may still take."""

    points: int

    def spend(self, points: int) -> None:
        if points > self.points:
            raise Exhausted
        self.points -= points


@dataclass(frozen=True)
class Losses:
    """Masses at losses ``first + spacing * k``, k = 0, 1, ...; ``infinite``: mass at infinity.

    residuals: true loss less the grid's, for each mass of a lower bound; None for an upper bound.
    """

    masses: Floats
    first: float
    spacing: float
    infinite: float = 0.0
    residuals: Floats | None = None


@dataclass(frozen=True)
class _Block:
    """Some steps whose sum alone is released: Binomial(steps, q) + N(0, s^2) against N(0, s^2).

    One step is a block of its own. rate: probability that the record is sampled at all. shifts,
    weights: how often it is then, and how likely; log_none: log(1 - rate). left_out: how likely are
    numbers that are not among them.
    """

    noise_std: float
    log_none: float
    shifts: Floats
    weights: Floats
    every: int = 1
    pair: GaussianMixture | None = None
    left_out: float = 0.0

    @classmethod
    def of(cls, noise_multiplier: float, rate: float, steps: int) -> "_Block":
        """So many steps of a mechanism."""
        if steps == 1:
            return cls(noise_multiplier, math.log1p(-rate), np.ones(1), np.ones(1))
        pair = linear.last_iterate(noise_multiplier, rate, steps)
        log_none = steps * math.log1p(-rate)
        log_weights = pair.log_weights - math.log(-math.expm1(log_none))
        some = (pair.shifts > 0) & (log_weights > -_NEGLIGIBLE)
        left_out = float(np.sum(np.exp(log_weights[(pair.shifts > 0) & ~some])))
        kept = pair.shifts[some], np.exp(log_weights[some])
        return cls(pair.noise_std, log_none, *kept, steps, pair, left_out)

    @property
    def sigma(self) -> float:
        """Noise multiplier of one step."""
        return self.noise_std / math.sqrt(self.every)

    @property
    def rate(self) -> float:
        return -math.expm1(self.log_none)

    @property
    def odds(self) -> float:
        """Logarithm of rate / (1 - rate)."""
        return math.log(self.rate) - self.log_none

    @property
    def spread(self) -> float:
        """Standard deviation of the likelihood ratio, as far as it is not extreme."""
        products = np.minimum(np.outer(self.shifts, self.shifts) / self.noise_std**2, 50.0)
        square = self.weights @ np.expm1(products) @ self.weights
        return self.rate * math.sqrt(min(float(square), 1e4))

    def top(self, tail: float) -> float:
        """A loss above log(1 - rate), a small one, that P exceeds with about this probability.

        Bounds hold for any: what lies above is counted at an infinite loss.
        """
        beyond = np.cumsum(self.weights[::-1])[::-1]
        # Half the tail is for rarer numbers of samples, half for the noise.
        last = int(np.sum(beyond > tail / 2))
        y = float(self.shifts[max(last - 1, 0)])
        y -= self.noise_std * float(ndtri(max(tail if last == 1 else tail / 2, 1e-300)))
        if self.pair is not None:
            return float(self.pair.loss(y)) - self.log_none
        return float(np.logaddexp(0.0, self.odds + (y - 0.5) / self.noise_std**2))

    def outputs(self, above: Floats) -> Floats:
        """Outputs whose losses are so far above log(1 - rate), ascending."""
        if self.pair is not None:
            # The root search's rounding must not make outputs descend.
            return np.maximum.accumulate(self.pair.threshold(above + self.log_none))
        # This is log(e^above - 1) without overflow or cancellation.
        return 0.5 + self.noise_std**2 * (above + np.log(-np.expm1(-above)) - self.odds)


@dataclass(frozen=True)
class _Step:
    """The bins of one block: grid spacing ``h``, masses of half bins without and with the record.

    Where it is sampled; what is left out of ``present`` counts as beyond the grid.
    """

    log_none: float
    h: float
    absent: Floats
    present: Floats
    top_absent: float
    top_present: float

    @property
    def rate(self) -> float:
        """Probability that the block samples the record."""
        return -math.expm1(self.log_none)

    @classmethod
    def of(cls, block: _Block, h: float, tail: float) -> "_Step":
        """Bins of spacing ``h`` up to a loss that P exceeds with probability at most ``tail``."""
        sigma = block.noise_std
        n = max(2, math.ceil(block.top(tail) / h))
        above: Floats = np.multiply(h / 2, np.arange(1, 2 * n + 1))
        y: Floats = np.concatenate((np.array([-np.inf]), block.outputs(above)))
        present, top = np.zeros(2 * n), block.left_out
        for shift, weight in zip(block.shifts.tolist(), block.weights.tolist(), strict=True):
            present += weight * cells((y - shift) / sigma)
            top += weight * float(ndtr((shift - y[-1]) / sigma))
        return cls(block.log_none, h, cells(y / sigma), present, float(ndtr(-y[-1] / sigma)), top)

    def upper(self, direction: Direction) -> Losses:
        """Masses of a pair that dominates the step's."""
        absent = self.absent[0::2] + self.absent[1::2]
        present = self.present[0::2] + self.present[1::2]
        mixed = (1 - self.rate) * absent + self.rate * present
        # How far the bin's loss is above the bin's lower end.
        within = np.clip(self._above(absent, present) - np.arange(len(absent)) * self.h, 0, self.h)
        if direction == "out":
            # Where the mass without the record underflows, the whole bin moves up.
            within[absent == 0] = self.h
            # (1 - e^-within) / (1 - e^-h) of the bin's mass under P keep its mass under Q.
            moved = mixed * np.minimum(np.expm1(-within) / math.expm1(-self.h), 1.0)
            masses = np.append(mixed - moved, 0.0)
            masses[1:] += moved
            tail = (1 - self.rate) * self.top_absent + self.rate * self.top_present
            return Losses(masses, self.log_none, self.h, tail)
        moved = absent * np.minimum(np.expm1(within) / math.expm1(self.h), 1.0)
        masses = np.append(absent - moved, 0.0)
        masses[1:] += moved
        # Beyond the grid losses of null "in" are lower still: the grid's end rounds them up.
        masses[-1] += self.top_absent
        first = -self.log_none - self.h * len(absent)
        return Losses(masses[::-1], first, self.h)

    def lower(self, direction: Direction) -> Losses:
        """Masses of a pair that the step's dominates, and by how much their losses are off."""
        # Bins lie around grid points. The last half bin and what is beyond it are left out,
        # which only lowers delta.
        absent = self.absent[0::2].copy()
        present = self.present[0::2].copy()
        absent[1:] += self.absent[1:-1:2]
        present[1:] += self.present[1:-1:2]
        mixed = (1 - self.rate) * absent + self.rate * present
        residual = self._above(absent, present) - np.arange(len(absent)) * self.h
        if direction == "out":
            # Where the mass without the record underflows, the bin's lower end bounds the loss.
            residual = np.where(absent > 0, np.clip(residual, -self.h / 2, self.h / 2), -self.h / 2)
            return Losses(mixed, self.log_none, self.h, residuals=residual)
        residual = -np.clip(residual, -self.h / 2, self.h / 2)[::-1]
        first = -self.log_none - self.h * (len(absent) - 1)
        return Losses(absent[::-1], first, self.h, residuals=residual)

    def _above(self, absent: Floats, present: Floats) -> Floats:
        """Loss of each bin above log(1 - q)."""
        with np.errstate(divide="ignore", invalid="ignore"):
            odds = np.log(present) - np.log(absent) + math.log(self.rate) - self.log_none
            return np.where(absent > 0, np.logaddexp(0.0, odds), 0.0)


def cells(x: Floats) -> Floats:
    """Standard normal probabilities between neighbours of the ascending ``x``, to 1e-11 of each."""
    low, high = x[:-1], x[1:]
    # On the right side the upper tails keep the digits.
    right = low > 0
    ends = np.where(right, -high, low), np.where(right, -low, high)
    mass = ndtr(ends[1]) - ndtr(ends[0])
    with np.errstate(invalid="ignore"):
        width, middle = high - low, (high + low) / 2
        narrow = width * np.maximum(1, np.abs(middle)) < 2e-3
    # Midpoint rule with its next term, where a difference would cancel.
    w, m = width[narrow], middle[narrow]
    series = 1 + w**2 * (m**2 - 1) / 24 + w**4 * (m**4 - 6 * m**2 + 3) / 1920
    mass[narrow] = w * np.exp(-(m**2) / 2) / math.sqrt(2 * math.pi) * series
    return mass


class _Cumulants:
    """Mean, variance and size of a step's tilted loss, from at most 4,096 blocks of its masses."""

    def __init__(self, losses: Losses, steps: int) -> None:
        masses = losses.masses
        kept = np.flatnonzero(masses > 0)
        # Blocks suffice: the cumulants choose the tilt alone, and every tilt gives a valid bound.
        starts = np.arange(0, len(kept), max(1, len(kept) // 4096))
        total = np.add.reduceat(masses[kept], starts)
        grid = losses.first + losses.spacing * kept
        self.where = np.add.reduceat(masses[kept] * grid, starts) / total
        self.log_masses = np.log(total)
        self.steps = steps

    def at(self, tilt: float) -> tuple[float, float, float]:
        """Log of the moment generating function of all steps, mean and variance of their sum."""
        exponents = self.log_masses + tilt * self.where
        peak = float(np.max(exponents))
        weights = np.exp(exponents - peak)
        mass = float(np.sum(weights))
        mean = float(weights @ self.where) / mass
        variance = float(weights @ (self.where - mean) ** 2) / mass
        return self.steps * (peak + math.log(mass)), self.steps * mean, self.steps * variance

    def tilt_for_epsilon(self, epsilon: float) -> float:
        """Tilt at which M^T e^(-tilt epsilon), and with it what an error costs, is least."""
        return _root(lambda tilt: epsilon - self.at(tilt)[1])

    def log_scale(self, tilt: float, epsilon: float) -> float:
        """Log of the largest change of delta that a tilted probability of one can make."""
        return self.at(tilt)[0] - tilt * epsilon - math.log1p(tilt)


def _root(decreasing: Callable[[float], float]) -> float:
    """Positive root of a decreasing function; the nearer end of [1e-6, 1e9] if it has none."""
    for end, far in ((1e-6, False), (1e9, True)):
        if (decreasing(end) > 0) == far:
            return end
    ends = roots.between(
        lambda x: decreasing(math.exp(x)), math.log(1e-6), math.log(1e9), absolute=1e-9
    )
    return math.exp(ends[0])


def _reach(weights: Floats, values: Floats, steps: int, probability: float) -> float:
    """Chernoff: sums of ``steps`` draws of mean zero exceed this with at most the probability."""
    # Sums in place of products of vectors, whose threads would take more time than they save.
    furthest, need = float(np.max(values)), -math.log(probability)
    reach = steps * max(furthest, 0.0)
    variance = float(np.sum(weights * values**2))
    if reach == 0 or variance == 0:
        return reach
    # The best theta of a normal sum comes first; every theta gives a valid bound.
    theta = math.sqrt(2 * need / (steps * variance))
    for _ in range(12):
        if theta * furthest < 600:
            log_mgf = math.log1p(float(np.sum(weights * np.expm1(theta * values))))
            reach, before = min(reach, (steps * log_mgf + need) / theta), reach
            if steps * log_mgf < need and reach == before:
                break
        theta /= 1.5
    return reach


@dataclass(frozen=True)
class _Tilted:
    """Tilted masses of a step, of sum 1, at the indices ``kept`` of its grid, and their mean index.

    log_mass: log of their sum before, the tilt being of losses counted from ``centre``.
    """

    tilt: float
    kept: NDArray[np.intp]
    masses: Floats
    mean: float
    log_mass: float

    @classmethod
    def of(cls, losses: Losses, tilt: float) -> "_Tilted":
        """The masses that matter."""
        h = losses.spacing
        index = np.arange(len(losses.masses))
        with np.errstate(divide="ignore"):
            exponents = np.log(losses.masses) + tilt * h * index
        peak = float(np.max(exponents))
        # What is left out for good is a share of 1e-36 of the tilted mass.
        kept = np.flatnonzero(exponents > peak - 100)
        masses: Floats = np.exp(exponents[kept] - peak)
        total = float(np.sum(masses))
        masses /= total
        mean = float(np.sum(masses * kept))
        return cls(tilt, kept, masses, mean, peak + math.log(total) - tilt * h * round(mean))

    @property
    def centre(self) -> int:
        """The index next to the mean."""
        return round(self.mean)

    def drift(self, steps: int) -> float:
        """Mean of the sum of all steps, in grid steps from ``steps * centre``."""
        return steps * (self.mean - self.centre)

    def shift(self, residuals: Floats, steps: int, lost: float) -> float:
        """Sum of all steps' residuals, at least, but for a probability ``lost``."""
        residuals = residuals[self.kept]
        average = float(np.sum(self.masses * residuals))
        return steps * average - _reach(self.masses, average - residuals, steps, lost)

    def composed(self, steps: int, lost: float, work: Work) -> tuple[int, Floats, float] | None:
        """Probabilities of the sum of all steps, with the error of all of them together.

        The first is that of ``steps * centre`` and the index returned with them; either end leaves
        out a probability ``lost`` at most. None where they would be too many.
        """
        drift = self.drift(steps)
        apart: Floats = self.kept.astype(float) - self.mean
        right = drift + _reach(self.masses, apart, steps, lost)
        left = drift - _reach(self.masses, -apart, steps, lost)
        first = math.floor(left) - 1
        if right - first > 2 * MOST_POINTS:
            return None
        length = fft.next_fast_len(math.ceil(right) + 2 - first, real=True)
        work.spend(length)
        # The convolution is circular: mass beyond either end wraps around, within the error below.
        folded = np.bincount(
            (self.kept - self.centre) % length, weights=self.masses, minlength=length
        )
        transformed = fft.rfft(folded)
        tilted = np.roll(fft.irfft(transformed**steps, length), -(first % length))
        # Either end and the steps' residuals may cost ``lost`` each.
        return first, tilted, 3 * lost + _rounding(transformed, steps, length)


def _epsilon(
    losses: Losses, steps: int, delta: float, epsilon: float, share: float, work: Work
) -> float | None:
    """Epsilon at ``delta`` of the composition: rounded up, or down if there are residuals.

    The nearer ``epsilon`` is to it, the less the rounding; None where it is too far above.
    """
    h = losses.spacing
    work.spend(len(losses.masses))
    cumulants = _Cumulants(losses, steps)
    tilt = cumulants.tilt_for_epsilon(epsilon)
    # Probabilities of the tilted sum that are lost: ``share`` of delta's own.
    lost = math.exp(min(math.log(delta) - cumulants.log_scale(tilt, epsilon), 0.0)) * share
    lost = max(lost, 1e-30)
    step = _Tilted.of(losses, tilt)
    composed = step.composed(steps, lost, work)
    if composed is None:
        return None
    first, tilted, error = composed
    drift = step.drift(steps)
    shift = 0.0 if losses.residuals is None else step.shift(losses.residuals, steps, lost)
    offset = steps * (losses.first + h * step.centre) + h * drift + shift
    # With little noise the grid's losses are large, and those near its other end lose digits.
    rounding = 4 * _U * steps * (abs(losses.first) + h * len(losses.masses))
    offset += rounding if losses.residuals is None else -rounding
    # From here on losses are relative to the tilted mean. Left of it the tilt's inverse would
    # enlarge rounding errors, and epsilon is near it.
    x: Floats = np.multiply(h, first - drift + np.arange(len(tilted)))
    start = int(np.searchsorted(x, -min(12 / tilt, 600.0)))
    x, tilted = x[start:], tilted[start:]
    log_scale = steps * step.log_mass - tilt * h * drift
    # Infinite losses take 1 - (1 - infinite)^steps of delta.
    finite = delta + math.expm1(steps * math.log1p(-losses.infinite))
    if finite <= 0:
        return math.inf
    # Beyond 700 no value reaches it: the guess of epsilon is too far above.
    target = math.exp(min(math.log(finite) - log_scale, 700.0))
    crossing = _crossing(x, tilted, tilt, error, target, lower=losses.residuals is not None)
    if crossing is None:
        # Epsilon is below all these losses, the least of which may be 0 or less; if it is not, this
        # tilt has its mean far from epsilon.
        return 0.0 if offset + x[0] <= 0 else None
    return max(offset + crossing, 0.0)


def _crossing(
    x: Floats, tilted: Floats, tilt: float, error: float, target: float, *, lower: bool
) -> float | None:
    """Where delta, as a function of epsilon on the losses ``x``, comes down to ``target``.

    tilted: their probabilities, which are off by ``error`` together; rounded down if ``lower``,
    else up. None where it is less from the first loss on.
    """
    untilted = tilted * np.exp(-tilt * x)
    discounted = untilted * np.exp(-x)
    above = np.append(np.cumsum(untilted[:0:-1])[::-1], 0.0)
    below = np.append(np.cumsum(discounted[:0:-1])[::-1], 0.0)
    # Running sums of n terms are off by at most n roundings of their total.
    pad = (error / (1 + tilt) + 2 * _U * len(x)) * np.exp(-tilt * x)
    # There e^x is out of range. 0 is still a lower bound on delta, and a sum from which nothing
    # is subtracted is an upper bound.
    far = x > 600
    with np.errstate(over="ignore", invalid="ignore"):
        if lower:
            above -= pad
            values = np.where(far, 0.0, above - np.exp(x) * below)
        else:
            above += pad
            values = above - np.where(far, 0.0, np.exp(x) * below)
    large = np.flatnonzero(values > target)
    if not large.size:
        return None
    last = int(large[-1])
    # Delta is above the target up to the last loss: a valid lower bound, and no upper one.
    if last == len(x) - 1:
        return float(x[-1]) if lower else math.inf
    if below[last] > 0 and not far[last]:
        # Between two losses delta is above - e^epsilon below, which has a closed-form root.
        inside = math.log((above[last] - target) / below[last])
        return min(max(inside, float(x[last])), float(x[last + 1]))
    return float(x[last + 1])


def _rounding(transformed: NDArray[np.complex128], steps: int, length: int) -> float:
    """Bound on the sum of the absolute errors of the tilted probabilities: see "Rounding"."""
    powers = np.abs(transformed) ** (2 * (steps - 1))
    norm = math.sqrt(2 * float(np.sum(powers)))
    return steps * (8 * math.log2(length) + 5) * _U * norm


@arguments.doubles
def bracket(
    noise_multiplier: float,
    sampling_rate: float,
    steps: int,
    delta: float,
    *,
    width: float | None = None,
    null: Null = "either",
    points: int = MOST_WORK,
    every: int = 1,
) -> Bracket:
    """Certified bracket on epsilon at ``delta`` when all iterates are released (add/remove).

    every: of linear losses, where each ``every``-th iterate is released alone, which divides the
    steps; for other losses that is no guarantee. The sum of the steps between two releases is then
    all that is seen of them.
    It is at most ``width`` wide; None stands for 1 % of epsilon or 1e-3, whichever is larger.
    Without subsampling the mechanism is Gaussian and a single step has a closed form: then the
    bracket is 1e-9 of epsilon wide, and wider where rounding asks for it, as near the total
    variation. ``null="out"`` bounds P_in(S) - e^epsilon P_out(S), ``"in"``
    the reverse, ``"either"`` the larger of the two.

    Raises InputError on a value out of range, and where the width would take more memory than half
    a gigabyte or more than ten seconds or so; it names the width that is to be had.
    """
    arguments.check_mechanism(noise_multiplier, sampling_rate, steps)
    arguments.check_delta(delta)
    check_null(null)
    if width is not None and not width > 0:
        raise InputError(f"width: got {width}; expected a number above 0")
    sigma, rate, steps = float(noise_multiplier), float(sampling_rate), int(steps)
    check_count("release_every", every)
    if steps % every != 0:
        words = f"a divisor of the {counted(steps, 'step')}{_near(steps, every)}"
        expect(False, "release_every", every, words)
    if rate == 1 or steps == every:
        # With every record in every step, all steps are as one with less noise.
        if rate == 1:
            pair = linear.last_iterate(sigma / math.sqrt(steps), rate, 1)
        else:
            pair = linear.last_iterate(sigma, rate, steps)
        return Bracket(*pair.bracket(delta, share=5e-10, null=null))
    if -math.expm1(steps * math.log1p(-rate)) <= delta:
        return Bracket(0.0, 0.0)  # so rarely is the canary sampled at all
    arguments.check_steps(steps, MOST_STEPS)
    block = _Block.of(sigma, rate, every)
    bounds, wide = Bracket(0.0, 0.0), None
    for direction in _DIRECTIONS if null == "either" else (null,):
        try:
            one = _bracket(block, steps // every, delta, width, direction, bounds.lower, points)
        except TooWide as found:
            one, wide = found.bracket, found
        bounds = Bracket(max(bounds.lower, one.lower), max(bounds.upper, one.upper))
    if wide is not None:
        raise TooWide(str(wide), bounds)
    return bounds


def _near(steps: int, every: int) -> str:
    """The divisors next to a number, for a message."""
    small = [k for k in range(1, min(math.isqrt(steps), 10**6) + 1) if steps % k == 0]
    divisors = small + [steps // k for k in small]
    below = max((k for k in divisors if k <= every), default=1)
    above = min((k for k in divisors if k >= every), default=steps)
    return f", for example {below} or {above}" if below < above else ""


@arguments.doubles
def fine_bracket(
    noise_multiplier: float, sampling_rate: float, steps: int, delta: float, every: int = 1
) -> Bracket:
    """The best of ``bracket`` that little time finds, 1e-3 wide as a rule.

    Not where epsilon is so small or large that this is of no use. Wider where sampling is rare,
    steps are many or delta is tiny: no width is asked for, so none is refused.
    """
    mechanism = (noise_multiplier, sampling_rate, steps, delta, every)
    rough = _best(*mechanism, None, ROUGH_WORK)
    width = 0.01 * rough.upper if rough.upper < 0.1 else 1e-3 * max(1.0, rough.upper / 10)
    if rough.upper - rough.lower <= width:
        return rough
    fine = _best(*mechanism, width, FINE_WORK)
    return Bracket(max(rough.lower, fine.lower), min(rough.upper, fine.upper))


def _best(
    noise_multiplier: float,
    sampling_rate: float,
    steps: int,
    delta: float,
    every: int,
    width: float | None,
    points: int,
) -> Bracket:
    """``bracket``, or the best that so much work finds where it is wider than the width."""
    try:
        return bracket(
            noise_multiplier, sampling_rate, steps, delta, width=width, points=points, every=every
        )
    except TooWide as found:
        if math.isinf(found.bracket.upper):
            raise
        return found.bracket


def allowed(epsilon: float, width: float | None) -> float:
    """Width asked of a bracket around ``epsilon``."""
    return max(1e-3, 0.01 * epsilon) if width is None else width


def lower_epsilon(present: Floats, absent: Floats, times: int, delta: float, guess: float) -> float:
    """Epsilon at ``delta`` of a discrete pair that is composed, at least (rounded down).

    present, absent: probabilities of the outcomes with and without the record, shape (n,), the
    outcomes ordered by their likelihood ratio or nearly so. Both directions are tried. guess: an
    epsilon that is not far from it.
    """
    some = (present > _TINY) & (absent > _TINY)
    # The adversary is not told outcomes that one world hardly has: each joins its neighbour.
    labels = np.maximum(np.cumsum(some) - 1, 0)
    one = np.bincount(labels, weights=present)
    other = np.bincount(labels, weights=absent)
    found = 0.0
    for mass, against in ((one, other), (other, one)):
        losses = np.log(mass / against)
        # Losses that are all alike need a spacing above 0 too.
        h = max(float(np.ptp(losses)), 1e-6) / BINS
        index = np.round((losses - losses.min()) / h).astype(int)
        binned, others = np.bincount(index, weights=mass), np.bincount(index, weights=against)
        kept = binned > 0
        grid = losses.min() + h * np.arange(len(binned))
        residuals = np.zeros(len(binned))
        residuals[kept] = np.log(binned[kept] / others[kept]) - grid[kept]
        pair = Losses(binned.astype(float), float(losses.min()), h, residuals=residuals)
        found = max(found, search(pair, times, delta, guess, 1e-6, Work(MOST_WORK)))
    return found


BINS = 1 << 14
"""Losses of a discrete pair."""

_TINY = 1e-250
"""Probabilities below count as none."""


def search(
    losses: Losses, steps: int, delta: float, guess: float, share: float, work: Work
) -> float:
    """Best bound that some tilt gives, from tilts for ever better guesses of epsilon."""
    lower = losses.residuals is not None
    best = 0.0 if lower else math.inf
    near, far = 0.0, math.inf
    for _ in range(20):
        found = _epsilon(losses, steps, delta, guess, share, work)
        if found is None or math.isinf(found):
            # Too far above epsilon, or so far below that rounding is as large as delta.
            near, far = (near, guess) if found is None else (guess, far)
            guess = 2 * near if math.isinf(far) else (near + far) / 2
            if far < 1e-9:
                break
            continue
        better = found > best if lower else found < best
        close = abs(found - guess) <= 0.02 * guess
        if better:
            best = found
        if close or not better:
            break
        guess = found
    return best


def _bracket(
    block: _Block,
    steps: int,
    delta: float,
    width: float | None,
    direction: Direction,
    least: float,
    points: int,
) -> Bracket:
    """Bracket of one direction, refined until narrow enough or wholly below ``least``."""
    tail = 1e-6 * delta / steps
    top, single = block.top(tail), block.spread
    spread = single * math.sqrt(steps)
    z = math.sqrt(2 * math.log(1 / delta))
    # By the central limit of the losses; it decides where the search starts, not the bounds.
    guess = spread**2 / 2 + spread * z
    h = math.sqrt(4 * allowed(guess, width) * single / (z * math.sqrt(steps)))
    h = max(min(h, single, top / 100), top / (1 << 18))
    # What truncation, wrapping around and residuals may each cost of delta.
    share = 1e-4
    # Sampling the record in every step leaks more, and no loss of null "in" exceeds that of a step
    # without the canary.
    sampled = block.every * steps
    _, upper = linear.last_iterate(block.sigma, 1.0, sampled).bracket(delta, share=5e-10)
    lower, upper = 0.0, min(upper, -steps * block.log_none if direction == "in" else math.inf)
    if upper <= least:
        return Bracket(lower, upper)
    work = Work(points)
    if not (LEAST_NOISE <= block.noise_std <= MOST_NOISE and delta >= LEAST_DELTA):
        if upper - lower <= allowed(lower, width):
            return Bracket(lower, upper)
        work.points = 0  # masses, losses or delta are beyond what numbers resolve
    try:
        while top / h <= MOST_POINTS:
            work.spend((4 + len(block.shifts) // 2) * math.ceil(top / h))
            step = _Step.of(block, h, tail)
            # A guess that is too low says nothing of the upper bound, but raises the lower one.
            found = search(step.lower(direction), steps, delta, guess, share, work)
            lower = max(lower, found)
            guess = lower or guess
            found = search(step.upper(direction), steps, delta, guess, share, work)
            upper = min(upper, found)
            guess = guess if math.isinf(found) else upper
            # Both are certified, so more than rounding between them is a fault of the code.
            if lower > upper * (1 + 1e-9) + 1e-12:
                raise ArithmeticError(f"a lower bound of {lower} above the upper one, {upper}")
            excess = (upper - lower) / allowed(lower, width)
            if excess <= 1 or upper <= least:
                return Bracket(min(lower, upper), upper)
            h *= max(min(0.5, 0.9 / math.sqrt(excess)), 0.1)
            share = max(share / 10, 1e-8)
    except Exhausted:
        pass
    rate = -math.expm1(block.log_none / block.every)
    released = f" released every {block.every}" if block.every > 1 else ""
    raise TooWide(
        f"width: got {allowed(lower, width):.3g} at noise multiplier {block.sigma:.6g}, sampling "
        f"rate {rate:.6g}, {counted(sampled, 'step')}{released} and delta {delta}; expected at "
        f"least {1.005 * (upper - lower):.3g}, as a narrower bracket takes too long. The narrowest "
        f"that was found is [{lower:.9g}, {upper:.9g}].",
        Bracket(min(lower, upper), upper),
    )
