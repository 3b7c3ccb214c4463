"""Every bound of the package on one setting, each with its assumption in words.

The rows of a setting are a frame with the columns ``group``, ``name``, ``kind`` ("upper", "lower",
"exact" or "estimate"), ``value`` (an epsilon; empty where the bound says nothing, for the reason in
``assumption``), ``truth`` (what a perfect audit would find), ``confidence``, ``runs`` and
``assumption``. Upper bounds are rounded up and lower bounds down.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from hiddenstate.accounting import bounds as upper
from hiddenstate.accounting import (
    composition,
    cyclic,
    cyclic_guarantees,
    gaussian,
    history,
    linear,
    quadratic,
)
from hiddenstate.accounting.cyclic import CyclicDPSGD
from hiddenstate.accounting.sampled import SampledDPSGD
from hiddenstate.adversaries.repeaters import AnalogRepeaters
from hiddenstate.adversaries.swapped_record import tightest_slopes
from hiddenstate.auditing import Tabulated, composed, lower_bound
from hiddenstate.dpsgd import exact
from hiddenstate.dpsgd.linear import projections
from hiddenstate.errors import InputError
from hiddenstate.estimates import select
from hiddenstate.family import Cell
from hiddenstate.papers.atlas.cells import NAME, Bounded, Cyclic, Poisson, Setting
from hiddenstate.papers.encoding_loss import cells as encoding_loss
from hiddenstate.streams import stream

Row = dict[str, Any]

CONFIDENCE = 0.95
PERIODS = (1, 5, 25)
"""Insertion periods k of the gradient-crafting audit, the paper's."""

CURVATURES = np.linspace(0.2, 1, 5)
"""Of the quadratic regulariser; 0 is the linear loss."""

GROWTH = 100.0
"""Of the regulariser that keeps the history, the largest that linear_heuristic shows."""

SHARES = np.concatenate((np.linspace(0.1, 0.8, 8), np.linspace(0.82, 1, 10)))
"""Of the setting's own noise over that of the claims which a simulated audit may refute. Claims
beyond the setting's own are not in question."""

LINES = 101
"""Supporting lines of a linear loss's trade-off curve; more of them change no shown digit."""

DRAWS = 2_000_000
"""Steps of all runs of a world that the encoding loss is simulated for, which takes two seconds."""

MOST = 500.0
"""Epsilons of which e^epsilon, and with it the claims of an audit, are well within a double."""

FEWEST = 100
"""Runs per world below which a simulated audit would say next to nothing."""

DOWN = 1 - 1e-9
"""Exact values are this accurate; lower bounds are rounded down by as much."""


def bound(cell: Cell[Bounded], seed: int) -> pd.DataFrame:
    """Rows of all settings, whose names are in the column ``setting``."""
    p = cell.parameters
    parts = [rows(one, p.delta, p.runs, seed).assign(setting=one.name) for one in p.settings]
    return pd.concat(parts, ignore_index=True)


def rows(setting: Setting, delta: float, runs: int, seed: int) -> pd.DataFrame:
    """Rows of a setting; ``runs`` per world of a simulated audit, or fewer if steps are many."""
    if isinstance(setting, Cyclic):
        found = _cyclic(setting, delta, runs, seed)
    else:
        found = _poisson(setting, delta, runs, seed)
    empty = {"truth": math.nan, "confidence": math.nan, "runs": math.nan}
    with np.errstate(divide="ignore"):  # a delta of 0 has no logarithm
        frame = pd.DataFrame([empty | row for row in found])
    return frame.astype({"value": float, "truth": float, "confidence": float, "runs": float})


def _row(group: str, name: str, kind: str, value: float | None, assumption: str) -> Row:
    return {"group": group, "name": name, "kind": kind, "value": value, "assumption": assumption}


def _upper(answers: Iterable[upper.Found]) -> Iterator[Row]:
    """Rows of the list of upper bounds."""
    groups = {"released": "proven", "hidden": "hidden", "assumed": "assumed"}
    for one in answers:
        yield _row(groups[one.bound.group], one.bound.name, "upper", one.epsilon, one.assumption)


def _unknown() -> Row:
    """What there is in place of counterexamples where iterates are projected."""
    return _row(
        *("counterexample", "linear losses", "lower", None),
        "none: the last iterates that are known exactly are of a domain without end",
    )


# --- sampled batches ------------------------------------------------------------------------------


