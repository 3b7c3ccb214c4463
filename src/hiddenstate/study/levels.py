"""Levels: how much the cells of a scale can judge, and if their parameters are the papers' own.

Both follow from the content of a scale file's section, compared with the sections that the package
was released with (``levels.json``). The name of a scale and the scale that it extends say nothing.
"""

import hashlib
import json
from collections.abc import Iterator
from functools import cache
from importlib import resources
from pathlib import Path
from statistics import fmean
from typing import Any, Literal, NamedTuple

from hiddenstate import papers
from hiddenstate.pipeline.cells import FamilyGrid

Scale = Literal["smoke", "laptop", "paper"]
SCALES: tuple[Scale, ...] = ("smoke", "laptop", "paper")
"""The scales of a release, from least to most."""
COUNTS = (
    *("runs", "models", "repeats", "audits", "ideal_audits", "points"),
    *("pairs", "starts", "orders", "canaries"),
)
"""Parameters of cells that say how much there is of what is observed."""


class Level(NamedTuple):
    """Level of a family's grid.

    size: the scale whose claims it judges. own: the scale whose parameters it has, all of them;
    None where one differs.
    """

    size: Scale
    own: Scale | None


def of(family: str, grid: FamilyGrid) -> Level:
    """The level of a family's grid.

    A grid judges what a scale judges if its ``COUNTS`` are at least half of that scale's, the
    least, the mean and the largest of each. A family that no release had judges all its claims.
    """
    released = _released().get(family)
    if released is None:
        return Level("paper", None)
    found = digest(grid)
    own = [scale for scale in SCALES if scale in released and released[scale]["digest"] == found]
    if own:
        return Level(own[-1], own[-1])
    found_counts = counts(family, grid)
    size: Scale = "smoke"
    for scale in SCALES[1:]:
        needed = released[scale]["counts"] if scale in released else {}
        if all(
            2 * count >= least
            for name, several in found_counts.items()
            for count, least in zip(several, needed.get(name, [0, 0, 0]), strict=True)
        ):
            size = scale
    return Level(size, None)


def published(family: str, grid: FamilyGrid, seed: int) -> bool:
    """True for the grid and root seed of the published run, or a family that no release had."""
    known = _released().get(family)
    run = {"seed": seed, "digest": digest(grid)}
    return known is None or run.items() <= known.get("laptop", {}).items()


def digest(grid: FamilyGrid) -> str:
    """SHA-256 of everything that a section says, except for the words of its figures."""
    content = json.dumps(grid.model_dump(mode="json", exclude={"shows"}), sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()


def counts(family: str, grid: FamilyGrid) -> dict[str, list[float]]:
    """Least, mean and largest of each count among a grid's cells, by kind of cell and name."""
    found: dict[str, list[int]] = {}
    for jobs in papers.load(family).jobs(grid).values():
        for job in jobs.values():
            kind = type(job.cell.parameters).__name__
            for name, count in _counts(job.cell.parameters.model_dump()):
                found.setdefault(f"{kind}.{name}", []).append(count)
    return {key: [min(c), round(fmean(c), 3), max(c)] for key, c in found.items()}


def _counts(value: Any, name: str = "") -> Iterator[tuple[str, int]]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _counts(inner, key)
    elif isinstance(value, list | tuple):
        for inner in value:  # a list of such a name holds indices
            yield from _counts(inner)
    elif name in COUNTS:
        yield name, value


@cache
def _released() -> dict[str, dict[str, dict[str, Any]]]:
    content = resources.files("hiddenstate.study").joinpath("levels.json")
    return json.loads(content.read_text(encoding="utf-8"))


def reference(scales: Path) -> dict[str, dict[str, dict[str, Any]]]:
    """The content of ``levels.json`` for a folder of scale files, by family and scale."""
    from hiddenstate.study import config

    found: dict[str, dict[str, dict[str, Any]]] = {}
    for scale in SCALES:
        sections = config.read(scales / f"{scale}.yaml")
        for name in config.families(sections):
            grid = getattr(sections, name)
            found.setdefault(name, {})[scale] = {
                "seed": sections.seed,
                "digest": digest(grid),
                "counts": counts(name, grid),
            }
    return found
