"""What the repository says of verdicts: the pages of the papers, the front page, our own."""

import json
import re
import shutil
from pathlib import Path

import pandas as pd
import pytest
import yaml

from hiddenstate import cli, papers
from hiddenstate.errors import InputError
from hiddenstate.pipeline import sealed
from hiddenstate.study import claims, publication, verdicts

ROOT = Path(__file__).parents[2]
GRIDS = {name: f"{name} at laptop (0)" for name in papers.names()}


@pytest.fixture
def every():
    """The committed verdicts, as of one grid."""
    found = verdicts.read(*(ROOT / publication.evidence_file(name) for name in papers.names()))
    return found.assign(grid=[f"{name.split('.')[0]} at laptop (0)" for name in found["id"]])


@pytest.fixture
def tree(tmp_path):
    for name in ("workflow/config/claims", "workflow/config/expected", "docs/papers"):
        shutil.copytree(ROOT / name, tmp_path / name)
    for name in ("README.md", "ARTIFACT-APPENDIX.md"):
        shutil.copy(ROOT / name, tmp_path / name)
    for name in papers.names():
        path = tmp_path / publication.evidence_file(name)
        found = verdicts.read(path)
        grid = found["grid"].where(found["grid"] == "", GRIDS[name])
        sealed.write(path, found.assign(grid=grid), "estimates")
    return tmp_path


@pytest.mark.whole
def test_every_paper_has_a_page_of_at_most_1200_words_in_its_own_order(every):
    pages = claims.pages(ROOT / publication.CLAIMS)
    with_sentences = {name.split(".")[0] for name in verdicts.of_ledger(every, "paper")["id"]}
    assert set(pages) == with_sentences
    for name, page in pages.items():
        content = publication.paper(every, name, page)
        assert publication.words_of(content) <= publication.MOST_WORDS, name
        assert f"figures/published/{name}/{page.figure}.png" in content
        assert (ROOT / f"figures/published/{name}/{page.figure}.png").is_file(), name
        signs = re.findall(r"\| (.) [a-z ]+ \|[^|]*\|$", content, re.MULTILINE)
        sentences = verdicts.of_ledger(every[every["id"].str.startswith(f"{name}.")], "paper")
        assert len(signs) == len(sentences), name
        # Contradictions come first.
        assert signs == sorted(signs, key="✘±✔?○".index), name


def test_words_are_counted_without_the_lines_of_tables():
    assert publication.words_of("| a | = | 1.5 |\n| --- | --- | --- |\n“and” so on") == 5


def test_every_sentence_of_a_paper_says_in_a_sentence_of_its_own_why_it_has_its_verdict(every):
    pages = claims.pages(ROOT / publication.CLAIMS)
    expected = pd.read_csv(ROOT / verdicts.expectation("laptop")).set_index("id")["verdict"]
    said = []
    for claim in claims.read(ROOT / publication.CLAIMS):
        if isinstance(claim, claims.PaperClaim):
            assert claim.id in expected, f"{claim.id}: publish its verdict (CONTRIBUTING.md)"
            group = claims.Verdict(expected[claim.id]).group
            reasons = pages[claim.family].because.get(claim.check, {})
            assert group in reasons, f"{claim.family}.yaml: because lacks {claim.check}, {group}"
            said += reasons.values()
    # Each is a sentence about its row alone.
    assert len(set(said)) == len(said)
    for one in said:
        assert one[0].isupper() and one.endswith(".") and 5 <= len(one.split()) <= 16, one
    content = publication.paper(every, "cyclic_bounds", pages["cyclic_bounds"])
    assert pages["cyclic_bounds"].because["residuals"]["agrees"] in content


def test_decimals_of_a_reason_are_those_of_its_row(every):
    """As they are measured, stated or quoted there, rounded to as many places."""
    rows, found = every.set_index("id"), 0
    for family, page in claims.pages(ROOT / publication.CLAIMS).items():
        for check, reasons in page.because.items():
            row = rows.loc[f"{family}.{check}"]
            evidence = json.loads(row["evidence"])
            known = [one[end] for one in evidence for end in ("measured", "low", "high")]
            words = " ".join(map(str, row.drop("remark")))
            known += map(float, re.findall(r"\d+\.\d+", words))
            for number in re.findall(r"(?<!Theorem )\b\d+\.\d+", " ".join(reasons.values())):
                found += 1
                places = len(number.partition(".")[2])
                near = [abs(abs(one) - float(number)) <= 0.5001 * 10.0**-places for one in known]
                assert any(near), (family, check, number)
    assert found >= 10


