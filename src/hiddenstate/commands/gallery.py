"""``hiddenstate gallery``: every figure and table on one page of the documentation."""

import argparse
from pathlib import Path

from hiddenstate.commands.options import Commands, command

PAGE = Path("docs/gallery.md")


def add(commands: Commands) -> None:
    parser = command(commands, "gallery", run)
    parser.add_argument(
        "families",
        nargs="*",
        metavar="FAMILY",
        help="families whose pictures are made again (default all)",
    )
    parser.add_argument(
        "--figures",
        nargs="*",
        type=Path,
        metavar="DIR",
        help="folders of figures, the best first (default: those of figures/paper, figures/mnist "
        "and figures/laptop that exist)",
    )
    parser.add_argument(
        "--out", type=Path, default=PAGE, metavar="FILE", help=f"page to write (default {PAGE})"
    )


def run(options: argparse.Namespace) -> None:
    """Write the page of every figure and table, with small pictures from what is drawn."""
    from hiddenstate.study import gallery

    figures = gallery.at_hand(Path("figures")) if options.figures is None else options.figures
    gallery.write(options.out, figures, options.families)
