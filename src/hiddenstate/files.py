"""Whole files or none: everything is written under a temporary name and then renamed."""

import csv
import errno
import fcntl
import hashlib
import lzma
import os
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.resources import files
from io import StringIO
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hiddenstate.errors import InputError

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import NDArray


@contextmanager
def atomic(path: str | Path) -> Iterator[Path]:
    """Yield a temporary path beside ``path`` that replaces it if, and only if, the block succeeds.

    The temporary name keeps the suffix, because writers choose their format by it. A place that
    cannot be written is an error that names ``path``.
    """
    path = Path(path)
    temporary = _temporary(path)
    try:
        yield temporary
        # mkstemp makes private files; results are for everyone the umask allows.
        umask = os.umask(0)
        os.umask(umask)
        temporary.chmod(0o666 & ~umask)
        temporary.replace(path)
    except OSError as error:
        # Any other error of the block is of something else that it does.
        if error.errno in _FULL or isinstance(error, IsADirectoryError):
            raise _unwritable(path, error) from error
        raise
    finally:
        temporary.unlink(missing_ok=True)


_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS)
"""What a disk that is full, or breaks, answers to a write."""


def _temporary(path: Path) -> Path:
    """A new empty file beside ``path``, whose directory is made."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(
            prefix=f".{path.stem}.", suffix=path.suffix, dir=path.parent
        )
    except OSError as error:
        raise _unwritable(path, error) from error
    os.close(handle)
    return Path(name)


def _unwritable(path: Path | str, error: OSError) -> InputError:
    return InputError(f"{path}: cannot be written: {os.strerror(error.errno or 0)}")


WRITES = "another command writes files of this source tree"
"""For ``alone``, of commands that read the pages of a tree and write them again."""


@contextmanager
def alone(directory: Path, otherwise: str, part: str = "") -> Iterator[None]:
    """Keep other processes out of a directory, which is made; InputError where one is in it.

    otherwise: what it means that there is one. part: of the work in the directory; processes of
    several parts may be in it together, one of each, and none of the whole. Where the file system
    has no locks, none is held. The directory goes once it is empty, unless it was empty before.
    """
    path = directory / f".lock{part}"
    refused = InputError(f"{directory}: {otherwise}; wait until it has ended, or end it")
    made = False
    while True:
        try:
            # Of a killed process something is left in it; an empty one is the user's.
            made |= not directory.is_dir() or any(directory.iterdir())
            directory.mkdir(parents=True, exist_ok=True)
            opened = path.open("a", encoding="utf-8")
        except OSError as error:
            if isinstance(error, FileNotFoundError) and not path.is_symlink():
                continue  # whoever was in it before has just removed it
            raise _unwritable(error.filename, error) from error
        with opened:
            try:
                fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise refused from error
            except OSError as error:
                warnings.warn(f"{path}: cannot be locked: {error.strerror}", stacklevel=3)
            # Whoever held it before may have removed it since it was opened.
            try:
                if not os.path.samestat(path.stat(), os.fstat(opened.fileno())):
                    continue
            except FileNotFoundError:
                continue
            try:
                # Own lock first, then a look at the others: of two that come at once, at least
                # one is refused.
                for other in directory.glob(".lock" if part else ".lock?*"):
                    if _held(other):
                        raise refused
                yield
            finally:
                path.unlink(missing_ok=True)
                if made:
                    with suppress(OSError):  # finished models are in it
                        directory.rmdir()
            return


def _held(path: Path) -> bool:
    """True if a process holds the lock of that file."""
    try:
        with path.open("r+", encoding="utf-8") as opened:  # which makes none
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # gone, or without locks
        return False
    return False


def text(path: str | Path, what: str) -> str:
    """The text of a file that ``require`` finds; one that cannot be read is an error."""
    try:
        return require(path, what).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read: {error}") from error


def table(path: str | Path, what: str) -> "pd.DataFrame":
    """The rows of a CSV file with a header, at least one.

    A row with more or fewer fields than the header is refused: pandas would shift its columns.
    """
    import pandas as pd

    # Spreadsheets may write a byte order mark before the header.
    content = text(path, what).removeprefix("\ufeff")
    lines = csv.reader(StringIO(content, newline=""))
    try:
        header = next(filter(None, lines), [])
        for row in filter(None, lines):
            if len(row) != len(header):
                raise InputError(
                    f"{path}: line {lines.line_num}: fields: got {len(row)}; "
                    f"expected {len(header)}, as in the header"
                )
        found = pd.read_csv(StringIO(content), index_col=False)
    except (csv.Error, pd.errors.EmptyDataError, pd.errors.ParserError) as error:
        raise InputError(f"{path}: not a readable CSV file ({error}); expected {what}") from error
    if found.empty:
        raise InputError(f"{path}: has no rows; expected {what}")
    return found


def line_of(path: Path, row: int) -> int:
    """Line of a CSV file's row, which counts from 0 after the header; blank lines are no rows."""
    with path.open(encoding="utf-8-sig") as lines:
        written = (number for number, line in enumerate(lines, 1) if line.strip("\n"))
        return next(islice(written, row + 1, None), row + 2)


def arrays(path: Path, expected: str) -> "dict[str, NDArray[Any]]":
    """Arrays of a .npz file by name; InputError for one that is damaged or of another kind."""
    import numpy as np

    try:
        # Opened here, for numpy leaves a damaged file open.
        with path.open("rb") as opened, np.load(opened, allow_pickle=False) as file:
            return dict(file.items())
    except Exception as error:  # whatever the readers of zip files and arrays raise
        raise InputError(f"{path}: {error}; expected {expected}") from error


def array(path: str | Path, expected: str) -> "NDArray[Any]":
    """Real numbers of a .npy file; InputError for one that is damaged or of another kind."""
    import numpy as np

    path = require(path, expected)
    try:
        with path.open("rb") as opened:
            found = np.load(opened, allow_pickle=False)
    except Exception as error:  # whatever the readers of arrays raise
        raise InputError(f"{path}: {error}; expected {expected}") from error
    if not isinstance(found, np.ndarray) or found.dtype.kind not in "biuf":
        got = f"type {found.dtype}" if isinstance(found, np.ndarray) else "several arrays"
        raise InputError(f"{path}: got {got}; expected {expected}")
    return found


def require(path: str | Path, what: str) -> Path:
    """Return ``path`` if it is a file, else raise an error that says what was looked for."""
    path = Path(path)
    if not path.is_file():
        raise InputError(f"{path}: no such file; expected {what}")
    return path


def shipped(name: str, sha256: str) -> str:
    """The text of a compressed file of ``datasets``, whose uncompressed digest is ``sha256``."""
    path = files("hiddenstate.datasets").joinpath(name)
    try:
        content = lzma.decompress(path.read_bytes())
    except (OSError, lzma.LZMAError) as error:
        raise InputError(f"{path}: not readable ({error}); expected the package's file") from error
    if (found := hashlib.sha256(content).hexdigest()) != sha256:
        raise InputError(f"{path}: SHA-256 {found}; expected {sha256}, the package's file")
    return content.decode()
