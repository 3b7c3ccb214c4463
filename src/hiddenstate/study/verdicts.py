"""Verdicts as files: CSV, Markdown, and the last lines of a run.

Sentences of the papers and our own statements are counted in tables of their own, everywhere.
"""

import json
import re
from collections.abc import Mapping, Sequence
from io import StringIO
from pathlib import Path
from typing import Any

import pandas as pd

from hiddenstate import papers
from hiddenstate.errors import InputError
from hiddenstate.files import text
from hiddenstate.pipeline import sealed
from hiddenstate.pipeline.evidence import GUARD
from hiddenstate.study.claims import COLUMNS, LEDGERS, Verdict

SYMBOLS = {"agrees": "✔", "contradicts": "✘", "depends": "±", "undecided": "?", "not judged": "○"}
"""Of the five groups, so that nobody needs to tell colours apart."""
NOUNS = {
    "paper": ("sentence of the papers", "sentences of the papers"),
    "own": ("statement of our own", "statements of our own"),
}
"""What a ledger counts, one and several."""
SOURCES = {
    "text": "quoted from the text",
    "second-hand": "second-hand: the text was not available",
    "reconstructed": "formula reconstructed: the available text has lost it",
}
"""Source classes of a paper's sentence, in words."""

MEANINGS = {
    Verdict.CONFIRMED: "quoted text, the paper's own parameters, exact numbers, and no free "
    "choice of ours that could turn it",
    Verdict.CONFIRMED_READING: "the same, except that a parameter, estimator, formula or source is "
    "ours or second-hand; the claim names it",
    Verdict.AGREES_REDUCED: "on other data, models or counts than the paper's",
    Verdict.REFUTED: "contradicted by proof or exact numbers at the paper's own parameters",
    Verdict.DIFFERS_READING: "contradicted, through what the text does not fix, or by statistics "
    "of our implementation",
    Verdict.DIFFERS_REDUCED: "contradicted on other data, models or counts than the paper's",
    Verdict.MISFIT: "the paper's printed parameters or numbers do not fit its printed number",
    Verdict.DEPENDS: "another reading of the text that was tried has another outcome",
    Verdict.HOLDS: "a statement of our own that the evidence bears out",
    Verdict.FAILS: "a statement of our own that the evidence contradicts",
    Verdict.UNDECIDED: "the evidence covers both sides, or would miss a difference that matters",
    Verdict.NOT_JUDGED: "the scale lacks the cells or the size that the claim needs",
}
"""When a verdict is given."""

_PLURALS = {
    "agrees": "agree",
    "depends": "depend",
    "differs": "differ",
    "fails": "fail",
    "holds": "hold",
}


def write(folder: Path, verdicts: pd.DataFrame, scale: str, expected: Path | None = None) -> None:
    """Write verdicts as ``claims.csv`` and ``claims.md``, which says if they are as expected."""
    made_of = sealed.of(sorted(set(verdicts["estimates"].astype(str))))
    own = sealed.write(folder / "claims.csv", verdicts, made_of)
    head = [f"# Verdicts at scale `{scale}`", judged(verdicts)]
    if expected:
        head.append(compared(verdicts, expected))
    sealed.write_page(folder / "claims.md", _page(head, verdicts), own)


def read(*paths: Path, grids: Mapping[str, str] | None = None) -> pd.DataFrame:
    """Verdicts of files that ``write`` wrote, one after the other; an empty field is "".

    grids: the families' grids by ``config.grid_names``; verdicts on any other are refused, as are
    files without one of these families, and a file that was cut or edited.
    """
    found = []
    for path in paths:
        content = text(path, "verdicts written by `hiddenstate job claims`")
        rows = _table(path, content)
        if missing := [name for name in COLUMNS if name not in rows]:
            raise InputError(f"{path}: lacks the columns {', '.join(missing)} of verdicts")
        for ledger, allowed in LEDGERS.items():
            got = set(rows.loc[rows["ledger"] == ledger, "verdict"])
            if unknown := sorted(got - {str(v) for v in allowed}):
                words = ", ".join(allowed)
                raise InputError(f"{path}: verdict: got {unknown[0]!r}; expected one of {words}")
        for name, grid in zip(rows["id"].map(_family), rows["grid"], strict=True):
            if grids is not None and grid != grids.get(name):
                wanted = repr(grids[name]) if name in grids else "no such family"
                raise InputError(
                    f"{path}: {name}: verdicts on the grid {grid!r}; expected {wanted}"
                )
        found.append(sealed.check(path, content, rows))
    every = pd.concat(found, ignore_index=True)
    judged = [name for name in grids or () if papers.load(name).checks]
    if lacking := [name for name in judged if name not in families(every)]:
        names = ", ".join(map(str, paths))
        raise InputError(f"{names}: no verdicts of {', '.join(lacking)}; expected every family's")
    return every


