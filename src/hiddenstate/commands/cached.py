"""``hiddenstate restore``, ``verify`` and ``verified``: scores that were computed elsewhere."""

import argparse
import shutil
from pathlib import Path

from hiddenstate import files
from hiddenstate.commands import jobs
from hiddenstate.commands.options import (
    Commands,
    add_cell,
    add_family,
    add_json,
    add_out,
    add_path,
    add_training,
    command,
)
from hiddenstate.commands.printing import print_table
from hiddenstate.errors import InputError


def add(commands: Commands) -> None:
    """Where the cached scores are, how they are tested, and where the result goes."""
    parser = command(commands, "restore", _restore)
    add_family(parser)
    add_path(parser, "cached", "cached scores", metavar="DIR")
    add_out(parser, "directory to write them to", metavar="DIR")

    parser = command(commands, "verify", _verify)
    parser.set_defaults(part=None, hours=None, parts=[], purpose="verification")
    add_family(parser)
    add_cell(parser)
    add_path(parser, "cached", "cached scores")
    parser.add_argument("--models", type=int, default=20, help="per world and repeat (20)")
    add_training(parser)
    add_out(parser, "CSV file to write")
    add_json(parser)

    parser = command(commands, "verified", _verified)
    parser.add_argument(
        "files", nargs="*", type=Path, metavar="FILE", help="of `hiddenstate verify`"
    )
    add_out(parser, "CSV file to write")
    add_json(parser)


def _restore(options: argparse.Namespace) -> None:
    """Copy the cached scores of a family's cells, if each is of exactly its cell's parameters."""
    from hiddenstate.pipeline import scores

    family, grid, seed = jobs.section(options)
    trained = family.jobs(grid)["train"]
    paths = {name: options.cached / f"{name}.parquet" for name in trained}
    found = {name: path for name, path in paths.items() if path.exists()}
    for name, path in found.items():
        scores.check(path, trained[name].identity, seed, trained[name].files)
    options.out.mkdir(parents=True, exist_ok=True)
    for path in found.values():
        with files.atomic(options.out / path.name) as temporary:
            shutil.copyfile(path, temporary)


def _verify(options: argparse.Namespace) -> None:
    """Train models of a cell again; test if cached scores are distributed so."""
    from hiddenstate.pipeline import scores, verification

    job, seed = jobs.asked(options, "train")
    cached = scores.check(options.cached, job.identity, seed, job.files)
    with jobs.workplace(options, job, seed) as workplace:
        found = verification.compare(cached, job.run(seed, workplace))
        found.insert(0, "cell", job.cell.name)
        with files.atomic(options.out) as temporary:
            found.to_csv(temporary, index=False)
    print_table(found, options)


def _verified(options: argparse.Namespace) -> None:
    """Collect verdicts on cells; fail, naming them, if any disagree."""
    import pandas as pd

    if not options.files:
        raise InputError(
            "nothing to verify: no cell is cached, or the new models per world (verify_models) "
            "are too few to disagree with any cached scores"
        )
    frames = []
    for path in options.files:
        frames.append(pd.read_csv(files.require(path, "a file written by `hiddenstate verify`")))
        if not {"cell", "agree"} <= set(frames[-1]):
            raise InputError(f"{path}: lacks the columns cell and agree of `hiddenstate verify`")
    found = pd.concat(frames, ignore_index=True)
    with files.atomic(options.out) as temporary:
        found.to_csv(temporary, index=False)
    print_table(found, options)
    differing = sorted(set(found.loc[~found["agree"], "cell"]))
    if differing:
        raise InputError(
            f"cached scores differ from scores trained again: {', '.join(differing)} "
            f"(p-values in {options.out})"
        )
