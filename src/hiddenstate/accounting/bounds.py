"""Bounds on epsilon, one list: each with a name, what it assumes, and its computation.

``BOUNDS`` has the upper bounds and what linear losses leave; ``atlas.bounds`` adds the lower bounds
and audits. ``hiddenstate epsilon``, ``hiddenstate atlas``, the figure of the atlas and the table of
docs/atlas.md read these lists: a new bound is one object here and its test.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import numpy as np

from hiddenstate.accounting import (
    arguments,
    balls_and_bins,
    batched,
    composition,
    cyclic,
    cyclic_operator,
    divergence,
    gaussian,
    linear,
    ordered,
    rdp,
    sitting_out,
    swapped,
    varying,
    weighted,
)
from hiddenstate.accounting import sampled as sampled_batches
from hiddenstate.accounting.cyclic import CyclicDPSGD
from hiddenstate.accounting.setting import ADJACENCY, OPTIMISER, RELEASE, Setting
from hiddenstate.errors import InputError, expect
from hiddenstate.rounding import counted, shown
from hiddenstate.sampling import FixedSize, FullBatch

GROUPS = {
    "proven": "upper bounds for any loss, all iterates released",
    "shown": "lower bounds on the worst case, all iterates released",
    "hidden": "upper bounds for any loss, the last iterate alone",
    "assumed": "under an assumption",
    "counterexample": "losses whose last iterate is known: lower bounds on the worst case",
    "simulated": "simulated audits: lower bounds (95 %)",
    "trained here": "audits of trainings at this setting: lower bounds (95 %)",
    "trained": "audits of trainings at other settings, the nearest there are: their lower bound "
    "(95 %) as a share of their own standard epsilon",
}
"""By group of bounds: what a table calls it."""

EVERY = frozenset(OPTIMISER) | frozenset(RELEASE)
"""The options that change steps or release. All iterates tell the noisy sums whatever they are."""

ALL = EVERY | frozenset(ADJACENCY)
"""The same, a group of records, and a swap."""

STEPS = frozenset({"schedule", "weight_decay"})
"""Those that change a step's size and contraction alone."""


@dataclass(frozen=True)
class Value:
    """Value of a bound that is more than an epsilon."""

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
    """True if it is of such batches, and what it needs is known of the setting."""
    mu: Callable[[Setting], float | None] = lambda setting: None
    """The Gaussian differential privacy that epsilon is converted from, if it is."""
    honours: frozenset[str] = frozenset()
    """Options of ``EVERY`` with which it holds; with others it is refused."""
    uses: frozenset[str] = frozenset()
    """Options that its value depends on, of those that not every row depends on."""
    losses: str = ""
    """Of what is known of a loss: "linear", or "curved" for one of the assumed curvature."""
    covers: Callable[[Setting], frozenset[str]] = lambda setting: frozenset()
    """Of an upper bound that assumes something: which of these losses it holds for."""


@dataclass(frozen=True)
class Found:
    """Value of one bound at one setting."""

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
    """Value of each bound of the list that applies to the setting; ``BOUNDS`` if there is none.

    Raises an arithmetic error where a number is not finite, and where a lower bound is above an
    upper bound that holds for the same losses and release: one of the two is then wrong.
    """
    arguments.check_delta(delta)
    answers = []
    for bound in BOUNDS if bounds is None else bounds:
        if not bound.applies(setting):
            continue
        others = [name for name in setting.changed if name not in bound.honours]
        if others:
            words = " and ".join(_option(setting, name) for name in others)
            answers.append(Found(bound, None, f"none: not known with {words}"))
            continue
        try:
            answer = bound.compute(setting, delta)
        except InputError as refusal:
            # A bound refuses a setting that it says nothing of; the others still answer.
            answers.append(Found(bound, None, f"none: {_by_options(setting, refusal)}"))
            continue
        value = answer if isinstance(answer, Value) else Value(answer)
        assumption = f"{bound.assumption}; {value.remark}" if value.remark else bound.assumption
        answers.append(Found(bound, value, assumption, bound.mu(setting)))
    _check(setting, answers)
    return answers


def _by_options(setting: Setting, refusal: InputError) -> str:
    """The message of a refusal, which names the option in place of the argument."""
    name, colon, rest = str(refusal).partition(": ")
    name = {"step_size": "learning_rate"}.get(name, name)
    return f"{_written(name)}: {rest}" if colon and name in vars(setting) else str(refusal)


