"""``hiddenstate plan-audit``: how many models an audit needs, before any is trained."""

import argparse
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Claim, truth, delta, power, confidence, pictures."""
    parser.add_argument(
        "--true", type=float, required=True, metavar="EPSILON", help="what the mechanism leaks"
    )
    claim = parser.add_mutually_exclusive_group(required=True)
    claim.add_argument("--claim", type=float, metavar="EPSILON", help="epsilon to be refuted")
    claim.add_argument(
        "--show", type=float, metavar="SHARE", help="share of the true epsilon to be proven"
    )
    parser.add_argument("--delta", type=float, required=True, help="probability, such as 1e-5")
    parser.add_argument("--power", type=float, default=0.9, help="probability to refute (0.9)")
    parser.add_argument("--confidence", type=float, default=0.95, help="of a refutation (0.95)")
    parser.add_argument(
        "--figure", type=Path, nargs="+", metavar="FILE", help="bound against number of models"
    )


def run(options: argparse.Namespace) -> None:
    """Say how many models refute a claim, at once or as they come."""
    import pandas as pd

    from hiddenstate.auditing import planning, report
    from hiddenstate.commands.audit import check_pictures
    from hiddenstate.errors import InputError

    check_pictures(options.figure)
    if options.show is not None and not 0 < options.show < 1:
        raise InputError(f"--show: got {options.show:g}; expected a share inside (0, 1)")
    claim = options.claim if options.claim is not None else options.show * options.true
    if not claim < options.true:
        raise InputError(f"--claim: got {claim:g}; expected less than --true, {options.true:g}")
    truths, truth = report.hypothesis(options.true, options.delta, "gdp")
    rows = []
    curves: tuple[report.Curve, report.Curve] = ("dp", "gdp")
    for curve in curves:
        claims, index = report.hypothesis(claim, options.delta, curve)
        for name, make, most in (
            ("fixed", planning.fixed, planning.LIMIT),
            ("sequential", planning.sequential, planning.PATHS),
        ):
            row = {"claim judged as": curve, "audit": name}
            try:
                plan = make(
                    claims,
                    float(claims.grid[index]),
                    truths,
                    float(truths.grid[truth]),
                    power=options.power,
                    confidence=options.confidence,
                )
            except planning.TooMany:
                rows.append(row | {"models in each world": f"more than {most:,}"})
                continue
            rows.append(
                row
                | {
                    "models in each world": f"{plan.looks[-1]:,}",
                    "expected": f"{plan.expected:,.0f}",
                    "power": f"{plan.power:.2f}",
                    "looks": ", ".join(map(str, plan.looks)),
                }
            )
    print(pd.DataFrame(rows).fillna("").to_markdown(index=False))
    print(
        f"\nto refute epsilon {claim:g} at delta {options.delta:g} with "
        f"{100 * options.confidence:g} % confidence, if the mechanism is Gaussian with epsilon "
        f"{options.true:g} and the attack is the best there is; a worse attack needs more models"
    )
    if options.figure:
        from hiddenstate import plotting

        with plotting.style():
            drawn = report.draw_plan(options.true, claim, options.delta, options.confidence)
            plotting.save(drawn, options.figure, f"Gaussian, epsilon {options.true:g}")
