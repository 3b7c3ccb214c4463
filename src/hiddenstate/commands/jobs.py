"""Helpers shared by the commands that compute a cell or read its results."""

import argparse
import errno
import math
import os
import re
import tempfile
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hiddenstate import files
from hiddenstate.errors import InputError, check_count, expect

# What takes a while to import is imported where it is used: scale files a fifth of a second, pandas
# half of one, torch three. Most commands need little of it.
if TYPE_CHECKING:
    import pandas as pd

    from hiddenstate.pipeline.cells import FamilyGrid, Workplace
    from hiddenstate.pipeline.family import Family, Job


def section(options: argparse.Namespace) -> "tuple[Family, FamilyGrid, int]":
    """The family that the options name, its grid in their scale file, and the root seed."""
    from hiddenstate.study import config

    return config.section(options.config, options.family)


def asked(options: argparse.Namespace, kind: str) -> "tuple[Job, int]":
    """The job that makes the named cell, and the root seed."""
    family, grid, seed = section(options)
    return known(family.jobs(grid), kind, options.cell, options.config), seed


def known(jobs: "dict[str, dict[str, Job]]", kind: str, cell: str, path: Path) -> "Job":
    """The job of that kind and cell; the error of another name says which there are."""
    if not jobs[kind]:
        raise InputError(f"{path}: the family has no cell to {kind}; `hiddenstate cells` lists all")
    if cell not in jobs[kind]:
        shown = ", ".join([*jobs[kind]][:4]) + (", …" if len(jobs[kind]) > 4 else "")
        raise InputError(
            f"{path}: no cell {cell!r} to {kind}; expected one of {len(jobs[kind])}: {shown}"
        )
    return jobs[kind][cell]


def origin(job: "Job", seed: int, start: float, given: dict[str, str]) -> dict[str, Any]:
    """Provenance of what took since ``start`` to compute, with the digests of its data sets."""
    from hiddenstate.pipeline import cache, scores

    seconds = time.perf_counter() - start
    found = scores.provenance(job.identity, seed=seed, wall_seconds=seconds)
    found["made_by"] = job.maker.written
    if (short := cache.code_of(job)) is not None:
        found["code"] = short
    if job.data:
        from hiddenstate.datasets import data

        found["data"] = {name: data.splits(name).sha256 for name in job.data}
        found["files"] = given
    return found


def write(path: Path, job: "Job", frame: "pd.DataFrame", origin: dict[str, Any]) -> None:
    """Write the result of a job with its provenance."""
    from hiddenstate.pipeline import scores
    from hiddenstate.pipeline.family import Expect

    are_scores = job.work.folder == "scores" and not isinstance(job.work, Expect)
    write = scores.write if are_scores else scores.write_table
    write(path, frame, origin)


@contextmanager
def workplace(options: argparse.Namespace, job: "Job", seed: int) -> "Iterator[Workplace]":
    """Place of training that the options ask for; the checkpoint goes once all is written."""
    from hiddenstate.pipeline.cells import Workplace
    from hiddenstate.pipeline.parts import Parts

    if job.work.kind == "start":
        device = _device(options.device)
        _check_writable(options.out)
        yield Workplace(device=device)
        return
    check_count("workers", options.workers)
    expect(options.memory >= 0, "--memory", options.memory, "MiB, 0 or more")
    place = _training(options, job, seed)
    _check_writable(options.out)
    if not options.checkpoint:
        yield place
        return
    part = "-".join(map(str, options.part or ()))
    with files.alone(options.checkpoint, f"another process trains {job.cell.name}", part):
        yield place
        # The caller has written all scores by now; ``train`` itself drops those of a part file.
        if options.part is options.hours is None:
            assert isinstance(place.checkpoint, Parts)
            _discard(options.checkpoint, {name for name, *_ in place.checkpoint.finished})


def _check_writable(path: Path) -> None:
    """InputError where a file cannot be written, before models are trained for it."""
    try:
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(
            prefix=f".{path.stem}.", suffix=path.suffix, dir=path.parent
        ):
            pass
    except OSError as error:
        raise InputError(f"{path}: cannot be written: {error.strerror}") from error


