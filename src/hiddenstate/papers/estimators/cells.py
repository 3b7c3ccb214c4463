"""The grid of estimators, and the work of its cells."""

import math
from functools import cache
from typing import Annotated, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import AfterValidator, Field

from hiddenstate.accounting import linear
from hiddenstate.auditing import ApproxDP, GaussianDP, Tabulated, composed
from hiddenstate.auditing.hypotheses import Hypotheses
from hiddenstate.papers.estimators import bugs
from hiddenstate.pipeline.cells import (
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

NAME = "estimators"
LEVEL = 0.05
BLOCK = 50
"""Audits that are simulated and bounded at once; a stream of their own each."""


Floats = NDArray[np.float64]


class Setting(NamedTuple):
    """Setting that judges a mechanism: hypotheses, the true one, and a threshold.

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
        return Setting(GaussianDP(), self.mu, self.mu / 2)

    def scores(self, rng: np.random.Generator, shape: tuple[int, ...]) -> tuple[Floats, Floats]:
        """Scores with and without the canary, monotone in the likelihood ratio."""
        return rng.normal(size=shape) + self.mu, rng.normal(size=shape)


class Response(Grid):
    """Randomised response, which tells the truth or the opposite: two scores, all ties."""

    epsilon: float = Field(gt=0, le=10, description="of pure differential privacy")

    @property
    def setting(self) -> Setting:
        return Setting(ApproxDP(0.0), self.epsilon, 0.5)

    def scores(self, rng: np.random.Generator, shape: tuple[int, ...]) -> tuple[Floats, Floats]:
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
        epsilon = linear.last_iterate_epsilon(1 / self.shift, self.probability, 1, self.delta)
        return Setting(ApproxDP(self.delta), float(epsilon), self.shift / 2)

    def scores(self, rng: np.random.Generator, shape: tuple[int, ...]) -> tuple[Floats, Floats]:
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
        return Setting(_curves(self), self.noise_multiplier, 0.0)

    def scores(self, rng: np.random.Generator, shape: tuple[int, ...]) -> tuple[Floats, Floats]:
        """Log-likelihood ratio of all iterates, in the form of ``Gaussian.scores``."""
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


def _ascending(looks: list[int]) -> list[int]:
    if looks != sorted(looks):
        raise ValueError("expected them in ascending order")
    return looks


class Sequential(Grid):
    """Audits of a claim of Gaussian differential privacy that stop when they refute it."""

    claim: float = Field(gt=0, le=10, description="mu that is claimed")
    truths: Several[Annotated[float, Field(ge=0, le=10)]] = Field(
        min_length=1, description="true mu"
    )
    looks: Annotated[Several[Annotated[Count, Field(ge=2)]], AfterValidator(_ascending)] = Field(
        min_length=1, description="models per data set at each look, ascending"
    )
    audits: int = Field(ge=50, le=1_000_000, description="simulated audits of each true mu")


class EstimatorsGrid(FamilyGrid):
    """Mechanisms, numbers of scores and of audits; and models of the zoo."""

    gaussian: Several[Gaussian] = Field(description="Gaussian mechanisms")
    response: Response
    composed: Composed
    leak: Leak
    sequential: Sequential
    scores: Several[Annotated[Count, Field(ge=4)]] = Field(
        min_length=1, description="scores per data set"
    )
    audits: int = Field(
        ge=BLOCK, le=1_000_000, description="simulated audits per mechanism and number of scores"
    )
    models: int = Field(
        ge=200, le=10_000_000, description="models per data set in each of the zoo's cells"
    )
    ladder: Several[Count] = Field(min_length=1, description="numbers of models per data set")


class Calibrated(Grid):
    """Parameters that decide the simulated audits of a cell."""

    mechanism: Mechanism
    scores: tuple[int, ...]
    audits: int


class Detected(Grid):
    """Parameters of the scores of faulty mechanisms: number of models, and each bug's mechanism."""

    models: int
    bugs: dict[str, dict[str, float | str]]


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
    zoo = {name: vars(bug.setup) for name, bug in bugs.BUGS.items()}
    return [Cell("bugs", Detected(models=grid.models, bugs=zoo))]
