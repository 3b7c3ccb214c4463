"""``hiddenstate audit``: lower bounds from scores of your own."""

import argparse
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Scores, delta, confidence, pictures."""
    parser.add_argument(
        "scores",
        type=Path,
        metavar="FILE",
        help="CSV or Parquet with the columns world ('in' or 'out') and score (larger: more 'in')",
    )
    parser.add_argument("--delta", type=float, required=True, help="probability, such as 1e-5")
    parser.add_argument("--confidence", type=float, default=0.95, help="of each bound (0.95)")
    parser.add_argument(
        "--figure", type=Path, nargs="+", metavar="FILE", help="pictures to write: .png, .pdf, .svg"
    )


def run(options: argparse.Namespace) -> None:
    """Bound epsilon and mu from your own scores, and say which bounds are valid."""
    from hiddenstate.auditing import report

    in_scores, out_scores = report.read(options.scores)
    table = report.bounds(in_scores, out_scores, options.delta, options.confidence)
    shown = table[["parameter", "method", "value", "valid"]]
    print(shown.assign(value=shown["value"].map("{:.3f}".format)).to_markdown(index=False))
    print(
        f"\n{len(in_scores)} in-scores, {len(out_scores)} out-scores; delta {options.delta:g}; "
        f"each valid bound holds alone with {100 * options.confidence:g} % confidence, "
        "so choose the method before looking."
    )
    if options.figure:
        from hiddenstate import plotting

        with plotting.style():
            drawn = report.draw(in_scores, out_scores, options.delta, options.confidence)
            plotting.save(drawn, options.figure, options.scores.name)
