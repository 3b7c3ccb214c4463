"""Estimates of the atlas: every bound on every setting, and the nearest trained audits."""

import math

import pandas as pd

from hiddenstate.atlas import proven
from hiddenstate.atlas.lower import setting_name
from hiddenstate.atlas.trained import with_trained
from hiddenstate.papers.atlas.cells import AtlasGrid, Released, bounded, released
from hiddenstate.pipeline.estimates import select
from hiddenstate.pipeline.family import Made

RELEASED = "released"
"""The group of rows of released checkpoints, by their period k in the column x."""


def settings(estimates: pd.DataFrame) -> pd.DataFrame:
    """The rows of the bounds on settings."""
    return estimates[estimates["group"] != RELEASED]


def checkpoints(estimates: pd.DataFrame) -> pd.DataFrame:
    """The rows of released checkpoints."""
    return estimates[estimates["group"] == RELEASED]


def _title(p: Released) -> str:
    noise, rate = f"{p.noise_multiplier:g}", f"{p.sampling_rate:g}"
    return f"noise multiplier {noise}, sampling rate {rate}, {p.steps:,} steps"


def estimate(grid: AtlasGrid, scores: Made, bounds: Made) -> pd.DataFrame:
    """A row for each bound of each setting; ``method`` is its name, ``cell`` the setting.

    Beside the shared columns: title, group, truth, runs, assumption, and of trained audits allowed,
    the epsilon that their own accountant proves. Released checkpoints are a group of their own.
    """
    ((_, table),) = bounds.of(bounded)
    parts = [
        made.assign(
            cell=cell.name, name=made["method"], group=RELEASED, title=_title(cell.parameters)
        ).drop(columns="method")
        for cell, made in bounds.of(released)
    ]
    for one in grid.settings:
        setting = one.setting.known
        name = setting_name(setting)
        rows = select(table, setting=name).drop(columns="setting")
        if grid.trained:
            rows = with_trained(rows, setting, proven(rows), grid.delta)
        else:
            rows = rows.assign(allowed=math.nan)
        parts.append(rows.assign(cell=name, title=one.title, words=setting.words))
    found = pd.concat(parts, ignore_index=True).rename(columns={"name": "method"})
    return found.assign(quantity="epsilon", delta=grid.delta)
