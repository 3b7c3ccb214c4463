"""The last iterate of the optimisers in use, under linear losses: a weighted sum, bracketed.

If every loss is linear, the last iterate is fixed by sums alone: a gradient of step t reaches it
with a weight w_t that learning rates, momentum, weight decay or a noise-correlating matrix decide.
With the canary it is sum_t w_t A_t + N(0, s^2), A_t = 1 when step t samples it, without it
N(0, s^2); s^2 = sigma^2 sum_t w_t^2 if the noise passes through the same weights as the gradients.
As in ``linear``, this is exact for linear losses and no guarantee for any other.

``sampling``: "poisson" samples the canary in every step with the sampling rate q; "shuffled" visits
it once an epoch of 1/q steps, in a step drawn evenly (balls and bins: Chua et al. 2024, Choquette-
Choo et al. 2024), which is what one record sees of shuffled batches. A ``group`` of g records that
come and go together, sampled independently, adds up to g Bernoulli variables a step.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hiddenstate.accounting import arguments, binomial, gaussian
from hiddenstate.accounting.composition import Bracket, allowed
from hiddenstate.accounting.mixture import GaussianMixture
from hiddenstate.accounting.tradeoff import Null, check_null
from hiddenstate.errors import InputError, expect
from hiddenstate.rounding import counted

Floats = NDArray[np.float64]
Schedule = Literal["constant", "linear", "cosine", "step"]
Sampling = Literal["poisson", "shuffled"]

SCHEDULES: dict[str, Callable[[Floats], Floats]] = {
    "constant": np.ones_like,
    "linear": lambda done: 1 - done,
    "cosine": lambda done: (1 + np.cos(np.pi * done)) / 2,
    "step": lambda done: 10.0 ** -np.floor(done * 3),
}
"""Learning rate over the initial one, by the share of steps done (0 in the first step)."""

MOST_CELLS = 1 << 22
"""Longest grid of sums."""

MOST_WORK = 1 << 33
"""Additions that a grid's sums may take: about ten seconds."""

LEAST_DELTA = 1e-280
"""Below, products of probabilities that are left out as 0 could add up to a share of it."""

CHEAP = 1 << 28
"""Additions that take a fraction of a second: where a grid needs no more, the default width is a
tenth of what it is elsewhere."""


def relative_rates(schedule: str, steps: int) -> Floats:
    """Learning rate of each step over the first's, shape (steps,)."""
    check_schedule(schedule)
    return SCHEDULES[schedule](np.arange(steps) / steps)


def optimiser_weights(
    steps: int,
    *,
    schedule: str = "constant",
    momentum: float = 0.0,
    weight_decay: float = 0.0,
    learning_rate: float = 0.1,
    average_last: int | None = None,
    ema_decay: float | None = None,
) -> Floats:
    """Weight of each step's gradient in the last iterate, shape (steps,), the largest being 1.

    SGD as PyTorch has it: v <- momentum v + (g + weight_decay theta), theta <- theta - lr_t v. Only
    the product of weight decay and learning rate matters; ``learning_rate`` is the first step's.
    average_last: of the mean of so many last iterates instead; ema_decay: of the exponential moving
    average a <- decay a + (1 - decay) theta, from theta's start.
    """
    require_steps(steps)
    if not 0 <= momentum < 1:
        raise InputError(f"momentum: got {momentum}; expected a number in [0, 1)")
    if not 0 < learning_rate < math.inf:
        raise InputError(f"learning_rate: got {learning_rate}; expected a number above 0")
    if not 0 <= weight_decay * learning_rate < 1:
        raise InputError(
            f"weight_decay: got {weight_decay} at learning rate {learning_rate}; expected a "
            "product of at least 0 and less than 1"
        )
    if average_last is not None:
        expect(1 <= average_last <= steps, "average_last", average_last, f"from 1 to {steps}")
    if ema_decay is not None:
        expect(0 <= ema_decay < 1, "ema_decay", ema_decay, "a number in [0, 1)")
    rates = learning_rate * relative_rates(schedule, steps)
    # Share of each iterate in what is released.
    shares = np.zeros(steps)
    shares[-1] = 1.0
    if average_last is not None:
        shares[-average_last:] = 1 / average_last
    elif ema_decay is not None:
        shares = (1 - ema_decay) * ema_decay ** np.arange(steps - 1.0, -1.0, -1.0)
    weights = np.empty(steps)
    # Backwards: how much what is released changes with theta and v before a step.
    theta, velocity = 0.0, 0.0
    for t in range(steps - 1, -1, -1):
        theta += shares[t]
        pushed = velocity - rates[t] * theta
        # The update subtracts, so that a gradient's weight is positive.
        weights[t] = -pushed
        velocity = momentum * pushed
        theta += weight_decay * pushed
    weights /= np.max(np.abs(weights))
    if np.any(weights < -1e-12):
        raise InputError(
            f"weight_decay: got {weight_decay} at learning rate {learning_rate} and momentum "
            f"{momentum}, with which the iterate swings past its aim; expected a smaller weight "
            "decay, learning rate or momentum, such that no gradient has a negative weight"
        )
    return np.maximum(weights, 0.0)


