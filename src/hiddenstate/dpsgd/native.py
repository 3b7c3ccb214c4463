"""Sum of clipped per-sample gradients in native code, for feed-forward networks on a CPU.

``clipped_sum.h`` holds the algorithm and ``driver`` writes a call with constant sizes for every
layer. Here that is compiled with the system's C compiler on first use, kept in the user's cache
directory, and given its weights and data in the layouts it wants. Where there is no compiler, or
the model is of another kind, the torch path of ``clipping`` does the same work.
"""

import atexit
import copy
import ctypes
import hashlib
import os
import platform
import shutil
import stat
import subprocess
import tempfile
import threading
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hiddenstate.dpsgd.driver import Network, c_source
from hiddenstate.errors import InputError
from hiddenstate.files import atomic

_FLAGS = ("-O3", "-march=native", "-fno-math-errno", "-shared", "-fPIC", "-lm")


class CompilationError(RuntimeError):
    """There is no C compiler, or it failed."""


class Kernel:
    """Sum of clipped gradients of one model over records of one data set.

    x: shape (records, *record shape), float32. y: shape (records,), int64. Safe to call from
    several threads at once; the result does not depend on how many do.
    """

    def __init__(self, network: Network, x: NDArray[np.float32], y: NDArray[np.int64]):
        if compiler() is None:
            raise CompilationError("no C compiler was found")
        self._function, self._workspace_bytes, lanes = _compiled(c_source(network))
        self._network = network
        self._take(x, y)
        # Where each entry of the packed weights comes from (0: padding), and where each
        # parameter's gradient lies in the packed sum.
        weights: list[NDArray[np.int64]] = []
        sums: list[NDArray[np.int64]] = []
        for layer in network.layers:
            forward, bias, backward, gradient = layer.layouts(lanes)
            weights += [forward, bias, backward] if layer.turned else [forward, bias]
            sums += [gradient, bias]
        self._gather = np.concatenate([w.ravel() for w in weights])
        packed = np.concatenate([s.ravel() for s in sums])
        self._sum_size = packed.size
        places = np.flatnonzero(packed)
        self._scatter = np.empty(len(places), np.int64)
        self._scatter[packed[places] - 1] = places

    def _take(self, x: NDArray[np.float32], y: NDArray[np.int64]) -> None:
        classes = self._network.classes
        self._x = self._network.prepared(np.asarray(x, np.float32))
        self._y = np.ascontiguousarray(y, np.int64)
        if self._y.min() < 0 or self._y.max() >= classes:
            raise ValueError(
                f"labels from {self._y.min()} to {self._y.max()} for {classes} classes"
            )
        self._local = threading.local()

    def on(self, x: NDArray[np.float32], y: NDArray[np.int64]) -> "Kernel":
        """The same model's kernel on other records."""
        other = copy.copy(self)
        other._take(x, y)
        return other

    def __call__(
        self, theta: NDArray[np.float32], indices: NDArray[np.int64], clipping_norm: float
    ) -> tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.float32]]:
        """(sum of clipped gradients (p,), gradient norms (b,), losses (b,)) of these records."""
        indices = np.ascontiguousarray(indices, np.int64)
        local = self._local
        if not hasattr(local, "pointers"):
            # Borders of images are never written, so they stay zero from call to call.
            local.workspace = _aligned(self._workspace_bytes // 4)
            local.weights, local.sum = _aligned(self._gather.size), _aligned(self._sum_size)
            local.theta = np.zeros(len(theta) + 1, np.float32)  # the first stands for padding
            arrays = (local.weights, self._x, self._y, local.sum, local.workspace)
            local.pointers = [array.ctypes.data for array in arrays]
        weights, x, y, total, workspace = local.pointers
        local.theta[1:] = theta
        # "clip" is the mode that does not buffer; the entries are in range by construction.
        np.take(local.theta, self._gather, out=local.weights, mode="clip")
        local.sum.fill(0)
        norms, losses = observed = np.empty((2, indices.size), np.float32)
        first = observed.ctypes.data
        outside = self._function(
            weights, x, y, len(self._y), indices.ctypes.data, indices.size, clipping_norm, total,
            first, first + 4 * indices.size, workspace,
        )  # fmt: skip
        if outside:
            raise ValueError(f"indices must be of the {len(self._y)} records")
        return local.sum[self._scatter], norms, losses


def _aligned(size: int) -> NDArray[np.float32]:
    """Zeros, on a cache line's boundary."""
    room = np.zeros(size + 16, np.float32)
    start = -room.ctypes.data % 64 // 4
    return room[start : start + size]


@cache
def compiler() -> str | None:
    """Path of the C compiler that CC names, or of the system's best, or None."""
    # With AVX2 clang 14 made the MNIST CNN 1.8 times slower than gcc 12, and cc may be either.
    names = os.environ.get("CC", "gcc"), "gcc", "cc", "clang"
    return next(filter(None, map(shutil.which, names)), None)


@cache
def _compiled(driver: str) -> tuple[Any, int, int]:
    """(function, bytes of its workspace, lanes of a vector) of a driver."""
    library = load(driver, "clipped_sum.h")
    library.scratch_bytes.restype = ctypes.c_size_t
    function = library.clipped_sum
    function.restype = ctypes.c_int
    pointer, count = ctypes.c_void_p, ctypes.c_int64
    function.argtypes = (
        pointer, pointer, pointer, count, pointer, count, ctypes.c_float, *[pointer] * 4,
    )  # fmt: skip
    return function, library.scratch_bytes(), library.lanes()


def load(driver: str, *headers: str) -> ctypes.CDLL:
    """C source that includes ``headers`` of this package, compiled unless the cache has it.

    Raises CompilationError without a compiler, if it fails, or if the library cannot be used.
    """
    if compiler() is None:
        raise CompilationError("no C compiler was found")
    sources = {
        "driver.c": driver,
        **{
            name: files("hiddenstate.dpsgd").joinpath(name).read_text(encoding="utf-8")
            for name in headers
        },
    }
    # A cache shared by unlike machines must not hand one machine's instructions to another.
    parts = (*sources.values(), compiler(), *_FLAGS, platform.machine(), _processor())
    name = hashlib.sha256("\0".join(map(str, parts)).encode()).hexdigest()[:32] + ".so"
    path = _library(name, sources)
    try:
        return ctypes.CDLL(str(path))
    except OSError as error:
        # Such as a cache on a file system without permission to execute.
        raise CompilationError(f"{path} cannot be used ({error})") from error


def _library(name: str, sources: dict[str, str]) -> Path:
    """The compiled library: in the cache, or where that cannot be used, in this process's folder.

    A cached one is loaded if nobody but this user and root could have written it: its name tells
    anyone what to plant.
    """
    for folder in (_cache(), _own()):
        if folder is None:
            continue
        path = folder / name
        if _private(path) and _whole(path):
            return path
        try:
            _compile(path, sources)
        except (InputError, OSError):  # it cannot be written
            continue
        return path
    raise CompilationError("no folder was found for the library, not even a temporary one")


def _compile(path: Path, sources: dict[str, str]) -> None:
    with tempfile.TemporaryDirectory() as folder, atomic(path) as temporary:
        for source, text in sources.items():
            Path(folder, source).write_text(text, encoding="utf-8")
        done = subprocess.run(
            [str(compiler()), "driver.c", "-o", str(temporary), *_FLAGS],
            cwd=folder,
            capture_output=True,
            text=True,
        )
        if done.returncode:
            raise CompilationError(f"{compiler()} failed: {done.stderr.strip()[:500]}")
        content = temporary.read_bytes()
        temporary.write_bytes(content + hashlib.sha256(content).digest())
    path.chmod(0o600)  # where each user has a group, others may write a new file


def _whole(path: Path) -> bool:
    """Whether the library ends with its own digest: to load a part of one may kill the process."""
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
    """Whether nobody but this user and root can write the file or folder, or put another there.

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
