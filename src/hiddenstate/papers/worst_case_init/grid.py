"""The grid of worst_case_init: its section of a scale file."""

from collections.abc import Callable, Sequence
from hashlib import sha256
from itertools import product
from math import prod
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Self

from pydantic import (
    AfterValidator,
    Field,
    SerializerFunctionWrapHandler,
    model_serializer,
    model_validator,
)

from hiddenstate.papers.worst_case_init import stated
from hiddenstate.pipeline.cells import (
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

CANARIES = ("blank", "mislabelled", "clip_backdoor")
"""Canaries that are made here; any other is a file of the user's."""


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
        if not _is_file(path):
            raise ValueError(f"weights: got {str(path)!r}; expected the path of a .npz or .pt file")
        found = sha256(path.read_bytes()).hexdigest()
        if given.get("sha256", found) != found:
            raise ValueError(f"sha256: got {given['sha256']!r}; {path} has {found}")
        return given | {"sha256": found}


class LearningRates(Grid):
    """Step size times the number of private records, by the initial parameters."""

    average: Positive = Field(description="without pre-training")
    worst: Positive = Field(description="with any")


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # a name that is too long
        return False


def _canary_exists(name: str) -> str:
    if name not in CANARIES and not _is_file(Path(name)):
        raise ValueError(f"expected {', '.join(CANARIES)} or the path of a .npy file")
    return name


Trains = Literal["all layers", "last layer"]
Xavier = Literal["uniform", "normal"]


class Task(Grid):
    """Training of a task: data, model, canary, and what sweeps leave as it is.

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
    # Departure worst_case_init.last_layer_schedule: the text gives none for a last layer.
    pretraining: Several[Stage | Weights] = Field(
        min_length=1,
        description="stages in turn, the first of which may be weights from a file; for a last "
        "layer, all but the last one train the backbone",
    )
    models: int = Field(ge=1, le=10_000_000, description="models per data set in each audit")
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


class Point(NamedTuple):
    """Values that identify an audit within a sweep."""

    epochs: int
    records: int
    clipping_norm: float
    steps: int
    learning_rate: float
    epsilon: float


class Sweep(Grid):
    """Audits of a task: every combination of what is listed; what is not is the task's own."""

    task: Name = Field(description="a name among the tasks")
    epochs: Several[Annotated[int, Field(ge=0, le=10_000)]] | None = Field(
        default=None, description="epochs of the last stage; 0 is the average case"
    )
    records: Several[Annotated[int, Field(ge=2, le=100_000_000)]] | None = Field(
        default=None, description="records, the canary included"
    )
    clipping_norms: Several[Positive] = Field(
        default=[1.0], min_length=1, description="gradients' norms"
    )
    epsilons: Several[Epsilon] = Field(min_length=1, description="theoretical epsilons, in nats")
    steps: Several[Steps] | None = Field(default=None, description="steps of DP-SGD")
    learning_rates: Several[Positive] | None = Field(
        default=None, description="step size times private"
    )
    models: int | None = Field(default=None, ge=1, le=10_000_000, description="models per data set")
    repeats: int | None = Field(default=None, ge=1, le=1000, description="independent repeats")
    first: int | None = Field(
        default=None, ge=1, le=1000, description="only so many of the repeats, the first ones"
    )

    def points(self, task: Task) -> list[Point]:
        """Every combination, with the task's own where nothing is listed."""
        rates = (task.learning_rate.average, task.learning_rate.worst)
        return [
            # A rate of 0 stands for the task's own, which depends on the epochs.
            Point(epochs, records, norm, steps, rate or rates[epochs > 0], epsilon)
            for epochs, records, norm, steps, rate, epsilon in product(
                self.epochs or [task.pretraining[-1].epochs],
                self.records or [task.private],
                self.clipping_norms,
                self.steps or [task.steps],
                self.learning_rates or [0],
                self.epsilons,
            )
        ]


class ExpectedSweep(Sweep):
    """Audits whose expected separation is computed, each repeat from pairs and a pass back."""

    pairs: int = Field(default=1, ge=1, le=10_000, description="pairs that share their noise")
    pass_back: Annotated[int, Field(ge=1, le=100_000_000)] | None = Field(
        default=None, description="records of each step in the pass back; all unless said"
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
    figure2_norms: Several[Sweep] = Field(
        default=[], description="gradient norms of Figure 2, if of more records than its audits'"
    )
    figure4_accuracies: Several[Sweep] = Field(
        default=[], description="accuracies by clipping norm, if other models' than Figure 4's"
    )
    expected: Several[ExpectedSweep] = Field(
        default=[], description="expected audits, from one training and a pass back each"
    )
    live: Several[Sweep] = Field(
        default=[], description="audits compared with those that differ in their repeats alone"
    )

    def repeats_of(self, sweep: Sweep) -> tuple[int, int]:
        """Number of repeats of a sweep's audits, and how many of them it asks for."""
        planned = sweep.repeats or self.repeats
        return planned, min(planned, sweep.first or planned)

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
        every: dict[str, Sequence[Sweep]] = {**figures(self), "expected": self.expected}
        for figure, sweeps in every.items():
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
        rates: dict[tuple[Any, ...], float] = {}
        for i, sweep in enumerate(self.figure2):
            task = self.tasks[sweep.task]
            same = (sweep.task, sweep.models or task.models, *self.repeats_of(sweep))
            for point in sweep.points(task):
                rate = point.learning_rate
                other = rates.setdefault((*same, point._replace(learning_rate=0.0)), rate)
                if rate != other:
                    raise ValueError(
                        f"figure2.{i}.learning_rates: got {other:g} and {rate:g}; "
                        "expected one, for a panel shows epochs alone"
                    )
        return self


def figures(grid: WorstCaseInitGrid) -> dict[str, list[Sweep]]:
    """Sweeps of each figure that has any, of single models beside it, and of the live audits."""
    single = ("table1", "figure2_norms", "figure4_accuracies")
    names = (*(f"figure{i}" for i in range(1, 8)), *single, "live")
    return {name: sweeps for name in names if (sweeps := getattr(grid, name))}


def shows(*names: str) -> Callable[[WorstCaseInitGrid], bool]:
    """True if a grid has the cells of one of these figures."""
    return lambda grid: not figures(grid).keys().isdisjoint(names)