def check_schedule(schedule: str) -> None:
    """Raise InputError unless it is the name of a schedule."""
    if schedule not in SCHEDULES:
        raise InputError(f"schedule: got {schedule!r}; expected one of {', '.join(SCHEDULES)}")


def correlated_noise_std(noise_multiplier: float, weights: ArrayLike, matrix: ArrayLike) -> float:
    """Standard deviation of the last iterate's noise if the noise is correlated by a matrix.

    Matrix factorisation (DP-FTRL): gradients plus ``noise_multiplier`` C^-1 z, z standard normal,
    ``matrix`` being the lower triangular C, shape (steps, steps). The noise of the last iterate,
    in the unit of the weights (the last row of A), has the deviation sigma ||w C^-1||: correlation
    helps the last iterate only if that is more than sigma ||w||. The noise multiplier is as used:
    how much of it the sensitivity of C asks for is the accountant's matter.
    """
    from scipy.linalg import solve_triangular

    weights, c = np.asarray(weights, dtype=float), np.asarray(matrix, dtype=float)
    if c.shape != (len(weights), len(weights)) or np.any(np.triu(c, 1)) or np.any(np.diag(c) == 0):
        raise InputError(
            f"matrix: got shape {c.shape}; expected an invertible lower triangular matrix with a "
            f"row for each of {counted(len(weights), 'step')}"
        )
    # w C^-1 is the solution of C^T row = w.
    row = solve_triangular(c, weights, lower=True, trans="T")
    return noise_multiplier * float(np.linalg.norm(row))


@arguments.doubles
def epsilon(
    noise_multiplier: float,
    sampling_rate: float,
    weights: ArrayLike,
    delta: float,
    *,
    noise_weights: ArrayLike | None = None,
    noise_std: float | None = None,
    sampling: Sampling = "poisson",
    group: int = 1,
    width: float | None = None,
    null: Null = "either",
) -> Bracket:
    """Bracket on epsilon of the last iterate: exact for linear losses, else a heuristic.

    weights: shape (steps,), at least 0, of the gradients in the last iterate. noise_weights: the
    same of the noise where it differs (a noise schedule: w_t times the step's noise over the
    first's); noise_std: or the last iterate's noise itself, in the unit of the weights. The bracket
    is at most ``width`` wide, None standing for 0.1 % of epsilon or 1e-4, whichever is larger,
    where that takes less than a second, and for ten times as much elsewhere. Where the canary is in
    every step the sum is a constant, and the bracket 2e-9 of epsilon wide: mu = sum w / s.

    The sums are rounded to a grid, up for the upper bound and down for the lower: more shift is
    easier to tell from none (Choquette-Choo et al. 2024, Lemma 4.5). Raises InputError on values
    out of range, and where a width that is given would take more than 4,194,304 sums, or ten
    seconds or so.
    """
    weights = np.asarray(weights, dtype=float)
    if weights.ndim != 1 or not np.all((weights >= 0) & (weights < math.inf)) or not weights.any():
        raise InputError("weights: expected finite numbers of at least 0, not all of them 0")
    arguments.check_mechanism(noise_multiplier, sampling_rate, len(weights))
    arguments.check_delta(delta)
    noise_multiplier, sampling_rate = float(noise_multiplier), float(sampling_rate)
    delta = float(delta)
    expect(delta >= LEAST_DELTA, "delta", delta, f"at least {LEAST_DELTA}")
    check_null(null)
    noise_std = _noise_std(noise_multiplier, weights, noise_weights, noise_std)
    if not (group >= 1 and group == int(group)):
        raise InputError(f"group: got {group}; expected an integer of at least 1")
    if width is not None and not width > 0:
        raise InputError(f"width: got {width}; expected a number above 0")
    epoch = _epoch(sampling, sampling_rate, len(weights))
    if sampling_rate == 1:
        mu = group * float(np.sum(weights)) / noise_std
        return Bracket(*gaussian.bracket(mu, delta))
    return _refined(_Sum(weights, sampling_rate, epoch, int(group)), noise_std, delta, null, width)


