"""What accounting says of linear_heuristic's cells, and the curves its audits are matched to."""

import math

import numpy as np
import pandas as pd

from hiddenstate.accounting import history, linear, pld, quadratic
from hiddenstate.adversaries.repeaters import Repeaters, best_threshold
from hiddenstate.papers import Cell


def bound(cell: Cell) -> pd.DataFrame:
    """What accounting says of a cell, as rows of estimates; for audits, trade-off functions too."""
    parts = {
        "figure1": _bound_figure1,
        "quadratic": _bound_quadratic,
        "figure5": _bound_figure5,
        "history": _bound_history,
        "audits": _bound_audits,
        "table1": _bound_table1,
    }
    (work,) = (work for part, work in parts.items() if cell.name.startswith(part))
    return work(cell).assign(cell=cell.name)


def _epsilons(method: str, kind: str, x, value, **more) -> pd.DataFrame:
    frame = pd.DataFrame({"x": np.asarray(x, dtype=float), "value": value, **more})
    return frame.assign(quantity="epsilon", method=method, kind=kind)


def _baselines(noise, rate, steps, delta) -> pd.DataFrame:
    """Heuristic, standard and full-batch epsilon along a curve."""
    steps = np.asarray(steps)
    noise, rate = (np.broadcast_to(a, steps.shape) for a in (noise, rate))
    shared = {"steps": steps, "noise_multiplier": noise, "sampling_rate": rate}
    standard = [
        pld.epsilon(s, q, int(t), delta) for s, q, t in zip(noise, rate, steps, strict=True)
    ]
    methods = [
        ("heuristic", "exact", linear.last_iterate_epsilon(noise, rate, steps, delta)),
        ("standard", "upper", standard),
        ("full batch", "exact", linear.full_batch_epsilon(noise, rate, steps, delta)),
    ]
    return pd.concat(
        [_epsilons(method, kind, steps, value, **shared) for method, kind, value in methods]
    )


def _bound_figure1(cell: Cell) -> pd.DataFrame:
    p = cell.parameters
    steps, delta = np.array(p["steps"]), p["delta"]
    if cell.name == "figure1a":
        return _baselines(5 / np.sqrt(steps), 1 / steps, steps, delta)
    if cell.name == "figure1b":
        noise = [pld.noise_multiplier(p["epsilon"], delta, 1 / t, int(t)) for t in steps]
        return _baselines(np.array(noise), 1 / steps, steps, delta)
    rate, sigma = p["sampling_rate"], p["noise_multiplier"]
    every = np.arange(1, p["every_step_up_to"] + 1)
    heuristic = linear.last_iterate_epsilon(sigma, rate, every, delta)
    below = every[1:][heuristic[1:] < heuristic[0]]
    # Section 4.1: at these numbers of steps a regulariser that forgets leaks more.
    single = pd.DataFrame(
        {
            "quantity": ["single_step", "least", "first_below", "last_below"],
            "x": [1, every[np.argmin(heuristic)], np.nan, np.nan],
            "value": [heuristic[0], heuristic.min(), below.min(), below.max()],
        }
    ).assign(method="heuristic", kind="exact")
    return pd.concat([_baselines(sigma, rate, steps, delta), single])


def _bound_quadratic(cell: Cell) -> pd.DataFrame:
    p = cell.parameters
    curvatures = np.linspace(0, 1, p["points"])
    leak = [
        quadratic.last_iterate(p["noise_multiplier"], p["sampling_rate"], p["steps"], c)
        for c in curvatures
    ]
    return _epsilons(
        "quadratic regulariser", "exact", curvatures, [q.epsilon(p["delta"]) for q in leak]
    )


def _bound_figure5(cell: Cell) -> pd.DataFrame:
    p = cell.parameters
    delta, steps = p["delta"], np.array(p["steps"])
    rows = []
    for rate in p["sampling_rates"]:
        sigma = float(linear.last_iterate_noise_multiplier(p["epsilon"], delta, rate, 1))
        every = linear.last_iterate_epsilon(sigma, rate, np.arange(1, steps.max() + 1), delta)
        for t in steps:
            pair = quadratic.last_iterate(sigma, rate, int(t), 0.5)
            largest = every[:t].max()
            exact = "exact" if t <= quadratic.MOST_STEPS else "upper"
            for method, kind, leak in (
                ("enumerated", exact, pair),
                ("rounded up", "upper", quadratic.round_up(pair)),
            ):
                value = leak.epsilon(delta) / largest
                rows.append((method, kind, rate, t, sigma, p["epsilon"], value))
    names = ["method", "kind", "sampling_rate", "steps", "noise_multiplier", "x", "value"]
    return pd.DataFrame(rows, columns=names).assign(quantity="ratio")


