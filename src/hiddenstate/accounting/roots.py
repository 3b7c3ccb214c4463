"""Where a function of one number changes its sign, between two ends that are both known.

SciPy's own root finders return one number that may be on either side, and importing them takes
longer than all that ``hiddenstate epsilon`` computes.
"""

import math
from collections.abc import Callable


def between(
    function: Callable[[float], float],
    low: float,
    high: float,
    *,
    absolute: float = 0.0,
    relative: float = 1e-15,
) -> tuple[float, float]:
    """Two numbers, ascending, that are near each other and on either side of a change of sign.

    function: positive at one of ``low`` < ``high``, and 0 or negative at the other; infinite values
    will do. The two returned are at most ``absolute`` + ``relative`` times the larger apart, or
    neighbouring doubles. The function has at each the sign that it has at that end of the start.
    Raises a value error where both ends have the same sign. Source: Chandrupatla 1997.

    >>> between(lambda x: 2 - x * x, 1.0, 2.0, absolute=1e-6)[0] ** 2 < 2
    True
    """
    a, b = high, low
    at_a, at_b = function(a), function(b)
    if (at_a > 0) == (at_b > 0) or (math.isnan(at_a + at_b) and not math.isinf(at_a)):
        raise ValueError(f"no change of sign: {at_b} at {low}, {at_a} at {high}")
    share = 0.5
    while True:
        x = a + share * (b - a)
        # The ends are neighbouring doubles.
        if x in (a, b):
            break
        at_x = function(x)
        if (at_x > 0) == (at_a > 0):
            c, at_c = a, at_a
        else:
            c, at_c, b, at_b = b, at_b, a, at_a
        a, at_a = x, at_x
        room = (absolute + relative * max(abs(a), abs(b))) / abs(b - a)
        if room >= 1:
            break
        share = _share(a, b, c, at_a, at_b, at_c)
        # Half the room on either side, so that the root is soon between two near neighbours.
        share = min(max(share, room / 2), 1 - room / 2)
    return min(a, b), max(a, b)


def _share(a: float, b: float, c: float, at_a: float, at_b: float, at_c: float) -> float:
    """How far the next trial is from a to b: by the inverse quadratic where it is monotone."""
    if not math.isfinite(at_a + at_b + at_c) or at_c in (at_a, at_b):
        return 0.5
    place, height = (a - b) / (c - b), (at_a - at_b) / (at_c - at_b)
    if not (height**2 < place and (1 - height) ** 2 < 1 - place):
        return 0.5
    first = at_a / (at_b - at_a) * at_c / (at_b - at_c)
    return first + (c - a) / (b - a) * at_a / (at_c - at_a) * at_b / (at_c - at_b)
