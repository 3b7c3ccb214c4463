"""Figures of shuffling."""

from typing import Any

import pandas as pd

from hiddenstate import plotting
from hiddenstate.papers.shuffling.cells import ORDERS
from hiddenstate.papers.shuffling.simulations import ALL, LAST
from hiddenstate.pipeline.estimates import select
from hiddenstate.pipeline.family import figure

_LINES: dict[str, tuple[str, dict[str, Any]]] = {
    "composition": ("standard epsilon (composition)", {"color": "black"}),
    "largest sum": ("all iterates: lower bound, computed", {"color": plotting.VALID, "ls": "-"}),
    ALL: (
        "all iterates: audit, lower bound (95 %)",
        {"color": plotting.VALID, "marker": "^", "ls": ""},
    ),
    "Poisson's accountant": (
        "Poisson's accountant (the claim)",
        {"color": plotting.PUBLISHED, "ls": "-", "lw": 2},
    ),
    "linear losses": ("last iterate: linear losses, exact", {"color": plotting.OTHER}),
    LAST: (
        "last iterate: audit, lower bound (95 %)",
        {"color": plotting.OTHER, "marker": "v", "ls": ""},
    ),
}


def _by_claim(parts: dict[str, pd.DataFrame], xlabel: str, **options: Any) -> Any:
    """A row of panels for each part, by the words of its title, and in it one for each claim."""
    claims = sorted(pd.concat(parts)["claim"].unique())
    drawn, axes = plotting.panels(len(claims), len(parts), height=2.4, sharex=True, sharey=True)
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
    return plotting.legend_below(drawn, axes[0], columns=3)


@figure(
    "Shuffled batches: epsilon by batches of an epoch",
    "One epoch of shuffled batches, by the number of batches, with the noise for which the "
    "accountant of Poisson sampling says the claimed epsilon (orange). Triangles: lower "
    "bounds at 95 % from simulated runs with linear losses, if all iterates are seen (up) "
    "or the last alone (down). Solid: a computed lower bound by the largest noisy sum. "
    "Dashed: composition (black), and the exact last iterate of linear losses. Above: one "
    "record is swapped. Below: it is zeroed out. All other gradients are opposite to the "
    "record's, the worst that we know. Where epsilon is large, audits of so many runs find less "
    "than there is. One audit in twenty may be above the exact value.",
    message="If all iterates are seen, a swapped record in shuffled batches leaks far more than "
    "Poisson's accountant says",
    of="simulated",
)
def batches(estimates: pd.DataFrame) -> Any:
    rows = select(estimates, part="simulated", epochs=1)
    rows = rows.assign(x=rows["batches"])
    records = {record: select(rows, record=record) for record in ("swapped", "zeroed out")}
    return _by_claim(records, "batches of an epoch", xscale="log")


@figure(
    "Shuffled batches: epsilon by epochs",
    "As the figure by batches, for a swapped record, by the number of epochs. Above: one "
    "order for all epochs. Below: an order drawn in each epoch. The noise grows with the "
    "epochs, so that the claim stays the same.",
    when=lambda grid: max(grid.epochs) > 1,
    message="Over several epochs too, all iterates of shuffled batches leak more than Poisson's "
    "accountant says",
    of="simulated",
)
def epochs(estimates: pd.DataFrame) -> Any:
    rows = select(estimates, part="simulated", record="swapped")
    several = rows.loc[rows["epochs"] > 1, "batches"].unique()
    rows = rows[rows["batches"].isin(several)]
    rows = rows.assign(x=rows["epochs"])
    # The orders of one epoch are the same.
    orders = {
        f"order {order}": rows[(rows["order"] == order) | (rows["epochs"] == 1)] for order in ORDERS
    }
    return _by_claim(orders, f"epochs of {several[0]:g} batches")
