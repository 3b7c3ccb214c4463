"""Finished models of an audit on disk, so that a killed one loses a chunk and no more."""

import dataclasses
import functools
import hashlib
import zipfile
from pathlib import Path

import numpy as np

from hiddenstate.errors import InputError
from hiddenstate.files import atomic

Row = dict[str, float]
"""Score and measures of a run."""
Identity = tuple[str, int, int]
"""World, repeat and index of a run."""


def fingerprint(*parts) -> str:
    """SHA-256 of what decides the scores, as far as a digest can see it.

    Arrays and tensors enter by their bytes, functions by their name, not by what they compute.
    """
    return hashlib.sha256("\0".join(map(_digest, parts)).encode()).hexdigest()


def _digest(value) -> str:
    if hasattr(value, "detach"):
        value = value.detach().cpu().numpy()
    if isinstance(value, np.ndarray):
        array = np.ascontiguousarray(value)
        described = f"{array.dtype}{array.shape}".encode()
        return hashlib.sha256(described + array.tobytes()).hexdigest()
    if isinstance(value, dict):
        return str([(key, _digest(value[key])) for key in sorted(value)])
    if isinstance(value, functools.partial):
        return _digest({"": value.func, **value.keywords}) + str([_digest(v) for v in value.args])
    # An object without a representation of its own would enter by its address.
    bare = type(value).__repr__ is object.__repr__ and hasattr(value, "__dict__")
    if bare or (dataclasses.is_dataclass(value) and not isinstance(value, type)):
        return type(value).__qualname__ + _digest(vars(value))
    return getattr(value, "__qualname__", None) or repr(value)


class Checkpoint:
    """Finished runs, one file a chunk, in a directory of one audit; None keeps nothing.

    columns: the names of what is kept of a run. ``read`` raises InputError for another audit.
    """

    def __init__(self, directory: str | Path | None, fingerprint: str, columns: tuple[str, ...]):
        self._directory = None if directory is None else Path(directory)
        self._fingerprint = fingerprint
        self._columns = columns

    def read(self) -> dict[Identity, Row]:
        """Scores and measures of the finished runs."""
        done: dict[Identity, Row] = {}
        if self._directory is None or not self._directory.is_dir():
            return done
        for path in sorted(self._directory.glob("[!.]*.npz")):
            try:
                # Opened here, for numpy leaves a damaged file open.
                with path.open("rb") as opened, np.load(opened, allow_pickle=False) as file:
                    found = {key: file[key].tolist() for key in file.files}
                fingerprint, columns = found["fingerprint"], tuple(found["columns"])
                runs = list(zip(found["world"], found["repeat"], found["run"], strict=True))
                values = found["values"]
            except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
                raise InputError(f"{path}: not a readable checkpoint ({error})") from error
            if fingerprint != self._fingerprint or columns != self._columns:
                raise InputError(
                    f"{path}: is of another audit (other parameters, data, canary, seed or "
                    "measures); expected a directory of this one, or an empty one"
                )
            for run, row in zip(runs, values, strict=True):
                done[run] = dict(zip(columns, row, strict=True))
        return done

    def write(self, found: dict[Identity, Row]) -> None:
        """Keep one chunk."""
        if self._directory is None or not found:
            return
        world, repeat, run = zip(*found, strict=True)
        with atomic(self._directory / f"{world[0]}-{repeat[0]}-{run[0]}.npz") as temporary:
            np.savez(
                temporary,
                fingerprint=self._fingerprint,
                columns=self._columns,
                world=world,
                repeat=repeat,
                run=run,
                values=[[row[column] for column in self._columns] for row in found.values()],
            )
