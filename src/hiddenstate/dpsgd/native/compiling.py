"""C source compiled with the system's compiler on first use and kept in the user's cache folder."""

import atexit
import ctypes
import hashlib
import os
import platform
import shutil
import stat
import subprocess
import tempfile
from functools import cache
from pathlib import Path

from hiddenstate.errors import InputError
from hiddenstate.files import atomic

HEADERS = Path(__file__).parent
# -fno-math-errno lets a square root be one instruction. -ffast-math would take away NaN, by which
# overflowing norms show.
_FLAGS = ("-O3", "-march=native", "-fno-math-errno", "-shared", "-fPIC", "-lm")


class CompilationError(RuntimeError):
    """There is no C compiler, or it failed."""


@cache
def compiler() -> str | None:
    """Path of the C compiler that CC names, or of the system's best, or None."""
    # With AVX2 clang 14 made the MNIST CNN 1.8 times slower than gcc 12, and cc may be either.
    names = os.environ.get("CC", "gcc"), "gcc", "cc", "clang"
    return next(filter(None, map(shutil.which, names)), None)


def load(driver: str) -> ctypes.CDLL:
    """C source, which may include this folder's headers, compiled unless the cache has it.

    Raises CompilationError without a compiler, if it fails, or if the library cannot be used.
    """
    if compiler() is None:
        raise CompilationError("no C compiler was found")
    headers = sorted(HEADERS.glob("*.h"))
    sources = {"driver.c": driver} | {h.name: h.read_text(encoding="utf-8") for h in headers}
    # A cache shared by unlike machines must not hand one machine's instructions to another.
    parts = (*sources.values(), compiler(), *_FLAGS, platform.machine(), _processor())
    name = hashlib.sha256("\0".join(map(str, parts)).encode()).hexdigest()[:32] + ".so"
    return _library(name, sources)


def _library(name: str, sources: dict[str, str]) -> ctypes.CDLL:
    """The compiled library: in the cache, or where that cannot be used, in this process's folder.

    A cached one is loaded if nobody but this user and root could have written it: its name tells
    anyone what to plant.
    """
    reason = "no folder was found for the library, not even a temporary one"
    for folder in (_cache, _own):
        try:
            if (place := folder()) is None:
                continue
            path = place / name
            if not (_private(path) and _whole(path)):
                _compile(path, sources)
        except (InputError, OSError):  # it cannot be written
            continue
        try:
            return ctypes.CDLL(str(path))
        except OSError as error:
            # Such as a folder on a file system without permission to execute.
            reason = f"{path} cannot be used ({error})"
    raise CompilationError(reason)


def _compile(path: Path, sources: dict[str, str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        for source, text in sources.items():
            Path(folder, source).write_text(text, encoding="utf-8")
        # Here, where a compiler that fails has not failed for want of room in the cache.
        done = subprocess.run(
            [str(compiler()), "driver.c", "-o", "library.so", *_FLAGS],
            cwd=folder,
            capture_output=True,
            text=True,
        )
        if done.returncode:
            raise CompilationError(f"{compiler()} failed: {done.stderr.strip()[:500]}")
        content = Path(folder, "library.so").read_bytes()
    with atomic(path) as temporary:
        temporary.write_bytes(content + hashlib.sha256(content).digest())
    path.chmod(0o600)  # where each user has a group, others may write a new file


def _whole(path: Path) -> bool:
    """True if the library ends with its own digest: loading a part of one may kill the process."""
    content = path.read_bytes() if path.exists() else b""
    return len(content) > 32 and hashlib.sha256(content[:-32]).digest() == content[-32:]


def _cache() -> Path | None:
    """The user's folder for libraries, or None where others could write into it."""
    home = os.environ.get("XDG_CACHE_HOME", "")
    try:
        # The specification of base directories has a relative one ignored.
        parent = Path(home) if os.path.isabs(home) else Path.home() / ".cache"
        folder = parent / "hiddenstate"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except (OSError, RuntimeError):
        return None
    return folder if _private(folder) else None


@cache
def _own() -> Path:
    """A folder of this process, which ends with it."""
    folder = tempfile.TemporaryDirectory(prefix="hiddenstate-")
    atexit.register(folder.cleanup)
    return Path(folder.name)


def _private(path: Path) -> bool:
    """True if only this user and root can write or replace the file or folder.

    Folders above may be of anyone's whom they were made for, and open to others if sticky.
    """
    own = {0, os.geteuid()}
    try:
        found = path.lstat()
        if stat.S_ISLNK(found.st_mode) or found.st_uid not in own or found.st_mode & 0o022:
            return False
        above = [folder.stat() for folder in path.resolve().parents]
    except OSError:
        return False
    return all(not one.st_mode & stat.S_IWOTH or one.st_mode & stat.S_ISVTX for one in above)


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next((line for line in lines if line.startswith(("flags", "Features"))), "")
