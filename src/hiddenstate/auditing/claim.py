"""Claims of privacy, as a test takes them: hypotheses, a value of their parameter, and words."""

import math
from dataclasses import dataclass

from hiddenstate.accounting import gaussian
from hiddenstate.auditing.hypotheses import (
    ApproxDP,
    GaussianDP,
    Hypotheses,
    claimed,
    composed,
    number,
)
from hiddenstate.errors import InputError, check_count
from hiddenstate.rounding import counted

MOST, MOST_MU = 500.0, 35.0
"""Epsilon and mu beyond which claims are refused: error rates below 1e-100 say nothing."""


@dataclass(frozen=True)
class Claim:
    """Claim about the privacy of a training; the functions of this module make one.

    hypotheses, value: the hypothesis to be tested and all less private ones, as ``SequentialAudit``
    takes them. words: the claim in words. mechanism: sampling rate and steps, where the value is
    the noise multiplier of DP-SGD.
    """

    hypotheses: Hypotheses
    value: float
    words: str
    mechanism: tuple[float, int] | None = None

    @property
    def index(self) -> int:
        """Position in the grid of the hypothesis tested, which the claim implies."""
        return claimed(self.hypotheses, self.value)


def approximate(epsilon: float, delta: float) -> Claim:
    """(epsilon, delta)-differential privacy and nothing more."""
    epsilon = number("claim", epsilon)
    _refutable("claim", epsilon, "an epsilon", MOST)
    return Claim(
        ApproxDP(delta, limit=_limit(epsilon)), epsilon, f"epsilon {epsilon:g} at delta {delta:g}"
    )


def gaussian_with(epsilon: float, delta: float) -> Claim:
    """The Gaussian differential privacy that has this epsilon at delta."""
    said = approximate(epsilon, delta).words
    if delta == 0 or epsilon == 0:
        raise InputError("curve: Gaussian DP has no finite mu at epsilon 0 or delta 0; expected dp")
    mu = gaussian.mu(epsilon, delta)
    return Claim(GaussianDP(limit=_limit(mu)), mu, f"Gaussian DP with {said}")


def gaussian_dp(mu: float) -> Claim:
    """mu-Gaussian differential privacy."""
    mu = number("mu", mu)
    _refutable("mu", mu, "a mu", MOST_MU)
    return Claim(GaussianDP(limit=_limit(mu)), mu, f"mu {mu:g}")


def dpsgd(
    noise_multiplier: float, sampling_rate: float, steps: int, *, other: float | None = None
) -> Claim:
    """The trade-off curve of all iterates of DP-SGD with Poisson sampling, the sharpest claim.

    noise_multiplier: noise deviation over the clipping norm. other: another noise multiplier whose
    curve the hypotheses have too, as that of the truth (twice as much noise by default).
    """
    if not number("noise multiplier", noise_multiplier) > 0:
        raise InputError(f"noise multiplier: got {noise_multiplier}; expected a number above 0")
    if not 0 < number("sampling rate", sampling_rate) <= 1:
        raise InputError(f"sampling rate: got {sampling_rate}; expected a probability in (0, 1]")
    check_count("steps", steps)
    both = {noise_multiplier, 2 * noise_multiplier if other is None else other}
    words = f"noise multiplier {noise_multiplier:g}, sampling rate {sampling_rate:g}, "
    words += counted(steps, "step")
    try:
        hypotheses = composed(sorted(both, reverse=True), sampling_rate, steps)
    except InputError as error:
        raise InputError(
            f"claim: {words} leaks so much that no audit could refute it; claim more noise or "
            "fewer steps"
        ) from error
    return Claim(hypotheses, noise_multiplier, words, (sampling_rate, steps))


def _limit(value: float) -> float:
    return float(max(20, math.ceil(value)))


def _refutable(name: str, value: float, what: str, most: float) -> None:
    if not 0 <= value <= most:
        raise InputError(
            f"{name}: got {value}; expected {what} of 0 to {most:g}, because no audit can refute "
            "more"
        )
