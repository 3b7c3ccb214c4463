"""The section of expected audits, and the cells that it asks for.

Apart from ``grid`` and ``cells``, which decide what bounds and simulations are computed again.
"""

from pydantic import Field

from hiddenstate.papers.linear_heuristic import cells
from hiddenstate.papers.linear_heuristic.grid import (
    FixedEpsilon,
    FixedNoise,
    LinearHeuristicGrid,
    TrainedRow,
)
from hiddenstate.pipeline.cells import Cell, Grid, Name, Several, Text, by_name, part
from hiddenstate.pipeline.costs import BACK, step_seconds


class Network(Grid):
    """A network that has expected audits alone; what is not said is the trained one's."""

    dataset: Text = Field(description="as of the trained models")
    model: Name = Field(description="a name in hiddenstate.models.MODELS")
    records: int = Field(ge=2, le=100_000_000, description="training records, the canary included")
    figure2: Several[FixedNoise] = Field(default=[], description="gradient canary; panels")
    figure4: FixedEpsilon = Field(description="mislabelled canary")
    table1: Several[TrainedRow] = Field(default=[], description="rows of Table 1")


class ExpectedSweep(Grid):
    """Expected audits of all trainings of a network."""

    starts: int = Field(ge=2, le=1000, description="starts, with batches and noise of their own")
    network: Network | None = Field(default=None, description="the trained models' unless said")


class ExpectingGrid(LinearHeuristicGrid):
    """The whole section of a scale file."""

    expected: Several[ExpectedSweep] = Field(
        default=[], description="expected audits, from one training and a pass back a start"
    )


class Training(cells.TrainedAudit):
    """Parameters of a training, whatever the number of models of its real audit."""

    models: int = Field(default=0, exclude=True)


class ExpectedAudits(Grid):
    """Parameters that decide the expected audits of one network in one figure or table."""

    figure: str
    trainings: tuple[Training, ...]
    starts: int


def expected(grid: ExpectingGrid) -> list[Cell[ExpectedAudits]]:
    """A cell for each network in each figure and table."""
    found: list[tuple[str, ExpectedAudits]] = []
    for sweep in grid.expected:
        own = {} if sweep.network is None else dict(sweep.network)
        trained = grid.training.model_copy(update=own)
        audits = cells.trained_audits(grid.model_copy(update={"training": trained}))
        for figure, these in audits.items():
            if not these:
                continue
            trainings = tuple(part(Training, audit) for audit in these)
            p = ExpectedAudits(figure=figure, trainings=trainings, starts=sweep.starts)
            found.append((f"expected_{trained.model}_{figure}", p))
    return [Cell(name, p) for name, p in by_name(found).items()]


def cost(p: ExpectedAudits) -> float:
    """Seconds of one core that expected audits take.

    Beside the gradients: 5 ms a step to differentiate, 5 s a trajectory to account for.
    """
    batches = ((t.model, t.steps, t.records * t.sampling_rate) for t in p.trainings)
    each = (5 + n * (5e-3 + (1 + BACK) * step_seconds(m, batch)) for m, n, batch in batches)
    return p.starts * sum(each)
