"""Tighter privacy auditing of DP-SGD in the hidden state threat model."""

import pandas as pd

from hiddenstate.family import Cell, Family, Train, Workplace
from hiddenstate.papers.gradient_crafting import cells, estimates


def _train(cell: Cell[cells.HousingAudit], seed: int, workplace: Workplace) -> pd.DataFrame:
    # torch, by which native code is compiled, takes seconds to import, and figures need none.
    from hiddenstate.papers.gradient_crafting import training

    return training.train(cell, seed, workplace)


FAMILY = Family(
    title="Tighter Privacy Auditing of DP-SGD in the Hidden State Threat Model",
    reference="arXiv 2405.14457",
    grid=cells.GradientCraftingGrid,
    works=(
        Train(
            cells.trained,
            _train,
            size=lambda cell: (cell.parameters.models, 1),
            cost=lambda cell: cells.cost(cell.parameters),
        ),
    ),
    estimate=estimates.estimate,
    modules=(),
)
