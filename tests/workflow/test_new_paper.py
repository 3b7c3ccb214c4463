"""A new paper is one package, one rule file, a section of a scale and its claims."""

import os
import re
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from hiddenstate import cli
from hiddenstate.commands import new_paper

CELLS = '''
"""A record's gradient of norm 1 under one draw of noise."""
import numpy as np
import pandas as pd
from pydantic import Field
from hiddenstate.pipeline.cells import Cell, FamilyGrid, Grid
from hiddenstate.streams import stream

class ToyGrid(FamilyGrid):
    noise_multiplier: float = Field(gt=0, le=100, description="noise over the clipping norm")

class Noise(Grid):
    noise_multiplier: float

def noises(grid: ToyGrid) -> list[Cell[Noise]]:
    return [Cell("only", Noise(noise_multiplier=grid.noise_multiplier))]

def simulate(cell: Cell[Noise], seed: int) -> pd.DataFrame:
    noise = stream(seed, "toy", cell.name).normal(0, cell.parameters.noise_multiplier, 2000)
    world = np.repeat(["in", "out"], 1000)
    run = np.tile(np.arange(1000), 2)
    score = noise + (world == "in")
    return pd.DataFrame({"world": world, "repeat": 0, "run": run, "score": score})
'''
ESTIMATES = '''
"""Distance of the worlds' means."""
import pandas as pd
from hiddenstate.papers.toy import cells

def estimate(grid, scores, bounds):
    ((_, runs),) = scores.of(cells.noises)
    means = runs.groupby("world")["score"].mean()
    gap = {"quantity": "gap", "kind": "estimate", "value": means["in"] - means["out"]}
    return pd.DataFrame([gap])
'''
SHOWN = '''
"""What is shown and claimed of the gap."""
from hiddenstate import plotting
from hiddenstate.pipeline.evidence import Estimate, Within
from hiddenstate.pipeline.family import check, figure

@figure("The gap", "Distance of the means of both worlds.")
def gap(estimates):
    drawn, (ax,) = plotting.panels(1)
    ax.plot(estimates["value"], "o")
    return drawn

@check
def one(estimates):
    (found,) = estimates["value"]
    yield Within("gap", Estimate(found, 0.09), 0.5, 1.5)
    return "The gap."
'''
INIT = '''
"""A toy."""
from hiddenstate.pipeline.family import Family, Simulate
from hiddenstate.papers.toy import cells, estimates, shown

FAMILY = Family("A toy", "none", cells.ToyGrid, (Simulate(cells.noises, cells.simulate),),
                estimates.estimate, (shown,))
'''
RULES = """
module toy:
    snakefile: "family.smk"
    config: {**config, "family": "toy"}

use rule * from toy as toy_*
"""
CLAIMS = {"own": [{"id": "toy.one", "statement": "The gap is near 1.", "basis": "the mean of `in`"}
                  | {"judged_from": "smoke", "shown": "gap"}]}  # fmt: skip
FILES = {"cells": CELLS, "estimates": ESTIMATES, "shown": SHOWN, "__init__": INIT}


@pytest.mark.whole
def test_a_paper_of_fewer_than_seventy_lines_runs_end_to_end(tmp_path, checkout, snakemake):
    lines = "".join([*FILES.values(), RULES, yaml.safe_dump(CLAIMS)]).split("\n")
    assert sum(bool(line.strip()) for line in lines) < 70
    tree = checkout(tmp_path / "tree")
    package = tree / "src/hiddenstate/papers/toy"
    package.mkdir()
    for name, content in FILES.items():
        (package / f"{name}.py").write_text(content.lstrip())
    (tree / "workflow/rules/toy.smk").write_text(RULES)
    (tree / "workflow/config/claims/toy.yaml").write_text(yaml.safe_dump(CLAIMS))
    scale = {"seed": 1, "toy": {"shows": "a toy", "noise_multiplier": 2.0}}
    (tree / "workflow/config/scales/own.yaml").write_text(yaml.safe_dump(scale))
    # From another directory, where results are written.
    here = tmp_path / "elsewhere"
    here.mkdir()
    command = ("-s", str(tree / "Snakefile"), "all", "--cores", "1", "--config", "scale=own")
    environment = {"PYTHONPATH": str(tree / "src")}
    status, output = snakemake(here, *command, environment=environment)
    assert status == 0, output[-3000:]
    assert "1 statement of our own: 1 holds" in output
    for folder in ("results/own", "results/own/toy"):
        assert "✔ **holds**: The gap is near 1." in (here / folder / "claims.md").read_text()
    assert (here / "figures/own/toy/gap.pdf").read_bytes().startswith(b"%PDF")
    status, output = snakemake(here, "--list", *command, environment=environment)
    assert re.findall(r"^toy\w*", output, flags=re.MULTILINE) == [
        "toy",
        "toy_claims",
        "toy_estimate",
        "toy_figures",
        "toy_gap",
        "toy_simulate1",
    ]
    # What is stale is made again, and nothing else.
    dry = (*command, "--dry-run")
    status, output = snakemake(here, *dry, environment=environment)
    assert "Nothing to be done" in output
    for file, change, made in (
        ("shown.py", ('"o"', '"s"'), {"toy_figures", "toy_claims", "page"}),
        ("estimates.py", ('means["in"] - means', '1 * means["in"] - means'), {"toy_estimate"}),
        ("cells.py", ("score = noise", "score = 1 * noise"), {"toy_simulate1"}),
    ):
        path = package / file
        text = path.read_text()
        assert change[0] in text
        path.write_text(text.replace(*change))
        status, output = snakemake(here, *dry, environment=environment)
        path.write_text(text)
        assert status == 0, output[-3000:]
        planned = set(re.findall(r"^(\w+) +\d+$", output, flags=re.MULTILINE)) - {"total"}
        assert made <= planned, file
        if file == "shown.py":
            assert planned == made | {"collect_claims", "all"}, planned
        if file == "estimates.py":
            assert "toy_simulate1" not in planned


