"""``hiddenstate digest``: whether scores are the same bit for bit."""

import argparse
from pathlib import Path

from hiddenstate.commands.options import Commands, add_json, command
from hiddenstate.commands.printing import print_json


def add(commands: Commands) -> None:
    parser = command(commands, "digest", run)
    parser.add_argument(
        "--seal",
        action="store_true",
        help="write seals of the provenance into files of version 0.3 and before, which have none",
    )
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="score files")
    add_json(parser, "lines")


def run(options: argparse.Namespace) -> None:
    """Print the SHA-256 of the scores in each file, for bit-for-bit comparison."""
    from hiddenstate.pipeline import scores

    for path in options.files if options.seal else []:
        scores.seal(path)
    found = {str(path): scores.digest(scores.read(path)[0]) for path in options.files}
    if options.json:
        print_json(found)
        return
    for path, digest in found.items():
        print(f"{digest}  {path}")
