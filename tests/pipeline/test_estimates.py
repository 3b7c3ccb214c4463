import pandas as pd
import pytest

from hiddenstate.pipeline import estimates
from hiddenstate.pipeline.estimates import select

ROWS = pd.DataFrame({"cell": ["a", "b", None], "x": [1, 2, 2]})


def test_rows_are_selected_by_a_value_any_of_several_or_an_empty_field():
    assert select(ROWS, x=2).index.tolist() == [1, 2]
    assert select(ROWS, x=[1, 2], cell="a").index.tolist() == [0]
    assert select(ROWS, cell=None).index.tolist() == [2]
    assert select(ROWS, x=3).empty


def test_an_expected_audit_is_written_without_a_confidence_or_not_at_all(tmp_path):
    row = {"quantity": "separation", "cell": "a", "method": "pairs", "kind": "expected", "value": 1}
    estimates.write(tmp_path / "e.csv", pd.DataFrame([row]), "grid")
    assert estimates.read(tmp_path / "e.csv", "grid")["kind"].tolist() == ["expected"]
    for kind, written in (("lower", True), ("expected", False)):
        claimed = pd.DataFrame([row | {"kind": kind, "confidence": 0.95}])
        if written:
            estimates.write(tmp_path / "e.csv", claimed, "grid")
            continue
        with pytest.raises(ValueError, match="expected audits bound nothing"):
            estimates.write(tmp_path / "e.csv", claimed, "grid")
