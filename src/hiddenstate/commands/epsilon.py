"""``hiddenstate epsilon``: what the accountants say before any training."""

import argparse
import json
from typing import TYPE_CHECKING, Any

from hiddenstate.commands import cyclic
from hiddenstate.errors import InputError
from hiddenstate.rounding import shown

if TYPE_CHECKING:
    from hiddenstate.accounting.bounds import Found


def add_mechanism(parser: argparse.ArgumentParser) -> None:
    """The mechanism, with sampled batches or in a fixed order, and delta."""
    for names, kind, what in (
        (("--noise-multiplier", "--sigma"), float, "noise standard deviation over clipping norm"),
        (("--sampling-rate", "--q"), float, "probability that a step samples a record"),
        (("--steps",), int, "steps of DP-SGD"),
        (("--delta",), float, "probability at which epsilon is stated"),
    ):
        needed = names[0] != "--sampling-rate"
        parser.add_argument(*names, type=kind, required=needed, metavar="NUMBER", help=what)
    cyclic.add_arguments(parser)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The mechanism and delta, and what the optimiser does with its steps."""
    add_mechanism(parser)
    parser.add_argument(
        "--schedule",
        default="constant",
        metavar="NAME",
        help="learning rates: constant (the default), linear, cosine or step",
    )
    for name, default, what in (
        ("--momentum", 0.0, "of SGD (0)"),
        ("--weight-decay", 0.0, "of SGD (0)"),
        ("--learning-rate", 0.1, "the first step's, which weight decay is multiplied by (0.1)"),
    ):
        parser.add_argument(name, type=float, default=default, metavar="NUMBER", help=what)
    parser.add_argument(
        "--width",
        type=float,
        metavar="NUMBER",
        help="of the brackets on epsilon (1e-3, or 1 %% of the heuristic with an optimiser)",
    )
    parser.add_argument(
        "--json", action="store_true", help="print JSON, with both ends of brackets"
    )


def run(options: argparse.Namespace) -> None:
    """Print the standard, RDP, heuristic and full-batch epsilon before training."""
    if cyclic.run(options):
        return
    rows = _table(options)
    settings = {
        name: getattr(options, name)
        for name in (
            "noise_multiplier",
            "sampling_rate",
            "steps",
            "delta",
            "schedule",
            "momentum",
            "weight_decay",
            "learning_rate",
        )
    }
    if options.json:
        print(json.dumps(settings | {"epsilon": rows}, indent=2))
        return
    print(
        f"epsilon at delta {options.delta:g}, noise multiplier {options.noise_multiplier:g}, "
        f"sampling rate {options.sampling_rate:g}, {options.steps} steps (add or remove a record)"
    )
    if _optimised(options):
        print(
            f"{options.schedule} learning rate, momentum {options.momentum:g}, "
            f"weight decay {options.weight_decay:g} x {options.learning_rate:g}"
        )
    width = max(12, *(len(name) + 1 for name in rows))
    for name, row in rows.items():
        kind = "exact" if row["lower"] == row["upper"] else "upper"
        print(f"{name:<{width}}{shown(row['upper'], kind, 9):>12}  {row['meaning']}")
    print(
        "The heuristic is NO GUARANTEE. It predicts what an audit of a trained model may find;\n"
        "losses, regularisers and data sets exist whose last iterate leaks more, up to the\n"
        "standard epsilon. Only the standard epsilon may be promised to the people in the data."
    )


def _optimised(options: argparse.Namespace) -> bool:
    return bool(options.schedule != "constant" or options.momentum or options.weight_decay)


def _of_these_losses(options: argparse.Namespace) -> "list[Found]":
    """Bounds of the list that assume more of the losses, where it is given."""
    from hiddenstate.accounting import bounds
    from hiddenstate.accounting.sampled import SampledDPSGD

    run = SampledDPSGD(
        noise_multiplier=options.noise_multiplier,
        sampling_rate=options.sampling_rate,
        steps=options.steps,
        learning_rate=options.learning_rate,
        **cyclic.assumed(options),
    )
    known = [bound for bound in bounds.SAMPLED if bound.group != "released"]
    return bounds.found(known, run, options.delta)


def _table(options: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """Rows of lower and upper bound and meaning; null where a method bounds nothing."""
    from hiddenstate.accounting import composition, linear, rdp, weighted

    mechanism = (options.noise_multiplier, options.sampling_rate, options.steps)
    # Bad input is told by whoever meets it first; the heuristic is the cheapest.
    if _optimised(options):
        linear.check_mechanism(*mechanism)
        weights = weighted.optimiser_weights(
            options.steps,
            schedule=options.schedule,
            momentum=options.momentum,
            weight_decay=options.weight_decay,
            learning_rate=options.learning_rate,
        )
        heuristic = weighted.epsilon(*mechanism[:2], weights, options.delta, width=options.width)
    else:
        weighted.check_schedule(options.schedule)
        exact = float(linear.last_iterate_epsilon(*mechanism, options.delta))
        heuristic = composition.Bracket(exact, exact)
    full_batch = float(linear.full_batch_epsilon(*mechanism, options.delta))
    if options.width is None:
        standard = composition.fine_bracket(*mechanism, options.delta)
    else:
        standard = composition.bracket(*mechanism, options.delta, width=options.width)
    try:
        renyi: float | None = rdp.epsilon(*mechanism, options.delta)
    except InputError:
        renyi = None
    rows: list[tuple[str, float | None, float | None, str]] = [
        ("standard", *standard, "upper bound for any loss, all iterates released"),
        ("RDP", None, renyi, "the same by Rényi differential privacy, looser"),
        ("heuristic", *heuristic, "last iterate alone, exact if every loss is linear"),
        (
            "full batch",
            full_batch,
            full_batch,
            "every record in every step, same mean step and noise",
        ),
    ]
    rows += [
        (one.bound.name, None, one.epsilon, one.assumption) for one in _of_these_losses(options)
    ]
    return {
        name: {"lower": lower, "upper": upper, "meaning": meaning}
        for name, lower, upper, meaning in rows
    }
