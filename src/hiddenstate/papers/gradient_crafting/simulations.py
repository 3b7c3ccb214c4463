"""Work of gradient_crafting that trains no model: exact laws, and simulated audits."""

import math
from itertools import product

import numpy as np
import pandas as pd

from hiddenstate.accounting import gaussian, iteration
from hiddenstate.accounting.iteration import SingleInsertion
from hiddenstate.auditing import AsPublished, Fixed, GaussianDP
from hiddenstate.auditing.rules import Rule
from hiddenstate.family import Cell, short
from hiddenstate.papers.gradient_crafting.cells import (
    NAME,
    Distances,
    IdealAudits,
    Landscape,
    SimulatedLandscape,
)
from hiddenstate.papers.gradient_crafting.summaries import HALF
from hiddenstate.streams import stream

POINTS = 1001
"""Of a trade-off curve: its nearest Gaussian one is known to 1 / POINTS."""


def landscape(cell: Cell[Landscape], seed: int) -> pd.DataFrame:
    """Both readings of every law: by Gaussian DP, and the exact epsilon.

    Columns: batch_size (0: a flat landscape), threshold ("midpoint" or "h*"), step, mu,
    epsilon_gdp, epsilon_exact (not at every step: it costs most). h* has its last step alone.
    """
    p = cell.parameters
    mu = gaussian.mu(p.epsilon, p.delta)
    best = iteration.optimal_threshold(p.epsilon, mu)
    told = {*np.geomspace(1, p.steps, 10).round().astype(int)}
    rows = []
    for size in (0, *p.batch_sizes):
        laws = SingleInsertion(mu, size * mu, p.steps).laws()
        rows += [("midpoint", size, step, law) for step, law in enumerate(laws, 1)]
        if size:
            rows.append(("h*", size, p.steps, SingleInsertion(mu, size * mu, p.steps, best).law))
    return pd.DataFrame(
        {
            "threshold": threshold,
            "batch_size": size,
            "step": step,
            "mu": law.gdp_mu(),
            "epsilon_gdp": float(gaussian.epsilon(law.gdp_mu(), p.delta)),
            "epsilon_exact": law.epsilon(p.delta) if step in told else math.nan,
        }
        for threshold, size, step, law in rows
    )


def simulate(cell: Cell[SimulatedLandscape], seed: int) -> pd.DataFrame:
    """Last iterates of the literal process, which are the scores."""
    p = cell.parameters
    mu = gaussian.mu(p.epsilon, p.delta)
    process = SingleInsertion(mu, p.batch_size * mu, p.steps)
    return pd.concat(
        (
            pd.DataFrame(
                {
                    "world": world,
                    "repeat": repeat,
                    "run": np.arange(p.runs),
                    "score": process.sampled(
                        world, p.runs, stream(seed, NAME, cell.name, world, repeat)
                    ),
                }
            )
            for repeat in range(p.repeats)
            for world in ("in", "out")
        ),
        ignore_index=True,
    )


def distances(cell: Cell[Distances], seed: int) -> pd.DataFrame:
    """Lévy distance of the exact trade-off curve from its nearest Gaussian one, by steps.

    Columns: step, mu (of the nearest), distance, bound (on the distance, whatever lies between the
    curve's points), and for a sampling rate berry_esseen, the bound on the distance from a normal
    pair of the same moments. The noise keeps the mean shift at the cell's mu.
    """
    p = cell.parameters
    rows = []
    for step in p.steps:
        berry_esseen = math.nan
        if p.sampling_rate is None:
            law = SingleInsertion(p.mu, p.beta or 0.0, step).law
        else:
            noise = p.sampling_rate * math.sqrt(step) / p.mu
            law = iteration.subsampled(noise, p.sampling_rate, step)
            berry_esseen = iteration.berry_esseen(noise, p.sampling_rate, step)
        fit = iteration.nearest_gaussian(*law.errors(POINTS))
        rows.append((step, fit.mu, fit.distance, fit.bound, berry_esseen))
    return pd.DataFrame(rows, columns=["step", "mu", "distance", "bound", "berry_esseen"])


_BLOCK = 20


def ideal(cell: Cell[IdealAudits], seed: int) -> pd.DataFrame:
    """Epsilons that audits of an idle coordinate find.

    Its score is normal, mu / sqrt(every) apart. Columns: epsilon, audit, method, value.
    """
    p = cell.parameters
    parts = []
    for epsilon, start in product(p.epsilons, range(0, p.audits, _BLOCK)):
        mu = gaussian.mu(epsilon, p.delta) / math.sqrt(p.every)
        rules: dict[str, Rule] = {"as published": AsPublished(), "fixed threshold": Fixed(mu / 2)}
        audits = np.arange(start, min(start + _BLOCK, p.audits))
        rng = stream(seed, NAME, f"ideal_k{p.every}_eps{short(epsilon)}_{p.models}", start)
        shape = (len(audits), p.models)
        inside, outside = rng.normal(mu, 1, shape), rng.normal(0, 1, shape)
        for method, rule in rules.items():
            # Of a fixed threshold the rule itself shares the level out between the error rates.
            level = 2 * HALF if rule.valid else HALF
            mus, _ = rule.bounds(inside, outside, GaussianDP(), level)
            found = {
                "audit": audits,
                "method": method,
                "value": gaussian.epsilon_below(mus, p.delta),
            }
            parts.append(pd.DataFrame({"epsilon": epsilon, **found}))
    return pd.concat(parts, ignore_index=True)