def _poisson(setting: Poisson, delta: float, runs: int, seed: int) -> Iterator[Row]:
    mechanism = (setting.noise_multiplier, setting.sampling_rate, setting.steps)
    sigma, rate, steps = mechanism
    run = SampledDPSGD(**setting.model_dump())
    proven = list(_upper(upper.found(upper.SAMPLED, run, delta)))
    yield from proven
    standard = float(proven[0]["value"])
    if setting.diameter is not None:
        yield _unknown()
        return
    heuristic = float(linear.last_iterate_epsilon(*mechanism, delta))
    yield _row(
        *("assumed", "linear losses", "exact", heuristic),
        "last iterate, exact if every loss is linear; for other losses a heuristic, no guarantee",
    )
    yield _row(
        *("assumed", "full batch", "estimate", float(linear.full_batch_epsilon(*mechanism, delta))),
        "another mechanism: every record in every step, the same mean step and noise",
    )
    yield from _counterexamples(setting, delta)
    yield _encoding_loss(setting, standard, delta, runs, seed)
    for period in PERIODS:
        inserted = steps // period
        # The shift of so many insertions against the noise of all steps.
        noise = sigma * math.sqrt(steps / inserted) if inserted else math.inf
        words = "in every step" if period == 1 else f"in every {period}th step"
        words += " that samples the canary"
        yield _crafted(setting, (noise, rate, inserted), period, words, delta, runs, seed)


def _counterexamples(setting: Poisson, delta: float) -> Iterator[Row]:
    """Last iterates that are known exactly: lower bounds on the worst loss."""
    mechanism = (setting.noise_multiplier, setting.sampling_rate, setting.steps)
    sigma, rate, steps = mechanism
    leaks = [
        quadratic.last_iterate(*mechanism, c, round_down=True).epsilon(delta) for c in CURVATURES
    ]
    worst = int(np.argmax(leaks))
    yield _row(
        *("counterexample", "quadratic regulariser", "lower", leaks[worst] * DOWN),
        "last iterate of a linear loss and a quadratic regulariser; the worst of "
        f"{len(leaks)} curvatures, {CURVATURES[worst]:.1f}",
    )
    # Both are composition with a little more noise; the larger bounds both.
    noise = max(
        float(history.noise_multipliers(sigma, steps, GROWTH)[-1]),
        float(AnalogRepeaters(*mechanism).noise_multipliers[0]),
    )
    leak = composition.fine_bracket(noise, rate, steps, delta).lower
    yield _row(
        *("counterexample", "history regulariser", "lower", leak),
        "last iterate of a linear loss and a regulariser that moves each step's gradient into a "
        f"coordinate of its own (growth {GROWTH:g}, numbers of any size)",
    )
    yield _row(
        *("counterexample", "malicious data set", "lower", leak),
        "last iterate where the adversary writes all other records; they are in every batch and "
        "amplify each step",
    )


