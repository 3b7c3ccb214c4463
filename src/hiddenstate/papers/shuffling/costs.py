"""Seconds of one core that the cells of shuffling take."""

from hiddenstate.papers.shuffling.cells import Simulated, Trained
from hiddenstate.pipeline.cells import Cell
from hiddenstate.pipeline.costs import step_seconds


def simulation_cost(cell: Cell[Simulated]) -> float:
    """Seconds of one core, of the noise's calibration and of the sums."""
    p = cell.parameters
    epochs = p.epochs if p.order == "each epoch" else 1
    return 0.3 + 5e-8 * 2 * p.repeats * p.runs * epochs * p.batches


def training_cost(cell: Cell[Trained]) -> float:
    """Seconds of one core, with a simulated training of each model."""
    p = cell.parameters
    return 4 * p.models * p.batches * p.epochs * step_seconds(p.model, p.batch_size)
