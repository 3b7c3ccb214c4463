"""Audits as such: what perfect ones publish, their validity, and new ones beside cached ones."""

import numpy as np
import pandas as pd

from hiddenstate.auditing.methods import PUBLISHED
from hiddenstate.papers.worst_case_init.checks.shared import law
from hiddenstate.papers.worst_case_init.stated import EPSILONS
from hiddenstate.papers.worst_case_init.summaries import ideal
from hiddenstate.pipeline.estimates import select
from hiddenstate.pipeline.evidence import Estimate, Test, Within, rarely
from hiddenstate.pipeline.family import Found, Lacking, check, needed
from hiddenstate.pipeline.verification import comparison_power

FAR = 0.1
"""Least share of epsilon by which an estimate is relatively far away from it; ours."""


@check
def few_models(estimates: pd.DataFrame) -> Found:
    """Perfect audits of as many models publish far less than epsilon below 10, on average."""
    rows = needed(ideal(estimates, models=100)).set_index("epsilon")
    words = []
    for epsilon in EPSILONS[:-1]:
        if epsilon not in rows.index:
            raise Lacking
        at = rows.loc[epsilon]
        found = Estimate(at["value"], at["deviation"] / np.sqrt(at["audits"]))
        largest = law(100, epsilon, float(at["delta"])).perfect(5, "maximum")
        maximum = Estimate(float(largest.mean()), float(largest.std() / len(largest) ** 0.5))
        yield Within(
            f"mean of perfect audits over epsilon {epsilon:g}",
            found.over(epsilon),
            high=1 - FAR,
            reason="relatively far",
        )
        yield Within(
            f"largest of five perfect audits less their mean, epsilon {epsilon:g}",
            maximum - found,
            low=0,
            reason="the average is further away",
        )
        words.append(f"{found.value:.2f} of {epsilon:g}, the largest of five {maximum.value:.2f}")
    return f"Perfect audits of 100 models publish {'; '.join(words)}."


@check
def thresholds(estimates: pd.DataFrame) -> Found:
    """In perfect audits the best threshold is anywhere among the scores, equally often."""
    from scipy import stats

    rows = needed(select(estimates, quantity="best threshold", method=PUBLISHED, models=100))
    groups = list(rows.groupby("epsilon"))
    notes = []
    for epsilon, part in groups:
        shares = part.sort_values("x")["value"].to_numpy()
        audits = part["audits"].iloc[0]
        evenly = 1 / len(shares)
        distance = audits * float(((shares - evenly) ** 2 / evenly).sum())
        freedom = len(shares) - 1
        # A middle half that is twice as likely as the rest.
        away = audits * len(shares) * (evenly / 3) ** 2 / evenly
        critical = stats.chi2.isf(0.05 / len(groups), freedom)
        yield Test(
            f"best thresholds in tenths of the scores, epsilon {epsilon:g}",
            float(stats.chi2.sf(distance, freedom)),
            float(stats.ncx2.sf(critical, freedom, away)),
            "a middle half that is twice as likely as the rest",
        )
        middle = shares[len(shares) // 4 : -(len(shares) // 4)].sum()
        notes.append(f"{middle:.0%} at epsilon {epsilon:g}")
    inner = len(shares) - 2 * (len(shares) // 4)
    return f"In the middle {inner / len(shares):.0%} of the scores: {', '.join(notes)}."


@check
def live(estimates: pd.DataFrame) -> Found:
    """An audit trained beside the cached ones has scores like theirs."""
    rows = needed(select(estimates, figure="live", quantity="agreement"))
    for _, row in rows.iterrows():
        power = comparison_power(int(row["models"]), shift=1.0, level=0.05 / len(rows))
        what = f"{row['task']}, n = {row['records']:,.0f}, epsilon {row['epsilon']:g}"
        yield Test(what, row["value"], power, "a shift of one standard deviation")
    return (
        "Kolmogorov-Smirnov tests of scores of both trainings: other noise, the same records and "
        "initial parameters."
    )


@check
def valid(estimates: pd.DataFrame) -> Found:
    """No more of the valid bounds exceed the theoretical epsilon than 95 % confidence allows."""
    rows = needed(
        select(estimates, quantity="epsilon", kind="lower").drop_duplicates(["cell", "repeat"])
    )
    above = int((rows["value"] > rows["epsilon"]).sum())
    yield rarely("bounds above the theoretical epsilon", above, len(rows), 0.05, 0.12)
    return "At tight audits 5 % are expected."
