"""The page that a reviewer reads: each claim with its verdict beside the figure that shows it.

One HTML file that needs no network and no script: pictures and tables are in it.
"""

import base64
import filecmp
from collections.abc import Iterable
from dataclasses import dataclass, field
from importlib.resources import files as resources
from pathlib import Path
from typing import Any

import jinja2
import pandas as pd

import hiddenstate
from hiddenstate import claims, config, papers, scores
from hiddenstate.errors import InputError
from hiddenstate.family import Family
from hiddenstate.files import atomic, require

VERDICTS = ("not reproduced", "reproduced", claims.NOT_JUDGED)
"""In the order of the page: what a reviewer looks for comes first."""


@dataclass(frozen=True)
class Places:
    """Where what the page shows lies: folders of one scale's figures and results, and the cache."""

    figures: Path
    results: Path
    cached: Path


@dataclass(frozen=True)
class Effort:
    """Cells of a family that are there, and seconds of one core they took when computed."""

    computed: int
    cached: int
    seconds: float
    cached_seconds: float

    def __str__(self) -> str:
        parts = []
        if self.computed:
            parts.append(f"{self.computed} computed in {duration(self.seconds)} of one core")
        if self.cached:
            once = duration(self.cached_seconds)
            parts.append(f"{self.cached} from the cache (computed once in {once})")
        return "; ".join(parts) or "no cells"


@dataclass(frozen=True)
class Exhibit:
    """A figure or table with the claims that it shows."""

    name: str
    title: str
    caption: str
    command: str
    picture: str = ""
    table: str = ""
    claims: list[dict[str, Any]] = field(default_factory=list)


@dataclass(frozen=True)
class Section:
    """A family: its paper, what its numbers took, and all it shows."""

    name: str
    title: str
    reference: str
    shows: str
    command: str
    effort: str
    exhibits: list[Exhibit]
    others: list[dict[str, Any]]


def write(
    out: Path, scale_file: Path, stated: list[claims.Claim], verdicts: Path, places: Places
) -> None:
    """Write the page of a scale.

    ``stated`` are all claims, ``verdicts`` the file that ``claims.write`` wrote. A figure or table
    that the scale promises and that is not there is an error that names it.
    """
    scale = config.read(scale_file)
    rows = _judged(verdicts)
    shown = {claim.id: claim.shown for claim in stated}
    unknown = sorted(set(rows["id"]) - set(shown))
    if unknown:
        raise InputError(f"{verdicts}: id: got {unknown[0]!r}; expected one of claims.yaml")
    rows["shown"] = rows["id"].map(shown)
    sections = [
        _section(name, getattr(scale, name), scale_file.stem, scale.seed, rows, places)
        for name in config.families(scale)
    ]
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    template = environment.from_string(resources(hiddenstate).joinpath("page.html").read_text())
    groups = {verdict: rows[rows["verdict"] == verdict] for verdict in VERDICTS}
    page = template.render(
        scale=scale_file.stem,
        version=hiddenstate.__version__,
        commit=scores.commit(),
        sections=sections,
        groups={verdict: part.to_dict("records") for verdict, part in groups.items() if len(part)},
        count=len(rows),
    )
    with atomic(out) as temporary:
        temporary.write_text(page, encoding="utf-8")


def _judged(path: Path) -> pd.DataFrame:
    """Verdicts of a file, as words, with the deviation as the page shows it."""
    require(path, "verdicts written by `hiddenstate claims`")
    try:
        rows = pd.read_csv(path, dtype=str, keep_default_na=False)
        rows["deviation"] = pd.to_numeric(rows["deviation"]).map(claims.signed)
        unknown = sorted(set(rows["verdict"]) - set(VERDICTS))
    except (ValueError, KeyError) as error:
        raise InputError(f"{path}: expected verdicts of `hiddenstate claims` ({error})") from error
    if unknown:
        raise InputError(f"{path}: verdict: got {unknown[0]!r}; expected {', '.join(VERDICTS)}")
    rows["kind"] = rows["verdict"].map(dict(zip(VERDICTS, ("bad", "good", "open"), strict=True)))
    return rows


def _section(
    name: str, grid: Any, scale: str, seed: int, rows: pd.DataFrame, places: Places
) -> Section:
    family = papers.load(name)
    mine = rows[rows["id"].str.startswith(f"{name}.")]
    exhibits = list(_exhibits(name, family, grid, scale, mine, places))
    told = {claim["id"] for exhibit in exhibits for claim in exhibit.claims}
    return Section(
        name=name,
        title=family.title,
        reference=family.reference,
        shows=grid.shows,
        command=f"./reproduce {name} --config scale={scale}",
        effort=str(effort(family, grid, seed, places.results / name, places.cached / name)),
        exhibits=exhibits,
        others=mine[~mine["id"].isin(told)].to_dict("records"),
    )


def _exhibits(
    name: str, family: Family, grid: Any, scale: str, rows: pd.DataFrame, places: Places
) -> Iterable[Exhibit]:
    """Figures and then tables that the scale has; a name that both have is the figure's."""
    for kind, things in (("figure", family.figures), ("table", family.tables)):
        for key, thing in things.items():
            if not thing.when(grid):
                continue
            own = kind == "figure" or key not in family.figures
            claimed = rows[(rows["shown"] == key) & own].to_dict("records")
            caption = f"{thing.caption} Scale {scale}: {grid.shows}."
            if kind == "figure":
                path = places.figures / name / f"{key}.png"
                content = require(path, f"the figure {name} {key}").read_bytes()
                held = {"picture": base64.b64encode(content).decode()}
                target = f"{name}_{key}"
            else:
                path = places.results / name / "tables" / f"{key}.csv"
                held = {"table": _html(require(path, f"the table {name} {key}"))}
                target = str(path.with_suffix(".md"))
            yield Exhibit(
                name=f"{name}-{kind}-{key}",
                title=thing.title,
                caption=caption,
                command=f"./reproduce {target} claims --config scale={scale}",
                claims=claimed,
                **held,
            )


def _html(path: Path) -> str:
    """A table's file as HTML, cell by cell as it is written."""
    table = pd.read_csv(path, dtype=str, keep_default_na=False)
    return table.to_html(index=False, border=0, escape=True, justify="left")


def effort(family: Family, grid: Any, seed: int, results: Path, cached: Path) -> Effort:
    """What the results of a family took, from the provenance that each of them carries.

    A file is from the cache if it is the cached one byte for byte: one that was trained anew has
    another time in its provenance.
    """
    count, seconds = {False: 0, True: 0}, {False: 0.0, True: 0.0}
    for jobs in family.jobs(grid).values():
        for name, job in jobs.items():
            path = results / job.work.folder / f"{name}.parquet"
            if not scores.computed(path, job.identity, seed):
                continue
            kept = cached / path.name
            restored = (
                job.work.kind == "train"
                and kept.is_file()
                and filecmp.cmp(path, kept, shallow=False)
            )
            count[restored] += 1
            seconds[restored] += scores.origin(path)["wall_seconds"]
    return Effort(count[False], count[True], seconds[False], seconds[True])


def duration(seconds: float) -> str:
    """A time in the unit that suits it: "40 s", "12 min", "3.4 h"."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 90 * 60:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:,.1f} h"
