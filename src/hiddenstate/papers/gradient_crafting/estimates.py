"""Estimates of gradient_crafting: what each audit found, and the exact laws beside it."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd

from hiddenstate.accounting import gaussian
from hiddenstate.auditing import empirical_curve, one_canary_ceiling, worlds
from hiddenstate.auditing.methods import CONFIDENCE, PUBLISHED
from hiddenstate.errors import InputError
from hiddenstate.papers.gradient_crafting import cells
from hiddenstate.papers.gradient_crafting.adversaries import ADVERSARIES, CRAFTED
from hiddenstate.papers.gradient_crafting.cells import HousingAudit, NetworkAudit
from hiddenstate.papers.gradient_crafting.grid import HOUSING, GradientCraftingGrid
from hiddenstate.papers.gradient_crafting.summaries import ALONE, NOISE_ALONE, Floats, Row, audit
from hiddenstate.pipeline.cells import Cell
from hiddenstate.pipeline.estimates import select
from hiddenstate.pipeline.family import Framed, Made

FEW = (100, 1000)
"""Models per data set that a canary in one run is compared with: the first ones of an audit."""

LEVELS = (
    *("part", "network", "every", "start", "adversary", "models", "epsilon", "clipping_norm"),
    *(
        "batch_size",
        "beta",
        "sampling_rate",
        "canaries",
        "hypothesis",
        "rule",
        "mu",
        "audits",
        "repeat",
    ),
)
"""Columns that there are whichever parts a scale has."""

PLOTTED = np.linspace(0, 1, 101)

UNUSED = "unused coordinates"
"""Method of canaries in one run whose coordinates nothing else moves."""


def estimate(grid: GradientCraftingGrid, scores: Made, bounds: Made) -> pd.DataFrame:
    """Every part's rows; the column ``part`` tells them apart.

    housing: epsilon and mu of every audit that is there, its trade-off curve, and how well audits
    of the same setting agree. network: epsilon and mu of the larger networks' audits. norms,
    centred: the same models in both readings, with and without the simulated end point.
    expected: share of mu that audits show on average, by what the adversary knows.
    single, hidden, ideal, one run: as their cells. single: audits of the simulated landscapes too.
    """
    rows = [
        *_housing(scores.of(cells.housing_audits)),
        *_centred(bounds.of(cells.centred), scores.of(cells.housing_audits)),
        *_networks(scores.of(cells.network_audits)),
        *_expected(scores.of(cells.expected)),
        *_norms(bounds.of(cells.followed)),
        *_landscapes(bounds.of(cells.landscapes)),
        *_simulated(scores.of(cells.simulated)),
        *_hidden(bounds.of(cells.distances)),
        *_ideal(bounds.of(cells.ideal)),
        *_one_run(bounds),
        *_one_run_validity(bounds.of(cells.one_run_validity)),
    ]
    found = pd.DataFrame(rows).assign(delta=grid.delta)
    return found.reindex(columns=[*found.columns, *(c for c in LEVELS if c not in found)])


def _worlds(scores: pd.DataFrame) -> tuple[Floats, Floats]:
    return worlds(scores.sort_values("run"))


def _audited(part: str, cell: Cell[HousingAudit] | Cell[NetworkAudit]) -> Row:
    """Columns that all rows of an audit share."""
    p = cell.parameters
    mu = gaussian.mu(p.epsilon, p.delta)
    idle = mu / p.every**0.5
    shared = {"part": part, "cell": cell.name} | p.model_dump(exclude={"adversaries", "rank"})
    return shared | {
        "mu": mu,
        "idle_mu": idle,
        "idle_epsilon": float(gaussian.epsilon_below(idle, p.delta)),
    }


def _networks(audits: Framed[NetworkAudit]) -> Iterator[Row]:
    for cell, scores in audits:
        shared = _audited("network", cell)
        for adversary, part in scores.groupby("adversary", sort=False):
            found = audit(*_worlds(part), cell.parameters.delta)
            yield from (shared | {"adversary": adversary} | row for row in found)


def _expected(found: Framed[cells.ExpectedAudits]) -> Iterator[Row]:
    """Share of the accountant's mu that audits show on average, by what the adversary knows."""
    for cell, table in found:
        shared: Row = {"part": "expected", "quantity": "share of mu", "kind": "expected"}
        shared |= {"cell": cell.name, "network": cell.parameters.network}
        shared |= {"starts": cell.parameters.starts, "orders": cell.parameters.orders}
        for row in table.rename(columns={"share": "value"}).to_dict("records"):
            yield shared | row


