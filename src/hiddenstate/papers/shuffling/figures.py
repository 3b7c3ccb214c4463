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
    "largest sum": (
        "all iterates: at least, by the largest sum",
        {"color": plotting.VALID, "ls": "-"},
    ),
    ALL: ("all iterates: found", {"color": plotting.VALID, "marker": "^", "ls": ""}),
    "Poisson's accountant": ("claimed, as if sampled", {"color": plotting.PUBLISHED, "ls": ":"}),
    "linear losses": ("last iterate: exact, linear losses", {"color": plotting.OTHER}),
    LAST: ("last iterate: found", {"color": plotting.OTHER, "marker": "v", "ls": ""}),
}


def _by_claim(parts: dict[str, pd.DataFrame], xlabel: str, **options: Any) -> Any:
    """A row of panels for each part, by the words of its title, and in it one for each claim."""
    claims = sorted(pd.concat(parts)["claim"].unique())
    drawn, axes = plotting.panels(len(claims), len(parts), height=2.4, sharex=True)
    panels = [(words, claim) for words in parts for claim in claims]
    for i, (ax, (words, claim)) in enumerate(zip(axes, panels, strict=True)):
        for method, (label, style) in _LINES.items():
            rows = select(parts[words], claim=claim, method=method)
            plotting.line(ax, rows, label=label, **style)
        ax.set(title=f"{words}, claimed $\\varepsilon$ = {claim:g}", yscale="log", **options)
        ax.set(
            xlabel=xlabel if i >= len(panels) - len(claims) else "",
            ylabel="" if i % len(claims) else "$\\varepsilon$",
        )
    plotting.legend_below(drawn, axes[0], columns=3)
    return drawn


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
    records = {record: select(rows, record=record) for record in ("swapped", "zeroed out")}
    return _by_claim(records, "batches of an epoch", xscale="log")


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
    # The orders of one epoch are the same.
    orders = {
        f"order {order}": rows[(rows["order"] == order) | (rows["epochs"] == 1)] for order in ORDERS
    }
    return _by_claim(orders, f"epochs of {several[0]:g} batches")
