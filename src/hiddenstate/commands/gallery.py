"""``hiddenstate gallery``: every figure and table on one page of the documentation."""

import argparse
from pathlib import Path

from hiddenstate import files


def run(options: argparse.Namespace) -> None:
    """Write the page of every figure and table, with small pictures from what is drawn.

    families FAMILY: str* | families whose pictures are made again (default all)
    --figures DIR: path* | folders of figures, the best first (default: those of figures/paper,
        figures/mnist and figures/laptop that exist)
    --out FILE: path = docs/gallery.md | page to write (default docs/gallery.md)
    """
    from hiddenstate.study import gallery

    figures = gallery.at_hand(Path("figures")) if options.figures is None else options.figures
    with files.alone(options.out.parent.parent, files.WRITES):
        gallery.write(options.out, figures, options.families)
