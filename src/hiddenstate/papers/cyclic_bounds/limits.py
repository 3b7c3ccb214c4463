"""Limits of sections of cyclic_bounds: what no job, figure or table could make."""

import math
from collections.abc import Iterator

from hiddenstate.accounting import cyclic, divergence
from hiddenstate.papers.cyclic_bounds.cells import CONSTANTS, CyclicBoundsGrid, Line, Logistic
from hiddenstate.pipeline.family import at_most, drawn, limit

MOST_STEPS = 30_000
"""Of a pass, in which shifts are spent to the end but for rounding."""

MOST_GROWTH = 700.0
"""Logarithm of what a pass may grow a shift by, whose inverse is a normal double."""

MOST_NODES = 10_000
"""Of the quadrature of a step on the line, whose square memory holds."""


def nodes(data: Line | Logistic, passes: int) -> float:
    """Nodes of the last step's quadrature at most, ten for each deviation of the noise."""
    if isinstance(data, Logistic):
        return 0.0
    run = data.base.run(passes=passes)
    # A clipped step moves an iterate by at most its step size times the clipping norm.
    spread = 2 * run.steps * run.step_size * run.clipping_norm / run.noise_std
    if data.slope > 0:
        # Convex losses hold iterates where the gradient is clipped, and some deviations beyond.
        settled = 2 * run.clipping_norm / (data.slope * run.noise_std)
        spread = min(spread, settled + 16 / math.sqrt(2 * run.step_size * data.slope))
    return 10 * (24 + spread)


def limits(grid: CyclicBoundsGrid) -> Iterator[str]:
    """Exact divergences beyond doubles or memory, and what leaves a figure empty."""
    yield from drawn(
        grid,
        panels="audit.data",
        lines="weak_convexities tightness.growths",
        rows="audit.passes counterexamples",
        points=" ".join([*(f"sweeps.{key}" for key, _ in grid.sweeps), "tightness.passes"]),
    )
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
    base, swept = grid.base, max(grid.sweeps.passes)
    yield from at_most("base.records", base.records, 1e6, "records, each a step of a single pass")
    in_a_pass = base.records // base.batch_size
    yield from at_most("base.records", base.records, MOST_STEPS * base.batch_size, "at its batches")
    yield from at_most("sweeps.passes", swept, 1e7, f"of {in_a_pass:,} steps", times=in_a_pass)
    for i, curvature in enumerate(grid.weak_convexities):
        run = base.run(weak_convexity=curvature)
        most = max(math.log(constant(*run.curvature)) for constant in CONSTANTS.values())
        if most * run.steps_per_pass > MOST_GROWTH:
            words = f"less, as {run.steps_per_pass:,} steps of a pass grow a shift beyond doubles"
            yield limit(f"weak_convexities.{i}", curvature, words)
    scores = len(grid.audit.passes)
    why = f"at {scores} numbers of passes, whose scores memory holds at once"
    yield from at_most("audit.runs", grid.audit.runs, 2e7, why, times=scores)
    for i, one in enumerate(grid.counterexamples):
        yield from at_most(f"counterexamples.{i}.runs", one.runs, 2e7, "that memory holds at once")
    for i, data in enumerate(grid.audit.data):
        most = nodes(data, max(grid.audit.passes))
        if most > MOST_NODES:
            words = f"fewer: {most:,.0f} nodes of quadrature hold audit.data.{i}, of {MOST_NODES:,}"
            yield limit("audit.passes", max(grid.audit.passes), words)
        if isinstance(data, Logistic):
            why = f"with points of {data.dimension:,} numbers, which memory holds at once"
            yield from at_most("audit.runs", grid.audit.runs, 1e8, why, times=data.dimension)
    runs = {"base": grid.base.run()}
    passes = max(grid.audit.passes)
    for i, data in enumerate(grid.audit.data):
        runs[f"audit.data.{i}.base"] = data.base.run(passes=passes)
    for key, run in runs.items():
        if divergence.gaussian_epsilon(cyclic.composition(run), grid.delta) == 0:
            words = f"a smaller one, as {key} has the standard epsilon 0 at it"
            yield limit("delta", grid.delta, words)
    seen: dict[int, int] = {}
    for i, one in enumerate(grid.counterexamples):
        if one.passes > 1 and seen.setdefault(one.passes, one.steps) != one.steps:
            words = "another number of passes for each number of steps, which share an axis"
            yield limit(f"counterexamples.{i}.passes", one.passes, words)
