"""Summaries of one audit's scores, in the readings that gradient_crafting compares."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from hiddenstate.accounting import gaussian
from hiddenstate.auditing import AsPublished, GaussianDP, lower_bound
from hiddenstate.auditing.methods import CONFIDENCE, PUBLISHED, REPEATABLE
from hiddenstate.auditing.summaries import separation
from hiddenstate.papers.gradient_crafting.adversaries import ONE_RANDOM
from hiddenstate.papers.gradient_crafting.cells import SETTING
from hiddenstate.pipeline.estimates import largest

Floats = NDArray[np.float64]
Row = dict[str, Any]

HALF = (1 - CONFIDENCE) / 2
"""Level of each error rate's Clopper-Pearson bound, as published."""


ALONE, WHOLE = "each canary alone", "whole mechanism"
"""Of what Gaussian DP is assumed by bounds from one model."""

ALL, FIFTH, PLANNED = "all guessed", "clearest fifth guessed", "planned share guessed"
FLIPPED, KNOWN, NOISE_ALONE = "no null law known", "known null law", "noise taken for all"
"""Rules of those bounds: each canary alone, and the whole mechanism. The last takes the null law of
a trained model for that of its noise: a comparison, and no bound."""

HYPOTHESES = GaussianDP(limit=8.0, step=0.01)
"""What the valid bound chooses from; audits share the critical values of so few."""


def drawn(rows: pd.DataFrame) -> pd.DataFrame:
    """Audits of a housing setting with the most models.

    One random coordinate says little of others: of it the audits of the most coordinates.
    """
    one = rows["adversary"] == ONE_RANDOM
    sizes = rows[one].groupby([*SETTING, "models"])["repeat"].transform("nunique")
    several = largest(rows[one].assign(coordinates=sizes), "coordinates", SETTING)
    several = largest(several, "models", SETTING).drop(columns="coordinates")
    return pd.concat([largest(rows[~one], "models", SETTING), several])


def audit(inside: Floats, outside: Floats, delta: float) -> Iterator[Row]:
    """Epsilon of one audit in three readings, and the separation of its worlds.

    "as published": the best threshold on the same scores, not valid. "valid": the package's
    default bound on mu. Both become an epsilon through Gaussian DP. "plug-in": mu estimated by the
    difference of means over the deviation, with one standard error of it as low and high.
    """
    published, _ = AsPublished().bounds(inside[None], outside[None], GaussianDP(), HALF)
    bound = lower_bound(inside, outside, HYPOTHESES, REPEATABLE, confidence=CONFIDENCE)
    mu, error = separation(inside, outside)
    most = (mu - error, mu, mu + error)
    low, value, high = (float(gaussian.epsilon_below(m, delta)) for m in most)
    yield {"quantity": "epsilon", "method": PUBLISHED, "kind": "estimate"} | {
        "value": float(gaussian.epsilon_below(published[0], delta))
    }
    yield {"quantity": "epsilon", "method": "valid", "kind": "lower"} | {
        "value": float(gaussian.epsilon_below(bound.value, delta)),
        "confidence": CONFIDENCE,
    }
    shared = {"method": "plug-in", "kind": "estimate"}
    yield shared | {"quantity": "epsilon", "value": value, "low": low, "high": high}
    yield shared | {"quantity": "mu", "value": mu, "low": mu - error, "high": mu + error}
