"""What the claims of the atlas measure, from its estimates."""

import pandas as pd

from hiddenstate.estimates import select
from hiddenstate.family import Measurement, check


@check
def ordered(estimates: pd.DataFrame) -> Measurement:
    """No lower bound, and no exact value, is above an upper bound that holds for any loss."""
    least = select(estimates, group="proven").groupby("cell")["value"].min()
    here = select(estimates, kind=["lower", "exact"]).dropna(subset="value")
    limit = here["allowed"].where(here["group"] == "trained", here["cell"].map(least))
    above = here["value"] > limit
    closest = (here["value"] / limit).max()
    return Measurement(
        f"{int(above.sum())} of {len(here)} lower bounds are above; the largest is "
        f"{100 * closest:.2f} % of its upper bound",
        "none; trained audits against their own accountant",
        not above.any(),
    )


def _least_share(estimates: pd.DataFrame, name: str) -> pd.Series | None:
    """A bound's share of what is proven for any loss, by setting, ascending."""
    least = select(estimates, group="proven").groupby("cell")["value"].min()
    found = select(estimates, method=name).dropna(subset="value").set_index("cell")["value"]
    return (found / least[found.index]).sort_values() if len(found) else None


@check
def attained(estimates: pd.DataFrame) -> Measurement | None:
    """A loss is known whose last iterate leaks what composition proves of all iterates."""
    share = _least_share(estimates, "history regulariser")
    if share is None:
        return None
    return Measurement(
        f"at least {100 * share.iloc[0]:.2f} % of it ({share.index[0]})",
        "at least 99 % in every setting",
        bool(share.iloc[0] >= 0.99),
    )


@check
def audited(estimates: pd.DataFrame) -> Measurement | None:
    """Where epsilon is 4 or more, audits of the encoding loss certify most of it."""
    least = select(estimates, group="proven").groupby("cell")["value"].min()
    large = estimates[estimates["cell"].isin(least.index[least >= 4])]
    share = _least_share(large, "encoding-loss audit")
    if share is None:
        return None
    return Measurement(
        f"{100 * share.iloc[0]:.0f} to {100 * share.iloc[-1]:.0f} % of it, {len(share)} settings",
        "at least 80 % in each",
        bool(share.iloc[0] >= 0.8),
    )
