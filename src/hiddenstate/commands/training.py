"""``hiddenstate start`` and ``train``: initial parameters, and the models that train from them."""

import argparse
import time

from hiddenstate import files
from hiddenstate.commands import jobs
from hiddenstate.commands.options import (
    Commands,
    add_cell,
    add_device,
    add_family,
    add_out,
    add_training,
    command,
)


def add(commands: Commands) -> None:
    """The cell, where to train, which part of the models, and where the result goes."""
    what = "Make and write the initial parameters that cells train from"
    parser = command(commands, "start", _run, what)
    parser.set_defaults(kind="start", checkpoint=None, gathers=0)
    add_family(parser)
    add_cell(parser)
    add_device(parser)
    add_out(parser, "Parquet file to write")

    what = "Train a cell's models and write their scores; a killed run goes on"
    parser = command(commands, "train", _run, what)
    parser.set_defaults(kind="train", models=None, purpose="")
    add_family(parser)
    add_cell(parser)
    add_training(parser)
    parser.add_argument(
        "--part",
        type=_part,
        metavar="K/N",
        help="train the K-th of N parts of the models, kept in --checkpoint; FILE is empty",
    )
    parser.add_argument(
        "--gathers",
        type=int,
        default=0,
        metavar="N",
        help="the number of parts whose models are in --checkpoint, for the provenance",
    )
    add_out(parser, "Parquet file to write")


def _part(text: str) -> tuple[int, int]:
    """The part that "K/N" names, counted from 0, and the number of parts."""
    match text.split("/"):
        case [k, n] if k.isdecimal() and n.isdecimal() and 1 <= int(k) <= int(n):
            return int(k) - 1, int(n)
    raise argparse.ArgumentTypeError(f"got {text!r}; expected K/N with K from 1 to N, such as 2/8")


def _run(options: argparse.Namespace) -> None:
    """Make a cell's initial parameters, or train it; interrupted training goes on."""
    from hiddenstate.dpsgd import checkpoint

    job, seed = jobs.asked(options, options.kind)
    given = job.files  # as they are before the work: they may be replaced meanwhile
    with jobs.workplace(options, job, seed) as workplace:
        before = checkpoint.spent(options.checkpoint)
        start = time.perf_counter() - before
        frame = job.run(seed, workplace)
        if workplace.part:
            with files.atomic(options.out) as temporary:
                temporary.touch()
            return
        origin = jobs.origin(job, seed, start, given)
        if options.gathers:
            origin["parts"] = options.gathers
        jobs.write(options.out, job, frame, origin)
