"""An audit of any training: many runs side by side, killed and resumed, and a verdict at the end.

A training is a function ``train(world, seed) -> score``, in a Python file or importable, or a
command line that prints a score. World "in" trains with the canary, world "out" without it; a
larger score speaks for "in". Every run has a seed of its own, so the worlds share no randomness.

The seed of a run depends on the campaign's seed, the world and the index of the run alone, and a
verdict on the scores of the first runs alone, so neither depends on the number of workers, the
order in which runs finish, crashes, or how often the campaign was killed and resumed.

A crashed run is tried again with the same seed, and never left out: crashes may depend on the
world, and an audit of the survivors would be of another mechanism.
"""

import ast
import hashlib
import importlib.util
import inspect
import json
import math
import multiprocessing
import os
import shlex
import signal
import subprocess
import sys
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, fields, is_dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
import pandas as pd
from tqdm import tqdm

from hiddenstate import scores
from hiddenstate.auditing.sequential import SequentialAudit, Verdict
from hiddenstate.errors import InputError
from hiddenstate.files import atomic, require
from hiddenstate.streams import key

WORLDS = ("in", "out")

Train = Callable[[str, int], float]


@runtime_checkable
class Training(Protocol):
    """What is audited, in a form that a new process can load."""

    @property
    def identity(self) -> dict[str, Any]:
        """What tells this training from others, as JSON."""

    def load(self) -> Train:
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

    def load(self) -> Train:
        """The function, from a fresh import of the file."""
        path = require(self.path, "a Python file with the function that trains one model")
        spec = importlib.util.spec_from_file_location(path.stem, path.resolve())
        if spec is None or spec.loader is None:
            raise InputError(f"{path}: expected a file whose name ends in .py")
        module = importlib.util.module_from_spec(spec)
        sys.path.insert(0, str(path.resolve().parent))
        sys.modules[path.stem] = module
        spec.loader.exec_module(module)
        train = getattr(module, self.function, None)
        if not callable(train):
            raise InputError(f"{path}: has no function {self.function}(world, seed)")
        options = dict(self.options)
        return lambda world, seed: train(world, seed, **options)


@dataclass(frozen=True)
class CommandLine:
    """A command whose last printed line is a score; {world} and {seed} are filled in."""

    line: str

    def __post_init__(self) -> None:
        for name in ("{world}", "{seed}"):
            if name not in self.line:
                raise InputError(f"command: got {self.line!r}; expected {name} in it")

    @property
    def identity(self) -> dict[str, Any]:
        """The command, and digests of the files that it names and of what they import."""
        words = {word.replace("{world}", world) for word in self._words for world in WORLDS}
        named = words | {word.partition("=")[2] for word in words}
        files = {name: _digests(Path(name)) for name in sorted(named) if os.path.isfile(name)}
        return {"command": self.line, "files": files}

    @property
    def _words(self) -> list[str]:
        return shlex.split(self.line)

    def load(self) -> Train:
        """A function that runs the command."""
        return self._train

    def _train(self, world: str, seed: int) -> float:
        words = [
            word.replace("{world}", world).replace("{seed}", str(seed)) for word in self._words
        ]
        done = subprocess.run(words, capture_output=True, text=True, stdin=subprocess.DEVNULL)
        if done.returncode != 0:
            told = done.stderr.strip().splitlines()[-1:] or ["nothing on stderr"]
            raise RuntimeError(f"exit status {done.returncode}: {told[0]}")
        lines = done.stdout.strip().splitlines() or [""]
        try:
            return float(lines[-1])
        except ValueError:
            raise RuntimeError(f"last line printed is no score: {lines[-1]!r:.80}") from None


@dataclass(frozen=True)
class _Function:
    """An importable function."""

    train: Train

    @property
    def identity(self) -> dict[str, Any]:
        try:
            source = inspect.getsourcefile(self.train)
        except TypeError:
            source = None
        if source is None:
            raise InputError(
                f"training: got {self.train!r:.80}; expected a function of a Python file, or "
                "Script(path, function, options=...) where it takes more than world and seed"
            )
        return {"function": self.train.__qualname__, "files": _digests(Path(source))}

    def load(self) -> Train:
        return self.train


def _digests(path: Path) -> dict[str, str]:
    """SHA-256 of a file, and of what a Python file imports from beside it, however deep.

    Of a package's module beside means within the package, and beside that. Nothing else that a
    training reads is known.
    """
    path = path.resolve()
    top = next(folder for folder in path.parents if not (folder / "__init__.py").exists())
    found: dict[str, str] = {}
    waiting = [path]
    while waiting:
        file = waiting.pop()
        name = os.path.relpath(file, top)
        if name in found:
            continue
        with file.open("rb") as content:
            found[name] = hashlib.file_digest(content, "sha256").hexdigest()
        if file.suffix == ".py" and "site-packages" not in file.parts:
            waiting += _imported(file, {path.parent, top})
    return dict(sorted(found.items()))