HEAD = ("main", "theirs", "ours", "holds", "fails", "open", "caption")


SAID = {
    # The paper's words for 1,000 records; it calls 6.48 slightly weaker.
    ("worst_case_init", "main"): ("much tighter", "nearly tight"),
    ("encoding_loss", "main"): ("A loss exists", "eight settings"),
    # At sampling rate 0.01 less than one pair in a hundred is lost.
    ("encoding_loss", "fails"): ("3.5 of 100 pairs", "low sampling rates"),
    # A share of 0.68 with an interval from 0.39 to 0.97.
    ("linear_heuristic", "open"): ("an error that covers a half", "not by much"),
    ("cyclic_bounds", "fails"): ("as we reconstruct it", "so equation 22 is"),
    # One setting is judged, and not every lower bound exceeds the claim.
    ("shuffling", "main"): ("can leak", "shuffle leak"),
    ("shuffling", "holds"): ("can leak", "batches leak"),
    ("gradient_crafting", "fails"): ("abstract does not say so", "where a reviewer"),
}
"""By family and part of its page: words that its rows bear out, and words that they do not."""


@pytest.mark.parametrize(("family", "part"), SAID)
def test_the_head_of_a_page_says_no_more_than_its_rows(family, part):
    said = getattr(claims.pages(ROOT / publication.CLAIMS)[family], part)
    right, wrong = SAID[family, part]
    assert right in said and wrong not in said


@pytest.mark.parametrize("part", HEAD)
def test_numbers_at_the_head_of_a_page_are_those_of_its_rows(every, part):
    """What the front page says is ours is of the row that it names, rounded to as many places."""
    found = 0
    for family, page in claims.pages(ROOT / publication.CLAIMS).items():
        rows = verdicts.of_family(every, family)
        rows = rows[rows["id"] == f"{family}.{page.row}"] if part == "ours" else rows
        judged = [one for row in rows["evidence"] for one in json.loads(row)]
        known = [one[end] for one in judged for end in ("measured", "low", "high")]
        known += [100 * one for one in known] + [100 * (one - 1) for one in known]  # per cent
        words = " ".join(map(str, rows.drop(columns="remark").to_numpy().ravel()))
        known += [float(one.replace(",", "")) for one in re.findall(r"\d[\d,]*\.?\d*", words)]
        for number in re.findall(r"(?<![\w.])\d[\d,]*(?:\.\d+)?", getattr(page, part)):
            found += 1
            value, places = float(number.replace(",", "")), len(number.partition(".")[2])
            near = [abs(abs(one) - value) <= 0.5001 * 10.0**-places for one in known]
            assert any(near), (family, number)
    assert found


def test_each_printed_number_stands_beside_ours(every):
    page = claims.pages(ROOT / publication.CLAIMS)["worst_case_init"]
    content = publication.paper(every, "worst_case_init", page)
    (line,) = [one for one in content.splitlines() if "MNIST 95.4 95.7 95.9 95.9" in one]
    theirs, ours = line.split(" | ")[2:4]
    assert theirs == "95.4, 95.7, 95.9, 95.9" and len(ours.split(", ")) == 4


def test_a_number_that_is_beside_no_printed_one_says_what_it_is(every):
    """Pages had "0.001329" beside a sentence, which is a p-value, and "-0.402", a gap."""
    pages = claims.pages(ROOT / publication.CLAIMS)
    content = publication.paper(every, "worst_case_init", pages["worst_case_init"])
    assert " |  | best thresholds in tenths of the scores, epsilon 1: p = 0.0013 | " in content
    for name, page in pages.items():
        content = publication.paper(every, name, page)
        found = re.findall(r"^\| .* \|  \| (\S.*?) \| [✘±?] ", content, re.MULTILINE)
        assert all(re.search(r"[a-z].*: (p = )?-?\d", one) for one in found), name
    assert len(found) >= 5  # of the last page
    own = publication.own_statements(every)
    assert own.count(": p = ") >= 3 and "less all iterates, sampling rate" in own