def _option(setting: Setting, name: str) -> str:
    """An option that a bound is not known with, and its value where the name says little."""
    if name != "adjacency":
        return _written(name)
    return "--sampler fixed-size" if setting.fixed_size else "--adjacency swap"


def _written(name: str) -> str:
    return "--" + name.replace("_", "-")


def _check(setting: Setting, answers: list[Found]) -> None:
    """Arithmetic error unless all numbers are finite and no lower bound is above an upper one."""
    uppers: list[tuple[float, Found]] = []
    lowers: list[tuple[float, Found]] = []
    for one in answers:
        if one.value is None:
            continue
        epsilon, least = one.value.epsilon, one.value.lower
        if not (math.isfinite(epsilon) and (least is None or least <= epsilon * SLACK)):
            raise ArithmeticError(f"{one.bound.name}: got [{least}, {epsilon}] for {setting}")
        kind, group = one.bound.kind, one.bound.group
        if kind == "upper" or (kind == "exact" and least is not None):
            uppers.append((epsilon, one))
        # A simulated audit is wrong with 5 % probability, so it contradicts no upper bound.
        if group != "simulated" and (kind in ("lower", "exact") or least is not None):
            lowers.append((epsilon if least is None else least, one))
    for upper, above in uppers:
        for lower, below in lowers:
            if lower > upper * SLACK + 1e-12 and _comparable(setting, above.bound, below.bound):
                raise ArithmeticError(
                    f"{below.bound.name} is {lower}, above {above.bound.name}, {upper}: {setting}"
                )


SLACK = 1 + 1e-8
"""Rounding errors of exact values that are not rounded."""


def _comparable(setting: Setting, upper: Bound, lower: Bound) -> bool:
    """True if the one holds for the losses and the release of the other."""
    if upper.group == "proven":
        return True
    if lower.group in ("shown", "proven"):
        return False  # all iterates released
    if upper.group == "hidden":
        return True
    return bool(lower.losses) and lower.losses in upper.covers(setting)


def unused(setting: Setting, answers: list[Found]) -> list[str]:
    """Options of the losses, the domain, the optimiser and the release that no value depends on."""
    defaults = {"strong_convexity": 0.0, "holder": 1.0, "smoothness": None, "diameter": None}
    given = [name for name, value in defaults.items() if getattr(setting, name) != value]
    given += setting.changed
    used = [one.bound.uses for one in answers if one.value is not None]
    return [name for name in given if not any(name in names for names in used)]


# --- sampled batches ------------------------------------------------------------------------------

LINEAR_TOO = frozenset({"linear"})
CURVED_TOO = frozenset({"linear", "curved"})
DOMAIN = frozenset({"smoothness", "diameter"}) | STEPS


def _linear_unless_strong(setting: Setting) -> frozenset[str]:
    """Linear losses, unless every loss is strongly convex."""
    return frozenset() if setting.strong_convexity else LINEAR_TOO


def _between(bracket: composition.Bracket) -> Value:
    return Value(bracket.upper, lower=bracket.lower)


def _every_step(run: Setting, delta: float) -> float:
    noise = run.noise_multiplier / (run.group * (2 if run.swaps else 1))
    return linear.last_iterate(noise, 1.0, run.steps).bracket(delta, share=1e-9)[1]


def _standard(run: Setting, delta: float) -> Value:
    if run.swaps and run.rate == 1:
        return _standard(_halved(run), delta)
    if not run.swaps:
        bracket = composition.fine_bracket(*_grouped(run), delta, run.group)
    elif run.group > 1:
        raise InputError("not known with --group where records are swapped")
    else:
        bracket = swapped.bracket(*run.mechanism, delta, fixed_size=run.fixed_size)
    return _between(bracket)


def _halved(run: Setting) -> Setting:
    """Full batches in which a record comes or goes, as good as a swap: it moves half as far."""
    noise = run.noise_multiplier / 2
    return replace(run, sampling=FullBatch(), adjacency=None, noise_multiplier=noise)


def _grouped(run: Setting) -> tuple[float, float, int]:
    """Noise multiplier, rate and steps of one record that is as good as the group.

    A step's sum is at most Binomial(group, rate) + N(0, sigma^2) against N(0, sigma^2) (Ganesh
    2024): that of ``group`` steps of one record, whose noise is less by its root.
    """
    sigma, rate, steps = run.mechanism
    return sigma / math.sqrt(run.group), rate, run.group * steps