def _imported(file: Path, places: Iterable[Path]) -> Iterator[Path]:
    """Files that a Python file imports from these places, or from its own package."""
    try:
        nodes = list(ast.walk(ast.parse(file.read_bytes())))
    except (SyntaxError, ValueError):
        return  # what is no Python says so when it is run
    for node in nodes:
        match node:
            case ast.Import(names=names):
                wanted = [(place, alias.name) for place in places for alias in names]
            case ast.ImportFrom(module=module, names=names, level=level):
                # What is imported of a package may be a module of it.
                inside = [f"{module}.{alias.name}" if module else alias.name for alias in names]
                bases = places if level == 0 else [file.parents[level - 1]]
                wanted = [(base, name) for base in bases for name in inside]
            case _:
                continue
        for base, name in wanted:
            parts = name.split(".")
            for depth in range(1, len(parts) + 1):
                stem = base.joinpath(*parts[:depth])
                both = stem.with_name(f"{stem.name}.py"), stem / "__init__.py"
                yield from (found for found in both if found.is_file())


@dataclass(frozen=True)
class Outcome:
    """How a campaign ended.

    verdict: of the test. scores: the score file, of the runs judged. models: how many of them are
    in each world. crashes: what went wrong in this run and was tried again, one line each. taken,
    finished: how many finished runs were there before, and are there now.
    """

    verdict: Verdict
    scores: Path
    models: int
    crashes: list[str] = field(default_factory=list)
    taken: int = 0
    finished: int = 0


def run(
    training: Training | Train,
    test: SequentialAudit,
    out: str | Path,
    *,
    seed: int = 0,
    workers: int = 1,
    retries: int = 2,
    timeout: float | None = None,
    progress: bool = False,
) -> Outcome:
    """Train until the test decides; write the scores to ``scores.parquet`` in ``out``.

    test: its looks have the same number of models in either world. out: directory of the campaign.
    Finished runs are kept there, so a killed campaign goes on; a directory of another training,
    seed or test is refused. What tells trainings apart is their code, with what a Python file
    imports from beside it, and not the data that it reads. workers: processes, one run at a time
    each, on one thread unless OMP_NUM_THREADS says otherwise. retries: how often a run that
    crashes, hangs beyond ``timeout`` seconds or gives no finite score is tried again; after that
    InputError names it. What the training prints goes to ``log.txt`` in ``out``.
    """
    if isinstance(workers, bool) or workers < 1:
        raise InputError(f"workers: got {workers}; expected at least 1")
    if retries < 0:
        raise InputError(f"retries: got {retries}; expected at least 0")
    if timeout is not None and not timeout > 0:
        raise InputError(f"timeout: got {timeout}; expected seconds above 0")
    looks = []
    for n_in, n_out in test.sizes:
        if n_in != n_out:
            raise InputError(f"looks: got {(n_in, n_out)}; expected as many models in each world")
        looks.append(n_in)
    loadable = training if isinstance(training, Training) else _Function(training)
    store = _Store(
        Path(out), {"training": loadable.identity, "seed": seed, "test": _described(test)}
    )
    store.open()
    taken = len(store.finished)
    tasks = _tasks(seed, looks[-1])
    missing = deque(task for task in tasks if (task.world, task.run) not in store.finished)
    crashes: list[str] = []
    verdict = _judge(test, store, looks)
    if missing and verdict.decision == "continue":
        crew = _Crew(loadable, workers, store.directory / "log.txt", timeout)
        with (
            crew.employed(),
            tqdm(
                total=len(tasks),
                initial=len(tasks) - len(missing),
                unit="model",
                disable=not progress,
            ) as bar,
        ):
            attempts: dict[_Task, int] = {}
            while verdict.decision == "continue":
                for result in crew.work(missing):
                    if result.error is None:
                        store.keep(result)
                        bar.update()
                        continue
                    task = result.task
                    attempts[task] = attempts.get(task, 0) + 1
                    crashes.append(f"{task.world}-run {task.run}: {result.error}")
                    if attempts[task] > retries:
                        raise InputError(
                            f"{task.world}-run {task.run} (seed {task.seed}) failed "
                            f"{attempts[task]} times, at last with: {result.error}. "
                            f"{len(store.finished)} finished runs are kept in {store.directory} "
                            "(log.txt has what was printed); mend it and run the same again"
                        )
                    missing.appendleft(task)
                if store.complete() >= next((n for n in looks if n > store.judged), looks[-1]):
                    verdict = _judge(test, store, looks)
    used = verdict.models[0]
    written = store.write(used, loadable.identity, seed, crashes)
    return Outcome(verdict, written, used, crashes, taken, len(store.finished))


