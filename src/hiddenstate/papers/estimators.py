"""How far lower bounds can be trusted: false claims, tightness, and the bugs they find.

No paper of the five, but what all of them stand on. Two studies:

* *calibration*: every estimator of ``hiddenstate.auditing`` on simulated audits of mechanisms
  whose privacy is known exactly, for several numbers of scores a world. How often does it claim
  more than the truth, and how much does it claim?
* *detection*: a zoo of DP-SGD mistakes (``hiddenstate.dpsgd.mistakes``), each run with and without
  its canary. How many models does the default bound need to contradict the accountant?

The cells of the calibration write bounds, not scores: a hundred million scores would teach nothing
that the bounds do not say.
"""

import math
from collections.abc import Mapping
from functools import cache

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from pydantic import Field

from hiddenstate.accounting import linear
from hiddenstate.auditing import (
    ApproxDP,
    AsPublished,
    Averaged,
    Bonferroni,
    Fixed,
    GaussianDP,
    Split,
    Tabulated,
    UniformBand,
    composed,
)
from hiddenstate.auditing.families import Family as PrivacyFamily
from hiddenstate.auditing.intervals import clopper_pearson_upper
from hiddenstate.dpsgd import mistakes
from hiddenstate.papers import Cell, Family, FamilyGrid, Figure, Grid, Measurement
from hiddenstate.streams import stream

LEVEL = 0.05
BLOCK = 50
"""Audits that are simulated and bounded at once; a stream of their own each."""

STEP = 0.01
"""Spacing of mu and epsilon in the bounds of this study."""


class Composed(Grid):
    """A subsampled and composed mechanism that releases all iterates."""

    noise_multiplier: float = Field(gt=0.1, description="noise deviation over the clipping norm")
    sampling_rate: float = Field(gt=0, le=1, description="probability that a step samples a record")
    steps: int = Field(ge=1, le=1000, description="steps of DP-SGD")


class Leak(Grid):
    """A mechanism that shifts a unit Gaussian with some probability."""

    probability: float = Field(gt=0, lt=1, description="probability that the canary shows")
    shift: float = Field(gt=0, description="shift when it shows, in standard deviations")


class EstimatorsGrid(FamilyGrid):
    """Mechanisms, numbers of scores and of audits; and models of the zoo."""

    seed: int = Field(ge=0, description="root seed of the simulated audits")
    mus: list[float] = Field(description="Gaussian mechanisms, by their mu")
    composed: Composed
    leak: Leak
    delta: float = Field(gt=0, lt=1, description="probability at which epsilon is stated")
    scores: list[int] = Field(min_length=1, description="scores a world")
    audits: int = Field(ge=BLOCK, description="simulated audits a mechanism and number of scores")
    models: int = Field(ge=200, description="models a world in each of the zoo's cells")
    ladder: list[int] = Field(min_length=1, description="numbers of models a world to be judged")


def bound_cells(grid: EstimatorsGrid) -> list[Cell]:
    """Calibration: each mechanism, with all numbers of scores."""
    mechanisms: list[tuple[str, dict]] = [
        (f"gaussian_mu{mu:g}", {"mechanism": "gaussian", "mu": mu}) for mu in grid.mus
    ]
    mechanisms += [
        ("composed", {"mechanism": "composed"} | grid.composed.model_dump()),
        ("leak", {"mechanism": "leak"} | grid.leak.model_dump() | {"delta": grid.delta}),
    ]
    common = {"audits": grid.audits, "scores": grid.scores, "stream": grid.seed}
    return [Cell(name, parameters | common) for name, parameters in mechanisms]


def score_cells(grid: EstimatorsGrid) -> list[Cell]:
    """Detection: the whole zoo, which takes a second."""
    zoo = {name: vars(mistake.setup) for name, mistake in mistakes.MISTAKES.items()}
    return [Cell("mistakes", {"models": grid.models, "mistakes": zoo})]


def score(cell: Cell, seed: int) -> pd.DataFrame:
    """Scores of the last iterates of every mistaken mechanism."""
    models = cell.parameters["models"]
    parts = []
    for mistake in cell.parameters["mistakes"]:
        for world in ("in", "out"):
            rng = stream(seed, "estimators", mistake, world)
            values = mistakes.scores(mistake, canary=world == "in", runs=models, rng=rng)
            parts.append(
                pd.DataFrame(
                    {"mistake": mistake, "world": world, "repeat": 0, "run": np.arange(models)}
                    | {"score": values}
                )
            )
    return pd.concat(parts, ignore_index=True)


