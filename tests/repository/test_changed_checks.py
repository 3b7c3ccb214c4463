"""Verdicts that changed from one published run to the next stand in the list of such changes."""

import csv
import io
import re
import subprocess
from itertools import pairwise
from pathlib import Path

import pandas as pd

from hiddenstate import papers
from hiddenstate.pipeline.evidence import GUARD
from hiddenstate.study import publication, verdicts

ROOT = Path(__file__).parents[2]
EXPECTED = "workflow/config/expected/laptop.csv"


def changed(versions):
    """Claims whose verdict differs between two versions, one after the other, or that are gone."""
    found = set()
    for before, after in pairwise(versions):
        found |= {name for name, verdict in before.items() if after.get(name) != verdict}
    return found


def missing(names, page):
    """Those of the claims that a page does not name, with or without their family."""
    return {name for name in names if not re.search(rf"\b{name.split('.')[1]}\b", page)}


def git(*arguments):
    return subprocess.run(
        ["git", "-C", str(ROOT), *arguments], check=True, capture_output=True, text=True
    ).stdout


def test_every_verdict_that_changed_in_the_history_is_in_the_list_of_changes():
    commits = git("log", "--format=%H", "--reverse", "--", EXPECTED).split()
    versions = [
        dict(row for row in csv.reader(io.StringIO(git("show", f"{one}:{EXPECTED}"))) if row)
        for one in commits
    ]
    versions.append(dict(csv.reader(io.StringIO((ROOT / EXPECTED).read_text()))))
    page = (ROOT / "docs/claims.md").read_text(encoding="utf-8")
    page = page[page.index("## Checks that were changed after their result was known") :]
    assert not missing(changed(versions), page)


def test_a_change_that_is_not_listed_is_found():
    versions = [{"a.one": "holds", "a.two": "holds"}, {"a.one": "fails", "a.two": "holds"}]
    assert changed(versions) == {"a.one"}
    assert missing({"a.one"}, "two changed") == {"a.one"} and not missing({"a.one"}, "`a.one`")
    assert changed([{"a.one": "holds"}, {}]) == {"a.one"}


def test_no_decided_row_of_the_committed_verdicts_turns_in_more_than_one_rerun_of_twenty():
    every = verdicts.read(*(ROOT / publication.evidence_file(name) for name in papers.names()))
    turns = pd.to_numeric(every["turns"], errors="coerce").fillna(0)
    decided = ~every["verdict"].isin(["undecided", "not judged"])
    assert decided.sum() > 50
    assert (turns[decided] <= 1 - GUARD + 1e-6).all(), every.loc[decided & (turns > 0.05), "id"]
