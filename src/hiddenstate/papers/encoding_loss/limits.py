"""Limits of sections of encoding_loss: what no job, figure or table could make."""

from collections.abc import Iterator

from hiddenstate.accounting import pld
from hiddenstate.papers.encoding_loss.cells import EncodingLossGrid
from hiddenstate.pipeline.family import at_most, drawn, limit, sampled

MOST_SEARCHED = 1000
"""Epsilons that Algorithm 2 searches, each with curves that memory holds."""


def limits(grid: EncodingLossGrid) -> Iterator[str]:
    """Mechanisms that are not calibrated, and runs beyond memory."""
    yield from drawn(grid, panels="curves settings", lines="epsilons")
    for i, setting in enumerate(grid.settings):
        key = f"settings.{i}.sampling_rate"
        yield from sampled(key, setting.sampling_rate, setting.steps, grid.delta)
        yield from at_most(f"settings.{i}.steps", setting.steps, 100_000)
    for i, curve in enumerate(grid.curves):
        mechanism = (curve.noise_multiplier, curve.sampling_rate, curve.steps)
        if pld.points(*mechanism, pld.fine_interval(*mechanism)) > pld.MOST_POINTS:
            words = f"more, for so many losses that {curve.steps:,} steps have at it fill memory"
            yield limit(f"curves.{i}.noise_multiplier", curve.noise_multiplier, words)
    steps = max(one.steps for one in (*grid.settings, *grid.curves))
    why = f"with {steps:,} steps, which memory holds at once"
    yield from at_most("runs", grid.runs, 1e8, why, times=steps)
    names = ("repeats", "figure2_repeats", "swapped_repeats")
    repeats = max(getattr(grid, name) or 0 for name in names)
    why = f"in each of {repeats:,} repeats, whose scores memory holds at once"
    yield from at_most("runs", grid.runs, 2e7, why, times=repeats)
    first, last = grid.epsilon_range
    if (last - first) / grid.epsilon_step > MOST_SEARCHED:
        words = f"at least {(last - first) / MOST_SEARCHED:.3g}, for {MOST_SEARCHED:,} curves"
        yield limit("epsilon_step", grid.epsilon_step, words)
