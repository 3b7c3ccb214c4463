"""Models of gradient_crafting, trained with DP-SGD in both worlds."""

from functools import cache
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from hiddenstate import housing
from hiddenstate.accounting import gaussian
from hiddenstate.adversaries import crafted_gradients as crafted
from hiddenstate.adversaries import gradient_canaries
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
from hiddenstate.dpsgd.tiny import Dense, Trainer
from hiddenstate.family import Cell, Workplace
from hiddenstate.papers.gradient_crafting.adversaries import Rank, kind
from hiddenstate.papers.gradient_crafting.cells import (
    NAME,
    Followed,
    HousingAudit,
    OneRunAudits,
    SimulatedEnds,
)
from hiddenstate.papers.gradient_crafting.summaries import ALONE, CONFIDENCE, WHOLE
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


def simulated_ends(cell: Cell[SimulatedEnds], seed: int) -> pd.DataFrame:
    """What each adversary of an audit reads at the end of a training without noise and canary.

    Of the first models of each world, from their own starts and batches, which the adversary knows.
    Columns as of scores.
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
    network = Dense((x.shape[1], p.hidden_units, 2))
    return crafted.CraftedAudit(x=x, y=y, start=p.start, network=network, **p.insertion)


def adversary(word: str, rank: Rank) -> gradient_canaries.Adversary:
    """Whoever a scale file calls so; InputError for an unknown word."""
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


ALL, FIFTH, PLANNED = "all guessed", "clearest fifth guessed", "planned share guessed"
FLIPPED, KNOWN = "no null law known", "known null law"


def one_run(cell: Cell[OneRunAudits], seed: int) -> pd.DataFrame:
    """Lower bounds from one model each; columns audit, hypothesis, rule, made, correct, mu.

    A canary is the gradient C e_d in every step of its own coordinate d. Of a simulated model the
    coordinates are idle: their scores are normal, exactly. Numbers of guesses, and of coins turned
    over, are planned from the epsilon that is claimed. The null law of the housing network's scores
    is simulated: independent trainings without a canary.
    """
    p = cell.parameters
    mu = gaussian.mu(p.epsilon, p.delta)
    made = {ALL: p.canaries, FIFTH: max(2, round(p.canaries / 5))}
    made[PLANNED] = planned_guesses(mu, p.canaries, confidence=CONFIDENCE)
    flips = planned_flips(mu, p.canaries, confidence=CONFIDENCE)
    null: dict[str, Any] = {"deviation": 1.0}
    if p.network is not None:
        audit, nothing = audit_of(p.network), np.zeros(p.canaries, bool)
        drawn = [
            _one_network(audit, nothing, (seed, NAME, cell.name, "null", draw))
            for draw in range(p.null_draws)
        ]
        null = {"null_scores": np.stack(drawn)}
    rows = []
    for index in range(p.audits):
        coins = stream(seed, NAME, cell.name, index, "coins").random(p.canaries) < 0.5
        if p.network is None:
            noise = stream(seed, NAME, cell.name, index, "noise").standard_normal(p.canaries)
            scores, midpoint = mu * coins + noise, mu / 2
        else:
            scores = _one_network(audit, coins, (seed, NAME, cell.name, index))
            mechanism = audit.mechanism
            midpoint = mechanism.learning_rate * mechanism.clipping_norm * mechanism.steps / 2
        for rule, count in made.items():
            guesses = guess(scores, coins, count)
            bound = _bound(p.canaries, count, guesses.correct)
            rows.append((index, ALONE, rule, count, guesses.correct, bound))
        right = int(((scores > midpoint) == coins).sum())
        guesses = Guesses(p.canaries, p.canaries, right)
        bound = flip_bound(guesses, flips, confidence=CONFIDENCE).value
        rows.append((index, WHOLE, FLIPPED, p.canaries, right, bound))
        bound = whole_gaussian_bound(scores, coins, confidence=CONFIDENCE, **null).value
        rows.append((index, WHOLE, KNOWN, 0, 0, bound))
    return pd.DataFrame(rows, columns=["audit", "hypothesis", "rule", "made", "correct", "mu"])


@cache
def _bound(canaries: int, made: int, correct: int) -> float:
    """Lower bound on mu of each canary, the same for all audits with so many right guesses."""
    guesses = Guesses(canaries, made, correct)
    return one_run_bound(guesses, GaussianDP(limit=10.0), confidence=CONFIDENCE).value


def _one_network(
    audit: crafted.CraftedAudit, coins: NDArray[np.bool_], name: tuple[int | str, ...]
) -> NDArray[np.float64]:
    """Scores (m,) of the canaries in the m coordinates that a simulated training moves least.

    The adversary knows initial parameters and batches: its score is how far a coordinate moved
    against the canary beyond where it ends without noise and canaries.
    """
    seed, *path = name
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
    simulated = trainer.simulated(initial, batches)
    chosen = np.argsort(simulated.absolute, kind="stable")[: len(coins)]
    shape = (mechanism.steps, audit.network.parameters)
    added = stream(int(seed), *path, "noise").standard_normal(shape, dtype=np.float32)
    added *= np.float32(mechanism.noise_std)
    added[:, chosen] += np.float32(mechanism.clipping_norm) * coins
    last = trainer.last_iterate(initial, batches, added)
    return (np.asarray(simulated.last) - last)[chosen].astype(float)
