"""Forecast of a run before it starts: jobs, processor time, memory and disk by family."""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import pandas as pd

from hiddenstate import papers
from hiddenstate.errors import InputError
from hiddenstate.pipeline import cache, costs, scores
from hiddenstate.pipeline import parts as parts_files
from hiddenstate.pipeline.family import Expect, Figure, Job, Train
from hiddenstate.study import config
from hiddenstate.study.page import duration

MEMORY = {"start": 1000, "train": 1100, "simulate": 600, "bound": 1300, "drawing": 340}
"""MB that a job of a kind takes at most, as measured at laptop scale; on a CPU."""
SHARED = ("simulate", "bound")
"""Kinds of which a job may do several cells."""
BATCH = 25.0
"""Seconds of one core that cells of one job take at most, if it has several."""
_ROW = 12
"""Bytes that a row of scores takes in a file."""
_FILE = 20_000
"""Bytes of a file beside its scores, and of one that has none; as measured, on average."""
_PICTURE = 200_000
"""Bytes of a figure, as PDF and PNG."""


def table(
    scale_file: Path,
    results: Path,
    cached: Path | None,
    *,
    trains: bool = True,
    part_hours: float = 0,
) -> pd.DataFrame:
    """One row per family and kind of job.

    Columns: family, kind, jobs, models (to be trained), done (their results are there), cached
    (restored in place of trained), missing, hours (of one core, for what is missing), longest
    (hours of the longest job), memory (MB of one job), disk (MB of all results). ``cached`` is None
    to train all. Unless
    it ``trains``, what is not there is left out. Trainings longer than ``part_hours`` are divided
    into jobs of at most so many, unless it is 0.
    """
    scale = config.read(scale_file)
    rows = []
    for name in config.families(scale):
        family, grid = papers.load(name), getattr(scale, name)
        every = family.jobs(grid)
        wanted: set[str] = set()
        kinds = {}
        # Initial parameters are made only for the models that are trained.
        for kind in ("train", "start", "simulate", "bound"):
            row = {"jobs": 0, "models": 0, "done": 0, "cached": 0, "missing": 0}
            seconds, disk = [0.0], 0
            kept = restored(every[kind], results / name, cached and cached / name, scale.seed)
            row["jobs"] += len(kept)
            row["cached"] += len(kept)
            rest = {cell: job for cell, job in every[kind].items() if cell not in kept}
            alone = [[cell] for cell in rest]
            for cells in batches(rest) if kind in SHARED else alone:
                jobs = [every[kind][cell] for cell in cells]
                cell, job = cells[0], jobs[0]
                paths = [results / name / job.work.folder / f"{cell}.parquet" for cell in cells]
                row["jobs"] += 1
                size = _FILE * len(cells)
                if isinstance(job.work, Train):
                    models, repeats = job.work.size(job.cell)
                    size += 2 * models * repeats * _ROW
                disk += size
                if all(
                    job.computed(path, scale.seed) for path, job in zip(paths, jobs, strict=True)
                ):
                    row["done"] += 1
                elif (kind == "start" and cell not in wanted) or (kind == "train" and not trains):
                    row["jobs"] -= 1
                    disk -= size
                else:
                    number = parts({cell: job}, part_hours).get(cell, 0)
                    # The parts, beside the job that gathers them.
                    row["jobs"] += number
                    row["missing"] += 1 + number
                    there, models = elsewhere(job, scale.seed, folders(results, cached, name))
                    row["models"] += models - there
                    left = 1 - there / models if models else 1
                    seconds += [left * cost(jobs) / max(1, number)] * max(1, number)
                    if job.start:
                        wanted.add(job.start.cell.name)
            # One short job restores all; the longest job is sought among the entries behind it.
            seconds[0] = costs.DRAWING["restore"] * (row["cached"] > 0)
            kinds[kind] = _row(name, kind, row, seconds, disk)
        figures = family.shown(Figure, grid)
        drawing = ["estimate", "claims", *["figures"] * bool(figures)]
        counts = {"jobs": len(drawing), "models": 0, "done": 0, "cached": 0}
        counts["missing"] = len(drawing)
        times = [0.0, *(costs.DRAWING[job] for job in drawing)]
        kinds["drawing"] = _row(name, "drawing", counts, times, len(figures) * _PICTURE)
        rows += [row for row in kinds.values() if row["jobs"]]
    return pd.DataFrame(rows)