def check_estimates(path: Path, verdicts: pd.DataFrame, estimates: Path, own: str) -> None:
    """InputError for a verdict that was judged on other estimates than those of digest ``own``."""
    for claim, digest in zip(verdicts["id"], verdicts["estimates"], strict=True):
        if digest != own:
            raise InputError(
                f"{path}: {claim}: was judged on other estimates than {estimates}; remove the file "
                "and run again"
            )


def _table(path: Path, content: str) -> pd.DataFrame:
    """The rows of a CSV file with this content, as text."""
    try:
        return pd.read_csv(StringIO(content), dtype=str, keep_default_na=False)
    except (pd.errors.ParserError, pd.errors.EmptyDataError) as error:
        raise InputError(f"{path}: not a readable CSV file ({error})") from error


def of_ledger(verdicts: pd.DataFrame, ledger: str) -> pd.DataFrame:
    """The rows of one ledger."""
    return verdicts[verdicts["ledger"] == ledger]


def of_family(verdicts: pd.DataFrame, name: str) -> pd.DataFrame:
    """The rows of one family."""
    return verdicts[verdicts["id"].map(_family) == name]


def families(verdicts: pd.DataFrame) -> list[str]:
    """Families in the order of their rows."""
    return list(dict.fromkeys(_family(name) for name in verdicts["id"]))


def counts(verdicts: pd.DataFrame, ledger: str) -> pd.DataFrame:
    """How many claims of each family have each verdict, in one ledger; no total over ledgers."""
    mine = of_ledger(verdicts, ledger)
    table = pd.crosstab(mine["id"].map(_family), mine["verdict"].astype(str))
    columns = [str(verdict) for verdict in LEDGERS[ledger]]
    return table.reindex(index=families(mine), columns=columns, fill_value=0)


def tally(verdicts: pd.DataFrame, ledger: str) -> str:
    """The verdicts of one ledger in words: "2 confirmed, 1 undecided"."""
    found = of_ledger(verdicts, ledger)["verdict"].astype(str).value_counts()
    parts = [_counted(found[str(v)], v) for v in LEDGERS[ledger] if str(v) in found]
    return ", ".join(parts) or "none"


def _amount(n: int, ledger: str) -> str:
    return f"{n} {NOUNS[ledger][n != 1]}"


def _counted(n: int, verdict: Verdict) -> str:
    first, *rest = verdict.split()
    return " ".join([str(n), first if n == 1 else _PLURALS.get(first, first), *rest])


def lines(verdicts: pd.DataFrame) -> list[str]:
    """Last lines of a run: one for each ledger, and one for each broken check."""
    found = [
        f"{_amount(len(mine), ledger)}: {tally(verdicts, ledger)}"
        for ledger in LEDGERS
        if len(mine := of_ledger(verdicts, ledger))
    ]
    broken = verdicts[verdicts["problem"] != ""]
    return found + [f"CHECK FAILED {row.id}: {row.problem}" for row in broken.itertuples()]


def told(verdicts: pd.DataFrame, expected: Path | None = None) -> dict[str, Any]:
    """Content of ``lines`` and ``compared``, for programs.

    counts: of verdicts, by ledger. verdicts: ``id``, ``ledger``, ``verdict`` and ``problem`` of
    each claim. differing: the claims whose verdict is not the expected one, where one is.
    """
    rows = verdicts[["id", "ledger", "verdict", "problem"]].astype(str)
    counted = {ledger: counts(verdicts, ledger).sum() for ledger in LEDGERS}
    found: dict[str, Any] = {
        "counts": {
            ledger: {verdict: int(n) for verdict, n in sums.items() if n}
            for ledger, sums in counted.items()
        },
        "verdicts": rows.to_dict("records"),
    }
    if expected:
        found["differing"] = [
            {"id": name, "verdict": got, "expected": want}
            for name, got, want in differing(verdicts, expected)
        ]
    return found


