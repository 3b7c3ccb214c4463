"""The grid of cyclic_bounds, and how its cells become scores, bounds and estimates."""

import itertools
from collections.abc import Callable, Mapping
from typing import Any, Literal

import numpy as np
import pandas as pd
from pydantic import Field

from hiddenstate.accounting import cyclic, cyclic_operator
from hiddenstate.accounting.cyclic import CyclicDPSGD
from hiddenstate.adversaries import swapped_record
from hiddenstate.adversaries.expanding_clip import WORLDS, ExpandingClip
from hiddenstate.adversaries.swapped_record import SwappedRecord
from hiddenstate.auditing import ApproxDP, UniformBand, lower_bound
from hiddenstate.auditing.intervals import clopper_pearson_upper
from hiddenstate.dpsgd import exact
from hiddenstate.dpsgd.cyclic import last_iterates
from hiddenstate.errors import InputError
from hiddenstate.papers import Cell, FamilyGrid, Grid

AUDIT_CONFIDENCE = 0.95
CERTIFICATE_CONFIDENCE = 1 - 1e-6

CONSTANTS: dict[str, Callable[[float, float, float], float]] = {
    "unclipped": cyclic_operator.unclipped,
    "reconstructed": cyclic_operator.reconstructed,
    "clipped": cyclic_operator.clipped,
}
"""Lipschitz constants of the step, by the name of their function."""


class Base(Grid):
    """A mechanism around which one parameter at a time is varied."""

    records: int = Field(ge=1, description="records in the data set")
    batch_size: int = Field(ge=1, description="records in a batch; divides the records")
    passes: int = Field(default=1, ge=1, description="passes over the data")
    step_size: float = Field(gt=0, description="step size")
    clipping_norm: float = Field(gt=0, description="clipping norm of a record's gradient")
    noise_std: float = Field(gt=0, description="noise standard deviation of the displacement")
    weak_convexity: float = Field(default=0.0, ge=0, description="weak convexity; 0: convex")
    smoothness: float = Field(ge=0, description="smoothness (upper curvature) of the losses")
    position: int = Field(default=1, ge=1, description="step of the pass that visits the record")

    def run(self) -> CyclicDPSGD:
        """The mechanism; an error names a batch size that does not divide the records."""
        if self.records % self.batch_size:
            raise InputError(
                f"batch_size: got {self.batch_size}; expected a divisor of {self.records} records"
            )
        shared = self.model_dump(exclude={"records", "passes"})
        per_pass = self.records // self.batch_size
        return CyclicDPSGD(steps=self.passes * per_pass, steps_per_pass=per_pass, **shared)


class Sweeps(Grid):
    """Values of the parameters that are varied, one at a time."""

    passes: list[int] = Field(min_length=2, description="passes over the data")
    batch_size: list[int] = Field(min_length=2, description="batch sizes that divide the records")
    noise_std: list[float] = Field(min_length=2, description="noise standard deviations")
    step_size: list[float] = Field(min_length=2, description="step sizes")
    weak_convexity: list[float] = Field(min_length=2, description="weak convexities, ascending")
    position: list[int] = Field(min_length=2, description="positions of the swapped record")
    diameter: list[float] = Field(min_length=2, description="diameters of the domain")


class Tightness(Grid):
    """Affine losses whose exact divergence the bounds are held against."""

    steps_per_pass: int = Field(ge=1, description="steps in a pass")
    growths: list[float] = Field(min_length=1, description="step size times weak convexity")
    passes: list[int] = Field(min_length=2, description="passes over the data")


class Audit(Grid):
    """Data sets that are simulated, attacked and bounded."""

    line: Base = Field(description="mechanism of the quadratic losses on the line")
    slopes: list[float] = Field(description="curvatures of those losses; negative: concave")
    logistic: Base = Field(description="mechanism of the logistic regression")
    dimension: int = Field(ge=1, description="dimension of the logistic regression")
    diameter: float = Field(gt=0, description="diameter of its domain, a ball")
    passes: list[int] = Field(min_length=1, description="passes over the data")
    runs: int = Field(ge=100, description="runs a world")


class Counterexample(Grid):
    """Convex losses whose clipped steps expand, in units of noise and smoothness."""

    steps: list[int] = Field(min_length=1, description="steps of the single pass")
    step_size: float = Field(gt=0, le=1, description="step size times smoothness")
    displacement: float = Field(gt=0, description="displacement of the swapped record")
    margin: float = Field(ge=0, description="fraction by which gradients exceed the clipping norm")
    runs: int = Field(ge=100, description="runs a world")