ROOT = Path(__file__).parents[2]


@pytest.mark.whole
def test_the_command_writes_a_paper_that_runs_as_it_is(tmp_path, checkout, snakemake, capsys):
    tree = checkout(tmp_path / "tree")
    for name in ("pyproject.toml", "tests/made_up.py", "tests/papers/test_verdicts.py"):
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tree / name)
    shutil.copytree(ROOT / "tests/papers/made_up", tree / "tests/papers/made_up")
    words = ["new-paper", "toy_audits", "--title", "Toy audits", "--tree", str(tree)]
    assert cli.main(words) == 0
    assert "./reproduce toy_audits --config scale=smoke" in capsys.readouterr().out
    environment = {"PYTHONPATH": str(tree / "src")}
    status, output = snakemake(
        tree, "toy_audits", "--cores", "1", "--config", "scale=smoke", environment=environment
    )
    assert status == 0, output[-3000:]
    assert "1 statement of our own: 1 holds" in output
    assert (tree / "figures/smoke/toy_audits/epsilon.pdf").read_bytes().startswith(b"%PDF")
    written = [
        "src/hiddenstate/papers/toy_audits",
        "tests/papers/test_toy_audits.py",
        "tests/papers/made_up/toy_audits.py",
    ]
    for command in (
        ["ruff", "check", *written],
        ["ruff", "format", "--check", *written],
        ["snakefmt", "--check", "workflow/rules/toy_audits.smk"],
        ["pytest", "-p", "no:cacheprovider", "-k", "toy_audits", "tests/papers"],
    ):
        done = subprocess.run(
            [sys.executable, "-m", *command],
            cwd=tree,
            env=os.environ | environment,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, (command, done.stdout[-3000:], done.stderr[-2000:])
    # Not a second time.
    assert cli.main(words) == 2
    assert "expected a name that no family has" in capsys.readouterr().err


@pytest.mark.whole
def test_a_family_that_does_not_load_leaves_nothing_behind(tmp_path, checkout, capsys, monkeypatch):
    """The tree of the folder is taken; what was written before the failure goes again."""
    tree = checkout(tmp_path / "tree")
    shutil.copytree(ROOT / "tests/papers/made_up", tree / "tests/papers/made_up")
    before = {path: path.read_bytes() for path in tree.rglob("*") if path.is_file()}
    monkeypatch.chdir(tree)
    broken = {"checks.py": "import nonesuch\n"}
    filled = new_paper._filled
    monkeypatch.setattr(new_paper, "_filled", lambda part, w: broken.get(part) or filled(part, w))
    assert cli.main(["new-paper", "toy_audits"]) == 2
    err = capsys.readouterr().err
    assert "nothing was written: the new family does not load" in err and "nonesuch" in err
    after = {path: path.read_bytes() for path in tree.rglob("*") if path.is_file()}
    assert {p: c for p, c in after.items() if "__pycache__" not in p.parts} == {
        p: c for p, c in before.items() if "__pycache__" not in p.parts
    }
    # The skeleton needs no torch before it trains.
    monkeypatch.setattr(new_paper, "_filled", filled)
    assert cli.main(["new-paper", "toy_audits"]) == 0
    code = "import sys; from hiddenstate import papers; papers.load('toy_audits')"
    done = subprocess.run(
        [sys.executable, "-c", f"{code}; sys.exit('torch' in sys.modules)"],
        env=os.environ | {"PYTHONPATH": str(tree / "src")},
    )
    assert done.returncode == 0


@pytest.mark.whole
def test_a_disk_that_fills_up_costs_no_scale_file(tmp_path, checkout):
    """One was cut, as there was no room for what it held before either."""
    tree = checkout(tmp_path / "tree")
    scales = sorted((tree / "workflow/config/scales").glob("*.yaml"))
    before = {path: path.read_bytes() for path in scales}
    most = max(map(len, before.values())) - 1
    done = subprocess.run(
        [sys.executable, "-m", "hiddenstate", "new-paper", "toy_audits", "--tree", str(tree)],
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (most, most)),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    assert re.fullmatch(
        f"hiddenstate: error: {re.escape(str(tree))}/.*yaml: cannot be written: File too large\n",
        done.stderr,
    )
    assert {path: path.read_bytes() for path in scales} == before
    assert not [path for path in tree.rglob("*toy_audits*") if path.is_file()]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["Toy"], "NAME: got 'Toy'"),
        (["class"], "NAME: got 'class'"),
        (["toy", "--title", 'a "toy"'], "expected plain text"),
        (["toy", "--tree", "/nowhere"], "/nowhere has no Snakefile; go to the source tree, or"),
    ],
)
def test_a_name_that_cannot_be_is_refused(tmp_path, checkout, capsys, words, said):
    tree = checkout(tmp_path / "tree")
    before = sorted(tree.rglob("*"))
    assert cli.main(["new-paper", "--tree", str(tree), *words]) == 2
    assert said in capsys.readouterr().err
    assert sorted(tree.rglob("*")) == before
