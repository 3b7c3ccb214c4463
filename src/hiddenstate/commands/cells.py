"""``hiddenstate cells``, ``job simulate`` and ``job bound``: a family's cells, and quick work."""

import argparse
import json
import time

from hiddenstate.commands import jobs
from hiddenstate.commands.printing import print_json
from hiddenstate.errors import InputError


def cells(options: argparse.Namespace) -> None:
    """List the cells of a family.

    FAMILY
    --json: flag | print JSON instead of lines
    """
    family, grid, _ = jobs.section(options)
    found = [
        {"kind": kind, "cell": name, "identity": job.identity}
        for kind, every in family.jobs(grid).items()
        for name, job in every.items()
    ]
    if options.json:
        print_json(found)
        return
    for row in found:
        print(f"{row['kind']}\t{row['cell']}\t{json.dumps(row['identity'])}")


def simulate(options: argparse.Namespace) -> None:
    """Simulate cells and write the scores.

    FAMILY
    CELLS
    """
    _compute(options)


def bound(options: argparse.Namespace) -> None:
    """Compute upper bounds for cells.

    FAMILY
    CELLS
    """
    _compute(options)


def _compute(options: argparse.Namespace) -> None:
    from hiddenstate.pipeline.cells import Workplace

    if len(options.cell) != len(options.out):
        raise InputError(
            f"--out: got {len(options.out)} files for {len(options.cell)} cells; "
            "expected one for each cell"
        )
    family, grid, seed = jobs.section(options)
    every = family.jobs(grid)
    wanted = [jobs.known(every, options.named, cell, options.config) for cell in options.cell]
    for job, path in zip(wanted, options.out, strict=True):
        start = time.perf_counter()
        try:
            frame = job.run(seed, Workplace())
            jobs.write(path, job, frame, jobs.origin(job, seed, start, job.files))
        except InputError as error:
            raise InputError(f"{job.cell.name}: {error}") from error
        except Exception as error:
            error.add_note(f"(of the cell {job.cell.name})")
            raise
