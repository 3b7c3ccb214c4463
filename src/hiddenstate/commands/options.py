"""Commands, and their options as the docstrings of their functions state them."""

import argparse
import re
import sys
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from hiddenstate import papers
from hiddenstate.errors import InputError
from hiddenstate.sampling import SAMPLERS

Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"
"""Where a command line keeps its commands."""
Run: TypeAlias = Callable[[argparse.Namespace], int | None]
"""The function of a command; it returns the exit status, None for 0."""

PICTURES = (".png", ".pdf", ".svg")

LEARNING_RATE = 0.1
"""Where none is given."""

SHARED = {
    "FAMILY": f"""\
family FAMILY: str | family: {", ".join(papers.names())}
--config FILE: path! | scale file, such as workflow/config/scales/laptop.yaml""",
    "CELL": "--cell CELL: str! | cell, by a name that `hiddenstate cells` lists",
    "CELLS": """\
--cell CELL: str+! | cell, by a name that `hiddenstate cells` lists
--out FILE: path+! | Parquet files to write, one for each cell""",
    "DEVICE": "--device: str = cpu | device that trains: cpu (default), cuda, cuda:1, …",
    # A start without a value: the cell has no initial parameters of its own.
    "TRAINING": """\
--start: path? | file of initial parameters
--checkpoint DIR: path | folder for finished models
--workers: int = 1 | threads that train (default 1)
--memory: int = 0 | memory for models in MiB (default 2048; on CUDA 80 %% of what is free)""",
    "NEGATE": """\
--negate: flag | minus sign for scores that are smaller with the canary, such as losses; to be
    chosen before you look; other options speak of the scores as they are in the file""",
    "CLAIM": """\
--claim NUMBER: float | claimed epsilon, at --delta
--claim-mu NUMBER: float | claimed mu of Gaussian differential privacy
--noise-multiplier, --sigma NUMBER: float | claimed mechanism's noise multiplier
--sampling-rate, --q NUMBER: float | claimed mechanism's sampling rate (Poisson)
--steps NUMBER: int | claimed mechanism's steps
--curve: str(dp,gdp) = dp | meaning of --claim: dp, (epsilon, delta)-DP (default), or gdp, the
    Gaussian DP with this epsilon at delta, which far fewer scores can refute""",
    "SAMPLER": f"""\
--sampler: str({",".join(SAMPLERS)}) = poisson | sampler: poisson (default), full (every record in
    every step), fixed-size (drawn without replacement in each step), balls-and-bins (each record in
    a random batch of each epoch), cyclic (fixed order), shuffled (order drawn once) or reshuffled
    (order drawn in each epoch)""",
    "NOISE": """\
--noise-multiplier, --sigma NUMBER: float! | noise multiplier: standard deviation of the noise over
    the clipping norm""",
    "SETTING": f"""\
--sampling-rate, --q NUMBER: float | probability that a step samples a record (Poisson)
--steps NUMBER: int | steps of DP-SGD
--epochs NUMBER: float | passes through the records, in place of --steps
--records NUMBER: int | records in the data set
--batch-size NUMBER: float | records in a batch, on average if sampled
--delta NUMBER: float! | delta at which epsilon is stated, such as 1e-5
--learning-rate NUMBER: float | learning rate of the first step, on a batch's mean (default
    {LEARNING_RATE:g})
--schedule NAME: str | schedule of the learning rate: constant (default), linear, cosine or step
--momentum NUMBER: float | momentum of SGD (default 0)
--weight-decay NUMBER: float | weight decay of SGD, multiplied by the learning rate (default 0)
--release-every NUMBER: int | steps between released iterates, 1: all (default: the last alone)
--average-last NUMBER: int | number of last iterates whose mean is released (default 1)
--ema-decay NUMBER: float | decay of the exponential moving average that is released (default: none)
--smoothness NUMBER: float | largest curvature of every loss, 0 if linear (default: not known)
--group NUMBER: int | records that are added, removed or swapped together (default 1)
--weak-convexity NUMBER: float | weak convexity of every loss, 0 if convex (default: the smoothness)
--strong-convexity NUMBER: float | strong convexity of every loss beside the weight decay, without
    clipping (default 0)
--holder NUMBER: float | exponent of Hölder gradients, whose constant is the smoothness (default 1)
--diameter NUMBER: float | diameter of the domain that every step projects the iterate on (default:
    none)
--adjacency: str(add-remove,swap) | difference of neighbouring data sets (default: add-remove for
    poisson, full and balls-and-bins, swap for the others)
--drop-last: flag | records that fill no batch sit out of the epoch (reshuffled; default: they are a
    smaller batch)
--convex: flag | convexity of every loss, as --weak-convexity 0""",
}
"""Options of several commands, by the word that stands for them."""

