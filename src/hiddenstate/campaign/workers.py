"""Processes that train models for a campaign, one model at a time each.

A worker leads a session of its own, so that whatever its training starts is ended with it: at a
timeout, at the end of the campaign, and when the campaign itself is killed. It may have children,
such as those of a DataLoader. Each task has a number that its answer must carry, from the process
that the task was given to: an answer to another task, or of a child that a training forked and that
came back, is an error and never another run's score.
"""

import math
import multiprocessing
import os
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from hiddenstate.campaign.trainings import Training, TrainingFunction, commands_ended
from hiddenstate.errors import expect, is_whole
from hiddenstate.rounding import counted

GRACE = 2.0
"""Seconds that a worker has to end what it started; then it is killed."""
LONGEST = 70
"""Bytes of the path of TMPDIR: systems have 103 for a socket's, and multiprocessing takes 32."""


Score = float | dict[str, float]
"""One number, or several by their names."""


def check_limits(workers: int, retries: int, timeout: float | None) -> None:
    """InputError for numbers of workers, retries or seconds that no campaign can have.

    Also for a folder of temporary files in which sockets cannot be.
    """
    for name, value, least in (("workers", workers, 1), ("retries", retries, 0)):
        expect(is_whole(value) and value >= least, name, value, f"a whole number, at least {least}")
    expect(timeout is None or 0 < timeout < math.inf, "timeout", timeout, "seconds above 0")
    place = tempfile.gettempdir()
    fits = len(os.fsencode(place)) <= LONGEST
    expect(fits, "TMPDIR", place, f"a path of at most {LONGEST} bytes, for sockets, such as /tmp")


@dataclass(frozen=True)
class Task:
    """One model to train."""

    world: str
    run: int
    seed: int


@dataclass(frozen=True)
class Result:
    """A score, or what went wrong. first: whether it is its process's first, which loads code."""

    task: Task
    score: Score
    seconds: float
    error: str | None = None
    first: bool = False


class Crew:
    """Worker processes; a dead one is replaced. timeout: seconds of one model."""

    def __init__(self, training: Training, workers: int, log: Path, timeout: float | None) -> None:
        self.training, self.size, self.log, self.timeout = training, workers, log, timeout
        self.workers: list[Worker] = []

    @contextmanager
    def employed(self) -> Iterator[None]:
        """End all workers in the end, whatever happens."""
        try:
            yield
        finally:
            for worker in self.workers:
                worker.end()

    def work(self, missing: "deque[Task]") -> list[Result]:
        """Give tasks to idle workers; wait until something happened, return what."""
        while len(self.workers) < self.size and missing:
            self.workers.append(Worker(self.training, self.log))
        for worker in self.workers:
            if worker.task is None and missing:
                worker.start(missing.popleft())
        busy = [worker for worker in self.workers if worker.task is not None]
        # A child that outlives a worker may hold its end of the pipe, so death is watched as well.
        watched = [w.connection for w in busy] + [w.process.sentinel for w in busy]
        wait(watched, timeout=0.5 if self.timeout else None)
        results = []
        for worker in busy:
            result = worker.result(self.timeout)
            if result is not None:
                results.append(result)
            if worker.dead:
                worker.end()
                self.workers.remove(worker)
        return results


