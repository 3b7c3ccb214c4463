"""Whole files or none: everything is written under a temporary name and then renamed."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hiddenstate.errors import InputError


@contextmanager
def atomic(path: str | Path) -> Iterator[Path]:
    """Yield a temporary path beside ``path`` that replaces it if, and only if, the block succeeds.

    The temporary name keeps the suffix, because writers choose their format by it.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{path.stem}.", suffix=path.suffix, dir=path.parent)
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        # mkstemp makes private files; results are for everyone the umask allows.
        umask = os.umask(0)
        os.umask(umask)
        temporary.chmod(0o666 & ~umask)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def require(path: str | Path, what: str) -> Path:
    """Return ``path`` if it is a file, else raise an error that says what was looked for."""
    path = Path(path)
    if not path.is_file():
        raise InputError(f"{path}: no such file; expected {what}")
    return path
