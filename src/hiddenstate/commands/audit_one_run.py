"""``hiddenstate audit-one-run``: what one training with many canaries proves."""

import argparse
import math
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hiddenstate.commands import claim_options
from hiddenstate.commands.options import status
from hiddenstate.commands.printing import print_json
from hiddenstate.errors import InputError
from hiddenstate.rounding import counted, shown

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from hiddenstate.auditing import Guesses
    from hiddenstate.auditing.audit import LowerBound


def run(options: argparse.Namespace) -> int:
    """Bound epsilon and mu from one training with many canaries, or test a claim.

    Exit status: 0 if no claim is given or the guesses are consistent with it, 1 if they refute it,
    2 for bad input, such as scores that point the other way, 3 for any other failure.

    scores FILE: path | CSV or Parquet, one row for each canary: world ('in' or 'out', by its coin)
        and score (larger: more 'in')
    --guesses NUMBER: int | coins to guess, fixed before the training: highest scores 'in', lowest
        'out'
    --planned-mu MU: float | expected separation of normal scores, which plans the number of guesses
        in place of --guesses; fixed before the training as well
    --beyond LOW HIGH: float2 | scores up to which to guess 'out' and from which to guess 'in', in
        place of --guesses; they may be chosen from the scores, and bound epsilon at --delta alone;
        with --negate those up to LOW are 'in'
    --deviation NUMBER: float | standard deviation of a score without its canary, if all are known
        to be independent normal numbers of mean 0; bounds mu of the joint mechanism as well
    --null-scores FILE: path | draws of all scores without canaries, in place of --deviation: .npy
        or CSV without a header, at least 100 rows, a column for each row of the scores
    --null-noise FILE: path | part of these draws that is known to be normal noise of --deviation
    --delta: float | delta at which epsilon is bounded as well, such as 1e-5 (default: mu alone)
    --coins SEED: int | seed of the order of equal scores (default: a new one, printed if used)
    --whole-gaussian: flag | one more bound on mu, if the whole mechanism is Gaussian DP: any d
        canaries together have mu sqrt(d), as with noise that all of them share
    CLAIM
    --confidence: float = 0.95 | confidence of each statement (default 0.95)
    --ignore COLUMN: str+ = | columns to ignore
    NEGATE
    --json: flag | print JSON instead of a table
    """
    from hiddenstate.auditing import (
        guess,
        guess_beyond,
        one_canary_ceiling,
        one_run_p_value,
        planned_guesses,
        report,
    )
    from hiddenstate.auditing.curve import check_confidence, seed
    from hiddenstate.auditing.other_way import guessed_other_way
    from hiddenstate.auditing.reach import one_run_reach

    confidence = check_confidence(options.confidence)
    claim = claim_options.stated(options)
    how = [options.guesses, options.planned_mu, options.beyond]
    if sum(given is not None for given in how) != 1:
        raise InputError(
            "guesses: give one of --guesses and --planned-mu, fixed in advance, or --beyond"
        )
    if options.beyond and not options.beyond[0] < options.beyond[1]:
        low, high = options.beyond
        raise InputError(f"--beyond: got {low:g} {high:g}; expected LOW below HIGH")
    if options.beyond and (options.delta is None or (claim and claim.hypotheses.trivial != 0)):
        raise InputError("--beyond: needs --delta, and tests a claim by epsilon alone")
    if options.whole_gaussian and options.planned_mu is None:
        raise InputError("--whole-gaussian: needs --planned-mu, which plans how many coins count")
    scores, included = report.rows(options.scores, one_run=True, ignore=options.ignore)
    scores = -scores if options.negate else scores
    coins = seed(options.coins)
    if options.beyond:
        low, high = options.beyond
        low, high = (-high, -low) if options.negate else (low, high)
        guesses = guess_beyond(scores, included, low, high)
        if claim and not guesses.made:
            raise InputError(
                f"--beyond: no score is {options.beyond[0]:g} or less, or {options.beyond[1]:g} or "
                "more; expected a score to guess by, to test the claim"
            )
    else:
        made = options.guesses
        if made is None:
            made = planned_guesses(options.planned_mu, len(scores), confidence=confidence)
        guesses = guess(scores, included, made, coins=coins)
    made = guesses.made
    every = None
    if options.whole_gaussian:
        every = guess(scores, included, len(scores), coins=coins)
    tossed = any(made is not None and made.coins is not None for made in (guesses, every))
    with report.told_by_the_verdict():
        bounds = _bounds(options, guesses, every)
    if law := _null_law(options, scores, included):
        bounds.append(("whole mechanism", law))
    ceiling = None
    if options.planned_mu is not None:
        ceiling = one_canary_ceiling(options.planned_mu, len(scores), confidence=confidence)
    backwards = guessed_other_way(guesses.made, guesses.correct)
    judged: dict[str, Any] | None = None
    would = None
    if claim is not None:
        p_value = one_run_p_value(guesses, claim.hypotheses, claim.value)
        refuted = p_value <= 1 - confidence
        would = None if refuted else one_run_reach(claim, guesses, confidence=confidence)
        judged = {
            "claim": claim.words,
            "p_value": p_value,
            "refuted": refuted,
            "decision": "refuted" if refuted else "other way" if backwards else "consistent",
            "reach": asdict(would) if would else None,
        }
    if options.json:
        rows = [{"hypothesis": name} | asdict(bound) for name, bound in bounds]
        for row in rows:
            del row["threshold"]
        told: dict[str, Any] = {"canaries": len(scores), "guesses": made, "right": guesses.correct}
        told["coins"] = coins if tossed else None
        told["ceiling"] = ceiling
        told["other_way"] = asdict(backwards) if backwards else None
        print_json(told | {"bounds": rows, "claim": judged})
    else:
        _tell(len(scores), guesses, bounds, confidence)
        if ceiling is not None and math.isfinite(ceiling):
            most = shown(ceiling, "upper", 3)
            print(
                f"Half of such audits bound mu by at most {most}, at separation "
                f"{options.planned_mu:g}, if only the claim of each canary alone is assumed."
            )
        if tossed:
            print(f"Equal scores are ordered by chance; repeat with --coins {coins}.")
        if judged:
            decision = judged["decision"]
            words = report.verdict_in_words(judged["claim"], decision, p_value, "guesses")
            print(f"\nclaim: {words}")
            if decision == "consistent":
                print(f"{would}.")
    return status(judged is not None and judged["refuted"], backwards)


