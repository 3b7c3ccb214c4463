"""What moves a coordinate beside noise and canary: trainings without either.

A coordinate's score is spread by its noise, and by the movement that start and batches give it. So
audits show ``mu / sqrt(k) / sqrt(1 + drift variance / noise variance)`` on average, at every epsilon.
It is no lower bound: no model of it has noise.
"""

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from hiddenstate import models
from hiddenstate.adversaries.crafted_gradients import Insertions
from hiddenstate.adversaries.initialisation import average_case
from hiddenstate.datasets import data
from hiddenstate.dpsgd.clipping import ClippedSum
from hiddenstate.dpsgd.kernels.tiny import Trainer
from hiddenstate.dpsgd.known import Floats, Movement
from hiddenstate.dpsgd.run import simulated
from hiddenstate.papers.gradient_crafting import training
from hiddenstate.papers.gradient_crafting.adversaries import CRAFTED, ONE_RANDOM, RANDOM
from hiddenstate.papers.gradient_crafting.cells import (
    NAME,
    Drifts,
    HousingAudit,
    NetworkAudit,
)
from hiddenstate.pipeline.family import Cell, Workplace
from hiddenstate.streams import stream

Trained = Callable[[np.random.Generator, np.random.Generator], tuple[Floats, Movement]]
"""Initial parameters by one stream, and the movement of a training whose batches another draws."""


def drift(cell: Cell[Drifts], seed: int, workplace: Workplace) -> pd.DataFrame:
    """Share of the accountant's mu that audits show on average, by what the adversary knows.

    Columns: every, clipping_norm, epsilon, adversary, knows ("nothing", "start" or "batches"),
    share and its error (jackknife over the starts).
    """
    p, rows = cell.parameters, []
    for audit in p.audits:
        moved, least = _movements(audit, p, partial(stream, seed, NAME, cell.name))
        for epsilon in p.epsilons:
            noise = audit.model_copy(update={"epsilon": epsilon}).noise_deviation
            whole, *left_out = (
                dict(_shares(moved[kept], least[kept], noise, audit.every))
                for kept in (slice(None), *~np.eye(p.starts, dtype=bool))
            )
            for key, share in whole.items():
                error = np.sqrt((p.starts - 1) * np.var([one[key] for one in left_out]))
                rows.append((audit.every, audit.clipping_norm, epsilon, *key, share, error))
    columns = ["every", "clipping_norm", "epsilon", "adversary", "knows", "share", "error"]
    return pd.DataFrame(rows, columns=columns)


def _movements(
    audit: HousingAudit | NetworkAudit, p: Drifts, drawn: Callable[..., np.random.Generator]
) -> tuple[Floats, Floats]:
    """Net movement of each coordinate, and of the least moved one; (starts, orders, p or 1)."""
    train = _housing(audit) if isinstance(audit, HousingAudit) else _network(audit)
    moved, least = [], []
    for s in range(p.starts):
        for o in range(p.orders):
            initial, movement = train(drawn("start", s), drawn("batches", o))
            assert movement.last is not None
            moved.append(movement.last - initial)
            least.append(moved[-1][[int(movement.absolute.argmin())]])
    shape = (p.starts, p.orders, -1)
    return np.reshape(moved, shape).astype(float), np.reshape(least, shape).astype(float)


def _housing(p: HousingAudit) -> Trained:
    audit = training.audit_of(p)
    rate = audit.mechanism.learning_rate
    trainer = Trainer(
        audit.network, audit.x, audit.y, learning_rate=rate, clipping_norm=audit.clipping_norm
    )

    def train(
        first: np.random.Generator, second: np.random.Generator
    ) -> tuple[Floats, Movement]:
        initial = audit.network.initial(first)
        batches = audit.mechanism.sampling.batches(len(audit.y), audit.mechanism.steps, second)
        return initial, trainer.simulated(initial, batches)

    return train


def _network(p: NetworkAudit) -> Trained:
    splits = data.splits(p.dataset)
    model = models.build(p.model, splits.classes)
    mechanism = Insertions(**p.insertion).mechanism
    gradients = ClippedSum(model, splits.train.x, splits.train.y)

    def train(
        first: np.random.Generator, second: np.random.Generator
    ) -> tuple[Floats, Movement]:
        initial = average_case(model, first)
        batches = mechanism.sampling.batches(len(splits.train), mechanism.steps, second)
        start = initial.numpy()
        return start, simulated(gradients, mechanism, start, batches, None, second)

    return train


def _shares(
    moved: Floats, least: Floats, noise: float, every: int
) -> Iterator[tuple[tuple[str, str], float]]:
    """Share of mu by adversary and knowledge; moved, least: as of ``_movements``."""

    def share(variance: NDArray[np.float64]) -> float:
        ratio = 1 + np.maximum(variance, 0) / noise**2
        return float(np.mean(1 / np.sqrt(ratio * every)))

    each = _variances(moved)
    # A coordinate of each model's own differs from the others' in its mean too.
    yield (RANDOM, "nothing"), share(each["nothing"].mean() + moved.mean((0, 1)).var())
    for knows, variance in each.items():
        yield (ONE_RANDOM, knows), share(variance)
    for knows, variance in _variances(least).items():
        yield (CRAFTED, knows), share(variance)


def _variances(d: Floats) -> dict[str, NDArray[np.float64]]:
    """Variances of each coordinate by what is known, without bias (analysis of variance)."""
    starts, orders = d.shape[:2]
    rows, columns, mean = d.mean(1), d.mean(0), d.mean((0, 1))
    rest = ((d - rows[:, None] - columns + mean) ** 2).sum((0, 1)) / ((starts - 1) * (orders - 1))
    by_start = ((rows - mean) ** 2).sum(0) / (starts - 1) - rest / orders
    by_order = ((columns - mean) ** 2).sum(0) / (orders - 1) - rest / starts
    return {
        "nothing": by_start + by_order + rest,
        "start": by_order + rest,
        "batches": by_start + rest,
    }
