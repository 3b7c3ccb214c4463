"""The grid of estimators, and the work of its cells."""

import math
from collections.abc import Iterator
from functools import cache

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from pydantic import Field

from hiddenstate.accounting import linear
from hiddenstate.auditing import (
    ApproxDP,
    AsPublished,
    Averaged,
    Bonferroni,
    Fixed,
    GaussianDP,
    Split,
    Tabulated,
    UniformBand,
    composed,
)
from hiddenstate.auditing.hypotheses import Hypotheses as Curves
from hiddenstate.auditing.rules import Rule
from hiddenstate.dpsgd import mistakes
from hiddenstate.family import (
    Cell,
    Count,
    Delta,
    FamilyGrid,
    Grid,
    NoiseMultiplier,
    SamplingRate,
    Several,
)
from hiddenstate.streams import stream

NAME = "estimators"
LEVEL = 0.05
BLOCK = 50
"""Audits that are simulated and bounded at once; a stream of their own each."""

STEP = 0.01
"""Spacing of mu and epsilon in the bounds of this study."""

Floats = NDArray[np.float64]


class Gaussian(Grid):
    """A unit Gaussian shifted by mu, judged by mu."""

    mu: float = Field(ge=0, le=10, description="shift, in standard deviations")

    @property
    def curves(self) -> Curves:
        """Trade-off curves that an audit chooses from."""
        return GaussianDP(limit=10, step=STEP)

    @property
    def truth(self) -> float:
        """The parameter of the mechanism's own curve."""
        return self.mu

    @property
    def threshold(self) -> float:
        """A threshold that needs no scores: where the likelihood ratio is 1."""
        return self.mu / 2

    def scores(self, rng: np.random.Generator, shape: tuple[int, ...]) -> tuple[Floats, Floats]:
        """In- and out-scores: monotone in the likelihood ratio, so that the truth is attained."""
        return rng.normal(size=shape) + self.mu, rng.normal(size=shape)


class Leak(Grid):
    """A unit Gaussian that is shifted with some probability, judged by epsilon.

    That is one step of DP-SGD that samples the canary with this probability.
    """

    probability: float = Field(gt=0, lt=1, description="probability that the canary shows")
    shift: float = Field(gt=0, le=100, description="shift when it shows, in standard deviations")
    delta: Delta = Field(description="probability at which epsilon is stated")

    @property
    def curves(self) -> Curves:
        """As of ``Gaussian``."""
        return ApproxDP(self.delta, limit=12, step=STEP)

    @property
    def truth(self) -> float:
        """As of ``Gaussian``: the exact epsilon."""
        return float(linear.last_iterate_epsilon(1 / self.shift, self.probability, 1, self.delta))

    @property
    def threshold(self) -> float:
        """As of ``Gaussian``."""
        return self.shift / 2

    def scores(self, rng: np.random.Generator, shape: tuple[int, ...]) -> tuple[Floats, Floats]:
        """As of ``Gaussian``."""
        shown = rng.random(shape) < self.probability
        return rng.normal(size=shape) + self.shift * shown, rng.normal(size=shape)


class Composed(Grid):
    """The subsampled Gaussian that releases all iterates, judged by its noise multiplier."""

    noise_multiplier: NoiseMultiplier = Field(description="noise deviation over the clipping norm")
    sampling_rate: SamplingRate = Field(description="probability that a step samples a record")
    steps: int = Field(ge=1, le=1000, description="steps of DP-SGD")

    @property
    def curves(self) -> Tabulated:
        """As of ``Gaussian``: its own curves at noise multipliers 2 % apart."""
        return _curves(self)

    @property
    def truth(self) -> float:
        """As of ``Gaussian``."""
        return self.noise_multiplier

    @property
    def threshold(self) -> float:
        """As of ``Gaussian``."""
        return 0.0

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
def _curves(mechanism: Composed) -> Tabulated:
    around = mechanism.noise_multiplier * 1.02 ** np.arange(45, -19, -1)
    return composed(around, mechanism.sampling_rate, mechanism.steps)


class EstimatorsGrid(FamilyGrid):
    """Mechanisms, numbers of scores and of audits; and models of the zoo."""

    gaussian: Several[Gaussian] = Field(description="Gaussian mechanisms")
    composed: Composed
    leak: Leak
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

    mechanism: Gaussian | Leak | Composed
    scores: tuple[int, ...]
    audits: int


class Detected(Grid):
    """What decides the scores of the zoo: models per world, and each mistake's mechanism."""

    models: int
    mistakes: dict[str, dict[str, float | str]]


def calibrated(grid: EstimatorsGrid) -> list[Cell[Calibrated]]:
    """Calibration: each mechanism, with all numbers of scores."""
    mechanisms: dict[str, Gaussian | Leak | Composed] = {
        **{f"gaussian_mu{gaussian.mu:g}": gaussian for gaussian in grid.gaussian},
        "composed": grid.composed,
        "leak": grid.leak,
    }
    return [
        Cell(name, Calibrated(mechanism=m, scores=tuple(grid.scores), audits=grid.audits))
        for name, m in mechanisms.items()
    ]


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


def calibrate(cell: Cell[Calibrated], seed: int) -> pd.DataFrame:
    """Bounds of every estimator on every simulated audit of a cell.

    Columns: scores (per world), method, valid, parameter, truth, value, exceeds (value claims more
    than the truth), tightness (value over truth, inverted for a noise multiplier).
    """
    m = cell.parameters.mechanism
    truth, curves = m.truth, m.curves
    upward = curves.trivial == 0
    parts = []
    for n in cell.parameters.scores:
        for rule, value in _audits(cell, n, seed):
            with np.errstate(divide="ignore", invalid="ignore"):
                tightness = value / truth if upward else truth / value
            columns = {
                "scores": n,
                "method": rule.name,
                "valid": rule.valid,
                "parameter": curves.parameter,
                "truth": truth,
                "value": value,
                "exceeds": value > truth if upward else value < truth,
                "tightness": tightness,
            }
            parts.append(pd.DataFrame(columns))
    return pd.concat(parts, ignore_index=True)


def _audits(cell: Cell[Calibrated], n: int, seed: int) -> Iterator[tuple[Rule, Floats]]:
    """Each rule with its bounds on all simulated audits of n scores per world."""
    m, audits = cell.parameters.mechanism, cell.parameters.audits
    rules = _rules(m.threshold)
    values: list[list[Floats]] = [[] for _ in rules]
    for block in range(math.ceil(audits / BLOCK)):
        rng = stream(seed, NAME, cell.name, n, block)
        in_scores, out_scores = m.scores(rng, (BLOCK, n))
        for rule, found in zip(rules, values, strict=True):
            found.append(rule.bounds(in_scores, out_scores, m.curves, LEVEL)[0])
    for rule, found in zip(rules, values, strict=True):
        yield rule, np.concatenate(found)[:audits]


def _rules(threshold: float) -> list[Rule]:
    return [
        Averaged(),
        Fixed(threshold),
        Split(),
        UniformBand(),
        UniformBand("dkw"),
        Bonferroni(),
        AsPublished(),
        Fixed(threshold, "jeffreys"),
        Fixed(threshold, "joint-beta"),
    ]
