"""Upper bounds on epsilon, one list: each with a name, what it assumes, and its computation.

``SAMPLED`` are of ``sampled.SampledDPSGD``, ``CYCLIC`` of ``FixedOrder``: batches in an order that
is fixed, or shuffled once. ``hiddenstate epsilon``, ``hiddenstate atlas``, the figure of the atlas
and the table of docs/atlas.md read these lists: a new bound is one object here and its test.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

import numpy as np

from hiddenstate.accounting import composition, cyclic, cyclic_operator, linear, rdp, sampled
from hiddenstate.accounting.cyclic import CyclicDPSGD
from hiddenstate.accounting.sampled import SampledDPSGD
from hiddenstate.errors import InputError

Run = TypeVar("Run")


@dataclass(frozen=True, kw_only=True)
class UpperBound(Generic[Run]):
    """An upper bound on epsilon for every record."""

    name: str
    key: str
    """What ``hiddenstate epsilon`` calls it."""
    group: str
    """"released" for any loss and all iterates, "hidden" for any loss and the last iterate alone,
    "assumed" for losses of which more is assumed."""
    assumption: str
    """The losses and the release that it holds for."""
    source: str
    compute: Callable[[Run, float], float]
    """Epsilon at a delta, rounded up; InputError where the bound says nothing of the mechanism."""
    applies: Callable[[Run], bool] = lambda run: True
    """Whether what it needs is known of the mechanism."""
    mu: Callable[[Run], float | None] = lambda run: None
    """The Gaussian differential privacy that epsilon is converted from, if it is."""


@dataclass(frozen=True)
class Found:
    """What one bound says of one mechanism."""

    bound: UpperBound
    epsilon: float | None
    """None where it says nothing, for the reason in ``assumption``."""
    assumption: str
    mu: float | None = None


def found(bounds: Sequence[UpperBound[Run]], run: Run, delta: float) -> list[Found]:
    """What each bound that applies says of the mechanism."""
    answers = []
    for bound in bounds:
        if not bound.applies(run):
            continue
        try:
            epsilon = bound.compute(run, delta)
            answers.append(Found(bound, epsilon, bound.assumption, bound.mu(run)))
        except InputError as refusal:
            answers.append(Found(bound, None, f"none: {refusal}"))
    return answers


# --- sampled batches ------------------------------------------------------------------------------


def _every_step(run: SampledDPSGD, delta: float) -> float:
    exact = linear.last_iterate_epsilon(run.noise_multiplier, 1.0, run.steps, delta)
    return float(exact) * (1 + 1e-9)


def _on_a_domain(run: SampledDPSGD) -> bool:
    return run.smoothness is not None and run.diameter is not None


SAMPLED: tuple[UpperBound[SampledDPSGD], ...] = (
    UpperBound(
        name="composition (PLD)",
        key="standard",
        group="released",
        assumption="any loss and data, all iterates released",
        source="Koskela, Jälkö and Honkela 2020; Doroshenko et al. 2022",
        compute=lambda run, delta: composition.fine_bracket(*run.mechanism, delta).upper,
    ),
    UpperBound(
        name="composition (RDP)",
        key="RDP",
        group="released",
        assumption="the same by Rényi differential privacy, looser",
        source="Mironov, Talwar and Zhang 2019",
        compute=lambda run, delta: rdp.epsilon(*run.mechanism, delta),
    ),
    UpperBound(
        name="Gaussian, sampling ignored",
        key="Gaussian",
        group="released",
        assumption="the same, as if every step used the record",
        source="Dong, Roth and Su 2022",
        compute=_every_step,
    ),
    UpperBound(
        name="convex, sampled",
        key="convex",
        group="assumed",
        assumption="last iterate, convex losses of this smoothness of which clipping turns no "
        "gradient, on this domain",
        source="Bok, Su and Altschuler 2024 (noisy SGD); Altschuler and Talwar 2022",
        compute=sampled.convex,
        applies=lambda run: _on_a_domain(run) and run.holder == 1 and run.weak_convexity == 0,
    ),
    UpperBound(
        name="clipped, sampled",
        key="clipped",
        group="assumed",
        assumption="last iterate, any losses of this curvature, clipped, on this domain",
        source="ours; by the last step alone as Liang et al. 2025, by several as Chien and Li 2024",
        compute=sampled.clipped,
        applies=lambda run: _on_a_domain(run) and run.holder == 1,
    ),
    UpperBound(
        name="Hölder gradients, sampled",
        key="Hölder",
        group="assumed",
        assumption="last iterate, any losses with Hölder continuous gradients, clipped, on this "
        "domain",
        source="ours, after Chien and Li 2024",
        compute=sampled.holder,
        applies=lambda run: _on_a_domain(run) and run.holder < 1,
    ),
)


# --- batches in a fixed order ---------------------------------------------------------------------


@dataclass(frozen=True)
class FixedOrder:
    """Cyclic DP-SGD, any record's position, and what is known of its domain, losses and order."""

    run: CyclicDPSGD
    diameter: float | None = None
    """Of the domain that iterates are projected on; None for no domain."""
    strong_convexity: float = 0.0
    """Of every loss, whose gradients clipping then never changes."""
    holder: float = 1.0
    """Exponent of the gradients' Hölder continuity; the run's smoothness is its constant."""
    shuffled: bool = False
    """Whether the order of the records is drawn once, uniformly and whatever the data: then delta
    is the mean over a record's positions."""


