"""Reach of an audit: the excess that it would have found, where it does not refute its claim.

"Consistent" may mean that nothing leaks too much, or that too few models were trained. The least
leakage that the audit finds with a given power tells which. The simulated scores attain the leaking
mechanism's curve, so they are those of the best score that there is: a worse score finds less.
"""

from dataclasses import dataclass

import numpy as np

from hiddenstate.auditing import claim as claims
from hiddenstate.auditing.claim import Claim
from hiddenstate.auditing.hypotheses import ApproxDP, GaussianDP
from hiddenstate.auditing.one_run import Guesses, one_run_p_value
from hiddenstate.auditing.rules import last_true
from hiddenstate.auditing.sequential import SequentialAudit
from hiddenstate.errors import InputError
from hiddenstate.rounding import shown
from hiddenstate.streams import stream

POWER = 0.9
"""Probability with which a leakage is found."""

AUDITS = 1_000
"""Simulated audits behind it: its standard error is one point."""

FACTORS = 1.02 ** np.arange(1, 360)
"""Leakages that are tried, over the claimed one: from 2 % more to a thousand times as much."""


@dataclass(frozen=True)
class Reach:
    """The least leakage that an audit finds with probability ``power``.

    parameter, value: the leakage; infinity (0 of a noise multiplier) where the audit finds none.
    words: the leakage in words.
    """

    parameter: str
    value: float
    power: float
    words: str

    def __str__(self) -> str:
        if self.words:
            return (
                f"An audit of this size finds {self.words} with probability "
                f"{100 * self.power:g} %, if its score is optimal. It may miss smaller leaks"
            )
        return "An audit of this size finds no excess at all. Take more models or canaries"


def reach(claim: Claim, test: SequentialAudit, *, power: float = POWER) -> Reach:
    """The least leakage beyond the claim that the test finds.

    test: of this claim, with its looks and confidence.
    """

    def found(leak: Claim) -> bool:
        at = test.refuted_at(leak.hypotheses, leak.value, audits=AUDITS)
        return bool((at >= 0).mean() >= power)

    missed, index, truth = -1, 0, None
    # Far leakages cannot be computed, so begin near the claim.
    while index < len(FACTORS) and (leak := _leaking(claim, float(FACTORS[index]))):
        if found(leak):
            truth = leak
            break
        missed, index = index, 2 * index + 1
    if truth is None:
        none = 0.0 if claim.hypotheses.trivial == np.inf else np.inf
        return Reach(claim.hypotheses.parameter, none, power, "")
    while index - missed > 1:
        middle = (missed + index) // 2
        leak = _leaking(claim, float(FACTORS[middle]))
        if leak is not None and found(leak):
            truth, index = leak, middle
        else:
            missed = middle
    value, parameter = truth.value, claim.hypotheses.parameter
    if isinstance(claim.hypotheses, ApproxDP):
        value = _more(claim.value, float(FACTORS[index]))
        parameter = "a Gaussian mechanism of epsilon" if claim.hypotheses.delta > 0 else "epsilon"
    less = claim.hypotheses.trivial == np.inf
    shown_value = shown(value, "lower" if less else "upper", 3)
    words = f"{parameter} {shown_value} or {'less' if less else 'more'}"
    return Reach(claim.hypotheses.parameter, float(value), power, words)


def one_run_reach(
    claim: Claim, guesses: Guesses, *, confidence: float = 0.95, power: float = POWER
) -> Reach:
    """Separation of independent canaries from which on so many guesses refute.

    guesses: whose number counts, and not how many are right. The scores are normal.
    """
    m, made = guesses.canaries, guesses.made

    def refuted(correct: int) -> bool:
        asked = Guesses(m, made, correct, guesses.fixed)
        return one_run_p_value(asked, claim.hypotheses, claim.value) <= 1 - confidence

    # More right guesses refute more, so the fewest that refute can be bisected.
    needed = 1 + last_true(lambda correct: not refuted(correct), made + 1)
    rng = stream(0, "auditing", "one-run reach", m)
    # About two million scores are held at once: many canaries leave fewer audits.
    audits = max(100, min(AUDITS, 2_000_000 // m))
    coins, noise = rng.random((audits, m)) < 0.5, rng.standard_normal((audits, m))

    def found(mu: float) -> bool:
        order = np.argsort(noise + mu * coins, axis=1)
        ordered = np.take_along_axis(coins, order, axis=1)
        low = made // 2
        right = ordered[:, m - (made - low) :].sum(axis=1) + (~ordered[:, :low]).sum(axis=1)
        return bool((right >= needed).mean() >= power)

    mus = np.round(np.geomspace(0.05, 20, 150), 3)
    last = last_true(lambda index: not found(float(mus[index])), len(mus))
    if needed > made or last + 1 == len(mus):
        return Reach("separation", np.inf, power, "")
    mu = float(mus[last + 1])
    words = f"canaries whose scores differ by {mu:.3g} standard deviations or more,"
    return Reach("separation", mu, power, words)


def _leaking(claim: Claim, factor: float) -> Claim | None:
    """A mechanism that leaks so many times what is claimed; None beyond what is computed."""
    try:
        if claim.mechanism is not None:
            sigma = float(f"{claim.value / factor:.4g}")
            return claims.dpsgd(sigma, *claim.mechanism, other=claim.value)
        if isinstance(claim.hypotheses, GaussianDP):
            return claims.gaussian_dp(_more(claim.value, factor))
        if isinstance(claim.hypotheses, ApproxDP):
            delta = claim.hypotheses.delta
            how = claims.gaussian_with if delta > 0 else claims.approximate
            return how(_more(claim.value, factor), delta)
    except InputError:
        pass
    return None


def _more(value: float, factor: float) -> float:
    """The value times a factor, or from 0 on that factor of 0.05; rounded to four digits."""
    return float(f"{value * factor if value > 0 else 0.05 * factor:.4g}")
