"""The notebooks of the documentation: executed, they say what they were committed with.

Where what is said was meant to change: ``jupyter nbconvert --execute --inplace
--ExecutePreprocessor.record_timing=False docs/notebooks/*.ipynb``. What the pictures show goes into
their metadata again, as ``{"image/png": {"alt": ...}}``.
"""

import re
from pathlib import Path

import pytest

nbformat = pytest.importorskip("nbformat")
nbclient = pytest.importorskip("nbclient")
pytest.importorskip("ipykernel")

NOTEBOOKS = sorted((Path(__file__).parents[2] / "docs/notebooks").glob("*.ipynb"))


def said(notebook):
    """What each code cell printed; a check tells times, which differ."""
    for cell in notebook.cells:
        texts = [out["text"] for out in cell.get("outputs", []) if out["output_type"] == "stream"]
        yield re.sub(r"takes .*", "takes a while", "".join(texts).replace("\r\n", "\n"))


def pictures(notebook):
    shown = [out for cell in notebook.cells for out in cell.get("outputs", []) if "data" in out]
    return [sorted(out["data"]) for out in shown]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "path",
    NOTEBOOKS,
    ids=lambda path: path.stem,
)
def test_a_notebook_says_what_it_was_committed_with(path, tmp_path):
    pytest.importorskip("opacus")
    committed, executed = (nbformat.read(path, as_version=4) for _ in range(2))
    where = {"metadata": {"path": tmp_path}}
    nbclient.NotebookClient(executed, timeout=600, kernel_name="python3", resources=where).execute()
    assert list(said(executed)) == list(said(committed))
    assert pictures(executed) == pictures(committed)
    assert any("image/png" in kinds for kinds in pictures(committed))


def test_its_first_numbers_are_those_that_it_was_committed_with(capsys):
    cells = nbformat.read(NOTEBOOKS[1], as_version=4).cells
    setting, numbers = [cell for cell in cells if cell.cell_type == "code"][:2]
    exec(f"{setting.source}\n{numbers.source}", {})
    assert capsys.readouterr().out == numbers.outputs[0].text


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_says_how_to_run_it_and_what_its_pictures_show(path):
    cells = nbformat.read(path, as_version=4).cells
    assert f"({path.name})" in cells[0].source and f"jupyter lab {path.name}" in cells[0].source
    outputs = [out for cell in cells for out in cell.get("outputs", []) if "data" in out]
    shown = [out["metadata"] for out in outputs if "image/png" in out["data"]]
    seen = [metadata.get("image/png", {}).get("alt", "") for metadata in shown]
    told = f'{path}: put {{"image/png": {{"alt": ...}}}} into the metadata of each picture'
    assert seen and all(len(one.split()) > 8 for one in seen), told


def test_there_are_two():
    assert [path.stem for path in NOTEBOOKS] == ["audit-opacus", "hiding-the-iterates"]
