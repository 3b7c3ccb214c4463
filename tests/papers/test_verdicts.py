"""Every check gives every outcome that it can, on made-up estimates and on draws of them.

``made_up/<family>.py`` has ``CASES``: for each check of the family, functions that make estimates
on which it must agree (the truth is what is stated), contradict (the nearest stated alternative; of
"larger" as much smaller), or, where it has statistics, stay undecided; ``DECISIVE`` has those that
cannot. What follows a comma in an outcome's name says what else it is about.
"""

import ast
import importlib.util
import math
import re
import sys
import zlib
from functools import cache, partial
from pathlib import Path

import numpy as np
import pytest
from made_up import drawn

from hiddenstate import papers
from hiddenstate.pipeline.evidence import Outcome, Within
from hiddenstate.pipeline.family import Check

FOLDER = Path(__file__).parent / "made_up"
REQUIRED = {Outcome.AGREES, Outcome.CONTRADICTS}
LEAST = {Outcome.AGREES: 0.5, Outcome.CONTRADICTS: 0.5, Outcome.UNDECIDED: 0.8}
"""How often a replication must come out so: the guard band leaves many of them undecided."""
RIGHT = 0.95
"""How often one must not come out the other way round."""


@cache
def made_up(family):
    path = FOLDER / f"{family}.py"
    spec = importlib.util.spec_from_file_location(f"made_up_{family}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def cases(family):
    return made_up(family).CASES


def meant(key):
    return Outcome(key.split(",")[0])


def measured(family, name, key):
    return papers.load(family).checks[name].measure(cases(family)[name][key]())


@cache
def plainly(family, name, key):
    """What is measured without drawing."""
    return measured(family, name, key)


@cache
def statistical(family, name):
    """If any of a check's made-up evidence has a statistical error."""
    return not all(
        item.exact for key in cases(family)[name] for item in plainly(family, name, key).items
    )


CHECKS = [(family, name) for family in papers.names() for name in cases(family)]
SLOW = {"figure1_mnist", "last_layer", "maxima_last_layer"}
"""Checks whose law takes seconds to simulate."""
EVERY = [
    pytest.param(family, name, key, marks=[pytest.mark.whole] if name in SLOW else [])
    for family, name in CHECKS
    for key in cases(family)[name]
]


@pytest.mark.parametrize("family", papers.names())
def test_every_check_has_made_up_estimates_for_each_outcome(family):
    found = cases(family)
    # Checks of printed numbers alone have no estimates to make up; their own tests turn them.
    fixed = getattr(made_up(family), "FIXED", set())
    assert set(found) | fixed == set(papers.load(family).checks) and not set(found) & fixed
    for name, outcomes in found.items():
        given = {meant(key) for key in outcomes}
        assert given >= REQUIRED, name
        decides = name in getattr(made_up(family), "DECISIVE", ())
        assert decides or Outcome.UNDECIDED in given or not statistical(family, name), name


@pytest.mark.parametrize(("family", "name", "key"), EVERY)
def test_a_check_comes_out_as_its_made_up_estimates_say(family, name, key):
    """Computed numbers that contradict do so just beyond their limit."""
    evidence = plainly(family, name, key)
    assert evidence.outcome == meant(key), [row.outcome for row in evidence.rows]
    if evidence.outcome != Outcome.CONTRADICTS or statistical(family, name):
        return
    beyond = [
        min(
            abs(item.found.value - end) / max(1.0, abs(end))
            for end in (item.low, item.high)
            if math.isfinite(end)
        )
        for item, row in zip(evidence.items, evidence.rows, strict=True)
        if row.outcome == Outcome.CONTRADICTS and isinstance(item, Within)
    ]
    stated = any(not isinstance(item, Within) for item in evidence.items)
    # The epsilon of a printed number is made up at its neighbouring digit.
    assert stated or (beyond and max(beyond) <= 0.002), beyond


class Often:
    """If hits come at least so often: Wald's test against rarer ones.

    It accepts the rarer ones in ``wrongly`` of all tests, and refuses the wanted ones in one of a
    thousand. ``told`` is None until it knows.
    """

    def __init__(self, least, less, wrongly):
        self._steps = math.log((1 - least) / (1 - less)), math.log(least / less)
        self._ends = -math.log(1000), -math.log(wrongly)
        self._log_ratio, self.told = 0.0, None

    def add(self, hit):
        if self.told is None:
            self._log_ratio += self._steps[bool(hit)]
            if not self._ends[0] <= self._log_ratio <= self._ends[1]:
                self.told = self._log_ratio > 0


def replications(family, name, key):
    """Outcomes of many draws of the made-up estimates."""
    rng = np.random.default_rng(zlib.crc32(f"{family}.{name} {key}".encode()))
    for _ in range(5000):
        with drawn(rng):
            yield measured(family, name, key).outcome


WRONG = {
    Outcome.AGREES: Outcome.CONTRADICTS,
    Outcome.CONTRADICTS: Outcome.AGREES,
    Outcome.UNDECIDED: None,
}


PLAIN = [param for param in EVERY if param.values[2] in REQUIRED]
"""Those that plainly agree, and those that plainly contradict."""


@pytest.mark.whole
@pytest.mark.parametrize(
    ("family", "name", "key", "less"),
    [
        *(pytest.param(*param.values, 0.80) for param in PLAIN),
        *(pytest.param(*param.values, 0.90, marks=pytest.mark.slow) for param in EVERY),
    ],
)
def test_replications_come_out_as_their_truth_says(family, name, key, less):
    """In half of them at least, and the other way round in one of twenty at most.

    Every one where the check has no statistics.
    """
    outcome = meant(key)
    if not statistical(family, name):
        assert next(replications(family, name, key)) == outcome
        return
    right, unturned = Often(LEAST[outcome], LEAST[outcome] - 0.2, 0.05), never_turned(less)
    found = []
    for got in replications(family, name, key):
        found.append(got)
        right.add(got == outcome)
        unturned.add(got != WRONG[outcome])
        if right.told is not None and unturned.told is not None:
            break
    assert right.told and unturned.told, [(o, found.count(o)) for o in set(found)]


def never_turned(less):
    """The test that at most one replication of twenty comes out the other way round.

    A check that turns one of ten, of five where ``less`` is 0.8, passes it in one of a hundred
    tests.
    """
    return Often(RIGHT, less, 0.01)


@pytest.mark.parametrize(
    ("make", "wrong", "right", "passed"),
    [
        (partial(never_turned, 0.90), 0.90, 0.95, 0.01),
        (partial(never_turned, 0.80), 0.80, 0.95, 0.01),
        (partial(Often, 0.5, 0.3, 0.05), 0.3, 0.5, 0.05),
    ],
)
def test_a_check_that_is_right_too_seldom_is_found(make, wrong, right, passed):
    rng = np.random.default_rng(6)

    def told(rate):
        one = make()
        while one.told is None:
            one.add(rng.random() < rate)
        return one.told

    # Three standard errors of 1,000 tests above what is promised.
    assert sum(told(wrong) for _ in range(1000)) <= 1000 * passed + 3 * (1000 * passed) ** 0.5
    assert sum(not told(right) for _ in range(1000)) <= 4


COUNTED = re.compile(
    r"\b(\d[\d,]*|two|three|four|five|six|seven|eight|nine|ten|twenty|hundred) "
    r"(runs|repeats|settings|audits|trainings|draws|steps)\b(?! and more)"
)


def _literals(tree):
    """Literal parts of the strings that a module says, docstrings excepted."""
    docs = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docs:
            yield node.value


@pytest.mark.parametrize("name", papers.names())
def test_words_of_checks_state_no_count_of_their_own(name):
    """Counts differ between scales: words take them from the estimates, or name none."""
    modules = [sys.modules[module] for module in papers.load(name).modules_of(Check)]
    every = [Path(module.__file__) for module in modules]
    every += [path for module in every for path in module.parent.glob("checks/*.py")]
    said = [text for path in set(every) for text in _literals(ast.parse(path.read_text()))]
    assert said
    assert [text for text in said if COUNTED.search(text)] == []
