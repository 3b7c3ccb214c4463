"""The page that a reviewer reads: each claim with its verdict under the figure that shows it.

One HTML file that needs no network and no script: pictures and tables are in it.
"""

import base64
import filecmp
import json
import os
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from importlib.resources import files as resources
from pathlib import Path
from typing import Any

import jinja2
import pandas as pd

import hiddenstate
from hiddenstate import papers
from hiddenstate.errors import InputError
from hiddenstate.files import require
from hiddenstate.pipeline import cache, estimates, scores, sealed
from hiddenstate.pipeline.family import Family, Figure, Job, Shown, Table
from hiddenstate.study import config, verdicts
from hiddenstate.study.claims import LEDGERS, Verdict

NAMED = 3
"""Sentences of a paper that the page begins with, contradicted and agreeing each."""


@dataclass(frozen=True)
class Places:
    """Where what the page shows lies: folders of one scale's figures and results, and the cache."""

    figures: Path
    results: Path
    cached: Path


@dataclass(frozen=True)
class Made:
    """A job whose result is there: if it is from the cache, and the provenance that it carries."""

    job: Job
    restored: bool
    origin: dict[str, Any]

    @property
    def seconds(self) -> float:
        return float(self.origin["wall_seconds"])


@dataclass(frozen=True)
class Exhibit:
    """A figure or table with the claims that it shows."""

    name: str
    title: str
    caption: str
    command: str
    picture: str = ""
    pdf: str = ""
    table: str = ""
    claims: list[dict[str, Any]] = field(default_factory=list)

    @property
    def seen(self) -> str:
        """The caption's first sentence, or first two if it is short: what is seen, in words."""
        first, *rest = re.split(r"(?<=[.?!]) (?=[A-Z])", self.caption)
        return first if len(first) >= 40 or not rest else f"{first} {rest[0]}"


@dataclass(frozen=True)
class Section:
    """A family: its paper, what its numbers took, and all it shows."""

    name: str
    title: str
    reference: str
    shows: str
    command: str
    effort: str
    tallies: list[str]
    exhibits: list[Exhibit]
    others: list[dict[str, Any]]

    @property
    def claims(self) -> list[dict[str, Any]]:
        """Every claim, in the order of the page."""
        return [c for exhibit in self.exhibits for c in exhibit.claims] + self.others

    @property
    def sentences(self) -> list[dict[str, Any]]:
        return [claim for claim in self.claims if claim["ledger"] == "paper"]

    @property
    def found(self) -> dict[str, list[dict[str, Any]]]:
        """The paper's sentences that the page begins with: contradicted, and some that agree."""
        heads = {"contradicts": "Contradicted", "agrees": "Agrees"}
        return {
            head: [claim for claim in self.sentences if claim["group"] == group][:NAMED]
            for group, head in heads.items()
        }

    @property
    def rest(self) -> str:
        """How many sentences are not named, in words."""
        others = len(self.sentences) - sum(map(len, self.found.values()))
        return f"{others} of its {len(self.sentences)} sentences are not named here."


