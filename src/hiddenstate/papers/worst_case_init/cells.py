"""The grid of worst_case_init, and the work of its cells: initial parameters and trained models."""

from functools import partial
from hashlib import sha256
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, Self

import numpy as np
import pandas as pd
from pydantic import AfterValidator, Field, model_validator

from hiddenstate.errors import InputError
from hiddenstate.papers import Cell, FamilyGrid, Grid, Workplace
from hiddenstate.streams import stream

if TYPE_CHECKING:
    from hiddenstate.dpsgd.mechanism import Mechanism

NAME = "worst_case_init"
TESTED = 10
"""Models of each world and repeat whose test accuracy is measured."""
CANARIES = ("blank", "mislabelled", "clip_backdoor")
"""Targets that are made here; any other is a file of the user's."""


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


def _canary_exists(name: str) -> str:
    if name not in CANARIES and not Path(name).is_file():
        raise ValueError(f"expected {', '.join(CANARIES)} or the path of a .npy file")
    return name


class Task(Grid):
    """What is trained: data, model, target record, and what sweeps leave as it is.

    The step size is the learning rate over *all* private records, however many of them an audit
    uses, so that a record's influence on a step is the same in every audit.
    """

    dataset: str = Field(
        description="digits, mnist, cifar10, cifar100, raw:<one of these>, folder:<path> or "
        "features:<file>"
    )
    model: str = Field(
        default="features", description="a name in hiddenstate.models.MODELS, or none for features"
    )
    trains: Literal["all layers", "last layer"] = Field(
        default="all layers", description="what DP-SGD trains; the rest is a frozen backbone"
    )
    canary: Annotated[str, AfterValidator(_canary_exists)] = Field(
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


Count = Annotated[int, Field(ge=1)]
Positive = Annotated[float, Field(gt=0)]


class Sweep(Grid):
    """Audits of a task: every combination of what is listed; what is not is the task's own."""

    task: str = Field(description="a name among the tasks")
    epochs: list[Annotated[int, Field(ge=0)]] | None = Field(
        default=None, description="epochs of the last stage; 0 is the average case"
    )
    records: list[Annotated[int, Field(ge=2)]] | None = Field(
        default=None, description="records, the target included"
    )
    clipping_norms: list[Positive] = Field(
        default=[1.0], min_length=1, description="gradients' norms"
    )
    epsilons: list[Positive] = Field(min_length=1, description="theoretical epsilons, in nats")
    steps: list[Count] | None = Field(default=None, description="steps of DP-SGD")
    learning_rates: list[Positive] | None = Field(
        default=None, description="step size times private"
    )
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
    def _sweeps_fit_their_tasks(self) -> Self:
        for figure, sweeps in figures(self).items():
            for i, sweep in enumerate(sweeps):
                if sweep.task not in self.tasks:
                    raise ValueError(
                        f"{figure}.{i}.task: got {sweep.task!r}; "
                        f"expected one of {', '.join(self.tasks)}"
                    )
                most = self.tasks[sweep.task].private
                for records in sweep.records or []:
                    if records > most:
                        raise ValueError(
                            f"{figure}.{i}.records: got {records}; expected at most {most}, "
                            f"the private records of {sweep.task}"
                        )
        return self


def figures(grid: WorstCaseInitGrid) -> dict[str, list[Sweep]]:
    """Sweeps of each figure that has any."""
    every = {f"figure{i}": getattr(grid, f"figure{i}") for i in range(1, 8)}
    return {name: sweeps for name, sweeps in every.items() if sweeps}


def cells_of(grid: WorstCaseInitGrid, sweep: Sweep) -> list[Cell]:
    """The cells of a sweep: one for each combination, with all its repeats."""
    task = grid.tasks[sweep.task]
    cells = []
    for epochs, records, norm, steps, rate, epsilon in product(
        sweep.epochs or [task.pretraining[-1].epochs],
        sweep.records or [task.private],
        sweep.clipping_norms,
        sweep.steps or [task.steps],
        sweep.learning_rates or [None],
        sweep.epsilons,
    ):
        rate = rate or (task.learning_rate.worst if epochs else task.learning_rate.average)
        models, repeats = sweep.models or task.models, sweep.repeats or grid.repeats
        start = _start(sweep.task, task, epochs, repeats)
        parameters = {
            "start": start.parameters,
            "canary": _identity(task.canary),
            "label": task.label,
            "private": task.private,
            "records": records,
            "steps": steps,
            "learning_rate": rate,
            "clipping_norm": norm,
            "epsilon": epsilon,
            "delta": grid.delta,
            "models": models,
            "repeats": repeats,
        }
        name = (
            f"{sweep.task}_pre{epochs}_n{records}_C{short(norm)}_T{steps}_lr{short(rate)}"
            f"_eps{short(epsilon)}_{repeats}x{models}"
        )
        cells.append(Cell(name, parameters, start))
    return cells


def _identity(canary: str) -> str | dict[str, str]:
    """What decides a target: its name, or a file's content."""
    if canary in CANARIES:
        return canary
    return {"file": canary, "sha256": sha256(Path(canary).read_bytes()).hexdigest()}


def short(value: float) -> str:
    """A number as a part of names: no two are written alike."""
    return f"{value:g}" if float(f"{value:g}") == value else repr(value)


def _start(name: str, task: Task, epochs: int, repeats: int) -> Cell:
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
        "repeats": repeats,
    }
    return Cell(f"{name}_pre{epochs}_{repeats}x", parameters)


