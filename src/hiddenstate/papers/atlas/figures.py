"""The figure of the atlas."""

from typing import Any

import pandas as pd

from hiddenstate.atlas import drawn
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
    """A panel for each setting."""
    return drawn.draw(
        [(part["title"].iloc[0], part) for _, part in estimates.groupby("cell", sort=False)]
    )
