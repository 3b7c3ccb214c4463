"""Estimates of encoding_loss: observed curves, empirical epsilons, and how much signal is kept."""

import math
from itertools import combinations, product
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from hiddenstate.accounting.tradeoff import TradeoffCurve
from hiddenstate.adversaries.encoding_loss import EncodingLoss, published
from hiddenstate.auditing import Tabulated, empirical_curve, lower_bound, worlds
from hiddenstate.auditing.kept_curves import read_curve
from hiddenstate.auditing.methods import CONFIDENCE, REPEATABLE
from hiddenstate.auditing.summaries import auc
from hiddenstate.dpsgd.linear import log_likelihood_ratio
from hiddenstate.papers.encoding_loss import cells
from hiddenstate.papers.encoding_loss.cells import (
    ENCODINGS,
    PRINTED,
    SWAPPED,
    EncodingLossGrid,
    Mechanism,
    Setting,
)
from hiddenstate.pipeline.family import Made

Curves = dict[tuple[str, str], TradeoffCurve]
"""Predicted trade-off curves by mechanism and null hypothesis."""
# Departure encoding_loss.cut_off: Algorithm 2 has no such cut-off.
RARE = 0.01
"""Least share of errors of either kind at which Algorithm 2 is compared."""
CUTS = (0.0, 0.001, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2)
"""Cut-offs at which it is shown: none, as printed, and seven of ours."""


def observe(scores: pd.DataFrame, *, null: str = "out") -> list[TradeoffCurve]:
    """Empirical trade-off curve of each repeat: the best FNR at each FPR 0, 1/runs, ..., 1.

    Scores are larger in the world that is not the null hypothesis.
    """
    curves = []
    for _, repeat in scores.groupby("repeat"):
        into, out = worlds(repeat)
        curve = empirical_curve(into, out) if null == "out" else empirical_curve(out, into)
        curves.append(curve.tradeoff())
    return curves


def algorithm_2(
    fpr: NDArray[np.float64],
    fnr: NDArray[np.float64],
    epsilons: NDArray[np.float64],
    predicted: NDArray[np.float64],
    *,
    rare: float,
) -> float:
    """Smallest epsilon whose predicted curve the observed one nowhere undercuts (an estimate).

    fpr, fnr: shape (n,). epsilons: shape (m,), ascending. predicted: shape (m, n). Only thresholds
    with error rates of at least ``rare`` count. Infinite if no epsilon qualifies.
    Source: Algorithm 2, lines 17 to 26.
    """
    counted = (np.minimum(fpr, fnr) >= rare) if rare else np.ones(len(fpr), dtype=bool)
    holds = np.all(fnr[counted] >= predicted[:, counted], axis=1)
    return float(epsilons[np.argmax(holds)]) if holds.any() else math.inf


def closest_curve(
    observed: NDArray[np.float64], epsilons: NDArray[np.float64], predicted: NDArray[np.float64]
) -> float:
    """Epsilon whose predicted curve is nearest in Lévy distance (an estimate).

    observed: totals of the observed curve, shape (n,). predicted: those of the predicted curves,
    shape (m, n). See ``TradeoffCurve.total``.
    """
    return float(epsilons[np.argmin(np.max(np.abs(observed - predicted), axis=1))])


def estimate(grid: EncodingLossGrid, scores: Made, bounds: Made) -> pd.DataFrame:
    """Curves of Figure 1, epsilons of Figure 2, and how well each encoding keeps the signal.

    The column ``cell`` names the mechanism, whichever encoding is used.
    """
    predicted: dict[Mechanism, Curves] = {}
    searched: dict[Setting, dict[float, Curves]] = {}
    epsilons: dict[Mechanism, float] = {}
    parts: list[pd.DataFrame] = []
    for accounted, table in bounds.of(cells.accounted):
        of = accounted.parameters.mechanism
        if isinstance(of, Mechanism):
            predicted[of], epsilons[of] = _curves(table), table["epsilon"].iloc[0]
            rows = _predicted_rows(predicted[of])
            parts.append(rows.assign(cell=of.name, epsilon=epsilons[of], **of.model_dump()))
        else:
            tables = table.groupby("epsilon", sort=True)
            searched[of] = {epsilon: _curves(part) for epsilon, part in tables}
    for cell, runs in scores.of(cells.simulated):
        encoding, mechanism = cell.parameters.encoding, cell.parameters.mechanism
        shared: dict[str, Any] = {"cell": mechanism.name, "encoding": encoding}
        shared |= mechanism.model_dump(exclude={"delta"})
        shared["noise_multiplier"] = runs["noise_multiplier"].iloc[0]
        found = [] if encoding == SWAPPED else [_signal_rows(runs)]
        if isinstance(mechanism, Mechanism):
            null = "in" if encoding == SWAPPED else "out"
            if encoding != PRINTED:
                found.append(_curve_rows(runs, predicted[mechanism], null))
            shared |= {"epsilon": epsilons[mechanism]}
            # Which of the data sets is the null hypothesis has a column of its own.
            shared |= {"encoding": "published"} if encoding == SWAPPED else {}
        elif encoding in ENCODINGS:
            if encoding == "published":
                noise, records = shared["noise_multiplier"], cell.parameters.records
                loss = published(noise, mechanism.sampling_rate, records)
                found.append(_theorem("largest gradient", _largest_gradient(loss)))
            by_epsilon = searched[mechanism.setting]
            found += _epsilon_rows(runs, by_epsilon)
        parts.append(pd.concat(found).assign(**shared))
    parts += [_theorem("product form", gap) for gap in _product_gaps()]
    return pd.concat(parts, ignore_index=True)


