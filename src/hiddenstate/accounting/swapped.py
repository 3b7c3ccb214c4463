"""Certified brackets on epsilon where a record is swapped and batches are drawn at each step.

``composition`` has records that are added or removed. A swap differs in one step's pair alone:

- Poisson batches: (1 - q) N(0, s^2) + q N(1, s^2) against (1 - q) N(0, s^2) + q N(-1, s^2), the
  record and its successor being opposite. Given the others in the batch, with R the sum of those,
  H_a((1 - q) R + q P, (1 - q) R + q P') = q H_b(P, (1 - a/b) R + (a/b) P') with
  b = 1 + (a - 1) / q (Balle, Barthe and Gaboardi 2018). Seen from P, the means of R and P' are at
  most 1 and 2 away, and the mixture of Gaussians whose means are so far away on one line is the
  easiest to tell from P (Choquette-Choo et al. 2024). Opposite records attain both.
- Batches of a fixed size, drawn without replacement: for a >= 1 at most
  H_a((1 - q) N(0, s^2) + q N(2, s^2), N(0, s^2)), attained when all other gradients are opposite
  (Zhu, Dong and Wang 2022, Theorem 11); for a < 1 by symmetry. The pair of both halves dominates a
  step. It is composed for the upper bound, and the pair that is attained for the lower.

Each pair is its own mirror image, so one direction is enough.
"""

import math

import numpy as np
from scipy.special import ndtr, ndtri

from hiddenstate.accounting import arguments, composition
from hiddenstate.accounting.composition import Bracket, Floats


@arguments.doubles
def bracket(
    noise_multiplier: float,
    sampling_rate: float,
    steps: int,
    delta: float,
    *,
    fixed_size: bool = False,
) -> Bracket:
    """Certified bracket on epsilon at ``delta`` for swapped records, all iterates released.

    fixed_size: batches are drawn without replacement, with ``sampling_rate`` of the records each;
    else every record is sampled by itself. It is about 1e-3 wide where that takes a second or so.

    >>> lower, upper = bracket(1.0, 0.01, 1000, 1e-5)
    >>> print(round(lower, 2), round(upper, 2))
    2.84 2.84
    """
    arguments.check_mechanism(noise_multiplier, sampling_rate, steps)
    arguments.check_delta(delta)
    sigma, rate, steps = float(noise_multiplier), float(sampling_rate), int(steps)
    # A record in every step moves the sum by 2: as 1 with half the noise.
    whole = composition.bracket(sigma / 2, 1.0, steps, delta)
    if rate == 1 or whole.upper == 0:
        return whole
    if -math.expm1(steps * math.log1p(-rate)) <= delta:
        return Bracket(0.0, 0.0)  # so rarely is the record sampled at all
    arguments.check_steps(steps, composition.MOST_STEPS)
    if not 1e-3 <= sigma <= composition.MOST_NOISE:
        return Bracket(0.0, whole.upper)
    # Of a record that is in every step, or of one that is told from none.
    lower = composition.fine_bracket(sigma / 2, rate, steps, delta).lower if fixed_size else 0.0
    upper = whole.upper
    tail = 1e-6 * delta / steps
    top = float(_loss(_far(sigma, tail, fixed_size), sigma, rate, fixed_size))
    single = rate * math.sqrt(min(math.expm1(min((4 if fixed_size else 2) / sigma**2, 50)), 1e4))
    z, spread = math.sqrt(2 * math.log(1 / delta)), single * math.sqrt(steps)
    guess = lower or spread**2 / 2 + spread * z
    h = math.sqrt(4 * composition.allowed(guess, None) * single / (z * math.sqrt(steps)))
    h = max(min(h, single, top / 100), top / (1 << 18))
    work, share = composition.Work(composition.FINE_WORK), 1e-4
    try:
        while top / h <= composition.MOST_POINTS:
            work.spend(8 * math.ceil(top / h))
            step = _Step(sigma, rate, h, math.ceil(top / h), fixed_size)
            if not fixed_size:
                found = composition.search(step.lower(), steps, delta, guess, share, work)
                lower = max(lower, found)
                guess = lower or guess
            found = composition.search(step.upper(), steps, delta, guess, share, work)
            before, upper = upper, min(upper, found)
            guess = guess if math.isinf(found) else upper
            close = max(min(1e-3, 0.01 * upper), 1e-4 * upper)
            # A fixed size has a lower bound that no grid improves: stop once the upper one settles.
            if upper - lower <= close or (fixed_size and 0 <= before - upper <= close / 10):
                break
            h, share = h / 3, max(share / 10, 1e-8)
    except composition.Exhausted:
        pass
    if lower > upper * (1 + 1e-9) + 1e-12:
        raise ArithmeticError(f"a lower bound of {lower} above the upper one, {upper}")
    return Bracket(min(lower, upper), upper)


