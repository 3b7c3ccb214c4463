"""What a run of the workflow took: processor minutes by family and command, and memory.

Run a scale first, then `python benchmarks/workflow.py [SCALE]`. The numbers are of the last run,
from what its processes wrote as they ended. With `--budget MINUTES` the status is 1 above it.
"""

import argparse
import sys
from pathlib import Path

import pandas as pd

from hiddenstate.pipeline import usage

ROOT = Path(__file__).parents[1]


def main(asked: argparse.Namespace) -> int:
    """Print the table of core-minutes and the dearest jobs."""
    path = asked.logs or ROOT / "logs" / asked.scale / "usage.tsv"
    if not path.exists():
        sys.exit(f"{path}: is not there; run the workflow at scale {asked.scale} first")
    jobs = pd.read_csv(path, sep="\t", names=usage.COLUMNS, dtype={"run": str, "cell": str})
    jobs = jobs[jobs["run"] == jobs["run"].iloc[-1]]
    table = jobs.pivot_table(
        values="seconds", index="family", columns="command", aggfunc="sum", fill_value=0.0,
        margins=True, margins_name="sum",
    )  # fmt: skip
    print((table / 60).round(1).to_markdown(), end="\n\n")
    dearest = jobs.nlargest(8, "seconds")[["family", "command", "cell", "seconds", "megabytes"]]
    print(dearest.round(0).to_markdown(index=False), end="\n\n")
    minutes, memory = jobs["seconds"].sum() / 60, jobs["megabytes"].max()
    print(f"{len(jobs)} processes, {minutes:.1f} core-minutes, at most {memory:.0f} MB in one")
    if asked.budget and minutes > asked.budget:
        print(f"more than the budget of {asked.budget:g} core-minutes", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("scale", nargs="?", default="laptop")
    parser.add_argument("--budget", type=float, metavar="MINUTES")
    parser.add_argument("--logs", type=Path, metavar="FILE", help="in place of the scale's")
    sys.exit(main(parser.parse_args()))