@dataclass(frozen=True)
class _Task:
    """One model to train."""

    world: str
    run: int
    seed: int


@dataclass(frozen=True)
class _Result:
    """A score, or what went wrong."""

    task: _Task
    score: float
    seconds: float
    error: str | None = None


def _tasks(seed: int, models: int) -> list[_Task]:
    """All runs in their order; seeds are distinct, below 2^31, and those of a prefix its own."""
    tasks: list[_Task] = []
    taken: set[int] = set()
    for run_ in range(models):
        for world in WORLDS:
            attempt = 0
            while (own := key(seed, "campaign", world, run_, attempt) % 2**31) in taken:
                attempt += 1
            taken.add(own)
            tasks.append(_Task(world, run_, own))
    return tasks


def _described(thing: Any) -> Any:
    """What tells a test from others, as JSON: its plain values, and those of what it is made of."""
    if isinstance(thing, np.ndarray):
        # Curves agree between machines up to rounding; adding 0 gives zeros one sign.
        return hashlib.sha256((np.round(thing, 4) + 0.0).tobytes()).hexdigest()
    if is_dataclass(thing):
        described = {part.name: _described(getattr(thing, part.name)) for part in fields(thing)}
        return {"kind": type(thing).__name__} | described
    if isinstance(thing, Sequence) and not isinstance(thing, str):
        return [_described(item) for item in thing]
    return thing.item() if isinstance(thing, np.generic) else thing


def _judge(test: SequentialAudit, store: "_Store", looks: Sequence[int]) -> Verdict:
    """The test's verdict on the runs finished without a gap, at the last look they reach."""
    reached = max((n for n in looks if n <= store.complete()), default=0)
    store.judged = reached
    return test.judge(*(store.scores(world, reached) for world in WORLDS))


class _Store:
    """The directory of a campaign: one small file per finished run, and the score file."""

    def __init__(self, directory: Path, identity: dict[str, Any]) -> None:
        self.directory, self.identity = directory, identity
        self.finished: dict[tuple[str, int], dict[str, Any]] = {}
        self.judged = 0

    def open(self) -> None:
        """Read what is there; refuse what is of another campaign."""
        path = self.directory / "campaign.json"
        # Through JSON, so that what was written compares equal to what is.
        own = json.loads(json.dumps(self.identity))
        if path.exists():
            found = _read_json(path)
            for name in own:
                if found.get(name) != own[name]:
                    one, other = _differing(found.get(name), own[name])
                    raise InputError(
                        f"{path}: campaign of another {name}: {one}; expected {other}. Choose "
                        "another directory: a verdict after changing the training or adding models "
                        "has not the stated confidence"
                    )
        else:
            self.directory.mkdir(parents=True, exist_ok=True)
            with atomic(path) as temporary:
                temporary.write_text(json.dumps(own, indent=2) + "\n")
        for file in sorted((self.directory / "runs").glob("[!.]*.json")):
            entry = _read_json(file)
            self.finished[entry["world"], entry["run"]] = entry

    def keep(self, result: _Result) -> None:
        """Store a finished run."""
        task = result.task
        entry = vars(task) | {"score": result.score, "seconds": round(result.seconds, 3)}
        path = self.directory / "runs" / f"{task.world}-{task.run:06d}.json"
        with atomic(path) as temporary:
            temporary.write_text(json.dumps(entry) + "\n")
        self.finished[task.world, task.run] = entry

    def complete(self) -> int:
        """How many runs of both worlds are finished without a gap."""
        count = self.judged
        while all((world, count) in self.finished for world in WORLDS):
            count += 1
        return count

    def scores(self, world: str, models: int) -> list[float]:
        """Scores of the first runs of a world."""
        return [self.finished[world, i]["score"] for i in range(models)]

    def write(
        self, models: int, training: dict[str, Any], seed: int, crashes: Sequence[str]
    ) -> Path:
        """Write the first runs of both worlds as a score file."""
        rows = [self.finished[world, i] for world in WORLDS for i in range(models)]
        frame = pd.DataFrame(
            {
                "world": [row["world"] for row in rows],
                "repeat": 0,
                "run": [row["run"] for row in rows],
                "score": [row["score"] for row in rows],
                "seed": [row["seed"] for row in rows],
            }
        )
        parameters = {"training": training, "test": self.identity["test"], "models": models}
        seconds = sum(row["seconds"] for row in rows)
        origin = scores.provenance(parameters, seed=seed, wall_seconds=seconds)
        path = self.directory / "scores.parquet"
        scores.write(path, frame, origin | {"crashes": list(crashes)})
        return path


