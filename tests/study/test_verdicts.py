"""Verdicts as files and pages: written, read, counted, compared, published."""

import json
import re
from pathlib import Path

import pandas as pd
import pytest

from hiddenstate import cli
from hiddenstate.errors import InputError
from hiddenstate.study import claims, config, verdicts

ROOT = Path(__file__).parents[2]


def row(name, ledger, verdict, **others):
    paper = {"quote": "as |x| < 2*y_i [sigma]", "version": "version 1", "source": "text"}
    return (
        dict.fromkeys(claims.COLUMNS, "")
        | {"id": name, "ledger": ledger, "verdict": verdict, "statement": f"Statement of {name}."}
        | {"place": "Section 2", "readings": "[]", "evidence": "[]", "date": "2026-11-23"}
        | {"commit": "0123456789abcdef"}
        | (paper if ledger == "paper" else {})
        | others
    )


ROWS = [
    row("encoding_loss.a", "paper", "confirmed"),
    row("encoding_loss.b", "paper", "undecided"),
    row("encoding_loss.c", "own", "holds"),
    row("encoding_loss.d", "own", "holds"),
    row("encoding_loss.e", "own", "fails"),
    row("linear_heuristic.a", "paper", "differs at reduced scale"),
    row("linear_heuristic.b", "paper", "differs at reduced scale"),
    row("estimators.a", "own", "holds"),
]


@pytest.fixture
def found():
    return pd.DataFrame(ROWS)


def test_verdicts_come_back_as_they_were_written(tmp_path, found):
    for name in ("one", "two"):
        verdicts.write(tmp_path / name, found, "laptop")
    again = verdicts.read(tmp_path / "one/claims.csv")
    pd.testing.assert_frame_equal(again, found, check_dtype=False)
    both = verdicts.read(tmp_path / "one/claims.csv", tmp_path / "two/claims.csv")
    assert len(both) == 2 * len(found)
    nothing = found[:0]
    verdicts.write(tmp_path / "none", nothing, "own")
    assert list(verdicts.read(tmp_path / "none/claims.csv")) == claims.COLUMNS


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ("ledger", "ledgers", "lacks the columns ledger of verdicts"),
        ("refuted", "reproduced", "verdict: got 'reproduced'; expected one of confirmed"),
        # A verdict of the other ledger is none of this.
        ("refuted", "fails", "verdict: got 'fails'; expected one of confirmed"),
    ],
)
def test_a_file_of_something_else_is_refused(tmp_path, before, after, expected):
    verdicts.write(tmp_path, pd.DataFrame([row("encoding_loss.a", "paper", "refuted")]), "laptop")
    path = tmp_path / "claims.csv"
    path.write_text(path.read_text().replace(before, after, 1))
    with pytest.raises(InputError, match=re.escape(expected)) as error:
        verdicts.read(path)
    assert str(path) in str(error.value)


def test_either_ledger_is_counted_by_itself_and_nothing_adds_them(found):
    paper, own = (verdicts.counts(found, ledger) for ledger in ("paper", "own"))
    assert list(paper) == list(claims.LEDGERS["paper"])
    assert list(own) == list(claims.LEDGERS["own"])
    assert paper.to_dict("index")["encoding_loss"] == {
        **dict.fromkeys(paper, 0),
        **{"confirmed": 1, "undecided": 1},
    }
    assert own.loc["encoding_loss"].tolist() == [2, 1, 0, 0]
    assert paper.index.tolist() == ["encoding_loss", "linear_heuristic"]
    assert own.index.tolist() == ["encoding_loss", "estimators"]
    assert verdicts.lines(found) == [
        "4 sentences of the papers: 1 confirmed, 2 differ at reduced scale, 1 undecided",
        "4 statements of our own: 3 hold, 1 fails",
    ]
    assert verdicts.lines(found[:1]) == ["1 sentence of the papers: 1 confirmed"]


def test_a_check_that_failed_is_named_in_the_last_lines(found):
    broken = found.assign(problem=["", "ValueError: no rows", *[""] * 6])
    assert verdicts.lines(broken)[-1] == "CHECK FAILED encoding_loss.b: ValueError: no rows"