def differing(
    verdicts: pd.DataFrame, expected: Path, *, part: bool = False
) -> list[tuple[str, str | None, str | None]]:
    """Claims (id, verdict, expected verdict) that are not as in a committed file; None: absent.

    part: the verdicts are of some families alone.
    """
    content = text(expected, "expected verdicts, with the columns id and verdict")
    rows = _table(expected, content)
    if list(rows) != ["id", "verdict"]:
        raise InputError(f"{expected}: got the columns {list(rows)}; expected id and verdict")
    want = dict(zip(rows["id"], rows["verdict"], strict=True))
    got = dict(zip(verdicts["id"], verdicts["verdict"].astype(str), strict=True))
    if part:
        here = set(map(_family, got))
        want = {name: verdict for name, verdict in want.items() if _family(name) in here}
    return [
        (name, got.get(name), want.get(name))
        for name in dict.fromkeys([*want, *got])
        if got.get(name) != want.get(name)
    ]


def compared(verdicts: pd.DataFrame, expected: Path, *, part: bool = False) -> str:
    """If verdicts are those of a committed file (``id``, ``verdict``); else which are not."""
    found = differing(verdicts, expected, part=part)
    if not found:
        return f"As expected: all {len(verdicts)} verdicts are those of {expected.as_posix()}."
    what = "1 verdict differs" if len(found) == 1 else f"{len(found)} verdicts differ"
    none = "no such claim"
    return "\n".join(
        [f"NOT as expected: {what} from {expected.as_posix()}:"]
        + [f"- {name}: {got or none}, expected: {want or none}" for name, got, want in found]
    )


def judged(verdicts: pd.DataFrame) -> str:
    """When, and at which commit, verdicts were judged."""
    dates = " and ".join(sorted(set(verdicts["date"]) - {""}))
    commits = sorted({_commit(str(name)) for name in verdicts["commit"]})
    return f"Judged on {dates or 'an unknown date'} (UTC), commit {' and '.join(commits)}."


def _commit(name: str) -> str:
    if not name:
        return "unknown"
    edited = " (edited)" if name.endswith("-dirty") else ""
    return f"`{name.removesuffix('-dirty')[:12]}`{edited}"


def table(verdicts: pd.DataFrame, ledger: str) -> str:
    """The counts of one ledger as a Markdown table, a row per family."""
    found = counts(verdicts, ledger)
    head = "paper" if ledger == "paper" else "family"
    shown = pd.DataFrame({head: [_named(name) for name in found.index]})
    shown["sentences" if ledger == "paper" else "statements"] = found.sum(axis=1).to_numpy()
    for verdict in found:
        shown[f"{SYMBOLS[Verdict(verdict).group]} {verdict}"] = found[verdict].to_numpy()
    return markdown(shown)


def markdown(frame: pd.DataFrame) -> str:
    """A table as Markdown, no wider than its words."""
    rows = [list(frame), ["---"] * frame.shape[1], *frame.astype(str).to_numpy().tolist()]
    return "\n".join(f"| {' | '.join(_cell(str(cell)) for cell in row)} |" for row in rows)


def _cell(words: str) -> str:
    return " ".join(words.split()).replace("|", "\\|")


def _named(name: str) -> str:
    return f"`{name}` ({papers.load(name).reference})"


def _family(name: str) -> str:
    return name.split(".")[0]


def _page(head: Sequence[str], verdicts: pd.DataFrame) -> str:
    """The whole page: a table for each ledger, and then every claim with its evidence."""
    parts = list(head)
    for ledger, title in (
        ("paper", "Sentences of the papers"),
        ("own", "Our own statements, counted separately"),
    ):
        parts += [f"## {title}", table(verdicts, ledger)]
    if len(close := guarded(verdicts)):
        parts += [
            "## Left open by the guard band",
            "Claims whose evidence would decide them, but not with 95 % if other seeds were drawn.",
            markdown(close),
        ]
    for name in families(verdicts):
        parts.append(f"## {papers.load(name).title}")
        for ledger in LEDGERS:
            rows = of_ledger(of_family(verdicts, name), ledger)
            if len(rows):
                parts.append(f"{_amount(len(rows), ledger)}: {tally(rows, ledger)}.")
            parts += [entry(row) for row in rows.to_dict("records")]
    return "\n\n".join(parts) + "\n"