def _housing(audits: Framed[HousingAudit]) -> Iterator[Row]:
    for cell, scores in audits:
        p = cell.parameters
        shared = _audited("housing", cell)
        for adversary, part in scores.groupby("adversary", sort=False):
            inside, outside = _worlds(part)
            own = shared | {"adversary": adversary}
            yield from (own | row for row in audit(inside, outside, p.delta))
            few = [n for n in FEW if n < p.models and adversary == CRAFTED]
            for n in few if (p.every, p.start) == (1, "fresh") else []:
                found = audit(inside[:n], outside[:n], p.delta)
                yield from (own | row | {"part": "few", "models": n} for row in found)
            if p.repeat == 0:
                yield from (own | row for row in _curve(inside, outside))
    yield from _agreement(audits)


def _centred(ends: Framed[cells.SimulatedEnds], audits: Framed[HousingAudit]) -> Iterator[Row]:
    """Audits of the same models with their scores as published, and less the simulated end point.

    Beside them the deviation of what is known (the end points) over that of the noise, where the
    canary is a coordinate, and what of mu it leaves to the published score.
    """
    trained = {cell.parameters: (cell.name, scores) for cell, scores in audits}
    for cell, end_points in ends:
        p = cell.parameters.audit
        if p not in trained:
            continue
        name, scores = trained[p]
        keys = ["world", "repeat", "run", "adversary"]
        both = scores.merge(end_points, on=keys, suffixes=("", "_end"))
        if not (both["coordinate"] == both["coordinate_end"]).all():
            raise InputError(f"{name}: its coordinates are not those of its simulated end points")
        shared = _audited("centred", Cell(name, p)) | {"models": cell.parameters.models}
        noise = p.noise_deviation
        for adversary, part in both.groupby("adversary", sort=False):
            own = shared | {"adversary": adversary}
            for centred in (False, True):
                shown = part.assign(score=part["score"] - centred * part["score_end"])
                reading = {"reading": "known end point taken off" if centred else "as published"}
                yield from (own | reading | row for row in audit(*_worlds(shown), p.delta))
            if (part["coordinate"] >= 0).all():
                drift = float(part.groupby("world")["score_end"].std().mean()) / noise
                yield own | {"quantity": "known drift", "kind": "estimate", "value": drift}
                left = (part["score"] - part["score_end"]).groupby(part["world"]).std().mean()
                ratio = noise / float(left)
                yield own | {"quantity": "noise over spread", "kind": "estimate", "value": ratio}


def _curve(inside: Floats, outside: Floats) -> Iterator[Row]:
    """The observed trade-off curve at the plotted false-positive rates."""
    values = empirical_curve(inside, outside).tradeoff()(PLOTTED)
    for x, value in zip(PLOTTED, values, strict=True):
        yield {"quantity": "fnr", "method": "observed", "kind": "estimate", "x": x, "value": value}


def _agreement(audits: Framed[HousingAudit]) -> Iterator[Row]:
    """p-values of audits of fewer models against the largest of the same setting.

    Two-sample Kolmogorov-Smirnov tests, one per adversary and world. An adversary who draws one
    record or coordinate for the whole audit has another one there, and is left out.
    """
    from scipy import stats

    settings: dict[HousingAudit, Framed[HousingAudit]] = {}
    for cell, frame in audits:
        settings.setdefault(cells.setting_of(cell.parameters), []).append((cell, frame))
    for group in settings.values():
        most = max(cell.parameters.models for cell, _ in group)
        large = pd.concat(frame for cell, frame in group if cell.parameters.models == most)
        for small, scores in group:
            p = small.parameters
            if p.models == most or p.start != "fresh":
                continue
            for adversary in (word for word, entry in ADVERSARIES.items() if entry.each):
                for world in ("in", "out"):
                    wanted = {"adversary": adversary, "world": world}
                    one, other = (select(part, **wanted)["score"] for part in (scores, large))
                    if len(one) and len(other):
                        yield {"part": "housing", "cell": small.name, "quantity": "p_value"} | {
                            "method": "Kolmogorov-Smirnov",
                            "kind": "estimate",
                            "value": float(stats.ks_2samp(one, other).pvalue),
                            "epsilon": p.epsilon,
                            "models": p.models,
                            "most": len(other),
                            "adversary": adversary,
                            "world": world,
                        }


