"""Limits of sections of estimators: what no job, figure or table could make."""

from collections.abc import Iterator

from hiddenstate.papers.estimators.cells import EstimatorsGrid
from hiddenstate.pipeline.family import at_most, drawn, limit

LEAST, MOST = 0.01, 19.0
"""Privacy that bounds can be held against: their values lie 0.001 apart, and end at 20."""


def limits(grid: EstimatorsGrid) -> Iterator[str]:
    """Scores beyond memory, mechanisms beyond doubles, and a ladder beyond all models."""
    yield from drawn(grid, rows="gaussian sequential.truths sequential.looks scores ladder")
    yield from at_most("scores", max(grid.scores), 1e6, "scores of a data set")
    looks = max(grid.sequential.looks)
    yield from at_most("sequential.looks", looks, 1e5, "models, whose null law memory holds")
    if grid.leak.shift < 1e-6:
        yield limit("leak.shift", grid.leak.shift, "at least 1e-06")
    elif not LEAST <= (epsilon := grid.leak.setting.truth) <= MOST:
        words = f"{LEAST} to {MOST} for the epsilon at delta {grid.leak.delta:g}, which is "
        yield limit("leak.shift", grid.leak.shift, f"{words}{epsilon:.3g}")
    if grid.response.epsilon < LEAST:
        yield limit("response.epsilon", grid.response.epsilon, f"at least {LEAST}")
    for i, gaussian in enumerate(grid.gaussian):
        if 0 < gaussian.mu < LEAST:
            yield limit(f"gaussian.{i}.mu", gaussian.mu, f"0, or at least {LEAST}")
    if grid.composed.sampling_rate == 1:
        yield limit("composed.sampling_rate", 1, "less than 1; a full batch is one of `gaussian`")
    if min(grid.ladder) < 2:
        yield limit("ladder", min(grid.ladder), "at least 2 models, whose scores are ranked")
    if min(grid.ladder) > grid.models:
        expected = f"one of at most {grid.models:,}, the models"
        yield limit("ladder", min(grid.ladder), expected)