def write(out: Path, scale_file: Path, judged: Path, places: Places) -> None:
    """Write the page of a scale.

    ``judged`` is a file of ``verdicts.write``. A figure or table that the scale promises and that
    is not there is an error that names it.
    """
    scale = config.read(scale_file)
    rows = verdicts.read(judged, grids=config.grid_names(scale_file))
    every: list[Made] = []
    digests: dict[str, str] = {}
    sections = []
    for name in config.families(scale):
        family, grid = papers.load(name), getattr(scale, name)
        found = made(family, grid, scale.seed, places.results / name, places.cached / name)
        every += found
        named = config.grid_name(scale_file, name, grid, scale.seed)
        digests[name] = digest = _chain(name, named, found, rows, places, judged)
        mine = verdicts.of_family(rows, name)
        cards, scale_name = _cards(mine), scale_file.stem
        exhibits = list(
            _exhibits(name, family, grid, scale_name, cards, places, out.parent, digest)
        )
        told = {claim["id"] for exhibit in exhibits for claim in exhibit.claims}
        sections.append(
            Section(
                name=name,
                title=family.title,
                reference=family.reference,
                shows=grid.shows,
                command=f"./reproduce {name} --config scale={scale_name}",
                effort=effort(found),
                tallies=verdicts.lines(mine),
                exhibits=exhibits,
                others=[card for card in cards if card["id"] not in told],
            )
        )
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    template = environment.from_string(
        resources("hiddenstate.study").joinpath("page.html").read_text(encoding="utf-8")
    )
    page = template.render(
        scale=scale_file.stem,
        version=hiddenstate.__version__,
        judged=verdicts.judged(rows).replace("`", ""),
        sections=sections,
        references={section.name: section.reference for section in sections},
        overviews=[_overview(rows, ledger) for ledger in LEDGERS],
        ledgers={ledger: nouns[1] for ledger, nouns in verdicts.NOUNS.items()},
        sources=verdicts.SOURCES,
        symbols=verdicts.SYMBOLS,
        meanings=verdicts.MEANINGS,
        origins=origins(every),
        digests=digests,
        readable=_readable,
    )
    sealed.write_page(out, page, sealed.digest_of(judged))


def _chain(
    name: str, grid: str, found: list[Made], rows: pd.DataFrame, places: Places, judged: Path
) -> str:
    """Digest of a family's estimates; InputError unless all that is shown was made of them.

    They in turn were made of the scores and bounds that are there.
    """
    path = places.results / name / "estimates.csv"
    attrs = estimates.read(path, grid).attrs
    of = {f"{m.job.work.folder}/{m.job.cell.name}": m.origin["digest"] for m in found}
    # Estimates are made of scores and bounds, not of initial parameters.
    of = {key: value for key, value in of.items() if not key.startswith("starts/")}
    if attrs[sealed.MADE_OF] != sealed.of(of):
        raise InputError(f"{path}: was made of other scores or bounds than those beside it")
    own = str(attrs[sealed.DIGEST])
    verdicts.check_estimates(judged, verdicts.of_family(rows, name), path, own)
    return own


def _overview(rows: pd.DataFrame, ledger: str) -> dict[str, Any]:
    """The counts of one ledger: a row per family, a column per verdict."""
    found = verdicts.counts(rows, ledger)
    return {
        "ledger": ledger,
        "noun": verdicts.NOUNS[ledger][1],
        "columns": LEDGERS[ledger],
        "rows": [(str(name), sum(row), list(row)) for name, *row in found.itertuples()],
        "words": "".join(verdicts.lines(verdicts.of_ledger(rows, ledger))[:1]),
    }


def _cards(rows: pd.DataFrame) -> list[dict[str, Any]]:
    """Claims as the page shows them, the papers' sentences first."""
    cards = []
    for ledger in LEDGERS:
        for row in verdicts.of_ledger(rows, ledger).to_dict("records"):
            group = Verdict(row["verdict"]).group
            cards.append(
                {
                    **{str(key): value for key, value in row.items()},
                    "family": row["id"].split(".")[0],
                    "group": group,
                    "symbol": verdicts.SYMBOLS[group],
                    "readings": json.loads(row["readings"]),
                    "evidence": verdicts.evidence(row["evidence"]),
                }
            )
    return cards


