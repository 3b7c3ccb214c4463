"""Estimates of cyclic_bounds: the bounds as they are, audits, and the counterexample."""

from collections.abc import Mapping

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from hiddenstate.accounting import cyclic
from hiddenstate.adversaries.expanding_clip import WORLDS
from hiddenstate.auditing import ApproxDP, UniformBand, lower_bound
from hiddenstate.auditing.intervals import clopper_pearson_upper
from hiddenstate.estimates import select
from hiddenstate.papers.cyclic_bounds import cells
from hiddenstate.papers.cyclic_bounds.cells import Counterexample, CyclicBoundsGrid

AUDIT_CONFIDENCE = 0.95
CERTIFICATE_CONFIDENCE = 1 - 1e-6
Scores = NDArray[np.float64]


def estimate(
    grid: CyclicBoundsGrid, scores: Mapping[str, pd.DataFrame], bounds: Mapping[str, pd.DataFrame]
) -> pd.DataFrame:
    """All bounds as they are, lower bounds of the audits, and the counterexample's certificates."""
    parts = [frame.assign(cell=name) for name, frame in bounds.items()]
    for audit in cells.audits(grid):
        for passes, runs in scores[audit.name].groupby("passes"):
            claims = ApproxDP(grid.delta)
            worlds = _worlds(runs)
            found = lower_bound(*worlds, claims, UniformBand(), confidence=AUDIT_CONFIDENCE)
            row = {"quantity": "audit", "method": "lower bound", "kind": "lower", "x": passes}
            row |= {"value": found.value, "confidence": found.confidence}
            row |= {"instance": audit.parameters.data[0].title, "cell": audit.name}
            parts.append(pd.DataFrame([row]))
    for failing in cells.counterexamples(grid):
        rows = certificate(failing.parameters, *_worlds(scores[failing.name]))
        parts.append(rows.assign(cell=failing.name))
    return pd.concat(parts, ignore_index=True)


def _worlds(runs: pd.DataFrame) -> tuple[Scores, Scores]:
    inside, outside = (select(runs, world=world)["score"].to_numpy() for world in WORLDS)
    return inside, outside


def certificate(p: Counterexample, inside: Scores, outside: Scores) -> pd.DataFrame:
    """Certified divergences of the counterexample beside the bounds that speak of them.

    The event "score > 0" was fixed before any run; its probabilities in the two worlds are bounded
    by Clopper-Pearson at half the failure probability each, and a divergence is at least that of
    the two Bernoulli variables (data processing).
    """
    instance = p.instance
    n, share = p.runs, (1 - CERTIFICATE_CONFIDENCE) / 2
    in_rate = 1 - float(clopper_pearson_upper(np.sum(inside <= 0), n, share))
    out_rate = float(clopper_pearson_upper(np.sum(outside > 0), n, share))
    rhos = {
        ("convex bound", "estimate"): cyclic.pabi(instance.run),
        ("corrected bound", "upper"): cyclic.sharp(instance.run, instance.lipschitz),
        ("composition", "upper"): cyclic.composition(instance.run),
        ("affine limit", "estimate"): instance.affine_rho(),
    }
    rows = []
    for order, name in ((1, "kl"), (2, "d2")):
        certified = _bernoulli_divergence(in_rate, out_rate, order)
        rows.append((name, "certified", "lower", certified, CERTIFICATE_CONFIDENCE))
        rows += [(name, *method, order * rho, np.nan) for method, rho in rhos.items()]
    columns = ["quantity", "method", "kind", "value", "confidence"]
    return pd.DataFrame(rows, columns=columns).assign(x=instance.steps)


def _bernoulli_divergence(p: float, q: float, order: int) -> float:
    """Rényi divergence of order 1 or 2, in nats, of Bernoulli variables with p > q; else 0."""
    if p <= q:
        return 0.0
    if order == 1:
        return float(p * np.log(p / q) + (1 - p) * np.log((1 - p) / (1 - q)))
    return float(np.log(p**2 / q + (1 - p) ** 2 / (1 - q)))
