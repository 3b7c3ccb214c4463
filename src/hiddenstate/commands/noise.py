"""``hiddenstate noise``: how much noise a target epsilon needs."""

import argparse
import math
import textwrap
from dataclasses import replace
from typing import TYPE_CHECKING

from hiddenstate.commands import setting_options
from hiddenstate.commands.options import Commands, add_json, command
from hiddenstate.commands.printing import print_json
from hiddenstate.errors import InputError
from hiddenstate.rounding import shown

if TYPE_CHECKING:
    from hiddenstate.accounting.bounds import Bound
    from hiddenstate.accounting.setting import Setting

CLOSE = 1e-3
"""Largest share by which the noise is more than is needed."""


def add(commands: Commands) -> None:
    parser = command(commands, "noise", run)
    parser.add_argument(
        "--target-epsilon", type=float, required=True, metavar="NUMBER", help="epsilon to be met"
    )
    setting_options.add_arguments(parser, noise=False)
    add_json(parser, "two sentences")


def run(options: argparse.Namespace) -> None:
    """Print the noise multiplier that a target epsilon needs."""
    # Imported here because most commands never account.
    from hiddenstate.accounting import bounds, pld

    target = options.target_epsilon
    if not 0 < target < math.inf:
        raise InputError(f"--target-epsilon: got {target:g}; expected a number above 0")
    options.noise_multiplier = 1.0
    setting = setting_options.read(options)
    found: dict[str, dict[str, float | str]] = {}
    wanted = (bounds.STANDARD, bounds.SITTING_OUT, bounds.HEURISTIC)
    for bound in bounds.BOUNDS:
        name = bound.name
        if name not in wanted or not bound.applies(setting):
            continue
        try:
            adjacent = setting.group > 1 or setting.swaps
            if setting.sampled and name == bounds.STANDARD and not adjacent:
                given = (target, options.delta, setting.rate, setting.steps)
                noise = pld.noise_multiplier(*given)
            else:
                noise = least(bound, setting, options.delta, target)
        except InputError as refusal:
            if name == bounds.STANDARD:
                raise
            found[name] = {"none": str(refusal)}
            continue
        (answer,) = bounds.found(replace(setting, noise_multiplier=noise), options.delta, [bound])
        assert answer.epsilon is not None
        found[name] = {"noise_multiplier": noise, "epsilon": answer.epsilon}
    if options.json:
        numbers = {name: value for name, value in setting.numbers.items() if "noise" not in name}
        asked = {"delta": options.delta, "target_epsilon": target}
        print_json(asked | numbers | {"noise": found})
        return
    linear = found.pop(bounds.HEURISTIC)
    known = {name: one for name, one in found.items() if "none" not in one}
    name = min(known, key=lambda name: float(known[name]["noise_multiplier"]))
    said = "the standard epsilon" if name == bounds.STANDARD else f'epsilon ("{name}")'
    print(
        f"Use noise multiplier {_up(known[name]['noise_multiplier'])}: {said} is then "
        f"{_up(known[name]['epsilon'])} at delta {options.delta:g},\nfor every loss, also if all "
        "iterates are seen."
    )
    if "noise_multiplier" in linear:
        print(
            f"If every loss were linear, {_up(linear['noise_multiplier'])} would be enough for "
            "what is released. That is no guarantee."
        )
    words = setting.words.split(", ", 1)[1]
    print(textwrap.fill(f"Setting: {words}.", 100, subsequent_indent="  "))


def _up(value: float | str) -> str:
    return shown(float(value), "upper", 4)


def least(bound: "Bound", setting: "Setting", delta: float, target: float) -> float:
    """Noise multiplier at which a bound is at most the target: never too small, four digits.

    Raises an input error as the bound does, and where no noise is needed.
    """

    # Imported here because most commands never look for a root.
    from hiddenstate.accounting import bounds, roots

    def epsilon(noise: float) -> float:
        (answer,) = bounds.found(replace(setting, noise_multiplier=noise), delta, [bound])
        if answer.epsilon is None:
            raise InputError(f"{bound.name}: {answer.assumption.removeprefix('none: ')}")
        return answer.epsilon

    low, high = 0.0, 1.0
    while epsilon(high) > target:
        low, high = high, 2 * high
        if high > 1e9:
            raise InputError(f"--target-epsilon: got {target:g}; expected one that noise can meet")
    while low == 0.0:
        half = high / 2
        if epsilon(half) > target:
            low = half
        elif half < 1e-3:
            raise InputError(f"--target-epsilon: got {target:g}; expected less: no noise is needed")
        else:
            high = half

    def excess(log_noise: float) -> float:
        return math.log(max(epsilon(math.exp(log_noise)), 1e-9 * target) / target)

    # Epsilon is nearly a power of the noise.
    ends = roots.between(excess, math.log(low), math.log(high), absolute=CLOSE / 10)
    return float(shown(math.exp(ends[1]), "upper", 6))
