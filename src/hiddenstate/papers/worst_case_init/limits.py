"""Limits of sections of worst_case_init: what no job, figure or table could make."""

import zipfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from hiddenstate.papers.worst_case_init.grid import (
    CANARIES,
    Task,
    Weights,
    WorstCaseInitGrid,
    figures,
)
from hiddenstate.pipeline import runnable
from hiddenstate.pipeline.family import at_most, limit

AUDITS = ("figure1", "figure2", "figure3", "figure4", "figure5", "figure7")
"""Figures of audits, which take two models of a data set at least."""

CLASSES = {"digits": 10, "mnist": 10, "cifar10": 10, "cifar100": 100}


def limits(grid: WorstCaseInitGrid) -> Iterator[str]:
    """Stages that do not fit their model, files that hold no array, audits of one model."""
    models = max(task.models for task in grid.tasks.values())
    why = f"of {models:,} models, which memory holds at once"
    yield from at_most("ideal_audits", grid.ideal_audits, 1e8, why, times=models)
    for name, task in grid.tasks.items():
        yield from _task(f"tasks.{name}", task)
    every = figures(grid)
    for figure in AUDITS:
        for i, sweep in enumerate(every.get(figure, [])):
            number = sweep.models or grid.tasks[sweep.task].models
            if number < 2:
                yield limit(f"{figure}.{i}.models", number, "at least 2, as it shows audits")


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
    classes = CLASSES.get(task.dataset.removeprefix("raw:"), task.label + 1)
    if task.label >= classes:
        yield limit(f"{path}.label", task.label, f"one of the {classes} classes, 0 the first")
    if task.canary not in CANARIES:
        try:
            # Mapped into memory, a file is opened without reading all of it.
            np.load(task.canary, mmap_mode="r")
        except (OSError, ValueError, EOFError):
            words = f"{', '.join(CANARIES)} or a .npy file with an array"
            yield limit(f"{path}.canary", repr(task.canary), words)
