"""Simulations and accounting of encoding_loss."""

from dataclasses import replace

import numpy as np
import pandas as pd

from hiddenstate.accounting import linear, pld
from hiddenstate.adversaries import encoding_loss as adversary
from hiddenstate.auditing.kept_curves import ALL_LINES, FEW_LINES, curve_rows
from hiddenstate.papers.encoding_loss.cells import Accounted, Mechanism, Simulated, Target
from hiddenstate.pipeline.cells import Cell


def _noise_multiplier(mechanism: Mechanism | Target) -> float:
    """The mechanism's noise multiplier, or the one that has the epsilon aimed at."""
    if isinstance(mechanism, Mechanism):
        return mechanism.noise_multiplier
    m = mechanism
    return pld.noise_multiplier(m.epsilon, m.delta, m.sampling_rate, m.steps)


def simulate(cell: Cell[Simulated], seed: int) -> pd.DataFrame:
    """Scores of all runs of a cell, and what an adversary who sees all iterates would score.

    World "in" has the canary, and scores are larger there; smaller with the data sets swapped.
    """
    p = cell.parameters
    m = p.mechanism
    q, steps = m.sampling_rate, m.steps
    sigma = _noise_multiplier(m)
    printed, loss = adversary.published(sigma, q, p.records), adversary.sound(sigma, q)
    if p.encoding == "published":
        loss = printed
    elif p.encoding == "spacing alone":
        loss = replace(loss, spacing=printed.spacing)
    elif p.encoding == "decimals alone":
        loss = replace(loss, decimals=printed.decimals)
    elif p.encoding == "swapped":
        loss = replace(printed, swapped=True)
    elif p.encoding == "as printed":
        loss = replace(printed, as_printed=True)
    parts = []
    for repeat in range(p.repeats):
        for world in ("in", "out"):
            score, all_iterates = loss.simulated(
                p.runs,
                steps,
                present=world == "in",
                seed=seed,
                name=("encoding_loss", cell.name, world, repeat),
            )
            parts.append(
                pd.DataFrame(
                    {
                        "world": world,
                        "repeat": repeat,
                        "run": np.arange(p.runs),
                        "score": score,
                        # Only ranks and correlations are taken of it, and it fills the files.
                        "all_iterates": all_iterates.astype(np.float32),
                    }
                )
            )
    scores = pd.concat(parts, ignore_index=True)
    return scores.assign(
        noise_multiplier=sigma,
        spacing=loss.spacing,
        collision_probability=loss.collision_probability(steps),
    )


def account(cell: Cell[Accounted], seed: int) -> pd.DataFrame:
    """Trade-off curves of all iterates (lower bounds on the FNR) at the cell's noise multipliers.

    Columns: mechanism, null, epsilon (upper bound at the cell's delta), noise_multiplier, fpr, fnr.
    """
    p = cell.parameters
    m, delta = p.mechanism, p.delta
    q, steps = m.sampling_rate, m.steps
    if isinstance(m, Mechanism):
        sigmas = np.array([m.noise_multiplier])
        epsilons = np.array([pld.epsilon(m.noise_multiplier, q, steps, delta)])
    else:
        epsilons = np.array(p.epsilons)
        sigmas = pld.noise_multipliers(epsilons, delta, q, steps)
    lines = ALL_LINES if isinstance(m, Mechanism) else FEW_LINES
    parts = []
    for epsilon, sigma in zip(epsilons, sigmas, strict=True):
        curves = {
            ("all iterates", null): curve
            for null, curve in pld.tradeoff_curves(sigma, q, steps, lines=lines).items()
        }
        if len(sigmas) == 1:
            mixture = linear.last_iterate(sigma, q, steps)
            curves["linear loss", "out"] = mixture.tradeoff_curve(null="out")
        parts += [
            curve_rows(curve).assign(
                mechanism=mechanism, null=null, epsilon=epsilon, noise_multiplier=sigma
            )
            for (mechanism, null), curve in curves.items()
        ]
    return pd.concat(parts, ignore_index=True)
