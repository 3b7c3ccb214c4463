"""What a visitor finds beside the code: it parses, and says the same everywhere."""

import json
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))
CHECKS = re.findall(r"^check_(\w+)\(\)", (ROOT / ".ci/run").read_text(), flags=re.MULTILINE)


def jobs(path):
    return yaml.safe_load(path.read_text())["jobs"].values()


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_server_runs_what_anyone_can_run(path):
    for job in jobs(path):
        commands = [step["run"] for step in job["steps"] if "run" in step]
        own = [command for command in commands if ".ci/run" in command]
        # A release, and its image, are all that is done beside.
        beside = [command for command in commands if command not in own]
        assert own and all(c.startswith(("gh release", "docker login")) for c in beside)
        for command in own:
            named = command.partition(".ci/run ")[2]
            if "matrix" in named:
                named = " ".join(job["strategy"]["matrix"]["check"])
            assert set(named.split()) <= set(CHECKS)


CONTAINED = {"smoke", "docs"}
"""Checks of which the tests do as much."""


def test_a_server_runs_every_check_once_and_the_fast_tests_on_every_python():
    (fast, run) = jobs(ROOT / ".github/workflows/check.yml")
    assert fast["steps"][-1]["run"].endswith(".ci/run fast")
    # A release alone has a tag.
    assert {"fast", "tag", *CONTAINED, *run["strategy"]["matrix"]["check"]} == set(CHECKS)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = [c.rpartition(" ")[2] for c in project["classifiers"] if "Python ::" in c]
    assert fast["strategy"]["matrix"]["python"] == named


def test_an_unknown_check_is_refused():
    done = subprocess.run([ROOT / ".ci/run", "tset"], capture_output=True, text=True)
    assert done.returncode == 2
    assert f"usage: .ci/run [{'|'.join(CHECKS)}]" in done.stderr


def test_a_commit_is_checked_as_the_tests_check():
    (repository,) = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    for hook in repository["hooks"]:
        program = hook["entry"].split()[0]
        assert program.startswith(".venv/bin/") and hook["language"] == "system"
        assert shutil.which(program.rpartition("/")[2], path=Path(sys.executable).parent)


def test_issues_ask_for_what_is_needed():
    for path in (ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml"):
        form = yaml.safe_load(path.read_text())
        assert form["name"] and form["description"]
        ids = [part["id"] for part in form["body"]]
        assert len(set(ids)) == len(ids)
        assert any(part.get("validations", {}).get("required") for part in form["body"])


def test_an_archive_is_described_as_the_citation_is():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    archive = json.loads((ROOT / ".zenodo.json").read_text())
    assert archive["title"] == citation["title"]
    assert archive["description"] == citation["abstract"].strip()
    assert archive["keywords"] == citation["keywords"]
    assert archive["creators"] == [{"name": one["name"]} for one in citation["authors"]]
    papers = {re.search(r"arXiv (\d+\.\d+)", one["notes"])[1] for one in citation["references"]}
    assert {one["identifier"] for one in archive["related_identifiers"]} == {
        f"arXiv:{paper}" for paper in papers
    }


@pytest.mark.whole
def test_distributions_hold_what_they_need_and_no_test_that_cannot_run(tmp_path):
    tree = tmp_path / "tree"
    for name in ("src", "LICENSE", "README.md", "CHANGELOG.md", "CITATION.cff", "MANIFEST.in"):
        source = ROOT / name
        ignore = shutil.ignore_patterns("__pycache__", "*.egg-info")
        if source.is_dir():
            shutil.copytree(source, tree / name, ignore=ignore)
        else:
            shutil.copy(source, tree / name)
    shutil.copy(ROOT / "pyproject.toml", tree)
    (tree / "tests").mkdir()
    shutil.copy(__file__, tree / "tests")
    build = "from setuptools import build_meta as b; b.build_sdist('d'); b.build_wheel('d')"
    subprocess.run([sys.executable, "-c", build], cwd=tree, check=True, capture_output=True)
    (source,), (wheel,) = (tree / "d").glob("*.tar.gz"), (tree / "d").glob("*.whl")
    with tarfile.open(source) as opened:
        held = {name.partition("/")[2] for name in opened.getnames()}
    assert {"CHANGELOG.md", "CITATION.cff", "src/hiddenstate/cli.py"} <= held
    assert not any(name.startswith("tests") for name in held)
    with zipfile.ZipFile(wheel) as opened:
        held = set(opened.namelist())
    source = ROOT / "src"
    needed = [p for p in source.rglob("*") if p.is_file() and "__pycache__" not in p.parts]
    needed = {str(p.relative_to(source)) for p in needed if "egg-info" not in str(p)}
    assert needed <= held
