"""Claims: sentences of the papers made checkable, our own statements, and their verdicts.

``workflow/config/claims/<family>.yaml`` has two ledgers that are never added up: ``paper`` quotes
sentences and numbers of the paper, ``own`` has what this package says of itself. The check of a
claim is the function of its name in the family's ``checks`` module; it sees nothing but the
family's estimates and returns evidence (``pipeline.evidence``). The verdict follows from the
evidence and from what the claim says of its source, by ``verdict`` alone. How verdicts are written
and counted is in ``hiddenstate.study.verdicts``.
"""

import json
from dataclasses import asdict
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal

import pandas as pd
from pydantic import BaseModel, ConfigDict, Field

from hiddenstate import papers
from hiddenstate.errors import InputError, expect
from hiddenstate.pipeline import scores, sealed
from hiddenstate.pipeline.evidence import Evidence, Outcome
from hiddenstate.study.config import checked, loaded
from hiddenstate.study.levels import SCALES, Level, Scale


class Verdict(StrEnum):
    """Verdict on a claim, by its ledger, its source and its evidence."""

    CONFIRMED = "confirmed"
    CONFIRMED_READING = "confirmed under a reading"
    AGREES_REDUCED = "agrees at reduced scale"
    REFUTED = "refuted"
    DIFFERS_READING = "differs under our reading"
    DIFFERS_REDUCED = "differs at reduced scale"
    MISFIT = "printed numbers do not fit"
    DEPENDS = "depends on the reading"
    HOLDS = "holds"
    FAILS = "fails"
    UNDECIDED = "undecided"
    NOT_JUDGED = "not judged"

    @property
    def group(self) -> str:
        """Group that tables and colours show; the grade of the evidence stands beside it."""
        return next(group for group, verdicts in GROUPS.items() if self in verdicts)


GROUPS: dict[str, tuple[Verdict, ...]] = {
    "agrees": (Verdict.CONFIRMED, Verdict.CONFIRMED_READING, Verdict.AGREES_REDUCED, Verdict.HOLDS),
    "contradicts": (
        Verdict.REFUTED,
        Verdict.DIFFERS_READING,
        Verdict.DIFFERS_REDUCED,
        Verdict.MISFIT,
        Verdict.FAILS,
    ),
    "depends": (Verdict.DEPENDS,),
    "undecided": (Verdict.UNDECIDED,),
    "not judged": (Verdict.NOT_JUDGED,),
}
"""The verdicts by what they say, best evidence first: five for the eye."""

LEDGERS: dict[str, tuple[Verdict, ...]] = {
    "paper": (
        *GROUPS["agrees"][:3],
        *GROUPS["contradicts"][:4],
        Verdict.DEPENDS,
        Verdict.UNDECIDED,
        Verdict.NOT_JUDGED,
    ),
    "own": (Verdict.HOLDS, Verdict.FAILS, Verdict.UNDECIDED, Verdict.NOT_JUDGED),
}
"""The verdicts that either ledger can have, in the order of its table."""

COLUMNS = [
    *("id", "ledger", "verdict", "statement", "quote", "place", "version", "source", "readings"),
    *("parameters", "measured", "problem", "evidence", "turns", "remark", "shown"),
    *("grid", "estimates", "commit", "date"),
]
"""Of the verdicts; a paper may have no claim."""


