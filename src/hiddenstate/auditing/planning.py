"""Before anything is trained: how many models an audit needs, at once or looked at as they come.

The simulated audits attain the true mechanism's curve: the adversary is the best there is. One that
is worse needs more models.
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from hiddenstate.auditing.averaged import Averaged, OrderStatistics
from hiddenstate.auditing.curve import check_confidence
from hiddenstate.auditing.hypotheses import Hypotheses, number
from hiddenstate.auditing.intervals import uniform_order_statistics
from hiddenstate.auditing.sequential import SequentialAudit, Size, nearest
from hiddenstate.errors import InputError, check_count
from hiddenstate.streams import stream

LIMIT = 2**20
"""Scores in each data set beyond which no audit is planned."""

PATHS = 4_000
"""Scores in each data set beyond which no sequential audit is planned: each is simulated."""

LOOKS = 8
"""Looks of a planned sequential audit, each at about a third more scores than the last."""

AUDITS = 2_000
"""Simulated audits behind a power: standard error below 1.2 points, 0.7 at power 0.9."""


class TooMany(InputError):
    """An audit with the power asked for needs more scores than are planned."""


@dataclass(frozen=True)
class Plan:
    """An audit that refutes the claim with the power asked for, if the truth is as assumed.

    looks: scores in each data set at which to look; one for a fixed number. power: share of
    simulated audits that refute. expected: mean number of scores used in each data set.
    """

    looks: tuple[int, ...]
    power: float
    expected: float


def fixed(
    claims: Hypotheses,
    claim: float,
    truths: Hypotheses,
    truth: float,
    *,
    power: float = 0.9,
    confidence: float = 0.95,
) -> Plan:
    """The least number of scores in each data set with this power, to 1 in 20.

    claims, claim: the hypothesis tested. truths, truth: the curve that the scores attain. Raises
    TooMany if ``LIMIT`` scores do not suffice, as where the truth is within the claim.
    """
    _check_power(power)

    def plan(n: int) -> Plan:
        return _plan((n,), claims, claim, truths, truth, confidence)

    low, high = 2, 4
    while (best := plan(high)).power < power:
        low, high = high, 2 * high
        if high > LIMIT:
            raise TooMany(
                f"true: got {truth:g}; {LIMIT:,} scores per data set refute {claim:g} with power "
                f"{best.power:.2f}, expected {power:g}"
            )
    while high - low > max(1, high // 20):
        middle = (low + high) // 2
        found = plan(middle)
        if found.power < power:
            low = middle
        else:
            high, best = middle, found
    return best


def sequential(
    claims: Hypotheses,
    claim: float,
    truths: Hypotheses,
    truth: float,
    *,
    power: float = 0.9,
    confidence: float = 0.95,
) -> Plan:
    """Looks at growing numbers of scores that have this power together.

    Arguments and errors are those of ``fixed``; at most ``PATHS`` scores in each data set.
    """
    last = fixed(claims, claim, truths, truth, power=power, confidence=confidence).looks[-1]
    while last <= PATHS:
        looks = np.unique(np.maximum(4, np.round(last * 0.75 ** np.arange(LOOKS)).astype(int)))
        plan = _plan(tuple(map(int, looks)), claims, claim, truths, truth, confidence)
        if plan.power >= power:
            return plan
        last += max(1, last // 10)
    raise TooMany(
        f"true: got {truth:g}; a sequential audit of {claim:g} needs more than {PATHS:,} scores "
        f"per data set; expected a claim that {PATHS:,} can refute"
    )


def median_bound(
    hypotheses: Hypotheses, truths: Hypotheses, truth: float, n: int, *, confidence: float = 0.95
) -> float:
    """Median of the default bound from n scores in each world that attain the true curve."""
    check_count("n", n)
    check_confidence(confidence)
    index = nearest(truths, truth)
    world, rng = OrderStatistics.of(n), stream(0, "auditing", "planning", n)
    u, v = (uniform_order_statistics(world.ranks, n, AUDITS, rng) for _ in range(2))
    size: Size = (n, n)
    calibration = Averaged().sized(size, hypotheses, 1 - confidence)
    statistic = calibration.statistic(1 - truths.fnr(index, u), v)
    # The bound never falls with the statistic, so the median of one gives that of the other.
    return float(calibration.bounds(np.array([np.median(statistic)]))[0][0])


@lru_cache(maxsize=64)  # whoever plans both kinds of audit asks for the fixed ones twice
def _plan(
    looks: tuple[int, ...],
    claims: Hypotheses,
    claim: float,
    truths: Hypotheses,
    truth: float,
    confidence: float,
) -> Plan:
    audit = SequentialAudit(claims, claim, looks, confidence=confidence)
    at = audit.refuted_at(truths, truth, audits=AUDITS)
    # Index -1, of an audit that never refutes, is the last look, up to which it goes on.
    return Plan(looks, float((at >= 0).mean()), float(np.array(looks)[at].mean()))


def _check_power(power: float) -> None:
    if not 0 < number("power", power) < 1:
        raise InputError(f"power: got {power}; expected a probability inside (0, 1)")