def _theorem(name: str, value: float) -> pd.DataFrame:
    """A number that a sentence of the text fixes, computed."""
    return pd.DataFrame([{"quantity": "theorem", "method": name, "kind": "exact", "value": value}])


def _largest_gradient(loss: EncodingLoss) -> float:
    """The largest gradient of an ordinary record at any parameter; an upper bound.

    A residual is at most half the spacing, where the likelihood ratio is largest.
    """
    largest = np.abs(loss.ratio(np.array([-0.5, 0.5]) * loss.spacing)).max()
    increment = loss.spacing * (10.0**loss.decimals * float(largest) + 1)
    return increment / loss.expected_sample


def _product_gaps() -> list[float]:
    """Distance of section 4.1's sum of logarithms from the joint likelihood ratio, by mechanism.

    The joint density is summed over all sets of steps that may have sampled the canary, with no use
    of the product. Each is the largest distance over fifty sequences of iterates.
    """
    gaps = []
    for sigma, rate, steps in ((0.5, 0.01, 8), (2.25, 0.1, 8), (1.0, 0.5, 10)):
        rng = np.random.default_rng(steps)
        seen = rng.binomial(1, rate, (50, steps)) + sigma * rng.standard_normal((50, steps))
        # All 2^steps sets of steps: more than ten steps would fill memory.
        sampled = np.array(list(product((0, 1), repeat=steps)))
        chance = np.prod(np.where(sampled == 1, rate, 1 - rate), axis=1)
        squares = ((seen[:, None, :] - sampled) ** 2 - seen[:, None, :] ** 2).sum(axis=2)
        joint = np.log(np.exp(-squares / (2 * sigma**2)) @ chance)
        gaps.append(float(np.abs(log_likelihood_ratio(seen, sigma, rate).sum(1) - joint).max()))
    return gaps


def _curves(bounds: pd.DataFrame) -> Curves:
    return {key: read_curve(part) for key, part in bounds.groupby(["mechanism", "null"])}


_PLOTTED = np.linspace(0, 1, 201)
_DIAGONAL = np.linspace(-1, 1, 4001)


def _predicted_rows(predicted: Curves) -> pd.DataFrame:
    return pd.concat(
        pd.DataFrame({"x": _PLOTTED, "value": curve(_PLOTTED)}).assign(
            quantity="fnr", method=mechanism, null=null, kind="lower"
        )
        for (mechanism, null), curve in predicted.items()
    )


def _curve_rows(cell: pd.DataFrame, predicted: Curves, null: str) -> pd.DataFrame:
    """Observed curves, and their Lévy distances from predictions and from each other."""
    curves = observe(cell, null=null)
    plotted = np.array([curve(_PLOTTED) for curve in curves])
    mean, deviation = plotted.mean(axis=0), plotted.std(axis=0, ddof=1)
    rows = pd.DataFrame(
        {"x": _PLOTTED, "value": mean, "low": mean - 2 * deviation, "high": mean + 2 * deviation}
    ).assign(quantity="fnr", method="observed", null=null, kind="estimate")
    # Half the largest gap between totals is the Lévy distance.
    halves = [curve.total(_DIAGONAL) / 2 for curve in curves]
    near = predicted["all iterates", null].total(_DIAGONAL) / 2
    # What a curve of so few runs strays by itself.
    ideal = observe(cell.assign(score=cell["all_iterates"]), null=null)
    strays = [curve.total(_DIAGONAL) / 2 for curve in ideal]
    gaps = [("all iterates", np.abs(half - near).max()) for half in halves]
    gaps += [("all iterates, observed", np.abs(half - near).max()) for half in strays]
    gaps += [("between repeats", np.abs(a - b).max()) for a, b in combinations(halves, 2)]
    distances = pd.DataFrame(gaps, columns=["method", "value"])
    distances = distances.assign(quantity="levy_distance", null=null, kind="estimate")
    both = [rows, distances]
    return pd.concat([*both, _gaps(curves, predicted)] if null == "out" else both)


