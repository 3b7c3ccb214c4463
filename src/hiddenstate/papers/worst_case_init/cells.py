"""The grid of worst_case_init, and the cells that it asks for."""

from collections.abc import Callable
from hashlib import sha256
from itertools import chain, product
from math import prod
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import (
    AfterValidator,
    Field,
    SerializerFunctionWrapHandler,
    model_serializer,
    model_validator,
)

from hiddenstate.papers.worst_case_init import stated
from hiddenstate.pipeline.costs import gradient_seconds, step_seconds
from hiddenstate.pipeline.family import (
    Cell,
    Count,
    Epsilon,
    FamilyGrid,
    Grid,
    Name,
    Positive,
    Several,
    Steps,
    Text,
)
from hiddenstate.rounding import short
from hiddenstate.streams import World

NAME = "worst_case_init"
CANARIES = ("blank", "mislabelled", "clip_backdoor")
"""Targets that are made here; any other is a file of the user's."""


class Extended(Grid):
    """Parameters some of which came later: at their defaults they are no part of the identity."""

    later: ClassVar[tuple[str, ...]] = ()

    @model_serializer(mode="wrap")
    def _without_defaults(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        unused = {k for k in self.later if getattr(self, k) == type(self).model_fields[k].default}
        return {k: v for k, v in dump(self).items() if k not in unused}


class Stage(Extended):
    """Training without privacy, as a part of pre-training."""

    later = ("momentum", "weight_decay", "drops", "augmented", "shuffled")

    dataset: Text = Field(description="as a task's")
    half: bool = Field(default=True, description="only its first half, which is public")
    epochs: int = Field(ge=1, le=10_000, description="passes over the data")
    batch_size: Count = Field(description="records per step")
    learning_rate: Positive = Field(description="step size of SGD on mean losses")
    momentum: float = Field(default=0.0, ge=0, lt=1, description="Nesterov's")
    weight_decay: float = Field(default=0.0, ge=0, le=1, description="as in torch's SGD")
    drops: tuple[Annotated[int, Field(ge=1, le=10_000)], ...] = Field(
        default=(), max_length=100, description="epochs after which the step size is a tenth"
    )
    augmented: bool = Field(
        default=False, description="images are shifted by up to 4 pixels, and mirrored"
    )
    shuffled: bool = Field(default=True, description="each epoch in an order of its own")


class Weights(Grid):
    """A stage that is trained already: parameters from a file, which count as one epoch."""

    weights: Text = Field(description="a .npz or .pt file of a model's parameters by name")
    sha256: str = Field(
        default="", max_length=64, description="digest of the file, refused if it has another"
    )
    epochs: int = Field(default=1, ge=1, le=1, description="1: a sweep's 0 is the average case")

    @model_validator(mode="before")
    @classmethod
    def _digest(cls, given: Any) -> Any:
        if not isinstance(given, dict) or not isinstance(given.get("weights"), str):
            return given
        path = Path(given["weights"])
        if not path.is_file():
            raise ValueError(f"weights: got {str(path)!r}; expected the path of a .npz or .pt file")
        found = sha256(path.read_bytes()).hexdigest()
        if given.get("sha256", found) != found:
            raise ValueError(f"sha256: got {given['sha256']!r}; {path} has {found}")
        return given | {"sha256": found}


class LearningRates(Grid):
    """Step size times the number of private records, by the initial parameters."""

    average: Positive = Field(description="without pre-training")
    worst: Positive = Field(description="with any")


def _canary_exists(name: str) -> str:
    if name not in CANARIES and not Path(name).is_file():
        raise ValueError(f"expected {', '.join(CANARIES)} or the path of a .npy file")
    return name


Trains = Literal["all layers", "last layer"]
Xavier = Literal["uniform", "normal"]


class Task(Grid):
    """What is trained: data, model, target record, and what sweeps leave as it is.

    The step size is the learning rate over *all* private records, however many of them an audit
    uses, so that a record's influence on a step is the same in every audit.
    """

    dataset: Text = Field(
        description="digits, mnist, cifar10, cifar100, raw:<one of these>, folder:<path> "
        "(images, resized to 32 x 32 in colour) or features:<file>"
    )
    model: Name = Field(
        default="features", description="a name in hiddenstate.models.MODELS, or none for features"
    )
    trains: Trains = Field(
        default="all layers", description="what DP-SGD trains; the rest is a frozen backbone"
    )
    canary: Annotated[Text, AfterValidator(_canary_exists)] = Field(
        default="blank", description="blank, mislabelled, clip_backdoor or a .npy file"
    )
    label: int = Field(
        default=9, ge=0, le=1_000_000, description="label of a blank record, or of a file's"
    )
    private: int = Field(ge=2, le=100_000_000, description="private records that the data set has")
    steps: Steps = Field(description="steps of DP-SGD, each on all records of the audit")
    learning_rate: LearningRates
    pretraining: Several[Stage | Weights] = Field(
        min_length=1,
        description="stages in turn, the first of which may be weights from a file; for a last "
        "layer, all but the last one train the backbone",
    )
    models: int = Field(ge=1, le=10_000_000, description="models per world in each audit")
    xavier: Xavier = Field(
        default="uniform", description="of initial weights; biases are 0, or 0.01 with normal ones"
    )
    one_start: bool = Field(
        default=False, description="all repeats have the pre-trained parameters of the first"
    )
    one_repeat_per_cell: bool = Field(
        default=False, description="each repeat is trained, cached and verified by itself"
    )

    @model_validator(mode="after")
    def _weights_come_first(self) -> Self:
        for i, stage in enumerate(self.pretraining):
            if i and isinstance(stage, Weights):
                raise ValueError(
                    f"pretraining.{i}: got weights, which would undo the stages before them; "
                    "expected them as the first stage"
                )
        return self


class Sweep(Grid):
    """Audits of a task: every combination of what is listed; what is not is the task's own."""

    task: Name = Field(description="a name among the tasks")
    epochs: Several[Annotated[int, Field(ge=0, le=10_000)]] | None = Field(
        default=None, description="epochs of the last stage; 0 is the average case"
    )
    records: Several[Annotated[int, Field(ge=2, le=100_000_000)]] | None = Field(
        default=None, description="records, the target included"
    )
    clipping_norms: Several[Positive] = Field(
        default=[1.0], min_length=1, description="gradients' norms"
    )
    epsilons: Several[Epsilon] = Field(min_length=1, description="theoretical epsilons, in nats")
    steps: Several[Steps] | None = Field(default=None, description="steps of DP-SGD")
    learning_rates: Several[Positive] | None = Field(
        default=None, description="step size times private"
    )
    models: int | None = Field(default=None, ge=1, le=10_000_000, description="models per world")
    repeats: int | None = Field(default=None, ge=1, le=1000, description="independent repeats")
    first: int | None = Field(
        default=None, ge=1, le=1000, description="only so many of the repeats, the first ones"
    )


class WorstCaseInitGrid(FamilyGrid):
    """The tasks, and each figure's sweeps over them; a figure without any is not drawn.

    A live audit is to be trained where those it is compared with come from the cache.
    """

    delta: float = Field(ge=1e-12, lt=1, description="probability at which every epsilon is stated")
    repeats: int = Field(ge=1, le=1000, description="independent repeats of an audit")
    ideal_audits: int = Field(
        ge=100, le=10_000_000, description="simulated audits of a mechanism that leaks all it may"
    )
    tasks: dict[Name, Task] = Field(min_length=1, description="what is trained, by name")
    figure1: Several[Sweep] = Field(default=[], description="average and worst case, by epsilon")
    figure2: Several[Sweep] = Field(default=[], description="by epochs of pre-training")
    figure3: Several[Sweep] = Field(default=[], description="by number of records")
    figure4: Several[Sweep] = Field(default=[], description="by clipping norm")
    figure5: Several[Sweep] = Field(default=[], description="last layer, by epsilon")
    figure6: Several[Sweep] = Field(default=[], description="accuracy by steps and learning rate")
    figure7: Several[Sweep] = Field(
        default=[], description="last layer, by clipping norm and records"
    )
    table1: Several[Sweep] = Field(
        default=[], description="accuracies of Table 1, if other models' than Figure 1's"
    )
    live: Several[Sweep] = Field(
        default=[], description="audits compared with those that differ in their repeats alone"
    )

    @model_validator(mode="after")
    def _tasks_of_the_paper_are_the_paper_s(self) -> Self:
        for name, task in self.tasks.items():
            found = task.model_dump()
            for key, value in stated.parameters(name).items():
                if found[key] != value:
                    raise ValueError(
                        f"tasks.{name}.{key}: got {found[key]}; expected {value}, the paper's, "
                        "whose numbers a task of this name is judged against; call yours otherwise"
                    )
        return self

    @model_validator(mode="after")
    def _sweeps_fit_their_tasks(self) -> Self:
        for figure, sweeps in figures(self).items():
            for i, sweep in enumerate(sweeps):
                if sweep.task not in self.tasks:
                    raise ValueError(
                        f"{figure}.{i}.task: got {sweep.task!r}; "
                        f"expected one of {', '.join(self.tasks)}"
                    )
                lists = (sweep.epochs, sweep.records, sweep.clipping_norms, sweep.steps)
                points = prod(len(v or [0]) for v in (*lists, sweep.learning_rates, sweep.epsilons))
                if points > 10_000:
                    raise ValueError(
                        f"{figure}.{i}: got {points} combinations; expected at most 10,000"
                    )
                last = self.tasks[sweep.task].pretraining[-1]
                if isinstance(last, Weights) and (more := {*(sweep.epochs or [])} - {0, 1}):
                    raise ValueError(
                        f"{figure}.{i}.epochs: got {max(more)}; expected 0 or 1, for weights from "
                        "a file count as one epoch"
                    )
                most = self.tasks[sweep.task].private
                for records in sweep.records or []:
                    if records > most:
                        raise ValueError(
                            f"{figure}.{i}.records: got {records}; expected at most {most}, "
                            f"the private records of {sweep.task}"
                        )
        return self

    @model_validator(mode="after")
    def _figure_2_has_one_rate_where_only_epochs_differ(self) -> Self:
        rates: dict[str, float] = {}
        for i, sweep in enumerate(self.figure2):
            for audit in audits(self, sweep) if sweep.task in self.tasks else ():
                other = rates.setdefault(
                    repr(audit.model_copy(update={"learning_rate": 0.0})), audit.learning_rate
                )
                if audit.learning_rate != other:
                    raise ValueError(
                        f"figure2.{i}.learning_rates: got {other:g} and {audit.learning_rate:g}; "
                        "expected one, for a panel shows epochs alone"
                    )
        return self


class StartParameters(Extended):
    """What decides initial parameters; without stages they are a Xavier draw."""

    later = ("xavier", "one_start")

    dataset: str
    model: str
    trains: Trains
    backbone: tuple[Stage | Weights, ...]
    stages: tuple[Stage | Weights, ...]
    repeats: tuple[int, ...]
    xavier: Xavier = "uniform"
    one_start: bool = False

    def repeat_of(self, repeat: int) -> int:
        """Whose initial parameters a repeat has."""
        return 0 if self.one_start else repeat

    @property
    def epochs(self) -> int:
        """Epochs of the last stage; 0 in the average case."""
        return self.stages[-1].epochs if self.stages else 0


class CanaryFile(Grid):
    """A target record of the user's own, and what the file held."""

    file: str
    sha256: str


class AuditParameters(Grid):
    """What decides the scores of an audit; ``start.repeats`` are those of the cell, of ``planned``.

    The random streams are named by ``name`` and the repeat, however repeats are spread over cells.
    """

    task: str
    start: StartParameters
    canary: str | CanaryFile
    label: int
    private: int
    records: int
    steps: int
    learning_rate: float
    clipping_norm: float
    epsilon: float
    delta: float
    models: int
    planned: int

    @property
    def name(self) -> str:
        """The audit's name, all its repeats together."""
        return (
            f"{self.task}_pre{self.start.epochs}_n{self.records}_C{short(self.clipping_norm)}"
            f"_T{self.steps}_lr{short(self.learning_rate)}_eps{short(self.epsilon)}"
            f"_{self.planned}x{self.models}"
        )

    @property
    def worlds(self) -> tuple[World, ...]:
        """Worlds that are trained: one model tells no worlds apart, so its accuracy needs one."""
        return ("in", "out") if self.models > 1 else ("out",)


class IdealParameters(Grid):
    """What decides the audits of a mechanism that leaks all it may."""

    epsilon: float
    models: int
    delta: float
    audits: int


def figures(grid: WorstCaseInitGrid) -> dict[str, list[Sweep]]:
    """Sweeps of each figure that has any, of Table 1, and of the live audits."""
    names = (*(f"figure{i}" for i in range(1, 8)), "table1", "live")
    return {name: sweeps for name in names if (sweeps := getattr(grid, name))}


def shows(*names: str) -> Callable[[WorstCaseInitGrid], bool]:
    """Whether a grid has the cells of one of these figures."""
    return lambda grid: not figures(grid).keys().isdisjoint(names)


def shown(grid: WorstCaseInitGrid) -> dict[str, list[AuditParameters]]:
    """The audits of each figure, each with the most repeats that any figure asks for."""
    every = {
        name: [audit for sweep in sweeps for audit in audits(grid, sweep)]
        for name, sweeps in figures(grid).items()
    }
    most: dict[str, AuditParameters] = {}
    for audit in chain.from_iterable(every.values()):
        other = most.setdefault(audit.name, audit)
        if len(audit.start.repeats) > len(other.start.repeats):
            most[audit.name] = audit
    return {name: [most[audit.name] for audit in audits] for name, audits in every.items()}


def audits(grid: WorstCaseInitGrid, sweep: Sweep) -> list[AuditParameters]:
    """The audits of a sweep: one for each combination, with all its repeats or the first."""
    task = grid.tasks[sweep.task]
    planned = sweep.repeats or grid.repeats
    repeats = min(planned, sweep.first or planned)
    rates = (task.learning_rate.average, task.learning_rate.worst)
    return [
        AuditParameters(
            task=sweep.task,
            start=_start(task, epochs, repeats),
            canary=_identity(task.canary),
            label=task.label,
            private=task.private,
            records=records,
            steps=steps,
            learning_rate=rate or rates[epochs > 0],
            clipping_norm=norm,
            epsilon=epsilon,
            delta=grid.delta,
            models=sweep.models or task.models,
            planned=planned,
        )
        for epochs, records, norm, steps, rate, epsilon in product(
            sweep.epochs or [task.pretraining[-1].epochs],
            sweep.records or [task.private],
            sweep.clipping_norms,
            sweep.steps or [task.steps],
            sweep.learning_rates or [0],
            sweep.epsilons,
        )
    ]


def _identity(canary: str) -> str | CanaryFile:
    """What decides a target: its name, or a file's content."""
    if canary in CANARIES:
        return canary
    return CanaryFile(file=canary, sha256=sha256(Path(canary).read_bytes()).hexdigest())


def _start(task: Task, epochs: int, repeats: int) -> StartParameters:
    """Initial parameters: Xavier's without epochs, pre-trained with some."""
    *before, last = task.pretraining
    stages = (*before, last.model_copy(update={"epochs": epochs}))
    whole = task.trains == "all layers"
    return StartParameters(
        dataset=task.dataset,
        model=task.model,
        trains=task.trains,
        backbone=() if whole else stages[:-1],
        stages=(stages if whole else stages[-1:]) if epochs else (),
        repeats=tuple(range(repeats)),
        xavier=task.xavier,
        # Without pre-training each repeat has its own draw.
        one_start=task.one_start and epochs > 0,
    )


def cells_of(grid: WorstCaseInitGrid, audit: AuditParameters) -> list[Cell[AuditParameters]]:
    """The cells that train an audit: one, or one for each repeat."""
    if not grid.tasks[audit.task].one_repeat_per_cell:
        return [Cell(audit.name, audit)]
    starts = [audit.start.model_copy(update={"repeats": (i,)}) for i in audit.start.repeats]
    return [
        Cell(f"{audit.name}_repeat{start.repeats[0]}", audit.model_copy(update={"start": start}))
        for start in starts
    ]


def trained(grid: WorstCaseInitGrid) -> list[Cell[AuditParameters]]:
    """The cells of every audit once, though several figures may show it."""
    every = {audit.name: audit for audit in chain.from_iterable(shown(grid).values())}
    return [cell for audit in every.values() for cell in cells_of(grid, audit)]


def start_of(cell: Cell[AuditParameters]) -> Cell[StartParameters]:
    """The initial parameters of a cell's repeats, which cells of other audits share."""
    p = cell.parameters
    repeats = tuple(sorted({p.start.repeat_of(repeat) for repeat in p.start.repeats}))
    which = f"repeat{repeats[0]}" if len(repeats) == 1 else f"{len(repeats)}x"
    start = p.start.model_copy(update={"repeats": repeats})
    return Cell(f"{p.task}_pre{p.start.epochs}_{which}", start)


def data_of(start: StartParameters) -> list[str]:
    """Data sets that pre-training and training read."""
    stages = start.backbone + start.stages
    return sorted({start.dataset, *(s.dataset for s in stages if isinstance(s, Stage))})


def ideal(grid: WorstCaseInitGrid) -> list[Cell[IdealParameters]]:
    """Ideal audits: each theoretical epsilon with each number of models."""
    every = (cell.parameters for cell in trained(grid))
    asked = {(audit.epsilon, audit.models) for audit in every if audit.models > 1}
    return [
        Cell(
            f"ideal_eps{short(epsilon)}_models{models}",
            IdealParameters(
                epsilon=epsilon, models=models, delta=grid.delta, audits=grid.ideal_audits
            ),
        )
        for epsilon, models in sorted(asked)
    ]


TESTED = 10
"""Models of each world and repeat whose test accuracy is measured."""


def cost(audit: AuditParameters) -> float:
    """Seconds of one core that the models of a cell take."""
    each = len(audit.worlds) * len(audit.start.repeats)
    if audit.start.trains == "last layer":
        return each * audit.models * audit.steps * step_seconds("last layer", audit.records)
    trained = audit.models * audit.steps * step_seconds(audit.start.model, audit.records)
    # A test set is about a third of the private records, and has no kernel of its own.
    tested = min(audit.models, TESTED) * audit.private / 3 * 4 * gradient_seconds(audit.start.model)
    return each * (trained + tested)


def start_cost(start: StartParameters) -> float:
    """Seconds of one core that initial parameters take."""
    records = 719 if start.dataset == "digits" else 30_000
    stages = [s for s in start.backbone + start.stages if isinstance(s, Stage)]
    gradient = gradient_seconds(start.model)
    # Beside three times the kernel's time each mini-batch takes some milliseconds.
    epochs = (s.epochs * (3 * gradient + 3e-3 / s.batch_size) for s in stages)
    return len(start.repeats) * records * sum(epochs)
