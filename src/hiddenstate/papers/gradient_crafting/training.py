"""Models of gradient_crafting, trained with DP-SGD in both worlds."""

from functools import cached_property

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from hiddenstate.adversaries import crafted_gradients as crafted
from hiddenstate.adversaries import gradient_canaries
from hiddenstate.datasets import housing
from hiddenstate.dpsgd.kernels.tiny import Dense, Trainer
from hiddenstate.dpsgd.known import Floats
from hiddenstate.papers.gradient_crafting import one_run as many
from hiddenstate.papers.gradient_crafting.adversaries import Rank, kind
from hiddenstate.papers.gradient_crafting.cells import (
    NAME,
    Followed,
    HousingAudit,
    OneRunHousing,
    SimulatedEnds,
)
from hiddenstate.pipeline.cells import Cell, Workplace


def train(p: HousingAudit, seed: int, workplace: Workplace) -> pd.DataFrame:
    """Scores of one repeat of an audit, by every adversary, and the coordinates they read."""
    frame = crafted.scores(
        audit_of(p),
        models=workplace.models or p.models,
        seed=seed,
        repeat=p.repeat,
        adversaries=[adversary(word, p.rank) for word in p.adversaries],
        name=(NAME, p.name),
        again=(workplace.purpose,) if workplace.purpose else (),
        workers=workplace.workers,
        checkpoint=workplace.checkpoint,
        progress=workplace.progress,
    )
    # The precision of the iterates, in half the space.
    return frame.astype({"score": np.float32, "coordinate": np.int16})


def simulated_ends(cell: Cell[SimulatedEnds], seed: int) -> pd.DataFrame:
    """End point of a training without noise and canary, as each adversary of an audit reads it.

    Of the first models of each data set, from their own starts and batches, which the adversary
    knows. Columns as of scores.
    """
    p = cell.parameters.audit
    return crafted.scores(
        audit_of(p),
        models=cell.parameters.models,
        seed=seed,
        repeat=p.repeat,
        adversaries=[adversary(word, p.rank) for word in p.adversaries],
        name=(NAME, p.name),
        noiseless=True,
    ).astype({"coordinate": np.int16})


def audit_of(p: HousingAudit) -> crafted.CraftedAudit:
    """The audit that the parameters ask for."""
    x, y = housing.records()
    # Departure gradient_crafting.housing_network: layers, start and data are not available.
    network = Dense((x.shape[1], p.hidden_units, 2))
    start: crafted.Start = "fresh" if p.start == "fresh" else "shared"
    return crafted.CraftedAudit(x=x, y=y, start=start, network=network, **p.insertion)


def adversary(word: str, rank: Rank) -> gradient_canaries.Adversary:
    """Adversary of that name in a scale file; InputError for an unknown word."""
    gradients = kind(word).gradients
    return crafted.LossBased() if gradients is None else gradients(rank)


def follow(cell: Cell[Followed], seed: int) -> pd.DataFrame:
    """Gradient norm of the baseline's record before each step; columns run, step, norm."""
    p = cell.parameters
    audit = audit_of(p.audit)
    norms = np.stack(
        [
            # A repeat each: the record is the same within one.
            crafted.gradient_norms(audit, run=0, repeat=run, seed=seed, name=(NAME, cell.name))
            for run in range(p.runs)
        ]
    )
    runs, steps = np.indices(norms.shape)
    return pd.DataFrame({"run": runs.ravel(), "step": steps.ravel() + 1, "norm": norms.ravel()})


def one_run(cell: Cell[OneRunHousing], seed: int) -> pd.DataFrame:
    """Bounds from housing networks with many canaries; columns as of ``one_run.idle``."""
    audit = audit_of(cell.parameters.network)
    return many.trained(cell.name, cell.parameters, seed, lambda name: OneNetwork(name, audit))


class OneNetwork(many.Model):
    """A housing network."""

    def __init__(self, name: tuple[int | str, ...], audit: crafted.CraftedAudit):
        super().__init__(name, audit.mechanism)
        sampling, steps = audit.mechanism.sampling, audit.mechanism.steps
        self._initial = audit.network.initial(self.drawn("initialisation"))
        self._batches = sampling.batches(len(audit.y), steps, self.drawn("sampling"))
        self._trainer = Trainer(
            audit.network,
            audit.x,
            audit.y,
            learning_rate=audit.mechanism.learning_rate,
            clipping_norm=audit.mechanism.clipping_norm,
        )

    def end(self, added: NDArray[np.float32] | None) -> Floats:
        return self._trainer.last_iterate(self._initial, self._batches, added)

    @cached_property
    def movement(self) -> Floats:
        return self._trainer.simulated(self._initial, self._batches).absolute
