"""Expected audits of coordinates: what audits of many models show on average, by few trainings.

The difference of the mean scores comes from pairs of models that share their noise. The spread
comes from models without a canary, read at all their coordinates at once. What the adversary knows
decides how much of it counts. The experimenter knows the noise that falls on a coordinate itself,
whose variance is exact. What start, batches and other coordinates' noise add is estimated. No bound
is made of it.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import product

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
from hiddenstate.dpsgd.known import Floats
from hiddenstate.dpsgd.run import simulated
from hiddenstate.papers.gradient_crafting import training
from hiddenstate.papers.gradient_crafting.adversaries import CRAFTED, ONE_RANDOM, RANDOM
from hiddenstate.papers.gradient_crafting.cells import (
    NAME,
    ExpectedAudits,
    HousingAudit,
    NetworkAudit,
)
from hiddenstate.pipeline.cells import Cell, Workplace
from hiddenstate.streams import stream

Batches = list[NDArray[np.int64]]
_NONE = np.random.default_rng(0)
"""For views of records, of which there are none."""


@dataclass(frozen=True, eq=False)
class _Trained:
    """Trainings of one network from several starts in several orders of batches.

    moved: how far each coordinate moved against its canary, less the noise that fell on it; shape
    (starts, orders, p). noise: this part. least: the least moved coordinate without noise; shape
    (starts, orders). drawn: a random one. shifts: how far a canary in either moves it, in what it
    moves alone; shape (2, starts, orders). deviation: of the noise.
    """

    moved: Floats
    noise: Floats
    least: NDArray[np.int64]
    drawn: NDArray[np.int64]
    shifts: Floats
    deviation: float

    def without(self, start: int) -> "_Trained":
        """The same but for one start."""
        kept = np.arange(len(self.moved)) != start
        return _Trained(
            self.moved[kept], self.noise[kept], self.least[kept], self.drawn[kept],
            self.shifts[:, kept], self.deviation,
        )  # fmt: skip

    def shares(self) -> Iterator[tuple[tuple[str, str], float]]:
        """Share of the insertions' mu / sqrt(k) by adversary and knowledge."""
        exact = self.deviation**2
        each = _variances(self.moved, self.noise)
        simulated, random = self.shifts.mean((1, 2))
        # A coordinate of each model's own differs from the others' in its mean too.
        spread = each["nothing"].mean() + self.moved.mean((0, 1)).var()
        yield (RANDOM, "nothing"), float(random / _spread(spread / exact))
        for knows, variance in each.items():
            ratio = _spread(variance / exact)[self.drawn]
            yield (ONE_RANDOM, knows), float((self.shifts[1] / ratio).mean())
        at = self.least[..., None]
        least = (np.take_along_axis(part, at, 2) for part in (self.moved, self.noise))
        for knows, variance in _variances(*least).items():
            yield (CRAFTED, knows), float(simulated / _spread(variance / exact)[0])


def _spread(rest: Floats) -> Floats:
    """Deviation of scores over that of the noise; rest: variance of all else over its."""
    # An unbiased estimate of a variance may be below 0.
    return np.sqrt(np.maximum(1 + rest, 1e-9))


def expect(cell: Cell[ExpectedAudits], seed: int, workplace: Workplace) -> pd.DataFrame:
    """Share of the accountant's mu that audits show on average, by what the adversary knows.

    Columns: every, clipping_norm, epsilon, adversary, knows ("nothing", "start" or "batches"),
    share and its error (jackknife over the starts).
    """
    p, rows = cell.parameters, []
    for audit, epsilon in product(p.audits, p.epsilons):
        at = audit.model_copy(update={"epsilon": epsilon})
        trained = _trainings(at, p, partial(stream, seed, NAME, cell.name))
        left_out = [dict(trained.without(start).shares()) for start in range(p.starts)]
        for key, share in trained.shares():
            error = math.sqrt((p.starts - 1) * np.var([one[key] for one in left_out]))
            found = np.array([share, error]) / math.sqrt(at.every)
            rows.append((at.every, at.clipping_norm, epsilon, *key, *found))
    columns = ["every", "clipping_norm", "epsilon", "adversary", "knows", "share", "error"]
    return pd.DataFrame(rows, columns=columns)