def _gaps(curves: list[TradeoffCurve], predicted: Curves) -> pd.DataFrame:
    """Distances of false-negative rates from two predictions, at one rate ``x`` for each of them.

    That rate is where exact curves say that the gap is largest, so that nothing is chosen on what
    is observed: from the linear loss's curve, and, where false positives are the more frequent
    errors, from the symmetric prediction.
    """
    x = _PLOTTED
    linear, either, every = (
        predicted[key](x)
        for key in (("linear loss", "out"), ("all iterates", "either"), ("all iterates", "out"))
    )
    below = int(np.argmax(linear - every))
    above = int(np.argmax(np.where(x > either, every - either, -np.inf)))
    gaps = [("below linear loss", x[below], linear[below] - curve(x[below])) for curve in curves]
    gaps += [("above symmetric", x[above], curve(x[above]) - either[above]) for curve in curves]
    frame = pd.DataFrame(gaps, columns=["method", "x", "value"])
    return frame.assign(quantity="fnr_gap", null="out", kind="estimate")


def _epsilon_rows(cell: pd.DataFrame, by_epsilon: dict[float, Curves]) -> list[pd.DataFrame]:
    """Empirical epsilons of the repeats by each estimator, and a valid bound from all of them.

    Then Algorithm 2 of each repeat by cut-off ``x``: the least share of errors of either kind.
    """
    epsilons = np.array(list(by_epsilon))
    curves = observe(cell)
    fpr = curves[0].fpr
    symmetric = np.array([c["all iterates", "either"](fpr) for c in by_epsilon.values()])
    totals = np.array([c["all iterates", "out"].total(_DIAGONAL) for c in by_epsilon.values()])
    rows, cuts = [], []
    for repeat, curve in enumerate(curves):
        printed = (fpr, curve.fnr, epsilons, symmetric)
        cuts += [(repeat, cut, algorithm_2(*printed, rare=cut)) for cut in CUTS]
        rows += [
            ("algorithm 2", repeat, algorithm_2(*printed, rare=RARE)),
            ("every threshold", repeat, algorithm_2(*printed, rare=0)),
            ("closest curve", repeat, closest_curve(curve.total(_DIAGONAL), epsilons, totals)),
        ]
    frame = pd.DataFrame(rows, columns=["method", "repeat", "value"]).assign(kind="estimate")
    bound = lower_bound(
        *worlds(cell),
        Tabulated("epsilon", epsilons, [c["all iterates", "out"] for c in by_epsilon.values()]),
        REPEATABLE,
        confidence=CONFIDENCE,
    )
    frame.loc[len(frame)] = {"method": "lower bound", "value": bound.value, "kind": "lower"}
    frame.loc[frame["kind"] == "lower", "confidence"] = CONFIDENCE
    by_cut = pd.DataFrame(cuts, columns=["repeat", "x", "value"])
    by_cut = by_cut.assign(quantity="epsilon by cut-off", method="algorithm 2", kind="estimate")
    return [frame.assign(quantity="epsilon"), by_cut]


def _signal_rows(cell: pd.DataFrame) -> pd.DataFrame:
    """Share of the log-likelihood ratio that the last iterate keeps.

    Quantity "auc" is the probability that a run with the canary scores above one without it, for
    either adversary on the same runs of each repeat: what the runs' own scatter adds cancels in
    their difference.
    """
    kept = pd.DataFrame(
        {
            "quantity": ["correlation", "collision_probability", "spacing"],
            "method": ["with all iterates", "union bound", "encoding"],
            "kind": ["estimate", "upper", "exact"],
            "value": [
                np.corrcoef(cell["score"], cell["all_iterates"])[0, 1],
                cell["collision_probability"].iloc[0],
                cell["spacing"].iloc[0],
            ],
        }
    )
    told = [
        {"method": method, "repeat": repeat, "value": auc(*worlds(runs, column)).value}
        for repeat, runs in cell.groupby("repeat")
        for method, column in (("last iterate", "score"), ("all iterates", "all_iterates"))
    ]
    return pd.concat([kept, pd.DataFrame(told).assign(quantity="auc", kind="estimate")])
