"""Computed tables of cyclic_bounds: bounds along one parameter each, exact values."""

import itertools
from typing import Any

import numpy as np
import pandas as pd

from hiddenstate.accounting import cyclic, cyclic_operator, divergence, shifts
from hiddenstate.accounting.cyclic import CyclicDPSGD
from hiddenstate.adversaries.expanding_clip import WORLDS, ExpandedPair
from hiddenstate.adversaries.swapped_record import tightest_slopes
from hiddenstate.dpsgd import exact
from hiddenstate.papers.cyclic_bounds.cells import CONSTANTS, SINGLE_PASS, Formulas, Line, Tightness
from hiddenstate.pipeline.cells import Cell

EXCESS = 2.0
"""The excess xi at which Corollary C.2 is evaluated."""


def formulas(cell: Cell[Formulas], seed: int) -> pd.DataFrame:
    """Bounds and exact values, one row per number; ``part`` says which of the formulas."""
    p = cell.parameters
    parts = {
        "sweeps": _sweeps(p),
        "theorems": _theorems(p),
        "tightness": _tightness(p.tightness),
        "constants": _constants(p.tightness.growths),
        "audit": _audit(p),
        "independent": _independent(p),
    }
    return pd.concat([rows.assign(part=part) for part, rows in parts.items()], ignore_index=True)


CONVERSIONS = {"gdp": divergence.gaussian_epsilon, "rdp": divergence.epsilon}
"""Epsilon of a rho: as Gaussian differential privacy, and as Rényi divergences."""


def _epsilons(rho: pd.DataFrame, delta: float) -> pd.DataFrame:
    """The same rows with the epsilon that each rho implies, by each conversion."""
    parts = [
        rho.assign(conversion=name, value=[convert(r, delta) for r in rho["value"]])
        for name, convert in CONVERSIONS.items()
    ]
    return pd.concat(parts, ignore_index=True)


def _rho_rows(rows: list[dict[str, Any]], delta: float) -> pd.DataFrame:
    """Rows of rho, and the same with the epsilon that each implies."""
    rho = pd.DataFrame(rows).assign(quantity="rho", kind="upper")
    epsilon = _epsilons(rho.assign(quantity="epsilon"), delta)
    return pd.concat([rho, epsilon], ignore_index=True)


def _sweeps(p: Formulas) -> pd.DataFrame:
    """Bounds along one parameter at a time, for every weak convexity and Lipschitz constant."""
    sweeps: list[tuple[str, str, list[float], dict[str, int]]]
    sweeps = [(vary, vary, values, {}) for vary, values in p.sweeps]
    sweeps.append(("single pass", "weak_convexity", p.sweeps.weak_convexity, SINGLE_PASS))
    rows = []
    for name, vary, values, change in sweeps:
        lines = [{}] if vary == "weak_convexity" else _lines(p)
        for x, line in itertools.product(values, lines):
            varied = {} if vary == "diameter" else {vary: x}
            run = p.base.run(**change, **varied, **line)
            bounds = _bounds(run, diameter=x if vary == "diameter" else None)
            shared = {"sweep": name, "x": x, "weak_convexity": run.weak_convexity}
            rows += [row | shared for row in bounds]
    return _rho_rows(rows, p.delta)


def _lines(p: Formulas) -> list[dict[str, float]]:
    return [{"weak_convexity": m} for m in p.weak_convexities]


def _bounds(run: CyclicDPSGD, diameter: float | None = None) -> list[dict[str, Any]]:
    """Every bound that applies to the run, with each Lipschitz constant, as rows of rho."""
    found: dict[tuple[str, str | None], float] = {
        ("triangle inequality", None): cyclic.triangle_inequality(run),
        ("Theorem 4.3", None): cyclic.theorem_4_3(run),
        ("Corollary C.3", None): cyclic.corollary_c3(run),
        ("composition", None): cyclic.composition(run),
    }
    for name, constant in CONSTANTS.items():
        lipschitz = constant(*run.curvature)
        found["Theorem 4.5", name] = cyclic.theorem_4_5(run, lipschitz)
        found["sharp", name] = cyclic.sharp(run, lipschitz)
        if diameter is not None:
            found["Theorem 4.4", name] = cyclic.theorem_4_4(run, lipschitz, diameter)
            found["best restart", name] = cyclic.bounded_domain(run, lipschitz, diameter)
    if run.weak_convexity == 0:
        found["equation 22", None] = cyclic.equation_22(run)
        if run.batch_size == 1 and run.passes == 1:
            found["PABI", None] = cyclic.pabi(run)
    else:
        lipschitz = cyclic_operator.reconstructed(*run.curvature)
        if run.steps_per_pass >= shifts.minimal_steps(lipschitz, EXCESS):
            found["Corollary C.2", None] = cyclic.corollary_c2(run, EXCESS)
    return [
        {"method": method, "lipschitz": lipschitz, "value": value}
        for (method, lipschitz), value in found.items()
    ]