class _Entry(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Rival(_Entry):
    """Another choice than ours that was tried, and what the sentence then comes to."""

    choice: str = Field(min_length=1, description="the other choice, and what it gives")
    verdict: Literal["agrees", "contradicts", "undecided"] = Field(
        description="the outcome under that choice"
    )
    aside: Literal["", "existence", "own numbers"] = Field(
        default="",
        description="why charity sets it aside: the sentence asks for one instance; the paper's "
        "own numbers or words are impossible under it",
    )


class Reading(_Entry):
    """A choice of ours that the verdict depends on, because the text does not fix it."""

    choice: str = Field(min_length=1, description="what we chose")
    rivals: tuple[Rival, ...] = Field(default=(), description="other choices that were tried")


class Departure(_Entry):
    """A place where the code has something else than the text: a reading of all its claims."""

    id: str = Field(pattern=r"^[a-z0-9_]+$", description="as the marker in the code has it")
    printed: str = Field(min_length=1, description="what the text has, and where")
    ours: str = Field(min_length=1, description="what the code has, and why")
    claims: tuple[str, ...] = Field(min_length=1, description="checks that stand on it")


class Claim(_Entry):
    """An entry of either ledger."""

    id: str = Field(pattern=r"^[a-z_]+\.[a-z0-9_]+$", description="family, dot, name of the check")
    statement: str = Field(min_length=1, description="in our words; it can be read alone")
    judged_from: Scale = Field(description="the least scale at which the check means something")
    shown: str = Field(default="", description="the family's figure, or else table, to look at")
    remark: str = Field(default="", description="why it comes out as it does")
    cost: str = Field(default="", description="what would settle an open row, and what it takes")

    @property
    def family(self) -> str:
        return self.id.split(".")[0]

    @property
    def check(self) -> str:
        return self.id.split(".")[1]


class PaperClaim(Claim):
    """A sentence or a printed number of a paper: one sentence, one entry."""

    quote: str = Field(min_length=1, description="verbatim, or the number that is printed")
    place: str = Field(min_length=1, description="section, figure or table")
    version: str = Field(min_length=1, description="of the text that the quote is from")
    source: Literal["text", "second-hand", "reconstructed"] = Field(
        description="quoted text; peer reviews or a public re-implementation; a formula that the "
        "available text has lost"
    )
    own_parameters_from: Scale | Literal["never"] = Field(
        description="the least scale whose cells have the paper's own data, parameters and counts"
    )
    readings: tuple[Reading, ...] = Field(
        default=(), description="choices of ours that could turn the verdict"
    )
    arithmetic: bool = Field(
        default=False, description="the sentence is that printed numbers fit each other"
    )


class OwnStatement(Claim):
    """A statement of this package: a validation, a variant, a theorem or a finding of ours."""

    basis: str = Field(min_length=1, description="what it rests on, or the sentence it varies")


class Item(_Entry):
    """A numbered theorem, equation, algorithm, figure or table of a paper."""

    item: str = Field(
        pattern=r"^[A-Z][a-z]+ [0-9A-Z.]+( to [0-9]+)?$",
        description="as the text numbers it, or several: Equations 8 to 20",
    )
    rows: tuple[str, ...] = Field(default=(), description="checks of the sentences about it")
    because: str = Field(default="", description="why it is not checkable, where it has no row")


class Page(_Entry):
    """Words of a paper's page that are not made from its verdicts."""

    main: str = Field(min_length=1, description="the paper's main claim, in about ten words")
    row: str = Field(min_length=1, description="the check of the sentence that says it")
    theirs: str = Field(min_length=1, description="the paper's number for it")
    ours: str = Field(min_length=1, description="our number for it")
    holds: str = Field(min_length=1, description="what holds")
    fails: str = Field(min_length=1, description="what does not")
    open: str = Field(min_length=1, description="what nobody can tell yet")
    figure: str = Field(min_length=1, description="the figure that the page shows")
    caption: str = Field(
        min_length=1, description="the figure beside what the paper says of its own"
    )
    questions: tuple[str, ...] = Field(min_length=1, description="to the authors")
    because: dict[str, dict[str, str]] = Field(
        default={}, description="by row and what its verdict says: why, in a plain sentence"
    )


class _File(_Entry):
    """One family's claims."""

    page: Page | None = None
    items: tuple[Item, ...] = ()
    departures: tuple[Departure, ...] = ()
    paper: tuple[PaperClaim, ...] = ()
    own: tuple[OwnStatement, ...] = ()


def read(place: str | Path) -> list[Claim]:
    """All claims of a folder, a file per family, or of one file.

    An error names the file, the entry and the key.
    """
    place = Path(place)
    found: list[Claim] = []
    for path in sorted(place.glob("*.yaml")) if place.is_dir() else [place]:
        written = loaded(path, "claims such as workflow/config/claims/encoding_loss.yaml")
        content = checked(path, _File, written, tuple(_File.model_fields))
        entries: tuple[Claim, ...] = (*_departing(path, content), *content.own)
        for claim in entries:
            _refuse_unknown(path, claim)
        found += entries
    ids = [claim.id for claim in found]
    if twice := sorted({one for one in ids if ids.count(one) > 1}):
        raise InputError(f"{place}: two claims have the id {twice[0]!r}")
    return found


def pages(place: str | Path) -> dict[str, Page]:
    """The words of each paper's page, from a folder of claims."""
    found = {}
    for path in sorted(Path(place).glob("*.yaml")):
        content = checked(path, _File, loaded(path, "claims"), tuple(_File.model_fields))
        if content.page is not None:
            _refuse_unknown_rows(path, content.page, {claim.check for claim in content.paper})
            found[path.stem] = content.page
    return found


def _refuse_unknown_rows(path: Path, page: Page, names: set[str]) -> None:
    expect(page.row in names, f"{path}: page.row", page.row, "a sentence")
    for row, reasons in page.because.items():
        expect(row in names, f"{path}: page.because", row, "a sentence")
        for group in sorted(reasons):
            name = f"{path}: page.because.{row}"
            expect(group in GROUPS, name, group, f"one of {', '.join(GROUPS)}")


def _departing(path: Path, content: _File) -> list[PaperClaim]:
    """The paper's claims, each with the departures of the code that it stands on as readings."""
    found = {claim.check: claim for claim in content.paper}
    for departure in content.departures:
        reading = Reading(choice=f"{departure.ours} The text: {departure.printed}")
        for name in departure.claims:
            place = f"{path}: departures: {departure.id}: claims"
            expect(name in found, place, name, f"one of {', '.join(found)}")
            readings = (*found[name].readings, reading)
            found[name] = found[name].model_copy(update={"readings": readings})
    # Two entries of one id are refused by the caller, which counts them.
    return list(found.values()) if len(found) == len(content.paper) else list(content.paper)


def _refuse_unknown(path: Path, claim: Claim) -> None:
    expect(claim.family == path.stem, f"{path}: id", claim.id, f"one that begins {path.stem}.")
    family = papers.load(claim.family)
    if claim.check not in family.checks:
        raise InputError(f"{path}: {claim.id}: no check of this name in {claim.family}'s checks")
    if claim.shown not in {"", *family.figures, *family.tables}:
        raise InputError(f"{path}: {claim.id}: shown: got {claim.shown!r}; no such figure or table")


def verdict(claim: Claim, evidence: Evidence | None, level: Level) -> Verdict:
    """The verdict on a claim: the one place that decides it.

    ``evidence`` is None where cells are absent. ``level`` is that of the grid.
    """
    if evidence is None or SCALES.index(level.size) < SCALES.index(claim.judged_from):
        return Verdict.NOT_JUDGED
    outcome = evidence.outcome
    if outcome not in (Outcome.AGREES, Outcome.CONTRADICTS):
        return Verdict.UNDECIDED
    agrees = outcome == Outcome.AGREES
    if not isinstance(claim, PaperClaim):
        return Verdict.HOLDS if agrees else Verdict.FAILS
    rivals = [rival for reading in claim.readings for rival in reading.rivals]
    if any(rival.verdict != outcome and not rival.aside for rival in rivals):
        return Verdict.DEPENDS
    if reduced(claim, level):
        return Verdict.AGREES_REDUCED if agrees else Verdict.DIFFERS_REDUCED
    # Statistics come from an implementation, which is a reading too, whatever they say.
    ours = bool(claim.readings) or claim.source != "text" or not evidence.exact
    if agrees:
        return Verdict.CONFIRMED_READING if ours else Verdict.CONFIRMED
    if claim.arithmetic and evidence.exact:
        return Verdict.MISFIT
    return Verdict.DIFFERS_READING if ours else Verdict.REFUTED


def reduced(claim: PaperClaim, level: Level) -> bool:
    """If a grid has other data, parameters or counts than the paper for this claim."""
    if claim.own_parameters_from == "never" or level.own is None:
        return True
    return SCALES.index(level.own) < SCALES.index(claim.own_parameters_from)


def judge(claims: list[Claim], estimates: pd.DataFrame, level: Level) -> pd.DataFrame:
    """One row per claim of a family, of both ledgers, from the family's estimates.

    A check that raises an error leaves its own claim without a verdict, with the error as its
    ``problem``, and no other. Checks run at every scale, so that a broken one is found where runs
    are short; below the level of their claim their answer is thrown away. ``evidence`` is JSON, a
    list of rows as ``evidence.Judged``; ``grid`` is that of the estimates, and ``estimates`` their
    digest; ``commit`` and ``date`` (UTC) are those of judging.
    """
    stamp = {
        "estimates": estimates.attrs.get(sealed.DIGEST, ""),
        "commit": scores.commit() or "",
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
    }
    rows = []
    for claim in claims:
        problem = ""
        try:
            evidence = papers.load(claim.family).checks[claim.check].measure(estimates)
            row = _row(claim, evidence, level)
        # What a check yields is judged in its row, and may fail there.
        except Exception as error:
            problem = f"{type(error).__name__}: {error}"
            row = _row(claim, None, level)
        grid = next(iter(estimates.get("grid", ())), "")
        rows.append(row | {"problem": problem, "grid": grid} | stamp)
    return pd.DataFrame(rows, columns=COLUMNS)


def _row(claim: Claim, evidence: Evidence | None, level: Level) -> dict[str, Any]:
    found = verdict(claim, evidence, level)
    if found == Verdict.NOT_JUDGED:
        evidence = None
    told: dict[str, Any] = {"ledger": "own", "readings": "[]", "parameters": ""}
    if isinstance(claim, PaperClaim):
        readings = [reading.model_dump() for reading in claim.readings]
        told = {
            **claim.model_dump(include={"quote", "place", "version", "source"}),
            "ledger": "paper",
            "readings": json.dumps(readings, ensure_ascii=False),
            "parameters": "reduced" if reduced(claim, level) else "paper",
        }
    elif isinstance(claim, OwnStatement):
        told["place"] = claim.basis
    rows = [] if evidence is None else [asdict(row) for row in evidence.rows]
    return told | {
        **{"id": claim.id, "statement": claim.statement, "shown": claim.shown, "verdict": found},
        "measured": "" if evidence is None else evidence.note,
        "evidence": json.dumps(rows, ensure_ascii=False),
        "turns": None if evidence is None else evidence.turns,
        "remark": " ".join(
            [claim.remark, claim.cost * (found in (Verdict.NOT_JUDGED, Verdict.UNDECIDED))]
        ).strip(),
    }
