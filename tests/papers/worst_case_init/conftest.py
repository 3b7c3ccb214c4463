"""Small audits: on random records, and on the digits of the smoke scale."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
import yaml

from hiddenstate.datasets import data
from hiddenstate.datasets.data import Dataset, Splits
from hiddenstate.dpsgd import ensemble as engine
from hiddenstate.papers.worst_case_init import FAMILY, cells, starts, training
from hiddenstate.papers.worst_case_init.grid import WorstCaseInitGrid
from hiddenstate.pipeline import estimates as files
from hiddenstate.pipeline import runnable
from hiddenstate.pipeline.cells import Cell, Workplace
from hiddenstate.streams import stream
from hiddenstate.study import config

SCALES = Path(__file__).parents[3] / "workflow/config/scales"
SEED = 3
PRIVATE = 60
STAGE = {"dataset": "random", "epochs": 2, "batch_size": 16, "learning_rate": 0.1}
TASK = {
    "dataset": "random",
    "model": "digits_cnn",
    "private": PRIVATE,
    "steps": 3,
    "learning_rate": {"average": 4, "worst": 8},
    "pretraining": [STAGE],
    "models": 2,
}
LAST = {"canary": "clip_backdoor", "pretraining": [STAGE, STAGE]}


def make_splits(classes=10, shape=(1, 8, 8)) -> Splits:
    """Random records, of which every class is a cloud of its own."""
    rng = stream(0, "records", classes, *shape)
    centres = rng.normal(size=(classes, *shape))

    def part(records):
        y = rng.integers(classes, size=records)
        x = centres[y] + rng.normal(size=(records, *shape))
        return Dataset("random", x.astype(np.float32), y, classes)

    return Splits(part(50), part(PRIVATE), part(40))


@pytest.fixture
def splits():
    """Random records with other classes and shapes."""
    return make_splits


@pytest.fixture(autouse=True)
def random_records(monkeypatch):
    """Data sets "random", "coarse" (more classes) and "mnist" (its shape alone) beside digits."""
    known = {
        "random": make_splits(),
        "coarse": make_splits(classes=13),
        "mnist": make_splits(shape=(1, 28, 28)),
    }
    real = data.splits
    monkeypatch.setattr(data, "splits", lambda source: known.get(source) or real(source))
    for name in ("random", "coarse"):
        monkeypatch.setitem(runnable.DATA, name, ((1, 8, 8), 2 * PRIVATE))


@pytest.fixture
def seed():
    return SEED


@pytest.fixture
def stage():
    """A stage of pre-training, as in a scale file."""
    return STAGE


@pytest.fixture
def make():
    """Make a grid of one task and one sweep."""

    def grid(sweep=None, figure="figure1", **task) -> WorstCaseInitGrid:
        last = LAST if task.get("trains") == "last layer" else {}
        return WorstCaseInitGrid(
            shows="nothing",
            delta=1e-5,
            repeats=1,
            ideal_audits=100,
            tasks={"random": TASK | last | task},
            **{figure: [{"task": "random", "epsilons": [10], "records": [20]} | (sweep or {})]},
        )

    return grid


@pytest.fixture(scope="session")
def in_parts():
    """The grid whose tasks have each repeat in a cell of its own."""

    def of(grid: WorstCaseInitGrid) -> WorstCaseInitGrid:
        update = {"one_repeat_per_cell": True}
        tasks = {name: task.model_copy(update=update) for name, task in grid.tasks.items()}
        return grid.model_copy(update={"tasks": tasks})

    return of


@pytest.fixture
def cell_of(make):
    """The cell of a grid that has one."""

    def only(sweep=None, **task) -> Cell:
        (cell,) = cells.trained(make(sweep, **task))
        return cell

    return only


@pytest.fixture
def start_of():
    """The initial parameters of a cell."""

    def initialise(cell: Cell, seed: int = SEED) -> pd.DataFrame:
        return starts.initialise(cells.start_of(cell), seed, Workplace())

    return initialise


@pytest.fixture
def train(start_of):
    """Train a cell's models, from initial parameters made for it unless some are given."""

    def trained(cell: Cell, **workplace) -> pd.DataFrame:
        start = workplace.pop("start", None)
        start = start_of(cell) if start is None else start
        return training.train(cell, SEED, Workplace(start=start, **workplace))

    return trained


@pytest.fixture
def parts():
    """Initial parameters of one repeat."""

    def part_of(frame: pd.DataFrame, part="trained", repeat=0) -> torch.Tensor:
        return torch.from_numpy(starts.part_of(frame, repeat, part))

    return part_of


@pytest.fixture
def trained(monkeypatch):
    """What ``train`` gives the engine: a list of (ensemble, options)."""
    calls = []
    real = engine.scores

    def watched(ensemble, **options):
        calls.append((ensemble, options))
        return real(ensemble, **options)

    monkeypatch.setattr(engine, "scores", watched)
    return calls


@pytest.fixture(scope="session")
def scale_of():
    """The family's grid of a scale file, and the root seed."""

    def section(name: str) -> tuple[WorstCaseInitGrid, int]:
        _, grid, seed = config.section(SCALES / f"{name}.yaml", cells.NAME)
        return grid, seed

    return section


@pytest.fixture
def edited(tmp_path):
    """Write the smoke scale with this family's section edited; return the file."""

    def write(edit) -> Path:
        content = yaml.safe_load((SCALES / "smoke.yaml").read_text())
        content = {key: content[key] for key in ("seed", cells.NAME)}
        edit(content[cells.NAME])
        path = tmp_path / "edited.yaml"
        path.write_text(yaml.safe_dump(content))
        return path

    return write


@pytest.fixture(scope="session")
def smoke(scale_of):
    """The smoke grid, its cells' scores, its bounds, and its estimates."""
    grid, seed = scale_of("smoke")
    jobs = FAMILY.jobs(grid)
    made = {name: job.run(seed, Workplace()) for name, job in jobs["start"].items()}
    scores = {
        name: job.run(seed, Workplace(start=made[job.start.cell.name]))
        for name, job in jobs["train"].items()
    }
    ideal = {name: job.run(seed, Workplace()) for name, job in jobs["bound"].items()}
    return grid, scores, ideal, FAMILY.estimates(grid, scores, ideal)


@pytest.fixture(scope="session")
def estimates(smoke, tmp_path_factory):
    """The estimates as they come back from their file."""
    path = tmp_path_factory.mktemp("estimates") / "estimates.csv"
    files.write(path, smoke[3], "a grid")
    return files.read(path, "a grid")


@pytest.fixture(scope="session")
def lacking(smoke, in_parts, tmp_path_factory):
    """Estimates where the average case lacks a repeat and the last layer's audits lack all."""
    grid, scores, ideal, _ = smoke
    grid = in_parts(grid)
    there = {}
    for cell in cells.trained(grid):
        p = cell.parameters
        (repeat,) = p.start.repeats
        if (p.start.epochs or (repeat == 0 and p.steps == 3)) and p.task == "digits":
            whole = scores[p.name]
            there[cell.name] = whole[whole["repeat"] == repeat].reset_index(drop=True)
    path = tmp_path_factory.mktemp("lacking") / "estimates.csv"
    files.write(path, FAMILY.estimates(grid, there, ideal), "a grid")
    return files.read(path, "a grid")
