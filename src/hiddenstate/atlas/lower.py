"""Lower bounds on what the last iterate leaks: losses that are known exactly, simulated audits.

Simulated audits, all readings ours: the encoding loss with the sound encoding; a crafted gradient
in a coordinate that nothing else moves, inserted in every k-th step that samples the canary. An
audit finds at most the standard epsilon of its training, because no larger claim is tested.
"""

import math
from functools import cache

import numpy as np

from hiddenstate.accounting import (
    composition,
    cyclic,
    divergence,
    gaussian,
    history,
    linear,
    quadratic,
)
from hiddenstate.accounting.bounds import Bound, Value, linear_epsilon
from hiddenstate.accounting.setting import Setting
from hiddenstate.adversaries import encoding_loss
from hiddenstate.adversaries.repeaters import AnalogRepeaters
from hiddenstate.adversaries.swapped_record import tightest_slopes
from hiddenstate.auditing import Tabulated, composed, lower_bound
from hiddenstate.auditing.methods import REPEATABLE
from hiddenstate.dpsgd import exact
from hiddenstate.dpsgd.linear import projections
from hiddenstate.errors import InputError, expect
from hiddenstate.rounding import nth, short
from hiddenstate.streams import stream

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

MOST_RUNS = 100_000

OTHERS_TOO = frozenset({"release_every"})
"""A lower bound of the last iterate holds where others are released with it."""

FEWEST = 100
"""Runs per world below which a simulated audit would say next to nothing."""

DOWN = 1 - 1e-9
"""Exact values are this accurate; lower bounds are rounded down by as much."""


def setting_name(setting: Setting) -> str:
    """A setting as a part of files' names, and of the names of its random streams."""
    weak = setting.weak_convexity if setting.weak_convexity or not setting.sampled else None
    size = setting.batch_size if setting.sampled else None
    known = (
        *(("b", size), ("m", weak), ("M", setting.smoothness)),
        *(("k", setting.strong_convexity or None), ("H", setting.holder)),
        *(("D", setting.diameter), ("mom", setting.momentum), ("wd", setting.weight_decay)),
        *(("every", setting.release_every), ("mean", setting.average_last)),
        ("ema", setting.ema_decay),
    )
    plain = {"H": 1.0, "mom": 0.0, "wd": 0.0}
    more = "".join(
        f"_{letter}{short(value)}"
        for letter, value in known
        if value is not None and plain.get(letter) != value
    )
    more += "" if setting.schedule == "constant" else f"_{setting.schedule}"
    noise = f"sigma{short(setting.noise_multiplier)}"
    rate = f"_lr{short(setting.learning_rate)}"
    if setting.sampled:
        mechanism = f"q{short(setting.rate)}_T{setting.steps}_{noise}"
        return mechanism + ("" if setting.learning_rate == 1 else rate) + more
    numbers = setting.numbers
    batches = f"n{numbers['records']}_b{numbers['batch_size']}"
    if setting.allocated:
        batches = f"bins{numbers['bins']}"
    return f"{numbers['sampler']}_{batches}_T{setting.steps}_{noise}{rate}{more}"


# --- losses whose last iterate is known exactly ---------------------------------------------------


def _known(setting: Setting) -> bool:
    """True if last iterates are known: in an order that all know, on a domain without end."""
    return (
        setting.diameter is None and (setting.sampled or setting.ordered) and not setting.shuffled
    )


def _worst_positions(setting: Setting) -> list[cyclic.CyclicDPSGD]:
    """A record of the first batch is visited most often, one of the last step's seen best."""
    last = (setting.steps - 1) % setting.steps_per_pass + 1
    return [setting.at(position) for position in {1, last}]


def _epsilon(rho: float, delta: float) -> float:
    return gaussian.bracket(divergence.gaussian_mu(rho) * DOWN, delta)[0]


def _quadratic(setting: Setting, delta: float) -> Value:
    def leak(curvature: float) -> float:
        if setting.sampled:
            pair = quadratic.last_iterate(*setting.mechanism, curvature, round_down=True)
            return pair.epsilon(delta) * DOWN
        slopes = np.full(setting.steps, 1 - curvature)
        return max(
            _epsilon(exact.scalar_affine(slopes, run), delta) for run in _worst_positions(setting)
        )

    leaks = [leak(curvature) for curvature in CURVATURES]
    worst = int(np.argmax(leaks))
    remark = (
        f"the worst of {len(leaks)} curvatures (times the learning rate), {CURVATURES[worst]:.1f}"
    )
    return Value(leaks[worst], remark=remark)