class CyclicBoundsGrid(FamilyGrid):
    """The cells: sweeps of the bounds, exact divergences, audits and the counterexample."""

    delta: float = Field(gt=0, lt=1, description="probability, at which every epsilon is stated")
    base: Base = Field(description="mechanism that the sweeps start from")
    weak_convexities: list[float] = Field(min_length=1, description="weak convexities of the lines")
    sweeps: Sweeps
    tightness: Tightness
    audit: Audit
    counterexample: Counterexample


def score_cells(grid: CyclicBoundsGrid) -> list[Cell]:
    """Each audited data set with all numbers of passes, and the counterexample at each length."""
    audit, failing = grid.audit, grid.counterexample
    simulated = {"passes": audit.passes, "runs": audit.runs}
    shared = failing.model_dump(exclude={"steps"})
    return [Cell(name, parameters | simulated) for name, parameters in _audited(audit).items()] + [
        Cell(f"counterexample_T{steps}", {"kind": "counterexample", "steps": steps} | shared)
        for steps in failing.steps
    ]


def _audited(audit: Audit) -> dict[str, dict[str, Any]]:
    """Parameters of the audited data sets, but for the passes, by name."""
    line, logistic = (base.model_dump(exclude={"passes"}) for base in (audit.line, audit.logistic))
    shape = {"dimension": audit.dimension, "diameter": audit.diameter}
    return {
        f"line{slope:g}": {"kind": "line", "base": line, "slope": slope} for slope in audit.slopes
    } | {"logistic": {"kind": "logistic", "base": logistic} | shape}


def _instance(parameters: Mapping[str, Any], passes: int) -> SwappedRecord:
    """The data sets and mechanism of an audited cell."""
    base = Base(**parameters["base"], passes=passes)
    if parameters["kind"] == "logistic":
        return swapped_record.logistic(base.run(), parameters["dimension"], parameters["diameter"])
    slope = parameters["slope"]
    curvature = {"weak_convexity": max(-slope, 0.0), "smoothness": max(slope, 0.0)}
    return swapped_record.line(base.model_copy(update=curvature).run(), slope)


def score(cell: Cell, seed: int) -> pd.DataFrame:
    """Scores of the last iterates of a cell's runs in both worlds, by number of passes."""
    p = cell.parameters
    frames = []
    for passes in p.get("passes", [1]):
        if p["kind"] == "counterexample":
            instance = _counterexample(p)
            gradients, start, prox = instance.gradients, np.zeros(2), None
        else:
            instance = _instance(p, passes)
            gradients, start, prox = instance.gradients.get, instance.start, instance.prox
        for world in WORLDS:
            points = last_iterates(
                instance.run,
                gradients(world),
                start,
                p["runs"],
                seed=seed,
                name=("cyclic_bounds", cell.name, "passes", passes, world),
                prox=prox,
            )
            frame = pd.DataFrame({"run": np.arange(p["runs"]), "score": instance.score(points)})
            frames.append(frame.assign(world=world, repeat=0, passes=passes))
    return pd.concat(frames, ignore_index=True)


def _counterexample(p: Mapping[str, Any]) -> ExpandingClip:
    return ExpandingClip(p["steps"], p["step_size"], p["displacement"], p["margin"])


# --- bounds ---------------------------------------------------------------------------------------

EXCESS = 2.0
"""The excess xi at which Corollary C.2 is evaluated."""

SINGLE_PASS = {"batch_size": 1, "passes": 1}
"""The setting of privacy amplification by iteration."""


def bound_cells(grid: CyclicBoundsGrid) -> list[Cell]:
    """All closed formulas together, and each audited data set."""
    formulas = grid.model_dump(exclude={"shows", "audit", "counterexample"})
    audited = {"passes": grid.audit.passes, "delta": grid.delta}
    return [Cell("formulas", {"kind": "formulas"} | formulas)] + [
        Cell(name, parameters | audited) for name, parameters in _audited(grid.audit).items()
    ]


def bound(cell: Cell) -> pd.DataFrame:
    """Bounds and exact values of a cell, one row a number; ``part`` says which of the formulas."""
    p = cell.parameters
    if p["kind"] != "formulas":
        return _audit_bounds(p)
    parts = {
        "sweeps": _sweeps(p),
        "theorems": _theorems(p),
        "tightness": _tightness(**p["tightness"]),
        "constants": _constants(p["tightness"]["growths"]),
    }
    return pd.concat([rows.assign(part=part) for part, rows in parts.items()], ignore_index=True)


def _rho_rows(rows: list[dict[str, Any]], delta: float) -> pd.DataFrame:
    """Rows of rho, and the same with the epsilon that each implies."""
    rho = pd.DataFrame(rows).assign(quantity="rho", kind="upper")
    epsilon = rho.assign(quantity="epsilon", value=[cyclic.epsilon(r, delta) for r in rho["value"]])
    return pd.concat([rho, epsilon], ignore_index=True)


