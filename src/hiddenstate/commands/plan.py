"""``hiddenstate plan``: what a run of the workflow would take."""

import argparse
import math

from hiddenstate.commands.printing import print_json, records
from hiddenstate.errors import InputError


def run(options: argparse.Namespace) -> None:
    """Print what a run would take: jobs, processor time, memory and disk, and what is cached.

    --config FILE: path! | scale file
    --results DIR: path! | results of the scale, by family
    --cached DIR: path | cached scores (default: none, train all)
    --cores: cores = 1 | cores to run on (default 1)
    --part-hours HOURS: float = 0 | hours of the longest job, into which longer trainings are
        divided (default 0: whole)
    --missing: str(train,skip) = train | handling of missing trained scores: trained (default), or
        left out
    --json: flag | print JSON instead of a table
    """
    from hiddenstate.study import forecast

    if not 0 <= options.part_hours < math.inf:
        raise InputError(
            f"--part-hours: got {options.part_hours:g}; expected a number of 0 or more"
        )
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
