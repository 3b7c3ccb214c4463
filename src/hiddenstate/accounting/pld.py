"""DP-SGD whose intermediate iterates are released: composition by privacy loss distributions.

The mechanism is the Poisson-subsampled Gaussian mechanism composed over the steps. Every epsilon
and delta is an upper bound and every false-negative rate a lower bound. They come from
dp-accounting with pessimistic rounding (connect-the-dots) at a fixed interval where that is tight,
else from ``composition``, whose certified brackets decide which.
"""

import math
from collections.abc import Callable, Collection
from functools import lru_cache, partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import erfcx, ndtr

from hiddenstate.accounting import arguments, composition, tradeoff
from hiddenstate.accounting.tradeoff import Direction, Null, TradeoffCurve
from hiddenstate.errors import InputError
from hiddenstate.rounding import counted

INTERVAL = 1e-3
"""Spacing of dp-accounting's privacy losses. It is coarse where a step's loss is far below it."""

MOST_POINTS = 1 << 22
"""Longest distribution that dp-accounting is given: it takes a gigabyte."""

_LARGE = 600.0
"""Losses beyond are out of the range of exponentials."""

_DIRECTIONS: tuple[Direction, Direction] = ("out", "in")


@arguments.doubles
def privacy_loss(
    noise_multiplier: float,
    sampling_rate: float,
    steps: int,
    *,
    null: Null = "either",
    interval: float = INTERVAL,
) -> Any:
    """Privacy loss distribution of all iterates (a dp-accounting object, pessimistic).

    ``null="out"`` bounds P_in(S) - e^epsilon P_out(S), ``"in"`` the reverse, ``"either"`` the
    larger of the two, which is what add/remove adjacency asks for. Raises InputError where it
    would take more than a gigabyte.
    """
    tradeoff.check_null(null)
    size = points(noise_multiplier, sampling_rate, steps, interval)
    if size > MOST_POINTS:
        raise InputError(
            f"interval: got {interval} at noise multiplier {noise_multiplier} and "
            f"{counted(steps, 'step')}, which makes {size:.2g} privacy losses; expected at most "
            f"{MOST_POINTS:,}. Use a larger interval, or none."
        )
    # Imported here because it takes a second and most commands never account.
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
    # As dp-accounting does it, but with the deltas of all losses at once, which is faster.
    bounds = loss.connect_dots_bounds()
    lower = math.floor(bounds.epsilon_lower / interval)
    upper = math.ceil(bounds.epsilon_upper / interval)
    losses = np.arange(lower, upper + 1) * interval
    deltas = _single_step(noise_multiplier, sampling_rate, losses, null)
    pmf = pld_pmf.create_pmf_pessimistic_connect_dots_fixed_gap(interval, lower, upper, deltas)
    single = privacy_loss_distribution.PrivacyLossDistribution(pmf)
    return single.self_compose(steps) if steps > 1 else single


def _deltas(loss: Any, epsilons: NDArray[np.float64]) -> NDArray[np.float64]:
    """dp-accounting's ``get_delta_for_epsilon`` at ascending epsilons, shape (n,), from 0.

    Its own loops over all losses in Python, and took half the time of a trade-off curve.
    """
    pmf = loss._pmf_remove.to_dense_pmf()
    losses = (np.arange(pmf.size) + pmf._lower_loss) * pmf._discretization
    first = np.searchsorted(losses, epsilons, side="right")
    # Summed from the largest loss on; entry k counts from the k-th loss above the least epsilon.
    losses, masses = losses[first[0] :], pmf._probs[first[0] :]
    above = np.cumsum(np.append(pmf._infinity_mass, masses[::-1]))[::-1]
    below = np.cumsum(np.append(0.0, (masses * np.exp(-losses))[::-1]))[::-1]
    # Beyond 700 the power overflows; less is subtracted, so deltas stay upper bounds.
    return above[first - first[0]] - np.exp(np.minimum(epsilons, 700)) * below[first - first[0]]


def epsilon_of(loss: Any, delta: float) -> float:
    """Upper bound on epsilon: dp-accounting's ``get_epsilon_for_delta``, which has to be finite.

    Where its sums underflow, it is the largest loss that is reached with probability delta.
    """
    with np.errstate(over="ignore"):
        found = float(loss.get_epsilon_for_delta(delta))
    if found <= _LARGE:
        return found
    found = 0.0
    for pmf in (loss._pmf_remove.to_dense_pmf(), loss._pmf_add.to_dense_pmf()):
        if pmf._infinity_mass >= delta:
            return math.inf
        reached = np.flatnonzero(pmf._infinity_mass + np.cumsum(pmf._probs[::-1]) >= delta)
        if reached.size:
            last = pmf._lower_loss + pmf.size - 1 - int(reached[0])
            found = max(found, last * pmf._discretization)
    return found


