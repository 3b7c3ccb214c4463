"""What config.yaml and --config may say; the rules' common part, run as plain Python."""

import ast
import builtins
import importlib
import os
import re
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

ROOT = Path(__file__).parents[2]

GOOD = yaml.safe_load((ROOT / "workflow/config/config.yaml").read_text())


class WorkflowError(Exception):
    """Stands for Snakemake's."""


def common(config, local_exec=True, tree=ROOT, **names):
    """Names that common.smk defines under a configuration."""
    path = ROOT / "workflow/rules/common.smk"
    names |= {
        "config": config,
        "workflow": SimpleNamespace(
            current_basedir=f"{tree}/workflow/rules", local_exec=local_exec
        ),
        "WorkflowError": WorkflowError,
    }
    exec(compile(path.read_text(), path, "exec"), names)
    return names


def test_the_shipped_configuration_is_good():
    assert common(GOOD)["RESULTS"] == "results/laptop"


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"scale": "huge"}, "'scale': got 'huge'; expected one of cifar10-jpeg, laptop"),
        ({"scale": "my scale"}, "'scale': got 'my scale'; expected one of"),
        ({"scale": "cached"}, "'scale': got 'cached'; expected one of cifar10-jpeg, laptop"),
        ({"scale": "published"}, "'scale': got 'published'; expected one of"),
        ({"scale": "../../../evil"}, r"'scale': got '../../../evil'; expected one of"),
        ({"scale": "$(touch PWNED)"}, r"'scale': got '\$\(touch PWNED\)'; expected one of"),
        ({"scale": ["smoke"]}, "expected one of"),
        ({"sclae": "smoke"}, "'sclae' is not known; expected one of scale, scores"),
        ({"n": 5}, "'n' is not known; expected one of scale, scores"),
        ({"scores": "cashed"}, "'scores': got 'cashed'; expected cached or train"),
        ({"missing_scores": "no"}, "got 'no'; expected train, error or skip"),
        ({"device": "gpu"}, "'device': got 'gpu'; expected cpu, cuda"),
        ({"device": "cuda:0; touch PWNED"}, "'device': got 'cuda:0; touch PWNED'; expected cpu"),
        ({"verify_models": 0}, "'verify_models': got '0'; expected a number from 1"),
        ({"verify_cells": "\u0663"}, "'verify_cells': got '\u0663'; expected a number from 1"),
        ({"verify_cells": 10**12}, "'verify_cells': got '1000000000000'; expected a number"),
        ({"verify_seed": True}, "'verify_seed': got 'True'; expected a number from 0"),
        ({"walltime_factor": 0.5}, "'walltime_factor': got '0.5'; expected a number from 1"),
        ({"max_walltime": "12:00"}, "'max_walltime': got '12:00'; expected hours, or 0"),
        ({"x" * 10_000: 1}, "'x{100}' is not known"),
        ({"scale": "x" * 10_000}, "'scale': got 'x{100}'; expected"),
    ],
)
def test_a_value_that_means_nothing_is_named(changes, expected):
    with pytest.raises(WorkflowError, match=expected):
        common({**GOOD, **changes})


@pytest.mark.parametrize("key", GOOD)
def test_a_missing_key_is_named(key):
    with pytest.raises(WorkflowError, match=f"config key '{key}' is missing"):
        common({name: value for name, value in GOOD.items() if name != key})


RUN = "3f2b8c1e-0a4d-4c5e-9f60-7a8b9c0d1e2f"


@pytest.mark.parametrize(
    ("listed", "left"),
    [
        (f"41 {RUN} {{here}}\n42 {RUN} {{here}}\n", "scancel 41 42"),
        (f"41 {RUN} {{here}}/elsewhere\n42 bash {{here}}\n", ""),
        ("", ""),
    ],
)
def test_jobs_that_a_killed_run_left_on_a_cluster_are_named(tmp_path, monkeypatch, listed, left):
    monkeypatch.chdir(tmp_path)
    squeue = tmp_path / "bin/squeue"
    squeue.parent.mkdir()
    squeue.write_text(f"#!/bin/sh\nprintf '{listed.format(here=tmp_path)}'\n")
    squeue.chmod(0o755)
    monkeypatch.setenv("PATH", f"{squeue.parent}:{os.environ['PATH']}")
    common(GOOD)["checked_cluster"]()
    checked = common(GOOD, local_exec=False)["checked_cluster"]
    if left:
        with pytest.raises(WorkflowError, match=f"an earlier run that was killed.* {left}$"):
            checked()
    else:
        checked()


def test_without_the_package_one_line_says_what_to_run():
    def snakemake_alone(name, *_):
        if name == "hiddenstate":
            raise ModuleNotFoundError(name)
        return importlib.import_module(name)

    builtin = {**vars(builtins), "__import__": snakemake_alone}
    with pytest.raises(
        WorkflowError, match=r"`\./reproduce setup` and then `\. \.venv/bin/activate`"
    ):
        common(GOOD, __builtins__=builtin)


@pytest.mark.parametrize("name", ["cached", "published"])
def test_no_scale_has_the_name_of_a_folder_beside_those_of_scales(tmp_path, name):
    scales = tmp_path / "workflow/config/scales"
    scales.mkdir(parents=True)
    (scales / f"{name}.yaml").write_text("seed: 1\n")
    with pytest.raises(WorkflowError, match=f"'scale': got '{name}'"):
        common({**GOOD, "scale": name}, tree=tmp_path)


