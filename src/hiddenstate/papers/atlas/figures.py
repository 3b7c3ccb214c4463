"""The figure of the atlas."""

from typing import Any

import pandas as pd

from hiddenstate import plotting
from hiddenstate.atlas import drawn as bounds_drawn
from hiddenstate.papers.atlas.estimates import checkpoints, settings
from hiddenstate.pipeline.estimates import select
from hiddenstate.pipeline.family import figure


@figure(
    "The atlas",
    "Every upper and lower bound of the package on common settings, at one delta. Dashed: the "
    "least epsilon that is proven for any loss, all iterates released. Numbers on the right are "
    "rounded up (upper bounds) or down (lower bounds). Simulated audits hold with 95 % confidence. "
    "Apart, shaded: trained audits of other settings, the nearest in epsilon, as the share that "
    "they certify of the epsilon which their own accountant proves. What lies beyond an axis is "
    "drawn at its end.",
)
def atlas(estimates: pd.DataFrame) -> Any:
    return bounds_drawn.draw(
        [
            (part["title"].iloc[0], part)
            for _, part in settings(estimates).groupby("cell", sort=False)
        ]
    )


@figure(
    "Released checkpoints",
    "Epsilon of DP-SGD with Poisson batches if every k-th iterate is published and every loss is "
    "linear (line; exact to a tenth of a per cent). Dashed: the standard epsilon, for every loss "
    "and all iterates. Dotted: the last iterate alone. Triangles: simulated audits of what "
    "is released, lower bounds that hold with 95 % confidence. For other losses only the standard "
    "epsilon is guaranteed.",
    message="If losses are linear, publishing a tenth of the iterates costs little",
)
def released(estimates: pd.DataFrame) -> Any:
    rows = checkpoints(estimates)
    panels = list(rows.groupby("cell", sort=False))
    drawn, axes = plotting.panels(max(len(panels), 1))
    for ax, (_, part) in zip(axes, panels, strict=False):
        exact = select(part, method="linear losses", kind="upper")
        curve = exact.set_index("x")["value"].sort_index()
        plotting.curve(
            ax, curve, color=plotting.OTHER, marker="o", ms=4, label="every k-th iterate"
        )
        ends = [
            ("all iterates (standard epsilon)", "--", curve.iloc[0]),
            ("the last iterate alone", ":", curve.iloc[-1]),
        ]
        for label, dashes, value in ends:
            ax.axhline(value, color=plotting.UPPER, ls=dashes, lw=1, label=label)
        audits = select(part, method="audit")
        ax.plot(
            *(audits["x"], audits["value"]),
            **{"ls": "none", "marker": "^", "color": plotting.OBSERVED},
            label="audit, lower bound (95 %)",
        )
        ax.set(
            xscale="log", xlabel="every k-th iterate is released", ylim=(0, None),
            title=part["title"].iloc[0].replace(", sampling", ",\nsampling"),
        )  # fmt: skip
    axes[0].set_ylabel(f"$\\varepsilon$ at $\\delta$ = {estimates['delta'].iloc[0]:g}")
    plotting.legend_below(drawn, axes[0], 2)
    return drawn