BLOCKS = 40
"""Blocks of positions that take the place of all, each by the last of it."""


def _positions(fixed: FixedOrder) -> dict[int, float]:
    """Positions that the bounds are computed at, and the share of the records each stands for.

    Of the positions with a given number of visits a later one is worse: fewer steps hide every
    spending. Such are the positions up to the last step's batch, and those behind it.
    """
    whole = fixed.run.steps_per_pass
    last = (fixed.run.steps - 1) % whole + 1
    if not fixed.shuffled:
        return {last: 1.0, whole: 1.0}
    found: dict[int, float] = {}
    for before, end in ((0, last), (last, whole)):
        if before == end:
            continue
        # Near the end of a block each counts, as only a few steps hide the last visit.
        back = np.unique(np.geomspace(1, end - before, BLOCKS).astype(int)) - 1
        ends = (end - back[::-1]).tolist()
        for first, one in zip([before, *ends[:-1]], ends, strict=True):
            found[one] = (one - first) / whole
    return found


Rho = Callable[[FixedOrder], float]
"""Rho of a record at the position of the run."""


def _rhos(fixed: FixedOrder, rho: Rho) -> dict[int, float]:
    """By position: rho, or that of composition where it is less."""
    return {
        at: min(rho(one), cyclic.composition(one.run))
        for at in _positions(fixed)
        for one in (replace(fixed, run=replace(fixed.run, position=at)),)
    }


def _gaussian(
    name: str,
    key: str,
    rho: Rho,
    assumption: str,
    source: str,
    group: str = "assumed",
    applies: Callable[[FixedOrder], bool] = lambda fixed: True,
) -> UpperBound[FixedOrder]:
    """A bound whose rho is a Gaussian guarantee, of the worst position or over a drawn one."""

    def compute(fixed: FixedOrder, delta: float) -> float:
        rhos = _rhos(fixed, rho)
        if not fixed.shuffled:
            return cyclic.gaussian_epsilon(max(rhos.values()), delta)
        shares = list(_positions(fixed).values())
        return cyclic.averaged_epsilon(list(rhos.values()), shares, delta)

    def mu(fixed: FixedOrder) -> float | None:
        return None if fixed.shuffled else cyclic.gaussian_mu(max(_rhos(fixed, rho).values()))

    return UpperBound(
        name=name,
        key=key,
        group=group,
        assumption=assumption,
        source=source,
        compute=compute,
        applies=applies,
        mu=mu,
    )


TURNS_NONE = (
    "last iterate, where clipping turns no gradient: it never acts, the model has one parameter, "
    "or every loss is f(x) = l(<a, x>), one output"
)


def _smooth(fixed: FixedOrder) -> bool:
    return fixed.holder == 1


def _visited(fixed: FixedOrder, lipschitz: float) -> float:
    """Rho by a record's visits, or on the domain."""
    if fixed.diameter is None:
        return cyclic.sharp(fixed.run, lipschitz)
    return cyclic.bounded_domain(fixed.run, lipschitz, fixed.diameter)


def _unclipped(fixed: FixedOrder) -> float:
    return _visited(fixed, cyclic_operator.unclipped(*fixed.run.curvature))