def _single_step(
    sigma: float, rate: float, epsilons: NDArray[np.float64], null: Direction
) -> NDArray[np.float64]:
    """Exact delta of one step at each epsilon, of either sign.

    dp-accounting has the same closed form (``get_delta_for_epsilon``), a call for each epsilon.
    """
    # e^loss = 1 - q + q e^((y - 1/2) / sigma^2) at output y; the best set is all beyond it.
    sign = 1 if null == "out" else -1
    losses = sign * epsilons
    least = math.log1p(-rate) if rate < 1 else -math.inf
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        odds = (np.expm1(losses) + rate) / rate
        # The sum overflows at large losses, and keeps no digits near the least.
        apart = losses + np.log(-np.expm1(least - losses)) - math.log(rate)
        log_odds = np.where((odds > 1e-8) & np.isfinite(odds), np.log(odds), apart)
        y = np.where(losses > least, 0.5 + sigma**2 * log_odds, -np.inf)
    absent, present = ndtr(-sign * y / sigma), ndtr(sign * (1 - y) / sigma)
    mixed = (1 - rate) * absent + rate * present
    alternative, given = (mixed, absent) if null == "out" else (absent, mixed)
    taken = np.exp(np.minimum(epsilons, _LARGE)) * given
    # Beyond, the power and the probability are far out of range, but not their product. With null
    # "in" such losses are only those of rate 1, and 1 - q is lost beside the power with "out".
    large = (epsilons > _LARGE) & np.isfinite(y)
    near, away = (1 - y[large], y[large]) if null == "out" else (y[large], 1 - y[large])
    density = rate * np.exp(-((near / sigma) ** 2) / 2)
    taken[large] = density * erfcx(away / sigma / math.sqrt(2)) / 2
    return np.clip(alternative - taken, 0, 1)


@lru_cache(maxsize=4)
def _losses(
    noise_multiplier: float, sampling_rate: float, steps: int, null: Direction, interval: float
) -> Any:
    """``privacy_loss`` of one direction, kept for calls that ask for epsilon and for the curve."""
    return privacy_loss(noise_multiplier, sampling_rate, steps, null=null, interval=interval)


@arguments.doubles
def epsilon(
    noise_multiplier: float,
    sampling_rate: float,
    steps: int,
    delta: float,
    *,
    interval: float | None = None,
    width: float | None = None,
) -> float:
    """Upper bound on epsilon at ``delta`` when all iterates are released (add/remove).

    It exceeds the truth by at most ``width``, by default 1 % of epsilon or 1e-3, whichever is
    larger; at sampling rate 1 or one step it is exact. The default keeps dp-accounting's bound at
    interval 1e-3 wherever that is certified to be so tight; ``interval`` asks for
    dp-accounting's bound at that interval, however loose. Raises InputError on a value out of
    range, where the memory would not do, and with an interval where delta is below
    ``least_delta``.
    """
    if interval is not None:
        return _fixed(noise_multiplier, sampling_rate, steps, delta, interval, up=True)
    if width is not None:
        return composition.bracket(noise_multiplier, sampling_rate, steps, delta, width=width).upper
    mechanism = (noise_multiplier, sampling_rate, steps, delta)
    bounds = _half_bracket(*mechanism)
    if sampling_rate == 1 or steps == 1:
        return bounds.upper  # a closed form
    if points(*mechanism[:3], INTERVAL) <= MOST_POINTS and delta >= least_delta(steps):
        fixed = _fixed(*mechanism, INTERVAL, up=True)
        if bounds.lower <= fixed <= bounds.lower + composition.allowed(bounds.lower, None):
            return fixed
    return bounds.upper


@arguments.doubles
def noise_multiplier(
    epsilon: float,
    delta: float,
    sampling_rate: float,
    steps: int,
    *,
    interval: float | None = None,
    width: float | None = None,
) -> float:
    """Noise multiplier whose epsilon at ``delta`` is at most ``epsilon``; see the plural."""
    return _single(epsilon, delta, sampling_rate, steps, interval, width)