def _bound_history(cell: Cell) -> pd.DataFrame:
    p = cell.parameters
    mechanism = (p["noise_multiplier"], p["sampling_rate"], p["steps"])
    leak = [history.epsilon(*mechanism, growth, p["delta"]) for growth in p["growths"]]
    standard = pld.epsilon(*mechanism, p["delta"])
    heuristic = linear.last_iterate_epsilon(*mechanism, p["delta"])
    family = _standard_family(*mechanism, p["delta"], standard, p["resolution"])
    return pd.concat(
        [
            _epsilons("history regulariser", "upper", p["growths"], leak),
            _epsilons("heuristic", "exact", [1.0], [heuristic]),
            _epsilons("standard", "upper", [1.0], [standard]),
            _curves(family, {"steps": p["steps"]}),
        ]
    )


def _bound_audits(cell: Cell) -> pd.DataFrame:
    """Epsilons of a panel, and the trade-off functions of both families, from little leak to much.

    Rows of quantity "fnr" have columns steps, method (the family), epsilon (the curve's), x
    (false-positive rate) and value (least false-negative rate, a lower bound).
    """
    p = cell.parameters
    rate, delta = p["sampling_rate"], p["delta"]
    parts = []
    for steps in p["steps"]:
        sigma = pld.noise_multiplier(p["epsilon"], delta, rate, steps)
        shared = {"steps": steps, "noise_multiplier": sigma, "sampling_rate": rate}
        threshold = best_threshold(sigma, rate, steps, delta)
        bits = Repeaters(sigma, rate, steps, threshold).epsilon(delta)
        parts.append(_baselines(sigma, rate, [steps], delta))
        parts.append(_epsilons("one bit a step", "exact", [steps], [bits], **shared))
        parts.append(_curves(_heuristic_family(sigma, rate, steps, delta, p["resolution"]), shared))
        standard = _standard_family(sigma, rate, steps, delta, p["epsilon"], p["resolution"])
        parts.append(_curves(standard, shared))
    return pd.concat(parts)


def _curves(family, shared: dict) -> pd.DataFrame:
    return pd.concat(
        pd.DataFrame({"x": curve.fpr, "value": curve.fnr}).assign(
            **shared, quantity="fnr", kind="lower", method=name, epsilon=epsilon
        )
        for name, epsilon, curve in family
    )


def _targets(audited: float, resolution: float) -> np.ndarray:
    """Epsilons that an audit can report: up to a tenth above the audited one."""
    return audited * np.arange(resolution, 1.1 + resolution / 2, resolution)


def _heuristic_family(sigma, rate, steps, delta, resolution):
    audited = float(linear.last_iterate_epsilon(sigma, rate, steps, delta))
    for epsilon in _targets(audited, resolution):
        noise = float(linear.last_iterate_noise_multiplier(epsilon, delta, rate, steps))
        curve = linear.tradeoff_curve(noise, rate, steps, null="out", lines=501)
        yield "heuristic", epsilon, curve


def _standard_family(sigma, rate, steps, delta, audited, resolution):
    # Epsilon is smooth in the noise on logarithmic axes; each curve states its own epsilon, so the
    # interpolation need not be exact. A coarse grid of losses makes bounds pessimistic by 0.01.
    interval = 4e-3
    coarse = sigma * np.geomspace(0.9, 16, 16)
    leak = [pld.epsilon(s, rate, steps, delta, interval=interval) for s in coarse]
    targets = _targets(audited, resolution)
    targets = targets[targets > leak[-1]]
    for noise in np.exp(np.interp(-np.log(targets), -np.log(leak), np.log(coarse))):
        epsilon = pld.epsilon(noise, rate, steps, delta, interval=interval)
        curve = pld.tradeoff_curve(noise, rate, steps, null="out", interval=interval)
        yield "standard", epsilon, curve


def _bound_table1(cell: Cell) -> pd.DataFrame:
    p = cell.parameters
    rate, delta = p["batch"] / p["records"], p["delta"]
    parts = []
    if "recalled_steps" in p:
        recalled = _baselines(p["recalled_noise_multiplier"], rate, [p["recalled_steps"]], delta)
        parts.append(recalled.assign(origin="recalled"))
    noise, steps = _reconstruct(p["standard"], p["heuristic"], rate, delta)
    parts.append(_baselines(noise, rate, [steps], delta).assign(origin="reconstructed"))
    return pd.concat(parts).assign(
        batch=p["batch"],
        records=p["records"],
        accuracy=p["accuracy"],
        printed_heuristic=p["heuristic"],
        printed_standard=p["standard"],
    )


def _reconstruct(standard: float, heuristic: float, rate: float, delta: float):
    """Noise multiplier and most steps, past one epoch, at which both epsilons are as given."""

    def at(steps: int) -> tuple[float, bool]:
        noise = pld.noise_multiplier(standard, delta, rate, steps)
        return noise, bool(linear.last_iterate_epsilon(noise, rate, steps, delta) < heuristic)

    low, high = math.ceil(1 / rate), math.ceil(2 / rate)
    while at(high)[1]:
        low, high = high, 2 * high
    # The printed digits fix the number of steps to about a percent.
    while high - low > max(1, low // 2000):
        middle = (low + high) // 2
        low, high = (middle, high) if at(middle)[1] else (low, middle)
    return at(low)[0], low
