import pandas as pd

from hiddenstate.estimates import cells_selected, select

ROWS = pd.DataFrame({"cell": ["a", "b", None], "x": [1, 2, 2]})
STATED = pd.DataFrame({"x": [1, 2]})  # what a paper states comes from no cell


def test_the_cells_of_selected_rows_are_noted_within_the_block_alone():
    with cells_selected() as cells:
        assert len(select(ROWS, x=2)) == 2
        assert len(select(STATED, x=1)) == 1
    select(ROWS, x=1)
    assert cells == {"b"}
