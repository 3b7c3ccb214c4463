"""Bounds on epsilon, one list: each with a name, what it assumes, and its computation.

``BOUNDS`` has the upper bounds and what linear losses leave; ``atlas.bounds`` adds the lower bounds
and audits. ``hiddenstate epsilon``, ``hiddenstate atlas``, the figure of the atlas and the table of
docs/atlas.md read these lists: a new bound is one object here and its test.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from hiddenstate.accounting import (
    batched,
    composition,
    cyclic,
    cyclic_operator,
    divergence,
    gaussian,
    linear,
    rdp,
)
from hiddenstate.accounting import sampled as sampled_batches
from hiddenstate.accounting.cyclic import CyclicDPSGD
from hiddenstate.accounting.setting import Setting
from hiddenstate.errors import InputError, expect
from hiddenstate.rounding import shown

GROUPS = {
    "proven": "upper bounds for any loss, all iterates released",
    "shown": "lower bounds on the worst case, all iterates released",
    "hidden": "upper bounds for any loss, the last iterate alone",
    "assumed": "under an assumption",
    "counterexample": "losses whose last iterate is known: lower bounds on the worst case",
    "simulated": "simulated audits: certified lower bounds",
    "trained here": "audits of trainings at this setting: certified lower bounds",
    "trained": "apart: the nearest trainings at hand, of other settings, and the share of what "
    "their own accountant proves that an audit certified",
}
"""By group of bounds: what a table calls it."""


@dataclass(frozen=True)
class Value:
    """What a bound says, where it is more than an epsilon."""

    epsilon: float
    """An upper bound is rounded up, a lower bound down."""
    lower: float | None = None
    """Of an upper bound: epsilon is at least this for the losses and the release it holds for."""
    remark: str = ""
    """What its assumption adds for this setting."""
    truth: float | None = None
    """Of a simulated audit: what a perfect one would find."""
    confidence: float | None = None
    runs: int | None = None
    """Per world, of a simulated audit."""


@dataclass(frozen=True, kw_only=True)
class Bound:
    """A bound on epsilon for every record, or what a known loss leaves."""

    name: str
    key: str
    """What ``hiddenstate epsilon`` calls it."""
    group: str
    """A key of ``GROUPS``."""
    kind: str = "upper"
    """"upper", "lower", "exact" for the losses that it assumes, or "estimate" for another
    mechanism."""
    assumption: str
    """The losses and the release that it holds for."""
    source: str
    compute: Callable[[Setting, float], float | Value]
    """Epsilon at a delta; InputError where the bound says nothing of the setting."""
    applies: Callable[[Setting], bool] = lambda setting: True
    """Whether it is of such batches, and what it needs is known of the setting."""
    mu: Callable[[Setting], float | None] = lambda setting: None
    """The Gaussian differential privacy that epsilon is converted from, if it is."""


@dataclass(frozen=True)
class Found:
    """What one bound says of one setting."""

    bound: Bound
    value: Value | None
    """None where it says nothing, for the reason in ``assumption``."""
    assumption: str
    mu: float | None = None

    @property
    def epsilon(self) -> float | None:
        """None where it says nothing."""
        return None if self.value is None else self.value.epsilon


def found(setting: Setting, delta: float, bounds: Iterable[Bound] | None = None) -> list[Found]:
    """What each bound of the list that applies says of the setting; ``BOUNDS`` if there is none."""
    answers = []
    for bound in BOUNDS if bounds is None else bounds:
        if not bound.applies(setting):
            continue
        try:
            with np.errstate(divide="ignore"):  # a delta of 0 has no logarithm
                answer = bound.compute(setting, delta)
        except InputError as refusal:
            answers.append(Found(bound, None, f"none: {refusal}"))
            continue
        value = answer if isinstance(answer, Value) else Value(answer)
        assumption = f"{bound.assumption}; {value.remark}" if value.remark else bound.assumption
        answers.append(Found(bound, value, assumption, bound.mu(setting)))
    return answers


# --- sampled batches ------------------------------------------------------------------------------


def _every_step(run: Setting, delta: float) -> float:
    exact = linear.last_iterate_epsilon(run.noise_multiplier, 1.0, run.steps, delta)
    return float(exact) * (1 + 1e-9)


def _standard(run: Setting, delta: float) -> Value:
    bracket = composition.fine_bracket(*run.mechanism, delta)
    return Value(bracket.upper, lower=bracket.lower)


def _sampled(run: Setting) -> bool:
    return run.sampled


def _on_a_domain(run: Setting) -> bool:
    return run.sampled and run.smoothness is not None and run.diameter is not None


NEVER_CLIPPED = "last iterate, strongly convex losses whose gradients clipping never changes"

SAMPLED: tuple[Bound, ...] = (
    Bound(
        name="composition (PLD)",
        key="standard",
        group="proven",
        assumption="any loss and data, all iterates released",
        source="Koskela, Jälkö and Honkela 2020; Doroshenko et al. 2022",
        compute=_standard,
        applies=_sampled,
    ),
    Bound(
        name="composition (RDP)",
        key="RDP",
        group="proven",
        assumption="any loss and data, all iterates released: Rényi differential privacy, looser",
        source="Mironov, Talwar and Zhang 2019",
        compute=lambda run, delta: rdp.epsilon(*run.mechanism, delta),
        applies=_sampled,
    ),
    Bound(
        name="Gaussian, sampling ignored",
        key="Gaussian",
        group="proven",
        assumption="any loss and data, all iterates released, as if every step used the record",
        source="Dong, Roth and Su 2022",
        compute=_every_step,
        applies=_sampled,
    ),
    Bound(
        name="convex, sampled",
        key="convex",
        group="assumed",
        assumption="last iterate, convex losses of this smoothness of which clipping turns no "
        "gradient, on this domain",
        source="Bok, Su and Altschuler 2024 (noisy SGD); Altschuler and Talwar 2022",
        compute=sampled_batches.convex,
        applies=lambda run: (
            _on_a_domain(run)
            and run.holder == 1
            and run.weak_convexity == 0
            and run.strong_convexity == 0
        ),
    ),
    Bound(
        name="strongly convex, sampled",
        key="strongly convex, sampled",
        group="assumed",
        assumption=NEVER_CLIPPED,
        source="Bok, Su and Altschuler 2024 (noisy SGD)",
        compute=sampled_batches.convex,
        applies=lambda run: run.sampled and run.strong_convexity > 0 and run.smoothness is not None,
    ),
    Bound(
        name="clipped, sampled",
        key="clipped",
        group="assumed",
        assumption="last iterate, any losses of this curvature, clipped, on this domain",
        source="ours; by the last step alone as Liang et al. 2025, by several as Chien and Li 2024",
        compute=sampled_batches.clipped,
        applies=lambda run: _on_a_domain(run) and run.holder == 1,
    ),
    Bound(
        name="Hölder gradients, sampled",
        key="Hölder, sampled",
        group="assumed",
        assumption="last iterate, any losses with Hölder continuous gradients, clipped, on this "
        "domain",
        source="ours, after Chien and Li 2024",
        compute=sampled_batches.holder,
        applies=lambda run: _on_a_domain(run) and run.holder < 1,
    ),
)
"""Upper bounds for batches that are sampled."""


# --- batches in an order --------------------------------------------------------------------------


BLOCKS = 40
"""Blocks of positions that take the place of all, each by the last of it."""


def _averaged(setting: Setting) -> bool:
    """Whether bounds are means over a record's positions: in an order that is drawn once."""
    return setting.shuffled and not setting.redrawn