def _far(sigma: float, tail: float, fixed_size: bool) -> float:
    """An output that a step with the record exceeds with at most this probability."""
    return (2.0 if fixed_size else 1.0) - sigma * float(ndtri(max(tail, 1e-300)))


def _loss(y: float, sigma: float, rate: float, fixed_size: bool) -> float:
    """Privacy loss of a step's output."""
    none, some = math.log1p(-rate), math.log(rate)
    if fixed_size:
        return float(np.logaddexp(none, some + (2 * y - 2) / sigma**2))
    up, down = (np.logaddexp(none, some + (sign * y - 0.5) / sigma**2) for sign in (1, -1))
    return float(up - down)


class _Step:
    """Bins of a step between the losses 0, h / 2, h and so on up to ``n`` h, and their mirror.

    given: masses without the record, or with its successor. more: how much larger those with the
    record are, which keeps its digits where sampling is rare.
    """

    def __init__(self, sigma: float, rate: float, h: float, n: int, fixed_size: bool) -> None:
        self.h, self.n, self.fixed_size = h, n, fixed_size
        losses: Floats = np.multiply(h / 2, np.arange(2 * n + 1))
        if fixed_size:
            odds = losses + np.log(rate * np.exp(-losses) - np.expm1(-losses)) - math.log(rate)
            y = np.maximum.accumulate(1 + sigma**2 / 2 * odds)
            shifts = (2.0, 0.0)
        else:
            with np.errstate(divide="ignore"):
                # A loss l is at sinh(y / s^2 - l / 2) = (1 / q - 1) e^(1 / (2 s^2)) sinh(l / 2).
                odds = losses / 2 + np.log(-np.expm1(-losses) / 2)
            odds += math.log1p(-rate) - math.log(rate)
            odds += 1 / (2 * sigma**2)
            # arcsinh(e^odds), which is odds + log 2 where the exponential would overflow.
            inverse = np.where(
                odds > 300, odds + math.log(2), np.arcsinh(np.exp(odds.clip(max=300)))
            )
            y = np.maximum.accumulate(sigma**2 * (losses / 2 + inverse))
            shifts = (1.0, -1.0)
        present, absent = (composition.cells((y - shift) / sigma) for shift in shifts)
        self.given = rate * absent + (1 - rate) * composition.cells(y / sigma)
        self.more = rate * (present - absent)
        self.beyond = rate * float(ndtr((shifts[0] - y[-1]) / sigma))
        self.beyond += (1 - rate) * float(ndtr(-y[-1] / sigma))

    def upper(self) -> composition.Losses:
        """Masses of a pair that dominates the step's."""
        given, more = (side[0::2] + side[1::2] for side in (self.given, self.more))
        within = _log_ratio(given, more) - self.h * np.arange(self.n)
        within = np.where(given > 0, np.clip(within, 0, self.h), self.h)
        moved = (given + more) * np.minimum(np.expm1(-within) / math.expm1(-self.h), 1.0)
        right = np.append(given + more - moved, 0.0)
        right[1:] += moved
        # The mirror's masses are those of the other world.
        masses = np.concatenate(((right * np.exp(-self.h * np.arange(self.n + 1)))[:0:-1], right))
        # What is not told apart, and the far end of the mirror, count as a loss of 0.
        masses[self.n] = 0.0
        masses[self.n] = max(0.0, 1 - self.beyond - math.fsum(masses))
        return composition.Losses(masses, -self.h * self.n, self.h, self.beyond)

    def lower(self) -> composition.Losses:
        """Masses of a pair that the step's dominates, and by how much their losses are off."""
        given, more = (side[1:-1:2] + side[2::2] for side in (self.given, self.more))
        grid = self.h * np.arange(1, self.n)
        off = np.clip(_log_ratio(given, more) - grid, -self.h / 2, self.h / 2)
        # The bin around 0 is as likely in both worlds.
        middle = 2 * self.given[:1] + self.more[:1]
        masses = np.concatenate((given[::-1], middle, given + more))
        off = np.concatenate((-off[::-1], np.zeros(1), off))
        first = -self.h * (self.n - 1)
        return composition.Losses(masses, first, self.h, residuals=off)


def _log_ratio(given: Floats, more: Floats) -> Floats:
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        return np.where(given > 0, np.log1p(more / given), 0.0)
