"""A family, the words it is made of, and nothing about any one paper.

A family is a list of works. A *work* knows its cells, how one of them is run, where the result
goes and what it costs; there are four kinds (``Simulate``, ``Train`` with its ``Start``,
``Bounds``), and each names the command, the workflow's rule and the folder alike. What was computed
becomes estimates, and estimates become figures, tables and measured claims, which register
themselves with the decorators below.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from hiddenstate import code
from hiddenstate.errors import InputError
from hiddenstate.pipeline.cells import Cell, FamilyGrid, P, Workplace
from hiddenstate.pipeline.costs import STARTING

if TYPE_CHECKING:
    import pandas as pd

    from hiddenstate.pipeline.evidence import Evidence, Item
    from hiddenstate.pipeline.scores import Maker


def takes(seconds: float) -> Callable[[Cell[Any]], float]:
    """Constant cost in seconds, for works whose cells take about equally long at laptop scale.

    The machine was an x86-64 with AVX-512, shared with others; what is counted is processor time.
    """
    return lambda cell: seconds


@dataclass(frozen=True)
class Simulate(Generic[P]):
    """Scores that need no models: ``run(cell, seed)`` returns a frame as in ``pipeline.scores``.

    A digest of ``run``'s code, and of all that it imports, is a part of every cell's identity: what
    other code computed is refused or made again. ``cost(cell)`` estimates seconds of one core.
    """

    kind: ClassVar[str] = "simulate"
    folder: ClassVar[str] = "scores"
    cells: Callable[[Any], list[Cell[P]]]
    run: Callable[[Cell[P], int], pd.DataFrame]
    cost: Callable[[Cell[P]], float] = lambda cell: 1.0


class Bounds(Simulate[P]):
    """Table of an accountant or a simulated audit: ``run(cell, seed)`` returns any table."""

    kind: ClassVar[str] = "bound"
    folder: ClassVar[str] = "bounds"


@dataclass(frozen=True)
class Start(Generic[P]):
    """Initial parameters: ``of(cell)`` is the cell of those that a trained cell starts from.

    ``revision`` is a part of every cell's identity, and raised by hand when ``run`` is corrected:
    what takes hours is not made again because any code that it imports has changed.
    """

    kind: ClassVar[str] = "start"
    folder: ClassVar[str] = "starts"
    of: Callable[[Cell[Any]], Cell[P]]
    run: Callable[[Cell[P], int, Workplace], pd.DataFrame]
    revision: int = 1
    cost: Callable[[Cell[P]], float] = lambda cell: 1.0
    data: Callable[[Cell[P]], list[str]] = lambda cell: []


@dataclass(frozen=True)
class Train(Generic[P]):
    """Scores of trained models, whose files may be cached.

    ``data(cell)`` names the data sets that training reads, ``start`` the work that makes initial
    parameters, if they are made beforehand, ``size(cell)`` the models per data set and the repeats,
    and ``adversaries(cell)`` how many there are, whose scores are verified each by themselves.
    ``groups(cell)`` is how often so many models are trained: once in each of the worlds, or, in
    world "in", once for each adversary.
    ``beside(grid)`` are cells that a check compares with cached ones: they are never cached.
    ``revision`` is as for ``Start``: cached files from before a correction are refused.
    """

    kind: ClassVar[str] = "train"
    folder: ClassVar[str] = "scores"
    cells: Callable[[Any], list[Cell[P]]]
    run: Callable[[Cell[P], int, Workplace], pd.DataFrame]
    size: Callable[[Cell[P]], tuple[int, int]]
    revision: int = 1
    cost: Callable[[Cell[P]], float] = lambda cell: 1.0
    data: Callable[[Cell[P]], list[str]] = lambda cell: []
    start: Start[Any] | None = None
    adversaries: Callable[[Cell[P]], int] = lambda cell: 1
    groups: Callable[[Cell[P]], int] = lambda cell: 2
    beside: Callable[[Any], list[Cell[P]]] = lambda grid: []

    def trainings(self, cell: Cell[P]) -> int:
        """Number of models trained, over both data sets, all adversaries and repeats."""
        models, repeats = self.size(cell)
        return models * repeats * self.groups(cell)


@dataclass(frozen=True)
class Expect(Train[P]):
    """Expected audits: what audits give on average, from trainings that share their noise.

    They are trained, cached and restored as scores are, and are none: no bound is made of them.
    """


Work = Simulate[Any] | Start[Any] | Train[Any]


@dataclass(frozen=True)
class Job:
    """A cell and the work that makes it.

    ``shared()`` are the identities, as ``key`` has them, of several jobs of its grid.
    """

    work: Work
    cell: Cell[Any]
    shared: Callable[[], Collection[str]] = field(default=frozenset, repr=False, compare=False)

    @property
    def identity(self) -> dict[str, Any]:
        """Values that decide the numbers, except the seed, as plain JSON values."""
        parameters = self.cell.parameters.model_dump(mode="json")
        if isinstance(self.work, Simulate):
            return {"code": code.digest_of(self.work.run), **parameters}
        identity = {"revision": self.work.revision, **parameters}
        if isinstance(self.work, Train) and self.work.start:
            identity["start_revision"] = self.work.start.revision
        return identity

    @property
    def key(self) -> str:
        """Its identity as text."""
        return json.dumps(self.identity, sort_keys=True)

    @property
    def maker(self) -> Maker:
        """What a file of its result says that it was made by."""
        from hiddenstate.pipeline.scores import Maker

        return Maker(self.work.kind, self.cell.name, self.key not in self.shared())

    def checked(self, path: Path, seed: int) -> tuple[pd.DataFrame, str]:
        """Its result in a file, and the digest of that; InputError for that of anything else."""
        from hiddenstate.pipeline import scores

        return scores.checked(path, self.identity, seed, self.files, self.maker)

    def computed(self, path: Path, seed: int) -> bool:
        """True if a file is there and claims to be its result; reads no values."""
        from hiddenstate.pipeline import scores

        return scores.computed(path, self.identity, seed, self.files, self.maker)

    @property
    def cost(self) -> float:
        """Seconds of one core, estimated, what it takes to start the job included."""
        return STARTING[self.work.kind] + self.work.cost(self.cell)

    @property
    def data(self) -> list[str]:
        return self.work.data(self.cell) if isinstance(self.work, Start | Train) else []

    @property
    def trainings(self) -> int:
        return self.work.trainings(self.cell) if isinstance(self.work, Train) else 0

    @property
    def files(self) -> dict[str, str]:
        """Digests of those data sets that are files of the user's own and are there."""
        from hiddenstate.datasets import data

        return {name: found for name in self.data if (found := data.digest(name))}

    @property
    def start(self) -> Job | None:
        if not isinstance(self.work, Train) or self.work.start is None:
            return None
        return Job(self.work.start, self.work.start.of(self.cell), self.shared)

    def run(self, seed: int, workplace: Workplace) -> pd.DataFrame:
        if isinstance(self.work, Start | Train):
            return self.work.run(self.cell, seed, workplace)
        return self.work.run(self.cell, seed)