def guarded(verdicts: pd.DataFrame) -> pd.DataFrame:
    """Claims that the guard band leaves open, and the chance that a rerun would say otherwise."""
    turns = pd.to_numeric(verdicts["turns"], errors="coerce")
    open_ = (verdicts["verdict"].astype(str) == Verdict.UNDECIDED) & (turns > 1 - GUARD)
    rows = [
        {"claim": f"`{verdicts.loc[i, 'id']}`", "chance of another outcome": f"{turns[i]:.0%}"}
        for i in turns[open_].sort_values(kind="stable").index
    ]
    return pd.DataFrame(rows)


def entry(row: Mapping[Any, Any]) -> str:
    """One claim as Markdown: what is said and where, the verdict, and what was measured."""
    verdict = Verdict(row["verdict"])
    parts = [
        f"### {row['id']}",
        f"{SYMBOLS[verdict.group]} **{verdict}**: {plain(row['statement'])}",
    ]
    if row["ledger"] == "paper":
        parts.append(
            f"> {plain(row['quote'])}\n>\n> {plain(row['place'])}; {plain(row['version'])}; "
            f"{SOURCES[row['source']]}."
        )
        parts += [
            f"Our choice: {plain(reading['choice'])}"
            + "".join(f" Otherwise {r['verdict']}: {plain(r['choice'])}" for r in reading["rivals"])
            for reading in json.loads(row["readings"])
        ]
    else:
        parts.append(f"Our own statement. Basis: {plain(row['place'])}")
    if row["measured"]:
        parts.append(f"Measured: {plain(row['measured'])}")
    if row["problem"]:
        parts.append(f"The check failed: {plain(row['problem'])}")
    if len(found := evidence(row["evidence"])):
        parts.append(markdown(found))
    if row["remark"]:
        parts.append(f"Remark: {plain(row['remark'])}")
    return "\n\n".join(parts)


def plain(words: str) -> str:
    """Words in which Markdown finds no emphasis, link or tag; formulas between dollars stay."""
    parts = re.split(r"(\$[^$]+\$)", " ".join(str(words).split()))
    parts[::2] = [re.sub(r"([\\*_\[\]`])", r"\\\1", part) for part in parts[::2]]
    parts[::2] = [part.replace("<", "&lt;") for part in parts[::2]]
    return "".join(parts)


def evidence(rows: str) -> pd.DataFrame:
    """A claim's evidence as a reader sees it: stated, measured, interval, allowed, outcome.

    A column that has nothing is left out.
    """
    found = json.loads(rows)
    shown = pd.DataFrame(
        {
            "quantity": [row["what"] for row in found],
            "stated": [row["stated"] for row in found],
            "measured": ["" if pd.isna(x := row["measured"]) else f"{x:.4g}" for row in found],
            "interval": [interval(row["low"], row["high"]) for row in found],
            "allowed": [row["allowed"] for row in found],
            "outcome": [f"{SYMBOLS.get(o := row['outcome'], '')} {o}".strip() for row in found],
        }
    )
    return shown.loc[:, (shown != "").any()]


def interval(low: float, high: float) -> str:
    """Limits as pages show them; nothing where there are none, a word where they are equal."""
    if pd.isna(low) or pd.isna(high):
        return ""
    if low == high:
        return "exact"
    if low == float("-inf") and high == float("inf"):
        return "unknown"
    return f"{low:.4g} to {high:.4g}"


def expectation(scale: str) -> str:
    """Where the verdicts that are expected at a scale are kept, seen from the tree's top."""
    return f"workflow/config/expected/{scale}.csv"


def expectations(verdicts: pd.DataFrame) -> str:
    """Table of the artifact appendix: the verdicts that a run should give, by family."""
    rows = []
    for name in families(verdicts):
        mine = verdicts[verdicts["id"].map(_family) == name]
        rows.append([f"`{name}`", tally(mine, "paper"), tally(mine, "own")])
    heads = ["family", "expected of the paper's sentences", "expected of our own statements"]
    return markdown(pd.DataFrame(rows, columns=heads))


BEGIN, END = "<!-- verdicts -->", "<!-- end of verdicts -->"
"""Marks of a page between which a table is generated."""


def between(name: str, content: str, made: str) -> str:
    """A page with something else between its marks."""
    before, begin, rest = content.partition(f"{BEGIN}\n\n")
    _old, end, after = rest.partition(f"\n\n{END}")
    if not begin or not end:
        raise InputError(f"{name}: no place for verdicts; expected the lines {BEGIN} and {END}")
    return f"{before}{begin}{made}{end}{after}"
