"""Limits of sections of the atlas: what no job, figure or table could make."""

from collections.abc import Iterator

from hiddenstate.papers.atlas.cells import AtlasGrid
from hiddenstate.pipeline.family import at_most, drawn, limit


def limits(grid: AtlasGrid) -> Iterator[str]:
    """Audits of released checkpoints beyond time, and titles beyond a page."""
    yield from drawn(grid, panels="released", rows="settings")
    for i, one in enumerate(grid.released):
        why = f"with {grid.runs:,} runs, each step of which is drawn"
        yield from at_most(f"released.{i}.steps", one.steps, 1e9, why, times=grid.runs)
    for i, titled in enumerate(grid.settings):
        if len(titled.title) > 100:
            yield limit(f"settings.{i}.title", repr(titled.title), "at most 100 letters")
