"""Numbers in print: no upper bound is printed below itself, and no lower bound above."""

import math
from decimal import ROUND_CEILING, ROUND_FLOOR, ROUND_HALF_EVEN, Context, Decimal


def shown(
    value: float | None, kind: str = "exact", digits: int = 5, *, decimals: int | None = None
) -> str:
    """The number with so many significant digits, or decimals; "--" if there is none.

    kind: "upper" bounds are rounded up, "lower" ones down, all else to nearest.
    """
    if value is None or math.isnan(value):
        return "--"
    if math.isinf(value):
        return f"{value:g}"
    rounding = {"upper": ROUND_CEILING, "lower": ROUND_FLOOR}.get(kind, ROUND_HALF_EVEN)
    # The shortest decimal that is this float: 0.602, which is a little less in binary, stays it.
    number = Decimal(repr(float(value) or 0.0))  # and no minus before 0
    if decimals is not None:
        # The largest float has 309 digits before its point.
        unit, every = Decimal(1).scaleb(-decimals), Context(prec=400, rounding=rounding)
        return f"{number.quantize(unit, context=every):f}"
    rounded = Context(prec=digits, rounding=rounding).create_decimal(number)
    return f"{rounded.normalize():f}" if rounded else "0"


def counted(number: float, noun: str) -> str:
    """A number with its noun: "1 step", "1,000 steps", "2 batches"."""
    if number == 1:
        return f"1 {noun}"
    if noun.endswith("ry"):
        return f"{number:,} {noun[:-1]}ies"
    return f"{number:,} {noun}{'es' if noun.endswith(('ch', 'ss')) else 's'}"


def nth(number: int) -> str:
    """An ordinal before its noun: "" for 1, "2nd ", "25th "."""
    ending = {1: "st", 2: "nd", 3: "rd"}.get(number % 10 if number // 10 % 10 != 1 else 0, "th")
    return "" if number == 1 else f"{number:,}{ending} "


def short(value: float) -> str:
    """A number as a part of names: no two are written alike."""
    return f"{value:g}" if float(f"{value:g}") == value else repr(value)
