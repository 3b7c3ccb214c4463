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

import hashlib
import json
import math
import secrets
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from tqdm import tqdm

from hiddenstate.auditing.curve import Coins
from hiddenstate.auditing.sequential import SequentialAudit, Verdict, jointly
from hiddenstate.campaign.trainings import (
    WORLDS,
    CommandLine,
    Function,
    Script,
    Training,
    TrainingFunction,
)
from hiddenstate.campaign.workers import Crew, Result, Task, check_limits
from hiddenstate.errors import InputError
from hiddenstate.files import alone, atomic
from hiddenstate.pipeline import scores, sealed
from hiddenstate.streams import key

__all__ = ["CommandLine", "Outcome", "Script", "Training", "TrainingFunction", "run"]


@dataclass(frozen=True)
class Outcome:
    """Outcome of a campaign.

    verdict: of the test. scores: file of the judged runs. models: number of judged runs, with and
    without the canary each. crashes: one line for each crash that was tried again. taken: finished
    runs on disk at the start. finished: finished runs on disk at the end.
    """

    verdict: Verdict
    scores: Path
    models: int
    crashes: list[str] = field(default_factory=list)
    taken: int = 0
    finished: int = 0


def run(
    training: Training | TrainingFunction,
    test: SequentialAudit,
    out: str | Path,
    *,
    seed: int = 0,
    workers: int = 1,
    retries: int = 2,
    timeout: float | None = None,
    progress: bool = False,
    battery: Sequence[str] = (),
) -> Outcome:
    """Train until the test decides; write the scores to ``scores.parquet`` in ``out``.

    test: its looks have the same number of models in either world. out: directory of the campaign.
    Finished runs are kept there, so a killed campaign goes on; a directory of another training,
    seed or test is refused. What tells trainings apart is their code, with what a Python file
    imports from beside it, and not the data that it reads. workers: processes, one run at a time
    each, on one thread unless OMP_NUM_THREADS says otherwise. retries: how often a run that
    crashes, hangs beyond ``timeout`` seconds or gives no finite score is tried again; after that
    InputError names it. battery: names of several scores that each run gives, as a mapping; all are
    judged as one audit, each at its share of the level. What the training prints goes to
    ``log.txt`` in ``out``.
    """
    check_limits(workers, retries, timeout)
    looks = _looks(test)
    loadable = training if isinstance(training, Training) else Function(training)
    tasks = _tasks(seed, looks[-1])
    identity = {"training": loadable.identity, "seed": seed, "test": _described(test)}
    store = _Store(Path(out), identity | {"battery": list(battery) or None})
    test = test.shared(len(store.names))
    with alone(store.directory, "another process runs this campaign"):
        store.read(tasks)
        taken = len(store.finished)
        missing = deque(task for task in tasks if (task.world, task.run) not in store.finished)
        crashes: list[str] = []
        verdict = _judge(test, store, looks)
        if missing and verdict.decision == "continue":
            crew = Crew(loadable, workers, store.directory / "log.txt", timeout)
            attempts: dict[Task, int] = {}
            bar = tqdm(total=len(tasks), initial=taken, unit="model", disable=not progress)
            with crew.employed(), bar:
                while verdict.decision == "continue":
                    for result in map(store.named, crew.work(missing)):
                        if result.first or isinstance(loadable, CommandLine):
                            _unchanged(loadable, identity["training"], store)
                        if result.error is None:
                            store.keep(result)
                            bar.update()
                        else:
                            crashes.append(_crashed(result, attempts, retries, store))
                            # First in the queue: a verdict needs the first runs without a gap.
                            missing.appendleft(result.task)
                    if store.complete() >= next((n for n in looks if n > store.judged), looks[-1]):
                        verdict = _judge(test, store, looks)
        used = verdict.models[0]
        told = {
            "decision": verdict.decision,
            "p_value": verdict.p_value,
            "planned": looks[-1],
            "claim": f"{test.hypotheses.parameter} {test.claim:g}",
        }
        written = store.write(
            used, identity["training"], seed, {"crashes": crashes, "verdict": told}
        )
        return Outcome(verdict, written, used, crashes, taken, len(store.finished))


def _looks(test: SequentialAudit) -> list[int]:
    for n_in, n_out in test.sizes:
        if n_in != n_out:
            raise InputError(
                f"looks: got {(n_in, n_out)}; give as many models with the canary as without"
            )
    return [n_in for n_in, _ in test.sizes]


