"""Figures of shuffling."""

from typing import Any

import pandas as pd

from hiddenstate import plotting
from hiddenstate.papers.shuffling.cells import ORDERS
from hiddenstate.papers.shuffling.simulations import ALL, LAST
from hiddenstate.pipeline.estimates import select
from hiddenstate.pipeline.family import figure

_LINES: dict[str, tuple[str, dict[str, Any]]] = {
    "composition": ("all iterates: proven", {"color": "black"}),
    "largest sum": ("all iterates: at least, by the largest sum", {"color": plotting.VALID}),
    ALL: ("all iterates: found", {"color": plotting.VALID, "marker": "^", "ls": ""}),
    "Poisson's accountant": ("claimed, as if sampled", {"color": plotting.PUBLISHED, "ls": ":"}),
    "linear losses": ("last iterate: exact, linear losses", {"color": plotting.OTHER}),
    LAST: ("last iterate: found", {"color": plotting.OTHER, "marker": "v", "ls": ""}),
}


def _draw(axes: Any, rows: pd.DataFrame) -> None:
    for method, (label, style) in _LINES.items():
        own = {"ls": "-"} | style if method == "largest sum" else style
        plotting.line(axes, select(rows, method=method), label=label, **own)


@figure(
    "Shuffled batches: epsilon by batches of an epoch",
    "What one epoch of shuffled batches shows, by the number of batches, with the noise for which "
    "the accountant of Poisson sampling says the claimed epsilon (dotted). Triangles: lower bounds "
    "at 95 % from simulated runs with linear losses, of an adversary who sees all iterates (up) or "
    "the last one (down). Solid: what the largest of all noisy sums shows at least, computed. "
    "Dashed: what composition proves of all iterates (black), and the last iterate of linear "
    "losses exactly. Above: the record is swapped; below: it is zeroed out. The gradients of all "
    "other records are opposite to the record's, the worst that we know. Where epsilon is large, "
    "audits of so few runs find less than there is.",
    shows="simulated runs",
)
def batches(estimates: pd.DataFrame) -> Any:
    """Epsilon against the number of batches, one epoch."""
    rows = select(estimates, part="simulated", epochs=1)
    rows = rows.assign(x=rows["batches"])
    claims = sorted(rows["claim"].unique())
    drawn, axes = plotting.panels(len(claims), 2, height=2.4, sharex=True)
    for i, record in enumerate(("swapped", "zeroed out")):
        for j, claim in enumerate(claims):
            ax = axes[i * len(claims) + j]
            _draw(ax, select(rows, record=record, claim=claim))
            ax.set(title=f"{record}, claimed $\\varepsilon$ = {claim:g}", xscale="log")
            ax.set(xlabel="batches of an epoch" if i else "", ylabel="" if j else "$\\varepsilon$")
            ax.set_yscale("log")
    plotting.legend_below(drawn, axes[0], columns=3)
    return drawn


@figure(
    "Shuffled batches: epsilon by epochs",
    "As the figure by batches, of a swapped record, by the number of epochs. Above: one order for "
    "all epochs. Below: an order drawn in each epoch. The noise grows with the epochs, so that the "
    "claim stays what it is.",
    shows="simulated runs",
)
def epochs(estimates: pd.DataFrame) -> Any:
    """Epsilon against the number of epochs, by order."""
    rows = select(estimates, part="simulated", record="swapped")
    several = rows.loc[rows["epochs"] > 1, "batches"].unique()
    rows = rows[rows["batches"].isin(several)]
    rows = rows.assign(x=rows["epochs"])
    claims = sorted(rows["claim"].unique())
    drawn, axes = plotting.panels(len(claims), 2, height=2.4, sharex=True)
    for i, order in enumerate(ORDERS):
        for j, claim in enumerate(claims):
            ax = axes[i * len(claims) + j]
            part = select(rows, claim=claim)
            _draw(ax, part[(part["order"] == order) | (part["epochs"] == 1)])
            ax.set(title=f"order {order}, claimed $\\varepsilon$ = {claim:g}", yscale="log")
            ax.set(
                xlabel=f"epochs of {several[0]:g} batches" if i else "",
                ylabel="" if j else "$\\varepsilon$",
            )
    plotting.legend_below(drawn, axes[0], columns=3)
    return drawn