@lru_cache(maxsize=256)
def _single(epsilon: float, *mechanism: Any) -> float:
    """Noise multiplier of one epsilon, kept: every cell of a mechanism asks for it."""
    delta, sampling_rate, steps, interval, width = mechanism
    return float(
        noise_multipliers([epsilon], delta, sampling_rate, steps, interval=interval, width=width)[0]
    )


@arguments.doubles
def noise_multipliers(
    epsilons: ArrayLike,
    delta: float,
    sampling_rate: float,
    steps: int,
    *,
    interval: float | None = None,
    width: float | None = None,
) -> NDArray[np.float64]:
    """Noise multiplier of each epsilon, shape (n,): never too small, and certified not too large.

    The true epsilon at the noise multiplier is at most the one asked for, and below it by at most
    ``width``, by default 1 % or 1e-3, whichever is larger, and never by more than half of it. As
    in ``epsilon``, the default calibrates dp-accounting's bound at interval 1e-3 (to 1e-4) wherever
    that is so tight, and ``interval`` asks for its calibration at that interval, however loose.
    Raises InputError as ``epsilon`` does, and where no noise at all is needed because the canary is
    rarely sampled.
    """
    epsilons = np.asarray(epsilons, dtype=float)
    arguments.check_delta(delta)
    arguments.check_mechanism(1.0, sampling_rate, steps)
    if not np.all((epsilons > 0) & (epsilons < math.inf)):
        raise InputError(f"epsilon: got {epsilons.tolist()}; expected finite numbers above 0")
    sampled = -math.expm1(steps * math.log1p(-sampling_rate)) if sampling_rate < 1 else 1.0
    if sampled <= delta:
        raise InputError(
            f"delta: got {delta}; expected less than {sampled:.3g}, the probability that the "
            "canary is sampled at all: with this delta no noise is needed"
        )

    # A first guess from the advanced-composition scale.
    guess = max(0.6, sampling_rate * math.sqrt(steps * math.log(1 / delta)))

    bound = partial(
        _fixed, rate=sampling_rate, steps=steps, delta=delta, interval=interval or INTERVAL
    )

    def calibrated() -> NDArray[np.float64]:
        # The second direction costs as much as the first, and is hardly ever above it; in the full
        # batch rounding decides which is.
        tries: list[list[Direction]] = [["out"], ["out", "in"]]
        for directions in tries[sampling_rate == 1 :]:
            found = _calibrate(partial(bound, directions=directions), epsilons, guess)
            if all(bound(s, directions=["in"]) <= e for s, e in zip(found, epsilons, strict=True)):
                break
        return found

    if interval is not None:
        return calibrated()
    solutions = np.full(epsilons.shape, math.nan)
    if width is None and delta >= least_delta(steps):
        try:
            solutions = calibrated()
        # The interval may not resolve these epsilons; brackets calibrate them below.
        except (ArithmeticError, InputError):
            solutions = np.full(epsilons.shape, math.nan)
    for i, (target, sigma) in enumerate(zip(epsilons, solutions, strict=True)):
        # Of an epsilon smaller than the width half is kept: any noise at all would do otherwise.
        room = min(composition.allowed(target, width), target / 2)
        if not math.isnan(sigma):
            try:
                bounds = composition.bracket(sigma, sampling_rate, steps, delta, width=room / 2)
                guess = sigma
            except composition.TooWide as found:  # dp-accounting's rounding is all there is
                bounds = found.bracket
            if target - room <= bounds.lower <= target:
                continue
        solutions[i] = _certified(target, room, guess, sampling_rate, steps, delta)
        guess = solutions[i]
    return solutions


def _half_bracket(sigma: float, rate: float, steps: int, delta: float) -> composition.Bracket:
    """Bracket of half the default width, which leaves half of it to dp-accounting's rounding."""
    rough = composition.bracket(sigma, rate, steps, delta)
    room = composition.allowed(rough.lower, None)
    if rough.upper - rough.lower <= room / 2:
        return rough
    return composition.bracket(sigma, rate, steps, delta, width=room / 2)


