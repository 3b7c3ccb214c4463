"""Parts of a cell: the models that one call trains, and part files, which outlive a commit.

A part file is Parquet with a row for each value of each model: ``place`` (folder of the
checkpoint), ``world``, ``repeat``, ``run``, ``name`` (what was observed), ``value`` and ``made``
(kernel, device and precision). Its provenance is that of a score file, with the digest of the
initial parameters. Several part files of a cell lie beside each other as
``<cell>.part-*.parquet``; whatever their numbers of parts, a model that two of them have must have
the same values.
"""

import math
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pandas as pd

from hiddenstate.errors import InputError
from hiddenstate.pipeline import scores
from hiddenstate.streams import World, model_in_words

if TYPE_CHECKING:
    from hiddenstate.pipeline.family import Job

Row = dict[str, float]
"""Score and measures of a run."""
Identity = tuple[World, int, int]
"""World, repeat and index of a run."""

MODEL = ["place", "world", "repeat", "run"]
COLUMNS = [*MODEL, "name", "value", "made"]
AGREEMENT = 1e-3
"""How far two values of one model may differ, in standard deviations of that value."""


class Elsewhere(NamedTuple):
    """A model of a part file: how it was made, the file, and its values."""

    made: str
    path: str
    row: Row


class Parts:
    """Models of a cell that a call trains; it counts runs in the order in which it is asked.

    directory: for finished models, chunk by chunk; None keeps none. known: rows of part files,
    whose models are not trained again. part: (index from 0, number) of the parts, of which this is
    one: every so many-th model, from the index-th. hours: no model is begun that would end later
    than so many hours from now, except a first one.
    """

    def __init__(
        self,
        directory: str | Path | None = None,
        *,
        known: pd.DataFrame | None = None,
        part: tuple[int, int] | None = None,
        hours: float = math.inf,
    ) -> None:
        self.directory = None if directory is None else Path(directory)
        self.part, self.limited = part or (0, 1), math.isfinite(hours)
        self._known: dict[str, dict[Identity, Elsewhere]] = {}
        columns = [*COLUMNS, "path"]
        rows = () if known is None else known[columns].itertuples(index=False, name=None)
        for place, world, repeat, run, name, value, made, path in rows:
            found = self._known.setdefault(place, {})
            model = found.setdefault((world, int(repeat), int(run)), Elsewhere(made, path, {}))
            model.row[name] = value
        self._runs = 0
        self._end, self._begun, self._longest = time.monotonic() + 3600 * hours, 0, 0.0
        self._own: list[tuple[Any, ...]] = []
        self.finished: set[tuple[str, World, int, int]] = set()

    def __truediv__(self, name: str) -> "Place":
        return Place(self, name)

    def mine(self, runs: Sequence[Identity]) -> list[Identity]:
        """Next runs that this call trains."""
        index, number = self.part
        # The count goes on over all places, so that parts differ by one model at most.
        first, self._runs = (index - self._runs) % number, self._runs + len(runs)
        return list(runs[first::number])

    def known(self, place: str) -> "dict[Identity, Elsewhere]":
        """A place's models that were made elsewhere."""
        return self._known.get(place, {})

    def begins(self) -> bool:
        """True if there is time for another chunk; the next call to ``ended`` is of that."""
        if self._begun and time.monotonic() + self._longest > self._end:
            return False
        self._begun += 1
        return True

    def ended(self, seconds: float) -> None:
        """Take note of how long a chunk took."""
        self._longest = max(self._longest, seconds)

    def add(self, place: str, made: str, rows: dict[Identity, Row]) -> None:
        """Take note of models of a place that this call answers for."""
        there = self.known(place)
        self.finished.update((place, *run) for run in rows)
        # Rows of models from part files stay in those files.
        self._own += [
            (place, *run, name, value, made)
            for run, row in rows.items()
            if run not in there
            for name, value in row.items()
        ]

    def own(self) -> pd.DataFrame:
        """The rows of the models that this call trained, or found in its directory."""
        return pd.DataFrame(self._own, columns=COLUMNS)


