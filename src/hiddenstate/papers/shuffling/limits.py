"""Limits of sections of shuffling: what no job, figure or table could make."""

from collections.abc import Iterator

from hiddenstate.papers.shuffling.cells import ShufflingGrid
from hiddenstate.pipeline.family import at_most, drawn, limit, sampled


def limits(grid: ShufflingGrid) -> Iterator[str]:
    """Trainings of more steps than anything accounts for, or of no record beside the canary."""
    yield from drawn(grid, panels="claims", points="batches epochs", rows="networks.claims")
    nets, most = grid.networks, 1_000_000
    for key, batches, epochs in (
        ("batches", max(grid.batches), 1),
        ("repeated_batches", grid.repeated_batches, max(grid.epochs)),
        ("networks.batches", nets.batches, nets.epochs),
    ):
        yield from at_most(key, batches, most, f"with {epochs:,} epochs", times=epochs)
        yield from sampled(key, 1 / batches, batches * epochs, grid.delta, got=batches)
    models, why = nets.models, f"of {nets.models:,} models, whose scores memory holds at once"
    yield from at_most("networks.ideal_audits", nets.ideal_audits, 2e7, why, times=models)
    if nets.batches * nets.batch_size < 2:
        yield limit("networks.batch_size", nets.batch_size, "a record beside the canary")
