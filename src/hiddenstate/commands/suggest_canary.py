"""``hiddenstate suggest-canary``: what to insert and what to read, given what one suspects."""

import argparse
from dataclasses import asdict

from hiddenstate.commands.options import Commands, add_json, command
from hiddenstate.commands.printing import print_json


def add(commands: Commands) -> None:
    """The suspicion, and how the answer is printed."""
    parser = command(commands, "suggest-canary", run)
    parser.add_argument(
        "suspicion",
        nargs="?",
        metavar="SUSPICION",
        help="a mistake by its name; none: all mistakes with their names",
    )
    add_json(parser)


def run(options: argparse.Namespace) -> None:
    """Say which canary and which score find a mistake in a training with Opacus."""
    from hiddenstate.auditing import guide

    chosen = options.suspicion
    rows = guide.campaigns() if chosen is None else guide.suggestions(chosen)
    if options.json:
        print_json([asdict(row) | {"canary": row.canary} for row in rows])
        return
    print(guide.markdown(rows))
    if chosen is None:
        return
    best = rows[0]
    print()
    if best.found:
        print(
            f"take gradient=kit.Dirac(norm={best.norm:g}, spread={best.spread}) and the score "
            f"{best.score!r}; plan {best.models} models in each world or more"
        )
    else:
        print(
            "none of these found it: an audit of this mistake needs more models, or another "
            "canary; what follows from the number of records is named by audit-training --check"
        )
    print(
        "One campaign each with a small convolutional network, noise multiplier 0.6, sampling rate "
        "0.1 and 20 steps; with more noise an audit needs more models."
    )