def _differing(one: Any, other: Any) -> tuple[Any, Any]:
    """Two descriptions without what they have in common."""
    if not (isinstance(one, dict) and isinstance(other, dict)):
        return one, other
    parts = {
        key: _differing(one.get(key), other.get(key))
        for key in one | other
        if one.get(key) != other.get(key)
    }
    return {key: a for key, (a, _) in parts.items()}, {key: b for key, (_, b) in parts.items()}


def _read_json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: not readable as JSON ({error}); remove it") from error
    if not isinstance(found, dict):
        raise InputError(f"{path}: got {found!r:.40}; expected a JSON object; remove it")
    return found


class _Crew:
    """Worker processes, each training one model at a time; a dead one is replaced."""

    def __init__(self, training: Training, workers: int, log: Path, timeout: float | None) -> None:
        self.training, self.size, self.log, self.timeout = training, workers, log, timeout
        self.workers: list[_Worker] = []

    @contextmanager
    def employed(self) -> Iterator[None]:
        """End all workers in the end, whatever happens."""
        try:
            yield
        finally:
            for worker in self.workers:
                worker.end()

    def work(self, missing: "deque[_Task]") -> list[_Result]:
        """Give tasks to idle workers; wait until something happened, return what."""
        while len(self.workers) < self.size and missing:
            self.workers.append(_Worker(self.training, self.log))
        for worker in self.workers:
            if worker.task is None and missing:
                worker.start(missing.popleft())
        busy = [worker for worker in self.workers if worker.task is not None]
        wait([worker.connection for worker in busy], timeout=0.5 if self.timeout else None)
        results = []
        for worker in busy:
            result = worker.result(self.timeout)
            if result is not None:
                results.append(result)
            if worker.dead:
                worker.end()
                self.workers.remove(worker)
        return results


class _Worker:
    """One process and the pipe to it."""

    def __init__(self, training: Training, log: Path) -> None:
        # Each worker is a fork of a fresh process that has imported this module and no training.
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([__name__])
        self.connection, other = context.Pipe()
        self.process = context.Process(target=_serve, args=(training, other, str(log)), daemon=True)
        with _one_thread():
            self.process.start()
        # Only the worker holds the other end now, so its death ends the pipe.
        other.close()
        self.task: _Task | None = None
        self.since = 0.0
        self.dead = False

    def start(self, task: _Task) -> None:
        """Send a task; a worker that died meanwhile is noticed when its result is asked for."""
        self.task, self.since = task, time.monotonic()
        with suppress(OSError):
            self.connection.send((task.world, task.seed))

    def result(self, timeout: float | None) -> _Result | None:
        """What became of the task, None if it still runs."""
        assert self.task is not None
        task, seconds = self.task, time.monotonic() - self.since
        score, error = math.nan, None
        if self.connection.poll():
            try:
                score, error = self.connection.recv()
            except (EOFError, OSError):
                self.dead = True
                self.process.join(5)
                error = f"its process died (exit code {self.process.exitcode})"
        elif timeout is not None and seconds > timeout:
            self.dead = True
            error = f"no score after {timeout:g} seconds"
        else:
            return None
        self.task = None
        return _Result(task, score, seconds, error)

    def end(self) -> None:
        """Stop the process, also in the middle of a run."""
        self.process.kill()
        self.process.join()
        self.connection.close()


def _serve(training: Training, connection: Connection, log: str) -> None:
    """Train what is asked for until the pipe is closed."""
    # The campaign ends its workers itself when it is interrupted.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(output, 1)
    os.dup2(output, 2)
    train: Train | None = None
    while True:
        try:
            world, seed = connection.recv()
        except EOFError:
            return
        try:
            if train is None:
                train = training.load()
            score, error = float(train(world, seed)), None
            if not math.isfinite(score):
                error = f"its score is {score}; expected a finite number"
        except (Exception, SystemExit) as caught:
            traceback.print_exc()
            score, error = math.nan, f"{type(caught).__name__}: {caught}"
        sys.stdout.flush()
        sys.stderr.flush()
        try:
            connection.send((score, error))
        except OSError:
            return


@contextmanager
def _one_thread() -> Iterator[None]:
    """Start processes with one thread for linear algebra unless the user chose otherwise.

    Sums over several threads round differently, and workers would compete for the same cores.
    """
    chosen = os.environ.get("OMP_NUM_THREADS")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    try:
        yield
    finally:
        if chosen is None:
            del os.environ["OMP_NUM_THREADS"]