def bound(cell: Cell) -> pd.DataFrame:
    """Bounds of every estimator on every simulated audit of a cell.

    Columns: scores (a world), method, valid, parameter, truth, value, exceeds (value claims more
    than the truth), tightness (value over truth, inverted for a noise multiplier).
    """
    p = cell.parameters
    family, truth, threshold = _known(p)
    upward = family.trivial == 0
    parts = []
    for n in p["scores"]:
        for rule, value in _audit(cell, n, family, _rules(threshold)):
            with np.errstate(divide="ignore", invalid="ignore"):
                tightness = value / truth if upward else truth / value
            parts.append(
                pd.DataFrame(
                    {
                        "scores": n,
                        "method": rule.name,
                        "valid": rule.valid,
                        "parameter": family.parameter,
                        "truth": truth,
                        "value": value,
                        "exceeds": value > truth if upward else value < truth,
                        "tightness": tightness,
                    }
                )
            )
    return pd.concat(parts, ignore_index=True)


def _audit(cell: Cell, n: int, family: PrivacyFamily, rules: list):
    """Each rule with its bounds on all simulated audits of n scores a world."""
    audits = cell.parameters["audits"]
    values: list[list[NDArray]] = [[] for _ in rules]
    for block in range(math.ceil(audits / BLOCK)):
        rng = stream(cell.parameters["stream"], "estimators", cell.name, n, block)
        in_scores, out_scores = _simulate(cell.parameters, rng, (BLOCK, n))
        for rule, found in zip(rules, values, strict=True):
            found.append(rule.bounds(in_scores, out_scores, family, LEVEL)[0])
    return [
        (rule, np.concatenate(found)[:audits]) for rule, found in zip(rules, values, strict=True)
    ]


def _rules(threshold: float) -> list:
    return [
        Averaged(),
        Fixed(threshold),
        Split(),
        UniformBand(),
        UniformBand("dkw"),
        Bonferroni(),
        AsPublished(),
        Fixed(threshold, "jeffreys"),
        Fixed(threshold, "joint-beta"),
    ]


def _simulate(p: Mapping, rng: np.random.Generator, shape) -> tuple[NDArray, NDArray]:
    """In- and out-scores: the log-likelihood ratio of the mechanism's whole output, or a
    monotone function of it, so that the truth is attained."""
    if p["mechanism"] == "gaussian":
        return rng.normal(size=shape) + p["mu"], rng.normal(size=shape)
    if p["mechanism"] == "leak":
        shown = rng.random(shape) < p["probability"]
        return rng.normal(size=shape) + p["shift"] * shown, rng.normal(size=shape)
    sigma, q = p["noise_multiplier"], p["sampling_rate"]
    worlds = []
    for rate in (q, 0.0):
        ratio = np.zeros(shape)
        for _ in range(p["steps"]):
            shown = rng.normal(size=shape)
            if rate:
                shown += (rng.random(shape) < rate) / sigma
            ratio += np.log1p(q * np.expm1(shown / sigma - 0.5 / sigma**2))
        worlds.append(ratio)
    return worlds[0], worlds[1]


def _known(p: Mapping) -> tuple[PrivacyFamily, float, float]:
    """Privacy family, true parameter, and a threshold that needs no scores: likelihood ratio 1."""
    if p["mechanism"] == "gaussian":
        return GaussianDP(limit=10, step=STEP), p["mu"], p["mu"] / 2
    if p["mechanism"] == "leak":
        return ApproxDP(p["delta"], limit=12, step=STEP), _leak_epsilon(p), p["shift"] / 2
    family = _noise_family(p["noise_multiplier"], p["sampling_rate"], p["steps"])
    return family, p["noise_multiplier"], 0.0


def _leak_epsilon(p: Mapping) -> float:
    """Exact epsilon at delta of N(0, 1) against (1 - p) N(0, 1) + p N(shift, 1).

    That is one step of DP-SGD that samples the canary with probability p.
    """
    return float(linear.last_iterate_epsilon(1 / p["shift"], p["probability"], 1, p["delta"]))


