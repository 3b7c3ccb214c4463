"""Networks of the torch engine in gradient_crafting, trained with DP-SGD in both worlds."""

import dataclasses
from functools import cached_property, partial

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import nn

from hiddenstate import models
from hiddenstate.adversaries import canaries
from hiddenstate.adversaries import gradient_canaries as crafted
from hiddenstate.adversaries.crafted_gradients import Insertions
from hiddenstate.adversaries.initialisation import average_case
from hiddenstate.datasets import data
from hiddenstate.dpsgd import ensemble as engine
from hiddenstate.dpsgd.clipping import ClippedSum
from hiddenstate.dpsgd.known import Floats
from hiddenstate.dpsgd.native.network import as_network
from hiddenstate.errors import InputError
from hiddenstate.papers.gradient_crafting import one_run as many
from hiddenstate.papers.gradient_crafting import training
from hiddenstate.papers.gradient_crafting.adversaries import kind
from hiddenstate.papers.gradient_crafting.cells import (
    NAME,
    HousingAudit,
    NetworkAudit,
    OneRunLarger,
)
from hiddenstate.pipeline.cells import Cell, Workplace
from hiddenstate.streams import stream

SIDE_BY_SIDE = 25
"""Models that are trained side by side on a CPU, unless native code knows the network."""


def train(cell: Cell[HousingAudit | NetworkAudit], seed: int, workplace: Workplace) -> pd.DataFrame:
    """Scores of one repeat of an audit of any network, by every adversary.

    The models of world "out" are trained once, and each adversary reads them; those of world "in"
    are its own, except for their random numbers.
    """
    p = cell.parameters
    if isinstance(p, HousingAudit):
        return training.train(p, seed, workplace)
    splits = data.splits(p.dataset)
    records = splits.train
    if p.batch_size > len(records):
        raise InputError(
            f"batch_size: got {p.batch_size}; expected at most {len(records)}, the records of "
            f"{p.dataset}"
        )
    model = models.build(p.model, splits.classes)
    mechanism = Insertions(**p.insertion).mechanism
    drawn = partial(average_case, model)
    shared = partial(stream, seed, NAME, p.name, "shared", p.repeat)
    initial: engine.Initial = drawn if p.start == "fresh" else drawn(shared("initialisation"))
    given = {word: _canary(word, p, model, records, shared(word)) for word in p.adversaries}
    alone = workplace.device == "cpu" and as_network(model, records.x.shape[1:]) is not None
    frame = engine.scores_by_adversary(
        {
            word: engine.Ensemble(model, mechanism, records.x, records.y, canary, initial)
            for word, canary in given.items()
        },
        seed=seed,
        chunk=1 if alone else SIDE_BY_SIDE if workplace.device == "cpu" else None,
        side_by_side=not alone,
        **workplace.options(p.models, NAME, p.name, repeat=p.repeat),
    )
    return frame.assign(repeat=p.repeat).astype({"score": np.float32})


def one_run(cell: Cell[OneRunLarger], seed: int) -> pd.DataFrame:
    """Bounds from networks with many canaries, trained on the private half of the data.

    Columns as of ``one_run.idle``.
    """
    p = cell.parameters.network
    splits = data.splits(p.dataset)
    model = models.build(p.model, splits.classes)
    parameters = models.parameter_count(model)
    if max(cell.parameters.canaries) > parameters:
        raise InputError(
            f"canaries: got {max(cell.parameters.canaries)}; expected at most {parameters}, the "
            f"parameters of {p.model}"
        )
    inserted = Insertions(
        epsilon=cell.parameters.epsilon, delta=cell.parameters.delta, **p.insertion
    )
    ensemble = engine.Ensemble(
        model, inserted.mechanism, splits.private.x, splits.private.y,
        crafted.Inserted(crafted.SimulatedCoordinate()), partial(average_case, model),
    )  # fmt: skip
    gradients = ensemble.clipped_sum()
    return many.trained(
        cell.name, cell.parameters, seed, lambda name: OneNetwork(name, ensemble, gradients)
    )


class OneNetwork(many.Model):
    """A network of the torch engine, one run of an ensemble."""

    def __init__(
        self, name: tuple[int | str, ...], ensemble: engine.Ensemble, gradients: ClippedSum
    ):
        super().__init__(name, ensemble.mechanism)
        seed, *path = name
        self._gradients = gradients
        self._run = engine.Run("out", 0, 0, ensemble, gradients, int(seed), tuple(path))

    def end(self, added: NDArray[np.float32] | None) -> Floats:
        """Last iterate where this is added to the sums."""
        theta = self._run.initial.clone()
        for step, batch in enumerate(self._run.batches):
            update = self._gradients(theta, batch, self.mechanism.clipping_norm)
            if added is not None:
                update += torch.from_numpy(added[step])
            theta -= self.mechanism.learning_rate * update
        return theta.numpy()

    @cached_property
    def movement(self) -> Floats:
        return self._run.known().simulated().absolute


def _canary(
    word: str,
    p: NetworkAudit,
    model: nn.Module,
    records: data.Dataset,
    rng: np.random.Generator,
) -> engine.Canary:
    """The canary with this name in a scale file; ``rng`` draws what all runs of an audit share."""
    schedule, entry = crafted.Periodic(p.every), kind(word)
    if entry.gradients is None:
        record = canaries.mislabelled(records.x, records.y, records.classes, rng)
        return dataclasses.replace(record, schedule=schedule)
    if not entry.each:
        d = int(rng.integers(models.parameter_count(model)))
        return crafted.Inserted(crafted.Coordinate(d), schedule)
    return crafted.Inserted(entry.gradients(p.rank), schedule)
