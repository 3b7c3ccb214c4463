"""Accounting of linear_heuristic's cells, and the curves its audits are matched to."""

import math
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from hiddenstate.accounting import composition, history, linear, pld, quadratic, rdp, weighted
from hiddenstate.adversaries.repeaters import AnalogRepeaters, Repeaters, best_threshold
from hiddenstate.auditing.kept_curves import ALL_LINES, FEW_LINES, curve_rows
from hiddenstate.papers.linear_heuristic import cells, theorems
from hiddenstate.papers.linear_heuristic.grid import (
    AuditCurves,
    Figure1,
    Figure5,
    HistoryCurves,
    Optimisers,
    Quadratic,
    Schedules,
)
from hiddenstate.papers.linear_heuristic.ideal import (
    Curves,
    audited,
    epsilon_rows,
    heuristic_curves,
    reported_noises,
    tabulated,
)
from hiddenstate.pipeline.cells import Cell
from hiddenstate.pipeline.estimates import select


def _baselines(noise: ArrayLike, rate: ArrayLike, steps: ArrayLike, delta: float) -> pd.DataFrame:
    """Heuristic, standard and full-batch epsilon along a curve."""
    steps = np.asarray(steps)
    noise, rate = (np.broadcast_to(a, steps.shape) for a in (noise, rate))
    shared = {"steps": steps, "noise_multiplier": noise, "sampling_rate": rate, "delta": delta}
    standard = [
        pld.epsilon(s, q, int(t), delta) for s, q, t in zip(noise, rate, steps, strict=True)
    ]
    methods: list[tuple[str, str, ArrayLike]] = [
        ("heuristic", "exact", linear.last_iterate_epsilon(noise, rate, steps, delta)),
        ("standard", "upper", standard),
        ("full batch", "exact", linear.full_batch_epsilon(noise, rate, steps, delta)),
    ]
    return pd.concat(
        [epsilon_rows(method, kind, steps, value, **shared) for method, kind, value in methods]
    )


RARE = {"noise_multiplier": 0.1, "sampling_rate": 0.01, "steps": 1, "delta": 0.02}
"""A setting where the canary is sampled less often than delta, so that the heuristic is 0."""


def _exception() -> pd.DataFrame:
    """How far full batch is above the heuristic at that setting, which is outside of Figure 1."""
    excess = linear.full_batch_epsilon(*RARE.values()) - linear.last_iterate_epsilon(*RARE.values())
    row = {"quantity": "excess", "method": "full batch", "kind": "exact", "value": float(excess)}
    return pd.DataFrame([row | RARE | {"x": RARE["steps"]}])


def figure1a(cell: Cell[Figure1], seed: int) -> pd.DataFrame:
    """Baselines with expected samples and noise of the sum constant."""
    steps, delta = np.array(cell.parameters.constant.steps), cell.parameters.delta
    noise, rate = 5 / np.sqrt(steps), 1 / steps
    # Appendix B: all iterates of the full batch. dp-accounting composes them without knowing that
    # the sum of Gaussians is one.
    composed = [
        pld.epsilon(s / q, 1.0, int(t), delta, interval=pld.INTERVAL)
        for s, q, t in zip(noise, rate, steps, strict=True)
    ]
    return pd.concat(
        [
            _baselines(noise, rate, steps, delta),
            epsilon_rows("full batch, all iterates", "upper", steps, composed),
            _exception(),
        ]
    )


def figure1b(cell: Cell[Figure1], seed: int) -> pd.DataFrame:
    """Baselines with the standard epsilon constant."""
    p = cell.parameters
    steps = p.calibrated.steps
    noise = [pld.noise_multiplier(p.epsilon, p.delta, 1 / t, t) for t in steps]
    return _baselines(noise, 1 / np.array(steps), steps, p.delta)


def figure1c(cell: Cell[Figure1], seed: int) -> pd.DataFrame:
    """Baselines of one mechanism, and where the heuristic is below that of a single step."""
    p = cell.parameters
    every = np.arange(1, p.every_step_up_to + 1)
    heuristic = linear.last_iterate_epsilon(p.noise_multiplier, p.sampling_rate, every, p.delta)
    below = pd.Series(every[1:][heuristic[1:] < heuristic[0]], dtype=float)  # may be none
    # Section 4.1: at these numbers of steps a regulariser that forgets leaks more.
    single = pd.DataFrame(
        {
            "quantity": ["single_step", "least", "first_below", "last_below"],
            "x": [1, every[np.argmin(heuristic)], np.nan, np.nan],
            "value": [heuristic[0], heuristic.min(), below.min(), below.max()],
        }
    ).assign(method="heuristic", kind="exact")
    curve = _baselines(p.noise_multiplier, p.sampling_rate, p.fixed.steps, p.delta)
    return pd.concat([curve, single])


