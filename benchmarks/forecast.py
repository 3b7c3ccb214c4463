"""What the jobs of a run were estimated to cost, against what they took, by kind of work.

    python benchmarks/forecast.py workflow/config/scales/laptop.yaml results/laptop

Seconds of one core, of the jobs that the run did itself; starting them is not in them. A ratio far
from 1 says that a number in ``pipeline.costs``, or in a family's ``takes(...)``, is old: what
`hiddenstate plan` and the time left that a run prints come from these.
"""

import sys
from pathlib import Path

import pandas as pd

from hiddenstate import papers
from hiddenstate.pipeline import costs, scores
from hiddenstate.study import config


def compared(scale_file: Path, results: Path) -> pd.DataFrame:
    """One row per job that was done here: family, kind, work, estimated and measured seconds."""
    scale = config.read(scale_file)
    rows = []
    for name in config.families(scale):
        for kind, jobs in papers.load(name).jobs(getattr(scale, name)).items():
            for cell, job in jobs.items():
                path = results / name / job.work.folder / f"{cell}.parquet"
                kept = Path("results/cached") / name / path.name
                if kept.exists() or not job.computed(path, scale.seed):
                    continue
                took = float(scores.read(path)[1]["wall_seconds"])
                work = type(job.cell.parameters).__name__
                rows.append((name, kind, work, job.cost - costs.STARTING[kind], took))
    return pd.DataFrame(rows, columns=["family", "kind", "work", "estimated", "measured"])


if __name__ == "__main__":
    every = compared(Path(sys.argv[1]), Path(sys.argv[2]))
    found = every.groupby(["family", "kind", "work"]).agg(
        jobs=("measured", "size"), estimated=("estimated", "sum"), measured=("measured", "sum")
    )
    found["ratio"] = found["estimated"] / found["measured"]
    print(found.round(2).to_string())
    whole = found["estimated"].sum(), found["measured"].sum()
    print(f"in all {whole[0]:.0f} s estimated, {whole[1]:.0f} s measured")