def test_a_tree_with_braces_in_its_path_is_refused(tmp_path):
    with pytest.raises(WorkflowError, match=r"br\{x\}ce: Snakemake takes braces .* move the tree"):
        common(GOOD, tree=tmp_path / "br{x}ce")


@pytest.mark.parametrize("name", ["accounting/gaussian.py", "dpsgd/native/tiny.h"])
def test_the_package_of_another_checkout_is_refused(tmp_path, name):
    """No edit of this tree would count."""
    shutil.copytree(ROOT / "workflow/config", tmp_path / "workflow/config")
    own = shutil.copytree(ROOT / "src/hiddenstate", tmp_path / "src/hiddenstate")
    assert common(GOOD, tree=tmp_path)["TREE"] == os.path.relpath(tmp_path)
    refused = pytest.raises(
        WorkflowError, match=f"in place of {own}, and {re.escape(name)} differs"
    )
    with (own / name).open("a") as file:
        file.write("\n")
    with refused:
        common(GOOD, tree=tmp_path)
    (own / name).unlink()
    with refused:
        common(GOOD, tree=tmp_path)
    shutil.copy(ROOT / "src/hiddenstate" / name, own / name)
    common(GOOD, tree=tmp_path)


SCALE = "extends: smoke\nonly: [cyclic_bounds]\ncyclic_bounds: {shows: 'n in {100, 1000}'}\n"


@pytest.mark.whole
def test_braces_in_words_are_words_and_not_wildcards(tmp_path, checkout, snakemake):
    directory = checkout(tmp_path)
    (directory / "workflow/config/scales/mine.yaml").write_text(SCALE)
    status, output = snakemake(directory, "all", "--dry-run", "--config", "scale=mine")
    assert status == 0, output[-3000:]
    assert "cyclic_bounds_figures" in output


MODULE = """
module leaks:
    snakefile: "hiddenstate/Snakefile"
    config: CONFIG

use rule * from leaks as leaks_*

rule mine:
    input: "results/smoke/cyclic_bounds/estimates.csv"
    default_target: True
"""


@pytest.mark.whole
def test_the_workflow_is_a_module_of_another(tmp_path, checkout, snakemake):
    checkout(tmp_path / "hiddenstate")
    (tmp_path / "Snakefile").write_text(f"CONFIG = {GOOD | {'scale': 'smoke'}}\n{MODULE}")
    source = {"PYTHONPATH": str(tmp_path / "hiddenstate/src")}
    arguments = ("--cores", "1", "--dry-run")
    status, output = snakemake(tmp_path, *arguments, environment=source)
    assert status == 0, output[-3000:]
    assert "leaks_cyclic_bounds_estimate" in output


UNQUOTED = {"params.family", "params.models", "params.missing", "params.scale", "threads"}
"""Words of the rules' own, or that the configuration's patterns allow no shell character in."""


@pytest.mark.parametrize(
    "path", sorted(ROOT.glob("workflow/rules/*.smk")), ids=lambda path: path.name
)
def test_whatever_a_rule_hands_to_the_shell_is_quoted(path):
    found = re.findall(r"^( +)shell:\n((?:\1    .*\n?)+)", path.read_text(), re.MULTILINE)
    assert len(found) == path.read_text().count("shell:")
    for _, shell in found:
        for place in re.findall(r"{([^}]+)}", shell):
            quoted = place.endswith(":q") or place in UNQUOTED or place.startswith("resources.")
            assert quoted, place


@pytest.mark.parametrize("name", ["my tree", "tree\n", "$tree", "a&b", "tree's"])
def test_a_cluster_run_at_a_path_that_a_shell_would_read_otherwise_is_refused(monkeypatch, name):
    here, there = (common(GOOD, local_exec=local)["checked_place"] for local in (True, False))
    monkeypatch.setattr(os, "getcwd", lambda: "/tmp/arbre-é_1.0/tree")
    monkeypatch.setattr(sys, "executable", "/opt/é/.venv/bin/python3.11")
    there()
    # An environment may stand elsewhere than the results.
    monkeypatch.setattr(sys, "executable", f"/tmp/{name}/.venv/bin/python")
    here()
    with pytest.raises(WorkflowError, match=f"{re.escape(name)}.*: jobs cannot .* from a Python "):
        there()
    monkeypatch.setattr(os, "getcwd", lambda: f"/tmp/{name}")
    with pytest.raises(WorkflowError, match=f"{re.escape(name)}: jobs .* from a directory with "):
        there()


def defined(path, name, **names):
    """A function of a file of rules, by itself."""
    tree = ast.parse(path.read_text())
    tree.body = [node for node in tree.body if getattr(node, "name", "") == name]
    exec(compile(tree, path, "exec"), names)
    return names[name]


def test_a_cluster_is_asked_for_a_part_s_own_time_and_no_more_than_it_allows():
    rules = ROOT / "workflow/rules/jobs.smk"
    hours = 3600
    allowed = defined(rules, "allowed", config=GOOD)
    # A part goes on where it was cut off: each attempt fits into a partition of 12 hours.
    assert [allowed(8 * hours, attempt, goes_on=True) for attempt in (1, 2, 3)] == [720] * 3
    # Estimates of seconds may be off by far.
    assert [allowed(600, attempt) for attempt in (1, 2)] == [40, 80]
    assert allowed(1, 1) == 15
    limited = defined(rules, "allowed", config={**GOOD, "max_walltime": 6.5})
    assert [limited(8 * hours, attempt) for attempt in (1, 3)] == [390, 390]
    assert limited(600, 1) == 40
