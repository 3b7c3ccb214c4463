"""Limits of sections of cyclic_bounds: what no job, figure or table could make."""

from collections.abc import Iterator

from hiddenstate.papers.cyclic_bounds.cells import CyclicBoundsGrid
from hiddenstate.pipeline.family import at_most, limit


def limits(grid: CyclicBoundsGrid) -> Iterator[str]:
    """Exact divergences beyond doubles or memory, and what leaves a figure empty."""
    tight = grid.tightness
    yield from at_most("tightness.growths", max(tight.growths), 100)
    steps = tight.steps_per_pass
    why = f"with {steps:,} steps in each"
    yield from at_most("tightness.passes", max(tight.passes), 1e6, why, times=steps)
    curvatures = grid.sweeps.weak_convexity
    if 0 not in curvatures or max(curvatures) == 0:
        yield limit("sweeps.weak_convexity", curvatures, "0 and others, whose limit it is")
    if max(grid.weak_convexities) == 0:
        yield limit("weak_convexities", grid.weak_convexities, "one above 0")
    seen: dict[int, int] = {}
    for i, one in enumerate(grid.counterexamples):
        if one.passes > 1 and seen.setdefault(one.passes, one.steps) != one.steps:
            words = "another number of passes for each number of steps, which share an axis"
            yield limit(f"counterexamples.{i}.passes", one.passes, words)