def _encoding_loss(setting: Poisson, most: float, delta: float, runs: int, seed: int) -> Row:
    """Audit of simulated runs of encoding_loss, with its sound encoding, as that family runs it."""
    name, steps = "encoding-loss audit", setting.steps
    runs = min(runs, DRAWS // steps)
    if runs < FEWEST:
        return _row(
            *("simulated", name, "lower", None),
            f"none: {steps:,} steps leave fewer than {FEWEST} runs in two seconds of simulation",
        )
    if most > MOST:
        return _row("simulated", name, "lower", None, f"none: epsilon is beyond {MOST:g}")
    numbers = setting.model_dump(include=set(encoding_loss.Mechanism.model_fields))
    mechanism = encoding_loss.Mechanism(**numbers)
    parameters = encoding_loss.Simulated(
        mechanism=mechanism, records=10**10, runs=runs, repeats=1, encoding="sound"
    )
    cell = Cell(f"{encoding_loss.curve_name(mechanism)}_sound", parameters)
    scores = encoding_loss.simulate(cell, seed)
    inside, outside = (select(scores, world=w)["score"].to_numpy() for w in ("in", "out"))
    claims = composed(setting.noise_multiplier / SHARES, setting.sampling_rate, steps)
    least = lower_bound(inside, outside, claims, confidence=CONFIDENCE).value
    mechanism_of = (least, setting.sampling_rate, steps, delta)
    value = composition.bracket(*mechanism_of).lower if math.isfinite(least) else 0.0
    return _row(
        *("simulated", name, "lower", value),
        "a loss that writes each step's log-likelihood ratio into the last iterate; judged by the "
        "curves of composition",
    ) | {"confidence": CONFIDENCE, "runs": runs}


def _crafted(
    setting: Setting,
    mechanism: tuple[float, float, int],
    period: int,
    words: str,
    delta: float,
    runs: int,
    seed: int,
) -> Row:
    """Audit of a canary gradient in a coordinate that nothing else moves.

    Its last iterate is that of a linear loss with this noise multiplier, rate and number of steps.
    """
    noise, rate, inserted = mechanism
    name = f"gradient-crafting audit, k = {period}"
    if not inserted:
        return _row("simulated", name, "lower", None, "none: too few steps for one insertion")
    noises = noise / SHARES
    epsilons = linear.last_iterate_epsilon(noises, rate, inserted, delta) * DOWN
    if epsilons[-1] > MOST:
        return _row("simulated", name, "lower", None, f"none: epsilon is beyond {MOST:g}")
    curves = [
        linear.tradeoff_curve(float(one), rate, inserted, null="out", lines=LINES) for one in noises
    ]
    inside, outside = (
        projections(
            *(noise, rate, inserted, world == "in", runs),
            stream(seed, NAME, setting.name, f"k{period}", world),
        )
        for world in ("in", "out")
    )
    claims = Tabulated("noise multiplier", noises, curves, direction="upper")
    least = lower_bound(inside, outside, claims, confidence=CONFIDENCE).value
    value = float(epsilons[noises == least].sum())
    return _row(
        *("simulated", name, "lower", value),
        f"a canary gradient in a coordinate that nothing else moves, {words}; judged by the "
        "curves of a linear loss",
    ) | {"truth": float(epsilons[-1]), "confidence": CONFIDENCE, "runs": runs}


# --- batches in a fixed order ---------------------------------------------------------------------


def _cyclic(setting: Cyclic, delta: float, runs: int, seed: int) -> Iterator[Row]:
    run = cyclic_guarantees.schedule(
        **setting.model_dump(exclude={"learning_rate", "diameter"}),
        step_size=setting.learning_rate,
    )
    fixed = upper.FixedOrder(run, setting.diameter)
    yield from _upper(upper.found(upper.CYCLIC, fixed, delta))
    # A record of the first batch is visited most often, one of the last step's batch seen best.
    runs_of = [replace(run, position=p) for p in {1, (run.steps - 1) % run.steps_per_pass + 1}]
    steps, sigma = run.steps, setting.noise_multiplier
    if setting.diameter is not None:
        yield _unknown()
        return

    def leak(curvature: float) -> float:
        slopes = np.full(steps, 1 - curvature)
        return max(_epsilon(exact.scalar_affine(slopes, at), delta) for at in runs_of)

    yield _row(
        *("assumed", "linear losses", "exact", leak(0.0)),
        "last iterate of the record that shows most, exact if every loss is linear",
    )
    leaks = [leak(curvature) for curvature in CURVATURES]
    worst = int(np.argmax(leaks))
    yield _row(
        *("counterexample", "quadratic regulariser", "lower", leaks[worst]),
        "last iterate of a linear loss and a quadratic regulariser; the worst of "
        f"{len(leaks)} curvatures (times the learning rate), {CURVATURES[worst]:.1f}",
    )
    visits = max(at.visits for at in runs_of)
    noise = float(history.noise_multipliers(sigma, steps, GROWTH)[-1])
    yield _row(
        *("counterexample", "history regulariser", "lower", _epsilon(2 * visits / noise**2, delta)),
        "last iterate of a linear loss and a regulariser that moves each step's gradient into a "
        f"coordinate of its own (growth {GROWTH:g}, numbers of any size)",
    )
    yield _tightest(runs_of, delta)
    for period in PERIODS:
        inserted = visits // period
        # A swapped record moves a step by twice the clipping norm.
        noise = sigma / 2 * math.sqrt(steps / inserted) if inserted else math.inf
        words = "in every pass" if period == 1 else f"in every {period}th pass"
        yield _crafted(setting, (noise, 1.0, inserted), period, words, delta, runs, seed)


def _tightest(runs_of: list[CyclicDPSGD], delta: float) -> Row:
    """Affine steps on which the bound by visits is attained."""
    name = "quadratic losses of this curvature"
    try:
        rhos = [exact.scalar_affine(tightest_slopes(at), at) for at in runs_of]
    except InputError as refusal:
        return _row("counterexample", name, "lower", None, f"none: {refusal}")
    return _row(
        *("counterexample", name, "lower", max(_epsilon(rho, delta) for rho in rhos)),
        "last iterate of quadratic losses that are as curved as assumed, the limit of large "
        "batches; clipping never acts",
    )


def _epsilon(rho: float, delta: float) -> float:
    """Epsilon of an exact rho, rounded down."""
    mu = cyclic.gaussian_mu(rho) * DOWN
    return float(gaussian.epsilon(mu, delta)) * DOWN
