"""What the claims of estimators measure, from its estimates."""

import math
from collections.abc import Callable

import numpy as np
import pandas as pd

from hiddenstate.auditing import AsPublished, Averaged
from hiddenstate.estimates import select
from hiddenstate.family import Check, Measurement, check, furthest, needed
from hiddenstate.papers.estimators.cells import LEVEL
from hiddenstate.papers.estimators.estimates import required


def _allowed(audits: float) -> float:
    """The level and three standard errors of a share over this many audits."""
    return LEVEL + 3 * math.sqrt(LEVEL * (1 - LEVEL) / audits)


def _validity(choose: Callable[[pd.DataFrame], pd.Series]) -> Check:
    """Exceedance is at most the level and three standard errors in every chosen cell."""

    @check
    def measure(estimates: pd.DataFrame) -> Measurement:
        rows = select(estimates, quantity="exceedance")
        rows = needed(rows[choose(rows)])
        allowed = rows["audits"].map(_allowed)
        worst = rows.loc[(rows["value"] - allowed).idxmax()]
        return Measurement(
            f"at most {100 * worst['value']:.1f} % of audits ({worst['cell']}, "
            f"{int(worst['x']):,} scores, {worst['method']}), over {len(rows)} points",
            f"5 % and three standard errors: {100 * allowed[worst.name]:.1f} %",
            bool((rows["value"] <= allowed).all()),
            float(3 * (worst["value"] - LEVEL) / (allowed[worst.name] - LEVEL)),
        )

    return measure


default_holds = _validity(lambda rows: rows["method"] == Averaged.name)
valid_hold = _validity(lambda rows: rows["valid"].astype(bool) & (rows["method"] != Averaged.name))
null_is_null = _validity(lambda rows: rows["valid"].astype(bool) & (rows["cell"] == "gaussian_mu0"))


@check
def as_published(estimates: pd.DataFrame) -> Measurement:
    """The published recipe exceeds the truth as often as is known of it."""
    rows = select(estimates, quantity="exceedance", method=AsPublished.name)
    rows = rows.set_index(["cell", "x"])
    stated = {
        ("gaussian_mu0", 100): 0.104,
        ("gaussian_mu1", 100): 0.099,
        ("gaussian_mu2", 100): 0.070,
        ("gaussian_mu1", 1000): 0.20,
    }
    found = needed(rows["value"].reindex(stated))
    errors = [3 * math.sqrt(2 * s * (1 - s) / rows["audits"].iloc[0]) for s in stated.values()]
    # The last is known as "20 %" only.
    errors[-1] = max(errors[-1], 0.03)
    near = [abs(f - s) <= e for f, s, e in zip(found, stated.values(), errors, strict=True)]
    return Measurement(
        ", ".join(f"{100 * f:.1f} %" for f in found) + " (mu 0, 1, 2 at 100 scores; 1 at 1,000)",
        "three standard errors of both: " + ", ".join(f"{100 * e:.1f}" for e in errors),
        all(near),
        furthest(3 * (f - s) / e for f, s, e in zip(found, stated.values(), errors, strict=True)),
    )


@check
def default_is_tight(estimates: pd.DataFrame) -> Measurement:
    """The default bound is as tight as was aimed at."""
    rows = select(estimates, quantity="median", method=Averaged.name)
    rows = rows.set_index(["cell", "x"])
    goals = {("gaussian_mu1", 100): 0.70, ("gaussian_mu3", 100): 2.2}
    found = needed(rows["value"].reindex(goals))
    return Measurement(
        ", ".join(f"{value:.2f}" for value in found) + " (true mu 1, 3; 100 scores per world)",
        "at least 0.70, 2.2",
        bool((found.to_numpy() >= np.array(list(goals.values()))).all()),
    )


@check
def mistakes_found(estimates: pd.DataFrame) -> Measurement:
    """At least ten mistakes are found, and the control is not."""
    rows = needed(select(estimates, quantity="power"))
    models = rows.groupby("cell")[["x", "value"]].apply(required)
    found = models[np.isfinite(models)]
    control = select(rows, cell="none")
    quiet = bool((control["low"] <= LEVEL).all())
    return Measurement(
        f"{len(found)} of {len(models) - 1} mistakes found with power 0.9, "
        + (f"with up to {int(found.max()):,} models per world; " if len(found) else "")
        + ("control at its level" if quiet else "control above its level"),
        "at least 10; control's interval reaches 5 % at every number of models",
        len(found) >= 10 and "none" not in found.index and quiet,
    )
