"""``hiddenstate audit``: what scores of your own prove, and whether they refute a claim."""

import argparse
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hiddenstate.commands import claim_options
from hiddenstate.commands.options import (
    Commands,
    add_confidence,
    add_figure,
    add_json,
    add_negate,
    check_pictures,
    command,
    status,
)
from hiddenstate.commands.printing import print_json, records
from hiddenstate.rounding import shown

if TYPE_CHECKING:
    import pandas as pd

    from hiddenstate.auditing.summaries import Interval


def add(commands: Commands) -> None:
    """Scores, claim, delta, confidence, outputs."""
    parser = command(commands, "audit", run)
    parser.description = (
        f"{parser.description} Exit status: 0 if no claim is given or the scores are consistent "
        "with it, 1 if they refute it, 2 for bad input, such as scores that point the other way, "
        "3 for any other failure."
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
    claim_options.add_arguments(parser)
    add_confidence(parser, "of each statement")
    parser.add_argument(
        "--coins",
        type=int,
        metavar="SEED",
        help="seed of what chance decides, ties and the halves of 'split' (default: a campaign's "
        "own, or a new one, which is printed)",
    )
    parser.add_argument(
        "--fpr",
        type=float,
        nargs="+",
        default=[0.01, 0.1],
        metavar="RATE",
        help="false-positive rates at which the true-positive rate is shown (0.01 0.1)",
    )
    parser.add_argument(
        "--area",
        type=float,
        metavar="SHARE",
        help="share of the level for the area under the curve, the rest for its ends (default 0.5; "
        "0.1 suits epsilon at a delta and 500 scores or more)",
    )
    parser.add_argument(
        "--ignore",
        nargs="+",
        default=[],
        metavar="COLUMN",
        help="columns that say nothing of which rows are independent runs",
    )
    add_negate(parser)
    add_json(parser, "tables")
    add_figure(parser)


def run(options: argparse.Namespace) -> int:
    """Bound epsilon and mu from your own scores, or test a claim."""
    from hiddenstate.auditing import report, summaries
    from hiddenstate.auditing.averaged import tied
    from hiddenstate.auditing.other_way import other_way

    check_pictures(options.figure)
    claim = claim_options.stated(options)
    into, out = report.read(options.scores, ignore=options.ignore)
    if options.negate:
        into, out = -into, -out
    # Chance breaks ties, and draws the halves of 'split', which takes four scores.
    by_chance = bool(tied(into, out)) or min(len(into), len(out)) >= 4
    coins = _coins(options)
    delta, confidence = options.delta, options.confidence
    how = {"coins": coins, "area": options.area}
    judged = report.judge(into, out, claim, confidence=confidence, **how) if claim else None
    table = report.bounds(into, out, delta, confidence, **how)
    shown_none = bool((table.loc[table["default"], "value"] == 0).any())
    backwards = other_way(into, out, coins) if judged is None and shown_none else None
    if judged is not None:
        backwards = judged.other_way
    intervals = [summaries.auc(into, out, confidence=confidence)] + [
        summaries.tpr(into, out, fpr, confidence=confidence) for fpr in options.fpr
    ]
    found = {
        "scores": {"in": len(into), "out": len(out)},
        "delta": delta,
        "confidence": confidence,
        "coins": coins if by_chance else None,
        "claim": asdict(judged) if judged else None,
        "other_way": asdict(backwards) if backwards else None,
        "bounds": records(table),
        "intervals": [asdict(interval) for interval in intervals],
    }
    if options.json:
        print_json(found)
    else:
        _tell(found, table, intervals)
        if judged:
            print(f"\nclaim: {judged}")
    if options.figure:
        from hiddenstate import plotting

        with plotting.style():
            drawn = report.draw(into, out, delta, confidence, **how)
            plotting.save(drawn, options.figure, options.scores.name)
    return status(judged is not None and judged.refuted, backwards)


def _coins(options: argparse.Namespace) -> int:
    """Seed of what chance decides: the one given, a campaign's own, or a new one."""
    from hiddenstate.auditing import report
    from hiddenstate.auditing.curve import seed

    return seed(options.coins if options.coins is not None else report.coins(options.scores))


def _tell(found: dict[str, Any], table: "pd.DataFrame", intervals: "list[Interval]") -> None:
    """The bounds and the attack as tables, and what they mean."""
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
        f"\n{found['scores']['in']} in-scores, {found['scores']['out']} out-scores; "
        f"delta {found['delta']:g}; each valid statement holds alone with "
        f"{100 * found['confidence']:g} % confidence, "
        "so choose the method before looking. A bound on 'epsilon of mu-GDP' speaks of a "
        "mechanism whose claim is Gaussian DP."
    )
    if (coins := found["coins"]) is not None:
        print(f"chance breaks ties and draws the halves of 'split' (again: --coins {coins})")
