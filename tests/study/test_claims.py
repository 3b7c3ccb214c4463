"""Claims: the shipped files, what is refused in one, and the verdict on every kind of claim."""

import dataclasses
import itertools
import json
import re
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pandas as pd
import pytest
import yaml

from hiddenstate import papers
from hiddenstate.errors import InputError
from hiddenstate.pipeline.evidence import Estimate, Evidence, Exact, Outcome, Share, Within
from hiddenstate.pipeline.family import check, needed
from hiddenstate.study import claims
from hiddenstate.study.claims import OwnStatement, PaperClaim, Reading, Rival, Verdict
from hiddenstate.study.levels import Level

LAPTOP = Level("laptop", "laptop")
CLAIMS = Path(__file__).parents[2] / "workflow/config/claims"

PAPER = {
    "id": "toy.gap",
    "statement": "The gap is less than 1.",
    "judged_from": "smoke",
    "quote": "the gap is smaller than one",
    "place": "Section 2",
    "version": "version 1",
    "source": "text",
    "own_parameters_from": "laptop",
}
DEPARTURE = {"id": "sign", "printed": "It adds.", "ours": "It subtracts.", "claims": ["gap"]}
OWN = {key: PAPER[key] for key in ("id", "statement", "judged_from")} | {
    "id": "toy.noise",
    "basis": "the gap of section 2, with noise",
}


def test_the_shipped_claims_are_valid_and_every_check_is_used():
    shipped = claims.read(CLAIMS)
    assert {path.stem for path in CLAIMS.glob("*.yaml")} == set(papers.names())
    for name in papers.names():
        used = {claim.check for claim in shipped if claim.family == name}
        assert used == set(papers.load(name).checks), name
    assert all(claim.shown for claim in shipped)


def test_a_shipped_sentence_of_a_paper_has_quote_and_source_and_stands_alone():
    for claim in claims.read(CLAIMS):
        if isinstance(claim, PaperClaim):
            assert claim.quote.strip() and claim.place.strip() and claim.version.strip(), claim.id
        # Every statement can be read alone.
        for words in ("The same", "So does", "Its ", "Their ", "It "):
            assert not claim.statement.startswith(words), claim.id
        # Pages set statements, remarks and readings one behind the other, so each is a sentence.
        readings = claim.readings if isinstance(claim, PaperClaim) else ()
        said = [
            claim.statement,
            claim.remark,
            *(words for r in readings for words in (r.choice, *(one.choice for one in r.rivals))),
        ]
        for words in filter(None, said):
            assert words.endswith((".", '."')) and not words[0].islower(), (claim.id, words)


@pytest.fixture
def toy(monkeypatch, tmp_path):
    """A family of two checks, and a folder for its claims."""

    @check
    def gap(estimates):
        (value,) = needed(estimates)["value"]
        yield Within("gap", Exact(value), high=1)
        return "The gap."

    @check
    def noise(estimates):
        raise ZeroDivisionError("no noise")

    checks = {"gap": gap, "noise": noise}
    family = SimpleNamespace(checks=checks, figures={"curve": None}, tables={"rows": None})
    monkeypatch.setattr(papers, "load", lambda name: family)
    monkeypatch.setattr(papers, "names", lambda: ["toy"])

    def write(paper=(), own=(), name="toy", **others):
        path = tmp_path / "claims" / f"{name}.yaml"
        path.parent.mkdir(exist_ok=True)
        content = {"paper": list(paper), "own": list(own), **others}
        path.write_text(yaml.safe_dump(content))
        return path

    return write


def test_both_ledgers_are_read_in_order_from_a_file_or_a_folder(toy):
    path = toy(
        [
            PAPER
            | {
                "readings": [
                    {"choice": "delta", "rivals": [{"choice": "0.5", "verdict": "agrees"}]}
                ]
            }
        ],
        [OWN],
    )
    for place in (path, path.parent):
        paper, own = claims.read(place)
        assert isinstance(paper, PaperClaim) and paper.readings == (
            Reading(choice="delta", rivals=(Rival(choice="0.5", verdict="agrees"),)),
        )
        assert isinstance(own, OwnStatement) and own.family == "toy" and own.check == "noise"
    path.write_text("paper: []")
    assert claims.read(path) == []


