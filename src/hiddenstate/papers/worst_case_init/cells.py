"""The grid of worst_case_init, and the work of its cells: initial parameters and trained models."""

from functools import partial
from itertools import product
from typing import Literal, Self

import numpy as np
import pandas as pd
from pydantic import Field, model_validator

from hiddenstate.errors import InputError
from hiddenstate.papers import Cell, FamilyGrid, Grid, Workplace
from hiddenstate.streams import stream

NAME = "worst_case_init"


class Stage(Grid):
    """Training without privacy, as a part of pre-training."""

    dataset: str = Field(description="as a task's")
    half: bool = Field(default=True, description="only its first half, which is public")
    epochs: int = Field(ge=1, description="passes over the data")
    batch_size: int = Field(ge=1, description="records a step")
    learning_rate: float = Field(gt=0, description="step size of plain SGD on mean losses")


class LearningRates(Grid):
    """Step size times the number of private records, by the initial parameters."""

    average: float = Field(gt=0, description="without pre-training")
    worst: float = Field(gt=0, description="with any")


class Task(Grid):
    """What is trained: data, model, target record, and what sweeps leave as it is.

    The step size is the learning rate over *all* private records, however many of them an audit
    uses, so that a record's influence on a step is the same in every audit.
    """

    dataset: str = Field(
        description="digits, mnist, cifar10, cifar100, folder:<path> or features:<file>"
    )
    model: str = Field(
        default="features", description="a name in hiddenstate.models.MODELS, or none for features"
    )
    trains: Literal["all layers", "last layer"] = Field(
        default="all layers", description="what DP-SGD trains; the rest is a frozen backbone"
    )
    canary: str = Field(
        default="blank", description="blank, mislabelled, clip_backdoor or a .npy file"
    )
    label: int = Field(default=9, ge=0, description="label of a blank record, or of a file's")
    private: int = Field(ge=2, description="private records that the data set has")
    steps: int = Field(ge=1, description="steps of DP-SGD, each on all records of the audit")
    learning_rate: LearningRates
    pretraining: list[Stage] = Field(
        min_length=1,
        description="stages in turn; for a last layer, all but the last one train the backbone",
    )
    models: int = Field(ge=1, description="models a world in each audit")


class Sweep(Grid):
    """Audits of a task: every combination of what is listed; what is not is the task's own."""

    task: str = Field(description="a name among the tasks")
    epochs: list[int] | None = Field(
        default=None, description="epochs of the last stage; 0 is the average case"
    )
    records: list[int] | None = Field(default=None, description="records, the target included")
    clipping_norms: list[float] = Field(default=[1.0], min_length=1, description="gradients' norms")
    epsilons: list[float] = Field(min_length=1, description="theoretical epsilons, in nats")
    steps: list[int] | None = Field(default=None, description="steps of DP-SGD")
    learning_rates: list[float] | None = Field(default=None, description="step size times private")
    models: int | None = Field(default=None, ge=1, description="models a world")
    repeats: int | None = Field(default=None, ge=1, description="independent repeats")


class WorstCaseInitGrid(FamilyGrid):
    """The tasks, and each figure's sweeps over them; a figure without any is not drawn."""

    delta: float = Field(gt=0, lt=1, description="probability at which every epsilon is stated")
    repeats: int = Field(ge=1, description="independent repeats of an audit")
    ideal_audits: int = Field(
        ge=100, description="simulated audits of a mechanism that leaks all it may"
    )
    tasks: dict[str, Task] = Field(min_length=1, description="what is trained, by name")
    figure1: list[Sweep] = Field(default=[], description="average and worst case, by epsilon")
    figure2: list[Sweep] = Field(default=[], description="by epochs of pre-training")
    figure3: list[Sweep] = Field(default=[], description="by number of records")
    figure4: list[Sweep] = Field(default=[], description="by clipping norm")
    figure5: list[Sweep] = Field(default=[], description="last layer, by epsilon")
    figure6: list[Sweep] = Field(default=[], description="accuracy by steps and learning rate")
    figure7: list[Sweep] = Field(default=[], description="last layer, by clipping norm and records")

    @model_validator(mode="after")
    def _known_tasks(self) -> Self:
        for figure, sweeps in figures(self).items():
            for i, sweep in enumerate(sweeps):
                if sweep.task not in self.tasks:
                    raise ValueError(
                        f"{figure}.{i}.task: got {sweep.task!r}; "
                        f"expected one of {', '.join(self.tasks)}"
                    )
        return self


def figures(grid: WorstCaseInitGrid) -> dict[str, list[Sweep]]:
    """Sweeps of each figure that has any."""
    every = {f"figure{i}": getattr(grid, f"figure{i}") for i in range(1, 8)}
    return {name: sweeps for name, sweeps in every.items() if sweeps}


