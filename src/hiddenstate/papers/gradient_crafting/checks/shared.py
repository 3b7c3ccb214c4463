"""Parts that the checks of several topics share."""

import math

import pandas as pd

from hiddenstate.papers.gradient_crafting.stated import DELTA, IDLE_AUDITS
from hiddenstate.pipeline.estimates import select
from hiddenstate.pipeline.evidence import Estimate
from hiddenstate.pipeline.family import needed

MODELS = 5000
"""Models per data set of our large audits of the housing network; the sources have 5,000 in all."""
NEAR = 0.02
"""Distance in epsilon of two simulated means that count as one: a limit of ours."""
TIGHT = 0.9
"""The least share of the accountant's mu that is called tight: a reading of ours."""


def as_stated(estimates: pd.DataFrame) -> pd.DataFrame:
    """Estimates at the reference's delta, the only one that it has values for."""
    return needed(estimates[estimates["delta"] == DELTA])


def pooled(values: pd.Series, errors: pd.Series, most: float = math.inf) -> Estimate:
    """Mean weighted by precision; ``most`` is its largest possible size."""
    weights = 1 / errors**2
    value, error = float((values * weights).sum() / weights.sum()), float(weights.sum() ** -0.5)
    return Estimate(value, error, least=-most, most=most)


def expected(estimates: pd.DataFrame, **values: object) -> pd.DataFrame:
    """Expected audits, with the share of mu that each shows as ``share``, an estimate."""
    rows = needed(select(needed(select(estimates, part="expected")), **values))
    return rows.assign(share=[Estimate(r.value, r.error, r.starts - 1) for r in rows.itertuples()])


def stated_mean(value: tuple[float, float, float]) -> Estimate:
    """The reference's mean of its simulated audits, of its exact value, mean and deviation."""
    _, average, sd = value
    return Estimate(average, sd / math.sqrt(IDLE_AUDITS))
