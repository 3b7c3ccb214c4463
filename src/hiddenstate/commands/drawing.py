"""``hiddenstate job estimate``, and ``figures``, which are drawn from that alone."""

import argparse
from typing import TYPE_CHECKING

from hiddenstate.commands import jobs
from hiddenstate.errors import InputError

if TYPE_CHECKING:
    import pandas as pd


def estimate(options: argparse.Namespace) -> None:
    """Turn a family's scores and bounds into tidy estimates.

    FAMILY
    --results DIR: path! | directory of scores and bounds
    --missing: str(error,skip) = error | handling of missing trained scores: an error (default), or
        left out
    --out FILE: path! | CSV file to write
    """
    from hiddenstate.pipeline import estimates, sealed
    from hiddenstate.study import config

    family, grid, seed = jobs.section(options)
    found: dict[str, dict[str, pd.DataFrame]] = {"scores": {}, "bounds": {}}
    made_of = {}
    for kind in ("simulate", "train", "bound"):
        for name, job in family.jobs(grid)[kind].items():
            path = options.results / job.work.folder / f"{name}.parquet"
            skipped = kind == "train" and options.missing == "skip"
            if skipped and not job.computed(path, seed):
                continue
            with jobs.removable(path):
                frame, digest = job.checked(path, seed)
            found[job.work.folder][name] = frame
            made_of[f"{job.work.folder}/{name}"] = digest
    frame = family.estimates(grid, found["scores"], found["bounds"])
    named = config.grid_name(options.config, options.family, grid, seed)
    estimates.write(options.out, frame, named, sealed.of(made_of))


def figures(options: argparse.Namespace) -> None:
    """Draw a family's figures from estimates, each as PDF and PNG.

    FAMILY
    names NAME: str* | names to draw (default all)
    --estimates FILE: path! | estimates of the family
    --out DIR: path! | directory to write them to
    """
    from hiddenstate import plotting
    from hiddenstate.pipeline import sealed
    from hiddenstate.pipeline.family import Figure, Lacking
    from hiddenstate.study import levels

    family, grid, seed = jobs.section(options)
    every = family.every(Figure)
    for name in options.names:
        if name not in every:
            known = ", ".join(every)
            raise InputError(f"unknown {options.family} figure {name!r}; expected one of {known}")
    rows, whole = jobs.estimates(options, grid, seed)
    named = {name: every[name] for name in every if name in options.names}
    # What one sees was written of the published figures. Those of another scale or root seed, or of
    # a part of the cells, may show something else.
    seen = whole and levels.published(options.family, grid, seed)
    for name, figure in (named or family.shown(Figure, grid)).items():
        footer = f"{options.family}, {figure.footer(options.config.stem, grid)}"
        with plotting.style():
            paths = [options.out / f"{name}{suffix}" for suffix in (".pdf", ".png")]
            try:
                drawn = figure.draw(rows)
            except Lacking:
                drawn = plotting.absent()
            if (delta := getattr(grid, "delta", None)) is not None:
                footer += plotting.say_delta(drawn, delta)
            message = figure.message if seen else figure.title
            plotting.save(drawn, paths, footer, message or figure.title)
        sealed.sign(options.out, {path.name: rows.attrs[sealed.DIGEST] for path in paths})