def _positions(setting: Setting) -> dict[int, float]:
    """Positions that the bounds are computed at, and the share of the records each stands for.

    Of the positions with a given number of visits a later one is worse: fewer steps hide every
    spending. Such are the positions up to the last step's batch, and those behind it.
    """
    whole = setting.steps_per_pass
    last = (setting.steps - 1) % whole + 1
    if not _averaged(setting):
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


Rho = Callable[[CyclicDPSGD, Setting], float]
"""Rho of a record at its position."""


def _rhos(setting: Setting, rho: Rho) -> list[float]:
    """For each position: rho, or that of composition where it is less."""
    runs = [setting.schedule(at) for at in _positions(setting)]
    return [min(rho(run, setting), cyclic.composition(run)) for run in runs]


def _gaussian(
    name: str,
    key: str,
    rho: Rho,
    assumption: str,
    source: str,
    group: str = "assumed",
    applies: Callable[[Setting], bool] = lambda setting: True,
) -> Bound:
    """A bound whose rho is a Gaussian guarantee, of the worst position or over a drawn one.

    Of an order that is drawn in each epoch nothing is known but what is proven of all iterates.
    """

    def compute(setting: Setting, delta: float) -> float:
        rhos = _rhos(setting, rho)
        if not _averaged(setting):
            return divergence.gaussian_epsilon(max(rhos), delta)
        return divergence.averaged_epsilon(rhos, list(_positions(setting).values()), delta)

    def mu(setting: Setting) -> float | None:
        return None if _averaged(setting) else divergence.gaussian_mu(max(_rhos(setting, rho)))

    return Bound(
        name=name,
        key=key,
        group=group,
        assumption=assumption,
        source=source,
        compute=compute,
        applies=lambda setting: (
            not setting.sampled and (group == "proven" or not setting.redrawn) and applies(setting)
        ),
        mu=mu,
    )


