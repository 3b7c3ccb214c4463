"""Networks of shuffling, whose iterates one adversary sees as they are made, another the last."""

from functools import partial

import numpy as np
import pandas as pd

from hiddenstate import models
from hiddenstate.adversaries.gradient_canaries import Inserted, SimulatedCoordinate
from hiddenstate.adversaries.initialisation import average_case
from hiddenstate.adversaries.shuffled_sums import BatchSums
from hiddenstate.datasets import data
from hiddenstate.dpsgd import ensemble as engine
from hiddenstate.dpsgd.mechanism import Mechanism
from hiddenstate.errors import InputError
from hiddenstate.papers.shuffling.cells import NAME, Trained
from hiddenstate.papers.shuffling.simulations import ALL
from hiddenstate.pipeline.cells import Cell, Workplace
from hiddenstate.sampling import Cyclic, Reshuffled


def train(cell: Cell[Trained], seed: int, workplace: Workplace) -> pd.DataFrame:
    """Scores of an audit's models by both adversaries."""
    p = cell.parameters
    splits = data.splits(p.dataset)
    size = p.batches * p.batch_size
    if size > len(splits.train) + 1:
        raise InputError(
            f"batch_size: got {p.batches} batches of {p.batch_size}; expected at most "
            f"{len(splits.train) + 1} records, those of {p.dataset} and the canary"
        )
    # The canary is one of the records.
    records = splits.train.take(np.arange(size - 1))
    model = models.build(p.model, splits.classes)
    redrawn = p.order == "each epoch"
    mechanism = Mechanism(
        sampling=Reshuffled(p.batch_size) if redrawn else Cyclic(p.batch_size, shuffled_once=True),
        steps=p.batches * p.epochs,
        learning_rate=p.learning_rate / p.batch_size,
        clipping_norm=1.0,
        noise_multiplier=p.noise_multiplier,
        adjacency="replace",
    )
    canary = Inserted(SimulatedCoordinate(), schedule=None)
    ensemble = engine.Ensemble(
        model, mechanism, records.x, records.y, canary, partial(average_case, model)
    )
    return engine.scores(
        ensemble,
        seed=seed,
        observers={ALL: BatchSums()},
        **workplace.options(p.models, NAME, cell.name),
    )