def late(function: str) -> Callable[..., pd.DataFrame]:
    """A function of the package by module and name, imported when it is called.

    torch takes seconds to import, and figures need none of it.
    """
    module, name = f"hiddenstate.{function}".rsplit(".", 1)

    def run(*given: Any) -> pd.DataFrame:
        return getattr(import_module(module), name)(*given)

    run.__module__ = module  # whose code decides what is returned
    return run


Framed = list[tuple[Cell[P], "pd.DataFrame"]]
"""Cells of one work, each with what was made of it."""


class Made:
    """Results of a family's works in one folder; of trained cells, those that are there.

    planned: all cells of the folder, there or not. frames: what was made, by cell name.
    """

    def __init__(
        self, grid: Any, planned: Iterable[Cell[Any]], frames: Mapping[str, pd.DataFrame]
    ) -> None:
        self._grid, self._frames = grid, frames
        self._planned = {cell.name: cell for cell in planned}

    def of(self, cells: Callable[[Any], list[Cell[P]]]) -> Framed[P]:
        """A work's cells, by the function that lists them, each with what was made of it.

        LookupError for cells that no work makes in this folder.
        """
        asked = cells(self._grid)
        if unknown := {cell.name for cell in asked} - self._planned.keys():
            raise LookupError(f"no work makes {', '.join(sorted(unknown))} in this folder")
        return [(cell, self._frames[cell.name]) for cell in asked if cell.name in self._frames]

    def every(self) -> Framed[Any]:
        there = (cell for name, cell in self._planned.items() if name in self._frames)
        return [(cell, self._frames[cell.name]) for cell in there]


KINDS: tuple[str, ...] = tuple(kind.kind for kind in (Start, Train, Simulate, Bounds))


