"""Score files: what the adversary observed, one row per run, with where it came from.

A score file is Parquet with the columns ``world`` ("in": canary present, "out": absent),
``repeat`` (index of the independent repetition of the audit), ``run`` (index within world and
repeat) and ``score`` (larger speaks for "in"), and whatever else the family records per run. Its
provenance (kind of work and cell, the cell's parameters, seed, versions, commit, date, processor,
device, wall seconds) is JSON in the file's own metadata.
"""

import hashlib
import json
import os
import platform
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import cache
from importlib import resources
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

import hiddenstate
from hiddenstate.errors import InputError
from hiddenstate.files import atomic, require

COLUMNS = ("world", "repeat", "run", "score")
_METADATA_KEY = b"hiddenstate"


def provenance(parameters: dict[str, Any], *, seed: int, wall_seconds: float) -> dict[str, Any]:
    """Everything needed to compute a score file again, and how long it took."""
    return {
        "cell": parameters,
        "seed": seed,
        "hiddenstate": hiddenstate.__version__,
        "commit": commit(),
        "python": platform.python_version(),
        "date": f"{datetime.now(UTC):%Y-%m-%dT%H:%MZ}",
        "machine": platform.machine(),
        "processor": processor(),
        "device": _device(),
        "packages": packages(),
        "wall_seconds": round(wall_seconds, 3),
    }


def parts(path: str | Path) -> int:
    """Number of parts that a score file was gathered from; 0 if none, or without such a file."""
    try:
        return int(_origin(path, pq.read_schema(path)).get("parts", 0))
    except (OSError, InputError, pa.ArrowInvalid):
        return 0


def processor() -> str:
    """The processor's name, and the widest vectors that numbers may have been computed with."""
    try:
        told = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return platform.processor() or platform.machine()
    found = dict(re.findall(r"^([^\t:]+)\s*: (.*)$", told, re.MULTILINE))
    name = found.get("model name", platform.machine())
    flags = set(found.get("flags", "").split())
    wide = [words for flag, words in (("avx512f", "AVX-512"), ("avx2", "AVX2")) if flag in flags]
    return " with ".join([name, *wide[:1]])


def packages() -> dict[str, str | None]:
    """Versions of the libraries that scores come from."""
    return {name: _version(name) for name in ("numpy", "scipy", "dp-accounting", "torch")}


def write(path: str | Path, scores: pd.DataFrame, origin: dict[str, Any]) -> None:
    """Write scores and their provenance to ``path`` atomically; refuse scores that are unusable."""
    missing = [c for c in COLUMNS if c not in scores]
    if missing:
        raise ValueError(f"scores lack the columns {missing}")
    if not np.isfinite(scores["score"]).all():
        raise ValueError("scores must be finite")
    # Models without the canary alone, trained for their accuracy, are no audit but a measurement.
    worlds = sorted(set(scores["world"]))
    if worlds not in (["in", "out"], ["out"]):
        raise ValueError(f"the column world must hold 'in' and 'out', or 'out' alone, got {worlds}")
    write_table(path, scores, origin)


def write_table(path: str | Path, frame: pd.DataFrame, origin: dict[str, Any]) -> None:
    """Write any table with its provenance and digest to ``path`` atomically."""
    table = pa.Table.from_pandas(frame, preserve_index=False)
    # Of what will be read: some columns, such as words with gaps, come back in another type.
    origin = {key: value for key, value in origin.items() if key != "seal"}
    origin["digest"] = digest(table.to_pandas())
    # The seal covers the digest, so it is made last.
    origin["seal"] = _seal(origin)
    table = table.replace_schema_metadata(
        {**(table.schema.metadata or {}), _METADATA_KEY: json.dumps(origin, sort_keys=True)}
    )
    # Bytes of the same place compress better beside each other where hardly two numbers are equal.
    apart = {
        name: "BYTE_STREAM_SPLIT"
        for name in frame.select_dtypes("floating")
        if frame[name].nunique() > len(frame) / 2
    }
    others = [name for name in table.column_names if name not in apart]
    with atomic(path) as temporary:
        pq.write_table(
            table, temporary, compression="zstd", use_dictionary=others, column_encoding=apart
        )