def _forgetting(setting: Setting, delta: float) -> float:
    if setting.sampled:
        noise, rate, _ = setting.mechanism
        return float(linear.last_iterate(noise, rate, 1).epsilon(delta))
    return float(gaussian.epsilon(2 / setting.noise_multiplier, delta))


@cache
def _all_released(noise: float, rate: float, steps: int, delta: float) -> float:
    return composition.fine_bracket(noise, rate, steps, delta).lower


def _history(setting: Setting, delta: float) -> Value:
    steps, sigma = setting.steps, setting.noise_multiplier
    noise = float(history.noise_multipliers(sigma, steps, GROWTH)[-1])
    remark = f"it is not clipped, and its numbers are near {GROWTH:g}^{steps:,}"
    if setting.sampled:
        return Value(_all_released(noise, setting.rate, steps, delta), remark=remark)
    visits = max(run.visits for run in _worst_positions(setting))
    return Value(_epsilon(2 * visits / noise**2, delta), remark=remark)


def _malicious(setting: Setting, delta: float) -> float:
    noise = float(AnalogRepeaters(*setting.mechanism).noise_multipliers[0])
    return _all_released(noise, setting.rate, setting.steps, delta)


def _tightest(setting: Setting, delta: float) -> float:
    """Affine steps on which the bound by visits is attained."""
    rhos = [exact.scalar_affine(tightest_slopes(run), run) for run in _worst_positions(setting)]
    return max(_epsilon(rho, delta) for rho in rhos)


COUNTEREXAMPLES: tuple[Bound, ...] = (
    Bound(
        name="quadratic regulariser",
        group="counterexample",
        kind="lower",
        honours=OTHERS_TOO,
        assumption="last iterate of a linear loss and a quadratic regulariser",
        source="The Last Iterate Advantage, section 4.2",
        compute=_quadratic,
        applies=_known,
    ),
    Bound(
        name="forgetting regulariser",
        group="counterexample",
        kind="exact",
        assumption="last iterate of a linear loss and the quadratic regulariser that forgets every "
        "step except the last",
        source="The Last Iterate Advantage, section 4.2, at curvature 1",
        compute=_forgetting,
        applies=_known,
    ),
    Bound(
        name="history regulariser",
        group="counterexample",
        kind="lower",
        honours=OTHERS_TOO,
        assumption="last iterate of a linear loss and a regulariser that moves each step's "
        "gradient into a coordinate of its own",
        source="The Last Iterate Advantage, section 4",
        compute=_history,
        applies=_known,
    ),
    Bound(
        name="malicious data set",
        group="counterexample",
        kind="lower",
        honours=OTHERS_TOO,
        assumption="last iterate where the adversary writes all other records, which amplify each "
        "step, are in every batch and are clipped as any other",
        source="ours, after The Last Iterate Advantage, section 4",
        compute=_malicious,
        applies=lambda setting: setting.sampled and _known(setting),
    ),
    Bound(
        name="quadratic losses of this curvature",
        group="counterexample",
        kind="lower",
        honours=OTHERS_TOO,
        losses="curved",
        assumption="last iterate of quadratic losses that are as curved as assumed, the limit of "
        "large batches; clipping never acts",
        source="ours: docs/cyclic-bounds.md, section 4",
        compute=_tightest,
        applies=lambda setting: (
            setting.ordered
            and _known(setting)
            and setting.smoothness is not None
            and setting.holder == 1
            and setting.strong_convexity == 0
        ),
    ),
)


# --- simulated audits -----------------------------------------------------------------------------