def _certified(
    target: float, room: float, guess: float, rate: float, steps: int, delta: float
) -> float:
    """Noise multiplier at which epsilon is certified to be in [target - room, target]."""

    def upper(log_sigma: float) -> float:
        mechanism = (math.exp(log_sigma), rate, steps, delta)
        try:
            rough = composition.bracket(*mechanism)
            # Far above the target the width left for it may be finer than any grid of losses.
            if rough.lower > target:
                return rough.upper
            return composition.bracket(*mechanism, width=room / 4).upper
        except composition.TooWide as found:
            # Far from the target a wide bracket tells as well on which side of it this is.
            if found.bracket.lower > target or found.bracket.upper < target - room:
                return found.bracket.upper
            raise InputError(
                f"epsilon: got {target:g} at delta {delta}, sampling rate {rate:g} and "
                f"{counted(steps, 'step')}; expected a larger one, as brackets that are narrow "
                "enough for it take too long"
            ) from None

    # The upper bound falls with noise but for its own width: it is aimed at the middle of what is
    # left for it.
    aim = target - 3 * room / 8
    low = high = math.log(guess)
    step = 0.25
    if upper(low) > aim:
        while upper(high) > aim:
            low, high, step = high, high + step, 2 * step
    else:
        while upper(low) <= aim:
            low, high, step = low - step, low, 2 * step
    while True:
        middle = (low + high) / 2
        value = upper(middle)
        # The bracket is room / 4 wide, so the true epsilon is at least target - room.
        if target - 3 * room / 4 <= value <= target:
            return math.exp(middle)
        if high - low < 1e-12:
            raise ArithmeticError(f"calibration to epsilon {target} did not converge")
        low, high = (middle, high) if value > aim else (low, middle)


def least_delta(steps: int) -> float:
    """Least delta that dp-accounting is asked for: its rounding is less than a hundredth of it.

    Its Fourier transforms err by about 1e-13, and 1e-16 a step, of a probability, and downwards
    too, as measured for up to a million steps.
    """
    return 1e-10 + 1e-13 * steps


def _fixed(
    sigma: float,
    rate: float,
    steps: int,
    delta: float,
    interval: float,
    directions: Collection[Direction] = _DIRECTIONS,
    *,
    up: bool = False,
) -> float:
    """dp-accounting's bound on epsilon at a fixed interval; ``up``: with its rounding off delta.

    Calibration, which leaves more room than that, has always been to the bound as it is, and noise
    multipliers that trainings are known by stay.
    """
    arguments.check_mechanism(sigma, rate, steps)
    arguments.check_delta(delta)
    if delta < least_delta(steps):
        raise InputError(
            f"delta: got {delta}; expected at least {least_delta(steps):.2g} at a fixed interval, "
            f"as sums over {counted(steps, 'step')} are rounded. Use no interval for a smaller one."
        )
    at = delta - least_delta(steps) / 100 if up else delta
    return max(epsilon_of(_losses(sigma, rate, steps, null, interval), at) for null in directions)


def _calibrate(
    bound: Callable[[float], float], epsilons: NDArray[np.float64], guess: float
) -> NDArray[np.float64]:
    """Noise multipliers at which ``bound`` is at most each epsilon, and within 1e-4 of it.

    Epsilon is smooth in the noise multiplier on logarithmic axes, so each secant search starts
    from the previous solution and needs two or three evaluations.
    """
    tolerance = 1e-4
    unresolved = InputError(
        f"epsilon: got {epsilons.tolist()}; expected epsilons that this interval resolves. Use a "
        "smaller interval, or none."
    )

    def log_epsilon(log_sigma: float) -> float:
        sigma = math.exp(log_sigma)
        value = bound(sigma)
        if not 0 < value < math.inf:
            raise unresolved
        return math.log(value)

    solutions = np.empty_like(epsilons)
    # Two points on the curve to begin with.
    start = math.log(guess)
    points = [(x, log_epsilon(x)) for x in (start, start + 0.2)]
    for i in np.argsort(epsilons):
        # Aim a little inside the tolerance, on the private side.
        aim = math.log(epsilons[i]) + math.log1p(-tolerance / 2)
        for _ in range(60):
            (x0, y0), (x1, y1) = points[-2:]
            slope = (y1 - y0) / (x1 - x0) if x1 != x0 else -1.0
            # Epsilon falls with noise, so a slope that is not clearly negative is rounding.
            step = np.clip((aim - y1) / min(slope, -0.05), -0.5, 0.5)
            x = x1 + float(step)
            points.append((x, log_epsilon(x)))
            if abs(points[-1][1] - aim) < tolerance / 2:
                break
        else:
            raise unresolved
        solutions[i] = math.exp(points[-1][0])
    return solutions


