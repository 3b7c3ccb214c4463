"""``hiddenstate schema``: what a scale file may say."""

import argparse
from pathlib import Path

from hiddenstate.commands.options import Commands, command
from hiddenstate.commands.printing import print_json


def add(commands: Commands) -> None:
    parser = command(commands, "schema", run)
    parser.add_argument(
        "--levels",
        type=Path,
        metavar="DIR",
        help="scale files whose levels are printed, for src/hiddenstate/study/levels.json",
    )


def run(options: argparse.Namespace) -> None:
    """Print the JSON schema of a scale file."""
    from hiddenstate.study import config, levels

    print_json(levels.reference(options.levels) if options.levels else config.schema())
