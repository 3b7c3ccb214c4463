"""Limits of sections of encoding_loss: what no job, figure or table could make."""

from collections.abc import Iterator

from hiddenstate.papers.encoding_loss.cells import EncodingLossGrid
from hiddenstate.pipeline.family import at_most, sampled


def limits(grid: EncodingLossGrid) -> Iterator[str]:
    """Mechanisms that are not calibrated, and runs beyond memory."""
    for i, setting in enumerate(grid.settings):
        key = f"settings.{i}.sampling_rate"
        yield from sampled(key, setting.sampling_rate, setting.steps, grid.delta)
    steps = max(one.steps for one in (*grid.settings, *grid.curves))
    why = f"with {steps:,} steps, which memory holds at once"
    yield from at_most("runs", grid.runs, 1e9, why, times=steps)