def restored(jobs: Mapping[str, Job], results: Path, cached: Path | None, seed: int) -> set[str]:
    """Cells whose results are not there and are restored from the cache."""
    if not cached:
        return set()
    return {
        name
        for name, job in jobs.items()
        if job.work.kind in cache.SERVED
        and not job.computed(results / job.work.folder / f"{name}.parquet", seed)
        and cache.fits(cache.path(cached, job), job, seed)
    }


def served(
    every: Mapping[str, Job], seed: int, scale_file: Path, family: str, folder: Path
) -> list[str]:
    """Cells of one kind whose results are cached in a family's folder: see ``cache.serves``.

    Scales may share a cell's name. A file of another scale's cell is left alone; one of no scale's
    is refused by name.
    """
    found = []
    for name, job in every.items():
        file = cache.path(folder, job)
        try:
            if cache.serves(file, job, seed):
                found.append(name)
        except InputError:
            scores.read(file)  # A damaged file is of no scale.
            if not any(cache.fits(file, *one) for one in _namesakes(job, scale_file, family)):
                raise
    return found


def _namesakes(job: Job, scale_file: Path, family: str) -> Iterator[tuple[Job, int]]:
    """Jobs of the same name at the scales beside this one, with their seeds."""
    for path in sorted(scale_file.parent.glob("*.yaml")):
        # A scale without this family, or with a mistake of its own, has no such cell.
        with suppress(InputError):
            own, grid, seed = config.section(path, family)
            if other := own.jobs(grid)[job.work.kind].get(job.cell.name):
                yield other, seed


def folders(results: Path, cached: Path | None, family: str) -> list[Path]:
    """Where part files of a family's cells are looked for."""
    return [root / family / "parts" for root in (results, cached) if root]


def elsewhere(job: Job, seed: int, where: Sequence[Path]) -> tuple[int, int]:
    """How many models of a job part files have, and how many it trains."""
    files = parts_files.paths(job.cell.name, where)
    return parts_files.count(files, job, seed) if files else 0, job.trainings


def partial(scale_file: Path, results: Path, cached: Path | None) -> dict[str, tuple[int, int]]:
    """Cells of which part files have some models: how many, and of how many."""
    scale, found = config.read(scale_file), dict[str, tuple[int, int]]()
    for name in config.families(scale):
        where = folders(results, cached, name)
        for cell, job in papers.load(name).jobs(getattr(scale, name))["train"].items():
            there, every = elsewhere(job, scale.seed, where)
            found |= {cell: (there, every)} if there else {}
    return found


def stray(scale_file: Path, results: Path) -> list[Path]:
    """Files in the results of a scale that are of no cell that it has; nothing reads them."""
    scale = config.read(scale_file)
    found = []
    for name in config.families(scale):
        every = papers.load(name).jobs(getattr(scale, name))
        asked = {(job.work.folder, cell) for jobs in every.values() for cell, job in jobs.items()}
        made = sorted((results / name).glob("*/*.parquet"))
        asked |= {("parts", cell) for cell in every["train"]}
        found += [p for p in made if (p.parent.name, p.stem.partition(".part-")[0]) not in asked]
    return found


def parts(jobs: Mapping[str, Job], hours: float) -> dict[str, int]:
    """How many jobs each cell's training is divided into, of at most so many hours of one core.

    Of those alone that take longer; none if ``hours`` is 0. A part has one model at least. Expected
    audits are not divided.
    """
    found = {}
    for name, job in jobs.items():
        divisible = isinstance(job.work, Train) and not isinstance(job.work, Expect)
        if hours and job.cost > 3600 * hours and divisible:
            models = job.trainings
            each = max(1, int(3600 * hours * models / job.cost))
            found[name] = math.ceil(models / each)
    return {name: number for name, number in found.items() if number > 1}