def test_each_figure_stands_beside_what_the_paper_says_of_its_own(every):
    """In the paper's order, each sentence that names a figure once, with both numbers."""
    content = publication.side_by_side(every, "worst_case_init")
    titles = re.findall(r"^## (Figure \d)", content, re.MULTILINE)
    assert titles == [f"Figure {n}" for n in range(1, 8)]
    shown = re.findall(r"^!\[.+\]\(\.\./\.\./(figures/published/.+\.png)\)$", content, re.MULTILINE)
    assert len(shown) == 7 and all((ROOT / path).is_file() for path in shown)
    mine = every[every["id"].str.startswith("worst_case_init.")]
    named = mine[mine["place"].str.contains("Figure") & (mine["ledger"] == "paper")]
    assert content.count("\n| “") == len(named)
    (line,) = [one for one in content.splitlines() if "3.41\\[…\\] to 6.48" in one]
    assert re.search(r"epochs 0: \d\.\d+ for 3\.41; .* epochs 5: \d\.\d+ for 6\.48", line)
    (line,) = [one for one in content.splitlines() if "smaller datasets generally" in one]
    assert "; the sentence allows at least 0 (tighter) | " in line
    # No sentence of this paper names a figure; each stands beside the one that shows it.
    content = publication.side_by_side(every, "shuffling")
    assert content.count("\n| “") == 2 and "published/shuffling/batches.png" in content


def test_a_verdict_that_changed_has_a_reason_from_its_evidence_alone(every):
    page = claims.pages(ROOT / publication.CLAIMS)["cyclic_bounds"]
    was = page.because["residuals"]["agrees"]
    changed = every.assign(
        verdict=every["verdict"].mask(every["id"] == "cyclic_bounds.residuals", "refuted")
    )
    content = publication.paper(changed, "cyclic_bounds", page)
    assert was not in content and publication.EVIDENCE["contradicts"] in content
    assert set(publication.EVIDENCE) == set(claims.GROUPS)


@pytest.mark.parametrize(
    ("because", "expected"),
    [
        ({"guess": {"agrees": "It is."}}, "page.because: got 'guess'; expected a sentence"),
        ({"residuals": {"yes": "It is."}}, "page.because.residuals: got 'yes'; expected one of"),
    ],
)
def test_a_reason_of_no_row_or_no_verdict_is_refused(tree, because, expected):
    path = tree / publication.CLAIMS / "cyclic_bounds.yaml"
    content = yaml.safe_load(path.read_text(encoding="utf-8"))
    content["page"]["because"] = because
    path.write_text(yaml.safe_dump(content), encoding="utf-8")
    with pytest.raises(InputError, match=re.escape(expected)):
        claims.pages(path.parent)


def test_the_front_page_answers_for_every_paper_in_a_line(every):
    pages = claims.pages(ROOT / publication.CLAIMS)
    lines = publication.overview(every, pages).split("\n\n")[1].splitlines()[2:]
    assert len(lines) == len(pages)
    told = dict(zip(every["id"], every["verdict"], strict=True))
    for (name, page), line in zip(pages.items(), lines, strict=True):
        assert len(page.main.split()) <= 16, name
        for words in (page.main, page.theirs, page.ours, told[f"{name}.{page.row}"]):
            assert words in line
        assert f"docs/papers/{name}.md" in line


@pytest.mark.whole
def test_publishing_writes_what_is_committed_and_changes_nothing_else(tree, every):
    before = (tree / "README.md").read_text(encoding="utf-8")
    for _ in range(2):
        publication.publish(tree, every, "laptop", GRIDS)
    after = (tree / "README.md").read_text(encoding="utf-8")
    assert after == before
    pages = [f"docs/papers/{path.name}" for path in (ROOT / "docs/papers").glob("*.md")]
    for name in ("docs/verdicts.md", "docs/own-statements.md", *pages):
        assert (tree / name).read_text(encoding="utf-8") == (ROOT / name).read_text(
            encoding="utf-8"
        ), name
    assert verdicts.compared(every, tree / verdicts.expectation("laptop")).startswith("As exp")
    (tree / "README.md").write_text("no marks")
    with pytest.raises(InputError, match=r"README\.md: no place for verdicts"):
        publication.publish(tree, every, "laptop", GRIDS)


def test_verdicts_of_another_scale_or_of_a_part_are_refused_before_anything_is_written(tree, every):
    before = (tree / "docs/papers/encoding_loss.csv").read_bytes()
    mine = every["id"].str.startswith("encoding_loss.")
    other = every.assign(grid=every["grid"].mask(mine, "encoding_loss at smoke (1)"))
    with pytest.raises(
        InputError, match=r"encoding_loss: got those of encoding_loss at smoke \(1\)"
    ):
        publication.publish(tree, other, "laptop", GRIDS)
    with pytest.raises(InputError, match=r"lack those of encoding_loss; .* --only"):
        publication.publish(tree, every[~mine], "laptop", GRIDS)
    with pytest.raises(InputError, match="lack those of encoding_loss"):
        publication.publish(tree, every[~mine], "laptop", GRIDS, only="encoding_loss")
    assert (tree / "docs/papers/encoding_loss.csv").read_bytes() == before


