import re
from pathlib import Path

import pytest

DOCUMENT = Path(__file__).parents[2] / "docs" / "engine.md"


def example() -> str:
    return re.search(r"```python\n(.*?)```", DOCUMENT.read_text(), re.DOTALL).group(1)


@pytest.mark.whole
def test_the_documented_audit_runs(tmp_path, monkeypatch, capsys):
    """As documented, with 4 models per world: too few to prove much."""
    monkeypatch.chdir(tmp_path)
    code = example()
    assert "models=100" in code and "progress=True" in code
    exec(code.replace("models=100", "models=4").replace("progress=True", "progress=False"), {})
    found = re.search(r"mu >= (\d\.\d\d) at 95%; accountant: 2\.00", capsys.readouterr().out)
    assert float(found[1]) < 1
    assert list(tmp_path.glob("audit/*.npz"))


@pytest.mark.slow
def test_the_documented_audit_proves_much_and_not_too_much(tmp_path, monkeypatch):
    """In full. A bound above the accountant's is a bug (in 5 % of seeds at most; this is one)."""
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    exec(example(), names)
    assert 1 < names["bound"].value <= names["exact"]
