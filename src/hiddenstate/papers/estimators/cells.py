"""The grid of estimators, and the work of its cells."""

import math
from functools import cache
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from pydantic import Field

from hiddenstate.accounting import linear
from hiddenstate.auditing import (
    ApproxDP,
    Averaged,
    GaussianDP,
    SequentialAudit,
    Tabulated,
    composed,
)
from hiddenstate.auditing.hypotheses import Hypotheses
from hiddenstate.auditing.methods import every
from hiddenstate.auditing.rules import LowerBoundRule
from hiddenstate.dpsgd import mistakes
from hiddenstate.pipeline.family import (
    Cell,
    Count,
    Delta,
    FamilyGrid,
    Grid,
    NoiseMultiplier,
    SamplingRate,
    Several,
    by_name,
)
from hiddenstate.streams import key, stream

NAME = "estimators"
LEVEL = 0.05
BLOCK = 50
"""Audits that are simulated and bounded at once; a stream of their own each."""

QUANTILES = (0.1, 0.5, 0.9)
"""Of the bounds of a point's audits, which it is summarised by."""

Floats = NDArray[np.float64]


class Setting(NamedTuple):
    """How a mechanism is judged: hypotheses, which of them is true, and a threshold.

    The threshold is one that needs no scores: where the likelihood ratio is 1.
    """

    hypotheses: Hypotheses
    truth: float
    threshold: float


class Gaussian(Grid):
    """A unit Gaussian shifted by mu, judged by mu."""

    mu: float = Field(ge=0, le=10, description="shift, in standard deviations")

    @property
    def setting(self) -> Setting:
        """How it is judged."""
        return Setting(GaussianDP(), self.mu, self.mu / 2)

    def scores(self, rng: np.random.Generator, shape: tuple[int, ...]) -> tuple[Floats, Floats]:
        """In- and out-scores: monotone in the likelihood ratio, so that the truth is attained."""
        return rng.normal(size=shape) + self.mu, rng.normal(size=shape)


class Response(Grid):
    """Randomised response, which tells the truth or the opposite: two scores, all ties."""

    epsilon: float = Field(gt=0, le=10, description="of pure differential privacy")

    @property
    def setting(self) -> Setting:
        """How it is judged."""
        return Setting(ApproxDP(0.0), self.epsilon, 0.5)

    def scores(self, rng: np.random.Generator, shape: tuple[int, ...]) -> tuple[Floats, Floats]:
        """As of ``Gaussian``."""
        lie = 1 / (1 + math.exp(self.epsilon))
        return (rng.random(shape) > lie).astype(float), (rng.random(shape) < lie).astype(float)


class Leak(Grid):
    """A unit Gaussian that is shifted with some probability, judged by epsilon.

    That is one step of DP-SGD that samples the canary with this probability.
    """

    probability: float = Field(gt=0, lt=1, description="probability that the canary shows")
    shift: float = Field(gt=0, le=100, description="shift when it shows, in standard deviations")
    delta: Delta = Field(description="probability at which epsilon is stated")

    @property
    def setting(self) -> Setting:
        """How it is judged, with the exact epsilon."""
        epsilon = linear.last_iterate_epsilon(1 / self.shift, self.probability, 1, self.delta)
        return Setting(ApproxDP(self.delta), float(epsilon), self.shift / 2)

    def scores(self, rng: np.random.Generator, shape: tuple[int, ...]) -> tuple[Floats, Floats]:
        """As of ``Gaussian``."""
        shown = rng.random(shape) < self.probability
        return rng.normal(size=shape) + self.shift * shown, rng.normal(size=shape)