def _unchanged(training: Training, began: dict[str, Any], store: "_Store") -> None:
    """Refuse a run of code that was edited since the campaign began."""
    if training.identity != began:
        raise InputError(
            f"{store.directory}: the training was edited while its models were trained; the "
            f"{len(store.finished)} runs before that are kept. Undo the edit and run the same "
            "again, or use --out NEW_DIR"
        )


def _crashed(result: Result, attempts: dict[Task, int], retries: int, store: "_Store") -> str:
    """Describe a crash of a run in one line; InputError if that was its last attempt."""
    task = result.task
    attempts[task] = attempts.get(task, 0) + 1
    if attempts[task] > retries:
        raise InputError(
            f"{task.world}-run {task.run} (seed {task.seed}) failed {attempts[task]} times, at "
            f"last with: {result.error}. {store.directory} keeps {len(store.finished)} finished "
            "runs, and its log.txt what they printed. Fix the training and run the same again"
        )
    return f"{task.world}-run {task.run}: {result.error}"


def _tasks(seed: int, models: int) -> list[Task]:
    """All runs in their order; seeds are distinct, below 2^31, and those of a prefix its own."""
    tasks: list[Task] = []
    taken: set[int] = set()
    for run_ in range(models):
        for world in WORLDS:
            attempt = 0
            while (own := key(seed, "campaign", world, run_, attempt) % 2**31) in taken:
                attempt += 1
            taken.add(own)
            tasks.append(Task(world, run_, own))
    return tasks


def _described(thing: Any) -> Any:
    """Identity of a test as JSON: its plain values, and those of its parts."""
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
    coins: Coins = "against" if store.coins is None else store.coins
    scores = [[store.scores(world, reached, name) for world in WORLDS] for name in store.names]
    verdicts = [test.judge(*worlds, coins=coins) for worlds in scores]
    for index, one in enumerate(scores):
        # A score whose minus is in the battery was judged in both directions.
        minus = [[-score for score in world] for world in one]
        if verdicts[index].decision == "other way" and minus in scores:
            verdicts[index] = replace(verdicts[index], decision="consistent", other_way=None)
    return jointly(verdicts)


