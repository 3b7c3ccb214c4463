"""``hiddenstate epsilon``: what the accountants say before any training."""

import argparse
import textwrap
from typing import TYPE_CHECKING

from hiddenstate.commands import setting_options
from hiddenstate.commands.options import check_pictures
from hiddenstate.commands.printing import print_json
from hiddenstate.errors import expect
from hiddenstate.rounding import shown

if TYPE_CHECKING:
    from hiddenstate.accounting.bounds import Found
    from hiddenstate.accounting.setting import Setting
    from hiddenstate.accounting.tradeoff import TradeoffCurve

WIDTH = 100
"""Characters of a line."""


def run(options: argparse.Namespace) -> None:
    """Print every accountant's epsilon before training.

    SAMPLER
    NOISE
    SETTING
    --alpha NUMBER: float | false-positive rate at which attacks are bounded (default: none)
    --figure FILE: path+ | pictures of the trade-off curves to write: .png, .pdf, .svg
    --json: flag | print JSON instead of a table, with every digit and both ends of brackets
    """
    # Imported here because most commands never account.
    from hiddenstate.accounting import bounds

    check_pictures(options.figure)
    alpha = options.alpha
    expect(alpha is None or 0 < alpha < 1, "--alpha", alpha, "a number between 0 and 1")
    setting = setting_options.read(options)
    answers = bounds.found(setting, options.delta)
    ignored = setting_options.unused(options, setting, answers)
    curves = {} if alpha is None and not options.figure else _curves(setting, answers)
    if options.figure:
        _draw(options, setting, curves)
    attacks = {} if alpha is None else {name: _attack(one, alpha) for name, one in curves.items()}
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
        attack = {"attacks": {"alpha": alpha} | attacks} if attacks else {}
        print_json(numbers | {"unused": ignored, "epsilon": epsilon} | attack)
        return
    for line in _lines(setting, options.delta, answers) + _attacked(attacks, alpha):
        print(textwrap.fill(line, WIDTH, subsequent_indent="  "))
    if ignored:
        print(f"No value of this table depends on {', '.join(ignored)}.")
    print()
    values = [_value(one) for one in answers]
    width = max(len(one.bound.name) for one in answers) + 2
    digits = max(7, *map(len, values))
    for one, value in zip(answers, values, strict=True):
        first, *more = textwrap.wrap(one.assumption, WIDTH - width - digits - 2)
        print(f"{one.bound.name:<{width}}{value:>{digits}}  {first}")
        for line in more:
            print(" " * (width + digits + 2) + line)


def _value(one: "Found") -> str:
    """An epsilon in print; an exact value with two ends is known between them."""
    kind, ends = one.bound.kind, one.value and (one.value.lower, one.value.epsilon)
    if ends and ends[0] is not None and kind == "exact":
        kind = "exact" if shown(ends[0], digits=4) == shown(ends[1], digits=4) else "upper"
    return shown(one.epsilon, kind, 4)


def _lines(setting: "Setting", delta: float, answers: "list[Found]") -> list[str]:
    """The answer, what it is of, and what else is known."""
    from hiddenstate.accounting.bounds import HEURISTIC

    by_name = {one.bound.name: one for one in answers}
    known = [one for one in answers if one.epsilon is not None]
    proven = [
        one.epsilon for one in known if one.bound.group == "proven" and one.epsilon is not None
    ]
    linear, least = by_name[HEURISTIC], min(proven, default=None)
    found = [
        f"Report epsilon = {shown(least, 'upper', 3)} at delta {delta:g}: it holds for every loss, "
        "also if all iterates are seen.",
    ]
    if linear.epsilon is not None:
        found.append(
            f"If every loss were linear, epsilon would be {shown(linear.epsilon, digits=3)}. "
            "Audits of trained models usually find no more, but it is no guarantee."
        )
    leaks = [one.epsilon or 0.0 for one in known if one.bound.group == "shown"]
    if leaks and least is not None:
        found.append(
            f"In the worst case all iterates leak between {shown(max(leaks), 'lower', 3)} and "
            f"{shown(least, 'upper', 3)}; no better bounds of this order are known here."
        )
    smaller = [
        one.epsilon
        for one in known
        if one.bound.group in ("hidden", "assumed") and one.bound.kind == "upper"
        if least is not None and one.epsilon is not None and one.epsilon < least
    ]
    if smaller:
        found.append(
            f"If only the last iterate is released, {shown(min(smaller), 'upper', 3)} is proven "
            "for the losses that its row names. Report it only if every record's loss is of that "
            "kind."
        )
    if setting.shuffled and not setting.redrawn:
        found.append(
            "The order must be drawn uniformly, and may be known. For a given order use "
            "--sampler cyclic."
        )
    found.append(f"Setting: {setting.words}.")
    return found


