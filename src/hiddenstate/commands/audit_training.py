"""``hiddenstate audit-training``: your own training script, audited."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from hiddenstate.errors import InputError
from hiddenstate.rounding import shown

if TYPE_CHECKING:
    from hiddenstate.auditing.hypotheses import Hypotheses


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The training, the claim, how many models, where."""
    parser.add_argument(
        "training",
        help="Python file with train(world, seed) -> score, or a command line in quotes with "
        "{world} and {seed} whose last printed line is the score",
    )
    parser.add_argument("--function", default="train", help="its name in the file (train)")
    for names, what in (
        (("--claim",), "epsilon that is claimed at --delta"),
        (("--delta",), "probability, such as 1e-5"),
        (("--claim-mu",), "mu of Gaussian differential privacy that is claimed"),
        (("--noise-multiplier", "--sigma"), "claim: the curve of DP-SGD with this noise,"),
        (("--sampling-rate", "--q"), "this sampling rate (Poisson)"),
    ):
        parser.add_argument(*names, type=float, metavar="NUMBER", help=what)
    parser.add_argument("--steps", type=int, metavar="NUMBER", help="and this many steps")
    parser.add_argument("--models", type=int, required=True, help="in each world, at most")
    parser.add_argument(
        "--looks",
        type=int,
        nargs="+",
        metavar="MODELS",
        help="numbers of models in each world at which to look, and stop if the claim is refuted",
    )
    parser.add_argument("--confidence", type=float, default=0.95, help="of the verdict (0.95)")
    parser.add_argument("--out", type=Path, metavar="DIR", help="of the campaign (NAME-audit)")
    parser.add_argument("--seed", type=int, default=0, help="that all runs' seeds come from (0)")
    parser.add_argument("--workers", type=int, default=1, help="processes (1)")
    parser.add_argument("--retries", type=int, default=2, help="of a run that crashes (2)")
    parser.add_argument("--timeout", type=float, metavar="SECONDS", help="of a run (none)")


def run(options: argparse.Namespace) -> int:
    """Audit your own training; exit status 1 if the claim is refuted."""
    from hiddenstate.auditing import SequentialAudit, campaign, lower_bound
    from hiddenstate.auditing.curve import check_confidence

    confidence = check_confidence(options.confidence)
    hypotheses, claim, said = _claim(options)
    if options.models < 2:
        raise InputError(f"--models: got {options.models}; expected at least 2 in each world")
    looks = tuple(options.looks or ()) or (options.models,)
    if looks[-1] > options.models:
        raise InputError(f"--looks: got {looks[-1]}; expected at most --models {options.models}")
    if looks[-1] < options.models:
        looks = (*looks, options.models)
    training: campaign.Training
    if options.training.endswith(".py"):
        training = campaign.Script(Path(options.training), options.function)
        name = Path(options.training).stem
    else:
        training, name = campaign.CommandLine(options.training), "command"
    test = SequentialAudit(hypotheses, claim, looks, confidence)
    # What the best of all scores could show, known before anything is trained.
    perfect = test.judge([1.0 + i for i in range(looks[-1])], [-1.0 - i for i in range(looks[-1])])
    if perfect.decision != "refuted":
        print(
            f"note: with {looks[-1]} models in each world no scores can refute {said}; "
            "take more models, or claim the training's own curve (--noise-multiplier, "
            "--sampling-rate, --steps)",
            flush=True,
        )
    outcome = campaign.run(
        training,
        test,
        options.out or Path(f"{name}-audit"),
        seed=options.seed,
        workers=options.workers,
        retries=options.retries,
        timeout=options.timeout,
        progress=True,
    )
    for crash in outcome.crashes:
        print(f"tried again: {crash}")
    if outcome.taken:
        print(
            f"{outcome.taken} of {outcome.finished} finished runs taken from "
            f"{outcome.scores.parent}"
            + ("; nothing was trained" if outcome.taken == outcome.finished else "")
        )
    decision = outcome.verdict.decision
    print(
        f"{decision}: {said}, after {outcome.models} models in each world, at "
        f"{100 * confidence:g} % confidence (p-value at most "
        f"{shown(outcome.verdict.p_value, 'upper', 2)})"
    )
    if len(looks) == 1 and options.noise_multiplier is None:
        from hiddenstate.auditing import report

        scores = report.read(outcome.scores)
        bound = lower_bound(*scores, hypotheses, confidence=confidence)
        value = shown(bound.value, "lower", decimals=3)
        print(f"{bound.parameter} >= {value}, a statement of its own, as confident")
    print(f"scores: {outcome.scores}")
    return int(decision == "refuted")


def _claim(options: argparse.Namespace) -> tuple["Hypotheses", float, str]:
    """The hypotheses, the claim in their parameter, and the claim in words."""
    from hiddenstate.auditing import ApproxDP, GaussianDP, composed

    mechanism = (options.noise_multiplier, options.sampling_rate, options.steps)
    given = [
        options.claim is not None or options.delta is not None,
        options.claim_mu is not None,
        any(value is not None for value in mechanism),
    ]
    if sum(given) != 1:
        raise InputError(
            "claim: expected one of --claim with --delta, --claim-mu, or --noise-multiplier "
            "with --sampling-rate and --steps"
        )
    if given[0]:
        if options.claim is None or options.delta is None:
            raise InputError("claim: got one of --claim and --delta; expected both")
        said = f"epsilon {options.claim:g} at delta {options.delta:g}"
        return ApproxDP(options.delta), options.claim, said
    if given[1]:
        return GaussianDP(), options.claim_mu, f"mu {options.claim_mu:g}"
    if None in mechanism:
        raise InputError("claim: expected all of --noise-multiplier, --sampling-rate and --steps")
    sigma, rate, steps = mechanism
    if not sigma > 0:
        raise InputError(f"--noise-multiplier: got {sigma}; expected a number above 0")
    if not 0 < rate <= 1:
        raise InputError(f"--sampling-rate: got {rate}; expected a probability in (0, 1]")
    if steps < 1:
        raise InputError(f"--steps: got {steps}; expected at least 1")
    said = f"noise multiplier {sigma:g}, sampling rate {rate:g}, {steps} steps"
    return composed([2 * sigma, sigma], rate, steps), sigma, said
