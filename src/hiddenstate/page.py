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
from hiddenstate import claims, config, estimates, papers, scores
from hiddenstate.errors import InputError
from hiddenstate.family import Family, Figure, Job, Table
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
class Made:
    """A job whose result is there: if from the cache, and the seconds it took."""

    job: Job
    restored: bool
    seconds: float


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
    template = environment.from_string(
        resources(hiddenstate).joinpath("page.html").read_text(encoding="utf-8")
    )
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
        rows["cells"] = rows["cells"].map(lambda cells: set(cells.split("; ")) - {""})
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
    named = config.grid_name(scale, name, grid, seed)
    mine = rows[rows["id"].str.startswith(f"{name}.")].copy()
    if others := sorted(set(mine["grid"]) - {named}):
        raise InputError(f"{name}: verdicts on the grid {others[0]!r}; expected {named!r}")
    results = places.results / name
    found = made(family, grid, seed, results, places.cached / name)
    all_cells = set(estimates.read(results / "estimates.csv", named)["cell"].dropna().astype(str))
    mine["effort"] = [
        effort(made_for(found, cells, all_cells)) if cells else "" for cells in mine["cells"]
    ]
    exhibits = list(_exhibits(name, family, grid, scale, mine, places))
    told = {claim["id"] for exhibit in exhibits for claim in exhibit.claims}
    return Section(
        name=name,
        title=family.title,
        reference=family.reference,
        shows=grid.shows,
        command=f"./reproduce {name} --config scale={scale}",
        effort=effort(found),
        exhibits=exhibits,
        others=mine[~mine["id"].isin(told)].to_dict("records"),
    )


def _exhibits(
    name: str, family: Family, grid: Any, scale: str, rows: pd.DataFrame, places: Places
) -> Iterable[Exhibit]:
    """Figures and then tables that the scale has; a name that both have is the figure's."""
    for kind, things in (
        ("figure", family.shown(Figure, grid)),
        ("table", family.shown(Table, grid)),
    ):
        for key, thing in things.items():
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


def made(family: Family, grid: Any, seed: int, results: Path, cached: Path) -> list[Made]:
    """The jobs of a family whose results are there, with the provenance that each of them carries.

    A file is from the cache if it is the cached one byte for byte: one that was trained anew has
    another time in its provenance.
    """
    found = []
    for jobs in family.jobs(grid).values():
        for name, job in jobs.items():
            path = results / job.work.folder / f"{name}.parquet"
            if not scores.computed(path, job.identity, seed, job.files):
                continue
            kept = cached / path.name
            restored = (
                job.work.kind == "train"
                and kept.is_file()
                and filecmp.cmp(path, kept, shallow=False)
            )
            found.append(Made(job, restored, scores.origin(path)["wall_seconds"]))
    return found


def made_for(every: list[Made], cells: set[str], all_cells: set[str]) -> list[Made]:
    """The jobs that the estimates of these cells may come from; never too few.

    ``all_cells`` are those of all estimates. A job and a cell belong together if they have one
    name, or one name begins with the other and "_". A job that belongs to none may serve any cell,
    and a cell that belongs to none may come from any job.
    """
    wanted: list[Made] = []
    matched: set[str] = set()
    for item in every:
        own = {cell for cell in all_cells if _related(item.job.cell.name, cell)}
        matched |= own
        if item.job.work.kind != "start" and (own & cells or not own):
            wanted.append(item)
    if not cells <= matched:
        return every
    # Initial parameters belong to what was trained from them.
    begun = {m.job.start.cell.name for m in wanted if m.job.start}
    starts = [m for m in every if m.job.work.kind == "start" and m.job.cell.name in begun]
    return starts + wanted


def _related(one: str, other: str) -> bool:
    return f"{one}_".startswith(f"{other}_") or f"{other}_".startswith(f"{one}_")


def effort(found: list[Made]) -> str:
    """What jobs took, in words."""
    parts = []
    for restored, words in (
        (False, "{} computed in {}"),
        (True, "{} from the cache (computed once in {})"),
    ):
        seconds = [m.seconds for m in found if m.restored == restored]
        if seconds:
            parts.append(words.format(len(seconds), duration(sum(seconds))))
    return "; ".join(parts) or "no cells"


def duration(seconds: float) -> str:
    """A time in the unit that suits it: "40 s", "12 min", "3.4 h"."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 90 * 60:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:,.1f} h"
