"""Upper bounds on epsilon, one list: each with a name, what it assumes, and its computation.

``SAMPLED`` are of ``sampled.SampledDPSGD``, ``CYCLIC`` of ``cyclic.CyclicDPSGD`` with the diameter
of a domain. ``hiddenstate epsilon`` and ``hiddenstate atlas`` read these lists: a new bound is one
object here and its test.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from hiddenstate.accounting import composition, cyclic, cyclic_operator, linear, rdp, sampled
from hiddenstate.accounting.cyclic import CyclicDPSGD
from hiddenstate.accounting.sampled import SampledDPSGD
from hiddenstate.errors import InputError

Run = TypeVar("Run")


@dataclass(frozen=True)
class UpperBound(Generic[Run]):
    """An upper bound on epsilon for every record.

    group: "released" for any loss and all iterates, "hidden" for any loss and the last iterate
    alone, "assumed" for losses of which more is assumed.
    """

    name: str
    group: str
    assumption: str
    """The losses and the release that it holds for."""
    source: str
    compute: Callable[[Run, float], float]
    """Epsilon at a delta, rounded up; InputError where the bound says nothing of the mechanism."""
    applies: Callable[[Run], bool] = lambda run: True
    """Whether what it needs is known of the mechanism."""


@dataclass(frozen=True)
class Found:
    """What one bound says of one mechanism."""

    bound: UpperBound
    epsilon: float | None
    """None where it says nothing, for the reason in ``assumption``."""
    assumption: str


def found(bounds: Sequence[UpperBound[Run]], run: Run, delta: float) -> list[Found]:
    """What each bound that applies says of the mechanism."""
    answers = []
    for bound in bounds:
        if not bound.applies(run):
            continue
        try:
            answers.append(Found(bound, bound.compute(run, delta), bound.assumption))
        except InputError as refusal:
            answers.append(Found(bound, None, f"none: {refusal}"))
    return answers


SAMPLED: tuple[UpperBound[SampledDPSGD], ...] = (
    UpperBound(
        "composition (PLD)",
        "released",
        "any loss and data, all iterates released",
        "Koskela, Jälkö and Honkela 2020; Doroshenko et al. 2022",
        lambda run, delta: composition.fine_bracket(*run.mechanism, delta).upper,
    ),
    UpperBound(
        "composition (RDP)",
        "released",
        "the same by Rényi differential privacy",
        "Mironov, Talwar and Zhang 2019",
        lambda run, delta: rdp.epsilon(*run.mechanism, delta),
    ),
    UpperBound(
        "Gaussian, sampling ignored",
        "released",
        "the same, as if every step used the record",
        "Dong, Roth and Su 2022",
        lambda run, delta: _every_step(run, delta),
    ),
    UpperBound(
        "convex, sampled",
        "assumed",
        "last iterate, convex losses of this smoothness whose gradients clipping never changes, on "
        "this domain",
        "Bok, Su and Altschuler 2024 (noisy SGD); Altschuler and Talwar 2022",
        sampled.convex,
        lambda run: run.smoothness is not None and run.diameter is not None,
    ),
)


def _every_step(run: SampledDPSGD, delta: float) -> float:
    exact = linear.last_iterate_epsilon(run.noise_multiplier, 1.0, run.steps, delta)
    return float(exact) * (1 + 1e-9)


@dataclass(frozen=True)
class FixedOrder:
    """Cyclic DP-SGD on a domain of this diameter, or None for no domain; any record's position."""

    run: CyclicDPSGD
    diameter: float | None = None


TURNS_NONE = (
    "last iterate, where clipping turns no gradient: it never acts, the model has one parameter, "
    "or every loss is f(x) = l(<a, x>), one output"
)


def _gaussian(rho: Callable[[FixedOrder], float]) -> Callable[[FixedOrder, float], float]:
    """The epsilon of a rho, or of composition where that is less."""
    return lambda fixed, delta: cyclic.gaussian_epsilon(min(rho(fixed), composed_rho(fixed)), delta)