@pytest.mark.parametrize(
    ("ledgers", "expected"),
    [
        ({"papers": []}, "papers"),
        ({"paper": [PAPER | {"check": "gap"}]}, "check"),
        ({"paper": [PAPER | {"basis": "x"}]}, "basis"),
        ({"own": [OWN | {"quote": "x"}]}, "quote"),
        ({"paper": [{k: v for k, v in PAPER.items() if k != "quote"}]}, "paper.0.quote"),
        ({"paper": [PAPER | {"quote": ""}]}, "paper.0.quote"),
        ({"paper": [PAPER | {"source": "hearsay"}]}, "'second-hand'"),
        ({"paper": [PAPER | {"readings": [{"rivals": []}]}]}, "readings.0.choice: is missing"),
        ({"paper": [PAPER | {"arithmetic": "yes"}]}, "arithmetic: got 'yes'"),
        ({"departures": [DEPARTURE | {"claims": ["guess"]}]}, "sign: claims: got 'guess'"),
        ({"paper": [PAPER | {"judged_from": "never"}]}, "judged_from"),
        ({"paper": [PAPER | {"id": "gap"}]}, "paper.0.id"),
        ({"paper": [PAPER | {"id": "other.gap"}]}, "got 'other.gap'; expected one that begins toy"),
        ({"paper": [PAPER | {"id": "toy.guess"}]}, "toy.guess: no check of this name"),
        ({"paper": [PAPER | {"shown": "figure9"}]}, "shown: got 'figure9'; no such figure"),
        ({"paper": [PAPER, PAPER | {}]}, "two claims have the id 'toy.gap'"),
        ({"paper": [PAPER], "own": [OWN | {"id": "toy.gap"}]}, "two claims have the id 'toy.gap'"),
    ],
)
def test_what_is_wrong_in_a_file_of_claims_is_named(toy, ledgers, expected):
    path = toy(**ledgers)
    with pytest.raises(InputError) as error:
        claims.read(path)
    assert str(path) in str(error.value)
    assert expected in str(error.value)


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(InputError, match=r"toy\.yaml: no such file; expected claims such as"):
        claims.read(tmp_path / "toy.yaml")


def test_a_doubled_key_is_refused_as_in_a_scale_file(toy):
    path = toy([PAPER])
    path.write_text(path.read_text().replace("source: text", "source: text\n  source: second-hand"))
    with pytest.raises(InputError, match="'source' stands twice") as error:
        claims.read(path)
    assert str(path) in str(error.value)


def test_a_departure_of_the_code_is_a_reading_of_every_claim_that_stands_on_it(toy):
    (claim,) = claims.read(toy([PAPER], departures=[DEPARTURE]))
    assert [one.choice for one in claim.readings] == ["It subtracts. The text: It adds."]
    assert claims.verdict(claim, EVIDENCE[Outcome.AGREES, True], LAPTOP) == (
        "confirmed under a reading"
    )


MARKER = re.compile(r"^\s*# Departure (\w+)\.(\w+): ", re.MULTILINE)


def test_every_departure_is_marked_in_the_code_and_named_in_its_rows():
    """A marker stands at each place of the code that departs from a paper's text."""
    source = Path(papers.__file__).parents[1]
    marked = {
        found
        for folder in ("adversaries", "papers")
        for path in (source / folder).rglob("*.py")
        for found in MARKER.findall(path.read_text(encoding="utf-8"))
    }
    named = {
        (path.stem, one["id"])
        for path in CLAIMS.glob("*.yaml")
        for one in yaml.safe_load(path.read_text(encoding="utf-8")).get("departures", ())
    }
    assert marked == named