@cache
def _noise_family(sigma: float, sampling_rate: float, steps: int) -> Tabulated:
    """The mechanism's own curves at noise multipliers 2 % apart, around the true one."""
    return composed(sigma * 1.02 ** np.arange(45, -19, -1), sampling_rate, steps)


def estimate(
    grid: EstimatorsGrid, scores: Mapping[str, pd.DataFrame], bounds: Mapping[str, pd.DataFrame]
) -> pd.DataFrame:
    """Exceedance and tightness of every estimator; power against every mistake."""
    rows = []
    for cell in bound_cells(grid):
        groups = bounds[cell.name].groupby(["scores", "method", "valid"], sort=False)
        for (n, method, valid), part in groups:
            shared = {
                "cell": cell.name,
                "method": method,
                "valid": valid,
                "parameter": part["parameter"].iloc[0],
                "truth": part["truth"].iloc[0],
                "x": n,
                "kind": "estimate",
            }
            rows.append({**shared, "quantity": "exceedance"} | _share(part["exceeds"]))
            for quantity in ("value", "tightness"):
                low, middle, high = part[quantity].quantile([0.1, 0.5, 0.9])
                rows.append(
                    {**shared, "quantity": f"median_{quantity}", "value": middle}
                    | {"low": low, "high": high}
                )
    return pd.DataFrame(rows + _power(grid, scores))


def _share(found: pd.Series | NDArray) -> dict[str, float]:
    """A share with its two-sided 95 % Clopper-Pearson interval."""
    n, count = len(found), int(np.sum(found))
    return {
        "audits": n,
        "value": count / n,
        "low": 1 - float(clopper_pearson_upper(n - count, n, 0.025)),
        "high": float(clopper_pearson_upper(count, n, 0.025)),
        "confidence": 0.95,
    }