def _trainings(
    audit: HousingAudit | NetworkAudit, p: ExpectedAudits, drawn: Callable[..., np.random.Generator]
) -> _Trained:
    network = _Housing(audit) if isinstance(audit, HousingAudit) else _Network(audit)
    mechanism, inserted = network.insertions.mechanism, network.insertions.inserted()
    moved, noise, places, shifts = [], [], [], []
    whole = mechanism.learning_rate * mechanism.clipping_norm * len(inserted)
    for s, o in np.ndindex(p.starts, p.orders):
        initial = network.initial(drawn("start", s))
        batches = mechanism.sampling.batches(network.records, mechanism.steps, drawn("batches", o))
        added = drawn("noise", s, o).standard_normal((mechanism.steps, len(initial)), np.float32)
        added *= np.float32(mechanism.noise_std)
        alone = mechanism.learning_rate * added.sum(0, dtype=float)
        last = network.last(initial, batches, added)
        both = (
            int(network.simulated(initial, batches).argmin()),
            int(drawn("coordinate", s, o).integers(len(initial))),
        )
        for d in both:
            # In place and taken out again, for a copy holds all steps times all parameters.
            added[inserted, d] += np.float32(mechanism.clipping_norm)
            with_canary = network.last(initial, batches, added)
            added[inserted, d] -= np.float32(mechanism.clipping_norm)
            shifts.append((last[d] - with_canary[d]) / whole)
        moved.append(initial - last - alone)
        noise.append(alone)
        places.append(both)
    shape = (p.starts, p.orders, -1)
    least, random = np.moveaxis(np.reshape(places, shape), -1, 0)
    return _Trained(
        np.reshape(moved, shape), np.reshape(noise, shape), least, random,
        np.moveaxis(np.reshape(shifts, shape), -1, 0), audit.noise_deviation,
    )  # fmt: skip


class _Housing:
    """The housing network."""

    def __init__(self, p: HousingAudit):
        self.insertions = self._audit = training.audit_of(p)
        self.records = len(self._audit.y)
        self._trainer = Trainer(
            self._audit.network, self._audit.x, self._audit.y,
            learning_rate=self._audit.mechanism.learning_rate, clipping_norm=p.clipping_norm,
        )  # fmt: skip

    def initial(self, rng: np.random.Generator) -> Floats:
        return self._audit.network.initial(rng)

    def last(self, initial: Floats, batches: Batches, added: Floats) -> Floats:
        return self._trainer.last_iterate(initial, batches, added)

    def simulated(self, initial: Floats, batches: Batches) -> Floats:
        return self._trainer.simulated(initial, batches).absolute


class _Network:
    """A network of the torch engine."""

    def __init__(self, p: NetworkAudit):
        splits = data.splits(p.dataset)
        self._model = models.build(p.model, splits.classes)
        self.insertions = Insertions(**p.insertion)
        self.records = len(splits.train)
        self._gradients = ClippedSum(self._model, splits.train.x, splits.train.y)

    def initial(self, rng: np.random.Generator) -> Floats:
        return average_case(self._model, rng).numpy()

    def last(self, initial: Floats, batches: Batches, added: Floats) -> Floats:
        mechanism, theta = self.insertions.mechanism, torch.tensor(initial)
        for batch, more in zip(batches, torch.from_numpy(added), strict=True):
            update = self._gradients(theta, batch, mechanism.clipping_norm) + more
            theta -= mechanism.learning_rate * update
        return theta.numpy()

    def simulated(self, initial: Floats, batches: Batches) -> Floats:
        mechanism = self.insertions.mechanism
        return simulated(self._gradients, mechanism, initial, batches, None, _NONE).absolute


def _variances(d: Floats, noise: Floats) -> dict[str, Floats]:
    """Variance of each coordinate beyond that of the noise on it alone, by what is known.

    Without bias (analysis of variance), with twice the covariance of the noise and the rest.
    """
    starts, orders = d.shape[:2]
    rows, columns, mean = d.mean(1), d.mean(0), d.mean((0, 1))
    free = (starts - 1) * (orders - 1)
    left = d - rows[:, None] - columns + mean
    rest = (left**2).sum((0, 1)) / free
    # The mean of a row or column has its own share of the rest in it, which is taken off.
    by_start = ((rows - mean) ** 2).sum(0) / (starts - 1) - rest / orders
    by_order = ((columns - mean) ** 2).sum(0) / (orders - 1) - rest / starts
    rest = rest + 2 * (left * noise).sum((0, 1)) / free
    return {
        "nothing": by_start + by_order + rest,
        "start": by_order + rest,
        "batches": by_start + rest,
    }
