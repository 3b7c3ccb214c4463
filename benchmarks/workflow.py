"""What the workflow's jobs cost: processor seconds, wall seconds and memory, by family.

Run a scale first, then `python benchmarks/workflow.py [scale]`. The wall seconds of a family are
the sum over its jobs, so on n cores it takes about one n-th of them.
"""

import sys
from pathlib import Path

import pandas as pd


def main(scale: str) -> None:
    """Print one row a family and the dearest jobs."""
    logs = Path(__file__).parents[1] / "logs" / scale
    files = sorted(logs.rglob("*.tsv"))
    if not files:
        sys.exit(f"{logs}: no benchmark files; run the workflow at scale {scale} first")
    jobs = pd.concat([pd.read_csv(file, sep="\t") for file in files], ignore_index=True)
    names = [file.relative_to(logs).with_suffix("") for file in files]
    jobs["job"] = [str(name) for name in names]
    jobs["family"] = [name.parts[0] for name in names]
    columns = {"cpu_time": "processor s", "s": "wall s", "max_rss": "memory MB"}
    families = jobs.groupby("family").agg(
        jobs=("job", "size"),
        cpu_time=("cpu_time", "sum"),
        s=("s", "sum"),
        max_rss=("max_rss", "max"),
    )
    families.loc["all"] = families.sum()
    families.loc["all", "max_rss"] = families["max_rss"].iloc[:-1].max()
    print(families.rename(columns=columns).round(0).astype(int).to_markdown(), end="\n\n")
    dearest = jobs.nlargest(8, "cpu_time")[["job", *columns]]
    print(dearest.rename(columns=columns).round(0).to_markdown(index=False))


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "laptop")
