"""Audits as such: what perfect ones publish, their validity, and new ones beside cached ones."""

import numpy as np
import pandas as pd

from hiddenstate.auditing.methods import PUBLISHED
from hiddenstate.papers.worst_case_init.stated import EPSILONS, stated
from hiddenstate.papers.worst_case_init.summaries import ideal
from hiddenstate.pipeline.estimates import select
from hiddenstate.pipeline.evidence import Estimate, Evidence, Item, Stated, Test, rarely
from hiddenstate.pipeline.family import Lacking, check, needed
from hiddenstate.pipeline.verification import comparison_power


@check
def few_models(estimates: pd.DataFrame) -> Evidence:
    """The paper's epsilons below 10 are what perfect audits of as many models publish."""
    rows = needed(ideal(estimates, models=100)).set_index("epsilon")
    values = stated("figure1", "mnist", "mean", case="worst").set_index("epsilon")["value"]
    items: list[Item] = []
    for epsilon in EPSILONS[:-1]:
        if epsilon not in rows.index:
            raise Lacking
        at = rows.loc[epsilon]
        found = Estimate(at["value"], at["deviation"] / np.sqrt(at["audits"]))
        # The paper's mean of five; had it no other reason to be small, it would scatter as these.
        printed = Estimate(values[epsilon], at["deviation"] / np.sqrt(5))
        # Where audits may find all there is, something else keeps the paper's from it.
        what = f"what perfect audits publish at epsilon {epsilon:g}"
        items.append(Stated(what, found, printed, rounding=0.005, rival=epsilon))
    found_words = ", ".join(f"{rows.loc[e, 'value']:.2f} of {e:g}" for e in EPSILONS[:-1])
    return Evidence(items, f"Perfect audits of 100 models per world publish {found_words}.")


@check
def thresholds(estimates: pd.DataFrame) -> Evidence:
    """In perfect audits the best threshold is anywhere among the scores, equally often."""
    from scipy import stats

    rows = needed(select(estimates, quantity="best threshold", method=PUBLISHED, models=100))
    groups = list(rows.groupby("epsilon"))
    items: list[Item] = []
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
        items.append(
            Test(
                f"best thresholds in tenths of the scores, epsilon {epsilon:g}",
                float(stats.chi2.sf(distance, freedom)),
                float(stats.ncx2.sf(critical, freedom, away)),
                "a middle half that is twice as likely as the rest",
            )
        )
        middle = shares[len(shares) // 4 : -(len(shares) // 4)].sum()
        notes.append(f"{middle:.0%} at epsilon {epsilon:g}")
    inner = len(shares) - 2 * (len(shares) // 4)
    return Evidence(
        items, f"In the middle {inner / len(shares):.0%} of the scores: {', '.join(notes)}."
    )


@check
def live(estimates: pd.DataFrame) -> Evidence:
    """An audit trained beside the cached ones has scores like theirs."""
    rows = needed(select(estimates, figure="live", quantity="agreement"))
    items: list[Item] = []
    for _, row in rows.iterrows():
        power = comparison_power(int(row["models"]), shift=1.0, level=0.05 / len(rows))
        what = f"{row['task']}, n = {row['records']:,.0f}, epsilon {row['epsilon']:g}"
        items.append(Test(what, row["value"], power, "a shift of one standard deviation"))
    return Evidence(
        items,
        "Kolmogorov-Smirnov tests of the two worlds, other noise, same records and initial "
        "parameters.",
    )


@check
def valid(estimates: pd.DataFrame) -> Evidence:
    """No more of the valid bounds exceed the theoretical epsilon than 95 % confidence allows."""
    rows = needed(
        select(estimates, quantity="epsilon", kind="lower").drop_duplicates(["cell", "repeat"])
    )
    above = int((rows["value"] > rows["epsilon"]).sum())
    return Evidence(
        [rarely("bounds above the theoretical epsilon", above, len(rows), 0.05, 0.12)],
        "At tight audits 5 % are expected.",
    )