def _sweeps(p: dict[str, Any]) -> pd.DataFrame:
    """Bounds along one parameter at a time, for every weak convexity and Lipschitz constant."""
    sweeps = [(vary, vary, values, {}) for vary, values in p["sweeps"].items()]
    convexities = p["sweeps"]["weak_convexity"]
    sweeps.append(("single pass", "weak_convexity", convexities, SINGLE_PASS))
    rows = []
    for name, vary, values, change in sweeps:
        lines = [None] if vary == "weak_convexity" else p["weak_convexities"]
        for x, m in itertools.product(values, lines):
            varied = {} if vary == "diameter" else {vary: x}
            varied |= {} if m is None else {"weak_convexity": m}
            run = Base(**p["base"] | change | varied).run()
            bounds = _bounds(run, diameter=x if vary == "diameter" else None)
            shared = {"sweep": name, "x": x, "weak_convexity": run.weak_convexity}
            rows += [row | shared for row in bounds]
    return _rho_rows(rows, p["delta"])


def _bounds(run: CyclicDPSGD, diameter: float | None = None) -> list[dict[str, Any]]:
    """Every bound that applies to the run, with each Lipschitz constant, as rows of rho."""
    found = {
        ("triangle inequality", ""): cyclic.triangle_inequality(run),
        ("Theorem 4.3", ""): cyclic.theorem_4_3(run),
        ("Corollary C.3", ""): cyclic.corollary_c3(run),
        ("composition", ""): cyclic.composition(run),
    }
    for name, constant in CONSTANTS.items():
        lipschitz = constant(*run.curvature)
        found["Theorem 4.5", name] = cyclic.theorem_4_5(run, lipschitz)
        found["sharp", name] = cyclic.sharp(run, lipschitz)
        found["quadratic programme", name] = cyclic.quadratic_programme(run, lipschitz)
        if diameter is not None:
            found["Theorem 4.4", name] = cyclic.theorem_4_4(run, lipschitz, diameter)
            found["best restart", name] = cyclic.bounded_domain(run, lipschitz, diameter)
    if run.weak_convexity == 0:
        found["equation 22", ""] = cyclic.equation_22(run)
        if run.batch_size == 1 and run.passes == 1:
            found["PABI", ""] = cyclic.pabi(run)
    else:
        lipschitz = cyclic_operator.reconstructed(*run.curvature)
        if run.steps_per_pass >= cyclic.minimal_steps(lipschitz, EXCESS):
            found["Corollary C.2", ""] = cyclic.corollary_c2(run, EXCESS)
    return [
        {"method": method, "lipschitz": lipschitz, "value": value}
        for (method, lipschitz), value in found.items()
    ]


def _theorems(p: dict[str, Any]) -> pd.DataFrame:
    """Every bound at the base mechanism, and at its single pass with batches of one record."""
    settings = {"base": {}, "single pass": SINGLE_PASS}
    rows = []
    for (setting, change), m in itertools.product(settings.items(), p["weak_convexities"]):
        run = Base(**p["base"] | change | {"weak_convexity": m}).run()
        shared = {"setting": setting, "x": run.steps, "weak_convexity": m}
        rows += [row | shared for row in _bounds(run)]
    return _rho_rows(rows, p["delta"])


def _tightness(steps_per_pass: int, growths: list[float], passes: list[int]) -> pd.DataFrame:
    """Exact divergence of affine losses over each bound, for the first record of a pass."""
    rows = []
    for growth, count in itertools.product(growths, passes):
        run = CyclicDPSGD(
            steps=count * steps_per_pass,
            steps_per_pass=steps_per_pass,
            batch_size=1,
            step_size=1.0,
            clipping_norm=1.0,
            noise_std=1.0,
            weak_convexity=growth,
        )
        lipschitz = cyclic_operator.unclipped(*run.curvature)
        truth = exact.scalar_affine(np.full(run.steps, 1 + growth), run)
        rows += [
            {"x": count, "growth": growth, "method": method, "value": truth / value}
            for method, value in {
                "sharp": cyclic.sharp(run, lipschitz),
                "Theorem 4.5": cyclic.theorem_4_5(run, lipschitz),
                "composition": cyclic.composition(run),
            }.items()
        ]
    return pd.DataFrame(rows).assign(quantity="tightness", kind="exact")