_OPTION = re.compile(
    r"(?:either |or )?([\w-]+(?:, --[\w-]+)*)(?: (\S+(?: \S+)?))?: "
    r"(\w+?)(?:\((.*?)\))?([+*?2]?)(!?)(?: =([^|]*))? \| (.*)",
    re.DOTALL,
)


def _part(text: str) -> tuple[int, int]:
    """The part that "K/N" names, counted from 0, and the number of parts."""
    match text.split("/"):
        case [k, n] if k.isdecimal() and n.isdecimal() and 1 <= int(k) <= int(n):
            return int(k) - 1, int(n)
    raise argparse.ArgumentTypeError(f"got {text!r}; expected K/N with K from 1 to N, such as 2/8")


def _hours(text: str) -> float:
    try:
        hours = float(text)
    except ValueError:
        hours = 0.0
    if not 0 < hours < 1e6:
        raise argparse.ArgumentTypeError(f"got {text!r}; expected hours above 0, such as 1.5")
    return hours


def _cores(given: str) -> int:
    if not re.fullmatch("[1-9][0-9]{0,6}", given):
        raise argparse.ArgumentTypeError(f"got {given!r}; expected a number from 1")
    return int(given)


KINDS: dict[str, Callable[[str], Any]] = {
    **{"str": str, "int": int, "float": float, "path": Path},
    **{"part": _part, "hours": _hours, "cores": _cores},
}
"""What reads the value of an option, by its kind."""


def command(commands: Commands, name: str, run: Run) -> str:
    """Add a command, as the docstring of its function has it; return the description.

    The first paragraph is the summary, the last one the options, and what stands between them is
    more of the description.
    """
    *words, options = str(run.__doc__).split("\n\n")
    description = " ".join(" ".join(words).split())
    parser = commands.add_parser(name, description=description)
    parser.set_defaults(run=run, named=name)
    add_options(parser, options)
    return description


def add_options(parser: argparse.ArgumentParser, text: str) -> None:
    """Add options that are written as ``--fpr RATE: float+ = 0.01 0.1 | rates (default 0.01 0.1)``.

    That is the names, what help calls the value, its kind (with the values that it may have, and
    their number as argparse has it), ``!`` if it is required, the default, and the help, whose
    further lines are indented. A word of ``SHARED`` stands for its options; "either" and "or" begin
    two that exclude each other.
    """
    text = re.sub(
        "^[A-Z]+$", lambda word: SHARED[word[0]], textwrap.dedent(text).strip(), flags=re.MULTILINE
    )
    place: Any = parser
    for option in re.split(r"\n(?=\S)", text):
        if option.startswith("either "):
            place = parser.add_mutually_exclusive_group()
        elif not option.startswith("or "):
            place = parser
        found = _OPTION.fullmatch(option)
        assert found, option
        names, metavar, kind, choices, number, needed, default, words = found.groups()
        given: dict[str, Any] = {"help": " ".join(words.split())}
        if kind == "flag":
            given["action"] = "store_true"
        else:
            given["type"] = read = KINDS[kind]
            if number:
                given["nargs"] = int(number) if number.isdecimal() else number
            if metavar:
                given["metavar"] = tuple(metavar.split()) if " " in metavar else metavar
            if choices:
                given["choices"] = [read(one) for one in choices.split(",")]
            if needed:
                given["required"] = True
            if default is not None:
                values = [read(one) for one in default.split()]
                given["default"] = values if number else values[0]
        place.add_argument(*names.split(", "), **given)


def status(refuted: bool, other_way: object) -> int:
    """Exit status of an audit; scores that point the other way are bad input, and named."""
    if other_way is None:
        return int(refuted)
    print(f"hiddenstate: error: {other_way}", file=sys.stderr)
    return 2


def check_pictures(paths: Sequence[Path] | None) -> None:
    """Refuse, before any work, names of pictures that cannot be written."""
    for path in paths or []:
        if path.suffix.lower() not in PICTURES:
            raise InputError(f"--figure: got {path}; expected a name in {', '.join(PICTURES)}")