TURNS_NONE = (
    "last iterate, where clipping turns no gradient: it never acts, the model has one parameter, "
    "or every loss is f(x) = l(<a, x>), one output"
)


def _smooth(setting: Setting) -> bool:
    return setting.smoothness is not None and setting.holder == 1


def _visited(run: CyclicDPSGD, setting: Setting, lipschitz: float) -> float:
    """Rho by a record's visits, or on the domain."""
    if setting.diameter is None:
        return cyclic.sharp(run, lipschitz)
    return cyclic.bounded_domain(run, lipschitz, setting.diameter)


def _unclipped(run: CyclicDPSGD, setting: Setting) -> float:
    return _visited(run, setting, cyclic_operator.unclipped(*run.curvature))


def _clipped(run: CyclicDPSGD, setting: Setting) -> float:
    try:
        constant = cyclic_operator.clipped(*run.curvature)
    except InputError:  # large steps: by the triangle inequality
        constant = cyclic_operator.trivial(*run.curvature)
    return _visited(run, setting, constant)


def _paper(setting: Setting, delta: float) -> float:
    run = setting.schedule()
    constant = cyclic_operator.reconstructed(*run.curvature)
    return divergence.epsilon(cyclic.theorem_4_5(run, constant), delta)


def _strongly_convex(run: CyclicDPSGD, setting: Setting) -> float:
    return cyclic.strongly_convex(run, setting.strong_convexity, setting.diameter)


def _domain(run: CyclicDPSGD, setting: Setting) -> float:
    assert setting.diameter is not None  # it does not apply
    return cyclic.clipped_domain(run, setting.diameter)


def _holder(run: CyclicDPSGD, setting: Setting) -> float:
    assert setting.diameter is not None  # it does not apply
    return cyclic.holder_domain(run, setting.holder, setting.diameter)


def _last_step(run: CyclicDPSGD, setting: Setting) -> float:
    """By the last step's noise alone, its constant by the triangle inequality."""
    assert setting.diameter is not None  # it does not apply
    constant = cyclic_operator.trivial(*run.curvature)
    return cyclic.theorem_4_4(run, constant, setting.diameter)


def _one_pass(setting: Setting) -> bool:
    run = setting.schedule()
    convex = run.weak_convexity == 0 and run.step_size * run.smoothness <= 2
    single = run.batch_size == 1 and run.steps <= run.steps_per_pass
    return convex and _smooth(setting) and single


ORDERED: tuple[Bound, ...] = (
    _gaussian(
        "composition (Gaussian)",
        "composition",
        lambda run, setting: cyclic.composition(run),
        "any loss, all iterates released",
        "Dong, Roth and Su 2022",
        group="proven",
    ),
    _gaussian(
        "clipping and a domain",
        "domain",
        _domain,
        "last iterate, any clipped losses, projected on this domain",
        "ours: docs/cyclic-bounds.md, section 3",
        group="hidden",
        applies=lambda setting: setting.diameter is not None,
    ),
    Bound(
        name="cyclic, Theorem 4.5 (our reconstruction)",
        key="paper",
        group="assumed",
        assumption=TURNS_NONE,
        source="Kong and Ribero 2024",
        compute=_paper,
        applies=lambda setting: not (setting.sampled or setting.redrawn) and _smooth(setting),
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
        NEVER_CLIPPED,
        "Bok, Su and Altschuler 2024; in an order that is shuffled once: after Ye and Shokri 2022",
        applies=lambda setting: setting.strong_convexity > 0 and _smooth(setting),
    ),
    _gaussian(
        "one pass of single records",
        "one pass",
        lambda run, setting: cyclic.pabi(run),
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
        applies=lambda setting: (
            setting.holder < 1 and setting.smoothness is not None and setting.diameter is not None
        ),
    ),
    _gaussian(
        "full batch on a domain",
        "last step",
        _last_step,
        "last iterate, any losses of this curvature, clipped, by the last step's noise alone",
        "Liang et al. 2025 at full batch, as their public code has it",
        applies=lambda setting: (
            setting.diameter is not None and setting.steps_per_pass == 1 and _smooth(setting)
        ),
    ),
)
"""Upper bounds of the worst record or, where the order is shuffled, of one drawn."""