def _renyi(run: Setting, delta: float) -> float:
    if not run.swaps:
        # The sum of a group's steps tells less than each of them.
        return rdp.epsilon(*_grouped(run), delta)
    if run.rate == 1:
        return _renyi(_halved(run), delta)
    if not run.fixed_size:
        raise InputError("no Rényi bound for records that are swapped in Poisson batches is known")
    expect(run.group == 1, "group", run.group, "1 with batches of a fixed size")
    assert run.records is not None and isinstance(run.sampling, FixedSize)
    return rdp.fixed_size_epsilon(
        run.noise_multiplier, run.records, run.sampling.batch_size, run.steps, delta
    )


def _sampled(run: Setting) -> bool:
    return run.sampled


def _on_a_domain(run: Setting) -> bool:
    return run.sampled and run.smoothness is not None and run.diameter is not None


def _contracts(run: Setting) -> bool:
    return run.strong_convexity + run.weight_decay > 0 and _smooth(run) and not run.weak_convexity


STANDARD = "standard epsilon"
HEURISTIC = "linear heuristic"
SITTING_OUT = "shuffled, some records sit out"

NEVER_CLIPPED = (
    "last iterate, strongly convex losses (or convex ones with weight decay) whose gradients "
    "clipping never changes"
)

NO_EFFECT = (
    "clipping is never active, the model has one parameter, or every loss has one output, as in "
    "binary logistic regression"
)

SAMPLED: tuple[Bound, ...] = (
    Bound(
        name=STANDARD,
        group="proven",
        assumption="any loss and data, all iterates released",
        source="Koskela, Jälkö and Honkela 2020; Doroshenko et al. 2022",
        compute=_standard,
        applies=_sampled,
        honours=ALL,
        uses=frozenset(ADJACENCY),
    ),
    Bound(
        name="standard epsilon, by Rényi DP",
        group="proven",
        assumption="any loss and data, all iterates released; looser, as older papers report it",
        source="Mironov, Talwar and Zhang 2019",
        compute=_renyi,
        applies=_sampled,
        honours=ALL,
        uses=frozenset(ADJACENCY),
    ),
    Bound(
        name="without amplification by sampling",
        group="proven",
        assumption="any loss and data, all iterates released, the record in every step",
        source="Dong, Roth and Su 2022",
        compute=_every_step,
        applies=_sampled,
        honours=ALL,
        uses=frozenset(ADJACENCY),
    ),
    Bound(
        name="convex losses on a domain",
        group="assumed",
        assumption=f"last iterate, convex losses of this smoothness on this domain, if {NO_EFFECT}",
        source="Bok, Su and Altschuler 2024 (noisy SGD); Altschuler and Talwar 2022",
        compute=sampled_batches.convex,
        applies=lambda run: (
            _on_a_domain(run)
            and run.holder == 1
            and run.weak_convexity == 0
            and run.strong_convexity == 0
        ),
        honours=STEPS,
        uses=DOMAIN,
        covers=lambda run: LINEAR_TOO,
    ),
    Bound(
        name="strongly convex losses",
        group="assumed",
        assumption=NEVER_CLIPPED,
        source="Bok, Su and Altschuler 2024 (noisy SGD)",
        compute=sampled_batches.convex,
        # On a domain convex losses with decay have the row above.
        applies=lambda run: (
            run.sampled and _contracts(run) and (run.strong_convexity > 0 or run.diameter is None)
        ),
        honours=STEPS,
        uses=DOMAIN | {"strong_convexity"},
        covers=_linear_unless_strong,
    ),
    Bound(
        name="clipped losses on a domain",
        group="assumed",
        assumption="last iterate, any losses of this curvature, clipped, on this domain",
        source="ours; by the last step alone as Liang et al. 2025, by several as Chien and Li 2024",
        compute=sampled_batches.clipped,
        applies=lambda run: _on_a_domain(run) and run.holder == 1,
        honours=STEPS,
        uses=DOMAIN,
        covers=lambda run: LINEAR_TOO,
    ),
    Bound(
        name="Hölder gradients on a domain",
        group="assumed",
        assumption="last iterate, any losses with Hölder continuous gradients, clipped, on this "
        "domain",
        source="ours, after Chien and Li 2024",
        compute=sampled_batches.holder,
        applies=lambda run: _on_a_domain(run) and run.holder < 1,
        uses=DOMAIN | {"holder"},
        covers=lambda run: LINEAR_TOO,
    ),
)
"""Upper bounds for batches that are sampled."""