def _encoding(setting: Setting, delta: float, runs: int, seed: int) -> Value:
    """Audit of simulated runs of encoding_loss, with its sound encoding, as that family runs it."""
    sigma, rate, steps = setting.mechanism
    runs = min(runs, DRAWS // steps)
    if runs < FEWEST:
        most = DRAWS // FEWEST
        raise InputError(f"steps: got {steps:,}; expected at most {most:,} to be simulated in time")
    if _all_released(sigma, rate, steps, delta) > MOST:
        raise InputError(f"epsilon is beyond {MOST:g}")
    loss = encoding_loss.sound(sigma, rate)
    name = ("encoding_loss", f"q{rate:g}_T{steps}_sigma{sigma:g}_sound")
    inside, outside = (
        loss.simulated(runs, steps, present=world == "in", seed=seed, name=(*name, world, 0))[0]
        for world in ("in", "out")
    )
    claims = composed(sigma / SHARES, rate, steps)
    least = lower_bound(inside, outside, claims, REPEATABLE, confidence=CONFIDENCE).value
    value = composition.bracket(least, rate, steps, delta).lower if math.isfinite(least) else 0.0
    return Value(value, confidence=CONFIDENCE, runs=runs)


def _crafted(setting: Setting, delta: float, period: int, runs: int, seed: int) -> Value:
    """Audit of a canary gradient in a coordinate that nothing else moves.

    Its last iterate is that of a linear loss with as much noise, and the shift of the insertions.
    """
    steps = setting.steps
    visits = steps if setting.sampled else -(-steps // setting.steps_per_pass)
    inserted = visits // period
    if not inserted:
        fewest = period if setting.sampled else (period - 1) * setting.steps_per_pass + 1
        raise InputError(f"steps: got {steps:,}; expected at least {fewest:,} for one insertion")
    truth = linear_epsilon(setting, delta, inserted) * DOWN
    if truth > MOST:
        raise InputError(f"epsilon is beyond {MOST:g}")
    rate = setting.rate if setting.sampled else 1.0
    # A swapped record moves a step by twice the clipping norm.
    sigma = setting.noise_multiplier / (2 if setting.swaps else 1)
    noise = sigma * math.sqrt(steps / inserted)
    noises = noise / SHARES
    epsilons = linear.last_iterate_epsilon(noises, rate, inserted, delta) * DOWN
    curves = [
        linear.tradeoff_curve(float(one), rate, inserted, null="out", lines=LINES) for one in noises
    ]
    inside, outside = (
        projections(
            *(noise, rate, inserted, world == "in", runs),
            stream(seed, "atlas", setting_name(setting), f"k{period}", world),
        )
        for world in ("in", "out")
    )
    claims = Tabulated("noise multiplier", noises, curves, direction="upper")
    least = lower_bound(inside, outside, claims, REPEATABLE, confidence=CONFIDENCE).value
    value = float(epsilons[noises == least].sum())
    every = f"every {nth(period)}"
    where = f"{every}step that samples it" if setting.sampled else f"{every}pass"
    remark = f"canary inserted in {where}"
    return Value(value, remark=remark, truth=truth, confidence=CONFIDENCE, runs=runs)


def _audit(period: int, runs: int, seed: int) -> Bound:
    return Bound(
        name=f"gradient-crafting audit, k = {period}",
        group="simulated",
        kind="lower",
        honours=OTHERS_TOO,
        assumption="a canary gradient in a coordinate that nothing else moves, judged by the "
        "curves of a linear loss",
        source="Tighter Privacy Auditing of DP-SGD in the Hidden State Threat Model",
        compute=lambda setting, delta: _crafted(setting, delta, period, runs, seed),
        applies=lambda setting: setting.diameter is None,
    )


def audits(runs: int, seed: int) -> tuple[Bound, ...]:
    """Simulated audits with so many runs per world, or fewer where steps are many."""
    expect(FEWEST <= runs <= MOST_RUNS, "runs", runs, f"{FEWEST} to {MOST_RUNS:,}")
    expect(seed >= 0, "seed", seed, "a whole number from 0")
    encoding = Bound(
        name="encoding-loss audit",
        group="simulated",
        kind="lower",
        honours=OTHERS_TOO,
        assumption="a loss that writes each step's log-likelihood ratio into the last iterate; "
        "judged by the curves of composition",
        source="It's Our Loss, Algorithm 1, with our encoding",
        compute=lambda setting, delta: _encoding(setting, delta, runs, seed),
        applies=lambda setting: setting.sampled and setting.diameter is None,
    )
    return (encoding, *(_audit(period, runs, seed) for period in PERIODS))