class Worker:
    """One process and the pipes to it.

    fresh: environment variables of an interpreter of its own, instead of a fork of a process that
    has imported this module and no training.
    """

    def __init__(
        self, training: Training, log: Path, fresh: Mapping[str, str] | None = None
    ) -> None:
        context = multiprocessing.get_context("forkserver" if fresh is None else "spawn")
        if fresh is None:
            context.set_forkserver_preload([__name__])
        self.connection, other = context.Pipe()
        # Closed by nothing but the end of this process.
        alive, self._alive = context.Pipe(duplex=False)
        # Daemons may have no children, which loaders of data need.
        self.process = context.Process(  # type: ignore[attr-defined]
            target=_serve, args=(training, other, alive, str(log)), daemon=False
        )
        with _environment(fresh or {}):
            self.process.start()
        # Only the worker holds the other ends now, so its death ends the pipe.
        other.close()
        alive.close()
        self.task: Task | None = None
        self.number = 0
        self.since = 0.0
        self.dead = False

    def start(self, task: Task) -> None:
        """Send a task; a worker that died meanwhile is noticed when its result is asked for."""
        self.task, self.since = task, time.monotonic()
        self.number += 1
        with suppress(OSError):
            self.connection.send((self.number, task.world, task.seed))

    def wait(self, seconds: float | None = 0.5) -> None:
        wait([self.connection, self.process.sentinel], seconds)

    def result(self, timeout: float | None) -> Result | None:
        """Result of the task, None if it still runs."""
        assert self.task is not None
        task, seconds = self.task, time.monotonic() - self.since
        score: Score = math.nan
        error: str | None = None
        # The answer first: a worker may have died right after it was sent.
        if self.connection.poll():
            try:
                number, process, score, error = self.connection.recv()
            except (EOFError, OSError):
                error = self._died()
            else:
                if (number, process) != (self.number, self.process.pid):
                    self.dead = True
                    score, error = math.nan, _STRAY
        elif not self.process.is_alive():
            error = self._died()
        elif timeout is not None and seconds > timeout:
            self.dead = True
            error = f"no score after {counted(timeout, 'second')}"
        else:
            return None
        self.task = None
        return Result(task, score, seconds, error, first=self.number == 1)

    def _died(self) -> str:
        self.dead = True
        self.process.join(5)
        return f"its process died (exit code {self.process.exitcode})"

    def end(self) -> None:
        """Stop the process, also in the middle of a run, and whatever it started."""
        self._alive.close()
        self.process.join(GRACE)
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.kill()
        self.process.join()
        self.connection.close()


_STRAY = (
    "a child process that the training forked returned a result; forked children must call "
    "os._exit()"
)


def _serve(training: Training, connection: Connection, alive: Connection, log: str) -> None:
    """Train what is asked for until the pipe is closed."""
    os.setsid()
    # What the training starts, it starts as it would on its own.
    multiprocessing.set_start_method(multiprocessing.get_all_start_methods()[0], force=True)
    # The campaign ends its workers itself when it is interrupted.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_the_campaign, args=(alive,), daemon=True).start()
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    os.dup2(output, 1)
    os.dup2(output, 2)
    process = os.getpid()
    train: TrainingFunction | None = None
    score: Score
    error: str | None
    while True:
        try:
            number, world, seed = connection.recv()
        except EOFError:
            return
        try:
            if train is None:
                train = training.load()
            score, error = _numbers(train(world, seed)), None
            if not all(map(math.isfinite, score.values() if isinstance(score, dict) else [score])):
                error = f"its score is {score}; expected a finite number"
        except (Exception, SystemExit) as caught:
            with suppress(OSError):  # a full disk has no room for it
                traceback.print_exc()
            score, error = math.nan, f"{type(caught).__name__}: {caught}"
        with suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
        with suppress(OSError):
            connection.send((number, os.getpid(), score, error))
        # A forked child that came back has given itself away, and must take no task.
        if os.getpid() != process:
            os._exit(1)


def _numbers(score: Any) -> Score:
    """A score, or several by their names."""
    if isinstance(score, Mapping):
        return {str(name): _number(value) for name, value in score.items()}
    return _number(score)


def _number(score: Any) -> float:
    # Of a complex number of numpy's, ``float`` would keep the real part.
    if getattr(getattr(score, "dtype", None), "kind", None) == "c":
        raise TypeError(f"score: got {score!r}; expected a real number")
    return float(score)


def _end_with_the_campaign(alive: Connection) -> None:
    """Wait until the campaign closes the pipe, or dies; then end all that was started here."""
    with suppress(EOFError, OSError):
        alive.recv_bytes()
    with commands_ended():
        os.killpg(os.getpgrp(), signal.SIGKILL)


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Start processes with these variables, and one thread unless the user chose otherwise.

    Sums over several threads round differently, and workers would compete for the same cores.
    """
    before = dict(os.environ)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.update(variables)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
