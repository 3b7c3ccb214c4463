"""Models of linear_heuristic, trained with DP-SGD on Poisson samples in both worlds."""

from functools import partial

import numpy as np
import pandas as pd

from hiddenstate import models
from hiddenstate.adversaries import canaries
from hiddenstate.adversaries.gradient_canaries import Coordinate, Inserted
from hiddenstate.adversaries.initialisation import average_case
from hiddenstate.datasets import data
from hiddenstate.dpsgd import ensemble as engine
from hiddenstate.dpsgd.augmentation import Augmentation
from hiddenstate.dpsgd.mechanism import Mechanism
from hiddenstate.errors import InputError
from hiddenstate.papers.linear_heuristic.cells import NAME, TrainedAudit
from hiddenstate.pipeline.cells import Cell, Workplace
from hiddenstate.sampling import Poisson
from hiddenstate.streams import stream

TESTED = 20
"""Models of each data set whose test accuracy is measured."""


def train(cell: Cell[TrainedAudit], seed: int, workplace: Workplace) -> pd.DataFrame:
    """Scores of the models of an audit, with the first ones' test accuracy and the noise."""
    p = cell.parameters
    ensemble = audited(p, seed)
    test = data.splits(p.dataset).test
    frame = engine.scores(
        ensemble,
        seed=seed,
        measures={"accuracy": engine.Accuracy(test.x, test.y, TESTED)},
        **workplace.options(p.models, NAME, p.stream),
    )
    return frame.assign(noise_multiplier=ensemble.mechanism.noise_multiplier)


def audited(p: TrainedAudit, seed: int) -> engine.Ensemble:
    """Records, canary and mechanism of an audit.

    The records are all of the data set's, or so many of them at random, the same in every audit.
    One of them, the same too, stays out and is the mislabelled canary; the gradient canary has a
    place among the records in its stead.
    """
    splits = data.splits(p.dataset)
    records = splits.train
    if p.records > len(records):
        raise InputError(
            f"records: got {p.records}; expected at most {len(records)}, those of {p.dataset} to "
            "train on"
        )
    if p.records < len(records):
        order = stream(seed, NAME, "records", p.dataset).permutation(len(records))
        records = records.take(np.sort(order[: p.records]))
    rng = stream(seed, NAME, "canary", p.dataset)
    chosen = int(rng.integers(p.records))
    others = np.delete(np.arange(p.records), chosen)
    x, y = records.x[others], records.y[others]
    only = slice(chosen, chosen + 1)
    canary: engine.Canary = canaries.mislabelled(
        records.x[only], records.y[only], splits.classes, rng
    )
    model = models.build(p.model, splits.classes)
    if p.attack == "dirac":
        parameters = models.parameter_count(model)
        at = stream(seed, NAME, "coordinate", p.dataset, p.model).integers(parameters)
        canary = Inserted(Coordinate(int(at)), schedule=None)
    elif p.attack == "blank":
        # All with the label that the canary's image truly has: once a model has learnt that one,
        # their gradients are about zero.
        x, y = np.zeros_like(x), np.full(len(x), int(records.y[chosen]), np.int64)
    mechanism = Mechanism(
        sampling=Poisson(p.sampling_rate),
        steps=p.steps,
        # Of the sum, over the expected batch, which is no secret.
        learning_rate=p.learning_rate / (p.sampling_rate * p.records),
        clipping_norm=p.clipping_norm,
        noise_multiplier=p.noise(),
        adjacency="add_or_remove",
    )
    return engine.Ensemble(
        model,
        mechanism,
        x,
        y,
        canary,
        partial(average_case, model),
        augmentation=Augmentation(p.views) if p.views > 1 else None,
    )