@arguments.doubles
def points(sigma: float, rate: float, steps: int, interval: float) -> float:
    """About how many privacy losses dp-accounting would hold for the composition."""
    arguments.check_mechanism(sigma, rate, steps)
    if not interval > 0:
        raise InputError(f"interval: got {interval}; expected a number above 0")
    # It cuts the noise at 10 standard deviations.
    reach = float(
        np.logaddexp(
            math.log1p(-rate) if rate < 1 else -math.inf,
            math.log(rate) + (10 * sigma + 0.5) / sigma**2,
        )
    )
    single = 2 * max(reach, 1e-300) / interval + 2
    # Chernoff's bound as it uses it, with orders of 1 to 20 over the length.
    variance = rate**2 * math.expm1(min(1 / sigma**2, 700.0)) / interval**2 + rate / interval
    variance = min(variance, single**2)
    orders = np.arange(1, 21) / single
    # 72 is about twice log(2 / 1e-15), for the tails that it cuts off at both ends.
    return min(single * steps, single + float(np.min(steps * variance * orders + 72 / orders)))


@arguments.doubles
def fine_interval(
    noise_multiplier: float, sampling_rate: float, steps: int, *, most: float = INTERVAL
) -> float:
    """Interval, ``most`` or less, at which rounding moves a trade-off function by less than 1e-3.

    Connecting the dots adds at most h^2 / 6 to the variance of a step's loss, and so less than
    steps h^2 / (12 s) to the standard deviation s of the sum; 2e-2 / 12 of it moves an error rate
    by 2e-2 / 12 x phi(0).
    """
    arguments.check_mechanism(noise_multiplier, sampling_rate, steps)
    single = math.expm1(min(1 / noise_multiplier**2, 50.0))
    spread = sampling_rate * math.sqrt(single * steps)
    return min(most, math.sqrt(2e-2 * spread / steps))


@arguments.doubles
def tradeoff_curves(
    noise_multiplier: float,
    sampling_rate: float,
    steps: int,
    *,
    nulls: Collection[Null] = ("out", "in", "either"),
    lines: int = 1001,
    interval: float | None = None,
) -> dict[Null, TradeoffCurve]:
    """Lower bounds on the trade-off functions of all iterates, by null hypothesis.

    Each curve is the envelope of supporting lines, ``lines`` on either side of epsilon 0: those of
    its own direction at positive epsilons, and the other direction's reflected at negative ones,
    up to the largest loss of either. (One direction's losses may end where the other's go on: at
    sampling rate q no step loses more than -log(1 - q) with the null hypothesis "in".) Refining
    them and the interval raises both error rates by less than 1e-3 (Lévy distance) where the
    noise multiplier is 0.5 or more, and by less than 3e-4 where the standard deviation of the
    privacy loss is 0.2 or more too. With less noise losses reach further than lines even in epsilon
    follow: one step at 0.2 leaves 3e-3, at 0.02 0.12. The interval is 1e-3 or, where that is too
    coarse for the mechanism, finer.
    """
    for null in nulls:
        tradeoff.check_null(null)
    if interval is None:
        interval = fine_interval(noise_multiplier, sampling_rate, steps)
    losses: dict[Direction, Any] = {
        null: _losses(noise_multiplier, sampling_rate, steps, null, interval)
        for null in _DIRECTIONS
    }
    # Beyond this epsilon the guarantees say nothing that an audit could see.
    reach = max(1e-2, *(epsilon_of(loss, 1e-9) for loss in losses.values()))
    epsilons = np.linspace(0, reach, lines)
    out, into = (_deltas(losses[null], epsilons) for null in _DIRECTIONS)
    curves: dict[Null, TradeoffCurve] = {
        "out": tradeoff.from_both_deltas(epsilons, out, into),
        "in": tradeoff.from_both_deltas(epsilons, into, out),
        "either": tradeoff.symmetric(epsilons, np.maximum(out, into)),
    }
    return {null: curves[null] for null in curves if null in nulls}


def tradeoff_curve(
    noise_multiplier: float, sampling_rate: float, steps: int, *, null: Null, **options: Any
) -> TradeoffCurve:
    """Lower bound on the trade-off function of all iterates for one null hypothesis."""
    return tradeoff_curves(noise_multiplier, sampling_rate, steps, nulls=[null], **options)[null]
