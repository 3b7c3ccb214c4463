"""Every bound of the package on one setting: how much does hiding the iterates buy?

``lower`` has the lower bounds, ``trained`` audits of trainings, ``words`` the answer, ``drawn`` the
figure. ``hiddenstate atlas`` shows a user's own setting, and the family ``papers.atlas`` common
ones.
"""

import math

import pandas as pd

from hiddenstate.accounting.bounds import BOUNDS, Bound, found
from hiddenstate.accounting.setting import Setting
from hiddenstate.atlas.lower import COUNTEREXAMPLES, audits
from hiddenstate.errors import expect

MOST_STEPS = 1_000_000
"""Beyond, simulated audits and losses that are known step by step would take minutes."""


def bounds(runs: int = 2000, seed: int = 0) -> tuple[Bound, ...]:
    """The list of all bounds; runs: per world of a simulated audit, or fewer if steps are many."""
    return BOUNDS + COUNTEREXAMPLES + audits(runs, seed)


def rows(setting: Setting, delta: float, runs: int, seed: int) -> pd.DataFrame:
    """A row for each bound that applies.

    Columns: group, name, kind ("upper", "lower", "exact" or "estimate"), value (an epsilon; empty
    where the bound says nothing, for the reason in assumption), truth (what a perfect audit would
    find), confidence, runs and assumption. Upper bounds are rounded up and lower bounds down.
    """
    fine = setting.steps <= MOST_STEPS
    expect(fine, "steps", setting.steps, f"at most {MOST_STEPS:,} to be compared by all bounds")
    answers = found(setting, delta, bounds(runs, seed))
    frame = pd.DataFrame(
        [
            {
                "group": one.bound.group,
                "name": one.bound.name,
                "kind": one.bound.kind,
                "value": one.epsilon,
                "truth": one.value and one.value.truth,
                "confidence": one.value and one.value.confidence,
                "runs": one.value and one.value.runs,
                "assumption": one.assumption,
            }
            for one in answers
        ]
    )
    numbers = dict.fromkeys(("value", "truth", "confidence", "runs"), float)
    return frame.fillna(dict.fromkeys(numbers, math.nan)).astype(numbers)


def proven(found_rows: pd.DataFrame) -> float:
    """The least epsilon of a setting's rows that is proven for any loss, all iterates released."""
    return float(found_rows.loc[found_rows["group"] == "proven", "value"].min())
