"""What cyclic DP-SGD may promise, from the numbers that a user of DP-SGD knows.

Everyone speaks of records, batch size, noise multiplier and steps; ``accounting.cyclic`` of the
noise on the displacement. ``schedule`` is the one as the other, and ``guarantees`` lists the
epsilons with the domain in which each may be promised.
"""

import math
from dataclasses import dataclass

from hiddenstate.accounting import bounds, cyclic
from hiddenstate.accounting.cyclic import CyclicDPSGD
from hiddenstate.errors import expect

_NAMES = {
    "composition (Gaussian)": "composition",
    "clipping and a domain": "domain",
    "cyclic, Theorem 4.5 (our reconstruction)": "paper",
    "cyclic": "gaussian",
    "cyclic, clipped": "gaussian, clipped",
    "full batch on a domain": "full batch",
}
"""By the name in ``bounds.CYCLIC``: what the command line calls it."""

_RHOS = {
    "composition": bounds.composed_rho,
    "domain": bounds.domain_rho,
    "gaussian": bounds.unclipped_rho,
    "gaussian, clipped": bounds.clipped_rho,
}


@dataclass(frozen=True)
class Guarantee:
    """An upper bound on epsilon, for every record of the data set, and where it holds."""

    name: str
    """What bounds it: "composition", "domain", "paper", "gaussian", "gaussian, clipped", ..."""
    epsilon: float | None
    """Upper bound; None if this bound says nothing of the mechanism, for the reason in domain."""
    domain: str
    """The losses and the release that it holds for, or why there is none."""
    mu: float | None = None
    """The Gaussian differential privacy it was converted from, if it was."""


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


def guarantees(run: CyclicDPSGD, delta: float, *, diameter: float | None = None) -> list[Guarantee]:
    """What may be promised to every record at ``delta`` if one record is swapped, rounded up.

    ``run``'s position plays no part: each bound is that of the worst one. diameter: of the domain
    that iterates are projected on, in the parameters' unit; None without projection. In turn:

    * "composition": Gaussian composition of a record's visits, for any loss and all iterates;
    * "domain", with a diameter: any clipped loss, by clipping and the projection alone;
    * "paper": Theorem 4.5 with the paper's constant (our reconstruction), converted as Rényi
      divergences are; valid only where clipping turns no gradient;
    * "gaussian": the bound by visits, or with the domain's diameter, as Gaussian differential
      privacy, where clipping turns no gradient;
    * "gaussian, clipped": the same for any clipped loss;
    * "full batch", with a diameter and one step a pass: by the last step's noise alone.

    All but the paper's are at most composition. The curvature is the run's: a bound says nothing of
    losses that have more, and without a smoothness (0: linear losses) those of any loss alone hold
    for others.
    """
    fixed = bounds.FixedOrder(run, diameter)
    answers = []
    for one in bounds.found(bounds.CYCLIC, fixed, delta):
        name = _NAMES[one.bound.name]
        mu = None
        if name in _RHOS:
            rho = min(_RHOS[name](fixed), bounds.composed_rho(fixed))
            mu = cyclic.gaussian_mu(rho)
        answers.append(Guarantee(name, one.epsilon, one.assumption, mu))
    return answers