# --- batches in an order --------------------------------------------------------------------------


BLOCKS = 40
"""Blocks of positions that take the place of all, each by the last of it."""


def _averaged(setting: Setting) -> bool:
    """True if bounds are means over a record's positions: in an order that is drawn once."""
    return setting.shuffled and not setting.redrawn


def _positions(setting: Setting) -> dict[int, float]:
    """Positions that the bounds are computed at, and the share of the records each stands for.

    Of the positions with a given number of visits a later one is worse: fewer steps hide every
    spending. Such are the positions up to the last step's batch, and those behind it. Where steps
    differ every position counts.
    """
    whole, records, size = setting.steps_per_pass, setting.records, setting.batch_size
    assert records is not None and size is not None
    last = (setting.steps - 1) % whole + 1
    if _varies(setting):
        most = whole * setting.steps <= MOST_POSITIONS
        expect(most, "steps", setting.steps, f"at most {MOST_POSITIONS // whole:,}, as they differ")
        ends = range(1, whole + 1)
    elif not _averaged(setting):
        return {last: 1.0, whole: 1.0}
    else:
        # Near the end of a block each counts, as only a few steps hide the last visit.
        blocks = [
            end - np.unique(np.geomspace(1, end - before, BLOCKS).astype(int))[::-1] + 1
            for before, end in ((0, last), (last, whole))
            if before < end
        ]
        ends = np.concatenate(blocks).tolist()
    found, before = {}, 0.0
    for end in ends:
        # The last batch may be smaller, and records that fill no batch sit out.
        through = min(end * size, records) / min(whole * size, records)
        found[end], before = through - before, through
    return found


MOST_POSITIONS = 100_000_000
"""Steps at all positions of a record, which take seconds."""


def _varies(setting: Setting) -> bool:
    """True if steps differ, or decay."""
    return any(name in STEPS for name in setting.changed)


Rho = Callable[[CyclicDPSGD, Setting], float]
"""Rho of a record at its position."""


Constant = Callable[[Setting], Callable[[float], float]]
"""Of a step by its size: by what factor it takes two iterates apart at most."""


def _rhos(setting: Setting, rho: Rho, constant: Constant | None) -> list[float]:
    """Rho at each position, or that of composition where it is less."""
    if setting.group > 1:
        whole = _rhos(replace(setting, group=1), rho, constant)
        # k records have k mu, and rho is mu^2 / 2. The worst position bounds every group.
        return [setting.group**2 * max(whole)] * len(whole)
    runs = [setting.at(position) for position in _positions(setting)]
    if not _varies(setting):
        return [min(rho(run, setting), cyclic.composition(run)) for run in runs]
    if constant is None:
        # What all iterates tell is the same whatever the steps are.
        return [cyclic.composition(run) for run in runs]
    factors = setting.factors(constant(setting))
    plain = setting.factors(lambda size: 1.0)
    found = []
    for run in runs:
        each = [cyclic.composition(run), varying.rho(setting, run, factors)]
        if setting.diameter is not None:
            each.append(varying.rho(setting, run, plain, clipping=True))
        found.append(min(each))
    return found


def _gaussian(
    name: str,
    rho: Rho,
    assumption: str,
    source: str,
    *,
    constant: Constant | None = None,
    group: str = "assumed",
    applies: Callable[[Setting], bool] = lambda setting: True,
    uses: frozenset[str] = DOMAIN,
    covers: Callable[[Setting], frozenset[str]] = lambda setting: LINEAR_TOO,
) -> Bound:
    """A bound whose rho is a Gaussian guarantee, of the worst position or over a drawn one.

    Of an order that is drawn in each epoch nothing is known but what is proven of all iterates.
    constant: of a step, where the bound is known for steps that differ.
    """

    def compute(setting: Setting, delta: float) -> float:
        if group == "proven":
            # All iterates tell the noisy sums, whatever the steps are.
            setting = replace(setting, schedule="constant", weight_decay=0.0)
        rhos = _rhos(setting, rho, constant)
        if not _averaged(setting):
            return divergence.gaussian_epsilon(max(rhos), delta)
        return divergence.averaged_epsilon(rhos, list(_positions(setting).values()), delta)

    def mu(setting: Setting) -> float | None:
        if _averaged(setting):
            return None
        if group == "proven":
            setting = replace(setting, schedule="constant", weight_decay=0.0)
        return divergence.gaussian_mu(max(_rhos(setting, rho, constant)))

    # Of mu-GDP for one record k records have k mu: Dong, Roth and Su 2022, Theorem 2.14.
    honours = {"group"} | (EVERY if group == "proven" else STEPS if constant else frozenset[str]())
    return Bound(
        name=name,
        group=group,
        assumption=assumption,
        source=source,
        compute=compute,
        applies=lambda setting: (
            setting.ordered and (group == "proven" or not setting.redrawn) and applies(setting)
        ),
        mu=mu,
        honours=frozenset(honours),
        uses=uses | {"group"},
        covers=covers,
    )


