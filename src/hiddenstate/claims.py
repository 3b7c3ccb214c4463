"""Claims: sentences of the papers made checkable, our own statements, and their verdicts.

``workflow/config/claims/<family>.yaml`` has two ledgers that are never added up: ``paper`` quotes
sentences and numbers of the paper, ``own`` has what this package says of itself. The check of a
claim is the function of its name in the family's ``checks`` module; it sees nothing but the
family's estimates and returns evidence (``hiddenstate.evidence``). The verdict follows from the
evidence and from what the claim says of its source, by ``verdict`` alone.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal

import pandas as pd
import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from hiddenstate import papers
from hiddenstate.errors import InputError
from hiddenstate.evidence import Evidence, Outcome
from hiddenstate.files import atomic, require

SCALES = ("smoke", "laptop", "paper")
"""From least to most: a claim is judged at its own scale and those after it."""

Scale = Literal["smoke", "laptop", "paper"]


class Verdict(StrEnum):
    """What is said of a claim, by its ledger, its source and its evidence."""

    CONFIRMED = "confirmed"
    CONFIRMED_READING = "confirmed under a reading"
    AGREES_REDUCED = "agrees at reduced scale"
    REFUTED = "refuted"
    DIFFERS_READING = "differs under our reading"
    DIFFERS_REDUCED = "differs at reduced scale"
    HOLDS = "holds"
    FAILS = "fails"
    UNDECIDED = "undecided"
    NOT_JUDGED = "not judged"

    @property
    def group(self) -> str:
        """What tables and colours show: the grade of the evidence stands beside it."""
        return next(group for group, verdicts in GROUPS.items() if self in verdicts)


GROUPS: dict[str, tuple[Verdict, ...]] = {
    "agrees": (
        Verdict.CONFIRMED,
        Verdict.CONFIRMED_READING,
        Verdict.AGREES_REDUCED,
        Verdict.HOLDS,
    ),
    "contradicts": (
        Verdict.REFUTED,
        Verdict.DIFFERS_READING,
        Verdict.DIFFERS_REDUCED,
        Verdict.FAILS,
    ),
    "undecided": (Verdict.UNDECIDED,),
    "not judged": (Verdict.NOT_JUDGED,),
}
"""The verdicts by what they say, best evidence first."""

LEDGERS: dict[str, tuple[Verdict, ...]] = {
    "paper": (
        *GROUPS["agrees"][:3],
        *GROUPS["contradicts"][:3],
        Verdict.UNDECIDED,
        Verdict.NOT_JUDGED,
    ),
    "own": (Verdict.HOLDS, Verdict.FAILS, Verdict.UNDECIDED, Verdict.NOT_JUDGED),
}
"""The verdicts that either ledger can have, in the order of its table."""

COLUMNS = [
    *("id", "ledger", "quote", "statement", "place", "version", "source", "readings", "parameters"),
    *("verdict", "group", "measured", "evidence", "margin", "remark", "grid"),
]
"""Of the verdicts; a paper may have no claim."""


class _Entry(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Reading(_Entry):
    """A choice of ours that the verdict depends on, because the text does not fix it."""

    choice: str = Field(min_length=1, description="what we chose")
    rival: str = Field(
        default="", description="the verdict under another choice, where that was tried"
    )


class Claim(_Entry):
    """An entry of either ledger."""

    id: str = Field(pattern=r"^[a-z_]+\.[a-z0-9_]+$", description="family, dot, name of the check")
    statement: str = Field(min_length=1, description="in our words; it can be read alone")
    judged_from: Scale = Field(description="the least scale at which the check means something")
    shown: str = Field(default="", description="the family's figure, or else table, to look at")
    remark: str = Field(default="", description="why it comes out as it does")
    cost: str = Field(default="", description="what the cells that a scale lacks would take")

    @property
    def family(self) -> str:
        """The family that the claim belongs to."""
        return self.id.split(".")[0]

    @property
    def check(self) -> str:
        """The check's name in the family's modules."""
        return self.id.split(".")[1]


class PaperClaim(Claim):
    """A sentence or a printed number of a paper: one sentence, one entry."""

    quote: str = Field(min_length=1, description="verbatim, or the number that is printed")
    place: str = Field(min_length=1, description="section, figure or table")
    version: str = Field(min_length=1, description="of the text that the quote is from")
    source: Literal["text", "second-hand", "reconstructed"] = Field(
        description="text at hand; peer reviews or a public re-implementation; a formula that the "
        "text at hand has lost"
    )
    own_parameters_from: Scale | Literal["never"] = Field(
        description="the least scale whose cells have the paper's own data, parameters and counts"
    )
    readings: tuple[Reading, ...] = Field(
        default=(), description="choices of ours that could turn the verdict"
    )


class OwnStatement(Claim):
    """A statement of this package: a validation, a variant, a theorem or a finding of ours."""

    basis: str = Field(min_length=1, description="what it rests on, or the sentence it varies")


class _File(_Entry):
    """One family's claims."""

    paper: tuple[PaperClaim, ...] = ()
    own: tuple[OwnStatement, ...] = ()


