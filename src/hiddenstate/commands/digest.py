"""``hiddenstate digest`` and ``schema``: if scores are the same, and what a scale may say."""

import argparse
from pathlib import Path

from hiddenstate.commands.options import Commands, add_json, command
from hiddenstate.commands.printing import print_json


def add(commands: Commands) -> None:
    parser = command(commands, "digest", _digest)
    parser.add_argument(
        "--seal",
        action="store_true",
        help="write seals of the provenance into files of version 0.3 and before, which have none",
    )
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="score files")
    add_json(parser, "lines")

    parser = command(commands, "schema", _schema)
    parser.add_argument(
        "--levels",
        type=Path,
        metavar="DIR",
        help="scale files whose levels are printed, for src/hiddenstate/study/levels.json",
    )


def _digest(options: argparse.Namespace) -> None:
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


def _schema(options: argparse.Namespace) -> None:
    """Print the JSON schema of a scale file."""
    from hiddenstate.study import config, levels

    print_json(levels.reference(options.levels) if options.levels else config.schema())
