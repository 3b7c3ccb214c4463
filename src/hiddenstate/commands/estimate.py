"""``hiddenstate job estimate``: from scores and bounds to tidy estimates."""

import argparse
from typing import TYPE_CHECKING

from hiddenstate.commands import jobs
from hiddenstate.commands.options import (
    Commands,
    add_family,
    add_missing,
    add_out,
    add_path,
    command,
)

if TYPE_CHECKING:
    import pandas as pd


def add_jobs(commands: Commands) -> None:
    parser = command(commands, "estimate", run)
    add_family(parser)
    add_path(parser, "results", "directory of scores and bounds", metavar="DIR")
    add_missing(parser, default="error", what="an error")
    add_out(parser, "CSV file to write")


def run(options: argparse.Namespace) -> None:
    """Turn a family's scores and bounds into tidy estimates."""
    from hiddenstate.pipeline import estimates, scores, sealed
    from hiddenstate.study import config

    family, grid, seed = jobs.section(options)
    found: dict[str, dict[str, pd.DataFrame]] = {"scores": {}, "bounds": {}}
    made_of = {}
    for kind in ("simulate", "train", "bound"):
        for name, job in family.jobs(grid)[kind].items():
            path = options.results / job.work.folder / f"{name}.parquet"
            skipped = kind == "train" and options.missing == "skip"
            if skipped and not scores.computed(path, job.identity, seed, job.files):
                continue
            with jobs.removable(path):
                frame = scores.check(path, job.identity, seed, job.files)
            found[job.work.folder][name] = frame
            made_of[f"{job.work.folder}/{name}"] = scores.digest(frame)
    frame = family.estimates(grid, found["scores"], found["bounds"])
    named = config.grid_name(options.config, options.family, grid, seed)
    estimates.write(options.out, frame, named, sealed.of(made_of))
