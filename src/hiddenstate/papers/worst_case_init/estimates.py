"""Estimates of worst_case_init: what each audit found, and what a perfect one would have."""

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from hiddenstate.accounting import gaussian
from hiddenstate.auditing import worlds
from hiddenstate.auditing.replication import Law, foretold
from hiddenstate.auditing.summaries import separation
from hiddenstate.papers.worst_case_init import cells, methods, simulations
from hiddenstate.papers.worst_case_init.cells import AuditParameters
from hiddenstate.papers.worst_case_init.grid import WorstCaseInitGrid
from hiddenstate.papers.worst_case_init.summaries import AUDIT, separations
from hiddenstate.pipeline import verification
from hiddenstate.pipeline.estimates import select
from hiddenstate.pipeline.evidence import Estimate
from hiddenstate.pipeline.family import Made

Row = dict[str, Any]
Floats = NDArray[np.float64]
THRESHOLDS = np.linspace(0, 1, 11)
"""Shares of all scores above a threshold, between which the best ones are counted."""


def _epsilons(method: str, in_scores: Floats, out_scores: Floats, delta: float) -> Floats:
    """A method's bound for each audit, as an epsilon."""
    mus, _ = methods.bounds(method, in_scores, out_scores)
    return gaussian.epsilon_below(mus, delta)


def estimate(grid: WorstCaseInitGrid, scores: Made, bounds: Made) -> pd.DataFrame:
    """Epsilons, accuracy and gradient norm of every audit, for each figure that shows it.

    Quantities: epsilon (of each method and repeat), accuracy (mean over the models), gradient_norm,
    separation (of the scores, with the mu that the accountant allows as ``most``), repeats
    (how many there are; ``planned`` is how many there should be), agreement (p-value of a
    repeat of a live audit and the same repeat of another), ideal_epsilon (of each method: mean over
    simulated audits, with the range of 90 %), expected separation and expected epsilon (of expected
    audits, which bound nothing), expected against observed, and best threshold (how often it has at
    most a share x of all scores above it, and more than the share before).
    """
    rows: list[Row] = []
    found: dict[str, list[Row]] = {}
    shown = cells.shown(grid)
    there: dict[str, dict[int, pd.DataFrame]] = defaultdict(dict)
    for one, trained in scores.of(cells.trained):
        there[one.parameters.name] |= {int(i): part for i, part in trained.groupby("repeat")}
    for figure, audits in shown.items():
        for audit in audits:
            if audit.name not in found:
                found[audit.name] = [*_audit(audit, there[audit.name])]
            rows += [{"figure": figure} | described(audit) | row for row in found[audit.name]]
    for live in shown.get("live", []):
        other = next((a for audits in shown.values() for a in audits if _alike(a, live)), None)
        compared = _agreement(there[live.name], there[other.name]) if other else ()
        rows += [{"figure": "live"} | described(live) | row for row in compared]
    rows += _expected(scores, there)
    for cell, table in bounds.of(cells.ideal):
        shared = {"cell": cell.name, "quantity": "ideal_epsilon"} | cell.parameters.model_dump()
        for method, part in table.groupby("method", sort=False):
            low, high = part["value"].quantile([0.05, 0.95])
            row = {"method": method, "value": part["value"].mean(), "low": low, "high": high}
            rows.append(shared | row | {"kind": "estimate", "deviation": part["value"].std()})
            above = part["above"].dropna()
            counts, _ = np.histogram(above, bins=THRESHOLDS)
            best = {"quantity": "best threshold", "method": method, "kind": "estimate"}
            best |= {"audits": len(above)}
            rows += [
                shared | best | {"x": x, "value": count / max(len(above), 1)}
                for x, count in zip(THRESHOLDS[1:], counts, strict=True)
            ]
    return pd.DataFrame(rows)


def _expected(scores: Made, there: Mapping[str, Mapping[int, pd.DataFrame]]) -> list[Row]:
    """Expected audits: separation of each repeat, published epsilons, and audits beside them.

    The row of an audit has the mean separation of the repeats that both have: ``observed`` and
    ``expected`` with their errors, and their difference over these (z) as its value.
    """
    rows: list[Row] = []
    every: dict[str, dict[int, pd.Series]] = defaultdict(dict)
    made = list(scores.of(cells.expected))
    # Parts of a scale may ask for further starts of one audit, and the most are planned.
    asked = sorted((cell.parameters.audit for cell, _ in made), key=lambda audit: audit.planned)
    audits = {cells.point_of(audit): audit for audit in asked}
    for cell, table in made:
        audit, found = cell.parameters.audit, table.iloc[0]
        repeat = audit.start.repeats[0]
        every[cells.point_of(audit)][repeat] = found
        shared = {"figure": "expected", **described(audits[cells.point_of(audit)])}
        shared |= {"repeat": repeat, "kind": "expected"}
        high = found["difference"] / found["lower"] if found["lower"] > 0 else np.nan
        rows.append(
            shared
            | {"quantity": "expected separation", "method": "pairs and pass back"}
            | {"value": found["separation"], "low": found["separation"], "high": high}
            | {key: found[key] for key in ("most", "norm", "cosine", "error")}
        )
    rows += _published(pd.DataFrame(rows)) if rows else []
    for name, trained in there.items():
        # Without the numbers of repeats and models, the name is that of ``cells.point_of``.
        point = name.rpartition("_")[0]
        audited = {r: frame for r, frame in trained.items() if frame["world"].nunique() == 2}
        both = sorted(every[point].keys() & audited.keys())
        if both:
            row = {"figure": "expected", **described(audits[point]), "kind": "expected"}
            row |= {"quantity": "expected against observed", "method": "z", "cell": name}
            each = [(every[point][repeat], audited[repeat]) for repeat in both]
            rows.append(row | _compared(each))
    return rows


