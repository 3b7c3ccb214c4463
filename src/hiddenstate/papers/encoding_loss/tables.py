"""Tables of encoding_loss."""

from decimal import Decimal

import numpy as np
import pandas as pd

from hiddenstate import rounding
from hiddenstate.pipeline.estimates import plus_minus, select
from hiddenstate.pipeline.family import Rows, table


def _mean_and_spread(values: pd.Series) -> str:
    if not np.isfinite(values).all():
        finite = int(np.isfinite(values).sum())
        return f"none fits in {len(values) - finite} of {len(values)} repeats"
    return plus_minus(values.mean(), 2 * values.std())


@table(
    "Empirical epsilon by estimator",
    "Mean and two standard deviations over repeats. All but the lower bound are estimates.",
)
def epsilon(estimates: pd.DataFrame) -> Rows:
    rows = select(estimates, quantity="epsilon")
    for (q, steps, epsilon, sigma), part in rows.groupby(
        ["sampling_rate", "steps", "epsilon", "noise_multiplier"]
    ):
        record = {
            "sampling rate": f"{q:g}",
            "steps": f"{steps:g}",
            "noise multiplier": f"{sigma:.4f}",
            "epsilon": f"{epsilon:g}",
        }
        for (encoding, method), values in part.groupby(["encoding", "method"])["value"]:
            record[f"{method}, {encoding}"] = _mean_and_spread(values)
        yield record


@table(
    "Encodings",
    "Spacing, upper bound on the probability of a wrong decoding in a run, and correlation "
    "with the log-likelihood ratio of all iterates.",
)
def encodings(estimates: pd.DataFrame) -> pd.DataFrame:
    kept = select(estimates, quantity=["spacing", "collision_probability", "correlation"])
    index = ["sampling_rate", "steps", "noise_multiplier", "epsilon", "encoding"]
    shown = kept.pivot(index=index, columns="quantity", values="value").reset_index()
    formats = {
        "noise_multiplier": "{:.4f}",
        "epsilon": "{:.3g}",
        "spacing": "{:.2f}",
        "correlation": "{:.4f}",
    }
    for name, pattern in formats.items():
        shown[name] = shown[name].map(pattern.format)
    # An upper bound, with two digits.
    shown["collision_probability"] = [
        f"{Decimal(rounding.shown(value, 'upper', 2)):.1e}"
        for value in shown["collision_probability"]
    ]
    shown = shown[[*index, "spacing", "collision_probability", "correlation"]]
    shown["steps"] = shown["steps"].astype(int)
    return shown.rename(columns=lambda name: name.replace("_", " "))
