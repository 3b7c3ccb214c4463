"""``hiddenstate epsilon``: what the accountants say before any training."""

import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The mechanism and delta."""
    for names, kind, what in (
        (("--noise-multiplier", "--sigma"), float, "noise standard deviation over clipping norm"),
        (("--sampling-rate", "--q"), float, "probability that a step samples a record"),
        (("--steps",), int, "steps of DP-SGD"),
        (("--delta",), float, "probability at which epsilon is stated"),
    ):
        parser.add_argument(*names, type=kind, required=True, metavar="NUMBER", help=what)


def run(options: argparse.Namespace) -> None:
    """Print the standard, heuristic and full-batch epsilon before training."""
    from hiddenstate.accounting import linear, pld

    mechanism = (options.noise_multiplier, options.sampling_rate, options.steps, options.delta)
    heuristic = linear.last_iterate_epsilon(*mechanism)
    full_batch = linear.full_batch_epsilon(*mechanism)
    standard = pld.epsilon(*mechanism)
    print(
        f"epsilon at delta {options.delta:g}, noise multiplier {options.noise_multiplier:g}, "
        f"sampling rate {options.sampling_rate:g}, {options.steps} steps (add or remove a record)\n"
        f"standard    {standard:12.6f}  upper bound for any loss, all iterates released\n"
        f"heuristic   {heuristic:12.6f}  last iterate alone, exact if every loss is linear\n"
        f"full batch  {full_batch:12.6f}  every record in every step, same mean step and noise\n"
        "The heuristic is NO GUARANTEE. It predicts what an audit of a trained model may find;\n"
        "losses, regularisers and data sets exist whose last iterate leaks more, up to the\n"
        "standard epsilon. Only the standard epsilon may be promised to the people in the data."
    )
