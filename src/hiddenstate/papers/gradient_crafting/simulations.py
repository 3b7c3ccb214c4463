"""Work of gradient_crafting that trains no model: exact laws, and simulated audits."""

import math
from collections.abc import Callable
from itertools import product

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.special import expit, ndtr, ndtri

from hiddenstate.accounting import gaussian, iteration
from hiddenstate.accounting.iteration import SingleInsertion
from hiddenstate.auditing import (
    ApproxDP,
    AsPublished,
    Fixed,
    GaussianDP,
    Guesses,
    Imitation,
    one_run_bound,
    whole_gaussian_bound,
)
from hiddenstate.auditing.hypotheses import Hypotheses
from hiddenstate.auditing.methods import CONFIDENCE, PUBLISHED
from hiddenstate.auditing.rules import LowerBoundRule
from hiddenstate.papers.gradient_crafting.cells import (
    NAME,
    Distances,
    IdealAudits,
    Landscape,
    OneRunValidity,
    SimulatedLandscape,
)
from hiddenstate.papers.gradient_crafting.summaries import ALONE, HALF, WHOLE
from hiddenstate.pipeline.cells import Cell
from hiddenstate.rounding import short
from hiddenstate.streams import stream

POINTS = 1001
"""Of a trade-off curve: its nearest Gaussian one is known to 1 / POINTS."""


# Departure gradient_crafting.landscape: the landscape of Section 6 is not available.
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


# Audits of one random stream, named by the first of them: another number gives other scores.
_BLOCK = 20


def ideal(cell: Cell[IdealAudits], seed: int) -> pd.DataFrame:
    """Epsilons that audits of an unused coordinate find.

    Its score is normal, mu / sqrt(every) apart. Columns: epsilon, audit, method, value.
    """
    p = cell.parameters
    parts = []
    for epsilon, start in product(p.epsilons, range(0, p.audits, _BLOCK)):
        mu = gaussian.mu(epsilon, p.delta) / math.sqrt(p.every)
        rules: dict[str, LowerBoundRule] = {
            PUBLISHED: AsPublished(),
            "fixed threshold": Fixed(mu / 2),
        }
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


RARE = 0.05
"""Probability of the event in which a mechanism gives coins away, and the bounds' level."""

RESPONSE = 1.0
"""Epsilon of the randomised response."""


def one_run_validity(cell: Cell[OneRunValidity], seed: int) -> pd.DataFrame:
    """Rate at which bounds from one model exceed the truth, on mechanisms that (nearly) attain it.

    Columns: hypothesis, mechanism, canaries, above (a probability), audits (0: it is exact).

    "normal scores": independent, which attain whole-mechanism Gaussian DP at every coin vector.
    "randomised response": attains pure epsilon-DP of each canary. "rare event": with a small
    probability every coin comes out with one accuracy, that which exceeds most often, and nothing
    does otherwise. "imitation": Gaussian DP of each canary alone, at which the bound that assumes
    it of the whole mechanism is not valid.
    """
    p = cell.parameters
    mu = gaussian.mu(p.epsilon, p.delta)
    rows: list[tuple[str, str, int, float, int]] = []
    for m in p.canaries:
        rng = stream(seed, NAME, cell.name, m)
        coins = rng.random((p.audits, m)) < 0.5
        scores = mu * coins + rng.standard_normal(coins.shape)
        rows.append((WHOLE, "normal scores", m, _exceeding(coins, scores, mu), p.audits))
        imitation = Imitation(mu, m, apart=0.15)
        coins, scores = imitation.sampled(p.audits, rng)
        above = _exceeding(coins, scores, imitation.gdp_mu)
        rows.append((WHOLE, "imitation", m, above, p.audits))
        rows.append((ALONE, "randomised response", m, _responding(m), 0))
        rows.append((ALONE, "rare event", m, max(_in_event(m, a) for a in _ACCURACIES), 0))
    return pd.DataFrame(rows, columns=["hypothesis", "mechanism", "canaries", "above", "audits"])


_ACCURACIES = ndtr(np.linspace(0.5, 2.5, 9))


def _exceeding(coins: NDArray[np.bool_], scores: NDArray[np.float64], mu: float) -> float:
    """Share of audits whose bound, with the known null law, exceeds mu."""
    found = [
        whole_gaussian_bound(z, s, deviation=1.0, confidence=CONFIDENCE).value
        for s, z in zip(coins, scores, strict=True)
    ]
    return float(np.mean(np.array(found) > mu))


def _responding(m: int) -> float:
    """Probability that randomised response has so many right guesses that the bound exceeds it."""
    from scipy.stats import binom

    hypotheses, law = ApproxDP(0.0), binom(m, expit(RESPONSE))
    return _above(m, RESPONSE, hypotheses, lambda v: float(law.sf(v - 1)))


def _in_event(m: int, accuracy: float) -> float:
    """The same of the mechanism that gives every coin away with that accuracy, rarely."""
    from scipy.stats import binom

    # Its steepest point decides: the rest of its trade-off function has slope 1.
    mu = float(ndtri(RARE * accuracy) - ndtri(RARE * (1 - accuracy)))
    told, nothing = binom(m, accuracy), binom(m, 0.5)

    def tail(v: int) -> float:
        return float(RARE * told.sf(v - 1) + (1 - RARE) * nothing.sf(v - 1))

    return _above(m, mu, GaussianDP(limit=12.0), tail)


def _above(m: int, truth: float, hypotheses: Hypotheses, tail: Callable[[int], float]) -> float:
    """Probability ``tail`` of the least number of right guesses whose bound exceeds the truth."""
    # The bound rises with the right guesses, so the least number is found by halving.
    low, high = m // 2, m + 1
    while high - low > 1:
        v = (low + high) // 2
        bound = one_run_bound(Guesses(m, m, v), hypotheses, confidence=CONFIDENCE)
        low, high = (low, v) if bound.value > truth else (v, high)
    return tail(high) if high <= m else 0.0