@pytest.mark.whole
def test_one_family_alone_replaces_its_own_rows(tree, every):
    mine = every["id"].str.startswith("encoding_loss.")
    changed = every[mine].assign(verdict=lambda f: f["verdict"].mask(f["ledger"] == "own", "fails"))
    publication.publish(tree, changed, "laptop", GRIDS, only="encoding_loss")
    found = pd.read_csv(tree / verdicts.expectation("laptop")).set_index("id")["verdict"]
    was = pd.read_csv(ROOT / verdicts.expectation("laptop")).set_index("id")["verdict"]
    differing = found[found != was].index
    assert list(found.index) == list(was.index)
    assert len(differing) and all(name.startswith("encoding_loss.") for name in differing)


def test_another_family_s_or_scale_s_page_is_refused_before_anything_is_written(tree, every):
    mine = every[every["id"].str.startswith("encoding_loss.")]
    before = (tree / "docs/papers/encoding_loss.csv").read_bytes()
    other = tree / "docs/papers/shuffling.csv"
    kept = other.read_bytes()
    other.write_bytes((tree / "docs/papers/atlas.csv").read_bytes())
    with pytest.raises(InputError, match=r"shuffling\.csv: got .*atlas.*; expected verdicts of"):
        publication.publish(tree, mine, "laptop", GRIDS, only="encoding_loss")
    other.write_bytes(kept)
    # Of the same scale, whose section was edited since.
    for name, gone in (("shuffling", "shuffling at laptop (1)"), ("atlas", "atlas at smoke (0)")):
        grids = GRIDS | {name: gone}
        with pytest.raises(InputError) as error:
            publication.publish(tree, mine, "laptop", grids, only="encoding_loss")
        assert f"docs/papers/{name}.csv: got {name}, {GRIDS[name]}; expected" in str(error.value)
        assert f"{gone}; publish those of every family, without --only" in str(error.value)
    readme = tree / "README.md"
    text = readme.read_text(encoding="utf-8")
    readme.write_text("no marks")
    with pytest.raises(InputError, match=r"README\.md: no place for verdicts"):
        publication.publish(tree, mine, "laptop", GRIDS, only="encoding_loss")
    readme.write_text(text, encoding="utf-8")
    assert (tree / "docs/papers/encoding_loss.csv").read_bytes() == before


def test_verdicts_on_other_claims_and_of_broken_checks_are_refused(tree, every):
    """A check that broke was published as a scale that lacks what its sentence needs."""
    before = {path: path.read_bytes() for path in tree.rglob("*.*") if path.is_file()}
    name = "encoding_loss.curve"
    at = every["id"] == name
    file = re.escape(str(tree / "workflow/config/claims/encoding_loss.yaml"))
    for column, other in (("statement", "Other."), ("quote", "Other."), ("id", "encoding_loss.a")):
        changed = every.assign(**{column: every[column].mask(at, other)})
        with pytest.raises(InputError, match=rf"verdicts: {name}: .* expected .* of {file}"):
            publication.publish(tree, changed, "laptop", GRIDS)
    with pytest.raises(InputError, match=rf"verdicts: {name}: .* expected .* of {file}"):
        publication.publish(tree, every[~at], "laptop", GRIDS)
    broken = every.assign(problem=every["problem"].mask(at, "KeyError: 'x'"))
    with pytest.raises(InputError, match=rf"verdicts: {name}: its check failed: KeyError: 'x'"):
        publication.publish(tree, broken, "laptop", GRIDS)
    assert before == {path: path.read_bytes() for path in tree.rglob("*.*") if path.is_file()}


def test_the_command_names_what_is_wrong(tmp_path, every, capsys):
    part = every[every["id"].str.startswith("encoding_loss.")]
    verdicts.write(tmp_path, part.assign(grid="encoding_loss at smoke (1)"), "smoke")
    scale = str(ROOT / "workflow/config/scales/laptop.yaml")
    asked = ["verdicts", str(tmp_path / "claims.csv"), "--config", scale, "--tree", str(tmp_path)]
    assert cli.main(asked) == 2
    assert "encoding_loss at smoke (1); expected those of encoding_loss at laptop" in (
        capsys.readouterr().err
    )
    assert not (tmp_path / "docs").exists()


def test_published_verdicts_are_of_a_tree_without_edits():
    """A commit names the code that judged only if nothing in it was edited."""
    for path in (ROOT / "docs/papers").glob("*.csv"):
        commits = pd.read_csv(path)["commit"]
        assert not commits.str.endswith("-dirty").any(), path