def _constants(growths: list[float]) -> pd.DataFrame:
    """Visible fractions of a shift, and Lipschitz constants by the ratio of curvatures."""
    steps = np.unique(np.logspace(0, 4, 81).round())
    fractions = [
        pd.DataFrame({"x": steps, "value": cyclic.visible_fraction(1 + growth, steps)}).assign(
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


def _audit_bounds(p: dict[str, Any]) -> pd.DataFrame:
    """Bounds on an audited data set, and the exact epsilon of those on the line."""
    rows = []
    for passes in p["passes"]:
        instance = _instance(p, passes)
        run = instance.run
        lipschitz = cyclic_operator.unclipped(*run.curvature)
        bounds = {
            "composition": cyclic.composition(run),
            "Theorem 4.5": cyclic.theorem_4_5(run, lipschitz),
            "sharp": cyclic.sharp(run, lipschitz),
        }
        found = [(name, "upper", cyclic.epsilon(rho, p["delta"])) for name, rho in bounds.items()]
        if p["kind"] == "line":
            worlds = [instance.gradients[world] for world in WORLDS]
            truth = exact.on_the_line(run, *worlds).epsilon(p["delta"])
            found.append(("exact", "exact", truth))
        rows += [(passes, *row) for row in found]
    frame = pd.DataFrame(rows, columns=["x", "method", "kind", "value"])
    return frame.assign(quantity="audit", instance=_instance_name(p))


def _instance_name(parameters: Mapping[str, Any]) -> str:
    if parameters["kind"] == "logistic":
        return f"logistic regression, dimension {parameters['dimension']}, on a ball"
    slope = parameters["slope"]
    shape = "concave" if slope < 0 else "convex"
    return f"{shape} quadratic losses, curvature {slope:g}"


# --- estimates ------------------------------------------------------------------------------------


def estimate(
    grid: CyclicBoundsGrid, scores: Mapping[str, pd.DataFrame], bounds: Mapping[str, pd.DataFrame]
) -> pd.DataFrame:
    """All bounds as they are, lower bounds of the audits, and the counterexample's certificates."""
    parts = [frame.assign(cell=name) for name, frame in bounds.items()]
    for cell in score_cells(grid):
        for passes, runs in scores[cell.name].groupby("passes"):
            worlds = [runs.loc[runs["world"] == world, "score"].to_numpy() for world in WORLDS]
            if cell.parameters["kind"] == "counterexample":
                rows = _certificate(cell.parameters, *worlds)
            else:
                rows = _audit_rows(cell.parameters, passes, grid.delta, *worlds)
            parts.append(rows.assign(cell=cell.name))
    return pd.concat(parts, ignore_index=True)


def _audit_rows(
    p: Mapping[str, Any], passes: int, delta: float, inside: np.ndarray, outside: np.ndarray
) -> pd.DataFrame:
    """Lower bound on epsilon from one audit, valid for all thresholds at once."""
    rule = UniformBand()
    found = lower_bound(inside, outside, ApproxDP(delta), rule, confidence=AUDIT_CONFIDENCE)
    row = {"quantity": "audit", "method": "lower bound", "kind": "lower", "x": passes}
    row |= {"value": found.value, "confidence": found.confidence, "instance": _instance_name(p)}
    return pd.DataFrame([row])


def _certificate(p: Mapping[str, Any], inside: np.ndarray, outside: np.ndarray) -> pd.DataFrame:
    """Certified divergences of the counterexample beside the bounds that speak of them.

    The event "score > 0" was fixed before any run; its probabilities in the two worlds are bounded
    by Clopper-Pearson at half the failure probability each, and a divergence is at least that of
    the two Bernoulli variables (data processing).
    """
    instance = _counterexample(p)
    n, share = p["runs"], (1 - CERTIFICATE_CONFIDENCE) / 2
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
    return pd.DataFrame(rows, columns=columns).assign(x=p["steps"])


def _bernoulli_divergence(p: float, q: float, order: Literal[1, 2]) -> float:
    """Rényi divergence of order 1 or 2, in nats, of Bernoulli variables with p > q; else 0."""
    if p <= q:
        return 0.0
    if order == 1:
        return p * np.log(p / q) + (1 - p) * np.log((1 - p) / (1 - q))
    return np.log(p**2 / q + (1 - p) ** 2 / (1 - q))


# --- picked from the estimates by figures, tables and checks --------------------------------------


def swept(estimates: pd.DataFrame, sweep: str, quantity: str) -> pd.DataFrame:
    """Rows of one sweep: "rho" or "epsilon" along ``x``."""
    rows = estimates[(estimates["part"] == "sweeps") & (estimates["sweep"] == sweep)]
    return rows[rows["quantity"] == quantity].fillna({"lipschitz": ""})


def pick(rows: pd.DataFrame, method: str, lipschitz: str = "") -> pd.DataFrame:
    """Rows of one bound with one Lipschitz constant (none by default)."""
    return rows[(rows["method"] == method) & (rows["lipschitz"] == lipschitz)]
