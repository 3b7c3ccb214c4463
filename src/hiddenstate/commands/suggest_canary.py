"""``hiddenstate suggest-canary``: what to insert and what to read, given what one suspects."""

import argparse
from dataclasses import asdict

from hiddenstate.commands.printing import print_json
from hiddenstate.rounding import shown


def run(options: argparse.Namespace) -> None:
    """Suggest the canary and the score that find a mistake in a training with Opacus.

    suspicion SUSPICION: str? | suspected mistake, by its name (default: list all mistakes)
    --json: flag | print JSON instead of a table
    """
    from hiddenstate.campaign import guide

    chosen = options.suspicion
    rows = guide.campaigns() if chosen is None else guide.suggestions(chosen)
    if options.json:
        print_json([asdict(row) | {"canary": row.canary} for row in rows])
        return
    if chosen is None and (none := guide.unfound()):
        print("The kit cannot find these mistakes yet, with the canaries and scores below:")
        for name, mistake in none.items():
            print(f"- {name}: {mistake}")
        print()
    print(guide.markdown(rows))
    if chosen is None:
        return
    best = rows[0]
    print()
    if best.found:
        least = shown(best.power, "lower", decimals=2)
        print(
            f"Take gradient={best.gradient} and the score {best.score!r}.\n"
            f"Plan {best.models} models per data set or more. {best.times} of {best.campaigns} "
            "campaigns found the mistake,\n"
            f"so its probability is at least {least} (95 % confidence)."
        )
    else:
        print(
            "None of these campaigns found the mistake. An audit needs more models or another "
            "canary.\naudit-training --check compares noise, sampling and steps with the claim."
        )
    print(
        "Measured on a small convolutional network, noise multiplier 0.6, sampling rate 0.1 and 20 "
        "steps.\nWith more noise an audit needs more models."
    )
