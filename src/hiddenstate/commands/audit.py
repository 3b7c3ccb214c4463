"""``hiddenstate audit``: what scores of your own prove, and whether they refute a claim."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from hiddenstate.commands import claims
from hiddenstate.commands.printing import add_json, print_json, records
from hiddenstate.errors import InputError
from hiddenstate.rounding import shown

PICTURES = (".png", ".pdf", ".svg")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Scores, claim, delta, confidence, outputs."""
    parser.description = (
        f"{parser.description} Exit status: 0 if no claim is given or the scores are consistent "
        "with it, 1 if they refute it, 2 for bad input, 3 for any other failure."
    )
    parser.add_argument(
        "scores",
        type=Path,
        metavar="FILE",
        help="CSV or Parquet with the columns world ('in' or 'out') and score (larger: more 'in')",
    )
    parser.add_argument(
        "--delta", type=float, required=True, help="probability, such as 1e-5; 0 for pure DP"
    )
    claims.add_arguments(parser)
    parser.add_argument("--confidence", type=float, default=0.95, help="of each statement (0.95)")
    parser.add_argument(
        "--coins",
        type=int,
        metavar="SEED",
        help="of the coins that break ties between the worlds (drawn and printed where there are "
        "ties, or a campaign's own)",
    )
    parser.add_argument(
        "--fpr",
        type=float,
        nargs="+",
        default=[0.01, 0.1],
        metavar="RATE",
        help="false-positive rates at which the true-positive rate is shown (0.01 0.1)",
    )
    add_json(parser, "tables")
    parser.add_argument(
        "--figure", type=Path, nargs="+", metavar="FILE", help="pictures to write: .png, .pdf, .svg"
    )


def run(options: argparse.Namespace) -> int:
    """Bound epsilon and mu from your own scores, or test a claim."""
    import secrets
    from dataclasses import asdict

    from hiddenstate.auditing import report, summaries
    from hiddenstate.auditing.averaged import tied

    check_pictures(options.figure)
    claim = claims.stated(options)
    into, out = report.read(options.scores)
    coins = options.coins if options.coins is not None else report.coins(options.scores)
    ties = bool(tied(into, out))
    if coins is None and ties:
        coins = secrets.randbits(32)
    delta, confidence = options.delta, options.confidence
    judged = report.judge(into, out, claim, confidence=confidence, coins=coins) if claim else None
    table = report.bounds(into, out, delta, confidence, coins)
    intervals = [summaries.auc(into, out, confidence=confidence)] + [
        summaries.tpr(into, out, fpr, confidence=confidence) for fpr in options.fpr
    ]
    if options.json:
        found = {
            "scores": {"in": len(into), "out": len(out)},
            "delta": delta,
            "confidence": confidence,
            "coins": coins if ties else None,
            "claim": asdict(judged) if judged else None,
            "bounds": records(table),
            "intervals": [asdict(interval) for interval in intervals],
        }
        print_json(found)
    else:
        import pandas as pd

        kinds = table["direction"].where(table["valid"], "estimate")
        bounds = table[["parameter", "method", "value", "valid"]].assign(
            method=table["method"] + table["default"].map({True: " (default)", False: ""}),
            value=[shown(*row, decimals=3) for row in zip(table["value"], kinds, strict=True)],
        )
        print(bounds.to_markdown(index=False, floatfmt=".3f"))
        attack = pd.DataFrame([asdict(interval) for interval in intervals]).assign(
            low=[shown(interval.low, "lower", decimals=3) for interval in intervals],
            high=[shown(interval.high, "upper", decimals=3) for interval in intervals],
        )
        print("\n" + attack.drop(columns="confidence").to_markdown(index=False, floatfmt=".3f"))
        print(
            f"\n{len(into)} in-scores, {len(out)} out-scores; delta {delta:g}; "
            f"each valid statement holds alone with {100 * confidence:g} % confidence, "
            "so choose the method before looking. A bound on 'epsilon of mu-GDP' speaks of a "
            "mechanism whose claim is Gaussian DP."
        )
        if ties:
            print(
                f"scores of the two worlds are equal; coins break the ties (again: --coins {coins})"
            )
        if judged:
            print(
                f"\nclaim: {judged.claim}: "
                f"{'REFUTED' if judged.refuted else 'consistent with the scores'}, "
                f"p-value at most {shown(judged.p_value, 'upper', 2)}"
            )
    if options.figure:
        from hiddenstate import plotting

        with plotting.style():
            drawn = report.draw(into, out, delta, confidence, coins)
            plotting.save(drawn, options.figure, options.scores.name)
    return int(judged is not None and judged.refuted)


def check_pictures(paths: Sequence[Path] | None) -> None:
    """Refuse, before any work, names of pictures that cannot be written."""
    for path in paths or []:
        if path.suffix.lower() not in PICTURES:
            raise InputError(f"--figure: got {path}; expected a name in {', '.join(PICTURES)}")
