"""``hiddenstate job start``, ``train`` and ``gather``: initial parameters, models, parts."""

import argparse
import shutil
import time
from fnmatch import fnmatch
from typing import TYPE_CHECKING

from hiddenstate import files
from hiddenstate.commands import jobs
from hiddenstate.errors import InputError

if TYPE_CHECKING:
    from hiddenstate.pipeline.cells import Workplace
    from hiddenstate.pipeline.family import Job


def start(options: argparse.Namespace) -> None:
    """Make and write the initial parameters that cells train from.

    FAMILY
    CELL
    DEVICE
    --cached DIR: path | cached scores, with initial parameters in starts/ that are copied if they
        are there
    --out FILE: path! | Parquet file to write
    """
    job, seed = jobs.asked(options, "start")
    given = job.files
    kept = options.cached and options.cached / "starts" / f"{job.cell.name}.parquet"
    if kept and kept.exists():
        job.checked(kept, seed)
        with files.atomic(options.out) as temporary:
            shutil.copyfile(kept, temporary)
        return
    began = time.perf_counter()
    with jobs.workplace(options, job, seed) as workplace:
        frame = job.run(seed, workplace)
        jobs.write(options.out, job, frame, jobs.origin(job, seed, began, given))


def train(options: argparse.Namespace) -> None:
    """Train a cell's models and write their scores; a killed run goes on.

    FAMILY
    CELL
    DEVICE
    TRAINING
    --part K/N: part | part of the models to train, the K-th of N, for a part file
    --hours HOURS: hours | hours for which to train the next models, for a part file (default: no
        limit)
    --parts DIR: path* = | folders of part files (CELL.part-*.parquet), whose models are not trained
        again
    --gathers N: int = 0 | number of jobs that trained parts for this one, for the provenance
        (default 0)
    --out FILE: path! | Parquet file to write; of a part, CELL.part-NAME.parquet
    """
    from hiddenstate.dpsgd import checkpoint
    from hiddenstate.pipeline.family import Expect

    vars(options).update(models=None, purpose="")
    job, seed = jobs.asked(options, "train")
    partial = bool(options.part or options.hours)
    if partial and isinstance(job.work, Expect):
        raise InputError(
            f"--part, --hours: {job.cell.name} is an expected audit, which has no parts"
        )
    if partial and not fnmatch(options.out.name, f"{job.cell.name}.part-*.parquet"):
        raise InputError(
            f"--out: got {options.out.name}; expected the name of a part file, such as "
            f"{job.cell.name}.part-1.parquet"
        )
    given = job.files  # as they are before the work: they may be replaced meanwhile
    with jobs.workplace(options, job, seed) as workplace:
        # What killed runs spent on models that are kept counts as well.
        began = time.perf_counter() - checkpoint.spent(options.checkpoint)
        frame = job.run(seed, workplace)
        if partial:
            _write_part(options, job, seed, began, given, workplace)
            return
        origin = jobs.origin(job, seed, began, given)
        if options.gathers:
            origin["parts"] = options.gathers
        jobs.write(options.out, job, frame, origin | jobs.of_parts(options, job, origin))


def _write_part(
    options: argparse.Namespace,
    job: "Job",
    seed: int,
    began: float,
    given: dict[str, str],
    workplace: "Workplace",
) -> None:
    """Write a part file; its models' chunks go then, for it outlives other code and they do not."""
    from hiddenstate.dpsgd import checkpoint
    from hiddenstate.pipeline import parts

    part = workplace.checkpoint
    assert isinstance(part, parts.Parts)
    if options.hours and part.own().empty:
        raise InputError(
            f"{job.cell.name}: no model is left to train; `hiddenstate job gather` writes its "
            "scores"
        )
    if options.checkpoint:  # other parts' models are there as well
        began = time.perf_counter() - checkpoint.spent(options.checkpoint, part.finished)
    origin = jobs.origin(job, seed, began, given)
    # The file first: a kill in between leaves models twice, and loses none.
    parts.write(options.out, part.own(), origin, jobs.digest_of_start(options))
    checkpoint.drop(options.checkpoint, part.finished)


def gather(options: argparse.Namespace) -> None:
    """Write a cell's scores from part files, and remove these, once they have all its models.

    FAMILY
    CELL
    DEVICE
    --cached DIR: path! | cached scores, with part files in parts/
    """
    from hiddenstate.pipeline import parts

    job, seed = jobs.asked(options, "train")
    folder, began = options.cached / "parts", time.perf_counter()
    # All models come from part files, so that nothing is trained.
    place = {"checkpoint": None, "workers": 1, "memory": 0}
    own = {"models": None, "purpose": "", "part": None, "hours": None, "parts": [folder]}
    own["out"] = options.cached / f"{job.cell.name}.parquet"
    vars(options).update(place | own)
    options.start = job.start and options.cached / "starts" / f"{job.start.cell.name}.parquet"
    number, every = parts.models(jobs.finished_elsewhere(options, job, seed)), job.trainings
    if number < every:
        start = f"--start {options.start} " if options.start else ""
        raise InputError(
            f"{folder}: has {number} of {every} models of {job.cell.name}; train the others with "
            f"`hiddenstate job train {options.family} --config {options.config} --cell "
            f"{job.cell.name} {start}--parts {folder} --hours 8 --out "
            f"{folder}/{job.cell.name}.part-NAME.parquet`"
        )
    given = job.files
    with jobs.workplace(options, job, seed) as workplace:
        frame = job.run(seed, workplace)
        origin = jobs.origin(job, seed, began, given)
        jobs.write(options.out, job, frame, origin | jobs.of_parts(options, job, origin))
    # Not before the whole is written, so that a kill loses nothing.
    for path in parts.paths(job.cell.name, options.parts):
        path.unlink()
