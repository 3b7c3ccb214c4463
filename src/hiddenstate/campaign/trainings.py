"""Trainings that an audit runs: a function of data set and seed, in whichever form a user has it.

World "in" trains with the canary, world "out" without it; a larger score speaks for "in". Each form
can be loaded by a new process, and tells itself from others by digests of its code.
"""

import ast
import hashlib
import importlib
import importlib.util
import inspect
import itertools
import json
import os
import runpy
import shlex
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import IO, Any, Protocol, runtime_checkable

from hiddenstate import code
from hiddenstate.errors import InputError, expect
from hiddenstate.files import require

WORLDS = ("in", "out")

TrainingFunction = Callable[[str, int], float | Mapping[str, float]]
"""Maps a world and a seed to a score, or to several by their names."""


@runtime_checkable
class Training(Protocol):
    """Audited training, in a form that a new process can load."""

    @property
    def identity(self) -> dict[str, Any]:
        """Identity of this training, as JSON."""

    def load(self) -> TrainingFunction:
        """The function that trains one model and scores it."""


@dataclass(frozen=True)
class Script:
    """A function of a Python file, ``train(world, seed) -> score`` unless named otherwise.

    options: keyword arguments that every call gets.
    """

    path: Path
    function: str = "train"
    options: tuple[tuple[str, Any], ...] = ()

    @property
    def identity(self) -> dict[str, Any]:
        """Name of the file, digests of it and of what it imports, the function, its options."""
        path = require(self.path, "a Python file with the function that trains one model")
        return {
            "script": path.name,
            "files": _digests(path),
            "function": self.function,
            "options": {name: value for name, value in self.options},
        }

    def load(self) -> TrainingFunction:
        """The function, from a fresh import of the file."""
        path = require(self.path, "a Python file with the function that trains one model")
        # The arguments of this process are not the training's.
        sys.argv = [str(path)]
        train = getattr(imported(path), self.function, None)
        if not callable(train):
            raise InputError(
                f"{path}: has no function {self.function}(world, seed); name one with --function"
            )
        options = dict(self.options)
        return lambda world, seed: train(world, seed, **options)


def _in_package(path: Path) -> str:
    """The name of a Python file that lies in a package, whose parent is then at hand; else ""."""
    path = path.resolve()
    folders: list[str] = []
    for folder in path.parents:
        if not (folder / "__init__.py").exists():
            break
        folders.insert(0, folder.name)
    sys.path.insert(0, str(path.parents[len(folders)]))
    return ".".join([*folders, path.stem]) if folders else ""


def ran(path: Path) -> None:
    """Run a Python file as a script, as the part of a package that it is."""
    if name := _in_package(path):
        runpy.run_module(name, run_name="__main__")
    else:
        runpy.run_path(str(path), run_name="__main__")


def imported(path: Path) -> ModuleType:
    """A Python file, imported afresh, with those beside it at hand; InputError for others."""
    if path.suffix == ".py" and (name := _in_package(path)):
        sys.modules.pop(name, None)
        return importlib.import_module(name)
    spec = importlib.util.spec_from_file_location(path.stem, path.resolve())
    if spec is None or spec.loader is None:
        raise InputError(f"{path}: expected a file whose name ends in .py")
    module = importlib.util.module_from_spec(spec)
    # Before it runs: dataclasses and pickles look their module up by its name.
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


