"""``hiddenstate schema``: what a scale file may say."""

import argparse

from hiddenstate.commands.options import Commands, command
from hiddenstate.commands.printing import print_json


def add(commands: Commands) -> None:
    """It has no arguments."""
    command(commands, "schema", run)


def run(options: argparse.Namespace) -> None:
    """Print the JSON schema of a scale file."""
    from hiddenstate.study import config

    print_json(config.schema())
