"""``hiddenstate new-paper``: a family that runs as it is written, to be changed piece by piece."""

import argparse
import keyword
import os
import re
import shutil
import subprocess
import sys
from contextlib import suppress
from importlib import resources
from pathlib import Path

import hiddenstate
from hiddenstate.errors import InputError
from hiddenstate.files import WRITES, alone, atomic

PACKAGE = "src/hiddenstate/papers/{name}"
FILES = {
    **{
        f"{part}.py": f"{PACKAGE}/{part}.py"
        for part in (
            *("__init__", "cells", "training", "bounds", "estimates"),
            *("figures", "tables", "checks"),
        )
    },
    "rules.smk": "workflow/rules/{name}.smk",
    "claims.yaml": "workflow/config/claims/{name}.yaml",
    "test.py": "tests/papers/test_{name}.py",
    "made_up.py": "tests/papers/made_up/{name}.py",
}
"""What is written: the skeleton's file, and its place in the source tree."""

SCALES = {"smoke": (2, 10), "laptop": (20, 100), "paper": (20, 1000)}
"""Steps and models of each scale; those that extend one of them have its section as well."""

REST = """\
Written. It runs as it is: ./reproduce {name} --config scale=smoke
What is left once it does what the paper does:
- README.md and CITATION.cff: its row, and its reference with the authors
- workflow/config/claims/{name}.yaml: its sentences, quoted
- after ./reproduce all: hiddenstate gallery {name}, and hiddenstate verdicts
"""


def run(options: argparse.Namespace) -> None:
    """Write a package, rules, claims, scales' sections and tests of a new paper.

    name NAME: str | name of the family, such as shuffled_batches
    --title: str | title of the paper (default: the name in words)
    --reference: str = none | reference, such as 'arXiv 2411.10614' (default none)
    --tree DIR: path | source tree (default: this folder, or that of the package)
    """
    here = Path() if Path("Snakefile").is_file() else Path(hiddenstate.__file__).parents[2]
    tree = (options.tree or here).resolve()
    if not (tree / "Snakefile").is_file():
        raise InputError(
            f"--tree: {tree} has no Snakefile; go to the source tree, or give --tree DIR"
        )
    with alone(tree, WRITES):
        write(options.name, options.title, options.reference, tree)
    print(REST.format(name=options.name), end="")


def write(name: str, title: str | None, reference: str, tree: Path) -> None:
    """Write the skeleton into a source tree; InputError, and nothing written, where it cannot."""
    if not re.fullmatch(r"[a-z][a-z0-9_]{0,40}", name) or keyword.iskeyword(name):
        raise InputError(f"NAME: got {name!r}; expected lower-case letters, digits and _")
    places = {part: tree / place.format(name=name) for part, place in FILES.items()}
    for place in (tree / PACKAGE.format(name=name), *places.values()):
        if place.exists():
            raise InputError(f"{place}: exists; expected a name that no family has")
    words = {"name": name, "camel": "".join(part.title() for part in name.split("_"))}
    words |= {"title": title or name.replace("_", " ").capitalize(), "reference": reference}
    for value in (words["title"], reference):
        if not value.isprintable() or '"' in value or "\\" in value:
            raise InputError(f"--title, --reference: got {value!r}; expected plain text")
    made = {place: _filled(part, words) for part, place in places.items()}
    for scale, (steps, models) in SCALES.items():
        path = tree / f"workflow/config/scales/{scale}.yaml"
        given = words | {"steps": str(steps), "models": str(models)}
        made[path] = path.read_text(encoding="utf-8") + _filled("scale.yaml", given)
    kept = {place: place.read_text(encoding="utf-8") for place in made if place.exists()}
    try:
        _write(made)
        generated = _generated(tree)
        kept |= {place: place.read_text(encoding="utf-8") for place in generated}
        _write(generated)
    # An interrupt, too, leaves the tree as it was.
    except BaseException:
        for place in made.keys() - kept.keys():
            with suppress(OSError):  # nothing can be removed where nothing could be written
                place.unlink(missing_ok=True)
        shutil.rmtree(tree / PACKAGE.format(name=name), ignore_errors=True)
        _write({p: before for p, before in kept.items() if p.read_text("utf-8") != before})
        raise


def _write(contents: dict[Path, str]) -> None:
    """Write these files, each whole or not at all."""
    for place, content in contents.items():
        with atomic(place) as temporary:
            temporary.write_text(content, encoding="utf-8")


def _filled(part: str, words: dict[str, str]) -> str:
    skeleton = resources.files("hiddenstate") / "skeleton" / f"{part}.txt"
    content = skeleton.read_text(encoding="utf-8")
    return re.sub(r"{{ (\w+) }}", lambda found: words[found[1]], content)


def _generated(tree: Path) -> dict[Path, str]:
    """The schema of scale files and their levels, with the new family's sections."""
    made = {}
    for path, arguments in (
        ("workflow/config/scale.schema.json", []),
        ("src/hiddenstate/study/levels.json", ["--levels", str(tree / "workflow/config/scales")]),
    ):
        # By the tree's own package, which may be another than the one that runs.
        done = subprocess.run(
            [sys.executable, "-m", "hiddenstate", "schema", *arguments],
            env=os.environ | {"PYTHONPATH": str(tree / "src")},
            capture_output=True,
            text=True,
        )
        if done.returncode:
            reason = done.stderr.strip().removeprefix("hiddenstate: error: ")
            raise InputError(f"nothing was written: the new family does not load ({reason})")
        made[tree / path] = done.stdout
    return made