def cells_of(grid: WorstCaseInitGrid, sweep: Sweep) -> list[Cell]:
    """The cells of a sweep: one for each combination and repeat."""
    task = grid.tasks[sweep.task]
    cells = []
    for epochs, records, norm, steps, rate, epsilon, repeat in product(
        sweep.epochs or [task.pretraining[-1].epochs],
        sweep.records or [task.private],
        sweep.clipping_norms,
        sweep.steps or [task.steps],
        sweep.learning_rates or [None],
        sweep.epsilons,
        range(sweep.repeats or grid.repeats),
    ):
        rate = rate or (task.learning_rate.worst if epochs else task.learning_rate.average)
        models = sweep.models or task.models
        start = _start(sweep.task, task, epochs, repeat)
        parameters = {
            "start": start.parameters,
            "canary": task.canary,
            "label": task.label,
            "private": task.private,
            "records": records,
            "steps": steps,
            "learning_rate": rate,
            "clipping_norm": norm,
            "epsilon": epsilon,
            "delta": grid.delta,
            "models": models,
            "repeat": repeat,
        }
        name = (
            f"{sweep.task}_pre{epochs}_n{records}_C{norm:g}_T{steps}_lr{rate:g}"
            f"_eps{epsilon:g}_models{models}_repeat{repeat}"
        )
        cells.append(Cell(name, parameters, start))
    return cells


def _start(name: str, task: Task, epochs: int, repeat: int) -> Cell:
    """The cell of initial parameters: Xavier's without epochs, pre-trained with some."""
    stages = [stage.model_dump() for stage in task.pretraining]
    stages[-1]["epochs"] = epochs
    whole = task.trains == "all layers"
    parameters = {
        "dataset": task.dataset,
        "model": task.model,
        "trains": task.trains,
        "backbone": [] if whole else stages[:-1],
        "stages": (stages if whole else stages[-1:]) if epochs else [],
        "repeat": repeat,
    }
    return Cell(f"{name}_pre{epochs}_repeat{repeat}", parameters)


def train_cells(grid: WorstCaseInitGrid) -> list[Cell]:
    """Every audit once, though several figures may show it."""
    sweeps = [sweep for sweeps in figures(grid).values() for sweep in sweeps]
    return list({cell.name: cell for sweep in sweeps for cell in cells_of(grid, sweep)}.values())


def data_of(cell: Cell) -> list[str]:
    """Data sets that a cell, of either kind, reads."""
    p = cell.parameters.get("start", cell.parameters)
    stages = p["backbone"] + p["stages"]
    return sorted({p["dataset"], *(stage["dataset"] for stage in stages)})


def initialise(cell: Cell, seed: int, workplace: Workplace) -> pd.DataFrame:
    """Initial parameters: columns part ("backbone" or "trained") and value.

    Without stages it is a Xavier draw (average case), else trained from that draw (worst case).
    More epochs of the last stage go on where fewer end.
    """
    from hiddenstate import data, models

    p = cell.parameters
    draw = partial(stream, seed, NAME, "start", p["dataset"], p["model"], p["repeat"])
    classes = data.splits(p["dataset"]).classes
    if p["trains"] == "all layers":
        build = partial(models.build, p["model"])
        return _parts(trained=_trained(build, classes, p["stages"], draw, workplace.device))
    backbone = np.zeros(0, np.float32)
    if p["backbone"]:
        build = partial(models.build, p["model"])
        backbone = _trained(build, classes, p["backbone"], draw, workplace.device)
    see = partial(_features, p, backbone, workplace.device)
    width = see(data.splits(p["dataset"]).test.x[:1]).shape[1]
    build = partial(models.logistic_regression, width)
    draw = partial(draw, "last layer")
    return _parts(
        backbone=backbone,
        trained=_trained(build, classes, p["stages"], draw, workplace.device, see),
    )


def _parts(**parts) -> pd.DataFrame:
    return pd.concat(
        [pd.DataFrame({"part": part, "value": value}) for part, value in parts.items()],
        ignore_index=True,
    )


def _part(frame: pd.DataFrame, part: str) -> np.ndarray:
    return frame.loc[frame["part"] == part, "value"].to_numpy(np.float32, copy=True)


def _trained(build, classes: int, stages: list[dict], draw, device: str, see=lambda x: x):
    """Parameters (p,) after the stages in turn, from a Xavier draw.

    A stage with other classes than the one before keeps all but the last layer, which is drawn.
    """
    import torch

    from hiddenstate import data
    from hiddenstate.adversaries import initialisation

    theta, body = None, 0
    for i, stage in enumerate([*stages, None]):
        source = data.splits(stage["dataset"]) if stage else None
        model = build(source.classes if source else classes)
        drawn = initialisation.average_case(model, draw("xavier", i))
        last = sum(p.numel() for p in list(model.parameters())[-2:])
        if theta is None:
            theta = drawn
        elif len(theta) != len(drawn):
            theta = torch.cat((theta[:body], drawn[-last:]))
        body = len(drawn) - last
        if stage is None:
            return theta.numpy()
        records = source.public if stage["half"] else source.train
        theta = initialisation.pretrained(
            model, see(records.x), records.y, start=theta, rng=draw("order", i), device=device,
            epochs=stage["epochs"], batch_size=stage["batch_size"],
            learning_rate=stage["learning_rate"],
        )  # fmt: skip


