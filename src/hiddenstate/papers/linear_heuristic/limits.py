"""Limits of sections of linear_heuristic: what no job, figure or table could make."""

from collections.abc import Iterator

from hiddenstate.accounting.linear import last_iterate_epsilon
from hiddenstate.accounting.pld import least_delta
from hiddenstate.papers.linear_heuristic.expected_cells import ExpectingGrid
from hiddenstate.papers.linear_heuristic.grid import FixedNoise, Mechanism
from hiddenstate.pipeline import held
from hiddenstate.pipeline.family import at_most, drawn, limit, sampled

MOST_SCORES = 5e7
"""Of one data set, in a cell: some gigabytes with what is made of them."""


def limits(grid: ExpectingGrid) -> Iterator[str]:
    """Mechanisms whose epsilon is 0 or not computed, rows that no training has, and more."""
    yield from drawn(
        grid,
        panels="figure5.epsilons audits.sampling_rates training.figure2 expected.network.figure2",
        lines="expected",
        rows="schedules.steps table1.rows training.table1 expected.network.table1",
        points="optimisers.steps figure5.steps figure5.sampling_rates history.growths audits.steps "
        "training.figure2.steps training.figure4.steps expected.network.figure2.steps "
        "expected.network.figure4.steps",
    )
    training, history, table = grid.training, grid.history, grid.table1
    one, rates = grid.figure1, enumerate(grid.figure5.sampling_rates)
    yield from sampled("figure1.sampling_rate", one.sampling_rate, 1, one.delta)
    for i, rate in rates:
        yield from sampled(f"figure5.sampling_rates.{i}", rate, 1, grid.figure5.delta)
    for i, rate in enumerate(grid.audits.sampling_rates):
        steps, delta = min(grid.audits.steps), grid.audits.delta
        yield from sampled(f"audits.sampling_rates.{i}", rate, steps, delta)
    recipes = {f"figure2.{i}": recipe for i, recipe in enumerate(training.figure2)}
    for key, recipe in {**recipes, "figure4": training.figure4}.items():
        place, steps = f"training.{key}.sampling_rate", min(recipe.steps)
        yield from sampled(place, recipe.sampling_rate, steps, training.delta)
        if isinstance(recipe, FixedNoise):
            mechanism = (recipe.noise_multiplier, recipe.sampling_rate, steps)
            yield from _told(f"training.{key}", mechanism, training.delta)
    for key, setting, steps in (
        ("quadratic", grid.quadratic, grid.quadratic.steps),
        ("schedules", grid.schedules, min(grid.schedules.steps)),
        ("optimisers", grid.optimisers, min(grid.optimisers.steps)),
        ("history", history, history.steps),
    ):
        mechanism = (setting.noise_multiplier, setting.sampling_rate, steps)
        yield from _told(key, mechanism, setting.delta)
    for key, part in (("figure1", one), ("optimisers", grid.optimisers), ("history", history)):
        if part.noise_multiplier <= 0.1:
            yield limit(f"{key}.noise_multiplier", part.noise_multiplier, "more than 0.1")
    trained = [n for r in (*recipes.values(), training.figure4) for n in r.steps]
    for key, delta, steps in (
        ("audits", grid.audits.delta, max(grid.audits.steps)),
        ("training", training.delta, max(trained + [row.steps for row in training.table1])),
        ("figure1", one.delta, one.constant.most_steps),
        ("history", history.delta, history.steps),
    ):
        if delta < least_delta(steps):
            words = f"at least {least_delta(steps):.3g}, which dp-accounting resolves at its steps"
            yield limit(f"{key}.delta", delta, words)
    yield from _memory(grid)
    yield from at_most("optimisers.steps", max(grid.optimisers.steps), 5000)
    if not 1e-7 <= table.delta <= 1e-3:
        yield limit("table1.delta", table.delta, "1e-07 to 0.001, for steps of each row are sought")
    batch = table.rows[0].batch
    if table.recalled_records < batch:
        words = f"at least {batch}, the batch of the first row"
        yield limit("table1.recalled_records", table.recalled_records, words)
    for i, row in enumerate(table.rows):
        least = row.heuristic / 0.9
        if not 0.1 <= row.heuristic <= 18:
            yield limit(f"table1.rows.{i}.heuristic", row.heuristic, "0.1 to 18")
        elif not least <= row.standard <= 20:
            words = f"{least:.3g} to 20, for steps with the heuristic {row.heuristic:g} are sought"
            yield limit(f"table1.rows.{i}.standard", row.standard, words)
        if row.batch < 0.005 * table.records:
            words = f"at least {0.005 * table.records:,.0f}, one record in 200"
            yield limit(f"table1.rows.{i}.batch", row.batch, words)
    yield from held.network("training", training, "records", training.records)
    for i, sweep in enumerate(grid.expected):
        if network := sweep.network:
            path = f"expected.{i}.network"
            yield from held.network(path, network, "records", network.records)
    if training.views > 1 and training.dataset.removeprefix("raw:") == "housing":
        yield limit("training.views", training.views, "1, as these records are no images")


def _memory(grid: ExpectingGrid) -> Iterator[str]:
    """Scores and curves that are held at once and are more than a machine holds."""
    audits, history, training = grid.audits, grid.history, grid.training
    for key, runs, times, what in (
        ("audits.runs", audits.runs, len(audits.steps), "numbers of steps"),
        ("audits.runs", audits.runs, audits.repeats, "repeats"),
        ("history.runs", history.runs, len(history.growths), "growths"),
    ):
        why = f"of {times:,} {what}, whose scores memory holds at once"
        yield from at_most(key, runs, MOST_SCORES, why, times=times)
    own = (training.figure4, *training.figure2, *training.table1)
    models = max([training.models, *(one.models or 0 for one in own)])
    key, why = "training.ideal_audits", f"of {models:,} models, whose scores memory holds at once"
    yield from at_most(key, training.ideal_audits, MOST_SCORES, why, times=models)


def _told(key: str, mechanism: Mechanism, delta: float) -> Iterator[str]:
    if last_iterate_epsilon(*mechanism, delta) == 0:
        noise, rate, steps = mechanism
        words = (
            f"a larger one: delta {delta:g} covers {steps:,} steps at noise multiplier {noise:g}"
        )
        yield limit(f"{key}.sampling_rate", rate, words)