def test_what_is_told_to_programs_is_what_is_said(tmp_path, found, capsys):
    expected = tmp_path / "laptop.csv"
    found[["id", "verdict"]].to_csv(expected, index=False)
    assert verdicts.told(found, expected)["differing"] == []
    other = found.assign(verdict=["refuted", *found["verdict"][1:]])
    laptop = (ROOT / "workflow/config/scales/laptop.yaml").read_text()
    (tmp_path / "laptop.yaml").write_text(laptop)
    scale = str(tmp_path / "few.yaml")
    only = ", ".join({name.split(".")[0] for name in found["id"]})
    Path(scale).write_text(f"extends: laptop\nonly: [{only}]\n")
    grids = config.grid_names(scale)
    other["grid"] = [grids[name.split(".")[0]] for name in other["id"]]
    verdicts.write(tmp_path, other, "laptop")
    arguments = ["collect", str(tmp_path / "claims.csv"), "--config", scale, "--json"]
    out = ["--expected", str(expected), "--out", str(tmp_path / "all")]
    assert cli.main([*arguments, *out]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["counts"] == {
        "paper": {"refuted": 1, "differs at reduced scale": 2, "undecided": 1},
        "own": {"holds": 3, "fails": 1},
    }
    assert [row["verdict"] for row in told["verdicts"]] == list(map(str, other["verdict"]))
    (differing,) = told["differing"]
    assert differing == {"id": "encoding_loss.a", "verdict": "refuted", "expected": "confirmed"}


def test_what_differs_from_the_expectation_is_named(tmp_path, found):
    expected = tmp_path / "laptop.csv"
    found[["id", "verdict"]].to_csv(expected, index=False)
    words = verdicts.compared(found, expected)
    assert words == f"As expected: all 8 verdicts are those of {expected}."
    other = found.assign(verdict=["refuted", *found["verdict"][1:]])[:-1]
    other.loc[len(other)] = row("estimators.new", "own", "holds")
    assert verdicts.compared(other, expected).splitlines() == [
        f"NOT as expected: 3 verdicts differ from {expected}:",
        "- encoding_loss.a: refuted, expected: confirmed",
        "- estimators.a: no such claim, expected: holds",
        "- estimators.new: holds, expected: no such claim",
    ]
    # Of one family alone those of the others are not missing.
    part = found[found["id"].str.startswith("encoding_loss.")]
    assert verdicts.compared(part, expected, part=True).startswith(f"As expected: all {len(part)} ")
    assert len(verdicts.differing(part, expected)) == 8 - len(part)
    assert len(verdicts.differing(part[1:], expected, part=True)) == 1
    verdicts.write(tmp_path, other, "laptop", expected)
    assert "- encoding_loss.a: refuted, expected: confirmed" in (tmp_path / "claims.md").read_text()
    expected.write_text("id,verdicts\na,b\n")
    with pytest.raises(InputError, match=r"laptop\.csv: got the columns"):
        verdicts.compared(found, expected)


ITEM = {"what": "gap", "stated": "", "measured": 0.123456, "low": 0.1, "high": 0.2} | {
    "allowed": "at most 1",
    "outcome": "agrees",
    "turns": 0.01,
}


def test_evidence_is_a_table_of_numbers_without_empty_columns():
    exact = ITEM | {"low": 0.5, "high": 0.5, "stated": "0.5"}
    lost = ITEM | {"measured": float("nan"), "low": float("-inf"), "high": float("inf")}
    shown = verdicts.evidence(json.dumps([ITEM, exact, lost]))
    assert shown["measured"].tolist() == ["0.1235", "0.1235", ""]
    assert shown["interval"].tolist() == ["0.1 to 0.2", "exact", "unknown"]
    assert shown["stated"].tolist() == ["", "0.5", ""]
    assert "stated" not in verdicts.evidence(json.dumps([ITEM]))
    assert verdicts.interval(float("nan"), 1.0) == ""
    assert len(verdicts.evidence("[]")) == 0


def test_the_page_tells_every_claim_in_full_and_is_read_as_it_is_written(tmp_path, found):
    readings = json.dumps(
        [{"choice": "delta 1e-5", "rivals": [{"choice": "4 of 8", "verdict": "agrees"}]}]
    )
    told = {"measured": "It is |x| < 2.", "remark": "Because *so*.", "readings": readings}
    first = row("encoding_loss.a", "paper", "confirmed", evidence=json.dumps([ITEM]), **told)
    verdicts.write(tmp_path, pd.DataFrame([first, *ROWS[1:]]), "laptop")
    text = (tmp_path / "claims.md").read_text(encoding="utf-8")
    # The counts come first.
    assert text.index("## Sentences of the papers") < text.index("## Our own statements")
    assert text.index("## Our own statements") < text.index("### encoding_loss.a")
    table = text.split("## Our own statements")[0]
    assert f"| `encoding_loss` (arXiv 2407.06496) | 2 | 1 |{' 0 |' * 7} 1 | 0 |" in table
    assert "commit `0123456789ab`" in text and "2026-11-23" in text
    (block,) = [part for part in text.split("\n### ") if part.startswith("encoding_loss.a\n")]
    for words in (
        "✔ **confirmed**: Statement of encoding\\_loss.a.",
        "> as |x| &lt; 2\\*y\\_i \\[sigma\\]",
        "> Section 2; version 1; quoted from the text.",
        "Our choice: delta 1e-5 Otherwise agrees: 4 of 8",
        "Measured: It is |x| &lt; 2.",
        "| quantity | measured | interval | allowed | outcome |",
        "| gap | 0.1235 | 0.1 to 0.2 | at most 1 | ✔ agrees |",
        "Remark: Because \\*so\\*.",
    ):
        assert words in block
    assert verdicts.plain("a*b $x_i < *y*$ c_d") == "a\\*b $x_i < *y*$ c\\_d"
    assert verdicts.markdown(pd.DataFrame({"a|b": ["c\nd"]})) == "| a\\|b |\n| --- |\n| c d |"


def test_claims_that_the_guard_band_leaves_open_are_listed(tmp_path, found):
    close = row("encoding_loss.f", "own", "undecided", turns=0.25)
    inside = close | {"id": "encoding_loss.g", "turns": 0.0}
    decided = close | {"id": "encoding_loss.h", "turns": 0.04, "verdict": "holds"}
    every = pd.DataFrame([*ROWS, close, inside, decided])
    listed = verdicts.guarded(every)
    assert listed.to_numpy().tolist() == [["`encoding_loss.f`", "25%"]]
    # Of what is read again they are the same, and the page has them; where there are none, nothing.
    verdicts.write(tmp_path, every, "laptop")
    pd.testing.assert_frame_equal(verdicts.guarded(verdicts.read(tmp_path / "claims.csv")), listed)
    assert "guard band" in (tmp_path / "claims.md").read_text()
    verdicts.write(tmp_path, found, "laptop")
    assert "guard band" not in (tmp_path / "claims.md").read_text()
