"""The lock, the conda file and the container file say the same, and the metadata agrees."""

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

import hiddenstate

ROOT = Path(__file__).parents[2]
LOCK = (ROOT / "envs/requirements.lock").read_text()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def pins():
    return re.findall(r"^([a-z0-9][\w.-]*==[^ ;\\]+)", LOCK, flags=re.MULTILINE)


def test_every_pin_has_hashes_and_no_address():
    assert len(pins()) > 50
    entries = re.split(r"\n(?=[a-z0-9])", LOCK.split("\n", 2)[2])
    for entry in entries:
        assert "--hash=sha256:" in entry, entry[:60]
    assert "://" not in LOCK
    assert not re.search(r"^\s*(-i|-f|--index|--extra-index|--find-links)", LOCK, re.MULTILINE)


def test_every_requirement_is_locked():
    locked = {pin.split("==")[0].replace("_", "-").lower() for pin in pins()}
    wanted = PROJECT["project"]["dependencies"] + [
        item for extra in PROJECT["project"]["optional-dependencies"].values() for item in extra
    ]
    names = {re.match(r"[\w-]+", item).group().lower() for item in wanted}
    assert names <= locked, names - locked


def test_torch_and_torchvision_are_the_tested_pair():
    assert {"torch==2.14.1", "torchvision==0.29.1"} <= set(pins())


def test_conda_has_the_same_pins():
    environment = yaml.safe_load((ROOT / "envs/hiddenstate.yaml").read_text())
    (pip,) = [item["pip"] for item in environment["dependencies"] if isinstance(item, dict)]
    assert pip == pins(), "run envs/lock"


def test_the_container_installs_the_lock_with_hashes_on_a_supported_python():
    container = (ROOT / "envs/Containerfile").read_text()
    assert "--require-hashes -r envs/requirements.lock" in container
    assert re.search(r"^FROM \S+/python:3\.1[123]-", container, flags=re.MULTILINE)


@pytest.mark.whole
def test_the_container_writes_nowhere_but_to_its_output(tmp_path):
    """Its command, run on a tree that may only be read, from a place that is not the tree."""
    container = (ROOT / "envs/Containerfile").read_text()
    command = json.loads(re.search(r"^CMD (.+)$", container, flags=re.MULTILINE)[1])
    image, out = tmp_path / "hiddenstate", tmp_path / "out"
    # A name without a slash is one of the tree's own folder, not of those below.
    ignored = [line for line in (ROOT / ".dockerignore").read_text().split() if "/" not in line]
    skip = shutil.ignore_patterns("results", *ignored)
    shutil.copytree(
        ROOT,
        image,
        symlinks=True,
        ignore=lambda folder, names: (
            skip(folder, names) if Path(folder) == ROOT else {"__pycache__"}
        ),
    )
    cached = Path("results/cached/cyclic_bounds")
    shutil.copytree(ROOT / cached, image / cached)
    before = set(image.rglob("*"))
    out.mkdir()
    command = [
        part.replace("/hiddenstate", str(image)).replace("/out", str(out)) for part in command
    ]
    # Nobody has an entry in the list of users, as under `docker run --user 4321`.
    nameless = tmp_path / "nameless"
    nameless.mkdir()
    (nameless / "sitecustomize.py").write_text(
        "import pwd\ndef unknown(*_):\n    raise KeyError('uid not found')\n"
        "pwd.getpwuid = pwd.getpwnam = unknown\n"
    )
    own = re.search(r"^ENV ((?:.*\\\n)*.*)$", container, flags=re.MULTILINE)[1]
    told = dict(re.findall(r"(\w+)=(\S+)", own.replace("/out", str(out))))
    told |= {"PYTHONPATH": f"{nameless}:{image / 'src'}", "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [sys.executable, "-m", *command, "--dry-run"],
        cwd="/",
        env={"PATH": os.environ["PATH"]} | told,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert "restore" in done.stdout + done.stderr
    assert set(image.rglob("*")) == before
    assert (out / ".snakemake").is_dir()


def test_version_and_licence_agree_everywhere():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    version = PROJECT["project"]["version"]
    assert version == hiddenstate.__version__ == citation["version"]
    # Data sets that the package carries have licences of their own.
    assert PROJECT["project"]["license"] == " AND ".join(citation["license"])
    assert citation["license"] == ["MIT", "CC-BY-SA-3.0", "CC-BY-4.0"]
    carried = (ROOT / "src/hiddenstate/LICENSE-DATA.md").read_text()
    folder = ROOT / "src/hiddenstate/datasets"
    for path in [*folder.glob("*.csv.xz"), folder / "mnist"]:
        assert f"`{path.name}" in carried
    for file in PROJECT["project"]["license-files"]:
        assert (ROOT / file).is_file()
    assert f"## {version}" in (ROOT / "CHANGELOG.md").read_text()
