"""The table of trained audits that ships with ``hiddenstate.atlas``, made from cached scores.

    python -m hiddenstate.papers.atlas.trained results/cached > src/hiddenstate/atlas/trained.csv

Each lower bound on mu is its own family's, of the audit's first repeat; ``FILES`` are the cached
files of the papers' main settings.
"""

import math
import sys
from pathlib import Path
from typing import Any

import pandas as pd
from pydantic import ValidationError

from hiddenstate.accounting import gaussian
from hiddenstate.atlas.trained import COLUMNS
from hiddenstate.auditing import GaussianDP, lower_bound, worlds
from hiddenstate.auditing.methods import CONFIDENCE, REPEATABLE
from hiddenstate.errors import InputError
from hiddenstate.papers import gradient_crafting, worst_case_init
from hiddenstate.papers.gradient_crafting.adversaries import CRAFTED, LOSS
from hiddenstate.papers.gradient_crafting.cells import HousingAudit
from hiddenstate.papers.gradient_crafting.summaries import HYPOTHESES
from hiddenstate.papers.worst_case_init.cells import AuditParameters
from hiddenstate.papers.worst_case_init.methods import METHODS
from hiddenstate.pipeline import scores
from hiddenstate.pipeline.cells import Cell
from hiddenstate.pipeline.estimates import select
from hiddenstate.pipeline.family import Family, Job, Train

Row = dict[str, Any]

FILES = (
    "gradient_crafting/housing_k*_fresh_*_repeat0.parquet",
    "worst_case_init/*_pre[05]_*_C1_*_repeat0.parquet",
)

WORST, AVERAGE = "worst-case-initialisation audit", "average-case audit"


def cached_files(folder: Path) -> list[Path]:
    """The files of trained audits in a folder such as ``results/cached``, in a fixed order.

    Those of public code's recipe are another reading of a setting that has one of the paper's, and
    expected audits are no audits.
    """
    found = [path for pattern in FILES for path in sorted(folder.glob(pattern))]
    return [
        path
        for path in found
        if "_code_" not in path.name and not path.name.startswith("expected_")
    ]


def table(files: list[Path]) -> pd.DataFrame:
    """The audits of these files, of equal ones the largest, with the columns of the table."""
    largest = candidates(files).sort_values("models", ascending=False, kind="stable")
    return bounded(largest.drop_duplicates(["audit", "mu"]).sort_index()).reset_index(drop=True)


def candidates(files: list[Path]) -> pd.DataFrame:
    """The audits of these files, with their accountant's mu; reads no scores."""
    return pd.DataFrame([row for path in files for row in _described(path)])


def bounded(rows: pd.DataFrame) -> pd.DataFrame:
    """The same audits with a lower bound on mu, by the package's default rule."""
    found = [_mu_bound(Path(row.path), row.adversary) for row in rows.itertuples()]
    return rows.assign(mu_bound=found).reindex(columns=list(COLUMNS))


def _described(path: Path) -> list[Row]:
    p = _job(path).cell.parameters
    shared = {"cell": path.stem, "path": str(path), "models": p.models}
    mu = gaussian.mu(p.epsilon, p.delta)
    if isinstance(p, HousingAudit):
        steps = p.every * p.insertions
        shared |= {"mu": mu, "noise_multiplier": math.sqrt(p.insertions) / mu, "steps": steps}
        where = f"California housing, {p.hidden_units} hidden units, a canary in " + (
            f"all {steps:,} steps" if p.every == 1 else f"{p.insertions:,} of {steps:,} steps"
        )
        crafted = f"gradient-crafting audit, k = {p.every}"
        rows = {CRAFTED: crafted} | ({LOSS: AVERAGE} if p.every == 1 else {})
        there = {word: audit for word, audit in rows.items() if word in p.adversaries}
        return [
            shared
            | {"adversary": word, "audit": audit}
            | {"setting": where + (", read by its loss" if audit == AVERAGE else "")}
            for word, audit in there.items()
        ]
    if p.models == 1:
        return []
    shared |= {"mu": mu, "noise_multiplier": math.sqrt(p.steps) / mu, "steps": p.steps}
    return [
        shared
        | {"adversary": "", "audit": WORST if p.start.epochs else AVERAGE}
        | {"setting": f"{p.start.dataset}, {p.records:,} records, full batch, {p.steps:,} steps"}
    ]


def _mu_bound(path: Path, adversary: str) -> float:
    """Lower bound on mu as the audit's own family states it."""
    job = _job(path)
    frame, _ = job.checked(path, scores.claimed_origin(path)["seed"])
    frame = select(frame, adversary=adversary) if adversary else frame
    ordered = frame.sort_values("run")
    inside, outside = worlds(ordered)
    if adversary:
        return lower_bound(inside, outside, HYPOTHESES, REPEATABLE, confidence=CONFIDENCE).value
    rule, level = METHODS["valid"]
    return lower_bound(inside, outside, GaussianDP(), rule, confidence=1 - level).value


def _job(path: Path) -> Job:
    """The job that a file says it was made by; refused unless its family still has such a work."""
    kinds: dict[str, tuple[Family, type[HousingAudit] | type[AuditParameters]]] = {
        "gradient_crafting": (gradient_crafting.FAMILY, HousingAudit),
        "worst_case_init": (worst_case_init.FAMILY, AuditParameters),
    }
    family, kind = kinds[path.parent.name]
    # Not isinstance: expected audits derive from trainings, and are none.
    (work,) = (work for work in family.works if type(work) is Train)
    claimed = scores.claimed_origin(path).get("cell", {})
    try:
        parameters = kind.model_validate(
            {k: v for k, v in claimed.items() if k not in ("revision", "start_revision")}
        )
    except ValidationError as error:
        raise InputError(
            f"{path}: its parameters are none of {path.parent.name} ({error.error_count()} differ)"
        ) from error
    return Job(work, Cell(path.stem, parameters))


if __name__ == "__main__":
    table(cached_files(Path(sys.argv[1]))).to_csv(sys.stdout, index=False)