@dataclass(frozen=True)
class Shown:
    """A figure or table: title, caption (one paragraph), and how it is drawn from estimates.

    ``message`` is what one sees in a figure, in a sentence that stands above its panels.
    ``when(grid)`` says if a grid has the cells for it. ``shows`` says what it shows where that is
    not what its family's scale shows, as of exact laws beside trained models. ``of`` is the
    beginning of the part of the scale's words, up to a semicolon, that it shows; "" for all.
    """

    title: str
    caption: str
    draw: Callable[[pd.DataFrame], Any]
    when: Callable[[Any], bool] = lambda grid: True
    shows: str = ""
    message: str = ""
    of: str = ""

    def footer(self, scale: str, grid: FamilyGrid) -> str:
        """The scale, and the data that this shows at it."""
        parts = [part for part in grid.shows.split("; ") if part.startswith(self.of)]
        return f"scale {scale}: {self.shows or '; '.join(parts) or grid.shows}"


class Figure(Shown):
    """Draws a matplotlib figure."""


class Table(Shown):
    """Makes a data frame with the column heads that a reader sees."""


@dataclass(frozen=True)
class Check:
    """Measures a claim in estimates; None if they lack the cells that it needs."""

    measure: Callable[[pd.DataFrame], Evidence | None]


class Lacking(Exception):
    """Estimates lack what a check needs."""


D = TypeVar("D", "pd.DataFrame", "pd.Series")


def needed(found: D) -> D:
    """Rows that a check needs: without any, or with a value missing, it measures nothing."""
    if found.empty or (found.ndim == 1 and found.isna().any()):
        raise Lacking
    return found


def figure(
    title: str,
    caption: str,
    when: Callable[[Any], bool] = lambda grid: True,
    shows: str = "",
    message: str = "",
    of: str = "",
) -> Callable[[Callable[[pd.DataFrame], Any]], Figure]:
    """Register a function of the estimates as a figure under the function's name."""
    return lambda draw: Figure(title, caption, draw, when, shows, message, of)


Rows = Iterator[dict[str, Any]]
"""Rows of a table by column heads, one by one."""


def table(
    title: str, caption: str, when: Callable[[Any], bool] = lambda grid: True, shows: str = ""
) -> Callable[[Callable[[pd.DataFrame], Rows | pd.DataFrame]], Table]:
    """Register a function of the estimates as a table under the function's name."""
    import pandas as pd

    def register(draw: Callable[[pd.DataFrame], Rows | pd.DataFrame]) -> Table:
        return Table(title, caption, lambda rows: pd.DataFrame(draw(rows)), when, shows)

    return register


Found = Generator["Item", None, str]
"""Items of evidence, one by one, and at the end a sentence on what was measured."""


def check(measure: Callable[..., Found], *, any_of: bool = False, **given: Any) -> Check:
    """Register a function of the estimates as a claim's check under the function's name.

    It yields what is measured and returns a sentence on that; without anything measured the claim
    is not judged. ``any_of``: one item that agrees is enough, as for "in some cases". ``given``:
    other arguments, where one function serves several claims.
    """

    def measured(estimates: pd.DataFrame) -> Evidence | None:
        from hiddenstate.pipeline.evidence import Evidence

        items: list[Item] = []
        try:
            found = measure(estimates, **given)
            # A for loop would drop what the generator returns.
            while True:
                items.append(next(found))
        except StopIteration as end:
            return Evidence(items, end.value, any_of) if items else None
        except Lacking:
            return None

    return Check(measured)


check_any = partial(check, any_of=True)


S = TypeVar("S")
E = TypeVar("E", bound=Shown)


def registered(module: ModuleType, kind: type[S]) -> dict[str, S]:
    """Objects of that kind that a module registered, by name, in the order of its lines."""
    return {name: value for name, value in vars(module).items() if isinstance(value, kind)}


def limit(key: str, value: object, expected: str) -> str:
    """Why a section is refused: a key of it, what stands there, and what could be done."""
    return f"{key}: got {value}; expected {expected}"


def sampled(
    key: str, rate: float, steps: int, delta: float, *, got: object = None
) -> Iterator[str]:
    """The limit of a sampling rate: epsilon is 0 if delta is above the chance of being sampled."""
    # 1 - (1 - rate)^steps, without the digits that small rates would lose.
    chance = -math.expm1(steps * math.log1p(-rate)) if rate < 1 else 1.0
    if chance <= delta:
        words = f"a record to be sampled in {steps:,} steps with more than delta = {delta:g}"
        yield limit(key, got or rate, f"{words}, which it is with {chance:.3g}")


def at_most(
    key: str, value: float, most: float, why: str = "", *, times: float = 1
) -> Iterator[str]:
    """The limit of a number; of its product with another, if one is given."""
    if value * times > most:
        yield limit(key, f"{value:,}", f"at most {most / times:,.6g} {why}".rstrip())


