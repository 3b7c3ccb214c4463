"""Tables of shuffling."""

import pandas as pd

from hiddenstate.pipeline.estimates import select
from hiddenstate.pipeline.family import Rows, table
from hiddenstate.rounding import shown


@table(
    "Networks on shuffled batches",
    "Lower bounds (95 %) of audits of trained networks. The canary is a crafted gradient, and its "
    "opposite in the other data set. Beside them stand the mean and range of as many simulated "
    "models whose losses are linear, and the standard epsilon by composition.",
)
def networks(estimates: pd.DataFrame) -> Rows:
    trained = select(estimates, part="trained")
    for (claim, order, method), part in trained.groupby(["claim", "order", "method"], sort=False):
        alike = select(estimates, part="ideal", claim=claim, order=order)
        ideal = select(alike, method=method)["value"]
        (proven,) = select(alike, method="composition")["value"]
        yield {
            "claimed": f"{claim:g}",
            "order drawn": order,
            "adversary sees": method,
            "found": shown(part["value"].item(), "lower"),
            "found of linear losses": f"{ideal.mean():.2f} ({ideal.min():.2f} to "
            f"{ideal.max():.2f})",
            "proven": shown(float(proven), "upper"),
        }
