"""Audits of larger networks: ConvNet and ResNet."""

import numpy as np
import pandas as pd

from hiddenstate.papers.gradient_crafting.adversaries import CRAFTED, LOSS, RANDOM
from hiddenstate.papers.gradient_crafting.cells import NETWORK_SETTING
from hiddenstate.papers.gradient_crafting.checks.shared import TIGHT, expected, pooled
from hiddenstate.papers.gradient_crafting.grid import HOUSING
from hiddenstate.pipeline.estimates import largest, select
from hiddenstate.pipeline.evidence import Estimate, Within
from hiddenstate.pipeline.family import Found, check, needed


@check
def networks(estimates: pd.DataFrame) -> Found:
    """On ConvNet and ResNet a random coordinate shows nearly all of the accountant's mu."""
    rows = expected(estimates, adversary=RANDOM, every=1)
    for row in needed(rows[rows["network"] != HOUSING]).itertuples():
        what = f"share of mu, {row.network}, C = {row.clipping_norm:g}, epsilon {row.epsilon:g}"
        yield Within(what, row.share, low=TIGHT, reason="tight: nine tenths at least")
    return "Expected audits, of a random coordinate of each model."


def _network_audits(estimates: pd.DataFrame) -> pd.DataFrame:
    """Plug-in mu and its standard error of the larger networks, each model with its own start."""
    rows = needed(select(estimates, part="network", quantity="mu"))
    rows = needed(largest(select(rows, start="fresh"), "models", NETWORK_SETTING))
    return rows.assign(error=rows["high"] - rows["value"])


def _network_mus(estimates: pd.DataFrame) -> pd.DataFrame:
    """Audits with an insertion in every step that find something.

    Audits with too few models for a standard error below a fifth of the accountant's mu are left
    out.
    """
    rows = _network_audits(estimates)
    return needed(select(rows[rows["error"] < 0.2 * rows["mu"]], every=1))


@check
def networks_ordering(estimates: pd.DataFrame) -> Found:
    """On ConvNet and ResNet crafted gradients show more than the loss, whoever chose them."""
    rows = _network_mus(estimates)
    for network, own in rows.groupby("network", sort=False):
        table = own.pivot_table(index="cell", columns="adversary", values=["value", "error", "mu"])
        for adversary in (RANDOM, CRAFTED):
            pair = [("value", adversary), ("value", LOSS)]
            if not set(pair) <= set(table.columns) or (both := table.dropna(subset=pair)).empty:
                continue
            accountant = both["mu", adversary]
            gaps = (both[pair[0]] - both[pair[1]]) / accountant
            errors = np.hypot(both["error", adversary], both["error", LOSS]) / accountant
            what = f"share of mu above the loss, {network}, {adversary}"
            yield Within(what, pooled(gaps, errors), low=0, reason="more")
    return "Pooled over the audits of a network."


@check
def clipping_norm(estimates: pd.DataFrame) -> Found:
    """At every clipping norm a random coordinate shows the same mu, except for a quarter."""
    rows = select(_network_mus(estimates), adversary=RANDOM)
    for (network, epsilon), part in rows.groupby(["network", "epsilon"], sort=False):
        found = {
            norm: pooled(own["value"] / own["mu"], own["error"] / own["mu"], 1)
            for norm, own in part.groupby("clipping_norm")
        }
        first = min(found)
        for norm, value in found.items():
            if norm != first:
                yield Within(
                    f"share of mu at C = {norm:g} less that at {first:g}, {network}, "
                    f"epsilon {epsilon:g}",
                    value - found[first],
                    -0.25,
                    0.25,
                    reason="the same except for a quarter, a limit of ours",
                )
    return f"{rows['models'].max():.0f} models per data set."


@check
def networks_periodic(estimates: pd.DataFrame) -> Found:
    """With k above 1 a random coordinate shows more than the loss."""
    rows = _network_audits(estimates)
    rows = rows[(rows["every"] > 1) & (rows["error"] < 0.35 * rows["idle_mu"])]
    notes = []
    for cell, part in rows.groupby("cell", sort=False):
        own = part.set_index("adversary")
        if not {RANDOM, LOSS} <= set(own.index):
            continue
        best, loss = (
            Estimate(own.loc[name, "value"], own.loc[name, "error"]) for name in (RANDOM, LOSS)
        )
        yield Within(f"mu above the loss's, {cell}", best - loss, low=0, reason="more")
        notes.append(f"mu {best.value:.2f}, loss {loss.value:.2f}, mu / sqrt(k) "
                     f"{own.loc[RANDOM, 'idle_mu']:.2f}")  # fmt: skip
    return "; ".join(notes) + "."