def _noise_std(
    noise_multiplier: float,
    weights: Floats,
    noise_weights: ArrayLike | None,
    noise_std: float | None,
) -> float:
    """Standard deviation of the last iterate's noise, by what is said of it."""
    if noise_std is None:
        spread = weights if noise_weights is None else np.asarray(noise_weights, dtype=float)
        if spread.shape != weights.shape or not np.all(np.isfinite(spread)) or not spread.any():
            raise InputError(f"noise_weights: expected {len(weights)} finite numbers, not all 0")
        noise_std = noise_multiplier * float(np.linalg.norm(spread))
    elif noise_weights is not None:
        raise InputError("noise_std: expected only one of noise_std and noise_weights")
    if not 0 < noise_std < math.inf:
        raise InputError(f"noise_std: got {noise_std}; expected a number above 0")
    return noise_std


def _epoch(sampling: Sampling, rate: float, steps: int) -> int:
    """Steps of an epoch of shuffled batches, 0 if they are sampled."""
    if sampling == "poisson":
        return 0
    if sampling != "shuffled":
        raise InputError(f"sampling: got {sampling!r}; expected 'poisson' or 'shuffled'")
    epoch = round(1 / rate)
    if abs(epoch * rate - 1) > 1e-9 or steps % epoch:
        raise InputError(
            f"sampling_rate: got {rate} for {counted(steps, 'shuffled step')}; expected "
            "one over the steps of an epoch, and a whole number of epochs"
        )
    return epoch


def _refined(
    total: "_Sum", noise_std: float, delta: float, null: Null, width: float | None
) -> Bracket:
    """A bracket from ever finer grids, until it is narrow enough."""
    lower, upper = 0.0, math.inf
    cells = 1 << 12
    while cells <= MOST_CELLS and total.additions(cells, delta) <= MOST_WORK:
        lower = max(lower, _bound(total, noise_std, delta, null, cells, up=False))
        upper = min(upper, _bound(total, noise_std, delta, null, cells, up=True))
        cells *= 4
        enough = allowed(lower, width)
        if width is None and cells <= MOST_CELLS and total.additions(cells, delta) <= CHEAP:
            enough /= 10
        if upper - lower <= enough:
            return Bracket(lower, upper)
    if width is None and math.isfinite(upper):
        return Bracket(lower, upper)
    raise InputError(
        f"width: got {allowed(lower, width):.3g}; expected at least {1.005 * (upper - lower):.3g}, "
        f"which is what {cells // 4} sums resolve in about ten seconds: the bracket is "
        f"[{lower:.9g}, {upper:.9g}]"
    )


def require_steps(steps: int) -> None:
    """InputError for more steps than an array may have."""
    arguments.check_mechanism(1.0, 1.0, steps)
    arguments.check_steps(steps, binomial.MOST_STEPS)


