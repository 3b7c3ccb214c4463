"""The pages name every family and every figure, and nothing that is not there."""

import re
from pathlib import Path

import pytest

from hiddenstate import catalogue, cli, papers

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


def test_every_family_is_named():
    for name in papers.names():
        assert f"| `{name}` |" in README


def test_the_list_of_figures_is_the_families_own():
    listed = (ROOT / "docs/figures.md").read_text()
    assert listed == catalogue.page(), "run: hiddenstate catalogue > docs/figures.md"


def test_captions_state_no_parameter_that_a_scale_sets():
    """They stand beside every scale; what the paper has, or a panel shows, may be said so."""
    numbers = re.compile(
        r"delta 1e-|noise multiplier \d|(,|of) \d+ steps|\d+ insertions|epsilon at \d"
    )
    for name in papers.names():
        family = papers.load(name)
        for thing in (*family.figures.values(), *family.tables.values()):
            for sentence in re.split(r"(?<=\.) (?=[A-Z])", thing.caption):
                paper = re.search(r"paper|text states", sentence)
                assert paper or not numbers.search(sentence), (name, sentence)


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
        cli._parser().parse_args(command.split("#")[0].split())


def test_every_paper_is_cited():
    citation = (ROOT / "CITATION.cff").read_text()
    for name in papers.names():
        reference = papers.load(name).reference
        if reference.startswith("arXiv"):
            assert reference in citation, name
