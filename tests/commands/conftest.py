import pytest
from command_line import TINY


@pytest.fixture
def tiny(tmp_path, monkeypatch):
    """A directory with a scale file, where commands write."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny.yaml").write_text(TINY)
    return tmp_path
