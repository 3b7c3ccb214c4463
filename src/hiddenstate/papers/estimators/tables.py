"""Tables of estimators."""

import math

import pandas as pd

from hiddenstate.papers.estimators.bugs import BUGS
from hiddenstate.papers.estimators.estimates import required
from hiddenstate.papers.estimators.figures import STYLES
from hiddenstate.pipeline.estimates import select
from hiddenstate.pipeline.family import Rows, table


@table(
    "Estimators in every cell",
    "Median bound, and in brackets the share of audits that claim more than the truth. "
    "A noise multiplier is bounded from above; inf: nothing claimed.",
)
def calibration(estimates: pd.DataFrame) -> Rows:
    rows = select(estimates, quantity=["exceedance", "median"])
    for (mechanism, n), part in rows.groupby(["cell", "x"], sort=False):
        first = part.iloc[0]
        record = {
            "mechanism": mechanism.replace("_", " "),
            "scores per data set": f"{int(n):,}",
            "truth": f"{first['parameter']} {first['truth']:.3g}",
        }
        values = part.pivot(index="method", columns="quantity", values="value")
        for method in STYLES:
            if method in values.index:
                median, exceeds = values.loc[method, ["median", "exceedance"]]
                record[method] = f"{median:.2f} ({100 * exceeds:.1f} %)"
        yield record


@table(
    "Models needed to find a bug",
    "Models with the canary, and as many without. From this number on the default bound "
    "contradicts the accountant's claim in at least nine audits of ten, by disjoint models.",
)
def bugs(estimates: pd.DataFrame) -> Rows:
    rows = select(estimates, quantity="power")
    for bug, part in rows.groupby("bug", sort=False):
        needed = required(part)
        last = part.loc[part["x"].idxmax()]
        truth = last["truth"]
        yield {
            "bug": bug,
            "mu as run / mu as claimed": "" if pd.isna(truth) else f"{truth:.3g}",
            "models per data set for power 0.9": (
                f"{int(needed):,}" if math.isfinite(needed) else f"above {int(last['x']):,}"
            ),
            "power at the most models": f"{last['value']:.2f} at {int(last['x']):,} "
            f"({last['low']:.2f} to {last['high']:.2f}, {int(last['audits'])} audits)",
            "remark": BUGS[last["cell"]].remark,
        }