@dataclass(frozen=True)
class _Sum:
    """The canary's sum: independent parts, each of ``copies`` copies a group.

    weights: of the steps. epoch: 0 for Poisson sampling, else the steps of an epoch, in one of
    which the canary is visited.
    """

    weights: Floats
    rate: float
    epoch: int
    copies: int

    @property
    def total(self) -> float:
        """The largest sum there is."""
        if self.epoch:
            return self.copies * float(np.sum(np.max(self.weights.reshape(-1, self.epoch), axis=1)))
        return self.copies * float(np.sum(self.weights))

    @property
    def terms(self) -> int:
        """How many weights the largest sum is of."""
        return self.copies * len(self.weights) // max(self.epoch, 1)

    def largest(self, probability: float) -> float:
        """Chernoff: the sum exceeds this with at most the probability."""
        if self.epoch:
            return self.total
        most = self.total
        top, need = float(np.max(self.weights)), -math.log(probability)
        # Every theta gives a valid bound; the best of a few is taken.
        for theta in np.geomspace(1e-4, 50, 60) / top:
            log_mgf = self.copies * np.sum(np.log1p(self.rate * np.expm1(theta * self.weights)))
            most = min(most, (float(log_mgf) + need) / theta)
        return most

    def additions(self, cells: int, delta: float) -> float:
        """About how many additions both bounds take on a grid of so many cells."""
        if self.epoch:
            return 2.0 * cells * self.copies * len(self.weights)
        # A sum of n Bernoulli variables takes few values that are not too rare, for each weight of
        # its own on the grid.
        _, counts = np.unique(np.round(self.weights * 1e9), return_counts=True)
        mean = counts * self.copies * self.rate
        need = -math.log(1e-5 * delta)
        values = np.minimum(counts * self.copies, mean + need + np.sqrt(2 * need * mean)) + 1
        return 2.0 * cells * float(np.sum(values))

    def parts(self, h: float, up: bool, tail: float) -> Iterator[tuple[NDArray[np.int64], Floats]]:
        """Distributions that add up: grid points in ascending order and their probabilities.

        At most ``tail`` of the probability is left out of all parts together.
        """
        cells = self.weights / h
        # A weight on the grid stays there, whatever the rounding of the division.
        near = np.ceil(cells * (1 - 1e-12)) if up else np.floor(cells * (1 + 1e-12))
        # Many tiny weights would take a point each: of them all there is, as if always drawn.
        tiny = cells < 1e-9
        k = np.where(tiny, 0, near).astype(np.int64)
        if up and tiny.any():
            yield np.array([math.ceil(self.copies * np.sum(cells[tiny]))]), np.ones(1)
        if self.epoch:
            for part in k.reshape(-1, self.epoch):
                values, counts = np.unique(part, return_counts=True)
                for _ in range(self.copies):
                    yield values, counts / self.epoch
            return
        values, counts = np.unique(k, return_counts=True)
        for value, count in zip(values, counts * self.copies, strict=True):
            mass = np.exp(binomial.log_binomial(int(count), self.rate))
            # What a sum of this many Bernoulli variables hardly exceeds is left out.
            above = np.cumsum(mass[::-1])[::-1]
            drawn = np.flatnonzero(above > tail / len(values))
            yield value * drawn, mass[drawn]


def _bound(
    total: _Sum, noise_std: float, delta: float, null: Null, cells: int, *, up: bool
) -> float:
    """Epsilon from sums rounded to ``cells`` grid points, up or down.

    Rounded down, sums beyond the grid move to its end, and what is left out to 0. Rounded up, they
    are left out: with probability t, they add at most t to delta of null "out" and -log(1 - t) to
    epsilon of "in".
    """
    tail = 1e-5 * delta
    # The largest weight is a whole number of cells, so that equal weights need no rounding.
    largest, top = total.largest(tail), float(np.max(total.weights))
    # Where every sum is on the grid, so are those that are rounded up.
    room = total.terms if largest >= total.total * (1 - 1e-12) and cells > 2 * total.terms else 0
    h = top / max(1, math.floor((cells - 1 - room) * top / largest))
    masses, used, beyond = np.zeros(cells), 1, 0.0
    masses[0] = 1.0
    for points, probabilities in total.parts(h, up, tail):
        before, reach = masses[:used].copy(), used
        masses[:used] = 0
        for point, probability in zip(points.tolist(), probabilities.tolist(), strict=True):
            if probability == 0:
                continue
            end = min(used + point, cells)
            within = max(end - point, 0)
            if within:
                masses[point:end] += probability * before[:within]
                reach = max(reach, end)
            # Summed by itself: one less the sum of the others has the rounding of one.
            beyond += probability * float(np.sum(before[within:]))
        used = reach
    lost = beyond + tail
    if not up:
        masses[used - 1] += beyond
        masses[0] += max(0.0, 1 - math.fsum(masses[:used]))
    support = np.flatnonzero(masses[:used] > 0)
    # The grid tells no sum from 0: the lower bound is 0, and the upper one needs a finer grid.
    if not np.any(support > 0):
        return math.inf if up else 0.0
    log_weights = np.log(masses[support])
    if up:
        if lost >= 0.5:  # rounding took the sums beyond the grid
            return math.inf
        log_weights -= math.log1p(-lost)
    shifts: Floats = support.astype(float) * h
    pair = GaussianMixture(shifts, log_weights, noise_std)
    found = 0.0
    for direction in ("out", "in") if null == "either" else (null,):
        if not up:
            found = max(found, pair.bracket(delta, share=1e-9, null=direction)[0])
        elif lost >= delta:
            return math.inf
        elif direction == "out":
            found = max(found, pair.bracket(delta - lost, share=1e-9, null="out")[1])
        else:
            more = -math.log1p(-lost) * (1 + 1e-9)
            found = max(found, pair.bracket(delta, share=1e-9, null="in")[1] + more)
    return found
