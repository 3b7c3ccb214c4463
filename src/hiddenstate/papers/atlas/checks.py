"""Measurements behind the claims of the atlas, from its estimates."""

import pandas as pd

from hiddenstate.papers.atlas.estimates import checkpoints, settings
from hiddenstate.pipeline.estimates import select
from hiddenstate.pipeline.evidence import Within, rarely
from hiddenstate.pipeline.family import Found, check, needed


def _limits(estimates: pd.DataFrame) -> pd.Series:
    """The least upper bound that is proven for any loss, by setting."""
    return select(estimates, group="proven").groupby("cell")["value"].min()


def _released_shares(estimates: pd.DataFrame) -> pd.Series:
    """Audits of released checkpoints over the epsilon of their setting and period."""
    rows = checkpoints(estimates)
    if rows.empty:
        return pd.Series(dtype=float)
    audits = select(rows, method="audit")
    limits = select(rows, method="linear losses", kind="upper").set_index(["cell", "x"])["value"]
    mine = [limits[key] for key in zip(audits["cell"], audits["x"], strict=True)]
    return audits["value"] / pd.Series(mine, audits.index, dtype=float)


@check
def ordered(estimates: pd.DataFrame) -> Found:
    """No lower bound, and no exact value, is above an upper bound that holds for any loss."""
    here = select(settings(estimates), kind=["lower", "exact"]).dropna(subset="value")
    # Trained audits are held against their own accountant.
    limit = here["allowed"].fillna(here["cell"].map(_limits(estimates)))
    share = pd.concat([here["value"] / limit, _released_shares(estimates)])
    audits = here["confidence"].notna().reindex(share.index, fill_value=True)
    computed = share[~audits]
    above = share[share > 1]
    named = "".join(
        f"; {estimates['method'][i]} ({estimates['cell'][i]}) is above" for i in above.index
    )
    yield Within(
        "largest computed bound over the least upper bound", needed(computed).max(), high=1.0
    )
    yield rarely(
        "audits at 95 % above it", int((share[audits] > 1).sum()), int(audits.sum()), 0.05, 0.25
    )
    return f"{len(share)} lower bounds; the largest is {share.max():.2%} of its upper bound{named}."


def _least_share(estimates: pd.DataFrame, name: str) -> pd.Series:
    """A bound's share of what is proven for any loss, by setting, ascending."""
    found = select(estimates, method=name).dropna(subset="value").set_index("cell")["value"]
    return needed((found / _limits(estimates)[found.index]).sort_values())


@check
def attained(estimates: pd.DataFrame) -> Found:
    """A loss is known whose last iterate leaks what composition proves of all iterates."""
    share = _least_share(estimates, "history regulariser")
    yield Within(
        f"least share of the proven epsilon that is attained, {share.index[0]}",
        share.iloc[0],
        low=0.99,
    )
    return f"{len(share)} settings."


@check
def audited(estimates: pd.DataFrame) -> Found:
    """Where epsilon is 4 or more, audits of the encoding loss certify most of it."""
    least = _limits(estimates)
    large = estimates[estimates["cell"].isin(least.index[least >= 4])]
    share = _least_share(needed(large), "encoding-loss audit")
    for cell, value in share.items():
        yield Within(f"share certified, {cell}", value, low=0.5, reason="most")
    return "What an audit of this seed certifies at 95 %."


@check
def released(estimates: pd.DataFrame) -> Found:
    """Linear losses: a tenth of the iterates costs little more than the last one alone."""
    exact = select(needed(checkpoints(estimates)), method="linear losses")
    most_seldom = exact.groupby("cell")["x"].transform("max")
    exact = needed(exact[most_seldom >= 10])
    for cell, part in exact.groupby("cell", sort=False):
        most = select(part, kind="upper").set_index("x")["value"].sort_index()
        least = select(part, kind="lower").set_index("x")["value"].sort_index()
        tenth = most[most.index >= 10].index[0]
        share = most[tenth] / least.iloc[-1]
        yield Within(f"every {tenth:g}th iterate over the last alone, {cell}", share, high=1.1)
    return f"{exact['cell'].nunique()} settings."
