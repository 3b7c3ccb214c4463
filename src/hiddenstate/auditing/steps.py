"""Audits by the steps of a training: a test of its noise that may be stopped after any of them.

In every step each canary tosses a fair coin of its own, which says whether its gradient is in the
sum. The auditor guesses the coins from what the step released, and may know everything else. Which
coins are guessed is fixed before the step: an auditor who guesses the clear ones alone is right
more often, and no level holds. If a step is mu-GDP with respect to each canary, mu = 1 / noise
multiplier, a guess is right with probability Phi(mu / 2) at most, whatever the past was (Dong et
al. 2022: the total variation of two unit normal laws mu apart is 2 Phi(mu / 2) - 1). So the share
of right guesses of a step, over that probability, has a mean of at most 1 given the past, and so
has 1 + bet (share / probability - 1). Products of such numbers over the steps are a
supermartingale, and so is their mean over several bets, the wealth. By Ville's inequality the
wealth of a true claim ever reaches 1 / level with probability ``level`` at most: no number of steps
needs to be planned. Canaries of one step may depend on each other in any way, since a mean of
shares is all that is used of them.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp, ndtr, ndtri

from hiddenstate.accounting import roots
from hiddenstate.auditing.curve import check_confidence
from hiddenstate.auditing.hypotheses import number
from hiddenstate.auditing.intervals import LEAST
from hiddenstate.auditing.rules import last_true
from hiddenstate.errors import InputError, expect
from hiddenstate.rounding import shown
from hiddenstate.streams import stream

BETS = np.linspace(0.05, 1.0, 20)
"""Shares of the wealth that are staked on a step, all at once."""


@dataclass(frozen=True, eq=False)
class StepAudit:
    """Guesses of the coins of each step.

    made, right: guesses of a step and how many are right, shape (steps,); steps without a guess
    count for nothing. Which coins are guessed must not depend on what the step released.
    confidence: of the verdict and of the bound.

        >>> audit = StepAudit(made=[20] * 40, right=[19] * 40)
        >>> audit.p_value(noise_multiplier=0.6) < 0.01
        True
        >>> audit.bound
        0.478
    """

    made: NDArray[np.int64]
    right: NDArray[np.int64]
    confidence: float = 0.95

    def __post_init__(self) -> None:
        check_confidence(self.confidence)
        for name in ("made", "right"):
            given = np.asanyarray(getattr(self, name))
            masked = int(np.ma.count_masked(given))
            expect(not masked, name, masked, "no masked guesses")
            if given.ndim != 1 or not len(given) or not np.issubdtype(given.dtype, np.integer):
                raise InputError(f"{name}: expected a whole number for each step, and a step")
            object.__setattr__(self, name, given.astype(np.int64))
        expected = f"{len(self.made)}, as many as steps in made"
        expect(len(self.right) == len(self.made), "right", len(self.right), expected)
        for step in np.flatnonzero((self.right < 0) | (self.right > self.made))[:1]:
            raise InputError(
                f"right: step {step + 1} has {self.right[step]} of {self.made[step]} guesses; "
                "expected a number from 0 to the guesses made"
            )

    @cached_property
    def _shares(self) -> NDArray[np.float64]:
        """Share of right guesses of each step, NaN without a guess."""
        return np.where(self.made > 0, self.right / np.maximum(self.made, 1), np.nan)

    def p_values(self, noise_multiplier: float) -> NDArray[np.float64]:
        """Upper bounds on the p-value after each step, never increasing; shape (steps,)."""
        positive = number("noise_multiplier", noise_multiplier) > 0
        expect(positive, "noise_multiplier", noise_multiplier, "a number above 0")
        wealth = np.maximum.accumulate(_log_wealth(self._shares, _right(noise_multiplier)))
        return np.maximum(np.exp(-np.maximum(wealth, 0.0)), LEAST)

    def p_value(self, noise_multiplier: float) -> float:
        """Upper bound on the p-value of the claim, at whatever step the training was stopped."""
        return float(self.p_values(noise_multiplier)[-1])

    @cached_property
    def bound(self) -> float:
        """Upper bound on the smallest noise multiplier of a step; infinite if none is proven."""
        found = _refuted(self._shares, 1 - self.confidence)
        return float(shown(0.5 / ndtri(found), "upper", 3)) if found > 0.5 else np.inf

    def reach(self, noise_multiplier: float, power: float = 0.9, audits: int = 400) -> float:
        """Noise multiplier up to which a training would have been refuted with this probability.

        noise_multiplier: the claim. Simulated with as many guesses as were made, independent and as
        often right as Gaussian noise allows. 0 if so few guesses refute nothing.
        """
        made = self.made[self.made > 0]
        starts = np.cumsum(made) - made
        coins = stream(0, "auditing", "steps", *made.tolist()).random((audits, made.sum()))
        needed, right = -np.log(1 - self.confidence), _right(noise_multiplier)

        def found(sigma: float) -> float:
            shares = np.add.reduceat(coins < _right(sigma), starts, axis=1) / made
            return float(np.mean([_log_wealth(row, right).max() >= needed for row in shares]))

        def often(hundredth: int) -> bool:
            return found(noise_multiplier * (hundredth + 1) / 100) >= power

        # More noise is found less often, so the largest that is found can be bisected.
        return noise_multiplier * (1 + last_true(often, 99) if len(made) else 0) / 100


def _right(noise_multiplier: float) -> float:
    """Probability of a right guess of a fair coin, at most, if a step has this much noise."""
    return float(ndtr(0.5 / noise_multiplier))


def _log_wealth(shares: NDArray[np.float64], right: float) -> NDArray[np.float64]:
    """Logarithm of the wealth after each step, shape (steps,)."""
    with np.errstate(divide="ignore"):
        # A step without a guess leaves the wealth as it is.
        growth = np.log1p(BETS[:, None] * (np.nan_to_num(shares, nan=right) / right - 1))
    # A sum may differ from the one in real numbers in its last bits.
    return np.asarray(logsumexp(growth.cumsum(axis=1), axis=0)) - np.log(len(BETS)) - 1e-9


def _refuted(shares: NDArray[np.float64], level: float) -> float:
    """Largest probability of a right guess that the shares refute; 0.5 if they refute none."""

    def excess(right: float) -> float:
        return float(_log_wealth(shares, right).max()) + float(np.log(level))

    if excess(0.5) <= 0:
        return 0.5
    # No share refutes that every guess is right.
    return roots.between(excess, 0.5, 1.0, absolute=1e-12)[0]