def _published(rows: pd.DataFrame) -> Iterator[Row]:
    """Mean epsilon that audits of each expected one publish, by method.

    Between ``low`` and ``high`` lie nine of ten means of five audits, each from its own start.
    """
    for at in separations(rows).to_dict("records"):
        shared = {"figure": "expected", "kind": "expected", "quantity": "expected epsilon"}
        shared |= {key: at[key] for key in (*AUDIT, "cell")} | {"starts": at["n"]}
        mean = Estimate(at["mean"], at["error"], at["freedom"])
        for method in simulations.SIMULATED:
            _, level = methods.METHODS[method]
            law = Law(int(at["models"]), at["delta"], at["most"], level)
            told = law.expected(mean)
            _, low, high = foretold(law, mean, at["scatter"], 0.9) if mean.known else (np.nan,) * 3
            row = {"method": method, "value": told.value, "error": told.error}
            yield shared | row | {"low": low, "high": high}


def _compared(each: Sequence[tuple[pd.Series, pd.DataFrame]]) -> Row:
    """Mean separations of some repeats, expected and observed, and their difference as z."""
    found = np.array([separation(*worlds(frame)) for _, frame in each])
    observed, error = found[:, 0].mean(), math.sqrt((found[:, 1] ** 2).sum()) / len(found)
    told = pd.DataFrame([expected for expected, _ in each])
    own = math.sqrt((told["error"].fillna(0) ** 2).sum()) / len(told)
    mean = told["separation"].mean()
    return {
        "value": (observed - mean) / math.hypot(error, own),
        "expected": mean, "error": own, "observed": observed, "observed_error": error,
        "repeats": len(found), "norm": told["norm"].mean(), "cosine": told["cosine"].mean(),
    }  # fmt: skip


def described(audit: AuditParameters) -> Row:
    """The factors that figures and claims tell audits apart by."""
    epochs = audit.start.epochs
    return {
        "cell": audit.name,
        **audit.model_dump(exclude={"start", "canary", "label"}),
        "epochs": epochs,
        "case": "worst" if epochs else "average",
    }


def _alike(one: AuditParameters, other: AuditParameters) -> bool:
    """True if two audits differ in how many repeats they have, and in nothing else."""

    def of(audit: AuditParameters) -> AuditParameters:
        start = audit.start.model_copy(update={"repeats": ()})
        return audit.model_copy(update={"start": start, "planned": 0})

    return one.planned != other.planned and of(one) == of(other)


def _agreement(
    live: Mapping[int, pd.DataFrame], other: Mapping[int, pd.DataFrame]
) -> Iterator[Row]:
    """Agreement of the scores of repeats that both have, with the same start and records."""
    for repeat in sorted(live.keys() & other.keys()):
        numbers = (frame["world"].value_counts().min() for frame in (other[repeat], live[repeat]))
        if not verification.can_disagree(*numbers):
            continue
        p_value = verification.compare(other[repeat], live[repeat])["p_value"].min()
        test = {"quantity": "agreement", "method": "Kolmogorov-Smirnov", "kind": "estimate"}
        yield test | {"repeat": repeat, "value": p_value}


def _audit(audit: AuditParameters, there: Mapping[int, pd.DataFrame]) -> Iterator[Row]:
    """Rows of an audit's repeats that are there, one per repeat and quantity."""
    # Empty fields, so that a scale of which no audit is there yet has the same columns.
    empty = {"repeat": np.nan, "most": np.nan}
    count = {"quantity": "repeats", "method": "count", "kind": "exact", "value": len(there)}
    yield empty | count
    for repeat, scores in there.items():
        yield from ({"repeat": repeat} | row for row in _repeat(audit, scores))


def _repeat(audit: AuditParameters, scores: pd.DataFrame) -> Iterator[Row]:
    mean = {"method": "mean", "kind": "estimate"}
    scores = select(scores, world=audit.worlds)
    for name in ("accuracy", "gradient_norm"):
        yield {"quantity": name, "value": scores[name].mean()} | mean
    if audit.models == 1:
        return
    ordered = scores.sort_values("run")
    inside, outside = worlds(ordered)
    for method, (rule, level) in methods.METHODS.items():
        value = _epsilons(method, inside[None], outside[None], audit.delta)[0]
        valid = {"kind": "lower", "confidence": 1 - level} if rule.valid else {"kind": "estimate"}
        yield {"quantity": "epsilon", "method": method, "value": value} | valid
    most = gaussian.mu(audit.epsilon, audit.delta)
    yield {"quantity": "separation", "value": separation(inside, outside)[0], "most": most} | mean
