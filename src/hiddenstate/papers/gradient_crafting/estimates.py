"""Estimates of gradient_crafting."""

from collections.abc import Mapping

import pandas as pd

from hiddenstate.papers.gradient_crafting.cells import GradientCraftingGrid


def estimate(
    grid: GradientCraftingGrid,
    scores: Mapping[str, pd.DataFrame],
    bounds: Mapping[str, pd.DataFrame],
) -> pd.DataFrame:
    """Estimates."""
    return pd.DataFrame()