def composed_rho(fixed: FixedOrder) -> float:
    """Gaussian composition of the visits of a record of the first batch, which has most."""
    return cyclic.composition(replace(fixed.run, position=1))


def _paper(fixed: FixedOrder, delta: float) -> float:
    constant = cyclic_operator.reconstructed(*fixed.run.curvature)
    return cyclic.epsilon(cyclic.theorem_4_5(fixed.run, constant), delta)


def unclipped_rho(fixed: FixedOrder) -> float:
    """Rho at the worst position where clipping turns no gradient."""
    return _worst(fixed, cyclic_operator.unclipped(*fixed.run.curvature))


def clipped_rho(fixed: FixedOrder) -> float:
    """Rho at the worst position of any clipped losses of the curvature."""
    try:
        constant = cyclic_operator.clipped(*fixed.run.curvature)
    except InputError:  # large steps: by the triangle inequality
        constant = cyclic_operator.trivial(*fixed.run.curvature)
    return _worst(fixed, constant)


def _worst(fixed: FixedOrder, lipschitz: float) -> float:
    """Largest rho over the positions of the swapped record.

    Of the positions with a given number of visits the latest is the worst: fewer steps hide every
    spending. So are two candidates, the last step's batch and the last batch.
    """
    run, diameter = fixed.run, fixed.diameter
    if diameter is None:
        return cyclic.worst_position(run, lipschitz)
    last_step = (run.steps - 1) % run.steps_per_pass + 1
    return max(
        cyclic.bounded_domain(replace(run, position=position), lipschitz, diameter)
        for position in {last_step, run.steps_per_pass}
    )


def domain_rho(fixed: FixedOrder) -> float:
    """Rho of any clipped losses on the domain; no position plays a part."""
    assert fixed.diameter is not None  # it does not apply
    return cyclic.clipped_domain(fixed.run, fixed.diameter)


def _triangle_domain(fixed: FixedOrder) -> float:
    """Liang et al.'s rho at full batch: the last step alone, its constant by the triangle."""
    assert fixed.diameter is not None  # it does not apply
    constant = cyclic_operator.trivial(*fixed.run.curvature)
    return cyclic.theorem_4_4(fixed.run, constant, fixed.diameter)


CYCLIC: tuple[UpperBound[FixedOrder], ...] = (
    UpperBound(
        "composition (Gaussian)",
        "released",
        "any loss, all iterates released",
        "Dong, Roth and Su 2022",
        _gaussian(composed_rho),
    ),
    UpperBound(
        "clipping and a domain",
        "hidden",
        "last iterate, any clipped losses, projected on this domain",
        "ours: docs/cyclic-bounds.md, section 3",
        _gaussian(domain_rho),
        lambda fixed: fixed.diameter is not None,
    ),
    UpperBound(
        "cyclic, Theorem 4.5 (our reconstruction)",
        "assumed",
        TURNS_NONE,
        "Kong and Ribero 2024",
        _paper,
    ),
    UpperBound(
        "cyclic",
        "assumed",
        TURNS_NONE,
        "ours, after Bok, Su and Altschuler 2024; one convex pass: Feldman et al. 2018",
        _gaussian(unclipped_rho),
    ),
    UpperBound(
        "cyclic, clipped",
        "assumed",
        "last iterate, any losses of this curvature, clipped",
        "ours; smooth losses on a domain: Chien and Li 2024",
        _gaussian(clipped_rho),
    ),
    UpperBound(
        "full batch on a domain",
        "assumed",
        "last iterate, any losses of this curvature, clipped, by the last step's noise alone",
        "Liang et al. 2025 at full batch, as their public code has it",
        _gaussian(_triangle_domain),
        lambda fixed: fixed.diameter is not None and fixed.run.steps_per_pass == 1,
    ),
)
