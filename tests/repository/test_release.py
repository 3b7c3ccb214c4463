"""A release that a stranger can cite: one version, one set of licences, changes for users."""

import json
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml

import hiddenstate

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
ZENODO = json.loads((ROOT / ".zenodo.json").read_text())
CITATION = yaml.safe_load((ROOT / "CITATION.cff").read_text())
CHANGES = (ROOT / "CHANGELOG.md").read_text()


def test_every_file_names_one_version():
    versions = {PROJECT["version"], CITATION["version"], ZENODO["version"]}
    assert versions == {hiddenstate.__version__}
    assert re.search(rf"^## {re.escape(hiddenstate.__version__)}", CHANGES, re.MULTILINE)


def test_every_file_names_the_same_licences():
    licences = PROJECT["license"].split(" AND ")
    assert licences[0] == ZENODO["license"] == "MIT"
    assert CITATION["license"] == licences
    assert f"Licences: {PROJECT['license']}." in ZENODO["notes"]
    data = (ROOT / "src/hiddenstate/LICENSE-DATA.md").read_text()
    for name in ("Attribution-Share Alike 3.0", "Creative Commons Attribution 4.0", "housing.csv"):
        assert name in data
    for path in ("README.md", "ARTIFACT-APPENDIX.md"):
        text = (ROOT / path).read_text()
        assert "MIT" in text and "src/hiddenstate/LICENSE-DATA.md" in text, path
    for path in PROJECT["license-files"]:
        assert (ROOT / path).is_file()


def test_the_changelog_is_short_enough_to_read():
    assert len(CHANGES.splitlines()) <= 150


@pytest.fixture
def tagged(tmp_path):
    """What .ci/run looks at for the tag of a release."""
    for name in (".ci/run", "pyproject.toml", "CITATION.cff", "CHANGELOG.md"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


@pytest.mark.parametrize(
    ("tag", "status"), [(f"v{hiddenstate.__version__}", 0), ("v9.9.9", 1), ("v0", 1), ("v0.4", 1)]
)
def test_the_tag_of_a_release_is_the_version(tagged, monkeypatch, tag, status):
    monkeypatch.setenv("GITHUB_REF_NAME", tag)
    done = subprocess.run([tagged / ".ci/run", "tag"], capture_output=True, text=True)
    assert done.returncode == status
    assert (tag in done.stderr) == bool(status)