def _discard(checkpoint: Path, places: Collection[str]) -> None:
    """Remove the finished models of a cell, and those folders of theirs that are empty then.

    places: folders of the cell's own models; all else in the checkpoint stays.
    """
    for folder in (checkpoint / name for name in places):
        for path in folder.glob("*.npz"):
            if re.fullmatch(r"\.?(in|out)-\d+-\d+(\.\w+)?\.npz", path.name):
                path.unlink()
        if folder != checkpoint:
            with suppress(OSError):  # something else is in it, or it was never made
                folder.rmdir()


def _training(options: argparse.Namespace, job: "Job", seed: int) -> "Workplace":
    """Place, data and start of a cell's training, as the options say."""
    from hiddenstate.pipeline import parts
    from hiddenstate.pipeline.cells import Workplace

    start = None
    if job.start:
        if not options.start:
            raise InputError(
                f"--start: missing; expected the initial parameters {job.start.cell.name}"
            )
        with removable(options.start):
            start, _ = job.start.checked(options.start, seed)
    known, limit = finished_elsewhere(options, job, seed), options.hours or math.inf
    return Workplace(
        start=start,
        checkpoint=parts.Parts(options.checkpoint, known=known, part=options.part, hours=limit),
        device=_device(options.device),
        workers=options.workers,
        memory=options.memory * 2**20 or None,
        progress=True,
        purpose=options.purpose,
        models=options.models,
    )


def finished_elsewhere(options: argparse.Namespace, job: "Job", seed: int) -> "pd.DataFrame":
    """The models of a cell that part files have, of its parameters and initial parameters."""
    from hiddenstate.pipeline import parts

    files = parts.paths(job.cell.name, options.parts)
    return parts.read(files, job, seed, digest_of_start(options))


def digest_of_start(options: argparse.Namespace) -> str | None:
    """Digest of the initial parameters, if there are any."""
    from hiddenstate.pipeline import scores

    return scores.claimed_origin(options.start)["digest"] if options.start else None


def of_parts(options: argparse.Namespace, job: "Job", origin: dict[str, Any]) -> dict[str, Any]:
    """Provenance of the part files whose models a cell has."""
    from hiddenstate.pipeline import parts

    found = parts.described(parts.paths(job.cell.name, options.parts))
    seconds = origin["wall_seconds"] + sum(part["wall_seconds"] for part in found)
    return {"part_files": found, "wall_seconds": round(seconds, 3)} if found else {}


def _device(name: str) -> str:
    """The device of that name, if torch can use it; torch on one thread.

    Sums over several threads would round differently; ``--workers`` trains models side by side.
    """
    import torch

    from hiddenstate.dpsgd.clipping import usable

    torch.set_num_threads(1)
    return str(usable(name, "--device"))


@contextmanager
def removable(path: Path) -> Iterator[None]:
    """Say of a result that is damaged, or of something else, what to do about it."""
    try:
        yield
    except InputError as error:
        if not path.exists():
            raise
        raise InputError(f"{error}; remove the file and run the same command again") from error


def _beside(options: argparse.Namespace, grid: "FamilyGrid", seed: int) -> dict[str, Path | None]:
    """Where the scores and bounds of a grid lie, beside its estimates, by folder and cell.

    None for those that are absent, or of another seed, parameters, code or data: `job estimate`
    leaves these out alike. Without its whole folder a file was taken elsewhere, and lacks nothing.
    """
    from hiddenstate import papers

    found: dict[str, Path | None] = {}
    for kind, jobs in papers.load(options.family).jobs(grid).items():
        for name, job in jobs.items():
            path = options.estimates.parent / job.work.folder / f"{name}.parquet"
            if kind != "start" and path.parent.exists():
                there = job.computed(path, seed)
                found[f"{job.work.folder}/{name}"] = path if there else None
    return found


def estimates(
    options: argparse.Namespace, grid: "FamilyGrid", seed: int
) -> "tuple[pd.DataFrame, bool]":
    """The estimates of a family's grid that the options name, and if no cell of it was left out."""
    from hiddenstate.pipeline import estimates, scores, sealed
    from hiddenstate.study import config

    named = config.grid_name(options.config, options.family, grid, seed)
    with removable(options.estimates):
        found = estimates.read(options.estimates, named)
        places = _beside(options, grid, seed)
        made = {n: scores.claimed_origin(path)["digest"] for n, path in places.items() if path}
        # A file that was taken elsewhere stands for itself.
        if places and found.attrs[sealed.MADE_OF] != sealed.of(made):
            raise InputError(
                f"{options.estimates}: was made of other scores or bounds than those beside it"
            )
        return found, None not in places.values()
