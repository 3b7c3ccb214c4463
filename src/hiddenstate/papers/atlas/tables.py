"""Tables of the atlas."""

import pandas as pd

from hiddenstate.accounting.bounds import GROUPS
from hiddenstate.atlas.words import Answer
from hiddenstate.papers.atlas.estimates import settings
from hiddenstate.pipeline.family import Rows, table
from hiddenstate.rounding import shown


@table(
    "The atlas",
    "Every bound of the package on every setting with its assumption. Upper bounds are rounded up, "
    "lower bounds down. Audits hold with 95 % confidence each; of simulated ones, what a perfect "
    "audit would find stands beside the bound, of trained ones what their own accountant proves.",
)
def atlas(estimates: pd.DataFrame) -> Rows:
    for row in settings(estimates).itertuples():
        yield {
            "setting": row.title,
            "what": GROUPS[row.group],
            "bound": row.method,
            "epsilon": shown(row.value, row.kind),
            "at most": shown(row.truth if pd.isna(row.allowed) else row.allowed, "upper"),
            "runs per data set": "--" if pd.isna(row.runs) else f"{int(row.runs):,}",
            "assumption": row.assumption,
        }


@table(
    "What hiding the iterates buys",
    "One row a setting. The standard epsilon, which is also all that is proven of the last iterate "
    "for any loss. The exact epsilon if every loss is linear. The worst known losses, as a lower "
    "bound. The upper bound for clipped losses of an assumed curvature. The largest lower bound "
    "(95 % each) of the simulated audits of the last iterate.",
)
def answer(estimates: pd.DataFrame) -> Rows:
    for _, part in settings(estimates).groupby("cell", sort=False):
        found = Answer.of(part.rename(columns={"method": "name"}))
        first = part.iloc[0]
        yield {
            "setting": first["title"],
            "numbers": f"{first['words']}, delta {first['delta']:g}",
            "all released": shown(found.proven, "upper"),
            "if every loss is linear": shown(found.linear, "exact"),
            "at worst known": shown(found.worst and found.worst[1], "lower"),
            "proven, as curved as assumed": shown(found.curved, "upper"),
            "audited": shown(found.audited and found.audited[1], "lower"),
        }
