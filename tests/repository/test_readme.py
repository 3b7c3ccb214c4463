"""The pages name every family and every figure, and nothing that is not there."""

import json
import re
import shlex
from pathlib import Path

import pandas as pd
import pytest

from hiddenstate import cli, papers
from hiddenstate.study import claims, publication, verdicts

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


def test_the_front_page_has_at_most_6_kb():
    assert len(README.encode()) <= 6144


def test_every_family_is_named():
    page = (ROOT / "docs/run.md").read_text()
    for name in papers.names():
        assert f"| `{name}` |" in page


def test_captions_state_no_parameter_that_a_scale_sets():
    """They stand beside every scale; what the paper has, or a panel shows, may be said so."""
    numbers = re.compile(
        r"delta 1e-|noise multiplier \d|(,|of|after) \d+ steps|\d+ insertions|epsilon (at )?\d"
        r"|q = \d|[\d,]+ (records|models)|hundred models|norm of \d|sampling rate \d"
        r"|(two|three|four|five) (epsilons|batch sizes)|every fifth|\d to \d+ %|MNIST|^Ours are"
    )
    for name in papers.names():
        family = papers.load(name)
        for thing in (*family.figures.values(), *family.tables.values()):
            said = re.split(r"(?<=\.) (?=[A-Z])", thing.caption)
            for sentence in (*said, thing.title, thing.message, thing.shows):
                paper = re.search(r"paper|text states|the sources", sentence)
                assert paper or not numbers.search(sentence), (name, sentence)


COMMITTED = (
    "a run of ./reproduce claims, then: hiddenstate verdicts results/laptop/claims.csv "
    "--config workflow/config/scales/laptop.yaml"
)
"""What to do when verdicts of the repository are not those of its claims."""


@pytest.fixture(scope="module")
def expected():
    """The verdicts that are committed, as far as a count needs them."""
    path = ROOT / verdicts.expectation("laptop")
    ledgers = {
        claim.id: "paper" if isinstance(claim, claims.PaperClaim) else "own"
        for claim in claims.read(ROOT / "workflow/config/claims")
    }
    found = pd.read_csv(path)
    assert sorted(found["id"]) == sorted(ledgers), COMMITTED
    return found.assign(ledger=found["id"].map(ledgers), commit="", date="")


def test_the_committed_verdicts_are_of_the_claims_as_they_are(expected):
    committed = verdicts.read(
        *(ROOT / publication.evidence_file(name) for name in papers.names())
    ).set_index("id")
    told = dict(zip(expected["id"], expected["verdict"], strict=True))
    assert list(committed.index) == list(told), COMMITTED
    for claim in claims.read(ROOT / "workflow/config/claims"):
        row = committed.loc[claim.id]
        assert (row["verdict"], row["statement"]) == (told[claim.id], claim.statement), COMMITTED
        if isinstance(claim, claims.PaperClaim):
            assert (row["quote"], row["version"]) == (claim.quote, claim.version), COMMITTED
            readings = [reading.model_dump(mode="json") for reading in claim.readings]
            assert json.loads(row["readings"]) == readings, COMMITTED
        # A scale below the claim's own can only have left it open.
        if claims.SCALES.index(claim.judged_from) > claims.SCALES.index("laptop"):
            assert told[claim.id] == "not judged", COMMITTED


def test_readme_and_appendix_count_as_the_committed_verdicts_do(expected):
    every = verdicts.read(*(ROOT / publication.evidence_file(name) for name in papers.names()))
    pages = claims.pages(ROOT / "workflow/config/claims")
    overview = publication.overview(every, pages)
    assert verdicts.between("README.md", README, overview) == README, COMMITTED
    appendix = (ROOT / "ARTIFACT-APPENDIX.md").read_text(encoding="utf-8")
    told = verdicts.expectations(expected)
    assert verdicts.between("ARTIFACT-APPENDIX.md", appendix, told) == appendix, COMMITTED


def test_the_meaning_of_every_verdict_is_told_alike():
    page = (ROOT / "docs/claims.md").read_text(encoding="utf-8")
    for verdict, words in verdicts.MEANINGS.items():
        assert f"| {verdicts.SYMBOLS[verdict.group]} | {verdict} | {words} |" in page


def test_every_command_has_a_target():
    targets = {
        "figures",
        "tables",
        "claims",
        "all",
        "test",
        "setup",
        "report",
        "plan",
        "verify_cache",
        *papers.names(),
    }
    for name in papers.names():
        targets |= {f"{name}_{figure}" for figure in papers.load(name).figures}
    for command in re.findall(r"\./reproduce ([a-z]\w*)", README):
        assert command in targets, command


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_leads_somewhere(page):
    for link in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
        assert (page.parent / link).exists(), link


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_hiddenstate_command_parses(page):
    text = page.read_text().replace("\\\n", " ")
    commands = re.findall(r"^hiddenstate (.+)$", text, flags=re.MULTILINE)
    for command in commands:
        cli.parser().parse_args(shlex.split(command, comments=True))


def test_every_paper_is_cited():
    citation = (ROOT / "CITATION.cff").read_text()
    for name in papers.names():
        reference = papers.load(name).reference
        if reference.startswith("arXiv"):
            assert reference in citation, name