class Composed(Grid):
    """The subsampled Gaussian that releases all iterates, judged by its noise multiplier.

    Its own trade-off curves are computed for either null hypothesis.
    """

    noise_multiplier: NoiseMultiplier = Field(description="noise deviation over the clipping norm")
    sampling_rate: SamplingRate = Field(description="probability that a step samples a record")
    steps: int = Field(ge=1, le=1000, description="steps of DP-SGD")
    null: Literal["out", "in"] = Field(default="out", description="of the curves it is judged by")

    @property
    def setting(self) -> Setting:
        """How it is judged."""
        return Setting(_curves(self), self.noise_multiplier, 0.0)

    def scores(self, rng: np.random.Generator, shape: tuple[int, ...]) -> tuple[Floats, Floats]:
        """As of ``Gaussian``: the log-likelihood ratio of all iterates."""
        sigma, q = self.noise_multiplier, self.sampling_rate
        worlds = []
        for rate in (q, 0.0):
            ratio = np.zeros(shape)
            for _ in range(self.steps):
                shown = rng.normal(size=shape)
                if rate:
                    shown += (rng.random(shape) < rate) / sigma
                ratio += np.log1p(q * np.expm1(shown / sigma - 0.5 / sigma**2))
            worlds.append(ratio)
        return worlds[0], worlds[1]


@cache
def _curves(m: Composed) -> Tabulated:
    """Curves at noise multipliers 4 % apart, and just below the true one: what exceeds it shows."""
    around = np.append(m.noise_multiplier * 1.04 ** np.arange(22, -10, -1), m.noise_multiplier)
    around[-1] *= 0.9995
    return composed(np.sort(around)[::-1], m.sampling_rate, m.steps, null=m.null)


Mechanism = Gaussian | Response | Leak | Composed


class Sequential(Grid):
    """Audits of a claim of Gaussian differential privacy that stop when they refute it."""

    claim: float = Field(gt=0, le=10, description="mu that is claimed")
    truths: Several[Annotated[float, Field(ge=0, le=10)]] = Field(
        min_length=1, description="true mu"
    )
    looks: Several[Count] = Field(min_length=1, description="models per world at each look")
    audits: int = Field(ge=50, le=1_000_000, description="simulated audits of each true mu")


class EstimatorsGrid(FamilyGrid):
    """Mechanisms, numbers of scores and of audits; and models of the zoo."""

    gaussian: Several[Gaussian] = Field(description="Gaussian mechanisms")
    response: Response
    composed: Composed
    leak: Leak
    sequential: Sequential
    scores: Several[Count] = Field(min_length=1, description="scores per world")
    audits: int = Field(
        ge=BLOCK, le=1_000_000, description="simulated audits per mechanism and number of scores"
    )
    models: int = Field(
        ge=200, le=10_000_000, description="models per world in each of the zoo's cells"
    )
    ladder: Several[Count] = Field(min_length=1, description="numbers of models per world")


class Calibrated(Grid):
    """What decides the simulated audits of a cell."""

    mechanism: Mechanism
    scores: tuple[int, ...]
    audits: int


class Detected(Grid):
    """What decides the scores of the zoo: models per world, and each mistake's mechanism."""

    models: int
    mistakes: dict[str, dict[str, float | str]]


def calibrated(grid: EstimatorsGrid) -> list[Cell[Calibrated]]:
    """Calibration: each mechanism, with all numbers of scores."""
    named: list[tuple[str, Mechanism]] = [
        *((f"gaussian_mu{gaussian.mu:g}", gaussian) for gaussian in grid.gaussian),
        ("response", grid.response),
        ("composed", grid.composed),
        ("composed_in", grid.composed.model_copy(update={"null": "in"})),
        ("leak", grid.leak),
    ]
    return [
        Cell(name, Calibrated(mechanism=m, scores=tuple(grid.scores), audits=grid.audits))
        for name, m in by_name(named).items()
    ]


def sequenced(grid: EstimatorsGrid) -> list[Cell[Sequential]]:
    """Sequential audits: one claim, all truths."""
    return [Cell("sequential", grid.sequential)]


def detected(grid: EstimatorsGrid) -> list[Cell[Detected]]:
    """Detection: the whole zoo, which takes a second."""
    zoo = {name: vars(mistake.setup) for name, mistake in mistakes.MISTAKES.items()}
    return [Cell("mistakes", Detected(models=grid.models, mistakes=zoo))]