NUMBERED = {
    "worst_case_init": {
        **{"Definition": 1, "Theorem": 1, "Equation": 2, "Algorithm": 2, "Figure": 7, "Table": 3},
    },
    "linear_heuristic": {
        **{"Theorem": 1, "Equation": 8, "Algorithm": 4, "Figure": 6, "Table": 1},
    },
    "encoding_loss": {"Definition": 3, "Theorem": 1, "Algorithm": 2, "Figure": 2},
    "cyclic_bounds": {
        **{"Algorithm": 1, "Proposition": 3, "Lemma": 10, "Theorem": 3, "Corollary": 2},
        **{"Equation": 28, "Table": 1},
    },
    "gradient_crafting": {"Implication": 3, "Remark": 2, "Algorithm": 2, "Figure": 3},
}
"""What each text at hand numbers, counted in it; of gradient_crafting what its reviews name."""


def singles_of(item):
    """What an entry names, one by one: "Equations 25 to 27" are three."""
    kind, first, *last = item.split()
    if not last:
        return [item]
    return [f"{kind.removesuffix('s')} {i}" for i in range(int(first), int(last[1]) + 1)]


ABOUT = {
    ("linear_heuristic", "Equation 4"): {"full_batch"},
    ("gradient_crafting", "Figure 3"): {"five_is_tight", "seldom_inserted", "less_frequent"},
}
"""Items whose sentences are known by their places in a text."""


@pytest.mark.parametrize(("name", "item"), ABOUT)
def test_an_item_has_the_rows_of_its_place(name, item):
    content = yaml.safe_load((CLAIMS / f"{name}.yaml").read_text(encoding="utf-8"))
    (rows,) = (one.get("rows", ()) for one in content["items"] if one["item"] == item)
    assert set(rows) == ABOUT[name, item]


@pytest.mark.parametrize("name", NUMBERED)
def test_every_numbered_item_of_a_text_has_a_row_or_a_reason(name):
    content = yaml.safe_load((CLAIMS / f"{name}.yaml").read_text(encoding="utf-8"))
    items = content["items"]
    singles = [single for one in items for single in singles_of(one["item"])]
    kinds = [single.split()[0] for single in singles]
    assert {kind: kinds.count(kind) for kind in kinds} == NUMBERED[name]
    assert len(set(singles)) == len(singles)
    equations = NUMBERED[name].get("Equation", 0)
    assert {f"Equation {i}" for i in range(1, equations + 1)} <= set(singles)
    checks = {entry["id"].split(".")[1] for entry in content["paper"]}
    for one in items:
        # One of the two, never both.
        assert bool(one.get("rows")) != bool(one.get("because")), one
        assert set(one.get("rows", ())) <= checks, one


QUALIFIED = {
    "encoding_loss.not_corrupted": "closest power of 10 above",
    "linear_heuristic.not_monotone": "are kept constant",
    "linear_heuristic.extremes_tight": "alpha in {0, 1}",
    "linear_heuristic.theorem_1": "are linear",
    "linear_heuristic.figure3_below": "based on the underlying assumptions",
    "linear_heuristic.figure3_few_steps": "with adversarial datasets",
    "linear_heuristic.figure4_blank": "promising results with both",
    "linear_heuristic.figure4_tighter": "in contrast to findings from prior work",
    "worst_case_init.records": "depends on the dataset itself",
    "worst_case_init.few_models": "0.00, 0.54, 2.33, 6.70",
    "worst_case_init.thresholds": "we follow common practice",
    "gradient_crafting.landscape_only": "is not inserted at every step",
    "gradient_crafting.outperforms": "Our experiments show",
}
"""A clause of the sentence that says when or of what it is meant."""


@pytest.mark.parametrize("name", QUALIFIED)
def test_a_quote_keeps_the_clause_that_qualifies_it(name):
    (claim,) = [one for one in claims.read(CLAIMS) if one.id == name]
    assert QUALIFIED[name] in " ".join(claim.quote.split())