def train_cells(grid: WorstCaseInitGrid) -> list[Cell]:
    """Every audit once, though several figures may show it."""
    sweeps = [sweep for sweeps in figures(grid).values() for sweep in sweeps]
    return list({cell.name: cell for sweep in sweeps for cell in cells_of(grid, sweep)}.values())


def data_of(cell: Cell) -> list[str]:
    """Data sets that a cell, of either kind, reads."""
    p = cell.parameters.get("start", cell.parameters)
    stages = p["backbone"] + p["stages"]
    return sorted({p["dataset"], *(stage["dataset"] for stage in stages)})


def cost(cell: Cell) -> float:
    """Clipped gradients that a cell takes; those of a last layer alone cost about a tenth."""
    p = cell.parameters
    gradients = 2 * p["repeats"] * p["models"] * p["records"] * p["steps"]
    return gradients * (1.0 if p["start"]["trains"] == "all layers" else 0.1)


def initialise(cell: Cell, seed: int, workplace: Workplace) -> pd.DataFrame:
    """Initial parameters of each repeat: columns repeat, part ("backbone", "trained") and value.

    Without stages they are a Xavier draw (average case), else trained from that draw (worst case).
    More epochs of the last stage go on where fewer end.
    """
    from hiddenstate import data, models

    p = cell.parameters
    splits = data.splits(p["dataset"])
    build = partial(models.build, p["model"])
    frames = []
    for repeat in range(p["repeats"]):
        draw = partial(stream, seed, NAME, "start", p["dataset"], p["model"], repeat)
        parts = {}
        if p["trains"] == "all layers":
            parts["trained"] = _trained(build, splits.classes, p["stages"], draw, workplace.device)
        else:
            if p["backbone"]:
                parts["backbone"] = _trained(
                    build, splits.classes, p["backbone"], draw, workplace.device
                )
            see = partial(_features, p, parts.get("backbone"), workplace.device)
            layer = partial(models.logistic_regression, see(splits.test.x[:1]).shape[1])
            draw = partial(draw, "last layer")
            parts["trained"] = _trained(
                layer, splits.classes, p["stages"], draw, workplace.device, see
            )
        frames += [
            pd.DataFrame({"repeat": repeat, "part": part, "value": value})
            for part, value in parts.items()
        ]
    return pd.concat(frames, ignore_index=True)


def _part(start: pd.DataFrame, repeat: int, part: str) -> np.ndarray | None:
    """One repeat's initial parameters of that part, or None if there are none."""
    found = start.loc[(start["repeat"] == repeat) & (start["part"] == part), "value"]
    return found.to_numpy(np.float32, copy=True) if len(found) else None


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


