"""Cells of shuffling: mechanisms whose noise Poisson's accountant calls enough, and networks."""

from typing import Literal, get_args

from pydantic import Field

from hiddenstate.accounting import batched, pld
from hiddenstate.pipeline.cells import (
    Cell,
    Count,
    Delta,
    Epsilon,
    FamilyGrid,
    Grid,
    Name,
    Positive,
    Several,
    Steps,
    by_name,
    part,
)
from hiddenstate.rounding import short

NAME = "shuffling"

Order = Literal["once", "each epoch"]
ORDERS: tuple[Order, ...] = get_args(Order)

Record = Literal["swapped", "zeroed out", "swapped, others silent"]
RECORDS: dict[Record, tuple[float, float]] = {
    "swapped": batched.SWAPPED,
    "zeroed out": batched.ZEROED,
    "swapped, others silent": batched.SILENT,
}
"""How the data sets differ: shifts of the record's batch in either."""

SILENT: Record = "swapped, others silent"
"""What a crafted gradient in an unused coordinate is."""


class Networks(Grid):
    """Trained networks: a crafted gradient is one of the records, and turned round in world out."""

    dataset: Name = Field(description="data set whose first records are trained on")
    model: Name = Field(description="a name in hiddenstate.models.MODELS")
    claims: Several[Epsilon] = Field(min_length=1, description="epsilons by Poisson's accountant")
    batches: Count = Field(description="batches of an epoch")
    batch_size: Count = Field(description="records of a batch")
    epochs: Steps = Field(description="epochs of a training")
    learning_rate: Positive = Field(description="step size on the mean of a batch")
    models: int = Field(ge=10, le=1_000_000, description="models per data set in each audit")
    ideal_audits: int = Field(
        ge=2, le=10_000, description="simulated audits of as many models whose losses are linear"
    )


class ShufflingGrid(FamilyGrid):
    """The section of a scale file."""

    delta: Delta = Field(description="probability at which epsilon is stated")
    claims: Several[Epsilon] = Field(min_length=1, description="epsilons by Poisson's accountant")
    batches: Several[Count] = Field(min_length=1, description="batches of an epoch; of one epoch")
    epochs: Several[Steps] = Field(min_length=1, description="epochs, with the batches below")
    repeated_batches: Count = Field(description="batches of an epoch, where epochs are varied")
    runs: int = Field(ge=10, le=10_000_000, description="simulated runs per data set")
    networks: Networks


class Mechanism(Grid):
    """Shuffled batches with the noise at which Poisson's accountant says the claimed epsilon."""

    claim: float
    delta: float
    batches: int
    epochs: int
    order: Order

    @property
    def name(self) -> str:
        drawn = self.order.replace(" ", "_")
        return f"eps{short(self.claim)}_{self.batches}x{self.epochs}_{drawn}"

    @property
    def noise_multiplier(self) -> float:
        """Calibrated for batches that are sampled with the probability of one batch."""
        steps = self.batches * self.epochs
        return pld.noise_multiplier(self.claim, self.delta, 1 / self.batches, steps)


class Simulated(Mechanism):
    """Parameters that decide simulated audits."""

    record: Record
    runs: int
    repeats: int


class Trained(Mechanism):
    """Parameters that decide the scores of trained networks."""

    dataset: str
    model: str
    batch_size: int
    learning_rate: float
    models: int


def simulated(grid: ShufflingGrid) -> list[Cell[Simulated]]:
    """Every mechanism with either record, and the networks' with linear losses."""
    numbers = [(batches, 1) for batches in grid.batches]
    numbers += [(grid.repeated_batches, epochs) for epochs in grid.epochs]
    found = [
        part(
            Simulated, grid, claim=claim, batches=batches, epochs=epochs, order=order,
            record=record, repeats=1,
        )
        for claim in grid.claims
        for batches, epochs in dict.fromkeys(numbers)
        # The orders of one epoch are the same.
        for order in (ORDERS if epochs > 1 else ORDERS[1:])
        for record in ("swapped", "zeroed out")
    ]  # fmt: skip
    repeats = grid.networks.ideal_audits
    found += [
        part(
            Simulated, cell.parameters, record=SILENT, runs=cell.parameters.models, repeats=repeats
        )
        for cell in trained(grid)
    ]
    named = by_name((f"{p.name}_{p.record.replace(', ', ' ').replace(' ', '_')}", p) for p in found)
    return [Cell(name, p) for name, p in named.items()]


def trained(grid: ShufflingGrid) -> list[Cell[Trained]]:
    """A cell for each claim and order."""
    n = grid.networks
    every = [
        part(Trained, grid, n, claim=claim, order=order) for claim in n.claims for order in ORDERS
    ]
    return [Cell(f"{p.model}_{p.name}", p) for p in every]