def _power(grid: EstimatorsGrid, scores: Mapping[str, pd.DataFrame]) -> list[dict]:
    """Share of audits of n models a world that contradict the claim, disjoint models each."""
    zoo = scores["mistakes"]
    rows = []
    for name, mistake in mistakes.MISTAKES.items():
        runs = zoo[zoo["mistake"] == name]
        worlds = {w: part["score"].to_numpy() for w, part in runs.groupby("world")}
        family, claim = _claim(mistake.setup)
        for n in grid.ladder:
            audits = min(len(worlds["in"]) // n, 200)
            if audits == 0:
                continue
            in_scores, out_scores = (
                worlds[w][: audits * n].reshape(audits, n) for w in ("in", "out")
            )
            found = Averaged().contradicts(in_scores, out_scores, family, LEVEL, claim)
            rows.append(
                {
                    "quantity": "power",
                    "cell": name,
                    "method": Averaged.name,
                    "kind": "estimate",
                    "x": n,
                    "valid": True,
                    "mistake": mistake.title,
                    "truth": mistake.leak,
                }
                | _share(found)
            )
    return rows


def _claim(setup: mistakes.Setup) -> tuple[PrivacyFamily, int]:
    """What the accountant says of a setup: a family and the index of the claim in it."""
    if setup.sampling_rate == 1:
        mu = math.sqrt(setup.steps) / setup.noise_multiplier
        family = GaussianDP(limit=10, step=STEP)
        return family, int(np.argmin(np.abs(family.grid - mu)))
    family = _noise_family(setup.noise_multiplier, setup.sampling_rate, setup.steps)
    return family, int(np.argmin(np.abs(family.grid - setup.noise_multiplier)))


def _required(power: pd.DataFrame, share: float = 0.9) -> float:
    """Smallest number of models from which on the power is at least ``share``; infinite if none."""
    below = power.loc[power["value"] < share, "x"]
    above = power.loc[power["x"] > (below.max() if len(below) else 0), "x"]
    return float(above.min()) if len(above) else math.inf


_STYLES = {
    # method: label, colour role, line, marker
    "averaged": ("averaged (default)", "VALID", "-", "o"),
    "fixed threshold, clopper-pearson": ("fixed threshold", "OBSERVED", "-", "s"),
    "split": ("split", "OTHER", "-", "D"),
    "uniform band, beta": ("uniform band", 5, "-", "^"),
    "uniform band, dkw": ("uniform band, DKW", 8, "-", "v"),
    "Bonferroni": ("Bonferroni", 9, "-", "P"),
    "as published (not valid)": ("as published (not valid)", "PUBLISHED", ":", "X"),
    "fixed threshold, jeffreys": ("fixed, Jeffreys (credible)", 6, "--", "s"),
    "fixed threshold, joint-beta": ("fixed, joint-beta (credible)", "UPPER", "--", "d"),
}


def _columns(estimates: pd.DataFrame) -> list[tuple[str, str]]:
    """Mechanisms that the figure shows, and their titles."""
    mechanisms = estimates.loc[estimates["quantity"] == "exceedance", "cell"].unique()
    titles = {
        "gaussian_mu1": "Gaussian, $\\mu$ = 1",
        "gaussian_mu3": "Gaussian, $\\mu$ = 3",
        "composed": "subsampled and composed,\nits own curve",
        "leak": "rare shift,\n$(\\varepsilon, \\delta)$",
    }
    return [(name, title) for name, title in titles.items() if name in mechanisms]


def draw_calibration(estimates: pd.DataFrame):
    """Exceedance and tightness of every estimator against the number of scores."""
    from hiddenstate import plotting

    columns = _columns(estimates)
    figure, axes = plotting.panels(len(columns), 2, sharex=True, sharey="row", height=2.7)
    for row, quantity in enumerate(("exceedance", "median_tightness")):
        for column, (mechanism, title) in enumerate(columns):
            ax = axes[row * len(columns) + column]
            part = estimates[(estimates["quantity"] == quantity) & (estimates["cell"] == mechanism)]
            for i, (method, (label, color, line, marker)) in enumerate(_STYLES.items()):
                points = part[part["method"] == method].sort_values("x")
                color = (
                    plotting.PALETTE[color] if isinstance(color, int) else getattr(plotting, color)
                )
                style = {"color": color, "ls": line, "marker": marker, "ms": 4, "lw": 1.2}
                if row == 0:
                    # Side by side, or the intervals hide each other.
                    at = points["x"] * 1.03 ** (i - len(_STYLES) / 2)
                    errors = (points["value"] - points["low"], points["high"] - points["value"])
                    ax.errorbar(at, 100 * points["value"], 100 * np.array(errors), **style)
                    ax.lines[-1].set_label(label)
                else:
                    ax.plot(points["x"], points["value"], label=label, **style)
            ax.set_xscale("log")
            if row == 0:
                ax.axhline(100 * LEVEL, color="black", lw=0.8, ls="--", zorder=0)
                ax.set_title(title)
            else:
                ax.axhline(1, color="black", lw=0.8, ls="--", zorder=0)
                ax.set_xlabel("scores a world")
                ticks = sorted(part["x"].unique())
                ax.set_xticks(ticks, [f"{int(t):,}" for t in ticks], rotation=45)
                ax.minorticks_off()
    axes[0].set_ylabel("audits that claim more\nthan the truth (%)")
    axes[len(columns)].set_ylabel("median bound / truth")
    axes[0].set_yscale("symlog", linthresh=1, linscale=0.4)
    axes[0].set_yticks([0, 1, 2, 5, 10, 20, 50], ["0", "1", "2", "5", "10", "20", "50"])
    axes[0].set_ylim(-0.15, 60)
    handles, labels = axes[-1].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3)
    return figure


def draw_detection(estimates: pd.DataFrame):
    """Power of the default bound against every mistake and number of models."""
    from hiddenstate import plotting

    rows = estimates[estimates["quantity"] == "power"]
    table = rows.pivot(index="mistake", columns="x", values="value")
    needed = rows.groupby("mistake")[["x", "value"]].apply(_required)
    order = sorted(
        table.index, key=lambda m: (m.startswith("none"), needed[m], -table.loc[m].sum())
    )
    table = table.loc[order]
    figure, (ax,) = plotting.panels(1, height=0.26 * len(table) + 0.9)
    figure.set_figwidth(7)
    shown = ax.imshow(100 * table, cmap="Blues", vmin=0, vmax=100, aspect="auto")
    for i, j in np.ndindex(*table.shape):
        value = table.iloc[i, j]
        if np.isfinite(value):
            shade = "white" if value > 0.6 else "black"
            ax.text(j, i, f"{100 * value:.0f}", ha="center", va="center", color=shade, fontsize=7)
    ax.set_xticks(range(table.shape[1]), [f"{int(n):,}" for n in table.columns], rotation=45)
    ax.set_yticks(range(len(table)), table.index)
    ax.grid(False)
    ax.set_xlabel("models a world")
    figure.colorbar(shown, ax=ax, label="audits that contradict the claim (%)")
    return figure