def _bounds(
    options: argparse.Namespace, guesses: "Guesses", every: "Guesses | None"
) -> "list[tuple[str, LowerBound]]":
    """Bounds from the guesses, each with its quantity; ``every``: a guess of every coin."""
    from hiddenstate.auditing import ApproxDP, GaussianDP, flip_bound, one_run_bound, planned_flips

    confidence = options.confidence
    alone = "each canary alone"
    found = []
    if guesses.fixed:
        found.append((alone, one_run_bound(guesses, GaussianDP(), confidence=confidence)))
    if options.delta is not None:
        bound = one_run_bound(guesses, ApproxDP(options.delta), confidence=confidence)
        found.insert(0, (alone, bound))
    if every is not None:
        flips = planned_flips(options.planned_mu, every.canaries, confidence=confidence)
        found.append(("whole mechanism", flip_bound(every, flips, confidence=confidence)))
    return found


def _null_law(
    options: argparse.Namespace, scores: "NDArray[np.float64]", included: "NDArray[np.bool_]"
) -> "LowerBound | None":
    """The bound by a law of the scores without canaries, if one is given."""
    from hiddenstate.auditing import whole_gaussian_bound

    given = {"null_scores": options.null_scores, "null_noise": options.null_noise}
    draws = {name: matrix(path) for name, path in given.items() if path is not None}
    if options.deviation is None and not draws:
        return None
    if options.negate:
        draws = {name: -values for name, values in draws.items()}
    try:
        return whole_gaussian_bound(
            scores, included, deviation=options.deviation, confidence=options.confidence, **draws
        )
    except InputError as error:
        name, _, words = str(error).partition(": ")
        if name not in draws:
            raise
        raise InputError(f"{given[name]}: {words}") from error


def matrix(path: Path) -> "NDArray[np.float64]":
    """Numbers of a .npy file, or of a CSV file without a header."""
    import numpy as np

    from hiddenstate.files import array, text

    what = "draws of all scores, one a row"
    if path.suffix == ".npy":
        return array(path, f"{what}, as real numbers").astype(float)
    try:
        lines = text(path, what).removeprefix("\ufeff").splitlines()
        if not any(map(str.strip, lines)):
            raise InputError(f"{path}: is empty; expected {what}")
        return np.loadtxt(lines, delimiter=",", ndmin=2)
    except InputError:
        raise
    except ValueError as error:
        raise InputError(f"{path}: not a readable matrix ({error})") from error


def _tell(
    canaries: int,
    guesses: "Guesses",
    found: "list[tuple[str, LowerBound]]",
    confidence: float,
) -> None:
    import pandas as pd

    rows = [
        {
            "parameter": bound.parameter,
            "claim about": name,
            "method": bound.method,
            "at least": shown(bound.value, "lower", decimals=3),
        }
        for name, bound in found
    ]
    print(pd.DataFrame(rows).to_markdown(index=False, disable_numparse=True))
    fixed = ", if the number of guesses was fixed in advance" if guesses.fixed else ""
    print(
        f"\n{guesses.correct} of {counted(guesses.made, 'guess')} right, "
        f"{counted(canaries, 'canary')}. Each bound holds alone with {100 * confidence:g} % "
        f"confidence{fixed}."
    )
