"""What cyclic DP-SGD may promise, from the numbers that a user of DP-SGD knows.

Everyone speaks of records, batch size, noise multiplier and steps; ``accounting.cyclic`` of the
noise on the displacement. ``schedule`` is the one as the other, and ``guarantees`` lists the
epsilons with the domain in which each may be promised.
"""

import math

from hiddenstate.accounting import bounds
from hiddenstate.accounting.bounds import Found
from hiddenstate.accounting.cyclic import CyclicDPSGD
from hiddenstate.errors import expect


def schedule(
    *,
    records: int,
    batch_size: int,
    steps: int,
    noise_multiplier: float,
    step_size: float = 1.0,
    weak_convexity: float = 0.0,
    smoothness: float = 0.0,
) -> CyclicDPSGD:
    """Cyclic DP-SGD whose noise on a batch's sum of clipped gradients has this multiplier.

    The batches are visited in a fixed order that ``records / batch_size`` steps go through, so the
    batch size must divide the records. The clipping norm plays no part and is 1; the noise on the
    displacement is step_size * noise_multiplier / batch_size, so a visit moves the iterate by at
    most 2 / noise_multiplier times it (one record is swapped). Raises an input error otherwise.
    """
    for name, value in (("records", records), ("batch_size", batch_size)):
        expect(isinstance(value, int) and value >= 1, name, value, "a whole number >= 1")
    expect(records % batch_size == 0, "batch_size", batch_size, f"a divisor of {records} records")
    for name, number in (("noise_multiplier", noise_multiplier), ("step_size", step_size)):
        expect(0 < number < math.inf, name, number, "a number > 0")
    return CyclicDPSGD(
        steps=steps,
        steps_per_pass=records // batch_size,
        batch_size=batch_size,
        step_size=step_size,
        clipping_norm=1.0,
        noise_std=step_size * noise_multiplier / batch_size,
        weak_convexity=weak_convexity,
        smoothness=smoothness,
    )


def guarantees(
    run: CyclicDPSGD,
    delta: float,
    *,
    diameter: float | None = None,
    strong_convexity: float = 0.0,
    holder: float = 1.0,
    shuffled: bool = False,
) -> list[Found]:
    """What may be promised to every record at ``delta`` if one record is swapped, rounded up.

    ``run``'s position plays no part: each bound is that of the worst one, or the mean over all
    where the order is shuffled once. diameter: of the domain that iterates are projected on, in the
    parameters' unit; None without projection. The other arguments are ``bounds.FixedOrder``'s and
    the answers those of ``bounds.CYCLIC``, in its order. All but the paper's are at most
    composition. The curvature is the run's: a bound says nothing of losses that have more, and
    without a smoothness (0: linear losses) those of any loss alone hold for others.
    """
    fixed = bounds.FixedOrder(run, diameter, strong_convexity, holder, shuffled)
    return bounds.found(bounds.CYCLIC, fixed, delta)
