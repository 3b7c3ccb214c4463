"""Results that are served from a folder of cached ones, in place of being computed."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from hiddenstate import code
from hiddenstate.pipeline import scores
from hiddenstate.pipeline.family import Family, Job, Train

SERVED = ("train", "simulate", "bound")
"""Kinds of work whose results are served; ``hiddenstate job start`` copies initial parameters."""
SHORT = 60.0
"""Seconds of one core below which a training is served for the code that trained it alone."""
LIVE = 5.0
"""Seconds of one core that a second cell of a kind takes at most to be always computed."""


def path(folder: Path, job: Job) -> Path:
    """Path of a job's cached result, in the folder of its family's."""
    inside = folder if job.work.folder == "scores" else folder / job.work.folder
    return inside / f"{job.cell.name}.parquet"


def code_of(job: Job) -> str | None:
    """Digest of the code of a training that is short; None for any other job.

    Simulations and bounds have it in their identity. A long training is not made again because any
    code that it imports has changed.
    """
    short = isinstance(job.work, Train) and job.cost < SHORT
    return code.digest_of(job.work.run) if short else None


def fits(file: Path, job: Job, seed: int) -> bool:
    """True if a file claims to be a job's result, by the code as it is; reads no values."""
    if not job.computed(file, seed):
        return False
    return _of_its_code(scores.claimed_origin(file), job)


def _of_its_code(origin: Mapping[str, Any], job: Job) -> bool:
    """True if code is no reason to make a result again, as that of a long training never is."""
    own = code_of(job)
    return own is None or origin.get("code", own) == own


def of_another(file: Path, job: Job, seed: int) -> bool:
    """True if a file is of other parameters or another seed, whatever code and data it is of."""
    if not file.exists():
        return False
    made = scores.claimed_origin(file).get("cell", {}).get("code")
    # With the file's own code in place, parameters and seed alone can differ.
    identity = {**job.identity, "code": made} if "code" in job.identity else job.identity
    return not scores.computed(file, identity, seed, scores.files_of(file))


def serves(file: Path, job: Job, seed: int) -> bool:
    """True if a cached file is there and stands for a job's result.

    A file of other code does not, nor a simulation or bound of other parameters. Raises InputError
    for a file that is damaged, and for scores of models that were trained for something else.
    """
    if not file.exists():
        return False
    _, origin = scores.read(file)
    if fits(file, job, seed):
        return True
    if isinstance(job.work, Train) and _of_its_code(origin, job):
        # Called for the error that names what differs.
        job.checked(file, seed)
    return False


def live(family: Family, grid: Any) -> set[tuple[str, str]]:
    """Cells, by kind and name, that every run computes: one of each work, and of each kind.

    The cheapest of each work, unless it takes more than ``LIVE`` and another of its kind is among
    them; with its initial parameters, if it has any. Trainings that are compared with cached ones
    are too.
    """
    every = family.jobs(grid)
    found: set[tuple[str, str]] = set()
    for work in family.works:
        for cell in work.beside(grid) if isinstance(work, Train) else ():
            found.add(("train", cell.name))
            if start := every["train"][cell.name].start:
                found.add(("start", start.cell.name))
    cheapest = []
    for work in family.works:
        jobs = [job for job in every[work.kind].values() if job.work is work]
        cheapest += sorted(jobs, key=lambda job: job.cost)[:1]
    # Cheapest first, so that every kind has one before a dearer job of it is looked at.
    for job in sorted(cheapest, key=lambda job: job.cost):
        kinds = {kind for kind, _ in found}
        if job.cost <= LIVE or job.work.kind not in kinds:
            found.add((job.work.kind, job.cell.name))
            if job.start:
                found.add(("start", job.start.cell.name))
    return found


def worth(
    family: Family, grid: Any, results: Path, folder: Path, seed: int
) -> Iterator[tuple[Path, Path]]:
    """Results that may be served: the file, in the cache or just computed, and its cached path.

    But trainings that are in the cache, which stay there, as do results of other scales and seeds.
    """
    always = live(family, grid)
    for kind, jobs in family.jobs(grid).items():
        for name, job in jobs.items():
            kept, made = path(folder, job), results / job.work.folder / f"{name}.parquet"
            # The cached file first, so that it stays as it is where it fits.
            fitting = [file for file in (kept, made) if fits(file, job, seed)]
            stays = (kind == "train" and kept in fitting) or of_another(kept, job, seed)
            if fitting and not stays and (kind, name) not in always:
                yield fitting[0], kept


def outdated(family: Family, grid: Any, results: Path, folder: Path, seed: int) -> list[Path]:
    """Trainings of other code among the results, which are not made again and never served."""
    found, always = [], live(family, grid)
    for name, job in family.jobs(grid)["train"].items():
        made = results / job.work.folder / f"{name}.parquet"
        served = any(fits(file, job, seed) for file in (made, path(folder, job)))
        if ("train", name) not in always and job.computed(made, seed) and not served:
            found.append(made)
    return found


def value(file: Path) -> float:
    """Seconds that a byte of the cache saves."""
    return scores.claimed_origin(file)["wall_seconds"] / file.stat().st_size