def tabulate_calibration(estimates: pd.DataFrame) -> pd.DataFrame:
    """Median bound and exceedance of every estimator in every cell."""
    records = []
    rows = estimates[estimates["quantity"].isin(["exceedance", "median_value"])]
    for (mechanism, n), part in rows.groupby(["cell", "x"], sort=False):
        first = part.iloc[0]
        record = {
            "mechanism": mechanism.replace("_", " "),
            "scores a world": f"{int(n):,}",
            "truth": f"{first['parameter']} {first['truth']:.3g}",
        }
        values = part.pivot(index="method", columns="quantity", values="value")
        for method in _STYLES:
            if method in values.index:
                median, exceeds = values.loc[method, ["median_value", "exceedance"]]
                record[method] = f"{median:.2f} ({100 * exceeds:.1f} %)"
        records.append(record)
    return pd.DataFrame(records)


def tabulate_mistakes(estimates: pd.DataFrame) -> pd.DataFrame:
    """Models a world that the default bound needs to find each mistake in nine audits of ten."""
    records = []
    rows = estimates[estimates["quantity"] == "power"]
    for mistake, part in rows.groupby("mistake", sort=False):
        needed = _required(part)
        last = part.loc[part["x"].idxmax()]
        truth = last["truth"]
        records.append(
            {
                "mistake": mistake,
                "mu as run / mu as claimed": "" if pd.isna(truth) else f"{truth:.3g}",
                "models a world for power 0.9": (
                    f"{int(needed):,}" if math.isfinite(needed) else f"above {int(last['x']):,}"
                ),
                "power at the most models": f"{last['value']:.2f} at {int(last['x']):,} "
                f"({last['low']:.2f} to {last['high']:.2f}, {int(last['audits'])} audits)",
                "remark": mistakes.MISTAKES[last["cell"]].remark,
            }
        )
    return pd.DataFrame(records)


def _allowed(audits: float) -> float:
    """The level and three standard errors of a share over this many audits."""
    return LEVEL + 3 * math.sqrt(LEVEL * (1 - LEVEL) / audits)


def _validity_check(choose):
    """Exceedance is at most the level and three standard errors in every chosen cell."""

    def check(estimates: pd.DataFrame) -> Measurement:
        rows = estimates[estimates["quantity"] == "exceedance"]
        rows = rows[choose(rows)]
        allowed = rows["audits"].map(_allowed)
        worst = rows.loc[(rows["value"] - allowed).idxmax()]
        return Measurement(
            f"at most {100 * worst['value']:.1f} % of audits ({worst['cell']}, "
            f"{int(worst['x']):,} scores, {worst['method']}), over {len(rows)} points",
            f"5 % and three standard errors: {100 * allowed[worst.name]:.1f} %",
            bool((rows["value"] <= allowed).all()),
        )

    return check


def _check_as_published(estimates: pd.DataFrame) -> Measurement:
    """The published recipe exceeds the truth as often as is known of it."""
    rows = estimates[
        (estimates["quantity"] == "exceedance") & (estimates["method"] == AsPublished.name)
    ].set_index(["cell", "x"])
    stated = {
        ("gaussian_mu0", 100): 0.104,
        ("gaussian_mu1", 100): 0.099,
        ("gaussian_mu2", 100): 0.070,
        ("gaussian_mu1", 1000): 0.20,
    }
    found = rows["value"].reindex(stated)
    errors = [3 * math.sqrt(2 * s * (1 - s) / rows["audits"].iloc[0]) for s in stated.values()]
    # The last is known as "20 %" only.
    errors[-1] = max(errors[-1], 0.03)
    near = [abs(f - s) <= e for f, s, e in zip(found, stated.values(), errors, strict=True)]
    return Measurement(
        ", ".join(f"{100 * f:.1f} %" for f in found) + " (mu 0, 1, 2 at 100 scores; 1 at 1,000)",
        "three standard errors of both: " + ", ".join(f"{100 * e:.1f}" for e in errors),
        all(near),
    )


