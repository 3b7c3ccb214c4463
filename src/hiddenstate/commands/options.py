"""Add commands, and arguments that several commands share."""

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from hiddenstate import papers
from hiddenstate.errors import InputError

Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"
"""Where a command line keeps its commands."""

PICTURES = (".png", ".pdf", ".svg")


def command(
    commands: Commands,
    name: str,
    run: Callable[[argparse.Namespace], int | None],
    summary: str | None = None,
) -> argparse.ArgumentParser:
    """A new command, without arguments yet; its summary is the first line of ``run``'s docstring.

    ``run`` returns the exit status, None for 0.
    """
    summary = (summary or str(run.__doc__).splitlines()[0]).removesuffix(".")
    parser = commands.add_parser(name, help=summary, description=f"{summary}.")
    parser.set_defaults(run=run, named=name)
    return parser


def add_family(parser: argparse.ArgumentParser) -> None:
    """A family, and the scale file that has its grid."""
    parser.add_argument("family", metavar="FAMILY", help=f"family: {', '.join(papers.names())}")
    add_config(parser, "scale file, such as workflow/config/scales/laptop.yaml")


def add_config(parser: argparse.ArgumentParser, what: str = "scale file") -> None:
    """The scale file."""
    add_path(parser, "config", what)


def add_out(parser: argparse.ArgumentParser, what: str, **options: Any) -> None:
    """Add the option for the written file."""
    add_path(parser, "out", what, **options)


def add_path(
    parser: argparse.ArgumentParser,
    name: str,
    what: str | None = None,
    *,
    metavar: str = "FILE",
    **options: Any,
) -> None:
    """A required option that names a file or, by its ``metavar``, a directory."""
    parser.add_argument(
        f"--{name}", type=Path, required=True, metavar=metavar, help=what, **options
    )


def add_cell(parser: argparse.ArgumentParser, **options: Any) -> None:
    """A cell by its name."""
    words = "cell, by a name that `hiddenstate cells` lists"
    parser.add_argument("--cell", required=True, metavar="CELL", help=words, **options)


def add_missing(parser: argparse.ArgumentParser, *, default: str, what: str) -> None:
    """Add the option for trained scores that are missing."""
    words = f"handling of missing trained scores: {what} (default), or left out"
    parser.add_argument("--missing", choices=(default, "skip"), default=default, help=words)


def add_device(parser: argparse.ArgumentParser) -> None:
    """Add the option for the place of training."""
    parser.add_argument(
        "--device", default="cpu", help="device that trains: cpu (default), cuda, cuda:1, …"
    )


def add_training(parser: argparse.ArgumentParser) -> None:
    """Add options for the training of a cell's models: place, data and limits."""
    add_device(parser)
    # Without a value: the cell has no initial parameters of its own.
    parser.add_argument("--start", type=Path, nargs="?", help="file of initial parameters")
    parser.add_argument("--checkpoint", type=Path, metavar="DIR", help="folder for finished models")
    parser.add_argument("--workers", type=int, default=1, help="threads that train (default 1)")
    parser.add_argument(
        "--memory",
        type=int,
        default=0,
        help="memory for models in MiB (default 2048; on CUDA 80 %% of what is free)",
    )


def add_confidence(parser: argparse.ArgumentParser, what: str) -> None:
    """The confidence of what is said."""
    parser.add_argument("--confidence", type=float, default=0.95, help=f"{what} (default 0.95)")


def add_json(parser: argparse.ArgumentParser, instead: str = "a table") -> None:
    """The option that every command has that prints numbers."""
    parser.add_argument("--json", action="store_true", help=f"print JSON instead of {instead}")


def add_figure(
    parser: argparse.ArgumentParser, what: str = "pictures to write: .png, .pdf, .svg"
) -> None:
    """Pictures of what is printed; ``check_pictures`` refuses names that cannot be written."""
    parser.add_argument("--figure", type=Path, nargs="+", metavar="FILE", help=what)


def add_negate(parser: argparse.ArgumentParser) -> None:
    """The sign of scores that are smaller with the canary."""
    parser.add_argument(
        "--negate",
        action="store_true",
        help="minus sign for scores that are smaller with the canary, such as losses; to be chosen "
        "before you look",
    )


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
