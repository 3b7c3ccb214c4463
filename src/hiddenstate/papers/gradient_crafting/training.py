"""Models of gradient_crafting, trained with DP-SGD in both worlds."""

import numpy as np
import pandas as pd

from hiddenstate import housing
from hiddenstate.adversaries import crafted_gradients as crafted
from hiddenstate.dpsgd.tiny import Dense
from hiddenstate.family import Cell, Workplace
from hiddenstate.papers.gradient_crafting.cells import NAME, Adversary, HousingAudit, Rank


def train(cell: Cell[HousingAudit], seed: int, workplace: Workplace) -> pd.DataFrame:
    """Scores of one repeat of an audit, by every adversary, and the coordinates they read."""
    p = cell.parameters
    purpose = [workplace.purpose] if workplace.purpose else []
    frame = crafted.scores(
        audit_of(p),
        models=workplace.models or p.models,
        seed=seed,
        repeat=p.repeat,
        adversaries=[adversary(word, p.rank) for word in p.adversaries],
        name=(NAME, p.name, *purpose),
        workers=workplace.workers,
        checkpoint=workplace.checkpoint,
        progress=workplace.progress,
    )
    # The precision of the iterates, in half the space.
    return frame.astype({"score": np.float32, "coordinate": np.int16})


def audit_of(p: HousingAudit) -> crafted.CraftedAudit:
    """The audit that the parameters ask for."""
    x, y = housing.records()
    return crafted.CraftedAudit(
        x=x,
        y=y,
        epsilon=p.epsilon,
        delta=p.delta,
        every=p.every,
        start=p.start,
        insertions=p.insertions,
        batch_size=p.batch_size,
        learning_rate=p.learning_rate,
        clipping_norm=p.clipping_norm,
        network=Dense((x.shape[1], p.hidden_units, 2)),
    )


def adversary(word: Adversary, rank: Rank) -> crafted.Adversary:
    """Whoever a scale file calls so."""
    match word:
        case "loss-based":
            return crafted.LossBased()
        case "random coordinate":
            return crafted.RandomCoordinate()
        case "one random coordinate":
            return crafted.RandomCoordinate(shared=True)
    return crafted.SimulatedCoordinate(rank)
