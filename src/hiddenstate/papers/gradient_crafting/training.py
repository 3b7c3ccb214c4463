"""Models of gradient_crafting, trained with DP-SGD in both worlds."""

from functools import cache

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from hiddenstate import housing
from hiddenstate.accounting import gaussian
from hiddenstate.adversaries import crafted_gradients as crafted
from hiddenstate.adversaries import gradient_canaries
from hiddenstate.auditing import GaussianDP
from hiddenstate.auditing.one_run import Guesses, guess, one_run_bound
from hiddenstate.dpsgd.tiny import Dense, Trainer
from hiddenstate.family import Cell, Workplace
from hiddenstate.papers.gradient_crafting.cells import (
    NAME,
    Adversary,
    Followed,
    HousingAudit,
    OneRunAudits,
    Rank,
)
from hiddenstate.papers.gradient_crafting.summaries import CONFIDENCE
from hiddenstate.streams import stream


def train(p: HousingAudit, seed: int, workplace: Workplace) -> pd.DataFrame:
    """Scores of one repeat of an audit, by every adversary, and the coordinates they read."""
    frame = crafted.scores(
        audit_of(p),
        models=workplace.models or p.models,
        seed=seed,
        repeat=p.repeat,
        adversaries=[adversary(word, p.rank) for word in p.adversaries],
        name=(NAME, p.name),
        anew=(workplace.purpose,) if workplace.purpose else (),
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


def adversary(word: Adversary, rank: Rank) -> gradient_canaries.Adversary:
    """Whoever a scale file calls so."""
    match word:
        case "loss-based":
            return crafted.LossBased()
        case "random coordinate":
            return gradient_canaries.RandomCoordinate()
        case "one random coordinate":
            return gradient_canaries.RandomCoordinate(shared=True)
    return gradient_canaries.SimulatedCoordinate(rank)


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


SHARES = (1.0, 0.2)
"""Of the coins that are guessed, fixed before training: all of them, or the clearest fifth."""


def one_run(cell: Cell[OneRunAudits], seed: int) -> pd.DataFrame:
    """Lower bounds from one model each; columns audit, share, made, correct, mu.

    A canary is the gradient C e_d in every step of its own coordinate d. Of a simulated model the
    coordinates are idle: their scores are normal, exactly.
    """
    p = cell.parameters
    law = GaussianDP()
    rows = []
    for index in range(p.audits):
        coins = stream(seed, NAME, cell.name, index, "coins").random(p.canaries) < 0.5
        if p.network is None:
            mu = gaussian.mu(p.epsilon, p.delta)
            noise = stream(seed, NAME, cell.name, index, "noise").standard_normal(p.canaries)
            scores = mu * coins + noise
        else:
            scores = _one_network(p.network, coins, (seed, NAME, cell.name, index))
        for share in SHARES:
            made = max(2, round(share * p.canaries))
            guesses = guess(scores, coins, made)
            bound = _bound(p.canaries, made, guesses.correct, law)
            rows.append((index, share, made, guesses.correct, bound))
    return pd.DataFrame(rows, columns=["audit", "share", "made", "correct", "mu"])


@cache
def _bound(canaries: int, made: int, correct: int, law: GaussianDP) -> float:
    """Lower bound on mu, the same for all audits with so many right guesses."""
    guesses = Guesses(canaries, made, correct)
    return one_run_bound(guesses, law, confidence=CONFIDENCE).value


def _one_network(
    p: HousingAudit, coins: NDArray[np.bool_], name: tuple[int | str, ...]
) -> NDArray[np.float64]:
    """Scores (m,) of the canaries in the m coordinates that a simulated training moves least.

    The adversary knows initial parameters and batches: its score is how far a coordinate moved
    against the canary beyond where it ends without noise and canaries.
    """
    seed, *path = name
    audit = audit_of(p)
    mechanism = audit.mechanism
    initial = audit.network.initial(stream(int(seed), *path, "initialisation"))
    batches = mechanism.sampling.batches(
        len(audit.y), mechanism.steps, stream(int(seed), *path, "sampling")
    )
    trainer = Trainer(
        audit.network,
        audit.x,
        audit.y,
        learning_rate=mechanism.learning_rate,
        clipping_norm=mechanism.clipping_norm,
    )
    order = np.argsort(trainer.simulated(initial, batches).absolute, kind="stable")
    chosen = order[: len(coins)]
    shape = (mechanism.steps, audit.network.parameters)
    added = stream(int(seed), *path, "noise").standard_normal(shape, dtype=np.float32)
    added *= np.float32(mechanism.noise_std)
    added[:, chosen] += np.float32(mechanism.clipping_norm) * coins
    expected = trainer.last_iterate(initial, batches, None)
    last = trainer.last_iterate(initial, batches, added)
    return (expected - last)[chosen].astype(float)