def read(folder: str | Path) -> list[Claim]:
    """All claims of a folder, a file per family; an error names the file, the entry and the key."""
    require(folder, "the folder of claims, workflow/config/claims")
    found: list[Claim] = []
    for path in sorted(Path(folder).glob("*.yaml")):
        try:
            content = _File.model_validate(yaml.safe_load(path.read_text(encoding="utf-8")) or {})
        except (yaml.YAMLError, ValidationError) as error:
            raise InputError(f"{path}: {error}") from error
        entries: tuple[Claim, ...] = (*content.paper, *content.own)
        for claim in entries:
            _refuse_unknown(path, claim)
        found += entries
    ids = [claim.id for claim in found]
    if twice := sorted({one for one in ids if ids.count(one) > 1}):
        raise InputError(f"{folder}: two claims have the id {twice[0]!r}")
    return found


def _refuse_unknown(path: Path, claim: Claim) -> None:
    if claim.family != path.stem:
        raise InputError(f"{path}: id: got {claim.id!r}; expected one that begins {path.stem}.")
    family = papers.load(claim.family)
    if claim.check not in family.checks:
        raise InputError(f"{path}: {claim.id}: no check of this name in {claim.family}'s checks")
    if claim.shown not in {"", *family.figures, *family.tables}:
        raise InputError(f"{path}: {claim.id}: shown: got {claim.shown!r}; no such figure or table")


def verdict(claim: Claim, evidence: Evidence | None, scale: str) -> Verdict:
    """The verdict on a claim: the one place that decides it.

    ``evidence`` is None where cells are absent. A scale of the user's own is taken at its word as
    to what it can judge, and never for the paper's own parameters.
    """
    if evidence is None or _rank(scale, len(SCALES)) < SCALES.index(claim.judged_from):
        return Verdict.NOT_JUDGED
    outcome = evidence.outcome
    if outcome not in (Outcome.AGREES, Outcome.CONTRADICTS):
        return Verdict.UNDECIDED
    agrees = outcome == Outcome.AGREES
    if not isinstance(claim, PaperClaim):
        return Verdict.HOLDS if agrees else Verdict.FAILS
    if reduced(claim, scale):
        return Verdict.AGREES_REDUCED if agrees else Verdict.DIFFERS_REDUCED
    ours = bool(claim.readings) or claim.source != "text"
    if agrees:
        return Verdict.CONFIRMED_READING if ours else Verdict.CONFIRMED
    # Statistical evidence comes from an implementation, which is a reading too.
    return Verdict.DIFFERS_READING if ours or not evidence.exact else Verdict.REFUTED


def reduced(claim: PaperClaim, scale: str) -> bool:
    """If a scale has other data, parameters or counts than the paper for this claim."""
    if claim.own_parameters_from == "never":
        return True
    return _rank(scale, SCALES.index("laptop")) < SCALES.index(claim.own_parameters_from)


def _rank(scale: str, of_others: int) -> int:
    return SCALES.index(scale) if scale in SCALES else of_others


def judge(claims: list[Claim], estimates: Mapping[str, pd.DataFrame], scale: str) -> pd.DataFrame:
    """One row per claim of the families in ``estimates``, of both ledgers.

    A check that raises an error leaves its own claim without a verdict, named, and no other.
    ``evidence`` is JSON, a list of rows as ``evidence.Judged``; ``grid`` is that of the estimates.
    """
    rows = []
    for claim in claims:
        if claim.family not in estimates:
            continue
        frame, problem = estimates[claim.family], ""
        evidence: Evidence | None = None
        if _rank(scale, len(SCALES)) >= SCALES.index(claim.judged_from):
            try:
                evidence = papers.load(claim.family).checks[claim.check].measure(frame)
            except Exception as error:
                problem = f"The check failed with {type(error).__name__}: {error}"
        rows.append(_row(claim, evidence, scale, frame, problem))
    return pd.DataFrame(rows, columns=COLUMNS)


