"""``hiddenstate plan-audit``: how many models an audit needs, before any is trained."""

import argparse
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from hiddenstate import rounding
from hiddenstate.commands import claim_options
from hiddenstate.commands.options import check_pictures
from hiddenstate.commands.printing import print_json
from hiddenstate.errors import InputError, expect

if TYPE_CHECKING:
    from hiddenstate.auditing.claim import Claim


def run(options: argparse.Namespace) -> None:
    """Print how many models an audit needs to refute a claim.

    CLAIM
    --delta: float | delta of --claim, such as 1e-5
    --show SHARE: float | claim as a share of --true, between 0 and 1
    --true NUMBER: float! | true epsilon (of a Gaussian mechanism), mu or noise multiplier, as
        claimed
    --power: float = 0.9 | probability that the audit refutes the claim (default 0.9)
    --confidence: float = 0.95 | confidence of a refutation (default 0.95)
    --seconds: float | seconds per model, to print hours (default: none printed)
    --workers: int = 1 | processes that train (default 1)
    --json: flag | print JSON instead of a table
    --figure FILE: path+ | bound against number of models
    """
    import pandas as pd

    from hiddenstate.auditing import report

    check_pictures(options.figure)
    expect(options.workers >= 1, "--workers", options.workers, "at least 1")
    if options.seconds is not None and not 0 < options.seconds < math.inf:
        raise InputError(f"--seconds: got {options.seconds:g}; expected a number above 0")
    judged, truth = _asked(options)
    rows = [row for claim in judged for row in _rows(claim, truth, options)]
    if options.json:
        print_json({"truth": truth.words, "plans": rows})
    else:
        print(pd.DataFrame(map(_shown, rows)).fillna("").to_markdown(index=False))
        print(
            f"\nThe audits assume a true {truth.words}, and an optimal attack.\n"
            "Weaker attacks need more models. Each refutation holds with "
            f"{100 * options.confidence:g} % confidence."
        )
    if options.figure:
        from hiddenstate import plotting

        with plotting.style():
            drawn = report.draw_plan(judged, truth, options.delta, options.confidence)
            plotting.save(drawn, options.figure, truth.words)


def _asked(options: argparse.Namespace) -> "tuple[Sequence[Claim], Claim]":
    """The claim, in each way that it is judged, and the truth."""
    from hiddenstate.auditing import claim as made

    if options.show is not None:
        if not 0 < options.show < 1:
            raise InputError(f"--show: got {options.show:g}; expected a share inside (0, 1)")
        if options.claim is not None:
            raise InputError("claim: --claim and --show exclude each other; give one of them")
        options.claim = options.show * options.true
    claim = claim_options.required(options)
    if options.noise_multiplier is not None:
        if not 0 < options.true < options.noise_multiplier:
            raise InputError(
                f"--true: got {options.true:g}; expected a noise multiplier above 0 and less than "
                f"--noise-multiplier, {options.noise_multiplier:g}"
            )
        mechanism = options.sampling_rate, options.steps
        truth = made.dpsgd(options.true, *mechanism, other=options.noise_multiplier)
        return [claim], truth
    name, claimed = (
        ("--claim", options.claim) if options.claim is not None else ("--claim-mu", claim.value)
    )
    if not claimed < options.true:
        raise InputError(f"{name}: got {claimed:g}; expected less than --true, {options.true:g}")
    if options.claim is None:
        return [claim], made.gaussian_dp(options.true)
    truth = made.gaussian_with(options.true, options.delta)
    return [
        made.approximate(options.claim, options.delta),
        made.gaussian_with(options.claim, options.delta),
    ], truth


def _rows(claim: "Claim", truth: "Claim", options: argparse.Namespace) -> list[dict[str, Any]]:
    """A fixed and a sequential audit of a claim."""
    from hiddenstate.auditing import planning

    rows = []
    for name, make, most in (
        ("fixed", planning.fixed, planning.LIMIT),
        ("sequential", planning.sequential, planning.PATHS),
    ):
        row: dict[str, Any] = {"claim": claim.words, "audit": name}
        try:
            plan = make(
                claim.hypotheses,
                claim.value,
                truth.hypotheses,
                truth.value,
                power=options.power,
                confidence=options.confidence,
            )
        except planning.TooMany:
            rows.append(row | {"more_than": most})
            continue
        row |= {"models": plan.looks[-1], "expected": plan.expected, "power": plan.power}
        row |= {"looks": list(plan.looks)}
        if options.seconds is not None:
            row["hours"] = 2 * plan.looks[-1] * options.seconds / options.workers / 3600
        rows.append(row)
    return rows


def _shown(row: dict[str, Any]) -> dict[str, str]:
    shown = {"claim judged as": row["claim"], "audit": row["audit"]}
    if "more_than" in row:
        return shown | {"models per data set": f"more than {row['more_than']:,}"}
    shown |= {
        "models per data set": f"{row['models']:,}",
        "expected": f"{row['expected']:,.0f}",
        "power": f"{row['power']:.2f}",
        "looks": ", ".join(map(str, row["looks"])),
    }
    return shown | (
        {"hours at most": rounding.shown(row["hours"], "upper", 2)} if "hours" in row else {}
    )