WITHOUT_EFFECT = f"last iterate, losses of this curvature, if {NO_EFFECT}"


def _smooth(setting: Setting) -> bool:
    return setting.smoothness is not None and setting.holder == 1


def _visited(run: CyclicDPSGD, setting: Setting, lipschitz: float) -> float:
    """Rho by a record's visits, or on the domain."""
    if setting.diameter is None:
        return cyclic.sharp(run, lipschitz)
    return cyclic.bounded_domain(run, lipschitz, setting.diameter)


def _unclipped(run: CyclicDPSGD, setting: Setting) -> float:
    return _visited(run, setting, cyclic_operator.unclipped(*run.curvature))


def _clipped_constant(setting: Setting) -> Callable[[float], float]:
    weak, smooth, _ = setting.curvature
    return lambda step_size: cyclic_operator.clipped_or_trivial(step_size, weak, smooth)


def _unclipped_constant(setting: Setting) -> Callable[[float], float]:
    weak, smooth, _ = setting.curvature
    return lambda step_size: cyclic_operator.unclipped(step_size, weak, smooth)


def _contraction(setting: Setting) -> Callable[[float], float]:
    weak, smooth, strong = setting.curvature
    expect(weak == 0, "weak_convexity", weak, "0: convex losses")
    return lambda step_size: cyclic_operator.contraction(step_size, strong, smooth)


def _clipped(run: CyclicDPSGD, setting: Setting) -> float:
    return _visited(run, setting, _clipped_constant(setting)(run.step_size))


def _paper(setting: Setting, delta: float) -> float:
    run = setting.at()
    constant = cyclic_operator.reconstructed(*run.curvature)
    return divergence.epsilon(cyclic.theorem_4_5(run, constant), delta)


def _strongly_convex(run: CyclicDPSGD, setting: Setting) -> float:
    return cyclic.strongly_convex(run, setting.curvature[2], setting.diameter)


def _domain(run: CyclicDPSGD, setting: Setting) -> float:
    assert setting.diameter is not None  # it does not apply
    return cyclic.clipped_domain(run, setting.diameter)


def _holder(run: CyclicDPSGD, setting: Setting) -> float:
    assert setting.diameter is not None  # it does not apply
    return cyclic.holder_domain(run, setting.holder, setting.diameter)


def _last_step(run: CyclicDPSGD, setting: Setting) -> float:
    """Bound by the last step's noise alone, its constant by the triangle inequality."""
    assert setting.diameter is not None  # it does not apply
    constant = cyclic_operator.trivial(*run.curvature)
    return cyclic.theorem_4_4(run, constant, setting.diameter)


def _one_pass(setting: Setting) -> bool:
    run = setting.at()
    convex = run.weak_convexity == 0 and run.step_size * run.smoothness <= 2
    single = run.batch_size == 1 and run.steps <= run.steps_per_pass
    return convex and _smooth(setting) and single


