"""Known bugs of DP-SGD, planted in a small exact mechanism.

The mechanism is DP-SGD with a linear loss in two dimensions, so that the last iterate of many
models is simulated exactly in one pass. Every record's gradient is constant. The canary's points
along (1, 1) with a norm far above the clipping norm; the ordinary records' have the clipping norm
and point the other way (``ordinary="opposed"``) or at right angles ("orthogonal"). The update is
theta <- theta - sum of clipped gradients - noise, and the score is minus theta along (1, 1): the
log-likelihood ratio of the correct mechanism at full batch, up to scale. Without subsampling the
correct mechanism is exactly Gaussian DP with mu = sqrt(steps) / noise multiplier, and this canary
attains it: any bug that leaks more is visible in principle.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from hiddenstate.streams import stream

CANARY = 100.0
"""Norm of the canary's gradient, in clipping norms."""


@dataclass(frozen=True)
class Setup:
    """Settings given to the mechanism, and settings given to its accountant.

    noise_multiplier: noise standard deviation over the clipping norm. records: ordinary records.
    sampling_rate: of the Poisson sampling; 1 is full batch.
    """

    noise_multiplier: float
    steps: int
    records: int = 8
    sampling_rate: float = 1.0
    clipping_norm: float = 2.0
    ordinary: Literal["opposed", "orthogonal"] = "opposed"


@dataclass(frozen=True)
class Bug:
    """A way to get DP-SGD wrong.

    leak: mu of the last iterate as run over mu as claimed, with this canary, where it has a closed
    form. None where it has not: the last iterate is then not Gaussian, or Gaussian of a different
    variance in either world. remark: why this canary hardly sees it, where it does not.
    """

    title: str
    setup: Setup
    leak: float | None = None
    remark: str = ""


FULL = Setup(noise_multiplier=4.0, steps=16)
"""Claim: 1-Gaussian-DP."""

POISSON = Setup(noise_multiplier=1.0, steps=16, sampling_rate=0.1, ordinary="orthogonal")

BUGS: dict[str, Bug] = {
    "none": Bug("none (control)", FULL, 1.0),
    "mean_noise": Bug("noise scaled for the mean, added to the sum", FULL, 8.0),
    "variance_as_deviation": Bug(
        "noise multiplier taken for a variance", FULL, float(np.sqrt(4.0))
    ),
    "no_clipping_norm": Bug("noise not multiplied by the clipping norm", FULL, 2.0),
    "worker_noise": Bug("noise of 4 workers divided by 4, not by 2", FULL, 2.0),
    "last_step_silent": Bug(
        "last step released before its noise",
        FULL,
        float(np.sqrt(16 / 15)),
        "leaks 3 % more than claimed; even a two-sample z-test needs about 16,000 models",
    ),
    # The batch's sum points along the canary with it and the other way without: C and -C.
    "batch_clipping": Bug("the batch's gradient clipped, not each record's", FULL, 2.0),
    # With the canary nine clipped means point along it, without it eight point the other way.
    "mean_clipping": Bug("clipped after averaging", FULL, 17.0),
    "missed_layer": Bug(
        "one layer left out of the clipping", FULL, float(np.sqrt(1 + CANARY**2 / 2))
    ),
    "layer_norms": Bug("two layers clipped to the full norm each", FULL, float(np.sqrt(2.0))),
    "realised_size": Bug("divided by the realised data-set size", FULL, None),
    "half_steps": Bug("accountant told half the steps", FULL, float(np.sqrt(2.0))),
    "constant_seed": Bug("generator seeded alike in every run", FULL, float("inf")),
    "same_noise": Bug(
        "the same noise reused in every step",
        FULL,
        float(np.sqrt(1 / 16)),
        "the last iterate leaks less than claimed; the noise cancels between its steps",
    ),
    "uniform_noise": Bug(
        "uniform noise of the right variance",
        FULL,
        None,
        "the sum over 16 steps is nearly Gaussian; a single step would show its bounded support",
    ),
    "sampling_rate": Bug("accountant told a quarter of the sampling rate", POISSON, None),
    "fixed_batches": Bug(
        "shuffled batches accounted as Poisson samples",
        POISSON,
        None,
        "the canary takes part once or twice, and the last iterate does not show when",
    ),
    "realised_batch": Bug(
        "divided by the realised batch size",
        POISSON,
        None,
        "the division shrinks the canary's own step, and the claim covers all iterates",
    ),
}


def scores(bug: str, *, canary: bool, runs: int, rng: np.random.Generator) -> NDArray[np.float64]:
    """Scores of independent last iterates of the mechanism with this bug, shape (runs,)."""
    setup = BUGS[bug].setup
    theta = np.zeros((runs, 2))
    plan = _participation(bug, setup, canary, runs, rng)
    for step in range(setup.steps):
        theta -= _step(bug, setup, step, plan, rng)
    return -theta @ (np.ones(2) / np.sqrt(2))