def test_readings_belong_to_their_row():
    """What several rows share is a departure of the code, which names them."""
    written = [
        " ".join(reading["choice"].split())
        for path in CLAIMS.glob("*.yaml")
        for entry in yaml.safe_load(path.read_text(encoding="utf-8")).get("paper", ())
        for reading in entry.get("readings", ())
    ]
    few = {one for one in written if written.count(one) > 3}
    assert not few


EVIDENCE = {
    (Outcome.AGREES, True): Evidence([Within("x", Exact(0.0), high=1)]),
    (Outcome.AGREES, False): Evidence([Within("x", Estimate(0.0, 0.1), high=1)]),
    (Outcome.CONTRADICTS, True): Evidence([Within("x", Exact(2.0), high=1)]),
    (Outcome.CONTRADICTS, False): Evidence([Within("x", Estimate(2.0, 0.1), high=1)]),
    (Outcome.UNDECIDED, True): Evidence([Within("x", Exact(1.0, accuracy=0.1), high=1)]),
    (Outcome.UNDECIDED, False): Evidence([Within("x", Estimate(1.0, 0.1), high=1)]),
}
SENTENCES = {
    # at the paper's own parameters, nothing of ours in it, outcome, exact
    (True, True, Outcome.AGREES, True): "confirmed",
    (True, True, Outcome.AGREES, False): "confirmed under a reading",
    (True, False, Outcome.AGREES, True): "confirmed under a reading",
    (True, False, Outcome.AGREES, False): "confirmed under a reading",
    (True, True, Outcome.CONTRADICTS, True): "refuted",
    (True, True, Outcome.CONTRADICTS, False): "differs under our reading",
    (True, False, Outcome.CONTRADICTS, True): "differs under our reading",
    (True, False, Outcome.CONTRADICTS, False): "differs under our reading",
    (False, True, Outcome.AGREES, True): "agrees at reduced scale",
    (False, True, Outcome.AGREES, False): "agrees at reduced scale",
    (False, False, Outcome.AGREES, True): "agrees at reduced scale",
    (False, False, Outcome.AGREES, False): "agrees at reduced scale",
    (False, True, Outcome.CONTRADICTS, True): "differs at reduced scale",
    (False, True, Outcome.CONTRADICTS, False): "differs at reduced scale",
    (False, False, Outcome.CONTRADICTS, True): "differs at reduced scale",
    (False, False, Outcome.CONTRADICTS, False): "differs at reduced scale",
}
ORDER = {"smoke": 0, "laptop": 1, "paper": 2, "never": 3}


def test_the_made_up_evidence_is_what_it_is_called():
    for (outcome, exact), evidence in EVIDENCE.items():
        assert evidence.outcome == outcome
        assert evidence.exact == exact


@pytest.mark.parametrize("judged_from", claims.SCALES)
@pytest.mark.parametrize("own_from", [*claims.SCALES, "never"])
def test_the_verdict_on_a_sentence_follows_from_its_source_and_its_evidence(judged_from, own_from):
    choice = (Reading(choice="delta"),)
    for scale, source, readings in itertools.product(
        claims.SCALES, ("text", "second-hand", "reconstructed"), ((), choice)
    ):
        given = {"source": source, "readings": readings, "own_parameters_from": own_from}
        claim = PaperClaim(**PAPER | given | {"judged_from": judged_from})
        assert claims.verdict(claim, None, Level(scale, scale)) == "not judged"
        for (outcome, exact), evidence in EVIDENCE.items():
            key = ORDER[scale] >= ORDER[own_from], source == "text" and not readings, outcome, exact
            expected = SENTENCES.get(key, "undecided")
            if ORDER[scale] < ORDER[judged_from]:
                expected = "not judged"
            assert claims.verdict(claim, evidence, Level(scale, scale)) == expected, (
                scale,
                source,
                readings,
            )


