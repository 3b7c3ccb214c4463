"""``hiddenstate plan``: what a run of the workflow would take."""

import argparse
import re
from pathlib import Path

from hiddenstate.commands.options import (
    Commands,
    add_config,
    add_json,
    add_missing,
    add_path,
    command,
)
from hiddenstate.commands.printing import print_json, records


def add(commands: Commands) -> None:
    parser = command(commands, "plan", run)
    add_config(parser)
    add_path(parser, "results", "results of the scale, by family", metavar="DIR")
    parser.add_argument(
        "--cached", type=Path, metavar="DIR", help="cached scores (default: none, train all)"
    )
    parser.add_argument("--cores", type=_cores, default=1, help="cores to run on (default 1)")
    parser.add_argument(
        "--part-hours",
        type=float,
        default=0.0,
        metavar="HOURS",
        help="hours of the longest job, into which longer trainings are divided (default 0: whole)",
    )
    add_missing(parser, default="train", what="trained")
    add_json(parser)


def _cores(given: str) -> int:
    if not re.fullmatch("[1-9][0-9]{0,6}", given):
        raise argparse.ArgumentTypeError(f"got {given!r}; expected a number from 1")
    return int(given)


def run(options: argparse.Namespace) -> None:
    """Print what a run would take: jobs, processor time, memory and disk, and what is cached."""
    from hiddenstate.study import forecast

    trains = options.missing != "skip"
    found = forecast.table(
        options.config,
        options.results,
        options.cached,
        trains=trains,
        part_hours=options.part_hours,
    )
    stray = [str(path) for path in forecast.stray(options.config, options.results)]
    partial = forecast.partial(options.config, options.results, options.cached)
    if options.json:
        told = {"families": records(found), "all": forecast.sums(found, options.cores)}
        print_json(told | {"partial": partial, "stray": stray})
        return
    print(forecast.words(found, options.cores, options.part_hours), end="")
    for cell, (there, every) in partial.items():
        print(f"Part files have {there} of {every} models of {cell}.")
    if stray:
        print(
            f"Files of cells that the scale no longer has, which may be deleted: {len(stray)}, "
            f"the first is {stray[0]}"
        )
