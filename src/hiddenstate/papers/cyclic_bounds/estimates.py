"""Estimates of cyclic_bounds: the bounds as they are, audits, and the counterexample."""

from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from hiddenstate.accounting import cyclic
from hiddenstate.auditing import ApproxDP, divergence, lower_bound, worlds
from hiddenstate.auditing.methods import REPEATABLE
from hiddenstate.papers.cyclic_bounds import cells
from hiddenstate.papers.cyclic_bounds.cells import Counterexample, CyclicBoundsGrid
from hiddenstate.pipeline.family import Made

AUDIT_CONFIDENCE = 0.95
FAILURE_PROBABILITY = 1e-6
"""Of all certificates of the counterexample together."""
Scores = NDArray[np.float64]


def estimate(grid: CyclicBoundsGrid, scores: Made, bounds: Made) -> pd.DataFrame:
    """All bounds as they are, lower bounds of the audits, and the counterexample's certificates."""
    parts = [table.assign(cell=cell.name) for cell, table in bounds.of(cells.formulas)]
    for audit, simulated in scores.of(cells.audits):
        for passes, runs in simulated.groupby("passes"):
            claims = ApproxDP(grid.delta)
            found = lower_bound(*worlds(runs), claims, REPEATABLE, confidence=AUDIT_CONFIDENCE)
            row = {"quantity": "audit", "method": "lower bound", "kind": "lower", "x": passes}
            row |= {"value": found.value, "confidence": found.confidence}
            row |= {"instance": audit.parameters.data[0].title, "cell": audit.name}
            parts.append(pd.DataFrame([row]))
    failing = scores.of(cells.counterexamples)
    for cell, runs in failing:
        rows = certificate(cell.parameters, *worlds(runs), certificates=len(failing))
        parts.append(rows.assign(cell=cell.name))
    return pd.concat(parts, ignore_index=True)


def certificate(
    p: Counterexample, inside: Scores, outside: Scores, *, certificates: int
) -> pd.DataFrame:
    """Certified divergences of the counterexample beside the bounds that speak of them.

    The event "score > 0" was fixed before any run. certificates: how many cells there are, which
    share the failure probability.
    """
    at = p.instance
    several = p.passes > 1
    rhos = {
        "convex bound": (cyclic.equation_22 if several else cyclic.pabi)(at.run),
        "corrected bound": cyclic.sharp(at.run, at.lipschitz),
        "composition": cyclic.composition(at.run),
        "affine limit": at.affine_rho(),
    }
    kinds = {"corrected bound": "upper", "composition": "upper"}
    rows: list[dict[str, Any]] = []
    orders: tuple[tuple[divergence.Order, str], ...] = ((1, "kl"), (2, "d2"))
    for order, quantity in orders:
        certified = divergence.certified(
            inside > 0,
            outside > 0,
            order,
            failure_probability=FAILURE_PROBABILITY,
            certificates=certificates,
        )
        row = {"method": "certified", "kind": "lower", "value": certified}
        row |= {"confidence": 1 - FAILURE_PROBABILITY, "quantity": quantity}
        rows.append(row)
        rows += [
            {"quantity": quantity, "method": m, "kind": kinds.get(m, "estimate")}
            # Gaussians with this rho have a Rényi divergence of the order times rho.
            | {"value": order * rho}
            for m, rho in rhos.items()
        ]
    return pd.DataFrame(rows).assign(x=p.steps, passes=p.passes)