class _Store:
    """The directory of a campaign: one small file per finished run, and the score file."""

    def __init__(self, directory: Path, identity: dict[str, Any]) -> None:
        try:
            directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"{directory}: cannot be written: {error.strerror}") from error
        self.directory, self.identity = directory, identity
        self.finished: dict[tuple[str, int], dict[str, Any]] = {}
        self.judged = 0
        self.coins: int | None = None
        self.names: list[str] = identity["battery"] or [ONLY]

    def read(self, tasks: Sequence[Task]) -> None:
        """Read what is there; refuse what is of another campaign."""
        path = self.directory / "campaign.json"
        # Through JSON, so that what was written compares equal to what is.
        own = json.loads(json.dumps(self.identity))
        if path.exists():
            found = _read_json(path)
            for name in own:
                if found.get(name) != own[name]:
                    one, other = map(_words, _differing(found.get(name), own[name]))
                    raise InputError(
                        f"{path}: holds an audit of another {name} ({one}); you asked for {other}. "
                        "Use --out NEW_DIR: after a change of the training or of the models, "
                        "a verdict would no longer hold with the stated confidence"
                    )
            self.coins = _checked(path, found, "use --out NEW_DIR").get("coins")
        else:
            # Drawn before any score is known, and kept: a resumed audit has the same verdict.
            self.coins = secrets.randbits(32)
            _write_json(path, own | {"coins": self.coins}, indent=2)
        planned = {(task.world, task.run): task.seed for task in tasks}
        # Atomic writes that were cut off leave names that begin with a dot.
        for file in sorted((self.directory / "runs").glob("[!.]*.json")):
            entry = _checked(file, _read_json(file), "remove it, and its run is trained again")
            run: tuple[Any, Any] = entry.get("world"), entry.get("run")
            seed, score = entry.get("seed"), entry.get("score")
            if planned.get(run) != seed or not _finite(score):
                raise InputError(
                    f"{file}: got world, run, seed and score {run[0]}, {run[1]}, {seed}, "
                    f"{score}, which is no run of this campaign; remove the file"
                )
            # Of two files of a run, nobody knows which one holds its score.
            if file.name != (own_name := _file_of(*run)):
                raise InputError(
                    f"{file}: holds {run[0]}-run {run[1]}; expected it in {own_name}; keep one of "
                    "the two under that name"
                )
            self.finished[run] = {"seconds": 0.0} | entry

    def keep(self, result: Result) -> None:
        task = result.task
        entry = vars(task) | {"score": result.score, "seconds": round(result.seconds, 3)}
        _write_json(self.directory / "runs" / _file_of(task.world, task.run), entry)
        self.finished[task.world, task.run] = entry

    def complete(self) -> int:
        """Number of runs that are finished without a gap, with and without the canary each."""
        count = self.judged
        while all((world, count) in self.finished for world in WORLDS):
            count += 1
        return count

    def named(self, result: Result) -> Result:
        """The result with the battery's scores by their names; one that lacks any is an error."""
        if result.error is not None:
            return result
        given, wanted = result.score, self.identity["battery"]
        if wanted is None and isinstance(given, dict):
            told = f"gives the scores {', '.join(given)}; expected one, or their names (battery)"
            return replace(result, error=told)
        if wanted is None:
            return result
        if not (isinstance(given, dict) and set(wanted) <= set(given)):
            told = ", ".join(given) if isinstance(given, dict) else "one number"
            return replace(result, error=f"gives {told}; expected scores {', '.join(wanted)}")
        return replace(result, score={name: given[name] for name in wanted})

    def scores(self, world: str, models: int, name: str) -> list[float]:
        """Scores by this name of the first runs of a world."""
        return [_score(self.finished[world, i], name) for i in range(models)]

    def write(self, models: int, training: dict[str, Any], seed: int, told: dict[str, Any]) -> Path:
        """Write the first runs of both worlds as a score file."""
        rows = [self.finished[world, i] for world in WORLDS for i in range(models)]
        parts = [
            pd.DataFrame(
                {
                    "world": [row["world"] for row in rows],
                    "repeat": 0,
                    "run": [row["run"] for row in rows],
                    "score": [_score(row, name) for row in rows],
                    "seed": [row["seed"] for row in rows],
                }
            ).assign(**({} if name == ONLY else {"adversary": name}))
            for name in self.names
        ]
        frame = pd.concat(parts, ignore_index=True)
        parameters = {"training": training, "test": self.identity["test"], "models": models}
        seconds = sum(row["seconds"] for row in rows)
        origin = scores.provenance(parameters, seed=seed, wall_seconds=seconds)
        path = self.directory / "scores.parquet"
        scores.write(path, frame, origin | {"coins": self.coins} | told)
        return path


def _file_of(world: str, run_: int) -> str:
    """Name of the file that keeps a finished run."""
    return f"{world}-{run_:06d}.json"


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


def _words(found: Any) -> str:
    """Plain values of a description, without braces and quotes."""
    if isinstance(found, dict):
        return ", ".join(f"{key} {_words(value)}" for key, value in found.items())
    if isinstance(found, list):
        return ", ".join(map(_words, found)) or "none"
    return "none" if found is None else str(found)


ONLY = ""
"""Name of the score where there is one alone."""


def _score(entry: dict[str, Any], name: str) -> float:
    return float(entry["score"] if name == ONLY else entry["score"][name])


def _finite(score: Any) -> bool:
    numbers = list(score.values()) if isinstance(score, dict) else [score]
    return all(isinstance(x, int | float) and math.isfinite(x) for x in numbers)


def _write_json(path: Path, entry: dict[str, Any], indent: int | None = None) -> None:
    """Write plain values with a digest of them, which ``_checked`` compares."""
    with atomic(path) as temporary:
        signed = entry | {sealed.DIGEST: sealed.of(entry)}
        temporary.write_text(json.dumps(signed, indent=indent) + "\n")


def _checked(path: Path, found: dict[str, Any], otherwise: str) -> dict[str, Any]:
    """The values without their digest; InputError where it is absent, or not theirs."""
    entry = {key: value for key, value in found.items() if key != sealed.DIGEST}
    if found.get(sealed.DIGEST) != sealed.of(entry):
        raise InputError(
            f"{path}: has no digest of its values: it was edited, or an earlier version wrote it; "
            f"{otherwise}"
        )
    return entry


def _read_json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: not readable as JSON ({error}); remove it") from error
    if not isinstance(found, dict):
        raise InputError(f"{path}: got {found!r:.40}; expected a JSON object; remove it")
    return found
