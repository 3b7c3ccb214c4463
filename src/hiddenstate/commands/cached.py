"""``hiddenstate keep``, ``job restore``, ``verify``, ``verified``: results computed elsewhere."""

import argparse
import math
import shutil
import sys
from pathlib import Path

from hiddenstate import files
from hiddenstate.commands import jobs
from hiddenstate.commands.printing import print_table
from hiddenstate.errors import InputError, check_count
from hiddenstate.rounding import counted


def restore(options: argparse.Namespace) -> None:
    """Copy cached results whose parameters match.

    FAMILY
    --cached DIR: path! | cached results of the family
    --out DIR: path! | folder for the family's results
    """
    from hiddenstate.pipeline import cache
    from hiddenstate.study import forecast

    family, grid, seed = jobs.section(options)
    place = (seed, options.config, options.family, options.cached)
    every = family.jobs(grid)
    for kind in cache.SERVED:
        for name in forecast.served(every[kind], *place):
            job = every[kind][name]
            path = cache.path(options.cached, job)
            with files.atomic(options.out / job.work.folder / path.name) as temporary:
                shutil.copyfile(path, temporary)


def keep(options: argparse.Namespace) -> None:
    """Fill the cache with the results that save most seconds for their bytes.

    --config FILE: path! | scale file
    --results DIR: path! | folder of the scale's results, by family
    --cached DIR: path! | folder of the cache, by family
    --megabytes MB: float = 40 | size of the whole cache in MB (default 40)
    --json: flag | print JSON instead of a table
    """
    import pandas as pd

    from hiddenstate import papers
    from hiddenstate.pipeline import cache, scores
    from hiddenstate.study import config

    if not options.results.is_dir():
        raise InputError(f"--results: no folder {options.results}; expected a scale's results")
    if not 0 <= options.megabytes < math.inf:
        raise InputError(f"--megabytes: got {options.megabytes:g}; expected a number of 0 or more")
    scale = config.read(options.config)
    found: list[tuple[Path, Path]] = []
    outdated: list[Path] = []
    copied = dropped = 0
    for name in config.families(scale):
        family, grid, folder = papers.load(name), getattr(scale, name), options.cached / name
        every = family.jobs(grid)
        for kind, cell in cache.live(family, grid):
            kept = cache.path(folder, job := every[kind][cell])
            own = kept.exists() and not cache.of_another(kept, job, scale.seed)
            # Every run computes these, so that a cached one is never read.
            if kind in ("simulate", "bound") and own:
                dropped += 1
                kept.unlink()
        results = options.results / name
        found += list(cache.worth(family, grid, results, folder, scale.seed))
        outdated += cache.outdated(family, grid, results, folder, scale.seed)
    places = {kept for _, kept in found}
    # Files that this command does not replace have their room first.
    others = set(options.cached.rglob("*.parquet")) - places
    room = options.megabytes * 1e6 - sum(path.stat().st_size for path in others)
    for file, kept in sorted(found, key=lambda pair: -cache.value(pair[0])):
        size = file.stat().st_size
        if size > room:
            dropped += kept.exists()
            kept.unlink(missing_ok=True)
            continue
        room -= size
        if file != kept:
            scores.read(file)  # refuses a damaged one
            copied += 1
            with files.atomic(kept) as temporary:
                shutil.copyfile(file, temporary)
    megabytes = round(options.megabytes - room / 1e6, 1)
    row = {"copied": copied, "dropped": dropped, "outdated": len(outdated), "megabytes": megabytes}
    print_table(pd.DataFrame([row]), options)
    if outdated:
        print(
            f"{counted(len(outdated), 'training')} of other code not kept, such as {outdated[0]}; "
            "remove the files and run the scale again to keep these",
            file=sys.stderr,
        )


def verify(options: argparse.Namespace) -> None:
    """Retrain a few models and test whether the cached scores have the same distribution.

    FAMILY
    CELL
    --cached FILE: path! | cached scores
    --models: int = 20 | models to train per data set and repeat (default 20)
    DEVICE
    TRAINING
    --out FILE: path! | CSV file to write
    --json: flag | print JSON instead of a table
    """
    from hiddenstate.pipeline import verification

    # A purpose of its own draws new models, independent of the cached ones.
    vars(options).update(part=None, hours=None, parts=[], purpose="verification")
    job, seed = jobs.asked(options, "train")
    check_count("models", options.models)
    cached, _ = job.checked(options.cached, seed)
    verification.refuse_few(cached, options.models)
    with jobs.workplace(options, job, seed) as workplace:
        found = verification.compare(cached, job.run(seed, workplace))
        found.insert(0, "cell", job.cell.name)
        with files.atomic(options.out) as temporary:
            found.to_csv(temporary, index=False)
    print_table(found, options)


def recompute(options: argparse.Namespace) -> None:
    """Recompute a simulation or bound and compare it with the cached one.

    FAMILY
    --kind: str(simulate,bound)! | kind of the cell's work
    CELL
    --cached FILE: path! | cached result
    --out FILE: path! | CSV file to write
    --json: flag | print JSON instead of a table
    """
    import pandas as pd

    from hiddenstate.pipeline import verification
    from hiddenstate.pipeline.cells import Workplace

    job, seed = jobs.asked(options, options.kind)
    cached, _ = job.checked(options.cached, seed)
    found = {"cell": job.cell.name} | verification.equal(cached, job.run(seed, Workplace()))
    table = pd.DataFrame([found])
    with files.atomic(options.out) as temporary:
        table.to_csv(temporary, index=False)
    print_table(table, options)


def verified(options: argparse.Namespace) -> None:
    """Collect the verdicts of `verify` and fail if any cell disagrees.

    files FILE: path* | verdicts of `hiddenstate job verify`
    --out FILE: path! | CSV file to write
    --json: flag | print JSON instead of a table
    """
    import pandas as pd

    if not options.files:
        raise InputError(
            "nothing to verify: no cell is cached, or verify_models of the scale file are too few "
            "to disagree with any cached scores; raise verify_models"
        )
    frames, verify = [], "`hiddenstate job verify`"
    for path in options.files:
        frames.append(files.table(path, f"a file written by {verify}"))
        if not {"cell", "agree"} <= set(frames[-1]):
            raise InputError(f"{path}: lacks the columns cell and agree of {verify}")
        if frames[-1]["agree"].dtype != bool:
            got = ", ".join(map(str, frames[-1]["agree"].unique()[:3]))
            raise InputError(f"{path}: agree: got {got}; expected True or False in each row")
    found = pd.concat(frames, ignore_index=True)
    with files.atomic(options.out) as temporary:
        found.to_csv(temporary, index=False)
    print_table(found, options)
    differing = sorted(set(found.loc[~found["agree"], "cell"]))
    if differing:
        raise InputError(
            f"cached results differ from those computed again: {', '.join(differing)} "
            f"(p-values in {options.out})"
        )
