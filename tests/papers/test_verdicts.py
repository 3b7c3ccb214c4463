"""Every check gives every outcome that it can, on made-up estimates.

``made_up/<family>.py`` has ``CASES``: for each check of the family, functions that make estimates
on which it must agree, contradict, or (where it has statistics) stay undecided.
"""

import importlib.util
from pathlib import Path

import pytest

from hiddenstate import papers
from hiddenstate.evidence import Outcome

FOLDER = Path(__file__).parent / "made_up"
REQUIRED = {Outcome.AGREES, Outcome.CONTRADICTS}


def cases(family):
    path = FOLDER / f"{family}.py"
    spec = importlib.util.spec_from_file_location(f"made_up_{family}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.CASES


@pytest.mark.parametrize("family", papers.names())
def test_every_check_has_made_up_estimates_for_each_outcome(family):
    found = cases(family)
    assert set(found) == set(papers.load(family).checks)
    for name, outcomes in found.items():
        given = {Outcome(outcome) for outcome in outcomes}
        statistical = not all(
            item.exact
            for make in outcomes.values()
            for item in papers.load(family).checks[name].measure(make()).items
        )
        assert given >= REQUIRED | ({Outcome.UNDECIDED} if statistical else set()), name


@pytest.mark.parametrize(
    ("family", "name", "outcome"),
    [
        (family, name, outcome)
        for family in papers.names()
        for name, outcomes in cases(family).items()
        for outcome in outcomes
    ],
)
def test_a_check_comes_out_as_its_made_up_estimates_say(family, name, outcome):
    evidence = papers.load(family).checks[name].measure(cases(family)[name][outcome]())
    assert evidence.outcome == Outcome(outcome), [row.outcome for row in evidence.rows]
