"""Limits of sections of worst_case_init: what no job, figure or table could make."""

import math
import zipfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from hiddenstate.adversaries import canaries
from hiddenstate.papers.worst_case_init.grid import (
    CANARIES,
    Point,
    Task,
    Weights,
    WorstCaseInitGrid,
    figures,
)
from hiddenstate.pipeline import runnable
from hiddenstate.pipeline.family import DRAWN, at_most, drawn, limit
from hiddenstate.pipeline.held import WIDTHS, Held, held

AUDITS = ("figure1", "figure2", "figure3", "figure4", "figure5", "figure7")
"""Figures of audits, which take two models of a data set at least."""

_WITHIN = {
    "figure2": {"epochs", "learning_rate"},
    "figure3": {*Point._fields},
    "figure6": {"steps", "learning_rate"},
    **dict.fromkeys(("figure1", "figure4", "figure5"), {*Point._fields} - {"records"}),
}
"""By figure: what the audits of a panel may differ in; each other task is a panel, too."""


def limits(grid: WorstCaseInitGrid) -> Iterator[str]:
    """Stages that do not fit their model, files that hold no array, audits of one model."""
    models = max(task.models for task in grid.tasks.values())
    why = f"of {models:,} models, which memory holds at once"
    yield from at_most("ideal_audits", grid.ideal_audits, 2e7, why, times=models)
    for name, task in grid.tasks.items():
        yield from _task(f"tasks.{name}", task)
    every = figures(grid)
    for figure in AUDITS:
        for i, sweep in enumerate(every.get(figure, [])):
            number = sweep.models or grid.tasks[sweep.task].models
            if number < 2:
                yield limit(f"{figure}.{i}.models", number, "at least 2, as it shows audits")
    yield from _drawn(grid)


def _drawn(grid: WorstCaseInitGrid) -> Iterator[str]:
    """Figures of more panels, lines or points than can be read."""
    names = [*figures(grid), "expected"]
    yield from drawn(grid, panels="tasks", rows=" ".join(names))
    for name in names:
        yield from drawn(
            grid,
            lines=f"{name}.clipping_norms {name}.learning_rates",
            rows=f"{name}.epsilons {name}.records",
            points=f"{name}.epochs {name}.steps",
        )
    for name, within in _WITHIN.items():
        panels = {
            (sweep.task, *(value for key, value in point._asdict().items() if key not in within))
            for sweep in getattr(grid, name)
            for point in sweep.points(grid.tasks[sweep.task])
        }
        if len(panels) > DRAWN["panels"]:
            yield limit(name, f"{len(panels)} panels", f"at most {DRAWN['panels']}")


def _task(path: str, task: Task) -> Iterator[str]:
    for i, stage in enumerate(task.pretraining):
        if isinstance(stage, Weights):
            given = Path(stage.weights)
            # numpy and torch both write zip archives.
            if given.suffix not in (".npz", ".pt", ".pth") or not zipfile.is_zipfile(given):
                words = "a .npz, .pt or .pth file with a model's parameters"
                yield limit(f"{path}.pretraining.{i}.weights", repr(stage.weights), words)
        elif task.model != "features":
            section = {"model": task.model, "dataset": stage.dataset}
            yield from runnable.problems(section, f"{path}.pretraining.{i}.")
    found = held(task.dataset)
    if task.model == "features" and (task.trains == "all layers" or len(task.pretraining) > 1):
        words = "last layer, with one stage of pre-training, as features have no layers below"
        yield limit(f"{path}.trains", repr(task.trains), words)
    if found:
        yield from _data(path, task, found)
    if task.canary not in CANARIES:
        yield from _file(f"{path}.canary", task, found)


def _data(path: str, task: Task, found: Held) -> Iterator[str]:
    for i, stage in enumerate(task.pretraining):
        if isinstance(stage, Weights) or not (shown := held(stage.dataset)):
            continue
        place, records = f"{path}.pretraining.{i}", shown.public if stage.half else shown.train
        yield from at_most(f"{place}.batch_size", stage.batch_size, records, "records")
        if task.model == "features" and math.prod(shown.shape) != math.prod(found.shape):
            words = f"records of {math.prod(found.shape)} features, as {task.dataset} has"
            yield limit(f"{place}.dataset", repr(stage.dataset), words)
    if task.private != found.private:
        yield limit(f"{path}.private", task.private, f"{found.private}, half of {task.dataset}")
    # The other canaries have labels of their own.
    if task.canary not in ("mislabelled", "clip_backdoor") and task.label >= found.classes:
        words = f"one of the {found.classes} classes, 0 the first"
        yield limit(f"{path}.label", task.label, words)
    if task.canary == "mislabelled" and found.classes < 2:
        yield limit(f"{path}.canary", repr(task.canary), "another, as the data have one class")


def _file(key: str, task: Task, found: Held | None) -> Iterator[str]:
    shape = found.shape if found else None
    if task.trains == "last layer" and len(task.pretraining) > 1:
        shape = (WIDTHS[task.model],) if task.model in WIDTHS else None
    elif task.trains == "last layer" and shape:
        shape = (math.prod(shape),)
    try:
        canaries.read(task.canary, shape or np.load(task.canary, mmap_mode="r").shape)
    except (OSError, ValueError, EOFError, AttributeError) as error:
        # An InputError, of which the path stands in front, is a ValueError.
        reason = str(error).removeprefix(f"{task.canary}: ")
        words = f"{', '.join(CANARIES)} or a .npy file with one record ({reason})"
        yield limit(key, repr(task.canary), words)
