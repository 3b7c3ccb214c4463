"""The law of a lower-bound rule's result, by simulated audits of normal scores.

A published epsilon is one draw of this law, or a mean of a few. Printed values are compared with
the law, not with the epsilon of the separation: rules that keep the best threshold go beyond that.
"""

import math
from dataclasses import dataclass

import numpy as np

from hiddenstate import streams
from hiddenstate.accounting import gaussian
from hiddenstate.auditing.hypotheses import GaussianDP
from hiddenstate.auditing.rules import LowerBoundRule
from hiddenstate.errors import InputError, check_count


@dataclass(frozen=True)
class Law:
    """Epsilons that audits of one separation give: mean and standard deviation of one audit, share
    of zeros, mean of the largest of ``repeats``, and the standard errors of mean and largest."""

    mean: float
    deviation: float
    zeros: float
    largest: float
    mean_error: float
    largest_error: float


def law(
    rule: LowerBoundRule,
    separation: float,
    *,
    models: int,
    delta: float,
    level: float = 0.05,
    repeats: int = 5,
    audits: int = 2000,
    seed: int = 0,
) -> Law:
    """Law of a rule's epsilon at ``delta``, from so many simulated audits.

    separation: difference of the mean scores in standard deviations. models: with the canary, and
    as many without it. level: of the rule. repeats: audits of which the largest is kept. The same
    seed draws the same noise at every separation.

    >>> from hiddenstate.auditing import AsPublished
    >>> found = law(AsPublished(), 1.0, models=100, delta=1e-5, audits=500)
    >>> f"{found.mean:.1f} and {found.largest:.1f}"
    '3.3 and 4.3'
    """
    if not math.isfinite(separation):
        raise InputError(f"separation: got {separation}; expected a finite number")
    for name, count in {"models": models, "repeats": repeats, "audits": audits}.items():
        check_count(name, count)
    rng = streams.stream(seed, "law", models)
    noise = rng.normal(size=(2, audits, models))
    mus, _ = rule.bounds(noise[0] + separation, noise[1], GaussianDP(), level)
    found = gaussian.epsilon_below(mus, delta)
    groups = found[: audits // repeats * repeats].reshape(-1, repeats)
    largest = groups.max(axis=1) if len(groups) else np.array([math.nan])
    return Law(
        mean=float(found.mean()),
        deviation=float(found.std(ddof=1)) if audits > 1 else math.nan,
        zeros=float((found == 0).mean()),
        largest=float(largest.mean()),
        mean_error=_error(found),
        largest_error=_error(largest),
    )


def _error(values: np.ndarray) -> float:
    return float(values.std(ddof=1)) / math.sqrt(len(values)) if len(values) > 1 else math.nan