def detect(cell: Cell[Detected], seed: int) -> pd.DataFrame:
    """Scores of the last iterates of every mistaken mechanism."""
    models = cell.parameters.models
    parts = []
    for mistake in cell.parameters.mistakes:
        for world in ("in", "out"):
            rng = stream(seed, NAME, mistake, world)
            values = mistakes.scores(mistake, canary=world == "in", runs=models, rng=rng)
            columns = {"mistake": mistake, "world": world, "repeat": 0, "run": np.arange(models)}
            parts.append(pd.DataFrame(columns | {"score": values}))
    return pd.concat(parts, ignore_index=True)


def stop(cell: Cell[Sequential], seed: int) -> pd.DataFrame:
    """Models per world that sequential audits use, and those of a fixed number, the last look's.

    Columns: x (true mu), method, claim, audits, refuted (how many refute the claim), models (mean)
    and error (its standard error).
    """
    p = cell.parameters
    claims = GaussianDP()
    rows = []
    for method, looks in (("sequential", p.looks), ("fixed number", p.looks[-1:])):
        test = SequentialAudit(claims, p.claim, looks)
        for truth in p.truths:
            at = test.refuted_at(claims, truth, audits=p.audits, seed=seed)
            models = np.array(looks)[at]
            rows.append(
                {"x": truth, "method": method, "claim": p.claim, "audits": p.audits}
                | {"refuted": int((at >= 0).sum())}
                | {"models": models.mean(), "error": models.std() / math.sqrt(p.audits)}
            )
    return pd.DataFrame(rows)


def calibrate(cell: Cell[Calibrated], seed: int) -> pd.DataFrame:
    """How often each estimator claims too much, and how much it claims, in a cell.

    Columns: x (scores per world), method, valid, parameter, truth, audits, exceeding (audits that
    claim more than the truth), and the bounds' 10, 50 and 90 % quantiles low, value and high.
    """
    parameters = cell.parameters
    hypotheses, truth, _ = parameters.mechanism.setting
    rows = []
    for n in parameters.scores:
        for rule, values, exceeding in _audits(cell, n, seed):
            low, value, high = np.sort(values)
            rows.append(
                {"x": n, "method": rule.name, "valid": rule.valid, "truth": truth}
                | {"parameter": hypotheses.parameter, "audits": parameters.audits}
                | {"exceeding": exceeding, "low": low, "value": value, "high": high}
            )
    return pd.DataFrame(rows)


def _audits(cell: Cell[Calibrated], n: int, seed: int) -> list[tuple[LowerBoundRule, Floats, int]]:
    """Each rule with quantiles of its bounds on n scores per world, and how many claim too much."""
    mechanism, audits = cell.parameters.mechanism, cell.parameters.audits
    hypotheses, truth, threshold = mechanism.setting
    upward = hypotheses.trivial == 0
    default, *others = every(threshold)
    # The default's bounds are in the order of its statistic, so those of a few of its values will
    # do, and a single test says which of them are beyond the truth.
    calibration = Averaged().sized((n, n), hypotheses, LEVEL)
    beyond = int(np.argmax(hypotheses.grid > truth if upward else hypotheses.grid < truth))
    found: list[list[Any]] = []
    for block in range(math.ceil(audits / BLOCK)):
        name = (NAME, cell.name, n, block)
        worlds = mechanism.scores(stream(seed, *name), (BLOCK, n))
        bounds = [rule.bounds(*worlds, hypotheses, LEVEL)[0] for rule in others]
        found.append([calibration.observed(*worlds, key(seed, *name, "coins")), *bounds])
    statistic, *values = (np.concatenate(part)[:audits] for part in zip(*found, strict=True))
    shown = calibration.bounds(_quantiles(statistic))[0]
    exceeding = statistic > calibration.critical(beyond)
    return [(default, shown, int(exceeding.sum()))] + [
        (rule, _quantiles(value), int((value > truth if upward else value < truth).sum()))
        for rule, value in zip(others, values, strict=True)
    ]


def _quantiles(values: Floats) -> Floats:
    return np.quantile(values, QUANTILES, method="inverted_cdf")