def quadratic_regulariser(cell: Cell[Quadratic], seed: int) -> pd.DataFrame:
    """Epsilon of the quadratic regulariser by its curvature, and what the theorems say."""
    p = cell.parameters
    at = np.linspace(0, 1, p.points)
    leak = [quadratic.last_iterate(p.noise_multiplier, p.sampling_rate, p.steps, c) for c in at]
    epsilons = [pair.epsilon(p.delta) for pair in leak]
    return pd.concat(
        [epsilon_rows("quadratic regulariser", "exact", at, epsilons), theorems.rows()]
    )


def figure5(cell: Cell[Figure5], seed: int) -> pd.DataFrame:
    """Epsilon at curvature 1/2 over the largest of the linear loss at up to as many steps."""
    p = cell.parameters
    (epsilon,) = p.epsilons
    rows: list[tuple[Any, ...]] = []
    ends: list[tuple[Any, ...]] = []
    for rate in p.sampling_rates:
        sigma = float(linear.last_iterate_noise_multiplier(epsilon, p.delta, rate, 1))
        every = linear.last_iterate_epsilon(sigma, rate, np.arange(1, max(p.steps) + 1), p.delta)
        for t in p.steps:
            pair = quadratic.last_iterate(sigma, rate, t, 0.5)
            exact = "exact" if t <= quadratic.MOST_STEPS else "upper"
            for method, kind, leak in (
                ("enumerated", exact, pair),
                ("rounded up", "upper", quadratic.round_up(pair)),
                ("rounded to nearest", "estimate", quadratic.round_up(pair, nearest=True)),
            ):
                value = leak.epsilon(p.delta) / every[:t].max()
                rows.append((method, kind, rate, t, sigma, epsilon, value))
            # Curvature 0 is a linear loss, and curvature 1 one of a single step.
            extremes = max(every[0], every[t - 1]) / every[:t].max()
            ends.append(("larger end", "exact", rate, t, sigma, epsilon, extremes))
    names = ["method", "kind", "sampling_rate", "steps", "noise_multiplier", "x", "value"]
    return pd.concat(
        pd.DataFrame(part, columns=names).assign(quantity=quantity)
        for quantity, part in (("ratio", rows), ("share of the largest", ends))
    )


def schedules(cell: Cell[Schedules], seed: int) -> pd.DataFrame:
    """Epsilon of the worst quadratic schedule found, and of the worst constant curvature."""
    p = cell.parameters
    parts = []
    for steps in p.steps:
        mechanism = (p.noise_multiplier, p.sampling_rate, steps)
        worst, weights = quadratic.worst_schedule(*mechanism, p.delta)
        constant = max(
            quadratic.last_iterate(*mechanism, curvature).epsilon(p.delta)
            for curvature in np.linspace(0, 1, p.points)
        )
        heuristic = linear.last_iterate_epsilon(*mechanism, p.delta)
        parts += [
            # Exact for its weights, hence a lower bound on the worst.
            epsilon_rows("schedule", "lower", [steps], [worst]),
            epsilon_rows("constant curvature", "lower", [steps], [constant]),
            epsilon_rows("heuristic", "exact", [steps], [heuristic]),
            epsilon_rows("weight", "exact", np.arange(1, steps + 1), weights, steps=steps).assign(
                quantity="weight"
            ),
        ]
    return pd.concat(parts)