# --- linear losses --------------------------------------------------------------------------------


def linear_epsilon(setting: Setting, delta: float, inserted: int | None = None) -> float:
    """Epsilon of the last iterate if every loss is linear, at the record that shows most.

    inserted: of a record that so many steps may have at most, in place of all that its sampling or
    its order gives it. Raises an input error for iterates that are projected, and for a shuffled
    order in which some records are visited more often than others.
    """
    if setting.diameter is not None:
        raise InputError("last iterates that are known exactly are of a domain without end")
    if setting.sampled:
        sigma, rate, steps = setting.mechanism
        shifts = steps if inserted is None else inserted
        # The shift of so many steps against the noise of all.
        noise = sigma * math.sqrt(steps / shifts)
        return float(linear.last_iterate_epsilon(noise, rate, shifts, delta))
    whole = setting.steps_per_pass
    alike = not setting.shuffled or setting.steps % whole == 0
    expect(alike, "steps", setting.steps, f"whole passes of {whole} where the order is shuffled")
    shifts = -(-setting.steps // whole) if inserted is None else inserted
    # A swapped record moves a step by twice the clipping norm.
    mu = 2 * shifts / (setting.noise_multiplier * math.sqrt(setting.steps))
    return float(gaussian.epsilon(mu, delta))


def _full_batch(setting: Setting, delta: float) -> float:
    return float(linear.full_batch_epsilon(*setting.mechanism, delta))


LINEAR: tuple[Bound, ...] = (
    Bound(
        name="linear losses",
        key="heuristic",
        group="assumed",
        kind="exact",
        assumption="last iterate, exact if every loss is linear; for others a heuristic, no "
        "guarantee",
        source="Theorem 1 of The Last Iterate Advantage",
        compute=linear_epsilon,
    ),
    Bound(
        name="full batch",
        key="full batch",
        group="assumed",
        kind="estimate",
        assumption="another mechanism: every record in every step, the same mean step and noise",
        source="section 3 of The Last Iterate Advantage",
        compute=_full_batch,
        applies=lambda setting: setting.sampled and setting.diameter is None,
    ),
)


# --- orders that are drawn ------------------------------------------------------------------------


def _largest_sum(setting: Setting, delta: float) -> Value:
    batches = setting.steps_per_pass
    epochs = setting.steps // batches
    expect(epochs >= 1, "steps", setting.steps, f"a whole pass, {batches}, or more")
    given = (setting.noise_multiplier, batches, epochs, delta)
    zeroed = batched.lower_epsilon(*given, batched.ZEROED, redrawn=setting.redrawn)
    return Value(
        batched.lower_epsilon(*given, redrawn=setting.redrawn),
        remark=f"of a record that is zeroed out in place of swapped: {shown(zeroed, 'lower')}",
    )


def _as_if_sampled(setting: Setting, delta: float) -> float:
    mechanism = (setting.noise_multiplier, 1 / setting.steps_per_pass, setting.steps)
    return composition.fine_bracket(*mechanism, delta).upper


SHUFFLED: tuple[Bound, ...] = (
    Bound(
        name="largest batch sum",
        key="at least",
        group="shown",
        kind="lower",
        assumption="linear losses, others opposite to the record, all iterates released",
        source="ours, by the statistic of Chua et al. 2024",
        compute=_largest_sum,
        applies=lambda setting: setting.shuffled,
    ),
    Bound(
        name="as if batches were sampled",
        key="Poisson",
        group="assumed",
        kind="estimate",
        assumption="another mechanism: each step samples every record, which is added or removed, "
        "with the probability of a batch; often reported for shuffled ones, of which it is no "
        "bound",
        source="Koskela, Jälkö and Honkela 2020; Doroshenko et al. 2022",
        compute=_as_if_sampled,
        applies=lambda setting: setting.shuffled,
    ),
)

BOUNDS = SAMPLED + ORDERED + LINEAR + SHUFFLED