@dataclass
class _Plan:
    """Who takes part in each step, and what is remembered between steps."""

    canary: NDArray[np.float64]
    ordinary: NDArray[np.float64]
    remembered: NDArray[np.float64] | None = None


def _participation(
    bug: str, setup: Setup, canary: bool, runs: int, rng: np.random.Generator
) -> _Plan:
    """Counts of canary and ordinary records in each step and run, shapes (steps, runs)."""
    shape = (setup.steps, runs)
    if bug == "fixed_batches":
        # Each record once in every epoch of 1 / sampling rate steps, at a random step of it.
        epoch = round(1 / setup.sampling_rate)
        step = np.arange(setup.steps)
        drawn = rng.integers(0, epoch, size=(setup.steps // epoch + 1, setup.records + 1, runs))
        present = drawn[step // epoch] == (step % epoch)[:, None, None]
        return _Plan(present[:, -1] * float(canary), present[:, :-1].sum(axis=1) * 1.0)
    rate = setup.sampling_rate * (4 if bug == "sampling_rate" else 1)
    sampled = rng.random(shape) < rate
    ordinary = rng.binomial(setup.records, rate, shape)
    return _Plan((sampled & canary).astype(np.float64), ordinary.astype(np.float64))


def _step(
    bug: str, setup: Setup, step: int, plan: _Plan, rng: np.random.Generator
) -> NDArray[np.float64]:
    """Change that one step subtracts from theta, shape (runs, 2)."""
    clip, size = setup.clipping_norm, plan.canary[step] + plan.ordinary[step]
    along = np.ones(2) / np.sqrt(2)
    across = np.array([1.0, -1.0]) / np.sqrt(2)
    canary = CANARY * clip * along
    ordinary = clip * (-along if setup.ordinary == "opposed" else across)

    def total(clipped_canary: NDArray, clipped_ordinary: NDArray) -> NDArray:
        return (
            plan.canary[step][:, None] * clipped_canary
            + plan.ordinary[step][:, None] * clipped_ordinary
        )

    if bug == "batch_clipping":
        gradient = _clip(total(canary, ordinary), clip)
    elif bug == "mean_clipping":
        gradient = size[:, None] * _clip(total(canary, ordinary) / size[:, None], clip)
    elif bug == "missed_layer":
        bare = np.array([_clip(canary[:1], clip)[0], canary[1]])
        gradient = total(bare, ordinary)
    elif bug == "layer_norms":
        gradient = total(np.sign(canary) * np.minimum(np.abs(canary), clip), ordinary)
    else:
        gradient = total(_clip(canary, clip), ordinary)
    noisy = gradient + _noise(bug, setup, step, plan, rng)
    if bug in ("realised_size", "realised_batch"):
        # In units of the mean the correct mechanism divides by the expected size of world "out".
        noisy *= (setup.records * setup.sampling_rate / np.maximum(size, 1))[:, None]
    return noisy


def _noise(
    bug: str, setup: Setup, step: int, plan: _Plan, rng: np.random.Generator
) -> NDArray[np.float64]:
    """Noise of one step, shape (runs, 2); correct: N(0, (noise multiplier x clipping norm)^2)."""
    deviation = setup.noise_multiplier * setup.clipping_norm
    shape = (plan.canary.shape[1], 2)
    if bug == "mean_noise":
        deviation /= setup.records
    elif bug == "variance_as_deviation":
        deviation = np.sqrt(setup.noise_multiplier) * setup.clipping_norm
    elif bug == "no_clipping_norm":
        deviation = setup.noise_multiplier
    elif bug == "half_steps":
        # The accountant calibrates the noise for half the steps.
        deviation /= np.sqrt(2)
    if bug == "worker_noise":
        return rng.normal(scale=deviation / 4, size=(4, *shape)).sum(axis=0)
    if bug == "last_step_silent" and step == setup.steps - 1:
        return np.zeros(shape)
    if bug == "constant_seed":
        return np.broadcast_to(stream(0, "constant", step).normal(scale=deviation, size=2), shape)
    if bug == "same_noise":
        if plan.remembered is None:
            plan.remembered = rng.normal(scale=deviation, size=shape)
        return plan.remembered
    if bug == "uniform_noise":
        # Uniform numbers between -a and a have the deviation a / sqrt(3).
        return rng.uniform(-1, 1, size=shape) * deviation * np.sqrt(3)
    return rng.normal(scale=deviation, size=shape)


def _clip(gradient: NDArray, norm: float) -> NDArray[np.float64]:
    """Gradients scaled down to at most ``norm``, along the last axis."""
    return gradient / np.maximum(np.linalg.norm(gradient, axis=-1, keepdims=True) / norm, 1)