def _check_median(estimates: pd.DataFrame) -> Measurement:
    """The default bound is as tight as was aimed at."""
    rows = estimates[
        (estimates["quantity"] == "median_value") & (estimates["method"] == Averaged.name)
    ].set_index(["cell", "x"])
    goals = {("gaussian_mu1", 100): 0.70, ("gaussian_mu3", 100): 2.2}
    found = rows["value"].reindex(goals)
    return Measurement(
        ", ".join(f"{value:.2f}" for value in found) + " (true mu 1, 3; 100 scores a world)",
        "at least 0.70, 2.2",
        bool((found.to_numpy() >= np.array(list(goals.values()))).all()),
    )


def _check_mistakes(estimates: pd.DataFrame) -> Measurement:
    """At least ten mistakes are found, and the control is not."""
    rows = estimates[estimates["quantity"] == "power"]
    needed = rows.groupby("cell")[["x", "value"]].apply(_required)
    found = needed[np.isfinite(needed)]
    control = rows[rows["cell"] == "none"]
    quiet = bool((control["low"] <= LEVEL).all())
    return Measurement(
        f"{len(found)} of {len(needed) - 1} mistakes found with power 0.9, "
        f"with up to {int(found.max()):,} models a world; control "
        + ("at its level" if quiet else "above its level"),
        "at least 10; control's interval reaches 5 % at every number of models",
        len(found) >= 10 and "none" not in found.index and quiet,
    )


FAMILY = Family(
    title="How far the lower bounds can be trusted",
    reference="calibration of hiddenstate.auditing",
    grid=EstimatorsGrid,
    score_cells=score_cells,
    score=score,
    bound_cells=bound_cells,
    bound=bound,
    estimate=estimate,
    figures={
        "calibration": Figure(
            "Which estimator to trust",
            "Above: how often each estimator claims more than the truth, nominally in 5 % of the "
            "audits (dashed line), with 95 % intervals; a solid line is an estimator with a proof, "
            "a broken one has none. Below: its median bound over the truth (for the noise "
            "multiplier, truth over bound). Simulated audits of mechanisms whose privacy is known "
            "exactly: a Gaussian shift, judged by mu; the subsampled Gaussian composed over steps, "
            "judged by its noise multiplier with its own trade-off curve; a rare shift, judged by "
            "epsilon. The fixed threshold is where the likelihood ratio is 1 (half the shift), "
            "which an auditor seldom knows.",
            draw_calibration,
        ),
        "detection": Figure(
            "Mistakes found by an audit",
            "Share of audits in which the default bound contradicts the accountant, by DP-SGD "
            "mistake and number of models in each world. The control is correct and is "
            "contradicted in 5 % of the audits at most. Mistakes at the bottom leak less through "
            "this canary and the last iterate than the accountant allows, or hardly more.",
            draw_detection,
        ),
    },
    tables={
        "calibration": Figure(
            "Estimators in every cell",
            "Median bound, and in brackets the share of audits that claim more than the truth. "
            "A noise multiplier is bounded from above; inf: nothing claimed.",
            tabulate_calibration,
        ),
        "mistakes": Figure(
            "Models needed to find a mistake",
            "Models in each world from which on the default bound contradicts the accountant's "
            "claim in at least nine audits of ten, by disjoint models.",
            tabulate_mistakes,
        ),
    },
    checks={
        "default_holds": _validity_check(lambda rows: rows["method"] == Averaged.name),
        "valid_hold": _validity_check(
            lambda rows: rows["valid"].astype(bool) & (rows["method"] != Averaged.name)
        ),
        "null_is_null": _validity_check(
            lambda rows: rows["valid"].astype(bool) & (rows["cell"] == "gaussian_mu0")
        ),
        "as_published": _check_as_published,
        "default_is_tight": _check_median,
        "mistakes_found": _check_mistakes,
    },
)
