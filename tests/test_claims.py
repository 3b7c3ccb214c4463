import dataclasses
from pathlib import Path
from types import ModuleType

import pandas as pd
import pytest
import yaml

from hiddenstate import claims, papers
from hiddenstate.errors import InputError
from hiddenstate.estimates import select
from hiddenstate.family import Measurement, check, furthest

CLAIMS = Path(__file__).parents[1] / "workflow/config/claims.yaml"


def test_the_shipped_claims_are_valid_and_every_check_is_used():
    shipped = claims.read(CLAIMS)
    for name in papers.names():
        used = {claim.check for claim in shipped if claim.family == name}
        assert used == set(papers.load(name).checks), name
    assert all(claim.shown for claim in shipped)


def test_an_unknown_check_and_an_unknown_key_are_refused(tmp_path):
    entry = yaml.safe_load(CLAIMS.read_text())[0]
    path = tmp_path / "claims.yaml"
    path.write_text(yaml.safe_dump([entry | {"check": "guess"}]))
    with pytest.raises(InputError, match="'guess'"):
        claims.read(path)
    path.write_text(yaml.safe_dump([entry | {"cheque": "x"}]))
    with pytest.raises(InputError, match="cheque"):
        claims.read(path)
    path.write_text(yaml.safe_dump([entry | {"shown": "figure9"}]))
    with pytest.raises(InputError, match="shown: got 'figure9'; no such figure or table"):
        claims.read(path)
    path.write_text(yaml.safe_dump([entry, entry]))
    with pytest.raises(InputError, match="share an id"):
        claims.read(path)


def test_a_claim_is_not_judged_below_its_scale():
    claim = claims.read(CLAIMS)[0]
    verdicts = claims.judge([claim], {claim.family: pd.DataFrame()}, "smoke")
    assert verdicts["verdict"].tolist() == ["not judged at this scale"]


def test_a_claim_whose_cells_a_scale_lacks_is_not_judged(monkeypatch):
    claim = claims.read(CLAIMS)[0]
    family, asked = papers.load(claim.family), []
    found = Measurement("4.2", "at least 4", True, -1.25)
    for answer, verdict in (
        (None, "not judged at this scale"),
        (found, "reproduced"),
        (dataclasses.replace(found, holds=False), "not reproduced"),
    ):
        module = ModuleType("checks")
        measure = check(lambda estimates, answer=answer: asked.append(estimates) or answer)
        setattr(module, claim.check, measure)
        changed = dataclasses.replace(family, modules=(*family.modules, module))
        monkeypatch.setattr(papers, "load", lambda name, changed=changed: changed)
        estimates = pd.DataFrame({"value": [1.0]})
        (row,) = claims.judge([claim], {claim.family: estimates}, "paper").to_dict("records")
        assert asked.pop() is estimates
        assert row["verdict"] == verdict
        assert row["measured"] == ("4.2" if answer else "")
        assert row["tolerance"] == ("at least 4" if answer else "")
        assert row["deviation"] == (-1.25 if answer else None)


def test_a_verdict_names_the_cells_that_were_read_for_it(tmp_path, monkeypatch):
    @check
    def measure(estimates):
        rows = select(estimates, quantity="a")
        assert len(select(rows, cell="x")) == 1
        return Measurement("1", "1", True)

    claim = claims.read(CLAIMS)[0]
    module = ModuleType("checks")
    setattr(module, claim.check, measure)
    family = papers.load(claim.family)
    changed = dataclasses.replace(family, modules=(*family.modules, module))
    monkeypatch.setattr(papers, "load", lambda name: changed)
    frame = pd.DataFrame({"quantity": ["a", "a", "b", "a"], "cell": ["y", "x", "z", None]})
    verdicts = claims.judge([claim], {claim.family: frame}, "paper")
    assert verdicts["cells"].tolist() == ["x; y"]
    assert claims.judge([claim], {claim.family: frame}, "smoke")["cells"].tolist() == [""]
    claims.write(verdicts, tmp_path / "c.csv", tmp_path / "c.md", "paper")
    assert pd.read_csv(tmp_path / "c.csv")["cells"].tolist() == ["x; y"]
    assert "x; y" not in (tmp_path / "c.md").read_text()


def test_a_paper_without_a_claim_has_verdicts_of_no_rows(tmp_path):
    frame = pd.DataFrame({"quantity": ["a"], "cell": ["x"], "value": [1.0]})
    verdicts = claims.judge([], {"toy": frame}, "own")
    claims.write(verdicts, tmp_path / "c.csv", tmp_path / "c.md", "own")
    assert pd.read_csv(tmp_path / "c.csv").columns.tolist() == claims.COLUMNS
    assert "\n0 claims.\n" in (tmp_path / "c.md").read_text()


def test_of_several_deviations_the_furthest_counts_with_its_sign():
    assert furthest([1.0, -3.0, 2.0, float("nan"), float("inf")]) == -3.0
    assert furthest([]) is None
    assert claims.signed(furthest([1.04])) == "+1.0"
    assert claims.signed(None) == ""
