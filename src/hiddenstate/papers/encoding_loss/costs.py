"""Seconds of one core that the simulations of encoding_loss take."""

from hiddenstate.papers.encoding_loss.cells import Simulated
from hiddenstate.pipeline.cells import Cell


def cost(cell: Cell[Simulated]) -> float:
    """Seconds of one core: 3.6 for 5,000 runs per data set and five repeats."""
    return 3.6 * cell.parameters.runs * cell.parameters.repeats / 25_000
