"""Bounds of the atlas on its settings."""

import pandas as pd

from hiddenstate.atlas import rows
from hiddenstate.atlas.lower import setting_name
from hiddenstate.papers.atlas.cells import Bounded
from hiddenstate.pipeline.cells import Cell


def bound(cell: Cell[Bounded], seed: int) -> pd.DataFrame:
    """Rows of all settings (``atlas.rows``), whose names are in the column ``setting``."""
    p = cell.parameters
    settings = [one.known for one in p.settings]
    return pd.concat(
        [rows(one, p.delta, p.runs, seed).assign(setting=setting_name(one)) for one in settings],
        ignore_index=True,
    )
