"""What cyclic DP-SGD may promise, from the numbers that a user of DP-SGD knows.

Everyone speaks of records, batch size, noise multiplier and steps; ``accounting.cyclic`` of the
noise on the displacement. ``schedule`` is the one as the other, and ``guarantees`` lists the
epsilons with the domain in which each may be promised.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from hiddenstate.accounting import cyclic, cyclic_operator
from hiddenstate.accounting.cyclic import CyclicDPSGD
from hiddenstate.errors import InputError, expect

ANY = "any loss, all iterates released"
TURNS_NONE = (
    "last iterate, where clipping turns no gradient: it never acts, the model has one parameter, "
    "or every loss is f(x) = l(<a, x>), one output"
)
ANY_CLIPPED = "last iterate, any losses of this curvature, clipped"


@dataclass(frozen=True)
class Guarantee:
    """An upper bound on epsilon, for every record of the data set, and where it holds."""

    name: str
    """What bounds it: "composition", "paper", "gaussian" or "gaussian, clipped"."""
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
    * "paper": Theorem 4.5 with the paper's constant (our reconstruction), converted as Rényi
      divergences are; valid only where clipping turns no gradient;
    * "gaussian": the bound by visits, or with the domain's diameter, as Gaussian differential
      privacy, where clipping turns no gradient;
    * "gaussian, clipped": the same for any clipped loss.

    The last two are at most composition. The curvature is the run's: a bound says nothing of losses
    that have more, and without a smoothness (0: linear losses) only composition holds for others.
    """
    first = replace(run, position=1)
    composed = cyclic.composition(first)
    found = [_gaussian("composition", composed, delta, ANY)]
    try:
        constant = cyclic_operator.reconstructed(*run.curvature)
        paper = cyclic.epsilon(cyclic.theorem_4_5(run, constant), delta)
        found.append(Guarantee("paper", paper, TURNS_NONE))
    except InputError as refusal:
        found.append(Guarantee("paper", None, f"not stated for these numbers: {refusal}"))
    constants: tuple[tuple[str, Callable[[float, float, float], float], str], ...] = (
        ("gaussian", cyclic_operator.unclipped, TURNS_NONE),
        ("gaussian, clipped", _any_clipped, ANY_CLIPPED),
    )
    for name, constant_of, domain in constants:
        rho = _worst(run, constant_of(*run.curvature), diameter)
        found.append(_gaussian(name, min(rho, composed), delta, domain))
    return found


def _gaussian(name: str, rho: float, delta: float, domain: str) -> Guarantee:
    return Guarantee(name, cyclic.gaussian_epsilon(rho, delta), domain, cyclic.gaussian_mu(rho))


def _any_clipped(step_size: float, weak_convexity: float, smoothness: float) -> float:
    """Lipschitz constant of the step for any clipped loss, for large steps by the triangle."""
    try:
        return cyclic_operator.clipped(step_size, weak_convexity, smoothness)
    except InputError:
        return cyclic_operator.trivial(step_size, weak_convexity, smoothness)


def _worst(run: CyclicDPSGD, lipschitz: float, diameter: float | None) -> float:
    """Largest rho over the positions of the swapped record.

    Of the positions with a given number of visits the latest is the worst: fewer steps hide every
    spending. So are two candidates, the last step's batch and the last batch.
    """
    if diameter is None:
        return cyclic.worst_position(run, lipschitz)
    last_step = (run.steps - 1) % run.steps_per_pass + 1
    return max(
        cyclic.bounded_domain(replace(run, position=position), lipschitz, diameter)
        for position in {last_step, run.steps_per_pass}
    )
