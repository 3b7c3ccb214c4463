"""``hiddenstate noise``: how much noise a target epsilon needs."""

import argparse
import math
import textwrap
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from hiddenstate.commands import setting_options
from hiddenstate.commands.printing import print_json
from hiddenstate.errors import InputError
from hiddenstate.rounding import shown

if TYPE_CHECKING:
    from hiddenstate.accounting.bounds import Bound
    from hiddenstate.accounting.setting import Setting

CLOSE = 1e-3
"""Largest share by which the noise is more than is needed."""


def run(options: argparse.Namespace) -> None:
    """Print the noise multiplier that a target epsilon needs.

    --target-epsilon NUMBER: float! | epsilon to be met
    SAMPLER
    SETTING
    --json: flag | print JSON instead of sentences
    """
    # Imported here because most commands never account.
    from hiddenstate.accounting import bounds, pld

    target, delta = options.target_epsilon, options.delta
    # Larger ones need less noise than brackets are made for.
    if not 0 < target <= 1e6:
        words = "a number above 0, and at most 1e6"
        raise InputError(f"--target-epsilon: got {target:g}; expected {words}")
    # A setting has some noise multiplier; every search replaces this one.
    options.noise_multiplier = 1.0
    setting = setting_options.read(options)
    every = {
        one.name: one
        for one in bounds.BOUNDS
        if one.applies(setting) and (one.kind == "upper" or one.name == bounds.HEURISTIC)
    }
    if setting.sampled and setting.group == 1 and not setting.swaps:
        standard = pld.noise_multiplier(target, delta, setting.rate, setting.steps)
    else:
        standard = least(every[bounds.STANDARD], setting, delta, target)
    answers = bounds.found(replace(setting, noise_multiplier=standard), delta, every.values())
    found: dict[str, dict[str, Any]] = {}
    for one in answers:
        name, noise = one.bound.name, standard
        if name != bounds.STANDARD:
            if name != bounds.HEURISTIC and (one.epsilon is None or one.epsilon >= target):
                continue
            try:
                noise = least(one.bound, setting, delta, target)
            except InputError as refusal:
                found[name] = {"none": str(refusal)}
                continue
            (one,) = bounds.found(replace(setting, noise_multiplier=noise), delta, [one.bound])
        found[name] = {"noise_multiplier": noise, "epsilon": one.epsilon}
    ignored = setting_options.unused(options, setting, answers)
    if options.json:
        numbers = {name: value for name, value in setting.numbers.items() if "noise" not in name}
        asked = {"delta": delta, "target_epsilon": target}
        print_json(asked | numbers | {"unused": ignored, "noise": found})
        return
    for line in _lines({every[name]: one for name, one in found.items()}, delta):
        print(textwrap.fill(line, 100, subsequent_indent="  "))
    words = setting.words.split(", ", 1)[1]
    print(textwrap.fill(f"Setting: {words}.", 100, subsequent_indent="  "))
    if ignored:
        print(f"Nothing of this depends on {', '.join(ignored)}.")


def _lines(found: "dict[Bound, dict[str, Any]]", delta: float) -> Iterator[str]:
    """The least noise that is proven for all that is released, and what else would be enough."""
    from hiddenstate.accounting.bounds import HEURISTIC, STANDARD

    known = {bound: one for bound, one in found.items() if "none" not in one}
    best: dict[str, tuple[Bound, dict[str, Any]]] = {}
    for bound, one in sorted(known.items(), key=lambda item: item[1]["noise_multiplier"]):
        of = HEURISTIC if bound.name == HEURISTIC else bound.group
        best.setdefault("last" if of in ("hidden", "assumed") else of, (bound, one))
    bound, one = best["proven"]
    said = "the standard epsilon" if bound.name == STANDARD else f'epsilon ("{bound.name}")'
    yield (
        f"Use noise multiplier {_up(one['noise_multiplier'])}: {said} is then "
        f"{_up(one['epsilon'])} at delta {delta:g}, for every loss, also if all iterates are seen."
    )
    if HEURISTIC in best:
        yield (
            f"If every loss were linear, {_up(best[HEURISTIC][1]['noise_multiplier'])} would be "
            "enough for what is released. That is no guarantee."
        )
    if "last" in best:
        bound, one = best["last"]
        yield (
            f"If only the last iterate is released, {_up(one['noise_multiplier'])} is proven to be "
            f'enough by "{bound.name}". Its conditions are: {bound.assumption}.'
        )


def _up(value: float) -> str:
    return shown(value, "upper", 4)


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
        elif half < 2e-3:  # the next would be refused as a setting
            raise InputError(f"--target-epsilon: got {target:g}; expected less: no noise is needed")
        else:
            high = half

    def excess(log_noise: float) -> float:
        # An epsilon of 0 has no logarithm.
        return math.log(max(epsilon(math.exp(log_noise)), 1e-9 * target) / target)

    # Epsilon is nearly a power of the noise.
    ends = roots.between(excess, math.log(low), math.log(high), absolute=CLOSE / 10)
    return float(shown(math.exp(ends[1]), "upper", 6))