def _norms(followed: Framed[cells.Followed]) -> Iterator[Row]:
    """Median and the middle 80 % of the canary's gradient norm at each step."""
    for cell, norms in followed:
        p = cell.parameters
        table = norms.pivot(index="step", columns="run", values="norm")
        quantiles = table.quantile([0.1, 0.5, 0.9], axis=1)
        for step, (low, middle, high) in quantiles.items():
            yield {"part": "norms", "cell": cell.name, "quantity": "norm", "method": "median"} | {
                "kind": "estimate", "x": step, "value": middle, "low": low, "high": high,
                "every": p.audit.every, "epsilon": p.audit.epsilon, "models": p.runs,
                "clipping_norm": p.audit.clipping_norm,
            }  # fmt: skip
        for run, reached in (table >= p.audit.clipping_norm).mean().items():
            yield {"part": "norms", "cell": cell.name, "quantity": "share clipped"} | {
                "method": "share", "kind": "estimate", "x": run, "value": reached,
                "every": p.audit.every, "models": p.runs,
            }  # fmt: skip


_READINGS = {"epsilon_gdp": "Gaussian-DP reading", "epsilon_exact": "exact"}


def _landscapes(laws: Framed[cells.Landscape]) -> Iterator[Row]:
    for cell, table in laws:
        p = cell.parameters
        mu = gaussian.mu(p.epsilon, p.delta)
        for line in table.itertuples():
            shared = {"part": "single", "cell": cell.name, "epsilon": p.epsilon, "mu": mu} | {
                "batch_size": line.batch_size, "threshold": line.threshold, "x": line.step,
                "steps": p.steps, "kind": "exact",
            }  # fmt: skip
            for name, method in _READINGS.items():
                value = getattr(line, name)
                if not np.isnan(value):
                    yield shared | {"quantity": "epsilon", "method": method, "value": value}


def _simulated(audits: Framed[cells.SimulatedLandscape]) -> Iterator[Row]:
    for cell, scores in audits:
        p = cell.parameters
        shared = {"part": "single", "cell": cell.name, "threshold": "midpoint"} | {
            "epsilon": p.epsilon, "batch_size": p.batch_size, "steps": p.steps, "models": p.runs,
        }  # fmt: skip
        for repeat, part in scores.groupby("repeat"):
            found = audit(*_worlds(part), p.delta)
            yield from (shared | {"repeat": repeat} | row for row in found)


def _hidden(distances: Framed[cells.Distances]) -> Iterator[Row]:
    for cell, table in distances:
        p = cell.parameters
        shared = {"part": "hidden", "cell": cell.name, "method": "nearest Gaussian"} | {
            "kind": "exact", "mu": p.mu, "beta": p.beta, "sampling_rate": p.sampling_rate,
        }  # fmt: skip
        for line in table.itertuples():
            at = shared | {"x": line.step}
            distance = at | {"quantity": "distance"}
            yield distance | {"value": line.distance, "high": line.bound}
            yield at | {"quantity": "nearest mu", "value": line.mu}
            if p.sampling_rate is not None:
                upper = {"method": "Berry-Esseen", "kind": "upper", "value": line.berry_esseen}
                yield distance | upper