@pytest.mark.parametrize("outcome", ["agrees", "contradicts"])
def test_a_rival_with_another_outcome_makes_the_verdict_depend_on_the_reading(outcome):
    """Unless charity sets it aside; given by the function, whatever the rest says."""
    evidence = EVIDENCE[Outcome(outcome), True]

    def said(verdict, aside=""):
        rival = {"choice": "delta 1e-6", "verdict": verdict, "aside": aside}
        readings = [{"choice": "delta 1e-5", "rivals": [rival]}]
        return claims.verdict(PaperClaim(**PAPER | {"readings": readings}), evidence, LAPTOP)

    alone = {"agrees": "confirmed under a reading", "contradicts": "differs under our reading"}
    for verdict in ("agrees", "contradicts", "undecided"):
        other = verdict != outcome
        assert said(verdict) == ("depends on the reading" if other else alone[outcome])
        assert said(verdict, "existence") == said(verdict, "own numbers") == alone[outcome]
    reading = {"choice": "x", "rivals": [{"choice": "y", "verdict": "agrees"}]}
    claim = PaperClaim(**PAPER | {"readings": [reading]})
    assert claims.verdict(claim, EVIDENCE[Outcome.UNDECIDED, True], LAPTOP) == "undecided"


def test_printed_parameters_that_do_not_give_the_printed_number_have_a_verdict_of_their_own():
    """A typo is no refutation: only exact numbers at the paper's own parameters can say so."""
    claim = PaperClaim(**PAPER | {"arithmetic": True})
    for (outcome, exact), expected in {
        (Outcome.CONTRADICTS, True): "printed numbers do not fit",
        (Outcome.CONTRADICTS, False): "differs under our reading",
        (Outcome.AGREES, True): "confirmed",
    }.items():
        assert claims.verdict(claim, EVIDENCE[outcome, exact], LAPTOP) == expected


def test_the_verdict_on_a_statement_of_our_own_follows_from_its_evidence():
    claim = OwnStatement(**OWN | {"judged_from": "laptop"})
    words = {Outcome.AGREES: "holds", Outcome.CONTRADICTS: "fails"}
    for (outcome, _), evidence in EVIDENCE.items():
        assert claims.verdict(claim, evidence, Level("paper", None)) == words.get(
            outcome, "undecided"
        )
        assert claims.verdict(claim, evidence, Level("smoke", None)) == "not judged"
    assert claims.verdict(claim, None, Level("paper", None)) == "not judged"


@pytest.mark.parametrize("size", claims.SCALES)
def test_other_parameters_than_a_release_s_are_never_the_paper_s_own(size):
    evidence = EVIDENCE[Outcome.AGREES, True]
    for judged_from, own_from in itertools.product(claims.SCALES, [*claims.SCALES, "never"]):
        given = {"judged_from": judged_from, "own_parameters_from": own_from}
        found = claims.verdict(PaperClaim(**PAPER | given), evidence, Level(size, None))
        judged = ORDER[size] >= ORDER[judged_from]
        assert found == ("agrees at reduced scale" if judged else "not judged")


def test_every_verdict_belongs_to_one_group_and_to_a_ledger():
    grouped = [verdict for group in claims.GROUPS.values() for verdict in group]
    assert sorted(grouped) == sorted(Verdict)
    assert set(claims.LEDGERS["paper"]) | set(claims.LEDGERS["own"]) == set(Verdict)
    others = {"undecided", "not judged", "depends on the reading", "printed numbers do not fit"}
    assert set(SENTENCES.values()) | others == set(claims.LEDGERS["paper"])


FRAME = pd.DataFrame({"value": [0.5], "grid": "toy at own"})