def read(path: str | Path) -> tuple[pd.DataFrame, dict[str, Any]]:
    """Scores and provenance of a file; refuse one that is no score file or was damaged."""
    require(path, "a file that a job of the workflow wrote")
    with _readable(path):
        table = pq.read_table(path)
        scores = table.to_pandas()
    origin = _origin(path, table.schema)
    if digest(scores) != origin.get("digest"):
        raise InputError(f"{path}: values do not match their recorded digest; the file is damaged")
    return scores, origin


def claimed_origin(path: str | Path) -> dict[str, Any]:
    """Provenance that a file claims; reads no scores."""
    with _readable(path):
        schema = pq.read_schema(path)
    return _origin(path, schema)


Files = Mapping[str, str]
"""Digests of data sets of the user's own, by their names; of those alone that are there."""


class Maker(NamedTuple):
    """Kind of work and name of the cell that make a file.

    ``alone``: no other cell or kind of the family has its parameters and code.
    """

    kind: str
    cell: str
    alone: bool = True

    @property
    def written(self) -> dict[str, str]:
        """The part of a file's provenance that names its maker."""
        return {"kind of work": self.kind, "cell name": self.cell}


def check(
    path: str | Path,
    parameters: dict[str, Any],
    seed: int,
    files: Files = MappingProxyType({}),
    maker: Maker | None = None,
) -> pd.DataFrame:
    """Read scores, refused by name unless of these cell parameters, seed, data and maker."""
    return checked(path, parameters, seed, files, maker)[0]


def checked(
    path: str | Path,
    parameters: dict[str, Any],
    seed: int,
    files: Files = MappingProxyType({}),
    maker: Maker | None = None,
) -> tuple[pd.DataFrame, str]:
    """Scores as ``check`` reads them, and their digest."""
    frame, origin = read(path)
    for what, found, expected in _differences(origin, parameters, seed, files, maker):
        raise InputError(f"{path}: computed for {what} {found}; expected {expected}")
    return frame, origin["digest"]


def computed(
    path: str | Path,
    parameters: dict[str, Any],
    seed: int,
    files: Files = MappingProxyType({}),
    maker: Maker | None = None,
) -> bool:
    """True if a file is there and claims all that ``check`` compares; reads no scores."""
    if not Path(path).is_file():
        return False
    try:
        return not any(_differences(claimed_origin(path), parameters, seed, files, maker))
    except InputError:
        return False


def files_of(path: str | Path) -> Files:
    """Digests of the data sets that a file claims to be computed from; none without a file."""
    try:
        return claimed_origin(path).get("files", {})
    except InputError:
        return {}


def origin(path: str | Path) -> dict[str, Any]:
    """Provenance of a file; reads no values."""
    require(path, "a file that a job of the workflow wrote")
    return claimed_origin(path)


@contextmanager
def _readable(path: str | Path) -> Iterator[None]:
    """Give the errors of reading a damaged file its name."""
    try:
        yield
    except Exception as error:  # damaged metadata make pandas raise anything, such as KeyError
        raise InputError(f"{path}: not a readable Parquet file ({error!r:.300})") from error


def _origin(path: str | Path, schema: pa.Schema) -> dict[str, Any]:
    """Provenance in the metadata of a file."""
    metadata = (schema.metadata or {}).get(_METADATA_KEY)
    if metadata is None:
        raise InputError(f"{path}: no provenance in its metadata; expected a hiddenstate file")
    try:
        origin = json.loads(metadata)
        seal = _seal({key: value for key, value in origin.items() if key != "seal"})
    except (ValueError, AttributeError) as error:
        raise InputError(
            f"{path}: provenance is not JSON ({error}); the file is damaged"
        ) from error
    if origin.get("seal") != seal and ("seal" in origin or seal not in _unsealed()):
        raise InputError(f"{path}: its provenance is not what was written; the file was changed")
    return origin


def seal(path: str | Path) -> None:
    """Write the seal into a file that has none, if its values are those that were written."""
    with _readable(require(path, "a file that a job of the workflow wrote")):
        table = pq.read_table(path)
        frame, origin = table.to_pandas(), json.loads(table.schema.metadata[_METADATA_KEY])
    if "seal" in origin or digest(frame) != origin["digest"]:
        raise InputError(f"{path}: expected a file without a seal whose values match their digest")
    write_table(path, frame, origin)