def _features(start: dict, backbone: np.ndarray, device: str, x: np.ndarray) -> np.ndarray:
    """What the frozen backbone makes of records: the inputs (n, width) of its last layer."""
    if not start["backbone"]:
        return x.reshape(len(x), -1)
    import torch

    from hiddenstate import data, models

    model = models.build(start["model"], data.splits(start["dataset"]).classes)
    torch.nn.utils.vector_to_parameters(torch.tensor(backbone), model.parameters())
    model = model[:-1].to(device).eval()
    with torch.no_grad():
        parts = torch.from_numpy(x).split(512)
        return torch.cat([model(part.to(device)).flatten(1).cpu() for part in parts]).numpy()


def train(cell: Cell, seed: int, workplace: Workplace) -> pd.DataFrame:
    """Scores of an audit's models, with their test accuracy.

    Also, the same in every row: the noise multiplier, and the mean norm of the private records'
    clipped gradients at the initial parameters.
    """
    from hiddenstate import data, models
    from hiddenstate.dpsgd.ensemble import Accuracy, Ensemble, scores
    from hiddenstate.dpsgd.mechanism import FullBatch, Mechanism

    p = cell.parameters
    start = p["start"]
    splits = data.splits(start["dataset"])
    if len(splits.private) != p["private"]:
        raise InputError(
            f"private: got {p['private']}; expected {len(splits.private)}, the private records "
            f"of {start['dataset']}"
        )
    if not 2 <= p["records"] <= p["private"]:
        raise InputError(
            f"records: got {p['records']}; expected 2 to {p['private']}, the private records "
            f"of {start['dataset']}"
        )
    order = stream(seed, NAME, "records", start["dataset"], p["repeat"]).permutation(p["private"])
    private = splits.private.take(order[: p["records"] - 1])
    if start["trains"] == "all layers":
        model = models.build(start["model"], splits.classes)
        see = np.asarray
    else:
        see = partial(_features, start, _part(workplace.start, "backbone"), workplace.device)
        model = models.logistic_regression(see(private.x[:1]).shape[1], splits.classes)
    theta = _part(workplace.start, "trained")
    x, y = see(private.x), private.y
    mechanism = Mechanism(
        sampling=FullBatch(),
        steps=p["steps"],
        learning_rate=p["learning_rate"] / p["private"],
        clipping_norm=p["clipping_norm"],
        noise_multiplier=1.0,
        adjacency="add_or_remove",
    ).calibrated(p["epsilon"], p["delta"], records=p["records"])
    canary = _canary(p, model, theta, x, y, splits.classes, seed)
    ensemble = Ensemble(model, mechanism, x, y, canary, _tensor(theta))
    frame = scores(
        ensemble,
        models=p["models"],
        seed=seed,
        name=(NAME, cell.name, *([workplace.purpose] if workplace.purpose else [])),
        device=workplace.device,
        workers=workplace.workers,
        memory=workplace.memory,
        checkpoint=workplace.checkpoint,
        progress=workplace.progress,
        measures={"accuracy": Accuracy(see(splits.test.x), splits.test.y)},
    )
    norms = ensemble.clipped_sum(workplace.device).norms(
        _tensor(theta).to(workplace.device), np.arange(len(x))
    )
    return frame.assign(
        repeat=p["repeat"],
        noise_multiplier=mechanism.noise_multiplier,
        gradient_norm=float(norms.clamp(max=p["clipping_norm"]).mean()),
    )


def _tensor(theta: np.ndarray):
    import torch

    return torch.from_numpy(theta)


def _canary(p: dict, model, theta: np.ndarray, x: np.ndarray, y: np.ndarray, classes: int, seed):
    """The target record, crafted from the initial parameters and the records it joins."""
    import torch

    from hiddenstate.adversaries import canaries

    match p["canary"]:
        case "blank":
            return canaries.blank(x.shape[1:], p["label"])
        case "mislabelled":
            rng = stream(seed, NAME, "canary", p["start"]["dataset"], p["repeat"])
            return canaries.mislabelled(x, y, classes, rng)
        case "clip_backdoor":
            torch.nn.utils.vector_to_parameters(torch.from_numpy(theta.copy()), model.parameters())
            with torch.no_grad():
                return canaries.clip_backdoor(x, lambda record: model(torch.from_numpy(record)))
        case file:
            record = canaries.read(file, x.shape[1:])
            return canaries.RecordCanary(record, p["label"])