ORDERED: tuple[Bound, ...] = (
    _gaussian(
        STANDARD,
        lambda run, setting: cyclic.composition(run),
        "any loss and data, all iterates released",
        "Dong, Roth and Su 2022",
        group="proven",
        uses=frozenset(),
    ),
    _gaussian(
        "any clipped losses on a domain",
        _domain,
        "last iterate, any clipped losses, projected on this domain",
        "ours: docs/cyclic-bounds.md, section 3",
        # No factor holds for all losses: clipping alone bounds how far a step takes iterates.
        constant=lambda setting: lambda step_size: math.inf,
        group="hidden",
        applies=lambda setting: setting.diameter is not None,
        uses=frozenset({"diameter"}) | STEPS,
    ),
    Bound(
        name="Theorem 4.5 of Kong and Ribero",
        group="assumed",
        assumption=f"{WITHOUT_EFFECT}; our reconstruction of the theorem",
        source="Kong and Ribero 2024",
        compute=_paper,
        applies=lambda setting: setting.ordered and not setting.redrawn and _smooth(setting),
        uses=frozenset({"smoothness"}),
        covers=lambda setting: CURVED_TOO,
    ),
    _gaussian(
        "cyclic, clipping without effect",
        _unclipped,
        WITHOUT_EFFECT,
        "ours, after Bok, Su and Altschuler 2024",
        constant=_unclipped_constant,
        applies=_smooth,
        covers=lambda setting: CURVED_TOO,
    ),
    _gaussian(
        "cyclic, clipped",
        _clipped,
        "last iterate, any losses of this curvature, clipped",
        "ours; smooth losses on a domain: Chien and Li 2024",
        constant=_clipped_constant,
        applies=_smooth,
        covers=lambda setting: CURVED_TOO,
    ),
    _gaussian(
        "strongly convex losses",
        _strongly_convex,
        NEVER_CLIPPED,
        "Bok, Su and Altschuler 2024; in an order that is shuffled once: after Ye and Shokri 2022",
        constant=_contraction,
        applies=_contracts,
        uses=DOMAIN | {"strong_convexity"},
        covers=_linear_unless_strong,
    ),
    _gaussian(
        "one pass of single records",
        lambda run, setting: cyclic.pabi(run),
        f"{WITHOUT_EFFECT}; convex",
        "Feldman, Mironov, Talwar and Thakurta 2018",
        applies=_one_pass,
        uses=frozenset({"smoothness"}),
    ),
    _gaussian(
        "Hölder gradients on a domain",
        _holder,
        "last iterate, any losses with Hölder continuous gradients, clipped, on this domain",
        "ours, after Chien and Li 2024",
        applies=lambda setting: (
            setting.holder < 1 and setting.smoothness is not None and setting.diameter is not None
        ),
        uses=frozenset({"smoothness", "holder", "diameter"}),
    ),
    _gaussian(
        "last step on a domain",
        _last_step,
        "last iterate, any losses of this curvature, clipped, by the last step's noise alone",
        "Liang et al. 2025 at full batch, as their public code has it",
        applies=lambda setting: (
            setting.diameter is not None and setting.steps_per_pass == 1 and _smooth(setting)
        ),
        uses=frozenset({"smoothness", "diameter"}),
    ),
)
"""Upper bounds of the worst record or, where the order is shuffled, of one drawn."""


# --- linear losses --------------------------------------------------------------------------------


PROJECTED = "the last iterate of linear losses is known exactly only without --diameter"


