# Names and helpers that the rules share. Nothing here decides numbers, and no function has effects:
# what is wrong with the configuration, the scale file or the cache stops the run as it is read.

import hashlib
import os
import random
import re
import subprocess
import sys
from pathlib import Path

try:
    import hiddenstate
except ModuleNotFoundError:
    raise WorkflowError(
        "the package hiddenstate is not installed here: run `./reproduce setup` and then "
        "`. .venv/bin/activate`, or `./reproduce` in place of `snakemake --cores all`"
    )

from hiddenstate import code, papers
from hiddenstate.datasets import data
from hiddenstate.pipeline import cache, costs, scores, usage, verification
from hiddenstate.study import forecast, outputs, verdicts
from hiddenstate.study import config as scale_files
from hiddenstate.errors import InputError
from hiddenstate.pipeline.family import Check, Figure, Table

# The tree of this workflow, seen from the working directory. Used as a module, it is in the tree of another.
TREE = os.path.relpath(f"{workflow.current_basedir}/../..")
PREFIX = "" if TREE == "." else f"{TREE}/"

if re.search("[{}]", os.path.abspath(TREE)):
    raise WorkflowError(
        f"{os.path.abspath(TREE)}: Snakemake takes braces in a path for wildcards; move the tree"
    )


def sources(package):
    """The files of a package that decide what it computes, by name."""
    return {
        str(path.relative_to(package)): path.read_bytes()
        for kind in ("py", "h", "csv", "json", "html")
        for path in package.rglob(f"*.{kind}")
        if path.parent.name != "__pycache__"
    }


# The code of another checkout would answer for this one, and no edit here would count.
OWN, USED = Path(f"{PREFIX}src/hiddenstate"), Path(hiddenstate.__file__).parent
if OWN.is_dir() and not OWN.samefile(USED):
    if other := sources(OWN).items() ^ sources(USED).items():
        raise WorkflowError(
            f"{USED}: imported in place of {OWN.resolve()}, and {min(other)[0]} differs; activate "
            "the environment of this tree, or run `pip install -e .` in it"
        )

SCALES = sorted(
    path.stem
    for path in Path(f"{PREFIX}workflow/config/scales").glob("*.yaml")
    if re.fullmatch(scale_files.SCALE, path.stem)
    # Folders beside those of scales.
    and path.stem not in ("cached", "published")
)

# Config keys: a pattern of the values, and what the error message expects.
KEYS = {
    "scale": ("|".join(SCALES), f"one of {', '.join(SCALES)}"),
    "scores": ("cached|train", "cached or train"),
    "missing_scores": ("train|error|skip", "train, error or skip"),
    "device": (r"cpu|mps|cuda(:[0-9]+)?", "cpu, cuda, cuda:1, …"),
    "part_hours": (r"[0-9]{1,5}(\.[0-9]{1,6})?", "hours, or 0 for no limit"),
    "walltime_factor": (r"[1-9][0-9]{0,1}(\.[0-9]{1,6})?", "a number from 1 to 99"),
    "max_walltime": (r"[0-9]{1,5}(\.[0-9]{1,6})?", "hours, or 0 for no limit"),
    "verify_cells": (r"[1-9][0-9]{0,5}|tenth", "a number from 1, or tenth"),
    "verify_models": (r"[1-9][0-9]{0,5}", "a number from 1"),
    "verify_seed": (r"[0-9]{1,9}", "a number from 0"),
    "family": (".*", "set by the rule files alone"),
}


def checked_config():
    """Stop the run if a config key is unknown, missing or has a value that means nothing."""
    for key, value in config.items():
        if key not in KEYS:
            known = ", ".join(name for name in KEYS if name != "family")
            raise WorkflowError(
                f"config key {str(key)[:100]!r} is not known; expected one of {known}"
            )
        pattern, expected = KEYS[key]
        if not re.fullmatch(pattern, str(value)):
            raise WorkflowError(
                f"config key {key!r}: got {str(value)[:100]!r}; expected {expected}"
            )
    for key in KEYS:
        if key not in config and key != "family":
            raise WorkflowError(f"config key {key!r} is missing; see workflow/config")


def checked_place():
    """Stop a run on a cluster whose directory or interpreter no submitted job's shell could read."""
    for path, what in {os.getcwd(): "a directory", sys.executable: "a Python"}.items():
        # Those that a shell reads as they are, with letters of every script.
        if not workflow.local_exec and (odd := re.search(r"[^\w@%+=:,./-]", path)):
            raise WorkflowError(
                f"{path}: jobs cannot be submitted from {what} with {odd[0]!r} in its name, which "
                "Snakemake passes on unquoted; move the tree, or run without the profile"
            )


def checked_cluster():
    """Stop a run on a cluster while jobs that an earlier one submitted from here are there."""
    if workflow.local_exec:
        return
    command = ["squeue", "--me", "--noheader", "--format=%i %j %Z"]
    try:
        listed = subprocess.run(command, capture_output=True, text=True).stdout
    except OSError:
        return
    # Snakemake names the jobs of a run by a UUID.
    own = re.compile(
        rf"(\S+) \S*[0-9a-f]{{8}}(?:-[0-9a-f]{{4}}){{3}}-\S+ {re.escape(os.getcwd())}"
    )
    if jobs := [found[1] for found in map(own.fullmatch, listed.splitlines()) if found]:
        raise WorkflowError(
            "an earlier run that was killed left jobs, which would be done twice; wait for them, "
            f"or end them: scancel {' '.join(jobs)}"
        )


checked_config()

SCALE = config["scale"]
SCALE_FILE = f"{PREFIX}workflow/config/scales/{SCALE}.yaml"
RESULTS = f"results/{SCALE}"
CACHE = f"{PREFIX}results/cached"
FIGURES = f"figures/{SCALE}"
LOGS = f"logs/{SCALE}"


def literally(value):
    """Input or parameter function of a value, whose braces are no wildcards."""

    def given(wildcards):
        return value

    return given


def content(*paths):
    """Parameter function: digests of files. That they changed Snakemake sees by newer dates alone."""

    def digests(wildcards):
        # One that is not there is told as an input of the rule.
        there = [Path(path) for path in paths if os.path.isfile(path)]
        return [hashlib.sha256(path.read_bytes()).hexdigest() for path in there]

    return digests


def read_scale():
    """The checked scale file."""
    try:
        return scale_files.read(SCALE_FILE)
    except InputError as error:
        raise WorkflowError(str(error))


def side_by_side(wildcards):
    """How many jobs there are side by side: cores here, or jobs on a cluster."""
    return workflow.nodes or workflow.cores


def any_of(names):
    """Wildcard constraint: one of these names and no other."""
    # A scale may have no such cell, and an empty constraint would allow every name.
    return "|".join(map(re.escape, sorted(names))) or "(?!)"


def growing(amount):
    """Resource function: so much, and as much again for each further attempt."""

    def grow(wildcards, attempt):
        return attempt * amount

    return grow