def _features(start: dict, backbone: np.ndarray | None, device: str, x: np.ndarray) -> np.ndarray:
    """What the frozen backbone makes of records: the inputs (n, width) of its last layer."""
    if backbone is None:
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
    """Scores of the models of an audit, repeat by repeat, with the first ones' test accuracy.

    Also, the same in all rows of a repeat: the noise multiplier, and the mean norm of the private
    records' clipped gradients at the initial parameters.
    """
    from hiddenstate import data
    from hiddenstate.dpsgd.mechanism import FullBatch, Mechanism

    p = cell.parameters
    dataset = p["start"]["dataset"]
    available = len(data.splits(dataset).private)
    if available != p["private"]:
        raise InputError(
            f"private: got {p['private']}; expected {available}, the private records of {dataset}"
        )
    mechanism = Mechanism(
        sampling=FullBatch(),
        steps=p["steps"],
        learning_rate=p["learning_rate"] / p["private"],
        clipping_norm=p["clipping_norm"],
        noise_multiplier=1.0,
        adjacency="add_or_remove",
    ).calibrated(p["epsilon"], p["delta"], records=p["records"])
    parts = [_repeat(cell, repeat, mechanism, seed, workplace) for repeat in range(p["repeats"])]
    return pd.concat(parts, ignore_index=True)


def _repeat(
    cell: Cell, repeat: int, mechanism: "Mechanism", seed: int, workplace: Workplace
) -> pd.DataFrame:
    """One audit: its own initial parameters and records."""
    import torch

    from hiddenstate import data, models
    from hiddenstate.dpsgd.ensemble import Accuracy, Ensemble, scores

    p = cell.parameters
    start, device = p["start"], workplace.device
    splits = data.splits(start["dataset"])
    order = stream(seed, NAME, "records", start["dataset"], repeat).permutation(p["private"])
    private = splits.private.take(order[: p["records"] - 1])
    if start["trains"] == "all layers":
        model, see = models.build(start["model"], splits.classes), np.asarray
    else:
        see = partial(_features, start, _part(workplace.start, repeat, "backbone"), device)
        model = models.logistic_regression(see(private.x[:1]).shape[1], splits.classes)
    theta = torch.from_numpy(_part(workplace.start, repeat, "trained"))
    x = see(private.x)
    rng = stream(seed, NAME, "canary", start["dataset"], repeat)
    canary = _canary(p, model, theta, x, private.y, splits.classes, rng)
    ensemble = Ensemble(model, mechanism, x, private.y, canary, theta)
    purpose = [workplace.purpose] if workplace.purpose else []
    frame = scores(
        ensemble,
        models=p["models"],
        seed=seed,
        name=(NAME, cell.name, *purpose, repeat),
        device=device,
        workers=workplace.workers,
        # On a CPU a chunk is what a kill may lose; on an accelerator it is trained side by side.
        chunk=1 if device == "cpu" else p["models"],
        memory=workplace.memory,
        checkpoint=workplace.checkpoint and workplace.checkpoint / f"repeat{repeat}",
        progress=workplace.progress,
        measures={"accuracy": Accuracy(see(splits.test.x), splits.test.y, TESTED)},
    )
    norms = ensemble.clipped_sum(device).norms(theta.to(device), np.arange(len(x)))
    return frame.assign(
        repeat=repeat,
        noise_multiplier=mechanism.noise_multiplier,
        gradient_norm=float(norms.clamp(max=p["clipping_norm"]).mean()),
    )


def _canary(p: dict, model, theta, x: np.ndarray, y: np.ndarray, classes: int, rng):
    """The target record, crafted from the initial parameters and the records it joins."""
    import torch

    from hiddenstate.adversaries import canaries

    match p["canary"]:
        case "blank":
            return canaries.blank(x.shape[1:], p["label"])
        case "mislabelled":
            return canaries.mislabelled(x, y, classes, rng)
        case "clip_backdoor":
            torch.nn.utils.vector_to_parameters(theta.clone(), model.parameters())
            with torch.no_grad():
                return canaries.clip_backdoor(x, lambda record: model(torch.from_numpy(record)))
        case {"file": file}:
            return canaries.RecordCanary(canaries.read(file, x.shape[1:]), p["label"])