def linear_epsilon(setting: Setting, delta: float, inserted: int | None = None) -> float:
    """Epsilon of the last iterate if every loss is linear, at the record that shows most.

    inserted: of a record that so many steps may have at most, in place of all that its sampling or
    its order gives it. Raises an input error for iterates that are projected, and for a shuffled
    order in which some records are visited more often than others.
    """
    if setting.diameter is not None:
        raise InputError(PROJECTED)
    if setting.sitting_out:
        raise InputError("not known where records sit out of epochs")
    if setting.sampled:
        sigma, rate, steps = setting.mechanism
        shifts = steps if inserted is None else inserted
        # The shift of so many steps against the noise of all.
        shifts *= setting.group
        noise = sigma * math.sqrt(steps / shifts)
        return float(linear.last_iterate_epsilon(noise, rate, shifts, delta))
    whole = setting.steps_per_pass
    alike = not setting.shuffled or setting.steps % whole == 0
    expect(alike, "steps", setting.steps, f"whole passes of {whole} where the order is shuffled")
    # The record that shows most is also in the last pass, which may be shorter.
    shifts = -(-setting.steps // whole) if inserted is None else inserted
    # A swapped record moves a step by twice the clipping norm.
    moved = setting.group * shifts * (2 if setting.swaps else 1)
    mu = moved / (setting.noise_multiplier * math.sqrt(setting.steps))
    return float(gaussian.epsilon(mu, delta))


def _heuristic(setting: Setting, delta: float) -> float | Value:
    """Epsilon of what is released if every loss is linear."""
    if setting.diameter is not None:
        raise InputError(PROJECTED)
    changed = [name for name in setting.changed if name in EVERY]
    others = [name for name in changed if name != "release_every"]
    # All iterates tell the noisy sums, whatever the optimiser does with them.
    if setting.release_every not in (None, 1) and others:
        words = " and ".join(map(_written, others))
        raise InputError(f"not known with {words} where some iterates are released")
    if setting.allocated:
        return _allocated_heuristic(setting, delta)
    if setting.sampled and setting.swaps and setting.rate == 1:
        return _heuristic(_halved(setting), delta)
    if setting.sampled and setting.swaps:
        if changed or setting.group > 1 or setting.fixed_size:
            other = " and ".join(_option(setting, name) for name in setting.changed)
            raise InputError(f"not known with {other}")
        # Imported here because most settings add or remove a record.
        from hiddenstate.accounting import iteration

        return iteration.swapped(*setting.mechanism).epsilon(delta)
    if not setting.sampled and (changed or setting.shuffled) and setting.group == 1:
        return _between(ordered.epsilon(setting, delta))
    if not changed:
        return linear_epsilon(setting, delta)
    if not setting.sampled:
        expect(not setting.shuffled, "group", setting.group, "1 where the order is shuffled")
        expect(setting.smallest_share == 1, "group", setting.group, "1 with a last smaller batch")
        alone = replace(setting, noise_multiplier=setting.noise_multiplier / setting.group, group=1)
        return _between(ordered.epsilon(alone, delta))
    if setting.release_every is not None:
        every = setting.release_every * setting.group
        return _between(composition.fine_bracket(*_grouped(setting), delta, every))
    mechanism = (setting.noise_multiplier, setting.rate)
    return _between(weighted.epsilon(*mechanism, setting.weights, delta, group=setting.group))


def _allocated_heuristic(setting: Setting, delta: float) -> float | Value:
    """The same where each record draws its batch of every epoch."""
    if setting.swaps:
        raise InputError("not known with --adjacency swap where each record draws its batch")
    if setting.changed in ([], ["group"]):
        return linear_epsilon(setting, delta)
    every, bins = setting.release_every, setting.steps_per_pass
    if every is None:
        bracket = weighted.epsilon(
            *(setting.noise_multiplier, 1 / bins, setting.weights, delta),
            sampling="shuffled",
            group=setting.group,
        )
    elif every % bins and bins % every:
        words = f"a divisor or a multiple of the {counted(bins, 'batch')} of an epoch"
        raise InputError(f"release_every: got {every}; expected {words}")
    else:
        expect(setting.group == 1, "group", setting.group, "1 where some iterates are released")
        # The sums between two releases are alike: fewer batches of more noise.
        noise = setting.noise_multiplier * math.sqrt(every) / max(1, every // bins)
        merged = max(1, bins // every)
        epochs, left = divmod(setting.steps, max(every, bins))
        expect(left == 0, "release_every", every, "whole releases in the steps")
        bracket = balls_and_bins.bracket(noise, merged, epochs, delta)
    return _between(bracket)


def _full_batch(setting: Setting, delta: float) -> float:
    sigma, rate, _ = setting.mechanism
    if not setting.changed:
        return float(linear.full_batch_epsilon(*setting.mechanism, delta))
    weights = setting.weights
    shift = rate * setting.group * (2 if setting.swaps else 1)
    mu = shift * float(np.sum(weights)) / (sigma * float(np.linalg.norm(weights)))
    return float(gaussian.epsilon(mu, delta))


WEIGHTS = ALL - {"release_every"}
"""Options with which what is released of linear losses is one weighted sum."""

LINEAR: tuple[Bound, ...] = (
    Bound(
        name=HEURISTIC,
        group="assumed",
        kind="exact",
        assumption="if every loss is linear, under this optimiser; no guarantee for other losses",
        source="Theorem 1 of The Last Iterate Advantage",
        compute=_heuristic,
        honours=ALL,
        uses=ALL,
        losses="linear",
    ),
    Bound(
        name="full-batch heuristic",
        group="assumed",
        kind="estimate",
        assumption="for scale: full batches, same mean step and noise; no bound on your training",
        source="section 3 of The Last Iterate Advantage",
        compute=_full_batch,
        applies=lambda setting: setting.sampled and setting.diameter is None,
        honours=WEIGHTS,
        uses=WEIGHTS,
    ),
)


# --- orders that are drawn ------------------------------------------------------------------------


def _likelihood_ratio(setting: Setting, delta: float) -> Value:
    batches = setting.steps_per_pass
    # A lower bound counts whole epochs alone.
    epochs = setting.steps // batches
    expect(epochs >= 1, "steps", setting.steps, f"a whole pass, {batches}, or more")
    given = (setting.noise_multiplier, batches, epochs, delta)
    swap, zeroed = (
        balls_and_bins.lower_epsilon(
            *given, pair, redrawn=setting.redrawn, sitting_out=setting.sitting_out
        )
        for pair in (batched.SWAPPED, batched.ZEROED)
    )
    remark = f"{shown(zeroed, 'lower', 4)} if a record is zeroed out in place of swapped"
    return Value(swap, remark=remark)


def _sitting_out(setting: Setting, delta: float) -> Value:
    batches = setting.steps_per_pass
    # An upper bound counts a part of an epoch as a whole one.
    given = (setting.noise_multiplier, batches, -(-setting.steps // batches), delta)
    one = shown(sitting_out.added_or_removed(*given), "upper", 4)
    remark = f"{one} if a record is added or removed and the number of batches stays"
    return Value(sitting_out.swapped(*given), remark=remark)


def _as_if_sampled(setting: Setting, delta: float) -> float:
    k = setting.group
    # As in ``_grouped``: k steps of one record with less noise stand for a step of k records.
    noise = setting.noise_multiplier / math.sqrt(k)
    mechanism = (noise, 1 / setting.steps_per_pass, k * setting.steps)
    return composition.fine_bracket(*mechanism, delta, k).upper


SHUFFLED: tuple[Bound, ...] = (
    Bound(
        name=SITTING_OUT,
        group="proven",
        assumption="any loss and data, all iterates released; in each epoch the records that fill "
        "no batch sit out",
        source="ours: docs/accounting.md",
        compute=_sitting_out,
        applies=lambda setting: setting.ordered and setting.sitting_out > 0,
        honours=EVERY,
    ),
    Bound(
        name="lower bound, all iterates",
        group="shown",
        kind="lower",
        assumption="linear losses, all other gradients point the other way, all iterates released",
        source="ours, by the likelihood ratio of an epoch; the largest sum of Chua et al. 2024",
        compute=_likelihood_ratio,
        applies=lambda setting: setting.shuffled,
        honours=EVERY | {"group"},
    ),
    Bound(
        name="if it were Poisson",
        group="assumed",
        kind="estimate",
        assumption="for scale: Poisson sampling at the rate of a batch, a record added or removed; "
        "often reported for shuffled batches, and no bound on them",
        source="Koskela, Jälkö and Honkela 2020; Doroshenko et al. 2022",
        compute=_as_if_sampled,
        applies=lambda setting: setting.shuffled or setting.allocated,
        honours=EVERY | {"group"},
        uses=frozenset({"group"}),
    ),
)


# --- balls and bins -------------------------------------------------------------------------------


def _allocated(setting: Setting, delta: float) -> Value:
    epochs = setting.steps // setting.steps_per_pass
    given = (setting.noise_multiplier, setting.steps_per_pass, epochs, delta)
    return _between(balls_and_bins.bracket(*given))


def _known_batches(setting: Setting, delta: float) -> float:
    epochs = setting.steps // setting.steps_per_pass
    moved = setting.group * (2 if setting.swaps else 1)
    mu = moved * math.sqrt(epochs) / setting.noise_multiplier
    return gaussian.bracket(mu, delta)[1]


ALLOCATED: tuple[Bound, ...] = (
    Bound(
        name=STANDARD,
        group="proven",
        assumption="any loss and data, all iterates released",
        source="the pair of Chua et al. 2025; its bracket is ours",
        compute=_allocated,
        applies=lambda setting: setting.allocated,
        honours=EVERY,
    ),
    Bound(
        name="without amplification by sampling",
        group="proven",
        assumption="any loss and data, all iterates released, the record's batches known",
        source="Dong, Roth and Su 2022",
        compute=_known_batches,
        applies=lambda setting: setting.allocated,
        honours=ALL,
        uses=frozenset(ADJACENCY),
    ),
)

BOUNDS = SAMPLED + ORDERED + ALLOCATED + LINEAR + SHUFFLED
