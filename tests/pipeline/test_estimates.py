import pandas as pd

from hiddenstate.pipeline.estimates import select

ROWS = pd.DataFrame({"cell": ["a", "b", None], "x": [1, 2, 2]})


def test_rows_are_selected_by_a_value_any_of_several_or_an_empty_field():
    assert select(ROWS, x=2).index.tolist() == [1, 2]
    assert select(ROWS, x=[1, 2], cell="a").index.tolist() == [0]
    assert select(ROWS, cell=None).index.tolist() == [2]
    assert select(ROWS, x=3).empty