def optimisers(cell: Cell[Optimisers], seed: int) -> pd.DataFrame:
    """The heuristic for what optimisers do with their steps, and composition."""
    p = cell.parameters
    sigma, rate = p.noise_multiplier, p.sampling_rate
    parts = []
    for steps in p.steps:
        ones, half = np.ones(steps), steps // 2
        noise = np.where(np.arange(steps) < half, p.early_noise, 1.0)
        band = _band(steps, p.band)
        # In the unit of what one step's gradient changes.
        correlated = weighted.correlated_noise_std(
            sigma * float(np.linalg.norm(band[:, 0])), ones, band
        )
        runs: dict[str, tuple[ArrayLike, dict[str, Any]]] = {
            "constant": (ones, {}),
            **{
                f"{name} schedule": (weighted.optimiser_weights(steps, schedule=name), {})
                for name in p.schedules
            },
            f"momentum {p.momentum:g}": (
                weighted.optimiser_weights(steps, momentum=p.momentum),
                {},
            ),
            f"weight decay {p.decay:g}": (
                weighted.optimiser_weights(steps, weight_decay=p.decay, learning_rate=1.0),
                {},
            ),
            f"first half with {p.early_noise:g} times the noise": (ones, {"noise_weights": noise}),
            f"noise correlated over {p.band} steps": (
                ones,
                {"noise_std": correlated},
            ),
        }
        for name, (weights, options) in runs.items():
            bounds = weighted.epsilon(sigma, rate, weights, p.delta, **options)
            parts.append(epsilon_rows(name, "upper", [steps], [bounds.upper], low=bounds.lower))
        standard = pld.epsilon(sigma, rate, steps, p.delta)
        parts.append(epsilon_rows("standard", "upper", [steps], [standard]))
    return pd.concat(parts).assign(noise_multiplier=sigma, sampling_rate=rate, delta=p.delta)


def _band(steps: int, band: int) -> NDArray[np.float64]:
    """The first ``band`` diagonals of the square root of the matrix of prefix sums."""
    from scipy.linalg import toeplitz

    column = np.zeros(steps)
    # Coefficients of (1 - x)^(-1/2), whose square has the prefix sums' coefficients, all 1.
    entries = np.cumprod([1.0, *((2 * i - 1) / (2 * i) for i in range(1, min(band, steps)))])
    column[: len(entries)] = entries
    return np.tril(toeplitz(column))


def history_regulariser(cell: Cell[HistoryCurves], seed: int) -> pd.DataFrame:
    """Epsilons of section 4.3, and the trade-off functions of composition."""
    p = cell.parameters
    mechanism = (p.noise_multiplier, p.sampling_rate, p.steps)
    leak = [history.epsilon(*mechanism, growth, p.delta) for growth in p.growths]
    standard = pld.epsilon(*mechanism, p.delta)
    heuristic = linear.last_iterate_epsilon(*mechanism, p.delta)
    curves = _standard_curves(*mechanism, p.delta, standard, p.resolution)
    return pd.concat(
        [
            epsilon_rows("history regulariser", "upper", p.growths, leak),
            epsilon_rows("heuristic", "exact", [1.0], [heuristic]),
            epsilon_rows("standard", "upper", [1.0], [standard]),
            _fnr(curves, steps=p.steps),
        ]
    )


def audits(cell: Cell[AuditCurves], seed: int) -> pd.DataFrame:
    """Epsilons of a panel, and the trade-off functions of heuristic and composition.

    Rows of quantity "fnr" have columns steps, method (whose curve), epsilon (the curve's), x
    (false-positive rate) and value (least false-negative rate, a lower bound).
    """
    p = cell.parameters
    parts = []
    for sigma, rate, steps in p.mechanisms():
        mechanism = (sigma, rate, steps)
        shared = {"steps": steps, "noise_multiplier": sigma, "sampling_rate": rate}
        bits = Repeaters(*mechanism, best_threshold(*mechanism, p.delta)).epsilon(p.delta)
        # With the largest noise of any step in all of them nothing leaks more.
        noise = float(AnalogRepeaters(*mechanism).noise_multipliers.max())
        kept = composition.bracket(noise, rate, steps, p.delta).lower
        parts += [
            _baselines(sigma, rate, [steps], p.delta),
            epsilon_rows("one bit a step", "exact", [steps], [bits], **shared),
            epsilon_rows("kept values", "lower", [steps], [kept], **shared),
            _fnr(heuristic_curves(*mechanism, p.delta, p.resolution), **shared),
            _fnr(_standard_curves(*mechanism, p.delta, p.epsilon, p.resolution), **shared),
        ]
    return pd.concat(parts)


