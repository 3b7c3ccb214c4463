"""``hiddenstate audit-training``: your own training script, audited."""

import argparse
import json
import os
import shlex
import sys
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from hiddenstate.commands import claim_options
from hiddenstate.commands.options import status
from hiddenstate.commands.printing import duration, print_json
from hiddenstate.errors import InputError
from hiddenstate.files import atomic
from hiddenstate.rounding import shown

if TYPE_CHECKING:
    from hiddenstate.auditing import SequentialAudit
    from hiddenstate.auditing.audit import LowerBound
    from hiddenstate.auditing.claim import Claim
    from hiddenstate.auditing.reach import Reach
    from hiddenstate.campaign.campaign import Outcome, Training
    from hiddenstate.campaign.checking import Checked

CHECKED = "check.json"
"""What the check before the first model found, in the campaign's directory."""


def run(options: argparse.Namespace) -> int:
    """Audit your own training; exit status 1 if the claim is refuted.

    Other exit statuses: 0 if the scores are consistent with it, 2 for bad input, such as a training
    that fails, 3 for any other failure.

    training: str | Python file with train(world, seed) -> score, or a command line in quotes with
        {world} and {seed} whose last printed line is the score
    --function: str = train | name of the function in the file (default train)
    CLAIM
    --delta: float | delta of --claim, such as 1e-5
    --models: int | models to train per data set, with the canary and without
    --looks MODELS: int+ | numbers of models per data set at which a refuted claim stops the audit
        (default: --models alone)
    --confidence: float = 0.95 | confidence of the verdict (default 0.95)
    --out DIR: path | folder of the campaign (default NAME-audit)
    --seed: int = 0 | root seed of all runs (default 0)
    --workers: int = 1 | processes that train (default 1)
    --retries: int = 2 | retries of a run that crashes (default 2)
    --timeout SECONDS: float | time limit of a run in seconds (default: none)
    --battery SCORE: str+ = | names of several scores that each run returns (a mapping, or a printed
        JSON object); one audit judges all of them, and they share its level
    either --check: flag | check alone: five models that show whether an audit can use the training
        (default: check, then audit)
    or --no-check: flag | audit without the check
    --json: flag | print JSON instead of words
    """
    from hiddenstate.auditing import SequentialAudit, report
    from hiddenstate.auditing.curve import check_confidence
    from hiddenstate.auditing.reach import reach
    from hiddenstate.campaign import campaign
    from hiddenstate.campaign.workers import check_limits

    check_limits(options.workers, options.retries, options.timeout)
    confidence = check_confidence(options.confidence)
    training, name = _training(options)
    out = options.out or Path(f"{name}-audit")
    if options.check:
        if options.models is not None:
            _looks(options)
        _report(_checked(training, out, options), options)
        return 0
    claim = claim_options.required(options)
    looks = _looks(options)
    test = SequentialAudit(claim.hypotheses, claim.value, looks, confidence)
    _warn(test.shared(max(1, len(options.battery))), claim, looks[-1])
    # A campaign that goes on was checked when it began.
    if not options.no_check and not (out / "campaign.json").exists():
        checked = _checked(training, out, options)
        _report(checked, options, sys.stderr)
        _compare(checked, options)
        with atomic(out / CHECKED) as temporary:
            temporary.write_text(json.dumps(asdict(checked), indent=2) + "\n")
    outcome = campaign.run(
        training,
        test,
        out,
        seed=options.seed,
        workers=options.workers,
        retries=options.retries,
        timeout=options.timeout,
        progress=True,
        battery=options.battery,
    )
    found = {
        "decision": outcome.verdict.decision,
        "claim": claim.words,
        "confidence": confidence,
        "p_value": outcome.verdict.p_value,
        "models": outcome.models,
        "planned": looks[-1],
        "looks": list(looks),
        "crashes": outcome.crashes,
        "scores": str(outcome.scores),
    }
    # Scores of an early stop have no number that was fixed in advance.
    bounds = would = None
    backwards = outcome.verdict.other_way
    if not backwards and (len(looks) == 1 or outcome.verdict.decision != "refuted"):
        bounds = report.campaign_bounds(outcome.scores, claim, confidence)
        told = ("parameter", "value", "direction")
        rows = {name: {key: getattr(bound, key) for key in told} for name, bound in bounds.items()}
        found["bound" if len(rows) == 1 else "bounds"] = rows.get("", rows)
    if outcome.verdict.decision == "consistent":
        would = reach(claim, test.shared(max(1, len(options.battery))))
        found["reach"] = asdict(would)
    found["other_way"] = asdict(backwards) if backwards else None
    from hiddenstate.campaign import page

    kept = out / CHECKED
    written = page.write(
        out / "audit.html", outcome, claim, test,
        command=shlex.join(["hiddenstate", *sys.argv[1:]]),
        checked=json.loads(kept.read_text()) if kept.exists() else None,
        bounds=bounds, would=would,
    )  # fmt: skip
    found["page"] = str(written)
    if options.json:
        print_json(found)
    else:
        _tell(outcome, found, bounds, would)
    return status(outcome.verdict.decision == "refuted", backwards)


def _looks(options: argparse.Namespace) -> tuple[int, ...]:
    """Numbers of models per data set at which to look; the last is that of all."""
    if options.models is None or options.models < 2:
        got = "missing" if options.models is None else f"got {options.models}"
        raise InputError(f"--models: {got}; give --models N, at least 2 models per data set")
    looks = tuple(options.looks or ()) or (options.models,)
    if looks[-1] > options.models:
        raise InputError(f"--looks: got {looks[-1]}; expected at most --models {options.models}")
    return looks if looks[-1] == options.models else (*looks, options.models)


