"""Check by training a few models that a training is as an audit assumes.

An audit needs runs that are decided by their seed (a killed campaign must go on with the same
scores), that share nothing (a counter kept between runs makes scores depend on the number of
workers), and worlds that differ in the canary alone (a step more in one world is found instead of
it). Five models are trained: two with the same seed and canary in one process and one in another,
whose hash seed is different, one without the canary and one of another seed; six more where two
seeds gave one score, or both worlds did. What torch and Opacus do meanwhile is counted; of other
libraries nothing is seen.
"""

import json
import math
import resource
import statistics
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import wraps
from itertools import count
from pathlib import Path
from typing import Any
from unittest.mock import patch

from hiddenstate.campaign.trainings import Function, Training, TrainingFunction
from hiddenstate.campaign.workers import Score, Task, Worker, check_limits
from hiddenstate.errors import InputError, expect
from hiddenstate.files import alone
from hiddenstate.streams import key

OBSERVED = ("noise multiplier", "sampling rate of the loader", "noisy steps")
"""The same in the words of what is seen."""
DRAWS = ("draws of the canary", "expected draws of the canary")
MORE = 6
"""Models that are trained more where two seeds gave one score."""
PAIRS = 3
"""Seeds that are trained in both worlds more where these gave one score."""
Inspect = Callable[[], AbstractContextManager[dict[str, Any]]]
"""Makes what looks into a training while it runs, and fills in a report."""
ONE_MORE = ("records",)
"""What is larger by one in world "in": the canary."""


CLAIMED = ("noise multiplier", "sampling rate", "steps")
"""What a claim about DP-SGD says of a training, in the words of ``check``."""