def _clipped(fixed: FixedOrder) -> float:
    try:
        constant = cyclic_operator.clipped(*fixed.run.curvature)
    except InputError:  # large steps: by the triangle inequality
        constant = cyclic_operator.trivial(*fixed.run.curvature)
    return _visited(fixed, constant)


def _paper(fixed: FixedOrder, delta: float) -> float:
    constant = cyclic_operator.reconstructed(*fixed.run.curvature)
    return cyclic.epsilon(cyclic.theorem_4_5(fixed.run, constant), delta)


def _strongly_convex(fixed: FixedOrder) -> float:
    return cyclic.strongly_convex(fixed.run, fixed.strong_convexity, fixed.diameter)


def _domain(fixed: FixedOrder) -> float:
    assert fixed.diameter is not None  # it does not apply
    return cyclic.clipped_domain(fixed.run, fixed.diameter)


def _holder(fixed: FixedOrder) -> float:
    assert fixed.diameter is not None  # it does not apply
    return cyclic.holder_domain(fixed.run, fixed.holder, fixed.diameter)


def _last_step(fixed: FixedOrder) -> float:
    """By the last step's noise alone, its constant by the triangle inequality."""
    assert fixed.diameter is not None  # it does not apply
    constant = cyclic_operator.trivial(*fixed.run.curvature)
    return cyclic.theorem_4_4(fixed.run, constant, fixed.diameter)


def _one_pass(fixed: FixedOrder) -> bool:
    run = fixed.run
    convex = run.weak_convexity == 0 and run.step_size * run.smoothness <= 2
    return convex and _smooth(fixed) and run.batch_size == 1 and run.steps <= run.steps_per_pass


CYCLIC: tuple[UpperBound[FixedOrder], ...] = (
    _gaussian(
        "composition (Gaussian)",
        "composition",
        lambda fixed: cyclic.composition(fixed.run),
        "any loss, all iterates released",
        "Dong, Roth and Su 2022",
        group="released",
    ),
    _gaussian(
        "clipping and a domain",
        "domain",
        _domain,
        "last iterate, any clipped losses, projected on this domain",
        "ours: docs/cyclic-bounds.md, section 3",
        group="hidden",
        applies=lambda fixed: fixed.diameter is not None,
    ),
    UpperBound(
        name="cyclic, Theorem 4.5 (our reconstruction)",
        key="paper",
        group="assumed",
        assumption=TURNS_NONE,
        source="Kong and Ribero 2024",
        compute=_paper,
        applies=_smooth,
    ),
    _gaussian(
        "cyclic",
        "gaussian",
        _unclipped,
        TURNS_NONE,
        "ours, after Bok, Su and Altschuler 2024",
        applies=_smooth,
    ),
    _gaussian(
        "cyclic, clipped",
        "gaussian, clipped",
        _clipped,
        "last iterate, any losses of this curvature, clipped",
        "ours; smooth losses on a domain: Chien and Li 2024",
        applies=_smooth,
    ),
    _gaussian(
        "strongly convex",
        "strongly convex",
        _strongly_convex,
        "last iterate, strongly convex losses whose gradients clipping never changes",
        "Bok, Su and Altschuler 2024; in an order that is shuffled once: after Ye and Shokri 2022",
        applies=lambda fixed: fixed.strong_convexity > 0 and _smooth(fixed),
    ),
    _gaussian(
        "one pass of single records",
        "one pass",
        lambda fixed: cyclic.pabi(fixed.run),
        TURNS_NONE + "; convex",
        "Feldman, Mironov, Talwar and Thakurta 2018",
        applies=_one_pass,
    ),
    _gaussian(
        "Hölder gradients",
        "Hölder",
        _holder,
        "last iterate, any losses with Hölder continuous gradients, clipped, on this domain",
        "ours, after Chien and Li 2024",
        applies=lambda fixed: fixed.holder < 1 and fixed.diameter is not None,
    ),
    _gaussian(
        "full batch on a domain",
        "full batch",
        _last_step,
        "last iterate, any losses of this curvature, clipped, by the last step's noise alone",
        "Liang et al. 2025 at full batch, as their public code has it",
        applies=lambda fixed: (
            fixed.diameter is not None and fixed.run.steps_per_pass == 1 and _smooth(fixed)
        ),
    ),
)
"""The last iterate, of the worst record or, where the order is shuffled, of one drawn."""