@dataclass(frozen=True)
class CommandLine:
    """A command whose last printed line is a score; {world} and {seed} are filled in.

    Several scores are a JSON object of them.
    """

    line: str

    def __post_init__(self) -> None:
        for name in ("{world}", "{seed}"):
            expect(name in self.line, "command", self.line, f"{name} in it")
        try:
            program = self._words[0]
        except ValueError as error:
            raise InputError(f"command: got {self.line!r}: {error}") from error
        if shutil.which(program) is None:
            raise InputError(f"command: got {self.line!r}; program {program!r} was not found")

    @property
    def identity(self) -> dict[str, Any]:
        """The command, and digests of the files that it names and of what they import."""
        words = {word.replace("{world}", world) for word in self._words for world in WORLDS}
        named = words | {word.partition("=")[2] for word in words}
        for before, word in itertools.pairwise(self._words):
            if before == "-m":  # a module of the folder that the command runs in
                module = word.replace(".", "/")
                named |= {f"{module}.py", f"{module}/__main__.py"}
        files = {name: _digests(Path(name)) for name in sorted(named) if os.path.isfile(name)}
        return {"command": self.line, "files": files}

    @property
    def _words(self) -> list[str]:
        return shlex.split(self.line)

    def load(self) -> TrainingFunction:
        return self._train

    def _train(self, world: str, seed: int) -> float | dict[str, float]:
        words = [
            word.replace("{world}", world).replace("{seed}", str(seed)) for word in self._words
        ]
        with _session(words) as process:
            # What is printed goes to this process's own output, the campaign's log, as it comes.
            printed, told = _Copied(process.stdout, 1), _Copied(process.stderr, 2)
            process.wait()
        printed.join()
        told.join()
        if process.returncode != 0:
            last = told.last_line or "nothing on stderr"
            raise RuntimeError(f"exit status {process.returncode}: {last:.300}")
        try:
            if printed.last_line.startswith("{"):
                return {name: float(x) for name, x in json.loads(printed.last_line).items()}
            return float(printed.last_line)
        except (TypeError, ValueError):
            raise RuntimeError(
                f"last printed line is not a score: {printed.last_line!r:.80}"
            ) from None


RUNNING: set[int] = set()
"""Sessions of commands that this process runs."""
_STARTING = threading.Lock()
"""Held while a command starts, for one that is not yet among those that run would be left alive."""


@contextmanager
def commands_ended() -> Iterator[None]:
    """Kill the commands that this process runs, and what they started; none starts meanwhile."""
    with _STARTING:
        for session in tuple(RUNNING):
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(session, signal.SIGKILL)
        yield


@contextmanager
def _session(words: list[str]) -> Iterator["subprocess.Popen[bytes]"]:
    """A command in a session of its own; what it leaves in the background ends with it."""
    with _STARTING:
        process = subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        RUNNING.add(process.pid)
    try:
        yield process
    finally:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        RUNNING.discard(process.pid)


class _Copied:
    """A thread that copies a stream to a file descriptor and keeps its end."""

    KEPT = 4096
    PATIENCE = 30.0
    """Seconds to wait for a stream that a process outside the session still holds."""

    def __init__(self, stream: IO[bytes] | None, to: int) -> None:
        assert stream is not None
        self.stream, self.to, self.tail = stream, to, b""
        self.thread = threading.Thread(target=self._copy, daemon=True)
        self.thread.start()

    def _copy(self) -> None:
        with self.stream:
            while chunk := os.read(self.stream.fileno(), 1 << 16):
                with suppress(OSError):
                    os.write(self.to, chunk)
                self.tail = (self.tail + chunk)[-self.KEPT :]

    def join(self) -> None:
        """Wait until all is copied that the command printed."""
        self.thread.join(self.PATIENCE)

    @property
    def last_line(self) -> str:
        return (self.tail.decode(errors="replace").strip().splitlines() or [""])[-1].strip()


@dataclass(frozen=True)
class Function:
    """An importable function."""

    train: TrainingFunction

    @property
    def identity(self) -> dict[str, Any]:
        """Its name, and digests of its file and of what that imports."""
        try:
            source = inspect.getsourcefile(self.train)
        except TypeError:
            source = None
        if source is None or not os.path.isfile(source):
            raise InputError(
                f"training: got {self.train!r:.80}; expected a function of a Python file, or "
                "Script(path, function, options=...) where it takes more than world and seed"
            )
        return {"function": self.train.__qualname__, "files": _digests(Path(source))}

    def load(self) -> TrainingFunction:
        return self.train


def _digests(path: Path) -> dict[str, str]:
    """SHA-256 of a file, and of what a Python file imports from beside it, however deep.

    For a package, imports are followed inside it and next to it. Data files are not followed.
    """
    path = path.resolve()
    top = next(folder for folder in path.parents if not (folder / "__init__.py").exists())

    def imports(file: Path) -> list[Path]:
        if file.suffix != ".py" or "site-packages" in file.parts:
            return []
        try:
            tree = ast.parse(file.read_bytes())
        except (SyntaxError, ValueError):
            return []  # what is no Python says so when it is run
        return list(code.imported(tree, file, {path.parent, top}, packages=True))

    names = {os.path.relpath(file, top): file for file in code.closure([path], imports)}
    return {name: hashlib.sha256(names[name].read_bytes()).hexdigest() for name in sorted(names)}