@dataclass(frozen=True)
class Checked:
    """Outcome of a check.

    findings: what is not as an audit needs it, a sentence each. seen: what torch and Opacus did in
    either world, with the same seed. seconds: of one model, the median. memory: of the largest
    process, in MiB. notes: what an audit can do with, but should know. models: how many were
    trained. inside: the report on a training without the canary that was looked into, if any.
    """

    findings: list[str]
    seconds: float
    memory: float
    seen: dict[str, dict[str, Any]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    models: int = 5
    inside: dict[str, Any] | None = None


@dataclass(frozen=True)
class Observed:
    """A training whose runs are observed, from the second in a process on; notes go to a file."""

    training: Training
    notes: Path
    inspect: "Inspect | None" = None

    @property
    def identity(self) -> dict[str, Any]:
        return self.training.identity

    def load(self) -> TrainingFunction:
        """The function, which writes a line of notes after each run."""
        train, before = self.training.load(), count()

        def observed(world: str, seed: int) -> float | Mapping[str, float]:
            start = time.perf_counter()
            # The first run in a process shows it as it is, and imports what is to be observed.
            with ExitStack() as stack:
                seen = stack.enter_context(observing()) if next(before) else None
                inside, looked = None, seen is not None and world == "out"
                if looked and self.inspect and "opacus" in sys.modules:
                    inside = stack.enter_context(self.inspect())
                score = train(world, seed)
            note = {
                "world": world,
                "seconds": time.perf_counter() - start,
                "memory": _memory(),
                "seen": seen,
                "inside": inside,
            }
            with self.notes.open("a") as file:
                file.write(json.dumps(note) + "\n")
            return score

        return observed


def check(
    training: Training | TrainingFunction,
    directory: str | Path,
    *,
    seed: int = 0,
    timeout: float | None = None,
    retries: int = 0,
    claimed: Mapping[str, float] | None = None,
    inspect: "Inspect | None" = None,
) -> Checked:
    """Train five models and say what is not as an audit needs it.

    directory: for what the training prints (``check.txt``). seed: of the models, two different ones
    follow from it. timeout: seconds of one model. retries: how often one that fails is tried again.
    claimed: the noise multiplier, the sampling rate
    and the number of steps of the claim, by these names (``CLAIMED``), to be compared with what
    Opacus does without the canary. inspect: looks into one training without the canary, if it uses
    Opacus, and gives a report on it as JSON. Raises InputError if a model cannot be trained.
    """
    check_limits(1, retries, timeout)
    for name, number in (claimed or {}).items():
        expect(0 < number < math.inf, name, number, "a number above 0")
    directory = Path(directory).resolve()  # a training may change into another folder
    loadable = training if isinstance(training, Training) else Function(training)
    log, notes = directory / "check.txt", directory / "check.jsonl"
    one, two, *more = (key(seed, "check", index) % 2**31 for index in range(2 + MORE))
    alike: list[bool] = []
    observed, remarks = Observed(loadable, notes, inspect), list[str]()

    def trained(runs: list[tuple[str, int]], hashes: str) -> list[Score]:
        return _trained(observed, log, runs, hashes, timeout, retries, remarks)

    # The notes of another check would be taken for this one's.
    with alone(directory, "another process checks or audits a training here"):
        notes.unlink(missing_ok=True)
        try:
            first, again, out = trained([("in", one), ("in", one), ("out", one)], "1")
            other, another = trained([("in", one), ("out", two)], "2")
            scores = [first, out, another]
            if _equal(scores):
                worlds = ("in", "out") * MORE
                scores += trained(list(zip(worlds, more, strict=False)), "2")
            if first == out and not _equal(scores) and not _whole(first):
                # With one seed the canary may not have been drawn.
                both = trained([(world, s) for s in more[:PAIRS] for world in ("in", "out")], "2")
                alike = [a == b for a, b in zip(both[::2], both[1::2], strict=True)]
                scores += both
            told = [json.loads(line) for line in notes.read_text().splitlines()]
        finally:
            notes.unlink(missing_ok=True)
    # The first observed run of each data set; that of a training without torch is empty.
    seen: dict[str, dict[str, Any]] = {}
    for note in told:
        if note["seen"] is not None:
            seen.setdefault(note["world"], note["seen"])
    findings = [*_repeated(first, again, other), *_constant(scores), *_differing(seen)]
    if alike and all(alike):
        findings.append(
            f"with each of {1 + PAIRS} seeds both data sets gave the same score: the training has "
            "the canary in both or in neither, or never draws it"
        )
    remarks += _seldom(scores)
    if any(seen[world].get("secure_mode") for world in seen):
        findings.append("Opacus's secure_mode draws noise that no seed decides; switch it off")
    findings += [*_claimed(seen["out"], claimed or {}), *_never_drawn(seen["in"])]
    seconds = statistics.median(note["seconds"] for note in told)
    memory = max(note["memory"] for note in told)
    looked = [note["inside"] for note in told if note.get("inside")]
    inside = next(iter(looked), None)
    findings += dict.fromkeys(
        f"{fault['fault']}: {fault['words']}" for one in looked for fault in one["findings"]
    )
    if len(looked) > 1 and same_noise(looked[0]["noise"], looked[1]["noise"]):
        findings.append("trainings with different seeds have the same noise: seed it by the seed")
    return Checked(findings, seconds, memory, seen, remarks, len(told), inside)


def _trained(
    training: Training,
    log: Path,
    runs: list[tuple[str, int]],
    hashes: str,
    timeout: float | None,
    retries: int,
    remarks: list[str],
) -> list[Score]:
    """Scores of these runs, in one interpreter of its own with this hash seed."""
    tasks = deque(Task(world, index, seed) for index, (world, seed) in enumerate(runs))
    fresh = {"PYTHONHASHSEED": hashes}
    worker, replaced = Worker(training, log, fresh), False
    scores: list[Score] = []
    try:
        for task in tasks:
            failures = 0
            while True:
                worker.start(task)
                while (result := worker.result(timeout)) is None:
                    worker.wait()
                if result.error is None:
                    if not replaced:
                        break
                    replaced = False  # the first run in a process is not observed: once more
                    continue
                if failures >= retries:
                    raise InputError(
                        f"check: the {task.world}-run of seed {task.seed} failed: {result.error} "
                        f"({log} has what it printed)"
                    )
                failures += 1
                remarks.append(f"crashed and tried again: {result.error} ({task.world}-run)")
                if worker.dead:
                    worker.end()
                    worker, replaced = Worker(training, log, fresh), True
            scores.append(result.score)
    finally:
        worker.end()
    return scores


def _repeated(first: Score, again: Score, other: Score) -> Iterator[str]:
    """Errors if the same run gives another score in the same process, or in another one."""
    if first == again == other:
        return
    found = (
        f"the same data set and seed gave {first!r}, {again!r} in one process and {other!r} in "
        "another"
    )
    if first == other:
        yield f"{found}: something is kept between runs, such as a counter or a generator"
    elif first == again:
        yield (
            f"{found}: something differs between processes, such as the order of a set of words "
            "(PYTHONHASHSEED), or importing the file draws numbers without a seed"
        )
    else:
        yield (
            f"{found}: the seed does not decide the run. Seed every generator (random, numpy, "
            "torch, CUDA), and use deterministic algorithms"
        )


def same_noise(one: list[float], other: list[float]) -> bool:
    """True if two trainings have one noise, but for rounding; where there is none, false."""
    apart = [abs(a - b) for a, b in zip(one, other, strict=False)]
    return max(map(abs, one), default=0.0) > 0.1 and max(apart, default=1.0) < 1e-2


def _named(score: Score) -> dict[str, float]:
    return score if isinstance(score, dict) else {"score": score}


def _equal(scores: list[Score]) -> list[str]:
    """Names of scores that are one number in all of these runs."""
    every = [_named(score) for score in scores]
    return [name for name in every[0] if len({one.get(name) for one in every}) == 1]


def _whole(score: Score) -> bool:
    """True if every number of a score is whole, as decisions are, which are often the same."""
    return all(float(value).is_integer() for value in _named(score).values())


def _constant(scores: list[Score]) -> Iterator[str]:
    """Scores that no seed changes; whole numbers may be decisions that are rare."""
    for name in _equal(scores):
        value = _named(scores[0])[name]
        if not float(value).is_integer():
            yield (
                f"{len(scores) - 1} seeds gave the same {name}, {value!r}: runs must differ in "
                "their randomness, and a constant score finds nothing"
            )


def _seldom(scores: list[Score]) -> Iterator[str]:
    """Notes on scores that are often equal."""
    equal = _equal(scores)
    for name in _named(scores[0]):
        values = [_named(score)[name] for score in scores]
        most = max(map(values.count, values))
        if name in equal and float(values[0]).is_integer():
            yield (
                f"{len(scores)} models gave the same {name}, {values[0]:g}: a constant score finds "
                "nothing, unless it is a rare decision"
            )
        elif name not in equal and most > 1 and len(scores) > 3:
            yield f"{most} of {len(scores)} models gave the same {name}: coins will break the ties"


def _claimed(out: dict[str, Any], claimed: Mapping[str, float]) -> Iterator[str]:
    """Errors where Opacus, without the canary, does not do as claimed; each names both numbers."""
    for name, key_ in zip(CLAIMED, OBSERVED, strict=True):
        own, said = out.get(key_), claimed.get(name)
        # Claims are typed with three digits.
        if own is not None and said is not None and abs(own - said) > 1e-3 * abs(said):
            yield f"{name}: the training has {own:g}, the claim says {said:g}"
    # A loader of test images beside a Poisson one is right.
    fixed = "sampler" in out and "sampling rate of the loader" not in out
    if "sampling rate" in claimed and "noise multiplier" in out and fixed:
        yield (
            f"sampler: the loader makes {out['sampler']}; the claim says Poisson sampling at rate "
            f"{claimed['sampling rate']:g} (make_private with poisson_sampling=True)"
        )


def _never_drawn(into: dict[str, Any]) -> Iterator[str]:
    """Errors if the kit's canary never arrived."""
    if into.get("draws of the canary", 1) == 0:
        expected = into.get("expected draws of the canary", 0.0)
        yield (
            f"canary: no step drew it, where about {expected:.2g} draws are expected; an audit of "
            "a canary that is never drawn finds nothing. Take another --seed, more steps or a "
            "higher sampling rate"
        )


def _differing(seen: dict[str, dict[str, Any]]) -> Iterator[str]:
    """Errors for each difference between the two data sets, except for the canary."""
    for name in sorted((seen["in"].keys() | seen["out"].keys()) - set(DRAWS)):
        here, there = (seen[world].get(name, 0) for world in ("in", "out"))
        if name in ONE_MORE and _one_more(here, there):
            continue
        if here != there:
            yield (
                f"the data sets differ in more than the canary: {name} {here} with it, {there} "
                "without; make constants of numbers that are computed from the number of records"
            )


def _one_more(here: Any, there: Any) -> bool:
    """True if each number equals the other or is one more."""
    same = isinstance(here, list) and isinstance(there, list) and len(here) == len(there)
    return same and all(0 <= a - b <= 1 for a, b in zip(here, there, strict=True))


def _memory() -> float:
    """Peak memory of this process and of the largest that it waited for, in MiB."""
    # ``ru_maxrss`` is in bytes on macOS, and in KiB elsewhere.
    unit = 1 if sys.platform == "darwin" else 1024
    whose = resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN
    return max(resource.getrusage(who).ru_maxrss for who in whose) * unit / 2**20


@contextmanager
def observing() -> Iterator[dict[str, Any]]:
    """Count what torch and Opacus do, where they are imported."""
    seen: dict[str, Any] = {}
    with ExitStack() as stack:
        if "torch" in sys.modules:
            _observe_torch(seen, stack)
        if "opacus" in sys.modules:
            _observe_opacus(seen, stack)
        if "hiddenstate.campaign.kit" in sys.modules:
            _observe_kit(seen, stack)
        yield seen


def _observe_torch(seen: dict[str, Any], stack: ExitStack) -> None:
    from torch.optim.optimizer import register_optimizer_step_post_hook
    from torch.utils.data import DataLoader
    from torch.utils.data.dataloader import _BaseDataLoaderIter

    from hiddenstate.campaign import batches

    def stepped(optimizer: Any, *_: Any) -> None:
        seen["optimizer steps"] = seen.get("optimizer steps", 0) + 1
        rates = [float(group["lr"]) for group in optimizer.param_groups]
        seen.setdefault("first learning rate", rates)
        seen["last learning rate"] = rates

    def begin(original: Callable[..., Any], loader: Any) -> Any:
        if hasattr(loader.dataset, "__len__"):
            seen.setdefault("records", []).append(len(loader.dataset))
        # Opacus's loader keeps the rate that it was made with; batches are its sampler's.
        sampler = batches.poisson(loader.batch_sampler)
        if sampler is not None:
            seen["sampling rate of the loader"] = float(sampler.sample_rate)
        else:
            seen["sampler"] = batches.words(loader.batch_sampler)
        return original(loader)

    def batch(original: Callable[..., Any], iterator: Any) -> Any:
        found = original(iterator)
        seen["batches"] = seen.get("batches", 0) + 1
        return found

    handle = register_optimizer_step_post_hook(stepped)
    stack.callback(handle.remove)
    around(stack, DataLoader, "__iter__", begin)
    around(stack, _BaseDataLoaderIter, "__next__", batch)


def _observe_opacus(seen: dict[str, Any], stack: ExitStack) -> None:
    from opacus.optimizers import DPOptimizer

    def pre_step(original: Any, optimizer: Any, /, *given: Any, **named: Any) -> Any:
        taken = original(optimizer, *given, **named)
        seen["noise multiplier"] = float(optimizer.noise_multiplier)
        seen["clipping norm"] = _plain(optimizer.max_grad_norm)
        seen["expected batch size"] = _plain(optimizer.expected_batch_size)
        seen["secure_mode"] = bool(optimizer.secure_mode)
        seen["noisy steps"] = seen.get("noisy steps", 0) + bool(taken)
        return taken

    around_all(stack, DPOptimizer, "pre_step", pre_step)


def _observe_kit(seen: dict[str, Any], stack: ExitStack) -> None:
    from hiddenstate.campaign.kit import Run

    def scores(original: Callable[..., Any], run: Any) -> Any:
        seen["draws of the canary"] = run.draws
        seen["expected draws of the canary"] = run.sampling_rate * len(run._steps)
        return original(run)

    around(stack, Run, "scores", scores)


def around(stack: ExitStack, owner: type, name: str, wrapper: Callable[..., Any]) -> None:
    """Call ``wrapper(original, self, ...)`` in place of a method until the stack is closed."""
    original = getattr(owner, name)

    @wraps(original)
    def observed(this: Any, /, *given: Any, **named: Any) -> Any:
        return wrapper(original, this, *given, **named)

    stack.enter_context(patch.object(owner, name, observed))


def around_all(stack: ExitStack, owner: type, name: str, wrapper: Callable[..., Any]) -> None:
    """Wrap the method of a class and of those derived from it, once for each call."""
    inside: set[int] = set()

    def outermost(original: Callable[..., Any], this: Any, /, *given: Any, **named: Any) -> Any:
        if id(this) in inside:  # called by that of a subclass
            return original(this, *given, **named)
        inside.add(id(this))
        try:
            return wrapper(original, this, *given, **named)
        finally:
            inside.discard(id(this))

    found: list[Any] = [owner]
    for one in found:
        found += [below for below in one.__subclasses__() if below not in found]
        if name in vars(one):
            around(stack, one, name, outermost)


def _plain(value: Any) -> Any:
    return [float(v) for v in value] if isinstance(value, list | tuple) else value