DRAWN = {"panels": 12, "lines": 10, "rows": 20, "points": 50}
"""How many of each a figure or table shows at most: with more nobody can read it."""


def drawn(section: Any, **keys: str) -> Iterator[str]:
    """Limits of lists that become panels, lines, rows or points of a figure or table.

    keys: dotted paths of lists within the section, by the kind of ``DRAWN`` that an entry becomes;
    "sweeps.epsilons" are the epsilons of each sweep.
    """
    for kind, paths in keys.items():
        for key, entries in (found for path in paths.split() for found in _at(section, path)):
            if len(entries) > DRAWN[kind]:
                words = f"at most {DRAWN[kind]}, each one of a figure's or table's {kind}"
                yield limit(key, f"{len(entries)} entries", words)


def _at(value: Any, path: str, key: str = "") -> Iterator[tuple[str, Any]]:
    """Values at a dotted path, of each entry where the path leads through a list; not None."""
    if value is None:
        return
    if not path:
        yield key.removeprefix("."), value
    elif isinstance(value, list | tuple | dict):
        for i, one in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _at(one, path, f"{key}.{i}")
    else:
        name, _, rest = path.partition(".")
        yield from _at(getattr(value, name), rest, f"{key}.{name}")


@dataclass(frozen=True)
class Family:
    """A paper as the command line and the workflow see it.

    ``estimate(grid, scores, bounds)`` takes what the works made and returns tidy estimates.
    ``modules`` are those that registered figures, tables and checks. ``limits(grid)`` says what no
    job or figure could do, by ``limit``: what follows from several numbers together, or from what a
    library can; edits of it leave results as they are, which edits of the grid do not.
    """

    title: str
    reference: str
    grid: type[FamilyGrid]
    works: tuple[Simulate[Any] | Train[Any], ...]
    estimate: Callable[[Any, Made, Made], pd.DataFrame]
    modules: tuple[ModuleType, ...]
    limits: Callable[[Any], Iterable[str]] = lambda grid: ()

    @property
    def figures(self) -> dict[str, Figure]:
        return self.every(Figure)

    @property
    def tables(self) -> dict[str, Table]:
        return self.every(Table)

    @property
    def checks(self) -> dict[str, Check]:
        return self.every(Check)

    def every(self, kind: type[S]) -> dict[str, S]:
        return {
            name: value
            for module in self.modules
            for name, value in registered(module, kind).items()
        }

    def shown(self, kind: type[E], grid: Any) -> dict[str, E]:
        """Its figures, or its tables, that a grid has the cells for, by name."""
        return {name: thing for name, thing in self.every(kind).items() if thing.when(grid)}

    def modules_of(self, kind: type[Shown] | type[Check]) -> list[str]:
        """Names of the modules that registered anything of that kind."""
        return [module.__name__ for module in self.modules if registered(module, kind)]

    def estimates(
        self, grid: Any, scores: Mapping[str, pd.DataFrame], bounds: Mapping[str, pd.DataFrame]
    ) -> pd.DataFrame:
        """Tidy estimates from scores and bounds, by cell name; trained scores may be missing."""
        planned: dict[str, list[Cell[Any]]] = {"scores": [], "bounds": []}
        for job in self._listed(grid):
            planned[job.work.folder].append(job.cell)
        return self.estimate(
            grid, Made(grid, planned["scores"], scores), Made(grid, planned["bounds"], bounds)
        )

    def jobs(self, grid: Any) -> dict[str, dict[str, Job]]:
        """Every job by kind and cell name; those of one folder have different names."""
        jobs: dict[str, dict[str, Job]] = {kind: {} for kind in KINDS}
        taken: set[tuple[str, str]] = set()

        @cache
        def shared() -> Collection[str]:
            counts = Counter(job.key for cells in jobs.values() for job in cells.values())
            return {key for key, count in counts.items() if count > 1}

        for job in (replace(job, shared=shared) for job in self._listed(grid)):
            if (job.work.folder, job.cell.name) in taken:
                raise InputError(
                    f"two cells are named {job.work.folder}/{job.cell.name}: expected values "
                    "that differ in their first six digits, and each of them once"
                )
            taken.add((job.work.folder, job.cell.name))
            jobs[job.work.kind][job.cell.name] = job
            if job.start:
                # Cells may share a start.
                jobs["start"][job.start.cell.name] = job.start
        return jobs

    def _listed(self, grid: Any) -> Iterator[Job]:
        return (Job(work, cell) for work in self.works for cell in work.cells(grid))
