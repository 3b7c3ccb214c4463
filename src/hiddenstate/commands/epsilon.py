"""``hiddenstate epsilon``: what the accountants say before any training."""

import argparse
import textwrap
from typing import TYPE_CHECKING

from hiddenstate.commands import setting_options
from hiddenstate.commands.options import Commands, add_json, command
from hiddenstate.commands.printing import print_json
from hiddenstate.rounding import shown

if TYPE_CHECKING:
    from hiddenstate.accounting.bounds import Found
    from hiddenstate.accounting.setting import Setting

WIDTH = 100
"""Characters of a line."""


def add(commands: Commands) -> None:
    """The setting."""
    parser = command(commands, "epsilon", run)
    setting_options.add_arguments(parser)
    add_json(parser, "a table, with every digit and both ends of brackets")


def run(options: argparse.Namespace) -> None:
    """Print every accountant's epsilon before training."""
    # Imported here because most commands never account.
    from hiddenstate.accounting import bounds

    setting = setting_options.read(options)
    answers = bounds.found(setting, options.delta)
    ignored = [setting_options.option(name) for name in bounds.unused(setting, answers)]
    curved = setting.smoothness is not None
    if options.convex and not curved:
        ignored.append("--convex")
    if options.learning_rate is not None and not (
        curved or setting.diameter is not None or setting.weight_decay
    ):
        ignored.append("--learning-rate")
    if options.json:
        epsilon = {
            one.bound.name: {
                "kind": one.bound.kind,
                "epsilon": one.epsilon,
                "lower": one.value and one.value.lower,
                "assumption": one.assumption,
                "source": one.bound.source,
                "mu": one.mu,
            }
            for one in answers
        }
        numbers = {"delta": options.delta} | setting.numbers
        print_json(numbers | {"unused": ignored, "epsilon": epsilon})
        return
    for line in _lines(setting, options.delta, answers):
        print(textwrap.fill(line, WIDTH, subsequent_indent="  "))
    if ignored:
        print(f"No value of this table depends on {', '.join(ignored)}.")
    print()
    width = max(len(one.bound.name) for one in answers) + 2
    for one in answers:
        # An exact value with two ends is known between them.
        bracket = one.value is not None and one.value.lower is not None
        kind = "upper" if bracket else one.bound.kind
        first, *more = textwrap.wrap(one.assumption, WIDTH - width - 9)
        print(f"{one.bound.name:<{width}}{shown(one.epsilon, kind, 4):>7}  {first}")
        for line in more:
            print(" " * (width + 9) + line)


def _lines(setting: "Setting", delta: float, answers: "list[Found]") -> list[str]:
    """The answer, what it is of, and what else is known."""
    from hiddenstate.accounting.bounds import HEURISTIC, STANDARD

    by_name = {one.bound.name: one for one in answers}
    known = [one for one in answers if one.epsilon is not None]
    proven = [
        one.epsilon for one in known if one.bound.group == "proven" and one.epsilon is not None
    ]
    standard, linear = by_name[STANDARD], by_name[HEURISTIC]
    least = standard.epsilon if standard.epsilon is not None else min(proven, default=None)
    found = [
        f"Report epsilon = {shown(least, 'upper', 3)} at delta {delta:g}: it holds for every loss, "
        "also if all iterates are seen.",
    ]
    if linear.epsilon is not None:
        found.append(
            f"If every loss were linear, epsilon would be {shown(linear.epsilon, digits=3)}. "
            "Audits of trained models usually find no more, but it is no guarantee."
        )
    others = [
        one
        for one in known
        if one.bound.group in ("hidden", "assumed") and one.bound.kind == "upper"
    ]
    if others:
        found.append(
            'Report a row that begins with "last iterate" only if every record\'s loss meets its '
            "assumption."
        )
    if setting.shuffled and not setting.redrawn:
        found.append(
            "The order must be drawn uniformly, and may be known. For a given order use "
            "--sampler cyclic."
        )
    found.append(f"Setting: {setting.words}.")
    return found