def trained(cell: Cell[cells.TrainedCurves], seed: int) -> pd.DataFrame:
    """Epsilons of a trained mechanism, its curves, and what audits of linear losses would find.

    The latter is method "ideal": mean, and range of 90 %, over simulated audits of as many models
    by the estimator as published. No audit of so few models finds all that there is.
    """
    p = cell.parameters
    sigma = p.noise()
    mechanism = (sigma, p.sampling_rate, p.steps)
    shared = dict(zip(("noise_multiplier", "sampling_rate", "steps"), mechanism, strict=True))
    baselines = _baselines(sigma, p.sampling_rate, [p.steps], p.delta)
    standard = select(baselines, method="standard")["value"].iloc[0]
    heuristic = list(heuristic_curves(*mechanism, p.delta, p.resolution))
    curves = tabulated(heuristic)
    found = audited(mechanism, curves, p.ideal_audits, p.models, seed, cell.name, "ideal")
    low, high = np.quantile(found, [0.05, 0.95])
    return pd.concat(
        [
            baselines,
            epsilon_rows(
                "ideal", "estimate", [p.steps], [found.mean()], low=low, high=high, **shared
            ),
            _fnr(iter(heuristic), **shared),
            _fnr(_standard_curves(*mechanism, p.delta, standard, p.resolution), **shared),
        ]
    )


def _fnr(curves: Curves, **shared: float) -> pd.DataFrame:
    return pd.concat(
        curve_rows(curve)
        .rename(columns={"fpr": "x", "fnr": "value"})
        .assign(**shared, quantity="fnr", kind="lower", method=name, epsilon=epsilon)
        for name, epsilon, curve in curves
    )


def _standard_curves(
    sigma: float, rate: float, steps: int, delta: float, audited: float, resolution: float
) -> Curves:
    def interval(noise: float) -> float:
        # A grid of losses as coarse as the mechanism allows makes bounds pessimistic by 0.01.
        return pld.fine_interval(noise, rate, steps, most=4e-3)

    def leak(noise: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.array([pld.epsilon(s, rate, steps, delta, interval=interval(s)) for s in noise])

    for noise in reported_noises(sigma * np.geomspace(0.9, 16, 16), leak, audited, resolution):
        epsilon = pld.epsilon(noise, rate, steps, delta, interval=interval(noise))
        lines = FEW_LINES if steps >= 10 else ALL_LINES
        curve = pld.tradeoff_curve(
            noise, rate, steps, null="out", lines=lines, interval=interval(noise)
        )
        yield "standard", epsilon, curve


def table1(cell: Cell[cells.PrintedRow], seed: int) -> pd.DataFrame:
    """Epsilons of a row at the parameters that are recalled, and at those that we reconstruct."""
    p = cell.parameters
    rate = p.batch / p.records
    runs = {"reconstructed": (*_reconstruct(p.standard, p.heuristic, rate, p.delta), p.records)}
    if isinstance(p, cells.RecalledRow):
        # Departure linear_heuristic.table1_parameters: Table 1 states neither of these.
        recalled = (p.recalled_noise_multiplier, p.recalled_steps)
        runs = {
            "recalled": (*recalled, p.records),
            "recalled, fewer records": (*recalled, p.recalled_records),
            **runs,
        }
    return pd.concat(
        pd.concat(
            [
                _baselines(noise, p.batch / records, [steps], p.delta),
                epsilon_rows(
                    "RDP",
                    "upper",
                    [steps],
                    [rdp.epsilon(noise, p.batch / records, steps, p.delta)],
                    steps=steps,
                    noise_multiplier=noise,
                ),
            ]
        ).assign(origin=origin, records=records)
        for origin, (noise, steps, records) in runs.items()
    ).assign(
        batch=p.batch,
        accuracy=p.accuracy,
        printed_heuristic=p.heuristic,
        printed_standard=p.standard,
    )


def _reconstruct(standard: float, heuristic: float, rate: float, delta: float) -> tuple[float, int]:
    """Noise multiplier and most steps, past one epoch, at which both epsilons are as given."""

    def at(steps: int) -> tuple[float, bool]:
        # At these rates the interval is as tight as any, and need not be certified every time.
        noise = pld.noise_multiplier(standard, delta, rate, steps, interval=pld.INTERVAL)
        return noise, bool(linear.last_iterate_epsilon(noise, rate, steps, delta) < heuristic)

    low, high = math.ceil(1 / rate), math.ceil(2 / rate)
    while at(high)[1]:
        low, high = high, 2 * high
    # The printed digits fix the number of steps to about a percent.
    while high - low > max(1, low // 2000):
        middle = (low + high) // 2
        low, high = (middle, high) if at(middle)[1] else (low, middle)
    return at(low)[0], low