def _exhibits(
    name: str,
    family: Family,
    grid: Any,
    scale: str,
    cards: list[dict[str, Any]],
    places: Places,
    here: Path,
    digest: str,
) -> Iterable[Exhibit]:
    """Figures and then tables that the scale has; a name that both have is the figure's."""
    for key, figure in family.shown(Figure, grid).items():
        drawn = places.figures / name / f"{key}.png"
        content = require(drawn, f"the figure {name} {key}").read_bytes()
        for picture in (drawn, drawn.with_suffix(".pdf")):
            sealed.signed(require(picture, f"the figure {name} {key}"), digest)
        yield _exhibit(
            f"{name}-figure-{key}",
            figure,
            f"./reproduce {name}_{key} {name}_claims --config scale={scale}",
            figure.footer(scale, grid),
            picture=base64.b64encode(content).decode(),
            pdf=os.path.relpath(drawn.with_suffix(".pdf"), here),
            claims=[card for card in cards if card["shown"] == key],
        )
    for key, table in family.shown(Table, grid).items():
        path = places.results / name / "tables" / f"{key}.csv"
        for written in (".csv", ".md", ".tex"):
            beside = path.with_suffix(written)
            sealed.signed(require(beside, f"the table {name} {key}"), digest)
        own = key not in family.figures
        yield _exhibit(
            f"{name}-table-{key}",
            table,
            f"./reproduce {path.with_suffix('.md')} {name}_claims --config scale={scale}",
            table.footer(scale, grid),
            table=_readable(pd.read_csv(path, dtype=str, keep_default_na=False)),
            claims=[card for card in cards if card["shown"] == key and own],
        )


def _exhibit(name: str, thing: Shown, command: str, footer: str, **held: Any) -> Exhibit:
    caption = f"{thing.caption} {footer[0].upper()}{footer[1:]}."
    return Exhibit(name, thing.title, caption, command, **held)


def _readable(table: pd.DataFrame) -> str:
    return table.to_html(index=False, border=0, escape=True, justify="left")


def made(family: Family, grid: Any, seed: int, results: Path, cached: Path) -> list[Made]:
    """The jobs of a family whose results are there, with the provenance that each of them carries.

    A file is from the cache if it is the cached one byte for byte: one that was trained again has
    another time in its provenance.
    """
    found = []
    for jobs in family.jobs(grid).values():
        for name, job in jobs.items():
            path = results / job.work.folder / f"{name}.parquet"
            if not job.computed(path, seed):
                continue
            kept = cache.path(cached, job)
            restored = kept.is_file() and filecmp.cmp(path, kept, shallow=False)
            found.append(Made(job, restored, scores.read(path)[1]))
    return found


def effort(found: list[Made]) -> str:
    """Time and memory of jobs, in words."""
    parts = []
    for restored, words in (
        (False, "{} computed in {}"),
        (True, "{} from the cache (computed once in {})"),
    ):
        seconds = [m.seconds for m in found if m.restored == restored]
        if seconds:
            parts.append(words.format(len(seconds), duration(sum(seconds))))
    return "; ".join(parts) or "no cells"


def origins(found: list[Made]) -> dict[str, dict[str, str]]:
    """Where the numbers are from: what was computed here and what came from the cache.

    When, where and with what is as the files say; those that do not say are counted.
    """
    told = {}
    for restored, head in ((False, "computed in this run"), (True, "restored from the cache")):
        mine = [m for m in found if m.restored == restored]
        if not mine:
            continue
        dates = sorted(str(m.origin["date"])[:10] for m in mine if m.origin.get("date"))
        told[head] = {
            "results": str(len(mine)),
            "time of their jobs": duration(sum(m.seconds for m in mine)),
            "when": " to ".join(dict.fromkeys([*dates[:1], *dates[-1:]])) or "not recorded",
            "processor": _values(m.origin.get("processor") for m in mine),
            "accelerator": _values(m.origin.get("device") for m in mine),
            "Python": _values(m.origin.get("python") for m in mine),
            **{
                name: _values((m.origin.get("packages") or {}).get(name) for m in mine)
                for name in ("torch", "numpy", "scipy", "dp-accounting")
            },
            "commit": _values(_commit(m.origin.get("commit")) for m in mine),
        }
    return told


def _values(found: Iterable[str | None]) -> str:
    """Different values, most frequent first, each with how many results have it."""
    counted = Counter(value or "not recorded" for value in found)
    if len(counted) == 1:
        return next(iter(counted))
    return ", ".join(f"{value} ({n})" for value, n in counted.most_common())


def _commit(name: str | None) -> str | None:
    edited = " edited" if name and name.endswith("-dirty") else ""
    return name and f"{name[:12]}{edited}"


def duration(seconds: float) -> str:
    """A time in the unit that suits it: "40 s", "12 min", "3.4 h"."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 90 * 60:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:,.1f} h"
