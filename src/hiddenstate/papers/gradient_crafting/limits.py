"""Limits of sections of gradient_crafting: what no job, figure or table could make."""

import math
from collections.abc import Iterator

from hiddenstate.accounting.iteration import LOCKED, MOST_NODES, NODES, RAREST, REACH
from hiddenstate.papers.gradient_crafting.grid import (
    HOUSING,
    GradientCraftingGrid,
    Hidden,
    Housing,
    Network,
    OneRun,
)
from hiddenstate.pipeline import held
from hiddenstate.pipeline.family import at_most, drawn, limit

PARAMETERS = {
    **{"mnist_cnn": 25_386, "mnist_linear": 7850, "cifar_cnn": 550_570, "digits_cnn": 3690},
    **{
        "digits_mlp": 1210,
        "digits_resnet": 3938,
        "fcnn": 124,
        "resnet18": 11_173_962,
        "wrn_16_4": 2_748_890,
    },
}
"""Of models of ten classes."""

MOST_SCORES = 2e7
"""Of one data set, in a cell: some gigabytes with what is made of them."""

EACH_UNIT, MOST_UNITS = 11, 2978
"""Parameters of a hidden unit of the housing network; beyond, coordinates are no short integers."""


def limits(grid: GradientCraftingGrid) -> Iterator[str]:
    """Laws beyond quadrature and doubles, more canaries than parameters, and names twice."""
    yield from drawn(
        grid,
        panels="norms.every one_run.epsilons ideal.every expected.every",
        lines="hidden.betas hidden.sampling_rates networks.sweeps.clipping_norms "
        "expected.epsilons expected.clipping_norms",
        rows="housing.sweeps housing.sweeps.epsilons networks.sweeps networks.sweeps.epsilons "
        "single.epsilons single.batch_sizes ideal.epsilons ideal.models one_run.housing "
        "one_run.idle one_run.networks.canaries",
        points="hidden.steps hidden.sampled_steps single.audited",
    )
    yield from _sweeps(grid)
    if grid.single:
        most = math.floor(10 * (-RAREST + math.log(grid.delta))) / 10
        words = f"at delta {grid.delta:g}, as it hangs on ever rarer outputs"
        yield from at_most("single.epsilons", max(grid.single.epsilons), most, words)
        repeats = grid.single.repeats
        why = f"in each of {repeats:,} repeats, whose scores memory holds at once"
        yield from at_most("single.runs", grid.single.runs, MOST_SCORES, why, times=repeats)
    if grid.hidden:
        yield from _hidden(grid.hidden)
    if grid.one_run:
        yield from _one_run(grid.one_run, grid.housing.hidden_units if grid.housing else 0)
    if grid.expected and 1.0 in grid.expected.clipping_norms:
        words = "norms beside 1, which is there without"
        yield limit("expected.clipping_norms", grid.expected.clipping_norms, words)


def _sweeps(grid: GradientCraftingGrid) -> Iterator[str]:
    if HOUSING in grid.networks:
        yield limit("networks", repr(HOUSING), "another name, as the housing network has this one")
    every: list[tuple[str, Housing | Network]] = []
    if grid.housing:
        every.append(("housing", grid.housing))
    every += [(f"networks.{name}", network) for name, network in grid.networks.items()]
    for name, network in grid.networks.items():
        yield from held.network(f"networks.{name}", network, "batch_size", network.batch_size)
    for key, section in every:
        for i, sweep in enumerate(section.sweeps):
            place = f"{key}.sweeps.{i}"
            inserted = section.insertions
            why = f"with {inserted:,} insertions"
            yield from at_most(f"{place}.every", sweep.every, 1e6, why, times=inserted)
            if len({*sweep.adversaries}) < len(sweep.adversaries):
                yield limit(f"{place}.adversaries", [*sweep.adversaries], "each once")
    if grid.housing:
        units = grid.housing.hidden_units
        yield from at_most("housing.hidden_units", units, MOST_UNITS)


def _hidden(part: Hidden) -> Iterator[str]:
    if not (part.betas or part.sampling_rates):
        yield limit("hidden.betas", [], "drifts, or sampling rates")
    if part.mu < 1e-6:
        yield limit("hidden.mu", part.mu, "at least 1e-06")
    steps, beta = max(part.steps), min(max(part.betas, default=0), LOCKED)
    if beta:
        reach, most = part.mu + REACH * math.sqrt(steps) + beta * steps, MOST_NODES // (2 * NODES)
        if reach > most:
            words = f"fewer: drifts of {beta:g} reach {reach:,.0f} deviations in them, of {most:,}"
            yield limit("hidden.steps", steps, words)
    for i, rate in enumerate(part.sampling_rates):
        if rate < 1e-6:
            yield limit(f"hidden.sampling_rates.{i}", rate, "at least 1e-06")
    yield from at_most("hidden.sampled_steps", max(part.sampled_steps), 1e7)


def _one_run(part: OneRun, units: int) -> Iterator[str]:
    if not (part.housing or part.idle or part.networks):
        yield limit("one_run.housing", [], "canaries, or idle ones, or networks")
    if part.housing:
        most = EACH_UNIT * units + 2
        yield from at_most("one_run.housing", max(part.housing), most, "parameters")
    for name, network in part.networks.items():
        place = f"one_run.networks.{name}"
        yield from held.network(place, network, "batch_size", network.batch_size)
        if (found := held.held(network.dataset)) and network.model in PARAMETERS:
            each = held.WIDTHS[network.model] + 1
            most = PARAMETERS[network.model] + each * (found.classes - 10)
            yield from at_most(f"{place}.canaries", max(network.canaries), most, "parameters")
            words = f"records, the half of {network.dataset} that is trained on"
            yield from at_most(f"{place}.batch_size", network.batch_size, found.private, words)
    # Of more than 1,000 no validity is simulated.
    few = max((canaries for canaries in part.idle if canaries <= 1000), default=0)
    held_at_once = "canaries, whose scores memory holds at once"
    why = f"with {few:,} {held_at_once}"
    yield from at_most("one_run.validity_audits", part.validity_audits, MOST_SCORES, why, times=few)
    draws = {"one_run": (part.null_draws, max(part.housing, default=0))} | {
        f"one_run.networks.{name}": (one.null_draws, max(one.canaries))
        for name, one in part.networks.items()
    }
    for place, (drawn_nulls, canaries) in draws.items():
        why = f"with {canaries:,} {held_at_once}"
        yield from at_most(f"{place}.null_draws", drawn_nulls, MOST_SCORES, why, times=canaries)