def _row(
    claim: Claim, evidence: Evidence | None, scale: str, frame: pd.DataFrame, problem: str
) -> dict[str, Any]:
    found = verdict(claim, evidence, scale)
    row: dict[str, Any] = {
        **{"id": claim.id, "statement": claim.statement, "verdict": found, "group": found.group},
        "measured": problem or ("" if evidence is None else evidence.note),
        "evidence": "" if evidence is None else json.dumps([asdict(r) for r in evidence.rows]),
        "margin": None if evidence is None else evidence.margin,
        "remark": claim.remark or (claim.cost if found == Verdict.NOT_JUDGED else ""),
        "grid": next(iter(frame.get("grid", ())), ""),
    }
    if isinstance(claim, PaperClaim):
        kept = claim.model_dump(include={"quote", "place", "version", "source"})
        readings = [reading.model_dump() for reading in claim.readings]
        parameters = "reduced" if reduced(claim, scale) else "paper"
        return (
            row
            | kept
            | {
                "ledger": "paper",
                "readings": json.dumps(readings, ensure_ascii=False),
                "parameters": parameters,
            }
        )
    basis = claim.basis if isinstance(claim, OwnStatement) else ""
    return row | {"ledger": "own", "place": basis, "readings": "[]", "parameters": ""}


def counts(verdicts: pd.DataFrame, ledger: str) -> pd.DataFrame:
    """How many claims of each family have each verdict, in one ledger; no total over ledgers."""
    mine = verdicts[verdicts["ledger"] == ledger]
    families = mine["id"].str.split(".").str[0]
    table = pd.crosstab(families, mine["verdict"].astype(str))
    order = list(dict.fromkeys(families))
    return table.reindex(index=order, columns=[str(v) for v in LEDGERS[ledger]], fill_value=0)


def summary(verdicts: pd.DataFrame, ledger: str) -> str:
    """The verdicts of one ledger in a line: "31 sentences: 11 confirmed, …"."""
    mine = verdicts.loc[verdicts["ledger"] == ledger, "verdict"].astype(str)
    found = mine.value_counts()
    parts = [f"{found[str(v)]} {v}" for v in LEDGERS[ledger] if str(v) in found]
    noun = "sentences of the papers" if ledger == "paper" else "statements of our own"
    return f"{len(mine)} {noun}: " + (", ".join(parts) or "none")


def write(verdicts: pd.DataFrame, csv: Path, markdown: Path, scale: str) -> None:
    """Write the verdicts as CSV and as a Markdown page, a table for each ledger."""
    with atomic(csv) as temporary:
        verdicts.to_csv(temporary, index=False)
    with atomic(markdown) as temporary:
        temporary.write_text(_markdown(verdicts, scale), encoding="utf-8")


def _markdown(verdicts: pd.DataFrame, scale: str) -> str:
    parts = [f"# Verdicts at scale `{scale}`"]
    for ledger, title in (
        ("paper", "Sentences of the papers"),
        ("own", "Our own statements, counted apart"),
    ):
        mine = verdicts[verdicts["ledger"] == ledger]
        parts += [f"## {title}", f"{summary(verdicts, ledger)}."]
        if len(mine):
            parts.append(counts(verdicts, ledger).to_markdown())
        for row in mine.to_dict("records"):
            parts.append(_entry(row))
    return "\n\n".join(parts) + "\n"


def _entry(row: Mapping[str, Any]) -> str:
    lines = [f"### {row['id']}: {row['verdict']}", "", str(row["statement"])]
    if row["ledger"] == "paper":
        lines += ["", f"> {row['quote']} ({row['place']}, {row['version']}; {row['source']})"]
        lines += [
            "",
            *(
                f"- Reading: {reading['choice']}"
                + (f" Rival: {reading['rival']}" if reading["rival"] else "")
                for reading in json.loads(row["readings"])
            ),
        ]
    if row["measured"]:
        lines += ["", f"Measured: {row['measured']}"]
    if row["evidence"]:
        lines += ["", evidence_table(row["evidence"]).to_markdown(index=False)]
    if row["remark"]:
        lines += ["", f"Remark: {row['remark']}"]
    return "\n".join(lines)


def evidence_table(text: str) -> pd.DataFrame:
    """A claim's evidence as a reader sees it: stated, measured, interval, allowed, outcome."""
    rows = json.loads(text)
    return pd.DataFrame(
        {
            "quantity": [row["what"] for row in rows],
            "stated": [row["stated"] for row in rows],
            "measured": [f"{row['measured']:.4g}" for row in rows],
            "interval": [interval(row["low"], row["high"]) for row in rows],
            "allowed": [row["allowed"] for row in rows],
            "outcome": [row["outcome"] for row in rows],
        }
    )


def interval(low: float, high: float) -> str:
    """Limits as pages show them; nothing where there are none, one number where they are equal."""
    if pd.isna(low) or pd.isna(high):
        return ""
    if low == high:
        return "exact"
    return f"{low:.4g} to {high:.4g}"