@dataclass(frozen=True)
class Place:
    """A folder of a cell's checkpoint, and the models that belong there."""

    parts: Parts
    name: str = ""

    def __truediv__(self, name: str) -> "Place":
        return Place(self.parts, "/".join(filter(None, (self.name, name))))

    @property
    def directory(self) -> Path | None:
        """Folder of its chunks, if any are kept."""
        whole = self.parts.directory
        return None if whole is None else whole / self.name


Store = str | Path | Parts | Place | None
"""Where finished models are: a directory, or a part of a cell; None keeps none."""


def place(store: Store) -> Place:
    """The place that a store is, with all of its models where it is a directory."""
    if isinstance(store, Place):
        return store
    return Place(store if isinstance(store, Parts) else Parts(store))


def paths(cell: str, folders: Iterable[Path]) -> list[Path]:
    """The part files of a cell in these folders, by name."""
    return [path for folder in folders for path in sorted(folder.glob(f"{cell}.part-*.parquet"))]


def write(path: Path, own: pd.DataFrame, origin: dict[str, Any], start: str | None) -> None:
    """Write a part file; ``start`` is the digest of the initial parameters, if there are any."""
    scores.write_table(path, own, {**origin, "start": start, "models": models(own)})


def models(rows: pd.DataFrame) -> int:
    """Number of models in these rows."""
    return len(rows[MODEL].drop_duplicates())


def read(files: Sequence[Path], job: "Job", seed: int, start: str | None = None) -> pd.DataFrame:
    """Rows of part files, each model once, and the path of each row's file.

    Raises InputError for a file of another job, another seed, other data or other initial
    parameters, and where two files differ on a model.
    """
    # pd.concat refuses an empty list.
    frames = [pd.DataFrame(columns=[*COLUMNS, "path"])][: not files]
    for path in files:
        frame, _ = job.checked(path, seed)
        if missing := [column for column in COLUMNS if column not in frame]:
            raise InputError(f"{path}: lacks the columns {missing}; expected a part file")
        found = scores.claimed_origin(path).get("start")
        if start is not None and found != start:
            raise InputError(
                f"{path}: trained from initial parameters with digest {found}; expected {start}"
            )
        frames.append(frame[COLUMNS].assign(path=str(path)))
    rows = pd.concat(frames, ignore_index=True)
    return _agreed(rows) if len(files) > 1 else rows


def _agreed(rows: pd.DataFrame) -> pd.DataFrame:
    """Each model once; InputError where files differ on one by more than rounding."""
    value = [*MODEL, "name"]
    spread = rows.groupby(["place", "world", "name"])["value"].transform("std").fillna(0.0)
    first = rows.groupby(value)["value"].transform("first")
    differs = (rows["value"] - first).abs() > AGREEMENT * spread
    if differs.any():
        row = rows[differs].iloc[0]
        raise InputError(
            f"{row.path}: {model_in_words(row.world, row.run)}, repeat {row.repeat}, has the "
            f"{row['name']} {row.value:.6g}; another part file has {first[differs].iloc[0]:.6g}"
        )
    return rows.drop_duplicates(value, ignore_index=True)


def count(files: Sequence[Path], job: "Job", seed: int) -> int:
    """Number of models in part files; 0 where ``read`` refuses them."""
    try:
        return models(read(files, job, seed))
    except InputError:
        return 0


def described(files: Sequence[Path]) -> list[dict[str, Any]]:
    """Origin of the models of part files, for the provenance of the whole."""
    kept = ("commit", "date", "processor", "device", "packages", "models", "wall_seconds")
    origins = [scores.claimed_origin(path) for path in files]
    return [
        {"file": path.name} | {key: origin.get(key) for key in kept}
        for path, origin in zip(files, origins, strict=True)
    ]