def batches(jobs: Mapping[str, Job], seconds: float = BATCH) -> list[list[str]]:
    """Which cells share a job, for to start one takes seconds: neighbours of one work.

    Together they take at most so many seconds of one core; a cell that takes longer is alone.
    """
    found: list[list[str]] = []
    work, spent = None, 0.0
    for name, job in jobs.items():
        own = job.cost - costs.STARTING[job.work.kind]
        if job.work is not work or spent + own > seconds:
            found.append([])
            work, spent = job.work, 0.0
        found[-1].append(name)
        spent += own
    return found


def shared(every: Mapping[str, Mapping[str, Job]]) -> dict[str, list[Job]]:
    """The jobs of ``SHARED`` kinds of a family, by the names that the workflow gives them."""
    return {
        f"{kind}{number}": [every[kind][cell] for cell in cells]
        for kind in SHARED
        for number, cells in enumerate(batches(every[kind]), 1)
    }


def cost(jobs: Sequence[Job]) -> float:
    """Seconds of one core that one job for these cells takes, all of one kind."""
    starting = costs.STARTING[jobs[0].work.kind]
    return starting + sum(job.cost - starting for job in jobs)


def _row(name: str, kind: str, counts: dict[str, int], seconds: list[float], disk: int) -> dict:
    return {
        "family": name,
        "kind": kind,
        **counts,
        "hours": sum(seconds) / 3600,
        "longest": max(seconds[1:], default=0.0) / 3600,
        "memory": MEMORY[kind],
        "disk": disk / 1e6,
    }


def sums(rows: pd.DataFrame, cores: int = 1) -> dict[str, float]:
    """Totals of a run: jobs, hours, hours on so many cores at least, disk in MB.

    Each core does one job at a time.
    """
    return {
        "jobs": int(rows["jobs"].sum()),
        "missing": int(rows["missing"].sum()),
        "models": int(rows["models"].sum()),
        "hours": float(rows["hours"].sum()),
        "longest": float(rows["longest"].max()),
        "disk": float(rows["disk"].sum()),
        "cores": cores,
        "wall_hours": float(max(rows["hours"].sum() / cores, rows["longest"].max())),
    }


def words(rows: pd.DataFrame, cores: int = 1, part_hours: float = 0) -> str:
    """The table as it is printed, with its sum and what it takes on so many cores.

    Jobs that take longer than ``part_hours``, unless it is 0, are named.
    """
    shown = rows.copy()
    for column in ("hours", "longest"):
        shown[column] = [duration(3600 * hours) for hours in rows[column]]
    shown["memory"] = [f"{value} MB" for value in rows["memory"]]
    shown["disk"] = [f"{value:.1f} MB" for value in rows["disk"]]
    shown = shown.rename(columns={"hours": "one core", "memory": "memory of a job"})
    total = sums(rows, cores)
    one, longest, wall = (duration(3600 * total[k]) for k in ("hours", "longest", "wall_hours"))
    # A twentieth more is one part's start, which all of them pay.
    longer = rows[(rows["longest"] > 1.05 * part_hours) & (part_hours > 0)]
    named = ", ".join(
        f"{row.kind} of {row.family} ({duration(3600 * row.longest)})"
        for row in longer.itertuples(index=False)
    )
    undivided = (
        f"Longer than part_hours={part_hours:g}, and not divided: {named}. Initial parameters "
        "are one job, and no model is divided.\n"
    )
    return (
        f"{shown.to_markdown(index=False, disable_numparse=True)}\n\n"
        f"In all {total['missing']} of {total['jobs']} jobs, {total['models']} models to train, "
        f"{one} of one core, "
        f"{total['disk']:.0f} MB of disk; the longest job {longest}; "
        f"{cores} core{' needs' if cores == 1 else 's need'} at least {wall}.\n"
        f"{undivided if named else ''}"
        "From costs measured on one core of an x86-64 with AVX-512 at laptop scale: another "
        "machine, a busy one or a smaller scale differs; drawing counts as if all were stale.\n"
    )
