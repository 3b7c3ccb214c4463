"""The list of lower-bound rules, which reports and the calibration study read.

To add a rule, write a class like those of ``rules`` and enter it here.
"""

from hiddenstate.auditing.averaged import Averaged
from hiddenstate.auditing.rules import (
    PUBLISHED,
    AsPublished,
    Bonferroni,
    Fixed,
    LowerBoundRule,
    Split,
    UniformBand,
)

__all__ = ["PUBLISHED", "RULES", "every"]

RULES: tuple[LowerBoundRule, ...] = (
    Averaged(),
    Split(),
    UniformBand(),
    UniformBand("dkw"),
    Bonferroni(),
    AsPublished(),
)
"""Rules that need no choice in advance; the first is the default."""


def every(threshold: float) -> list[LowerBoundRule]:
    """All rules, with those that need a threshold at this one."""
    default, *others = RULES
    return [
        default,
        Fixed(threshold),
        *others,
        Fixed(threshold, "jeffreys"),
        Fixed(threshold, "joint-beta"),
    ]