def _warn(test: "SequentialAudit", claim: "Claim", models: int) -> None:
    """Say, before anything is trained, if the best of all scores could not refute the claim."""
    separated = [1.0 + i for i in range(models)], [-1.0 - i for i in range(models)]
    if test.judge(*separated).decision != "refuted":
        print(
            f"note: no scores of {models} models per data set can refute {claim.words}. Take more "
            "models, or claim the mechanism itself: --noise-multiplier, --sampling-rate, --steps",
            file=sys.stderr,
            flush=True,
        )


def _compare(checked: "Checked", options: argparse.Namespace) -> None:
    """Say if the accountant gives a larger epsilon than claimed for what the training does."""
    from hiddenstate.accounting import pld
    from hiddenstate.campaign.checking import OBSERVED

    seen = checked.seen.get("out") or {}
    numbers = [float(seen[name]) for name in OBSERVED if name in seen]
    if options.claim is None or len(numbers) < len(OBSERVED):
        return
    sigma, rate, steps = numbers
    own = pld.epsilon(sigma, rate, int(steps), options.delta)
    if own > options.claim:
        print(
            f"note: for what the training was seen to do the accountant says epsilon = "
            f"{shown(own, 'upper', 3)} at delta {options.delta:g}, not the claimed "
            f"{options.claim:g}; that audits find less proves nothing",
            file=sys.stderr,
            flush=True,
        )


def _training(options: argparse.Namespace) -> tuple["Training", str]:
    """The training that the options name, and a name for it."""
    from hiddenstate.campaign.campaign import CommandLine, Script

    text = options.training
    if os.path.isfile(text) or (text.endswith(".py") and "{" not in text and " " not in text):
        return Script(Path(text), options.function), Path(text).stem
    command = CommandLine(text)
    if not any(name.endswith(".py") for name in command.identity["files"]):
        print(
            "note: the command names no Python file that is here, so a change of its code is not "
            "seen; take another --out after one",
            file=sys.stderr,
            flush=True,
        )
    return command, "command"


def _checked(training: "Training", out: Path, options: argparse.Namespace) -> "Checked":
    """Check of the training; InputError if an audit cannot use it."""
    from hiddenstate.campaign.checking import CLAIMED, check
    from hiddenstate.campaign.inspecting import inspecting

    numbers = options.noise_multiplier, options.sampling_rate, options.steps
    claimed = {
        name: number for name, number in zip(CLAIMED, numbers, strict=True) if number is not None
    }
    found = check(
        training, out, seed=options.seed, timeout=options.timeout, retries=options.retries,
        claimed=claimed,
        inspect=partial(inspecting, **{n.replace(" ", "_"): v for n, v in claimed.items()}),
    )  # fmt: skip
    if found.findings:
        told = "\n".join(f"  {number}. {what}" for number, what in enumerate(found.findings, 1))
        way = "" if options.check else ", or go on with --no-check"
        raise InputError(f"an audit cannot use this training; fix what follows{way}:\n{told}")
    return found


def _report(checked: "Checked", options: argparse.Namespace, to: IO[str] | None = None) -> None:
    """Say what one model takes, and the campaign if its size is known."""
    from hiddenstate.campaign.checking import OBSERVED

    if options.json and to is None:
        print_json(asdict(checked))
        return
    parts = [
        f"check passed: in {checked.models} models the seed decides the score, and the data sets "
        "differ in nothing seen but the canary; one model takes "
        f"{duration(checked.seconds)} and {checked.memory:.0f} MiB"
    ]
    if options.models:
        every = duration(2 * options.models * checked.seconds / options.workers)
        workers = f"{options.workers} worker" + "s" * (options.workers > 1)
        parts.append(f"{2 * options.models} models take {every} at most with {workers}")
    print("; ".join(parts), file=to, flush=True)
    seen = checked.seen.get("out") or {}
    told = [f"{name} {seen[name]:g}" for name in OBSERVED if name in seen]
    words = ", ".join(told) if told else "no noise, sampling or steps; the audit trusts the claim"
    print(f"seen in the training: {words}", file=to, flush=True)
    for note in checked.notes:
        print(f"note: {note}", file=to, flush=True)
    if checked.inside:
        print(f"white-box check of one training: {checked.inside['words']}", file=to, flush=True)


def _tell(
    outcome: "Outcome",
    found: dict[str, Any],
    bounds: "dict[str, LowerBound] | None",
    would: "Reach | None",
) -> None:
    from hiddenstate.auditing import report

    for crash in outcome.crashes:
        print(f"crashed and tried again: {crash}")
    if outcome.taken:
        print(
            f"{outcome.scores.parent} already had {outcome.taken} of {outcome.finished} runs"
            + ("; nothing was trained" if outcome.taken == outcome.finished else "")
        )
    print(
        f"{'no verdict' if outcome.verdict.other_way else found['decision']}: {found['claim']}, "
        f"after {outcome.models} models with the canary and {outcome.models} without, at "
        f"{100 * found['confidence']:g} % confidence (p-value at most "
        f"{shown(outcome.verdict.p_value, 'upper', 2)})"
    )
    if bounds:
        print(f"{report.bounds_in_words(bounds)}. Bound and verdict each hold alone.")
    if would:
        print(f"{would}.")
    print(f"scores: {outcome.scores}")
    print(f"page: {found['page']}")
