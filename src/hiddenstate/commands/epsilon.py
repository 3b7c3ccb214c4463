"""``hiddenstate epsilon``: what the accountants say before any training."""

import argparse
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

_OPTIMISER = {"schedule": "constant", "momentum": 0.0, "weight_decay": 0.0}
"""What the optimiser does with its steps by default."""


def add(commands: Commands) -> None:
    """The setting, and what the optimiser does with its steps."""
    parser = command(commands, "epsilon", run)
    setting_options.add_arguments(parser)
    parser.add_argument(
        "--schedule",
        default="constant",
        metavar="NAME",
        help="poisson: learning rates, constant (the default), linear, cosine or step",
    )
    for name, what in (
        ("--momentum", "poisson: of SGD (0)"),
        ("--weight-decay", "poisson: of SGD (0), times the learning rate (0.1 here)"),
    ):
        parser.add_argument(name, type=float, default=0.0, metavar="NUMBER", help=what)
    parser.add_argument(
        "--width",
        type=float,
        metavar="NUMBER",
        help="poisson: of the brackets on epsilon (1e-3, or 1 %% of the heuristic with an "
        "optimiser)",
    )
    add_json(parser, "a table, with both ends of brackets")


def run(options: argparse.Namespace) -> None:
    """Print every accountant's epsilon before training."""
    # Imported here because most commands never account.
    from hiddenstate.accounting import bounds

    setting = setting_options.read(options)
    answers = bounds.found(setting, options.delta, _listed(options, setting))
    numbers = {"delta": options.delta} | setting.numbers
    if _optimised(options):
        numbers |= {name: getattr(options, name) for name in _OPTIMISER}
    if options.json:
        epsilon = {
            one.bound.key: {
                "name": one.bound.name,
                "kind": one.bound.kind,
                "epsilon": one.epsilon,
                "lower": one.value and one.value.lower,
                "assumption": one.assumption,
                "source": one.bound.source,
                "mu": one.mu,
            }
            for one in answers
        }
        print_json(numbers | {"epsilon": epsilon})
        return
    print(f"epsilon at delta {options.delta:g}, {setting.words}")
    if _optimised(options):
        print(
            f"{options.schedule} learning rate, momentum {options.momentum:g}, "
            f"weight decay {options.weight_decay:g} x {_rate(options):g}"
        )
    width = max(12, *(len(one.bound.key) + 1 for one in answers))
    for one in answers:
        # A heuristic with an optimiser is the upper end of its bracket.
        bracket = one.value is not None and one.value.lower is not None
        kind = "upper" if bracket else one.bound.kind
        print(f"{one.bound.key:<{width}}{shown(one.epsilon, kind, 9):>12}  {one.assumption}")
    first = answers[0].bound.key
    print(
        "The heuristic is NO GUARANTEE. It predicts what an audit of a trained model may find;\n"
        "losses, regularisers and data sets exist whose last iterate leaks more, up to the\n"
        f"{first} epsilon. That may be promised to the people in the data. What assumes more of\n"
        "the losses may be promised where that is known of every loss, and nowhere else."
    )
    if setting.shuffled and not setting.redrawn:
        print("Delta is the mean over the orders of the batches, which must be drawn uniformly.")


def _optimised(options: argparse.Namespace) -> bool:
    return any(getattr(options, name) != value for name, value in _OPTIMISER.items())


def _rate(options: argparse.Namespace) -> float:
    """Learning rate that weight decay is multiplied by."""
    return 0.1 if options.learning_rate is None else float(options.learning_rate)


def _listed(options: argparse.Namespace, setting: "Setting") -> "list[Bound]":
    """The list of bounds, with the width and the optimiser that are asked for."""
    from hiddenstate.accounting import bounds, composition, weighted

    changed = {}
    if setting.sampled:
        weighted.check_schedule(options.schedule)
    else:
        for name, value in {**_OPTIMISER, "width": None}.items():
            if getattr(options, name) != value:
                raise InputError(
                    f"{setting_options.option(name)}: expected only with --sampler poisson"
                )
    if options.width is not None:

        def standard(setting: "Setting", delta: float) -> bounds.Value:
            found = composition.bracket(*setting.mechanism, delta, width=options.width)
            return bounds.Value(found.upper, lower=found.lower)

        changed["standard"] = standard
    if _optimised(options):
        weights = weighted.optimiser_weights(
            setting.steps,
            schedule=options.schedule,
            momentum=options.momentum,
            weight_decay=options.weight_decay,
            learning_rate=_rate(options),
        )

        def heuristic(setting: "Setting", delta: float) -> bounds.Value:
            mechanism = (setting.noise_multiplier, setting.rate)
            found = weighted.epsilon(*mechanism, weights, delta, width=options.width)
            return bounds.Value(found.upper, lower=found.lower)

        changed["heuristic"] = heuristic
    return [
        replace(bound, compute=changed[bound.key]) if bound.key in changed else bound
        for bound in bounds.BOUNDS
    ]
