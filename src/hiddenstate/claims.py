"""Claims: sentences of the papers made checkable, and their verdicts.

``workflow/config/claims.yaml`` states each claim in words and names the check that measures it;
the checks live in the family's module and see nothing but its estimates.
"""

from collections.abc import Mapping
from pathlib import Path

import pandas as pd
import yaml
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from hiddenstate import papers
from hiddenstate.errors import InputError
from hiddenstate.estimates import cells_selected
from hiddenstate.files import atomic, require

SCALES = ("smoke", "laptop", "paper")
"""From least to most: a claim is judged at its own scale and those after it."""


NOT_JUDGED = "not judged at this scale"

COLUMNS = [
    *("id", "statement", "source", "stated", "measured", "tolerance", "deviation", "verdict"),
    *("cells", "remark", "grid"),
]
"""Of the verdicts; a paper may have no claim."""


class Claim(BaseModel):
    """One entry of claims.yaml."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    id: str = Field(pattern=r"^[a-z_]+\.[a-z0-9_]+$", description="family, dot, short name")
    statement: str = Field(description="what the paper says, in our words")
    source: str = Field(description="section, figure or table of the paper")
    stated: str = Field(description="the paper's value, or how it puts the finding")
    check: str = Field(description="name of the check in the family's module")
    judged_from: str = Field(
        description="the least scale at which the check means something",
        pattern=f"^({'|'.join(SCALES)})$",
    )
    shown: str = Field(default="", description="the family's figure, or else table, to look at")
    remark: str = Field(default="", description="why it comes out as it does, if not as stated")

    @property
    def family(self) -> str:
        """The family the claim belongs to."""
        return self.id.split(".")[0]


def read(path: str | Path) -> list[Claim]:
    """All claims of a file; an error names the entry and the key."""
    require(path, "the list of claims, workflow/config/claims.yaml")
    try:
        claims = TypeAdapter(list[Claim]).validate_python(
            yaml.safe_load(Path(path).read_text(encoding="utf-8"))
        )
    except (yaml.YAMLError, ValidationError) as error:
        raise InputError(f"{path}: {error}") from error
    for claim in claims:
        if claim.check not in papers.load(claim.family).checks:
            raise InputError(f"{path}: {claim.id}: check: got {claim.check!r}; no such check")
        family = papers.load(claim.family)
        if claim.shown not in {"", *family.figures, *family.tables}:
            raise InputError(
                f"{path}: {claim.id}: shown: got {claim.shown!r}; no such figure or table"
            )
    if len({claim.id for claim in claims}) < len(claims):
        raise InputError(f"{path}: two claims share an id")
    return claims


def judge(claims: list[Claim], estimates: Mapping[str, pd.DataFrame], scale: str) -> pd.DataFrame:
    """One row per claim of the families in ``estimates``: what was measured, and the verdict.

    ``cells`` are those of the estimates that the check selected, joined by "; ", and ``grid`` is
    that of the estimates.
    """
    # A scale of the user's own is trusted to mean what it says.
    rank = SCALES.index(scale) if scale in SCALES else len(SCALES)
    rows = []
    for claim in claims:
        if claim.family not in estimates:
            continue
        row = claim.model_dump(include={"id", "statement", "source", "stated"})
        found, cells = None, set[str]()
        if rank >= SCALES.index(claim.judged_from):
            with cells_selected() as cells:
                check = papers.load(claim.family).checks[claim.check]
                found = check.measure(estimates[claim.family])
        if found is None:
            row |= {"measured": "", "tolerance": "", "deviation": None}
            row |= {"verdict": NOT_JUDGED, "cells": ""}
        else:
            row |= {
                "measured": found.measured,
                "tolerance": found.tolerance,
                "deviation": found.deviation,
                "verdict": "reproduced" if found.holds else "not reproduced",
                "cells": "; ".join(sorted(cells)),
            }
        grid = next(iter(estimates[claim.family].get("grid", ())), "")
        rows.append(row | {"remark": claim.remark, "grid": grid})
    return pd.DataFrame(rows, columns=COLUMNS)


def signed(deviation: float | None) -> str:
    """A deviation in standard errors as pages show it; nothing where there is none."""
    return "" if pd.isna(deviation) else f"{deviation:+.1f}"


def write(verdicts: pd.DataFrame, csv: Path, markdown: Path, scale: str) -> None:
    """Write the verdicts as CSV and, without cells and grid, as a Markdown page."""
    with atomic(csv) as temporary:
        verdicts.to_csv(temporary, index=False)
    counts = verdicts["verdict"].value_counts()
    summary = ", ".join(f"{counts[verdict]} {verdict}" for verdict in sorted(counts.index))
    with atomic(markdown) as temporary:
        temporary.write_text(
            f"# Claims and verdicts at scale `{scale}`\n\n"
            + ": ".join(filter(None, (f"{len(verdicts)} claims", summary)))
            + ".\n\n"
            + verdicts.drop(columns=["cells", "grid"])
            .assign(deviation=verdicts["deviation"].map(signed))
            .to_markdown(index=False, disable_numparse=True)
            + "\n",
            encoding="utf-8",
        )
