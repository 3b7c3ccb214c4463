"""Many canaries in one model, and what its last iterate shows of their coins.

A canary is the gradient C e_d in every step of its own coordinate d, there or not by its own fair
coin. Scores are in units of the deviation that the noise of all steps gives a coordinate.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from hiddenstate.accounting import gaussian
from hiddenstate.auditing import (
    GaussianDP,
    Guesses,
    flip_bound,
    guess,
    one_run_bound,
    planned_flips,
    planned_guesses,
    whole_gaussian_bound,
)
from hiddenstate.auditing.methods import CONFIDENCE
from hiddenstate.dpsgd.known import Floats
from hiddenstate.dpsgd.mechanism import Mechanism
from hiddenstate.papers.gradient_crafting.cells import NAME, OneRunAudits, OneRunTrainings
from hiddenstate.papers.gradient_crafting.summaries import (
    ALL,
    ALONE,
    FIFTH,
    FLIPPED,
    KNOWN,
    NOISE_ALONE,
    PLANNED,
    WHOLE,
)
from hiddenstate.pipeline.cells import Cell
from hiddenstate.streams import stream

COLUMNS = ["canaries", "audit", "hypothesis", "rule", "made", "correct", "mu"]


class Model(ABC):
    """One model with its start and batches, which the adversary knows, before it is trained.

    name: of its random streams, the root seed first.
    """

    def __init__(self, name: tuple[int | str, ...], mechanism: Mechanism):
        self.name = name
        self.mechanism = mechanism

    @abstractmethod
    def end(self, added: NDArray[np.float32] | None) -> Floats:
        """Last iterate (p,) where this (steps, p) is added to the sums; None adds nothing."""

    @cached_property
    @abstractmethod
    def movement(self) -> Floats:
        """Total movement of each parameter in a training without noise and canaries; (p,)."""

    @cached_property
    def order(self) -> NDArray[np.int64]:
        return np.argsort(self.movement, kind="stable")

    @cached_property
    def expected(self) -> Floats:
        return self.end(None)

    def drawn(self, *purpose: int | str) -> np.random.Generator:
        seed, *path = self.name
        return stream(int(seed), *path, *purpose)

    def scores(
        self, coins: NDArray[np.bool_], *purpose: int | str
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Scores (m,) in the m least moved coordinates, and the part of them that is noise.

        A score is how far a coordinate moved against the canary beyond where it is expected.
        """
        mechanism, chosen = self.mechanism, self.order[: len(coins)]
        shape = (mechanism.steps, len(self.order))
        added = self.drawn(*purpose, "noise").standard_normal(shape, dtype=np.float32)
        # Before the draws are scaled in place: the noise in units of its own deviation.
        noise = added[:, chosen].sum(axis=0, dtype=float) / mechanism.steps**0.5
        added *= np.float32(mechanism.noise_std)
        added[:, chosen] += np.float32(mechanism.clipping_norm) * coins
        unit = mechanism.learning_rate * mechanism.noise_std * mechanism.steps**0.5
        return (self.expected - self.end(added))[chosen].astype(float) / unit, noise


@dataclass(frozen=True)
class Plan:
    """Choices fixed before the training, from the mu that is claimed for a canary."""

    mu: float
    canaries: int
    guesses: dict[str, int]
    flips: int

    def bounds(
        self, scores: NDArray[np.float64], coins: NDArray[np.bool_], **null: Any
    ) -> Iterator[tuple[str, str, int, int, float]]:
        """Hypothesis, rule, guesses made and right, and lower bound on mu, of one model's scores.

        null: ``null_scores`` and ``null_noise`` of a model in which more than noise moves scores.
        """
        for rule, count in self.guesses.items():
            guesses = guess(scores, coins, count, coins="against")
            yield ALONE, rule, count, guesses.correct, _alone(self.canaries, count, guesses.correct)
        right = int(((scores > self.mu / 2) == coins).sum())
        flipped = flip_bound(
            Guesses(self.canaries, self.canaries, right), self.flips, confidence=CONFIDENCE
        )
        yield WHOLE, FLIPPED, self.canaries, right, flipped.value
        laws = {KNOWN: null} | ({NOISE_ALONE: {}} if null else {})
        for rule, law in laws.items():
            bound = whole_gaussian_bound(scores, coins, deviation=1.0, confidence=CONFIDENCE, **law)
            yield WHOLE, rule, 0, 0, bound.value


@cache
def planned(mu: float, canaries: int) -> Plan:
    """Numbers of guesses and of coins turned over for so many canaries."""
    guesses = {ALL: canaries, FIFTH: max(2, round(canaries / 5))}
    guesses[PLANNED] = planned_guesses(mu, canaries, confidence=CONFIDENCE)
    return Plan(mu, canaries, guesses, planned_flips(mu, canaries, confidence=CONFIDENCE))


@cache
def _alone(canaries: int, made: int, correct: int) -> float:
    """Lower bound on mu of each canary, the same for all audits with so many right guesses."""
    guesses = Guesses(canaries, made, correct)
    return one_run_bound(guesses, GaussianDP(limit=10.0), confidence=CONFIDENCE).value


def idle(cell: Cell[OneRunAudits], seed: int) -> pd.DataFrame:
    """Bounds from simulated models of unused coordinates, whose scores are normal, exactly.

    Columns: canaries, audit, hypothesis, rule, made, correct, mu.
    """
    p = cell.parameters
    mu = gaussian.mu(p.epsilon, p.delta)
    plan = planned(mu, p.canaries)
    rows: list[tuple[Any, ...]] = []
    for index in range(p.audits):
        coins = stream(seed, NAME, cell.name, index, "coins").random(p.canaries) < 0.5
        noise = stream(seed, NAME, cell.name, index, "noise").standard_normal(p.canaries)
        rows += [(p.canaries, index, *row) for row in plan.bounds(mu * coins + noise, coins)]
    return pd.DataFrame(rows, columns=COLUMNS)


def trained(
    name: str, p: OneRunTrainings, seed: int, model_of: Callable[[tuple[int | str, ...]], Model]
) -> pd.DataFrame:
    """Bounds from trained models, one for each audit and number of canaries; columns as of idle.

    Null law: trainings of the same model without canaries, from its own start and batches, so that
    given these the scores' sum is normal except for the rest that noise moves through the others.
    """
    mu = gaussian.mu(p.epsilon, p.delta)
    rows: list[tuple[Any, ...]] = []
    for index in range(p.audits):
        model = model_of((seed, NAME, name, index))
        nothing = np.zeros(max(p.canaries), bool)
        pairs = [model.scores(nothing, "null", draw) for draw in range(p.null_draws)]
        null, noise = (np.stack(part) for part in zip(*pairs, strict=True))
        for m in p.canaries:
            coins = model.drawn(m, "coins").random(m) < 0.5
            scores, _ = model.scores(coins, m)
            law = {"null_scores": null[:, :m], "null_noise": noise[:, :m]}
            rows += [(m, index, *row) for row in planned(mu, m).bounds(scores, coins, **law)]
    return pd.DataFrame(rows, columns=COLUMNS)