def test_a_check_that_raises_is_named_and_the_others_are_judged(toy):
    stated = claims.read(toy([PAPER], [OWN]))
    for level in (Level("smoke", "smoke"), Level("paper", "paper"), Level("paper", None)):
        gap, noise = claims.judge(stated, FRAME, level).to_dict("records")
        assert gap["verdict"] in ("confirmed", "agrees at reduced scale")
        assert gap["problem"] == ""
        assert noise["verdict"] == "not judged"
        assert noise["problem"] == "ZeroDivisionError: no noise"


def test_a_check_whose_evidence_cannot_be_judged_is_named_and_the_others_are_judged(toy):
    """A share of no trials ended the job of a whole family with a traceback."""

    def noise(estimates):
        yield Within("share", Share(0, 0), high=1)
        return "A share of nothing."

    stated = claims.read(toy([PAPER], [OWN]))
    papers.load("toy").checks["noise"] = check(noise)
    gap, noise = claims.judge(stated, FRAME, LAPTOP).to_dict("records")
    assert (gap["verdict"], gap["problem"]) == ("confirmed", "")
    assert (noise["verdict"], noise["evidence"]) == ("not judged", "[]")
    assert noise["problem"] == "ZeroDivisionError: division by zero"


TRIED = {"choice": "delta 1e-6", "verdict": "agrees", "aside": ""}


def test_a_row_holds_all_that_a_page_says_of_a_claim(toy):
    readings = [{"choice": "delta 1e-5", "rivals": [TRIED]}]
    entry = PAPER | {"readings": readings, "shown": "curve", "remark": "Why.", "cost": "An hour."}
    (row,) = claims.judge(claims.read(toy([entry])), FRAME, LAPTOP).to_dict("records")
    assert list(row) == claims.COLUMNS
    for key in ("id", "statement", "quote", "place", "version", "source", "shown"):
        assert row[key] == entry[key]
    assert row["ledger"] == "paper" and row["parameters"] == "paper"
    assert row["verdict"] == "confirmed under a reading"
    assert json.loads(row["readings"]) == readings
    assert (row["measured"], row["remark"], row["grid"]) == ("The gap.", "Why.", "toy at own")
    (item,) = json.loads(row["evidence"])
    assert (item["what"], item["measured"], item["outcome"]) == ("gap", 0.5, "agrees")
    # At a lower scale: reduced, and what is missing says what it would cost.
    (row,) = claims.judge(claims.read(toy([entry])), FRAME, Level("smoke", "smoke")).to_dict(
        "records"
    )
    assert row["parameters"] == "reduced"
    (row,) = claims.judge(claims.read(toy([entry])), FRAME[:0], Level("paper", "paper")).to_dict(
        "records"
    )
    assert row["verdict"] == "not judged"
    assert row["remark"] == "Why. An hour."
    assert json.loads(row["evidence"]) == []


def test_below_its_scale_a_claim_has_no_verdict_and_no_evidence(toy):
    stated = claims.read(toy([PAPER | {"judged_from": "paper"}]))
    (row,) = claims.judge(stated, FRAME, LAPTOP).to_dict("records")
    assert (row["verdict"], row["measured"], row["evidence"]) == ("not judged", "", "[]")


def test_a_family_of_its_own_module_is_judged_by_the_function_of_the_claim_s_name(monkeypatch):
    """As papers register their checks, without the stand-in of the tests above."""
    agreeing = EVIDENCE[Outcome.AGREES, True]

    def gap(estimates):
        yield from agreeing.items
        return agreeing.note

    module = ModuleType("checks")
    module.gap = check(gap)
    family = papers.load("encoding_loss")
    changed = dataclasses.replace(family, modules=(module,))
    monkeypatch.setattr(papers, "load", lambda name: changed)
    claim = PaperClaim(**PAPER | {"id": "encoding_loss.gap"})
    (row,) = claims.judge([claim], FRAME, LAPTOP).to_dict("records")
    assert row["verdict"] == "confirmed"


def test_a_paper_without_a_claim_has_verdicts_of_no_rows():
    assert list(claims.judge([], FRAME, "own")) == claims.COLUMNS
