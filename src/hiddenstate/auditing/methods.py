"""The list of lower-bound rules, which reports and the calibration study read.

To add a rule, write a class like those of ``rules`` and enter it here.
"""

from dataclasses import replace

from hiddenstate.auditing.averaged import Averaged
from hiddenstate.auditing.curve import Coins
from hiddenstate.auditing.rules import (
    PUBLISHED,
    AsPublished,
    Bonferroni,
    Fixed,
    LowerBoundRule,
    Split,
    UniformBand,
)

__all__ = ["CONFIDENCE", "PUBLISHED", "REPEATABLE", "RULES", "every", "seeded"]

CONFIDENCE = 0.95
"""Confidence of the papers' lower bounds from audits."""

REPEATABLE = Averaged(coins="against")
"""The default where the same scores give the same bound each time: ties count against it."""

RULES: tuple[LowerBoundRule, ...] = (
    Averaged(),
    Split(),
    UniformBand(),
    UniformBand("dkw"),
    Bonferroni(),
    AsPublished(),
)
"""Rules that need no choice in advance; the first is the default."""


def every(threshold: float, coins: int | None = None) -> list[LowerBoundRule]:
    """All rules, with those that need a threshold at this one and those that draw by this seed."""
    default, *others = (seeded(rule, coins) for rule in RULES)
    return [
        default,
        Fixed(threshold),
        *others,
        Fixed(threshold, "jeffreys"),
        Fixed(threshold, "joint-beta"),
    ]


def seeded(rule: LowerBoundRule, coins: Coins) -> LowerBoundRule:
    """The rule with these coins, where it tosses any."""
    if isinstance(rule, Averaged):
        return replace(rule, coins=coins)
    if isinstance(rule, Split) and coins != "against":
        return replace(rule, coins=coins)
    return rule