def _ideal(audits: Framed[cells.IdealAudits]) -> Iterator[Row]:
    """Mean, with one deviation as low and high, and how often the truth is exceeded."""
    every = [(cell, table, e) for cell, table in audits for e in cell.parameters.epsilons]
    for cell, table, epsilon in every:
        p = cell.parameters
        mu = gaussian.mu(epsilon, p.delta)
        truth = float(gaussian.epsilon_below(mu / p.every**0.5, p.delta))
        shared = {"part": "ideal", "cell": cell.name, "every": p.every, "models": p.models} | {
            "epsilon": epsilon, "mu": mu, "idle_epsilon": truth,
        }  # fmt: skip
        found = select(table, epsilon=epsilon)
        for method, values in found.groupby("method", sort=False)["value"]:
            kind = {"method": method, "kind": "estimate" if method == PUBLISHED else "lower"}
            mean, sd = values.mean(), values.std()
            yield shared | kind | {"quantity": "epsilon", "value": mean} | {
                "low": mean - sd, "high": mean + sd, "audits": len(values),
            }  # fmt: skip
            yield shared | kind | {"quantity": "share above", "kind": "estimate"} | {
                "value": float((values > truth).mean()), "audits": len(values),
            }  # fmt: skip


def _one_run(bounds: Made) -> Iterator[Row]:
    """Median and middle 80 % of the bounds, mean and sd, shares, and the ceiling."""
    every: list[tuple[str, Cell[Any], pd.DataFrame]] = [
        *((UNUSED, *one) for one in bounds.of(cells.one_run)),
        *((HOUSING, *one) for one in bounds.of(cells.one_run_housing)),
        *((one[0].parameters.network.model, *one) for one in bounds.of(cells.one_run_networks)),
    ]
    keys = ["canaries", "hypothesis", "rule"]
    for method, cell, table in every:
        p = cell.parameters
        shared = {"part": "one run", "cell": cell.name, "epsilon": p.epsilon}
        shared |= {"method": method, "audits": p.audits}
        for levels, part in table.groupby(keys, sort=False):
            yield from _one_run_rule(shared | dict(zip(keys, levels, strict=True)), p.delta, part)
        if method == UNUSED:
            ceiling = one_canary_ceiling(gaussian.mu(p.epsilon, p.delta), p.canaries)
            yield shared | {"quantity": "ceiling", "kind": "upper", "hypothesis": ALONE} | {
                "canaries": p.canaries, "value": float(gaussian.epsilon(ceiling, p.delta)),
            }  # fmt: skip


def _one_run_rule(own: Row, delta: float, part: pd.DataFrame) -> Iterator[Row]:
    """Summaries of one rule's bounds from independent models."""
    values = gaussian.epsilon_below(part["mu"], delta)
    low, middle, high = np.quantile(values, [0.1, 0.5, 0.9])
    made = part["made"].iloc[0]
    own = own | {"share": made / own["canaries"]}
    # The law of the noise alone is not the null law of a trained model: it bounds nothing.
    kind = "estimate" if own["rule"] == NOISE_ALONE else "lower"
    yield own | {"quantity": "epsilon", "kind": kind} | {
        "value": middle, "low": low, "high": high, "confidence": CONFIDENCE,
    }  # fmt: skip
    yield own | {"quantity": "mean epsilon", "kind": "estimate"} | {
        "value": values.mean(), "low": values.mean() - values.std(ddof=1),
        "high": values.mean() + values.std(ddof=1),
    }  # fmt: skip
    yield own | {"quantity": "share above", "kind": "estimate"} | {
        "value": float((values > own["epsilon"]).mean()),
    }  # fmt: skip
    if made:
        right = float((part["correct"] == part["made"]).mean())
        yield own | {"quantity": "share all right", "kind": "estimate", "value": right}


def _one_run_validity(audits: Framed[cells.OneRunValidity]) -> Iterator[Row]:
    """Rate at which bounds exceed the truth on mechanisms that attain the level."""
    for cell, table in audits:
        for line in table.itertuples():
            yield {"part": "one run validity", "cell": cell.name, "quantity": "share above"} | {
                "epsilon": cell.parameters.epsilon, "canaries": line.canaries,
                "hypothesis": line.hypothesis, "method": line.mechanism, "value": line.above,
                "kind": "estimate" if line.audits else "exact", "audits": line.audits,
            }  # fmt: skip