def _seal(origin: dict[str, Any]) -> str:
    """SHA-256 of a provenance, of which it then is a part."""
    return hashlib.sha256(json.dumps(origin, sort_keys=True).encode()).hexdigest()


@cache
def _unsealed() -> frozenset[str]:
    """Seals of the cached files from before files carried their own."""
    content = resources.files("hiddenstate.pipeline").joinpath("unsealed.txt")
    return frozenset(content.read_text(encoding="utf-8").split())


def _differences(
    origin: dict, parameters: dict, seed: int, files: Files, maker: Maker | None
) -> Iterator[tuple[str, Any, Any]]:
    """Key, value found and value expected, wherever a file's origin is another than expected."""
    found = {"seed": origin.get("seed"), **_flat(origin.get("cell", {}))}
    expected = {"seed": seed, **_flat(parameters)}
    # What is on one side alone cannot be compared: data that are not here, or an old file.
    for name in origin.get("files", {}).keys() & files.keys():
        found[f"files of {name}"] = origin["files"][name]
        expected[f"files of {name}"] = files[name]
    # A file from before files named their maker is served where one maker alone can be meant.
    if maker and ("made_by" in origin or not maker.alone):
        found |= origin.get("made_by", {})
        expected |= maker.written
    for key in found | expected:
        one, other = found.get(key, "(absent)"), expected.get(key, "(absent)")
        if one != other:
            yield key, one, other


def _flat(parameters: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested parameters by dotted keys."""
    flat: dict[str, Any] = {}
    for key, value in parameters.items():
        inner = isinstance(value, dict)
        flat |= _flat(value, f"{prefix}{key}.") if inner else {f"{prefix}{key}": value}
    return flat


def digest(scores: pd.DataFrame) -> str:
    """SHA-256 of the column names and values: equal for bit-identical scores."""
    total = hashlib.sha256()
    for name in sorted(scores.columns):
        column = scores[name]
        total.update(name.encode())
        # The same bytes as those of the last branch, found faster.
        if isinstance(column.dtype, pd.StringDtype):
            total.update(_joined(column).encode())
            continue
        values = column.to_numpy()
        if values.dtype.kind in "iufb":
            total.update(np.ascontiguousarray(values).tobytes())
        else:
            total.update("\0".join(map(str, values)).encode())
    return total.hexdigest()


def _joined(words: pd.Series) -> str:
    """The words with zeros between them; in a column of millions most repeat the one before."""
    codes, distinct = pd.factorize(words, use_na_sentinel=False)
    starts = np.flatnonzero(np.diff(codes, prepend=-1))
    counts = np.diff(starts, append=len(codes))
    different = [str(word) for word in distinct]
    runs = zip(codes[starts].tolist(), counts.tolist(), strict=True)
    return "\0".join("\0".join([different[code]] * count) for code, count in runs)


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def commit() -> str | None:
    """Commit of the source tree the package runs from, with a mark if it was edited.

    The package may lie in another repository, whose commit says nothing of it: untracked, or as a
    part of that one. An image has none: there the environment variable HIDDENSTATE_COMMIT says it.
    """
    stated = os.environ.get("HIDDENSTATE_COMMIT") or None
    own = "src/hiddenstate/__init__.py"
    try:
        if _git("ls-files", "--full-name", "--error-unmatch", "__init__.py") != own:
            return stated
        # An empty --match passes over all tags, so that the commit itself is named.
        return _git("describe", "--always", "--dirty", "--abbrev=40", "--match=") or stated
    except (OSError, subprocess.TimeoutExpired):
        return stated


def _git(*arguments: str) -> str:
    """Output of git for the package's folder; empty where it fails."""
    done = subprocess.run(
        ["git", *arguments],
        cwd=Path(hiddenstate.__file__).parent,
        # A hook of git's is told another repository by them.
        env={name: value for name, value in os.environ.items() if not name.startswith("GIT_")},
        capture_output=True,
        text=True,
        timeout=10,
    )
    return done.stdout.strip()


def _device() -> str:
    """The accelerator in use if torch was loaded and has one, else the processor."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        return torch.cuda.get_device_name()
    return "cpu"