def _theorems(p: Formulas) -> pd.DataFrame:
    """Every bound at the base mechanism, and at its single pass with batches of one record."""
    settings: dict[str, dict[str, int]] = {"base": {}, "single pass": SINGLE_PASS}
    rows = []
    for (setting, change), line in itertools.product(settings.items(), _lines(p)):
        run = p.base.run(**change, **line)
        shared = {"setting": setting, "x": run.steps, **line}
        rows += [row | shared for row in _bounds(run)]
    return _rho_rows(rows, p.delta)


def _tightness(p: Tightness) -> pd.DataFrame:
    """Exact divergence of affine steps over each bound, for the first record of a pass.

    The steps either all grow by L, or have the slopes on which the bound by visits is attained.
    """
    rows = []
    for growth, count in itertools.product(p.growths, p.passes):
        run = CyclicDPSGD(
            steps=count * p.steps_per_pass,
            steps_per_pass=p.steps_per_pass,
            batch_size=1,
            step_size=1.0,
            clipping_norm=1.0,
            noise_std=1.0,
            weak_convexity=growth,
            smoothness=1.0,
        )
        slopes = {"constant": np.full(run.steps, 1 + growth), "tightest": tightest_slopes(run)}
        rows += [
            {"x": count, "growth": growth, "slopes": name, "method": method, "value": truth / value}
            for name, truth in ((n, exact.scalar_affine(s, run)) for n, s in slopes.items())
            for method, value in _upper(run).items()
        ]
    return pd.DataFrame(rows).assign(quantity="tightness", kind="exact")


def _constants(growths: list[float]) -> pd.DataFrame:
    """Visible fractions of a shift, and Lipschitz constants by the ratio of curvatures."""
    steps = np.unique(np.logspace(0, 4, 81).round())
    fractions = [
        pd.DataFrame({"x": steps, "value": shifts.visible_fraction(1 + growth, steps)}).assign(
            quantity="visible_fraction", growth=growth, method="theta"
        )
        for growth in growths
    ]
    ratios, step = np.logspace(-1, 1.5, 101), 0.01
    constants = CONSTANTS | {"trivial": cyclic_operator.trivial}
    expansions = [
        pd.DataFrame(
            {"x": ratios, "value": [(constant(step, 1.0, r) - 1) / step for r in ratios]}
        ).assign(quantity="expansion", method=name)
        for name, constant in constants.items()
    ]
    return pd.concat([*fractions, *expansions], ignore_index=True).assign(kind="exact")


def _upper(run: CyclicDPSGD) -> dict[str, float]:
    """Rho by the bounds that assume clipping keeps the directions of gradients."""
    lipschitz = cyclic_operator.unclipped(*run.curvature)
    return {
        "sharp": cyclic.sharp(run, lipschitz),
        "Theorem 4.5": cyclic.theorem_4_5(run, lipschitz),
        "composition": cyclic.composition(run),
    }


def _audit(p: Formulas) -> pd.DataFrame:
    """Epsilon on the audited data sets: the bounds, and the exact one of those on the line."""
    rows = []
    upper = []
    for data, passes in itertools.product(p.audit.data, p.audit.passes):
        at = data.instance(passes)
        shared = {"x": passes, "instance": data.title}
        upper += [shared | {"method": m, "value": rho} for m, rho in _upper(at.run).items()]
        if isinstance(data, Line):
            line = exact.on_the_line(at.run, *(at.gradients[world] for world in WORLDS))
            found = {"method": "exact", "kind": "exact", "value": line.epsilon(p.delta)}
            rows.append(shared | found)
    bounds = _epsilons(pd.DataFrame(upper).assign(kind="upper"), p.delta)
    return pd.concat([bounds, pd.DataFrame(rows)], ignore_index=True).assign(quantity="audit")


def _independent(p: Formulas) -> pd.DataFrame:
    """Independent values that share nothing with the formulas.

    Two ratios, which should be 1: of the bound by visits and of the dual
    bound to what the paper's residuals pay. The exact rho of affine convex losses in one pass of
    single records. And the factor, proved, by which a clipped step of a convex loss expands.
    """
    rows: list[dict[str, Any]] = []
    for count, line in itertools.product(p.sweeps.passes, _lines(p)):
        run = p.base.run(passes=count, **line)
        for name, constant in CONSTANTS.items():
            lipschitz = constant(*run.curvature)
            paid, least = cyclic.residual_certificate(run, lipschitz)
            ratios = {"sharp": cyclic.sharp(run, lipschitz) / paid, "dual bound": least / paid}
            rows += [
                line
                | {"quantity": "residuals", "x": count, "lipschitz": name}
                | {"method": method, "value": ratio, "kind": "exact"}
                for method, ratio in ratios.items()
            ]
    single = p.base.run(**SINGLE_PASS)
    value = exact.scalar_affine(np.ones(single.steps), single)
    rows.append({"quantity": "pabi", "method": "affine", "kind": "exact", "value": value})
    low, high = ExpandedPair().certified_expansion()
    row = {"quantity": "expanded pair", "method": "interval arithmetic", "kind": "lower"}
    rows.append(row | {"value": low, "low": low, "high": high})
    return pd.DataFrame(rows)