def _curves(setting: "Setting", answers: "list[Found]") -> "dict[str, TradeoffCurve]":
    """Lower bounds on the trade-off functions of the least proven epsilon and the linear heuristic.

    Each epsilon at a delta is a supporting line, and any deltas give valid ones.
    """
    # Imported here because most commands never account.
    from hiddenstate.accounting import bounds, tradeoff

    found = {}
    known = [one for one in answers if one.epsilon is not None]
    proven = [one for one in known if one.bound.group == "proven"]
    chosen = sorted(proven, key=lambda one: one.epsilon or 0.0)[:1]
    chosen += [one for one in known if one.bound.name == bounds.HEURISTIC]
    for bound in (one.bound for one in chosen):
        lines: dict[float, float] = {}
        delta = 1e-9
        while delta < 1 and 0.0 not in lines:
            (one,) = bounds.found(setting, delta, [bound])
            if one.epsilon is not None:
                lines[one.epsilon] = min(delta, lines.get(one.epsilon, 1.0))
            # Finer where the curve bends most.
            delta *= 10.0 if delta < 1e-3 else 1.5 if delta < 0.02 else 1 + 0.02 / delta
        lines.setdefault(0.0, 1.0)
        epsilons = sorted(lines)
        found[bound.name] = tradeoff.symmetric(epsilons, [lines[one] for one in epsilons])
    return found


def _attack(curve: "TradeoffCurve", alpha: float) -> dict[str, float]:
    """Least false-negative rate of an attack at this false-positive rate, and its advantage."""
    return {"beta": float(curve(alpha)), "advantage": 1 - float(curve.total(0.0))}


def _attacked(attacks: dict[str, dict[str, float]], alpha: float) -> list[str]:
    """Power of attacks, in words."""
    from hiddenstate.accounting.bounds import HEURISTIC

    lines = []
    for name, one in attacks.items():
        found = shown(100 * (1 - one["beta"]), "upper", 3)
        start, verb = ("No attack", "finds")
        if name == HEURISTIC:
            start, verb = ("If every loss were linear, no attack", "would find")
        lines.append(
            f"{start} that accuses {100 * alpha:g} % of the absent records {verb} more than "
            f"{found} % of the present ones. Its advantage (true minus false positives) is at most "
            f"{shown(one['advantage'], 'upper', 3)} at every rate."
        )
    return lines


def _draw(
    options: argparse.Namespace, setting: "Setting", curves: "dict[str, TradeoffCurve]"
) -> None:
    import numpy as np

    from hiddenstate import plotting
    from hiddenstate.accounting.bounds import HEURISTIC

    with plotting.style():
        drawn, (axes,) = plotting.panels(1)
        plotting.diagonal(axes)
        for name, curve in curves.items():
            rates = np.union1d(curve.fpr, np.linspace(0, 1, 501))
            color = plotting.OTHER if name == HEURISTIC else plotting.UPPER
            axes.plot(rates, curve(rates), color=color, label=f"{name}, lower bound")
        axes.set(
            xlabel="false-positive rate", ylabel="false-negative rate", xlim=(0, 1), ylim=(0, 1)
        )
        axes.legend()
        plotting.save(
            drawn,
            options.figure,
            setting.words,
            f"No attack's errors are below the curve '{next(iter(curves), '')}'",
        )
